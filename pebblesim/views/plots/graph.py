"""Draw a small graph in layers, with its summation trees and the pebbles of a game after a move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.graphs.layers import Layers, layers
from pebblesim.views.plots.style import BLUE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pebblesim.graphs.cdag import Cdag

Mask = NDArray[np.bool_]


def graph(
    cdag: Cdag,
    ax: Axes,
    *,
    red: Mask | None = None,
    blue: Mask | None = None,
    vertex: int | None = None,
    placed: Layers | None = None,
) -> Axes:
    """Draw a graph: inputs on the left, outputs on the right; for each sum the terms, then the partial sums.

    Red pebbles are filled discs, blue ones open squares around them; a vertex without either is a small ring.

    Args:
        cdag: the graph.
        ax: where to draw.
        red, blue: the vertices that hold a pebble; blue is by default the inputs.
        vertex: a vertex to highlight, such as that of a move, with the edges into it.
        placed: positions of the vertices; by default `layers(cdag)`.
    """
    from matplotlib.collections import LineCollection

    at = layers(cdag) if placed is None else placed
    points = np.stack([at.x, at.y], axis=1)
    target = np.repeat(np.arange(cdag.vertices), np.diff(cdag.indptr))
    edges = np.stack([points[cdag.preds], points[target]], axis=1)
    red = np.zeros(cdag.vertices, bool) if red is None else red
    if blue is None:
        blue = np.zeros(cdag.vertices, bool)
        blue[cdag.inputs] = True
    unit = _points_per_unit(ax, at)
    faint = min(1.0, max(0.15, (600 / max(cdag.edges, 1)) ** 0.5))  # many lines: draw them thin
    inside = at.family[cdag.preds] == at.family[target]
    ax.add_collection(LineCollection(list(edges[~inside]), colors="0.7", linewidths=0.05 * unit, alpha=faint, zorder=1))
    ax.add_collection(LineCollection(list(edges[inside]), colors="0.25", linewidths=0.08 * unit, zorder=2))
    if vertex is not None:
        ax.add_collection(
            LineCollection(list(edges[target == vertex]), colors="black", linewidths=0.14 * unit, zorder=3)
        )
    small, disc, square = (0.32 * unit) ** 2, (0.46 * unit) ** 2, (0.74 * unit) ** 2

    def stand(which: Any, size: float, **look: Any) -> None:
        ax.scatter(points[which, 0], points[which, 1], size, **look)

    ring: dict[str, Any] = {"facecolors": "white", "edgecolors": "0.25", "linewidths": 0.05 * unit}
    stand(~red & ~blue, small, **ring, zorder=4)
    stand(blue, square, marker="s", facecolors="white", edgecolors=BLUE, linewidths=0.11 * unit, zorder=5)
    stand(blue & ~red, small, **ring, zorder=6)
    stand(red, disc, facecolors=RED, edgecolors="black", linewidths=0.04 * unit, zorder=7)
    for name, x, y in at.names:
        ax.text(x - 0.3, y + 0.45, name, fontsize=min(11, 0.8 * unit), va="center", ha="left", zorder=8, style="italic")
    _legend(ax, 0.74 * unit, 0.46 * unit, 0.32 * unit, bool(blue.any()), bool(red.any()))
    ax.set(xlim=(-1, at.width + 1), ylim=(at.height + 1, -0.8), aspect="equal")
    ax.axis("off")
    return ax


def _legend(ax: Axes, square: float, disc: float, small: float, blue: bool, red: bool) -> None:
    from matplotlib.lines import Line2D

    least = 6 / square  # in a large graph the signs would be too small to read
    signs: list[tuple[str, dict[str, Any]]] = [
        ("no pebble", {"marker": "o", "markersize": small, "mfc": "white", "mec": "0.25"})
    ]
    if red:
        signs.append(("red: in cache", {"marker": "o", "markersize": disc, "mfc": RED, "mec": "black"}))
    if blue:
        signs.append(
            ("blue: in memory", {"marker": "s", "markersize": square, "mfc": "white", "mec": BLUE, "mew": 1.5})
        )
    for _, sign in signs:
        sign["markersize"] *= max(1, least)
    handles = [Line2D([], [], linestyle="", label=label, **sign) for label, sign in signs]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, frameon=False, fontsize=9)


def _points_per_unit(ax: Axes, at: Layers) -> float:
    """The length of the drawing's unit on paper, in points."""
    box, figure = ax.get_position(), ax.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    return 72 * float(min(width * box.width / (at.width + 2), height * box.height / (at.height + 2)))
