"""Attention on many devices as each device runs it: what it sends, receives and computes, under a counted schedule.

This module knows neither arrays nor networks. `Local` computes attention on arrays of one device, `Transport` moves
arrays between devices; with numpy and pipes it runs anywhere, with torch and NCCL on GPUs (`pebblesim.gpu.torch`). The
next words travel while those that are there are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from pebblesim.core.errors import UsageError
from pebblesim.parallel.count import Moved
from pebblesim.parallel.schedules import AT_ONCE
from pebblesim.parallel.team import STATISTICS
from pebblesim.parallel.tokens import Tokens


class Pending(Protocol):
    """Arrays on their way."""

    def wait(self) -> None:
        """Return when all arrays that are received are there."""


class Transport(Protocol):
    """Moves arrays between devices; the devices' calls correspond to each other, in order."""

    @property
    def rank(self) -> int: ...

    def exchange(self, sends: Mapping[int, list[Any]], receives: Mapping[int, list[Any]], sums: bool) -> Pending:
        """Start to send arrays to devices, and to fill others with what devices send.

        Args:
            sends: by device, arrays in the order in which it receives them.
            receives: by device, arrays to fill.
            sums: whether they are partial sums, for which the sender pays.
        """


class Local(Protocol):
    """Attention on the arrays of one device: (…, heads, tokens, words); statistics have one word."""

    def forward(self, Q: Any, K: Any, V: Any, causal: bool) -> tuple[Any, Any]:
        """Return O and L = log Σ exp(S), natural; a causal mask is aligned at the end, and each row sees a key."""

    def backward(self, x: Mapping[str, Any], causal: bool) -> Mapping[str, Any]:
        """Return dQ, dK and dV of these rows and keys, from Q, K, V, dO, and L and D of whole rows."""

    def merge(self, O: Any, L: Any, part: Any, part_L: Any) -> None:
        """Put the mean of O and `part` under the weights exp(L) into O, and the logarithm of their sum into L."""

    def empty(self, like: Any, heads: int, tokens: int, words: int, statistic: bool) -> Any:
        """Return an array to receive into, with the leading dimensions of `like`; statistics have 32 bits."""

    def sums(self, like: Any, heads: int, tokens: int, words: int, value: float) -> Any:
        """Return an array of at least 32 bits with one value, to add to."""

    def rounded(self, sums: Any, like: Any) -> Any:
        """Return sums in the type of `like`."""

    def join(self, arrays: Sequence[Any]) -> Any:
        """Return arrays joined along their tokens, contiguous."""


class Piece(NamedTuple):
    """Rows and keys, as places in two runs of tokens, whose pairs are all allowed, or those of a causal mask."""

    rows: slice
    keys: slice
    causal: bool


def pieces(rows: range, keys: range, ahead: int) -> Iterator[Piece]:
    """Cut two runs of tokens of one step into a part with a causal mask aligned at the end, and one with all pairs.

    Row t of the run sees key s if s ≤ t + o.

    >>> list(pieces(range(4, 8), range(4, 8), 0))
    [Piece(rows=slice(0, 4, None), keys=slice(0, 4, None), causal=True)]
    >>> list(pieces(range(4, 8), range(0, 4), 0))
    [Piece(rows=slice(0, 4, None), keys=slice(0, 4, None), causal=False)]
    """
    o = (rows.start + ahead - keys.start) // rows.step
    first = max(0, -o)
    if first >= len(rows):
        return
    if first + o + 1 >= len(keys):
        yield Piece(slice(first, len(rows)), slice(0, len(keys)), False)
        return
    end = min(len(rows), len(keys) - o)
    yield Piece(slice(first, end), slice(0, end + o), True)
    if end < len(rows):
        yield Piece(slice(end, len(rows)), slice(0, len(keys)), False)


@dataclass(eq=False)
class Block:
    """Rows or keys of some heads: tokens in runs, arrays of inputs, and of sums of outputs, by name."""

    runs: list[range]
    inputs: dict[str, Any]
    sums: dict[str, Any]

    def at(self, where: slice) -> Block:
        """Return views of some of the tokens."""
        inputs, sums = ({name: array[..., where, :] for name, array in of.items()} for of in (self.inputs, self.sums))
        return Block([], inputs, sums)

    def places(self) -> Iterator[tuple[range, int]]:
        """Yield each run of tokens, and where it starts in the arrays."""
        start = 0
        for run in self.runs:
            yield run, start
            start += len(run)


