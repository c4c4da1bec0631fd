"""The argument of the lower bounds, run on games: episodes, segments, what is within reach, what is evaluated there."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from pebblesim import graphs
from pebblesim.core.errors import Infeasible
from pebblesim.dags.optimum import optimum
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack, unpack
from pebblesim.game.referee import referee
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.operations import Op
from pebblesim.language.masks import from_array
from pebblesim.language.problems import PROBLEMS
from pebblesim.lower_bounds.bounds import BOUNDS
from pebblesim.lower_bounds.bounds_backward_qkv import SCORES
from pebblesim.lower_bounds.capacities import Cube
from pebblesim.lower_bounds.cutting import Cutting, CuttingBound
from pebblesim.lower_bounds.instances import Formulation, Pairs

Moves = list[tuple[int, int]]
Name = tuple[Any, ...]

TREES = {  # of each tensor, whose tree its vertices belong to; row sums and maxima belong to none
    "backward": {
        "S": "S",
        "h": "h",
        "g": "g",
        **dict.fromkeys(("Z", "A", "f", "vf", "slope"), "Σ"),
        **dict.fromkeys(("q", "qv", "fq", "Aq", "p"), "Θ"),
        **dict.fromkeys(("dQ", "T", "U1", "U2", "wU", "U"), "dQ"),
        **{name: name for name in ("A2X", "dOY")},
    },
    "forward": {
        **{name: name for name in ("Q", "K", "V", "QW", "KW", "PA")},
        **dict.fromkeys(("S", "Sm", "A", "P"), "Σ"),
        "AV": "O",
        "O": "O",
    },
    "linear": {"S": "S", "h": "h", "Z": "Σ", "O": "O"},
    "backward-qkv": {
        **{name: name for name in ("Q", "K", "V", "QW", "KW", "dOW", "dQ", "dK", "dV", "dSA2", "dSA1")},
        **dict.fromkeys(("S", "A", "P"), "Σ"),
        **dict.fromkeys(("dP", "dPv", "dS"), "Θ"),
    },
}

BETWEEN = {"PA": "O", "dSA2": "dQ", "dSA1": "dK"}
"""Matrices that stand between pairs and an output; their products are counted in the place of the output's."""

MADE = {"A2X": "A2", "dOY": "dO", "QW": "Q", "KW": "K", "dOW": "dO"}
"""Of each matrix that only some orders make, the rows that it is made of."""

RAGGED = ("dQ", *BETWEEN)
"""Matrices whose trees may have any number of products."""

IN_PLACE = {"D1m": {"A2X": "S", "dOY": "h"}, "C2m": {"K": "Q"}, "E1m": {"dOW": "V"}}
"""Rows that these bounds count in the place of others, where the graph lacks those."""


def in_any_order(name: str, *absorbed: str, **options: Any) -> tuple[str, Formulation, dict[str, Any]]:
    return name, Formulation(graph={"absorbed": absorbed}), {"absorbed": absorbed, **options}


CASES: list[tuple[str, Formulation, dict[str, Any]]] = [
    ("backward", Formulation(("O", "l")), {"order": "U", "kept": True, "centred": True}),
    ("backward", Formulation(("O", "l")), {"order": "T", "kept": True}),
    ("backward", Formulation(), {"order": "T"}),
    ("backward", Formulation(), {"order": "one-pass"}),
    ("backward", Formulation(("O", "l"), (), {"row_block": 1}), {"order": "T", "kept": True, "row_block": 1}),
    ("backward-relu", Formulation(), {}),
    ("forward", Formulation(), {"softmax": "late"}),
    ("forward", Formulation(), {"softmax": "safe"}),
    ("projected-forward", Formulation(), {}),
    ("linear", Formulation((), (), {"order": "quadratic"}), {"order": "quadratic"}),
    ("backward-qkv", Formulation(("O", "l")), {"kept": "l"}),
    ("projected-backward-qkv", Formulation(("O", "l")), {"kept": "l"}),
    ("backward-qkv", Formulation(("O", "l"), (), {"kept": "some"}), {"kept": "l"}),
    ("backward-qkv", Formulation(("P",), (), {"kept": "some"}), {"kept": "P"}),
    *(in_any_order("backward", *each, order=order) for each in ("X", "Y", "XY") for order in ("T", "one-pass")),
    *(in_any_order("projected-forward", *each) for each in (("W_K", "W_V"), ("W_Q",), ("W_V",))),
    *(in_any_order("projected-backward-qkv", *each, kept="l") for each in (("W_K", "W_V"), ("W_Q",), ("W_V",))),
]


# -- games ---------------------------------------------------------------------------------------------------------


