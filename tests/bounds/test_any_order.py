"""Bounds for every way of computing, where products with weights are associated in any order, and P is kept or made.

Rectangles are where orders differ: with few queries, absorbing W_K and W_V into these moves each word once.
"""

import random
from collections import Counter, defaultdict
from itertools import product
from typing import Any

import networkx as nx
import numpy as np
import pytest
import strategies
from bounds.test_lower_bounds import CAPACITIES, fewest_words
from bounds.test_numbers_of_proofs import case_of, claims_of
from bounds.test_segments import Moves, of_use, random_game
from hypothesis import given, strategies as st

from pebblesim import graphs
from pebblesim.analysis.blocks import choose
from pebblesim.analysis.count import count
from pebblesim.core.errors import Infeasible
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.game.referee import referee
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.masks import Band, Mask, from_array, from_text
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.lower_bounds.bounds import Formulation, best, best_of_ways, lower_bounds
from pebblesim.lower_bounds.capacities import Capacity, Cube
from pebblesim.lower_bounds.certificates import private_families
from pebblesim.lower_bounds.covers import least_cover

RECTANGULAR = {
    name: schedule.in_dims(schedule.problem.rectangle.dims)
    for name, schedule in SCHEDULES.items()
    if schedule.problem.rectangle
}
SIDE = st.one_of(st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16, 32, 64]))


@pytest.mark.parametrize(
    ("name", "dims", "M", "words"),
    [
        ("projected-forward", {"n_q": 1, "n_k": 4096, "d": 64, "d_k": 64, "d_v": 64}, 256, 536_704),
        ("projected-forward", {"n_q": 4096, "n_k": 1, "d": 64, "d_k": 64, "d_v": 64}, 256, 536_768),
        ("backward", {"n_q": 1, "n_k": 4096, "d": 64}, 326, 536_768),
        ("backward", {"n_q": 4096, "n_k": 1, "d": 64}, 326, 536_768),
    ],
)
def test_no_bound_for_every_way_exceeds_a_game_that_absorbs_weights(
    name: str, dims: dict[str, int], M: int, words: int
) -> None:
    """Words of a game in (A1 W_Q W_Kᵀ) A2ᵀ and (P A3) W_V, in (dO Yᵀ) A3ᵀ; or with queries and keys exchanged.

    It reads every input once, but A1, or A2, twice at most, while pairs are made and used one by one.
    """
    of_each = best_of_ways(PROBLEMS[name].rectangle, dims, M)
    assert best(PROBLEMS[name].rectangle, dims, M).value == of_each["any order of the products"].value <= words
    assert all(bound.value > 3 * words for way, bound in of_each.items() if not way.startswith("any order"))


def test_few_pairs_need_products_with_weights_however_P_comes() -> None:
    """48 pairs, each of which has 16² products with W_V of its own: 6,520 words, where the inputs and outputs, and P,
    are 4,224 and 4,272."""
    dims = {"n_q": 48, "n_k": 48, "d": 16, "d_k": 1, "d_v": 16}
    of_each = best_of_ways(PROBLEMS["projected-backward-qkv"].rectangle, dims, 27, from_text("window:1"))
    assert {way: bound.value for way, bound in of_each.items()} == {
        "P made": 6520,
        "P saved": 6568,
        "any order of the products": 6520,
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "widest"),
    [
        ("backward", "any order of the products"),
        ("backward-qkv", "P saved for some pairs"),
        ("projected-forward", "any order of the products"),
        ("projected-backward-qkv", "any order of the products"),
        ("linear", "any order of the products"),
    ],
)
@given(data=st.data())
@strategies.draws(20, 300)
def test_a_way_that_is_a_case_of_another_has_no_lesser_bound(name: str, widest: str, data: st.DataObject) -> None:
    problem = PROBLEMS[name].rectangle or PROBLEMS[name]
    dims = {dim: data.draw(SIDE | st.sampled_from([256, 4096]), dim) for dim in problem.dims}
    masks = st.sampled_from([None, "causal", "window:1", "window:7"]) if problem.maskable else st.none()
    mask, M = data.draw(masks, "mask"), data.draw(st.integers(1, 40) | st.integers(1, 40_000), "M")
    of_each = best_of_ways(problem, dims, M, mask and from_text(mask))
    assert min(bound.value for bound in of_each.values()) == of_each[widest].value


