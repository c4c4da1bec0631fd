"""The graph of attention whose sums are cut as a schedule cuts them, and the game of several devices on it.

A device that computes pairs of a row or key of another one has a partial sum for each word of their outputs, and one
for each time that the row or key is there; the owner adds these parts to its own sum. `play` gives both to the referee
in `pebblesim.game.devices`, which knows neither schedules nor who should compute what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import exp, inf, log, prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.devices import ADD, BEGIN, COLLECT, DELETE, RECEIVE, SEND, DevicesGame, play as referee
from pebblesim.graphs.cdag import Cdag
from pebblesim.parallel.count import Moved
from pebblesim.parallel.play import Compute, Receive, Send, moves
from pebblesim.parallel.team import STATISTICS, Team

Name: TypeAlias = tuple[Any, ...]
"""A tensor and numbers, such as ("Q", head, token, column)."""

Step: TypeAlias = tuple[int, int, Any]
"""A device, a kind of move, and a vertex; for ADD, the term and the vertex that takes it."""


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

    def packed(self, steps: Iterable[Step]) -> NDArray[np.int64]:
        """Return the moves as numbers, for `judged`."""
        rows = [(p, kind, self.edge[what] if kind == ADD else self.ids[what]) for p, kind, what in steps]
        return np.array(rows, np.int64).reshape(-1, 3)

    def value(self, name: Name, inputs: Mapping[str, Any], known: dict[Name, float]) -> float:
        """Return the value of a vertex, for arrays of inputs; `known` has those that were asked for.

        A row that sees no key has L = −∞ and O = 0.
        """
        if name not in known:
            terms = [self.value(term, inputs, known) for term in self.terms[name]]
            match name[0]:
                case tensor if name in self.inputs_named:
                    known[name] = float(inputs[tensor][name[1:3] if tensor in STATISTICS else name[1:]])
                case "P":
                    known[name] = exp(terms[0] - sum(terms[1:]))
                case "dS":
                    known[name] = terms[0] * (terms[1] - terms[2])
                case "L":
                    known[name] = log(terms[0]) if terms[0] else -inf
                case "O":
                    known[name] = terms[0] / terms[1] if terms[1] else 0.0
                case kind:
                    known[name] = sum(terms) if kind in ("S", "dP") or kind.startswith("sum ") else prod(terms)
        return known[name]

    def judged(self, P: int, moves: NDArray[Any]) -> DevicesGame:
        """Return the referee's result for moves of P devices."""
        owner = self.inputs_named | self.outputs_named
        sums, owners = [self.ids[name] for name in self.sums_named], [owner.get(name, 0) for name in self.ids]
        return referee(self.cdag, sums, owners, P, moves)


