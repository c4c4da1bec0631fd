"""The graph of attention whose sums are cut as a schedule cuts them, and the game of several devices on it.

A device that computes pairs of a row or key of another one has a partial sum for each word of their outputs, and one
for each time that the row or key is there; the owner adds these parts to its own sum. `play` gives both to the referee
in `pebblesim.game.devices`, which knows neither schedules nor who should compute what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.devices import ADD, BEGIN, COLLECT, DELETE, RECEIVE, SEND, DevicesGame, play as referee
from pebblesim.graphs.cdag import Cdag
from pebblesim.parallel.count import Moved
from pebblesim.parallel.play import Compute, Receive, Send, moves
from pebblesim.parallel.team import Team

Name: TypeAlias = tuple[Any, ...]
"""A tensor and numbers, such as ("Q", head, token, column)."""

Move: TypeAlias = tuple[int, int, int]


@dataclass(eq=False)
class Graph:
    """Vertices by name, each with its terms in order.

    Attributes:
        terms: those of each vertex.
        inputs_named, outputs_named: the device that has each input at the start, and each output at the end.
        sums_named: the sums of pairs' products.
        ids, edge, cdag: numbers of vertices and of edges, and the graph; there are none before `number`.
    """

    terms: dict[Name, list[Name]] = field(default_factory=dict)
    inputs_named: dict[Name, int] = field(default_factory=dict)
    outputs_named: dict[Name, int] = field(default_factory=dict)
    sums_named: dict[Name, None] = field(default_factory=dict)

    def number(self) -> None:
        """Number the vertices and edges; nothing may be added after that."""
        self.ids = ids = {name: v for v, name in enumerate(self.terms)}
        edges = [(term, name) for name, terms in self.terms.items() for term in terms]
        self.edge = {ends: e for e, ends in enumerate(edges)}
        ends = ([ids[name] for name in named] for named in (self.inputs_named, self.outputs_named))
        names = [f"{name}[{','.join(map(str, numbers))}]" for name, *numbers in ids]
        self.cdag = Cdag.from_edges(len(ids), [(ids[u], ids[v]) for u, v in edges], *ends, names=names)

    def judged(self, P: int, moves: NDArray[Any]) -> DevicesGame:
        """Return the referee's result for moves of P devices."""
        owner = self.inputs_named | self.outputs_named
        sums, owners = [self.ids[name] for name in self.sums_named], [owner.get(name, 0) for name in self.ids]
        return referee(self.cdag, sums, owners, P, moves)


