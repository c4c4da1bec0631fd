"""Linear programs over places: a checker of their certificates that shares no code, games, and all small graphs."""

import itertools
import random
import time
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from dags.test_dags import fold, random_graph
from oracle_games import least_io
from strategies import amount

from pebblesim.dags import bounds, places
from pebblesim.dags.generators import generate
from pebblesim.dags.orders import Task
from pebblesim.dags.places import LOST, READ, ROOM, RUNS, SCALE, WRITTEN, Certificate, certificates
from pebblesim.dags.task_data import TaskData
from pebblesim.dags.trees import cuts
from pebblesim.game.moves import COMPUTE, DELETE, READ as READS, WRITE, pack
from pebblesim.game.referee import referee
from pebblesim.graphs.cdag import Cdag

RULES = "no-recompute"


class Facts:
    """A graph, from its edges alone."""

    def __init__(self, graph: Cdag, M: int) -> None:
        n = graph.vertices
        self.M, self.inputs, self.outputs = M, set(graph.inputs.tolist()), set(graph.outputs.tolist())
        before = [set(graph.predecessors(v).tolist()) for v in range(n)]
        self.needed, stack = set(), [v for v in self.outputs if v not in self.inputs]
        while stack:
            v = stack.pop()
            if v not in self.needed:
                self.needed.add(v)
                stack += [u for u in before[v] if u not in self.inputs]
        self.operands = {v: before[v] for v in self.needed}
        self.above: dict[int, set[int]] = {}
        for v in range(n):  # the graphs here are numbered in a topological order
            self.above[v] = set().union(*({u} | self.above[u] for u in self.operands.get(v, ())))
        used = set().union(*self.operands.values()) if self.needed else set()
        self.compulsory = len(used & self.inputs) + len(self.outputs - self.inputs)

    def follows(self, p: int, q: int) -> bool:
        return p in self.above[q]


class Row:
    """An inequality sum of coefficients x variables <= right, from what it is about."""

    def __init__(self, facts: Facts, events: dict[int, list[int]], kept: set[tuple[int, int]], what: list[int]) -> None:
        kind, u, p, q, x = what
        self.terms: dict[tuple[object, ...], int] = defaultdict(int)
        self.right, self.facts = 0, facts
        if kind != ROOM:
            assert u in events and (kind == RUNS or ({p, q} <= set(events[u]) and p != q and not facts.follows(q, p)))
        if kind == LOST:
            assert x in facts.needed and x not in (u, p, q) and u not in facts.operands[x]
            self.before(x, q, 1)
            self.before(x, p, -1)
            self.terms["kept", u, x] -= 1
            self.terms["read", u, p, q] -= 1
        elif kind == ROOM:
            self.right = facts.M - 1 - len(facts.operands[x])
            for value, moment in kept:
                if moment == x:
                    self.terms["kept", value, x] += 1
        elif kind in (READ, WRITTEN):
            self.both(u, p, q)
            assert kind == READ or u not in facts.inputs | facts.outputs
            self.terms["again" if kind == READ else "written", u] -= 1
        else:
            near = [
                (p, q)
                for p, q in itertools.combinations(events[u], 2)
                if not any(facts.follows(a, z) and facts.follows(z, b) for a, b in ((p, q), (q, p)) for z in events[u])
            ]
            for p, q in near:
                self.both(u, p, q)
            self.terms["again", u] -= 1
            self.right = len(near) - len(events[u]) + 1

    def both(self, u: int, p: int, q: int) -> None:
        for a, b in ((p, q), (q, p)):
            if not self.facts.follows(b, a):
                self.terms["read", u, a, b] += 1

    def before(self, x: int, v: int, sign: int) -> None:
        if self.facts.follows(x, v):
            self.right -= sign
        elif x != v and not self.facts.follows(v, x):
            if x > v:
                self.right -= sign
                sign = -sign
            self.terms["before", min(x, v), max(x, v)] += sign


