"""A heuristic game for any DAG: try several start orders, then search for better ones until the time is over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UnknownName, UsageError, as_given
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import quantity, whole, whole_or_zero
from pebblesim.dags.anneal_kernel import anneal
from pebblesim.dags.best_order import NONE, BestOrder, Progress
from pebblesim.dags.bounds import Bound, at_once, largest, of_theorems, paths, slowly, wavefronts
from pebblesim.dags.optimum_states import searchable
from pebblesim.dags.orders import Task, as_cdag
from pebblesim.dags.parts import excess
from pebblesim.dags.task_data import TaskData
from pebblesim.game.referee import Game, referee
from pebblesim.game.rules import RULES
from pebblesim.graphs.cdag import Cdag

ROUNDS: Final = 100
"""On an order searched as a whole, the search ends after this many rounds in a row without a better game."""


@dataclass(frozen=True, eq=False)
class Pebbling(Result):
    """The best game found on a graph, and the gap to the largest lower bound.

    Attributes:
        graph: the graph.
        rules, M: of the game.
        game: the referee's outcome.
        moves: the game, packed as in `pebblesim.game.moves`.
        bound: the largest lower bound.
        bounds: all lower bounds.
        start: name of the start order.
        again: number of recomputations.
        seconds: how long it took.
        interrupted: whether Ctrl-C ended the search.
    """

    graph: Cdag
    rules: str
    M: int
    game: Game
    moves: NDArray[np.int64]
    bound: Bound
    bounds: tuple[Bound, ...]
    start: str
    again: int
    seconds: float
    interrupted: bool = False

    @property
    def io(self) -> int:
        """Words read and written."""
        return self.game.io

    @property
    def proven(self) -> bool:
        """Whether the game is optimal: its I/O equals the bound."""
        return self.io == self.bound.value

    @property
    def gap(self) -> float:
        """I/O ÷ bound; 1 if there is nothing to move."""
        return self.io / self.bound.value if self.bound.value else 1.0

    def to_dict(self) -> dict[str, Any]:
        """All but the moves, of which it says how many, as plain data."""
        head = plain(self, "rules", "M", "graph.vertices", "graph.edges", "io")
        game = plain(self.game, "reads", "writes", "peak_red", "moves") | {"computed_again": self.again}
        bound = {"complete": self.game.complete, "bound": plain(self.bound, "name", "value", "source")}
        return head | game | bound | plain(self, "gap", "proven", "start") | {"seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        blame = "the game is optimal: it meets the bound" if self.proven else _blame(self)
        lines = {
            "rules": self.rules,
            "graph": f"{self.graph.vertices:,} vertices, {self.graph.edges:,} edges",
            "I/O": f"{quantity(self.io, 'word')}: {self.game.reads:,} read, {self.game.writes:,} written",
            "peak red": f"{self.game.peak_red:,} of M = {self.M:,} words",
            "game": f"{self.game.moves:,} moves, judged by the referee; begun {self.start}"
            + (f"; {self.again:,} computed again" if self.again else ""),
            "bound": f"{quantity(self.bound.value, 'word')} ({self.bound.source})",
            "gap": f"{self.gap:.3f}; {blame}",
        }
        return "\n".join(f"{label:<10}{value}" for label, value in lines.items())


def _blame(pebbling: Pebbling) -> str:
    """Say which of game and bound is more likely to be far from the least I/O."""
    if pebbling.bound.name == "compulsory":
        return "probably the bound is weak: only the compulsory bound applies"
    weak = "the game or the bound may be weak"
    return f"{weak}; `optimum` may narrow the gap" if searchable(pebbling.graph, pebbling.rules) else weak


@checked_kinds("rounds", "steps")
def pebble(
    graph: Any,
    *,
    M: int,
    rules: str = "hong-kung",
    seconds: float = 10.0,
    steps: int | None = None,
    seed: int = 0,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> Pebbling:
    """Find a good game on a graph within some seconds; the referee judges every game.

    Args:
        graph: a `Cdag`, or a networkx DiGraph.
        M: red pebbles, in words.
        rules: "hong-kung", "no-recompute", "replace" or "partial".
        seconds: time limit of the search for a better order. It ends earlier if the game meets a bound or nothing
            improves. How far it comes depends on the machine, and on what else it does.
        steps: instead of that limit, this many steps of the search, each of which changes a part of the order; the same
            seed then always gives the same game. The limit is then for bounds alone.
        seed: seed of the random choices.
        rounds: on graphs of up to 500 vertices, stop after this many steps in a row without a better game, unless their
            number is given.
        progress: called now and then.

    Ctrl-C ends the search; the call returns the best game so far.

    Returns:
        The game, the bounds, and the gap between them.

    >>> from pebblesim.dags.generators import generate
    >>> pebble(generate("pyramid", rows=5), M=4, rules="no-recompute", seconds=2).io
    10

    Raises:
        Infeasible: M is too small for any game.
        UnknownName: there is no such rule set.
        UsageError: M is not a positive whole number, `seconds` is negative, or `steps` is none.
    """
    graph = as_cdag(graph)
    if rules not in RULES:
        raise UnknownName("rule set", rules, RULES)
    M, seed = whole("M", M), whole_or_zero("seed", seed)
    if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise UsageError(f"seconds = {as_given(seconds)} was given; give a number, 0 or more.")
    if steps is not None:
        steps = whole("steps", steps)
    compile_search(rules)
    began = time.monotonic()
    task = Task(graph, M, rules)
    search = BestOrder(task, np.random.default_rng(seed))
    data = TaskData(task, M)
    bounds = at_once(data)
    interrupted = False

    def done(made: int) -> float:
        """The share of the search that is over after this many steps."""
        if steps is not None:
            return made / steps
        return (time.monotonic() - began) / seconds if seconds else 1.0

    try:
        search.begin(began + seconds if steps is None else float("inf"))
        if steps is not None:  # bounds that take time must not decide when it ends
            search.improve(largest(bounds).value, steps, done, progress)
        if search.io > largest(bounds).value:
            before = time.monotonic()
            compile_bounds(rules)
            began += time.monotonic() - before
            bounds += slowly(data, seconds / 4)
        if steps is None:
            search.improve(largest(bounds).value, rounds, done, progress)
    except KeyboardInterrupt:
        if search.order is None:
            raise
        interrupted = True
    assert search.order is not None
    moves = task.moves(search.order, search.factor, search.io)
    game = referee(graph, M, [moves], rules)
    if not game.complete or game.io != search.io:
        raise PebblesimError(f"the search produced a game that the referee rejects; please report it: {game}")
    _refuse_what_is_above(bounds, search.io, M)
    again = len(search.order) - int(np.count_nonzero(np.bincount(search.order)))
    took = time.monotonic() - began
    listed = tuple(bounds)
    return Pebbling(graph, rules, M, game, moves, largest(listed), listed, search.start, again, took, interrupted)


def _refuse_what_is_above(bounds: list[Bound], io: int, M: int) -> None:
    """Refuse a user's own bound that is larger than the I/O of this game; the small graphs did not refute it."""
    for bound in bounds:
        if bound.value > io:
            raise UsageError(
                f"the bound {bound.name!r} gives {bound.value:,} words for this graph at M = {M}; a game of {io:,} "
                "words exists, so it is not a lower bound."
            )


