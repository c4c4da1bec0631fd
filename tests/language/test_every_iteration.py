"""Python state over the iterations and the runs of a schedule: its trace is right, or it is refused.

The oracle runs each schedule on concrete tiles (`oracle_tiles.py`).
"""

from __future__ import annotations

import inspect
import itertools
import random
from typing import Any

import oracle_tiles
import pytest
import strategies
from forms_of_state import (
    BODIES,
    BODY,
    COUNTERS,
    IMPOSSIBLE,
    MODULE,
    OTHER_MOVES,
    RIGHT,
    WRONG,
    Function,
    function,
    mixture,
)

from pebblesim.analysis.count import count
from pebblesim.core.errors import TraceError
from pebblesim.language import Block, Machine, Tensor, trace
from pebblesim.language.every_iteration import check_every_iteration
from pebblesim.language.problems import problem
from pebblesim.language.registry import SCHEDULES, Schedule, schedule
from pebblesim.language.small_sizes import small_sizes
from pebblesim.language.tile_by_tile import TileByTile

SIZES = (
    {"m": 7, "k": 5, "n": 6, "a": 2, "b": 3},
    {"m": 6, "k": 2, "n": 9, "a": 1, "b": 1},
    {"m": 70, "k": 1, "n": 3, "a": 1, "b": 1},
    {"m": 5, "k": 3, "n": 139, "a": 2, "b": 2},
    {"m": 1, "k": 1, "n": 1, "a": 1, "b": 1},
)


def registered(made: Function) -> Schedule:
    return schedule(problem="matmul", source="this test", name="mine")(made)


def moved(program: Any, sizes: dict[str, int]) -> dict[tuple[str, str], int]:
    """The words of a program's count, as the oracle has them."""
    by_tensor = count(program, sizes).by_tensor
    words = {("read", name): moves.reads for name, moves in by_tensor.items()}
    words |= {("write", name): moves.writes for name, moves in by_tensor.items()}
    return {move: number for move, number in words.items() if number}


def is_right(body: str, module: str = "") -> bool:
    """Whether the trace counts what the schedule moves, when it first runs and later."""
    traced = trace(function(body, module), "mine", problem("matmul"), ("A", "B"), ("a", "b"))
    runs = function(body, module)
    return all(moved(traced, sizes) == oracle_tiles.words(runs, sizes) for sizes in SIZES)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WRONG | OTHER_MOVES)
def test_state_that_a_trace_loses_is_refused(name: str) -> None:
    random.seed(0)
    if name in WRONG:
        assert not is_right(WRONG[name], MODULE)
    made = registered(function((WRONG | OTHER_MOVES)[name], MODULE))
    with pytest.raises(TraceError, match=r"^mine\.py:\d+: ") as refusal:
        _ = made.program
    assert str(refusal.value).count("\n") == 0
    with pytest.raises(TraceError) as again:  # also after all that its runs have left behind
        _ = made.program
    assert str(again.value) == str(refusal.value)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", RIGHT)
def test_state_that_changes_no_move_is_none_of_our_business(name: str) -> None:
    assert is_right(RIGHT[name], MODULE)
    made = registered(function(RIGHT[name], MODULE))
    for sizes in SIZES:
        assert moved(made.program, sizes) == oracle_tiles.words(function(RIGHT[name], MODULE), sizes)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_traced_is_refused_with_its_line(name: str) -> None:
    body, message = IMPOSSIBLE[name]
    with pytest.raises(TraceError, match=rf"^mine\.py:\d+: .*{message}"):
        _ = registered(function(body, MODULE)).program


@pytest.mark.one_in(4)
@pytest.mark.parametrize("late", [*range(1, 17), 31, 63])
def test_late_iterations_are_seen(late: int) -> None:
    """Each loop has 65 at some of the sizes, if the schedule is short."""
    row = "    m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))"
    outer = "for k, i in enumerate(m.tiles(rows, a)):\n    if {}:\n        m.delete(m.read(B))\n" + row
    inner = """
        for i in m.tiles(rows, a):
            A_i = m.read(A[i, :])
            for k, j in enumerate(m.tiles(columns, b)):
                if {}:
                    m.write(V, 0)
                m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))"""
    for loops, when in itertools.product((outer, inner), ("k == {0}", "k < {0}", "k % ({0} + 1) == {0}")):
        body = loops.format(when.format(late))
        assert not is_right(body)
        with pytest.raises(TraceError, match="of the loop in line"):
            _ = registered(function(body)).program


