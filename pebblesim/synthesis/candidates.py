"""The passes over a system's equations: which choices of equations there are, and the cheapest pass of each within M.

A choice has dozens of passes. Each has a lower bound on its words (`pebblesim.synthesis.timing`); a pass is written and
priced only when a plan may need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, permutations
from math import inf, prod, sqrt

import numpy as np

from pebblesim.synthesis.equations import System
from pebblesim.synthesis.pairs import PairSums
from pebblesim.synthesis.passes import ONE, Draft, Impossible, Pass
from pebblesim.synthesis.rows import rows
from pebblesim.synthesis.tiles import tiles
from pebblesim.synthesis.timing import SURELY, Array, Choices, Cost, Form, Timing
from pebblesim.synthesis.word_sizes import WORDS, WordSizes

STORED = 2
"""Largest number of tensors that a pass leaves in memory, unless there are more outputs."""

Choice = tuple[frozenset[str], frozenset[str]]
"""The tensors that a pass computes, and those of them that it stores."""

Kind = Form | tuple[int, int]
"""A pass over rows, or one in tiles of two axes."""


@dataclass(frozen=True)
class Priced:
    """A pass with the blocks for which it moves the fewest words within M.

    Attributes:
        words: the words that it moves.
        blocks: the blocks.
        kind: the kind of pass.
    """

    words: int
    blocks: Mapping[str, int]
    kind: Kind


class Candidates:
    """The passes over a system's equations that store something; those that were written are kept."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.choices = [*_choices(system)]
        self._made: dict[tuple[Choice, Kind], Pass | None] = {}

    def within(self, words: Mapping[str, int], most: float) -> list[Choice]:
        """Return the choices that may be part of a plan of fewer words than `most`.

        Inputs are read and outputs written, at least once; every other tensor that a pass reads or stores is written
        and read. `words` are those of each tensor.
        """
        ends = {*self.system.inputs, *self.system.outputs}
        compulsory = sum(words[name] for name in self.system.outputs)
        chosen = []
        for computed, stores in self.choices:
            reads = self.system.operands(computed) - computed
            read = sum(words[name] for name in reads.intersection(self.system.inputs))
            if compulsory + read + 2 * sum(words[name] for name in (reads | stores) - ends) < most:
                chosen.append((computed, stores))
        return chosen

    def made(self, choice: Choice, kind: Kind) -> Pass | None:
        """Return the pass of a choice of this kind; None if it is not possible."""
        if (choice, kind) not in self._made:
            try:
                self._made[choice, kind] = write(self.system, choice, kind)
            except Impossible:
                self._made[choice, kind] = None
        return self._made[choice, kind]


def write(system: System, choice: Choice, kind: Kind, draft: Draft = ONE) -> Pass:
    """Return a pass.

    Raises:
        Impossible: there is no such pass.
    """
    if isinstance(kind, Form):
        return rows(system, kind, *choice, draft)
    return tiles(system, *kind, *choice, draft)


