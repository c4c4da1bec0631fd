"""Play a schedule: what each device receives, computes, sends and drops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pebblesim.parallel.count import Moved

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
        order, share = self.moved.schedule.order, self.share
        stays, passes = (self.other_rows, self.other_keys) if order.rows_stay else (self.other_keys, self.other_rows)
        pieces: list[list[int]] = [passes] if order.piece == "all" else [[token] for token in passes]
        if order.piece == "device":
            pieces = [list(block) for block in self.moved.blocks(self.p)]
        if not order.in_passes:
            heads = share.heads if order.rows_stay else share.kv_heads
            yield from self.visit(self._of(heads, stays), True, pieces, share.heads, share.kv_heads)
            return
        most = max(1, self.moved.rows_at_once(self.p))
        for kv_head in share.kv_heads:
            of_head = [head for head in share.heads if head // self.moved.layout.team.sharing == kv_head]
            rows = self._of(of_head, stays)
            for start in range(0, max(1, len(rows)), most):
                yield from self.visit(rows[start : start + most], start == 0, pieces, of_head, [kv_head])

    def visit(
        self, others: Rows, first: bool, pieces: Sequence[Sequence[int]], heads: Sequence[int], kv_heads: Sequence[int]
    ) -> Iterator[Move]:
        """Lines of others arrive and stay; own lines of the other kind, then pieces, meet them; all leave.

        The device's own lines that stay meet them, too, in the first visit.
        """
        stay = self.moved.schedule.order.rows_stay
        mine, pass_by = (self.my_rows, self.my_keys) if stay else (self.my_keys, self.my_rows)
        yield self.arrive(others, stay)
        rows = [*self._of(heads, mine if first else []), *others]
        keys = [*mine, *(token for head, token in others if head == kv_heads[0])]
        for piece in (pass_by, *pieces):
            lines = self._of(kv_heads if stay else heads, piece)
            if piece is not pass_by:
                yield self.arrive(lines, not stay)
            yield from self.compute(rows, piece) if stay else self.compute(lines, keys)
            if piece is not pass_by:
                yield self.leave(lines, not stay)
        yield self.leave(others, stay)

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
