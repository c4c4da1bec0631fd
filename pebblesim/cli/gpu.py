"""The commands `pebblesim gpu …`.

Exit codes: 0: as predicted. 1: measured, but not as predicted. 2: nothing was measured.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pebblesim.cli.completion import BANDS, one_of, schedules
from pebblesim.cli.options import (
    AsJson,
    BlockChoice,
    Cache,
    D,
    Dtype,
    N,
    ScheduleName,
    Sizes,
    command,
    family,
)
from pebblesim.cli.printing import print_json, print_table, say, show
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.files import whole_file
from pebblesim.core.sizes import dtype_of, listed, parse_size, parse_words, separated

if TYPE_CHECKING:
    from pebblesim.counting.count import Counted
    from pebblesim.gpu.cases import Case
    from pebblesim.gpu.emit.triton import Source
    from pebblesim.language.masks import Mask
    from pebblesim.language.program import Program

app = family("Generate kernels from the schedules, run them, and read hardware counters.")

Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        "-P",
        min=1,
        help="Thread blocks among which a loop with running sums is divided; 1 in the paper.",
        metavar="P",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Threads in a thread block; by default chosen by its words.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="File of results, .jsonl; a run adds to it, and skips what is in it."),
]


@command(app, example="pebblesim gpu doctor")
def doctor(as_json: AsJson = False) -> None:
    """List the GPU tools that are installed, those that are missing, and how to install them."""
    from pebblesim.gpu.doctor import examine, ready

    requirements = examine()
    fine = ready(requirements)
    if as_json:
        print_json({"ready": fine, "findings": [each.to_dict() for each in requirements]})
    else:
        for each in requirements:
            say(f"{'found  ' if each.found else 'MISSING'}  {each.what}: {each.found or each.get}")
            if not each.found:
                say(f"         needed for {each.needed_for}")
        say("`measure` and `crossover` can work here." if fine else "`measure` and `crossover` cannot work here.")
    raise typer.Exit(0 if fine else 1)


@command(app, example="pebblesim gpu emit large-cache -n 4096 -d 64 -M 16384 -P 16 -o kernels.cu")
def emit(
    schedule: ScheduleName,
    *,
    sizes: Sizes,
    cache: Cache,
    blocks: BlockChoice,
    target: Annotated[
        str, typer.Option("--target", help="cuda (float32), triton (matrix units) or gluon (matrix units of Hopper).")
    ] = "cuda",
    mask: Annotated[
        str | None,
        typer.Option(
            "--mask",
            help="For triton: causal, window:W or band:W; for gluon: causal.",
            metavar="MASK",
            autocompletion=one_of(lambda: BANDS),
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            help="For triton, gluon: factor of the scores, a number or 1/sqrt(d_k); by default 1.",
            metavar="X",
        ),
    ] = None,
    warps: Annotated[int, typer.Option("--warps", min=1, help="For triton: warps in a thread block.", metavar="W")] = 8,
    stages: Annotated[
        int | None,
        typer.Option(
            "--stages",
            min=1,
            help="For triton: stages of the pipeline that reads ahead, by default 3; for gluon: slots of a ring.",
            metavar="S",
        ),
    ] = None,
    persistent: Annotated[
        bool,
        typer.Option("--persistent", help="For gluon: as many blocks as multiprocessors, each with several tiles."),
    ] = False,
    workers: Workers = 1,
    threads: Threads = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write the source to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print or write the source of a schedule's kernels; --json adds the launches and the words they move."""
    from pebblesim.launches.sectors import moved

    if target in ("triton", "gluon"):
        write, launched = (_in_triton, warps) if target == "triton" else (_in_gluon, persistent)
        write(schedule, sizes, cache, blocks, mask, scale, output, as_json, (launched, stages))
        return
    if target != "cuda":
        raise UnknownName("target", target, ("cuda", "triton", "gluon"))
    if mask is not None:
        raise UsageError("CUDA kernels do not support masks; use --target triton, or leave --mask out.")
    if scale is not None:
        raise UsageError(
            "CUDA kernels compute scores as the paper does; use --target triton, or multiply the queries by the scale."
        )
    _float32(cache.dtype)
    made = _case(schedule, sizes.dims, cache.words, blocks.rule, workers, threads)
    if output is not None:
        with whole_file(output, f"{str(output)!r} cannot be written") as unfinished:
            unfinished.write_text(made.text, encoding="utf-8")
    if as_json:
        launches = []
        for kernel in made.source.kernels:
            exact = moved(kernel.launch, made.sizes, made.workers)
            launches.append(
                {
                    "name": kernel.launch.name,
                    "kernel": kernel.name,
                    "blocks": kernel.blocks(made.sizes),
                    "shared_words": kernel.shared_words(made.sizes),
                    "arrays": list(kernel.tensors),
                    **vars(exact),
                }
            )
        print_json({**made.to_dict(), "shared_words": made.shared_words, "launches": launches})
    elif output is None:
        print(made.text)
    else:
        say(f"written   {output}: {len(made.source.kernels)} kernels, {made.shared_words:,} words of shared memory")


