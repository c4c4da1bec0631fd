"""The parts of the machine that all of the package uses: files, functions in machine code, memory."""

import ast
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from numba.core.caching import FunctionCache
from project.test_layout_of_the_project import parsed

from pebblesim.core import jit, memory
from pebblesim.core.errors import UsageError
from pebblesim.core.files import reading, whole_file

SOURCES = [path for folder in ("pebblesim", "graphs") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_two_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    """Whoever ends last has the file, and each of them writes all of it: also threads, and processes with one id."""
    path = tmp_path / "rows.csv"
    with whole_file(path) as slow:
        slow.write_text("slow, ")
        with whole_file(path) as fast:
            fast.write_text("fast")
        assert path.read_text() == "fast"
        with slow.open("a") as file:
            file.write("but whole")
    assert path.read_text() == "slow, but whole"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as unfinished:
        unfinished.write_text("half")
        _ = 1 // 0
    missing = tmp_path / "no" / "rows.csv"
    with pytest.raises(UsageError, match=r"cannot write .*: there is no folder"), whole_file(missing) as unfinished:
        unfinished.write_text("new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_written_whole_in_one_place() -> None:
    """Nobody else names an unfinished file or puts one in the place of another."""
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        if path.name != "files.py" and (".part" in source or re.search(r"\bos\b", source)):
            tree = parsed(path)
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            replaced = [
                ast.unparse(call) for call in calls if isinstance(call, ast.Attribute) and call.attr == "replace"
            ]
            texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            assert not any(str(text).endswith(".part") for text in texts), path
            assert "os.replace" not in replaced, path


KERNEL = """
from constants_of_test import STEP
from pebblesim.core.jit import kernel

@kernel(STEP)
def stepped(x):
    return x + STEP
"""


def test_a_function_on_disk_knows_the_constants_of_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own file stays as it is while the other one changes; with numba's own `njit` the second result is 2, too."""
    (tmp_path / "kernels_of_test.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    outputs = []
    for value in (2, 3):
        (tmp_path / "constants_of_test.py").write_text(f"STEP = {value}\n")
        for name in ("constants_of_test", "kernels_of_test"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        invalidate_caches()
        outputs.append(import_module("kernels_of_test").stepped(0))
    assert outputs == [2, 3]


CONSTANTS = """
from pebblesim.core.jit import kernel

@kernel()
def next(x):
    return x + 1

@kernel()
def total(x):
    return next(x) + next(1) + next(2)
"""


PARTS = """
from pebblesim.core.jit import kernel, part

@part()
def doubled(row, x):
    row[0] = 2 * x

@kernel(allocates=False)
def total(row, x):
    doubled(row, x)
    return row[0] + 1
"""


def test_a_part_of_a_kernel_is_no_entry_for_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it is compiled, nor when it comes from disk: there is no code that Python could call."""
    (tmp_path / "with_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    row = np.zeros(1, dtype=np.int64)
    for on_disk in (False, True):
        monkeypatch.delitem(sys.modules, "with_parts", raising=False)
        module = import_module("with_parts")
        references = sys.getrefcount(row)
        assert module.total(row, 3) == 7
        assert sys.getrefcount(row) == references
        assert bool(module.total.stats.cache_hits) == on_disk
        for numbers in ((row, 3), (row, 3.0)):
            with pytest.raises(TypeError, match="doubled is part of kernels, and cannot be called from Python"):
                module.doubled(*numbers)


def called_with_constants(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module above, as one that nobody has imported."""
    (folder / "called_with_constants.py").write_text(CONSTANTS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "called_with_constants", raising=False)
    return import_module("called_with_constants")


class Terminal(io.StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def test_people_are_told_before_something_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all functions, not at all if they come from disk, and in a pipe by the command line alone.

    What is once for each kind of command is said once on a machine.
    """
    (tmp_path / "told_kernels.py").write_text(CONSTANTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jit, "_FOLDER", str(tmp_path / "told"))
    said = []
    for stream, again, program in (
        (io.StringIO(), True, "script"),
        (Terminal(), True, "script"),
        (Terminal(), False, "script"),
        (io.StringIO(), True, "pebblesim.__main__"),
    ):
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=program))
        if again:
            shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        monkeypatch.delitem(sys.modules, "told_kernels", raising=False)
        monkeypatch.setattr(jit, "_TOLD", [])
        monkeypatch.setattr(sys, "stderr", stream)
        assert import_module("told_kernels").total(3) == 4 + 2 + 3
        said.append(stream.getvalue())
    told = "compiling machine code: up to a minute, "
    once = f"{told}once for each kind of command after an installation or update …\n"
    assert said == ["", once, "", f"{told}for this command …\n"]


def test_a_function_is_compiled_once_for_all_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = called_with_constants(tmp_path, monkeypatch)
    assert called.total(3) == 4 + 2 + 3
    assert len(called.next.signatures) == 1


AT_ONCE = """
import sys, time
from pathlib import Path
from numba.core.caching import IndexDataCacheFile
from pebblesim.core import jit

def meet(where, seconds):
    (Path(sys.argv[1]) / f"{where}-{sys.argv[2]}").touch()
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(list(Path(sys.argv[1]).glob(f"{where}-*"))) < 2:
        time.sleep(0.01)

def save_index(self, overloads, known=IndexDataCacheFile._save_index):
    meet("named", 2)
    known(self, overloads)

IndexDataCacheFile._save_index = save_index

@jit.kernel()
def halved(x):
    return x / 2

@jit.kernel()
def tripled(x):
    return x * 3

for function, number in zip((halved, tripled), sys.argv[3:]):
    meet(f"ready-{function.__name__}", 60)
    print(function(eval(number)), len(function.stats.cache_misses))
    for named in Path(sys.argv[1]).glob(f"named-{sys.argv[2]}"):
        named.unlink()
"""


def at_once(folder: Path, *numbers: tuple[str, str]) -> list[list[str]]:
    """The output of two processes that ask for two functions, one after the other, each at the same time.

    Of each function: the result, and how often it was compiled.
    """
    program = folder / "functions.py"
    program.write_text(AT_ONCE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(folder / "cache")}
    both = [
        subprocess.Popen(
            [sys.executable, program, folder, str(which), *each], env=environment, stdout=subprocess.PIPE, text=True
        )
        for which, each in enumerate(numbers)
    ]
    return [each.communicate()[0].split() for each in both]


def compiled_in(folder: Path, function: str) -> list[str]:
    return sorted(path.suffix for path in (folder / "cache").rglob(f"*.{function}-*"))


@pytest.mark.one_in(4)
def test_processes_that_compile_at_once_do_it_once_and_keep_their_functions_apart(tmp_path: Path) -> None:
    """With numba's own cache both results get the name of one file: later one of them is run on the other's numbers.

    What two processes ask for at once is compiled by one of them.
    """
    first, second = at_once(tmp_path, ("3.0", "3.0"), ("5", "5.0"))
    assert (first[:2], second[:2]) == (["1.5", "1"], ["2.5", "1"])
    assert compiled_in(tmp_path, "halved") == [".nbc", ".nbc", ".nbi"]
    assert (first[2], second[2], int(first[3]) + int(second[3])) == ("9.0", "15.0", 1)
    assert compiled_in(tmp_path, "tripled") == [".nbc", ".nbi"]


OF_A_CLASS = """
from typing import NamedTuple
from pebblesim.core.jit import kernel

class NAME(NamedTuple):
    x: int

@kernel()
def doubled(of):
    return 2 * of.x
"""


def test_a_class_that_was_renamed_does_not_spoil_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index on disk names the classes of arguments; the same function, now on a class of another name, is new."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("Before", "Afterwards"):
        (tmp_path / "of_a_class.py").write_text(OF_A_CLASS.replace("NAME", name))
        monkeypatch.delitem(sys.modules, "of_a_class", raising=False)
        invalidate_caches()
        module = import_module("of_a_class")
        assert module.doubled(getattr(module, name)(3)) == 6
        assert not module.doubled.stats.cache_hits


def test_a_function_is_compiled_anew_if_the_file_of_one_that_it_calls_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that one is called by way of a third file: of each the machine code is part of the caller's."""
    monkeypatch.syspath_prepend(tmp_path)
    head = "from pebblesim.core.jit import kernel\n"
    middle = "from inner_one import next\n@kernel()\ndef twice(x): return 2 * next(x)"
    (tmp_path / "outer_one.py").write_text(f"{head}from middle_one import twice\n@kernel()\ndef f(x): return twice(x)")
    (tmp_path / "middle_one.py").write_text(head + middle)
    for step in (1, 10):
        (tmp_path / "inner_one.py").write_text(f"{head}@kernel()\ndef next(x): return x + {step}")
        for name in ("outer_one", "middle_one", "inner_one"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        invalidate_caches()
        assert import_module("outer_one").f(3) == 2 * (3 + step)


@pytest.mark.parametrize(("at", "compiled"), [("next", ["next"]), ("total", ["next", "total"])])
def test_ctrl_c_waits_until_the_function_at_hand_is_compiled(
    at: str, compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes while a function is compiled, or while one that this function calls is."""
    called = called_with_constants(tmp_path, monkeypatch)
    save, saved = FunctionCache.save_overload, []

    def interrupted(self: Any, sig: Any, data: Any) -> None:
        if data.fndesc.qualname == at:
            signal.raise_signal(signal.SIGINT)
        save(self, sig, data)
        saved.append(data.fndesc.qualname)

    with monkeypatch.context() as patch:
        patch.setattr(FunctionCache, "save_overload", interrupted)
        with pytest.raises(KeyboardInterrupt):
            called.total(3)
    assert saved == compiled
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert called.total(3) == 4 + 2 + 3
    assert not called.next.stats.cache_hits
    try:
        assert called.total(3.0) == 4 + 2 + 3  # compiled for another type
    except KeyboardInterrupt:
        pytest.fail("the interrupt is raised again")


def test_a_function_is_compiled_in_a_thread_and_under_the_handler_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread can set no handler, and Ctrl-C goes to that of the program as soon as it comes."""
    called = called_with_constants(tmp_path, monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(called.total, 3).result() == 4 + 2 + 3
    assert not called.next.stats.cache_hits
    interrupts: list[int] = []

    def noted(self: Any, sig: Any, data: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        assert len(interrupts) == 1 + len(saved)
        saved.append(data.fndesc.qualname)

    saved: list[str] = []
    before = signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
    try:
        monkeypatch.setattr(FunctionCache, "save_overload", noted)
        assert called.total(3.0) == 4 + 2 + 3
    finally:
        signal.signal(signal.SIGINT, before)
    assert saved == ["next", "total"]


def test_functions_are_compiled_where_no_folder_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of the source, nor the user's."""

    def refuse(locator: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("numba.core.caching._CacheLocator.ensure_cache_path", refuse)
    assert called_with_constants(tmp_path, monkeypatch).total(3) == 4 + 2 + 3
    assert [each.name for each in tmp_path.iterdir() if each.name != "__pycache__"] == ["called_with_constants.py"]


KILLED = """
import os, signal
from pathlib import Path
from pebblesim.core.files import whole_file

with whole_file(Path("game.bin")) as unfinished:
    with unfinished.open("wb") as file:
        file.write(b"half of it")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("before", [None, "all of it"])
def test_a_process_that_is_killed_leaves_the_file_that_was_there(before: str | None, tmp_path: Path) -> None:
    path = tmp_path / "game.bin"
    if before is not None:
        path.write_text(before)
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert ended.returncode == -signal.SIGKILL
    assert (path.read_text() if path.exists() else None) == before


def test_an_error_without_a_text_is_named() -> None:
    with pytest.raises(UsageError, match=r"^it\.npz cannot be read: EOFError\.$"), reading("it.npz"):
        raise EOFError


def foreign(tree: ast.Module) -> set[str]:
    """The constants of a module whose values come from other modules of the package; called kernels are watched."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and re.fullmatch(r"pebblesim\b.*(?<!_kernel)", node.module or ""):
            names |= {alias.asname or alias.name for alias in node.names if alias.name.isupper()}
        elif isinstance(node, ast.Assign) and names & loaded(node.value):
            names |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return names


def loaded(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_no_function_on_disk_uses_a_constant_of_another_file_unsaid() -> None:
    """All are made by `kernel` or `part`; those that take such constants say so. Files of called ones are watched."""
    said = 0
    for path in SOURCES:
        if "kernel" not in (source := path.read_text(encoding="utf-8")) and "njit" not in source:
            continue
        tree = parsed(path)
        assert "njit" not in loaded(tree) or path.name == "jit.py", path
        others = foreign(tree)
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            decorators = [each for each in function.decorator_list if isinstance(each, ast.Call)]
            if any({"kernel", "part"} & loaded(each.func) for each in decorators):
                used = set().union(*map(loaded, function.body)) & others
                told = any({"kernel", "part"} & loaded(each.func) and each.args for each in decorators)
                assert told or not used, f"{path}: {function.name} uses {used}"
                said += told
    assert said >= 2


@pytest.mark.parametrize("version", [1, 2])
def test_memory_ends_where_that_of_the_container_does(tmp_path: Path, version: int) -> None:
    """The least of what any group around the process has left; files that can be dropped are not counted."""
    member = tmp_path / "cgroup"
    if version == 1:
        member.write_text("5:cpu,cpuacct:/elsewhere\n4:memory:/outer/inner\n0::/\n")
        top, names = tmp_path / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    else:
        member.write_text("0::/outer/inner\n")
        top, names = tmp_path, ("memory.max", "memory.current", "inactive_file")

    def group(folder: Path, limit: str, used: int, idle: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        active = names[2].replace("inactive", "active")
        stat = f"anon 7\n{names[2]} {idle - idle // 4}\n{active} {idle // 4}\n"
        for name, value in zip((*names[:2], "memory.stat"), (limit, used, stat), strict=True):
            (folder / name).write_text(f"{value}\n")

    def left() -> list[int]:
        return list(memory._of_control_groups(tmp_path, member))

    assert left() == []
    group(top / "outer" / "inner", "1000", 700, 100)
    assert left() == [400]
    group(top / "outer", "max" if version == 2 else str(2**62), 700, 100)
    assert min(left()) == 400
    group(top, "900", 850, 0)  # the container's own, where the paths are the host's
    assert min(left()) == 50
    group(top, "900", 950, 10)
    assert min(left()) == 0


def test_the_containers_limit_is_part_of_what_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    for name, value in (("memory.max", 5000), ("memory.current", 1000), ("memory.stat", "inactive_file 10")):
        (tmp_path / name).write_text(f"{value}\n")
    assert memory.available_memory() > 4010
    monkeypatch.setattr(memory, "CONTROL", (tmp_path, tmp_path / "cgroup"))
    assert memory.available_memory() == 4010