class Steps:
    """The choices that a plan may take, each with the words of its cheapest pass within M, or a lower bound on them.

    Attributes:
        choices: the choices.
        least: for each, the words, or a lower bound; infinite if it has no pass.
        number: how many passes there are.
    """

    def __init__(
        self,
        candidates: Candidates,
        dims: Mapping[str, int],
        M: int,
        sums: PairSums | None = None,
        most: float = inf,
        only: Callable[[list[Choice]], list[Choice]] = list,
        widths: WordSizes = WORDS,
    ) -> None:
        self.widths = widths
        self.candidates, self.system, self.M, self.sums = candidates, candidates.system, M, sums
        self.sizes = {axis: dims[dim] for axis, dim in enumerate(self.system.dims)}
        every = self.system.axes.items()
        self.whole = {name: widths[name] * prod(self.sizes[axis] for axis in axes) for name, axes in every}
        self.words = {name: widths[name] * self._words(axes) for name, axes in every}
        self.choices = only(candidates.within(self.words, most))
        self._best: list[Priced | None] = [None] * len(self.choices)
        self._kinds: list[Kind] = []
        bounds = self._all_bounds()
        self.number = int(np.isfinite(bounds).sum())
        self._order = np.argsort(bounds, axis=0, kind="stable")
        self._bounds_in_order = np.take_along_axis(bounds, self._order, axis=0)
        self._next = [0] * len(self.choices)
        self.least: Array = self._bounds_in_order[0].copy()

    def _words(self, axes: tuple[int, ...]) -> int:
        """Return the words of a tensor that are moved, at least, if it is read or written."""
        pairs = self.system.pairs or ()
        if self.sums is None:
            return prod(self.sizes[axis] for axis in axes)
        if axes == pairs:
            return self.sums.pairs
        return prod(self.sums.seen(pairs.index(axis)) if axis in pairs else self.sizes[axis] for axis in axes)

    def bounds(self) -> Iterator[tuple[int, Kind, float]]:
        """Yield (choice, kind, bound) for the kinds of passes that there are, with a lower bound on their words."""
        for step in range(len(self.choices)):
            for number, bound in zip(self._order[:, step], self._bounds_in_order[:, step], strict=True):
                if np.isfinite(bound):
                    yield step, self._kinds[number], float(bound)

    def _all_bounds(self) -> Array:
        """Return lower bounds of shape (kinds, choices) on the words of passes, infinite where there are none."""
        system, choices = self.system, Choices(self.system, self.choices)
        bounds = [np.full(len(self.choices), inf)]
        self._kinds.append((0, 0))
        for form, fits in choices.forms():
            timing = Timing(choices, form)
            timing.possible &= fits
            if timing.possible.any():
                self._kinds.append(form)
                bounds.append(Cost(timing).least(self.sizes, self.whole, self.words, self.M, self.sums, self.widths))
        products = np.array([len(self._products(each)) == 1 for each in self.choices], bool)
        for x, y in permutations(range(len(system.dims)), 2):
            own = [
                self._of_tiles(choice, x, y) if single else inf
                for choice, single in zip(self.choices, products, strict=True)
            ]
            if np.isfinite(own).any():
                self._kinds.append((x, y))
                bounds.append(np.array(own))
        return np.array(bounds)

    def _products(self, choice: Choice) -> list[str]:
        return [name for name in choice[0] if self.system.equations[name].op == "matmul"]

    def _of_tiles(self, choice: Choice, x: int, y: int) -> float:
        """Return a lower bound on the words of a pass in tiles: a tile of ab ≤ M words needs a + b for ab terms."""
        system, (name,) = self.system, self._products(choice)
        each = system.equations[name]
        if {*system.axes[name]} != {x, y}:
            return inf
        computed, stores = choice
        reads, factors = system.operands(computed) - computed, {name, *each.uses}
        of_pairs = any(system.axes[one] == system.pairs for one in factors)
        terms = float(prod(self.sizes[axis] for axis in {x, y, each.contracted} if axis is not None))
        if self.sums is not None and of_pairs:
            terms *= self.sums.pairs / prod(self.sums.grid)
        words = self.words if of_pairs else self.whole
        others = sum(words[one] for one in reads - {*each.uses})
        others += sum((self.words if system.axes[one] == system.pairs else self.whole)[one] for one in stores)
        once = sum(words[one] for one in reads.intersection(each.uses))
        sides = prod(self.widths[one.name] for one in each.operands) * self.widths[name]
        return (others + max(2 * terms * sqrt(sides / self.M), once)) * SURELY

    def refine(self, step: int) -> bool:
        """Write the next pass of a choice; return whether `least` is now the words of its cheapest pass."""
        best, column = self._best[step], self._bounds_in_order[:, step]
        at = self._next[step]
        if at < len(column) and np.isfinite(column[at]) and (best is None or column[at] < best.words):
            self._next[step] = at + 1
            kind = self._kinds[self._order[at, step]]
            priced = self.priced(self.choices[step], kind)
            if priced is not None and (best is None or priced.words < best.words):
                self._best[step] = best = priced
        following = column[self._next[step]] if self._next[step] < len(column) else inf
        self.least[step] = min(following, inf if best is None else best.words)
        return best is not None and best.words <= following

    def best(self, step: int) -> Priced:
        """Return the cheapest pass of a choice that was refined to the end."""
        best = self._best[step]
        assert best is not None
        return best

    def priced(self, choice: Choice, kind: Kind) -> Priced | None:
        """Return a pass of a choice with its best blocks; None if it is not possible, or does not fit."""
        made = self.candidates.made(choice, kind)
        if made is None:
            return None
        blocks = best_blocks(made, self.sizes, self.M, self.sums, self.widths)
        return None if blocks is None else Priced(self.moved(made, blocks), blocks, kind)

    def moved(self, made: Pass, blocks: Mapping[str, int]) -> int:
        """Return the words, or bytes, that a pass moves."""
        return made.words(self.sizes, blocks, self.sums, self.widths)


