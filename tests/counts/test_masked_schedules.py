"""Every schedule under masks: its readings must agree as they do without one, whatever the mask leaves."""

import re
from collections import Counter
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import strategies
import sympy
from hypothesis import given, strategies as st

import pebblesim as ps
from pebblesim import graphs
from pebblesim.analysis.count import count
from pebblesim.analysis.formula import Formula, formula
from pebblesim.analysis.masked_peak import masked_peak_red
from pebblesim.analysis.work import KINDS, work
from pebblesim.core.errors import TraceError, UsageError
from pebblesim.game.moves import COMPUTE, unpack
from pebblesim.game.player import moves
from pebblesim.game.referee import Game, IllegalMove, Referee
from pebblesim.graphs.operations import Op
from pebblesim.language import exp, rowsum
from pebblesim.language.masks import Mask, from_array, of
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, Schedule

MASKABLE = {name: schedule for name, schedule in SCHEDULES.items() if schedule.maskable}
CORES = [schedule for schedule in MASKABLE.values() if not schedule.problem.name.startswith("projected-")]


def drawn(data: st.DataObject, schedule: Schedule, largest: int = 8) -> tuple[dict[str, int], Mask]:
    sizes = data.draw(strategies.sizes(schedule, largest))
    return sizes, data.draw(strategies.masks(sizes["n"]))


def played(schedule: Schedule, sizes: dict[str, int], mask: Mask, M: int) -> tuple[Game, Counter[str]]:
    """The game, and how often it computed each operation."""
    dims = {dim: sizes[dim] for dim in schedule.problem.dims}
    options = schedule.graph_options(sizes)
    graph = graphs.build(schedule.problem.name, mask=mask.allowed(sizes["n"]), **dims, **options)
    referee, computed = Referee(graph, M), Counter[str]()
    for chunk in moves(schedule.masked, sizes, graph.families, mask=mask):
        kinds, vertices = unpack(chunk)
        ops, times = np.unique(graph.op[vertices[kinds == COMPUTE]], return_counts=True)
        computed.update({Op(op).name.lower(): int(number) for op, number in zip(ops, times, strict=True)})
        referee.play(chunk)
    return referee.finish(), computed


@strategies.every(MASKABLE, of=8)
@given(data=st.data())
@strategies.draws(3, 24)
def test_the_game_is_complete_and_does_what_count_and_work_say(schedule: Schedule, data: st.DataObject) -> None:
    check_game(schedule, *drawn(data, schedule))


def check_game(schedule: Schedule, sizes: dict[str, int], mask: Mask) -> None:
    predicted, peak = count(schedule.masked, sizes, mask=mask), masked_peak_red(schedule.masked, sizes, mask)
    game, computed = played(schedule, sizes, mask, peak)
    assert game.complete
    assert (game.reads, game.writes) == (predicted.total.reads, predicted.total.writes)
    assert game.peak_red == peak
    assert peak <= predicted.peak_red == count(schedule.program, sizes).peak_red
    assert work(schedule.masked, sizes, mask) == {kind: computed[kind] for kind in KINDS if computed[kind]}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "name",
    [
        "small-cache",
        "small-cache-streamed",
        "small-cache-backward-streamed",
        "kept-dS-tiled",
        "small-cache-latent-backward",
    ],
)
@given(seed=st.integers(0, 999), blocks=st.tuples(st.integers(1, 4), st.integers(1, 4)), n=st.integers(4, 8))
@strategies.draws(8, 60)
def test_so_does_the_game_where_most_lines_have_no_pair(name: str, seed: int, blocks: tuple[int, int], n: int) -> None:
    """What is left out in tiles of one size is not read in tiles of another."""
    sizes = {"n": n, "d": 2, "a": blocks[0], "b": blocks[1], "B": blocks[0]}
    check_game(SCHEDULES[name], sizes, from_array(np.random.default_rng(seed).random((n, n)) < 0.06, size=(1, 1)))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [name for name in MASKABLE if name.endswith("-in-rows")])
@given(n=st.integers(3, 9), blocks=st.sampled_from([(5, 2), (5, 3), (4, 3), (6, 4), (4, 2)]), data=st.data())
@strategies.draws(12, 100)
def test_so_does_the_game_where_tiles_of_rows_are_cut_from_tiles(
    name: str, n: int, blocks: tuple[int, int], data: st.DataObject
) -> None:
    sizes = {"n": n, "d": 2, "b": data.draw(st.integers(1, 4)), "c": 1, "e": 2} | dict(zip("Ca", blocks, strict=True))
    check_game(SCHEDULES[name], sizes, from_array(data.draw(strategies.allowed_pairs(n)), size=(1, 1)))


