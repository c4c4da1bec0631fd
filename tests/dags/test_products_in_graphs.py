"""Products of matrices found in a graph: the indices they are given, the capacity, and games that move few words."""

import itertools
import random
from collections import defaultdict

import numpy as np
import pytest
from strategies import amount

from pebblesim.dags.generators import generate
from pebblesim.dags.optimum import optimum
from pebblesim.dags.orders import Task
from pebblesim.dags.products import indices, products_in, words
from pebblesim.dags.search import pebble
from pebblesim.dags.task_data import TaskData
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.problems import problem
from pebblesim.lower_bounds.bounds import lower_bounds
from pebblesim.lower_bounds.capacities import Box

RULES = "hong-kung"


def data_of(graph: Cdag, M: int) -> TaskData:
    return TaskData(Task(graph, M, RULES), M)


def renumbered(graph: Cdag, rng: random.Random) -> Cdag:
    """The graph with its vertices in any order that is topological."""
    left = {v: set(graph.predecessors(v).tolist()) for v in range(graph.vertices)}
    place: dict[int, int] = {}
    while left:
        v = rng.choice([v for v, before in left.items() if before <= place.keys()])
        place[v] = len(place)
        del left[v]
    edges = [(place[u], place[v]) for v in range(graph.vertices) for u in graph.predecessors(v).tolist()]
    return Cdag.from_edges(graph.vertices, np.array(edges))


def drawn(rng: random.Random) -> tuple[Cdag, list[tuple[int, int, int]]]:
    """Draw up to 8 products of any two inputs, each added to any output, and how they are added."""
    inputs, outputs = rng.randint(2, 6), rng.randint(1, 4)
    pairs = list(itertools.combinations(range(inputs), 2))
    if rng.random() < 0.6:  # two sides, as of two matrices
        pairs = [(a, b) for a, b in pairs if a < inputs / 2 <= b]
    chosen = [(*rng.choice(pairs), rng.randrange(outputs)) for _ in range(rng.randint(1, 8))]
    edges, products, number, sums = [], [], inputs + len(chosen), defaultdict(list)
    for p, (a, b, c) in enumerate(chosen, inputs):
        edges += [(a, p), (b, p)]
        sums[c].append(p)
    roots = {}
    for c, terms in sums.items():
        while len(terms) > 1:
            taken = [terms.pop(0) for _ in range(min(len(terms), rng.randint(2, 3)))]
            edges += [(p, number) for p in taken]
            terms.append(number)
            number += 1
        roots[c] = terms[0]
    products = [(a, b, roots[c]) for a, b, c in chosen]
    return Cdag.from_edges(number, np.array(edges)), products


@pytest.mark.parametrize("chains", [True, False])
@pytest.mark.parametrize(("m", "k", "n"), [(2, 3, 4), (3, 3, 3), (1, 4, 2), (4, 1, 3)])
def test_a_product_of_matrices_is_found_however_it_is_numbered(m: int, k: int, n: int, chains: bool) -> None:
    graph = renumbered(generate("matmul", m=m, k=k, n=n, chains=chains), random.Random(m * k * n))
    for M in (4, 6, 11):
        data = data_of(graph, max(M, 2 if chains else k + 1))
        found = indices(products_in(data), graph.vertices)
        assert len(np.unique(found, axis=0)) == m * k * n
        assert sorted(len(np.unique(column)) for column in found.T) == sorted((m, k, n))
        ours = next(b for b in lower_bounds(problem("matmul"), {"m": m, "k": k, "n": n}, data.M) if b.name == "B")
        assert words(data) == (0 if ours.why_not else ours.value)


def test_indices_belong_to_elements_and_no_set_of_products_exceeds_the_capacity() -> None:
    """All sets of the drawn products are tried, with the numbers of operands and outputs that each has."""
    rng = random.Random(7)
    odd = full = 0
    for _ in range(amount(60, 2_000)):
        graph, made = drawn(rng)
        data = data_of(graph, graph.vertices)
        products = products_in(data)
        listed = list(zip(products.operands.tolist(), products.roots.tolist(), strict=True))
        assert sorted((*pair, c) for pair, c in listed) == sorted(made)
        of: dict[tuple[str, int], tuple[int, int]] = {}
        kept = {}
        for ((a, b), c), (i, t, j) in zip(listed, indices(products, graph.vertices).tolist(), strict=True):
            if i < 0:
                odd += 1
                continue
            assert of.setdefault(("output", c), (i, j)) == (i, j)
            first, second = of.get(("input", a)), of.get(("input", b))
            if (first == (t, j) and first != (i, t)) or (second == (i, t) and second != (t, j)):
                a, b = b, a
            kept.setdefault((i, t, j), []).append((a, b, c))
        sides = tuple(len({key[at] for key in kept}) for at in range(3)) if kept else (1, 1, 1)
        capacity = Box(sides)
        for number in range(1, len(kept) + 1):
            for some in itertools.combinations(kept.values(), number):
                for each in itertools.product(*some):
                    reach = len({x for a, b, _ in each for x in (a, b)}) + len({c for *_, c in each})
                    assert number <= capacity(reach)
                    full += number == capacity(reach)
    assert odd and full


def test_no_game_moves_fewer_words() -> None:
    rng = random.Random(8)
    bites = 0
    for number in range(amount(12, 200)):
        if number % 3:
            graph, _ = drawn(rng)
        else:
            m, k, n = (rng.randint(2, 5) for _ in range(3))
            graph = renumbered(generate("matmul", m=m, k=k, n=n, chains=rng.random() < 0.7), rng)
        M = Task(graph, 2**40, RULES).least_M + rng.randint(0, 3)
        data = data_of(graph, M)
        assert words(data) <= pebble(graph, M=M, rules=RULES, seconds=0).io
        bites += words(data) > data.words
    assert bites


@pytest.mark.slow
def test_no_optimum_is_smaller() -> None:
    rng = random.Random(9)
    for _ in range(60):
        graph, _ = drawn(rng)
        M = Task(graph, 2**40, RULES).least_M
        assert words(data_of(graph, M)) <= optimum(graph, M, RULES, states=200_000).io
    for M in (4, 5, 6):
        graph = generate("matmul", n=2)
        assert words(data_of(graph, M)) <= optimum(graph, M, RULES, states=500_000).io
