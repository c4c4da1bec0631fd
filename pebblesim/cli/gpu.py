"""The commands `pebblesim gpu …`: those of `gpu_emit` and `gpu_measure`, `doctor`, `calibrate` and `race`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pebblesim.cli import gpu_emit, gpu_measure
from pebblesim.cli.completion import BANDS
from pebblesim.cli.gpu_cases import Output
from pebblesim.cli.options import AsJson, D, N, command, family, option, output_file
from pebblesim.cli.printing import print_json, print_table, say, show
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import assigned, dtype_of, parse_size

app = family("Generate kernels from the schedules, run them, and read hardware counters.")
for each in (gpu_emit.app, gpu_measure.app):
    app.registered_commands += each.registered_commands


@command(app, example="pebblesim gpu doctor")
def doctor(as_json: AsJson = False) -> None:
    """List the GPU tools that are installed, those that are missing, and how to install them."""
    from pebblesim.measuring.doctor import examine, ready

    requirements, native = examine(), _native()
    fine = ready(requirements)
    if as_json:
        findings = [each.to_dict() for each in requirements]
        print_json({"ready": fine, "findings": findings, "attention_without_python": native})
    else:
        for each in requirements:
            say(f"{'found  ' if each.found else 'MISSING'}  {each.what}: {each.found or each.get}")
            if not each.found:
                say(f"         needed for {each.needed_for}")
        say(f"passes of `attention` without Python (docs/host-time.md): {native}")
        say("`measure` and `crossover` can work here." if fine else "`measure` and `crossover` cannot work here.")
    raise typer.Exit(0 if fine else 1)


def _native() -> str:
    """Whether passes of `attention` are made without Python here."""
    if find_spec("torch") is None:
        return "off: PyTorch is not installed"
    from pebblesim.operator.known import native

    return native.state()


@command(app, example="pebblesim gpu calibrate")
def calibrate(
    output: Annotated[
        Path | None,
        output_file("--output -o", "File of the card; by default in your configuration, where it is found."),
    ] = None,
    rows: Annotated[Path | None, output_file("--rows", "File of JSON lines for all measured kernels.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this GPU in a few minutes, for forecasts of our kernels: bandwidths, tensor cores, launches, latency."""
    from pebblesim.measuring.calibrate.calibrate import calibrate as run, save

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
    heads: Annotated[int, option("--heads", "Heads, all computed in one launch.", "H", min=1)] = 1,
    backward: Annotated[bool, option("--backward", "Race the backward pass.")] = False,
    mask: Annotated[
        str | None, option("--mask", "causal; without it all pairs.", "MASK", values=lambda: BANDS[:1])
    ] = None,
    dtype: Annotated[
        str, option("--dtype", "Data type of a word: bfloat16 or float16.", values=lambda: ("bfloat16", "float16"))
    ] = "bfloat16",
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Time the kernels of our schedules and every attention of PyTorch on this GPU."""
    from pebblesim.measuring.race import Track, race as run

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
            assigned(row.get("blocks", {})) or row.get("error", ""),
            f"{row['seconds'] * 1e3:,.3f}" if "seconds" in row else "",
            f"{row['tflops']:,.0f}" if "tflops" in row else "",
            f"{max(row['errors'].values()):.1e}" if "errors" in row else "",
        )
        for row in sorted(rows, key=lambda row: row.get("seconds", float("inf")))
    ]
    title = f"{track.way}, n = {track.n:,}, d = {track.d}, {heads} heads, {mask or 'no mask'}, {track.dtype}"
    print_table(title, ("", "blocks", "ms", "TFLOP/s", "error"), lines, left=2)