@pytest.mark.parametrize("name", [name for name in MASKABLE if name.endswith("-in-rows")])
def test_the_last_tile_of_a_group_of_rows_ends_with_the_group(name: str) -> None:
    """Groups of 5 rows in tiles of 2: row 4 is a tile by itself, and its sums stay constants whatever row 5 sees."""
    allowed = np.zeros((7, 7), bool)
    allowed[[0, 5, 6], [3, 1, 6]] = True
    sizes = {"n": 7, "d": 2, "b": 2, "c": 1, "e": 2, "C": 5, "a": 2}
    check_game(SCHEDULES[name], sizes, from_array(allowed, size=(1, 1)))


@strategies.every(MASKABLE, of=8)
@given(data=st.data())
@strategies.draws(3, 16)
def test_the_numbers_are_the_reference(schedule: Schedule, data: st.DataObject) -> None:
    sizes, mask = drawn(data, schedule, largest=9)
    allowed = mask.allowed(sizes["n"])
    inputs = schedule.problem.random_inputs(sizes, seed=1, kept=schedule.kept, allowed=allowed)
    reference = schedule.problem.reference(inputs, allowed)
    for name, output in numbers(schedule.masked, sizes, inputs, mask).items():
        np.testing.assert_allclose(output, reference[name], rtol=1e-10, atol=1e-12)


@cache
def closed_form(name: str, mask: str | None) -> Formula:
    return formula(SCHEDULES[name].masked, of(mask)) if mask else formula(SCHEDULES[name].program)


FORMED = [schedule for schedule in CORES if schedule.alike and not schedule.name.endswith("-in-rows")]
"""Those whose traffic under a mask has a closed form: not where rows are cut into tiles that are cut again, or a first
part is apart."""
OTHER_BANDS = [("flash2-forward", "window:1"), ("flash2-backward", "band:2"), ("row-stationary-forward", "band:2")]
BANDS = [
    pytest.param(schedule.name, mask, marks=[pytest.mark.slow] * bool(number % few))
    for mask, few in (("causal", 5), ("window:4", 9))
    for number, schedule in enumerate(FORMED)
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "mask"), BANDS + OTHER_BANDS)
@given(data=st.data())
@strategies.draws(2, 40)
def test_bands_have_closed_forms(name: str, mask: str, data: st.DataObject) -> None:
    schedule, closed = SCHEDULES[name], closed_form(name, mask)
    sizes = data.draw(strategies.sizes(schedule, largest=30))
    counted = count(schedule.masked, sizes, mask=of(mask))
    assert closed.evaluate(**sizes) == counted.total.io
    assert closed.function_of("peak_words")(**sizes) == counted.peak_words


@pytest.mark.parametrize("mask", ["window:1", "blocks"])
def test_a_tile_of_terms_may_have_none_for_a_row_before_others_have_some(mask: str) -> None:
    """O of the second query starts with the second key: until then it is the rescaled sum of earlier tiles."""
    allowed = of(mask) if mask != "blocks" else from_array(np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1]], bool), (1, 1))
    sizes = {"n": 3, "d": 2, "blocks": {"a": 1, "b": 2, "c": 1}, "M": 100}
    played = ps.play("scores-stored-blocked", mask=allowed, **sizes)
    assert played.io == ps.count("scores-stored-blocked", mask=allowed, **sizes).io


def test_where_rows_are_cut_twice_there_is_no_closed_form_under_a_mask() -> None:
    for name in (each for each in MASKABLE if each.endswith("-in-rows")):
        with pytest.raises(UsageError, match="a closed form under a mask needs tiles of a whole dimension"):
            formula(SCHEDULES[name].masked, of("causal"))


