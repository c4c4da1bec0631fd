"""Count a schedule on a machine: words over each boundary, what each memory holds, the least that is possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pebblesim.analysis import blocks as block_rules
from pebblesim.analysis.count import count as count_program, peak_words
from pebblesim.analysis.peak import peak_red
from pebblesim.core.bisection import last_that
from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.core.results import Result
from pebblesim.core.sizes import bytes_of, dtype_of, whole
from pebblesim.core.tables import Sheet
from pebblesim.counting.arguments import problem_dims
from pebblesim.language.registry import Schedule, get
from pebblesim.lower_bounds.bounds import LowerBound, best
from pebblesim.machines.machine import Level, Machine
from pebblesim.machines.named import machine as machine_of
from pebblesim.machines.nesting import nested
from pebblesim.machines.routes import Nested


@dataclass(frozen=True)
class Boundary:
    """An edge of the path.

    Attributes:
        level: the memory below it.
        capacity, holds: words that this memory has, and the most that it needs: the room of all tiles in it, or for the
            lowest, its peak in the game.
        down, up: words over the edge.
        bound: the largest lower bound on their sum, with as many red pebbles as this memory and those below it have.
        width: bytes of a word.
    """

    level: Level
    capacity: int
    holds: int
    down: int
    up: int
    bound: LowerBound
    width: int

    @property
    def words(self) -> int:
        """Words over the edge in both directions."""
        return self.down + self.up

    @property
    def gap(self) -> float:
        """Words divided by the bound."""
        return self.words / self.bound.value

    @property
    def seconds(self) -> float | None:
        """The least time, if the bandwidth is known."""
        return None if self.level.bandwidth is None else self.words * self.width / self.level.bandwidth

    @property
    def joules(self) -> float | None:
        """The energy, if that of a byte is known."""
        return None if self.level.energy is None else self.words * self.width * self.level.energy

    def to_dict(self) -> dict[str, Any]:
        """Return the edge as plain data."""
        names = "capacity", "holds", "down", "up", "words", "gap", "seconds", "joules"
        values = {name: getattr(self, name) for name in names}
        return {"memory": self.level.name, **values, "bound": self.bound.to_dict(), "source": self.level.source}


@dataclass(frozen=True)
class OnMachine(Result):
    """A schedule on a machine, with its products computed as schedules of `matmul` in the memories below the first.

    Attributes:
        schedule, product, below: the schedule, that of products, and the tiles that live in the lowest memory.
        machine, dtype: where, and the type of a word.
        dims, blocks: sizes. Blocks of the product's schedule have the number of their memory, such as `b_2`.
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
    boundaries: tuple[Boundary, ...]
    nest: Nested = field(repr=False)

    @property
    def feasible(self) -> bool:
        """Whether every memory has the words that it needs."""
        return all(each.holds <= each.capacity for each in self.boundaries)

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim count --machine FILE --json`."""
        head = {"schedule": self.schedule, "product": self.product, "below": list(self.below)}
        head |= {"machine": self.machine.name, "root": self.machine.root, "dtype": self.dtype}
        sizes = {**self.dims, "blocks": dict(self.blocks), "feasible": self.feasible}
        return head | sizes | {"boundaries": [each.to_dict() for each in self.boundaries]}

    def parts(self) -> list[str | Sheet]:
        """Return the parts to print: what was counted, and a row for each boundary."""
        sizes = ", ".join(f"{name} = {size:,}" for name, size in (*self.dims.items(), *self.blocks.items()))
        above = [self.machine.root, *(each.level.name for each in self.boundaries)]
        rows = [
            (
                f"{name} – {each.level.name}",
                each.capacity,
                each.holds if each.holds <= each.capacity else f"{each.holds:,}, too many",
                each.down,
                each.up,
                f"{each.bound.value:,} ({each.bound.name})",
                f"{each.gap:.3f}",
                _rounded(each.seconds),
                _rounded(each.joules),
            )
            for name, each in zip(above, self.boundaries, strict=False)
        ]
        columns = ("boundary", "capacity", "holds", "down", "up", "least", "gap", "seconds", "joules")
        some = [*range(7), *(n for n in (7, 8) if any(row[n] for row in rows))]
        table = Sheet([columns[n] for n in some], [[row[n] for n in some] for row in rows], columns[:7], left=1)
        inside = f", {', '.join(self.below)} in {self.boundaries[-1].level.name}" if self.below else ""
        return [
            f"{self.schedule} on {self.machine.name}, {self.dtype}: {sizes}",
            f"products by {self.product}{inside}; in words; least: for all memories below the boundary together",
            table,
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def on_machine(
    schedule: str | Schedule,
    *,
    machine: str | Machine,
    dtype: str = "float32",
    product: str | Schedule = "matmul-streamed",
    below: Iterable[str] = (),
    blocks: Mapping[str, int] | None = None,
    **dims: int,
) -> OnMachine:
    """Count a schedule on a path of memories, whose first has its tiles.

    Args:
        schedule: its name, or the schedule itself.
        machine: a card, a file, or a `Machine`.
        dtype: the type of all words.
        product: the schedule of `matmul` for products in the lowest memory; in others it is `matmul-tiled`, as their
            products must have some depth for the memories below.
        below: names of tiles that live in the lowest memory, such as accumulators.
        blocks: sizes of blocks by name. Others are the largest for which each memory has room; those of products are
            all the same in a memory.
        dims: the dimensions of the problem, such as n=4096, d=64.

    Returns:
        For each boundary the words, the least that is possible, and what the memory below it holds.

    >>> on_machine("matmul-tiled", machine="H100", m=4096, k=4096, n=4096).blocks
    {'b': 139, 'a_2': 4096, 'b_2': 4096}

    Raises:
        Infeasible: a memory is too small.
        UsageError: a name or size is not allowed, or the schedule cannot be nested.
    """
    place = machine_of(machine) if isinstance(machine, str) else machine
    dtype = dtype_of(dtype)
    algorithm, inner = get(schedule), get(product)
    sizes = problem_dims(algorithm.problem, dims)
    algorithm = algorithm.in_dims(sizes)
    tree = place.tree(dtype)
    capacities, red = [memory.capacity for memory in tree.memories], tree.below
    given = dict(blocks or {})
    own = {name: given.pop(name) for name in algorithm.blocks if name in given}
    rule: Any = {name: whole(name, size) for name, size in own.items()} or "fit"
    chosen = block_rules.choose(algorithm, sizes, capacities[0], rule, "chain", None)
    kept, nest, all_sizes = tuple(below), Nested(algorithm.program), {**sizes, **chosen}
    if kept and len(capacities) == 1:
        raise UsageError(f"{place.name} has one memory below its root; tiles live below only where there are two.")
    for number, (level, capacity) in enumerate(zip(place.levels[1:], capacities[1:], strict=True), 2):
        last = number == len(capacities)
        by = inner if last else get("matmul-tiled")
        nest = nested(nest, by, kept if last else ())
        names = [f"{block}_{number}" for block in by.blocks]
        fixed = {name: whole(name, given.pop(name)) for name in names if name in given}
        all_sizes |= _sides(nest, names, all_sizes, fixed, capacity, f"{level.name} holds", max(sizes.values()))
    if given:
        raise UnknownName(f"block of {algorithm.name} on {place.name}", next(iter(given)), [*all_sizes])
    return OnMachine(
        algorithm.name,
        inner.name,
        kept,
        place,
        dtype,
        sizes,
        {name: size for name, size in all_sizes.items() if name not in sizes},
        tuple(_boundaries(algorithm, nest, place, dtype, sizes, all_sizes, red)),
        nest,
    )


def _sides(
    nest: Nested, names: list[str], sizes: Mapping[str, int], fixed: Mapping[str, int], words: int, who: str, most: int
) -> dict[str, int]:
    """Return the largest equal blocks of products for which the lowest memory has room, and those that were given."""

    def blocks(side: int) -> dict[str, int]:
        return {**dict.fromkeys(names, side), **fixed}

    def needed(side: int) -> int:
        return peak_red(nest.computed, {**sizes, **blocks(side)})

    if (least := needed(1)) > words and len(fixed) < len(names):
        raise Infeasible(
            f"{who} {words:,} words, and {nest.program.name} needs {least:,} there with the smallest tiles of "
            "products; take smaller blocks, or let fewer tiles live there.",
            least,
        )
    return blocks(last_that(lambda side: needed(side) <= words, 1, most))


def _boundaries(
    algorithm: Schedule,
    nest: Nested,
    place: Machine,
    dtype: str,
    dims: Mapping[str, int],
    sizes: Mapping[str, int],
    red: Iterable[int],
) -> Iterable[Boundary]:
    for number, (level, M) in enumerate(zip(place.levels, red, strict=True), 1):
        moved = count_program(nest.boundary(number), sizes).total
        lowest = number == len(place.levels)
        holds = peak_red(nest.computed, sizes) if lowest else peak_words(nest.held(number), sizes)
        bound = best(algorithm.problem, dims, M)
        yield Boundary(level, level.words(dtype), holds, moved.reads, moved.writes, bound, bytes_of(dtype))
