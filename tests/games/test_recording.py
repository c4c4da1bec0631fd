"""Games kept whole: the moves of each primitive, the line it stands in, and what stands where at any move."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from strategies import SUMMATIONS, allowed_pairs, every, sizes

import pebblesim as ps
from pebblesim.api.graph import graph_of
from pebblesim.core.errors import UsageError
from pebblesim.counting.run import Run
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, unpack
from pebblesim.game.player import moves, steps
from pebblesim.language.masks import from_array
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.views.recording import Recording, record

NAMES = ("small-cache", "large-cache", "flash", "flash2-forward", "row-stationary-one-pass", "matmul-streamed")

CHOSEN = st.sampled_from(NAMES).flatmap(
    lambda name: st.tuples(st.just(name), sizes(get(name), 5), SUMMATIONS, st.sampled_from(["hong-kung", "replace"]))
)


def outcome(parts):
    """All moves in a row, or the message of the refusal."""
    try:
        return np.concatenate([np.empty(0, np.int64), *parts]).tolist()
    except UsageError as error:
        return str(error)


@given(CHOSEN)
def test_the_steps_of_a_game_are_its_moves(chosen) -> None:
    name, all_sizes, summation, rules = chosen
    algorithm = get(name)
    dims = {dim: all_sizes[dim] for dim in algorithm.problem.dims}
    options = algorithm.graph_options({block: all_sizes[block] for block in algorithm.blocks})
    families = ps.graph(algorithm.problem.name, summation=summation, **dims, **options).families
    keep = {"write_takes_red": rules == "replace"}
    whole = outcome(chunk.copy() for chunk in moves(algorithm.program, all_sizes, families, **keep))
    parts = outcome(step.moves.copy() for step in steps(algorithm.program, all_sizes, families, **keep))
    assert parts == whole


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), allowed_pairs(n))), st.integers(1, 4))
def test_the_steps_of_a_masked_game_are_its_moves(pairs, block: int) -> None:
    n, allowed = pairs
    mask = from_array(allowed)
    run = Run.of("flash2-forward", {"n": n, "d": 2}, M=10**4, blocks={"B_r": block, "B_c": 2}, mask=mask)
    families = graph_of(run).families
    whole = outcome(chunk.copy() for chunk in moves(run.program, run.sizes, families, mask=mask))
    assert outcome(step.moves.copy() for step in steps(run.program, run.sizes, families, mask=mask)) == whole


# -- lines ------------------------------------------------------------------------------------------------------------


def lines_of(game: Recording) -> list[str]:
    """The line of each move, from the steps alone."""
    spans = pairwise([*game.starts.tolist(), len(game.moves)])
    return [game.text[line] for (a, b), line in zip(spans, game.lines, strict=True) for _ in range(b - a)]


@every(SCHEDULES, "name", of=8)
def test_each_move_comes_from_a_line_that_says_so(name: str) -> None:
    """Tensor and kind of every read and write stand in its line; a value comes from a line that computes one."""
    game = record(name, n=4, d=3, M=10**6, blocks=dict.fromkeys(get(name).blocks, 2) if name != "no-cache" else "fit")
    says = {READ: r"read (\w+)", WRITE: r"write (\w+).* ←", COMPUTE: r".*(?:\+?= |← ).", DELETE: r""}
    names = [game.graph.describe(v) for v in range(game.graph.vertices)]
    for number, (move, line) in enumerate(zip(game.moves.tolist(), lines_of(game), strict=True), 1):
        kind, vertex = unpack(move)
        found = re.match(r"\s*" + says[kind], line)
        assert found, (names[vertex], line)
        assert game.text[game.line_at(number)] == line
        if kind in (READ, WRITE):
            assert names[vertex].startswith(f"{found[1]}[")


def test_loops_say_which_tile_they_are_at() -> None:
    """Each word that is read lies in the tile that the loops around its line are at."""
    game = record("small-cache", n=7, d=3, M=100, blocks={"B": 2})
    turns = game.turns.tolist()
    tile_of: dict[int, int] = {}
    checked = 0
    for number, move in enumerate(game.moves.tolist(), 1):
        while turns and turns[0][0] < number:
            _, line, tile_of[line] = turns.pop(0)
        here = game.line_at(number)
        reads = re.match(r"( *)read (\w+)\[(\w), (\w)\]", game.text[here])
        kind, vertex = unpack(move)
        if not reads or kind != READ:
            continue
        at, depth = {}, len(reads[1])
        for line in range(here, -1, -1):
            head = re.match(r"( *)for (\w) in", game.text[line])
            if head and len(head[1]) < depth:
                depth, at[head[2]] = len(head[1]), tile_of[line]
        _, _, index, _ = game.graph.locate(vertex)
        assert [entry // 2 for entry in index] == [at[reads[3]], at[reads[4]]]
        checked += 1
    assert checked == game.game.reads


@pytest.mark.parametrize("name", ["small-cache", "large-cache", "no-cache", "flash"])
def test_phases_begin_where_their_first_move_is(name: str) -> None:
    game = record(name, n=4, d=2, M=200)
    moved = ps.count(name, n=4, d=2, M=200).phases
    assert [name for name, _ in game.phases] == list(moved)
    kind = game.moves & 3
    bounds = [start for _, start in game.phases] + [len(game.moves)]
    for (reads, writes), start, stop in zip(moved.values(), bounds, bounds[1:], strict=False):
        assert (np.sum(kind[start:stop] == READ), np.sum(kind[start:stop] == WRITE)) == (reads, writes)


# -- pebbles ----------------------------------------------------------------------------------------------------------


def model(game: Recording, replace: bool):
    """The red and the blue pebbles after each move, in two sets."""
    red: set[int] = set()
    blue = set(game.graph.inputs.tolist())
    yield red, blue
    for kind, vertex in map(unpack, game.moves.tolist()):
        if kind in (READ, COMPUTE):
            red.add(vertex)
        if kind == WRITE:
            blue.add(vertex)
        if kind == DELETE or (replace and kind == WRITE):
            red.discard(vertex)
        if replace and kind == READ:
            blue.discard(vertex)
        yield red, blue


LEFT = [("large-cache", "replace"), ("no-cache", "no-recompute")]
"""Illegal games that end with red pebbles on the graph."""


@pytest.mark.parametrize(
    ("name", "rules", "more"),
    [
        ("small-cache", "hong-kung", {}),
        ("small-cache", "replace", {}),
        ("large-cache", "replace", {"M": 200}),
        ("no-cache", "no-recompute", {"M": 200}),
        ("flash", "hong-kung", {}),
        ("matmul-tiled", "replace", {"d": 1}),
        ("flash2-forward", "hong-kung", {"mask": "causal", "n": 5}),
    ],
)
def test_pebbles_at_every_move_are_those_of_two_sets(name: str, rules: str, more: dict) -> None:
    game = record(name, **({"n": 4, "d": 2, "M": 60, "rules": rules} | more))
    standing = np.zeros((len(game.moves) + 1, game.graph.vertices), np.int8)
    for vertex, first, stop in zip(*game.intervals, strict=True):
        standing[first:stop, vertex] += 1
    for move, (red, blue) in enumerate(model(game, rules == "replace")):
        held_red, held_blue = game.pebbles(move)
        assert set(np.flatnonzero(held_red)) == red == set(np.flatnonzero(standing[move]))
        assert set(np.flatnonzero(held_blue)) == blue
        assert move == 0 or game.red[move - 1] == len(red)
    assert standing.max() == 1
    assert game.red.max() == game.game.peak_red
    assert (game.game.moves, game.game.legal) == (len(game.moves), rules == "hong-kung" or name == "matmul-tiled")
    assert (name, rules) not in LEFT or red


def test_an_illegal_game_ends_in_front_of_the_move_that_is_none() -> None:
    game = record("small-cache", n=8, d=4, M=24, rules="replace")
    assert game.game.violation is not None
    assert len(game.moves) == game.game.moves == game.game.violation.number - 1 == 88
    assert game.starts[-1] < 88
    assert game.phases == (("f", 0), ("q", 88), ("p", 88), ("g", 88))


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_games_that_are_too_long_are_refused_before_they_are_played() -> None:
    with pytest.raises(UsageError, match=r"too long to be kept: it has [\d,]+ vertices, and 10,000,000 are allowed"):
        record("small-cache", n=1024, d=64, M=10**4)
    with pytest.raises(UsageError, match="it has more than 3,000 moves"):
        record("small-cache", n=8, d=4, M=24, most=3000)


@pytest.mark.parametrize("move", [-1, 385])
def test_there_are_no_pebbles_at_a_move_that_is_none(move: int) -> None:
    game = record("small-cache", n=2, d=2, M=24, summation="balanced")
    with pytest.raises(UsageError, match=r"has moves 0 \(the start\) to 384"):
        game.pebbles(move)