def _in_triton(
    schedule: str,
    sizes: Sizes,
    cache: Cache,
    blocks: BlockChoice,
    mask: str | None,
    scale: str | None,
    output: Path | None,
    as_json: bool,
    launched: tuple[int, int | None],
) -> None:
    from pebblesim.gpu.emit.triton import triton
    from pebblesim.gpu.tiles import in_powers_of_two
    from pebblesim.language import masks

    dtype, band = dtype_of(cache.dtype or "bfloat16"), masks.of(mask)
    counted = in_powers_of_two(schedule, M=cache.words, blocks=blocks.rule, mask=band, **sizes.dims)
    program, factor = _scaled_program(schedule, counted.dims, band, scale)
    sizes_of_all = {**counted.dims, **counted.blocks}
    warps, stages = launched
    source = triton(program, sizes_of_all, dtype, band, scale=factor, warps=warps, stages=stages or 3)
    _give(source, counted, dtype, output, as_json)


def _in_gluon(
    schedule: str,
    sizes: Sizes,
    cache: Cache,
    blocks: BlockChoice,
    mask: str | None,
    scale: str | None,
    output: Path | None,
    as_json: bool,
    launched: tuple[int, int | None],
) -> None:
    from pebblesim.counting.count import count
    from pebblesim.gpu.emit.gluon import gluon
    from pebblesim.gpu.emit.gluon_tiles import tiles_of
    from pebblesim.language import masks

    dtype, band, rule, persistent, stages = dtype_of(cache.dtype or "bfloat16"), masks.of(mask), blocks.rule, *launched
    apart: Mapping[str, int] = {}
    if isinstance(rule, str):
        tiles = tiles_of(schedule, sizes.dims)
        rule, stages, apart = tiles.blocks, stages or tiles.stages, {} if stages else tiles.apart
    arguments: dict[str, Any] = {"M": cache.words, "mask": band, **sizes.dims}
    counted = count(schedule, blocks=rule, **arguments)
    program, factor = _scaled_program(schedule, counted.dims, band, scale)
    sizes_of_all = {**counted.dims, **counted.blocks}
    ring: dict[str, Any] = {"stages": stages or 2, "apart": apart, "persistent": bool(persistent)}
    source = gluon(program, sizes_of_all, dtype, band, scale=factor, **ring)
    _give(source, counted, dtype, output, as_json)


def _scaled_program(
    schedule: str, dims: Mapping[str, int], band: Mask | None, scale: str | None
) -> tuple[Program, float | None]:
    from pebblesim.language.registry import get

    algorithm = get(schedule).in_dims(dims)
    return algorithm.under(band), None if scale is None else algorithm.problem.factor(scale, dims)


def _give(source: Source, counted: Counted, dtype: str, output: Path | None, as_json: bool) -> None:
    if output is not None:
        with whole_file(output, f"{str(output)!r} cannot be written") as unfinished:
            unfinished.write_text(source.text, encoding="utf-8")
    if as_json:
        kernels = [{"name": k.name, "programs": k.programs, "arrays": list(k.tensors)} for k in source.kernels]
        head = {"schedule": counted.schedule, **counted.dims, "dtype": dtype, "blocks": dict(counted.blocks)}
        print_json({**head, "reads": counted.reads, "writes": counted.writes, "kernels": kernels})
    elif output is None:
        print(source.text)
    else:
        say(f"written   {output}: {len(source.kernels)} kernels, {counted.io:,} words moved for each head")


