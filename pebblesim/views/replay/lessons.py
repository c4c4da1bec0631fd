"""The lessons of the page: the tour of a tiny product, boards to play on, and the par of a board."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pebblesim.api.graph import graph, optimum
from pebblesim.core.errors import Infeasible
from pebblesim.counting.count import count_run
from pebblesim.dags.search import pebble
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, unpack
from pebblesim.language.problems import problem
from pebblesim.views.recording import Recording, record_moves
from pebblesim.views.replay.content import of_game

EXACT: Final = 64
"""Largest number of vertices of a graph for which the least I/O is searched."""

SEARCHED: Final = 20_000
"""Largest number of vertices of a graph for which a better game is searched."""

LEAST, BETTER = 2.0, 0.5
"""Time limit of each search, in seconds: for the least I/O, and for a better game."""

BOARDS: Final = (
    ("a tiny product", {"m": 1, "k": 2, "n": 1}, 4),
    ("a tiny product, short of cache", {"m": 1, "k": 2, "n": 1}, 3),
    ("a 2 × 2 product", {"m": 2, "k": 2, "n": 2}, 5),
)
"""Products to play on: a name, sizes, and M."""

FIRST: Final = {
    READ: "In the game, a red pebble is put on a vertex that has a blue one. Words that are moved are what we count.",
    COMPUTE: "In the game, a red pebble is put on a vertex if all vertices that its arrows come from are red. Nothing "
    "is moved, so it costs nothing. But the new value takes room in cache, too.",
    WRITE: "In the game, a blue pebble is put on a vertex that has a red one. This, too, moves a word.",
    DELETE: "In the game, the red pebble is taken away. A value without a blue pebble is lost then, and must be "
    "computed again if it is needed once more.",
}
"""The text for each kind of move, shown at its first occurrence."""


def par(game: Recording) -> dict[str, Any] | None:
    """Return bounds on the least I/O on the graph of a game: {"bound", "source", "best"}, the best game's I/O or None.

    On a small graph the least I/O is searched, on others a better game; both for a short time.
    """
    on, M, rules = game.graph, game.game.M, game.game.rules
    best = [game.game.io] if game.game.complete else []
    bounds = []
    if game.run:
        counted = count_run(game.run).lower_bound
        bounds.append((counted.value, counted.source))
    try:
        if on.vertices <= EXACT and on.weights is None and rules != "replace":
            least = optimum(on, M=M, rules=rules, seconds=LEAST)
            bounds.append((least.bound, "the proven least" if least.proven else least.proof))
            best.append(least.io)
        elif on.vertices <= SEARCHED:
            pebbling = pebble(on, M=M, rules=rules, seconds=BETTER)
            bounds.append((pebbling.bound.value, pebbling.bound.source))
            best.append(pebbling.io)
    except Infeasible:
        return None  # no game can be won with so few pebbles
    if not bounds:
        return None
    bound, source = max(bounds)
    return {"bound": bound, "source": source, "best": min(best, default=None)}


@cache
def boards() -> tuple[dict[str, Any], ...]:
    """Return small products to play on."""
    games = [_best(*board) for board in BOARDS]
    known = [{"bound": game.game.io, "source": "the proven least", "best": game.game.io} for game in games]
    return tuple(of_game(game, least, problem("matmul")) for game, least in zip(games, known, strict=True))


def _best(name: str, sizes: Mapping[str, int], M: int) -> Recording:
    """Return a game with the least I/O on a product."""
    on = graph("matmul", **dict[str, Any](sizes))
    result = optimum(on, M=M)
    assert result.proven
    return record_moves(name, on, result.moves, M=M)


INTRODUCTION: Final = (
    (
        "A computation is a graph",
        "Each circle is a value. An arrow says: this value is needed for that one. Here is the product of a row A with "
        "a column B: two products, and their sum C.",
    ),
    (
        "Two places for values",
        "Memory is large and far away; the cache is near, but holds only M = {M} values. A blue square says: the value "
        "is in memory. At the start, that is where the inputs are.",
    ),
    (
        "What it is about",
        "Only what is in cache can be computed with. Each word that moves between memory and cache costs 1. The "
        "question is: with how few words can it be done?",
    ),
)
"""The cards before the first move: headings and texts."""

END: Final = (
    "Done, with {io} words",
    "The output is in memory: the game is won. {io} is the least, since {inputs} inputs must be read and {outputs} "
    "output must be written. With less cache, values must be moved more than once; that is where it becomes a game. "
    "Try it yourself!",
)
"""The card after the last move."""


@cache
def tour() -> dict[str, Any]:
    """Return a game on the smallest of these boards, explained move by move: `cards` of (move, heading, text)."""
    game = _best(*BOARDS[0])
    cards = [(0, heading, text.format(M=game.game.M)) for heading, text in INTRODUCTION]
    explained = set()
    for number, kind in enumerate(unpack(game.moves)[0].tolist(), 1):
        cards.append((number, "", "" if kind in explained else FIRST[kind]))
        explained.add(kind)
    known = {"io": game.game.io, "inputs": len(game.graph.inputs), "outputs": len(game.graph.outputs)}
    heading, text = (each.format(**known) for each in END)
    cards.append((len(game.moves), heading, text))
    return {**of_game(game, None, problem("matmul")), "cards": cards}
