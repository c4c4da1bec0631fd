"""`path`: the words on the critical path, if all independent iterations run at the same time, each on a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pebblesim.analysis.totals import LoopContext
from pebblesim.language import program as ir
from pebblesim.language.loops import Times, walk
from pebblesim.launches.launches import Launch, blocks, launches


class Stage(NamedTuple):
    """A phase, or a part of it, whose iterations do not wait for each other and run at the same time.

    Attributes:
        name: the phase, and a number if it has several stages.
        workers: number of workers, one for each independent iteration.
        words: reads and writes of the worker that moves most.
    """

    name: str
    workers: int
    words: int


def path(program: ir.Program, sizes: ir.Sizes) -> tuple[Stage, ...]:
    """Return the stages of a program, which run one after the other; their words add up to those of the critical path.

    Args:
        program: a traced schedule, without a mask.
        sizes: the value of each dimension and block, by name.
    """
    return tuple(
        Stage(launch.name, blocks(launch, sizes, 1), _most_words(launch, sizes)) for launch in launches(program)
    )


def _most_words(launch: Launch, sizes: ir.Sizes) -> int:
    at = _FirstBlock(sizes, launch.grid)
    moves = ((node, times) for node, times in walk(launch.body, at) if isinstance(node, ir.Read | ir.Write | ir.Init))
    return sum(at.words(ir.moved_part(node)) * int(times) for node, times in moves)


class _FirstBlock(LoopContext):
    """The first iteration of the loops that are a grid of workers, which no other exceeds, and all of the others."""

    def __init__(self, sizes: ir.Sizes, grid: tuple[ir.Loop, ...]) -> None:
        super().__init__(sizes, None)
        self.workers = grid

    def iterations(self, loop: ir.Loop) -> Iterator[Times]:
        for number, times in enumerate(super().iterations(loop)):
            if loop not in self.workers:
                yield times
            elif number == 0:
                yield 1