@cache
def compile_search(rules: str) -> None:
    """Load the kernels of a search, or compile them once on a machine, outside its time limit."""
    task = Task(Cdag.from_edges(3, [(0, 1), (0, 2)]), 2, "no-recompute")
    BestOrder(Task(task.graph, 2, "hong-kung"), np.random.default_rng(0)).begin(float("inf"))
    order = np.arange(2, dtype=np.int32)
    anneal(task.board, task.desk(), order, 0, 2, 0, 1.0, NONE, 1.0, 0.1, 1, 0)
    referee(task.graph, 2, [task.moves(order, 1.0, 4)], rules, strict=False)


@cache
def compile_bounds(rules: str) -> None:
    """Load what the bounds call, OR-tools too, or compile it once on a machine, outside the time limit of the search.

    Args:
        rules: the rules; the bound by parts searches states under two of them.
    """
    fft = Cdag.from_edges(12, [(u, v) for v in range(4, 12) for u in (v - 4, (v - 4) ^ (1 if v < 8 else 2))])
    of_theorems(TaskData(Task(fft, 3, rules), 3), 0.0)
    larger = Cdag.from_edges(32, [(u, v) for v in range(8, 32) for u in (v - 8, (v - 8) ^ (1 << (v // 8 - 1)))])
    paths(TaskData(Task(larger, 3, rules), 3), 0.001)  # without seconds it looks at no cone, and four points have none
    star = Cdag.from_edges(3, [(0, 1), (0, 2)])
    wavefronts(TaskData(Task(star, 2, "no-recompute"), 1), seconds=1)
    if rules != "partial":
        excess(fft, 3, 10**6, "no-recompute" if rules == "no-recompute" else "hong-kung")
