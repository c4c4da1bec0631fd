"""A heuristic game for any DAG: try several start orders, then search for better ones until the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UnknownName, UsageError
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import quantity, whole
from pebblesim.dags import order_kernel as kernel
from pebblesim.dags.anneal_kernel import anneal
from pebblesim.dags.bounds import Bound, at_once, largest, slowly, wavefronts
from pebblesim.dags.orders import Task, as_cdag
from pebblesim.dags.starts import starts
from pebblesim.dags.task_data import TaskData
from pebblesim.game.referee import Game, referee
from pebblesim.game.rules import RULES
from pebblesim.graphs.cdag import Cdag

FACTORS: Final = np.array([1.0, 1.5, 2.0, 3.0])
"""A value that must be written before eviction is evicted first only if its next use is this factor later."""

NONE: Final = np.empty(0, dtype=np.int64)
"""No space for moves: only the I/O is computed."""

WHOLE: Final = 500
"""Orders of at most this many steps are searched as a whole; longer ones in segments of 50 to 400 steps."""

MOST_EVENTS: Final = 10**8
"""So many uses of values are played in one round on an order searched as a whole, which takes about a second."""

ROUNDS: Final = 100
"""On an order searched as a whole, the search ends after this many rounds in a row without a better game."""

Progress = Callable[[float, int, int], None]
"""Called with the fraction of time used, the least I/O so far and the largest bound."""


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
    return "the game or the bound may be weak; `optimum` narrows the gap on small graphs"


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
        rounds: on graphs of up to 500 steps, stop after this many rounds in a row without a better game.
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
    M = whole("M", M)
    if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise UsageError(f"seconds = {seconds!r} was given; give a number, 0 or more.")
    if steps is not None:
        steps = whole("steps", steps)
    task = Task(graph, M, rules)
    _compile()
    began = time.monotonic()
    search = _BestOrder(task, np.random.default_rng(seed))
    data = TaskData(task, M)
    bounds = at_once(data)
    end, interrupted = began + seconds, False

    def done(made: int) -> float:
        """The share of the search that is over after this many steps."""
        if steps is not None:
            return made / steps
        return (time.monotonic() - began) / seconds if seconds else 1.0

    try:
        search.begin(end if steps is None else float("inf"))
        if steps is not None:  # bounds that take time must not decide when it ends
            search.improve(largest(bounds).value, rounds, done, progress)
            end = time.monotonic() + seconds
        if not search.meets(bounds):
            bounds += slowly(data, end=time.monotonic() + (end - time.monotonic()) / 4)
        if steps is None:
            search.improve(largest(bounds).value, rounds, done, progress)
    except KeyboardInterrupt:
        if search.order is None:
            raise
        interrupted = True
    assert search.order is not None
    moves = task.moves(search.order, search.factor)
    game = referee(graph, M, [moves], rules)
    if not game.complete or game.io != search.io:
        raise PebblesimError(f"the search produced a game that the referee rejects; please report it: {game}")
    _refuse_what_is_above(bounds, search.io, M)
    again = len(search.order) - len(np.unique(search.order))
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
def _compile() -> None:
    """Load the kernels, or compile them once on a machine (about 20 seconds), outside the time limit of the search."""
    task = Task(Cdag.from_edges(3, [(0, 1), (0, 2)]), 2, "no-recompute")
    _BestOrder(task, np.random.default_rng(0)).begin(float("inf"))
    wavefronts(TaskData(task, 1), end=float("inf"))  # other bounds compile nothing, but load OR-tools
    order = np.arange(2, dtype=np.int32)
    anneal(task.board, task.desk(), order, 0, 2, 0, 1.0, NONE, 1.0, 0.1, 1, 0)


class _BestOrder:
    """The best order so far."""

    def __init__(self, task: Task, rng: np.random.Generator) -> None:
        self.task, self.rng = task, rng
        self.again = task.again()
        self.desk = task.desk()
        self.order: NDArray[np.int32] | None = None
        self.io, self.factor, self.start = int(kernel.IMPOSSIBLE), 1.0, ""

    def meets(self, bounds: list[Bound]) -> bool:
        return self.io <= largest(bounds).value

    def begin(self, end: float) -> None:
        """Choose the best start order; try at least the first ones even if the time is over."""
        last, longest = time.monotonic(), 0.0
        for name, vertices in starts(self.task):
            now = time.monotonic()
            last, longest = now, max(longest, now - last)
            if self.order is not None and now + longest > end:  # the next may take as long
                return
            for kind, order in self.task.steps_of(vertices):
                io, which, _ = kernel.play(self.task.board, self.desk, order, FACTORS, NONE)
                if io < self.io:
                    self.io, self.order, self.factor, self.start = int(io), order, float(FACTORS[which]), name + kind

    def improve(self, bound: int, rounds: int, done: Callable[[int], float], progress: Progress | None) -> None:
        """Anneal segments of the order until the bound is met, or all is done that was asked for.

        Args:
            done: the share of this that is done after a number of segments.
        """
        stale = made = 0
        assert self.order is not None
        if self.task.steps < 2:
            return
        whole = len(self.order) <= WHOLE
        before = done(0)
        while self.io > bound and before < 1 and not (whole and stale >= rounds):
            if progress is not None:
                progress(before, self.io, bound)
            # Recomputation is tried only on orders that are already good.
            again = (before > 1 / 2 or stale > rounds / 2) and self.rng.random() < 0.7
            stale = 0 if self.round(whole, again) else stale + 1
            made += 1
            before = done(made)

    def round(self, whole: bool, compute_again: bool) -> bool:
        """Anneal one segment; return whether the I/O decreased."""
        task, order, rng = self.task, self.order, self.rng
        assert order is not None
        length = len(order) if whole else min(len(order), int(rng.choice([50, 100, 200, 400])))
        lo = int(rng.integers(0, len(order) - length + 1))
        tail = 0 if whole else min(2 * task.M, 200)
        factor = float(rng.choice(FACTORS)) if rng.random() < 0.3 else self.factor
        again = self.again if compute_again else self.again[:0]
        hot = float(rng.choice([0.5, 1.0, 2.0] if whole else [0.5, 1.0])) * self.scale
        events = int(np.diff(task.board.start)[order].sum()) + len(order)
        tries = min(20_000, 100 * length, max(600, MOST_EVENTS // events)) if whole else 600
        slack = 8 * (int(np.diff(task.board.start).max()) + 1) if len(again) else 0
        if self.desk.events.size < events + slack:
            self.desk = task.desk(events + 4 * slack + events // 8 - len(task.board.operands) - task.steps)
        new, gain = anneal(
            task.board, self.desk, order, lo, lo + length, tail, factor, again, hot, 0.1 * self.scale, tries,
            int(rng.integers(2**31)),
        )  # fmt: skip
        if gain < 0:
            return False
        events = int(np.diff(task.board.start)[new].sum()) + len(new)
        if self.desk.events.size < events:
            self.desk = task.desk(events - len(task.board.operands) - task.steps)
        io, which, _ = kernel.play(task.board, self.desk, new, FACTORS if whole else np.array([factor]), NONE)
        if io > self.io:
            return False
        better = io < self.io
        self.io, self.order = int(io), new
        self.factor = float(FACTORS[which]) if whole else factor
        return better

    @property
    def scale(self) -> float:
        """Average number of words of a value: the unit of temperatures."""
        return float(self.task.words.mean())
