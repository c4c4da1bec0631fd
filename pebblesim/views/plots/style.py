"""The common style of pictures: colours, line styles, marks, and saving.

The colours are those of Okabe & Ito, which people with any colour vision can distinguish. Lines, bars and pebbles also
differ in dashes, marks, hatches or shapes, so no information is lost in black and white.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = "black", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
COLOURS: Final = (BLUE, RED, GREEN, PURPLE, SKY, ORANGE, BLACK)
DASHES: Final[tuple[Any, ...]] = ("-", (0, (6, 2)), (0, (8, 2, 1.5, 2)), (0, (3, 1.5)), (0, (1, 1)))
MARKERS: Final = ("s", "^", "D", "v", "P", "X", "o", "<", ">", "h", "p")
HATCHES: Final = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "ooo", "||||", "++++")
WIDTH: Final = 5.6
"""Inches from side to side of every picture: on a phone, of 390 pixels, letters of 8 points have 8 pixels then."""
DPI: Final = 200
"""Dots per inch of a .png."""
EVERY_WAY: Final = "lower bound for any schedule"
"""One name for one bound in all pictures: that for every way of computing."""
FORMATS: Final[dict[str, dict[str, None]]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""The formats of pictures, with the metadata that would make two files of one picture differ."""


def every_way(own: Iterable[str]) -> str:
    """Return the label of the lower bound in a picture; it names users' own bounds that are the largest somewhere."""
    names = ", ".join(dict.fromkeys(own))
    return f"{EVERY_WAY}, with a user's {names}" if names else EVERY_WAY


def line(number: int) -> dict[str, Any]:
    """Return colour, dashes and mark of a line by number; the first 385 differ."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def titled(ax: Axes, text: str) -> None:
    """Write a title above axes, on as many lines as it takes."""
    ax.set_title("\n".join(fill(each, 61) for each in text.split("\n")), fontsize=11)


def floats(numbers: Iterable[float]) -> list[float]:
    """Return numbers that matplotlib can draw: areas and bars take no integers beyond 64 bits."""
    return [float(number) for number in numbers]


def check(path: Path) -> None:
    """Check the file name of a picture early, before long work.

    Raises:
        UsageError: its suffix is not a known format.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"cannot tell a format from {path.name!r}; end it with one of {', '.join(FORMATS)}.")


def save(draw: Callable[[Figure], Any], path: Path, height: float = 4.6) -> None:
    """Let `draw` fill a figure, and save it as .png, .svg or .pdf, as a whole file or not at all.

    Args:
        draw: function that is called with the empty figure.
        path: the file.
        height: inches from top to bottom; `WIDTH` from side to side.

    Raises:
        UsageError: the format is not known, or the file cannot be written.
    """
    check(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    form = path.suffix.lower()
    with matplotlib.rc_context({"svg.hashsalt": "pebblesim", "hatch.linewidth": 0.6}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        with whole_file(path) as unfinished:
            figure.savefig(unfinished, format=form[1:], dpi=DPI, metadata=FORMATS[form])