class _Cut:
    """Walks through the moves of a schedule twice: once for the graph, once for the moves of pebbles."""

    def __init__(self, moved: Moved) -> None:
        self.moved, self.team, self.graph = moved, moved.layout.team, Graph()
        team, traffic = self.team, self.team.traffic
        self.words = {**traffic.rows_in, **traffic.keys_in, **traffic.rows_out, **traffic.keys_out}
        self.row_owner = {token: p for p in range(team.P) for token in team.own_rows[p]}
        self.key_owner = {token: p for p in range(team.P) for token in team.own_keys[p]}
        self.visits: dict[tuple[int, bool, int, int], int] = {}
        self._inputs()
        for move in moves(moved):
            self._note(move)
            if isinstance(move, Compute):
                for i, j in self.pairs(move):
                    for vertex, terms in self.of_pair(move.device, move.head, i, j):
                        mine = self.graph.terms.setdefault(vertex, [])
                        mine.extend(terms)
        self._ends()
        self.graph.number()

    def _inputs(self) -> None:
        team = self.team
        for tensors, owner, heads in (
            (team.traffic.rows_in, self.row_owner, team.heads),
            (team.traffic.keys_in, self.key_owner, team.kv_heads),
        ):
            for name, words in tensors.items():
                for h in range(heads):
                    for token, p in owner.items():
                        for t in range(words):
                            self.graph.terms[name, h, token, t] = []
                            self.graph.inputs_named[name, h, token, t] = p

    def _note(self, move: Receive | Compute | Send) -> None:
        """Count how often a device got a row or key of another one; name its sums, which may stay without terms."""
        if not isinstance(move, Receive):
            return
        of_rows = set(move.tensors) <= set(self.team.traffic.rows_in)
        for head, token in move.rows:
            where = move.device, of_rows, head, token
            self.visits[where] = self.visits.get(where, 0) + 1
            for name in move.sums:
                for t in range(self.words[name]):
                    self.graph.terms.setdefault(self.sum(name, move.device, head, token, t), [])

    def sum(self, tensor: str, p: int, head: int, token: int, t: int) -> Name:
        """The sum of device p for a word of an output: the whole if p owns it, else the part of this visit."""
        rows = tensor in self.team.traffic.rows_out
        whole = (f"sum {tensor}", head, token, t)
        if (self.row_owner if rows else self.key_owner)[token] == p:
            return whole
        return (*whole, p, self.visits[p, rows, head, token])

    def pairs(self, move: Compute) -> Iterator[tuple[int, int]]:
        ahead = self.team.ahead
        return ((i, j) for i in move.queries for j in move.keys if not self.team.causal or j <= i + ahead)

    def of_pair(self, p: int, h: int, i: int, j: int) -> Iterator[tuple[Name, list[Name]]]:
        """Yield the vertices of a pair in the order in which they are made, with their terms.

        A product is followed by the sum that takes it.
        """
        team, g = self.team, h // self.team.sharing
        row, key, pair = (h, i), (g, j), (h, i, j)
        value: Any = "K" if team.latent else "V"

        def added(product: Name, factors: list[Name], to: Name) -> Iterator[tuple[Name, list[Name]]]:
            yield product, factors
            yield to, [product]

        for t in range(team.d_k):
            yield from added(("QK", *pair, t), [("Q", *row, t), ("K", *key, t)], ("S", *pair))
        if not team.backward:
            yield ("P", *pair), [("S", *pair)]
            yield self.sum("L", p, *row, 0), [("P", *pair)]
            for t in range(team.d_v):
                yield from added(("PV", *pair, t), [("P", *pair), (value, *key, t)], self.sum("O", p, *row, t))
            return
        yield ("P", *pair), [("S", *pair), ("L", *row, 0)]
        for t in range(team.d_v):
            yield from added(("dOV", *pair, t), [("dO", *row, t), (value, *key, t)], ("dP", *pair))
        yield ("dS", *pair), [("P", *pair), ("dP", *pair), ("D", *row, 0)]
        for t in range(team.d_v):
            to = self.sum("dK" if team.latent else "dV", p, *key, t)
            yield from added(("PdO", *pair, t), [("P", *pair), ("dO", *row, t)], to)
        for t in range(team.d_k):
            yield from added(("dSK", *pair, t), [("dS", *pair), ("K", *key, t)], self.sum("dQ", p, *row, t))
            yield from added(("dSQ", *pair, t), [("dS", *pair), ("Q", *row, t)], self.sum("dK", p, *key, t))

    def _ends(self) -> None:
        """Add the parts to the sums of the owners; name sums and outputs."""
        team, graph = self.team, self.graph
        for name in [name for name in graph.terms if name[0].startswith("sum ")]:
            graph.sums_named[name] = None
            whole = name[:4]
            if len(name) > 4:
                graph.terms.setdefault(whole, []).append(name)
                graph.sums_named[whole] = None
        for name in [name for name in graph.sums_named if len(name) == 4]:
            tensor, (h, token, t) = name[0].removeprefix("sum "), name[1:]
            if team.backward:
                graph.outputs_named[name] = (self.row_owner if tensor == "dQ" else self.key_owner)[token]
            else:
                weights = ("sum L", h, token, 0)
                graph.terms[tensor, h, token, t] = [name] if tensor == "L" else [name, weights]
                graph.outputs_named[tensor, h, token, t] = self.row_owner[token]

    def played(self) -> Iterator[Move]:
        """Yield the moves of pebbles."""
        ids, graph = self.graph.ids, self.graph
        owner = graph.outputs_named
        wholes = [name for name in graph.sums_named if len(name) == 4]
        of_output = {name: owner[name if self.team.backward else (name[0][4:], *name[1:])] for name in wholes}
        for name, p in of_output.items():
            yield p, BEGIN, ids[name]
        self.visits.clear()
        for move in moves(self.moved):
            self._note(move)
            if isinstance(move, Compute):
                for i, j in self.pairs(move):
                    yield from self._compute(move.device, move.head, i, j)
            else:
                yield from self._exchange(move, of_output)
        if not self.team.backward:
            yield from self._divide(of_output)

    def _compute(self, p: int, h: int, i: int, j: int) -> Iterator[Move]:
        """Make the vertices of a pair; what no later one of them takes as a term is deleted at once."""
        steps = list(self.of_pair(p, h, i, j))
        last = {term: k for k, (_, terms) in enumerate(steps) for term in terms}
        made = {vertex for vertex, _ in steps if not vertex[0].startswith("sum ")}
        for k, (vertex, terms) in enumerate(steps):
            for term in terms:
                yield p, ADD, self.graph.edge[term, vertex]
            for term in terms:
                if last[term] == k and term in made:
                    yield p, DELETE, self.graph.ids[term]

    def _exchange(self, move: Receive | Send, owner: dict[Name, int]) -> Iterator[Move]:
        ids, p, words = self.graph.ids, move.device, self.words
        for head, token in move.rows:
            for name in move.tensors:
                kind = RECEIVE if isinstance(move, Receive) else DELETE
                yield from ((p, kind, ids[name, head, token, t]) for t in range(words[name]))
            for name in move.sums:
                for t in range(words[name]):
                    part = self.sum(name, p, head, token, t)
                    whole = part[:4]
                    if isinstance(move, Receive):
                        yield p, BEGIN, ids[part]
                        continue
                    yield p, SEND, ids[part]
                    yield p, DELETE, ids[part]
                    yield owner[whole], COLLECT, ids[part]
                    yield owner[whole], ADD, self.graph.edge[part, whole]
                    yield owner[whole], DELETE, ids[part]

    def _divide(self, owner: dict[Name, int]) -> Iterator[Move]:
        """Divide the rows of O by their sums of weights, of which L is the logarithm."""
        edge, ids = self.graph.edge, self.graph.ids
        for name, p in sorted(owner.items(), key=lambda each: each[0][0] == "sum L"):
            out = (name[0].removeprefix("sum "), *name[1:])
            for term in self.graph.terms[out]:
                yield p, ADD, edge[term, out]
            yield p, DELETE, ids[name]


def graph_of(moved: Moved) -> Graph:
    """Return the graph of a schedule, with a sum for each part that some device makes."""
    return _Cut(moved).graph


def play(moved: Moved) -> DevicesGame:
    """Play a schedule as the game of several devices, and let the referee judge it.

    The most pebbles of a device exceed the words that it holds by what a pair takes while it is computed: 2 words
    forward and 3 backward, or 1 for a sum that arrives.

    Args:
        moved: a counted schedule of a small size: the game has one pebble for each word.

    Raises:
        IllegalMove: the schedule breaks a rule of the game.
    """
    cut = _Cut(moved)
    steps = np.array(list(cut.played()), np.int64).reshape(-1, 3)
    return cut.graph.judged(moved.layout.team.P, steps)


def exceeds(team: Team) -> int:
    """Return the words beyond those that a device holds while it computes a pair."""
    return 3 if team.backward else 2
