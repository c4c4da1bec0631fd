"""Kernels of a call are compiled side by side, before the first of them is launched.

Triton compiles a kernel when it is launched first, one after the other. Here a pass is gone through once without a
launch: each kernel that it would launch is given to a thread. Most of the time is spent in C++ and in the assembler, so
that they run at the same time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

HERE = threading.local()
"""State of this thread: `together` while kernels are compiled, and not launched."""

PATIENCE = 2.0
"""Seconds of compiling after which a line says so on a terminal."""

MOST = 16
"""Kernels that are compiled at once."""


def compiled_only() -> bool:
    """Whether kernels are compiled now, and not launched."""
    return getattr(HERE, "together", False)


def can() -> bool:
    """Whether the Triton here can compile several kernels at once."""
    return _mode() is not None


@contextmanager
def together() -> Iterator[None]:
    """Compile what is launched meanwhile, and launch none of it; whoever cannot be compiled fails at its launch."""
    mode = _mode()
    assert mode is not None
    with _progress(), _Threads(min(MOST, os.cpu_count() or 1)) as threads, mode(threads, ignore_errors=True):
        HERE.together = True
        try:
            yield
        finally:
            HERE.together = False


class _Threads(ThreadPoolExecutor):
    """Threads that also build what launches a kernel, with a compiler of C: else Triton does it at the first launch."""

    def submit(self, compiled: Any, /, *given: Any, **options: Any) -> Future[Any]:
        """Compile a kernel."""

        def whole() -> Any:
            from triton.runtime import driver

            made = compiled(*given, **options)
            with suppress(Exception):  # then the launch says what is wrong
                driver.active.launcher_cls(made.src, made.metadata)
            return made

        return super().submit(whole)


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
