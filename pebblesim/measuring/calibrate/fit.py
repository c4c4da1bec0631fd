"""Fit the rates of a card to launches that were measured on it, and how much longer launches of each kind take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import exp, log
from statistics import median
from typing import Any

from pebblesim.advice.forecast import resident, timed
from pebblesim.advice.launch_costs import LaunchCost
from pebblesim.measuring.calibrate.measure import Measured

LEAST = 4e-6
"""Seconds: shorter launches are left out."""

ROUNDS = 40

RANGE = 3.5
"""Logarithm of the largest factor between a rate and the one that the fit begins with."""

NEAR = 0.1
"""Relative error from which on a launch counts less: an outlier."""

HELD = {"launch": 0.3, "kind": 2.0}
"""How many launches, each with no error, hold the factor of a launch at 1, and those of its kinds."""

Launch = tuple[LaunchCost, float]
"""The work of a launch, and its seconds."""


def launches_of(rows: Iterable[Measured]) -> list[Launch]:
    """The launches of kernels that were timed one by one."""
    return [
        (cost, row.launches[cost.name])
        for row in rows
        for cost in row.costs
        if row.launches and row.launches.get(cost.name, 0) > LEAST and cost.working
    ]


def between_launches(rows: Iterable[Measured]) -> float:
    """Seconds that a launch takes besides: what kernels take longer than their launches do, for each."""
    gaps = [
        (row.seconds - sum(row.launches.values())) / len(row.launches) for row in rows if row.seconds and row.launches
    ]
    return max(1e-7, median(gaps))


def leaving(rows: Iterable[Measured], figures: Mapping[str, float]) -> dict[str, float]:
    """The rate "leaving", from launches to which a mask leaves nothing to do; empty where there are none."""
    found = []
    for row in rows:
        for cost in row.costs:
            if row.launches and not cost.working and cost.name in row.launches:
                places = resident(cost, figures) * figures["multiprocessors"]
                found.append(row.launches[cost.name] / max(cost.times, cost.programs / places))
    return {"leaving": median(found)} if found else {}


def fitted(
    launches: list[Launch], start: Mapping[str, float], fixed: Mapping[str, float], figures: Mapping[str, float]
) -> dict[str, float]:
    """Return all rates: `fixed`, and those for which forecasts of the launches are nearest to what was measured.

    Least squares of the logarithms of forecast ÷ measured, outliers weighed less, from `start`.
    """
    import numpy as np
    from scipy.optimize import least_squares

    names = [name for name in start if name not in fixed]

    def off(x: Any) -> Any:
        rates = dict(fixed) | {name: exp(value) for name, value in zip(names, x, strict=True)}
        return np.array([log(_made(cost, rates, figures) / own) for cost, own in launches])

    x = np.log([start[name] for name in names])
    highest = [
        0.01 + max(0.0, value) if name == "beside" else value + RANGE for name, value in zip(names, x, strict=True)
    ]
    found = least_squares(off, x, bounds=(x - RANGE, highest), loss="soft_l1", f_scale=NEAR, diff_step=1e-3, ftol=1e-3)
    return dict(fixed) | {name: float(exp(value)) for name, value in zip(names, found.x, strict=True)}


def _made(cost: LaunchCost, rates: Mapping[str, float], figures: Mapping[str, float]) -> float:
    """The forecast of a launch, without what it takes besides."""
    return max(timed(cost, rates, figures).seconds - rates["launch"] * cost.times, 1e-9)


def besides(launches: list[Launch], rates: Mapping[str, float], figures: Mapping[str, float]) -> dict[str, float]:
    """How many times longer than the model says launches of each kind take, by the kind's name.

    A launch is of several kinds (`LaunchCost.kinds`); the logarithms of their factors add up. They are those of least
    squares, outliers weighed less, each held at 1 by some launches, so that a few with errors of their own do not count
    as a kind.
    """
    import numpy as np

    errors = np.array([log(seconds / _made(cost, rates, figures)) for cost, seconds in launches])
    columns: dict[str, int] = defaultdict(lambda: len(columns))
    held: dict[int, float] = {}
    for cost, _ in launches:
        for at, kind in enumerate(cost.kinds):
            held[columns[kind]] = HELD["kind" if at else "launch"]
    table = np.zeros((len(launches), len(columns)))
    for row, (cost, _) in zip(table, launches, strict=True):
        row[[columns[kind] for kind in cost.kinds]] = 1
    pull, weights = np.diag([held[at] for at in range(len(columns))]), np.ones(len(launches))
    factors = np.zeros(len(columns))
    for _ in range(ROUNDS):
        weighed = table.T * weights
        factors = np.linalg.solve(weighed @ table + pull, weighed @ errors)
        weights = 1 / np.sqrt(1 + ((errors - table @ factors) / NEAR) ** 2)
    return {kind: float(np.exp(factors[at])) for kind, at in sorted(columns.items())}