def random_game(graph: Cdag, M: int, rng: random.Random, first: Iterable[int] = ()) -> Moves:
    """A game of someone who forgets: what has to go is written, or just made again later, as it comes.

    Args:
        graph, M, rng: what is played, with how many pebbles, and by which chances.
        first: vertices that are made before the outputs are, in this order.

    Raises:
        Infeasible: what waits for other values to be made fills the cache.
    """
    red: set[int] = set()
    given = set(graph.inputs.tolist())
    blue = {*given}
    pinned = Counter[int]()
    played: Moves = []
    keep = rng.random()

    def room() -> None:
        while len(red) >= M:
            loose = [v for v in red if not pinned[v]]
            if not loose:
                raise Infeasible("all are waiting", M + 1)
            v = rng.choice(loose)
            if v not in blue and rng.random() < keep:
                write(v)
            red.remove(v)
            played.append((DELETE, v))

    def write(v: int) -> None:
        blue.add(v)
        played.append((WRITE, v))

    def make(v: int) -> None:
        if v not in red:
            if v in given or (v in blue and rng.random() < 0.9):
                room()
                played.append((READ, v))
            else:
                before = graph.predecessors(v).tolist()
                for u in before:
                    make(u)
                    pinned[u] += 1
                room()
                played.append((COMPUTE, v))
                pinned.subtract(before)
            red.add(v)

    goals = graph.outputs.tolist()
    rng.shuffle(goals)
    for v in first:
        make(v)
    for v in goals:
        make(v)
        if v not in blue:
            write(v)
    return played


def of_use(graph: Cdag, played: Moves) -> Moves:
    """Without the moves that nothing comes of."""
    seen = set(graph.inputs.tolist())
    first = []  # whether a move is the first write of a vertex
    for kind, v in played:
        first.append(kind == WRITE and v not in seen)
        if kind == WRITE:
            seen.add(v)
    on_red: set[int] = set()
    on_blue = set(graph.outputs.tolist())
    kept = []
    for (kind, v), new in zip(reversed(played), reversed(first), strict=True):
        if kind == DELETE:
            on_red.discard(v)
            kept.append((kind, v))
            continue
        if kind == WRITE:
            if not (new and v in on_blue):
                continue
            on_red.add(v)
        else:
            if v not in on_red:
                continue
            on_red.remove(v)
            if kind == READ:
                on_blue.add(v)
            else:
                on_red.update(graph.predecessors(v).tolist())
        kept.append((kind, v))
    kept.reverse()
    red: set[int] = set()
    game = []
    for kind, v in kept:  # deletions of pebbles that are no longer there
        if kind == DELETE and v not in red:
            continue
        if kind == DELETE:
            red.remove(v)
        elif kind != WRITE:
            red.add(v)
        game.append((kind, v))
    return game


def games(seed: int, count: int) -> Iterator[tuple[Cutting, Cdag, int, Moves]]:
    """Games on small graphs of all the ways of computing, some under masks: at random, and the best that are known."""
    rng = random.Random(seed)
    while count:
        name, way, options = rng.choice(CASES)
        n, d = rng.choice([1, 2, 2, 3, 3, 4]), rng.choice([1, 1, 2, 2, 3])
        mask = None
        if PROBLEMS[name].maskable and rng.random() < 0.3:
            mask = np.array([rng.random() < 0.6 for _ in range(n * n)]).reshape(n, n)
        pairs = None if mask is None else Pairs.of(from_array(mask), n)
        problem = PROBLEMS[name]
        made = {each: of for each, of in BOUNDS[problem.bounds or ""].made.items() if each not in problem.inputs}
        case = Cutting(problem, {"n": n, "d": d}, way, pairs, made)
        graph = graphs.build(
            name, rng.choice(["chain", "balanced"]) if mask is None else "chain", mask, n=n, d=d, **options
        )
        M = rng.choice([4, 5, 6, 8, 10, 14, 20, 30])
        try:
            if graph.vertices <= 40 and rng.random() < 0.5:
                kinds, vertices = unpack(optimum(graph, M, states=3000).moves)
                game = list(zip(kinds.tolist(), vertices.tolist(), strict=True))
            else:
                game = random_game(graph, M, rng)
        except Infeasible:
            continue
        game = of_use(graph, game)
        judged = referee(graph, M, [np.array([pack(*move) for move in game], np.int64)])
        assert judged.legal and judged.complete
        yield case, graph, M, game
        count -= 1


# -- the argument --------------------------------------------------------------------------------------------------


@dataclass
class Episode:
    family: Name
    start: int
    end: int
    paid: bool = False


