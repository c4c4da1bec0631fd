"""Times of single kernels, which `hopper.py` measures as some of its parts.

- `calibrating`: Gluon kernels of the attentions that a card is calibrated with;
- `others`: Triton kernels of these attentions that are near the fastest by forecast;
- `drawn`: both for attentions that a seed draws, as in `drawn.py`; launches are timed one by one for every second
  attention, to which factors may be fitted, and not for the others;
- `few`: both for a few attentions where PyTorch's kernels were faster.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from pebblesim.advice import cards
from pebblesim.advice.cards import Card
from pebblesim.advice.tiles import PROBLEM, tilings
from pebblesim.measuring.calibrate.calibrate import load, save
from pebblesim.measuring.calibrate.measure import Measured, measured, near
from pebblesim.measuring.calibrate.shapes import Cell, Shape, calibrating, drawn

SEED, NUMBER, WITHIN = 2711, 80, 1.5
"""The attentions that are drawn, and how far forecasts may be from the fastest; as in drawn.py."""

NEAREST = 1.15
"""How far forecasts may be from the fastest for the Triton kernels of attentions that a card is calibrated with."""

PARTS = ("calibrating", "others", "drawn", "few")

FEW = (
    Shape("forward", 906, 906, 128, 1, 1, "causal"),
    Shape("forward", 128, 128, 768, 64, 1, "causal"),
    Shape("forward", 372, 372, 80, 128, 4, "causal"),
    Shape("forward", 150, 150, 160, 2, 8, "causal"),
    Shape("backward", 150, 150, 160, 2, 8, "causal"),
    Shape("backward", 995, 995, 256, 4, 2),
    Shape("backward", 1331, 1331, 192, 4, 1),
    Shape("backward", 1024, 1024, 512, 1, 128),
)
"""Attentions of a drawn race where PyTorch's kernels were faster, and one of 128 heads that share few keys."""


def card_of(device: str) -> Card:
    """The known card of this device, or else an H200."""
    return next((each for each in cards.cards().values() if each.device == device), cards.card("H200"))


def cells_of(
    part: str, device: str, *, schedules: Container[str], widths: Iterable[int], seed: int, number: int
) -> Iterator[tuple[list[Cell], str, bool]]:
    """Yield the kernels of a part, the name of their file, and whether launches are timed one by one."""
    if part == "calibrating":
        yield gluon_cells(schedules, widths), "gluon_calibrating.jsonl", True
    elif part == "others":
        yield near(calibrating(), card_of(device), NEAREST), "others_calibrating.jsonl", True
    elif part == "few":
        yield drawn_cells(device, list(FEW)), "gluon_few.jsonl", True
    else:
        shapes = list(drawn(seed, number))
        for first, by_launch in ((1, False), (0, True)):
            yield drawn_cells(device, shapes[first::2]), f"gluon_drawn_{seed}.jsonl", by_launch


def gluon_cells(schedules: Container[str], widths: Iterable[int]) -> list[Cell]:
    """The Gluon kernels of some schedules for the attentions that a card is calibrated with, but for single queries."""
    large = cards.card("H200").size("shared_per_block")
    return [
        Cell(shape, tiling)
        for shape in calibrating(tuple(widths))
        for tiling in tilings(PROBLEM[shape.way], large, True)
        if tiling.gluon and tiling.widths[0] <= shape.d <= tiling.widest["d_v"] and shape.n_q > 1
        if tiling.schedule in schedules
    ]


def drawn_cells(device: str, shapes: list[Shape]) -> list[Cell]:
    """All kernels near the fastest, and all Gluon kernels, for some attentions."""
    card = card_of(device)
    found = near(shapes, card, WITHIN)
    for shape in shapes:
        for tiling in tilings(PROBLEM[shape.way], card.size("shared_per_block"), True):
            fits = tiling.widths[0] <= shape.d <= tiling.widest["d_v"] and shape.n_q > 1
            if tiling.gluon and fits and Cell(shape, tiling) not in found:
                found.append(Cell(shape, tiling))
    return found


def add(made: list[Cell], path: Path, by_launch: bool) -> None:
    """Times of kernels, behind those that the file has."""
    rows: list[Measured] = load(path) if path.exists() else []
    for row in measured(made, by_launch):
        rows.append(row)
        if len(rows) % 20 == 0:
            save(rows, path)
    save(rows, path)
    failed = [row for row in rows if not row.seconds]
    print(f"{path.name}: {len(rows)} kernels, {len(failed)} failed {[row.error for row in failed[:3]]}", flush=True)
