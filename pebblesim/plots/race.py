"""Who is fastest over the head dimension, from the results of `pebblesim gpu race`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pebblesim.errors import UsageError
from pebblesim.plots.style import line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def race(rows: Sequence[Mapping[str, Any]], figure: Figure, n: int) -> Figure:
    """Useful operations per second over d for each contender, forward and backward, without a mask.

    Args:
        rows: results of `pebblesim gpu race`.
        figure: where to draw.
        n: the sequence length whose rows are drawn.

    Raises:
        UsageError: there is no such row.
    """
    fine = [row for row in rows if row.get("n") == n and row.get("mask") is None and "tflops" in row]
    if not fine:
        raise UsageError(f"these results hold no race without a mask at n = {n:,}; `pebblesim gpu race` runs some.")
    names = list(dict.fromkeys(row["contender"] for row in fine))
    styles = {
        name: line(number) for number, name in enumerate(sorted(names, key=lambda name: name.startswith("torch")))
    }
    ways = [way for way in ("forward", "backward") if any(row["way"] == way for row in fine)]
    for ax, way in zip(figure.subplots(1, len(ways), sharey=True, squeeze=False)[0], ways, strict=True):
        _way(ax, [row for row in fine if row["way"] == way], styles)
        ax.set_title(f"{way}, n = {n:,}", fontsize=11)
    figure.axes[0].set_ylabel("useful TFLOP/s")
    return figure


def _way(ax: Axes, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, Mapping[str, Any]]) -> None:
    for name, style in styles.items():
        points = sorted((row["d"], row["tflops"]) for row in rows if row["contender"] == name)
        if points:
            ax.plot(*zip(*points, strict=True), **style, markersize=5, linewidth=1.3, label=name)
    widths = sorted({row["d"] for row in rows})
    ax.set(xscale="log", xlabel="d, head dimension", ylim=(0, None))
    ax.set_xticks(widths, [str(d) for d in widths], rotation=60)
    ax.minorticks_off()
    ax.legend(fontsize=8, frameon=False)
