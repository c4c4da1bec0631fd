"""Functions in machine code, kept on disk between runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(*constants: int, **options: Any) -> Callable[[Function], Function]:
    """numba's `njit` with its cache on disk, for a function that takes constants from other files.

    numba finds a function on disk by its name, its bytecode and the time of its own file. The constants are compiled
    in, and nothing would tell that another file gives them another value now; so here they belong to the name.

    Args:
        constants: the values of those that do not stand in the function's own file.
        options: of `njit`.
    """

    def compiled(function: Function) -> Function:
        function.__qualname__ += "".join(f"_{constant}" for constant in constants)
        result: Function = njit(cache=True, **options)(function)
        return result

    return compiled
