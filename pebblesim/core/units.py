"""Units as types: words add only to words, and bytes only to bytes, never to each other or to plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from pebblesim.core.sizes import bytes_of


@dataclass(frozen=True, slots=True)
class _Moved:
    """Traffic between cache and memory: `reads` into the cache, `writes` out of it."""

    reads: Any = 0
    writes: Any = 0

    @property
    def io(self) -> Any:
        """Reads + writes, in the same unit."""
        return self.reads + self.writes

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        return type(self)(self.reads + other.reads, self.writes + other.writes)

    def each(self, change: Callable[[Any], Any]) -> Self:
        """Apply a function to reads and to writes; the unit stays the same."""
        return type(self)(change(self.reads), change(self.writes))


class Traffic(_Moved):
    """Words moved between cache and memory: exact integers, or closed forms."""

    __slots__ = ()

    def in_bytes(self, dtype: str) -> Bytes:
        """Convert to bytes, for words of a data type."""
        return Bytes(self.reads * bytes_of(dtype), self.writes * bytes_of(dtype))


class Bytes(_Moved):
    """Bytes moved between cache and memory."""

    __slots__ = ()
