"""`watch`: games as one HTML file that explains, replays and compares them and lets one play, without any network.

`content` and `lessons` make all that the page knows, as plain data. Of the scripts `referee.js` judges moves,
`player.js` tells the state at any move, `graph.js` places vertices, `board.js` draws them, `panels.js` is what stands
beside, and each mode has a file of its own; `page.js` starts.
"""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from pebblesim.errors import UsageError
from pebblesim.files import whole_file
from pebblesim.jobs.recording import Recording
from pebblesim.replay.content import of_game, words
from pebblesim.replay.lessons import boards, par, tour

MOST_MOVES: Final = 10**6
"""Longest game of a page: some 20 MB."""

SCRIPTS: Final = (
    "referee.js", "player.js", "graph.js", "board.js", "panels.js", "clock.js", "learn.js", "watch.js", "race.js",
    "play.js", "page.js",
)  # fmt: skip


def data(*games: Recording) -> dict[str, Any]:
    """All that the page knows: one game, or two that are compared.

    Raises:
        UsageError: there is no game, or more than two.
    """
    if not 1 <= len(games) <= 2:
        raise UsageError(f"{len(games)} games were given; a page shows one, or two side by side.")
    made = [of_game(game, par(game)) for game in games]
    return {"games": made, "tour": tour(), "boards": boards(), **words()}


def page(*games: Recording) -> str:
    """The HTML file: page, style, script and data in one."""
    here = files("pebblesim.replay")
    part = {name: (here / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", *SCRIPTS)}
    content = json.dumps(data(*games), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    script = '"use strict";\n' + "".join(part[name].replace('"use strict";\n', "", 1) for name in SCRIPTS)
    title = " and ".join(game.title for game in games)
    return Template(part["page.html"]).substitute(
        title=html.escape(title), style=part["page.css"], script=script, page=content
    )


def save(path: Path, *games: Recording) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    content = page(*games)
    with whole_file(path) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