@command(app, example="pebblesim gpu calibrate")
def calibrate(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File of the card; by default in your configuration, where it is found."),
    ] = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", help="File of JSON lines for all measured kernels.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this GPU in a few minutes, for forecasts of our kernels: bandwidths, matrix units, launches, waiting."""
    from pebblesim.gpu.calibrate.calibrate import calibrate as run, save

    with _bars() as told:
        made, path = run(output, told)
    if rows:
        save((*made.rows, *made.failed), rows)
    if as_json:
        print_json(made.to_dict() | {"file": str(path)})
        return
    show(*made.parts())
    found = "" if output else "; plan and attention use it on this card"
    say(f"written   {path}{found}; pebblesim advise --card {shlex.quote(str(path))} … forecasts with it")


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """Bars of progress on a terminal, one for each thing that is done; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    bars: dict[str, TaskID] = {}
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:

        def told(what: str, done: int, of: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(f"kernels {what}", total=of)
            progress.update(bars[what], completed=done)

        yield told


@command(app, example="pebblesim gpu race -n 16384 -d 512 --heads 2 --backward -o race.jsonl")
def race(
    *,
    n: N = None,
    d: D = None,
    heads: Annotated[int, typer.Option("--heads", min=1, help="Heads, all computed in one launch.", metavar="H")] = 1,
    backward: Annotated[bool, typer.Option("--backward", help="Race the backward pass.")] = False,
    mask: Annotated[
        str | None,
        typer.Option(
            "--mask", help="causal; without it all pairs.", metavar="MASK", autocompletion=one_of(lambda: BANDS[:1])
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            help="Data type of a word: bfloat16 or float16.",
            autocompletion=one_of(lambda: ("bfloat16", "float16")),
        ),
    ] = "bfloat16",
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Time the kernels of our schedules and every attention of PyTorch on this GPU."""
    from pebblesim.gpu.race import Track, race as run

    if n is None or d is None:
        raise UsageError("a race needs -n and -d, such as -n 16384 -d 512.")
    track = Track(
        "backward" if backward else "forward", parse_size("n", n), parse_size("d", d), heads, mask, dtype_of(dtype)
    )
    rows = run(track, output)
    if as_json:
        print_json({"rows": rows})
        return
    lines = [
        (
            row["contender"],
            ", ".join(f"{name}={size}" for name, size in row.get("blocks", {}).items()) or row.get("error", ""),
            f"{row['seconds'] * 1e3:,.3f}" if "seconds" in row else "",
            f"{row['tflops']:,.0f}" if "tflops" in row else "",
            f"{max(row['errors'].values()):.1e}" if "errors" in row else "",
        )
        for row in sorted(rows, key=lambda row: row.get("seconds", float("inf")))
    ]
    title = f"{track.way}, n = {track.n:,}, d = {track.d}, {heads} heads, {mask or 'no mask'}, {track.dtype}"
    print_table(title, ("", "blocks", "ms", "TFLOP/s", "error"), lines, left=2)


@command(app, example="pebblesim gpu measure small-cache -n 4096 -d 64 -M 16384 -o results.jsonl")
def measure(
    schedule: Annotated[
        str | None, typer.Argument(help="Name of a schedule, e.g. small-cache.", autocompletion=one_of(schedules))
    ] = None,
    *,
    sizes: Sizes,
    m: Annotated[
        str | None, typer.Option("-M", help="Cache: words, or bytes such as 192KiB with --dtype.", metavar="WORDS")
    ] = None,
    dtype: Dtype = None,
    blocks: BlockChoice,
    workers: Workers = 1,
    threads: Threads = None,
    output: Output = None,
    command: Annotated[
        str | None,
        typer.Option("--command", help="Measure a program instead of a schedule, kernel by kernel: './a.out 512'."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a schedule's kernels on this GPU, and compare measured with predicted traffic."""
    from pebblesim.gpu import measure as harness

    if (command is None) == (schedule is None):
        raise UsageError("measure needs a schedule with its sizes, or --command with a program of your own.")
    if command is not None:
        kernels = harness.kernels_of(shlex.split(command))
        if as_json:
            print_json({"command": command, "kernels": kernels})
        else:
            _print_kernels(kernels)
        return
    if m is None or schedule is None:
        raise UsageError("measure needs -M, the words of shared memory that a block may use.")
    _float32(dtype)
    made = _case(schedule, sizes.dims, parse_words(m, dtype), blocks.rule, workers, threads)
    (row,) = harness.measure([made], output)
    if as_json:
        print_json(row)
    else:
        _print_row(row)
    raise typer.Exit(0 if _as_predicted(row) else 1)


@command(app, example="pebblesim gpu crossover -n 512 -d 64 --at 1024,2048,4096,8192")
def crossover(
    schedules: Annotated[
        list[str] | None,
        typer.Argument(help="Two schedules; small-cache and flash by default.", autocompletion=one_of(schedules)),
    ] = None,
    n: N = None,
    d: D = None,
    at: Annotated[str, typer.Option("--at", help="Values of M in words, separated by commas.", metavar="M,M,…")] = ...,  # type: ignore[assignment]
    workers: Workers = 1,
    output: Output = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the curves: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure two schedules over M: the predicted and measured M at which their traffic crosses, and their times."""
    from pebblesim.gpu import measure as harness
    from pebblesim.gpu.crossings import points, summary
    from pebblesim.views.plots.style import check, save

    if picture is not None:
        check(picture)

    names = tuple(schedules or ("small-cache", "flash"))
    if len(names) != 2:
        raise UsageError(f"crossover needs two schedules, but got {len(names)}.")
    dims, sizes = Sizes(n, d).dims, sorted({parse_size("M", text) for text in separated("M", at)})
    cases = [_case(name, dims, words, "fit", workers, None) for words in sizes for name in names]
    rows = harness.measure(cases, output)
    measured = points(rows, names)
    if picture is not None:
        from pebblesim.views.plots.measured import crossing as draw

        title = f"{listed(dims)}, {rows[0]['gpu']['device']}"
        save(lambda empty: draw(measured, names, empty, title), picture, size=(7, 8))
    result = summary(measured, names)
    if as_json:
        print_json({"n": n, "d": d, "schedules": list(names), "points": measured, **result})
        return
    table = [
        (
            f"{p['M']:,}",
            *(f"{p[name]['predicted']:,}" for name in names),
            *(f"{p[name]['measured']:,}" for name in names),
            *(f"{p[name]['seconds'] * 1e3:,.3f}" for name in names),
        )
        for p in measured
    ]
    columns = ["M", *(f"{name} predicted" for name in names), *(f"{name} measured" for name in names)]
    print_table("words moved, and ms", (*columns, *(f"{name} ms" for name in names)), table)
    for kind, between in result["crossings"].items():
        crossed = ", ".join(f"between M = {a:,} and {b:,}" for a, b in between)
        say(f"{kind}: {crossed or 'no crossing'}")


def _float32(dtype: str | None) -> None:
    """Refuse a data type that the kernels do not support."""
    if dtype is not None and dtype_of(dtype) != "float32":
        raise UsageError(
            f"--dtype {dtype} was given; these kernels use float32 only; give float32 or leave --dtype out."
        )


def _case(
    schedule: str,
    dims: Mapping[str, int],
    words: int,
    rule: str | Mapping[str, int],
    workers: int,
    threads: int | None,
) -> Case:
    from pebblesim.gpu.cases import case

    return case(schedule, M=words, blocks=rule, workers=workers, threads=threads, **dims)


def _as_predicted(row: Mapping[str, Any]) -> bool:
    """Whether the measured traffic of the SMs equals the predicted traffic, to the byte."""
    from pebblesim.gpu.measure import error_of

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
    from pebblesim.gpu.measure import QUANTITIES, error_of

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
