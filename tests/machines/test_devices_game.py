"""Attention on many devices as a game with a red for each device; count = game = closed form at every size."""

import itertools
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings, strategies as st
from strategies import amount

from pebblesim.core.errors import UsageError
from pebblesim.game.board import IllegalMove
from pebblesim.game.devices import ADD, BEGIN, COLLECT, DELETE, RECEIVE, SEND
from pebblesim.parallel.count import Layout, Moved, splits
from pebblesim.parallel.formula import form_of_device
from pebblesim.parallel.pebbles import Graph, exceeds, graph_of, play
from pebblesim.parallel.schedules import IN_PASSES, SCHEDULES, Parallel
from pebblesim.parallel.team import Team


@cache
def evaluator(name: str, backward: bool, latent: bool, causal: str | None) -> Any:
    exact = {"ceiling": ceil, "floor": floor, "Max": max, "Min": min, "Mod": lambda x, y: x % y}
    symbols = sympy.symbols("n n_q n_k d_k d_v h h_kv P u a b M p")
    return sympy.lambdify(symbols, form_of_device(SCHEDULES[name], backward, latent, causal), modules=[exact])


def in_closed_form(moved: Moved) -> list[int]:
    """The words of each device from the closed form."""
    team, split = moved.layout.team, moved.split
    form = evaluator(moved.schedule.name, team.backward, team.latent, team.ownership if team.causal else None)
    sizes = (team.n_q, team.n_q, team.n_k, team.d_k, team.d_v, team.heads, team.kv_heads, team.P)
    cut = split.heads, split.rows, split.keys, moved.M or 0
    return [form(*map(Fraction, (*sizes, *cut, p))) for p in range(team.P)]


def each_way(team: Team, rows: int) -> Iterator[Moved]:
    """All schedules that are possible, under every split."""
    for schedule in SCHEDULES.values():
        try:
            options = splits(schedule, team)
        except UsageError:
            continue
        for split in options:
            yield Moved(schedule, Layout(team, split), memory(team, schedule, rows))


def memory(team: Team, schedule: Parallel, rows: int) -> int | None:
    if schedule.order != IN_PASSES:
        return None
    own = max(map(team.owned_words, range(team.P)))
    return own + int(team.traffic.key) + rows * int(team.traffic.row)


def check(moved: Moved, formula: bool = True) -> None:
    """Play, and hold count, closed form and the words held against the game."""
    team, game = moved.layout.team, play(moved)
    assert game.missing == []
    assert game.moved == moved.each
    if formula:
        assert in_closed_form(moved) == moved.each
    over = max(game.peak_red) - moved.words_held
    assert over <= exceeds(team)
    assert over >= 0 or (team.causal and team.n_q > team.n_k)  # rows without a key have no sums in the game
    assert team.causal or over == exceeds(team)


KV_HEADS = st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (3, 1)])


@pytest.mark.one_in(12)
@given(st.data(), KV_HEADS, st.integers(1, 12), st.booleans(), st.booleans(), st.integers(1, 5))
@settings(max_examples=amount(12, 400))
def test_what_is_counted_is_played_and_is_the_closed_form(
    data: st.DataObject, heads: tuple[int, int], P: int, backward: bool, latent: bool, rows: int
) -> None:
    kv_heads, sharing = heads
    n_q, n_k, d_k = (data.draw(st.integers(1, most)) for most in (7, 7, 2))
    d_v = data.draw(st.integers(1, d_k if latent else 2))
    ownership = data.draw(st.sampled_from(["contiguous", "striped"]))
    team = Team(n_q, n_k, d_k, d_v, kv_heads * sharing, kv_heads, P, backward, False, ownership, latent)
    check(data.draw(st.sampled_from(list(each_way(team, rows)))))


@pytest.mark.one_in(2)
@given(st.data(), KV_HEADS, st.integers(1, 6), st.booleans(), st.sampled_from(["contiguous", "striped", "zig-zag"]))
@settings(max_examples=amount(10, 400))
def test_under_a_causal_mask_too_for_every_ownership(
    data: st.DataObject, heads: tuple[int, int], P: int, backward: bool, ownership: str
) -> None:
    kv_heads, sharing = heads
    n = data.draw(st.integers(1, 2)) * P * (2 if ownership == "zig-zag" else 1)
    team = Team.square(min(n, 12), 1, kv_heads * sharing, kv_heads, P, backward, True, ownership)
    for moved in data.draw(st.permutations(list(each_way(team, 2))))[:1]:
        check(moved, formula=team.n_q == n)


@pytest.mark.slow
@pytest.mark.parametrize("P", range(1, 13))
def test_every_schedule_under_every_split(P: int) -> None:
    """Sizes below P, multiples of it, and neither; every direction, ownership and mask, latent values or not."""
    names = set()
    for (h_kv, sharing), backward, latent in itertools.product([(1, 1), (2, 2), (12, 1)], (False, True), (False, True)):
        for n_q, n_k in ((1, 3), (5, 5), (P, 2 * P), (2 * P, 2 * P), (13, 7)):
            for causal, ownership in ((False, "contiguous"), (False, "striped"), (True, "zig-zag"), (True, "striped")):
                if h_kv * sharing * n_q * n_k > 160:
                    continue
                team = Team(n_q, n_k, 2, 1, h_kv * sharing, h_kv, P, backward, causal, ownership, latent)
                even = n_q == n_k and n_q % (2 * P) == 0
                for moved in each_way(team, 3):
                    check(moved, formula=not causal or even)
                    names.add(moved.schedule.name)
    assert names >= set(SCHEDULES) - ({"ulysses", "ulysses-rows"} if P not in (1, 2, 3, 4, 6, 12) else set())