def check_bounds(schedule: Schedule, dims: dict[str, int], above: int) -> int:
    """Assert that no bound exceeds a count at `above` words more than the least M; how many bounds were larger than
    the compulsory one."""
    with pytest.raises(Infeasible) as too_small:
        choose(schedule, dims, 1)
    M = too_small.value.least_M + above
    words = count(schedule.program, dims | choose(schedule, dims, M)).total.io
    compulsory, *bounds = lower_bounds(schedule.problem, dims, M, Formulation.of(schedule))
    for bound in (compulsory, *bounds, best(schedule.problem, dims, M)):
        assert bound.value <= words, (schedule.name, dims, M, bound)
    return sum(bound.value > compulsory.value for bound in bounds)


@strategies.every(RECTANGULAR, of=8)
@given(data=st.data())
@strategies.draws(2, 20)
def test_no_schedule_moves_fewer_words_than_a_bound_in_a_rectangle(schedule: Schedule, data: st.DataObject) -> None:
    dims = {dim: data.draw(SIDE, dim) for dim in schedule.problem.dims}
    check_bounds(schedule, dims, data.draw(st.one_of(st.integers(0, 30), st.integers(0, 20_000))))


@pytest.mark.slow
def test_no_schedule_moves_fewer_words_than_a_bound_in_ten_thousand_rectangles() -> None:
    """Sides from 1 to 64 and powers of two up to 2^12, M from the least on; where bounds exceed the compulsory words,
    too."""
    rng, sharp = random.Random(23), 0
    schedules = list(RECTANGULAR.values())
    for drawn in range(10_000):
        schedule = schedules[drawn % len(schedules)]
        dims = {
            dim: rng.choice([rng.randint(1, 64), 2 ** rng.randint(0, 12 if dim in ("n_q", "n_k") else 6)])
            for dim in schedule.problem.dims
        }
        sharp += check_bounds(schedule, dims, int(2 ** rng.uniform(0, 14)) - 1) > 0
    assert sharp > 1_000


@given(
    capacity=CAPACITIES,
    M=st.integers(3, 60),
    N=st.integers(1, 3000),
    X=st.integers(3, 400),
    trees=st.integers(1, 100),
    tree=st.integers(1, 60),
    more=st.integers(0, 60),
)
@strategies.draws(60, 500)
def test_another_tree_that_is_as_large_never_lowers_a_bound(
    capacity: Capacity, M: int, N: int, X: int, trees: int, tree: int, more: int
) -> None:
    few = fewest_words(N, capacity, M, X, trees, tree)
    if X >= M and few is not None:
        many = fewest_words(N + tree + more, capacity, M, X, trees + 1, tree)
        assert many is not None and many >= few


# -- vertex covers -----------------------------------------------------------------------------------------------------


def matching(allowed: Any) -> int:
    graph = nx.Graph((int(i), -1 - int(j)) for i, j in zip(*np.nonzero(allowed), strict=True))
    return len(nx.max_weight_matching(graph, maxcardinality=True))


LIMIT = st.none() | st.integers(-4, 6)


@given(
    data=st.data(),
    n_q=st.integers(1, 12),
    n_k=st.integers(1, 12),
    kind=st.sampled_from(["band", "rows", "table", "lengths"]),
)
@strategies.draws(40, 500)
def test_covers_of_masks_are_largest_matchings(data: st.DataObject, n_q: int, n_k: int, kind: str) -> None:
    mask: Mask | None
    if kind in ("band", "rows"):
        rows = 1 if kind == "band" else data.draw(st.integers(2, 3))
        n_q *= rows
        mask = Band("band", data.draw(LIMIT), data.draw(LIMIT), at_end=data.draw(st.booleans()), rows=rows)
    elif kind == "table":
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        mask = from_array(rng.random((n_q, n_k)) < 0.3, size=(1, 1))
    else:
        mask = from_text(f"lengths:{n_q},{n_k}:causal")
        n_q = n_k = n_q + n_k
    assert mask is not None
    assert least_cover(mask, (n_q, n_k)) == matching(mask.allowed(n_q, n_k))


