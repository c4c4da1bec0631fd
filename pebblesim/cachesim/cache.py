"""Simulate automatic caches on the stream of requests of a schedule, a graph or a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pebblesim.cachesim.result import CLOSE, Cached, CacheTable
from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.core.kinds import check_kind, checked_kinds
from pebblesim.core.sizes import bytes_of, several, whole
from pebblesim.core.units import Traffic
from pebblesim.counting.arguments import AnyMask, BlockRule
from pebblesim.counting.count import Counted, count_run
from pebblesim.counting.heads import Heads, shared
from pebblesim.counting.run import Run
from pebblesim.language import masks
from pebblesim.language.registry import Schedule, get

if TYPE_CHECKING:
    from pebblesim.cachesim.accesses import Grain
    from pebblesim.cachesim.homes import Machine
    from pebblesim.cachesim.requests import AnyStream, Stream, StreamInParts
    from pebblesim.cachesim.reuse import Reuse
    from pebblesim.graphs.cdag import Cdag


@checked_kinds()
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
    _check_stream(machine, grain, ways, dtype)
    run = Run.of(schedule, dims, M=M, blocks=blocks, mask=masks.of(mask))
    how = _Replay((), machine, grain, None if line is None else _words_in(line, dtype), ways)
    return how.in_lines(how.requests(run)).whole()


def _check_stream(machine: str, grain: str, ways: int | None, dtype: str) -> None:
    """Check what the requests of a schedule are, also where they are not used.

    Raises:
        UsageError: there are no such machines, grains, ways or types.
    """
    for name, value in (("machine", machine), ("grain", grain)):
        check_kind(name, value, "str")
    if machine not in ("uses", "moves") or grain not in ("tiles", "words"):
        raise UsageError(f"machine {machine!r}, grain {grain!r}: use uses or moves, and tiles or words.")
    if ways is not None:
        whole("ways", ways)
    bytes_of(dtype)


def _words_in(line: int, dtype: str) -> int:
    """Words in a cache line of so many bytes.

    Raises:
        UsageError: they are not a whole number.
    """
    words, rest = divmod(whole("line", line), bytes_of(dtype))
    if rest or not words:
        raise UsageError(f"a line of {line} bytes is not a whole number of words of {dtype}.")
    return words


@checked_kinds()
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
    from pebblesim.cachesim.policies import POLICIES

    sizes = several("M", M) if isinstance(M, str) else [whole("M", each) for each in _several(M)]
    named = [policy] if isinstance(policy, str) or not isinstance(policy, Iterable) else policy
    for name in named:
        if not isinstance(name, str) or name not in POLICIES:
            raise UnknownName("policy", name, POLICIES)
    policies = tuple(dict.fromkeys(named))
    if not sizes or not policies:
        raise UsageError("give at least one cache size and one policy.")
    words = None if line is None else _words_in(line, dtype)
    _check_stream(machine, grain, ways, dtype)
    how = _Replay(policies, machine, grain, words, ways)
    algorithm, among = _schedule(source), Heads(heads, kv_heads, batch, separate)
    if algorithm is not None:
        if order is not None:
            raise UsageError("an order of computation is for a graph; leave it out for a schedule.")
        return _of_schedule(Run.of(algorithm, dims, M=max(sizes), blocks=blocks, mask=mask, heads=among), sizes, how)
    if dims or words is not None or mask is not None or among.is_given:
        raise UsageError("sizes, heads, lines and masks are for a schedule; a stream, a graph or a trace has its own.")
    return CacheTable(tuple(how.rows(*_given(source, order), sizes)))


@dataclass(frozen=True)
class _Replay:
    """How requests are made and replayed.

    Attributes:
        policies: the caches.
        machine, grain: as for `accesses`.
        words: words in a line; None without lines.
        ways: lines in a set; None for a fully associative cache.
    """

    policies: tuple[str, ...]
    machine: Machine
    grain: Grain
    words: int | None
    ways: int | None

    def requests(self, run: Run) -> StreamInParts:
        """Return the requests of a part of a run; lines and sets are of words."""
        from pebblesim.cachesim.accesses import accesses_in_parts

        grain = "words" if self.words or self.ways else self.grain
        return accesses_in_parts(run.program, run.sizes, self.machine, grain, run.only_mask)

    def in_lines(self, stream: StreamInParts) -> StreamInParts:
        """Return the requests of lines, if the cache has lines."""
        from pebblesim.cachesim.policies import in_lines

        return stream if self.words is None else in_lines(stream, self.words)

    def rows(self, name: str, stream: AnyStream, sizes: Sequence[int], reuse: Reuse | None = None) -> Iterable[Cached]:
        """Yield the result of each cache size on a stream, of which it may be known what is used again."""
        from pebblesim.cachesim.policies import compulsory, misses, results
        from pebblesim.cachesim.requests import Stream

        by_policy = {
            policy: results(stream, policy, sizes, reuse.counts.T.tolist())
            if reuse and policy == "lru"
            else misses(stream, sizes, policy, self.ways)
            for policy in self.policies
        }
        if reuse:
            fresh, requested = reuse.compulsory * stream.unit, reuse.requested * stream.unit
        else:
            assert isinstance(stream, Stream)
            fresh, requested = compulsory(stream), stream.requested
        for number, M in enumerate(sizes):
            of_policy = {policy: misses[number] for policy, misses in by_policy.items()}
            yield Cached(name, M, of_policy, len(stream), fresh, requested)


def _of_schedule(asked: Run, sizes: Sequence[int], how: _Replay) -> CacheTable:
    """Return a row for each cache size; sizes at which the blocks are alike are replayed together."""
    small: dict[tuple[str, int], int] = {}
    alike: dict[tuple[tuple[tuple[str, int], ...], ...], list[tuple[Run, Counted]]] = {}
    for size in sizes:
        run = replace(asked, M=size)
        try:
            counted = count_run(run)
        except Infeasible as error:
            if len(sizes) == 1:
                raise
            small[run.schedule.name, size] = error.least_M
        else:
            alike.setdefault(tuple(tuple(part.block_sizes.items()) for part in run.parts), []).append((run, counted))
    if not alike:
        name, least = asked.schedule.name, min(small.values())
        raise Infeasible(f"{name} fits into none of these caches; it needs {least:,} words.", least)
    rows = [row for group in alike.values() for row in _alike(group, how)]
    return CacheTable(tuple(sorted(rows, key=lambda row: sizes.index(row.M))), small)


def _alike(group: Sequence[tuple[Run, Counted]], how: _Replay) -> Iterable[Cached]:
    """Yield the rows of runs that differ in M only: one stream serves them all."""
    from pebblesim.cachesim.policies import rooms_of
    from pebblesim.cachesim.reuse import Reuse
    from pebblesim.cachesim.streams import one_after_another

    first, among = group[0][0], group[0][0].heads
    shares = among.sharing if among.separate else 1
    own_masks = len(first.parts) > 1
    streams = [how.requests(part) for part in first.parts] * (1 if own_masks else shares)
    stream = streams[0]
    if len(streams) > 1:
        stream = one_after_another(streams, shares, shared(first.schedule.problem).keys if shares > 1 else ())
    stream = how.in_lines(stream)
    times = 1 if own_masks else shares
    sizes = [run.M for run, _ in group]
    if how.ways is None:
        reuse = Reuse.of(stream, rooms_of(stream, sizes))
        rows = how.rows(first.schedule.name, stream, sizes, reuse)
    else:
        reuse = None
        rows = how.rows(first.schedule.name, stream.whole(), sizes)
    for row, (run, counted) in zip(rows, group, strict=True):
        own = Traffic(counted.reads * times, counted.writes * times)
        together = replace(run, heads=replace(among, separate=False))
        yield replace(
            row,
            counted=counted,
            enough=_enough(reuse, int(CLOSE * own.reads), stream.unit),
            own=own,
            bounded=counted if shares == 1 else count_run(together, fallback_to_smallest=True),
            heads=among,
            times=counted.times // times,
        )


def _enough(reuse: Reuse | None, words: int, unit: int) -> int | None:
    """Return the least cache in words with which an LRU fetches at most so many words; None if none is enough."""
    least = None if reuse is None else reuse.enough(words // unit)
    return None if least is None else least * unit


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
