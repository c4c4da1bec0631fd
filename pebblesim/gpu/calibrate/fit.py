"""Fit the rates of a card to launches that were measured on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log
from typing import Any

from pebblesim.gpu.advice.forecast import timed
from pebblesim.gpu.calibrate.measure import Measured
from pebblesim.gpu.launch_costs import LaunchCost

LEAST = 1e-5
"""Seconds: shorter launches are left out."""

ROUNDS = 40

Launch = tuple[LaunchCost, float]
"""The work of a launch, and its seconds."""


def launches_of(rows: Iterable[Measured]) -> list[Launch]:
    """The launches of kernels that were timed one by one."""
    return [
        (cost, row.launches[cost.name])
        for row in rows
        for cost in row.costs
        if row.launches and row.launches.get(cost.name, 0) > LEAST
    ]


def fitted(
    launches: list[Launch], start: Mapping[str, float], fixed: Mapping[str, float], figures: Mapping[str, float]
) -> dict[str, float]:
    """Return all rates: `fixed`, and those for which forecasts of the launches are nearest to what was measured.

    Levenberg and Marquardt's way, on the logarithms of rates and times, outliers weighed less; from `start`.
    """
    import numpy as np

    names = [name for name in start if name not in fixed]

    def off(x: Any) -> Any:
        rates = dict(fixed) | {name: exp(value) for name, value in zip(names, x, strict=True)}
        seconds = (timed(cost, rates, figures).seconds - rates["launch"] * cost.times for cost, _ in launches)
        return np.array([log(max(each, 1e-9) / own) for each, (_, own) in zip(seconds, launches, strict=True)])

    def loss(errors: Any) -> float:
        return float(np.sqrt(1 + (errors / 0.1) ** 2).sum())

    x, damping = np.log([start[name] for name in names]), 1.0
    errors = off(x)
    for _ in range(ROUNDS):
        weights = 1 / np.sqrt(1 + (errors / 0.1) ** 2)
        slopes = np.stack([(off(x + 1e-4 * unit) - errors) / 1e-4 for unit in np.eye(len(x))], 1)
        normal = slopes.T @ (weights[:, None] * slopes)
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -slopes.T @ (weights * errors))
        tried = x + np.clip(step, -0.5, 0.5)
        new = off(tried)
        if loss(new) < loss(errors):
            better = loss(errors) - loss(new)
            x, errors, damping = tried, new, damping / 3
            if better < 1e-4 * len(errors):
                break
        else:
            damping *= 4
    return dict(fixed) | {name: float(exp(value)) for name, value in zip(names, x, strict=True)}
