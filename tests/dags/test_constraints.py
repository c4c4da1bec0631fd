"""The constraint program for the least I/O without recomputation, against the enumeration of all games."""

import random

import numpy as np
import pytest
from dags.test_dags import least_M, random_graph
from numpy.typing import NDArray
from oracle_games import least_io

from pebblesim.dags.constraints import solve
from pebblesim.dags.generators import generate
from pebblesim.dags.interval import Interval
from pebblesim.dags.optimum import optimum
from pebblesim.dags.orders import Task
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.game.referee import referee
from pebblesim.graphs.cdag import Cdag

RULES = "no-recompute"


def all_through_memory(graph: Cdag) -> tuple[int, NDArray[np.int64]]:
    """I/O and moves of the game that reads all operands of a vertex, computes it, and writes it."""
    moves, io, inputs = [], 0, {*graph.inputs.tolist()}
    for v in range(graph.vertices):
        if v not in inputs:
            operands = sorted({*graph.predecessors(v).tolist()})
            moves += [(READ, u) for u in operands] + [(COMPUTE, v), (WRITE, v)]
            moves += [(DELETE, u) for u in (*operands, v)]
            io += len(operands) + 1
    return io, np.array([pack(kind, v) for kind, v in moves], dtype=np.int64)


def check(graph: Cdag, M: int, least: int | None) -> int:
    """The program finds and proves the least I/O, from the worst of games; return what that game moves more."""
    io, moves = all_through_memory(graph)
    run = Interval(Task(graph, M, RULES), io, moves, 0, "nothing")
    reached: list[tuple[int, int]] = []
    solve(run, float("inf"), lambda: reached.append((run.bound, run.io)))
    game = referee(graph, M, [run.moves], RULES)
    assert game.complete
    assert game.io == run.io == run.bound == least
    assert reached[-1] == (run.io, run.io)
    return io - run.io


def test_the_program_proves_the_least_of_all_games_and_plays_it() -> None:
    dice, saved = random.Random(8), 0
    for _ in range(8):
        graph = random_graph(dice, 6)
        M = least_M(graph, RULES) + dice.choice([0, 1])
        saved += check(graph, M, least_io(graph, M, RULES))
    assert saved > 10


@pytest.mark.parametrize(
    ("name", "sizes", "M"),
    [("pyramid", {"rows": 4}, 3), ("pyramid", {"rows": 5}, 4), ("fft", {"n": 4}, 3)],
)
def test_the_program_and_the_search_of_states_agree(name: str, sizes: dict[str, int], M: int) -> None:
    """Values are written and read again here, some of them twice."""
    graph = generate(name, **sizes)
    least = optimum(graph, M, RULES, states=10**6)
    assert least.proven and "CP-SAT" not in least.proof
    check(graph, M, least.io)
