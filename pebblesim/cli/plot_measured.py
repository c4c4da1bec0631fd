"""`pebblesim plot measured` and `pebblesim plot race`: pictures of what was measured on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pebblesim.cli.completion import schedules
from pebblesim.cli.drawing import Drawing
from pebblesim.cli.options import N, Sizes, argument, command, family, option
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import listed, parse_size

app = family()


@command(app, example="pebblesim plot measured benchmarks/gpu/exact.jsonl -o measured.png")
def measured(
    results: Annotated[list[Path], argument("Results of `pebblesim gpu measure`, .jsonl.")],
    *,
    crossing: Annotated[
        str, option("--crossing", "Draw bytes at HBM and times of schedules over M: A,B.", "A,B", values=schedules)
    ] = "",
    sizes: Sizes,
    drawing: Drawing,
) -> None:
    """Draw the measured traffic of runs on a GPU over the predicted, or that of schedules over M."""
    from pebblesim.views.plots.measured import measured as draw

    rows = _results(results)
    if crossing:
        _draw_measured_crossing(rows, crossing, sizes.dims, drawing)
    elif sizes.dims:
        raise UsageError("sizes choose runs for --crossing; leave them out to draw all runs.")
    else:
        drawing.save(lambda empty: draw(rows, empty.subplots()), height=5.6)


def _draw_measured_crossing(rows: list[dict[str, Any]], crossing: str, dims: dict[str, int], drawing: Drawing) -> None:
    """Draw the batches of heads of some schedules at some sizes; of one card, which the title names."""
    from pebblesim.measuring.crossings import points, summary
    from pebblesim.views.plots.measured import OVER_M, crossing as draw

    names = [name.strip() for name in crossing.split(",")]
    if len(names) < 2:
        raise UsageError(f"--crossing {crossing!r} was given; it takes some schedules, such as small-cache,flash.")
    chosen = [
        row for row in rows if row.get("schedule") in names and row.get("heads") and row["dims"].items() >= dims.items()
    ]
    shapes = {(listed(row["dims"]), row["card"]) for row in chosen}
    if len(shapes) != 1:
        found = "; ".join(sorted(f"{sizes} on {card}" for sizes, card in shapes)) or "none"
        raise UsageError(
            f"runs of {crossing} for many heads, at one size on one card, are needed (`pebblesim gpu crossover` makes "
            f"them); give -n and -d. There are: {found}."
        )
    measured, title = points(chosen, names), ", ".join(*shapes)
    crossed, dims = summary(measured, names)["crossings"], chosen[0]["dims"]
    drawing.save(lambda empty: draw(measured, names, crossed, dims, empty, title), height=OVER_M)


@command(app, example="pebblesim plot race benchmarks/gpu/race.jsonl -n 4096 -o race.png")
def race(
    results: Annotated[list[Path], argument("Results of `pebblesim gpu race`, .jsonl.")],
    n: N = "4096",
    crossing: Annotated[
        bool, option("--crossing", "Draw the crossings of our schedules, in bytes and in time.")
    ] = False,
    card: Annotated[str, option("--card", "Name of the card on which they were measured, for the title.")] = "",
    *,
    drawing: Drawing,
) -> None:
    """Draw the speed of our kernels and of PyTorch's over the head dimension."""
    from pebblesim.views.plots import race as pictures

    draw = pictures.crossing if crossing else pictures.race
    rows = _results(results)
    drawing.save(lambda empty: draw(rows, empty, parse_size("n", str(n)), card), height=8)


def _results(paths: list[Path]) -> list[dict[str, Any]]:
    from pebblesim.measuring.results import load

    for path in paths:
        if not path.is_file():
            raise UsageError(f"{str(path)!r}: this file of results does not exist.")
    return [row for path in paths for row in load(path)]
