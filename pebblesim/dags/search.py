"""The best game found for any DAG: several orders to start from, then a search for better ones until the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags import order_kernel as kernel
from pebblesim.dags.bounds import Bound, Case, at_once, largest, slowly
from pebblesim.dags.orders import Task, as_cdag
from pebblesim.dags.starts import starts
from pebblesim.errors import PebblesimError, UnknownName, UsageError
from pebblesim.game.referee import RULES, Game, referee
from pebblesim.graphs.cdag import Cdag
from pebblesim.results import Result
from pebblesim.sizes import whole

FACTORS: Final = np.array([1.0, 1.5, 2.0, 3.0])
"""By how much later a value must be needed to go first, if it has to be written before it goes."""

NONE: Final = np.empty(0, dtype=np.int64)
"""No room for moves: only their I/O is wanted."""

WHOLE: Final = 500
"""Orders of at most that many steps are searched as a whole; longer ones in stretches of 50 to 400 steps."""

ROUNDS: Final = 100
"""Rounds in a row without a better game, on an order that is searched as a whole, behind which the search ends."""

Progress = Callable[[float, int, int], None]
"""Told the part of the time that is over, the least I/O so far and the largest bound."""


@dataclass(frozen=True, eq=False)
class Pebbling(Result):
    """The best game that was found on a graph, and how far it can be from the least.

    Attributes:
        graph: what it was played on.
        rules, M: of the game.
        game: the referee's outcome.
        moves: the game, packed as in `pebblesim.game.moves`.
        bound: the largest lower bound.
        bounds: all of them.
        start: the order that the search started from.
        again: how often a vertex was computed again.
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
        """Whether no game moves fewer words."""
        return self.io == self.bound.value

    @property
    def gap(self) -> float:
        """I/O ÷ bound; 1 if there is nothing to move."""
        return self.io / self.bound.value if self.bound.value else 1.0

    def to_dict(self) -> dict[str, Any]:
        """All but the moves, of which it says how many, as plain data."""
        return {
            "rules": self.rules,
            "M": self.M,
            "vertices": self.graph.vertices,
            "edges": self.graph.edges,
            "io": self.io,
            "reads": self.game.reads,
            "writes": self.game.writes,
            "peak_red": self.game.peak_red,
            "moves": self.game.moves,
            "computed_again": self.again,
            "complete": self.game.complete,
            "bound": {"name": self.bound.name, "value": self.bound.value, "source": self.bound.source},
            "gap": self.gap,
            "proven": self.proven,
            "start": self.start,
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        blame = "the game is optimal: it meets the bound" if self.proven else _blame(self)
        lines = {
            "rules": self.rules,
            "graph": f"{self.graph.vertices:,} vertices, {self.graph.edges:,} edges",
            "I/O": f"{self.io:,} words: {self.game.reads:,} read, {self.game.writes:,} written",
            "peak red": f"{self.game.peak_red:,} of M = {self.M:,} words",
            "game": f"{self.game.moves:,} moves, judged by the referee; begun {self.start}"
            + (f"; {self.again:,} computed again" if self.again else ""),
            "bound": f"{self.bound.value:,} words ({self.bound.source})",
            "gap": f"{self.gap:.3f}; {blame}",
        }
        return "\n".join(f"{label:<10}{value}" for label, value in lines.items())


def _blame(found: Pebbling) -> str:
    """Which of game and bound is more likely to be far from the least I/O."""
    if found.bound.name == "compulsory":
        return "blame the bound: no bound says more than that inputs are read and outputs written once"
    return "both may be blamed; `optimum` narrows it on small graphs"


def pebble(
    graph: Any,
    *,
    M: int,
    rules: str = "hong-kung",
    seconds: float = 10.0,
    seed: int = 0,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> Pebbling:
    """The best game that is found on a graph in some seconds; every game is judged by the referee.

    Args:
        graph: a `Cdag`, or a networkx DiGraph.
        M: red pebbles, in words.
        rules: "hong-kung", "no-recompute", "replace" or "partial".
        seconds: how long to search for a better order; it ends sooner when the game meets a bound or nothing improves.
        seed: of the random choices; with enough time the same seed gives the same game.
        rounds: give up behind that many in a row without a better game, on graphs of up to 500 steps.
        progress: called now and then.

    Ctrl-C ends the search, not the call: the best game so far is returned.

    Returns:
        The game, the bounds, and the gap between them.

    >>> from pebblesim.dags.generators import generate
    >>> pebble(generate("pyramid", rows=5), M=4, rules="no-recompute", seconds=2).io
    10

    Raises:
        Infeasible: M is too small for any game.
        UnknownName: there is no such rule set.
        UsageError: M is no positive whole number, or `seconds` is negative.
    """
    graph = as_cdag(graph)
    if rules not in RULES:
        raise UnknownName("rule set", rules, RULES)
    M = whole("M", M)
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"seconds = {seconds} was given; give 0 or more.")
    task = Task(graph, M, rules)
    _compile()
    began = time.monotonic()
    search = _Search(task, np.random.default_rng(seed))
    case = Case(task, M)
    bounds = at_once(case)
    end, interrupted = began + seconds, False
    try:
        search.begin(end)
        if not search.meets(bounds):
            bounds += slowly(case, end=time.monotonic() + (end - time.monotonic()) / 4)
        search.improve(largest(bounds).value, rounds, began, end, progress)
    except KeyboardInterrupt:
        if search.order is None:
            raise
        interrupted = True
    assert search.order is not None
    moves = task.moves(search.order, search.factor)
    game = referee(graph, M, [moves], rules)
    if not game.complete or game.io != search.io:
        raise PebblesimError(f"the search made a game that the referee does not accept; please report it: {game}")
    again = len(search.order) - len(np.unique(search.order))
    took = time.monotonic() - began
    found = tuple(bounds)
    return Pebbling(graph, rules, M, game, moves, largest(found), found, search.start, again, took, interrupted)


@cache
def _compile() -> None:
    """Load the kernels, or make them: some 20 seconds, once on a machine, that are not the search's."""
    task = Task(Cdag.from_edges(3, [(0, 1), (0, 2)]), 2, "no-recompute")
    _Search(task, np.random.default_rng(0)).begin(float("inf"))
    slowly(Case(task, 2), end=float("inf"))
    order = np.arange(2, dtype=np.int32)
    kernel.anneal(task.board, task.desk(), order, 0, 2, 0, 1.0, NONE, 1.0, 0.1, 1, 0)


class _Search:
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
        """The best of the orders to start from; the first ones even if the time is up."""
        for name, vertices in starts(self.task):
            if self.order is not None and time.monotonic() > end:
                return
            for kind, order in self.task.steps_of(vertices):
                io, which, _ = kernel.play(self.task.board, self.desk, order, FACTORS, NONE)
                if io < self.io:
                    self.io, self.order, self.factor, self.start = int(io), order, float(FACTORS[which]), name + kind

    def improve(self, bound: int, rounds: int, began: float, end: float, progress: Progress | None) -> None:
        """Anneal stretches of the order until the bound is met or the time is up."""
        stale = 0
        assert self.order is not None
        if self.task.steps < 2:
            return
        whole = len(self.order) <= WHOLE
        while self.io > bound and time.monotonic() < end and not (whole and stale >= rounds):
            if progress is not None:
                progress(min(1.0, (time.monotonic() - began) / max(1e-9, end - began)), self.io, bound)
            left = max(0.0, end - time.monotonic())
            # Computing again is for orders that are good already.
            again = (left < (end - began) / 2 or stale > rounds / 2) and self.rng.random() < 0.7
            stale = 0 if self.round(whole, again) else stale + 1

    def round(self, whole: bool, compute_again: bool) -> bool:
        """One stretch; whether the I/O is less than before."""
        task, order, rng = self.task, self.order, self.rng
        assert order is not None
        length = len(order) if whole else min(len(order), int(rng.choice([50, 100, 200, 400])))
        lo = int(rng.integers(0, len(order) - length + 1))
        tail = 0 if whole else min(2 * task.M, 200)
        factor = float(rng.choice(FACTORS)) if rng.random() < 0.3 else self.factor
        again = self.again if compute_again else self.again[:0]
        tries = min(20_000, 100 * length) if whole else 600
        hot = float(rng.choice([0.5, 1.0, 2.0] if whole else [0.5, 1.0])) * self.scale
        events = int(np.diff(task.board.start)[order].sum()) + len(order)
        slack = 8 * (int(np.diff(task.board.start).max()) + 1) if len(again) else 0
        if self.desk.events.size < events + slack:
            self.desk = task.desk(events + 4 * slack + events // 8 - len(task.board.operands) - task.steps)
        new, gain = kernel.anneal(
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
        """Words of a value on average: the unit of temperatures."""
        return float(self.task.words.mean())
