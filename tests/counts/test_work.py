"""Operations counted from the program are those that the game carries out, vertex by vertex."""

from collections import Counter

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

import pebblesim as ps
from pebblesim import graphs
from pebblesim.analysis.count import count
from pebblesim.analysis.work import KINDS, coarse, work
from pebblesim.game.moves import COMPUTE, unpack
from pebblesim.game.player import moves
from pebblesim.graphs.operations import Op
from pebblesim.language.registry import SCHEDULES, Schedule


@strategies.every(SCHEDULES, of=8)
@given(data=st.data())
@strategies.draws(3, 50)
def test_work_is_what_the_game_computes(schedule: Schedule, data: st.DataObject) -> None:
    sizes = data.draw(strategies.sizes(schedule, largest=6))
    dims = {dim: sizes[dim] for dim in schedule.problem.dims}
    summation = data.draw(strategies.trees(schedule))
    graph = graphs.build(schedule.problem.name, summation, **dims, **schedule.graph_options(sizes))
    computed: Counter[str] = Counter()
    for chunk in moves(schedule.program, sizes, graph.families):
        kinds, vertices = unpack(chunk)
        ops, numbers = np.unique(graph.op[vertices[kinds == COMPUTE]], return_counts=True)
        computed.update({Op(op).name.lower(): int(number) for op, number in zip(ops, numbers, strict=True)})
    assert work(schedule.program, sizes) == {kind: computed[kind] for kind in KINDS if computed[kind]}


def test_the_textbook_totals_of_unfused_attention() -> None:
    """About 4n²d + 2n² operations, and 16n² + 16nd bytes in float32, if each operand of a product is read once.

    The exact count is finer: k terms take k - 1 additions, and the maximum and its difference count, too. Tiles that
    fit in M read more.
    """
    n, d = 1024, 64
    program = SCHEDULES["standard-forward"].program
    whole_products = {"n": n, "d": d, "b": n, "B_r": 1}  # tiles so large that each operand is read once
    assert coarse(program, whole_products) == 4 * n * n * d + 2 * n * n
    assert 4 * count(program, whole_products).total.io == 16 * n * n + 16 * n * d
    exact = work(program, whole_products)
    assert exact == {
        "mul": 2 * n * n * d,
        "add": n * n * (d - 1) + n * d * (n - 1) + n * (n - 1),  # Q Kᵀ, P V, row sums
        "sub": n * n,  # the row maximum
        "div": n * n,
        "exp": n * n,
        "max": n * (n - 1),
    }
    tiled = {"n": n, "d": d, "b": 64, "B_r": 1}
    assert work(program, tiled) == exact
    assert count(program, tiled).total.io > count(program, whole_products).total.io


@given(n=st.integers(1, 40), d=st.integers(1, 9), b=st.integers(1, 12), B_r=st.integers(1, 12))
def test_where_the_textbook_and_the_exact_count_of_unfused_attention_differ(n: int, d: int, b: int, B_r: int) -> None:
    """By n² differences and n(n - 1) comparisons more, and an addition less for each of n² + nd + n sums, less n²."""
    sizes = {"n": n, "d": d, "b": b, "B_r": B_r}
    program = SCHEDULES["standard-forward"].program
    assert coarse(program, sizes) == 4 * n * n * d + 2 * n * n
    assert sum(work(program, sizes).values()) - coarse(program, sizes) == 2 * n * n - n * d - 2 * n


def test_the_intensity_of_unfused_attention_is_bounded_by_d_and_that_of_fused_attention_grows_with_the_cache() -> None:
    """(4d + 4)/16 operations a byte in float32 at best, against 5M/4d a word with B_c = 1, which rescales O n times."""
    n, d = 2**18, 64
    whole_products = ps.count("standard-forward", n=n, d=d, M=2**41, blocks={"b": n, "B_r": 1})
    assert 0.99 * (d + 1) / 4 < whole_products.arithmetic_intensity("float32") < (d + 1) / 4
    for M in (2**19, 2**20):
        unfused = ps.count("standard-forward", n=n, d=d, M=M)
        assert unfused.arithmetic_intensity("float32") < (d + 1) / 4
        fused = ps.count("flash2-forward", n=n, d=d, M=M)
        assert 0.9 * 5 * M / (4 * d) < fused.intensity < 5 * M / (4 * d)
        assert fused.arithmetic_intensity("float32") == pytest.approx(fused.intensity / 4)
