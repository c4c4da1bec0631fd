"""Draw the lower bounds of a problem side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pebblesim.core.sizes import listed
from pebblesim.views.plots.style import BLUE, EVERY_WAY, HATCHES, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pebblesim.api.bounding import Bounds


def bounds(result: Bounds, ax: Axes) -> Axes:
    """Draw a bar for each lower bound that applies, the largest on top, with its way of computing.

    Lines are the largest that holds (for every way of computing, or for the schedule's), and Θ without its constant.

    Args:
        result: the bounds.
        ax: where to draw.
    """
    bars = sorted((each for each in result.lower if not each.why_not), key=lambda each: each.value)
    labels = [bound.label + (f"\n{bound.way}" if bound.way else "") for bound in bars]
    drawn = ax.barh(range(len(bars)), [float(bound.value) for bound in bars], color=BLUE, alpha=0.6)
    for bar, each in zip(drawn, bars, strict=True):
        bar.set_hatch(HATCHES[bool(each.way)])
    ax.set_yticks(range(len(bars)), labels, fontsize=9)
    name = EVERY_WAY if result.schedule is None else f"lower bound for {result.schedule}"
    ax.axvline(float(result.best.value), color="black", linewidth=1.2, label=name)
    if result.theta_value is not None:
        ax.axvline(
            float(result.theta_value), color=RED, linewidth=1.2, linestyle=(0, (6, 2)), label="Θ, without its constant"
        )
    sizes = listed(result.sizes)
    ax.set(xlabel="words of I/O", title=f"{result.problem}, {sizes}")
    ax.title.set_fontsize(11)
    ax.legend(loc="lower right")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
