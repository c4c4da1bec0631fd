"""I/O over M, and where schedules cross: the paper's Figure 1, with real numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pebblesim.plots.style import EVERY_WAY, line

if TYPE_CHECKING:
    from pebblesim.jobs.crossings import Sweep


def io_over_M(data: Sweep, ax: Any) -> Any:
    """I/O over M on log axes: schedules, the Θ bound, the lower bound, M = d², and where the schedules cross."""
    n, d = data.dims["n"], data.dims["d"]
    shown = [words for each in data.io.values() for words in each if words is not None]
    floor = min(data.lower) / 2
    for number, (name, each) in enumerate(data.io.items()):
        M, values = zip(*((m, words) for m, words in zip(data.M, each, strict=True) if words is not None), strict=True)
        ax.plot(
            M,
            values,
            **line(number),
            markevery=(3 * number, max(len(data.M) // 8, 1)),
            markersize=5,
            linewidth=1.6,
            label=name,
        )
    if data.theta:
        ax.plot(data.M, data.theta, color="0.35", linewidth=1.2, linestyle=":", label="inside Θ, constant 1")
    ax.fill_between(data.M, floor, data.lower, color="0.9", linewidth=0)
    ax.plot(data.M, data.lower, color="black", linewidth=1, label=EVERY_WAY)
    ax.axvline(d * d, color="0.5", linewidth=0.8, linestyle=(0, (2, 4)))
    ax.annotate("M = d²", (d * d, 0.98), xycoords=("data", "axes fraction"), xytext=(4, 0), **_WORDS, va="top")
    for number, crossing in enumerate(data.crossings):
        if crossing.M is None:
            continue
        words = _at(data, crossing.schedules[1], crossing.M)
        ax.plot([crossing.M], [words], "o", markersize=8, markerfacecolor="white", markeredgecolor="black", zorder=5)
        text = f"M = {crossing.M:,}\n= {float(crossing.M_over_d2 or 0):.2f} d²"
        side = {"xytext": (16, 16), "ha": "left"} if number % 2 == 0 else {"xytext": (-16, -34), "ha": "right"}
        stroke = {"arrowstyle": "-", "color": "0.4", "linewidth": 0.8}
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        ax.annotate(text, (crossing.M, words), **_WORDS, **side, arrowprops=stroke, bbox=paper)
    ax.set(xscale="log", yscale="log", xlabel="M, words of cache", ylabel="I/O, words")
    ax.set(xlim=(data.M[0], data.M[-1]), ylim=(floor, 1.6 * max(shown)))
    ax.set_title(f"n = {n:,}, d = {d:,}", fontsize=11)
    ax.legend(fontsize=9, frameon=False, loc="lower left", handlelength=4)
    return ax


_WORDS: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "color": "0.2"}


def _at(data: Sweep, name: str, M: int) -> int:
    """The I/O of a schedule at the M of the sweep that is nearest to one, among those where it is feasible."""
    known = ((abs(m - M), words) for m, words in zip(data.M, data.io[name], strict=True) if words is not None)
    return min(known)[1]
