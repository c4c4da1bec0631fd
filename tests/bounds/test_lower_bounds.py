"""Lower bounds: their pieces against brute force, and all of them against exact optima and against every schedule."""

import random
import re
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal, localcontext
from functools import partial
from itertools import pairwise, product
from math import isqrt

import numpy as np
import pytest
import strategies
from checkout import ROOT
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

import pebblesim as ps
from pebblesim import graphs
from pebblesim.analysis.blocks import choose
from pebblesim.analysis.count import count
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.dags.optimum import optimum
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.masks import from_array, from_text
from pebblesim.language.problems import PROBLEMS, Problem
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.lower_bounds.bounds import Formulation, LowerBound, Pairs, best, largest, lower_bounds, sparse_product
from pebblesim.lower_bounds.capacities import (
    Box,
    Capacity,
    Cube,
    Fresh,
    Gradients,
    Latent,
    Rows,
    least_words,
    least_words_of_light_trees,
)

every_schedule = strategies.every(SCHEDULES, of=3)
SIDES = st.integers(1, 6)
FRESH_16 = partial(Fresh, query=1, key=1, joined=False)
FRESH_24 = partial(Fresh, query=2, key=2, joined=True)


# -- capacities ------------------------------------------------------------------------------------------------------


def most_products(X: int, sides: tuple[int, int, int]) -> int:
    """Most N with N² ≤ abc and N ≤ na, mb, kc for whole numbers a + b + c = X."""
    m, k, n = sides
    splits = ((a, b, X - a - b) for a in range(X + 1) for b in range(X + 1 - a))
    return max(min(isqrt(a * b * c), n * a, m * b, k * c, m * k * n) for a, b, c in splits)


@settings(max_examples=100)
@given(X=st.integers(0, 40), sides=st.tuples(SIDES, SIDES, SIDES))
def test_the_box_holds_what_numbers_of_families_allow_and_hardly_more(X: int, sides: tuple[int, int, int]) -> None:
    assert most_products(X, sides) <= Box(sides).of_sides(X) <= most_products(X + 3, sides)  # rounding three numbers up
    assert Box(sides)(X) <= Box(sides).of_sides(X) <= Cube()(X)


@given(
    m=st.integers(1, 3), k=st.integers(1, 2), n=st.integers(1, 3), keep=st.integers(0, 2**12 - 1), X=st.integers(0, 15)
)
def test_no_choice_of_entries_makes_more_products_than_the_box(m: int, k: int, n: int, keep: int, X: int) -> None:
    """Any entries of A and B, and then the entries of C that get the most terms of them."""
    A = [(i, t) for i in range(m) for t in range(k) if keep >> (i * k + t) & 1]
    B = [(t, j) for t in range(k) for j in range(n) if keep >> (m * k + t * n + j) & 1]
    terms = sorted(
        (sum((i, t) in A and (t, j) in B for t in range(k)) for i in range(m) for j in range(n)), reverse=True
    )
    left = X - len(A) - len(B)
    if left >= 0:
        assert sum(terms[:left]) <= Box((m, k, n))(X)


