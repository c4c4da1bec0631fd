"""E1h, for P saved for some pairs: what it says is no more than each number of pairs with scores allows by itself."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import strategies
from hypothesis import example, given, strategies as st
from numpy.typing import NDArray

import pebblesim as ps
from pebblesim.core.errors import Infeasible
from pebblesim.language.problems import PROBLEMS
from pebblesim.lower_bounds.bounds import Formulation, LowerBound, best, lower_bounds
from pebblesim.lower_bounds.bounds_backward_qkv import ANGLES, EVEN, Weights
from pebblesim.lower_bounds.capacities import Columns, Cube, least_words, least_words_of_light_trees

SOME = Formulation(graph={"kept": "some"})
SIDE = st.integers(1, 9)


def bounds_for(sizes: dict[str, int], M: int, pairs: int | None = None) -> dict[str, LowerBound]:
    found = lower_bounds(PROBLEMS["backward-qkv"].rectangle, sizes, M, SOME, pairs)
    return {bound.name: bound for bound in found}


def by_loomis_and_whitney(w: int) -> Callable[[int], int]:
    """The capacity w (X/3)^(3/2)."""
    return lambda X: math.isqrt(w**2 * X**3 // 27)


def most_words(
    N: NDArray[np.int64], capacity: Callable[[int], int], M: int, trees: NDArray[np.int64], tree: int
) -> NDArray[np.int64]:
    """The bound (2) of docs/lower-bounds.md for several (N, F), the largest over every number X of families, or 0."""
    most, X = np.zeros_like(N), M
    while (G := capacity(X)) < max(N):
        T = X - M + 1
        if T * tree >= G > 0:
            s = -(-N // G) - 1
            words = s * T + M - trees - ((s + 1) * G - N) // tree
            most = np.where(s >= 1, np.maximum(most, words), most)
        X += 1
    return most


@pytest.mark.one_in(3)
@given(n_q=SIDE, n_k=SIDE, d_k=SIDE, d_v=SIDE, M=st.integers(2, 400), share=st.fractions(0, 1) | st.none())
@example(n_q=1, n_k=1, d_k=3, d_v=4, M=2, share=None)
@example(n_q=6, n_k=7, d_k=5, d_v=5, M=99, share=None)
@example(n_q=6, n_k=7, d_k=6, d_v=7, M=70, share=None)
@strategies.draws(40, 1000)
def test_no_number_of_pairs_with_scores_has_a_lower_bound(
    n_q: int, n_k: int, d_k: int, d_v: int, M: int, share: Fraction | None
) -> None:
    """With y pairs that have scores, their products and trees are counted; the least over all y is no less than E1h."""
    Z = n_q * n_k if share is None else int(share * n_q * n_k)
    if not Z:
        return
    e1h = bounds_for({"n_q": n_q, "n_k": n_k, "d_k": d_k, "d_v": d_v}, M, None if share is None else Z)["E1h"]
    made, most = np.arange(Z + 1), np.zeros(Z + 1, dtype=np.int64)
    for s, a, w in (EVEN, *map(Weights.at, ANGLES)):
        products, tree = 2 * Z * (w * d_v + a * d_k) + made * s * d_k, min(s * d_k, w * d_v)
        of_trees = most_words(products, by_loomis_and_whitney(w), M, Z + made, tree)
        light = [least_words_of_light_trees(int(each), w, M, Z + y, tree, 0) for y, each in enumerate(products)]
        assert (np.diff(of_trees) >= 0).all() and (np.diff(light) >= 0).all()
        most = np.maximum(most, np.maximum(of_trees, light))
    for w in {max(1, d_k * part // 8 - 1) for part in range(1, 9)}:  # in whole columns; scores weigh 1
        products, tree = 2 * Z * w * (d_v + d_k) + made * d_k, min(d_k, w * d_v)
        most = np.maximum(most, most_words(products, Columns(w, scores=1), M, Z + made, tree))
    assert e1h.value <= most.min()


def test_more_trees_lower_no_bound_where_trees_are_dear_for_few_X_alone() -> None:
    """For M just below 4·tree²/w² an X from 252 to 349 is needed, which doubling steps from M do not meet."""
    trees = np.arange(42, 85)
    products = 85 * trees + 8610
    found = [least_words(N, Cube(17), 99, F, 85) or 0 for N, F in zip(products.tolist(), trees.tolist(), strict=True)]
    assert found == most_words(products, by_loomis_and_whitney(17), 99, trees, 85).tolist() == [0] * 11 + [47] * 32


@pytest.mark.parametrize("M", [16, 256, 4096, 16384, 23170, 32768])
def test_it_lies_a_little_below_what_holds_for_either_way(M: int) -> None:
    """And above what the weights 12/17 gave, 116/17·n²d/√M, or 126/17·n²d/√M with two cases."""
    n, d = 65536, 128
    sizes = {"n_q": n, "n_k": n, "d_k": d, "d_v": d}
    some = bounds_for(sizes, M)
    problem = PROBLEMS["backward-qkv"].rectangle
    of_ways = [best(problem, sizes, M, Formulation(kept=kept)).value for kept in ((), ("P",))]
    before = (126 * d / 17 / M**0.5 - 22 / 17) * n**2
    assert 1.06 * before < some["E1h"].value < min(of_ways)
    assert best(problem, sizes, M).value == some["E1h"].value


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("n", "d", "M"), [(2048, 32, 256), (2048, 32, 1024), (1024, 16, 512), (4096, 64, 512)])
@pytest.mark.parametrize("eighths", range(1, 8))
def test_a_game_that_keeps_P_for_some_rows_moves_no_fewer_words(n: int, d: int, M: int, eighths: int) -> None:
    """Rows of queries with P saved come first; those with P made then add to dK and dV, which are read once more."""
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
    assert bound.name == "E1h" and 4 * bound.value <= 4 * words < 9 * bound.value
