"""The sequence of passes with the least I/O, by Dijkstra's algorithm over the sets of tensors in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import chain, combinations, count, permutations, product
from math import prod

from pebblesim.core.bisection import last_that
from pebblesim.synthesis.equations import System
from pebblesim.synthesis.passes import Impossible, Pass
from pebblesim.synthesis.rows import rows
from pebblesim.synthesis.tiles import tiles

STORED = 2
"""Largest number of tensors that a pass leaves in memory, unless there are more outputs."""


@dataclass(frozen=True)
class Candidate:
    """A pass that a plan may take.

    Attributes:
        make: function from a number to the pass; the number is part of the names of its blocks.
        at: the pass for number 1.
    """

    make: Callable[[int], Pass]
    at: Pass


@dataclass(frozen=True)
class Plan:
    """A sequence of passes.

    Attributes:
        system: the way of computing.
        words: the I/O by the closed forms of the passes.
        passes: the passes.
        blocks: the block sizes for this I/O.
    """

    system: System
    words: int
    passes: tuple[Pass, ...]
    blocks: Mapping[str, int]


class Candidates:
    """The passes over a system's equations that store something, made when a search first needs them."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.choices = [*_choices(system)]
        self._made: dict[tuple[frozenset[str], frozenset[str]], tuple[Candidate, ...]] = {}

    def within(self, dims: Mapping[str, int], most: int | None) -> list[Candidate]:
        """Return the passes that may be part of a plan of fewer words than `most`; all of them without a limit.

        Inputs are read and outputs written, at least once; every other tensor that a pass reads or stores is written
        and read.
        """
        if most is None:
            return self._distinct(self.choices)
        words = {name: prod(dims[self.system.dims[axis]] for axis in axes) for name, axes in self.system.axes.items()}
        ends = {*self.system.inputs, *self.system.outputs}
        compulsory = sum(words[name] for name in self.system.outputs)
        chosen = []
        for computed, stores in self.choices:
            reads = {name for one in computed for name in self.system.equations[one].uses} - computed
            read = sum(words[name] for name in reads.intersection(self.system.inputs))
            if compulsory + read + 2 * sum(words[name] for name in (reads | stores) - ends) < most:
                chosen.append((computed, stores))
        return self._distinct(chosen)

    def _distinct(self, choices: Iterable[tuple[frozenset[str], frozenset[str]]]) -> list[Candidate]:
        """Return the passes of some choices, one of those that move and hold alike."""
        distinct: dict[Hashable, Candidate] = {}
        for choice in choices:
            for each in self._of(*choice):
                distinct.setdefault((each.at.reads, each.at.stores, each.at.moved, each.at.held), each)
        return [*distinct.values()]

    def _of(self, computed: frozenset[str], stores: frozenset[str]) -> tuple[Candidate, ...]:
        """Return the passes of a choice."""
        if (computed, stores) not in self._made:
            made = []
            for make in _forms(self.system, computed, stores):
                with suppress(Impossible):
                    made.append(Candidate(make, make(1)))
            self._made[computed, stores] = tuple(made)
        return self._made[computed, stores]


def _choices(system: System) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
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


def _forms(system: System, computed: frozenset[str], stores: frozenset[str]) -> Iterator[Callable[[int], Pass]]:
    """Yield the candidate forms of a pass; some of them may be impossible."""
    products = [name for name in computed if system.equations[name].op == "matmul"]
    if len(products) == 1:
        for x, other in permutations(system.axes[products[0]]):
            yield partial(tiles, system, x, other, computed, stores)
    runs = [{*system.axes[name], system.equations[name].contracted} - {None} for name in computed]
    sums = [run for name, run in zip(computed, runs, strict=True) if name in products]
    tensors = [{*system.axes[one]} for name in computed for one in (name, *system.equations[name].uses)]
    for x in sorted({axis for name in computed for axis in system.axes[name]}):
        for y in (None, *sorted({axis for run in runs if x in run for axis in run if axis is not None} - {x})):
            if not all(x in run or y in run for run in sums):
                continue
            if y is not None and sums and not any(x in run and y in run for run in sums):
                continue
            stay = (False, True) if any(y in tensor and x not in tensor for tensor in tensors) else (False,)
            apart = (False, True) if any(x not in tensor and y not in tensor for tensor in tensors) else (False,)
            for resident, again in product(stay, apart):
                yield partial(rows, system, x, y, computed, stores, resident, again)


