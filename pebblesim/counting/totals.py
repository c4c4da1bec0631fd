"""The I/O of schedules for all heads and sequences, in words and in bytes, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pebblesim.core.results import plain
from pebblesim.core.tables import aligned
from pebblesim.counting.count import Counted
from pebblesim.counting.heads import Heads


@dataclass(frozen=True)
class Totals:
    """The I/O of several schedules for the same heads and sequences.

    Attributes:
        counted: the counts, at least one.
        dtype: data type of a word; None for words only.
    """

    counted: Sequence[Counted]
    dtype: str | None

    @property
    def rows(self) -> list[Counted]:
        """The counts that fit."""
        return [row for row in self.counted if row.least_M is None]

    @property
    def heads(self) -> Heads:
        """The heads and sequences."""
        return self.counted[0].heads

    @property
    def title(self) -> str:
        """The title of the table: the heads and sequences that are added up."""
        first = self.counted[0]
        if first.parts:
            return f"{self.heads}, each under its own mask: {first.times:,} times the above, which is all of a sequence"
        shared = self.heads.heads_per_problem
        one = "" if shared == 1 else f", {shared:,} that share keys and values counted as one"
        return f"{self.heads}{one}: {first.times:,} times the above"

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of the table of totals."""
        in_bytes = (f"bytes, {self.dtype}",) if self.dtype else ()
        sharing = ("I/O without sharing", "saved by sharing") if self._compares else ()
        return ("schedule", "reads", "writes", "I/O", *in_bytes, *sharing)

    @property
    def lines(self) -> list[tuple[str | int | None, ...]]:
        """The lines of the table of totals."""
        texts = []
        for row in self.rows:
            words, alone = row.total, row.io_without_sharing
            cells = [row.schedule, words.reads, words.writes, words.io]
            cells += [words.in_bytes(self.dtype).io] if self.dtype else []
            if self._compares:
                cells += [alone, None if alone is None else f"{(alone - words.io) / alone:.1%}"]
            texts.append(tuple(cells))
        return texts

    @property
    def _compares(self) -> bool:
        return any(row.io_without_sharing is not None for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the data for `--json`."""
        return {
            **self.heads.to_dict(),
            "times": self.counted[0].times,
            "totals": [
                plain(row, "schedule", "total.reads", "total.writes", "total.io")
                | {"bytes": row.total.in_bytes(self.dtype).io if self.dtype else None}
                | plain(row, "io_without_sharing")
                for row in self.rows
            ],
        }

    def __str__(self) -> str:
        return f"{self.title}\n{aligned(self.columns, self.lines)}"