class Device:
    """One device's part of a schedule.

    Args:
        moved: a counted schedule of one of the orders that need no memory limit.
        transport: the other devices; there are as many as in the schedule.
        local: attention on this device.
        inputs: Q (…, h, n_q/P, d_k), K and V of this device's tokens in their order; backward also dO, and L and D
            (…, h, n_q/P, 1).

    Raises:
        UsageError: the schedule asks for passes, or values are latent.
    """

    def __init__(self, moved: Moved, transport: Transport, local: Local, inputs: Mapping[str, Any]) -> None:
        if moved.schedule.order.in_passes or moved.layout.team.latent:
            raise UsageError(
                f"{moved.schedule.name}{' with latent values' if moved.layout.team.latent else ''} does not run on "
                "devices; the schedules without passes do, on keys with values of their own."
            )
        self.moved, self.layout, self.team = moved, moved.layout, moved.layout.team
        self.transport, self.local, self.p = transport, local, transport.rank
        self.like = inputs["Q"]
        traffic, p = self.team.traffic, self.p
        self.rows = Block(_runs(self.team.own_rows[p]), {name: inputs[name] for name in traffic.rows_in}, {})
        self.keys = Block(_runs(self.team.own_keys[p]), {name: inputs[name] for name in traffic.keys_in}, {})
        self.rows.sums = self._sums(traffic.rows_out, self.team.heads, self.team.own_rows[p].number)
        self.keys.sums = self._sums(traffic.keys_out, self.team.kv_heads, self.team.own_keys[p].number)

    def run(self) -> dict[str, Any]:
        """Compute, and return this device's O and L, or dQ, dK and dV, as sums of at least 32 bits."""
        share = self.layout.shares[self.p]
        rows, keys = self._of_heads(self.rows, share.heads), self._of_heads(self.keys, share.kv_heads)
        steps = range(len(self.senders[self.p]))
        coming = self._fetch(0) if steps else None
        self._compute(rows, keys)
        returning = []
        for step in steps:
            assert coming is not None
            coming.pending.wait()
            there, coming = coming, self._fetch(step + 1) if step + 1 < len(steps) else None
            self._compute(rows, there.keys)
            self._compute(there.rows, keys)
            self._compute(there.rows, there.keys)
            returning.append(self._give_back(step, there))
        for back in returning:
            back.pending.wait()
            for view, part in back.parts:
                self._add(view, part)
        return {**self.rows.sums, **self.keys.sums}

    @cached_property
    def senders(self) -> list[list[list[int]]]:
        """For each device and step, the devices that send to it."""
        by_device = []
        for q in range(self.team.P):
            if self.moved.schedule.order == AT_ONCE:
                by_device.append([sorted({*self.layout.row_owners(q), *self.layout.key_owners(q)} - {q})])
            else:
                by_device.append([[sender] for sender in self.moved.round_of(q)])
        return by_device if self.team.P > 1 else [[]]

    def _asked(self, giver: int, taker: int) -> Iterator[tuple[bool, Tokens, range]]:
        """Yield the rows (True) and the keys of one device that another one takes part of, if any, and their heads."""
        share, needed = self.layout.shares[taker], self.layout.needed
        if giver in self.layout.row_owners(taker) and (rows := needed(self.team.own_rows[giver], share.keys, True)):
            yield True, rows, share.heads
        if giver in self.layout.key_owners(taker) and (keys := needed(self.team.own_keys[giver], share.rows, False)):
            yield False, keys, share.kv_heads

    def _fetch(self, step: int) -> _Coming:
        """Start to send what others ask for in a step, and to receive what this device asks for."""
        traffic, p, sends, receives = self.team.traffic, self.p, dict[int, list[Any]](), dict[int, list[Any]]()
        for q in range(self.team.P):
            if q != p and p in self.senders[q][step]:
                for of_rows, tokens, heads in self._asked(p, q):
                    own = self.rows if of_rows else self.keys
                    sends.setdefault(q, []).extend(self._taken(own, tokens, heads).values())
        parts = []
        for q in self.senders[p][step]:
            for of_rows, tokens, heads in self._asked(q, p):
                names = traffic.rows_in if of_rows else traffic.keys_in
                arrays = {name: self._empty(name, heads, tokens, words) for name, words in names.items()}
                parts.append((q, of_rows, tokens, arrays))
                receives.setdefault(q, []).extend(arrays.values())
        return _Coming(self, self.transport.exchange(sends, receives, sums=False), parts)

    def _give_back(self, step: int, there: _Coming) -> _Back:
        """Start to send partial sums to their owners, and to receive those of this device's rows and keys."""
        sends, receives, parts = dict[int, list[Any]](), dict[int, list[Any]](), []
        for q, sums in there.sums():
            if sums:
                sends.setdefault(q, []).extend(
                    self.local.join([array if name in STATISTICS else self.local.rounded(array, self.like)])
                    for name, array in sums.items()
                )
        for q in range(self.team.P):
            if q == self.p or self.p not in self.senders[q][step]:
                continue
            for of_rows, tokens, heads in self._asked(self.p, q):
                own = self.rows if of_rows else self.keys
                if not own.sums:
                    continue
                of = self._of_heads(own, heads)
                got = {name: self._empty(name, heads, tokens, array.shape[-1]) for name, array in own.sums.items()}
                receives.setdefault(q, []).extend(got.values())
                start = 0
                for place in _places(own.runs, tokens):
                    end = start + place.stop - place.start
                    part = {name: array[..., start:end, :] for name, array in got.items()}
                    parts.append((of.at(place).sums, part))
                    start = end
        return _Back(self.transport.exchange(sends, receives, sums=True), parts)

    def _taken(self, own: Block, tokens: Tokens, heads: range) -> dict[str, Any]:
        """Arrays of some tokens and heads of this device, to be sent."""
        places = _places(own.runs, tokens)
        return {
            name: self.local.join([array[..., heads.start : heads.stop, place, :] for place in places])
            for name, array in own.inputs.items()
        }

    def _of_heads(self, block: Block, heads: range) -> Block:
        cut = slice(heads.start, heads.stop)
        inputs, sums = ({name: x[..., cut, :, :] for name, x in of.items()} for of in (block.inputs, block.sums))
        return Block(block.runs, inputs, sums)

    def _empty(self, name: str, heads: range, tokens: Tokens, words: int) -> Any:
        return self.local.empty(self.like, len(heads), tokens.number, words, name in STATISTICS)

    def _sums(self, names: Mapping[str, int], heads: int, tokens: int) -> dict[str, Any]:
        start = {"L": float("-inf")}
        return {
            name: self.local.sums(self.like, heads, tokens, words, start.get(name, 0.0))
            for name, words in names.items()
        }

    def _compute(self, rows: Block, keys: Block) -> None:
        """Add what the pairs of a block of rows and one of keys give to the sums of both."""
        if not rows.runs or not keys.runs:
            return
        if not self.team.causal:
            self._pairs(rows, keys, False)
            return
        for run, start in rows.places():
            for other, place in keys.places():
                for piece in pieces(run, other, self.team.ahead):
                    mine = slice(start + piece.rows.start, start + piece.rows.stop)
                    its = slice(place + piece.keys.start, place + piece.keys.stop)
                    self._pairs(rows.at(mine), keys.at(its), piece.causal)

    def _pairs(self, rows: Block, keys: Block, causal: bool) -> None:
        if self.team.backward:
            made = self.local.backward({**rows.inputs, **keys.inputs}, causal)
            self._add({**rows.sums, **keys.sums}, made)
        else:
            O, L = self.local.forward(rows.inputs["Q"], keys.inputs["K"], keys.inputs["V"], causal)
            self._add(rows.sums, {"O": O, "L": L})

    def _add(self, to: dict[str, Any], part: Mapping[str, Any]) -> None:
        if "O" in to:
            self.local.merge(to["O"], to["L"], part["O"], part["L"])
            return
        for name, array in to.items():
            array += part[name]


