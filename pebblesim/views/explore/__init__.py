"""`explore`: one HTML file in which sizes and the cache are moved by hand, for any browser, without a network.

`content` creates the data: the closed forms of all schedules and lower bounds, as JavaScript. Among the scripts,
`exact.js` has the arithmetic, `blocks.js` chooses the blocks, `counts.js` counts words and bounds for a view,
`chart.js` draws curves, and `explore.js` starts the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from pebblesim.core.files import whole_file
from pebblesim.views.explore.content import data, in_javascript

PROBLEMS: Final = ("forward", "backward-qkv", "backward")
"""The problems of the page, unless others are asked for."""

SCRIPTS: Final = ("exact.js", "blocks.js", "counts.js", "chart.js", "explore.js")


def sources(*names: str) -> str:
    """Return some of the scripts as one."""
    here = files("pebblesim.views.explore")
    texts = ((here / name).read_text(encoding="utf-8") for name in names)
    return '"use strict";\n' + "".join(text.replace('"use strict";\n', "", 1) for text in texts)


def page(
    problems: Sequence[str] = PROBLEMS, cards: Mapping[str, Mapping[str, int]] | None = None, view: str = ""
) -> str:
    """Return the HTML file: page, style, scripts and data in one.

    Args:
        problems: names of the problems.
        cards: for each card the bytes of its caches, by the names under which they are marked.
        view: the view at first, as the page writes it into its address behind `#`.
    """
    here = files("pebblesim.views.explore")
    content: dict[str, Any] = {**data(problems), "cards": cards or {}, "view": view}
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        style=(here / "page.css").read_text(encoding="utf-8"),
        data=f"const DATA = {in_javascript(content)};",
        script=sources(*SCRIPTS),
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
    content = page(problems, cards, view)
    with whole_file(path) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
