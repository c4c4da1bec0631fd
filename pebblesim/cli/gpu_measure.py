"""`pebblesim gpu measure` and `pebblesim gpu crossover`.

Exit codes: 0: as predicted. 1: measured, but not as predicted. 2: nothing was measured.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pebblesim.cli.completion import schedules
from pebblesim.cli.gpu_cases import Output, Threads, Workers, case_of, check_float32
from pebblesim.cli.options import (
    AsJson,
    BlockChoice,
    D,
    Dtype,
    N,
    Sizes,
    argument,
    command,
    family,
    option,
    output_file,
)
from pebblesim.cli.printing import print_json, print_table, say
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.sizes import listed, parse_size, parse_words, separated

if TYPE_CHECKING:
    from pebblesim.measuring.cases import Case

app = family()


@command(app, example="pebblesim gpu measure small-cache -n 4096 -d 64 -M 16384 -o results.jsonl")
def measure(
    schedule: Annotated[str | None, argument("Name of a schedule, e.g. small-cache.", values=schedules)] = None,
    *,
    sizes: Sizes,
    m: Annotated[str | None, option("-M", "Cache: words, or bytes such as 192KiB with --dtype.", "WORDS")] = None,
    dtype: Dtype = None,
    blocks: BlockChoice,
    workers: Workers = 1,
    threads: Threads = None,
    output: Output = None,
    command: Annotated[
        str | None, option("--command", "Measure a program instead of a schedule, kernel by kernel: './a.out 512'.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a schedule's kernels on this GPU, and compare measured with predicted traffic."""
    from pebblesim.measuring import measure as harness

    if (command is None) == (schedule is None):
        raise UsageError("measure needs a schedule with its sizes, or --command with a program of your own.")
    if command is not None:
        if sizes.dims or any((m, dtype, threads, output)) or blocks.rule != "fit" or workers != 1:
            raise UsageError(
                "--command measures a program of your own; leave sizes, -M and the options of kernels out."
            )
        kernels = harness.kernels_of(shlex.split(command))
        if as_json:
            print_json({"command": command, "kernels": kernels})
        else:
            _print_kernels(kernels)
        return
    if m is None or schedule is None:
        raise UsageError("measure needs -M, the words of shared memory that a block may use.")
    check_float32(dtype)
    made = case_of(schedule, sizes.dims, parse_words(m, dtype), blocks.rule, workers, threads)
    (row,) = harness.measure([made], output)
    if as_json:
        print_json(row)
    else:
        _print_row(row)
    raise typer.Exit(0 if _as_predicted(row) else 1)