@strategies.every({schedule.name: schedule for schedule in FORMED}, of=8)
@given(data=st.data())
@strategies.draws(2, 10)
def test_the_closed_form_of_any_mask_counts_what_it_leaves(schedule: Schedule, data: st.DataObject) -> None:
    sizes, mask = drawn(data, schedule, largest=12)
    n, table = sizes["n"], mask.allowed(sizes["n"])
    symbols = {sympy.Symbol(name): size for name, size in sizes.items()}

    def tiles(height: int, width: int) -> list[tuple[int, int]]:
        """Sizes of the tiles with an allowed pair."""
        found = []
        for i in range(0, n, height):
            for j in range(0, n, width):
                tile = table[i : i + height, j : j + width]
                found += [tile.shape] * int(tile.any())
        return found

    values = {
        "tiles": lambda a, b: len(tiles(a, b)),
        "heights": lambda a, b: sum(height for height, _ in tiles(a, b)),
        "widths": lambda a, b: sum(width for _, width in tiles(a, b)),
        "areas": lambda a, b: sum(height * width for height, width in tiles(a, b)),
        "rows": lambda a: sum(height for height, _ in tiles(a, n)),
        "row_tiles": lambda a: len(tiles(a, n)),
        "columns": lambda b: sum(width for _, width in tiles(n, b)),
        "column_tiles": lambda b: len(tiles(n, b)),
    }
    closed = formula(schedule.masked).io.subs(symbols)
    found = closed.replace(
        lambda e: e.is_Function and e.func.__name__ in values,
        lambda e: sympy.Integer(values[e.func.__name__](*map(int, e.args))),
    )
    assert found == count(schedule.masked, sizes, mask=mask).total.io


@strategies.every({schedule.name: schedule for schedule in CORES}, of=8)
@given(data=st.data())
@strategies.draws(2, 10)
def test_a_mask_that_allows_all_changes_nothing(schedule: Schedule, data: st.DataObject) -> None:
    sizes = data.draw(strategies.sizes(schedule, largest=20))
    everything = from_array(np.ones((1, 1), bool))
    masked, dense = count(schedule.masked, sizes, mask=everything), count(schedule.program, sizes)
    assert masked == dense
    assert work(schedule.masked, sizes, everything) == work(schedule.program, sizes)


def test_sums_without_terms_that_are_used_in_a_loop_are_held_from_its_second_iteration_on() -> None:
    """A row without a pair has no pebble in l until scores are divided by l; then it has one."""

    @ps.schedule(problem="forward", source="a test", name="divided-in-a-loop")
    def divided_in_a_loop(m, Q, K, V, *, B):  # type: ignore[no-untyped-def]
        (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
        A, O = m.tensor("A", n_q, n_k), m.tensor("O", n_q, d_v)
        with m.phase("A"):
            for i in m.tiles(n_q, B):
                for j in m.tiles(n_k, 1, keys_of=i):
                    A_ij = m.zeros(i, j)
                    for k in m.tiles(d_k, 1):
                        A_ij += m.read(Q[i, k]) @ m.read(K[j, k]).T
                    A_ij[:] = exp(A_ij)
                    m.write(A[i, j], A_ij)
        with m.phase("O"):
            for i in m.tiles(n_q, B, queries_of=n_k, otherwise={O: 0}):
                l_i = m.zeros(i)
                for j in m.tiles(n_k, 1, keys_of=i):
                    A_ij = m.read(A[i, j])
                    l_i += rowsum(A_ij)
                for c in m.tiles(d_v, 1):
                    whole = m.read(K[:, :])  # most pebbles in this moment, before l is used
                    m.delete(whole)
                    O_ic = m.zeros(i, c)
                    for j in m.tiles(n_k, 1, keys_of=i):
                        A_ij, V_jc = m.read(A[i, j]), m.read(V[j, c])
                        A_ij[:] = A_ij / l_i
                        O_ic += A_ij @ V_jc
                    m.write(O[i, c], O_ic)

    schedule, sizes = SCHEDULES["divided-in-a-loop"], {"n": 4, "d": 5, "B": 4}
    mask = from_array(np.array([[1] * 4, [0] * 4, [1] * 4, [0] * 4], bool), size=(1, 1))
    peak = masked_peak_red(schedule.masked, sizes, mask)
    game, _ = played(schedule, sizes, mask, peak)
    assert game.complete
    assert game.peak_red == peak


@strategies.every({schedule.name: schedule for schedule in CORES}, of=8)
def test_a_masked_game_is_tight(schedule: Schedule) -> None:
    sizes = {"n": 4, "d": 2} | dict.fromkeys(schedule.blocks, 2)
    mask = from_array(np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]], bool), size=(1, 1))
    M = masked_peak_red(schedule.masked, sizes, mask)
    options = schedule.graph_options(sizes)
    graph = graphs.build(schedule.problem.name, mask=mask.allowed(4), n=4, d=2, **options)
    stream = np.concatenate([c.copy() for c in moves(schedule.masked, sizes, graph.families, mask=mask)])

    def outcome(moved: np.ndarray, M: int) -> bool:
        referee = Referee(graph, M)
        try:
            referee.play(moved)
        except IllegalMove:
            return False
        return referee.finish().complete

    assert outcome(stream, M)
    assert not outcome(stream, M - 1)
    kinds, vertices = unpack(stream)
    used = np.isin(np.arange(graph.vertices), graph.preds)
    used[graph.outputs] = True
    used &= ~np.isin(graph.op, (Op.ZERO, Op.MINUS_INFINITY))  # constants move with their tiles, needed or not
    for at in strategies.some(np.flatnonzero((kinds == COMPUTE) & used[vertices]), 20):
        assert not outcome(np.delete(stream, at), M)