def leaves(graph: Graph, name: tuple[Any, ...]) -> Counter[tuple[Any, ...]]:
    """The products in a sum, by way of its parts."""
    found = Counter[tuple[Any, ...]]()
    for term in graph.terms[name]:
        found += leaves(graph, term) if term[0].startswith("sum ") else Counter({term[:4]: 1})
    return found


@pytest.mark.parametrize("name, backward", [("tiles", False), ("tiles-in-passes", True), ("ring", True)])
def test_each_output_is_the_sum_of_all_its_products_once(name: str, backward: bool) -> None:
    team = Team(5, 4, 2, 2, 2, 1, 6, backward, True, "zig-zag")
    moved = next(each for each in each_way(team, 2) if each.schedule.name == name and each.split.keys in (1, 2))
    graph = graph_of(moved)
    seen = {(i, j) for i in range(5) for j in range(4) if j <= i - 1}
    for h, i, t in itertools.product(range(2), range(5), range(2)):
        mine = {j for row, j in seen if row == i}
        whole, product = (("sum dQ", h, i, t), "dSK") if backward else (("sum O", h, i, t), "PV")
        assert (whole in graph.terms) == bool(mine)
        if mine:
            assert leaves(graph, whole) == Counter((product, h, i, j) for j in mine)
    for j, t in itertools.product(range(4), range(2)):
        if backward:
            pairs = [(h, i) for h in range(2) for i, key in seen if key == j]
            assert leaves(graph, ("sum dV", 0, j, t)) == Counter(("PdO", h, i, j) for h, i in pairs)


def small() -> tuple[Graph, dict[str, int]]:
    """x of device 0 and y of device 1 are factors of a product, a part of a sum that device 0 must have."""
    graph = Graph()
    graph.terms = {("x",): [], ("y",): [], ("xy",): [("x",), ("y",)], ("part",): [("xy",)], ("sum",): [("part",)]}
    graph.inputs_named, graph.outputs_named = {("x",): 0, ("y",): 1}, {("sum",): 0}
    graph.sums_named = {("part",): None, ("sum",): None}
    graph.number()
    return graph, {name[0]: v for name, v in graph.ids.items()}


LEGAL = [
    (1, RECEIVE, "x"), (1, ADD, ("x", "xy")), (1, ADD, ("y", "xy")), (1, DELETE, "x"), (1, BEGIN, "part"),
    (1, ADD, ("xy", "part")), (1, SEND, "part"), (0, COLLECT, "part"), (0, ADD, ("part", "sum")),
]  # fmt: skip


def judged(moves: list[tuple[int, int, Any]]) -> Any:
    graph, ids = small()
    numbers = [
        (p, kind, graph.edge[(what[0],), (what[1],)] if isinstance(what, tuple) else ids[what])
        for p, kind, what in moves
    ]
    return graph.judged(2, np.array(numbers))


def test_whoever_receives_a_value_pays_and_whoever_sends_a_part() -> None:
    game = judged(LEGAL)
    assert (game.received, game.sent, game.missing) == ([0, 1], [0, 1], [])
    assert game.peak_red == [3, 3]  # x, part, sum; y, x, xy
    assert judged(LEGAL[:-1]).missing == ["sum[]"]


@pytest.mark.parametrize(
    "number, wrong, said",
    [
        (0, (0, RECEIVE, "x"), "red already|not held by another"),
        (0, (1, RECEIVE, "xy"), "not complete"),
        (0, (1, RECEIVE, "part"), "it is not complete"),
        (1, (0, ADD, ("y", "xy")), "its term y.* is not red"),
        (2, (1, ADD, ("x", "xy")), "was added before"),
        (5, (1, SEND, "part"), "it is not complete"),
        (6, (0, COLLECT, "part"), "it is not blue"),
        (7, (0, ADD, ("part", "sum")), "its term part.* is not red"),
        (8, (0, DELETE, "sum"), "it is not red"),
        (3, (0, ADD, ("y", "xy")), "not red|held by another"),
        (5, (1, BEGIN, "part"), "red already"),
        (0, (2, DELETE, "x"), "no such move"),
        (0, (0, 9, "x"), "no such"),
    ],
)
def test_the_referee_says_which_move_breaks_which_rule(number: int, wrong: Any, said: str) -> None:
    with pytest.raises(IllegalMove, match=said) as error:
        judged([*LEGAL[:number], wrong])
    assert f"move {number + 1}: {'there is' if 'no such' in said else 'device'}" in str(error.value)


@pytest.mark.one_in(2)
def test_more_colours_than_a_word_has_bits_are_refused() -> None:
    with pytest.raises(UsageError, match="up to 58 colours"):
        play(next(each_way(Team.square(64, 1, 1, 1, 64), 1)))
