"""Units as types: words add to words and bytes to bytes, and neither to the other or to a bare number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from pebblesim.sizes import bytes_of


@dataclass(frozen=True, slots=True)
class _Moved:
    """What moves between cache and memory: `reads` into the cache, `writes` out of it."""

    reads: Any = 0
    writes: Any = 0

    @property
    def io(self) -> Any:
        """Reads and writes together, in the same unit."""
        return self.reads + self.writes

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        return type(self)(self.reads + other.reads, self.writes + other.writes)

    def each(self, change: Callable[[Any], Any]) -> Self:
        """The same with reads and writes changed, in the same unit."""
        return type(self)(change(self.reads), change(self.writes))


class Traffic(_Moved):
    """Words moved between cache and memory: exact integers, or closed forms."""

    __slots__ = ()

    def in_bytes(self, dtype: str) -> Bytes:
        """The same in bytes, each word being of a data type."""
        return Bytes(self.reads * bytes_of(dtype), self.writes * bytes_of(dtype))


class Bytes(_Moved):
    """Bytes moved between cache and memory."""

    __slots__ = ()
