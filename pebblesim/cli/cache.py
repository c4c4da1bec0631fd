"""`pebblesim cache`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pebblesim.cli.completion import schedules
from pebblesim.cli.options import (
    AsJson,
    BlockChoice,
    Dtype,
    HeadChoice,
    MaskText,
    Sizes,
    all_words_in,
    argument,
    command,
    family,
    option,
    output_file,
)
from pebblesim.cli.printing import print_json, print_table, say
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import bytes_of, parse_bytes

if TYPE_CHECKING:
    from pebblesim.cachesim.result import CacheTable

app = family()


@command(app, example="pebblesim cache flash2-forward -n 4096 -d 64 -M 4k:64k:x2")
def cache(
    sources: Annotated[
        list[str], argument("Schedules, or files of traces: .oracleGeneral.bin, .txt or .csv.", values=schedules)
    ],
    *,
    sizes: Sizes,
    m: Annotated[
        str, option("-M", "Cache sizes: words, or bytes with --dtype, such as 4096 or 256:2M:x2.", "SIZES")
    ] = ...,  # type: ignore[assignment]
    dtype: Dtype = None,
    policy: Annotated[str, option("--policy", "Policies, with commas: lru, opt (Belady's), fifo.")] = "lru,opt",
    moves: Annotated[
        bool,
        option(
            "--moves",
            "Replay only the schedule's reads and writes: a cache behind a scratchpad. By default all operands.",
        ),
    ] = False,
    words: Annotated[
        bool,
        option("--words", "Replay single words, in the order of the loops inside each operation; by default tiles."),
    ] = False,
    line: Annotated[str | None, option("--line", "Size of a cache line, such as 32B.", "BYTES")] = None,
    ways: Annotated[int | None, option("--ways", "Lines in a set; by default one set holds all.", "W", min=1)] = None,
    blocks: BlockChoice,
    mask: MaskText = None,
    heads: HeadChoice,
    save: Annotated[
        Path | None,
        output_file(
            "--save",
            "Save the accesses of one schedule at one M as a trace: .oracleGeneral.bin, .csv, .txt; with --words "
            "also addresses, for Dinero (.din), Ramulator (.ramulator), gem5 (.gem5.txt) and ChampSim (.champsim).",
            "FILE",
        ),
    ] = None,
    output: Annotated[Path | None, output_file("--output -o", "A picture over M: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay the accesses of a schedule, or a trace, through automatic caches: LRU, OPT, FIFO."""
    import pebblesim as ps
    from pebblesim.cachesim import address_traces, traces
    from pebblesim.cachesim.result import CacheTable

    for source in sources:
        if not traces.is_trace(source) and (Path(source).suffix or Path(source).is_file()):  # no schedule has a dot
            raise UsageError(f"{source} cannot be replayed: {traces.KNOWN}; it is no name of a schedule, either.")
    typed = line is not None or heads.is_given or (save is not None and address_traces.is_for_simulators(save.name))
    capacities = all_words_in(m, dtype, typed)
    if output is not None:
        from pebblesim.views.plots.style import check

        check(output)
    _check_name(save)
    if save is not None and (len(sources) > 1 or len(capacities) > 1):
        raise UsageError("--save keeps the stream of one schedule for one M.")
    if save is not None and heads.is_given:
        raise UsageError("--save keeps the stream of one head; leave out how many there are.")
    if all(map(traces.is_trace, sources)) and (sizes.dims or moves or words or blocks.rule != "fit"):
        raise UsageError("sizes, blocks, --moves and --words are of a schedule; a trace has its own requests.")
    of_cache: dict[str, Any] = {"ways": ways, "dtype": dtype or "float32", "blocks": blocks.rule, "mask": mask}
    of_cache |= {"machine": "moves" if moves else "uses", "grain": "words" if words else "tiles"}
    of_cache |= {} if line is None else {"line": parse_bytes("a line", line)}
    policies = [name.strip() for name in policy.split(",")]
    results, distinct = [], dict.fromkeys(sources)
    with progress_bar("replaying") as progress:
        for number, source in enumerate(distinct, 1):
            options: dict[str, Any] = heads.arguments | of_cache | ({} if traces.is_trace(source) else sizes.dims)
            results.append(ps.cache(source, M=capacities, policy=policies, **options))
            progress(number / len(distinct))
    small = {place: least for result in results for place, least in result.notes()}
    result = CacheTable(tuple(row for result in results for row in result), small)
    notes = []
    if save is not None:
        if traces.is_trace(sources[0]):
            stream = traces.load(Path(sources[0]))
        else:
            stream = ps.accesses(sources[0], M=capacities[0], **(of_cache | sizes.dims))
        if address_traces.is_for_simulators(save.name):
            notes.append(address_traces.save(stream, save, bytes_of(dtype or "float32")))
        else:
            notes.append(traces.save(stream, save))
    if output is not None:
        from pebblesim.views.plots.caches import figure
        from pebblesim.views.plots.style import save as keep

        keep(lambda empty: figure(result.rows, empty), output, height=6.4)
    if as_json:
        print_json(result.to_dict())
        return
    _print(result, dtype)
    for path in (save, output):
        if path is not None:
            say(f"written {path}")
    say(*filter(None, notes))


def _print(result: CacheTable, dtype: str | None) -> None:
    from pebblesim.cachesim.result import table

    head, lines = table(result.rows)
    first = ("stream", "M", "reads", *(f"{policy} fetches" for policy in result.rows[0].by_policy))
    print_table(None, head, [[_shown(cell) for cell in line] for line in lines], first=first)
    if result.heads.is_given:
        head, lines = result.totals(dtype)
        print_table(result.title, head, [[_shown(cell) for cell in line] for line in lines])
    for (name, M), least in result.notes():
        say(f"{name} does not fit into {M:,} words; it needs {least:,}.")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if value < 1000 else f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _check_name(save: Path | None) -> None:
    """Refuse a name that no trace has, before a stream is made for it."""
    from pebblesim.cachesim import address_traces, traces

    if save is not None and not traces.is_trace(save.name) and not address_traces.is_for_simulators(save.name):
        others = ", ".join(f"*{ending}" for ending in address_traces.WRITERS)
        raise UsageError(f"{save}: {traces.KNOWN}; with --words it may be {others} for other simulators.")
