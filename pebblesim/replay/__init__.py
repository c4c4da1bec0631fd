"""`watch`: a recorded game as one HTML file that replays it, without any network.

`data` is all that the page knows; `player.js` tells the state at any move from it, `view.js` draws.
"""

from __future__ import annotations

import base64
import html
import json
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

import numpy as np

from pebblesim.files import whole_file
from pebblesim.game.moves import KINDS
from pebblesim.graphs.layers import layers
from pebblesim.jobs.recording import Recording

MOST_MOVES: Final = 10**6
"""Longest game of a page: some 20 MB."""


def data(game: Recording) -> dict[str, Any]:
    """What the page is made from: plain data, long arrays as base64 of little-endian numbers."""
    graph = game.graph
    at = layers(graph, aspect=2)
    tensors, first = [], 0
    places = {name: (x, y) for name, x, y in at.names}
    for family in graph.families:
        rows, *columns = family.shape
        x, y = places.get(family.name, (None, None))
        role = "input" if family.op == "input" else "output" if family.name in graph.results else ""
        shape = {"rows": rows, "columns": columns[0] if columns else 1, "vector": not columns}
        tensors.append({"name": family.name, **shape, "cell": first, "x": x, "y": y, "role": role})
        first += family.elements
    cells = np.array([tensor["cell"] for tensor in tensors])[at.family] + at.element
    tails: dict[tuple[str, str], int] = {}
    tail = np.empty(graph.vertices, np.uint32)
    for v in range(graph.vertices):
        name = re.fullmatch(r"\w+\[(\d+;)?[\d,]+\](.*)", graph.describe(v))
        assert name is not None
        tail[v] = tails.setdefault((name[1] or "", name[2]), len(tails))
    arrays = {
        "moves": (game.moves, "<u4"),
        "starts": (game.starts, "<u4"),
        "lines": (game.lines, "<u4"),
        "turns": (game.turns.ravel(), "<u4"),
        "indptr": (graph.indptr, "<u4"),
        "preds": (graph.preds, "<u4"),
        "x": (at.x, "<f4"),
        "y": (at.y, "<f4"),
        "tensor": (at.family, "<u2"),
        "cell": (cells, "<u4"),
        "value": (at.value, "<u1"),
        "tail": (tail, "<u4"),
        "inputs": (graph.inputs, "<u4"),
        "outputs": (graph.outputs, "<u4"),
    }
    outcome = game.game
    return {
        "title": game.title,
        "verdict": str(outcome).rpartition("verdict")[2].strip(),
        "complete": outcome.complete,
        "violation": outcome.violation.message if outcome.violation else None,
        "M": game.setup.M,
        "kinds": KINDS,
        "after": game.after,
        "text": game.text,
        "phases": game.phases,
        "tensors": tensors,
        "tails": list(tails),
        "width": at.width,
        "height": at.height,
        "arrays": {
            name: base64.b64encode(np.asarray(a).astype(t).tobytes()).decode() for name, (a, t) in arrays.items()
        },
    }


def page(game: Recording) -> str:
    """The HTML file: page, style, script and data in one."""
    here = files("pebblesim.replay")
    part = {
        name: (here / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "player.js", "view.js")
    }
    content = json.dumps(data(game), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    script = part["player.js"] + part["view.js"].replace('"use strict";\n', "", 1)
    return Template(part["page.html"]).substitute(
        title=html.escape(game.title), style=part["page.css"], script=script, game=content
    )


def save(game: Recording, path: Path) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    content = page(game)
    with whole_file(path) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