def best_blocks(
    made: Pass, sizes: Mapping[int, int], M: int, sums: PairSums | None = None, widths: WordSizes = WORDS
) -> dict[str, int] | None:
    """Return nearly the best blocks of a pass within M words, by its closed form; None if blocks of one do not fit."""
    names = [*made.blocks]
    if made.room(sizes, dict.fromkeys(names, 1), widths) > M:
        return None
    if not names:
        return {}
    first, *rest = names
    top = made.largest_block(sizes, M, first, dict.fromkeys(rest, 1), widths)
    options = []
    for size in [top] if sums is None and not rest else parts(sizes[made.blocks[first]], top):
        blocks = {first: size}
        for name in rest:
            blocks[name] = made.largest_block(sizes, M, name, blocks, widths)
        options.append(blocks)
    return min(options, key=lambda blocks: made.words(sizes, blocks, sums, widths))


def parts(size: int, top: int) -> list[int]:
    """Return sizes to try, which cut an axis into equal parts: all small numbers of parts and some larger ones."""
    parts = {*range(1, 33), *(round(32 * 1.07**step) for step in range(200))}
    return sorted({min(top, -(-size // part)) for part in parts if part <= size} | {1, top})


def _choices(system: System) -> Iterator[Choice]:
    """Yield (computed, stored) tensors of possible passes; operands that are not computed are read from memory."""
    storable = [name for name in system.equations if name in system.storable]
    most_stored = max(STORED, len(system.outputs))
    for stores in chain.from_iterable(combinations(storable, size) for size in range(1, most_stored + 1)):
        if any(system.axes[one] == system.axes[other] for one, other in combinations({*stores} - {*system.outputs}, 2)):
            continue  # two passes that store one tensor each, with larger blocks of rows, move about as many words
        for computed in _closures(system, frozenset(stores)):
            if _connected(system, computed):
                yield computed, frozenset(stores)


def _closures(system: System, stores: frozenset[str]) -> set[frozenset[str]]:
    """Return the sets of equations that compute these tensors from tensors that can be in memory."""
    done: set[frozenset[str]] = set()
    visited = set()
    waiting = [(stores, tuple(sorted(_below(system, stores) - stores)))]
    while waiting:
        computed, open_ones = waiting.pop()
        if (computed, open_ones) in visited:
            continue
        visited.add((computed, open_ones))
        forced = [name for name in open_ones if name not in system.storable]
        if forced:
            more = computed | set(forced)
            waiting.append((more, tuple(sorted(({*open_ones} | _below(system, forced)) - more))))
            continue
        for size in range(len(open_ones) + 1):
            for chosen in combinations(open_ones, size):
                if not chosen:
                    done.add(computed)
                    continue
                more = computed | set(chosen)
                waiting.append((more, tuple(sorted(_below(system, chosen) - more - ({*open_ones} - {*chosen})))))
    return done


def _connected(system: System, computed: frozenset[str]) -> bool:
    """Whether the equations are connected by common matrices; if not, separate passes move no more words."""
    matrices = [
        {one for one in (name, *system.equations[name].uses) if len(system.axes[one]) == 2} for name in computed
    ]
    reached, waiting = matrices[0], matrices[1:]
    while near := [each for each in waiting if each & reached]:
        waiting = [each for each in waiting if not each & reached]
        reached = reached.union(*near)
    return not waiting


def _below(system: System, names: Iterable[str]) -> set[str]:
    """Return the operands of these tensors that are not inputs."""
    return {one for name in names for one in system.equations[name].uses if one in system.equations}