# -- what is said ----------------------------------------------------------------------------------------------------

ADVICE = (
    "A loop's body is traced once, for all its iterations: write a separate loop for what differs (m.first, and "
    "m.tiles with after=), and keep what changes in a tile (x[:] = ..., x += ...)."
)
AGAIN = "What a schedule does must not depend on chance, on time, or on what an earlier run of it left behind."


ROWS, NO_LOOP = "(m = 11, k = 3, n = 1, a = 3, b = 2)", "(m = 3, k = 3, n = 1, a = 3, b = 2)"
DOES_NOT = "the schedule does not do what its trace says: line"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            BODIES["enumerate"],
            f"7: in iteration 2 of the loop in line 5 {DOES_NOT} 8 reads A[3:6, 0:3], where in the trace line 7 reads "
            f"B[0:3, 0:1] {ROWS}. {ADVICE}",
        ),
        (
            BODY.format(first="not STATE", then="STATE.append(0)"),
            f"7: when it runs again {DOES_NOT} 9 reads A[0:3, 0:3], where in the trace line 7 reads A[0:3, 0:3] "
            f"{ROWS}. {AGAIN}",
        ),
        (
            BODIES["what comes after a loop"],
            f"10: after all iterations of the loop in line 6 {DOES_NOT} 10 reads A[0:11, 0:3], where in the trace the "
            f"schedule ends {ROWS}. {ADVICE}",
        ),
        (
            OTHER_MOVES["a tile of the iteration before"],
            f"10: in iteration 2 of the loop in line 7 {DOES_NOT} 9 deletes before, where in the trace line 10 reads "
            f"B[0:3, 2:4] (m = 11, k = 3, n = 7, a = 3, b = 2). {ADVICE}",
        ),
        (
            OTHER_MOVES["which operation is computed"],
            f"8: in iteration 2 of the loop in line 6 {DOES_NOT} 8 sets C_i[3:6, 0:1]: log(C_i[3:6, 0:1]), where in "
            f"the trace line 8 sets C_i[3:6, 0:1]: exp(C_i[3:6, 0:1]) {ROWS}. {ADVICE}",
        ),
        (
            OTHER_MOVES["which iterations may run in parallel"],
            f"7: in iteration 2 of the loop in line 5 {DOES_NOT[:-5]} a loop over n begins in line 7, where in the "
            f"trace an independent loop over n begins in line 7 (m = 11, k = 3, n = 7, a = 3, b = 2). {ADVICE}",
        ),
        (
            "for k, i in enumerate(m.tiles(rows, a)):\n    if k == 3:\n        break\n    m.write(C, 0)",
            f"5: this loop is left in iteration 4 {ROWS}, by break, return or a shorter sequence beside it; a schedule "
            "runs every loop to its end.",
        ),
        (
            "for i, k in zip(m.tiles(rows, a), [0, 1]):\n    m.write(C, 0)",
            f"5: this loop is left in iteration 3 {ROWS}, by break, return or a shorter sequence beside it; a schedule "
            "runs every loop to its end.",
        ),
        (
            "t = [m.read(B)]\nfor i in m.tiles(rows, a):\n    m.write(C[i, :], m.compute(m.read(A[i, :]) @ t.pop()))",
            f"7: IndexError: pop from empty list. This happens in iteration 2 of the loop in line 6 {ROWS}, not in the "
            f"trace. {ADVICE}",
        ),
        (
            "if not STATE:\n    STATE.append(m.read(B))\nm.write(C, m.compute(m.read(A) @ STATE[0]))",
            f"6: when it runs again {DOES_NOT} 7 reads A[0:3, 0:3], where in the trace line 6 reads B[0:3, 0:1] "
            f"{NO_LOOP}. {AGAIN}",
        ),
        (
            "STATE.append(m.read(B))\nm.write(C, m.compute(m.read(A) @ STATE[0]))",
            f"6: uses a tile of another run of the schedule. This happens when it runs again {NO_LOOP}, not in the "
            f"trace. {AGAIN}",
        ),
        (
            "STATE.append(m)\nSTATE[0].write(C, 0)",
            f"6: an argument is not of this run of the schedule. This happens when it runs again {NO_LOOP}, not in the "
            f"trace. {AGAIN}",
        ),
    ],
)
def test_the_sentence_names_the_line_and_what_the_runs_do(body: str, message: str) -> None:
    with pytest.raises(TraceError) as refusal:
        _ = registered(function(body, "STATE = []")).program
    said = str(refusal.value)
    assert said.partition(":")[2] == message


