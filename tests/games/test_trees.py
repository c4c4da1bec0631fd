"""The game on trees of memories, against sets of vertices in Python; on a path of two it is the game of two levels."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from strategies import amount

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.game.board import IllegalMove
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE
from pebblesim.game.referee import referee
from pebblesim.game.trees import TREE_RULES, Memory, Tree, play
from pebblesim.graphs.cdag import Cdag

Move = tuple[int, int, int]


@st.composite
def graphs(draw: st.DrawFn) -> Cdag:
    n = draw(st.integers(2, 6))
    edges = [(u, v) for v in range(n) for u in draw(st.sets(st.integers(0, max(0, v - 1)), max_size=2)) if u < v]
    return Cdag.from_edges(n, np.array(edges, dtype=int).reshape(-1, 2))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    count = draw(st.integers(1, 4))
    return Tree("R", tuple(Memory(f"m{k}", draw(st.integers(1, 3)), draw(st.integers(0, k))) for k in range(count)))


class Sets:
    """What each memory holds, as sets; the rules from their words."""

    def __init__(self, graph: Cdag, tree: Tree, once: bool) -> None:
        self.graph, self.tree, self.once = graph, tree, once
        self.inputs = set(graph.inputs.tolist())
        self.held: list[set[int]] = [set(self.inputs), *(set() for _ in tree.memories)]
        self.computed: set[int] = set()
        self.words = {(kind, node): 0 for kind in (READ, WRITE) for node in range(1, len(self.held))}
        self.peak = [0] * len(tree.memories)

    def legal(self, move: Move) -> bool:
        kind, node, v = move
        above = self.tree.above[node - 1]
        source, target = {READ: (above, node), WRITE: (node, above)}.get(kind, (node, node))
        if kind == DELETE:
            return v in self.held[node]
        if kind == COMPUTE:
            if v in self.inputs or not set(self.graph.predecessors(v).tolist()) <= self.held[node]:
                return False
            if self.once and v in self.computed:
                return False
        elif v not in self.held[source]:
            return False
        room = target == 0 or len(self.held[target]) < self.tree.memories[target - 1].capacity
        return room or v in self.held[target]

    def make(self, move: Move) -> None:
        kind, node, v = move
        if kind == DELETE:
            self.held[node].remove(v)
            return
        self.held[self.tree.above[node - 1] if kind == WRITE else node].add(v)
        self.computed |= {v} if kind == COMPUTE else set()
        if kind != COMPUTE:
            self.words[kind, node] += 1
        self.peak = [max(most, len(now)) for most, now in zip(self.peak, self.held[1:], strict=True)]


def drawn(draw: Any, graph: Cdag, tree: Tree, once: bool) -> tuple[list[Move], Sets, bool]:
    """Legal moves, the sets after them, and whether an illegal move follows."""
    sets = Sets(graph, tree, once)
    every = [(kind, node, v) for kind, node in tree.kinds for v in range(graph.vertices)]
    moves: list[Move] = []
    for seed in draw(st.lists(st.integers(0, 10**6), max_size=30)):
        legal = [move for move in every if sets.legal(move)]
        moves.append(legal[seed % len(legal)])
        sets.make(moves[-1])
    wrong = [move for move in every if not sets.legal(move)]
    if wrong and draw(st.booleans()):
        return [*moves, wrong[draw(st.integers(0, len(wrong) - 1))]], sets, True
    return moves, sets, False


@given(st.data(), graphs(), trees(), st.sampled_from(TREE_RULES))
@settings(max_examples=amount(150, 3000))
def test_moves_on_trees_are_those_of_sets(data: st.DataObject, graph: Cdag, tree: Tree, rules: str) -> None:
    moves, sets, wrong = drawn(data.draw, graph, tree, rules == "no-recompute")
    if wrong:
        with pytest.raises(IllegalMove, match=f"move {len(moves)}: ") as error:
            play(graph, tree, [tree.moves(*moves)], rules)
        kind, node, _ = moves[-1]
        ends = {tree.names[node]} | ({tree.names[tree.above[node - 1]]} if kind in (READ, WRITE) else set())
        assert all(name in str(error.value) for name in ends)
        moves = moves[:-1]
    game = play(graph, tree, [tree.moves(*moves)], rules)
    nodes = range(1, len(tree.names))
    assert (game.down, game.up) == tuple([sets.words[kind, node] for node in nodes] for kind in (READ, WRITE))
    assert game.peak == sets.peak
    assert game.missing == [graph.describe(v) for v in graph.outputs.tolist() if v not in sets.held[0]]
    assert game.moves == len(moves)


@given(st.data(), graphs(), st.integers(1, 4), st.sampled_from(TREE_RULES))
@settings(max_examples=amount(60, 1000))
def test_a_path_of_two_is_the_game_of_two_levels(data: st.DataObject, graph: Cdag, M: int, rules: str) -> None:
    tree = Tree.path(M)
    moves, _, wrong = drawn(data.draw, graph, tree, rules == "no-recompute")
    stream = tree.moves(*moves)
    assert stream.tolist() == [v * 4 + kind for kind, _, v in moves]
    game = referee(graph, M, [stream], rules, strict=False)
    assert game.legal is not wrong
    on_tree = play(graph, tree, [stream[: game.moves]], rules)
    assert ([game.reads], [game.writes], [game.peak_red]) == (on_tree.down, on_tree.up, on_tree.peak)
    assert game.missing_outputs == len(on_tree.missing)


ADD = Cdag.from_edges(3, [(0, 2), (1, 2)], names=["a", "b", "sum"])
DEEP = Tree("DRAM", (Memory("L2", 3), Memory("L1", 3, 1)))
MOVES = [*((READ, node, v) for v in (0, 1) for node in (1, 2)), (COMPUTE, 2, 2), (WRITE, 2, 2), (WRITE, 1, 2)]


def test_the_words_of_each_edge() -> None:
    game = play(ADD, DEEP, [DEEP.moves(*MOVES)])
    assert (game.down, game.up, game.words, game.peak, game.missing) == ([2, 2], [1, 1], [3, 3], [3, 3], [])
    assert play(ADD, DEEP, []).missing == ["sum"]


@pytest.mark.parametrize(
    "number, wrong, said",
    [
        (0, (READ, 2, 0), "down from L2 to L1: a: it is not in L2"),
        (1, (WRITE, 2, 0), "up from L1 to L2: a: it is not in L1"),
        (1, (DELETE, 2, 0), "delete in L1: a: it is not in L1"),
        (3, (COMPUTE, 2, 2), "compute in L1: sum: its operand b is not in L1"),
        (3, (COMPUTE, 2, 1), "compute in L1: b: it is an input"),
        (5, (WRITE, 1, 2), "up from L2 to DRAM: sum: it is not in L2"),
    ],
)
def test_an_illegal_move_names_its_memory_or_edge(number: int, wrong: Move, said: str) -> None:
    with pytest.raises(IllegalMove) as error:
        play(ADD, DEEP, [DEEP.moves(*MOVES[:number], wrong)])
    assert str(error.value) == f"move {number + 1}: {said}"


def test_a_full_memory_is_named() -> None:
    tree = Tree("DRAM", (Memory("L2", 1), Memory("L1", 2, 1)))
    with pytest.raises(IllegalMove, match=r"move 2: down from DRAM to L2: b: L2 is full, with 1 word$"):
        play(ADD, tree, [tree.moves((READ, 1, 0), (READ, 1, 1))])


@pytest.mark.parametrize("move", [7, 3 * 8, -1])
def test_numbers_that_are_no_moves(move: int) -> None:
    with pytest.raises(
        IllegalMove, match="move 1: there is no such move: there are 7 kinds of moves, 3 vertices and 2 edges"
    ):
        play(ADD, DEEP, [np.array([move])])


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Tree.path(), "0 memories below the root were given"),
        (lambda: Tree.path(*range(1, 60)), "59 memories .* 1 to 58"),
        (lambda: Tree.path(4, 0), "the capacity of L2 is 0"),
        (lambda: Tree("R", (Memory("a", 1, 1),)), "a is memory 1 and lies below memory 1"),
        (lambda: Tree("R", (Memory("R", 1),)), "a name of its own"),
        (lambda: DEEP.moves((COMPUTE, 1, 2)), "there is no compute at L2"),
        (lambda: DEEP.moves((READ, 3, 2)), "there is no read at memory 3"),
        (lambda: play(ADD, DEEP, [np.zeros(3)]), "int64"),
    ],
)
def test_what_is_no_tree_or_no_move_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()
    with pytest.raises(UnknownName, match="partial"):
        play(ADD, DEEP, [], "partial")