def episodes(game: Moves, family: Sequence[Name | None]) -> list[Episode]:
    """From the first red vertex of a family to the last, again and again; vertices without a family are left out."""
    red: dict[Name, set[int]] = defaultdict(set)
    running: dict[Name, Episode] = {}
    found = []
    for time, (kind, v) in enumerate(game):
        name = family[v]
        if name is None:
            continue
        if kind in (READ, COMPUTE):
            if not red[name]:
                running[name] = Episode(name, time, len(game))
                found.append(running[name])
            red[name].add(v)
        if kind in (READ, WRITE):
            running[name].paid = True
        if kind == DELETE:
            red[name].remove(v)
            if not red[name]:
                running[name].end = time
    return found


class Board:
    """A game as one claim sees it: families, which of their episodes are numbered, and elementary products."""

    def __init__(self, case: Cutting, claim: CuttingBound, graph: Cdag, game: Moves) -> None:
        names = {family.name for family in graph.families}
        if claim.name == "E1h" and "S" in names:  # P is made for all pairs
            assert claim.tree is not None
            scores, weight = case.size(("queries", "keys", "d_k"))[1], claim.tree // case.dims["d"]
            claim = claim._replace(
                table=(*claim.table, SCORES._replace(weight=weight)),
                products=claim.products + weight * scores,
                free=claim.free + case.Z,
                light=claim.light and 2 * case.Z,
            )
        self.claim, self.graph, self.game, self.d = claim, graph, game, case.dims["d"]
        self.counted = {product.result: product.result for product in claim.table}
        for name, place in IN_PLACE.get(claim.name, {}).items():
            if name in names and place not in names:
                self.counted[name] = self.counted.pop(place)
        for name, output in BETWEEN.items():
            if name in names and output in self.counted:
                self.counted[name] = self.counted.pop(output)
        self.results = {*self.counted}
        self.light = {"Π", "Σ", "Θ"} & self.results if claim.light is not None else set()
        self.inputs = {*case.problem.inputs, *case.formulation.kept}
        self.made = {name: of for name, of in (*case.made.items(), *MADE.items()) if name not in self.results}
        self.trees = {
            **dict.fromkeys(self.inputs - {*claim.besides}),
            **TREES[case.problem.bounds.removeprefix("projected-")],
        }
        for name in case.problem.outputs:
            if name in claim.besides:
                del self.trees[name]
        self.outputs = {*case.problem.outputs}
        self.family = [self._family(v) for v in range(graph.vertices)]
        self.product = [self._product(v) for v in range(graph.vertices)]
        with_products = {each for each, made in zip(self.family, self.product, strict=True) if made}
        self.family = [  # an element of no pairs has no products, and is in no family
            None if each and each[0] in BETWEEN and each not in with_products else each for each in self.family
        ]
        self.episodes = episodes(self.game, self.family)
        self.family_of_product = {p[0]: f for p, f in zip(self.product, self.family, strict=True) if p and f}
        self.red_at = cache(self._red_at)

    def _family(self, v: int) -> Name | None:
        family, _, index, _ = self.graph.locate(v)
        if family.name in self.inputs:
            return (family.name, *index) if family.name in self.trees else None
        tree = self.trees.get(family.name)
        if tree is None:
            return None
        if "Π" in self.results and tree in ("Σ", "Θ"):
            tree = "Π"
        return tree, *index

    def _product(self, v: int) -> tuple[Name, int] | None:
        """The elementary product that a vertex is, with its weight, if it is counted."""
        family, block, index, part = self.graph.locate(v)
        own = self.family[v]
        if self.graph.op[v] != Op.MUL or family.op != "matmul" or own is None or family.name == "U2":
            return None
        tables = [each for each in self.claim.table if each.result == self.counted.get(str(own[0]))]
        if len(tables) > 1:
            tables = [each for each in tables if each.left == ("S" if family.name == "Z" else "dO")]  # one family
        return ((family.name, block, *index, part.stop), tables[0].weight) if tables else None

    def numbered(self, episode: Episode) -> bool:
        name = episode.family[0]
        return episode.paid or name in self.results

    def _red_at(self, time: int) -> set[Name]:
        """Families with a red vertex just before a move."""
        return {each.family for each in self.episodes if each.start < time <= each.end}

    def check(self, M: int, T: int, lightest: Fraction | int) -> int:
        """Cut the game into segments and check all that the bounds say of them; how many there are."""
        X = M - 1 + T
        whole = lightest == 1
        starts = sorted((each for each in self.episodes if self.numbered(each)), key=lambda each: each.start)
        cuts, counted, carried = [0], [[]], [set()]  # type: ignore[var-annotated]
        reach: set[Name] = set()
        weight: Fraction | int = 0
        for each in starts:
            if each.family in reach:
                continue
            its = self.weight(each, lightest)
            if weight + its > (X if len(cuts) == 1 else T):
                assert weight == (X if len(cuts) == 1 else T) if whole else weight > (X if len(cuts) == 1 else T) - 1
                cuts.append(each.start)
                red = self.red_at(each.start)
                assert len(red) <= M - 1 and each.family not in red
                carried.append(red)
                counted.append([])
                reach, weight = set(red), 0
            reach.add(each.family)
            counted[-1].append(each)
            weight += its
        capacity = Cube(self.claim.capacity.w, lightest) if self.light else self.claim.capacity  # type: ignore[attr-defined]
        evaluated = 0
        for begin, end, red, new in zip(cuts, [*cuts[1:], len(self.game)], carried, counted, strict=True):
            assert len(red) + sum(self.weight(each, lightest) for each in new) <= X
            products = self.products(begin, end)
            assert sum(products.values()) <= capacity(X)
            evaluated += sum(products.values())
            self.check_reach(begin, end, red | {each.family for each in new})
        free = [each for of_one in counted for each in of_one if not each.paid]
        per_tree = Counter(each.family for each in free)
        for each in free:
            assert each.family[0] in self.results - self.outputs
            made = [self.product[v] for k, v in self.game[each.start : each.end] if k == COMPUTE]
            own = {p for p in made if p and self.family_of_product[p[0]] == each.family}
            if each.family[0] not in RAGGED or not self.claim.ragged:
                assert sum(weight for _, weight in own) >= (self.claim.tree or 0)
        again = sum(
            max(0, times - 1) for family, times in per_tree.items() if family[0] not in RAGGED or not self.claim.ragged
        )
        more = max(0, len(per_tree) - self.claim.free)  # a tree more brings its products
        assert evaluated >= self.claim.products + (self.claim.tree or 0) * (again + more)
        assert not more or self.claim.name in ("D1m", "C2m", "E1m")
        io = sum(kind in (READ, WRITE) for kind, _ in self.game)
        outside = sum(kind in (READ, WRITE) and self.family[v] is None for kind, v in self.game)
        assert io >= outside + sum(each.paid for of_one in counted for each in of_one)
        return len(cuts)

    def weight(self, episode: Episode, lightest: Fraction | int) -> Fraction | int:
        return lightest if not episode.paid and episode.family[0] in self.light else 1

    def products(self, begin: int, end: int) -> dict[Name, int]:
        done = (self.product[v] for kind, v in self.game[begin:end] if kind == COMPUTE)
        return dict(each for each in done if each is not None)

    def check_reach(self, begin: int, end: int, reach: set[Name]) -> None:
        """All that a counted product is made of is within reach, or of a row that is made of one that is within reach.

        Only where a pair's values may be made again in a segment, from whole lines, need pairs not be.
        """
        for kind, v in self.game[begin:end]:
            if kind != COMPUTE or self.product[v] is None:
                continue
            for u in (v, *self.graph.predecessors(v).tolist()):
                family = self.family[u]
                assert family is not None
                name, first, _ = family
                if family in reach or (name in ("Σ", "Θ") and name not in self.results):
                    continue
                assert name in self.made, (family, self.graph.describe(v))
                assert self.made_in_reach(name, first, reach)

    def made_in_reach(self, name: str, line: int, reach: set[Name]) -> bool:
        """Whether the row that a row is made from is within reach, or what that one is made from."""
        row = self.made[name]
        whole = all((row, line, t) in reach for t in range(self.d))
        return whole or (row in self.made and self.made_in_reach(row, line, reach))


@cache
def claims_of(problem: str) -> Any:
    return BOUNDS[problem].claims


def check_games(seed: int, count: int) -> Counter[str]:
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for case, graph, M, game in games(seed, count):
        for claim in (each for first in claims_of(str(case.problem.bounds))(case) for each in (first, *first.others)):
            if claim.why_not or not claim.table or claim.sums is not None:  # E8 has a test of its own
                continue
            board = Board(case, claim, graph, game)
            for T in {1, rng.randint(1, 3 * M), 2 * M + 1}:
                weights: list[Fraction | int] = [1]
                if board.light:
                    weights += [Fraction(1, 3), Fraction(rng.randint(1, 30), 31)]
                for lightest in weights:
                    found[claim.name] = max(found[claim.name], board.check(M, T, lightest))
    return found


@pytest.mark.one_in(4)
def test_the_argument_holds_in_every_segment_of_games() -> None:
    found = check_games(1, 25)
    assert found["D4"] > 3


@pytest.mark.slow
def test_the_argument_holds_in_every_segment_of_many_games() -> None:
    found = check_games(2, 700)
    assert min(found.values()) > 10
