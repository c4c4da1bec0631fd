"""A lower bound says for which way of computing it holds; what is said of every way no schedule undercuts."""

from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st
from matplotlib.figure import Figure

import pebblesim as ps
from pebblesim.analysis.blocks import choose
from pebblesim.analysis.count import count
from pebblesim.api.crossover import sweep
from pebblesim.api.crossover_result import Crossing, Crossover
from pebblesim.core.errors import BelowBound, Infeasible, UnknownName, UsageError
from pebblesim.counting.heads import Heads
from pebblesim.language.problems import PROBLEMS, Problem, problem
from pebblesim.language.registry import SCHEDULES, Schedule, get
from pebblesim.lower_bounds.bounds import Formulation, best, best_of_ways, lower_bounds
from pebblesim.views.plots.crossover import io_over_M
from pebblesim.views.plots.skislope import skislope
from pebblesim.views.plots.style import EVERY_WAY

EVERY = "every way of computing"


@pytest.mark.parametrize(
    ("name", "sizes", "words", "undercut"),
    [
        ("regrouped", {"n": 65536, "d": 128, "M": 2**18}, 1_300_348_928, ("D2", "g = A1ᵀ p A2")),
        ("linear-quadratic", {"n": 64, "d": 1024, "M": 4000}, 15_073_280, ("L1", "linear order")),
        ("small-cache-backward-kept", {"n": 2**16, "d": 2**12, "M": 10**4}, 1_461_362_622_464, ("E1", "P made")),
    ],
)
def test_a_schedule_below_the_bound_on_another_way_is_not_below_that_for_every_way(
    name: str, sizes: dict[str, int], words: int, undercut: tuple[str, str]
) -> None:
    row = ps.count(name, **sizes)
    assert row.feasible and row.io == words
    known = ps.bounds(row.problem, **sizes)
    bound, way = undercut
    assert known.ways[way].name == bound and known.ways[way].value > words
    assert (known.best.of_way, row.every_way) == (EVERY, known.best)
    assert row.every_way.value <= row.lower_bound.value <= words
    assert row.gap == float(Fraction(words, row.every_way.value))
    assert row.gap_of_way == float(Fraction(words, row.lower_bound.value))
    assert row.lower_bound.of_way in str(row) and row.lower_bound.of_way not in (EVERY, way)
    small = {"n": 5, "d": 3, "M": 60}
    assert ps.play(name, **small).passed  # legal, complete, and right


def test_what_holds_for_every_way_is_the_least_of_what_holds_for_each() -> None:
    sizes = {"n": 2**16, "d": 2**12}
    for M in (100, 10**4, 10**6, 10**9):
        for name, others in (
            ("backward-qkv", ["P made", "P saved", "P saved for some pairs"]),
            ("linear", ["linear order", "quadratic order", "any order of the products"]),
        ):
            ways = best_of_ways(PROBLEMS[name], sizes, M)
            assert list(ways) == others
            assert best(PROBLEMS[name], sizes, M).value == min(bound.value for bound in ways.values())
    every = {bound.name for bound in lower_bounds(PROBLEMS["backward"], sizes, 100) if bound.of_way == EVERY}
    assert every == {"compulsory", "D1m", "D3", "D4r", "D5", "D6", "D7"}
    assert {bound.of_way for bound in lower_bounds(PROBLEMS["forward"], sizes, 100)} == {EVERY}
    names = [(bound.name, bound.way) for bound in lower_bounds(PROBLEMS["backward-qkv"], sizes, 100)]
    assert {name for name, way in names if not way} == {"E1h", "E3", "E4", "E7", "E8", "E9"}
    assert {way for name, way in names if name == "compulsory"} == {"P made", "P saved", "P saved for some pairs"}
    assert len(names) == len(set(names)) == 13


