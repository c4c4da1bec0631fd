"""Schedules inside schedules on paths of memories: words, room, closed forms, games and numbers agree."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from strategies import amount
from test_trees import Sets

from pebblesim import graphs
from pebblesim.analysis.count import count, peak_words
from pebblesim.analysis.formula import formula
from pebblesim.analysis.peak import peak_red
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.game.board import IllegalMove
from pebblesim.game.moves import READ, WRITE
from pebblesim.game.trees import Tree, TreeGame, play
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.machines.nesting import Nested, _tiles, nested
from pebblesim.machines.playing import moves

Inner = tuple[str, tuple[str, ...], dict[str, int]]
PRODUCTS = ("matmul-tiled", "matmul-streamed", "matmul-blocked", "matmul-resident")


class Case:
    """A nested schedule at some sizes, with its graph and its game on the smallest path that it fits on."""

    def __init__(self, name: str, dims: dict[str, int], blocks: dict[str, int], inner: list[Inner]) -> None:
        self.schedule, self.dims = get(name).in_dims(dims), dims
        self.nest, self.sizes = Nested(self.schedule.program), {**dims, **blocks}
        for product, below, sides in inner:
            self.nest = nested(self.nest, get(product), below)
            self.sizes |= {f"{block}_{self.nest.lowest}": side for block, side in sides.items()}
        options = self.schedule.graph_options(self.sizes)
        self.graph = graphs.build(self.schedule.problem.name, summation="chain", **dims, **options)
        lowest = self.nest.lowest
        self.room = [peak_words(self.nest.held(k), self.sizes) for k in range(1, lowest)]
        self.room.append(peak_red(self.nest.computed, self.sizes))
        self.tree = Tree.path(*(max(1, words) for words in self.room))
        self.moves = np.concatenate(list(moves(self.nest, self.sizes, self.graph.families, self.tree)))

    def play(self) -> TreeGame:
        return play(self.graph, self.tree, [self.moves])

    def agree(self) -> None:
        """Assert that all readings agree."""
        game = self.play()
        assert game.missing == []
        for number in range(1, self.nest.lowest + 1):
            program = self.nest.boundary(number)
            moved = count(program, self.sizes).total
            assert (game.down[number - 1], game.up[number - 1]) == (moved.reads, moved.writes)
            closed = formula(program)
            assert closed.function_of("reads")(**self.sizes) == moved.reads
            assert closed.function_of("writes")(**self.sizes) == moved.writes
        assert count(self.nest.boundary(1), self.sizes).total == count(self.schedule.program, self.sizes).total
        assert game.peak[-1] == self.room[-1]
        assert all(held <= room for held, room in zip(game.peak, self.room, strict=True))
        inputs = self.schedule.problem.random_inputs(self.dims, kept=self.schedule.kept)
        outputs, reference = (
            numbers(self.nest.computed, self.sizes, inputs),
            self.schedule.problem.reference(inputs, None),
        )
        for name in outputs:
            np.testing.assert_allclose(outputs[name], reference[name], rtol=1e-9, atol=1e-9)


@st.composite
def cases(draw: st.DrawFn, names: tuple[str, ...] = ()) -> tuple[Any, ...]:
    name = draw(st.sampled_from(names or sorted(SCHEDULES)))
    schedule = get(name)
    dims = {dim: draw(st.integers(1, 5)) for dim in schedule.problem.dims}
    blocks = {block: draw(st.integers(1, 4)) for block in schedule.blocks}
    tiles = sorted({tile.name for tile in _tiles(schedule.program)} - {""})
    below = tuple(draw(st.sets(st.sampled_from(tiles)))) if tiles else ()
    inner = []
    for kept in (below, ())[: draw(st.integers(1, 2))]:
        product = draw(st.sampled_from(PRODUCTS))
        inner.append((product, kept, {block: draw(st.integers(1, 3)) for block in get(product).blocks}))
    return name, dims, blocks, inner


@given(cases())
@settings(max_examples=amount(5, 1000))
def test_all_readings_of_a_nested_schedule_agree_or_it_is_refused(case: tuple[Any, ...]) -> None:
    try:
        made = Case(*case)
    except UsageError:
        return
    made.agree()


NESTED: dict[str, tuple[str, dict[str, int], dict[str, int], list[Inner]]] = {
    "matmul, four memories": (
        "matmul-tiled",
        {"m": 7, "k": 9, "n": 6},
        {"b": 4},
        [("matmul-tiled", (), {"b": 3}), ("matmul-streamed", (), {"a": 2, "b": 2})],
    ),
    "accumulators below": (
        "matmul-tiled",
        {"m": 5, "k": 7, "n": 3},
        {"b": 3},
        [("matmul-streamed", ("C_ij",), {"a": 2, "b": 2})],
    ),
    "forward": (
        "flash2-forward",
        {"n": 5, "d": 3},
        {"B_r": 2, "B_c": 3},
        [("matmul-streamed", ("P", "l_i", "m_i", "m_new", "O_i"), {"a": 2, "b": 2})],
    ),
    "backward": (
        "flash2-backward",
        {"n": 5, "d": 3},
        {"B_r": 3, "B_c": 2},
        [("matmul-streamed", ("P", "dS", "dK_j", "dV_j"), {"a": 2, "b": 1})],
    ),
    "all above": ("small-cache", {"n": 5, "d": 3}, {"B": 3}, [("matmul-streamed", (), {"a": 2, "b": 2})]),
}


@pytest.mark.parametrize("case", NESTED.values(), ids=NESTED)
def test_nested_schedules_agree(case: tuple[Any, ...]) -> None:
    Case(*case).agree()


def tiles_of(length: int, *blocks: int) -> Iterator[int]:
    """The lengths of tiles of tiles, from the inside."""
    if not blocks:
        yield length
        return
    for start in range(0, length, blocks[0]):
        yield from tiles_of(min(blocks[0], length - start), *blocks[1:])


@given(st.tuples(*[st.integers(1, 9)] * 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=amount(20, 500))
def test_words_of_products_in_products_are_those_of_loops(
    shape: tuple[int, int, int], b: int, a_2: int, b_2: int
) -> None:
    """Square tiles in the first memory, rank-1 updates of a_2 x b_2 sums in the second, which go up after each b terms."""
    m, k, n = shape
    nest = nested(Nested(get("matmul-tiled").program), get("matmul-streamed"))
    sizes = {"m": m, "k": k, "n": n, "b": b, "a_2": a_2, "b_2": b_2}
    words: Counter[str] = Counter()
    for rows in tiles_of(m, b):
        for columns in tiles_of(n, b):
            for number, terms in enumerate(tiles_of(k, b)):
                for r in tiles_of(rows, a_2):
                    for c in tiles_of(columns, b_2):
                        words["down"] += terms * (r + c) + (r * c if number else 0)
                        words["up"] += r * c
    moved = count(nest.boundary(2), sizes).total
    assert (moved.reads, moved.writes) == (words["down"], words["up"])


@given(st.data())
@settings(max_examples=amount(20, 700))
def test_an_edited_nested_game_is_refused_or_right(data: st.DataObject) -> None:
    """The referee of trees says of an edit what sets of vertices say, and its words and peaks are theirs."""
    name = data.draw(st.sampled_from(["matmul, four memories", "accumulators below", "backward"]))
    program, _, blocks, inner = NESTED[name]
    dims = {dim: data.draw(st.integers(1, 3)) for dim in get(program).problem.dims}
    case = Case(program, dims, blocks, inner)
    shift = (len(case.tree.kinds) - 1).bit_length()
    stream = [(*case.tree.kinds[move & (1 << shift) - 1], move >> shift) for move in case.moves.tolist()]
    at, other = (data.draw(st.integers(0, len(stream) - 1)) for _ in range(2))
    match data.draw(st.sampled_from(["drop", "twice", "swap", "vertex", "place"])):
        case "drop":
            del stream[at]
        case "twice":
            stream.insert(other, stream[at])
        case "swap":
            stream[at], stream[other] = stream[other], stream[at]
        case "vertex":
            stream[at] = (*stream[at][:2], data.draw(st.integers(0, case.graph.vertices - 1)))
        case "place":
            stream[at] = (*data.draw(st.sampled_from(case.tree.kinds)), stream[at][2])
    sets = Sets(case.graph, case.tree, once=False)
    wrong = None
    for number, move in enumerate(stream, 1):
        if not sets.legal(move):
            wrong = number
            break
        sets.make(move)
    edited = case.tree.moves(*stream)
    if wrong is not None:
        with pytest.raises(IllegalMove, match=f"move {wrong}: "):
            play(case.graph, case.tree, [edited])
        return
    game = play(case.graph, case.tree, [edited])
    nodes = range(1, len(case.tree.names))
    assert (game.down, game.up) == tuple([sets.words[kind, node] for node in nodes] for kind in (READ, WRITE))
    assert game.peak == sets.peak
    held = {case.graph.describe(v) for v in sets.held[0]}
    assert set(game.missing) == {case.graph.describe(v) for v in case.graph.outputs.tolist()} - held


def test_what_cannot_be_nested_is_refused_in_a_sentence() -> None:
    flash, streamed = Nested(get("flash2-forward").program), get("matmul-streamed")
    with pytest.raises(UsageError, match="its tile m_i takes over the words of m_new; let it live in the memory below"):
        nested(flash, streamed)
    with pytest.raises(UnknownName, match="tile of flash2-forward"):
        nested(flash, streamed, ["S"])
    with pytest.raises(UsageError, match="products need one of matmul"):
        nested(flash, get("flash2-backward"))
    with pytest.raises(UsageError, match="under a mask"):
        nested(Nested(get("flash2-forward").masked), streamed)
