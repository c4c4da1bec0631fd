"""The sequence of passes with the least I/O, by a search over the sets of tensors in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

import numpy as np

from pebblesim.synthesis.candidates import Choice, Kind, Steps, write
from pebblesim.synthesis.equations import System
from pebblesim.synthesis.passes import Draft, Pass
from pebblesim.synthesis.timing import Array

LARGEST_TABLE = 14
"""Up to this number of tensors that may be stored, what a plan still has to move is tabulated before the search."""


@dataclass(frozen=True)
class Plan:
    """A sequence of passes.

    Attributes:
        system: the way of computing.
        words: the I/O by the closed forms of the passes.
        passes: the passes.
        blocks: the block sizes for this I/O.
        steps: for each pass, what it computes and stores, and its kind.
    """

    system: System
    words: int
    passes: tuple[Pass, ...]
    blocks: Mapping[str, int]
    steps: tuple[tuple[Choice, Kind], ...] = ()


def plans(steps: Steps, limit: int, most: float = inf) -> list[Plan]:
    """Return at most this number of cheapest plans that move fewer words than `most`.

    The search is A*. A step costs a lower bound until it is about to be taken; then its passes are written.
    """
    states, order = _States(steps), count()
    waiting: list[tuple[float, int, int, int, tuple[int, ...], int | None]] = []
    visits: Counter[int] = Counter()
    cheapest: dict[frozenset[int], Plan] = {}

    def push(least: float, words: int, memory: int, taken: tuple[int, ...], step: int | None) -> None:
        if least < most:
            heappush(waiting, (least, next(order), words, memory, taken, step))

    push(states.left[0], 0, 0, (), None)
    while waiting and len(cheapest) < limit:
        _, _, words, memory, taken, step = heappop(waiting)
        if step is not None:
            known = steps.refine(step)
            after = memory | int(states.stores[step])
            least = words + steps.least[step] + states.left[after]
            if known:
                push(least, words + steps.best(step).words, after, (*taken, step), None)
            else:
                push(least, words, memory, taken, step)
        elif memory & states.goal == states.goal:
            if frozenset(taken) not in cheapest:  # the same passes in another order are not a new plan
                cheapest[frozenset(taken)] = _plan(steps, taken)
        elif visits[memory] < limit:
            visits[memory] += 1
            possible = states.possible(memory)
            least_of = words + steps.least[possible] + states.left[memory | states.stores[possible]]
            for one, least in zip(possible, least_of, strict=True):
                push(least, words, memory, taken, int(one))
    return [*cheapest.values()]


class _States:
    """The sets of tensors in memory, as numbers with a bit for each tensor that may be stored.

    Attributes:
        reads, stores: for each step, what must be there, and what is there after it.
        goal: the outputs.
        left: for each set, a lower bound on the words that a plan still moves.
    """

    def __init__(self, steps: Steps) -> None:
        system, self.steps = steps.system, steps
        names = [name for name in system.equations if name in system.storable]
        bits = {name: 1 << place for place, name in enumerate(names)}
        needed = [system.operands(computed) - computed for computed, _ in steps.choices]
        self.reads, self.stores = (
            np.array([sum(bits.get(name, 0) for name in one) for one in sets], np.int64)
            for sets in (needed, [stores for _, stores in steps.choices])
        )
        self.goal = sum(bits[name] for name in system.outputs)
        self.left: Array = np.zeros(1 << len(names))
        if len(names) <= LARGEST_TABLE:
            for memory in range(self.left.size - 1, -1, -1):  # later sets have more tensors
                if memory & self.goal != self.goal:
                    possible = self.possible(memory)
                    words = steps.least[possible] + self.left[memory | self.stores[possible]]
                    self.left[memory] = words.min(initial=inf)

    def possible(self, memory: int) -> Array:
        """Return the steps that may be taken with these tensors in memory."""
        return np.flatnonzero(((memory & self.reads) == self.reads) & ((memory & self.stores) == 0))


def _plan(steps: Steps, taken: tuple[int, ...]) -> Plan:
    chosen = [(steps.choices[one], steps.best(one)) for one in taken]
    made = tuple(
        write(steps.system, choice, best.kind, Draft(number)) for number, (choice, best) in enumerate(chosen, 1)
    )
    blocks: dict[str, int] = {}
    for each, (_, best) in zip(made, chosen, strict=True):
        blocks |= dict(zip(each.blocks, best.blocks.values(), strict=True))
    taken_steps = tuple((choice, best.kind) for choice, best in chosen)
    return Plan(steps.system, sum(best.words for _, best in chosen), made, blocks, taken_steps)
