"""The state of a search for the least I/O: an interval, and the game at its upper end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags.orders import Task


class Interval:
    """The current interval; searches narrow it.

    Attributes:
        task: the graph, M and rules.
        io, moves: the best game known, packed as in `pebblesim.game.moves`.
        bound, proof: the lower bound in words, and its proof.
        states: number of states kept.
        steps: number of states expanded or estimated.
        ended: why the search ended, if it ended without a proof.
    """

    def __init__(self, task: Task, io: int, moves: NDArray[np.int64], bound: int, proof: str) -> None:
        self.task, self.io, self.moves, self.bound, self.proof = task, io, moves, bound, proof
        self.states, self.steps, self.ended = 0, 0, "time"

    @property
    def proven(self) -> bool:
        """Whether the game is proven optimal."""
        return self.io == self.bound

    def raise_to(self, bound: int, proof: str) -> None:
        """Use a bound if it is larger than the current one."""
        if bound > self.bound:
            self.bound, self.proof = min(bound, self.io), proof
