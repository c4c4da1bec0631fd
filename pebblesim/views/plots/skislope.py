"""Draw the "ski slope": the I/O of every schedule of a problem over the cache size, and the gap of the best one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pebblesim.core.sizes import listed
from pebblesim.views.plots.style import every_way, floats, line, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pebblesim.counting.count import Counted


def skislope(rows: Sequence[Counted], ax: Axes) -> Axes:
    """Draw I/O over M on log axes: each schedule where it fits, the minimum, and the lower bound for any schedule.

    Schedules that move the fewest words at some M have colours, marks and names, the others are thin and grey.

    Args:
        rows: the counts, for several M, in any order; those that do not fit are left out.
        ax: where to draw.
    """
    best = _best(rows)
    M, least = [row.M for row in best], [row.io for row in best]
    winners = list(dict.fromkeys(row.schedule for row in best))
    by_name = {each[0].schedule: each for each in _by_schedule(rows)}
    for name, each in by_name.items():
        if name not in winners:
            ax.plot([row.M for row in each], [row.io for row in each], color="0.72", linewidth=0.7, label=f"_{name}")
    for number, name in enumerate(winners):
        each = by_name[name]
        marks = max(1, len(each) // 8)
        look = line(number) | {"markersize": 4.5, "linewidth": 1.5, "markevery": (number % marks, marks)}
        ax.plot([row.M for row in each], [row.io for row in each], label=name, zorder=3, **look)
    ax.plot(M, least, color="0.8", linewidth=7, solid_capstyle="round", zorder=2, label="the least of all")
    bounds = [row.every_way for row in best]
    bound = [each.value for each in bounds]
    floor = min(bound) / 2
    ax.fill_between(floats(M), floats(bound), floor, color="0.93", linewidth=0, zorder=1)
    ax.plot(M, bound, color="black", linewidth=0.9, zorder=2, label=every_way(each.name for each in bounds if each.own))
    if len(by_name) > len(winners):
        ax.plot([], [], color="0.72", linewidth=0.7, label=f"{len(by_name) - len(winners)} others, nowhere the least")
    ax.set(xscale="log", yscale="log", xlabel="M, words of cache", ylabel="I/O, words", xlim=(M[0], M[-1]))
    ax.set_ylim(bottom=floor)
    return ax


def gap(rows: Sequence[Counted], ax: Axes) -> Axes:
    """Draw I/O ÷ the lower bound for any schedule, over M, for the best schedule; 1 is optimal."""
    best = _best(rows)
    M, gaps = [row.M for row in best], [row.gap for row in best]
    ax.plot(M, gaps, color="black", linewidth=1.4)
    ax.axhline(1, color="0.5", linewidth=0.8, linestyle=(0, (2, 2)))
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="M, words of cache",
        ylabel="least I/O ÷\nlower bound",
        xlim=(M[0], M[-1]),
    )
    top = max(gaps)
    ax.set_ylim(0.9, 1.15 * max(top, 2))
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks = [tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 10**4, 10**5) if tick <= 1.15 * top]
    ax.yaxis.set_major_locator(FixedLocator(ticks[:: 1 + len(ticks) // 7]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return ax


def figure(rows: Sequence[Counted], figure: Figure) -> None:
    """Draw both, one above the other, with the same M axis."""
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    skislope(rows, above)
    gap(rows, below)
    first = rows[0]
    sizes = listed(first.dims)
    titled(above, f"{first.problem}, {sizes}" + (f", mask {first.mask}" if first.mask else ""))
    above.set_xlabel("")
    d = first.dims.get("d")
    for ax in (above, below):
        ax.grid(alpha=0.25, linewidth=0.5)
        if d and ax.get_xlim()[0] < d * d < ax.get_xlim()[1]:
            ax.axvline(d * d, color="0.45", linewidth=0.8, linestyle=(0, (2, 4)))
    if d and above.get_xlim()[0] < d * d < above.get_xlim()[1]:
        above.annotate(
            "M = d²",
            (d * d, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -11),
            fontsize=9,
            textcoords="offset points",
        )
    figure.legend(loc="outside lower center", frameon=False, fontsize=8.5, handlelength=3.4, ncols=2)


def _by_schedule(rows: Sequence[Counted]) -> list[list[Counted]]:
    """Return the rows that fit, for each schedule by M; schedules are sorted by I/O at their largest M."""
    by_schedule: dict[str, list[Counted]] = {}
    for row in sorted(rows, key=lambda row: row.M):
        if row.feasible:
            by_schedule.setdefault(row.schedule, []).append(row)
    return sorted(by_schedule.values(), key=lambda each: -each[-1].io)


def _best(rows: Sequence[Counted]) -> list[Counted]:
    """Return the row with the least I/O for each M at which some schedule fits."""
    best: dict[int, Counted] = {}
    for row in rows:
        if row.feasible and (row.M not in best or row.io < best[row.M].io):
            best[row.M] = row
    return [best[M] for M in sorted(best)]