def test_tile_skipping_in_flash_attention_2() -> None:
    """By hand: 5nd + n + 2Ad + (4d + 2)W; W rows over the tiles left, A columns with such a tile."""
    n, d = sympy.symbols("n d")
    blocks = sympy.symbols("B_r B_c")
    W = sympy.Function("heights", integer=True, nonnegative=True)(*blocks)
    A = sympy.Function("columns", integer=True, nonnegative=True)(blocks[1])
    assert sympy.expand(ps.formula("flash2-backward", "any").io - (5 * n * d + n + 2 * A * d + (4 * d + 2) * W)) == 0


def test_an_empty_mask_leaves_the_outputs_to_be_written() -> None:
    nothing = np.zeros((1, 1), bool)
    row = ps.count("flash2-forward", n=64, d=8, M=512, mask=nothing)
    assert (row.reads, row.writes) == (0, 64 * 8 + 64)
    assert dict(row.by_tensor) == {"O": (0, 64 * 8), "L": (0, 64)}  # Q, K and V, which do not move, are not named
    assert ps.play("flash2-forward", n=8, d=2, M=64, mask=nothing).passed


def test_masks_go_through_the_functions_of_the_package() -> None:
    causal, window = (ps.count("flash2-forward", n=4096, d=64, M=16384, mask=name) for name in ("causal", "window:256"))
    dense = ps.count("flash2-forward", n=4096, d=64, M=16384)
    assert window.io < causal.io < dense.io
    assert causal.pairs == 4096 * 4097 // 2
    assert "mask        causal, 8,390,656 pairs" in str(causal)
    assert ps.play("large-cache", n=9, d=3, M=90, mask="window:3").passed
    outputs = ps.numbers("flash2-forward", n=6, d=2, M=60, mask="causal")
    assert sorted(outputs) == ["L", "O"]


def test_problems_without_pairs_take_no_mask() -> None:
    with pytest.raises(UsageError, match="problem 'linear' has no pairs of queries and keys; leave the mask out"):
        ps.count("linear", n=8, d=2, M=64, mask="causal")


def test_masks_without_a_closed_form_say_so() -> None:
    with pytest.raises(UsageError, match=r"mask blocks has no closed form; use 'any', 'causal'"):
        ps.formula("flash2-forward", np.ones((2, 2), bool))
    with pytest.raises(UsageError, match="has columns, heights, whose value depends on the mask; give the mask"):
        _ = ps.formula("flash2-backward", "any").evaluate


def check_subs(name: str, mask: str | None, random: Random, times: int) -> None:
    """In any order of the symbols, with blocks smaller and larger than n; symbols are named, and nothing else."""
    schedule, closed = SCHEDULES[name], closed_form(name, mask)
    for _ in range(times):
        sizes = {each: random.randint(1, 16) for each in closed.variables}
        counted = count(schedule.masked if mask else schedule.program, sizes, mask=of(mask))
        for form, number in ((closed.io, counted.total.io), (closed.peak_words, counted.peak_words)):
            assert form.subs(random.sample(list(sizes.items()), len(sizes))) == number, sizes


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "mask"), [(FORMED[1].name, "causal"), *OTHER_BANDS])
def test_sympys_own_subs_gives_what_is_counted(name: str, mask: str) -> None:
    check_subs(name, mask, Random(name), times=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, schedule in MASKABLE.items() if schedule.alike and not name.endswith("-in-rows")]
)
def test_sympys_own_subs_gives_what_is_counted_by_every_schedule(name: str) -> None:
    random = Random(name)
    for mask in ("causal", random.choice([None, "window:1", "window:5", "band:2"])):
        check_subs(name, mask, random, times=4)


