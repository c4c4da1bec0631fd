"""Compile functions with numba; cache the machine code on disk, safely for concurrent processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.types import unliteral

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])


class _Shared(FunctionCache):
    """numba's cache on disk, with a lock.

    Without the lock, two processes that compile a function for different types at the same time use the same file name
    for both results. Each process may then run the code of the other.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._locked(exclusive=False):
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        with self._locked(exclusive=True):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    @contextmanager
    def _locked(self, exclusive: bool) -> Iterator[None]:
        with ExitStack() as stack:
            with suppress(OSError):  # the folder is read-only, or does not support locks
                os.makedirs(self.cache_path, exist_ok=True)
                file = stack.enter_context(open(os.path.join(self.cache_path, "numba.lock"), "a"))
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield


def kernel(*constants: int, **options: Any) -> Callable[[Function], Function]:
    """numba's `njit` with a cache on disk.

    numba finds a cached function by its name, its bytecode and the time of its source file. Constants are compiled in.
    If a constant comes from another file and changes there, numba does not notice; so its value is made part of the
    name.

    Args:
        constants: values of the constants that are defined in other files.
        options: options of `njit`.
    """

    def compiled(function: Function) -> Function:
        function.__qualname__ += "".join(f"_{constant}" for constant in constants)
        result: Any = njit(**options)(function)
        result._cache = _Shared(function)  # type: ignore[no-untyped-call]
        # One kernel that calls another with a constant makes numba compile that one for the constant, and for the next.
        of_types = result.get_call_template
        result.get_call_template = lambda args, kws: of_types(tuple(map(unliteral, args)), kws)
        return result

    return compiled
