"""How commands end when something outside of them goes wrong: one or two lines, never a traceback."""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from checkout import ROOT
from cli.test_completion import ALL
from typer.core import TyperCommand
from typer.testing import CliRunner

from pebblesim.cli import gpu_emit, main as cli
from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file

COUNT = "count small-cache -n 64 -d 8 -M 100"


def start(line: str, **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pebblesim", *line.split()], stderr=subprocess.PIPE, text=True, **streams
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("line", [f"{COUNT} --json", pytest.param(COUNT, marks=pytest.mark.slow)])
def test_a_full_disk_is_one_sentence(line: str) -> None:
    with open("/dev/full", "w") as full:
        ran = start(line, stdout=full)
        assert ran.communicate()[1] == "error: cannot read or write the output: No space left on device.\n"
    assert ran.returncode == 2


@pytest.mark.parametrize(
    "line",
    [COUNT, "--help", *(pytest.param(line, marks=pytest.mark.slow) for line in ("list --json", "count --help"))],
)
def test_a_reader_that_is_gone_is_no_error(line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = start(line, stdout=writing)
    os.close(writing)
    assert (ran.communicate()[1], ran.returncode) == ("", 0)


def no_room() -> None:
    """No file of this process may grow beyond 4 kB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("plot words small-cache -n 64 -d 8 -M 512 -o FILE.png", marks=pytest.mark.slow),
        "graph backward -n 8 -d 4 -o FILE.hdag",
        "gpu emit small-cache -n 64 -d 8 -M 512 -o FILE.cu",
    ],
)
def test_a_file_without_room_is_not_written_at_all(line: str, tmp_path: Path) -> None:
    """Without writing compiled modules, too (-B): what is left of one without room breaks every later import."""
    ran = subprocess.run(
        [sys.executable, "-B", "-m", "pebblesim", *line.replace("FILE", str(tmp_path / "full")).split()],
        capture_output=True, text=True, preexec_fn=no_room,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1 and "File too large" in ran.stderr and str(tmp_path / "full") in ran.stderr
    assert not list(tmp_path.iterdir())


def test_every_file_that_a_command_writes_is_looked_at_before_the_work() -> None:
    seen = 0
    for words, command in ALL.items():
        hints = get_type_hints(command.callback, include_extras=True)
        for option in command.params:
            kind = get_args(hints.get(option.name))[:1]
            if Path not in {*kind, *get_args(*kind)} or option.param_type_name != "option":
                continue
            if option.opts[0] in ("--card", "--game", "--inputs"):  # these are read
                continue
            if (words, option.opts[0]) == ("gpu emit", "--output"):  # a file or a new folder, as the target says
                continue
            seen += 1
            with pytest.raises(UsageError, match=r"^cannot write nowhere/x: there is no folder"):
                option.process_value(typer.Context(command, info_name=words), "nowhere/x")
    assert seen > 20


@pytest.mark.parametrize("line", ["large-cache -n 64 -d 4 -M 300", "--target package -d 64"])
def test_where_emit_writes_is_looked_at_before_the_work(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_emit, "dtype_of", lambda *given: pytest.fail("the work has begun"))
    found = CliRunner().invoke(cli.app, ["gpu", "emit", *line.split(), "-o", "nowhere/x"])
    assert isinstance(found.exception, UsageError)
    assert str(found.exception).startswith("cannot write nowhere/x: there is no folder")


def test_a_device_a_pipe_or_a_link_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(UsageError, match="this is no file but a device or a pipe"), whole_file(name) as part:
            part.write_text("text")
        assert not name.is_file()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with whole_file(tmp_path / "link") as part:
        part.write_text("text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "text"
    with pytest.raises(UsageError, match=r"[Nn]ame too long"), whole_file(tmp_path / ("x" * 300)):
        pass


Run = Callable[..., str]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The output of a command where the terminal has some encoding."""

    def run(line: str, encoding: str) -> str:
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "argv", ["pebblesim", *line.split()])
        monkeypatch.setattr(sys, "stdout", out)
        with contextlib.suppress(SystemExit):
            cli.main()
        out.flush()
        return out.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]

    return run


@pytest.mark.parametrize(
    "line",
    ["formula small-cache", "show flash2-forward", "glossary", "bounds -n 64 -d 8 -M 512", "count --help", "list",
     "theorems", "play matmul-tiled --size m=2 --size k=2 --size n=2 -M 8"],
)  # fmt: skip
def test_an_encoding_without_mathematical_signs_gets_plain_ones(line: str, printed: Run) -> None:
    """Nothing that is printed loses its meaning, and nothing becomes a question mark."""
    plain, usual = printed(line, "ascii"), printed(line, "utf-8")
    assert plain and plain.count("?") == usual.count("?")
    if line == "formula small-cache":
        assert "4nd*ceil(d/B) + 9n^2 + 3nd + d^2" in plain


