"""Heads and sequences: the number of problems of one size, and which of them share keys and values.

H/G heads that share K and V are counted as one head with H/G times the queries: it has the same graph, and each read of
K and V serves all of them. The rows of one position are adjacent, and a mask treats them like that position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import heads_on, whole, whole_groups
from pebblesim.counting.arguments import problem_dims
from pebblesim.language.masks import AnyHeads, HeadMasks, Mask
from pebblesim.language.problems import Problem


class Cases(NamedTuple):
    """The counted problems: problems of one size, each under its own mask, all of them `times` times.

    If all heads are alike there is one mask (None for no mask), and `times` is the number of problems.
    """

    sizes: dict[str, int]
    masks: tuple[Mask | None, ...]
    times: int


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads (as many by default), and sequences.

    Attributes:
        heads, kv_heads, batch: numbers of heads, of KV heads, and of sequences; heads are for one
            sequence.
        separate: count each head separately, even if several share keys and values.

    Raises:
        UsageError: a number is not allowed, or does not divide the number of heads.
    """

    heads: int = 1
    kv_heads: int | None = None
    batch: int = 1
    separate: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "batch"):
            whole(name, getattr(self, name))
        if self.kv_heads is not None:
            whole_groups(self.heads, self.kv_heads)

    @property
    def sharing(self) -> int:
        """Number of heads that share the same keys and values."""
        return self.heads // (self.kv_heads or self.heads)

    @property
    def heads_per_problem(self) -> int:
        """Number of heads that are counted as one."""
        return 1 if self.separate else self.sharing

    @property
    def times(self) -> int:
        """Number of problems that share nothing."""
        return self.heads // self.heads_per_problem * self.batch

    @property
    def is_given(self) -> bool:
        """Whether heads or sequences were given."""
        return (self.heads, self.kv_heads, self.batch) != (1, None, 1)

    def alone(self) -> Heads:
        """Return these heads with each counted separately."""
        return Heads(self.heads, self.kv_heads, self.batch, separate=True)

    def cases(self, solves: Problem, dims: Mapping[str, int], mask: AnyHeads | None) -> Cases:
        """Return the counted problems for sizes and a mask, or masks, of a head.

        Raises:
            UsageError: a size is not allowed; heads share keys and values, but the problem has inputs other than
                queries, keys and values; or the masks do not match the heads or sizes.
        """
        sizes = problem_dims(solves, dims)
        if isinstance(mask, HeadMasks):
            solves.refuse_mask()
        counted = sizes if self.heads_per_problem == 1 else self._grouped(solves, sizes)
        if mask is None:
            return Cases(counted, (None,), self.times)
        if self.heads_per_problem == 1 and not isinstance(mask, HeadMasks):
            return Cases(counted, (mask,), self.times)
        grid = solves.in_dims(sizes).grid(sizes)
        if isinstance(mask, HeadMasks):
            mask.check(grid, self.heads)
            return Cases(counted, mask.among(self.heads_per_problem, grid), self.batch)
        return Cases(counted, (mask.grouped(self.heads_per_problem, grid),), self.times)

    def _grouped(self, solves: Problem, sizes: Mapping[str, int]) -> dict[str, int]:
        own = shared(solves)
        assert own.pairs is not None
        grouped = own.sizes(sizes)
        grouped[own.pairs[0]] *= self.heads_per_problem
        return grouped

    def dims(self, solves: Problem, dims: Iterable[str]) -> Iterable[str]:
        """Return the names of the dimensions of what is counted: all of the problem's if heads share keys and values.

        Raises:
            UsageError: as for `cases`.
        """
        return dims if self.heads_per_problem == 1 else shared(solves).dims

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for `--json`."""
        among = {"heads": self.heads, "kv_heads": self.kv_heads or self.heads, "batch": self.batch}
        return {**among, "separate": self.separate}

    def __str__(self) -> str:
        sequences = "" if self.batch == 1 else f", {self.batch:,} sequences"
        return heads_on(self.heads, self.kv_heads) + sequences


def shared(solves: Problem) -> Problem:
    """The problem in all its dimensions, if heads can share its keys and values.

    Raises:
        UsageError: they cannot, because the problem has inputs other than queries, keys and values.
    """
    own = solves.rectangle or solves
    if own.pairs is None or own.pairs[0] == own.pairs[1] or set(own.inputs) - {*own.queries, *own.keys}:
        raise UsageError(
            f"problem {solves.name!r} has more inputs than queries, keys and values, which heads cannot share; "
            "leave out --kv-heads, or use --separate."
        )
    return own
