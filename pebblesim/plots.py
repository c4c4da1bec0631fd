"""Pictures: each function takes data and the axes to draw on, and returns the axes.

Colours are those of Okabe & Ito, which people with any colour vision can tell apart; every line has dashes and marks of
its own besides, so that nothing is lost in black and white.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pebblesim.errors import UsageError
from pebblesim.files import whole_file

if TYPE_CHECKING:
    from pebblesim.crossings import Sweep

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (8, 2, 1.5, 2)), (0, (3, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("s", "^", "D", "v", "P", "X")
FORMATS: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""What a picture is saved as, and what would make two of the same picture differ."""


def io_over_M(data: Sweep, ax: Any) -> Any:
    """I/O over M on log axes: schedules, the Θ bound, the lower bound, M = d², and where the schedules cross."""
    n, d = data.dims["n"], data.dims["d"]
    shown = [words for each in data.io.values() for words in each if words is not None]
    floor = min(data.lower) / 2
    for number, (name, each) in enumerate(data.io.items()):
        M, values = zip(*((m, words) for m, words in zip(data.M, each, strict=True) if words is not None), strict=True)
        ax.plot(
            M,
            values,
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)],
            markevery=(3 * number, max(len(data.M) // 8, 1)),
            markersize=5,
            linewidth=1.6,
            label=name,
        )
    ax.plot(data.M, data.theta, color="0.35", linewidth=1.2, linestyle=":", label="inside Θ, constant 1")
    ax.fill_between(data.M, floor, data.lower, color="0.9", linewidth=0)
    ax.plot(data.M, data.lower, color="black", linewidth=1, label="lower bound for all")
    ax.axvline(d * d, color="0.5", linewidth=0.8, linestyle=(0, (2, 4)))
    ax.annotate("M = d²", (d * d, 0.98), xycoords=("data", "axes fraction"), xytext=(4, 0), **_WORDS, va="top")
    for number, crossing in enumerate(data.crossings):
        if crossing.M is None:
            continue
        words = _at(data, crossing.schedules[1], crossing.M)
        ax.plot([crossing.M], [words], "o", markersize=8, markerfacecolor="white", markeredgecolor="black", zorder=5)
        text = f"M = {crossing.M:,}\n= {float(crossing.M_over_d2 or 0):.2f} d²"
        side = {"xytext": (16, 16), "ha": "left"} if number % 2 == 0 else {"xytext": (-16, -34), "ha": "right"}
        line = {"arrowstyle": "-", "color": "0.4", "linewidth": 0.8}
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        ax.annotate(text, (crossing.M, words), **_WORDS, **side, arrowprops=line, bbox=paper)
    ax.set(xscale="log", yscale="log", xlabel="M, words of cache", ylabel="I/O, words")
    ax.set(xlim=(data.M[0], data.M[-1]), ylim=(floor, 1.6 * max(shown)))
    ax.set_title(f"n = {n:,}, d = {d:,}", fontsize=11)
    ax.legend(fontsize=9, frameon=False, loc="lower left", handlelength=4)
    return ax


_WORDS: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "color": "0.2"}


def _at(data: Sweep, name: str, M: int) -> int:
    """The I/O of a schedule at the M of the sweep that is nearest to one, among those where it is feasible."""
    known = ((abs(m - M), words) for m, words in zip(data.M, data.io[name], strict=True) if words is not None)
    return min(known)[1]


def check(path: Path) -> None:
    """Complain at once, before long work, about a file that no picture can go to.

    Raises:
        UsageError: its suffix names no format.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"cannot tell a format from {path.name!r}; end it with one of {', '.join(FORMATS)}.")


def save(draw: Any, data: Any, path: Path) -> None:
    """Draw data and keep the picture: .png, .svg or .pdf; the file is written whole or not at all.

    Raises:
        UsageError: another format, or the file cannot be written.
    """
    check(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    draw(data, figure.subplots())
    form = path.suffix.lower()
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, format=form[1:], dpi=160, metadata=FORMATS[form])
