"""`explore --story`: one HTML file that explains FlashAttention by the game and its counts, without a network.

`content` creates the data. Of the scripts of `explore`, the story takes the arithmetic, the choice of blocks, the lower
bounds and the chart. Of its own, `notation.js` reads pseudo-code, `machine.js` runs it, `reference.js` judges what it
computed, `board.js` and `lab.js` show it, `softmax.js` and `editor.js` are a chapter each; `story.js` starts the page.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from pebblesim.core.files import whole_file
from pebblesim.views import explore
from pebblesim.views.explore.content import in_javascript
from pebblesim.views.story.content import data

ARITHMETIC: Final = ("exact.js", "blocks.js", "counts.js")
RUNNING: Final = ("notation.js", "machine.js", "reference.js")
SHOWING: Final = ("board.js", "lab.js", "softmax.js", "editor.js", "story.js")


def sources(*names: str) -> str:
    """Return some of the story's own scripts as one."""
    here = files("pebblesim.views.story")
    return "".join((here / name).read_text(encoding="utf-8").replace('"use strict";\n', "", 1) for name in names)


def page() -> str:
    """Return the HTML file: page, style, scripts and data in one."""
    here = files("pebblesim.views.story")
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        style=(here / "page.css").read_text(encoding="utf-8"),
        data=f"const DATA = {in_javascript(data())};",
        script=explore.sources(*ARITHMETIC, "chart.js") + sources(*RUNNING, *SHOWING),
    )


def save(path: Path) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    content = page()
    with whole_file(path) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
