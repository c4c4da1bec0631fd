"""`explore --story`: one HTML file that explains FlashAttention by the game and its counts, without a network.

`content` creates the data. Of the scripts of `explore`, the story takes the arithmetic, the choice of blocks, the lower
bounds and the chart. Of its own, `notation.js` reads pseudo-code, `machine.js` runs it, `reference.js` judges what it
computed, `board.js` and `lab.js` show it, `softmax.js` and `editor.js` are a chapter each; `story.js` starts the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pebblesim.views.document import document, in_javascript, part, save as write, scripts
from pebblesim.views.story.content import data

ARITHMETIC: Final = ("exact.js", "blocks.js", "counts.js")
RUNNING: Final = ("notation.js", "machine.js", "reference.js")
SHOWING: Final = ("board.js", "lab.js", "softmax.js", "editor.js", "story.js")


def page() -> str:
    """Return the HTML file: page, style, scripts and data in one."""
    return document(
        "The story of FlashAttention, counted",
        style=part("explore/chart.css") + part("story/page.css"),
        body=part("story/page.html"),
        script=scripts("explore", *ARITHMETIC, "chart.js")
        + scripts("story", *RUNNING, *SHOWING)
        + f"const DATA = {in_javascript(data())};\nstart();\n",
    )


def save(path: Path) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write(path, page())
