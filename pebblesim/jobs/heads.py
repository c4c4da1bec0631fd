"""Heads and sequences: how many problems of one size there are, and which of them share keys and values.

H/G heads that share K and V are one head with H/G times the queries: the same graph, in which K and V are read for all.
The rows of one position stand together, so that a mask allows each of them what it allows the position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pebblesim.errors import UsageError
from pebblesim.jobs.arguments import BlockRule, problem_dims
from pebblesim.jobs.compare import compare
from pebblesim.jobs.count import Counted
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem
from pebblesim.sizes import whole
from pebblesim.units import Traffic


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

    def alone(self) -> Heads:
        """The same, each head for itself."""
        return Heads(self.heads, self.kv_heads, self.batch, separate=True)

    def of(self, solves: Problem, dims: Mapping[str, int], mask: Mask | None) -> tuple[dict[str, int], Mask | None]:
        """The sizes and the mask of the heads that are counted as one.

        Raises:
            UsageError: sizes that are not allowed, or the problem has other inputs than queries, keys and values.
        """
        sizes = problem_dims(solves, dims)
        if self.together == 1:
            return sizes, mask
        own = solves.rectangle
        if own is None or own.pairs is None or set(own.inputs) - {*own.queries, *own.keys}:
            raise UsageError(
                f"problem {solves.name!r} has more inputs than queries, keys and values, which heads could share; "
                "leave out the number of heads of keys and values, or count each head for itself."
            )
        sizes = {dim: sizes[dim if dim in sizes else own.from_nd[dim]] for dim in own.dims}
        grid = own.grid(sizes)
        sizes[own.pairs[0]] *= self.together
        return sizes, mask and mask.grouped(self.together, grid)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for `--json`."""
        given = {"heads": self.heads, "kv_heads": self.kv_heads or self.heads, "batch": self.batch}
        return {**given, "separate": self.separate, "times": self.times}

    def __str__(self) -> str:
        shared = "" if self.sharing == 1 else f" on {self.kv_heads:,} of keys and values"
        sequences = "" if self.batch == 1 else f", {self.batch:,} sequences"
        return f"{self.heads:,} head{'s' * (self.heads > 1)}{shared}{sequences}"


@dataclass(frozen=True)
class Totals:
    """What schedules move for all heads and sequences.

    Attributes:
        heads: how many there are.
        rows: what each schedule moves for those that are counted as one.
        alone: words that it moves for all, each head for itself; None where nothing is shared, or it does not fit.
        dtype: type of a word; None for words alone.
    """

    heads: Heads
    rows: Sequence[Counted]
    alone: Sequence[int | None]
    dtype: str | None

    @classmethod
    def of(
        cls,
        rows: Sequence[Counted],
        heads: Heads,
        dims: Mapping[str, int],
        mask: Mask | None,
        blocks: BlockRule,
        summation: str,
        dtype: str | None,
    ) -> Totals:
        """From what was counted, and the sizes and the mask of a head alone."""
        fit = [row for row in rows if row.least_M is None]
        alone: dict[str, int] = {}
        if heads.together > 1 and fit:
            options: dict[str, Any] = {"M": fit[0].M, "blocks": blocks, "summation": summation, "mask": mask, **dims}
            each = compare([row.schedule for row in fit], problem_name=fit[0].problem, **options)
            alone = {row.schedule: row.io * heads.alone().times for row in each if row.least_M is None}
        return cls(heads, fit, [alone.get(row.schedule) for row in fit], dtype)

    def words(self, row: Counted) -> Traffic:
        """What a schedule moves for all."""
        return Traffic(row.reads * self.heads.times, row.writes * self.heads.times)

    @property
    def title(self) -> str:
        """What is added up."""
        one = "" if self.heads.together == 1 else f", {self.heads.together:,} that share keys and values counted as one"
        return f"{self.heads}{one}: {self.heads.times:,} times the above"

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the table."""
        in_bytes = (f"bytes, {self.dtype}",) if self.dtype else ()
        return ("schedule", "reads", "writes", "I/O", *in_bytes, *(("each for itself", "saved") * self._compares))

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """Of the table, as text."""
        found = []
        for row, alone in zip(self.rows, self.alone, strict=True):
            words = self.words(row)
            cells = [row.schedule, f"{words.reads:,}", f"{words.writes:,}", f"{words.io:,}"]
            cells += [f"{words.in_bytes(self.dtype).io:,}"] if self.dtype else []
            if self._compares:
                cells += ["", ""] if alone is None else [f"{alone:,}", f"{(alone - words.io) / alone:.1%}"]
            found.append(tuple(cells))
        return found

    @property
    def _compares(self) -> bool:
        return any(alone is not None for alone in self.alone)

    def to_dict(self) -> dict[str, Any]:
        """As printed with `--json`."""
        return {
            **self.heads.to_dict(),
            "totals": [
                {
                    "schedule": row.schedule,
                    "reads": (words := self.words(row)).reads,
                    "writes": words.writes,
                    "io": words.io,
                    "bytes": words.in_bytes(self.dtype).io if self.dtype else None,
                    "each_for_itself": alone,
                }
                for row, alone in zip(self.rows, self.alone, strict=True)
            ],
        }
