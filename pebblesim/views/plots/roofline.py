"""Draw the roofline of a machine with the schedules of a problem (Williams, Waterman & Patterson 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pebblesim.core.sizes import bytes_of
from pebblesim.counting.useful import useful_operations
from pebblesim.views.plots.style import line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pebblesim.counting.count import Counted


def height(rows: Sequence[Counted]) -> float:
    """Inches from top to bottom of the picture, whose legend is below the axes."""
    return 3.6 + 0.105 * len(rows)


def roofline(
    rows: Sequence[Counted],
    ax: Axes,
    *,
    peak: float,
    bandwidth: float,
    dtype: str,
    roofs: tuple[str, str] = ("memory", "arithmetic"),
) -> Axes:
    """Draw the useful operations per second that a machine allows, over useful operations per byte moved.

    The useful operations are those of the problem (`pebblesim.counting.useful`). A schedule that executes more
    operations cannot reach the roof, because it also spends time on the additional ones. Left of the ridge memory
    limits a schedule, right of it arithmetic. The dotted line shows where the best schedule would be if it moved only
    as many words as the lower bound.

    Args:
        rows: the counts, one for each schedule, for the cache whose traffic the bandwidth limits.
        ax: where to draw.
        peak: operations per second.
        bandwidth: bytes per second between this cache and the next memory level.
        dtype: type of a word, such as "bfloat16".
        roofs: what limits left of the ridge, and right of it.

    Raises:
        UnknownName: the type is not known.
    """
    from matplotlib.ticker import EngFormatter, NullFormatter

    rows = sorted((row for row in rows if row.feasible), key=lambda row: -row.io)
    width, best = bytes_of(dtype), rows[-1]
    useful = sum(useful_operations(best.problem, best.dims, one.only_mask) for one in best.parts or (best,))

    def intensity(words: int) -> float:
        return float(Fraction(useful, words * width))

    def allowed(row: Counted) -> float:
        return min(float(Fraction(useful, row.operations)) * peak, bandwidth * intensity(row.io))

    limit = intensity(best.lower_bound.value)
    ridge = peak / bandwidth
    left = min(ridge, intensity(rows[0].io)) / 4
    right = 4 * max(ridge, limit)
    floor = min(bandwidth * left, *map(allowed, rows)) / 4
    ax.plot([left, ridge, right], [bandwidth * left, peak, peak], color="black", linewidth=1.6)
    ax.fill_between([left, ridge, right], [bandwidth * left, peak, peak], floor, color="0.95", linewidth=0)
    for number, row in enumerate(rows):
        at, top = intensity(row.io), allowed(row)
        look = line(number)
        ax.plot([at, at], [floor, top], color=look["color"], linestyle=look["linestyle"], linewidth=1)
        label = f"{row.schedule}: {at:.3g}"
        ax.plot([at], [top], look["marker"], color=look["color"], markeredgecolor="black", markersize=8, label=label)
    roof = min(peak, bandwidth * limit)
    ax.plot([limit, limit], [floor, roof], color="0.3", linewidth=0.9, linestyle=(0, (1, 2)))
    words: dict[str, Any] = {"fontsize": 9, "textcoords": "offset points"}
    ax.annotate(
        "lower bound",
        (limit, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        rotation=90,
        ha="left",
        va="bottom",
        **words,
    )
    unit = EngFormatter(sep="\N{THIN SPACE}")
    memory, arithmetic = roofs
    ax.annotate(f"{arithmetic}: {unit(peak)}FLOP/s", (right, peak), xytext=(-4, 4), ha="right", **words)
    ax.annotate(
        f"{memory}: {unit(bandwidth)}B/s", (left, bandwidth * left), xytext=(24, -4), ha="left", va="top", **words
    )
    ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(floor, peak * (peak / floor) ** 0.12))
    ax.yaxis.set_major_formatter(unit)
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel=f"useful operations per byte moved ({dtype})", ylabel="useful operations per second")
    title = "schedule: its useful operations per byte"
    ax.legend(
        title=title,
        fontsize=8.5,
        title_fontsize=8.5,
        ncols=2,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16),
    )
    return ax
