"""Draw the reads and writes of schedules, by tensor and by phase."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from pebblesim.core.sizes import listed
from pebblesim.views.plots.style import COLOURS, HATCHES, floats, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pebblesim.counting.count import Counted

SMALL = 0.02
"""Parts of less than this share of the longest bar are drawn as one, in white."""

WAYS = ("tensor", "phase")
"""The parts by which bars may be stacked."""

PITCH = 3.2
"""Distance from one schedule to the next; a bar takes 1."""


def words(rows: Sequence[Counted], ax: Axes, by: str = "tensor") -> Axes:
    """Draw two bars for each schedule, reads and writes, stacked by tensor or by phase.

    Args:
        rows: the counts, one for each schedule.
        ax: where to draw.
        by: "tensor" or "phase", the parts of the bars; a part has the same colour and hatch in all bars, and a phase
            those of the tensor that it is named after.
    """
    parts = [dict(row.by_tensor if by == "tensor" else row.phases) for row in rows]
    names = dict.fromkeys(name for kind in ("by_tensor", "phases") for row in rows for name in getattr(row, kind))
    looks = {name: _look(place) for place, name in enumerate(names)}
    longest = max(max(row.reads, row.writes) for row in rows)
    ticks = []
    for number, (row, each) in enumerate(zip(rows, parts, strict=True)):
        for which, what in enumerate(("reads", "writes")):
            y = -(PITCH * number + which)
            ticks.append((y, what))
            shown = {name: moved[which] for name, moved in each.items() if moved[which] >= SMALL * longest}
            left = 0
            for name, size in shown.items():
                _bar(ax, y, left, size, **looks[name])
                if size > (0.018 * len(name) + 0.012) * longest:
                    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
                    ax.text(left + size / 2, y, name, ha="center", va="center", fontsize=8.5, bbox=paper)
                left += size
            if rest := sum(moved[which] for moved in each.values()) - left:
                _bar(ax, y, left, rest, color="white", hatch="")
        ax.text(0, 0.55 - PITCH * number, row.schedule, ha="left", va="bottom", fontsize=9.5, weight="bold")
    ax.set_yticks([y for y, _ in ticks], [what for _, what in ticks], fontsize=8.5)
    ax.set(
        xlabel=f"words, by {by} (white: parts of less than 2 %)",
        xlim=(0, 1.02 * longest),
        ylim=(ticks[-1][0] - 0.7, 1.5),
    )
    ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _look(place: int) -> dict[str, str]:
    """Return colour and hatch of a part by number."""
    colours = COLOURS[:-1]  # all but black
    return {"color": colours[place % len(colours)], "hatch": HATCHES[place // len(colours) % len(HATCHES)]}


def _bar(ax: Axes, y: float, left: float, size: float, color: str, hatch: str) -> None:
    left, size = floats((left, size))  # they may be integers of any length
    ax.barh(y, size, left=left, height=0.9, color=color, alpha=0.55, hatch=hatch, edgecolor="white")
    ax.barh(y, size, left=left, height=0.9, fill=False, edgecolor="black", linewidth=0.7)


def figure(rows: Sequence[Counted], figure: Figure, ways: Sequence[str] = WAYS) -> None:
    """Draw the bars by tensor, by phase, or both, and what the tensors are at the bottom."""
    panels = figure.subplots(len(ways), sharex=True, squeeze=False)[:, 0]
    for by, ax in zip(ways, panels, strict=True):
        words(rows, ax, by)
    first = rows[0]
    sizes = listed({**first.dims, "M": first.M})
    titled(panels[0], f"{first.problem}, {sizes} words" + (f", mask {first.mask}" if first.mask else ""))
    figure.supxlabel(fill(legend(rows), 95), fontsize=8, x=0.02, ha="left")


def legend(rows: Sequence[Counted]) -> str:
    """The formulas of the tensors that are moved, such as "S = A1 X;  Z = S A2ᵀ"."""
    from pebblesim.api.glossary import glossary

    names = dict.fromkeys(name for row in rows for name in row.by_tensor)
    known = [f"{entry.name} = {entry.formula}" for entry in glossary(rows[0].problem, names) if entry.formula]
    return ";  ".join(each.replace(" ", "\N{NO-BREAK SPACE}") for each in known)
