"""Play a schedule: what each device receives, computes, sends and drops, and its numbers on real arrays.

All devices are in one process. Each has arrays of its own, which hold NaN for every word that it neither owns nor was
sent, so that an output is right only if no such word was used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pebblesim.parallel.count import Moved
from pebblesim.parallel.schedules import IN_PASSES, KEYS_GO_ROUND, QUERIES_GO_ROUND
from pebblesim.parallel.team import STATISTICS, Team

Array: TypeAlias = NDArray[np.float64]
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


def numbers(moved: Moved, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run a schedule; each device computes with the words that it holds.

    Args:
        moved: a counted schedule.
        inputs: Q of shape (h, n_q, d_k), K (h_kv, n_k, d_k) and, unless values are latent, V (h_kv, n_k, d_v); for the
            backward pass also dO (h, n_q, d_v), L and D (h, n_q).

    Returns:
        O (h, n_q, d_v) and L (h, n_q), or dQ, dK and dV, with the shapes of Q, K and V.
    """
    team = moved.layout.team
    devices = [_Memory(team, p, inputs) for p in range(team.P)]
    row_owner = {token: p for p in range(team.P) for token in team.own_rows[p]}
    key_owner = {token: p for p in range(team.P) for token in team.own_keys[p]}
    for move in moves(moved):
        mine = devices[move.device].arrays
        if isinstance(move, Compute):
            with np.errstate(invalid="ignore"):  # NaN spreads
                (_backward if team.backward else _forward)(mine, team, move)
            continue
        owner = row_owner if set(move.tensors) <= set(team.traffic.rows_in) else key_owner
        for head, token in move.rows:
            its = devices[owner[token]].arrays
            if isinstance(move, Send) and move.sums:
                with np.errstate(invalid="ignore"):
                    _add(its, team, {name: mine[name][head, token] for name in move.sums}, (head, token))
            for name in move.tensors:
                mine[name][head, token] = its[name][head, token] if isinstance(move, Receive) else np.nan
            for name in move.sums:
                mine[name][head, token] = _empty(name, team) if isinstance(move, Receive) else np.nan
    outputs = {name: np.full(_shape(team, name), np.nan) for name in (*team.traffic.rows_out, *team.traffic.keys_out)}
    for device in devices:
        for name, out in outputs.items():
            out[:, device.own(name)] = device.arrays[name][:, device.own(name)]
    return outputs


class _Memory:
    """The arrays of a device: NaN for every word that it neither owns nor was sent."""

    def __init__(self, team: Team, p: int, inputs: Mapping[str, Array]) -> None:
        self.team, self.p, moved = team, p, team.traffic
        names = (*moved.rows_in, *moved.keys_in, *moved.rows_out, *moved.keys_out)
        self.arrays = {name: np.full(_shape(team, name), np.nan) for name in names}
        for name, array in self.arrays.items():
            sums = name in moved.rows_out or name in moved.keys_out
            array[:, self.own(name)] = _empty(name, team) if sums else inputs[name][:, self.own(name)]

    def own(self, name: str) -> NDArray[np.int64]:
        own = self.team.own_keys if _of_keys(self.team, name) else self.team.own_rows
        return np.array(list(own[self.p]), int)


def _of_keys(team: Team, name: str) -> bool:
    return name in team.traffic.keys_in or name in team.traffic.keys_out


def _shape(team: Team, name: str) -> tuple[int, ...]:
    heads, tokens = (team.kv_heads, team.n_k) if _of_keys(team, name) else (team.heads, team.n_q)
    if name in STATISTICS:
        return heads, tokens
    return heads, tokens, team.d_k if name in ("Q", "K", "dQ", "dK") else team.d_v


def _empty(name: str, team: Team) -> float:
    """The value of a sum without terms; L is the logarithm of one."""
    return -np.inf if name == "L" and not team.backward else 0.0


def _add(to: dict[str, Array], team: Team, part: Mapping[str, Any], where: Any) -> None:
    """Add partial sums; outputs of two sets of keys have the weights exp(L)."""
    if team.backward:
        for name, value in part.items():
            to[name][where] += value
        return
    old, both = to["L"][where], np.logaddexp(to["L"][where], part["L"])
    top = np.where(np.isneginf(both), 0, both)
    ours, theirs = np.exp(old - top), np.exp(part["L"] - top)
    to["O"][where] = to["O"][where] * ours[..., None] + part["O"] * theirs[..., None]
    to["L"][where] = both


def _scores(has: Mapping[str, Array], team: Team, move: Compute) -> tuple[Array, Any, Any]:
    """The scores of the pairs, -inf for those that are not allowed; and where the queries and the keys are."""
    queries = move.head, np.array(move.queries)
    keys = move.head // team.sharing, np.array(move.keys)
    scores = has["Q"][queries] @ has["K"][keys].T
    if team.causal:
        scores = np.where(keys[1][None, :] <= queries[1][:, None] + team.ahead, scores, -np.inf)
    return scores, queries, keys


def _values(has: Mapping[str, Array], team: Team, keys: Any) -> Array:
    return has["K"][keys][:, : team.d_v] if team.latent else has["V"][keys]


def _forward(has: dict[str, Array], team: Team, move: Compute) -> None:
    scores, queries, keys = _scores(has, team, move)
    top = scores.max(axis=1)
    safe = np.where(np.isneginf(top), 0, top)
    weights = np.exp(scores - safe[:, None])
    sums = weights.sum(axis=1)
    some = sums != 0  # NaN stays
    logs = np.where(some, safe + np.log(np.where(some, sums, 1)), -np.inf)
    out = weights @ _values(has, team, keys) / np.where(some, sums, 1)[:, None]
    _add(has, team, {"O": out, "L": logs}, queries)


def _backward(has: dict[str, Array], team: Team, move: Compute) -> None:
    scores, queries, keys = _scores(has, team, move)
    seen = ~np.isneginf(scores)  # a row that sees no key has L = -inf
    P = np.where(seen, np.exp(scores - np.where(seen, has["L"][queries][:, None], 0)), 0)
    dS = P * (has["dO"][queries] @ _values(has, team, keys).T - has["D"][queries][:, None])
    has["dQ"][queries] += dS @ has["K"][keys]
    has["dK"][keys] += dS.T @ has["Q"][queries]
    if team.latent:
        has["dK"][(*keys, slice(team.d_v))] += P.T @ has["dO"][queries]
    else:
        has["dV"][keys] += P.T @ has["dO"][queries]
