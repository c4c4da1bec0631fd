"""Results of automatic caches: a row for each cache, and a table of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pebblesim.core.results import Result, plain
from pebblesim.core.tables import aligned
from pebblesim.core.units import Traffic
from pebblesim.counting.count import Counted
from pebblesim.counting.heads import Heads

if TYPE_CHECKING:
    from pebblesim.cachesim.policies import Misses

CLOSE = 1.1
"""An LRU cache is large enough if it fetches at most this many times the words that the schedule reads."""


@dataclass(frozen=True)
class Cached:
    """Results of caches of M words on one stream.

    Attributes:
        name: name of the schedule or of the stream.
        M: cache size in words.
        by_policy: the result of each policy, by name.
        requests, compulsory: number of requests; number of words that every cache must fetch, because they are read
            before they are written.
        requested: number of words that the requests read.
        counted: the schedule's count; None if the stream is not from a schedule.
        enough: smallest cache in words with which an LRU fetches at most `CLOSE` times the words that the schedule
            reads; None if there is no such size, or no schedule.
        own: the words that the schedule itself moves with a scratchpad of M words; None if the stream is not from a
            schedule. The stream is that of one head. If heads share keys and values and each is counted separately, it
            is that of these heads, one after the other. With a mask for each head it is that of all heads of a
            sequence.
        bounded: the count whose lower bound holds for `own`: that of heads counted together, if they share keys and
            values; None if the stream is not from a schedule.
        heads, times: the heads and sequences, and how often the stream is repeated for all of them.
    """

    name: str
    M: int
    by_policy: Mapping[str, Misses]
    requests: int
    compulsory: int
    requested: int
    counted: Counted | None = None
    enough: int | None = None
    own: Traffic | None = None
    bounded: Counted | None = None
    heads: Heads = field(default_factory=Heads)
    times: int = 1

    @property
    def lru(self) -> Misses:
        """The result of LRU, if it was requested."""
        return self.by_policy["lru"]

    @property
    def opt(self) -> Misses:
        """The result of OPT (Belady), if it was requested."""
        return self.by_policy["opt"]

    @property
    def fifo(self) -> Misses:
        """The result of FIFO, if it was requested."""
        return self.by_policy["fifo"]

    def total(self, policy: str) -> Traffic:
        """Return the words that a policy fetches and writes back for all heads and sequences."""
        return Traffic(self.by_policy[policy].fetched * self.times, self.by_policy[policy].written * self.times)

    def ratio(self, policy: str) -> float | None:
        """Words that a policy fetches, divided by words that the schedule reads.

        Without a schedule it is the miss ratio: divided by words that the requests read; None if they read nothing.
        """
        read = self.requested if self.own is None else self.own.reads
        return self.by_policy[policy].fetched / read if read else None

    def to_dict(self) -> dict[str, Any]:
        """Return a row of `pebblesim cache --json`."""
        row = plain(self, "name", "M", "requests", "compulsory", "requested")
        if self.counted is not None and self.own is not None and self.bounded is not None:
            row |= plain(self, "counted.blocks", "own.reads", "own.writes")
            row |= {"lower_bound": plain(self.bounded.lower_bound, "value", "source"), "lru_enough": self.enough}
        row |= {
            policy: plain(each, "misses", "missed_words", "fetched", "written")
            for policy, each in self.by_policy.items()
        }
        if not self.heads.is_given:
            return row
        totals = {policy: {"words": self.total(policy).io} for policy in self.by_policy}
        return row | self.heads.to_dict() | {"times": self.times, "totals": totals}


@dataclass(frozen=True)
class CacheTable(Result, Sequence[Cached]):
    """Rows of one or several streams, by M.

    Attributes:
        rows: the results.
        too_small: by (name, M), the smallest feasible M of schedules that do not fit.
    """

    rows: tuple[Cached, ...]
    too_small: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: Any) -> Any:
        return self.rows[number]

    def __str__(self) -> str:
        lines = [aligned(*table(self.rows))] if self.rows else []
        lines += [f"{name} does not fit into {M:,} words; it needs {least:,}." for (name, M), least in self.notes()]
        if self.heads.is_given:
            lines += [self.title, aligned(*self.totals())]
        return "\n".join(lines)

    @property
    def heads(self) -> Heads:
        """The heads and sequences of all rows."""
        return self.rows[0].heads if self.rows else Heads()

    @property
    def title(self) -> str:
        """The heading of `totals`: the heads and sequences that it adds up."""
        among, first = self.heads, self.rows[0]
        if first.counted is not None and first.counted.parts:
            one = ", each under its own mask"
        else:
            how = "one after the other" if among.separate else "counted as one"
            one = f", {among.sharing:,} that share keys and values {how}" if among.sharing > 1 else ""
        return f"{among}{one}: {first.times:,} times the above"

    def totals(self, dtype: str | None = None) -> tuple[list[str], list[list[Any]]]:
        """(columns, lines): what caches move for all heads and sequences, in words, and in bytes of a type."""
        policies = list(self.rows[0].by_policy)
        head = ["stream", "M", *(f"{policy}, words" for policy in policies)]
        head += [f"{policy}, bytes" for policy in policies] if dtype else []
        lines = []
        for row in self.rows:
            moved = [row.total(policy) for policy in policies]
            in_bytes = [traffic.in_bytes(dtype).io for traffic in moved] if dtype else []
            lines.append([row.name, row.M, *(traffic.io for traffic in moved), *in_bytes])
        return head, lines

    def notes(self) -> Iterable[tuple[tuple[str, int], int]]:
        """Return the schedules that did not fit: ((name, M), smallest feasible M)."""
        return self.too_small.items()

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim cache --json`."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "too_small": [{"name": name, "M": M, "least_M": least} for (name, M), least in self.notes()],
        }


def table(rows: Sequence[Cached]) -> tuple[list[str], list[list[Any]]]:
    """Return (columns, lines) of the printed table."""
    policies = list(rows[0].by_policy)
    schedules = any(row.counted is not None for row in rows)
    head = ["stream", "M"] + (["blocks", "reads", "writes"] if schedules else ["requests", "compulsory"])
    for policy in policies:
        head += [] if schedules else [f"{policy} misses", f"{policy} misses, words"]
        head += [f"{policy} fetches", "÷ reads" if schedules else "miss ratio", f"{policy} writes"]
    head += ["bound", "lru enough at"] if schedules else []
    lines = []
    for row in rows:
        line: list[Any] = [row.name, row.M]
        if row.counted is not None and row.own is not None:
            line += [row.counted.blocks_in_words, row.own.reads, row.own.writes]
        else:
            line += [row.requests, row.compulsory]
        for policy, each in row.by_policy.items():
            line += [] if schedules else [each.misses, each.missed_words]
            line += [each.fetched, row.ratio(policy), each.written]
        if row.bounded is not None:
            line += [row.bounded.lower_bound.value, row.enough]
        lines.append(line)
    return head, lines
