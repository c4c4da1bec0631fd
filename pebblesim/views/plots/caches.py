"""Draw the words that automatic caches fetch over their size, and the words that the schedule reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pebblesim.core.sizes import listed
from pebblesim.views.plots.style import line, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pebblesim.cachesim.result import Cached

LOOKS = {"lru": ("-", "o"), "opt": ((0, (6, 2)), "s"), "fifo": ((0, (1, 1)), "^")}
"""Dashes and mark of each policy; colours are the streams'."""


def fetched(rows: Sequence[Cached], ax: Axes) -> Axes:
    """Draw words fetched over M on log axes, for each stream and policy, and the schedule's reads with a scratchpad."""
    streams: dict[str, list[Cached]] = {}
    for row in sorted(rows, key=lambda row: row.M):
        streams.setdefault(row.name, []).append(row)
    for number, (name, each) in enumerate(streams.items()):
        colour = line(number)["color"]
        M = [row.M for row in each]
        for policy in each[0].by_policy:
            dashes, mark = LOOKS[policy]
            ax.plot(
                M,
                [row.by_policy[policy].fetched for row in each],
                color=colour,
                linestyle=dashes,
                marker=mark,
                markersize=4,
                linewidth=1.4,
                label=f"{name}, {policy.upper()}",
            )
        if each[0].own is not None:
            reads = [row.own.reads for row in each if row.own is not None]
            ax.plot(M, reads, color=colour, linewidth=6, alpha=0.25, label=f"{name}, its own reads")
        else:
            ax.plot(M, [row.compulsory for row in each], color="black", linewidth=0.9, label="compulsory")
    ax.set(xscale="log", yscale="log", xlabel="M, words of cache", ylabel="words fetched")
    ax.grid(alpha=0.25, linewidth=0.5)
    return ax


def figure(rows: Sequence[Cached], figure: Figure) -> None:
    """The picture of `pebblesim cache -o`."""
    ax = fetched(rows, figure.subplots())
    first = rows[0]
    if first.counted is not None:
        sizes = listed(first.counted.dims)
        titled(ax, f"{sizes}: what automatic caches fetch")
    figure.legend(loc="outside lower center", frameon=False, fontsize=8.5, handlelength=3.4, ncols=2)
