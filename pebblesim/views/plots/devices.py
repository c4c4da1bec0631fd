"""Draw the words that the busiest device moves over the number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pebblesim.parallel.schedules import SCHEDULES
from pebblesim.views.plots.style import line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pebblesim.parallel.devices import Devices


def figure(results: Sequence[Devices], figure: Figure) -> None:
    """Draw a line for each schedule and the largest lower bound, on logarithmic axes.

    Args:
        results: the same attention on several numbers of devices, 2 or more.
        figure: the figure to draw on.
    """
    ax = figure.subplots()
    for number, name in enumerate(SCHEDULES):
        points = [(each.team.P, row.words) for each in results for row in each.rows if row.schedule.name == name]
        if points:
            ax.plot(*zip(*points, strict=True), **line(number), markersize=5, linewidth=1.4, label=name)
    bound = [(each.team.P, each.lower_bound.value) for each in results if each.lower_bound.value]
    if bound:
        ax.plot(*zip(*bound, strict=True), color="black", linewidth=2, alpha=0.5, label="lower bound")
    team = results[0].team
    what = "backward" if team.backward else "forward"
    ax.set_title(
        f"attention, {what}{', causal' if team.causal else ''}: {team.sizes}, "
        f"{team.heads:,} heads on {team.kv_heads:,} of keys and values",
        fontsize=11,
    )
    ax.set_xscale("log", base=2)
    ax.set_xticks([each.team.P for each in results], [f"{each.team.P:,}" for each in results])
    ax.set(yscale="log", xlabel="P, devices", ylabel="words that the busiest device moves")
    ax.grid(alpha=0.25, linewidth=0.5)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)
