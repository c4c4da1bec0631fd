"""Draw the words, or the time, of the busiest device over the number of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pebblesim.parallel.schedules import SCHEDULES
from pebblesim.views.plots.style import line, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pebblesim.parallel.count import Moved
    from pebblesim.parallel.devices import Devices


def figure(results: Sequence[Devices], figure: Figure) -> None:
    """Draw a line for each schedule: words and the largest lower bound, or with a network times; logarithmic axes.

    Args:
        results: the same attention on several numbers of devices, 2 or more.
        figure: the figure to draw on.
    """
    ax = figure.subplots()
    _schedules(ax, results, _words if results[0].network is None else _time)
    if results[0].network is None:
        bound = [(result.team.P, result.lower_bound.value) for result in results if result.lower_bound.value]
        if bound:
            ax.plot(*zip(*bound, strict=True), color="black", linewidth=2, alpha=0.5, label="lower bound")
        ax.set(yscale="log", ylabel="words that the busiest device moves")
    else:
        ax.axhline(1, color="black", linewidth=2, alpha=0.5, label="products")
        ax.set(yscale="log", ylabel="time ÷ that of products shared equally")
        ticks = [tick for tick in (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500) if tick <= ax.get_ylim()[1]]
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    team = results[0].team
    what = "backward" if team.backward else "forward"
    title = f"attention, {what}{', causal' if team.causal else ''}: {team.sizes}, {team.heads_in_words}"
    titled(ax, title if results[0].network is None else f"{title}\n{results[0].network}")
    ax.set_xscale("log", base=2)
    ax.set_xticks([result.team.P for result in results], [f"{result.team.P:,}" for result in results])
    ax.set(xlabel="P, devices")
    ax.grid(alpha=0.25, linewidth=0.5)
    figure.legend(loc="outside lower center", frameon=False, fontsize=9, ncols=3)


def _schedules(ax: Axes, results: Sequence[Devices], value: Callable[[Devices, Moved], float | None]) -> None:
    for number, name in enumerate(SCHEDULES):
        rows = [
            (result.team.P, value(result, row))
            for result in results
            for row in result.rows
            if row.schedule.name == name
        ]
        points = [(P, y) for P, y in rows if y is not None]
        if points:
            ax.plot(*zip(*points, strict=True), **line(number), markersize=5, linewidth=1.4, label=name)


def _words(result: Devices, row: Moved) -> float | None:
    return row.words


def _time(result: Devices, row: Moved) -> float | None:
    """The time of products and exposed transfers ÷ that of an equal share of the products."""
    times, team = result.times(row), result.team
    if times is None:
        return None
    return (times.products + times.exposed) / times.products * row.most_pairs * team.P / (team.heads * team.pairs)
