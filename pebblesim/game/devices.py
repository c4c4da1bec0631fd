"""The red-blue pebble game of several devices, and its referee.

Each device has a red of its own: a pebble of its colour stands on a value that it holds. Values are exchanged under the
rules of `rows_of`; whoever receives a value pays its words, but for sums, which are paid by the device that sends its
part. Vertices take their terms one by one, as under the rules `partial`: a sum whose terms are not all in is not
complete, and each term is added once. The rules are rows of the same table as those of two levels. The game is that of
Böhnlein, Papp & Yzelman (arXiv 2409.03898), in which blue is on some other device. The referee knows a graph, who owns
what, the moves, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError
from pebblesim.game.board import BITS, Board, Row
from pebblesim.game.rules import BLUE, COMPLETE, COMPUTED, INPUT, SUM, Graph, Rule

RECEIVE, SEND, COLLECT, BEGIN, ADD, DELETE = range(6)
KINDS: Final = ("receive", "send", "collect", "begin", "add", "delete")

MOST_DEVICES: Final = len(BITS)


def rows_of(P: int) -> list[Row]:
    """The moves of P devices, those of a device in the order of `KINDS`."""
    reds = [1 << bit for bit in BITS[:P]]
    rows = []
    for p, red in enumerate(reds):
        others = sum(reds) - red
        rules = (
            # A device gets a value that another one has: it pays.
            Rule(needs=COMPLETE, forbids=SUM | red, sets=red),
            # A device puts its part of a sum onto the network: it pays. Another device takes it from there.
            Rule(needs=SUM | COMPLETE | red, forbids=BLUE, sets=BLUE),
            Rule(needs=SUM | COMPLETE | BLUE, forbids=red, sets=red, clears=BLUE),
            # A sum without terms; a term, which the device must hold, along an edge of the graph.
            Rule(needs=SUM, forbids=red | INPUT | others | COMPLETE | COMPUTED, sets=red | COMPUTED),
            Rule(forbids=INPUT | others, predecessors=red | COMPLETE, sets=red | COMPUTED),
            Rule(needs=red, clears=red),
        )
        names = {red: "red", BLUE: "blue", COMPLETE: "complete", SUM: "a sum", INPUT: "an input"}
        names[others] = "held by another device"
        for kind, (name, rule) in enumerate(zip(KINDS, rules, strict=True)):
            some = others if kind == RECEIVE else 0
            full = "it has terms already, and no red pebble"
            rows.append(Row(f"device {p}: {name}", rule, BITS[p], some, kind == ADD, names, full))
    return rows


@dataclass(frozen=True)
class DevicesGame:
    """A game of several devices.

    Attributes:
        moves: number of moves.
        received, sent: words that each device received, sums aside, and words of sums that it sent.
        peak_red: the most pebbles that each device had at a time.
        missing: outputs that their owners do not hold at the end, by name.
    """

    moves: int
    received: list[int]
    sent: list[int]
    peak_red: list[int]
    missing: list[str]

    @property
    def moved(self) -> list[int]:
        """The words that each device moved."""
        return [a + b for a, b in zip(self.received, self.sent, strict=True)]


def play(graph: Graph, sums: Sequence[int], owners: Sequence[int], P: int, moves: NDArray[Any]) -> DevicesGame:
    """Judge a game of P devices.

    Args:
        graph: the graph; a vertex with several predecessors takes them one by one.
        sums: vertices that are sums of pairs' products.
        owners: for each vertex, the device that has it at the start, if it is an input, and must have it at the end, if
            it is an output; anything for others.
        P: devices.
        moves: rows of device, kind of move, and vertex; for ADD the number of the edge in place of the vertex.

    Returns:
        The game, which may lack outputs at its end.

    Raises:
        IllegalMove: at the first illegal move.
        UsageError: there are too many devices for this game.
    """
    if P > MOST_DEVICES:
        raise UsageError(f"P = {P:,} was given; the game of devices has up to {MOST_DEVICES} colours of red.")
    rows, inputs = rows_of(P), np.asarray(graph.inputs, int)
    reds = np.array([1 << bit for bit in BITS[:P]], np.uint64)
    owned = reds[np.asarray(owners, int)]
    board = Board(graph, rows, owned[inputs] | np.uint64(INPUT | COMPLETE), {})
    board.state[np.asarray(sums, int)] |= np.uint64(SUM)
    device, kind, number = np.asarray(moves, np.int64).reshape(-1, 3).T
    known = (device >= 0) & (device < P) & (kind >= 0) & (kind < len(KINDS)) & (number >= 0)
    known &= number < np.where(kind == ADD, graph.edges, graph.vertices)
    board.judge(np.where(known, (number << board.shift) + device * len(KINDS) + kind, -1))
    outputs = np.asarray(graph.outputs, int)
    wanted = owned[outputs] | np.uint64(COMPLETE)
    missing = outputs[board.state[outputs] & wanted != wanted].tolist()
    words = board.moved[: len(rows)].reshape(P, len(KINDS))
    return DevicesGame(
        kind.size,
        words[:, RECEIVE].tolist(),
        words[:, SEND].tolist(),
        board.peak[list(BITS[:P])].tolist(),
        [graph.describe(v) for v in missing],
    )
