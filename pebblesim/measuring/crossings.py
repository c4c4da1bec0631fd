"""Schedules measured over M, in batches of heads: the points, and where their curves cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Any

from pebblesim.launches.sectors import moved
from pebblesim.measuring.cases import BYTES
from pebblesim.measuring.measure_batches import case_of, total

Point = Mapping[str, Any]

QUANTITIES = {
    "counted": "as counted",
    "hbm": "at HBM",
    "sm": "at the multiprocessors",
    "seconds": "in time",
}
"""The values that a point has for each schedule, for one head: bytes (4 for each word that is counted), and seconds."""


@dataclass(frozen=True)
class Between:
    """A crossing: the neighbouring M between which the order of two schedules changes, and where between them it does
    if both are powers of M there."""

    low: int
    high: int
    at: float


def points(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return, for each M, what each of these schedules that was measured there moves and takes, for one head.

    Bytes into and out of the multiprocessors are those measured for reads, and the predicted sectors for writes; None
    if reads were not measured.
    """
    by_M: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["schedule"] not in names:
            continue
        case, found = case_of(row), total(row)
        exact = [moved(kernel.launch, case.sizes) for kernel in case.source.kernels]
        written = sum(each.sectors_written for each in exact) * 32
        by_M.setdefault(row["M"], {"M": row["M"]})[row["schedule"]] = {
            "counted": BYTES * sum(each.words_read + each.words_written for each in exact),
            "hbm": (found["hbm_read"] + found["hbm_written"]) / case.heads,
            "sm": None if found["sm_read"] is None else found["sm_read"] / case.heads + written,
            "seconds": found["seconds"] / case.heads,
        }
    return [by_M[M] for M in sorted(by_M)]


def crossings(measured: Sequence[Point], a: str, b: str, what: str) -> list[Between]:
    """Return where the order of two schedules changes, among the M at which both were measured."""
    both = [(each["M"], each[a][what], each[b][what]) for each in measured if a in each and b in each]
    known = [(M, log(x / y)) for M, x, y in both if x is not None and y is not None]
    return [
        Between(low, high, exp(log(low) + (log(high) - log(low)) * before / (before - after)))
        for (low, before), (high, after) in pairwise(known)
        if (before < 0) != (after < 0)
    ]


def summary(measured: Sequence[Point], names: Sequence[str]) -> dict[str, Any]:
    """Return the crossings of the first schedule with each of the others, for each quantity, as plain data.

    A quantity that was not measured everywhere is left out.
    """
    known = [
        what
        for what in QUANTITIES
        if all(each[name][what] is not None for each in measured for name in names if name in each)
    ]
    return {
        "crossings": [
            {"schedules": [names[0], other], "of": what, "between": [vars(each) for each in found]}
            for other in names[1:]
            for what in known
            for found in [crossings(measured, names[0], other, what)]
        ]
    }