def _best_blocks(made: Pass, sizes: Mapping[int, int], M: int) -> dict[str, int] | None:
    """Return nearly the best blocks of a pass within M words, by its closed form; None if blocks of one do not fit."""
    names = [*made.blocks]
    if len(names) == 1:
        largest = made.largest_block(sizes, M)
        return {names[0]: largest} if largest else None
    if made.room(sizes, dict.fromkeys(names, 1)) > M:
        return None
    if not names:
        return {}
    first, second = names
    best: tuple[int, dict[str, int]] | None = None
    top = _largest(made, sizes, M, first, {second: 1})
    for a in _parts(sizes[made.blocks[first]], top):
        blocks = {first: a, second: _largest(made, sizes, M, second, {first: a})}
        words = made.words(sizes, blocks)
        if best is None or words < best[0]:
            best = words, blocks
    assert best is not None
    return best[1]


def _parts(size: int, top: int) -> list[int]:
    """Return sizes to try, which cut an axis into equal parts: all small numbers of parts and some larger ones."""
    parts = {*range(1, 33), *(round(32 * 1.07**step) for step in range(200))}
    return sorted({min(top, -(-size // part)) for part in parts if part <= size} | {1, top})


def _largest(made: Pass, sizes: Mapping[int, int], M: int, name: str, others: Mapping[str, int]) -> int:
    return last_that(lambda size: made.room(sizes, {**others, name: size}) <= M, 1, sizes[made.blocks[name]])


def plans(system: System, available: Iterable[Candidate], dims: Mapping[str, int], M: int, limit: int) -> list[Plan]:
    """Return at most this number of cheapest plans, by the words that their passes move within M."""
    sizes = {axis: dims[dim] for axis, dim in enumerate(system.dims)}
    bits = {name: 1 << place for place, name in enumerate((*system.inputs, *system.equations))}
    priced: dict[tuple[int, int], tuple[int, Candidate]] = {}
    for each in available:
        if (blocks := _best_blocks(each.at, sizes, M)) is not None:
            words = each.at.words(sizes, blocks)
            reads, stores = (sum(bits[name] for name in names) for names in (each.at.reads, each.at.stores))
            if (reads, stores) not in priced or words < priced[reads, stores][0]:
                priced[reads, stores] = words, each
    steps = [(reads, stores, words, each) for (reads, stores), (words, each) in priced.items()]
    start, goal = (sum(bits[name] for name in names) for names in (system.inputs, system.outputs))
    order = count()
    waiting: list[tuple[int, int, int, tuple[int, ...]]] = [(0, next(order), start, ())]
    visits: Counter[int] = Counter()
    cheapest: dict[frozenset[int], Plan] = {}
    while waiting and len(cheapest) < limit:
        words, _, memory, taken = heappop(waiting)
        if memory & goal == goal:
            if frozenset(taken) not in cheapest:  # the same passes in another order are not a new plan
                made = tuple(steps[one][3].make(number) for number, one in enumerate(taken, 1))
                chosen = {name: size for each in made for name, size in (_best_blocks(each, sizes, M) or {}).items()}
                cheapest[frozenset(taken)] = Plan(system, words, made, chosen)
            continue
        visits[memory] += 1
        if visits[memory] > limit:
            continue
        for one, (reads, stores, more, _) in enumerate(steps):
            if memory & reads == reads and not memory & stores:
                heappush(waiting, (words + more, next(order), memory | stores, (*taken, one)))
    return [*cheapest.values()]