def events_of(certificate: Certificate) -> dict[int, list[int]]:
    start, events = certificate.block.event_start.tolist(), certificate.block.events.tolist()
    return {u: events[start[k] : start[k + 1]] for k, u in enumerate(certificate.block.values.tolist())}


def rows_of(facts: Facts, certificate: Certificate) -> list[Row]:
    events, what = events_of(certificate), certificate.made.what.tolist()
    for u, own in events.items():
        assert len(set(own)) == len(own) and (u in facts.inputs or own[0] == u)
        assert all(u in facts.operands[v] for v in own if v != u)
    kept = {(u, x) for kind, u, _, _, x in what if kind == LOST}
    return [Row(facts, events, kept, each) for each in what]


def words_proved(facts: Facts, certificate: Certificate) -> int:
    """What the multipliers prove: the least of the costs plus all rows x multipliers, each variable by itself."""
    cost: dict[tuple[object, ...], Fraction] = defaultdict(Fraction)
    constant = Fraction(0)
    for row, multiplier in zip(rows_of(facts, certificate), certificate.multipliers.tolist(), strict=True):
        assert multiplier >= 0
        constant -= Fraction(multiplier, SCALE) * row.right
        for variable, coefficient in row.terms.items():
            cost[variable] += Fraction(multiplier, SCALE) * coefficient
    events = events_of(certificate)
    for variable, each in cost.items():
        kind = variable[0]
        most = len(events[variable[1]]) - 1 if kind == "again" else 1
        constant += min(Fraction(0), each + (kind in ("again", "written"))) * most
    return max(0, -(-constant.numerator // constant.denominator))


def proofs(graph: Cdag, M: int, **limits: int) -> tuple[Facts, list[Certificate]]:
    data = TaskData(Task(graph, M, RULES), M)
    return Facts(graph, M), list(certificates(data, 60, **limits))


def check_blocks(facts: Facts, proved: list[Certificate]) -> None:
    """What is counted twice: no value that is computed, and of inputs only uses behind all those counted before."""
    seen: dict[int, list[int]] = {}
    for certificate in proved:
        for u, own in events_of(certificate).items():
            earlier = seen.setdefault(u, [])
            assert not earlier or (u in facts.inputs and all(facts.follows(p, q) for p in earlier for q in own))
            earlier += own


def random_game(rng: random.Random, facts: Facts) -> list[tuple[int, int]]:
    """Any order, and any eviction."""
    left = {v: set(before) - facts.inputs for v, before in facts.operands.items()}
    red, blue, game = set(), set(facts.inputs), []
    uses = defaultdict(set)
    for v, before in facts.operands.items():
        for u in before:
            uses[u].add(v)
    while left:
        v = rng.choice(sorted(w for w, before in left.items() if not before))
        del left[v]
        for u in [*sorted(facts.operands[v] - red), v]:
            while len(red) >= facts.M or (red - facts.operands[v] and rng.random() < 0.2):
                out = rng.choice(sorted(red - facts.operands[v]))
                if uses[out] and out not in blue:
                    game.append((WRITE, out))
                    blue.add(out)
                game.append((DELETE, out))
                red.discard(out)
            game.append((COMPUTE, u) if u == v else (READS, u))
            red.add(u)
        if v in facts.outputs:
            game.append((WRITE, v))
            blue.add(v)
        for before in left.values():
            before.discard(v)
        for u in facts.operands[v]:
            uses[u].discard(v)
    return game


def values_in(
    game: list[tuple[int, int]],
) -> tuple[dict[int, int], dict[int, set[int]], dict]:
    """When each vertex is computed, what is red then, and when each value is read or written."""
    red, times, there, moved = set(), {}, {}, defaultdict(list)
    for time_now, (kind, v) in enumerate(game):
        if kind == DELETE:
            red.discard(v)
            continue
        if kind == WRITE:
            moved["written", v].append(time_now)
            continue
        red.add(v)
        if kind == COMPUTE:
            times[v], there[v] = time_now, set(red)
        else:
            moved["read", v].append(time_now)
    return times, there, moved


def check_game(facts: Facts, game: list[tuple[int, int]], proved: list[Certificate]) -> None:
    """Every row holds for the game, and what the variables cost is at most its words above the compulsory ones."""
    times, there, moved = values_in(game)
    total = 0
    for certificate in proved:
        events = events_of(certificate)

        def value(variable: tuple, events: dict[int, list[int]] = events) -> int:
            kind, u, *others = variable
            if kind == "before":
                return int(times[u] < times[others[0]])
            if kind == "kept":
                return int(u in there[others[0]])
            if kind == "written":
                return int(bool(moved["written", u]))
            if kind == "read":
                return int(any(times[others[0]] < t < times[others[1]] for t in moved["read", u]))
            at = sorted(times[e] for e in events[u])
            return sum(any(a < t < b for t in moved["read", u]) for a, b in itertools.pairwise(at))

        for row in rows_of(facts, certificate):
            assert sum(c * value(variable) for variable, c in row.terms.items()) <= row.right
        total += sum(value(("again", u)) for u in events)
        total += sum(value(("written", u)) for u in events if u not in facts.inputs | facts.outputs)
    io = sum(kind in (READS, WRITE) for kind, _ in game)
    assert total <= io - facts.compulsory


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_game_satisfies_the_rows_and_certificates_prove_what_is_said(seed: int) -> None:
    rng = random.Random(seed)
    bites = 0
    for number in range(amount(12, 400) if seed == 1 else 400):
        graph = random_graph(rng, 12) if number % 3 else fold(rng.randint(3, 6))
        M = Task(graph, 2**40, RULES).least_M + rng.choice([0, 1])
        facts, proved = proofs(graph, M, **({"size": 4, "rows": 200} if number % 2 else {}))
        check_blocks(facts, proved)
        assert [words_proved(facts, each) for each in proved] == [each.words for each in proved]
        bites += any(each.words for each in proved)
        for _ in range(3):
            game = random_game(rng, facts)
            moves = np.array([pack(kind, v) for kind, v in game], dtype=np.int64)
            assert referee(graph, M, [moves], RULES).complete
            check_game(facts, game, proved)
    assert bites > 2


def test_uses_of_an_input_in_two_blocks_count_in_both_only_if_they_are_in_order() -> None:
    """One input is used by 4 vertices of depth 1 and by 4 of depth 2, which descend from all of those, or from none."""
    apart = [*((0, v) for v in range(1, 6)), *((u, v) for v in range(6, 10) for u in (0, 1)), (10, 11), (11, 12)]
    behind = [(u, v) for v in range(6, 10) for u in range(2, 6)]
    for edges, number in ((apart, 1), (apart + behind, 2)):
        graph = Cdag.from_edges(13, edges)
        facts, proved = proofs(graph, Task(graph, 2**40, RULES).least_M, size=4)
        check_blocks(facts, proved)
        assert sum(0 in events_of(each) for each in proved) == number


def all_graphs(n: int) -> list[Cdag]:
    pairs = [(u, v) for v in range(n) for u in range(v)]
    return [
        Cdag.from_edges(n, np.array([e for e, there in zip(pairs, bits, strict=True) if there]).reshape(-1, 2))
        for bits in itertools.product((0, 1), repeat=len(pairs))
    ]


@pytest.mark.parametrize("n", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_no_bound_exceeds_the_least_of_any_small_graph(n: int) -> None:
    bites = 0
    for graph in all_graphs(n):
        least_M = Task(graph, 2**40, RULES).least_M
        for M in range(least_M, least_M + 2):
            least = least_io(graph, M, RULES)
            data = TaskData(Task(graph, M, RULES), M)
            words = sum(each.words for each in certificates(data, 60))
            assert data.words + max(words, 2 * cuts(data)) <= least
            bites += words > 0
    assert bites or n < 5


def test_places_by_hand() -> None:
    """A fold of 10 values at M = 4 (its optimum is 14 or 16), and FFT and pyramid beside their optima."""
    for graph, M, least in (
        (fold(10), 4, 14),
        (generate("tree", depth=5), 3, 63),
        (generate("fft", n=4), 3, 12),
        (generate("pyramid", rows=5), 3, 15),
    ):
        facts, proved = proofs(graph, M)
        assert facts.compulsory + sum(each.words for each in proved) >= least


@pytest.mark.parametrize(
    ("graph", "capacities"),
    [
        (("stencil", {"n": 6, "t": 3}), (5,)),
        (("fft", {"n": 8}), (3, 4, 6, 8, 12)),
        pytest.param(("fft", {"n": 16}), (3, 4, 5, 8), marks=pytest.mark.slow),
        pytest.param(("pyramid", {"rows": 20}), (8, 12), marks=pytest.mark.slow),
    ],
)
def test_a_faster_clock_changes_no_bound_of_the_documents(
    graph: tuple[str, dict[str, int]], capacities: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock ended a bound, or there was no time to begin: a busy machine gave smaller bounds.

    A clock of 50 times the speed stands for a machine that is busy with 49 other things; the solvers have their own.
    """
    made = generate(graph[0], **graph[1])
    data = [TaskData(Task(made, M, RULES), M) for M in capacities]
    slow = [bounds.slowly(each, 1) for each in data]
    clock, began = time.monotonic, time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 50 * (clock() - began))
    assert [bounds.slowly(each, 1) for each in data] == slow
    places = [bound.value for each in slow for bound in each if bound.name == "places"]
    if graph[0] == "stencil":
        assert places == [18]
    if graph[0] == "pyramid":
        assert places == [36, 25]  # in docs/dags.md


def fewest_cuts(facts: Facts) -> int:
    """Try all sets of values to cut off; what is left must fit, in any order of the operands."""
    uses = defaultdict(int)
    for before in facts.operands.values():
        for u in before:
            uses[u] += 1
    tree = [u for u in facts.needed if uses[u] == 1 and u not in facts.outputs]

    def places(v: int, gone: set[int]) -> int:
        below = [places(u, gone) for u in facts.operands[v] if u in tree and u not in gone]
        orders = itertools.permutations(below)
        return max(len(facts.operands[v]) + 1, min(max([0, *(p + k for k, p in enumerate(order))]) for order in orders))

    for number in range(len(tree) + 1):
        for gone in map(set, itertools.combinations(tree, number)):
            if all(places(v, gone) <= facts.M for v in facts.needed):
                return number
    raise AssertionError


@pytest.mark.one_in(2)
def test_cuts_of_trees_are_the_fewest_and_the_bound_is_met() -> None:
    rng = random.Random(5)
    bites = 0
    for number in range(160):
        n = rng.randint(4, 11)
        edges = [(v, rng.randint(v + 1, min(n - 1, v + 5))) for v in range(n - 1)]
        tree = number % 4 > 0
        graph = Cdag.from_edges(n, edges) if tree else random_graph(rng, 8)
        M = Task(graph, 2**40, RULES).least_M
        data = TaskData(Task(graph, M, RULES), M)
        fewest = fewest_cuts(Facts(graph, M))  # of values with one use; other trees may prove more
        assert cuts(data) == fewest if tree else cuts(data) >= fewest
        if graph.vertices < 9:
            least = least_io(graph, M, RULES)
            assert data.words + 2 * cuts(data) == least if tree else data.words + 2 * cuts(data) <= least
        bites += cuts(data) > 0
    assert bites > 2


def test_rows_of_a_program_have_all_columns_from_the_first_on() -> None:
    """A column below 0 is none."""
    rows = places._Rows()
    for right in (7, 9):
        rows.add(places.ROOM, (np.array([0, 0, 1]), np.array([0, -1, 2]), np.array([3, 5, 1])), [right, 0], 0, 0, 0, 0)
    made = rows.program(np.zeros(3, np.int64), np.ones(3, np.int64))
    assert (made.rows.tolist(), made.columns.tolist()) == ([0, 1, 2, 3], [0, 2, 0, 2])
    assert (made.coefficients.tolist(), made.right.tolist()) == ([3, 1, 3, 1], [7, 0, 9, 0])