def test_covers_of_large_masks() -> None:
    n = 2**60
    causal, window = (from_text(text) for text in ("causal", "window:7"))
    assert causal and window
    assert least_cover(causal, (n, n)) == least_cover(window, (n, n)) == n
    assert least_cover(causal, (5, n)) == 5
    blocks = from_text("bigbird:64:3:1:1")
    assert blocks
    assert least_cover(blocks, (1000, 1000)) == 1000


# -- pairs that are red where a word is dead on one side and one late on the other -------------------------------------

LINES = {"backward-qkv": ("Q", "dO", "dQ", "K", "V", "dK", "dV"), "backward": ("A1", "dO", "A2", "A3")}
MADE = {"A1": "S", "dO": "dOY", "A2": "A2X", "A3": "h"}
PAIRS = {
    "backward-qkv": dict.fromkeys(("S", "A", "P"), "Σ") | dict.fromkeys(("dP", "dPv", "dS"), "Θ"),
    "backward": dict.fromkeys(("Z", "A", "f", "vf"), "Σ") | dict.fromkeys(("q", "qv", "fq", "Aq", "p"), "Θ"),
}


class Lives:
    """When each word of a line, each family of a pair and each made element is red in a game, and what is moved."""

    def __init__(self, problem: str, graph: Cdag, game: Moves) -> None:
        pairs, words = PAIRS[problem], {*LINES[problem], *(MADE.values() if problem == "backward" else ())}
        self.first: dict[Any, int] = {}
        self.last: dict[Any, int] = {}
        self.episodes: dict[Any, int] = defaultdict(int)
        self.red_at: dict[Any, set[int]] = defaultdict(set)
        self.moved: set[Any] = set()
        red: dict[Any, int] = defaultdict(int)
        for t, (kind, v) in enumerate(game, 1):
            family, _, index, _ = graph.locate(v)
            name: Any = (family.name, *index) if family.name in words else None
            if family.name in pairs:
                name = pairs[family.name], *index
            if kind in (READ, WRITE) and name is not None:
                self.moved.add(index[:2] if family.name in pairs else name)
            if name is not None and kind != WRITE:
                red[name] += -1 if kind == DELETE else 1
                if kind == DELETE:
                    self.last[name] = t
                elif red[name] == 1:
                    self.episodes[name] += 1
                    self.first.setdefault(name, t)
            for each in [each for each, pebbles in red.items() if pebbles and each[0] not in LINES[problem]]:
                self.red_at[each].add(t)
        for name, pebbles in red.items():
            if pebbles:
                self.last[name] = len(game) + 1

    def check(self, i: int, j: int, dead: list[Any], late: list[Any]) -> int:
        """Assert that the pair is red at all times at which a word is dead and another late; the number of times."""
        if (i, j) in self.moved:
            return 0
        gone = [self.last[word] for word in dead if self.episodes[word] == 1]
        begun = [self.first[word] for word in late if self.episodes[word] == 1]
        times = range(min(gone, default=0), max(begun, default=0)) if gone else range(0)
        for t in times:
            assert t in self.red_at["Σ", i, j] | self.red_at["Θ", i, j], (i, j, t)
        return len(times)


def lines(i: int, j: int, k: int, d: int) -> dict[str, list[Any]]:
    """Cores of a query and a key, the words of their outputs that have a product with the pair, and whole lines."""
    query = [(name, i, c) for name, c in product(("Q", "dO"), range(d))]
    key = [(name, j, c) for name, c in product(("K", "V"), range(d))]
    return {"query": query, "key": key, "dQ": [("dQ", i, k)], "dK": [("dK", j, k)]}


def check_cores(graph: Cdag, game: Moves, n: int, d: int) -> int:
    """The lemma of E7: a dead core, and a late core or output that the pair's dS is multiplied into; how often."""
    lives, seen = Lives("backward-qkv", graph, game), 0
    for i, j, k in product(range(n), range(n), range(d)):
        of = lines(i, j, k, d)
        seen += lives.check(i, j, of["query"], [*of["key"], *of["dK"]])
        seen += lives.check(i, j, of["key"], [*of["query"], *of["dQ"]])
        if (i, j) in lives.moved:
            continue
        for output, core in (("dK", "query"), ("dQ", "key")):  # what is dead has met all that is not late
            (word,) = of[output]
            if lives.episodes[word] == 1:
                assert all(lives.first[each] < lives.last[word] for each in of[core])
    return seen


