"""Play a schedule as a pebble game under the referee, and check what the game says against the count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pebblesim.jobs.arguments import AnyMask, BlockRule, chosen, under
from pebblesim.language import masks
from pebblesim.language.masks import Mask
from pebblesim.language.registry import Schedule
from pebblesim.readings.count import count as count_program

if TYPE_CHECKING:
    from pebblesim.game.referee import Game
    from pebblesim.graphs import Plan
    from pebblesim.graphs.cdag import Cdag
    from pebblesim.language.program import Program


@dataclass(frozen=True)
class Match:
    """A schedule and the graph it is played on: all there is before the first move.

    Attributes:
        schedule, dims, M, blocks, summation, mask: what is to be played, all checked.
        program: the schedule's, under the mask if there is one.
        allowed: the mask pair by pair; None for no mask.
    """

    schedule: Schedule
    dims: Mapping[str, int]
    M: int
    blocks: Mapping[str, int]
    summation: str
    mask: Mask | None
    program: Program
    allowed: Any

    @property
    def sizes(self) -> dict[str, int]:
        """Dimensions and blocks by name."""
        return {**self.dims, **self.blocks}

    @property
    def plan(self) -> Plan:
        """The sizes of the graph, before it is built."""
        from pebblesim import graphs

        return graphs.plan(self.schedule.problem.name, **self._graph)

    @cached_property
    def graph(self) -> Cdag:
        """The graph; built when it is first asked for.

        Raises:
            UsageError: it does not fit into this machine's memory.
        """
        from pebblesim import graphs

        return graphs.build(self.schedule.problem.name, **self._graph)

    @property
    def _graph(self) -> dict[str, Any]:
        options = self.schedule.graph_options(self.blocks)
        return {"summation": self.summation, "mask": self.allowed, **self.dims, **options}


def match(
    schedule: str | Schedule,
    *,
    M: int,
    summation: str = "chain",
    blocks: BlockRule = "fit",
    mask: AnyMask | None = None,
    **dims: int,
) -> Match:
    """Set up a game; arguments and errors as for `play`."""
    seen = masks.of(mask)
    algorithm, sizes, M, sides = chosen(schedule, dims, M, blocks, summation, seen)
    return Match(algorithm, sizes, M, sides, summation, seen, *under(seen, algorithm, sizes))


@dataclass(frozen=True)
class Played:
    """A game that a schedule played, and what else was checked on the way.

    Attributes:
        schedule, dims, blocks, summation, mask: what was played.
        game: the referee's outcome.
        predicted: what `count` says: "io" and "peak_red".
        values_match: whether the graph, evaluated on random inputs, gives the reference's outputs.
    """

    schedule: str
    dims: Mapping[str, int]
    blocks: Mapping[str, int]
    summation: str
    game: Game
    predicted: Mapping[str, int]
    values_match: bool
    mask: Mask | None = None

    @property
    def io(self) -> int:
        """Reads and writes of the game, in words."""
        return self.game.io

    @property
    def passed(self) -> bool:
        """Whether the game was legal, complete and as predicted, on a graph with the right values."""
        as_predicted = self.predicted == {"io": self.game.io, "peak_red": self.game.peak_red}
        return self.game.complete and as_predicted and self.values_match

    def to_dict(self) -> dict[str, Any]:
        """As printed by `pebblesim play --json`."""
        head = {"schedule": self.schedule, **self.dims, "blocks": dict(self.blocks), "summation": self.summation}
        head |= {} if self.mask is None else {"mask": str(self.mask)}
        return head | self.game.to_dict() | {"predicted": dict(self.predicted), "values_match": self.values_match}

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in (*self.dims.items(), *self.blocks.items()))
        lines = {
            "schedule": f"{self.schedule}, {sizes}, summation {self.summation}"
            + ("" if self.mask is None else f", mask {self.mask}"),
            "predicted": f"{self.predicted['io']:,} words of I/O, peak red {self.predicted['peak_red']:,}",
            "values": "the graph's outputs " + ("equal" if self.values_match else "DIFFER from") + " the reference",
        }
        head, *checks = (f"{label:<10}{value}" for label, value in lines.items())
        return "\n".join([head, str(self.game), *(checks if self.game.complete else checks[:1])])


def play(
    schedule: str | Schedule,
    *,
    M: int,
    rules: str = "hong-kung",
    summation: str = "chain",
    blocks: BlockRule = "fit",
    save: str | None = None,
    strict: bool = True,
    progress: Callable[[float], None] | None = None,
    mask: AnyMask | None = None,
    **dims: int,
) -> Played:
    """Play a schedule move by move on the graph of its problem, under a referee.

    Args:
        schedule, M, blocks, mask, dims: as for `count`; a masked game is played on chains.
        rules: "hong-kung", "replace" or "no-recompute".
        summation: shape of the graph's summation trees: "chain", "balanced" or "blocked:b".
        save: file to keep the moves in, .npy (packed) or .txt (for people).
        strict: raise at an illegal move; if False, return the game up to it.
        progress: called now and then with the fraction of the I/O that is done.

    Raises:
        IllegalMove: the rules do not allow a move; the message tells the whole story.
        Infeasible, UsageError: as for `count`, or the graph does not fit into this machine's memory.
    """
    from contextlib import nullcontext

    from pebblesim.game.moves import saving
    from pebblesim.game.referee import IllegalMove, Referee
    from pebblesim.readings.pebbles import moves

    board = match(schedule, M=M, summation=summation, blocks=blocks, mask=mask, **dims)
    predicted = _predicted(board.program, board.sizes, summation, board.mask)
    cdag = board.graph
    game = Referee(cdag, board.M, rules)
    stream = moves(board.program, board.sizes, cdag.families, write_takes_red=game.write_takes_red, mask=board.mask)
    with saving(save, stream, cdag.describe) if save else nullcontext(stream) as watched:
        try:  # inside: the moves of an illegal game are worth keeping, too
            for chunk in watched:
                game.play(chunk)
                if progress:
                    progress((game.reads + game.writes) / predicted["io"])
        except IllegalMove:
            if strict:
                raise
    return Played(
        schedule=board.schedule.name,
        dims=board.dims,
        blocks=board.blocks,
        summation=summation,
        game=game.finish(),
        predicted=predicted,
        values_match=_values_match(board.schedule, board.dims, cdag, board.allowed),
        mask=board.mask,
    )


def _predicted(program: Program, sizes: Mapping[str, int], summation: str, mask: Mask | None) -> dict[str, int]:
    """What the game will be like: "io" and "peak_red"."""
    counted = count_program(program, sizes, summation, mask)
    if mask is None:
        return {"io": counted.total.io, "peak_red": counted.peak_red}
    from pebblesim.readings.masked_peak import masked_peak_red

    return {"io": counted.total.io, "peak_red": masked_peak_red(program, sizes, mask)}


def _values_match(algorithm: Schedule, sizes: Mapping[str, int], cdag: Cdag, allowed: Any) -> bool:
    """Whether the graph computes the problem's outputs from random inputs, to 1e-10 of the largest entry."""
    import numpy as np

    inputs = algorithm.problem.random_inputs(sizes, kept=algorithm.kept, allowed=allowed)
    reference, outputs = algorithm.problem.reference(inputs, allowed), cdag.evaluate(inputs)

    def close(name: str) -> bool:
        expected = reference[name]
        largest = float(np.max(np.abs(expected), where=np.isfinite(expected), initial=1.0))
        return np.allclose(outputs[name], expected, rtol=0, atol=1e-10 * largest)

    return all(map(close, algorithm.program.outputs))
