"""Count a schedule on a machine, with tiles in the lowest memory and blocks that are given or found by a search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.sizes import DTYPE_ON_MACHINES, dtype_of, whole
from pebblesim.counting.arguments import AnyMask
from pebblesim.counting.heads import Heads
from pebblesim.counting.run import Run
from pebblesim.language import program as ir
from pebblesim.language.registry import Schedule, get
from pebblesim.machines.counting import Nesting, OnMachine, check_mask, count_nesting, least_gaps
from pebblesim.machines.machine import Machine
from pebblesim.machines.named import machine as machine_of
from pebblesim.machines.places import MustBeBelow

SIDES = (1, 4, 16, 32, 64, 128, 256)
"""Blocks of these sides, all the same, are tried beside those that fill the first memory."""


@checked_kinds()
def on_machine(
    schedule: str | Schedule,
    *,
    machine: str | Machine,
    dtype: str = DTYPE_ON_MACHINES,
    product: str | Schedule = "matmul-streamed",
    below: Iterable[str] | None = None,
    blocks: Mapping[str, int] | None = None,
    search: bool = True,
    mask: AnyMask | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    **dims: int,
) -> OnMachine:
    """Count a schedule on a machine of levels of memories, whose first has its tiles.

    Args:
        schedule: its name, or the schedule itself.
        machine: a card, a file, or a `Machine`.
        dtype: the type of all words.
        product: the schedule of `matmul` for products in the lowest memory; in others it is `matmul-tiled`, as their
            products must have some depth for the memories below.
        below: names of tiles that live in the lowest memory, such as accumulators; found by default.
        blocks: sizes of blocks by name; others are found. Those of products are the largest for which the lowest memory
            has room, all the same in a memory, but no longer than what they cut.
        search: how what is not given is found. As tiles below those that must be there are tried, and all that the
            schedule computes; as blocks the largest of the first memory, and equal ones with each side of `SIDES`. From
            the best, one block at a time is halved or doubled as long as this helps. Of what fits, that with the least
            largest gap is counted; if several have it, that with the least second largest. Without a search no tile
            lives below, and blocks are the largest of the first memory.
        mask, heads, kv_heads, batch, separate: as for `pebblesim.count`; the mask is one for all heads.
        dims: the dimensions of the problem, such as n=4096, d=64.

    Returns:
        For each boundary the words, the least that is possible, and what the memory below it holds.

    >>> on_machine("matmul-tiled", machine="H100", m=4096, k=4096, n=4096).blocks
    {'b': 197, 'a_2': 197, 'b_2': 197}

    Raises:
        Infeasible: a memory is too small.
        UsageError: a name or size is not allowed, or the schedule cannot be nested.
    """
    place = machine_of(machine) if isinstance(machine, str) else machine
    among = Heads(heads, kv_heads, batch, separate)
    words = place.levels[0].words(dtype_of(dtype))
    run, by = Run.of(schedule, dims, M=words, mask=mask, heads=among), get(product)
    tiles, given = None if below is None else tuple(below), blocks or {}
    if search:
        return found(run, place, dtype_of(dtype), by, tiles, given)
    return count_nesting(Nesting.of(run, place, by, tiles or ()), dtype_of(dtype), given)


def found(
    run: Run,
    place: Machine,
    dtype: str,
    product: Schedule,
    below: tuple[str, ...] | None = None,
    given: Mapping[str, int] | None = None,
) -> OnMachine:
    """Return the nesting with the least largest gap of those that are tried: blocks, and tiles in the lowest memory.

    From the best of the blocks of `_blocks`, one block at a time is halved or doubled as long as this helps.

    Args:
        run, place, dtype, product: as for `Nesting` and `count_nesting`.
        below: the tiles in the lowest memory; None for those that must be there, and for all that are computed.
        given: blocks that are not tried in other sizes.

    Returns:
        The best that fits; if the given blocks and tiles let none fit, one that does not.

    Raises:
        UsageError: it cannot be nested, or a name or size is not allowed.
        Infeasible: a memory is too small.
    """
    check_mask(run)
    nestings, errors = list[Nesting](), list[UsageError | Infeasible]()
    for tiles in ((), _computed(run))[: len(place.levels)] if below is None else (below,):
        try:
            nestings.append(
                _nesting(run, place, product, tiles) if below is None else Nesting.of(run, place, product, tiles)
            )
        except UsageError as error:
            errors.append(error)
    fixed, tries = given or {}, _Tries(nestings, dtype, errors)
    tries.count(_blocks(run, fixed, errors) if nestings else [])
    if (best := tries.best) is None:
        if errors:
            raise errors[0]
        return min(tries.misfits, key=_gaps)
    (part,) = run.parts
    free, tried = [name for name in part.schedule.blocks if name not in fixed], set[tuple[int, ...]]()
    while tried.isdisjoint([at := tuple(best.blocks[name] for name in free)]):
        tried.add(at)
        steps = [(number, other) for number, side in enumerate(at) for other in (side // 2, 2 * side)]
        tries.count(
            [
                dict(zip(free, (*at[:number], other, *at[number + 1 :]), strict=True)) | dict(fixed)
                for number, other in steps
                if 1 <= other <= max(part.dims.values())
            ]
        )
        assert tries.best is not None
        best = tries.best
    return best


class _Tries:
    """Counts with several blocks, and the best of them; those that cannot become the best are not counted whole.

    Attributes:
        best: that with the least largest gap of those that fit, the first one of several; None if none fits.
        misfits: those that do not fit, as long as none does.
    """

    def __init__(self, nestings: list[Nesting], dtype: str, errors: list[UsageError | Infeasible]) -> None:
        self.nestings, self.dtype, self.errors = nestings, dtype, errors
        self.best: OnMachine | None = None
        self.worth: tuple[list[float], int] = ([], 0)  # of the best: its gaps, and its number among all tries
        self.misfits, self.seen, self.tries = list[OnMachine](), set[frozenset[tuple[str, int]]](), 0

    def count(self, tries: list[dict[str, int]]) -> None:
        """Count those that may become the best: the one whose gap can be the least is looked at first, and closer."""
        waiting: list[tuple[float, int, Iterator[float], Nesting, dict[str, int]]] = []
        for blocks in tries:
            if (key := frozenset(blocks.items())) not in self.seen:
                self.seen.add(key)
                for nesting in self.nestings:
                    self.tries += 1
                    waiting.append((0.0, self.tries, least_gaps(nesting, self.dtype, blocks), nesting, blocks))
        while waiting and (self.best is None or waiting[0][0] <= self.worth[0][0]):
            gap, number, gaps, nesting, blocks = heappop(waiting)
            try:
                if (further := next(gaps, None)) is not None:
                    heappush(waiting, (max(gap, further), number, gaps, nesting, blocks))
                    continue
                row = count_nesting(nesting, self.dtype, blocks)
            except (UsageError, Infeasible) as error:
                self.errors.append(error)
                continue
            worth = _gaps(row), number
            if not row.feasible:
                self.misfits.append(row)
            elif self.best is None or worth < self.worth:
                self.best, self.worth = row, worth


def _gaps(row: OnMachine) -> list[float]:
    """The gaps of the boundaries, the largest first."""
    return sorted((each.gap for each in row.boundaries), reverse=True)


def _blocks(run: Run, given: Mapping[str, int], errors: list[UsageError | Infeasible]) -> list[dict[str, int]]:
    """The blocks to try: those that fill the first memory, and equal ones; an error is put to the others."""
    (part,) = run.parts
    names = part.schedule.blocks
    own: Any = {name: whole(name, given[name]) for name in names if name in given}
    lengths = dict.fromkeys(min(side, max(part.dims.values())) for side in SIDES)
    sides = [dict.fromkeys(names, side) | dict(given) for side in lengths if len(own) < len(names)]
    try:  # a search for the blocks that a mask likes best takes long
        sides.insert(0, replace(part, mask=None, blocks=own or "fit").block_sizes | dict(given))
    except Infeasible as error:
        errors.append(error)
    return sides


def _computed(run: Run) -> tuple[str, ...]:
    """The tiles that begin as something other than words that are read."""
    (part,) = run.parts
    nodes = (node for phase in part.program.phases for node in ir.walk(phase.body))
    made = (ir.entering(node) for node in nodes if not isinstance(node, ir.Read))
    return tuple(dict.fromkeys(tile.name for tile in made if tile is not None and tile.name))


def _nesting(run: Run, place: Machine, product: Schedule, below: tuple[str, ...]) -> Nesting:
    """Nest a schedule with these tiles in the lowest memory, and those that must be there."""
    while True:
        try:
            return Nesting.of(run, place, product, below)
        except MustBeBelow as error:
            if set(error.tiles) <= set(below) or len(place.levels) == 1:
                raise
            below = (*below, *(name for name in error.tiles if name not in below))
