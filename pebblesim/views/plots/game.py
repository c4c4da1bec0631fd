"""Draw the cache over a game: the number of red pebbles at each move, and the tensor entries that they are on."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.moves import unpack
from pebblesim.graphs.layers import located
from pebblesim.views.plots.style import BLUE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pebblesim.views.recording import Recording

BINS = 2400
"""Columns of a picture: a longer game shows the least and the most of every few moves."""

LANE = 48
"""Rows of pixels for a tensor, whatever its size."""


def occupancy(game: Recording, ax: Axes) -> Axes:
    """Draw the number of red pebbles over the moves of a game, with the peak, M as a line, and phases as bands.

    Args:
        game: a recorded game, see `pebblesim.views.recording.record`.
        ax: where to draw.
    """
    red, M = np.append(0, game.red), game.game.M
    starts = _bins(len(red))
    at = np.append(starts, len(red))
    low, high = np.minimum.reduceat(red, starts), np.maximum.reduceat(red, starts)
    ax.stairs(high, at, fill=True, color=BLUE, alpha=0.75 if len(starts) < len(red) else 0.45, linewidth=0)
    if len(starts) < len(red):
        ax.stairs(low, at, fill=True, color="white", alpha=0.55, linewidth=0)
    else:
        ax.stairs(red, at, color=BLUE, linewidth=0.8)
    peak = int(np.argmax(red))
    ax.plot([peak + 0.5], [red[peak]], "v", color=RED, markeredgecolor="black", markersize=8, clip_on=False, zorder=5)
    right = peak > 0.6 * len(red)
    ax.annotate(
        f"peak: {red[peak]:,} at move {peak:,}",
        (peak + 0.5, red[peak]),
        xytext=(-9 if right else 9, 5),
        textcoords="offset points",
        ha="right" if right else "left",
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
        zorder=6,
    )
    ax.axhline(M, color="black", linewidth=1, linestyle=(0, (6, 3)))
    ax.annotate(
        f"M = {M:,}",
        (1, M),
        xycoords=("axes fraction", "data"),
        xytext=(-3, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    ax.set(xlabel="move", ylabel="red pebbles (words in cache)", xlim=(0, len(red)), ylim=(0, 1.16 * max(M, red[peak])))
    _phases(game, ax)
    return ax


def tiles(game: Recording, ax: Axes) -> Axes:
    """Draw the entries of each tensor in the cache over the moves: one lane for each tensor, entries in row-major
    order.

    Dark: the final value is in the cache. Light: parts of its sum are. Every red pebble of the game is in the picture.

    Args:
        game: a recorded game, see `pebblesim.views.recording.record`.
        ax: where to draw.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    families = game.graph.families
    of, element, _, value = located(game.graph)
    vertex, first, stop = game.intervals
    starts = _bins(len(game.moves) + 1)
    column = np.searchsorted(starts, np.stack([first, stop - 1]), side="right") - 1
    shown = sorted(set(of[vertex].tolist()), key=lambda number: int(first[of[vertex] == number].min()))
    picture = np.zeros((len(shown) * LANE, len(starts)), np.uint8)
    for lane, number in enumerate(shown):
        rows = min(families[number].elements, LANE)
        strip = np.zeros((rows, len(starts)), np.uint8)
        for level, finished in ((1, False), (2, True)):
            mine = (of[vertex] == number) & (value[vertex] == finished)
            row = element[vertex[mine]] * rows // families[number].elements
            change = np.zeros((rows, len(starts) + 1), np.int32)
            np.add.at(change, (row, column[0, mine]), 1)
            np.add.at(change, (row, column[1, mine] + 1), -1)
            strip[np.cumsum(change[:, :-1], axis=1) > 0] = level
        picture[lane * LANE : (lane + 1) * LANE] = strip[np.arange(LANE) * rows // LANE]
    shades = ListedColormap(["white", "#F3B98F", "#8C3A00"])
    box = (0, len(game.moves) + 1, len(shown), 0)
    ax.imshow(picture, cmap=shades, vmin=0, vmax=2, extent=box, aspect="auto", interpolation="nearest", zorder=0)
    names = [f"{families[n].name} ({'×'.join(map(str, families[n].shape))})" for n in shown]
    ax.set_yticks(np.arange(len(shown)) + 0.5, names, fontsize=9)
    ax.tick_params(axis="y", length=0)
    for edge in range(1, len(shown)):
        ax.axhline(edge, color="0.75", linewidth=0.6)
    ax.set(xlabel="move", xlim=(0, len(game.moves) + 1), ylim=(len(shown), -0.2 - 0.06 * len(shown)))
    _phases(game, ax)
    signs = [Patch(facecolor=shades(2), label="value in cache"), Patch(facecolor=shades(1), label="parts of its sum")]
    for sign in signs:
        sign.set_edgecolor("black")
    below = ax.transAxes + ScaledTranslation(0, -30 / 72, ax.figure.dpi_scale_trans)  # the label of the axis
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
    ax.legend(handles=signs, **place, ncols=2, frameon=False, fontsize=9)
    return ax


def move(game: Recording, number: int) -> str:
    """Describe a move in words, with its line of pseudo-code."""
    if number == 0:
        return "before the first move"
    from pebblesim.game.moves import KINDS

    kind, vertex = unpack(int(game.moves[number - 1]))
    line = game.text[game.line_at(number)].strip()
    return f"move {number:,} of {len(game.moves):,}: {KINDS[kind]} {game.graph.describe(vertex)}   ({line})"


def _bins(columns: int) -> NDArray[np.int64]:
    """Return the starts of the bins of a picture with this many columns."""
    return np.arange(min(columns, BINS)) * columns // min(columns, BINS)


def _phases(game: Recording, ax: Axes) -> None:
    """Mark the starts of phases, with their names at the top."""
    from matplotlib.ticker import StrMethodFormatter

    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    end = len(game.moves)
    marks = [*game.phases, ("", end)]  # the game of a graph has no phases
    for (name, start), (_, stop) in pairwise(marks):
        if start == stop:
            continue
        if start:
            ax.axvline(start + 0.5, color="black", linewidth=0.9, zorder=4)
        if stop - start > 0.012 * len(name) * end:
            ax.annotate(
                f"phase {name}" if stop - start > 0.08 * end else name,
                ((start + stop) / 2, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, -12),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                zorder=6,
            )