@command(app, example="pebblesim gpu crossover -n 768 -d 64 --at 880,3296,5072,7248,12736")
def crossover(
    schedules: Annotated[
        list[str] | None,
        argument("Schedules; by default small-cache, large-cache and flash.", values=schedules),
    ] = None,
    n: N = None,
    d: D = None,
    at: Annotated[str, option("--at", "Values of M in words, separated by commas.", "M,M,…")] = ...,  # type: ignore[assignment]
    output: Output = None,
    picture: Annotated[Path | None, output_file("--picture", "Draw the curves: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure schedules over M, each for so many heads that L2 is of no help: bytes at HBM, times, and crossings."""
    from pebblesim.measuring.crossings import points, summary
    from pebblesim.measuring.measure_batches import measure_batches
    from pebblesim.views.plots.style import check, save

    if picture is not None:
        check(picture)

    names = tuple(schedules or ("small-cache", "large-cache", "flash"))
    if len(names) < 2:
        raise UsageError(f"crossover needs two schedules or more, but got {len(names)}.")
    dims, sizes = Sizes(n, d).dims, sorted({parse_size("M", text) for text in separated("M", at)})
    if not (cases := list(_batches(names, dims, sizes))):
        raise UsageError(f"{', '.join(names)} do not fit into any M of --at {at}; give larger ones.")
    rows = measure_batches(cases, output)
    measured = points(rows, names)
    result = summary(measured, names)
    if picture is not None:
        from pebblesim.views.plots.measured import OVER_M, crossing as draw

        title = f"{listed(dims)}, {rows[0]['card']}"
        save(lambda empty: draw(measured, names, result["crossings"], dims, empty, title), picture, OVER_M)
    if as_json:
        print_json({**dims, "schedules": list(names), "points": measured, **result})
    else:
        _print_crossings(measured, names, dims["d"], result)


def _batches(names: Sequence[str], dims: Mapping[str, int], sizes: Sequence[int]) -> Iterator[Case]:
    """Yield the cases, of as many heads as it takes; say which schedules do not fit."""
    from pebblesim.measuring.beyond_l2 import Chip, beyond_l2
    from pebblesim.measuring.device import describe

    chip = Chip.of(describe())
    for words in sizes:
        for name in names:
            try:
                yield beyond_l2(case_of(name, dims, words, "fit", 1, None), chip)
            except Infeasible as error:
                typer.echo(f"left out: {error}", err=True)


def _print_crossings(
    measured: Sequence[Mapping[str, Any]], names: Sequence[str], d: int, result: Mapping[str, Any]
) -> None:
    from pebblesim.language.registry import get
    from pebblesim.measuring.crossings import QUANTITIES

    titles = {name: get(name).title for name in names}
    table, before = list[tuple[str, ...]](), None
    for point in measured:
        M = point["M"]
        for name in (name for name in names if name in point):
            values = point[name]
            table.append(
                (
                    f"{M:,} = {M / d**2:.2f} d²" if before != M else "",
                    titles[name],
                    f"{values['counted'] / 1e6:,.2f}",
                    f"{values['hbm'] / 1e6:,.2f}",
                    f"{values['hbm'] / values['counted']:.3f}",
                    f"{values['seconds'] * 1e6:,.1f}",
                )
            )
            before = M
    columns = ("M, words", "schedule", "counted, MB", "HBM, MB", "HBM ÷ counted", "µs")
    print_table("for one head: bytes counted (4 a word), bytes measured at HBM, and time", columns, table, left=2)
    say()
    found = {(each["schedules"][1], each["of"]): each["between"] for each in result["crossings"]}
    quantities = [what for what in QUANTITIES if (names[1], what) in found]

    def where(other: str, quantity: str) -> str:
        return ", ".join(f"{x['at']:,.0f} = {x['at'] / d**2:.2f} d²" for x in found[other, quantity]) or "not here"

    print_table(
        f"where curves cross that of {titles[names[0]]}",
        ("", *map(QUANTITIES.__getitem__, quantities)),
        [(titles[other], *(where(other, quantity) for quantity in quantities)) for other in names[1:]],
    )
    say("between two M of the first table both curves are taken as powers of M")
    if "sm" in quantities:
        say("at the multiprocessors: bytes read as measured, and bytes written as counted in sectors")


def _as_predicted(row: Mapping[str, Any]) -> bool:
    """Whether the measured traffic of the SMs equals the predicted traffic, to the byte."""
    from pebblesim.measuring.measure import error_of

    return error_of(row, "sm_read") == error_of(row, "sm_written") == 0


LABELS = {
    "words_read": "words read",
    "words_written": "words written",
    "sm_read": "SM reads, bytes",
    "sm_written": "SM writes, bytes",
    "hbm_read": "HBM reads, bytes",
    "hbm_written": "HBM writes, bytes",
}


def _print_row(row: Mapping[str, Any]) -> None:
    from pebblesim.measuring.measure import QUANTITIES, error_of

    sizes = listed({**row["dims"], "M": row["M"], **row["blocks"]})
    total = row["total"]
    lines = [
        (LABELS[q], _number(total["predicted"][q]), _number(total["measured"][q]), _error(error_of(row, q), total, q))
        for q in QUANTITIES
    ]
    title = f"{row['schedule']}: {sizes}; {row['workers']} workers, {row['threads']} threads, on {row['gpu']['device']}"
    print_table(title, ("", "predicted", "measured", "error"), lines)
    for launch in row["launches"]:
        wrong = [LABELS[q] for q in QUANTITIES[:4] if error_of(launch, q)]
        note = f"  NOT AS PREDICTED: {', '.join(wrong)}" if wrong else ""
        say(f"  {launch['name']:<24} {launch['seconds'] * 1e3:10.3f} ms{note}")
    roof = row["roofline"]
    print(f"time {row['seconds'] * 1e3:.3f} ms, {100 * roof['fraction']:.1f} % of the roofline; ", end="")
    print(f"SMs {roof['sm_bandwidth'] / 1e9:,.1f} GB/s; ", end="")
    print(f"HBM {roof['hbm_bandwidth'] / 1e9:,.1f} of {roof['hbm_roof'] / 1e9:,.0f} GB/s; ", end="")
    say(f"{roof['flops'] / 1e9:,.0f} of {roof['flops_roof'] / 1e9:,.0f} GFLOP/s")
    checks = ", ".join(f"{name} {check['error']:.1e}" for name, check in row["checks"].items())
    say(f"error against the float64 reference: {checks}; {row['shared_words']:,} words of shared memory")


def _print_kernels(kernels: Sequence[Mapping[str, Any]]) -> None:
    for kernel in kernels:
        say(f"{kernel['kernel'][:100]}: {kernel['launches']} launches, {kernel['seconds'] * 1e3:.3f} ms")
        for quantity, label in LABELS.items():
            say(f"  {label:<18} {_number(kernel[quantity])}")


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _error(error: int | None, total: Mapping[str, Any], quantity: str) -> str:
    if error is None:
        return ""
    measured = total["measured"][quantity]
    return "0" if error == 0 else f"{error:+,} ({100 * error / measured:+.2f} %)" if measured else f"{error:+,}"
