"""Kernels of a call are compiled side by side, before the first of them is launched.

Triton compiles a kernel when it is launched first, one after the other. Here a pass is gone through once without a
launch: each kernel that it would launch is given to a thread. Most of the time is spent in C++, in the assembler and in
a compiler of C, so that they run at the same time; and while kernels are chosen, Triton is made ready.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from inspect import getclosurevars
from io import SEEK_END, FileIO
from mmap import ACCESS_READ, mmap
from types import FunctionType, SimpleNamespace
from typing import Any

from pebblesim.kernels import releases
from pebblesim.operator.launching.reading import read_once

HERE = threading.local()
"""State of this thread: `threads`, which compile kernels while these are not launched."""

PATIENCE = 2.0
"""Seconds of compiling after which a line says so on a terminal."""

MOST = 8
"""Kernels that are compiled at once. What else computes meanwhile slows them: two processors may share a core."""

TURN = 1e-4
"""Seconds after which a thread lets another one run Python meanwhile.

A kernel waits for its next pass as often as it has passes, and with the usual 5 ms would wait so long for each.
"""


def compiled_only() -> bool:
    """Whether kernels are compiled now, and not launched."""
    return getattr(HERE, "threads", None) is not None


def can() -> bool:
    """Whether the Triton here can compile several kernels at once."""
    return _mode() is not None


@contextmanager
def together() -> Iterator[None]:
    """Compile what is launched meanwhile, and launch none of it; whoever cannot be compiled fails at its launch."""
    mode = _mode()
    assert mode is not None
    with _progress(), _TURNS, _Threads(min(MOST, os.cpu_count() or 1)) as threads, mode(threads, ignore_errors=True):
        begin()
        HERE.threads = threads
        try:
            yield
        finally:
            HERE.threads = None
            threads.give()
            threads.give_launchers()


def later(give: Callable[[], Any]) -> None:
    """Give a kernel to threads by a function of Triton, as soon as Triton is ready: others are chosen meanwhile."""
    HERE.threads.later.append(give)
    if begin().done():
        HERE.threads.give()


class _Turns:
    """Lets threads take turns more often while some of them are in it, and has none look for garbage in cycles.

    To go through all objects of PyTorch takes 0.1 s, in which no thread reads a kernel.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._usual, self._collects = threading.Lock(), 0, 0.0, False

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._usual, self._collects = sys.getswitchinterval(), gc.isenabled()
                sys.setswitchinterval(min(TURN, self._usual))
                gc.disable()

    def __exit__(self, *failed: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._usual)
                if self._collects:
                    gc.enable()


_TURNS = _Turns()


@cache
def begin() -> Future[None]:
    """Begin, in threads, what Triton does once in each process, and takes longer than to choose kernels.

    It finds its own version, which its cache asks for; and with an empty cache a compiler of C makes what loads
    kernels. Before a kernel is compiled the result is waited for: else both would be done twice.
    """
    from triton.runtime import cache as cache_of_triton, driver  # it is Python: in a thread it would run no sooner

    ready: Future[None] = Future()

    def load() -> None:
        with suppress(Exception):  # as below
            _ = driver.active  # makes the driver, also where assertions are left out

    def made() -> None:
        with suppress(Exception):  # then the first launch says what is wrong
            loading = threading.Thread(target=load, daemon=True)
            loading.start()
            with _in_one_piece(cache_of_triton):
                cache_of_triton.triton_key()
            loading.join()
        ready.set_result(None)

    threading.Thread(target=made, daemon=True).start()
    return ready


@contextmanager
def _in_one_piece(module: Any) -> Iterator[None]:
    """Meanwhile functions of a module read the library of 400 MB at once; between pieces they would wait for a turn."""

    def opened(path: Any, mode: str = "r", *given: Any, **options: Any) -> Any:
        return _Whole(path) if mode == "rb" and "libtriton" in str(path) else open(path, mode, *given, **options)

    module.open = opened
    try:
        yield
    finally:
        del module.open


class _Whole(FileIO):
    """A file that is read in one piece, however much is asked for."""

    def read(self, size: int | None = -1) -> Any:
        return b"" if self.tell() == self.seek(0, SEEK_END) else mmap(self.fileno(), 0, access=ACCESS_READ)


class _Threads(ThreadPoolExecutor):
    """Threads that also build what launches a kernel, with a compiler of C: else Triton does it at the first launch.

    Attributes:
        later: what gives them kernels, as soon as Triton is ready.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.later: list[Callable[[], Any]] = []
        self._launched: dict[tuple[Any, ...], Any] = {}  # by types of arguments, the source of a kernel
        self._read = threading.Event()
        self._read.set()

    def give(self) -> None:
        """Have Triton give kernels to these threads that waited until it is ready, each when the one before was read.

        To read a kernel is Python, of which one thread runs at a time. The first kernels are those of the forward pass,
        which take longest in C++. On an H200 this took as long as to have threads take turns at reading.
        """
        begin().result()
        while self.later:
            self.later.pop(0)()
            self._read.wait()

    def give_launchers(self) -> None:
        """Have launchers built by threads that have no kernel: no kernel needs one before all are compiled."""
        if not releases.here().arguments_together:  # else this Triton has one launcher for all kernels
            for kinds, source in self._launched.items():
                super().submit(_build_launcher, source, kinds)

    def submit(self, compiled: Any, /, *given: Any, **options: Any) -> Future[Any]:
        """Compile a kernel."""
        source = getclosurevars(compiled).nonlocals.get("src") if isinstance(compiled, FunctionType) else None
        read = self._reading(source)
        if source is not None:
            self._launched.setdefault(tuple(source.signature.values()), source)

        def whole() -> Any:
            try:
                return compiled(*given, **options)
            finally:
                read.set()

        return super().submit(whole)

    def _reading(self, source: Any) -> threading.Event:
        """Return what is set when a kernel was read, or taken from Triton's cache: what follows runs in C++."""
        self._read = read = threading.Event()
        make = getattr(source, "make_ir", None)
        if make is not None:

            def reading(*given: Any, **options: Any) -> Any:
                try:
                    return read_once(partial(make, *given, **options))
                finally:
                    read.set()

            source.make_ir = reading
        return read


def _build_launcher(source: Any, kinds: tuple[Any, ...]) -> None:
    """Put the launcher of a kernel into Triton's cache, for which it asks the number of descriptors alone."""
    from triton.runtime import driver

    described = [each for each in kinds if isinstance(each, str) and each.startswith("tensordesc")]
    nothing = dict.fromkeys(("global_scratch_size", "global_scratch_align", "profile_scratch_size"), 0)
    nothing |= dict.fromkeys(("profile_scratch_align", "launch_cooperative_grid", "launch_pdl"), 0)
    driver.active.launcher_cls(source, SimpleNamespace(**nothing, tensordesc_meta=[{} for _ in described]))


def _mode() -> Any:
    """Triton's class for this; None if it has none."""
    try:
        from triton.runtime._async_compile import AsyncCompileMode
    except ImportError:
        return None
    return AsyncCompileMode


@contextmanager
def _progress() -> Iterator[None]:
    """Say on a terminal that kernels are compiled, if that takes long."""
    terminal, said = sys.stderr, threading.Event()

    def say() -> None:
        said.set()
        print("pebblesim: compiling kernels, once for this kind of call ...", end="", file=terminal, flush=True)

    waiting = threading.Timer(PATIENCE, say) if terminal.isatty() else None
    if waiting is not None:
        waiting.daemon = True
        waiting.start()
    try:
        yield
    finally:
        if waiting is not None:
            waiting.cancel()
        if said.is_set():
            print(" done", file=terminal, flush=True)
