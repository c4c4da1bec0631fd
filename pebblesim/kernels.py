"""Functions in machine code, kept on disk between runs, and shared by processes that run at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import FunctionCache

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])


class _Shared(FunctionCache):
    """numba's cache on disk, with a lock.

    Without one, two processes that compile a function for different types at once give both results one file name, and
    each may then run what the other compiled.
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
            with suppress(OSError):  # a folder that cannot be written to, or knows no locks
                os.makedirs(self.cache_path, exist_ok=True)
                file = stack.enter_context(open(os.path.join(self.cache_path, "numba.lock"), "a"))
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield


def kernel(*constants: int, **options: Any) -> Callable[[Function], Function]:
    """numba's `njit` with a cache on disk.

    numba finds a function on disk by its name, its bytecode and the time of its own file. Constants are compiled in,
    and nothing would tell that another file gives them another value now; so those belong to the name.

    Args:
        constants: the values of those that do not stand in the function's own file.
        options: of `njit`.
    """

    def compiled(function: Function) -> Function:
        function.__qualname__ += "".join(f"_{constant}" for constant in constants)
        result: Any = njit(**options)(function)
        result._cache = _Shared(function)  # type: ignore[no-untyped-call]
        return result

    return compiled