def in_two_passes(graph: Cdag, n: int, d: int) -> Moves:
    """A game that reads each input once, makes dQ row by row, and then makes all pairs again for dK and dV."""
    game: Moves = [(READ, v) for v in graph.inputs.tolist()]
    red = {*graph.inputs.tolist()}

    def make(v: int) -> None:
        for u in graph.predecessors(v).tolist():
            if u not in red:
                make(u)
        game.append((COMPUTE, v))
        red.add(v)

    outputs = sorted(graph.outputs.tolist(), key=lambda v: (graph.locate(v)[0].name != "dQ", graph.locate(v)[2]))
    kept = {*graph.inputs.tolist()}
    for v in outputs:
        make(v)
        game.append((WRITE, v))
        for u in sorted(red - kept):
            game.append((DELETE, u))
            red.remove(u)
    return game


def test_a_dead_core_keeps_a_pair_red() -> None:
    """In games at random and in that of two passes; a dead output does not, as pairs may be made again for others."""
    rng, seen = random.Random(7), 0
    for _ in range(8):
        n, d = rng.choice([(2, 1), (3, 1), (2, 2), (3, 2)])
        graph = graphs.build("backward-qkv", n=n, d=d, kept="l")
        try:
            seen += check_cores(graph, of_use(graph, random_game(graph, rng.randint(30, 90), rng)), n, d)
        except Infeasible:
            continue
    assert seen > 0
    n, d = 4, 1
    graph = graphs.build("backward-qkv", n=n, d=d, kept="l")
    game = of_use(graph, in_two_passes(graph, n, d))
    judged = referee(graph, 1000, [np.array([pack(*move) for move in game], np.int64)])
    assert judged.legal and judged.complete
    check_cores(graph, game, n, d)
    lives = Lives("backward-qkv", graph, game)
    with pytest.raises(AssertionError):  # the same with outputs on both sides
        for i, j in product(range(n), range(n)):
            lives.check(i, j, [("dQ", i, 0)], [("dK", j, 0)])


def check_closed(graph: Cdag, game: Moves, n: int, d: int) -> int:
    """The lemma of D5: an input with a dead word, whose made row is not all red, and a late word; how often."""
    lives, seen, end = Lives("backward", graph, game), 0, len(game)

    def closed(name: str, line: int) -> list[int]:
        gone = [lives.last[name, line, c] for c in range(d) if lives.episodes[name, line, c] == 1]
        row = [(MADE[name], line, c) for c in range(d)]
        times = range(min(gone, default=end), end)
        return [t for t in times if any(t not in lives.red_at[each] and each not in lives.moved for each in row)]

    sides = ("A1", "dO"), ("A2", "A3")
    for i, j in product(range(n), range(n)):
        if (i, j) in lives.moved:
            continue
        for (line, inputs), (other, others) in (((i, sides[0]), (j, sides[1])), ((j, sides[1]), (i, sides[0]))):
            words = product(others, [other], range(d))
            late = max((lives.first[word] for word in words if lives.episodes[word] == 1), default=0)
            for t in sorted({t for name in inputs for t in closed(name, line) if t < late}):
                assert t in lives.red_at["Σ", i, j] | lives.red_at["Θ", i, j], (i, j, t)
                seen += 1
    return seen


def once(graph: Cdag, first: list[int]) -> Moves:
    """A game that makes these vertices first, each vertex once, and deletes each as soon as it is of no more use."""
    game: Moves = []
    inputs, outputs = {*graph.inputs.tolist()}, {*graph.outputs.tolist()}
    uses = Counter(u for v in range(graph.vertices) for u in graph.predecessors(v).tolist())
    done: set[int] = set()

    def make(v: int) -> None:
        if v in done:
            return
        done.add(v)
        before = graph.predecessors(v).tolist()
        for u in before:
            make(u)
        game.append((READ if v in inputs else COMPUTE, v))
        if v in outputs:
            game.append((WRITE, v))
        uses.subtract(before)
        game.extend((DELETE, u) for u in dict.fromkeys(before) if not uses[u])

    for v in (*first, *outputs):
        make(v)
    return game


