"""Draw I/O over M and the crossings of schedules: the paper's Figure 1, with real numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pebblesim.core.errors import UsageError
from pebblesim.views.plots.style import every_way, floats, line, titled

if TYPE_CHECKING:
    from matplotlib.path import Path

    from pebblesim.api.crossover import Sweep


WORDS: Final = 10.5
"""Points of the letters, so large that a phone shows them."""

HEIGHT: Final = 5
"""Inches from top to bottom of the picture."""


def io_over_M(data: Sweep, ax: Any) -> Any:
    """Draw I/O over M, or over a dimension, on log axes: schedules, Θ, the lower bound, and the crossings.

    M = d² is marked if there is a single d.
    """
    crossover = data.crossover
    shown = [words for each in data.io.values() for words in each if words is not None]
    if not shown:
        raise UsageError("no schedule fits at any of these sizes, so there is nothing to draw.")
    floor = min(data.lower) / 2
    for number, (name, each) in enumerate(data.io.items()):
        known = [(at, words) for at, words in zip(data.at, each, strict=True) if words is not None]
        ax.plot(
            [at for at, _ in known],
            [words for _, words in known],
            **line(number),
            markevery=(3 * number, max(len(data.at) // 8, 1)),
            markersize=5,
            linewidth=1.6,
            label=crossover.named[name].title,
        )
    if data.best:
        ax.plot(*zip(*data.best, strict=True), color="0.3", linewidth=1, linestyle=(0, (4, 1)), label="best schedule")
    if data.theta:
        ax.plot(data.at, data.theta, color="0.35", linewidth=1.2, linestyle=":", label="Θ, without its constant")
    ax.fill_between(floats(data.at), floats(data.lower), floor, color="0.9", linewidth=0)
    ax.plot(data.at, data.lower, color="black", linewidth=1, label=every_way(data.own))
    d = crossover.crossings[0].d if crossover.along == "M" else None
    if d:
        d2 = d * d
        ax.axvline(d2, color="0.5", linewidth=0.8, linestyle=(0, (2, 4)))
        ax.annotate("M = d²", (d2, 0.98), xycoords=("data", "axes fraction"), xytext=(4, 0), **_WORDS, va="top")
    what = "M, words of cache" if crossover.along == "M" else crossover.along
    ax.set(xscale="log", yscale="log", xlabel=what, ylabel="I/O, words")
    ax.set(xlim=floats((data.at[0], data.at[-1])), ylim=(float(floor), 1.6 * float(max(shown))))
    solves = crossover.solves
    about = f"{solves.name}: {solves.about.partition(' (')[0]}" if solves.about else solves.name
    titled(ax, f"{about}, {crossover.title}")
    ax.legend(fontsize=WORDS, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, handlelength=3)
    ax.figure.draw_without_rendering()  # gives the axes their final place
    curves = [curve.get_path().transformed(curve.get_transform()) for curve in ax.lines]
    for crossing in crossover.crossings:
        if crossing.at is None:
            continue
        words = _at(data, crossing.schedules[1], crossing.at)
        ax.plot([crossing.at], [words], "o", markersize=8, markerfacecolor="white", markeredgecolor="black", zorder=5)
        text = f"{crossover.along} = {crossing.at:,}" + (f"\n= {crossing.at / d**2:.2f} d²" if d else "")
        if (changes := len(crossing.changes)) > 1:
            text += f"\nlast of {changes}"
        side, box = _free_side(ax, (crossing.at, words), text, curves)
        curves.append(box)
        stroke = {"arrowstyle": "-", "color": "0.4", "linewidth": 0.8}
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        ax.annotate(text, (crossing.at, words), **_WORDS, **side, arrowprops=stroke, bbox=paper)
    return ax


_WORDS: dict[str, Any] = {"textcoords": "offset points", "fontsize": WORDS, "color": "0.2"}


_SIDES: Final = tuple((x, y) for y in (16, -34, 40, -58, 64, -82, 88, -106) for x in (16, -16, 50, -50))
"""Where the text at a crossing may be, in points from it; the left or the right end of the text is there."""


def _free_side(ax: Any, at: tuple[float, float], text: str, curves: Sequence[Path]) -> tuple[Any, Path]:
    """Return the first place for a text inside the picture that fewest curves cross: for `annotate`, and as a box."""
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox, BboxTransformTo

    point = ax.figure.dpi / 72
    x0, y0 = ax.transData.transform(floats(at))
    lines = text.split("\n")
    width, height = (0.62 * WORDS * max(map(len, lines)) + 6) * point, (1.34 * WORDS * len(lines) + 4) * point

    def box(side: tuple[int, int]) -> Bbox:
        return Bbox.from_bounds(x0 + side[0] * point - width * (side[0] < 0), y0 + (side[1] - 4) * point, width, height)

    def crossed(side: tuple[int, int]) -> int:
        if not (ax.bbox.contains(*box(side).min) and ax.bbox.contains(*box(side).max)):
            return len(curves) + 1
        return sum(curve.intersects_bbox(box(side), filled=False) for curve in curves)

    best = min(_SIDES, key=crossed)
    outline = Path.unit_rectangle().transformed(BboxTransformTo(box(best)))
    return {"xytext": best, "ha": "right" if best[0] < 0 else "left"}, outline


def _at(data: Sweep, name: str, M: int) -> int:
    """Return the I/O of a schedule at the feasible M of the sweep that is nearest to the given M."""
    known = ((abs(m - M), words) for m, words in zip(data.at, data.io[name], strict=True) if words is not None)
    return min(known)[1]
