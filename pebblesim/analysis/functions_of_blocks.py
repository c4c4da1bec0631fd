"""Functions of block sizes, compiled from text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Sizes = Mapping[str, int]


def compiled(text: str, arguments: str = "s") -> Callable[..., int]:
    """Return the function of the block sizes that a text describes; the block sizes are `s` in the text.

    The text may use `tiles(length, block, one)`, the sum of a function of their lengths over the tiles of a length.
    """
    known = {"min": min, "max": max, "tiles": _sum_over_tiles, "__builtins__": {}}
    function: Callable[..., int] = eval(f"lambda {arguments}: {text}", known)
    return function


def text_of(size: str | int, sizes: str = "s") -> str:
    """Return the text of a size as a function of the block sizes."""
    return f"{sizes}[{size!r}]" if isinstance(size, str) else str(size)


def _sum_over_tiles(length: int, block: int, one: Callable[[int], int]) -> int:
    if not length:
        return 0
    whole, last = divmod(length - 1, block)
    return (whole * one(block) if whole else 0) + one(last + 1)