def test_a_fault_that_the_schedule_catches_is_refused() -> None:
    body = """
        before = None
        for i in m.tiles(rows, a):
            try:
                m.delete(before)
            except Exception:
                pass
            before = m.read(B)
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ before))"""
    with pytest.raises(TraceError, match="line 8 deletes before, where in the trace line 11 reads B"):
        _ = registered(function(body)).program


def test_a_schedule_without_state_runs_again_for_each_of_its_traces() -> None:
    """Without a mask and with one, in the square case and in all dimensions."""
    runs = []

    def stateless(m: Machine, Q: Tensor, K: Tensor, V: Tensor, *, b: Block) -> None:
        runs.append(type(m))
        O = m.tensor("O", Q.shape[0], V.shape[1])
        for i in m.tiles(Q.shape[0], b, queries_of=K.shape[0], otherwise={O: 0}):
            O_i = m.constant(0, i, V.shape[1])
            for j in m.tiles(K.shape[0], b, keys_of=i):
                O_i += m.compute(m.read(Q[i, :]) @ m.read(K[j, :]).T) @ m.read(V[j, :])
            m.write(O[i, :], O_i)

    made = schedule(problem="forward", source="this test")(stateless)
    assert not runs
    rectangle = made.in_dims(problem("forward").rectangle.dims)  # type: ignore[union-attr]
    for each in (lambda: made.program, lambda: made.masked, lambda: rectangle.program, lambda: rectangle.masked):
        runs.clear()
        assert each() is each()
        assert runs[0] is Machine and {*runs[1:]} == {TileByTile} and len(runs) > 3


@pytest.mark.parametrize("later", [None, "all"])
def test_state_that_only_a_mask_shows(later: str | None) -> None:
    """Later iterations skip no tiles, or those without a pair in any row."""

    def masked_once(m: Machine, Q: Tensor, K: Tensor, V: Tensor, *, b: Block) -> None:
        O, rows = m.tensor("O", Q.shape[0], V.shape[1]), Q.shape[0] if later else None
        for k, i in enumerate(m.tiles(Q.shape[0], b)):
            O_i = m.constant(0, i, V.shape[1])
            for j in m.tiles(K.shape[0], b, keys_of=i if k == 0 else rows):
                O_i += m.compute(m.read(Q[i, :]) @ m.read(K[j, :]).T) @ m.read(V[j, :])
            m.write(O[i, :], O_i)

    made = schedule(problem="forward", source="this test")(masked_once)
    assert made.program
    with pytest.raises(TraceError, match="in iteration 2 of the loop in line"):
        _ = made.masked


def test_tiles_of_pairs_that_loops_leave_out() -> None:
    """In a loop over keys, and in one over queries."""

    def leaves_out(m: Machine, Q: Tensor, K: Tensor, V: Tensor, *, b: Block, c: Block) -> None:
        O, S = m.tensor("O", Q.shape[0], V.shape[1]), m.tensor("S", Q.shape[0], K.shape[0])
        for i in m.tiles(Q.shape[0], b):
            Q_i = m.read(Q[i, :])
            for j in m.tiles(K.shape[0], c, keys_of=i, otherwise={S: 0}):
                m.write(S[i, j], m.compute(Q_i @ m.read(K[j, :]).T))
        for j in m.tiles(K.shape[0], b):
            for i in m.tiles(Q.shape[0], c, queries_of=j, otherwise={S: 0}):
                m.write(S[i, j], m.compute(m.read(Q[i, :]) @ m.read(K[j, :]).T))
        m.write(O, 0)

    assert schedule(problem="forward", source="this test")(leaves_out).masked


