"""Exact counts of the words that each device moves and holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from pebblesim.core.errors import UsageError
from pebblesim.parallel.schedules import Letters, Parallel, Split
from pebblesim.parallel.team import Team
from pebblesim.parallel.tokens import Tokens, united


@dataclass(frozen=True)
class Share:
    """A device's part of the work.

    Attributes:
        heads, kv_heads: the heads that it computes.
        rows, keys: the tokens whose queries and keys have allowed pairs in its part.
        other_rows, other_keys: the same without the tokens that it owns.
    """

    heads: range
    kv_heads: range
    rows: Tokens
    keys: Tokens
    other_rows: int
    other_keys: int

    @property
    def sharing(self) -> int:
        """The query heads here that share keys and values."""
        return len(self.heads) // len(self.kv_heads)


@dataclass(frozen=True)
class Layout:
    """The parts of all devices under one split.

    Raises:
        UsageError: the heads cannot be split like that.
    """

    team: Team
    split: Split

    def __post_init__(self) -> None:
        if why := why_not(self.team, self.split.heads):
            raise UsageError(why)

    def row_owners(self, p: int) -> list[int]:
        """Return the devices whose queries device p computes: every a-th, itself among them."""
        return list(range(p % self.split.rows, self.team.P, self.split.rows))

    def key_owners(self, p: int) -> list[int]:
        """Return the devices whose keys device p uses: a in a row of each group, itself among them."""
        a, group = self.split.rows, self.split.rows * self.split.keys
        first = p % group // a * a
        return [q for start in range(first, self.team.P, group) for q in range(start, start + a)]

    def needed(self, tokens: Tokens, other: Tokens, rows: bool) -> Tokens:
        """Return the rows (or keys) that have an allowed pair with one of the other tokens."""
        if not other:
            return Tokens(())
        if not self.team.causal:
            return tokens
        ahead = self.team.ahead
        if rows:
            return tokens.clipped(max(0, other.first - ahead), self.team.n_q)
        return tokens.clipped(0, max(0, other.last + ahead + 1))

    @cached_property
    def shares(self) -> list[Share]:
        """The part of each device."""
        team, group = self.team, self.split.rows * self.split.keys
        rows = [united(team.own_rows[q] for q in self.row_owners(x)) for x in range(self.split.rows)]
        keys = [united(team.own_keys[q] for q in self.key_owners(y * self.split.rows)) for y in range(self.split.keys)]
        pairs = {
            (x, y): (self.needed(I, J, True), self.needed(J, I, False))
            for x, I in enumerate(rows)
            for y, J in enumerate(keys)
        }
        numbers = {place: (I.number, J.number) for place, (I, J) in pairs.items()}
        shares = []
        for p in range(team.P):
            place = p % group % self.split.rows, p % group // self.split.rows
            I, J = pairs[place]
            mine = self.needed(team.own_rows[p], J, True).number, self.needed(team.own_keys[p], I, False).number
            others = [all_ - own_ for all_, own_ in zip(numbers[place], mine, strict=True)]
            shares.append(Share(*self.heads_of(p // group), I, J, *others))
        return shares

    def heads_of(self, group: int) -> tuple[range, range]:
        """Return the query heads, and KV heads, of a group of devices."""
        size = self.team.heads // self.split.heads
        heads = range(group * size, (group + 1) * size)
        return heads, range(heads[0] // self.team.sharing, heads[-1] // self.team.sharing + 1)


def why_not(team: Team, groups: int) -> str | None:
    """Say why the heads cannot be dealt to this number of groups evenly, or return None."""

    def fits(u: int) -> bool:
        return team.heads % u == 0 and (team.kv_heads % u == 0 or u % team.kv_heads == 0)

    if fits(groups):
        return None
    near = min(filter(fits, range(1, team.heads + 1)), key=lambda u: (abs(u - groups), u))
    return (
        f"{team.heads_in_words} cannot be dealt evenly to {groups} groups of "
        f"devices; the nearest number of groups that works is {near}."
    )


@dataclass(frozen=True)
class Moved:
    """A schedule under a split, and the words that it moves.

    Attributes:
        schedule, layout: who computes what, and in which order.
        M: words in each device, or None for no limit.
    """

    schedule: Parallel
    layout: Layout
    M: int | None = None

    @property
    def split(self) -> Split:
        return self.layout.split

    @cached_property
    def each(self) -> list[int]:
        """The words that each device moves: inputs that it receives and partial sums that it sends."""
        return [sum(self.by_tensor(p).values()) for p in range(self.layout.team.P)]

    @property
    def busiest(self) -> int:
        """The number of the first device that moves the most words."""
        return self.each.index(self.words)

    @cached_property
    def words(self) -> int:
        """The most words that one device moves."""
        return max(self.each)

    @property
    def total(self) -> int:
        """The words that all devices move, each word once."""
        return sum(self.each)

    def by_tensor(self, p: int) -> dict[str, int]:
        """Return the words of each tensor that device p moves."""
        team, share = self.layout.team, self.layout.shares[p]
        rows, keys = len(share.heads) * share.other_rows, len(share.kv_heads) * share.other_keys * self.passes(p)
        moved = team.traffic
        by_rows = {name: rows * words for name, words in (*moved.rows_in.items(), *moved.rows_out.items())}
        by_keys = {name: keys * words for name, words in (*moved.keys_in.items(), *moved.keys_out.items())}
        return by_rows | by_keys

    def passes(self, p: int) -> int:
        """Return how often device p receives the keys of others."""
        share = self.layout.shares[p]
        if not self.schedule.order.in_passes or not share.other_rows:
            return 1
        return -(-share.sharing * share.other_rows // self.rows_at_once(p))

    def rows_at_once(self, p: int) -> int:
        """Return how many rows of others device p holds at a time, besides one key and what it owns: at least one."""
        team = self.layout.team
        rows, keys = self.layout.shares[p].sharing * self.layout.shares[p].other_rows, self.layout.shares[p].other_keys
        if self.M is None:
            return rows
        free = self.M - team.owned_words(p) - min(keys, 1) * team.traffic.key
        return min(rows, max(1, free // team.traffic.row))

    @cached_property
    def words_held(self) -> int:
        """The most words that one device holds at a time: its own inputs and outputs, and what it has of others."""
        return max(map(self.held, range(self.layout.team.P)))

    def held(self, p: int) -> int:
        """Return the most words that device p holds at a time."""
        team, share, order = self.layout.team, self.layout.shares[p], self.schedule.order
        rows, keys = len(share.heads) * share.other_rows, len(share.kv_heads) * share.other_keys
        if order.in_passes:
            rows, keys = self.rows_at_once(p), min(share.other_keys, 1)
        elif order.piece == "device":
            most = max((block.number for block in self.blocks(p)), default=0)
            rows, keys = (rows, len(share.kv_heads) * most) if order.rows_stay else (len(share.heads) * most, keys)
        return team.owned_words(p) + rows * int(team.traffic.row) + keys * int(team.traffic.key)

    def round_of(self, p: int) -> list[int]:
        """Return the other devices whose queries or keys go round, in the order in which those arrive at device p."""
        owners = self.layout.key_owners if self.schedule.order.rows_stay else self.layout.row_owners
        start = owners(p).index(p)
        return [*owners(p)[:start][::-1], *owners(p)[start + 1 :][::-1]]

    def blocks(self, p: int) -> Iterator[Tokens]:
        """Yield the tokens of other devices that go round, in the order of their arrival; those that p can use."""
        layout, share = self.layout, self.layout.shares[p]
        for owner in self.round_of(p):
            if self.schedule.order.rows_stay:
                yield layout.needed(layout.team.own_keys[owner], share.rows, False)
            else:
                yield layout.needed(layout.team.own_rows[owner], share.keys, True)

    def by_step(self, p: int) -> list[int]:
        """Return the words that device p moves in each step: one device's words that go round, or all at once.

        The keys that pass by in a pass of `IN_PASSES` are one step, with the rows that arrive before and leave behind.
        """
        share, moved = self.layout.shares[p], self.layout.team.traffic
        order, by_tensor = self.schedule.order, self.by_tensor(p)
        if order.piece == "device":
            one = len(share.kv_heads) * moved.key if order.rows_stay else len(share.heads) * moved.row
            return [one * block.number for block in self.blocks(p)]
        if not order.in_passes:
            return [
                sum(by_tensor[name] for name in (*moved.rows_in, *moved.keys_in)),
                sum(by_tensor[name] for name in (*moved.rows_out, *moved.keys_out)),
            ]
        rows, keys = share.sharing * share.other_rows, share.other_keys * moved.key
        most = self.rows_at_once(p)
        sizes = [min(most, rows - start) for start in range(0, rows, most)] if rows else [0]
        return [size * moved.row + keys for size in sizes] * len(share.kv_heads)

    @cached_property
    def most_pairs(self) -> int:
        """The most pairs of a query and a key, over all heads, that one device computes."""
        found: dict[tuple[Tokens, Tokens], int] = {}
        for share in self.layout.shares:
            I, J = share.rows, share.keys
            if (I, J) not in found:
                causal, ahead = self.layout.team.causal, self.layout.team.ahead
                found[I, J] = I.pairs_up_to(J, ahead) if causal else I.number * J.number
        return max(len(share.heads) * found[share.rows, share.keys] for share in self.layout.shares)

    def tensors(self) -> Mapping[str, int]:
        """Return the words of each tensor that the busiest device moves."""
        return self.by_tensor(self.busiest)


def splits(schedule: Parallel, team: Team) -> list[Split]:
    """Return the ways to cut the work that a schedule allows for these devices and heads.

    Raises:
        UsageError: there is none; the message names the nearest that works.
    """
    P = team.P
    divisors = [u for u in range(1, P + 1) if P % u == 0]
    asked = [
        schedule.split(Letters(P, team.heads, team.kv_heads, u, a, P // u // a))
        for u in divisors
        for a in divisors
        if P // u % a == 0
    ]
    whole = dict.fromkeys(split for split in asked if split.heads * split.rows * split.keys == P)
    if not whole:
        groups = asked[0].heads
        near = max(groups, round(P / groups) * groups)
        raise UsageError(
            f"{schedule.name} deals {groups} groups of heads to devices, so P must be a multiple of {groups}, "
            f"not {P}; the nearest that works is {near}."
        )
    fitting = [split for split in whole if why_not(team, split.heads) is None]
    if not fitting:
        raise UsageError(str(why_not(team, next(iter(whole)).heads)))
    return fitting


def best(schedule: Parallel, team: Team, M: int | None = None) -> Moved:
    """Count a schedule under the split with the fewest words that fits into M, or else the one that holds the least.

    Raises:
        UsageError: the heads or devices cannot be split as the schedule asks.
    """

    def worth(moved: Moved) -> tuple[int, ...]:
        over = 0 if M is None else max(0, moved.words_held - M)
        return over, moved.words, moved.total, moved.words_held

    return min((Moved(schedule, Layout(team, split), M) for split in splits(schedule, team)), key=worth)