def test_subs_of_a_window_and_of_sums_that_are_long() -> None:
    sizes = {"n": 7, "d": 8, "w": 8, "B_r": 2, "B_c": 14}
    closed = formula(SCHEDULES["projected-flash2-backward"].masked, of("window:5"))
    assert closed.reads.subs(sizes) + closed.writes.subs(sizes) == closed.evaluate(**sizes)
    assert closed.reads.subs(sizes) == 766
    long = {"n": 10007, "d": 3, "B_r": 2, "B_c": 3}
    causal = formula(SCHEDULES["flash2-backward"].masked, of("causal")).io
    assert causal.subs(long) == count(SCHEDULES["flash2-backward"].masked, long, mask=of("causal")).total.io


ALONE = np.array([[1, 0, 0, 0], [0] * 4, [1] * 4, [0] * 4], bool)  # rows 1 and 3 have no allowed pair


def rows_of_outputs(O_: float, l_: float, first: bool = False) -> Schedule:
    """FlashAttention-2's order, in which rows without an allowed pair get these constants; `first`: all rows do."""

    def by_rows(m, Q, K, V, *, B):  # type: ignore[no-untyped-def]
        (n_q, _), (n_k, d_v) = Q.shape, V.shape
        O, l = m.tensor("O", n_q, d_v), m.tensor("l", n_q)
        for tensor, value in ((O, O_), (l, l_)) if first else ():
            m.write(tensor, value)
        for i in m.tiles(n_q, B, queries_of=n_k, otherwise=None if first else {O: O_, l: l_}):
            Q_i, O_i, l_i = m.read(Q[i, :]), m.zeros(i, d_v), m.zeros(i)
            for j in m.tiles(n_k, 1, keys_of=i):
                A = m.compute(Q_i @ m.read(K[j, :]).T)
                A[:] = exp(A)
                l_i += rowsum(A)
                O_i += A @ m.read(V[j, :])
            O_i[:] = O_i / l_i
            m.write(O[i, :], O_i)
            m.write(l[i], l_i)

    return strategies.unregistered(by_rows, "forward", softmax="late")


@pytest.mark.parametrize(("O_", "l_"), [(-float("inf"), 0), (0, -float("inf"))])
def test_what_a_loop_leaves_out_has_the_constants_of_the_graph(O_: float, l_: float) -> None:
    sizes, mask = {"n": 4, "d": 2, "B": 1}, from_array(ALONE, size=(1, 1))
    game, _ = played(rows_of_outputs(0, 0), sizes, mask, 100)
    assert game.complete
    tensor, entry = ("O", r"O\[1,0\]") if O_ else ("l", r"l\[1\]")
    with pytest.raises(UsageError, match=rf"constant -inf to {tensor}, where {entry},.* is the constant 0\."):
        played(rows_of_outputs(O_, l_), sizes, mask, 100)


def test_what_is_written_over_a_constant_needs_a_graph_that_starts_from_it() -> None:
    """O of a row with pairs is no constant in this graph, as it is without a mask."""
    sizes, mask = {"n": 4, "d": 2, "B": 1}, from_array(ALONE, size=(1, 1))
    with pytest.raises(UsageError, match="writes the constant 0 to O, which does not start from that constant in its"):
        played(rows_of_outputs(0, 0, first=True), sizes, mask, 100)


TAKES = "otherwise takes tensors and the constants 0 or -inf."


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda Q, O: {Q: 0}, "writes Q, which is an input."),
        (lambda Q, O: {O: 0, Q: 0}, "writes Q, which is an input."),
        (lambda Q, O: {O: 5}, TAKES),
        (lambda Q, O: {O: 1}, TAKES),
        (lambda Q, O: {O: float("inf")}, TAKES),
        (lambda Q, O: {O: O}, TAKES),
        (lambda Q, O: {O: None}, TAKES),
        (lambda Q, O: {Q.shape[0]: 0}, TAKES),
        (lambda Q, O: {"O": 0}, TAKES),
        (lambda Q, O: {O[:]: 0}, TAKES),
        (lambda Q, O: [O], TAKES),
        (lambda Q, O: O, TAKES),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_what_a_loop_leaves_out_is_a_constant_of_a_tensor_that_is_no_input(
    values: Any, message: str, masked: bool
) -> None:
    def leaves_out(m, Q, K, V, *, b):  # type: ignore[no-untyped-def]
        O = m.tensor("O", *Q.shape)
        for i in m.tiles(Q.shape[0], b, queries_of=Q.shape[0], otherwise=values(Q, O)):
            m.write(O[i, :], m.compute(m.read(Q[i, :]) * m.read(V[i, :])))

    made = strategies.unregistered(leaves_out, "forward")
    with pytest.raises(TraceError, match=rf":{leaves_out.__code__.co_firstlineno + 2}: {re.escape(message)}$"):
        assert made.masked if masked else made.program
