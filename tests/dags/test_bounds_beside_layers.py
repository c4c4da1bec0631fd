"""`places` and `trees` beside the least I/O of drawn graphs, and multipliers that no solver would propose."""

import itertools
import random

import numpy as np
import pytest
from oracle_games import least_io
from oracle_layers import least_by_layers
from strategies import amount

from pebblesim.dags import parts
from pebblesim.dags.optimum import optimum
from pebblesim.dags.orders import Task
from pebblesim.dags.places import SCALE, Certificate, certificates
from pebblesim.dags.task_data import TaskData
from pebblesim.dags.trees import cuts
from pebblesim.graphs.cdag import Cdag

RULES = "no-recompute"


def drawn(rng: random.Random) -> Cdag:
    """Draw a graph of 4 to 9 vertices; some have inputs with operands, outputs with uses, or values from nothing."""
    n, kind = rng.randint(4, 9), rng.randrange(4)
    share, width = rng.choice([0.2, 0.35, 0.5, 0.7]), rng.randint(1, 3)
    edges = [
        *((u, v) for v in range(n) for u in range(v) if kind == 0 and rng.random() < share),
        *((u, v) for v in range(width, n) if kind == 1 for u in rng.sample(range(v), min(v, rng.randint(1, 3)))),
        *((v, rng.randint(v + 1, min(n - 1, v + 4))) for v in range(n - 1) if kind == 2),
        *((u, v) for v in range(n) if kind == 3 for u in (v - width - 1, v - width) if u >= 0 and rng.random() < 0.75),
    ]
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    graph = Cdag.from_edges(n, pairs)
    if rng.random() < 0.6:
        return graph
    inputs = {v for v in range(n) if rng.random() < (0.8 if v in graph.inputs else 0.1)}
    outputs = {v for v in range(n) if rng.random() < (0.8 if v in graph.outputs else 0.2)} or {n - 1}
    return Cdag.from_edges(n, pairs, inputs=sorted(inputs), outputs=sorted(outputs))


def cases(rng: random.Random, number: int) -> list[tuple[Cdag, TaskData, int]]:
    """Return graphs at every M at which the optimum exceeds the compulsory words, with the optimum."""
    found = []
    for graph in (drawn(rng) for _ in range(number)):
        for M in itertools.count(Task(graph, 2**40, RULES).least_M):
            data = TaskData(Task(graph, M, RULES), M)
            least = least_by_layers(graph, M)
            assert data.words <= least
            if least == data.words:
                break
            found.append((graph, data, least))
    return found


def proved(data: TaskData, **limits: int) -> list[Certificate]:
    return list(certificates(data, 600, **limits))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_places_and_trees_never_exceed_the_least(seed: int) -> None:
    rng = random.Random(seed)
    limits = itertools.cycle([{}, {"size": 3}, {"size": 2, "rows": 20}, {"rows": 60}])
    bites = above = 0
    for _, data, least in cases(rng, amount(40, 4_000) if seed == 1 else 4_000):
        words = sum(each.words for each in proved(data, **next(limits)))
        assert data.words + max(words, 2 * cuts(data)) <= least
        above, bites = above + 1, bites + (words > 0)
    assert bites > above / 2


@pytest.mark.parametrize("seed", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_parts_never_exceed_the_least(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    bites = 0
    for _, data, least in cases(rng, amount(40, 4_000) if seed == 4 else 4_000):
        monkeypatch.setattr(parts, "MOST_STEPS", rng.randint(2, 6))
        words = parts.words(data, 600)
        assert data.words + words <= least
        bites += words > 0
    assert bites


def test_a_computed_source_is_no_input_of_a_part() -> None:
    """Two parts with the same edges: v leaves the cache, and is written where it was computed."""
    v, a, b, x, y, z = range(6)
    edges = [(v, x), (a, x), (x, y), (b, y), (y, z), (v, z)]
    twice = edges + [(tail + 6, head + 6) for tail, head in edges]
    graph = Cdag.from_edges(12, np.array(twice), [a, b, v + 6, a + 6, b + 6], [z, z + 6])
    data = TaskData(Task(graph, 3, RULES), 3)
    assert parts.words(data, 600) == 3 == optimum(graph, 3, RULES).io - data.words


def test_any_multipliers_prove_what_is_true() -> None:
    """Negative ones, the least of 64 bits, which stands for no number, and right sides near 2^62 among them."""
    rng = random.Random(3)
    numbers = [0, 1, SCALE // 2, SCALE, 64 * SCALE, 2**40, 2**63 - 1, -1, -SCALE, -(2**63)]
    for graph, data, least in cases(rng, 60):
        for M, most in ((data.M, least - data.words), (2**62, 0)):
            for each in proved(TaskData(Task(graph, M, RULES), M)):
                for low in (0, 0, 7):
                    times = np.array([rng.choice(numbers[low:]) for _ in each.multipliers], dtype=np.int64)
                    assert each.made.proved(times) <= most
                assert each.made.proved(np.full(len(each.multipliers), rng.choice(numbers))) <= most


@pytest.mark.one_in(2)
def test_the_oracle_agrees_with_single_moves() -> None:
    compared = 0
    for graph, data, least in cases(random.Random(4), amount(300, 2_000)):
        if graph.vertices <= 7:  # single moves take seconds for more
            assert least == least_io(graph, data.M, RULES)
            compared += 1
    assert compared > 3
