"""Two schedules measured over M: the points, and where their curves cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Point = dict[str, Any]


def points(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Point]:
    """Return, for each M and each schedule, predicted and measured words (reads and writes together), and seconds."""
    by_M: dict[int, Point] = {}
    for row in rows:
        predicted, measured = row["total"]["predicted"], row["total"]["measured"]
        by_M.setdefault(row["M"], {"M": row["M"]})[row["schedule"]] = {
            "predicted": predicted["words_read"] + predicted["words_written"],
            "measured": measured["words_read"] + measured["words_written"],
            "bytes": measured["sm_read"] + measured["sm_written"],
            "seconds": row["seconds"],
        }
    return [by_M[M] for M in sorted(by_M) if all(name in by_M[M] for name in names)]


def summary(measured: Sequence[Point], names: Sequence[str]) -> dict[str, Any]:
    """Return the neighbouring M between which the order of the two schedules changes, for each quantity."""
    a, b = names
    return {
        "crossings": {
            what: [
                (left["M"], right["M"])
                for left, right in pairwise(measured)
                if (left[a][what] < left[b][what]) != (right[a][what] < right[b][what])
            ]
            for what in ("predicted", "measured", "bytes", "seconds")
        }
    }