@given(X=st.integers(0, 60), w=st.integers(1, 9))
def test_rows_hold_the_most_pairs(X: int, w: int) -> None:
    assert Rows(w)(X) == max(I * J + X - w * (I + J) for I in range(X // w + 1) for J in range(X // w + 1 - I))


SHARE = st.floats(0, 1)


@given(d=st.integers(1, 8), X=st.integers(1, 5000), shares=st.lists(SHARE, min_size=4, max_size=4))
def test_no_split_makes_more_products_of_fresh_pairs_than_fit_16(d: int, X: int, shares: list[float]) -> None:
    """Rows and columns z, carried pairs e, entries of V and O: N ≤ √(v o (e + I J)) with d(I + J) = z."""
    total = sum(shares) or 1
    z, e, v, o = (share * X / total for share in shares)
    assert (v * o * (e + (z / (2 * d)) ** 2)) ** 0.5 <= FRESH_16(d)(X) + 1 + 1e-9 * X**2


def test_that_split_is_reached() -> None:
    d, X = 4, 4000
    assert (X / 4 * X / 4) ** 0.5 * (X / 2) / (2 * d) == FRESH_16(d)(X)
    assert isqrt(X**3 // 27) == FRESH_16(10**9)(X)


@given(d=st.integers(1, 8), X=st.integers(1, 5000), shares=st.lists(SHARE, min_size=7, max_size=7), cut=SHARE)
def test_no_split_makes_more_products_of_fresh_pairs_than_fit_24(
    d: int, X: int, shares: list[float], cut: float
) -> None:
    """A row costs 2d words, a column 2d of which d are the operand a; u1 results are in rows of fresh pairs."""
    total = sum(shares) or 1
    rows, columns, more, u1, u2, e1, e2 = (share * X / total for share in shares)
    I, J = rows / (2 * d), columns / (2 * d)
    a, u1 = J * d + more, min(u1, d * I)
    assert 2 * d * I + J * d + a + u1 + u2 + e1 + e2 <= X + 1e-6
    made = a**0.5 * (((I * J + e1) * u1) ** 0.5 + (e2 * u2) ** 0.5)
    assert made <= FRESH_24(d)(X) + 1 + 1e-9 * X**2


@given(
    d_v=st.integers(1, 8),
    d_r=st.integers(0, 20),
    X=st.integers(1, 5000),
    shares=st.lists(SHARE, min_size=7, max_size=7),
)
def test_no_split_makes_more_products_with_a_part_of_the_keys_than_fit(
    d_v: int, d_r: int, X: int, shares: list[float]
) -> None:
    """A row costs d_k words, a column d_k of which d_v are its values; others of these are within reach, too."""
    total = sum(shares) or 1
    rows, columns, more, u1, u2, e1, e2 = (share * X / total for share in shares)
    I, J = rows / (d_v + d_r), columns / (d_v + d_r)
    values, u1 = J * d_v + more, min(u1, d_v * I)
    made = values**0.5 * (((I * J + e1) * u1) ** 0.5 + (e2 * u2) ** 0.5)
    assert made <= Latent(d_v + d_r, d_v)(X) + 1 + 1e-9 * X**2


@given(
    d_v=st.integers(1, 8),
    column=st.integers(0, 20),
    row=st.integers(0, 30),
    X=st.integers(1, 5000),
    shares=st.lists(SHARE, min_size=7, max_size=7),
)
def test_so_it_is_where_a_row_costs_other_words(d_v: int, column: int, row: int, X: int, shares: list[float]) -> None:
    total = sum(shares) or 1
    rows, columns, more, u1, u2, e1, e2 = (share * X / total for share in shares)
    I, J = rows / (d_v + row), columns / (d_v + column)
    operand, u1 = J * d_v + more, min(u1, d_v * I)
    made = operand**0.5 * (((I * J + e1) * u1) ** 0.5 + (e2 * u2) ** 0.5)
    assert made <= Latent(d_v + column, d_v, d_v + row)(X) + 1 + 1e-9 * X**2


def test_rows_of_three_lines_reach_it() -> None:
    """Half of X for columns of d words, half for rows of 2d words with d of results: d X²/12d² products."""
    d, X = 4, 2 * 96 * 10**4
    I, J = X / 2 / (3 * d), X / 2 / d
    assert I * J * d == pytest.approx(Latent(d, d, 2 * d)(X), rel=1e-6)


@pytest.mark.parametrize(("d_v", "d_r"), [(4, 0), (4, 2), (4, 4)])
def test_rows_that_stay_reach_it(d_v: int, d_r: int) -> None:
    """Half of X for columns, half for rows with their results."""
    d_k, X = d_v + d_r, 2 * 96 * 10**4
    I, J = X / 2 / (d_k + d_v), X / 2 / d_k
    assert I * J * d_v == pytest.approx(Latent(d_k, d_v)(X), rel=1e-6)


def test_where_few_words_of_a_key_are_its_values_more_products_fit() -> None:
    """Than half of X for columns would make: as many columns again are within reach for their values alone."""
    d_v, d_r, X = 1, 4, 96 * 10**4
    J, values, budget = X / 4 / d_r, X / 4, X / 2  # of columns, d_r words each besides the values
    I = budget / (2 * d_v + d_r)
    made = (values * I * J * d_v * I) ** 0.5
    assert X**2 / (4 * (d_v + d_r) * (2 * d_v + d_r)) < made <= Latent(d_v + d_r, d_v)(X)


def test_that_split_is_reached_too() -> None:
    d, X = 4, 4800  # half for columns and their operand, a sixth each for dO, S (or A1) and dQ
    I, J = X // 6 // d, X // 4 // d
    assert (J * d * I * J * d * I) ** 0.5 == pytest.approx(X**2 / (24 * d))
    assert FRESH_24(d)(X) == X**2 // (24 * d)


@given(d=st.integers(1, 8), x=st.integers(1, 400), shares=st.lists(SHARE, min_size=12, max_size=12))
def test_no_split_makes_more_products_of_three_gradients_than_fit(d: int, x: int, shares: list[float]) -> None:
    """I queries and J keys whole, with parts u of dQ, y of dK and z of dV; words of other lines (p); e carried pairs.

    Of the others, lines whole in Q alone (K alone) make P, and so products of dV; all the rest is of carried pairs.
    """
    X, total = x * d**2 // 2, sum(shares) or 1
    rows, columns, u, y, z, q_p, o_p, u_p, k_p, y_p, z_p, e = (share * X / total for share in shares)
    I, J, Q, K = rows / (2 * d), columns / (2 * d), rows / 2, columns / 2
    u, y, z = min(u, d * I), min(y, d * J), min(z, d * J)
    made = 18 * J * u + 18 * I * y + 12 * I * z
    others_q, others_k = q_p / d, k_p / d
    made += 12 * (I * min(z_p, k_p) + min(others_q * z, J * o_p) + min(others_q * z_p, others_k * o_p))
    carried = 18 * ((k_p * (u + u_p)) ** 0.5 + (K * u_p) ** 0.5 + (q_p * (y + y_p)) ** 0.5 + (Q * y_p) ** 0.5)
    carried += 12 * ((o_p * (z + z_p)) ** 0.5 + (Q * z_p) ** 0.5)
    assert made + e**0.5 * carried <= Gradients(d)(X) + 1 + 1e-9 * X**2


@pytest.mark.parametrize(("squares", "added"), [(3, 81), (150, 81), (300, 0)])
def test_three_gradients_with_no_pair_carried_fill_their_share(squares: int, added: int) -> None:
    d = 40
    X = squares * d**2
    I, J = X // 6 // d, X // 8 // d  # 3dI + 4dJ = X
    assert 48 * I * J * d == X**2 // d
    assert Gradients(d)(X) - 48 * I * J * d == added * d * X // 8


def test_the_capacity_of_three_gradients_grows_with_every_word() -> None:
    """Also per word, as one segment needs it: G(X)/X never falls, but for rounding."""
    G = Gradients(4)
    values = [(X, G(X)) for X in range(1, 4000)]
    for (X, before), (_, after) in pairwise(values):
        assert after >= before and after * X >= (before - 1) * (X + 1)


# -- the cutting argument --------------------------------------------------------------------------------------------


CAPACITIES = st.one_of(
    st.just(Cube()),
    st.builds(Box, st.tuples(*[st.integers(1, 40)] * 3)),
    st.builds(lambda fresh, d: fresh(d), st.sampled_from([FRESH_16, FRESH_24]), st.integers(1, 20)),
    st.builds(Gradients, st.integers(1, 20)),
    st.builds(Rows, st.integers(1, 20)),
)


def fewest_words(N: int, capacity: Capacity, M: int, X: int, trees: int, tree: int) -> int | None:
    """The words that a game must move, by segments of X and T starts, if it makes trees again as often as it likes.

    None where one segment could hold all, or making trees again would never end.
    """
    T, G = X - M + 1, capacity(X)
    if not 0 < G < N or (trees and T * tree < G):
        return None
    words = []
    for again in range(G // tree + 2 if trees else 1):
        segments = -(-(N + tree * again) // G)
        words.append(X + (segments - 2) * T + 1 - trees - again)  # the last has one start, at least
    return min(words)


@given(
    capacity=CAPACITIES,
    M=st.integers(3, 60),
    N=st.integers(1, 3000),
    trees=st.integers(0, 100),
    tree=st.integers(1, 60),
)
@strategies.draws(15, 100)
def test_the_segments_chosen_are_valid_and_near_the_best(
    capacity: Capacity, M: int, N: int, trees: int, tree: int
) -> None:
    N = min(N, capacity(10**6))
    all_X = [X for X in range(1, 8 * M + 3 * N) if capacity(X) < N]
    words = [fewest_words(N, capacity, M, X, trees, tree) for X in all_X if X >= M or not trees]
    most = max((each for each in words if each is not None), default=0)
    found = least_words(N, capacity, M, trees, tree if trees else None) or 0
    assert found <= max(0, most) or found < 0
    assert max(0, found) >= 0.8 * most - 3


def test_trees_of_unknown_size_may_all_be_as_small_as_makes_them_cheap_to_make_again() -> None:
    rng = random.Random(1)
    for _ in range(25):
        d, M, trees = rng.randint(1, 20), rng.randint(2, 12), rng.randint(1, 60)
        capacity = rng.choice([Cube(), FRESH_16(d), FRESH_24(d), Rows(d)])
        N, most, X = rng.randint(1, 200), 0, 2 * M - 1
        while capacity(X) < N:
            cheap = -(-capacity(X) // (X - M + 1))
            most = max(most, (cheap and fewest_words(N, capacity, M, X, trees, cheap)) or 0)
            X += 1
        assert (least_words(N, capacity, M, trees, None, ragged=True) or 0) <= most


def fewest_weighted(N: int, w: int, M: int, light: int, tree: int, others: int) -> float:
    """The fewest words by segments of T = M, 3M/2 and 2M more than one, for the best of many weights of light trees.

    A weight is left out if trees made again were worth their while: a game would make them forever, and no bound holds.
    """
    best = -float("inf")
    for T in (M + 1, M + M // 2 + 1, 2 * M + 1):
        X = M - 1 + T
        for step in range(1, 2001):
            weight = (step / 2000) ** 2
            G = w * (X / 3) ** 1.5 / weight**0.5
            words = [(T - 1) * (N + tree * again) / G - weight * again for again in (0, 10**6)]
            if words[1] >= words[0]:
                best = max(best, words[0] - (T - 1) + M - 1 - weight * light - others)
    return best


@given(
    M=st.integers(20, 400),
    N=st.integers(10**4, 10**7),
    w=st.integers(1, 17),
    light=st.integers(1, 10**5),
    tree=st.integers(1, 900),
    others=st.integers(0, 1000),
)
@strategies.draws(15, 60)
def test_light_trees_weigh_what_they_may_and_no_more(
    M: int, N: int, w: int, light: int, tree: int, others: int
) -> None:
    found = least_words_of_light_trees(N, w, M, light, tree, others)
    most = fewest_weighted(N, w, M, light, tree, others)
    assert found == pytest.approx(most, rel=0.01, abs=0.01 * N**0.5 + 0.002 * N / M + 3 * M)


def test_at_ordinary_sizes_the_segments_chosen_are_within_a_hundredth_of_the_best() -> None:
    rng = random.Random(5)
    for _ in range(40):
        M, N = rng.randint(30, 300), rng.randint(10**4, 10**6)
        for capacity in (Cube(), FRESH_16(5), FRESH_24(9), Rows(7)):
            words = [fewest_words(N, capacity, M, X, 0, 1) for X in range(M, 8 * M)]
            most = max(each for each in words if each is not None)
            assert 0.99 * most <= (least_words(N, capacity, M) or 0)


def test_a_bound_asks_for_few_values_of_its_capacity_however_large_the_numbers_are() -> None:
    """A crossover at n = 2^200 has thousands of bounds; each searched all digits of X where no tree is dear."""
    asked = []

    class Asked(Cube):
        def __call__(self, X: int) -> int:
            asked.append(X)
            return super().__call__(X)

    least_words(2**418, Asked(), 2**100, 2**400, 64)
    assert len(asked) < 100


# -- against exact optima --------------------------------------------------------------------------------------------


def of_graph(
    name: str, dims: dict[str, int], rng: random.Random, mask: NDArray[np.bool_] | None = None
) -> tuple[Cdag, Formulation]:
    """A graph of a problem at random among the ways of computing it, and that way; under a mask its sums are chains."""
    options: dict[str, object] = {}
    kept: tuple[str, ...] = ()
    match name:
        case "backward":
            options = {"order": rng.choice(["T", "U", "one-pass"])}
            if options["order"] != "one-pass" and rng.random() < 0.5:
                options, kept = options | {"kept": True, "centred": rng.random() < 0.5}, ("O", "l")
            if options["order"] == "T" and rng.random() < 0.3:
                options["row_block"] = 1
        case "backward-qkv" | "projected-backward-qkv":
            choice = rng.choice("lLP")
            options, kept = {"kept": choice}, ("P",) if choice == "P" else ("O", choice)
        case "forward" | "projected-forward":
            options = {"softmax": rng.choice(["early", "late", "safe"])}
        case "linear":
            options = {"order": rng.choice(["linear", "quadratic"])}
    summation = rng.choice(["chain", "balanced"]) if mask is None else "chain"
    return graphs.build(name, summation, mask, **dims, **options), Formulation(kept, (), options)


def check_optima(
    seed: int, wanted: int, names: list[str], largest_graph: int, states: int, masked: bool = False
) -> int:
    """Bounds never exceed the optimum of random small graphs; on how many of these another one beats the compulsory."""
    rng = random.Random(seed)
    judged = sharper = 0
    while judged < wanted:
        problem = PROBLEMS[rng.choice(names)]
        dims = {dim: rng.choice([1, 1, 2, 2, 3, 4]) for dim in problem.dims}
        if graphs.size(problem.name, **dims).vertices > (5 if masked else 2) * largest_graph:
            continue
        mask = np.array([rng.random() < 0.5 for _ in range(dims["n"] ** 2)]).reshape(-1, dims["n"]) if masked else None
        graph, formulation = of_graph(problem.name, dims, rng, mask)
        if graph.vertices > largest_graph:
            continue
        M = rng.choice([3, 3, 4, 4, 5, 6, 7, 8, 10, 14])
        try:
            found = optimum(graph, M, rng.choice(["hong-kung", "no-recompute"]), states=states)
        except Infeasible:
            continue
        if not found.proven:
            continue
        least = found.io
        judged += 1
        pairs = None if mask is None else from_array(mask)
        compulsory, *others = lower_bounds(problem, dims, M, formulation, pairs)
        of_any = [] if mask is None else lower_bounds(problem, dims, M, formulation, int(mask.sum()))
        for bound in (compulsory, *others, best(problem, dims, M, None, pairs), *of_any):
            assert bound.value <= least, (problem.name, dims, formulation, mask, M, bound, least)
        sharper += any(compulsory.value < bound.value for bound in others)
    return sharper


def test_no_bound_exceeds_the_optimum_of_small_masked_graphs() -> None:
    names = [name for name, problem in PROBLEMS.items() if problem.maskable]
    check_optima(seed=4, wanted=strategies.amount(15, 25), names=names, largest_graph=36, states=10_000, masked=True)


@pytest.mark.slow
def test_no_bound_exceeds_the_optimum_of_many_masked_graphs() -> None:
    names = [name for name, problem in PROBLEMS.items() if problem.maskable]
    assert check_optima(seed=5, wanted=300, names=names, largest_graph=42, states=40_000, masked=True) > 0


@pytest.mark.one_in(2)
def test_no_bound_exceeds_the_optimum_of_small_products() -> None:
    assert check_optima(seed=1, wanted=strategies.amount(30, 60), names=["matmul"], largest_graph=30, states=50_000) > 0


@pytest.mark.one_in(4)
def test_no_bound_exceeds_the_optimum_of_small_attention_graphs() -> None:
    names = [name for name in PROBLEMS if name != "matmul"]
    check_optima(seed=2, wanted=strategies.amount(30, 60), names=names, largest_graph=36, states=4_000)


@pytest.mark.slow
def test_no_bound_exceeds_the_optimum_of_many_graphs() -> None:
    check_optima(seed=3, wanted=300, names=["matmul", *PROBLEMS], largest_graph=42, states=30_000)


def test_a_bound_that_is_one_word_too_large_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where B is tight; and the bounds are right again without that word."""
    tight = [{"m": 2, "k": 1, "n": 2}, {"m": 2, "k": 1, "n": 3}]
    least = [optimum(graphs.build("matmul", **dims), 3).io for dims in tight]

    def values() -> list[int]:
        return [best(PROBLEMS["matmul"], dims, 3).value for dims in tight]

    assert values() == least == [9, 13]
    monkeypatch.setattr("pebblesim.lower_bounds.bounds.least_words", lambda *given: (least_words(*given) or 0) + 1)
    assert values() == [10, 14]
    with pytest.raises(AssertionError):
        check_optima(seed=1, wanted=60, names=["matmul"], largest_graph=30, states=50_000)


# -- against every schedule ------------------------------------------------------------------------------------------

LENGTHS = st.one_of(st.integers(1, 9), st.integers(1, 150))


@strategies.every(SCHEDULES, of=8)
@given(data=st.data())
@strategies.draws(3, 25)
def test_no_schedule_moves_fewer_words_than_a_bound(schedule: Schedule, data: st.DataObject) -> None:
    dims = {dim: data.draw(LENGTHS) for dim in schedule.problem.dims}
    with pytest.raises(Infeasible) as too_small:
        choose(schedule, dims, 1)
    M = too_small.value.least_M + data.draw(st.one_of(st.integers(0, 30), st.integers(0, 20_000)))
    io = count(schedule.program, dims | choose(schedule, dims, M)).total.io
    for bound in lower_bounds(schedule.problem, dims, M, Formulation.of(schedule)):
        assert bound.value <= io, bound
    assert best(schedule.problem, dims, M).value <= io  # the bound for every way


@strategies.every({name: each for name, each in SCHEDULES.items() if each.maskable}, of=8)
def test_rows_without_pairs_are_written_too(schedule: Schedule) -> None:
    for allowed in ([[False, False], [False, False]], [[True, False], [False, False]]):
        row = ps.count(schedule, n=2, d=1, M=10_000, mask=from_array(np.array(allowed)))
        assert row.lower_bound.value <= row.io


@strategies.every({name: each for name, each in SCHEDULES.items() if each.maskable}, of=8)
@given(data=st.data())
@strategies.draws(2, 5)
def test_no_schedule_moves_fewer_words_under_a_mask(schedule: Schedule, data: st.DataObject) -> None:
    n, d = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9))
    mask = from_array(data.draw(strategies.allowed_pairs(n)))
    with pytest.raises(Infeasible) as too_small:
        choose(schedule, {"n": n, "d": d}, 1)
    M = too_small.value.least_M + data.draw(st.integers(0, 600))
    row = ps.count(schedule, n=n, d=d, M=M, mask=mask)
    of_mask = lower_bounds(schedule.problem, {"n": n, "d": d}, M, row.formulation, mask)
    of_number = lower_bounds(schedule.problem, {"n": n, "d": d}, M, row.formulation, mask.pairs(n))
    for bound in (*of_mask, *of_number):
        assert bound.value <= row.io, bound


@pytest.mark.slow
@every_schedule
def test_no_schedule_moves_fewer_words_at_many_sizes(schedule: Schedule) -> None:
    rng = random.Random(schedule.name)
    for _ in range(100):
        dims = {dim: int(2 ** rng.uniform(0, rng.choice([2, 5, 9]))) for dim in schedule.problem.dims}
        with pytest.raises(Infeasible) as too_small:
            choose(schedule, dims, 1)
        M = too_small.value.least_M + int(rng.random() * 2 ** rng.uniform(0, 18))
        io = count(schedule.program, dims | choose(schedule, dims, M)).total.io
        for bound in lower_bounds(schedule.problem, dims, M, Formulation.of(schedule)):
            assert bound.value <= io, (dims, M, bound)


# -- what is said about them -----------------------------------------------------------------------------------------


def evaluated(expr: str, sizes: dict[str, int]) -> Decimal:
    """A closed form, to 200 digits."""
    names: dict[str, object] = {"sqrt": lambda x: Decimal(x).sqrt(), **{k: Decimal(v) for k, v in sizes.items()}}
    return Decimal(eval(expr.replace("27/8", "Decimal(27)/8"), {"Decimal": Decimal}, names))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PROBLEMS)
@given(data=st.data())
@strategies.draws(3, 25)
def test_a_closed_form_never_exceeds_the_value(name: str, data: st.DataObject) -> None:
    problem = PROBLEMS[name]
    exponents = st.integers(0, data.draw(st.sampled_from([8, 60])))
    dims = {dim: data.draw(st.integers(1, 2 ** data.draw(exponents))) for dim in problem.dims}
    M = data.draw(st.integers(3, 3 + 2 ** data.draw(exponents)))
    pairs = data.draw(st.none() | st.integers(1, dims["n"] ** 2)) if problem.maskable else None
    sizes = dims | {"M": M}
    if pairs is not None:
        Z, r, c, tau, _ = Pairs.of(pairs, dims["n"])
        sizes |= {"Z": Z, "r": r, "c": c, "tau": tau}
    ways = [None, *(Formulation.of(s) for s in SCHEDULES.values() if s.problem is problem)]
    with localcontext() as context:
        context.prec = 200
        for bound in lower_bounds(problem, dims, M, data.draw(st.sampled_from(ways)), pairs):
            assert bound.form is None or not bound.why_not
            if bound.form is not None:
                assert evaluated(bound.form.expr, sizes) <= bound.value + Decimal("1e-9"), bound


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_bound_has_a_proof_of_its_weights(name: str) -> None:
    """A bound is refused when it is made, if nothing proves that its weighted products are the most that fit."""
    problem, refused = PROBLEMS[name], []
    dims = {dim: {"d": 64, "k": 64}.get(dim, 4096) for dim in problem.dims}
    for way in [None, *(Formulation.of(schedule) for schedule in SCHEDULES.values() if schedule.problem is problem)]:
        try:
            lower_bounds(problem, dims, 2**14, way)
        except ValueError as error:
            refused.append(str(error))
    assert refused == []


@pytest.mark.parametrize("percent", [1, 100, 125, 149, 150, 151, 175, 200, 300])
def test_the_forms_of_words_at_two_times_end_where_they_meet(percent: int) -> None:
    """From M = 3nd/2 on, two times are better than one; before, their form would say too much."""
    n, d = 4096, 2
    M = n * d * percent // 100
    found = {each.name: each for each in lower_bounds(PROBLEMS["forward"], {"n": n, "d": d}, M)}["C5"]
    one, two = 13 * n * d // 2 - 48 * d**2 - M, 8 * n * d - 48 * d**2 - 2 * M
    texts = ("13*n*d/2 - 48*d**2 - M", "M ≤ 3/2·n·d"), ("8*n*d - 48*d**2 - 2*M", "3/2·n·d ≤ M")
    assert (found.form.expr, found.form.domain) == texts[percent > 150]
    assert evaluated(found.form.expr, {"n": n, "d": d, "M": M}) == min(one, two) <= found.value


def test_closed_forms_are_those_of_theory() -> None:
    """n = 65536, d = 128, by hand: 6n²d²/M - nd + 3d² and 4n²d²/M where M is large."""
    n, d = 65536, 128
    for M in (2**18, 2**20):
        backward = best(PROBLEMS["backward"], {"n": n, "d": d}, M, Formulation())
        assert (backward.name, backward.form.expr) == ("D2", "6*n**2*d**2/M - n*d + 3*d**2")
        assert 6 * n * n * d * d // M - n * d + 3 * d * d <= backward.value
        forward = best(PROBLEMS["forward"], {"n": n, "d": d}, M)
        assert forward.name == "C1"
        assert 4 * n * n * d * d // M <= forward.value <= 4 * n * n * d * d // M * 1.02


def by_name(bounds: list[LowerBound]) -> dict[str, LowerBound]:
    return {bound.name: bound for bound in bounds}


def test_a_bound_applies_to_the_way_a_schedule_computes() -> None:
    sizes = {"n": 4096, "d": 64}
    regrouped = by_name(lower_bounds(PROBLEMS["backward"], sizes, 65536, Formulation.of(SCHEDULES["large-cache"])))
    assert "blocks of rows" in regrouped["D1"].why_not
    assert "blocks of rows" in regrouped["D2"].why_not
    assert largest(list(regrouped.values())).name == "D3"
    standard = by_name(lower_bounds(PROBLEMS["backward"], sizes, 65536, Formulation()))
    assert standard["D2"].value > regrouped["D3"].value > standard["D3"].value  # which keeps O and l
    assert "M is above 16,384" in standard["D1"].why_not
    kept = by_name(lower_bounds(PROBLEMS["backward-qkv"], sizes, 65536, Formulation.of(SCHEDULES["standard-backward"])))
    assert set(kept) == {"compulsory", "E1h", "E3", "E4", "E5", "E6", "E7", "E8", "E9"}  # not E1 and E2, for P made
    linear = by_name(lower_bounds(PROBLEMS["linear"], sizes, 4096, Formulation.of(SCHEDULES["linear-quadratic"])))
    assert set(linear) == {"compulsory", "L2", "C1", "C2", "C2w", "C3", "C4", "C5"}
    assert ps.count("linear", **sizes, M=4096).io < linear["C2"].value  # which a softmax would not let it


def test_pairs_of_a_mask() -> None:
    assert Pairs.of(from_text("causal"), 10) == (55, 10, 10, 10, True)
    table = np.zeros((6, 6), bool)
    table[2, 1:4] = True
    assert Pairs.of(from_array(table), 6) == (3, 1, 3, 1, True)
    assert Pairs.of(13, 6) == (13, 3, 3, 3, False)
    with pytest.raises(UsageError, match=r"37 allowed pairs were given; at n = 6 there are 0 to 36 of them"):
        Pairs.of(37, 6)
    with pytest.raises(UsageError, match="leave the mask out"):
        lower_bounds(PROBLEMS["matmul"], {"m": 2, "k": 2, "n": 2}, 4, pairs=3)


@given(data=st.data(), name=st.sampled_from([p for p in PROBLEMS if PROBLEMS[p].maskable]))
def test_all_pairs_are_no_mask_but_for_d1(data: st.DataObject, name: str) -> None:
    n, d, M = (data.draw(st.integers(1, 300)) for _ in range(3))
    formulation, Z = Formulation(), data.draw(st.integers(0, n * n))
    dense, masked, fewer = (
        by_name(lower_bounds(PROBLEMS[name], {"n": n, "d": d}, M, formulation, pairs)) for pairs in (None, n * n, Z)
    )
    for bound in dense:
        if bound not in ("D1", "D2"):  # under a mask these leave out what may be too few
            assert masked[bound].value == dense[bound].value
        assert fewer[bound].value <= max(masked[bound].value, dense[bound].value)


def test_nothing_but_the_outputs_is_left_where_no_pair_is_allowed() -> None:
    for name in ("forward", "backward", "backward-qkv", "projected-forward"):
        bound = best(PROBLEMS[name], {"n": 9, "d": 4}, 50, pairs=0)
        assert bound.value == {"forward": 36, "backward": 16, "backward-qkv": 108, "projected-forward": 36}[name]


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    keep=st.integers(0, 2**18 - 1),
    M=st.integers(3, 6),
)
def test_sparse_products_against_their_optimum(shape: tuple[int, int, int], keep: int, M: int) -> None:
    m, k, n = shape
    A = np.array([keep >> v & 1 for v in range(m * k)], bool).reshape(m, k)
    B = np.array([keep >> (9 + v) & 1 for v in range(k * n)], bool).reshape(k, n)
    edges: list[tuple[int, int]] = []
    vertices = m * k + k * n
    outputs = []
    for i, j in product(range(m), range(n)):
        total = None
        for t in range(k):
            if A[i, t] and B[t, j]:
                edges += [(i * k + t, vertices), (m * k + t * n + j, vertices)]
                term, vertices = vertices, vertices + 1
                if total is not None:
                    edges += [(total, vertices), (term, vertices)]
                    term, vertices = vertices, vertices + 1
                total = term
        if total is not None:
            outputs.append(total)
    bound = sparse_product(A.sum(axis=0).tolist(), B.sum(axis=1).tolist(), M)
    if not outputs:
        assert bound.value == 0
        return
    graph = Cdag.from_edges(vertices, edges, np.arange(m * k + k * n), outputs)
    with suppress(UsageError):  # too large to search
        assert bound.value <= optimum(graph, M, states=20_000).io


def test_a_diagonal_product_is_cheap() -> None:
    """Lemma F.1 of Li et al. claims min{4n²/M, 2n^1.5/√M} for any two matrices with n nonzeros each; 3n words do."""
    n, M = 10**6, 100
    bound = sparse_product([1] * n, [1] * n, M)
    assert bound.value <= 3 * n < min(4 * n * n // M, 2 * isqrt(n**3 // M))
    with pytest.raises(UsageError, match="2 columns and B 1 rows"):
        sparse_product([1, 1], [1], 4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PROBLEMS)
def test_sizes_may_be_astronomical(name: str) -> None:
    problem = PROBLEMS[name]
    dims = dict.fromkeys(problem.dims, 2**256) | ({"d": 2**100} if "d" in problem.dims else {})
    for M in strategies.some((1, 2**90, 2**201, 2**256), 2):
        bounds = lower_bounds(problem, dims, M)
        assert largest(bounds).value > 2**356
        assert all(isinstance(bound.value, int) for bound in bounds)


@given(name=st.sampled_from(list(PROBLEMS)), size=st.integers(1, 400), d=st.integers(1, 60), M=st.integers(3, 9000))
def test_a_larger_cache_never_raises_the_best_bound_by_much(name: str, size: int, d: int, M: int) -> None:
    """The truth falls as M grows. The bounds are chosen for each M alone, so they may rise a little, never by a lot."""
    dims = {dim: d if dim in ("d", "k") else size for dim in PROBLEMS[name].dims}
    assert best(PROBLEMS[name], dims, 2 * M).value <= best(PROBLEMS[name], dims, M).value * 1.1 + 10


@pytest.mark.parametrize("name", ["forward", "backward", "backward-qkv", "linear", "projected-forward"])
def test_a_problem_gets_the_bounds_that_it_declares_and_no_others(name: str) -> None:
    other = replace(PROBLEMS[name], bounds=None)
    assert [bound.name for bound in lower_bounds(other, {"n": 64, "d": 8}, 16)] == ["compulsory"]


def test_a_problem_says_itself_which_inputs_are_keys() -> None:
    """One query meets three keys: three rows of keys and one of queries are compulsory, whatever they are called."""
    table = np.zeros((5, 5), bool)
    table[2, :3] = True
    shape = ("n", "d")
    mine = Problem(
        "mine",
        ("n", "d"),
        {"n": "n", "d": "d"},
        inputs={"left": shape, "K": shape, "right": shape},
        outputs={"out": shape},
        values=dict,
        source="mine",
        queries=("left", "K"),
        keys=("right",),
    )
    assert best(mine, {"n": 5, "d": 4}, 50, pairs=from_array(table)).value == 4 * (1 + 1 + 3) + 5 * 4
    with pytest.raises(UsageError, match=r"each input with one row .* \(left, K, right\) .* as keys: right, K"):
        replace(mine, keys=("right", "K"))
    with pytest.raises(UsageError, match="as keys: none"):
        replace(mine, keys=())
    assert not replace(mine, keys=(), queries=()).maskable


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_every_bound_has_its_proof(name: str) -> None:
    """docs/lower-bounds.md has the name in bold where the proof begins, in the section that the bound names."""
    text = (ROOT / "docs" / "lower-bounds.md").read_text(encoding="utf-8")
    proved = {
        (number, word)
        for number, section in re.findall(r"^## (\d+)\.(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        for bold in re.findall(r"\*\*(.+?)\*\*", section)
        for word in re.findall(r"\w+", bold)
    }
    for bound in lower_bounds(PROBLEMS[name], dict.fromkeys(PROBLEMS[name].dims, 8), 16):
        if bound.name != "compulsory":
            (number,) = re.findall(r"docs/lower-bounds\.md §(\d+)", bound.source)
            assert (number, bound.name) in proved
