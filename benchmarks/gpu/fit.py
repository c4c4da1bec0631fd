"""Fit `rates` of a card to the launches in benchmarks/gpu/grid.jsonl with n = 4096, and print them as TOML.

The other n are kept for judging: see the table of forecasts that `report.py kernels` prints.
"""

from __future__ import annotations

import re
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from pebblesim.gpu.advice import cards
from pebblesim.gpu.advice.forecast import NEEDED, timed
from pebblesim.gpu.launch_costs import LaunchCost, launch_costs
from pebblesim.gpu.results import load
from pebblesim.gpu.tiles import Tiling

FIXED = {"launch": 3e-6, "memory": 4.27e12, "leaving": 0.0}
"""Rates that are measured by themselves (benchmarks/gpu/ceilings.jsonl)."""

START = {
    "products": 8e12,
    "half_width": 80,
    "paired": 0.5,
    "product": 2e-8,
    "passing": 3e-7,
    "elementwise": 6e10,
    "beside": 0.4,
    "late": 4e10,
    "writing": 2e10,
    "overlap": 0.8,
}
LEAST = 2e-5
"""Seconds: shorter launches are left out."""


def launches(rows: list[dict[str, Any]], n: int | None) -> list[tuple[LaunchCost, float]]:
    """(what it does, seconds) of each launch that was measured."""
    found = []
    for row in rows:
        for tried in row.get("tried", ()):
            if "launches" not in tried or n not in (None, row["n"]):
                continue
            tiling = Tiling(row["contender"], tried["blocks"], tried["warps"], tried["stages"], tried.get("apart", {}))
            for cost in launch_costs(tiling, {"n": row["n"], "d": row["d"]}, row["dtype"], row["heads"]):
                seconds = tried["launches"].get(re.sub(r"\W+", "_", cost.name))
                if seconds and seconds > LEAST:
                    found.append((cost, seconds))
    return found


def main() -> None:
    measured = launches(load(Path(__file__).parent / "grid.jsonl"), 4096)
    figures = {name: cards.card("H200").figures[name].value for name in NEEDED}
    names = list(START)

    def residuals(x: Any) -> Any:
        rates = FIXED | {name: exp(value) for name, value in zip(names, x, strict=True)}
        return np.array([log(timed(cost, rates, figures).seconds / each) for cost, each in measured])

    x, damping = np.log([START[name] for name in names]), 1.0
    off = residuals(x)
    for _ in range(60):  # Levenberg and Marquardt, outliers weighed less
        weights = 1 / np.sqrt(1 + (off / 0.1) ** 2)
        slopes = np.stack([(residuals(x + 1e-4 * unit) - off) / 1e-4 for unit in np.eye(len(x))], 1)
        normal = slopes.T @ (weights[:, None] * slopes)
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -slopes.T @ (weights * off))
        new = residuals(x + np.clip(step, -0.5, 0.5))
        if np.sqrt(1 + (new / 0.1) ** 2).sum() < np.sqrt(1 + (off / 0.1) ** 2).sum():
            x, off, damping = x + np.clip(step, -0.5, 0.5), new, damping / 3
        else:
            damping *= 4
    print(f"# {len(measured)} launches, root mean square of ln(forecast / measured): {np.sqrt((off**2).mean()):.3f}")
    for name, value in zip(names, np.exp(x), strict=True):
        print(f'rates.{name} = {{ value = {value:.3g}, source = "h200-fitted" }}')


if __name__ == "__main__":
    main()
