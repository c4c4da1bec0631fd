"""The best order of computation found so far: several start orders, and annealing of segments of the best."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags import order_kernel as kernel
from pebblesim.dags.anneal_kernel import anneal
from pebblesim.dags.orders import Task
from pebblesim.dags.recomputing import MOST_STEPS, STEPS_IN_A_SECOND, in_strips, recomputing
from pebblesim.dags.starts import starts

FACTORS: Final = np.array([1.0, 1.5, 2.0, 3.0])
"""A value that must be written before eviction is evicted first only if its next use is this factor later."""

NONE: Final = np.empty(0, dtype=np.int64)
"""No space for moves: only the I/O is computed."""

WHOLE: Final = 500
"""Orders of at most this many steps are searched as a whole; longer ones in segments of 50 to 400 steps."""

LONG: Final = 1_000_000
"""Orders of more steps, most of which compute again, are played once and not searched."""

MOST_EVENTS: Final = 10**8
"""So many uses of values are played in one round on an order searched as a whole, which takes about a second."""

Progress = Callable[[float, int, int], None]
"""Called with the fraction of time used, the least I/O so far and the largest bound."""


class BestOrder:
    """The best order so far."""

    def __init__(self, task: Task, rng: np.random.Generator) -> None:
        self.task, self.rng = task, rng
        self.again = task.again()
        self.desk = task.desk()
        self.order: NDArray[np.int32] | None = None
        self.io, self.factor, self.start = int(kernel.IMPOSSIBLE), 1.0, ""

    def begin(self, end: float) -> None:
        """Choose the best start order; try at least the first ones even if the time is over."""
        last, longest = time.monotonic(), 0.0
        for name, vertices in starts(self.task):
            now = time.monotonic()
            last, longest = now, max(longest, now - last)
            if self.order is not None and now + longest > end:  # the next may take as long
                return
            for kind, order in self.task.steps_of(vertices):
                self._try(name + kind, order)
        if len(self.again) and self.task.weights is None:
            left = max(0.2, end - time.monotonic())
            most = int(min(MOST_STEPS, left * STEPS_IN_A_SECOND))
            for name, vertices in (*in_strips(self.task), *recomputing(self.task, most)):
                for kind, order in self.task.steps_of(vertices):
                    self._try(name + kind, order)

    def _try(self, name: str, order: NDArray[np.int32]) -> None:
        """Keep an order if its game moves fewer words."""
        desk = self.task.desk_for(order) if len(order) > self.task.steps else self.desk
        factors = FACTORS if len(order) <= LONG else FACTORS[:1]
        io, which, _ = kernel.play(self.task.board, desk, order, factors, NONE)
        if io < self.io:
            self.io, self.order, self.factor, self.start = int(io), order, float(factors[which]), name

    def improve(self, bound: int, rounds: int, done: Callable[[int], float], progress: Progress | None) -> None:
        """Anneal segments of the order until the bound is met, or all is done that was asked for.

        Args:
            done: the share of this that is done after a number of segments.
        """
        stale = made = 0
        assert self.order is not None
        if self.task.steps < 2 or len(self.order) > max(LONG, self.task.steps):
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
        events = task.events(order)
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
        if self.desk.events.size < task.events(new):
            self.desk = task.desk_for(new)
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
