"""`explore`: one HTML file in which sizes and the cache are moved by hand, for any browser, without a network.

`content` creates the data: the closed forms of all schedules and lower bounds, as JavaScript. Among the scripts,
`exact.js` has the arithmetic, `blocks.js` chooses the blocks, `counts.js` counts words and bounds for a view,
`chart.js` draws curves, and `explore.js` starts the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pebblesim.views.document import document, in_javascript, part, save as write, scripts
from pebblesim.views.explore.content import data

PROBLEMS: Final = ("forward", "backward-qkv", "backward")
"""The problems of the page, unless others are asked for."""

SCRIPTS: Final = ("exact.js", "blocks.js", "counts.js", "chart.js", "explore.js")


def page(
    problems: Sequence[str] = PROBLEMS, cards: Mapping[str, Mapping[str, int]] | None = None, view: str = ""
) -> str:
    """Return the HTML file: page, style, scripts and data in one.

    Args:
        problems: names of the problems.
        cards: for each card the bytes of its caches, by the names under which they are marked.
        view: the view at first, as the page writes it into its address behind `#`.
    """
    content: dict[str, Any] = {**data(problems), "cards": cards or {}, "view": view}
    return document(
        "How many words does attention move?",
        style=part("sheet.css") + part("explore/chart.css") + part("explore/page.css"),
        body=part("explore/page.html"),
        script=f"{scripts('explore', *SCRIPTS)}const DATA = {in_javascript(content)};\nstart();\n",
    )


def save(
    path: Path,
    problems: Sequence[str] = PROBLEMS,
    cards: Mapping[str, Mapping[str, int]] | None = None,
    view: str = "",
) -> None:
    """Write the page to a file, whole or not at all; arguments as for `page`.

    Raises:
        UsageError: a problem has no queries and keys, or the file cannot be written.
    """
    write(path, page(problems, cards, view))
