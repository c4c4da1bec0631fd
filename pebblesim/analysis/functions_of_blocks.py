"""Functions of block sizes, compiled from text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Sizes = Mapping[str, int]


def compiled(text: str) -> Callable[[Sizes], int]:
    """Return the function of the block sizes that a text describes; the block sizes are `s` in the text."""
    function: Callable[[Sizes], int] = eval(f"lambda s: {text}", {"min": min, "max": max, "__builtins__": {}})
    return function


def text_of(size: str | int) -> str:
    """Return the text of a size as a function of the block sizes `s`."""
    return f"s[{size!r}]" if isinstance(size, str) else str(size)
