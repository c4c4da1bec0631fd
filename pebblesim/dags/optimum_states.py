"""The least I/O by a search of states: the red and blue vertices before each computation.

`pebblesim.dags.optimum_kernel` defines the states and their order. This module allocates the memory for the kernel, and
turns the path that it finds into a game.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags.interval import Interval
from pebblesim.dags.orders import Task
from pebblesim.dags.symmetry import Digraph, Permutation, chain
from pebblesim.dags.task_data import TaskData
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.graphs.cdag import Cdag

SEEN: Final = 2**18
"""Most places for states made lately; a power of two."""

MOST_VERTICES: Final = 2_500
"""Vertices of the largest graph that is searched: on larger ones a single state takes seconds, and proves nothing."""

RULES: Final = ("hong-kung", "no-recompute", "partial")
"""Rules under which games can be searched for the least I/O."""

AT_ONCE: Final = 20_000
"""Most states that are looked at or estimated before the clock is."""

LONG: Final = 0.2
"""Seconds after which the clock should be looked at."""


def searchable(graph: Cdag, rules: str) -> bool:
    """Whether games on a graph are searched for the least I/O; on other graphs there is the best game and a bound."""
    return rules in RULES and graph.weights is None and (graph.vertices <= MOST_VERTICES or rules == "partial")


def search_states(
    run: Interval,
    states: int | None,
    memory: int,
    end: float,
    on_progress: Callable[[], None],
    steps: int | None = None,
) -> None:
    """Narrow an interval by a search of states, in the order of the I/O so far and to come (A*).

    Args:
        run: the interval; a graph of more than `MOST_VERTICES` is not searched.
        states: most states to store; as many as fit into the memory by default.
        memory: bytes.
        end: when to stop, by the clock.
        on_progress: called every now and then.
        steps: most states to expand or estimate; any number by default. A state may have millions of followers that are
            estimated, and of which none is stored. With this limit what is found does not depend on the clock.
    """
    from pebblesim.dags import optimum_kernel as kernel

    if run.task.graph.vertices > MOST_VERTICES:
        run.ended = "size"
        return
    board, vertex = _bit_board(run.task)
    words = len(board.inputs)
    symmetric = len(board.base) > 0
    per_state = (24 + 24 * symmetric) * words + 4 + 2 + 4 + 1 + 16 + 2 * 8 * 2
    limit = max(2, memory // per_state if states is None else states)
    room = min(limit, 100_000)
    row = 8 * (3 * words + 1)
    places = min(SEEN, 1 << max(12, (memory // 8 // row).bit_length() - 1))
    tree = _tree(kernel, room, words, run.io, symmetric, places)
    space = kernel.room_for(len(board.degree), words)
    some = 2
    while True:
        began = time.monotonic()
        how, last = kernel.search(board, tree, space, some if steps is None else min(AT_ONCE, steps - run.steps))
        some = min(AT_ONCE, 2 * some) if time.monotonic() - began < LONG else max(2, some // 2)
        run.states, run.steps = int(tree.count[0]), int(tree.count[3])
        run.raise_to(int(tree.count[2]), f"search: every game begins in one of {run.states:,} states")
        on_progress()
        if how == kernel.FOUND:
            run.bound = run.io = int(tree.costs[last])
            run.proof = f"search: no state of less I/O is left, of {run.states:,}"
            run.moves = _moves(board, tree, int(last), vertex)
            return
        if how == kernel.NONE:
            run.bound, run.proof = run.io, f"search: no game is better, of {run.states:,} states"
            return
        if how == kernel.FULL:
            if room >= limit:
                run.ended = "memory"
                return
            room = min(limit, 2 * room)
            tree = _larger(kernel, tree, room)
        if steps is not None and run.steps >= steps:
            run.ended = "steps"
            return
        if time.monotonic() > end:
            return


def _tree(kernel: Any, room: int, words: int, below: int, symmetric: bool, places: int) -> Any:
    states = np.empty((room, 3 * words), dtype=np.uint64)
    size = 1 << (2 * room - 1).bit_length()
    return kernel.Tree(
        states=states,
        keys=np.empty_like(states) if symmetric else states,
        parents=np.empty(room, dtype=np.int32),
        vias=np.empty(room, dtype=np.int16),
        costs=np.empty(room, dtype=np.int32),
        closed=np.empty(room, dtype=np.uint8),
        table=np.full(size, -1, dtype=np.int32),
        # Empty: each entry has a cost that no state has. A larger tree starts empty again, because states that did not
        # fit into the old tree are recorded in its `recent`.
        recent=np.full((places, 3 * words + 1), np.iinfo(np.int64).max, dtype=np.uint64),
        entry=np.empty(2 * room, dtype=np.int32),
        follows=np.empty(2 * room, dtype=np.int32),
        heads=np.full(below, -1, dtype=np.int32),
        count=np.zeros(4, dtype=np.int64),
        place=np.full(4, -1, dtype=np.int64),
    )


def _larger(kernel: Any, old: Any, room: int) -> Any:
    """Return the same tree with room for more states."""
    words, symmetric = old.states.shape[1] // 3, old.keys is not old.states
    new = _tree(kernel, room, words, len(old.heads), symmetric, len(old.recent))
    nodes, free = int(old.count[0]), int(old.count[1])
    for name in ("states", "keys", "parents", "vias", "costs", "closed"):
        getattr(new, name)[:nodes] = getattr(old, name)[:nodes]
    for name in ("entry", "follows"):
        getattr(new, name)[:free] = getattr(old, name)[:free]
    new.heads[:] = old.heads
    new.count[:], new.place[:] = old.count, old.place
    kernel.rehash(new.table, new.keys, nodes)
    return new


def _bit_board(task: Task) -> tuple[Any, NDArray[np.int64]]:
    """Return the graph for the kernel, its vertices renumbered in topological order, and their old numbers."""
    from pebblesim.dags.optimum_bounds_kernel import BitBoard

    is_input, is_output = task.board.input == 1, task.board.output == 1
    data = TaskData(task, task.M)
    matters = (task.needed == 1) | (is_input & data.used)
    vertex = task.order[matters[task.order]].astype(np.int64)
    number = {int(v): k for k, v in enumerate(vertex)}
    n = len(vertex)
    before = [sorted(number[u] for u in data.before[v]) for v in vertex]
    preds = [_mask(us) for us in before]
    # Operands of what is above a vertex are `early`, those of what is below it are kept.
    succs, above, early, below, keeps = ([0] * n for _ in range(5))
    for v, us in enumerate(before):
        for u in us:
            succs[u] |= 1 << v
            above[v] |= above[u] | 1 << u
            early[v] |= early[u] | preds[u]
    for v in range(n - 1, -1, -1):
        for u in before[v]:
            below[u] |= below[v] | 1 << v
            keeps[u] |= keeps[v] | preds[v]
    sets = {
        "preds": preds,
        "succs": succs,
        "keeps": keeps,
        "above": above,
        "behind": below,
        "early": early,
    }
    flags = [int(is_input[v]) + 2 * int(is_output[v]) for v in vertex]
    levels = chain(Digraph(before, flags))
    permutations = [(k, p, image) for k, (b, orbit) in enumerate(levels) for p, image in orbit.items() if p != b]
    words = max(1, -(-n // 64))
    ends = {
        "inputs": _mask(k for k, v in enumerate(vertex) if is_input[v]),
        "outputs": _mask(k for k, v in enumerate(vertex) if is_output[v] and not is_input[v]),
    }
    board = BitBoard(
        **{name: np.array([_row(mask, words) for mask in masks], dtype=np.uint64) for name, masks in sets.items()},
        **{name: _row(mask, words) for name, mask in ends.items()},
        degree=np.array([len(us) for us in before], dtype=np.int64),
        edges=np.array([(u, v) for v, us in enumerate(before) for u in us], dtype=np.int64).reshape(-1, 2),
        base=np.array([b for b, _ in levels], dtype=np.int64),
        level=np.array([k for k, _, _ in permutations], dtype=np.int64),
        point=np.array([p for _, p, _ in permutations], dtype=np.int64),
        image=np.array([_inverse(image) for *_, image in permutations], dtype=np.int64).reshape(-1, n),
        M=min(task.M, max(n, 1)),
        once=task.rules == "no-recompute",
    )
    return board, vertex


def _inverse(image: Permutation) -> list[int]:
    return sorted(range(len(image)), key=image.__getitem__)


def _moves(board: Any, tree: Any, last: int, vertex: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the moves of the path from the first state to this one."""
    path: list[tuple[int, int, int]] = []
    words = len(board.inputs)
    while last >= 0:
        row = tree.states[last]
        path.append((int(tree.vias[last]), _number(row[:words]), _number(row[words : 2 * words])))
        last = int(tree.parents[last])
    outputs = _number(board.outputs)
    moves: list[tuple[int, int]] = []
    for (_, red, blue), (v, new_red, new_blue) in pairwise(path[::-1]):
        operands = _number(board.preds[v])
        for u in _members(red & ~new_red & ~operands):
            if new_blue & ~blue & 1 << u:
                moves.append((WRITE, u))
            moves.append((DELETE, u))
        moves += [(READ, u) for u in _members(operands & ~red)]
        moves.append((COMPUTE, v))
        if outputs & ~blue & 1 << v:
            moves.append((WRITE, v))
        moves += [(DELETE, u) for u in _members((red & new_red | operands | 1 << v) & ~new_red)]
    return np.array([pack(kind, int(vertex[v])) for kind, v in moves], dtype=np.int64)


def _mask(vertices: Any) -> int:
    return sum(1 << v for v in set(vertices))


def _members(mask: int) -> list[int]:
    return [v for v in range(mask.bit_length()) if mask >> v & 1]


def _row(mask: int, words: int) -> NDArray[np.uint64]:
    return np.array([mask >> 64 * k & (2**64 - 1) for k in range(words)], dtype=np.uint64)


def _number(row: NDArray[np.uint64]) -> int:
    return sum(int(word) << 64 * k for k, word in enumerate(row))
