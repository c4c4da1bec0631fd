"""Compile functions with numba; cache the machine code on disk, safely for concurrent processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import parent_process
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.types import unliteral

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])


_OURS: set[str] = set()
"""Folders in which this process is the one that compiles."""


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Wait until no other process compiles a function of this folder, and keep others from it.

    So each function is compiled once, and loaded by all other processes. Without this, two processes that compile a
    function for different types at the same time use the same file name for both results, and each may then run the
    code of the other.
    """
    with global_compiler_lock, ExitStack() as stack:
        if folder not in _OURS:
            _OURS.add(folder)
            stack.callback(_OURS.remove, folder)
            with suppress(OSError):  # the folder is read-only, or does not support locks
                os.makedirs(folder, exist_ok=True)
                file = stack.enter_context(open(os.path.join(folder, "numba.lock"), "a"))
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
        yield


_INTERRUPTS: list[tuple[Any, ...]] = []
"""Ctrl-C that came while a function was being compiled."""


def _remember(*interrupt: Any) -> None:
    _INTERRUPTS.append(interrupt)


@contextmanager
def _whole() -> Iterator[None]:
    """Make Ctrl-C wait until the function at hand is compiled; inside LLVM it would leave half a function.

    A function that calls others is compiled after them, so that nobody waits for more than one.
    """
    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or handler not in (signal.default_int_handler, _remember):
        yield
        return
    signal.signal(signal.SIGINT, _remember)
    try:
        yield
        if _INTERRUPTS:
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, handler)
        if handler is not _remember:  # no other function waits for this one
            _INTERRUPTS.clear()


_TOLD: list[str] = []
"""The sentence on compiling, once it was said."""


def _tell() -> None:
    """Say why nothing happens for a while, on a terminal or in the command line; worker processes say nothing."""
    program = getattr(sys.modules["__main__"].__spec__, "name", os.path.basename(sys.argv[0]))
    if _TOLD or parent_process() is not None:
        return
    if program not in ("pebblesim", "pebblesim.__main__") and not sys.stderr.isatty():
        return
    each = "once for each kind of command after an installation or update" if _first_time() else "for this command"
    _TOLD.append(f"compiling machine code: up to a minute, {each} …")
    print(_TOLD[0], file=sys.stderr, flush=True)


_FOLDER = os.environ.get("NUMBA_CACHE_DIR") or os.path.join(os.path.dirname(__file__), "__pycache__")
"""Where it is noted that people were told."""


def _first_time() -> bool:
    """Whether nobody was told before on this machine; it is noted then, unless the folder is read-only."""
    with suppress(OSError):
        os.makedirs(_FOLDER, exist_ok=True)
        open(os.path.join(_FOLDER, "numba.told"), "x").close()
        return True
    return not os.path.exists(os.path.join(_FOLDER, "numba.told"))


class _Cache(FunctionCache):
    """numba's cache on disk; a function that is not in it is compiled next, which takes a while."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None:
            _tell()
        return found


def _called_from(function: Any) -> set[str]:
    """The other files with kernels that a function may call, or that these may call."""
    kernels = {each.py_func for each in function.__globals__.values() if isinstance(each, Dispatcher)}
    others = {each for each in kernels if each.__code__.co_filename != function.__code__.co_filename}
    return {other.__code__.co_filename for other in others}.union(*map(_called_from, others))


def _stamp(file: str) -> tuple[float, int]:
    """When a file was last written, and its size."""
    known = os.stat(file)
    return known.st_mtime, known.st_size


def kernel(*constants: int, allocates: bool = True, **options: Any) -> Callable[[Function], Function]:
    """numba's `njit` with a cache on disk.

    numba finds a cached function by its name, its bytecode and the time of its source file. Constants are compiled in,
    and so are the kernels that it calls. If a constant comes from another file and changes there, numba does not
    notice; so its value is made part of the name. Of the files of called kernels, the times count, too.

    Args:
        constants: values of the constants that are defined in other files.
        allocates: whether it makes arrays. Without that nobody counts references to arrays, and it is compiled sooner.
        options: options of `njit`.
    """

    def compiled(function: Function) -> Function:
        function.__qualname__ += "".join(f"_{constant}" for constant in constants)
        # Nobody calls a kernel from C; without `_nrt`, numba counts no references; other threads go on meanwhile.
        settings: dict[str, Any] = {"_nrt": allocates, "no_cfunc_wrapper": True, "nogil": True, **options}
        result: Any = njit(**settings)(function)
        with suppress(RuntimeError):  # there is no folder to write in: each process compiles for itself
            result._cache = _Cache(function)  # type: ignore[no-untyped-call]
            # numba unpickles the index of another version of itself no further; nor may it that of another source,
            # which may name classes that are gone.
            index = result._cache._cache_file
            index._version = index._version, index._source_stamp, *map(_stamp, sorted(_called_from(function)))
        compile_or_load = result.compile

        def alone(signature: Any) -> Any:
            with _alone(result._cache.cache_path or ""), _whole():
                return compile_or_load(signature)

        result.compile = alone
        # One kernel that calls another with a constant makes numba compile that one for the constant, and for the next.
        of_types = result.get_call_template
        result.get_call_template = lambda args, kws: of_types(tuple(map(unliteral, args)), kws)
        return result

    return compiled


def part(*constants: int) -> Callable[[Function], Function]:
    """A function that makes no arrays and that only kernels call: it is compiled without an entry for Python."""

    def compiled(function: Function) -> Function:
        result: Any = kernel(*constants, allocates=False, no_cpython_wrapper=True)(function)

        def refuse(*args: Any, **kws: Any) -> Any:
            raise TypeError(f"{function.__name__} is part of kernels, and cannot be called from Python.")

        # Python must not find the compiled code, which has no entry for it.
        result.add_overload = lambda result_of: result.overloads.setdefault(tuple(result_of.signature.args), result_of)
        result._compile_for_args = refuse
        return result

    return compiled
