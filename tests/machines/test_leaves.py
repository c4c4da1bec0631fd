"""Schedules on machines with several memories below another: words of each edge, peaks, closed forms, games, bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from math import ceil, isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from machines.test_boundaries import graphs as small_graphs
from machines.test_nested import PRODUCTS, Inner
from oracle_games import least_io
from strategies import amount

import pebblesim as ps
from pebblesim import graphs
from pebblesim.analysis.count import count, peak_words
from pebblesim.analysis.formula import formula
from pebblesim.analysis.peak import peak_red
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.game.trees import Memory, Tree, TreeGame, play
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.lower_bounds.bounds import best
from pebblesim.machines.dealing import dealt
from pebblesim.machines.least import busiest_words, least
from pebblesim.machines.machine import Level, Machine
from pebblesim.machines.nesting import nested, tiles
from pebblesim.machines.playing import moves
from pebblesim.machines.routes import Nested

Case = tuple[str, dict[str, int], dict[str, int], list[Inner], list[int]]
"""A schedule, its dimensions and blocks, what is inside it, and how many memories of each level are below one."""


def of_level(values: list[int], memories: list[int], level: int) -> list[int]:
    """Of values for each memory of a tree, those of one level."""
    numbers_of = np.cumprod([1, *memories])[1:]
    first = int(sum(numbers_of[: level - 1]))
    return values[first : first + int(numbers_of[level - 1])]


def agree(case: Case, closed: bool = False) -> TreeGame:
    """Assert that all readings of a case agree; `closed`: closed forms, too, which take long with many levels."""
    name, dims, blocks, inner, memories = case
    schedule = get(name)
    nest, sizes = dealt(schedule.program) if memories[0] > 1 else Nested(schedule.program), {**dims, **blocks}
    for (product, below, sides), several in zip(inner, memories[1:], strict=True):
        nest = nested(nest, get(product), below, several > 1)
        sizes |= {f"{block}_{nest.lowest}": side for block, side in sides.items()}
    sizes = nest.sizes(sizes, memories)
    room = [peak_words(nest.held(k), sizes) for k in range(1, nest.lowest)] + [peak_red(nest.computed_by_one, sizes)]
    levels = (Level(f"L{k}", 4 * max(1, words), count=memories[k]) for k, words in enumerate(room))
    tree = Machine("m", "R", tuple(levels)).tree("float32")
    graph = graphs.build(schedule.problem.name, summation="chain", **dims, **schedule.graph_options(sizes))
    game = play(graph, tree, [np.concatenate(list(moves(nest, sizes, graph, tree, None, memories)))])
    assert game.missing == []
    for level in range(1, nest.lowest + 1):
        moved, most = (count(program, sizes).total for program in (nest.boundary(level), nest.busiest(level)))
        down, up = of_level(game.down, memories, level), of_level(game.up, memories, level)
        assert (sum(down), sum(up)) == (moved.reads, moved.writes)
        assert max(a + b for a, b in zip(down, up, strict=True)) == most.io
        for program, words in ((nest.boundary(level), moved), (nest.busiest(level), most)) if closed else ():
            form = formula(program)
            assert (form.function_of("reads")(**sizes), form.function_of("writes")(**sizes)) == (
                words.reads,
                words.writes,
            )
    assert max(of_level(game.peak, memories, nest.lowest)) == room[-1]
    inputs = schedule.problem.random_inputs(dims, kept=schedule.kept)
    reference = schedule.problem.reference(inputs, None)
    for output, values in numbers(nest.computed, sizes, inputs).items():
        np.testing.assert_allclose(values, reference[output], rtol=1e-9, atol=1e-9)
    return game


@st.composite
def cases(draw: st.DrawFn) -> Case:
    schedule = get(draw(st.sampled_from(sorted(SCHEDULES))))
    dims = {dim: draw(st.integers(1, 7)) for dim in schedule.problem.dims}
    blocks = {block: draw(st.integers(1, 3)) for block in schedule.blocks}
    known = sorted({tile.name for tile in tiles(schedule.program)} - {""})
    memories = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    inner = []
    for level in range(2, len(memories) + 1):
        below = tuple(draw(st.sets(st.sampled_from(known)))) if known and level == len(memories) else ()
        product = draw(st.sampled_from(PRODUCTS))
        inner.append((product, below, {block: draw(st.integers(1, 3)) for block in get(product).blocks}))
    return schedule.name, dims, blocks, inner, memories


def test_only_tiles_of_the_lowest_memories_are_divided() -> None:
    """Tiles of the first memory, which a third one is far below, keep their rows; so no share of them has a size."""
    outer = nested(Nested(get("matmul-tiled").program), get("matmul-tiled"), several=True)
    nest = nested(outer, get("matmul-streamed"), several=True)
    assert not nest.divided
    sizes = {"m": 12, "k": 12, "n": 12, "b": 12, "b_2": 12, "a_3": 12, "b_3": 12}
    # The second shares 12 rows with two, and each of these shares its 6 rows with three.
    assert nest.sizes(sizes, [1, 2, 3]) == {**sizes, "share_b_2": 6, "share_b_2_3": 2}
    # 2 x 12 sums, a column of 2 words, a word of a row, and the product and the new sum.
    assert peak_red(nest.computed_by_one, nest.sizes(sizes, [1, 2, 3])) == 2 * 12 + 2 + 1 + 2


IN_PARTS: Case = (
    "values-in-columns",
    {"n": 2, "d": 1},
    {"B_v": 1, "B_s": 2},
    [("matmul-tiled", ("Q_s",), {"b": 1})],
    [1, 2],
)


ROWS_THAT_OTHERS_SUM_OVER: Case = (  # only v_i has a share of the rows i; dV is a sum over all of them
    "flash1-backward",
    {"n": 8, "d": 1},
    {"B_r": 2, "B_c": 6},
    [("matmul-blocked", ("dK_j", "v_i"), {"a": 2, "b": 1, "c": 2})],
    [2, 2],
)


def test_a_divided_tile_is_not_used_in_parts() -> None:
    """A row of Q_s belongs to the memory of its share, and a part of one row would be shared anew, from the first."""
    with pytest.raises(UsageError, match="divide the rows of Q_s, and A needs them in parts; let Q_s stay"):
        agree(IN_PARTS)


@given(cases())
@example(IN_PARTS)
@example(ROWS_THAT_OTHERS_SUM_OVER)
@settings(max_examples=amount(2, 1000))
def test_all_readings_on_several_memories_agree_or_the_schedule_is_refused(case: Case) -> None:
    try:
        agree(case)
    except UsageError:
        return


ROWS = ("P", "l_i", "m_i", "m_new", "O_i")
NAMED: dict[str, Case] = {
    "two warpgroups": (
        "flash2-forward",
        {"n": 7, "d": 3},
        {"B_r": 4, "B_c": 3},
        [("matmul-streamed", ROWS, {"a": 2, "b": 2})],
        [1, 2],
    ),
    "multiprocessors with three warpgroups, queries in registers": (
        "flash2-forward",
        {"n": 7, "d": 3},
        {"B_r": 3, "B_c": 2},
        [("matmul-streamed", (*ROWS, "Q_i"), {"a": 1, "b": 2})],
        [2, 3],
    ),
    "gradients of keys in two warpgroups": (
        "flash2-backward",
        {"n": 5, "d": 3},
        {"B_r": 3, "B_c": 2},
        [("matmul-streamed", ("dK_j", "dV_j"), {"a": 2, "b": 1})],
        [2, 2],
    ),
    "tiles within tiles": (
        "matmul-tiled",
        {"m": 9, "k": 4, "n": 7},
        {"b": 3},
        [("matmul-tiled", (), {"b": 2}), ("matmul-streamed", (), {"a": 2, "b": 1})],
        [2, 1, 2],
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", NAMED.values(), ids=NAMED)
def test_schedules_on_several_memories_agree(case: Case) -> None:
    agree(case, closed=case[0] != "matmul-tiled")


@given(st.tuples(*[st.integers(1, 9)] * 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
@example((5, 2, 3), 2, 2, 2)
@settings(max_examples=amount(5, 400))
def test_words_of_each_memory_are_those_of_loops(shape: tuple[int, int, int], b: int, first: int, a: int) -> None:
    """Rows of tiles are dealt in equal runs; each memory brings tiles of A and B, and takes tiles of C away."""
    m, k, n = shape
    game = agree(("matmul-tiled", {"m": m, "k": k, "n": n}, {"b": b}, [], [first]))
    rows = [min(b, m - start) for start in range(0, m, b)]
    run = -(-len(rows) // first)
    words = [0] * first
    for number, height in enumerate(rows):
        for start in range(0, n, b):
            width = min(b, n - start)
            words[number // run] += k * (height + width) + height * width
    assert game.words == words


def test_each_warpgroup_reads_the_keys() -> None:
    """Two warpgroups with 2 of the 4 rows of a tile: each reads all K and V, and Q and O of its own rows."""
    n, d, B = 8, 3, 4
    inner: list[Inner] = [("matmul-streamed", ROWS, {"a": 2, "b": B})]
    game = agree(("flash2-forward", {"n": n, "d": d}, {"B_r": B, "B_c": B}, inner, [1, 2]))
    of_keys = n // B * n * d * 2  # K and V for each tile of rows
    of_rows = n // 2 * d * (n // B)  # Q for each tile of keys
    assert of_level(game.down, [1, 2], 2) == [of_keys + of_rows] * 2
    assert of_level(game.up, [1, 2], 2) == [n // 2 * (d + 1)] * 2  # O and the statistics of its rows


def after(graph: Cdag, tree: Tree, held: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """What each memory may hold after one move, as bits, and the memory below the edge of the move; 0 for no edge."""
    inputs = sum(1 << v for v in graph.inputs.tolist())
    preds = [sum(1 << u for u in graph.predecessors(v).tolist()) for v in range(graph.vertices)]
    room = [True, *(h.bit_count() < m.capacity for h, m in zip(held[1:], tree.memories, strict=True))]

    def changed(node: int) -> tuple[int, ...]:
        return (*held[:node], held[node] ^ 1 << v, *held[node + 1 :])

    for node, up in enumerate(tree.above, 1):
        for v in range(graph.vertices):
            if held[node] >> v & 1:
                yield 0, changed(node)
                if not held[up] >> v & 1 and room[up]:
                    yield node, changed(up)
            elif room[node]:
                if held[up] >> v & 1:
                    yield node, changed(node)
                if node not in tree.above and not inputs >> v & 1 and preds[v] & ~held[node] == 0:
                    yield 0, changed(node)


def least_words(graph: Cdag, tree: Tree, level: list[int], each: int | None = None) -> int | None:
    """The least words over the edges above some memories in total, by a search of all states; None if none is complete.

    With `each`, only games that move no more words than that over any of these edges.
    """
    inputs, outputs = (sum(1 << v for v in vertices.tolist()) for vertices in (graph.inputs, graph.outputs))
    start = ((inputs, *[0] * len(tree.above)), (0,) * len(level))
    best, queue = {start: 0}, deque([start])
    while queue:
        held, moved = queue.popleft()
        words = best[held, moved]
        if held[0] & outputs == outputs:
            return words
        for edge, now in after(graph, tree, held):
            cost, counts = int(edge in level), moved
            if cost and each is not None:
                counts = tuple(count + (node == edge) for count, node in zip(moved, level, strict=True))
            if max(counts) > (each or 0) or words + cost >= best.get((now, counts), 1 << 30):
                continue
            best[now, counts] = words + cost
            (queue.append if cost else queue.appendleft)((now, counts))
    return None


def check(graph: Cdag, tree: Tree, level: list[int], beneath: int) -> None:
    least = least_io(graph, beneath, "hong-kung")
    exact = least_words(graph, tree, level)
    if exact is None:
        return
    assert least is not None and least <= exact
    share = -(-least // len(level)) - 1
    assert share < 0 or least_words(graph, tree, level, each=share) is None


@given(small_graphs(4), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=amount(8, 1200), deadline=None)
def test_no_bound_over_two_leaves_is_above_the_least_words(graph: Cdag, first: int, second: int) -> None:
    check(graph, Tree("R", (Memory("a", first, 0), Memory("b", second, 0))), [1, 2], first + second)


@given(small_graphs(4), st.integers(1, 3), st.integers(1, 2))
@settings(max_examples=amount(4, 1000), deadline=None)
def test_nor_over_two_leaves_below_a_memory(graph: Cdag, upper: int, lower: int) -> None:
    tree = Tree("R", (Memory("L", upper), Memory("a", lower, 1), Memory("b", lower, 1)))
    check(graph, tree, [1], upper + 2 * lower)
    check(graph, tree, [2, 3], 2 * lower)


def test_one_leaf_alone_has_no_bound_of_two_levels() -> None:
    """Another leaf may do all the work; of a level, only the busiest or the total has a bound."""
    graph = Cdag.from_edges(5, [(0, 3), (1, 3), (2, 4), (3, 4)])
    tree = Tree("R", (Memory("a", 3, 0), Memory("b", 3, 0)))
    assert (least_words(graph, tree, [1]), least_io(graph, 3, "hong-kung")) == (0, 4)


def computed_with(graph: Cdag, capacities: Sequence[int], most: int) -> bool:
    """Whether leaves below a root can play a complete game with at most `most` words over each edge, by a search.

    A word comes down when it is needed, goes up, if it ever does, when it is computed, and leaves when there is no room
    without it: earlier or later is no better.
    """
    inputs, outputs = (sum(1 << v for v in vertices.tolist()) for vertices in (graph.inputs, graph.outputs))
    operands = {v: graph.predecessors(v).tolist() for v in range(graph.vertices) if not inputs >> v & 1}
    start = inputs, (0,) * len(capacities), (0,) * len(capacities)
    seen, stack = {start}, [start]
    while stack:
        root, held, moved = stack.pop()
        if root & outputs == outputs:
            return True
        for leaf, v in ((leaf, v) for leaf in range(len(capacities)) for v in operands):
            here, before = held[leaf], sum(1 << u for u in operands[v])
            down = (before & ~here).bit_count()
            room = capacities[leaf] - len(operands[v]) - 1
            if here >> v & 1 or before & ~here & ~root or room < 0 or moved[leaf] + down > most:
                continue
            others = [u for u in range(graph.vertices) if (here & ~before) >> u & 1]
            for kept in combinations(others, min(room, len(others))):
                now = before | 1 << v | sum(1 << u for u in kept)
                for up in {0, int(not root >> v & 1 and moved[leaf] + down < most)}:
                    state = (
                        root | up << v,
                        (*held[:leaf], now, *held[leaf + 1 :]),
                        (*moved[:leaf], moved[leaf] + down + up, *moved[leaf + 1 :]),
                    )
                    if state not in seen:
                        seen.add(state)
                        stack.append(state)
    return False


SHAPES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 1, 2), (3, 1, 1), (1, 3, 1), (1, 1, 4)]


@given(st.sampled_from(SHAPES), st.lists(st.integers(1, 6), min_size=2, max_size=2))
@settings(max_examples=amount(8, 400), deadline=None)
def test_some_leaf_moves_what_its_share_of_the_products_takes(shape: tuple[int, int, int], leaves: list[int]) -> None:
    """No game has fewer words over each edge than the bound of the busiest memory, with the largest capacity."""
    m, k, n = shape
    bound = busiest_words(lambda X: isqrt(X**3 // 27), -(-m * k * n // len(leaves)), max(leaves))
    assert not computed_with(ps.graph("matmul", m=m, k=k, n=n), leaves, bound - 1)


def test_the_bound_of_the_busiest_is_reached() -> None:
    """Two products of one word by two take 3 + 2 words, also of two leaves that compute four or three in all."""
    for m, k, n in ((2, 1, 2), (3, 1, 1)):
        assert busiest_words(lambda X: isqrt(X**3 // 27), -(-m * k * n // 2), 5) == 5
        assert computed_with(ps.graph("matmul", m=m, k=k, n=n), (5, 5), 5)


@given(st.data())
@settings(max_examples=amount(4, 300), deadline=None)
def test_no_bound_on_the_busiest_is_above_what_it_moves(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["matmul-tiled", "small-cache-forward", "flash2-backward", "flash2-forward"]))
    problem = get(name).problem
    dims = {dim: data.draw(st.integers(1, 40)) for dim in problem.dims}
    first, second = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    levels = (
        Level("L1", 4 * data.draw(st.integers(30, 600)), count=first),
        Level("L2", 4 * data.draw(st.integers(12, 200)), count=second),
    )
    below = {"flash2-forward": ROWS, "flash2-backward": ("dK_j", "dV_j")}.get(name, ())
    heads = data.draw(st.integers(1, 3)) if name != "matmul-tiled" else 1
    try:
        counted = ps.on_machine(name, machine=Machine("m", "R", levels), below=below, heads=heads, **dims)
    except Infeasible:
        return
    for each, number in zip(counted.boundaries, (first, first * second), strict=True):
        assert each.words <= number * each.most and each.most <= each.words
        assert not counted.feasible or each.bound.value <= each.most


@pytest.mark.parametrize(("n", "number", "words", "times"), [(64, 4, 100, 1), (12, 3, 30, 1), (40, 2, 300, 5)])
def test_the_bound_on_the_busiest_is_the_larger_of_both_lemmas(n: int, number: int, words: int, times: int) -> None:
    """All T and s, one after the other; and two levels with the words of all memories together."""
    dims, products = {"m": n, "k": n, "n": n}, Fraction(times * n**3, number)
    of_segments = 0
    for T in range(1, 20 * words):
        of_one = isqrt((words + T) ** 3 // 27)
        segments = ceil(products / of_one) - 1 if of_one else 0
        of_segments = max(of_segments, segments * T + words + 1 if segments else 0)
    merged = best(get("matmul-tiled").problem, dims, number * words).value
    found = least(get("matmul-tiled").problem, tuple(dims.items()), times, None, number, words)
    assert found.value == max(of_segments, -(-times * merged // number))


TREE = """
name = "a chip"
root = "DRAM"
[[memory]]
name = "SRAM"
capacity = 4096
count = 3
bandwidth = 1e9
[[memory]]
name = "registers"
capacity = 512
count = 2
energy = 1e-12
"""


def test_a_file_of_a_machine_with_several_leaves(tmp_path: Any) -> None:
    (tmp_path / "m.toml").write_text(TREE)
    sizes: dict[str, Any] = {"blocks": {"B_r": 8, "B_c": 4}, "n": 50, "d": 4}
    counted = ps.on_machine("flash2-forward", machine=str(tmp_path / "m.toml"), dtype="float32", below=ROWS, **sizes)
    shared, registers = counted.boundaries
    assert (shared.number, registers.number) == (3, 6) and counted.feasible
    assert shared.seconds == shared.most * 4 / 1e9 and registers.joules == registers.words * 4 * 1e-12
    place = counted.machine
    assert place.numbers == [3, 6] and place.beneath("float32") == [1024 + 2 * 128, 128]
    assert place.tree("float32").names[1:5] == ("SRAM 1", "SRAM 2", "SRAM 3", "registers 1")
    assert place.tree("float32").above == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert "└ 3 x SRAM" in str(place) and "SRAM – 6 x registers" in str(counted)
    with pytest.raises(UsageError, match="under a mask equal shares are not equal work"):
        ps.on_machine("flash2-forward", machine=place, below=ROWS, mask="causal", n=50, d=4)
    (tmp_path / "m.toml").write_text(TREE.replace("count = 3", "count = 0"))
    with pytest.raises(UsageError, match="SRAM: count = 0 must be a whole number"):
        ps.on_machine("flash2-forward", machine=str(tmp_path / "m.toml"), below=ROWS, n=50, d=4)
