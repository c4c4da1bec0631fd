"""The red-blue pebble game of several devices, and its referee.

Each device has a red of its own: a pebble of its colour stands on a value that it holds. Values are exchanged under the
rules of `RULES`; whoever receives a value pays its words, but for sums, which are paid by the device that sends its
part. Vertices take their terms one by one, as under the rules `partial` of `pebblesim.game.referee`: a sum whose terms
are not all in is not complete, and each term is added once. The game is that of Böhnlein, Papp & Yzelman (arXiv
2409.03898), in which blue is on some other device. The referee knows a graph, who owns what, the moves, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.game.rules import BLUE, COMPLETE, INPUT, RED, Graph, Rule

SUM: Final = 64
OTHER: Final = 128
"""Some other device has a red pebble on the vertex."""

RECEIVE, SEND, COLLECT, BEGIN, ADD, DELETE = range(6)
KINDS: Final = ("receive", "send", "collect", "begin", "add", "delete")

RULES: Final = {
    # A device gets a value that another one has: it pays.
    RECEIVE: Rule(needs=OTHER | COMPLETE, forbids=SUM | RED, sets=RED),
    # A device puts its part of a sum onto the network: it pays. Another device takes it from there.
    SEND: Rule(needs=SUM | COMPLETE | RED, forbids=BLUE, sets=BLUE),
    COLLECT: Rule(needs=SUM | COMPLETE | BLUE, forbids=RED, sets=RED, clears=BLUE),
    # A sum without terms; a term, which the device must hold, along an edge of the graph.
    BEGIN: Rule(needs=SUM, forbids=RED | INPUT | OTHER | COMPLETE, sets=RED),
    ADD: Rule(forbids=INPUT | OTHER, predecessors=RED | COMPLETE, sets=RED),
    DELETE: Rule(needs=RED, clears=RED),
}
"""Each kind of move: what it needs of its vertex and of the operand, what it changes; RED is the moving device's."""

MOST_DEVICES: Final = 63


class IllegalMove(PebblesimError):
    """A move of a device is illegal; the message has its number, the device, the vertex and the reason."""


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
    from pebblesim.game.devices_kernel import judge

    if P > MOST_DEVICES:
        raise UsageError(f"P = {P:,} was given; the game of devices has up to {MOST_DEVICES} colours of red.")
    flags = np.zeros(graph.vertices, np.uint8)
    flags[np.asarray(graph.inputs, int)] |= INPUT | COMPLETE
    flags[np.asarray(sums, int)] |= SUM
    red = np.zeros(graph.vertices, np.int64)
    counts = np.zeros((4, P), np.int64)  # received, sent, red, most red
    for v in np.asarray(graph.inputs, int).tolist():
        red[v] = 1 << owners[v]
        counts[2:, owners[v]] += 1
    left, added = np.diff(graph.indptr).astype(np.int64), np.zeros(graph.edges, np.uint8)
    targets = np.repeat(np.arange(graph.vertices), np.diff(graph.indptr))
    table = np.array([RULES[kind] for kind in range(len(KINDS))], np.uint8)
    moves = np.ascontiguousarray(moves, np.int64).reshape(-1, 3)
    preds = np.asarray(graph.preds, np.int64)
    done = judge(moves, preds, targets, flags, red, left, added, table, counts)
    if done < len(moves):
        raise IllegalMove(_why(graph, moves, done, targets, flags, red, added, P))
    held = [v for v in graph.outputs.tolist() if red[v] >> owners[v] & 1 and flags[v] & COMPLETE]
    missing = [graph.describe(v) for v in graph.outputs.tolist() if v not in set(held)]
    return DevicesGame(len(moves), counts[0].tolist(), counts[1].tolist(), counts[3].tolist(), missing)


def _why(
    graph: Graph,
    moves: NDArray[Any],
    number: int,
    targets: NDArray[Any],
    flags: NDArray[Any],
    red: NDArray[Any],
    added: NDArray[Any],
    P: int,
) -> str:
    """Say which rule the move breaks."""
    p, kind, v = moves[number].tolist()
    edges, names = graph.edges, {RED: "red", BLUE: "blue", COMPLETE: "complete", SUM: "a sum", INPUT: "an input"}
    start = f"move {number + 1}: device {p}: {KINDS[kind] if 0 <= kind < len(KINDS) else f'kind {kind}'}"
    if not (0 <= p < P and 0 <= kind < len(KINDS) and 0 <= v < (edges if kind == ADD else graph.vertices)):
        return f"{start} {v}: there is no such device, kind of move, edge or vertex"
    rule, operand = RULES[kind], int(graph.preds[v]) if kind == ADD else -1
    v = int(targets[v]) if kind == ADD else v
    start += f" {graph.describe(v)}"

    def has(vertex: int, flag: int) -> bool:
        if flag == RED:
            return bool(red[vertex] >> p & 1)
        if flag == OTHER:
            return bool(red[vertex] & ~(1 << p))
        return bool(flags[vertex] & flag)

    names[OTHER] = "held by another device"
    for flag, name in names.items():
        if rule.needs & flag and not has(v, flag):
            return f"{start}: it is not {name}"
        if rule.forbids & flag and has(v, flag):
            return f"{start}: it is {name} already" if flag in (RED, BLUE, COMPLETE) else f"{start}: it is {name}"
        if operand >= 0 and rule.predecessors & flag and not has(operand, flag):
            return f"{start}: its term {graph.describe(operand)} is not {name}"
    if kind == ADD and added[moves[number][2]]:
        return f"{start}: its term {graph.describe(operand)} was added before"
    return f"{start}: it has terms already, and no red pebble"
