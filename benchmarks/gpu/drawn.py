"""Forecasts of shapes that were drawn by a seed, against this GPU: `python benchmarks/gpu/drawn.py -o FOLDER`.

Calibrates the card from nothing (FOLDER/card.toml, FOLDER/calibrating.jsonl), then measures, for each shape, the
kernels whose forecasts are near the fastest (FOLDER/drawn.jsonl). With `--report FOLDER` no GPU is needed: it fits the
rates anew to what was measured, and compares. With `--judge FILE` it takes today's card, by the name of the file's
folder, for attentions that another seed drew (`hopper.py --parts drawn --seed SEED`). With `--tiles FOLDER` it finds
the factors of tiles that were measured later (FOLDER/tiles.jsonl), while the rates and all other factors stay.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from dataclasses import replace
from math import exp, log
from pathlib import Path

from pebblesim.advice import cards
from pebblesim.advice.cards import Card
from pebblesim.advice.forecast import launch_forecast
from pebblesim.advice.tiles import TILINGS, Tiling
from pebblesim.measuring.calibrate.calibrate import calibrate, forecast_of, from_rows, load, save
from pebblesim.measuring.calibrate.fit import HELD, LEAST
from pebblesim.measuring.calibrate.measure import Measured, measured, near
from pebblesim.measuring.calibrate.shapes import Shape, drawn

SEED, NUMBER, WITHIN = 2711, 80, 1.5

BESIDE, LONG = {"B_r": 64, "B_c": 64}, 2048
"""The tile that others are measured beside, and the fewest queries of the shapes that count."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--calibrate-only", action="store_true")
    parser.add_argument("--report", type=Path, nargs="*")
    parser.add_argument("--judge", type=Path, nargs="*")
    parser.add_argument("--tiles", type=Path, nargs="*")
    asked = parser.parse_args()
    if asked.output:
        run(asked.output, asked.calibrate_only)
    for folder in asked.report or ():
        report(folder)
    for file in asked.judge or ():
        compare(cards.card(file.resolve().parent.name), load(file))
    for folder in asked.tiles or ():
        tiles(folder)


def run(folder: Path, calibrate_only: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def told(what: str, done: int, of: int) -> None:
        if done % 30 == 0 or done == of:
            print(f"{time.monotonic() - began:.0f} s: {done} of {of} {what}", flush=True)

    if not (folder / "calibrating.jsonl").exists():
        made, _ = calibrate(folder / "card.toml", told)
        save(made.rows + made.failed, folder / "calibrating.jsonl")
        print(f"calibrated in {made.seconds:.0f} s: {len(made.rows)} kernels, {len(made.failed)} failed", flush=True)
    if calibrate_only:
        return
    card = cards.from_file(folder / "card.toml")
    cells = near(list(drawn(SEED, NUMBER)), card, WITHIN)
    rows: list[Measured] = []
    counts: Counter[str] = Counter()

    def told_one(what: str) -> None:
        counts[what] += 1
        told(what, counts[what], len(cells))

    for row in measured(cells, on_progress=told_one):
        rows.append(row)
        save(rows, folder / "drawn.jsonl")


def report(folder: Path) -> None:
    """Print how near forecasts are, and what the kernel that they choose loses."""
    card = cards.card(folder.name)
    measured_alone = {name: card.rates[name] for name in ("memory", "l2") if name in card.rates}
    made = from_rows(replace(card, rates=measured_alone), load(folder / "calibrating.jsonl"), 0)
    print(made.parts()[0])
    print("\n".join(f"rates.{name} = {figure.value:.4g}" for name, figure in made.card.rates.items()))
    near = [abs(each.error) < 0.2 for each in made.held_out]
    print(f"held out: {sum(near)} of {len(near)} within 20 %")
    compare(made.card, load(folder / "drawn.jsonl"))


def compare(card: Card, rows: list[Measured]) -> None:
    by_shape: dict[Shape, list[tuple[float, float, Measured]]] = defaultdict(list)
    for row in rows:
        if row.seconds:
            by_shape[row.cell.shape].append((forecast_of(row, card), row.seconds, row))
    losses, near = [], []
    for shape, each in by_shape.items():
        made, seconds, chosen = min(each, key=lambda one: one[0])
        loss = seconds / min(one[1] for one in each) - 1
        losses.append(loss)
        near.append(abs(made / seconds - 1) < 0.2)
        sizes = f"{shape.way} {shape.n_q} x {shape.n_k}, d {shape.d}, {shape.heads} x {shape.group}, {shape.mask}"
        print(f"{sizes:60} {seconds * 1e6:8.1f} µs {made / seconds:5.2f} loses {loss:5.1%} {chosen.cell.tiling}")
    few = sum(loss < 0.05 for loss in losses)
    print(f"{len(near)} shapes: {sum(near)} within 20 %, {few} lose under 5 %, {losses.count(0)} are the fastest")


def tiles(folder: Path) -> None:
    """Print the factors of tiles that are offered and have none yet, with the others held; then what others take.

    That is the geometric mean of their times ÷ those of the tile offered in the same case, for the long shapes.
    """
    card, rows = cards.card(folder.name), [row for row in load(folder / "tiles.jsonl") if row.launches]
    offered = [each for problem in TILINGS for each in TILINGS[problem]]
    errors: dict[str, list[float]] = defaultdict(list)
    ratios: dict[tuple[int, Tiling], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    first = {row.cell.shape: row for row in reversed(rows) if row.cell.tiling.blocks == BESIDE}
    for row in rows:
        own, shape = row.cell.tiling, row.cell.shape
        alike = [each for each in offered if (each.schedule, each.blocks) == (own.schedule, own.blocks)]
        if any(each.widths[0] <= shape.d <= each.widths[1] for each in alike):
            for cost in row.costs:
                if cost.working and row.launches.get(cost.name, 0) > LEAST and cost.kinds[-1] not in card.besides:
                    made = launch_forecast(cost, card).seconds - card.rates["launch"].value * cost.times
                    errors[cost.kinds[-1]].append(log(row.launches[cost.name] / made))
        elif shape.n_q >= LONG:
            ratio = row.seconds / first[shape].seconds
            ratios[shape.d, own]["all" if shape.mask is None else "causal"].append(log(ratio))
    for kind, each in sorted(errors.items()):
        print(f'"{kind}" = {exp(sum(each) / (len(each) + HELD["kind"])):.3g}  # {len(each)} launches')
    for (d, own), masked in ratios.items():
        taken = ", ".join(f"{mask} = {exp(sum(each) / len(each)):.2f}" for mask, each in sorted(masked.items()))
        print(f"d = {d}, {own}: {taken}")


if __name__ == "__main__":
    main()
