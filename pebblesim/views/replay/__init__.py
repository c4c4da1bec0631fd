"""`watch`: one HTML file that explains, replays and compares games, and lets the reader play, without a network.

`content` and `lessons` create all data of the page, as plain data. Among the scripts, `referee.js` judges moves,
`player.js` computes the state at any move, `graph.js` places vertices, `board.js` draws them, `panels.js` draws the
panels beside the board, and each mode has its own file; `page.js` starts the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pebblesim.core.errors import UsageError
from pebblesim.views.document import document, part, save as write, scripts
from pebblesim.views.recording import Recording
from pebblesim.views.replay.content import of_game, words
from pebblesim.views.replay.lessons import boards, par, tour

MOST_MOVES: Final = 10**6
"""Largest number of moves of a game on a page: about 20 MB."""

SCRIPTS: Final = (
    "referee.js", "player.js", "graph.js", "board.js", "panels.js", "clock.js", "learn.js", "watch.js", "race.js",
    "play.js", "page.js",
)  # fmt: skip


def data(*games: Recording) -> dict[str, Any]:
    """Return all data of the page: one game, or two that are compared.

    Raises:
        UsageError: no game was given, or more than two.
    """
    if not 1 <= len(games) <= 2:
        raise UsageError(f"{len(games)} games were given; a page shows one, or two side by side.")
    made = [of_game(game, par(game)) for game in games]
    return {"games": made, "tour": tour(), "boards": boards(), **words()}


def page(*games: Recording) -> str:
    """Return the HTML file: page, style, scripts and data in one."""
    content = json.dumps(data(*games), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return document(
        " and ".join(game.title for game in games),
        style=part("replay/page.css"),
        body=part("replay/page.html") + f'<script type="application/json" id="page">{content}</script>\n',
        script=scripts("replay", *SCRIPTS),
    )


def save(path: Path, *games: Recording) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write(path, page(*games))