@strategies.every(SCHEDULES, of=8)
@given(data=st.data())
@strategies.draws(2, 6)
def test_no_bound_for_its_way_or_every_way_exceeds_a_count_at_any_size(schedule: Schedule, data: st.DataObject) -> None:
    """n/d up to 2^30 and M/d² from 2^-6 to 2^12, in half powers of two, more or less."""
    d = data.draw(st.integers(1, 300))
    n = max(1, isqrt(2 ** data.draw(st.integers(0, 64)) * d * d) // 4 + data.draw(st.integers(-2, 2)))
    M = max(4, isqrt(2 ** data.draw(st.integers(0, 36)) * d**4) >> 6) + data.draw(st.integers(-1, 1))
    dims = {dim: {"k": d, "d": d}.get(dim, n) for dim in schedule.problem.dims}
    try:
        blocks = choose(schedule, dims, M)
    except Infeasible as error:
        M = error.least_M
        blocks = choose(schedule, dims, M)
    words = count(schedule.program, dims | blocks).total.io
    for bound in (*lower_bounds(schedule.problem, dims, M, Formulation.of(schedule)), best(schedule.problem, dims, M)):
        assert bound.value <= words, (dims, M, bound)


def test_a_schedule_that_computes_in_another_way_than_it_says_is_found_out() -> None:
    honest = get("regrouped")
    with SCHEDULES.temporary():
        graph = {name: value for name, value in honest.graph.items() if name != "row_block"}
        ps.schedule(problem="backward", source="a test", name="direct-it-says", graph=graph)(honest.function)
        row = ps.count("direct-it-says", n=65536, d=128, M=2**18)
        assert row.io == 1_300_348_928
        for use in (lambda: row.gap, lambda: row.gap_of_way, row.to_dict, lambda: str(row)):
            with pytest.raises(
                BelowBound, match=r"moves 1,300,348,928 words, and whatever solves 'backward' as it says"
            ):
                use()
        with pytest.raises(BelowBound):
            ps.compare("backward", n=65536, d=128, M=2**18).to_dict()
        with pytest.raises(
            UsageError, match=r"its graph has 1; in graph=\{…\} of the schedule, .* row_block \(backward pass\)"
        ):
            ps.play("direct-it-says", n=5, d=3, M=60)


@pytest.mark.one_in(2)
def test_pictures_of_one_case_show_one_bound_under_one_name() -> None:
    def lines(ax: object) -> dict[str, dict[int, float]]:
        drawn = ax.get_lines()  # type: ignore[attr-defined]
        return {each.get_label(): dict(zip(*each.get_data(), strict=True)) for each in drawn}

    dims, names = {"n": 256, "d": 8}, ("small-cache-streamed", "row-stationary")
    never = Crossing(names, dims, "M", ((1, "both"),), True, ())  # where they cross is not asked
    named = {name: get(name) for name in names}
    crossing = sweep(Crossover(named, dims, None, (), Heads(), 1, (never,), (None, ""), (), ()), points=8)
    rows = [row for M in crossing.at for row in ps.compare(schedules=names, M=M, **dims)]
    one = lines(io_over_M(crossing, Figure().subplots()))
    other = lines(skislope(rows, Figure().subplots()))
    shared = {label for label in set(one) & set(other) if "bound" in label}
    assert shared == {EVERY_WAY}
    for M, words in one[EVERY_WAY].items():
        assert other[EVERY_WAY][M] == words == ps.bounds("backward", M=M, **dims).best.value


# -- problems of other people's ---------------------------------------------------------------------------------------

LINES = {"left": ("n", "d"), "right": ("n", "d")}


def mine(**more: object) -> Problem:
    fields: dict[str, object] = {
        "dims": ("n", "d"),
        "from_nd": {"n": "n", "d": "d"},
        "inputs": LINES,
        "outputs": {"out": ("n", "d")},
        "values": lambda x: {"out": x["left"] + x["right"]},
        "source": "a test",
    }
    return problem("mine", **{**fields, **more})


def test_a_problem_without_theta_and_bounds_says_so() -> None:
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        mine()

        @ps.schedule(problem="mine", source="a test")
        def adds(m, left, right, *, b: ps.Block):  # type: ignore[no-untyped-def]
            out = m.tensor("out", *left.shape)
            for i in m.tiles(left.shape[0], b):
                m.write(out[i, :], m.compute(m.read(left[i, :]) + m.read(right[i, :])))

        row = ps.count("adds", n=8, d=3, M=30)
        assert (row.bound, row.bound_value, row.bound_ratio, row.gap) == (None, None, None, 1.0)
        assert row.to_dict()["bound_ratio"] is None
        known = ps.bounds("mine", n=8, d=3, M=30)
        assert (known.theta, known.to_dict()["bound"], known.best.value) == (None, None, 72)
        assert "Θ           not stated" in str(known)
        assert ps.gaps("mine", n=8, d=3, M=[30]).worst.gap == 1.0


def test_bounds_that_speak_of_other_matrices_are_refused() -> None:
    with PROBLEMS.temporary():
        own = mine(bounds="forward")
        with pytest.raises(UsageError, match="which are about Q, K, V, O; it has no Q, K, V, O"):
            ps.bounds("mine", n=4, d=2, M=9)
        assert best(PROBLEMS["projected-forward"], {"n": 40, "d": 4}, 9).name == "C2w"  # where Q is made from A1
        del PROBLEMS["mine"]
        mine(bounds="foward")
        with pytest.raises(UnknownName, match="did you mean 'forward'"):
            ps.bounds("mine", n=4, d=2, M=9)
        assert own.bounds == "forward"


def test_masks_count_what_a_problem_says_are_keys() -> None:
    with PROBLEMS.temporary():
        mine(queries=("left",), keys=("right",))
        table = np.zeros((5, 5), bool)
        table[2, :3] = True  # one query meets three keys
        assert ps.bounds("mine", n=5, d=4, M=50, mask=table).best.value == 4 * (1 + 3) + 5 * 4
