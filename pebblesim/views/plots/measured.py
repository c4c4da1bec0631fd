"""Draw predicted and measured traffic, from a results file of the GPU harness: one against the other, or over M."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pebblesim.core.errors import UsageError
from pebblesim.views.plots.style import COLOURS, MARKERS, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTITIES = {
    "words_read": "words read",
    "words_written": "words written",
    "sm_read": "bytes into the SMs",
    "sm_written": "bytes out of the SMs",
    "hbm_read": "bytes read from HBM",
    "hbm_written": "bytes written to HBM",
}


def measured(rows: Sequence[Mapping[str, Any]], ax: Axes) -> Axes:
    """Draw measured ÷ predicted traffic over what was predicted, one mark for each run and quantity.

    Args:
        rows: results of `pebblesim gpu measure`; rows without a prediction, from other programs, are left out.
        ax: where to draw.

    Raises:
        UsageError: no row has a prediction.
    """
    totals = [row["total"] for row in rows if "predicted" in row.get("total", {})]
    if not totals:
        raise UsageError("there is no run with a prediction in these results; `pebblesim gpu measure` makes some.")
    for number, (name, label) in enumerate(QUANTITIES.items()):
        pairs = [(total["predicted"][name], total["measured"][name]) for total in totals]
        same = sum(predicted == counted for predicted, counted in pairs)
        shown = [(predicted, counted) for predicted, counted in pairs if predicted and counted]
        ax.plot(
            [predicted for predicted, _ in shown],
            [counted / predicted for predicted, counted in shown],
            MARKERS[number],
            color=COLOURS[number],
            fillstyle="none",
            label=f"{label}: {same} of {len(pairs)} exactly as predicted",
        )
    ax.axhline(1, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xscale="log", yscale="log", xlabel="predicted (words, bytes)", ylabel="measured ÷ predicted")
    ax.legend(fontsize=9, frameon=False, loc="upper right")
    return ax


def crossing(points: Sequence[Mapping[str, Any]], names: Sequence[str], figure: Figure, title: str) -> None:
    """Draw the words that two schedules move over M, counted as lines and measured as marks; below, their times.

    Args:
        points: for each M the words and seconds of both, as `pebblesim.gpu.crossings.points` returns them.
        names: the two schedules.
        figure: where to draw.
        title: what was measured, and on which card.

    Raises:
        UsageError: there is no M at which both were measured.
    """
    if not points:
        raise UsageError(f"these results hold no M at which both {' and '.join(names)} were measured.")
    words, time = figure.subplots(2, sharex=True)
    M = [point["M"] for point in points]
    for number, name in enumerate(names):
        look, counted, seen = line(number), line(number) | {"marker": ""}, line(number) | {"linestyle": ""}
        words.plot(M, [point[name]["predicted"] for point in points], **counted, label=f"{name}, counted")
        words.plot(M, [point[name]["measured"] for point in points], **seen, label=f"{name}, measured")
        time.plot(M, [point[name]["seconds"] for point in points], **look, label=name)
    for ax, label in ((words, "words moved"), (time, "seconds")):
        ax.set(xscale="log", yscale="log", ylabel=label)
        ax.legend(frameon=False)
    words.set_title(title, fontsize=11)
    time.set_xlabel("M, words of shared memory of a thread block")