class _Cut:
    """Follows the moves of a schedule: the graph that they compute, and the moves of its pebbles, by name."""

    def __init__(self, moved: Moved) -> None:
        self.team, self.graph = moved.layout.team, Graph()
        team, traffic = self.team, self.team.traffic
        self.words = {**traffic.rows_in, **traffic.keys_in, **traffic.rows_out, **traffic.keys_out}
        self.row_owner = {token: p for p in range(team.P) for token in team.own_rows[p]}
        self.key_owner = {token: p for p in range(team.P) for token in team.own_keys[p]}
        self.visits: Counter[tuple[int, bool, int, int]] = Counter()
        self.steps: list[Step] = []
        for tensors, owner, heads in (
            (traffic.rows_in, self.row_owner, team.heads),
            (traffic.keys_in, self.key_owner, team.kv_heads),
        ):
            for name, h, (token, p) in product(tensors, range(heads), owner.items()):
                for t in range(tensors[name]):
                    self.graph.terms[name, h, token, t] = []
                    self.graph.inputs_named[name, h, token, t] = p
        for move in moves(moved):
            self._compute(move) if isinstance(move, Compute) else self._exchange(move)
        self._ends()
        self.graph.number()

    def sum(self, tensor: str, p: int, head: int, token: int, t: int) -> Name:
        """The sum of device p for a word of an output: the whole if p owns it, else the part of this visit."""
        rows = tensor in self.team.traffic.rows_out
        whole = (f"sum {tensor}", head, token, t)
        if (self.row_owner if rows else self.key_owner)[token] == p:
            return whole
        return (*whole, p, self.visits[p, rows, head, token])

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

    def _compute(self, move: Compute) -> None:
        """Make the vertices of each pair; what no later one of them takes as a term is deleted at once."""
        for i, j in product(move.queries, move.keys):
            if self.team.causal and j > i + self.team.ahead:
                continue
            steps = list(self.of_pair(move.device, move.head, i, j))
            last = {term: k for k, (_, terms) in enumerate(steps) for term in terms}
            made = {vertex for vertex, _ in steps if not vertex[0].startswith("sum ")}
            for k, (vertex, terms) in enumerate(steps):
                self.graph.terms.setdefault(vertex, []).extend(terms)
                self.steps += [(move.device, ADD, (term, vertex)) for term in terms]
                gone = [term for term in terms if last[term] == k and term in made]
                self.steps += [(move.device, DELETE, term) for term in gone]

    def _exchange(self, move: Receive | Send) -> None:
        """Rows or keys of others come, with new parts of their sums, or go, with these parts, to their owners."""
        p, arrives = move.device, isinstance(move, Receive)
        of_rows = set(move.tensors) <= set(self.team.traffic.rows_in)
        for head, token in move.rows:
            self.visits[p, of_rows, head, token] += arrives
            for name in move.tensors:
                kind = RECEIVE if arrives else DELETE
                self.steps += [(p, kind, (name, head, token, t)) for t in range(self.words[name])]
            for tensor, word in [(name, t) for name in move.sums for t in range(self.words[name])]:
                part = self.sum(tensor, p, head, token, word)
                if arrives:
                    self.graph.terms.setdefault(part, [])
                    self.steps.append((p, BEGIN, part))
                    continue
                whole, owner = part[:4], (self.row_owner if of_rows else self.key_owner)[token]
                self.graph.terms.setdefault(whole, []).append(part)
                self.steps += [(p, SEND, part), (p, DELETE, part), (owner, COLLECT, part)]
                self.steps += [(owner, ADD, (part, whole)), (owner, DELETE, part)]

    def _ends(self) -> None:
        """Begin the sums of owners before all else, divide rows of O by their sums of weights, whose logarithm is L."""
        team, graph, begun = self.team, self.graph, list[Step]()
        graph.sums_named = dict.fromkeys(name for name in graph.terms if name[0].startswith("sum "))
        for name in sorted((name for name in graph.sums_named if len(name) == 4), key=lambda each: each[0] == "sum L"):
            tensor, (h, token, t) = name[0].removeprefix("sum "), name[1:]
            p = (self.row_owner if tensor in team.traffic.rows_out else self.key_owner)[token]
            begun.append((p, BEGIN, name))
            out, terms = name, list[Name]()
            if not team.backward:
                out, terms = (tensor, h, token, t), [name] if tensor == "L" else [name, ("sum L", h, token, 0)]
                graph.terms[out] = terms
                self.steps += [*((p, ADD, (term, out)) for term in terms), (p, DELETE, name)]
            graph.outputs_named[out] = p
        self.steps = begun + self.steps


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
    return cut.graph.judged(moved.layout.team.P, cut.graph.packed(cut.steps))


def numbers(moved: Moved, inputs: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return the outputs: the values of the graph that is played, in which a device uses what it holds.

    Args:
        moved: a counted schedule of a small size.
        inputs: Q of shape (h, n_q, d_k), K (h_kv, n_k, d_k) and, unless values are latent, V (h_kv, n_k, d_v); for the
            backward pass also dO (h, n_q, d_v), L and D (h, n_q). Scores must be small, as exp takes them as they are.

    Returns:
        O (h, n_q, d_v) and L (h, n_q), or dQ, dK and dV, with the shapes of Q, K and V.
    """
    graph, team, known = _Cut(moved).graph, moved.layout.team, dict[Name, float]()
    made: dict[str, NDArray[np.float64]] = {}
    for of, heads, n in (
        (team.traffic.rows_out, team.heads, team.n_q),
        (team.traffic.keys_out, team.kv_heads, team.n_k),
    ):
        made |= {name: np.full((heads, n, words), -inf if name == "L" else 0.0) for name, words in of.items()}
    for name in graph.outputs_named:
        made[name[0].removeprefix("sum ")][name[1:]] = graph.value(name, inputs, known)
    return {name: array[..., 0] if name == "L" else array for name, array in made.items()}


def exceeds(team: Team) -> int:
    """Return the words beyond those that a device holds while it computes a pair."""
    return 3 if team.backward else 2
