"""E1s, for P kept for some pairs: many pairs have scores, or many have a P that is read; tried for each number."""

import math
from fractions import Fraction

import numpy as np
import pytest
import strategies
from hypothesis import example, given, strategies as st
from numpy.typing import NDArray
from test_numbers_of_proofs import D, N, case_of, claims_of

import pebblesim as ps
from pebblesim.core.errors import Infeasible
from pebblesim.language.problems import PROBLEMS
from pebblesim.lower_bounds.bounds import Formulation, LowerBound, best, lower_bounds
from pebblesim.lower_bounds.capacities import Cube, least_words

SOME = Formulation(graph={"kept": "some"})
SIDE = st.integers(1, 9)


def bounds_for(sizes: dict[str, int], M: int, pairs: int | None = None) -> dict[str, LowerBound]:
    found = lower_bounds(PROBLEMS["backward-qkv"].rectangle, sizes, M, SOME, pairs)
    return {bound.name: bound for bound in found}


def most_words(N: NDArray[np.int64], w: int, M: int, trees: NDArray[np.int64], tree: int) -> NDArray[np.int64]:
    """The bound (2) of docs/lower-bounds.md for several (N, F), the largest over every number X of families; 0 if none.

    The capacity is Loomis and Whitney's, w (X/3)^(3/2).
    """
    most, X = np.zeros_like(N), M
    while (G := math.isqrt(w**2 * X**3 // 27)) < max(N):
        T = X - M + 1
        if T * tree >= G > 0:
            s = -(-N // G) - 1
            words = s * T + M - trees - ((s + 1) * G - N) // tree
            most = np.where(s >= 1, np.maximum(most, words), most)
        X += 1
    return most


@given(n_q=SIDE, n_k=SIDE, d_k=SIDE, d_v=SIDE, M=st.integers(2, 400), share=st.fractions(0, 1) | st.none())
@example(n_q=6, n_k=7, d_k=5, d_v=5, M=99, share=None)
@example(n_q=6, n_k=7, d_k=6, d_v=7, M=70, share=None)
@strategies.draws(40, 1000)
def test_no_number_of_pairs_with_scores_is_below_both_cases(
    n_q: int, n_k: int, d_k: int, d_v: int, M: int, share: Fraction | None
) -> None:
    """Every number of pairs whose P is made has one of two bounds; the least of all these is no less than E1s.

    More trees of scores never lower the first bound, and fewer pairs without scores never raise the second.
    """
    Z = n_q * n_k if share is None else int(share * n_q * n_k)
    if not Z:
        return
    e1s = bounds_for({"n_q": n_q, "n_k": n_k, "d_k": d_k, "d_v": d_v}, M, None if share is None else Z)["E1s"]
    made = np.arange(Z + 1)
    with_scores, without = Z * (34 * d_v + 24 * d_k) + 17 * made * d_k, Z * (2 * d_v + 2 * d_k) - made * d_v
    first = most_words(with_scores, 17, M, Z + made, 17 * min(d_k, d_v))
    second = most_words(without, 1, M, np.full_like(made, Z), d_v)
    assert (np.diff(first) >= 0).all() and (np.diff(second) <= 0).all()
    assert e1s.value <= np.maximum(first, second).min()


def test_more_trees_lower_no_bound_where_trees_are_dear_for_few_X_alone() -> None:
    """For M just below 4·tree²/w² an X from 252 to 349 is needed, which doubling steps from M do not meet."""
    trees = np.arange(42, 85)
    products = 85 * trees + 8610
    found = [least_words(N, Cube(17), 99, F, 85) or 0 for N, F in zip(products.tolist(), trees.tolist(), strict=True)]
    assert found == most_words(products, 17, 99, trees, 85).tolist() == [0] * 11 + [47] * 32


@pytest.mark.parametrize("M", [256, 4096, 16384, 23170, 32768])
def test_it_lies_between_what_holds_without_scores_and_what_holds_for_either_way(M: int) -> None:
    sizes = {"n_q": 65536, "n_k": 65536, "d_k": 128, "d_v": 128}
    some = bounds_for(sizes, M)
    problem = PROBLEMS["backward-qkv"].rectangle
    of_ways = [best(problem, sizes, M, Formulation(kept=kept)).value for kept in ((), ("P",))]
    assert some["E1h"].value * 104 < some["E1s"].value * 100 < min(of_ways) * 100
    assert best(problem, sizes, M).value == some["E1s"].value


@pytest.mark.parametrize("y", [0, 4, N**2])
def test_products_and_trees_of_both_cases(y: int) -> None:
    either = claims_of(case_of("backward-qkv", SOME))["E1s"].either
    assert either is not None
    made, kept = either.at(y)
    assert (made.products, made.free, made.tree) == (N**2 * 58 * D + 17 * y * D, N**2 + y, 17 * D)
    assert (kept.products, kept.free, kept.tree) == (4 * N**2 * D - y * D, N**2, D)


def test_beyond_4d2_it_says_nothing() -> None:
    assert not bounds_for({"n_q": 64, "n_k": 64, "d_k": 8, "d_v": 4}, 65)["E1s"].value
    assert bounds_for({"n_q": 64, "n_k": 64, "d_k": 8, "d_v": 4}, 64)["E1s"].value


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("n", "d", "M"), [(2048, 32, 256), (2048, 32, 1024), (1024, 16, 512), (4096, 64, 512)])
@pytest.mark.parametrize("eighths", range(1, 8))
def test_a_game_that_keeps_P_for_some_rows_moves_no_fewer_words(n: int, d: int, M: int, eighths: int) -> None:
    """Rows of queries with P kept come first; those with P made then add to dK and dV, which are read once more."""
    rows = n * eighths // 8
    kept, made = ({"n_q": each, "n_k": n, "d_k": d, "d_v": d} for each in (rows, n - rows))
    words = 2 * n * d
    for names, sizes in ((("kept-dS-stored", "kept-dS-tiled"), kept), (("P-stored", "dS-stored"), made)):
        counts = []
        for name in names:
            try:
                counts.append(ps.count(name, **sizes, M=M).io)
            except Infeasible:
                continue
        words += min(counts)
    bound = best(PROBLEMS["backward-qkv"], {"n": n, "d": d}, M)
    assert bound.name == "E1s" and bound.value <= 4 * words < 9 * bound.value
