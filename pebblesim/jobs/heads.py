"""Heads and sequences: how many problems of one size there are, and which of them share keys and values.

H/G heads that share K and V are one head with H/G times the queries: the same graph, in which K and V are read for all.
The rows of one position stand together, so that a mask allows each of them what it allows the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pebblesim.errors import UsageError
from pebblesim.jobs.arguments import problem_dims
from pebblesim.language.masks import AnyHeads, HeadMasks, Mask
from pebblesim.language.problems import Problem
from pebblesim.sizes import whole


class Cases(NamedTuple):
    """What is counted: problems of one size, each under its own mask, all of them so many times.

    Where all heads are alike there is one mask (None for no mask), and `times` is how often the problem is solved.
    """

    sizes: dict[str, int]
    masks: tuple[Mask | None, ...]
    times: int


@dataclass(frozen=True)
class Heads:
    """Heads of queries, heads of keys and values (as many by default), and sequences.

    Attributes:
        heads, kv_heads, batch: how many there are; heads are of one sequence.
        separate: each head is counted for itself, though several have the same keys and values.

    Raises:
        UsageError: a number that is not allowed, or that the heads cannot be divided by.
    """

    heads: int = 1
    kv_heads: int | None = None
    batch: int = 1
    separate: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "batch"):
            whole(name, getattr(self, name))
        if self.kv_heads is not None and self.heads % whole("kv_heads", self.kv_heads):
            raise UsageError(
                f"{self.heads} heads cannot share {self.kv_heads} heads of keys and values evenly; the number of heads "
                "is a multiple of that of keys and values, such as 32 on 8."
            )

    @property
    def sharing(self) -> int:
        """How many heads have the same keys and values."""
        return self.heads // (self.kv_heads or self.heads)

    @property
    def together(self) -> int:
        """How many heads are counted as one."""
        return 1 if self.separate else self.sharing

    @property
    def times(self) -> int:
        """How many problems there are that share nothing."""
        return self.heads // self.together * self.batch

    @property
    def said(self) -> bool:
        """Whether anything was said of heads or sequences."""
        return (self.heads, self.kv_heads, self.batch) != (1, None, 1)

    def alone(self) -> Heads:
        """The same, each head for itself."""
        return Heads(self.heads, self.kv_heads, self.batch, separate=True)

    def cases(self, solves: Problem, dims: Mapping[str, int], mask: AnyHeads | None) -> Cases:
        """What is counted for sizes and a mask, or masks, of a head.

        Raises:
            UsageError: sizes that are not allowed; heads share keys and values, and the problem has other inputs than
                those and queries; or masks of other heads or other sizes than these.
        """
        sizes = problem_dims(solves, dims)
        if isinstance(mask, HeadMasks) and not solves.maskable:
            raise UsageError(f"problem {solves.name!r} has no pairs of queries and keys, so it takes no mask.")
        counted = sizes if self.together == 1 else self._grouped(solves, sizes)
        if mask is None:
            return Cases(counted, (None,), self.times)
        if self.together == 1 and not isinstance(mask, HeadMasks):
            return Cases(counted, (mask,), self.times)
        grid = solves.in_dims(sizes).grid(sizes)
        if isinstance(mask, HeadMasks):
            mask.check(grid, self.heads)
            return Cases(counted, mask.among(self.together, grid), self.batch)
        return Cases(counted, (mask.grouped(self.together, grid),), self.times)

    def _grouped(self, solves: Problem, sizes: Mapping[str, int]) -> dict[str, int]:
        own = shared(solves)
        assert own.pairs is not None
        grouped = {dim: sizes[dim if dim in sizes else own.from_nd[dim]] for dim in own.dims}
        grouped[own.pairs[0]] *= self.together
        return grouped

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for `--json`."""
        given = {"heads": self.heads, "kv_heads": self.kv_heads or self.heads, "batch": self.batch}
        return {**given, "separate": self.separate}

    def __str__(self) -> str:
        shared = "" if self.sharing == 1 else f" on {self.kv_heads:,} of keys and values"
        sequences = "" if self.batch == 1 else f", {self.batch:,} sequences"
        return f"{self.heads:,} head{'s' * (self.heads > 1)}{shared}{sequences}"


def shared(solves: Problem) -> Problem:
    """The problem in all its dimensions, if heads can share its keys and values.

    Raises:
        UsageError: they cannot, since it has other inputs than those and queries.
    """
    own = solves.rectangle or solves
    if own.pairs is None or own.pairs[0] == own.pairs[1] or set(own.inputs) - {*own.queries, *own.keys}:
        raise UsageError(
            f"problem {solves.name!r} has more inputs than queries, keys and values, which heads could share; leave "
            "out the number of heads of keys and values, or count each head for itself."
        )
    return own
