"""Play a schedule: what each device receives, computes, sends and drops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pebblesim.parallel.count import Moved
from pebblesim.parallel.schedules import IN_PASSES, KEYS_GO_ROUND, QUERIES_GO_ROUND

Rows: TypeAlias = Sequence[tuple[int, int]]
"""Rows, or keys, as (head, token)."""


@dataclass(frozen=True)
class Exchange:
    """Rows or keys of others that a device gets or gives back: their inputs, and its partial sums of their outputs."""

    device: int
    tensors: tuple[str, ...]
    sums: tuple[str, ...]
    rows: Rows


class Receive(Exchange):
    """A device receives the inputs of rows or keys from their owners, and starts their partial sums."""


class Send(Exchange):
    """A device sends the partial sums of rows or keys to their owners, and drops all that it has of them."""


@dataclass(frozen=True)
class Compute:
    """A device computes the allowed pairs of tokens of a query head."""

    device: int
    head: int
    queries: Sequence[int]
    keys: Sequence[int]


Move: TypeAlias = Receive | Compute | Send


def moves(moved: Moved) -> Iterator[Move]:
    """Yield the moves of all devices, one device after the other."""
    for p in range(moved.layout.team.P):
        yield from _Device(moved, p).moves()


class _Device:
    def __init__(self, moved: Moved, p: int) -> None:
        self.moved, self.p = moved, p
        self.traffic, self.share = moved.layout.team.traffic, moved.layout.shares[p]
        rows, keys = set(moved.layout.team.own_rows[p]), set(moved.layout.team.own_keys[p])
        self.my_rows, self.other_rows = ([t for t in self.share.rows if (t in rows) is mine] for mine in (True, False))
        self.my_keys, self.other_keys = ([t for t in self.share.keys if (t in keys) is mine] for mine in (True, False))

    def moves(self) -> Iterator[Move]:
        order, blocks = self.moved.schedule.order, [list(block) for block in self.moved.blocks(self.p)]
        if order == KEYS_GO_ROUND:
            yield from self.keys_pass(self._of(self.share.heads, self.other_rows), self.my_rows, blocks)
        elif order == QUERIES_GO_ROUND:
            yield self.arrive(keys := self._of(self.share.kv_heads, self.other_keys), queries=False)
            yield from self.compute(self._of(self.share.heads, self.my_rows), list(self.share.keys))
            for block in blocks:
                yield self.arrive(rows := self._of(self.share.heads, block), queries=True)
                yield from self.compute(rows, list(self.share.keys))
                yield self.leave(rows, queries=True)
            yield self.leave(keys, queries=False)
        elif order == IN_PASSES:
            for kv_head in self.share.kv_heads:
                heads = [head for head in self.share.heads if head // self.moved.layout.team.sharing == kv_head]
                rows = self._of(heads, self.other_rows)
                most = max(1, self.moved.rows_at_once(self.p))
                for start in range(0, max(1, len(rows)), most):
                    mine = self.my_rows if start == 0 else []
                    singles = [[key] for key in self.other_keys]
                    yield from self.keys_pass(rows[start : start + most], mine, singles, heads, [kv_head])
        else:
            yield from self.keys_pass(self._of(self.share.heads, self.other_rows), self.my_rows, [self.other_keys])

    def keys_pass(
        self,
        others: Rows,
        mine: Sequence[int],
        blocks: Sequence[Sequence[int]],
        heads: Sequence[int] | None = None,
        kv_heads: Sequence[int] | None = None,
    ) -> Iterator[Move]:
        """Rows of others arrive; own keys, then blocks of others' keys, meet them and own rows; all leave."""
        heads, kv_heads = heads or self.share.heads, kv_heads or self.share.kv_heads
        yield self.arrive(others, queries=True)
        rows = [*self._of(heads, mine), *others]
        yield from self.compute(rows, self.my_keys)
        for block in blocks:
            yield self.arrive(keys := self._of(kv_heads, block), queries=False)
            yield from self.compute(rows, block)
            yield self.leave(keys, queries=False)
        yield self.leave(others, queries=True)

    def compute(self, rows: Rows, keys: Sequence[int]) -> Iterator[Move]:
        for head in dict.fromkeys(head for head, _ in rows):
            queries = [token for each, token in rows if each == head]
            if queries and keys:
                yield Compute(self.p, head, queries, keys)

    def arrive(self, rows: Rows, queries: bool) -> Receive:
        return Receive(self.p, *self._tensors(queries), rows)

    def leave(self, rows: Rows, queries: bool) -> Send:
        return Send(self.p, *self._tensors(queries), rows)

    def _tensors(self, queries: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        moved = self.traffic
        inside, sums = (moved.rows_in, moved.rows_out) if queries else (moved.keys_in, moved.keys_out)
        return tuple(inside), tuple(sums)

    def _of(self, heads: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, int]]:
        return [(head, token) for head in heads for token in tokens]
