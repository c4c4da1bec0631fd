"""C5: what is in the cache at two times. The lemma of C4 and C5, on games; its closed form; where it is met; gaps."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import product
from typing import Any

import pytest
from bounds.test_segments import Moves, of_use, random_game
from strategies import amount

import pebblesim as ps
from pebblesim import graphs
from pebblesim.core.errors import Infeasible
from pebblesim.game.moves import COMPUTE, READ, WRITE, unpack
from pebblesim.game.player import moves
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import of_problem
from pebblesim.lower_bounds.bounds import LowerBound, lower_bounds

PAIR = {"S", "Sm", "A", "P"}


def check_dead_and_late(graph: Cdag, game: Moves, n_q: int, n_k: int, d_k: int, d_v: int) -> int:
    """Check each pair that moves no word: where a word of one line is dead and one of the other late, it is red.

    Lines are those of a column k: Q_i and O_ik, K_j and V_jk. Returns how often both were so.
    """

    def word(v: int) -> tuple[Any, ...] | None:
        family, _, index, _ = graph.locate(v)
        tensor = family.name
        if tensor in PAIR:
            return ("pair", *index[:2])
        return ("O" if tensor == "AV" else tensor, *index[:2]) if tensor in ("Q", "K", "V", "AV", "O") else None

    words = [word(v) for v in range(graph.vertices)]
    red: dict[Any, int] = defaultdict(int)
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    times: dict[Any, set[int]] = defaultdict(set)
    moved = set()
    for t, (kind, v) in enumerate(game, 1):
        name = words[v]
        if name is not None:
            if kind in (READ, WRITE):
                moved.add(name)
            if kind in (READ, COMPUTE):
                red[name] += 1
                first.setdefault(name, t)
            elif kind != WRITE:
                red[name] -= 1
                last[name] = t
        for pair, pebbles in red.items():
            if pebbles and pair[0] == "pair":
                times[pair].add(t)
    last |= {name: len(game) for name, pebbles in red.items() if pebbles}  # all that is left goes at the end
    seen = 0
    for i, j, k in product(range(n_q), range(n_k), range(d_v)):
        if ("pair", i, j) in moved:
            continue
        ours = [*(("Q", i, c) for c in range(d_k)), ("O", i, k)]
        theirs = [*(("K", j, c) for c in range(d_k)), ("V", j, k)]
        for mine, other in ((ours, theirs), (theirs, ours)):
            dead = min(last[x] for x in mine)
            late = max(first[y] for y in other)
            for t in range(dead, late):
                seen += 1
                assert t in times["pair", i, j], (i, j, k, t)
    return seen


@pytest.mark.parametrize("softmax", ["late", "safe"])
def test_a_dead_and_a_late_line_leave_a_red_pair(softmax: str) -> None:
    rng, seen = random.Random(5), 0
    for _ in range(12):
        n, d = rng.choice([(2, 1), (3, 1), (2, 2), (3, 2)])
        graph = graphs.build("forward", n=n, d=d, softmax=softmax)
        try:
            game = of_use(graph, random_game(graph, rng.randint(8, 30), rng))
        except Infeasible:
            continue
        seen += check_dead_and_late(graph, game, n, n, d, d)
    assert seen > 0


def test_a_dead_and_a_late_line_of_a_rectangle() -> None:
    """C4 is claimed where queries and keys differ in number, and their rows in width."""
    rng, seen = random.Random(11), Counter[tuple[bool, bool]]()
    for _ in range(24):
        sizes = {"n_q": rng.randint(1, 3), "n_k": rng.randint(1, 3), "d_k": rng.randint(1, 2), "d_v": rng.randint(1, 2)}
        graph = graphs.build("forward", softmax="late", **sizes)
        try:
            game = of_use(graph, random_game(graph, rng.randint(8, 30), rng))
        except Infeasible:
            continue
        shape = sizes["n_q"] != sizes["n_k"], sizes["d_k"] != sizes["d_v"]
        seen[shape] += check_dead_and_late(graph, game, **sizes)
    assert seen[True, True] > 0 and seen[False, True] > 0


def test_the_same_in_the_games_of_schedules() -> None:
    n, d, seen = 4, 2, 0
    for schedule in of_problem("forward"):
        if schedule.graph == {"softmax": "late"}:
            sizes = {"n": n, "d": d} | dict.fromkeys(schedule.blocks, 2)
            graph = graphs.build("forward", n=n, d=d, **schedule.graph_options(sizes))
            packed = [move for part in moves(schedule.program, sizes, graph.families) for move in part.tolist()]
            seen += check_dead_and_late(graph, of_use(graph, [unpack(move) for move in packed]), n, n, d, d)
    assert seen > 0


def c5(n: int, d: int, M: int) -> LowerBound:
    return next(each for each in lower_bounds(PROBLEMS["forward"], {"n": n, "d": d}, M) if each.name == "C5")


@pytest.mark.parametrize(("quarters", "halves"), [(1, 12.5), (2, 12), (4, 11), (6, 10), (7, 9), (8, 8), (9, 7)])
def test_its_value_in_units_of_half_an_nd(quarters: int, halves: float) -> None:
    """6.5 nd - M up to M = 1.5 nd, then 8 nd - 2M, but for 48d²."""
    n, d = 2**20, 16
    found = c5(n, d, quarters * n * d // 4)
    assert found.value + 48 * d * d == halves * n * d // 2
    assert found.form is not None
    assert ("13*n*d/2" in found.form.expr) == (quarters <= 6)


def test_half_a_word_is_a_word() -> None:
    """13nd/2 - 48d² - M is 111½ at n = 25, d = 1, M = 3, and I/O is whole."""
    found = {bound.name: bound.value for bound in lower_bounds(PROBLEMS["forward"], {"n": 25, "d": 1}, 3)}
    assert found["C5"] == 112


def test_where_it_is_not_proved() -> None:
    assert "n ≥ 24·d" in c5(95, 4, 100).why_not and not c5(96, 4, 100).why_not
    sizes = {"n_q": 400, "n_k": 399, "d_k": 2, "d_v": 2}
    (uneven,) = (each for each in ps.bounds("forward", M=100, **sizes).lower if each.name == "C5")
    assert "as many keys as queries" in uneven.why_not
    (masked,) = (each for each in ps.bounds("forward", M=100, n=400, d=2, mask="causal").lower if each.name == "C5")
    assert "where all pairs are allowed" in masked.why_not


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("problem", "M", "most", "best"),
    [
        ("forward", 2**23, 1.25, "first-rows-keys-stay"),
        pytest.param("forward", 2**24, 1.13, None, marks=pytest.mark.slow),
        pytest.param("forward", 16, 1.31, None, marks=pytest.mark.slow),
        pytest.param("backward", 2**23, 1.21, None, marks=pytest.mark.slow),
        ("backward-qkv", 2**23, 1.51, "first-keys-by-columns"),
        pytest.param("backward-qkv", 2**24, 1.45, None, marks=pytest.mark.slow),
    ],
)
def test_gaps_where_they_were_largest(problem: str, M: int, most: float, best: str | None) -> None:
    """n = 65536, d = 128; before, 1.60, 1.50, 1.46, 1.50, 1.88 and 2.01."""
    sizes: dict[str, Any] = {"n": 2**16, "d": 2**7, "M": M, "blocks": "best"}
    if best is not None and amount(True, False):  # the others of the catalogue take seconds
        rows = (ps.count(best, **sizes),)
    else:
        rows = tuple(ps.compare(problem_name=problem, **sizes).rows)
    assert 1 < min(row.gap_of_way for row in rows if row.feasible) < most


# -- where it is met -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quarters", "most"), [(6, 1.03), (7, 1.09)])
def test_a_schedule_meets_it_at_three_halves(quarters: int, most: float) -> None:
    """V in two halves of its columns: 5nd in 3nd/2 words, and a word less for each word of Q that stays."""
    n, d = 2**16, 2**7
    M = quarters * n * d // 4 + n
    assert ps.play("values-in-columns", M=1000, blocks={"B_v": 2, "B_s": 3}, n=7, d=4).passed
    counted = ps.count("values-in-columns", M=M, n=n, d=d)
    assert counted.peak_red <= M
    leading = (26 - quarters) * n * d // 4
    assert leading < counted.io + n <= leading + 3 * n  # n words of Q may stay for it, and l is written twice
    bound = c5(n, d, M).value
    assert bound is not None and bound <= counted.io <= most * bound
