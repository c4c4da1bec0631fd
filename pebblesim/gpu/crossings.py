"""Two schedules measured over M: the points, where their curves cross, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pebblesim.core.errors import UsageError

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


def draw(rows: Sequence[Point], names: Sequence[str], path: Path) -> None:
    """Draw words over M, predicted as lines and measured as marks, and seconds below."""
    import matplotlib.pyplot as plt

    figure, (words, time) = plt.subplots(2, 1, sharex=True, figsize=(7, 8))
    Ms = [point["M"] for point in rows]
    looks = (
        {"color": "#0072B2", "marker": "o"},
        {"color": "#D55E00", "marker": "^", "linestyle": "--"},
    )  # not by colour alone
    for name, look in zip(names, looks, strict=True):
        counted = {**look, "marker": ""}
        words.plot(Ms, [point[name]["predicted"] for point in rows], **counted, label=f"{name}, counted")
        measured = [point[name]["measured"] for point in rows]
        words.plot(Ms, measured, **{**look, "linestyle": ""}, label=f"{name}, measured")
        time.plot(Ms, [point[name]["seconds"] for point in rows], **look, label=name)
    for axes, label in ((words, "words moved"), (time, "seconds")):
        axes.set(xscale="log", yscale="log", ylabel=label)
        axes.legend()
    time.set_xlabel("M: words of shared memory of a block")
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(path)!r} cannot be drawn: {error}.") from None
    finally:
        plt.close(figure)
