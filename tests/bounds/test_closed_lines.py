"""Bound D5's lemma, in games at random: a pair of a closed line and of one that is late is red, or moves a word.

A row of an input is closed once one of its words is gone for good, and with it an element of what is made of the row.
Each order of the products makes other rows. The test follows words and families move by move, and shares nothing with
the bounds.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bounds.test_segments import Moves, of_use

from pebblesim import graphs
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.game.referee import referee
from pebblesim.graphs.cdag import Cdag

MADE = {"A1": "S", "dO": "dOY", "A2": "A2X", "A3": "h"}
"""What may be made of each input's row; a graph has two of these, or one that is made of the other side."""

HALVES = {**dict.fromkeys(("Z", "A", "f", "vf"), "Σ"), **dict.fromkeys(("q", "qv", "fq", "Aq", "p"), "Θ")}

Word = tuple[Any, ...]


class Watched:
    """A game of `backward`, with the number of red pebbles of each word and family after each move."""

    def __init__(self, graph: Cdag, game: Moves, d: int) -> None:
        self.d, self.game = d, game
        self.names = {v: self._name(graph, v) for _, v in game}
        self.episodes, self.last, self.first = Counter[Word](), dict[Word, int](), dict[Word, int]()
        self.moved = {self.names[v] for kind, v in game if kind in (READ, WRITE)}
        for t, red in self.play():
            name = self.names[game[t][1]]
            if game[t][0] in (READ, COMPUTE) and red[name] == 1:
                self.episodes[name] += 1
                self.first.setdefault(name, t)
            if not red[name]:
                self.last[name] = t

    @staticmethod
    def _name(graph: Cdag, v: int) -> Word:
        family, _, index, _ = graph.locate(v)
        return (HALVES.get(family.name, family.name), *index)

    def play(self) -> Iterator[tuple[int, Counter[Word]]]:
        """Yield each time, and the red pebbles then; those of one word or family are counted together."""
        red = Counter[Word]()
        for t, (kind, v) in enumerate(self.game):
            if kind != WRITE:
                red[self.names[v]] += -1 if kind == DELETE else 1
            yield t, red

    def single(self, word: Word) -> bool:
        return self.episodes[word] == 1

    def closed(self, matrix: str, line: int, t: int, red: Counter[Word]) -> bool:
        """Whether a word is gone for good, and with it an element of what is made of the whole row."""
        words = [(matrix, line, k) for k in range(self.d)]
        gone = any(self.single(word) and self.last.get(word, t + 1) <= t for word in words)
        made = [(MADE[matrix], line, k) for k in range(self.d)]
        return gone and any(not red[element] and element not in self.moved for element in made)

    def late(self, matrix: str, line: int, t: int) -> bool:
        words = [(matrix, line, k) for k in range(self.d)]
        return any(self.single(word) and self.first[word] > t for word in words)

    def check(self, n_q: int, n_k: int) -> int:
        """Assert the lemma at all times; how many times and pairs it speaks of."""
        seen, before = 0, defaultdict[str, set[int]](set)
        pairs = [(i, j) for i in range(n_q) for j in range(n_k)]
        free = [(i, j) for i, j in pairs if not {("Σ", i, j), ("Θ", i, j)} & self.moved]
        sizes = {"A1": n_q, "dO": n_q, "A2": n_k, "A3": n_k}
        for t, red in self.play():
            closed = {m: {x for x in range(n) if self.closed(m, x, t, red)} for m, n in sizes.items()}
            late = {m: {x for x in range(n) if self.late(m, x, t)} for m, n in sizes.items()}
            for matrix, lines in closed.items():
                assert before[matrix] <= lines, "what is closed stays so"
                before[matrix] = lines
            dead = closed["A1"] | closed["dO"], closed["A2"] | closed["A3"]
            tardy = late["A1"] | late["dO"], late["A2"] | late["A3"]
            for i, j in free:
                if (i in dead[0] and j in tardy[1]) or (j in dead[1] and i in tardy[0]):
                    assert red["Σ", i, j] or red["Θ", i, j], (t, i, j)
                    seen += 1
        return seen


def in_any_order(graph: Cdag, rng: random.Random, forget: float) -> Moves:
    """A game that computes what it likes next, drops what it needs no more, forgets at random, and makes that again."""
    given, outputs = {*graph.inputs.tolist()}, {*graph.outputs.tolist()}
    before = {v: graph.predecessors(v).tolist() for v in range(graph.vertices) if v not in given}
    waiting = {v: {u for u in of if u not in given} for v, of in before.items()}
    uses, red, game = Counter(u for of in before.values() for u in of), set[int](), Moves()

    def make(v: int) -> None:
        if v not in red:
            for u in before.get(v, ()):
                make(u)
            game.append((READ if v in given else COMPUTE, v))
            red.add(v)

    def drop(v: int) -> None:
        game.append((DELETE, v))
        red.remove(v)

    weight = {v: rng.random() ** 3 for v in before}
    while waiting:
        v = min((v for v, of in waiting.items() if not of), key=lambda v: weight[v])
        del waiting[v]
        for of in waiting.values():
            of.discard(v)
        make(v)
        if v in outputs:
            game.append((WRITE, v))
        uses.subtract(before[v])
        for u in [u for u in red if uses[u] == 0 or rng.random() < forget]:
            drop(u)
    return game


@pytest.mark.one_in(2)
def test_a_closed_line_keeps_its_pairs_red_in_every_order() -> None:
    rng, seen = random.Random(11), Counter[str]()
    for drawn in range(24):
        absorbed = ("", "X", "Y", "X,Y")[drawn % 4]
        order, kept = rng.choice([("U", True), ("T", True), ("T", False), ("one-pass", False)])
        n_q, n_k, d = rng.choice([(1, 3, 2), (2, 2, 2), (3, 2, 1), (2, 3, 1)])
        graph = graphs.build("backward", n_q=n_q, n_k=n_k, d=d, order=order, kept=kept, absorbed=absorbed)
        game = of_use(graph, in_any_order(graph, rng, rng.choice([0, 0.002, 0.01])))
        judged = referee(graph, 1000, [np.array([pack(*move) for move in game], np.int64)])
        assert judged.legal and judged.complete
        seen[absorbed] += Watched(graph, game, d).check(n_q, n_k)
    assert all(seen[absorbed] > 10 for absorbed in ("", "X", "Y", "X,Y")), seen
