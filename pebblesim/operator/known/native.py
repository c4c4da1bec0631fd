"""A small library in C++ that makes known passes without Python, compiled once, in the background, where it can be.

A backward pass runs in a thread of PyTorch, whose caches are cold for Python. `native.cpp` launches what passes launch
that are made again (`lengths`), by the same words for the driver; its node of autograd asks Python for all the rest.
The compiler needs some 15 s, at low priority, beside the first call of a machine; the library stays beside Triton's
cache. Without a compiler of C++, or with PEBBLESIM_NATIVE=0, Python makes all passes.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

VARIABLE = "PEBBLESIM_NATIVE"
"""The variable of the environment that is 0 where Python is to make all passes."""

FILLED = "PEBBLESIM_FILL"
"""The variable that asks for memory that is filled (`fresh`), which Python does."""

NAME = "pebblesim_native"
SOURCE = Path(__file__).with_name("native.cpp")
HEADERS = SOURCE.with_name("native_passes.h"), SOURCE.with_name("native_python.h")

FAILED = "failed.txt"
"""The file beside it with what the compiler says of an error, behind a line that names the compiler as it was."""

A_DAY = 86400
"""Seconds after which an error is not trusted any more: memory may have been short."""

ASKED = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH")
"""Variables that compilers read."""

FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-w")

library: Any = None
"""The functions of `native.cpp`; None as long as Python makes all passes."""

_loaded: Any = None
_pauses = 0
_error = ""


def state() -> str:
    """One line: whether the library is used and, if it is not, why."""
    if library is not None:
        return "on"
    if (why := why_not() or _error) or failed_before(failed := folder() / FAILED):
        return f"off: {why or f'it could not be compiled, see {failed}, and delete it to have it tried again at once'}"
    when = "loads" if (folder() / f"{NAME}.so").exists() else "begins to compile"
    return f"off: the first call of attention on the GPU {when} it"


@cache
def why_not() -> str | None:
    """Why there can be no library; None if there can be one."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE} is 0"
    if FILLED in os.environ:
        return f"{FILLED} is set"
    if compiler() is None:
        return "there is no compiler of C++ (c++, g++ or clang++)"
    if (missing := next((each for each in (SOURCE, *HEADERS, *_headers()) if not each.exists()), None)) is not None:
        return f"there is no {missing}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None if torch.cuda.is_available() else "PyTorch sees no GPU"


def compiler() -> str | None:
    """The compiler of C++, or None."""
    return next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)


def _of_compiler() -> str:
    """A line that is another one for another compiler, another version of it, or other variables that it reads."""
    path = str(compiler())
    there = os.stat(path) if os.path.exists(path) else None
    facts = path, *(() if there is None else (there.st_size, there.st_mtime_ns)), *map(os.environ.get, ASKED)
    return f"{path} {hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def failed_before(failed: Path) -> bool:
    """Whether this compiler could not compile the library within the last day."""
    try:
        first, age = failed.read_text(errors="replace").partition("\n")[0], time.time() - failed.stat().st_mtime
    except OSError:
        return False
    return first == _of_compiler() and age < A_DAY


def _headers() -> tuple[Path, Path]:
    inside = Path(torch.__file__).parent / "include"
    return inside / "torch/csrc/autograd/custom_function.h", Path(sysconfig.get_paths()["include"]) / "Python.h"


@contextmanager
def paused() -> Iterator[None]:
    """Let Python make all passes meanwhile, in all threads."""
    global library, _pauses
    library, _pauses = None, _pauses + 1
    if _loaded is not None:
        _loaded.turn(False)
    try:
        yield
    finally:
        _pauses -= 1
        if not _pauses and _loaded is not None:
            library = _loaded
            library.turn(True)


@cache
def begin() -> threading.Thread | None:
    """Load the library, in a thread that compiles it first if it is nowhere; None where there can be none."""
    if why_not() is not None:
        return None
    thread = threading.Thread(target=_load, args=(folder(),), daemon=True)
    thread.start()
    return thread


def folder() -> Path:
    """The folder of the library for this source, processor, Python and PyTorch, in Triton's cache."""
    from triton import knobs

    of_python = platform.machine(), sys.version
    source = [each.read_text(encoding="utf-8") for each in (SOURCE, *HEADERS)]
    facts = *source, torch.__version__, torch.version.git_version, *of_python, *FLAGS
    return Path(knobs.cache.dir) / f"{NAME}-{hashlib.sha256('|'.join(map(str, facts)).encode()).hexdigest()[:32]}"


def _load(where: Path) -> None:
    """Use the library in a folder; of several processes that find none there, one compiles it."""
    global library, _loaded, _error
    made, failed = where / f"{NAME}.so", where / FAILED
    try:
        where.mkdir(parents=True, exist_ok=True)
        if not made.exists() and not failed_before(failed):
            with (where / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                try:
                    if not made.exists() and not failed_before(failed):
                        _compile(made, failed)
                finally:  # also for a process that was forked meanwhile, and has the file open
                    fcntl.flock(lock, fcntl.LOCK_UN)
        if made.exists():
            loader = importlib.machinery.ExtensionFileLoader(NAME, str(made))
            spec = importlib.util.spec_from_loader(NAME, loader)
            assert spec is not None
            found = importlib.util.module_from_spec(spec)
            loader.exec_module(found)
            _loaded = found
            if _pauses:
                found.turn(False)
            else:
                library = found
    except (OSError, ImportError) as error:
        _error = str(error)


def _compile(made: Path, failed: Path) -> None:
    """Compile the library; what the compiler says of an error is written, so that no process tries again soon."""
    new = made.with_suffix(f".{os.getpid()}")
    torch_headers, python_headers = _headers()
    inside = Path(torch.__file__).parent
    command = [*(("nice", "-n", "19") if shutil.which("nice") else ()), str(compiler()), *FLAGS]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", str(SOURCE), "-o", str(new)]
    command += [f"-I{torch_headers.parents[3]}", f"-I{python_headers.parent}", f"-L{inside / 'lib'}"]
    command += ["-ltorch_python", "-ltorch_cpu", "-lc10"]
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    atexit.register(running.kill)
    said = running.communicate()[0]
    atexit.unregister(running.kill)
    if running.returncode == 0:
        new.replace(made)
    else:
        new.unlink(missing_ok=True)
        if running.returncode > 0:  # and not killed
            part = failed.with_suffix(f".{os.getpid()}")
            part.write_bytes(f"{_of_compiler()}\n".encode() + said)
            part.replace(failed)


if __name__ == "__main__":
    if (thread := begin()) is not None:
        thread.join()
    print(state())
    sys.exit(library is None)