def test_json_is_whole_in_any_encoding(printed: Run) -> None:
    plain, usual = (printed("show small-cache --json", encoding) for encoding in ("ascii", "utf-8"))
    assert "←" in usual and json.loads(plain) == json.loads(usual)


def test_a_locale_without_utf_8_is_no_error() -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run([sys.executable, "-m", "pebblesim", "show", "flash"], env=env, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "") and "<-" in ran.stdout


def test_a_folder_is_no_file_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pebblesim", "--load", str(tmp_path), "list"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == f"error: --load {str(tmp_path)!r}: this is a folder.\n"


@pytest.mark.parametrize("line", [COUNT, pytest.param(f"{COUNT} --json", marks=pytest.mark.slow)])
def test_output_that_nobody_wants_is_no_error(line: str) -> None:
    ran = subprocess.run(["sh", "-c", f"{sys.executable} -m pebblesim {line} >&-"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", sorted({*cli.HOMES} - {"gpu", "plot"} | {"gpu doctor", "plot tiles"}))
def test_any_command_can_be_interrupted(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TyperCommand, "make_context", lambda *_, **__: interrupt())
    monkeypatch.setattr(sys, "argv", ["pebblesim", *name.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.parametrize("again", ["", "stderr", "exit"])
def test_ctrl_c_during_the_imports_is_no_traceback(again: str) -> None:
    """Whatever is imported first is where it strikes; a second time where the first is reported, or Python ends."""
    code = (
        "import atexit, signal, sys\n"
        "class Twice:\n"
        "    def write(self, text):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "        return sys.__stderr__.write(text)\n"
        "    def flush(self):\n"
        "        sys.__stderr__.flush()\n"
        f"if {again!r} == 'stderr':\n"
        "    sys.stderr = Twice()\n"
        f"if {again!r} == 'exit':\n"
        "    atexit.register(signal.raise_signal, signal.SIGINT)\n"
        "from pebblesim.__main__ import main\n"
        "class Strike:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Strike())\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "interrupted\n")


def test_the_script_is_the_module() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {"pebblesim": "pebblesim.__main__:main"}


@pytest.mark.parametrize("begun", [False, True])
def test_a_stopped_sweep_names_the_file_of_its_rows_if_there_is_one(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "table.sqlite"

    def stopped(*_: object, **__: object) -> None:
        if begun:
            rows.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("pebblesim.sweep", stopped)
    line = f"pebblesim sweep -s flash -n 8 -d 4 -M 100 -o {tmp_path}/table.csv"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as end:
        cli.main()
    kept = f"; the rows so far are in {rows}, and the same command goes on" if begun else ""
    assert (end.value.code, capsys.readouterr()) == (130, ("", f"stopped{kept}.\n"))


def test_a_long_game_can_be_interrupted() -> None:
    code = "import sys\nfrom pebblesim.cli.main import main\nprint('here', flush=True)\nmain()"
    game = ["play", "small-cache", "-n", "1000", "-d", "64", "-M", "4000"]
    ran = subprocess.Popen(
        [sys.executable, "-c", code, *game], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert ran.stdout and ran.stdout.readline() == "here\n"
        time.sleep(0.5)
        ran.send_signal(signal.SIGINT)
        assert ran.communicate(timeout=60) == ("", "interrupted\n")
        assert ran.returncode == 130
    finally:
        ran.kill()  # the game takes all the memory that there is


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1\ndef f(:\n", ":2: SyntaxError: invalid syntax"),
        ("import no_such_module\n", ":1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f():\n    return 1 / 0\nf()\n", ":2: ZeroDivisionError: division by zero"),
        ("raise ValueError('one\\ntwo')\n", ":1: ValueError: one two"),
        ("raise SystemExit(3)\n", ":1: SystemExit: 3"),
        (
            "import pebblesim as ps\n\n@ps.schedule(problem='matmul', source='mine')\ndef own(m, A, C): ...\n",
            ":3: no input of problem 'matmul' is called 'C'; known: A, B.",
        ),
        (
            "import pebblesim as ps\n\n@ps.schedule(problem='matmul', source='mine', name='flash')\ndef own(m): ...\n",
            ":3: there is a schedule 'flash' already; choose another name with @schedule(name=...).",
        ),
        ("\0", ":1: SyntaxError: source code string cannot contain null bytes"),
        ("x = 1\n\0\n", ":2: SyntaxError: source code string cannot contain null bytes"),
        (
            "import pebblesim as ps\n\n@ps.schedule(problem='matmul', source='mine')\ndef own(m, A, B):\n"
            "    'Mine.'\n    m.read(A[0])\n\nps.show('own')\n",
            ":6: A has shape (m, k), but got 1 indices.",
        ),
    ],
)
def test_a_users_file_that_fails_is_named_with_its_line(
    code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(code)
    monkeypatch.setattr(sys, "argv", ["pebblesim", "--load", str(own), "list"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.startswith(f"error: --load {own}{says}")
    assert err.count("\n") == 1
