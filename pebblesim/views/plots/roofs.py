"""Draw the roofline of a machine of several memories: a roof for each boundary, and one schedule under each."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import bytes_of
from pebblesim.views.plots.style import line

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Roof(NamedTuple):
    """A boundary: its name, bytes per second or None, words that a schedule moves over it, and the least of these."""

    name: str
    bandwidth: float | None
    words: int
    least: int


def roofs(edges: Sequence[Roof], ax: Axes, *, useful: int, peak: float, dtype: str) -> Axes:
    """Draw the useful operations per second that each boundary allows, over useful operations per byte moved.

    The filled mark is the schedule at a boundary, the empty one where it would be if it moved the least. The lowest
    filled mark says what limits the schedule. A boundary without a bandwidth has no roof, and is named in the legend.

    Args:
        edges: the boundaries.
        ax: where to draw.
        useful: operations that the problem needs.
        peak: operations per second.
        dtype: type of a word, such as "bfloat16".

    Raises:
        UsageError: no bandwidth is known.
    """
    from matplotlib.ticker import EngFormatter, NullFormatter

    known = [edge for edge in edges if edge.bandwidth is not None]
    if not known:
        raise UsageError(f"no bandwidth is known of {', '.join(edge.name for edge in edges)}; a roofline needs one.")
    width = bytes_of(dtype)

    def intensity(words: int) -> float:
        return float(Fraction(useful, words * width))

    ridges = [peak / edge.bandwidth for edge in known if edge.bandwidth]
    at = [intensity(words) for edge in known for words in (edge.words, edge.least)]
    left, right = min(*ridges, *at) / 4, 4 * max(*ridges, *at)
    unit, lowest = EngFormatter(sep="\N{THIN SPACE}"), peak
    for number, edge in enumerate(known):
        look, rate = line(number), float(edge.bandwidth or 0)
        ends = [left, peak / rate, right]
        ax.plot(ends, [rate * left, peak, peak], color=look["color"], linestyle=look["linestyle"], linewidth=1.6)
        mark: dict[str, Any] = {"marker": look["marker"], "markersize": 8, "linestyle": "", "color": look["color"]}
        mine, best = intensity(edge.words), intensity(edge.least)
        ax.plot([best], [min(peak, rate * best)], **mark, markerfacecolor="white")
        label = f"{edge.name}: {unit(rate)}B/s, {mine:.3g} per byte"
        ax.plot([mine], [min(peak, rate * mine)], **mark, markeredgecolor="black", label=label)
        lowest = min(lowest, rate * left)
    for edge in edges:
        if edge.bandwidth is None:
            ax.plot([], [], linestyle="", label=f"{edge.name}: bandwidth not known")
    ax.plot([], [], "o", color="0.3", markerfacecolor="white", label="at the lower bound")
    words: dict[str, Any] = {"fontsize": 9, "textcoords": "offset points"}
    ax.annotate(f"arithmetic: {unit(peak)}FLOP/s", (right, peak), xytext=(-4, 4), ha="right", **words)
    ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(lowest, 3 * peak))
    ax.yaxis.set_major_formatter(unit)
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel=f"useful operations per byte moved ({dtype})", ylabel="useful operations per second")
    ax.legend(fontsize=8.5, frameon=False, loc="lower right")
    return ax
