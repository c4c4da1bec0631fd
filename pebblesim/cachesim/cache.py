"""Simulate automatic caches on the stream of requests of a schedule, a graph or a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.results import Result
from pebblesim.core.sizes import bytes_of, several, whole
from pebblesim.core.tables import aligned
from pebblesim.core.units import Traffic
from pebblesim.counting.arguments import AnyMask, BlockRule, chosen
from pebblesim.counting.count import Counted, count_heads
from pebblesim.counting.heads import Heads, shared
from pebblesim.language import masks
from pebblesim.language.registry import Schedule, get
from pebblesim.lower_bounds.bounds import LowerBound

if TYPE_CHECKING:
    from pebblesim.cachesim.accesses import Grain, Machine
    from pebblesim.cachesim.policies import Misses
    from pebblesim.cachesim.requests import Stream
    from pebblesim.graphs.cdag import Cdag

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
        own, bound: the words that the schedule itself moves with a scratchpad of M words, and the lower bound on them;
            None if the stream is not from a schedule. The stream is that of one head. If heads share keys and values
            and each is counted separately, it is that of these heads, one after the other. With a mask for each head
            it is that of all heads of a sequence.
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
    bound: LowerBound | None = None
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
        row: dict[str, Any] = {"name": self.name, "M": self.M, "requests": self.requests, "compulsory": self.compulsory}
        row["requested"] = self.requested
        if self.counted is not None and self.own is not None and self.bound is not None:
            row |= {
                "blocks": dict(self.counted.blocks),
                "reads": self.own.reads,
                "writes": self.own.writes,
                "lower_bound": {"value": self.bound.value, "source": self.bound.source},
                "lru_enough": self.enough,
            }
        row |= {
            policy: {"misses": each.misses, "fetched": each.fetched, "written": each.written}
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
            in_bytes = [each.in_bytes(dtype).io for each in moved] if dtype else []
            lines.append([row.name, row.M, *(each.io for each in moved), *in_bytes])
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
        head += [f"{policy} fetches", *(["÷ reads"] if schedules else ["miss ratio"]), f"{policy} writes"]
    head += ["bound", "lru enough at"] if schedules else []
    lines = []
    for row in rows:
        line: list[Any] = [row.name, row.M]
        if row.counted is not None and row.own is not None:
            line += [row.counted.blocks_in_words, row.own.reads, row.own.writes]
        else:
            line += [row.requests, row.compulsory]
        for policy, each in row.by_policy.items():
            line += [each.fetched, row.ratio(policy), each.written]
        if row.bound is not None:
            line += [row.bound.value, row.enough]
        lines.append(line)
    return head, lines


def accesses(
    schedule: str | Schedule,
    *,
    M: int,
    machine: Machine = "uses",
    grain: Grain = "tiles",
    blocks: BlockRule = "fit",
    line: int | None = None,
    ways: int | None = None,
    dtype: str = "float32",
    mask: AnyMask | None = None,
    **dims: int,
) -> Stream:
    """Return the stream of requests of a schedule to an automatic cache.

    Args:
        schedule, M, blocks, mask, dims: as for `pebblesim.count`; M decides the blocks.
        machine: "uses": no scratchpad, each use of a word is a request; "moves": only the schedule's reads and writes
            are requests.
        grain: "tiles" (items with sizes), or "words".
        line, ways, dtype: of the cache that it is for, as for `cache`: with lines items are lines, and in sets they are
            words or lines.

    Returns:
        The stream: an array of requests, with the sizes of items.

    >>> stream = accesses("matmul-tiled", m=4, k=4, n=4, M=12, blocks={"b": 2}, machine="moves")
    >>> len(stream), int(stream.sizes.max())
    (20, 4)

    Raises:
        Infeasible, UsageError: as for `pebblesim.count`, or there are too many requests.
    """
    from pebblesim.cachesim import accesses as reading
    from pebblesim.cachesim.policies import in_lines

    if machine not in ("uses", "moves") or grain not in ("tiles", "words"):
        raise UsageError(f"machine {machine!r}, grain {grain!r}: use uses or moves, and tiles or words.")
    algorithm, sizes, _, sides = chosen(schedule, dims, M, blocks)
    pattern = masks.of(mask)
    program = algorithm.program if pattern is None else algorithm.masked
    words = None if line is None else _words_in(line, dtype)
    stream = reading.accesses(program, {**sizes, **sides}, machine, _finer(grain, words, ways), pattern)
    return stream if words is None else in_lines(stream, words)


def _finer(grain: Grain, words: int | None, ways: int | None) -> Grain:
    """The grain for a cache with lines of so many words, or with sets: both are of words."""
    return "words" if words or ways else grain


def _words_in(line: int, dtype: str) -> int:
    """Words in a cache line of so many bytes.

    Raises:
        UsageError: they are not a whole number.
    """
    words, rest = divmod(whole("line", line), bytes_of(dtype))
    if rest or not words:
        raise UsageError(f"a line of {line} bytes is not a whole number of words of {dtype}.")
    return words


def cache(
    source: str | Path | Schedule | Cdag | Stream | Any,
    *,
    M: int | str | Sequence[int],
    policy: str | Sequence[str] = ("lru", "opt"),
    machine: Machine = "uses",
    grain: Grain = "tiles",
    blocks: BlockRule = "fit",
    line: int | None = None,
    ways: int | None = None,
    dtype: str = "float32",
    mask: AnyMask | None = None,
    order: Any = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    **dims: int,
) -> CacheTable:
    """Simulate automatic caches: words fetched and written back.

    Args:
        source: a schedule, a graph, a stream (as from `accesses`), a trace file, or an array with the item number of
            each request.
        M: cache size in words (for a trace, in the units of its sizes): one number, several, or a text such as
            "256:1M:x2".
        policy: one or several of "lru", "opt" (optimal, Belady) and "fifo".
        machine, grain, blocks, mask, dims: of a schedule, as for `accesses`; blocks that M decides differ from M to M.
        line: bytes of a cache line, for a schedule; requests are then single words.
        dtype: data type of a word; it decides the words in a line.
        ways: lines in a set; by default the cache is fully associative.
        order: for a graph, the order in which its vertices are computed.
        heads, kv_heads, batch, separate: of a schedule, as for `pebblesim.count`: a cache sees one head, and the totals
            are for all. Heads that share keys and values are one with all their queries; if `separate`, they use the
            cache one after the other, and find there what the one before has left of keys and values.

    Returns:
        A row for each M, with the words that each policy fetches and writes.

    >>> row = cache([1, 2, 3, 1, 2, 3], M=2)[0]
    >>> row.lru.misses, row.opt.misses
    (6, 4)

    Raises:
        Infeasible: M is too small for the schedule (for several M, if all are too small).
        UsageError: a name, size or file is not allowed.
    """
    from pebblesim.cachesim.policies import POLICIES, in_lines
    from pebblesim.cachesim.streams import one_after_another
    from pebblesim.core.errors import UnknownName

    sizes = several("M", M) if isinstance(M, str) else [whole("M", each) for each in _several(M)]
    policies = [policy] if isinstance(policy, str) else list(dict.fromkeys(policy))
    for each in policies:
        if each not in POLICIES:
            raise UnknownName("policy", each, POLICIES)
    if not sizes or not policies:
        raise UsageError("give at least one cache size and one policy.")
    words = None if line is None else _words_in(line, dtype)
    if ways is not None:
        whole("ways", ways)
    algorithm, among, pattern = _schedule(source), Heads(heads, kv_heads, batch, separate), masks.of_heads(mask)
    if algorithm is None:
        if dims or words is not None or mask is not None or among.is_given:
            raise UsageError(
                "sizes, heads, lines and masks are for a schedule; a stream, a graph or a trace has its own."
            )
        name, stream = _given(source, order)
        return CacheTable(tuple(_rows(name, stream, sizes, policies, ways)))
    if order is not None:
        raise UsageError("an order of computation is for a graph; leave it out for a schedule.")
    rows: list[Cached] = []
    small: dict[tuple[str, int], int] = {}
    alike: dict[tuple[tuple[tuple[str, int], ...], ...], list[Counted]] = {}
    for size in sizes:
        try:
            counted = count_heads(algorithm, among, dims, size, blocks, "chain", pattern)
        except Infeasible as error:
            if len(sizes) == 1:
                raise
            small[algorithm.name, size] = error.least_M
            continue
        sides = tuple(tuple(part.blocks.items()) for part in counted.parts or (counted,))
        alike.setdefault(sides, []).append(counted)
    shares = among.sharing if separate else 1
    for group in alike.values():
        first = group[0]
        finer = _finer(grain, words, ways)
        streams = [_of_counted(algorithm, part, machine, finer) for part in first.parts or (first,) * shares]
        stream = streams[0]
        if len(streams) > 1:
            stream = one_after_another(streams, shares, shared(algorithm.problem).keys if shares > 1 else ())
        if words is not None:
            stream = in_lines(stream, words)
        replayed = _rows(algorithm.name, stream, [c.M for c in group], policies, ways)
        for row, counted in zip(replayed, group, strict=True):
            times = 1 if counted.parts else shares
            own = Traffic(counted.reads * times, counted.writes * times)
            bound = counted.lower_bound
            if shares > 1:
                together = replace(among, separate=False)
                bound = count_heads(
                    algorithm, together, dims, counted.M, blocks, "chain", pattern, fallback_to_smallest=True
                ).lower_bound
            rows.append(
                replace(
                    row,
                    counted=counted,
                    enough=_enough(stream, own.reads) if ways is None else None,
                    own=own,
                    bound=bound,
                    heads=among,
                    times=counted.times // times,
                )
            )
    if not rows:
        least = min(small.values())
        raise Infeasible(f"{algorithm.name} fits into none of these caches; it needs {least:,} words.", least)
    return CacheTable(tuple(sorted(rows, key=lambda row: sizes.index(row.M))), small)


def _of_counted(algorithm: Schedule, counted: Counted, machine: Machine, grain: Grain) -> Stream:
    shape: dict[str, Any] = {"mask": counted.only_mask, "blocks": dict(counted.blocks) or "fit", **counted.dims}
    return accesses(algorithm, M=counted.M, machine=machine, grain=grain, **shape)


def _several(M: Any) -> Iterable[Any]:
    return M if hasattr(M, "__iter__") else [M]


def _schedule(source: Any) -> Schedule | None:
    from pebblesim.cachesim.traces import is_trace

    if isinstance(source, Schedule):
        return source
    return get(source) if isinstance(source, str) and not is_trace(source) else None


def _given(source: Any, order: Any) -> tuple[str, Stream]:
    from pebblesim.cachesim import streams, traces
    from pebblesim.cachesim.requests import Stream
    from pebblesim.graphs.cdag import Cdag

    if isinstance(source, Cdag):
        return "graph", streams.of_graph(source, order)
    if order is not None:
        raise UsageError("an order of computation is for a graph.")
    if isinstance(source, str | Path):
        return Path(source).name, traces.load(Path(source))
    return "stream", source if isinstance(source, Stream) else streams.of_ids(source)


def _rows(
    name: str, stream: Stream, sizes: Sequence[int], policies: Sequence[str], ways: int | None
) -> Iterable[Cached]:
    from pebblesim.cachesim.policies import compulsory, misses

    by_policy = {policy: misses(stream, sizes, policy, ways) for policy in policies}
    fresh, requested = compulsory(stream), stream.requested
    for number, M in enumerate(sizes):
        of_policy = {policy: each[number] for policy, each in by_policy.items()}
        yield Cached(name, M, of_policy, len(stream), fresh, requested)


def _enough(stream: Stream, reads: int) -> int | None:
    from pebblesim.cachesim.policies import enough

    return enough(stream, int(CLOSE * reads))
