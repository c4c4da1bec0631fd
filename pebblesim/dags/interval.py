"""What is known of the least I/O while a search runs: an interval, and the game at its upper end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags.orders import Task


class Interval:
    """The interval so far; searches narrow it.

    Attributes:
        task: what is searched.
        io, moves: the best game known, packed as in `pebblesim.game.moves`.
        bound, proof: no game moves fewer words, and what proves that.
        states: how many states were kept.
        ended: why the search ended, if it ended without a proof.
    """

    def __init__(self, task: Task, io: int, moves: NDArray[np.int64], bound: int, proof: str) -> None:
        self.task, self.io, self.moves, self.bound, self.proof = task, io, moves, bound, proof
        self.states, self.ended = 0, "time"

    @property
    def proven(self) -> bool:
        """Whether the game is the best there is."""
        return self.io == self.bound

    def raise_to(self, bound: int, proof: str) -> None:
        """Take a bound, if it is a larger one."""
        if bound > self.bound:
            self.bound, self.proof = min(bound, self.io), proof
