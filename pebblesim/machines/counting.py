"""Count a schedule on a machine: words over each boundary, what each memory holds, the least that is possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pebblesim.analysis.count import peak_words, traffic
from pebblesim.analysis.peak import peak_red
from pebblesim.core.bisection import last_within
from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.core.results import Result
from pebblesim.core.sizes import bytes_of, whole
from pebblesim.core.tables import Sheet
from pebblesim.counting.heads import Heads
from pebblesim.counting.run import Run
from pebblesim.language import program as ir
from pebblesim.language.masks import HeadMasks, Mask
from pebblesim.language.registry import Schedule, get
from pebblesim.lower_bounds.bounds import LowerBound
from pebblesim.machines.dealing import dealt
from pebblesim.machines.least import least
from pebblesim.machines.machine import Level, Machine
from pebblesim.machines.nesting import nested
from pebblesim.machines.routes import Nested

FIRST = ("boundary", "gap", "seconds", "down", "up", "joules", "most", "least", "holds", "capacity")
"""The columns of a count that matter most, in that order."""


@dataclass(frozen=True)
class Boundary:
    """The edges between two levels of a machine: one on a path.

    Attributes:
        level: the memories below them.
        number: how many these are.
        capacity, holds: words that such a memory has, and the most that it needs: the room of all tiles in it, or for
            the lowest, its peak in the game; under a mask an upper bound of it.
        down, up: words over all of the edges, for all heads and sequences.
        most: words over the edge that moves the most.
        bound: the largest lower bound on `most`; on a path, with as many red pebbles as this memory and those below it
            have.
        width: bytes of a word.
    """

    level: Level
    number: int
    capacity: int
    holds: int
    down: int
    up: int
    most: int
    bound: LowerBound
    width: int

    @property
    def words(self) -> int:
        """Words over all of the edges, in both directions."""
        return self.down + self.up

    @property
    def gap(self) -> float:
        """Words over the edge that moves the most, divided by the bound."""
        return self.most / self.bound.value

    @property
    def seconds(self) -> float | None:
        """The least time, if the bandwidth is known: that of the edge that moves the most."""
        return None if self.level.bandwidth is None else self.most * self.width / self.level.bandwidth

    @property
    def joules(self) -> float | None:
        """The energy, if that of a byte is known."""
        return None if self.level.energy is None else self.words * self.width * self.level.energy

    def to_dict(self) -> dict[str, Any]:
        """Return the edge as plain data."""
        names = "number", "capacity", "holds", "down", "up", "words", "most", "gap", "seconds", "joules"
        values = {name: getattr(self, name) for name in names}
        return {"memory": self.level.name, **values, "bound": self.bound.to_dict(), "source": self.level.source}


@dataclass(frozen=True)
class OnMachine(Result):
    """A schedule on a machine, with its products computed as schedules of `matmul` in the memories below the first.

    Attributes:
        schedule, product, below: the schedule, that of products, and the tiles that live in the lowest memory.
        machine, dtype: where, and the type of a word.
        dims, blocks: sizes of one head, or of the heads that share keys and values. Blocks of the product's schedule
            have the number of their memory, such as `b_2`; a `share` is what one of several memories gets of a range.
        mask, heads: the allowed pairs, and how many heads and sequences there are.
        boundaries: from the root down.
        nest: the nested program.
    """

    part = "boundaries"

    schedule: str
    product: str
    below: tuple[str, ...]
    machine: Machine
    dtype: str
    dims: Mapping[str, int]
    blocks: Mapping[str, int]
    mask: Mask | None
    heads: Heads
    boundaries: tuple[Boundary, ...]
    nest: Nested = field(repr=False)

    @property
    def feasible(self) -> bool:
        """Whether every memory has the words that it needs."""
        return all(each.holds <= each.capacity for each in self.boundaries)

    @property
    def options(self) -> str:
        """The options of `pebblesim count` that give these tiles and blocks."""
        given = [] if len(self.boundaries) == 1 else [f"--below {','.join(self.below) or repr('')}"]
        sides = {name: side for name, side in self.blocks.items() if name not in self.nest.shares}
        return " ".join([*given, *(f"--block {name}={side}" for name, side in sides.items())])

    @property
    def overflows(self) -> list[str]:
        """A sentence for each memory that has fewer words than it needs."""
        return [
            f"{each.level.name} holds {each.capacity:,} words, and {self.schedule} needs {each.holds:,} there with "
            "these blocks and tiles; take smaller blocks, or let fewer tiles live there."
            for each in self.boundaries
            if each.holds > each.capacity
        ]

    @property
    def place(self) -> str:
        """The machine, the type of words, and the mask and heads if there are any."""
        heads = self.heads if self.heads.is_given else None
        return ", ".join(
            [self.machine.name, self.dtype, *(str(each) for each in (self.mask, heads) if each is not None)]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim count --machine FILE --json`."""
        head = {"schedule": self.schedule, "product": self.product, "below": list(self.below)}
        head |= {"machine": self.machine.name, "root": self.machine.root, "dtype": self.dtype}
        sizes = {**self.dims, "blocks": dict(self.blocks), "feasible": self.feasible}
        sizes |= {} if self.mask is None else {"mask": str(self.mask)}
        sizes |= self.heads.to_dict() if self.heads.is_given else {}
        return head | sizes | {"boundaries": [each.to_dict() for each in self.boundaries]}

    def parts(self) -> list[str | Sheet]:
        """Return the parts to print: what was counted, and a row for each boundary."""
        sizes = ", ".join(f"{name} = {size:,}" for name, size in (*self.dims.items(), *self.blocks.items()))
        above = [self.machine.root, *(each.level.name for each in self.boundaries)]
        several = any(each.number > 1 for each in self.boundaries)
        rows = [
            (
                f"{name} – {f'{each.number:,} x ' if each.number > 1 else ''}{each.level.name}",
                each.capacity,
                each.holds if each.holds <= each.capacity else f"{each.holds:,}, too many",
                each.down,
                each.up,
                each.most if several else None,
                f"{each.bound.value:,} ({each.bound.name})",
                f"{each.gap:.3f}",
                _rounded(each.seconds),
                _rounded(each.joules),
            )
            for name, each in zip(above, self.boundaries, strict=False)
        ]
        columns = ("boundary", "capacity", "holds", "down", "up", "most", "least", "gap", "seconds", "joules")
        some = [n for n in range(10) if any(row[n] is not None for row in rows)]
        table = Sheet([columns[n] for n in some], [[row[n] for n in some] for row in rows], FIRST, left=1)
        inside = f", {', '.join(self.below)} in {self.boundaries[-1].level.name}" if self.below else ""
        bound = "most and least: of one memory" if several else "least: for all memories below the boundary together"
        return [
            f"{self.schedule} on {self.place}: {sizes}",
            f"products by {self.product}{inside}; in words; {bound}",
            table,
            *self.overflows,
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


@dataclass(frozen=True)
class Nesting:
    """A schedule nested into the levels of a machine, for any sizes of its blocks.

    Attributes:
        run: what is computed; its M is the capacity of the first memory.
        machine, product, below: as for `pebblesim.on_machine`.
        levels: for each level, the program down to there, and the schedule of products in it; None for the first.
    """

    run: Run
    machine: Machine
    product: Schedule
    below: tuple[str, ...]
    levels: tuple[tuple[Nested, Schedule | None], ...]

    @classmethod
    def of(cls, run: Run, machine: Machine, product: Schedule, below: tuple[str, ...]) -> Nesting:
        """Nest the program of a run; errors as for `pebblesim.on_machine`."""
        several = [level.count > 1 for level in machine.levels]
        check_mask(run)
        if run.mask is not None and max(machine.numbers) > 1:
            raise UsageError(
                f"{machine.name} has several memories below another, which get equal shares of the tiles; under a mask "
                "equal shares are not equal work, and only the totals would be right: leave out the mask."
            )
        if below and len(several) == 1:
            raise UsageError(
                f"{machine.name} has one memory below its root; tiles live below only where there are two."
            )
        (part,) = run.parts
        outer = dealt(part.program) if several[0] else Nested(part.program)
        levels: list[tuple[Nested, Schedule | None]] = [(outer, None)]
        for number, of_several in enumerate(several[1:], 2):
            last = number == len(several)
            by = product if last else get("matmul-tiled")
            levels.append((nested(levels[-1][0], by, below, of_several), by))
        return cls(run, machine, product, below, tuple(levels))

    @property
    def memories(self) -> list[int]:
        """For each level, how many memories are below one of the level above."""
        return [level.count for level in self.machine.levels]


def check_mask(run: Run) -> None:
    """Refuse a mask for each head."""
    if isinstance(run.mask, HeadMasks):
        raise UsageError(f"mask {run.mask.name} has a mask for each head; a machine takes one for all heads.")


def count_nesting(nesting: Nesting, dtype: str, blocks: Mapping[str, int]) -> OnMachine:
    """Count a nested schedule with these blocks; arguments, result and errors as for `pebblesim.on_machine`."""
    (run,), place, (nest, _) = nesting.run.parts, nesting.machine, nesting.levels[-1]
    sizes = _sizes(nesting, blocks, [level.words(dtype) for level in place.levels])
    return OnMachine(
        run.schedule.name,
        nesting.product.name,
        nesting.below,
        place,
        dtype,
        run.dims,
        {name: size for name, size in sizes.items() if name not in run.dims},
        run.only_mask,
        nesting.run.heads,
        tuple(_boundary(nesting, dtype, sizes, k) for k in range(1, nest.lowest + 1)),
        nest,
    )


def least_gaps(nesting: Nesting, dtype: str, blocks: Mapping[str, int]) -> Iterator[float]:
    """Yield for each boundary what its gap is at least: that of the largest blocks of products, room or not.

    Smaller ones bring the same words more often; errors as for `pebblesim.on_machine`.
    """
    sizes = _sizes(nesting, blocks, None)
    for k in range(1, len(nesting.levels) + 1):
        yield _most(nesting, sizes, k) / _least(nesting, dtype, k).value


def _sizes(nesting: Nesting, blocks: Mapping[str, int], words: Sequence[int] | None) -> dict[str, int]:
    """Return all sizes: given blocks, and others that fill the memories of so many words; None for no limit."""
    (run,), place, given = nesting.run.parts, nesting.machine, dict(blocks)
    own = {name: whole(name, given.pop(name)) for name in run.schedule.blocks if name in given}
    rule: Any = own or "fit"
    sizes: dict[str, int] = {**run.dims, **replace(run, blocks=rule).block_sizes}
    for number, (at, by) in enumerate(nesting.levels, 1):
        sizes = at.sizes(sizes, nesting.memories)
        if by is not None:
            names = [f"{block}_{number}" for block in by.blocks]
            fixed = {name: whole(name, given.pop(name)) for name in names if name in given}
            most = {name: max(_lengths(at, name, sizes)) for name in names} | fixed
            name = place.levels[number - 1].name
            sizes |= most if words is None else _fitting(at, most, fixed, sizes, words[number - 1], name)
    if given:
        raise UnknownName(f"block of {run.schedule.name} on {place.name}", next(iter(given)), [*sizes])
    return sizes


def _fitting(
    nest: Nested, most: Mapping[str, int], fixed: Mapping[str, int], sizes: Mapping[str, int], words: int, name: str
) -> dict[str, int]:
    """Return the largest equal blocks of products for which the lowest memory has room, and those that were given.

    None is longer than the longest range that it cuts, `most`.
    """

    def blocks(side: int) -> dict[str, int]:
        return {**{name: min(side, length) for name, length in most.items()}, **fixed}

    def needed(side: int) -> int:
        return peak_red(nest.computed_by_one, {**sizes, **blocks(side)})

    side = last_within(needed, words, 1, max(most.values()))
    if side < 1 and len(fixed) < len(most):
        least = needed(1)
        raise Infeasible(
            f"{name} holds {words:,} words, and {nest.program.name} needs {least:,} there with the smallest tiles of "
            "products; take smaller blocks, or let fewer tiles live there.",
            least,
        )
    return blocks(max(side, 1))


def _lengths(nest: Nested, block: str, sizes: Mapping[str, int]) -> Iterator[int]:
    """The most indices of each range that is cut into tiles of this block."""
    yield 1
    for phase in nest.program.phases:
        for node in ir.walk(phase.body):
            if isinstance(node, ir.Loop) and node.range.block == block and node.range.parent is not None:
                around = [rng.name if rng.parent is None else rng.block for rng in node.range.parent.around]
                yield min(sizes[size] if isinstance(size, str) else size for size in around)


def _least(nesting: Nesting, dtype: str, k: int) -> LowerBound:
    (run,), place = nesting.run.parts, nesting.machine
    number, words = place.numbers[k - 1], place.beneath(dtype)[k - 1]
    return least(run.schedule.problem, tuple(run.dims.items()), nesting.run.times, run.only_mask, number, words)


def _most(nesting: Nesting, sizes: Mapping[str, int], k: int) -> int:
    """The words over the edge above level k that moves the most, for all heads."""
    (run,), (nest, _) = nesting.run.parts, nesting.levels[-1]
    return traffic(nest.busiest(k), sizes, run.only_mask).io * nesting.run.times


def _boundary(nesting: Nesting, dtype: str, sizes: Mapping[str, int], k: int) -> Boundary:
    (run,), place, times, (nest, _) = nesting.run.parts, nesting.machine, nesting.run.times, nesting.levels[-1]
    level, mask, moved = place.levels[k - 1], run.only_mask, traffic(nest.boundary(k), sizes, run.only_mask)
    return Boundary(
        level,
        place.numbers[k - 1],
        level.words(dtype),
        peak_red(nest.computed_by_one, sizes) if k == nest.lowest else peak_words(nest.held(k), sizes, mask),
        moved.reads * times,
        moved.writes * times,
        _most(nesting, sizes, k) if nest.dealt else moved.io * times,
        _least(nesting, dtype, k),
        bytes_of(dtype),
    )