class _Back(NamedTuple):
    """Partial sums on their way to their owner: views of its sums, and what is added to them."""

    pending: Pending
    parts: list[tuple[dict[str, Any], dict[str, Any]]]


class _Coming:
    """Rows and keys of others on their way, as one block each."""

    def __init__(self, device: Device, pending: Pending, parts: list[tuple[int, bool, Tokens, dict[str, Any]]]) -> None:
        self.device, self.pending, self.parts = device, pending, parts

    @cached_property
    def rows(self) -> Block:
        return self._block(True)

    @cached_property
    def keys(self) -> Block:
        return self._block(False)

    def _block(self, of_rows: bool) -> Block:
        parts = [(tokens, arrays) for _, rows, tokens, arrays in self.parts if rows is of_rows]
        if not parts:
            return Block([], {}, {})
        runs = [run for tokens, _ in parts for run in tokens.parts]
        join = self.device.local.join
        inputs = {name: join([arrays[name] for _, arrays in parts]) for name in parts[0][1]}
        share, traffic = self.device.layout.shares[self.device.p], self.device.team.traffic
        names, heads = (traffic.rows_out, share.heads) if of_rows else (traffic.keys_out, share.kv_heads)
        return Block(runs, inputs, self.device._sums(names, len(heads), sum(map(len, runs))))

    def sums(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each owner with the partial sums of its rows, and of its keys."""
        start = {True: 0, False: 0}
        for owner, of_rows, tokens, _ in self.parts:
            block, first = self.rows if of_rows else self.keys, start[of_rows]
            start[of_rows] += tokens.number
            yield owner, block.at(slice(first, first + tokens.number)).sums


def _runs(tokens: Tokens) -> list[range]:
    return list(tokens.parts)


def _places(runs: Sequence[range], some: Tokens) -> list[slice]:
    """Where some of these tokens stand; each of their runs lies in one of these."""
    found, start = [], 0
    for run in runs:
        for part in some.parts:
            if part.start in run:
                first = start + (part.start - run.start) // run.step
                found.append(slice(first, first + len(part)))
        start += len(run)
    return found