@pytest.mark.parametrize(
    "use", ["m.write(C, LEFT[0])", "m.write(C, m.compute(m.read(A) @ LEFT[0]))", "m.delete(LEFT[0])"]
)
def test_what_another_schedule_has_left_behind_is_refused(use: str) -> None:
    """Tiles of its trace, and of its runs tile by tile."""
    keeps = function("m.write(C, 0)\nLEFT.append(m.read(B))", "LEFT = []")
    assert registered(keeps).program
    for tile in keeps.__globals__["LEFT"]:
        later = function(f"m.write(C, 0)\n{use}", "LEFT = []")
        later.__globals__["LEFT"].append(tile)
        with pytest.raises(
            TraceError, match=r"^mine\.py:6: (an argument is not of this run|.* is not in cache: it left)"
        ):
            _ = registered(later).program


@strategies.every(SCHEDULES, of=16)
def test_schedules_of_the_catalogue_do_in_every_iteration_what_their_traces_say(schedule: Schedule) -> None:
    rectangle = schedule.problem.rectangle
    for each in (schedule, *([] if rectangle is None else [schedule.in_dims(rectangle.dims)])):
        for program in (each.program, *([each.masked] if each.maskable else [])):
            check_every_iteration(each.function, program, each.problem)


def test_the_check_sees_another_schedule_of_the_same_words() -> None:
    """What the catalogue is held against: a trace of one schedule, and the function of another."""
    one, other = SCHEDULES["flash1-forward"], SCHEDULES["flash2-forward"]
    for made, traced in itertools.permutations((one, other)):
        with pytest.raises(TraceError, match="where in the trace"):
            check_every_iteration(made.function, traced.program, one.problem)


def test_both_machines_take_the_same_statements() -> None:
    def statements(machine: type) -> dict[str, list[tuple[str, object, object]]]:
        public = {name: value for name, value in inspect.getmembers(machine) if not name.startswith("_")}
        return {
            name: [(each.name, each.kind, each.default) for each in inspect.signature(value).parameters.values()]
            for name, value in public.items()
        }

    assert statements(TileByTile) == statements(Machine)


def test_each_loop_has_several_iterations() -> None:
    """Four or more at three sizes, and many at one; the last tile is often ragged."""
    sizes = list(small_sizes(registered(function(RIGHT["names of an earlier loop"])).program))
    for dim, block in (("m", "a"), ("n", "b"), ("k", 1)):
        lengths = [(each[dim], each.get(str(block), 1)) for each in sizes]
        times = [-(-whole // part) for whole, part in lengths]
        assert times[:3] == [4, 5, 6] and max(times) >= 33
        assert block == 1 or any(whole % part for whole, part in lengths)


def test_tiles_of_large_blocks_stay_small() -> None:
    def large(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        C = m.tensor("C", A.shape[0], B.shape[1])
        for i in m.tiles(A.shape[0], 2**20):
            for i_ in m.tiles(i, 1):
                A_i = m.read(A[i_, :])
                for j in m.tiles(B.shape[1], 2**20):
                    for j_ in m.tiles(j, b):
                        m.write(C[i_, j_], m.compute(A_i @ m.read(B[:, j_])))

    program = registered(large).program
    assert all(size <= 2**10 for sizes in small_sizes(program) for size in sizes.values())


@pytest.mark.one_in(2)
def test_drawn_mixtures_of_state_are_refused_exactly_if_the_trace_is_wrong() -> None:
    draw, outcomes = random.Random(0), []
    for _ in range(strategies.amount(40, 500)):
        body = mixture(draw)
        right, made = is_right(body, COUNTERS), registered(function(body, COUNTERS))
        try:
            accepted = bool(made.program)
        except TraceError:
            accepted = False
        assert accepted == right, body
        outcomes.append(right)
    assert 0.15 < sum(outcomes) / len(outcomes) < 0.85
