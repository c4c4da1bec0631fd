"""Draw predicted and measured traffic, from a results file of the GPU harness: one against the other, or over M."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from pebblesim.core.errors import UsageError
from pebblesim.language.registry import get
from pebblesim.views.plots.style import COLOURS, MARKERS, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OVER_M: Final = 6.4
"""Inches from top to bottom of the picture over M: its panels are one above the other."""

QUANTITIES = {
    "words_read": "words read",
    "words_written": "words written",
    "sm_read": "bytes into the SMs",
    "sm_written": "bytes out of the SMs",
    "hbm_read": "bytes read from HBM",
    "hbm_written": "bytes written to HBM",
}


def measured(rows: Sequence[Mapping[str, Any]], ax: Axes) -> Axes:
    """Draw how far measured traffic is off the predicted, in percent, one mark for each run and quantity.

    The axis is linear up to 1 % off, and logarithmic beyond.

    Args:
        rows: results of `pebblesim gpu measure`; rows without a prediction, from other programs, are left out.
        ax: where to draw.

    Raises:
        UsageError: no row has a prediction.
    """
    from matplotlib.ticker import FuncFormatter

    totals = [row["total"] for row in rows if "predicted" in row.get("total", {})]
    if not totals:
        raise UsageError("there is no run with a prediction in these results; `pebblesim gpu measure` makes some.")
    for number, (name, label) in enumerate(QUANTITIES.items()):
        pairs = [(total["predicted"][name], total["measured"][name]) for total in totals]
        same = sum(predicted == counted for predicted, counted in pairs)
        shown = [(predicted, counted) for predicted, counted in pairs if predicted and counted]
        ax.plot(
            [predicted for predicted, _ in shown],
            [float(100 * (Fraction(counted, predicted) - 1)) for predicted, counted in shown],
            MARKERS[number],
            color=COLOURS[number],
            fillstyle="none",
            label=f"{label}: {same} of {len(pairs)} as predicted, exactly",
        )
    ax.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    ax.set_yscale("symlog", linthresh=1)
    ax.set(xscale="log", xlabel="predicted (words, bytes)", ylabel="measured beyond predicted, %")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda percent, _: f"{percent:+,.0f}" if percent else "0"))
    ax.grid(alpha=0.25, linewidth=0.5)
    ax.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    return ax


def crossing(
    points: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    crossings: Sequence[Mapping[str, Any]],
    dims: Mapping[str, int],
    figure: Figure,
    title: str,
) -> None:
    """Draw the bytes at HBM of some schedules over M, for one head, counted as lines and measured as marks; and times.

    Args:
        points: what each schedule moves and takes at each M, as `pebblesim.measuring.crossings.points` returns it.
        names: the schedules.
        crossings: where the first crosses the others, as `pebblesim.measuring.crossings.summary` returns it.
        dims: n and d, or as for `pebblesim.count`; M = d² is marked.
        figure: where to draw.
        title: what was measured, and on which card.

    Raises:
        UsageError: some schedule was measured at no M.
    """
    if missing := [name for name in names if not any(name in point for point in points)]:
        raise UsageError(f"these results hold no M at which {' and '.join(missing)} was measured for many heads.")
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    called = {name: get(name).known_as or name for name in names}
    d2, (above, below) = dims["d"] ** 2, figure.subplots(2, 1, sharex=True)
    for number, name in enumerate(names):
        known = [(point["M"], point[name]) for point in points if name in point]
        M, look = [at for at, _ in known], line(number)
        above.plot(*_counted(name, dims, min(M), max(M)), **look | {"marker": ""}, label=f"{called[name]}, counted")
        for ax, what in ((above, "hbm"), (below, "seconds")):
            measured = look | {"linestyle": ""} if what == "hbm" else look
            ax.plot(M, [values[what] for _, values in known], **measured, label=f"{called[name]}, measured")
    above.set(xscale="log", yscale="log", ylabel="bytes at HBM, for a head\n(lines counted, marks measured)")
    below.set(yscale="log", ylabel="microseconds, for a head", xlabel="M, words of shared memory of a block")
    below.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    below.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds * 1e6:,.4g}"))
    below.yaxis.set_minor_formatter(NullFormatter())
    for ax, what in ((above, "hbm"), (below, "seconds")):
        _mark(ax, d2, "d²", color="0.4", linestyle=(0, (2, 4)))
        for found in crossings:
            if found["of"] == what:
                look = {"color": line(names.index(found["schedules"][1]))["color"], "linestyle": "-"}
                for each in found["between"]:
                    _mark(ax, each["at"], f"{each['at'] / d2:.2f} d²", **look)
    both = [Line2D([], [], **line(number), label=called[name]) for number, name in enumerate(names)]
    above.legend(handles=both, fontsize=10, framealpha=0.9, edgecolor="none", handlelength=4)
    figure.suptitle(title, fontsize=11)


def _counted(name: str, dims: Mapping[str, int], low: int, high: int) -> tuple[list[int], list[float]]:
    """Bytes of float32 that a schedule moves with the blocks that fit, for M in between."""
    from pebblesim.api.crossover import Curve

    curve, steps = Curve(get(name).in_dims(dims), dims), 80
    M = [round(low * (high / low) ** (step / steps)) for step in range(steps + 1)]
    return M, [4 * curve(at) for at in M]


def _mark(ax: Axes, M: float, text: str, **look: Any) -> None:
    """Draw a line at this M, and a text at its upper end."""
    ax.axvline(M, linewidth=0.8, **look)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    ax.annotate(text, (M, 1), xytext=(0, 3), ha="center", fontsize=10, color=look["color"], **place)