def test_a_closed_input_keeps_a_pair_red_in_any_order() -> None:
    """Where all q, or half of the scores, come first, inputs are of no more use while others have not been read."""
    rng, seen = random.Random(2), dict.fromkeys(((), ("X",), ("Y",), ("X", "Y")), 0)
    for absorbed, order, some in product(seen, ("T", "U", "one-pass"), (0, 1)):
        n, d = rng.choice([(2, 2), (3, 1), (3, 2)])
        graph = graphs.build("backward", n=n, d=d, order=order, absorbed=absorbed)
        names = [graph.locate(v)[0].name for v in range(graph.vertices)]
        first = [v for v in range(graph.vertices) if names[v] == "q"]
        rng.shuffle(first)
        scores = [v for v in range(graph.vertices) if names[v] == "Z"]
        game = once(graph, rng.sample(scores, len(scores) // 2) * some + first)
        judged = referee(graph, graph.vertices, [np.array([pack(*move) for move in game], np.int64)])
        assert judged.legal and judged.complete
        seen[absorbed] += check_closed(graph, game, n, d)
    assert min(seen.values()) > 10, seen


# -- linear attention -------------------------------------------------------------------------------------------------

CHAIN = {"A1": ("n", "d"), "X": ("d", "d"), "A2ᵀ": ("d", "n"), "A3": ("n", "d"), "Y": ("d", "d")}
Made = tuple[str, str, str, tuple[str, str, str]]


def orders(names: tuple[str, ...]) -> list[tuple[str, list[Made]]]:
    """All orders of a product: the name of the result, and each product's result, operands and sides."""
    if len(names) == 1:
        return [(names[0], [])]
    found = []
    for cut in range(1, len(names)):
        for (left, one), (right, other) in product(orders(names[:cut]), orders(names[cut:])):
            sides = CHAIN[names[0]][0], CHAIN[names[cut]][0], CHAIN[names[-1]][1]
            result = f"({left} {right})"
            found.append((result, [*one, *other, (result, left, right, sides)]))
    return found


@given(n=st.integers(1, 12), d=st.integers(1, 12), M=st.integers(3, 60), X=st.integers(3, 300))
@strategies.draws(40, 300)
def test_l2_is_the_least_of_all_fourteen_orders(n: int, d: int, M: int, X: int) -> None:
    l2 = next(each for each in claims_of(case_of("linear", Formulation(), n=n, d=d)).values() if each.name == "L2")
    assert len(orders(tuple(CHAIN))) == 14
    least = fewest_words(l2.products, Cube(), M, X, l2.free, min(n, d))
    for _, made in orders(tuple(CHAIN)):
        assert private_families(tuple(((p[0], p[1], p[2]), 1) for p in made), 1)
        sizes = [[{"n": n, "d": d}[side] for side in p[3]] for p in made]
        trees = sum(rows * columns for rows, _, columns in sizes[:-1])
        words = fewest_words(sum(a * b * c for a, b, c in sizes), Cube(), M, X, trees, min(n, d))
        assert X < M or least is None or (words is not None and words >= least)


# -- what a segment holds --------------------------------------------------------------------------------------------


def test_several_orders_and_weights_in_one_table_would_make_too_many_products() -> None:
    """S made of d queries and S' of d keys, with X in the cache: 3d³ products of 6d² words, where 2√2 d³ may be."""
    d = 30
    X, lines, pairs = d * d, 4 * d * d, d * d
    made, scores = 2 * d * d * d, pairs * d
    assert made + scores > Cube()(X + lines + pairs)
    assert max(made, scores) <= Cube()(X + lines + pairs)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ["forward", "backward", "backward-qkv", "projected-forward", "projected-backward-qkv"])
@pytest.mark.parametrize("text", ["causal", "window:8", "window:1"])
def test_a_number_of_pairs_says_no_more_than_a_mask_with_so_many(name: str, text: str) -> None:
    """Where only Z is known, trees that bring no products are as many as there may be."""
    problem, mask = PROBLEMS[name], from_text(text)
    for n, d in ((64, 8), (40, 3), (5, 7)):
        dims = {dim: n if dim == "n" else d for dim in problem.dims}
        for M in (3, 16, d * d, 4 * d * d, n * d):
            of_mask, of_number = (best_of_ways(problem, dims, M, pairs) for pairs in (mask, mask.pairs(n, n)))
            for way, bound in of_number.items():
                assert bound.value <= of_mask[way].value, (way, n, d, M)
