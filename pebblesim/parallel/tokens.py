"""Sets of tokens, and who owns which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from pebblesim.core.errors import UnknownName
from pebblesim.core.floor_sums import floor_sum

OWNERSHIPS = ("contiguous", "zig-zag", "striped")
"""contiguous: n/P tokens in a row. zig-zag: chunks q and 2P − 1 − q of 2P chunks. striped: tokens q, q + P, q + 2P…"""


@dataclass(frozen=True)
class Tokens:
    """Tokens in disjoint arithmetic progressions, none of them empty."""

    parts: tuple[range, ...]

    @cached_property
    def number(self) -> int:
        return sum(map(_length, self.parts))

    @cached_property
    def first(self) -> int:
        return min(part.start for part in self.parts)

    @cached_property
    def last(self) -> int:
        return max(part.start + (_length(part) - 1) * part.step for part in self.parts)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __iter__(self) -> Iterator[int]:
        """The tokens in order."""
        return iter(sorted(token for part in self.parts for token in part))

    def clipped(self, start: int, stop: int) -> Tokens:
        """Return the tokens t with start ≤ t < stop."""
        if not self or (start <= self.first and self.last < stop):
            return self
        return _of(
            range(
                part.start + max(0, -((part.start - start) // part.step)) * part.step, min(stop, part.stop), part.step
            )
            for part in self.parts
        )

    def pairs_up_to(self, keys: Tokens, ahead: int = 0) -> int:
        """Return the number of pairs of a token i of these and a token j of `keys` with j ≤ i + ahead."""
        return sum(_pairs(mine, other, ahead) for mine in self.parts for other in keys.parts)


def united(sets: Iterable[Tokens]) -> Tokens:
    """Return the union of disjoint sets; neighbours become one range."""
    merged: list[range] = []
    for part in sorted((part for tokens in sets for part in tokens.parts), key=lambda part: part.start):
        if merged and part.step == 1 == merged[-1].step and merged[-1].stop == part.start:
            merged[-1] = range(merged[-1].start, part.stop)
        else:
            merged.append(part)
    return Tokens(tuple(merged))


def check_ownership(name: str) -> None:
    """Refuse an ownership that is not known.

    Raises:
        UnknownName: no ownership has this name.
    """
    if name not in OWNERSHIPS:
        raise UnknownName("ownership", name, OWNERSHIPS)


def owned(ownership: str, n: int, P: int) -> list[Tokens]:
    """Return the tokens of each of P devices, at most ⌈n/P⌉ for each; `ownership` is one of `OWNERSHIPS`."""
    if ownership == "contiguous":
        return [_of([_chunk(n, P, q)]) for q in range(P)]
    if ownership == "zig-zag":
        return [united([_of([_chunk(n, 2 * P, q)]), _of([_chunk(n, 2 * P, 2 * P - 1 - q)])]) for q in range(P)]
    return [_of([range(q, n, P)]) for q in range(P)]


def _of(parts: Iterable[range]) -> Tokens:
    return Tokens(tuple(part for part in parts if part.start < part.stop))


def _chunk(n: int, chunks: int, number: int) -> range:
    size, more = divmod(n, chunks)
    start = number * size + min(number, more)
    return range(start, start + size + (number < more))


def _length(part: range) -> int:
    return -((part.start - part.stop) // part.step)  # len() ends at 2^63


def _pairs(rows: range, keys: range, ahead: int) -> int:
    """The number of pairs j ≤ i + ahead: row x sees ⌊(offset + x·rows.step) / keys.step⌋ + 1 keys, 0 to all of them."""
    count, most = _length(rows), _length(keys)
    offset = rows.start + ahead - keys.start
    some = min(count, max(0, -(offset // rows.step)))  # the first row that sees a key
    every = min(count, max(some, -((offset - keys.step * (most - 1)) // rows.step)))  # the first that sees all
    seen = floor_sum(every - some, keys.step, rows.step, offset + some * rows.step) + every - some
    return seen + (count - every) * most
