"""Draw the gap between the best schedule and the best lower bound over M, and the contribution of some bounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from pebblesim.core.sizes import listed
from pebblesim.language.problems import problem
from pebblesim.lower_bounds.bounds import bounds_of_ways, largest, lower_bounds
from pebblesim.lower_bounds.own import own_bounds
from pebblesim.views.plots.style import BLUE, RED, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pebblesim.api.gaps import Gaps
    from pebblesim.counting.count import Counted


def gap_without(row: Counted, names: Collection[str]) -> float:
    """Return I/O ÷ the lower bound for every way of computing, without the bounds of these names."""
    solves = problem(row.problem).in_dims(row.dims)
    ways, own = bounds_of_ways(solves, row.dims, row.M), own_bounds(solves, row.dims, row.M)
    least = min(
        largest([bound for bound in (*of_way, *own) if bound.name not in names]).value for of_way in ways.values()
    )
    return float(Fraction(row.io, least))


def gaps(result: Gaps, ax: Axes, without: Collection[str] = (), before: Gaps | None = None) -> Axes:
    """Draw the gap of the best schedule over M, and the gap without some bounds or schedules; below, show which bound
    is the largest.

    "once" means the compulsory words. A bound that is the largest only on a short interval is not named.

    Args:
        result: the best schedules of a problem at several M.
        ax: where to draw.
        without: names of bounds.
        before: the best of fewer schedules; their gap is drawn without those bounds, too.
    """
    from matplotlib.patheffects import withStroke

    rows = result.rows
    M, gap = [row.M for row in rows], [row.gap for row in rows]
    if before is not None:
        gap_before = [gap_without(row, without) for row in before.rows]
        label = "without these, and with fewer schedules" if without else "with fewer schedules"
        ax.plot([row.M for row in before.rows], gap_before, color="0.3", linewidth=1.2, linestyle=":", label=label)
    if without:
        label = f"without {', '.join(without)}"
        ax.plot(
            M,
            [gap_without(row, without) for row in rows],
            color=RED,
            linewidth=1.3,
            linestyle=(0, (3, 1.5)),
            label=label,
        )
    ax.plot(
        M, gap, color=BLUE, linewidth=1.6, marker="o", markersize=3, label=", ".join(["with all bounds", *_own(rows)])
    )
    largest_gap, at = max(zip(gap, M, strict=True))
    worst_gap = ax.annotate(
        f"{largest_gap:.2f}", (at, largest_gap), xytext=(0, 5), textcoords="offset points", fontsize=8, ha="center"
    )
    worst_gap.set_path_effects([withStroke(linewidth=3, foreground="white")])  # other lines do not cross the digits
    for number, (first, last, name) in enumerate(_stretches(rows)):
        ax.axvspan(first, last, ymax=0.06, color="0.85" if number % 2 else "0.72", linewidth=0)
        if last / first > (M[-1] / M[0]) ** 0.03:
            short = name.replace("compulsory", "once")
            where = ((first * last) ** 0.5, 0.03)
            ax.annotate(short, where, xycoords=("data", "axes fraction"), fontsize=7, ha="center", va="center")
    ax.axhline(1, color="0.5", linewidth=0.8, linestyle=(0, (2, 2)))
    ax.set(xscale="log", ylim=(0.9, 1.08 * ax.get_ylim()[1]), ylabel=result.problem)
    if len(M) > 1:
        ax.set_xlim(M[0], M[-1])
    ax.grid(alpha=0.25, linewidth=0.5)
    return ax


def figure(
    all_found: Sequence[Gaps], figure: Figure, without: Collection[str] = (), before: Mapping[str, Gaps] | None = None
) -> None:
    """Draw one panel above the other, with the same M axis; `before` is by problem."""
    axes = figure.subplots(len(all_found), sharex=True, squeeze=False)[:, 0]
    for each, ax in zip(all_found, axes, strict=True):
        gaps(each, ax, [name for name in without if name in names_of_bounds(each)], (before or {}).get(each.problem))
        ax.legend(loc="upper left", bbox_to_anchor=(0.07, 1), frameon=False, fontsize=8)
    sizes = listed(all_found[0].dims)
    titled(axes[0], f"least I/O ÷ lower bound for any schedule, {sizes}")
    axes[-1].set_xlabel("M, words of cache")


def names_of_bounds(result: Gaps) -> set[str]:
    """Return the names of all bounds of a problem."""
    first = result.rows[0]
    solves = problem(result.problem).in_dims(first.dims)
    known = (*lower_bounds(solves, first.dims, first.M), *own_bounds(solves, first.dims, first.M))
    return {bound.name for bound in known}


def _own(rows: Sequence[Counted]) -> list[str]:
    """Return the labels of users' own bounds that are the largest somewhere."""
    return list(dict.fromkeys(row.every_way.label for row in rows if row.every_way.own))


def _stretches(rows: Sequence[Counted]) -> list[tuple[float, float, str]]:
    """Return the intervals of M in which one bound is the largest; neighbours meet in the middle."""
    ends = [float(rows[0].M), *((a.M * b.M) ** 0.5 for a, b in pairwise(rows)), float(rows[-1].M)]
    stretches: list[tuple[float, float, str]] = []
    for row, first, last in zip(rows, ends, ends[1:], strict=False):
        name = row.every_way.name
        if stretches and stretches[-1][2] == name:
            stretches[-1] = (stretches[-1][0], last, name)
        else:
            stretches.append((first, last, name))
    return stretches
