"""Machines as trees of memories, with capacities, bandwidths, energies and peak rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.results import Result
from pebblesim.core.sizes import bytes_of
from pebblesim.game.trees import Memory, Tree, numbers_above


@dataclass(frozen=True)
class Level(Memory):
    """A memory of a machine; its capacity is in bytes.

    Attributes:
        bandwidth: bytes per second over the edge above it, or None.
        energy: joules for a byte over that edge, or None.
        source: where these figures are from.
        count: how many of them there are below each memory that is above them; bandwidth is that of each edge.
    """

    bandwidth: float | None = None
    energy: float | None = None
    source: str = ""
    count: int = 1

    def words(self, dtype: str) -> int:
        """Return how many words of a type it holds.

        Raises:
            UsageError: not even one.
        """
        held = self.capacity // bytes_of(dtype)
        if held < 1:
            raise UsageError(f"{self.name} holds {self.capacity} bytes, less than one word of type {dtype}.")
        return held


@dataclass(frozen=True)
class Machine(Result):
    """A tree of memories, whose leaves compute.

    Attributes:
        name: its name.
        root: the name of the root, which has no limit.
        levels: the other memories; each lies below the one before it, or below the one that its `above` numbers. With
            a `count` it stands for so many alike.
        peak: operations per second by type of a word; a multiplication and an addition are two.
        source: where these are from.
    """

    part = "memories"

    name: str
    root: str
    levels: tuple[Level, ...]
    peak: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def tree(self, dtype: str) -> Tree:
        """Return the tree with capacities in words of a type and a node for each memory, for the game.

        Raises:
            UsageError: a memory holds no word, it is no tree, or there are too many memories for the game.
        """
        memories, nodes = list[Memory](), [[0]]  # for each level, the numbers of its memories
        for level, above in zip(self.levels, numbers_above(self.levels), strict=True):
            first, several = len(memories) + 1, len(nodes[above]) * level.count > 1
            for node in [node for node in nodes[above] for _ in range(level.count)]:
                name = f"{level.name} {len(memories) + 2 - first}" if several else level.name
                memories.append(Memory(name, level.words(dtype), node))
            nodes.append([*range(first, len(memories) + 1)])
        return Tree(self.root, tuple(memories))

    @property
    def numbers(self) -> list[int]:
        """For each level, how many memories it has in all.

        Raises:
            UsageError: the levels are not below each other.
        """
        above = numbers_above(self.levels)
        if above != [*range(len(self.levels))]:
            raise UsageError(
                f"{self.name} has several memories below one that are levels of their own; schedules and bounds take "
                "one level below another, where count = 2 stands for two memories that are alike."
            )
        return [prod(level.count for level in self.levels[: k + 1]) for k in range(len(self.levels))]

    def beneath(self, dtype: str) -> list[int]:
        """For each level, the words that one of its memories and those beneath it hold; errors as for `numbers`."""
        numbers, words = self.numbers, [level.words(dtype) for level in self.levels]
        levels = range(len(words))
        return [sum(numbers[j] // numbers[k] * words[j] for j in levels[k:]) for k in levels]

    def peak_of(self, dtype: str) -> float:
        """Return the operations per second on words of a type.

        Raises:
            UsageError: they are not known.
        """
        if dtype not in self.peak:
            known = f"it is known for {', '.join(self.peak)}" if self.peak else "a file says it under [peak]"
            raise UsageError(f"the peak rate of {self.name} for {dtype} is not known; {known}.")
        return self.peak[dtype]

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim machine --json`."""
        names = (self.root, *(each.name for each in self.levels))
        memories = [
            {
                "name": each.name,
                "above": names[number],
                "capacity": each.capacity,
                "bandwidth": each.bandwidth,
                "energy": each.energy,
                "source": each.source,
                "count": each.count,
            }
            for each, number in zip(self.levels, numbers_above(self.levels), strict=True)
        ]
        return {"name": self.name, "root": self.root, "peak": dict(self.peak), "memories": memories}

    def drawn(self) -> list[str]:
        """Return a picture of the tree in lines of text."""
        above, lines = numbers_above(self.levels), [self.root]

        def below(node: int, indent: str) -> None:
            inner = [number for number, up in enumerate(above, 1) if up == node]
            for number in inner:
                level, last = self.levels[number - 1], number == inner[-1]
                lines.append(f"{indent}│ {_edge(level)}")
                several = f"{level.count:,} x " if level.count > 1 else ""
                lines.append(f"{indent}{'└' if last else '├'} {several}{level.name}: {level.capacity:,} bytes")
                below(number, indent + ("  " if last else "│ "))

        below(0, "")
        return lines

    def parts(self) -> list[str]:
        """Return the lines to print: the tree, the peak rates, and the sources."""
        rates = [f"peak, {dtype}: {_rate(rate)}FLOP/s" for dtype, rate in self.peak.items()]
        sources = [f"{each.name}: {each.source or 'no source given'}" for each in self.levels]
        sources += [f"peak: {self.source or 'no source given'}"] if rates else []
        return [self.name, "", *self.drawn(), "", *(rates or ["peak: not known"]), "", *sources]

    def __str__(self) -> str:
        return "\n".join(self.parts())


def _edge(level: Level) -> str:
    rate = "bandwidth not known" if level.bandwidth is None else f"{_rate(level.bandwidth)}B/s"
    return f"{rate}, {'energy not known' if level.energy is None else f'{level.energy * 1e12:.3g} pJ/B'}"


def _rate(value: float) -> str:
    for unit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= unit:
            return f"{value / unit:,.4g} {prefix}"
    return f"{value:,.4g} "
