"""What automatic caches make of a schedule's own stream of requests, of a graph's, or of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pebblesim.errors import Infeasible, UsageError
from pebblesim.jobs.arguments import AnyMask, BlockRule, chosen
from pebblesim.jobs.count import Counted, count
from pebblesim.language import masks
from pebblesim.language.registry import Schedule, get
from pebblesim.results import Result
from pebblesim.sizes import bytes_of, several, whole
from pebblesim.tables import aligned

if TYPE_CHECKING:
    from pebblesim.caches.policies import Misses
    from pebblesim.graphs.cdag import Cdag
    from pebblesim.readings.accesses import Grain, Machine, Stream

CLOSE = 1.1
"""An LRU that fetches up to so many times what the schedule reads has enough room."""


@dataclass(frozen=True)
class Cached:
    """What caches of M words make of one stream.

    Attributes:
        name: the schedule's, or what the stream is.
        M: words of cache.
        found: what each policy does, by its name.
        requests, compulsory: requests, and the words that every cache must fetch: those read before they are written.
        counted: what the schedule moves itself, with a scratchpad of M words; None for what is no schedule.
        enough: the least words with which an LRU fetches at most `CLOSE` times what the schedule reads; None if none
            does, or there is no schedule.
    """

    name: str
    M: int
    found: Mapping[str, Misses]
    requests: int
    compulsory: int
    counted: Counted | None = None
    enough: int | None = None

    @property
    def lru(self) -> Misses:
        """What an LRU does, if it was asked for."""
        return self.found["lru"]

    @property
    def opt(self) -> Misses:
        """What the best possible cache does, if it was asked for."""
        return self.found["opt"]

    @property
    def fifo(self) -> Misses:
        """What a FIFO does, if it was asked for."""
        return self.found["fifo"]

    def ratio(self, policy: str) -> float | None:
        """Words that a policy fetches for each that the schedule reads."""
        return None if self.counted is None else self.found[policy].fetched / self.counted.reads

    def to_dict(self) -> dict[str, Any]:
        """A row of `pebblesim cache --json`."""
        row: dict[str, Any] = {"name": self.name, "M": self.M, "requests": self.requests, "compulsory": self.compulsory}
        if self.counted is not None:
            row |= {
                "blocks": dict(self.counted.blocks),
                "reads": self.counted.reads,
                "writes": self.counted.writes,
                "lower_bound": {"value": self.counted.lower_bound.value, "source": self.counted.lower_bound.source},
                "lru_enough": self.enough,
            }
        return row | {
            policy: {"misses": each.misses, "fetched": each.fetched, "written": each.written}
            for policy, each in self.found.items()
        }


@dataclass(frozen=True)
class CacheTable(Result, Sequence[Cached]):
    """Rows of one stream or of several, by M.

    Attributes:
        rows: what was found.
        too_small: M for which a schedule does not fit, and the least that it needs, by name.
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
        return "\n".join(lines)

    def notes(self) -> Iterable[tuple[tuple[str, int], int]]:
        """What did not fit: ((name, M), least M)."""
        return self.too_small.items()

    def to_dict(self) -> dict[str, Any]:
        """As printed by `pebblesim cache --json`."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "too_small": [{"name": name, "M": M, "least_M": least} for (name, M), least in self.notes()],
        }


def table(rows: Sequence[Cached]) -> tuple[list[str], list[list[Any]]]:
    """(columns, lines) for people."""
    policies = list(rows[0].found)
    schedules = any(row.counted is not None for row in rows)
    head = ["stream", "M"] + (["blocks", "reads", "writes"] if schedules else ["requests", "compulsory"])
    for policy in policies:
        head += [f"{policy} fetches", *(["÷ reads"] if schedules else ["miss ratio"]), f"{policy} writes"]
    head += ["bound", "lru enough at"] if schedules else []
    lines = []
    for row in rows:
        line: list[Any] = [row.name, row.M]
        if row.counted is not None:
            blocks = ", ".join(f"{name}={size}" for name, size in row.counted.blocks.items()) or "none"
            line += [blocks, row.counted.reads, row.counted.writes]
        else:
            line += [row.requests, row.compulsory]
        for policy, each in row.found.items():
            share = row.ratio(policy) if row.counted is not None else each.misses / max(row.requests, 1)
            line += [each.fetched, share, each.written]
        if row.counted is not None:
            line += [row.counted.lower_bound.value, row.enough]
        lines.append(line)
    return head, lines


def accesses(
    schedule: str | Schedule,
    *,
    M: int,
    machine: Machine = "uses",
    grain: Grain = "tiles",
    blocks: BlockRule = "fit",
    mask: AnyMask | None = None,
    **dims: int,
) -> Stream:
    """The stream of requests that a schedule makes of an automatic cache.

    Args:
        schedule, M, blocks, mask, dims: as for `pebblesim.count`; M decides the blocks.
        machine: "uses": no scratchpad, each use of a word is a request; "moves": what the schedule reads and writes.
        grain: "tiles", with their sizes, or "words".

    >>> stream = accesses("matmul-tiled", m=4, k=4, n=4, M=12, blocks={"b": 2}, machine="moves")
    >>> len(stream), int(stream.sizes.max())
    (20, 4)

    Raises:
        Infeasible, UsageError: as for `pebblesim.count`, or there are too many requests.
    """
    from pebblesim.readings import accesses as reading

    if machine not in ("uses", "moves") or grain not in ("tiles", "words"):
        raise UsageError(f"machine {machine!r}, grain {grain!r}: they are uses or moves, and tiles or words.")
    algorithm, sizes, _, sides = chosen(schedule, dims, M, blocks)
    seen = masks.of(mask)
    program = algorithm.program if seen is None else algorithm.masked
    return reading.accesses(program, {**sizes, **sides}, machine, grain, seen)


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
    **dims: int,
) -> CacheTable:
    """What automatic caches fetch and write back.

    Args:
        source: a schedule; a graph; a stream, as of `accesses`; the file of a trace; or whole numbers that name what is
            asked for, one for each request.
        M: words of cache (of a trace: units of its sizes): one number, several, or a text such as "256:1M:x2".
        policy: "lru", "opt" (the best possible, Belady) and "fifo", one or several.
        machine, grain, blocks, mask, dims: of a schedule, as for `accesses`; blocks that M decides differ from M to M.
        line: bytes of a line, for a schedule; words of `dtype` are then looked at one by one.
        ways: lines in a set; without it the cache is one set.
        order: of a graph, the order in which its vertices are computed.

    >>> found = cache([1, 2, 3, 1, 2, 3], M=2)[0]
    >>> found.lru.misses, found.opt.misses
    (6, 4)

    Raises:
        Infeasible: M is too small for a schedule, for all of several.
        UsageError: a name, size or file that is not allowed.
    """
    from pebblesim.caches.policies import POLICIES, in_lines
    from pebblesim.errors import UnknownName

    sizes = several("M", M) if isinstance(M, str) else [whole("M", each) for each in _several(M)]
    policies = [policy] if isinstance(policy, str) else list(dict.fromkeys(policy))
    for each in policies:
        if each not in POLICIES:
            raise UnknownName("policy", each, POLICIES)
    if not sizes or not policies:
        raise UsageError("give at least one size of cache and one policy.")
    words = None
    if line is not None:
        words, rest = divmod(whole("line", line), bytes_of(dtype))
        if rest or not words:
            raise UsageError(f"a line of {line} bytes is no whole number of words of {dtype}.")
    if ways is not None:
        whole("ways", ways)
    algorithm = _schedule(source)
    if algorithm is None:
        if dims or words is not None or mask is not None:
            raise UsageError("sizes, lines and masks are for a schedule; a stream, a graph or a trace has its own.")
        name, stream = _given(source, order)
        return CacheTable(tuple(_rows(name, stream, sizes, policies, ways)))
    if order is not None:
        raise UsageError("an order of computation is for a graph; a schedule has its own.")
    rows: list[Cached] = []
    small: dict[tuple[str, int], int] = {}
    alike: dict[tuple[tuple[str, int], ...], list[Counted]] = {}
    shape: dict[str, Any] = {"mask": mask, **dims}
    for size in sizes:
        try:
            counted = count(algorithm, M=size, blocks=blocks, **shape)
        except Infeasible as error:
            if len(sizes) == 1:
                raise
            small[algorithm.name, size] = error.least_M
            continue
        alike.setdefault(tuple(counted.blocks.items()), []).append(counted)
    for sides, group in alike.items():
        stream = accesses(
            algorithm,
            M=group[0].M,
            machine=machine,
            grain="words" if words or (ways and grain == "tiles") else grain,
            blocks=dict(sides) if sides else "fit",
            **shape,
        )
        if words is not None:
            stream = in_lines(stream, words)
        for row, counted in zip(
            _rows(algorithm.name, stream, [c.M for c in group], policies, ways), group, strict=True
        ):
            enough = _enough(stream, counted) if ways is None else None
            rows.append(Cached(row.name, row.M, row.found, row.requests, row.compulsory, counted, enough))
    if not rows:
        least = min(small.values())
        raise Infeasible(f"{algorithm.name} fits into none of these caches; it needs {least:,} words.", least)
    return CacheTable(tuple(sorted(rows, key=lambda row: sizes.index(row.M))), small)


def _several(M: Any) -> Iterable[Any]:
    return M if hasattr(M, "__iter__") else [M]


def _schedule(source: Any) -> Schedule | None:
    from pebblesim.caches.traces import is_trace

    if isinstance(source, Schedule):
        return source
    return get(source) if isinstance(source, str) and not is_trace(source) else None


def _given(source: Any, order: Any) -> tuple[str, Stream]:
    from pebblesim.caches import streams, traces
    from pebblesim.graphs.cdag import Cdag
    from pebblesim.readings.accesses import Stream

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
    from pebblesim.caches.policies import compulsory, misses

    by_policy = {policy: misses(stream, sizes, policy, ways) for policy in policies}
    fresh = compulsory(stream)
    for number, M in enumerate(sizes):
        found = {policy: each[number] for policy, each in by_policy.items()}
        yield Cached(name, M, found, len(stream), fresh)


def _enough(stream: Stream, counted: Counted) -> int | None:
    from pebblesim.caches.policies import enough

    return enough(stream, int(CLOSE * counted.reads))
