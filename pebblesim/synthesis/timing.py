"""When the tensors of a pass over rows are complete, for many passes at once, and how few words these can move.

A pass keeps a block of rows of axis x in cache, and streams rows of axis y. Whether this is possible for a choice of
equations, and what has to stay in cache, follows from when each tensor is complete. This is decided here, for all
choices in a few array operations, so that a search writes only passes that may be part of a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.synthesis.equations import Equation, System
from pebblesim.synthesis.pairs import PairSums
from pebblesim.synthesis.word_sizes import WordSizes

Array = NDArray[Any]

SURELY = 1 - 1e-9
"""Factor that makes up for the rounding of a bound."""


class When(IntEnum):
    """When a tile is complete: before all loops, or for a block of rows before, during or after the streaming."""

    BEFORE = 0
    BLOCK = 1
    PASSING = 2
    PASSED = 3
    AFTER = 4


BEFORE, BLOCK, PASSING, PASSED, AFTER = map(int, When)  # operations on arrays are slower with members of a class


@dataclass(frozen=True)
class Form:
    """How a pass over rows runs.

    Attributes:
        x: the axis whose rows are in cache in blocks.
        y: the axis whose rows are streamed, one at a time; None if none are.
        resident: whether all rows of y stay in cache.
        again: whether tensors with neither axis are read again for each block, instead of staying in cache.
    """

    x: int
    y: int | None
    resident: bool = False
    again: bool = False

    def over(self, axes: tuple[int, ...]) -> tuple[bool, bool]:
        """Whether a tensor with these axes has rows of x, and of y."""
        return self.x in axes, self.y is not None and self.y in axes

    def first(self, axes: tuple[int, ...]) -> int:
        """Return when an operand from memory is available, as the number of a `When`."""
        match self.over(axes):
            case (False, False):
                return BLOCK if self.again else BEFORE
            case (True, False):
                return BLOCK
            case (False, True):
                return BEFORE if self.resident else PASSING
        return PASSING


class Choices:
    """Sets of equations that a pass may compute, as booleans of shape (choices,) for each equation.

    Attributes:
        system: the equations.
        computed, stored: for each equation, whether each choice computes it, and whether it stores the result.
        reads: for each tensor, whether each choice reads it.
    """

    def __init__(self, system: System, sets: list[tuple[frozenset[str], frozenset[str]]]) -> None:
        self.system, self.number = system, len(sets)
        self.computed = {name: np.array([name in one for one, _ in sets], bool) for name in system.equations}
        self.stored = {name: np.array([name in one for _, one in sets], bool) for name in system.equations}
        self.reads = {}
        for name in (*system.inputs, *system.equations):
            used = self.used(name, self.computed)
            self.reads[name] = used & ~self.computed[name] if name in self.computed else used

    def used(self, name: str, by: Mapping[str, Array]) -> Array:
        """Return for which choices one of the equations that are true in `by` uses a tensor."""
        users = [
            by[equation.name]
            for equation in self.system.equations.values()
            if name in equation.uses and equation.name in by
        ]
        return np.logical_or.reduce(users) if users else np.zeros(self.number, bool)

    def forms(self) -> Iterator[tuple[Form, Array]]:
        """Yield the forms of passes over rows, each with the choices for which it makes sense."""
        axes, equations = self.system.axes, self.system.equations
        runs = {name: {*axes[name], each.contracted} for name, each in equations.items()}
        sums = [name for name, each in equations.items() if each.op == "matmul"]
        at_hand = {name: self.reads[name] | self.computed.get(name, False) for name in self.reads}

        def some(which: Mapping[str, Array], names: list[str]) -> Array:
            return np.logical_or.reduce([np.zeros(self.number, bool), *(which[name] for name in names)])

        for x, y in product(range(len(self.system.dims)), (None, *range(len(self.system.dims)))):
            if x == y:
                continue
            sense = some(self.computed, [name for name in equations if x in axes[name]])
            sense &= ~some(self.computed, [name for name in sums if x not in runs[name] and y not in runs[name]])
            stay = np.zeros(self.number, bool)
            if y is not None:
                sense &= some(self.computed, [name for name, run in runs.items() if x in run and y in run])
                both = some(self.computed, [name for name in sums if x in runs[name] and y in runs[name]])
                sense &= both | ~some(self.computed, sums)
                stay = some(at_hand, [name for name in at_hand if y in axes[name] and x not in axes[name]])
            apart = some(at_hand, [name for name in at_hand if x not in axes[name] and y not in axes[name]])
            for resident, again in product((False, True), repeat=2):
                fits = sense & (stay | (not resident)) & (apart | (not again))
                if fits.any():
                    yield Form(x, y, resident, again), fits


class Timing:
    """When the tensors of a form are computed and complete, for each choice; `possible`: whether the form exists."""

    def __init__(self, choices: Choices, form: Form) -> None:
        system, number = choices.system, choices.number
        self.form, self.choices = form, choices
        self.possible = np.ones(number, bool)
        self.when: dict[str, Array] = {name: np.full(number, form.first(system.axes[name])) for name in choices.reads}
        self.done: dict[str, Array] = {}
        for name, each in system.equations.items():
            computed = choices.computed[name]
            if computed.any():
                done, when, ok = self._timed(each)
                self.possible &= ok | ~computed
                self.when[name] = np.where(computed, when, self.when[name])
                self.done[name] = np.where(computed, done, -1)
                if form.over(system.axes[name]) == (False, True) and not form.resident:
                    self.possible &= ~choices.stored[name]  # it would be written once for each block of rows

    def _timed(self, each: Equation) -> tuple[Array, Array, Array]:
        """Return when an equation is computed, when its result is complete, and whether both are possible."""
        form, axes = self.form, self.choices.system.axes
        at = np.maximum.reduce([self.when[name] for name in each.uses])
        over, operands = form.over(axes[each.name]), [form.over(axes[name]) for name in each.uses]
        never = np.zeros(len(at), bool)
        if each.contracted is not None and each.contracted == form.y:
            if over[1]:
                return at, at, never
            if any(x for x, _ in operands):
                return np.full_like(at, PASSING), np.full_like(at, PASSED), at <= PASSING
            return at, at, at <= BEFORE
        if each.contracted == form.x:
            after = np.full_like(at, AFTER)
            if over == (False, True):
                return np.full_like(at, PASSING), after, (at <= PASSING) & form.resident
            if any(y for _, y in operands) or not all(x for x, _ in operands):
                return at, at, never
            at = np.maximum(at, BLOCK)
            return at, after, at != PASSING
        passing = np.full_like(at, PASSING)
        match over:
            case (False, False):
                return at, at, (at == BEFORE) | (at == AFTER)
            case (True, False):
                block = np.maximum(at, BLOCK)
                return block, block, (at != PASSING) & (at != AFTER)
            case (False, True) if form.resident:
                return at, at, (at == BEFORE) | ((at == AFTER) & each.elementwise)
        return passing, passing, at <= PASSING


class Cost:
    """All that passes of a form read and hold, for each choice: so few words can they move within M."""

    def __init__(self, timing: Timing) -> None:
        choices, form = timing.choices, timing.form
        system = choices.system
        absorbed = {name for name, each in system.equations.items() if _may_be_absorbed(each, system, form)}
        passing = {name: done == PASSING for name, done in timing.done.items() if name not in absorbed}
        inside = {name: (done >= BLOCK) & (done <= PASSED) for name, done in timing.done.items()}
        later = {name: done > BEFORE for name, done in timing.done.items() if name not in absorbed}
        none = np.zeros(choices.number, bool)
        self.form, self.system, self.possible = form, system, timing.possible
        self.read: dict[str, Array] = {}  # what is read once
        self.stored = choices.stored
        self.in_blocks: dict[str, Array] = {}  # what is read for each block of rows
        self.held: dict[str, Array] = {}  # what is in cache while rows are streamed
        self.stays: dict[str, Array] = {}  # what is in cache all the time
        self.made: dict[str, Array] = {}  # blocks of rows that are computed as one tile
        for name, read in choices.reads.items():
            over, when = form.over(system.axes[name]), timing.when[name]
            computed = choices.computed.get(name, none)
            repeated = (over == (False, True) and not form.resident) or (over == (False, False) and form.again)
            again = read & (choices.used(name, inside) if over == (False, False) else True) if repeated else none
            self.read[name] = read & ~again
            if repeated:
                self.in_blocks[name] = again
            if name in timing.done:
                begun = computed & (timing.done[name] < when) & (timing.done[name] == PASSING)
            else:
                begun = none
            if over != (True, True) and not (over == (False, True) and not form.resident):
                stays = (read | computed) & choices.used(name, later) & (when == BEFORE)
                if form.x not in system.axes[name]:
                    self.stays[name] = stays | begun
                self.held[name] = ((read | computed) & choices.used(name, passing) & (when <= BLOCK)) | stays | begun
            if over == (True, False) and name not in absorbed:
                self.made[name] = computed
        pairs = [choices.computed[name] for name in system.equations if form.over(system.axes[name]) == (True, True)]
        self.pair = np.logical_or.reduce(pairs) if pairs else none

    def least(
        self,
        sizes: Mapping[int, int],
        whole: Mapping[str, int],
        words: Mapping[str, int],
        M: int,
        sums: PairSums | None,
        widths: WordSizes,
    ) -> Array:
        """Return the fewest words that passes of this form can move, for each choice; infinite if there are none.

        Args:
            sizes: of the axes.
            whole: words, or bytes, of each tensor.
            words: of each tensor, those in an allowed pair.
            M: the largest number of words in cache.
            sums: those of the mask.
            widths: of the words.
        """
        form, axes, n = self.form, self.system.axes, sizes[self.form.x]
        fixed, stays, made = np.zeros((3, len(self.possible)))
        slope = self.pair * float(widths.smallest)
        for name, held in self.held.items():
            if form.x in axes[name]:
                slope += held * (whole[name] / n)
            else:
                fixed += held * float(whole[name])  # it may not fit into numpy's integers
                stays += self.stays[name] * float(whole[name])
        for name, computed in self.made.items():
            made = np.maximum(made, computed * (whole[name] / n))
        room = M - 2 * widths.smallest - fixed, M - 2 * widths.smallest - stays
        fits = self.possible & (slope <= room[0]) & (made <= room[1])
        most = np.minimum(np.maximum(room[0], 0) / np.maximum(slope, 1), np.maximum(room[1], 0) / np.maximum(made, 1))
        rows = np.clip(np.floor(most), 1, n)
        blocks = np.ceil(n / rows * SURELY)
        total = np.zeros(len(rows))
        pairs = self.system.pairs or ()
        for name, read in self.read.items():
            total += read * float((words if self._leaves_out(name) else whole)[name])
        for name, stored in self.stored.items():
            total += stored * float((words if axes[name] == pairs else whole)[name])
        for name, read in self.in_blocks.items():
            partner = [axis for axis in axes[name] if axis in pairs and form.x in pairs]
            if sums is None or not partner:
                total += read * blocks * float((words if self._leaves_out(name) else whole)[name])
            else:  # a block of rows reads only those of the other axis that are in a pair with one of it
                several, where = np.unique(rows, return_inverse=True)
                met = np.array([sums.met(pairs.index(form.x), int(each)) for each in several], float)
                total += read * met[where] * (whole[name] / sizes[partner[0]])
        return np.where(fits, total * SURELY, inf)

    def _leaves_out(self, name: str) -> bool:
        """Whether the lines of a tensor may be left unread that are in no allowed pair.

        They are where a loop over one axis of pairs is inside one over the other, which the sum of a product may be.
        """
        axes, form, pairs = self.system.axes, self.form, self.system.pairs
        if pairs is None or axes[name] == pairs:
            return True
        for axis, other in (pairs, pairs[::-1]):
            if axis in axes[name] and axis != form.x and other in (form.x, form.y):
                users = (equation for equation in self.system.equations.values() if name in equation.uses)
                summed = (equation for equation in users if equation.contracted == axis)
                if axis == form.y or any(axes[one] == pairs for equation in summed for one in equation.uses):
                    return True
        return False


def _may_be_absorbed(each: Equation, system: System, form: Form) -> bool:
    """Whether an elementwise result may be one expression with the row sum that uses it, and have no tile."""
    users = [one for one in system.equations.values() if each.name in one.uses]
    return (
        each.elementwise
        and len(system.axes[each.name]) == 2
        and any(one.op == "rowsum" and one.contracted not in (form.x, form.y) for one in users)
    )
