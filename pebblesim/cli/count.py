"""Count and describe schedules: `count`, `list`, `formula`, `show`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pebblesim.cli.completion import BANDS
from pebblesim.cli.options import (
    AsJson,
    AsLatex,
    BlockChoice,
    Group,
    HeadChoice,
    MaskText,
    Problem,
    ScheduleName,
    Schedules,
    Sizes,
    Summation,
    TypedCache,
    command,
    family,
    names_in,
    option,
)
from pebblesim.cli.printing import WIDE, one_way, print_json, print_table, print_tensors, say, show as show_parts
from pebblesim.core.errors import Infeasible, NoSizes, UsageError
from pebblesim.core.sizes import DTYPE_ON_MACHINES, parse_bytes, whole

if TYPE_CHECKING:
    from pebblesim.cachesim.l2_traffic import L2
    from pebblesim.counting.count import Counted

app = family()


@dataclass(frozen=True)
class Shared(Group):
    """An L2 that thread blocks share, and how they are launched."""

    l2: Annotated[
        str | None,
        option("--l2", "L2 cache that all thread blocks share: 4MiB, or 2x30MiB if it has two halves.", "BYTES"),
    ] = None
    order: Annotated[
        str | None,
        option(
            "--order",
            "Order in which thread blocks start: head-first, row-major, grouped:G, sawtooth or swizzled:X.",
            "ORDER",
        ),
    ] = None
    at_once: Annotated[
        int | None, option("--at-once", "Thread blocks that run at once; by default 132.", "N", min=1)
    ] = None
    chiplets: Annotated[
        str | None, option("--chiplets", "Chiplets, each with an L2 cache: 8, or 8:contiguous.", "X")
    ] = None

    @property
    def options(self) -> dict[str, Any] | None:
        """Return the arguments of `pebblesim.l2`; None if there is no L2."""
        arguments = {name: value for name in ("order", "at_once") if (value := getattr(self, name)) is not None}
        if self.chiplets is not None:
            number, _, dealt = self.chiplets.partition(":")
            if dealt not in ("", "contiguous") or not number.isdecimal() or number == "0":
                raise UsageError(f"--chiplets {self.chiplets!r} was given; it is a number, or 8:contiguous.")
            arguments |= {"chiplets": int(number), "contiguous": bool(dealt)}
        if self.l2 is None:
            if arguments:
                raise UsageError("--order, --at-once and --chiplets are for an L2; give its size with --l2.")
            return None
        halves = self.l2.removeprefix("2x")
        partitions = 1 if halves == self.l2 else 2
        return {"size": partitions * whole("--l2", parse_bytes("--l2", halves)), "partitions": partitions, **arguments}


@dataclass(frozen=True)
class Where(TypedCache):
    """A cache, or a machine of several memories."""

    m: Annotated[str | None, option("-M", "Cache: words, or bytes such as 192KiB with --dtype.", "WORDS")] = None  # type: ignore[assignment]
    machine: Annotated[
        str | None,
        option(
            "--machine", "Count at each boundary of a machine's memories: a card or FILE.toml, in place of -M.", "NAME"
        ),
    ] = None
    below: Annotated[
        str | None,
        option("--below", "Tiles in the machine's lowest memory, such as P,O_i; found if left out.", "TILES"),
    ] = None

    @property
    def options(self) -> dict[str, Any] | None:
        """Return the arguments of `pebblesim.on_machine`; None for a cache.

        Raises:
            UsageError: there is both a cache and a machine, or neither.
        """
        if self.machine is None and self.m is None:
            raise NoSizes("Missing option '-M'")
        if self.machine is not None and self.m is not None:
            raise UsageError("give the cache with -M, or a machine with --machine: one of the two.")
        if self.machine is None:
            if self.below is not None:
                raise UsageError("--below says which tiles live in the lowest memory of a --machine; give one.")
            return None
        return {"machine": self.machine, "below": names_in(self.below), "dtype": self.dtype or DTYPE_ON_MACHINES}


@command(app, example="pebblesim count -n 4096 -d 64 -M 16384")
def count(
    schedules: Schedules = None,
    *,
    sizes: Sizes,
    cache: Where,
    problem: Problem = None,
    blocks: BlockChoice,
    summation: Summation = "chain",
    mask: MaskText = None,
    heads: HeadChoice,
    shared: Shared,
    as_json: AsJson = False,
) -> None:
    """Count reads, writes and peak occupancy of schedules, exactly, for any sizes."""
    import pebblesim as ps
    from pebblesim.counting.totals import Totals
    from pebblesim.language import masks
    from pebblesim.language.registry import get

    names = list(dict.fromkeys(get(name).name for name in schedules or ()))
    if (on_machine := cache.options) is not None:
        others = {"--l2": shared.options, "--problem": problem}
        options = {**on_machine, "mask": mask, **heads.arguments, **sizes.dims}
        _on_machine(names, options, blocks, [name for name, value in others.items() if value], as_json)
        return
    words, rule = cache.words, blocks.rule
    if problem is None:
        problem = get(names[0]).problem.name if names else "backward"
    shape: dict[str, Any] = {"mask": masks.of_heads(mask), **heads.arguments, **sizes.dims}
    asked: dict[str, Any] = {"M": words, "blocks": rule, "summation": summation, **shape}
    if len(names) == 1 and problem == get(names[0]).problem.name:
        one = ps.count(names[0], **asked)
        rows = ps.Comparison(problem, one.dims, words, rule, one.mask, (one,), named=True)
    else:
        rows = ps.compare(problem, schedules=names, **asked)
    first = rows[0]
    nothing_fits = rule in ("fit", "best") and not any(row.feasible for row in rows)
    behind = _behind_l2(rows, shared.options, shape, cache.dtype)
    if as_json:
        result = rows.to_dict(cache.dtype)
        for row, each in zip(result["rows"], behind, strict=False):  # none without --l2
            row["l2"] = None if each is None else each.to_dict()
        print_json(result)
        raise typer.Exit(2 if nothing_fits else 0)
    show_parts(*rows.parts(WIDE.get(), cache.dtype))
    if first.heads.is_given and not behind:  # behind an L2 there is a table of all heads
        totals = Totals(rows, cache.dtype)
        print_table(
            totals.title,
            totals.columns,
            [[_cell(cell) for cell in line] for line in totals.lines],
            first=("schedule", "I/O", f"bytes, {cache.dtype}"),
            others=("reads", "writes"),
        )
    if len(rows) == 1:
        _print_details(first)
    if len(rows) == 1 and not first.feasible and not isinstance(rule, str):
        say(f"{first.schedule}: {_larger(first)}")
    _print_behind([each for each in behind if each is not None])
    raise typer.Exit(2 if nothing_fits else 0)


def _on_machine(
    names: Sequence[str],
    options: dict[str, Any],
    blocks: BlockChoice,
    others: Sequence[str],
    as_json: bool,
) -> None:
    """Count one schedule at each boundary of a machine."""
    import pebblesim as ps
    from pebblesim.language.registry import get

    if len(names) != 1 or others:
        why = f"{', '.join(others)} cannot be given with it" if others else f"{len(names)} were given"
        raise UsageError(
            f"--machine counts one schedule at each boundary; {why}. All schedules of a problem: "
            "`pebblesim advise --machine NAME -p PROBLEM`."
        )
    if blocks.rule in ("paper", "best"):
        raise UsageError("--blocks is for a cache; with --machine give sizes with --block, or leave them out.")
    sides = None if isinstance(blocks.rule, str) else blocks.rule
    counted = ps.on_machine(names[0], blocks=sides, **options)
    if as_json:
        print_json(counted.to_dict())
    else:
        show_parts(*counted.parts())
        if options["below"] is None or set(sides or ()) < set(get(counted.schedule).blocks):
            say(f"taken: {counted.options}")
    raise typer.Exit(0 if counted.feasible else 2)


def _larger(row: Counted) -> str:
    """Say that the given blocks need a larger cache than M, for which the bound is, and which blocks fit."""
    import pebblesim as ps

    needed = row.least_M or row.peak_red
    said = f"these blocks need {needed:,} words, {needed / row.M:.1f} M; the gap is to the bound for that M"
    try:
        shape: dict[str, Any] = {"mask": row.mask, **row.dims}
        return f"{said}; {ps.count(row.schedule, M=row.M, **shape).blocks_in_words} fit"
    except Infeasible:
        return f"{said}; no blocks of this schedule fit"


def _print_details(row: Counted) -> None:
    """Print the blocks, the operations, the words of each phase, tensor and head, and the critical path."""
    from pebblesim.counting.count import ratio

    say(f"blocks {row.blocks_in_words}; {row.reads:,} reads, {row.writes:,} writes; peak red {row.peak_red:,}")
    work = ", ".join(f"{number:,} {kind}" for kind, number in row.work.items())
    say(f"work: {work}; {row.intensity:.3g} operations per word")
    for title, traffic in (("phase", row.phases), ("tensor", row.by_tensor)):
        lines = [(name, f"{r:,}", f"{w:,}", f"{r + w:,}") for name, (r, w) in traffic.items()]
        print_table(None, (title, "reads", "writes", "I/O"), lines)
    if any(stage.workers > 1 for stage in row.path):
        print(_path(row))
    if row.parts:
        heads = [
            (f"{head}", part.blocks_in_words, f"{part.pairs:,}", f"{part.io:,}", ratio(part.gap))
            for head, part in enumerate(row.parts)
        ]
        print_table(None, ("head", "blocks", "pairs", "I/O", "gap"), heads, left=2)


def _path(row: Counted) -> str:
    """The critical path, stage by stage."""
    stages = [
        f"{stage.name} {stage.words:,}" + (f" (each of {stage.workers:,})" if stage.workers > 1 else "")
        for stage in row.path
    ]
    words = sum(stage.words for stage in row.path)
    return f"critical path, all independent iterations at once: {words:,} words: {', '.join(stages)}"


def _print_behind(rows: Sequence[L2]) -> None:
    if rows:
        first = rows[0]
        each = ", in two halves" if first.partitions > 1 else ""
        each += f" on each of {first.chiplets} chiplets" if first.chiplets > 1 else ""
        print_table(
            f"behind an L2 of {first.size:,} bytes{each}: {first.heads:,} head{'s' * (first.heads > 1)}, "
            f"{first.order}, {first.at_once:,} blocks at once",
            ("schedule", "blocks move, bytes", "memory reads, bytes", "memory writes, bytes"),
            [(row.schedule, f"{row.requested:,}", f"{row.read:,}", f"{row.written:,}") for row in rows],
        )


def _cell(value: str | int | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _behind_l2(
    rows: Sequence[Counted], options: dict[str, Any] | None, shape: dict[str, Any], dtype: str | None
) -> list[L2 | None]:
    """Return the traffic of each feasible schedule behind an L2; nothing without an L2."""
    if options is None:
        return []
    import pebblesim as ps

    behind: list[L2 | None] = []
    for row in rows:
        sizes: dict[str, Any] = {"M": row.M, "blocks": row.blocks or "fit", **shape}
        fits = row.least_M is None
        behind.append(ps.l2(row.schedule, dtype=dtype or "float32", **sizes, **options) if fits else None)
    return behind


@command(app, "list", example="pebblesim list")
def list_schedules(as_json: AsJson = False) -> None:
    """List the problems and their schedules."""
    from pebblesim.api.listing import list as listing

    listed = listing()
    if as_json:
        print_json({name: [schedule.name for schedule in schedules] for name, schedules in listed.items()})
    else:
        say(listed)


Rectangular = Annotated[bool, option("--rectangular", "Use all dimensions of the problem, such as n_q, n_k, d_k, d_v.")]


@command(app, example="pebblesim formula small-cache")
def formula(
    schedule: ScheduleName,
    latex: AsLatex = False,
    mask: Annotated[
        str | None,
        option(
            "--mask",
            "causal, window:W or band:W; or any, for a form in the number of allowed tiles.",
            "MASK",
            values=lambda: (*BANDS, "any"),
        ),
    ] = None,
    rectangular: Rectangular = False,
    as_json: AsJson = False,
) -> None:
    """Derive the exact closed forms of a schedule: I/O, reads, writes and peak words."""
    import pebblesim as ps
    from pebblesim.language.registry import get

    one_way(latex, as_json)
    algorithm, closed = get(schedule), ps.formula(schedule, mask, rectangular=rectangular)
    if as_json:
        texts = {name: text for name, text in closed.to_dict().items() if isinstance(text, str | bool)}
        print_json({"schedule": algorithm.name, **texts, "blocks": dict(algorithm.paper), "source": algorithm.source})
        return
    if latex:
        print(closed.latex())
        return
    from pebblesim.core.notation import written

    say(f"{algorithm.name} ({algorithm.source})" + (f", mask {mask}" if mask else ""))
    say(*(f"  {line}" for line in str(closed).split("\n")))
    for name, rule in algorithm.paper.items():
        say(f"  {name:<11}= {rule} in the source; by default the largest that is feasible")
    say("by phase")
    wide = 1 + max(10, *map(len, closed.by_phase))
    for name, (reads, writes) in closed.by_phase.items():
        say(f"  {name:<{wide}}= {written(reads + writes)}")


@command(app, example="pebblesim show large-cache")
def show(schedule: ScheduleName, rectangular: Rectangular = False, as_json: AsJson = False) -> None:
    """Print a schedule as pseudo-code, and what its tensors are."""
    import pebblesim as ps
    from pebblesim.api.glossary import named_in
    from pebblesim.language.registry import get

    algorithm, text = get(schedule), ps.show(schedule, rectangular=rectangular)
    tensors = named_in(text, algorithm.problem)
    if as_json:
        entries = [asdict(entry) for entry in tensors]
        print_json({"schedule": algorithm.name, "source": algorithm.source, "text": text, "tensors": entries})
        return
    say(f"{algorithm.name}: {algorithm.summary}  ({algorithm.source})")
    say(f"reads {', '.join(algorithm.inputs)}; blocks {', '.join(algorithm.blocks) or 'none'}")
    say(text)
    if tensors:
        say("where")
        print_tensors(tensors)
