"""Play a schedule as a pebble game under the referee, and compare the game with the count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pebblesim.analysis.count import count as count_program
from pebblesim.analysis.totals import totals
from pebblesim.api.graph import graph_of
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import quantity
from pebblesim.counting.arguments import AnyMask, BlockRule
from pebblesim.counting.heads import Heads
from pebblesim.counting.run import Run
from pebblesim.language import masks, program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.registry import Schedule
from pebblesim.language.source import where_is

if TYPE_CHECKING:
    from pathlib import Path

    from pebblesim.game.referee import Game
    from pebblesim.language.program import Program

MOST_STEPS = 100_000
"""Most primitives that `play` runs on real arrays; this takes about a second."""


@dataclass(frozen=True)
class Played(Result):
    """The game of a schedule, and the results of further checks.

    Attributes:
        algorithm: the schedule, which may be registered nowhere.
        dims, blocks, summation, mask: the arguments.
        game: the referee's result.
        predicted: the prediction of `count`: "io" and "peak_red".
        graph_values_match: whether the graph, evaluated on random inputs, gives the outputs of the reference.
        schedule_values_match: whether the schedule, run tile by tile on random inputs, gives the outputs of the
            reference.
        run_at: the sizes of that run: the game's sizes, or smaller ones with the same pattern of tiles.
        heads: the heads and sequences it was played for. The game is of one head; of the heads that share keys and
            values, it is one game with the queries of all of them, whose sizes `dims` then are.
        times: how often this game is played for all heads and sequences.
    """

    algorithm: Schedule = field(repr=False)
    dims: Mapping[str, int]
    blocks: Mapping[str, int]
    summation: str
    game: Game
    predicted: Mapping[str, int]
    graph_values_match: bool
    schedule_values_match: bool
    run_at: Mapping[str, int]
    mask: Mask | None = None
    heads: Heads = field(default_factory=Heads)
    times: int = 1

    @property
    def schedule(self) -> str:
        """The name of the schedule."""
        return self.algorithm.name

    @property
    def io(self) -> int:
        """Reads and writes of the game, in words."""
        return self.game.io

    @property
    def total_io(self) -> int:
        """Reads and writes for all heads and sequences, in words."""
        return self.io * self.times

    @property
    def values_match(self) -> bool:
        """Whether both the graph and the schedule give the reference's outputs."""
        return self.graph_values_match and self.schedule_values_match

    @property
    def passed(self) -> bool:
        """Whether the game is legal, complete and as predicted, and the values of graph and schedule are correct."""
        as_predicted = self.predicted == {"io": self.game.io, "peak_red": self.game.peak_red}
        return self.game.complete and as_predicted and self.values_match

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim play --json`."""
        head = {"schedule": self.schedule, **self.dims, "blocks": dict(self.blocks), "summation": self.summation}
        head |= {} if self.mask is None else {"mask": str(self.mask)}
        if self.heads.is_given:
            head |= {**self.heads.to_dict(), "times": self.times, "total_io": self.total_io}
        values = "predicted", "values_match", "graph_values_match", "schedule_values_match", "run_at"
        return head | self.game.to_dict() | plain(self, *values)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in (*self.dims.items(), *self.blocks.items()))
        lines = {
            "schedule": f"{self.schedule}, {sizes}, summation {self.summation}"
            + ("" if self.mask is None else f", mask {self.mask}"),
            "predicted": f"{self.predicted['io']:,} words of I/O, peak red {self.predicted['peak_red']:,}",
            "values": self._values(),
        }
        head, *checks = (f"{label:<10}{value}" for label, value in lines.items())
        in_all = [f"{'in all':<10}{self._in_all()}"] if self.heads.is_given and self.game.complete else []
        return "\n".join([head, str(self.game), *(checks if self.game.complete else checks[:1]), *in_all])

    def _in_all(self) -> str:
        """Say what all heads and sequences move."""
        shared = self.heads.heads_per_problem
        one = "" if shared == 1 else f", {shared:,} that share keys and values in one game"
        return f"{self.heads}{one}: {quantity(self.times, 'such game')}, {self.total_io:,} words of I/O"

    def _values(self) -> str:
        """Say which outputs equal the reference."""
        sizes = {**self.dims, **self.blocks}
        at = ", ".join(f"{name} = {size}" for name, size in self.run_at.items())
        run = "" if dict(self.run_at) == sizes else f" (run at {at})"
        graph, schedule = "the graph's outputs", f"the schedule's own{run}"
        if self.values_match:
            return f"{graph} and {schedule} equal the reference"
        verdicts = ((graph, self.graph_values_match), (schedule, self.schedule_values_match))
        return ", ".join(f"{whose} {'equal' if right else 'DIFFER from'} the reference" for whose, right in verdicts)


@checked_kinds()
def play(
    schedule: str | Schedule,
    *,
    M: int,
    rules: str = "hong-kung",
    summation: str = "chain",
    blocks: BlockRule = "fit",
    save: str | Path | None = None,
    strict: bool = True,
    progress: Callable[[float], None] | None = None,
    mask: AnyMask | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    **dims: int,
) -> Played:
    """Play a schedule move by move on the graph of its problem; the referee checks each move.

    Args:
        schedule, M, blocks, mask, dims: as for `count`; a game under a mask needs chains.
        rules: "hong-kung", "replace" or "no-recompute".
        summation: shape of the graph's summation trees: "chain", "balanced" or "blocked:b"; or "in-place", chains whose
            next term is added in one step, in the place of the sum.
        save: file for the moves, .npy (packed) or .txt (text).
        strict: raise an error at an illegal move; if False, return the game up to that move.
        progress: called from time to time with the fraction of the I/O done.
        heads, kv_heads, batch, separate: as for `count`. One game is played: all games of the same size are alike.

    Returns:
        The game, the prediction of `count`, and whether the values equal the reference.

    >>> played = play("small-cache", n=8, d=4, M=24)
    >>> played.io, played.game.complete
    (1840, True)

    Raises:
        IllegalMove: a move is illegal; the message explains it and names the schedule's line.
        Infeasible, UsageError: as for `count`; or the graph does not fit into memory; or the schedule computes
            something that the graph does not have, such as a sum with the same term twice.
    """
    among = Heads(heads, kv_heads, batch, separate)
    run = Run.of(schedule, dims, M=M, blocks=blocks, summation=summation, mask=masks.of(mask), heads=among)
    played = play_run(run.parts[0], rules, save, strict, progress)
    return replace(played, heads=among, times=run.times)


def play_run(
    run: Run,
    rules: str = "hong-kung",
    save: str | Path | None = None,
    strict: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Played:
    """Play a part of a run; arguments and errors as for `play`."""
    from contextlib import nullcontext

    from pebblesim.game.moves import saving
    from pebblesim.game.player import moves, source_of
    from pebblesim.game.referee import IllegalMove, Referee
    from pebblesim.game.rules import check_rules_of_schedules
    from pebblesim.language.numbers import numbers

    check_rules_of_schedules(rules)
    mask, predicted, cdag = run.only_mask, _predicted(run), graph_of(run)
    game = Referee(cdag, run.M, rules, idle=False)
    what = run.program, run.sizes, cdag.families
    stream = moves(*what, write_takes_red=game.write_takes_red, mask=mask)
    outcome = None
    with saving(save, stream, cdag.describe) if save else nullcontext(stream) as watched:
        try:  # inside the block: the moves of an illegal game are also saved
            for chunk in watched:
                game.play(chunk)
                if progress:
                    progress((game.reads + game.writes) / predicted["io"])
        except IllegalMove as illegal:
            made_by = source_of(illegal.number, *what, write_takes_red=game.write_takes_red, mask=mask)
            outcome = illegal.game if made_by is None else _with_source(illegal.game, where_is(made_by.line))
            if strict:
                raise IllegalMove(outcome) from None
    run_at = _sizes_to_run(run)
    return Played(
        algorithm=run.schedule,
        dims=run.dims,
        blocks=run.block_sizes,
        summation=run.summation,
        game=outcome or game.finish(),
        predicted=predicted,
        graph_values_match=_values_match(run, run.sizes, cdag.evaluate),
        schedule_values_match=_values_match(run, run_at, lambda inputs: numbers(run.program, run_at, inputs, mask)),
        run_at=run_at,
        mask=mask,
    )


def _with_source(game: Game, source: str) -> Game:
    """Return a game with an illegal move, with the schedule's line of that move."""
    assert game.violation is not None
    message = f"{game.violation.message}, at {source}"
    return replace(game, violation=replace(game.violation, source=source, message=message))


def _predicted(run: Run) -> dict[str, int]:
    """Predict the game: "io" and "peak_red"."""
    mask = run.only_mask
    counted = count_program(run.program, run.sizes, run.summation, mask)
    if mask is None:
        return {"io": counted.total.io, "peak_red": counted.peak_red}
    from pebblesim.analysis.masked_peak import masked_peak_red

    return {"io": counted.total.io, "peak_red": masked_peak_red(run.program, run.sizes, mask, run.summation)}


def _values_match(
    run: Run, sizes: Mapping[str, int], outputs_of: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> bool:
    """Whether random inputs of these sizes give the reference's outputs, to 1e-10 of the largest entry."""
    import numpy as np

    solves, mask = run.schedule.problem, run.only_mask
    allowed = None if mask is None else mask.allowed(*solves.grid(sizes))
    inputs = solves.random_inputs(sizes, kept=run.schedule.kept, allowed=allowed)
    reference, outputs = solves.reference(inputs, allowed), outputs_of(inputs)

    def close(name: str) -> bool:
        expected = reference[name]
        largest = float(np.max(np.abs(expected), where=np.isfinite(expected), initial=1.0))
        return np.allclose(outputs[name], expected, rtol=0, atol=1e-10 * largest)

    return all(map(close, run.program.outputs))


def _sizes_to_run(run: Run) -> dict[str, int]:
    """Return the sizes at which the schedule is run: those of the game, or smaller ones if that takes too long."""
    steps = sum(
        amount
        for phase in run.program.phases
        for amount in totals(phase.body, run.sizes, lambda node, place: [("steps", 1)], run.only_mask).values()
    )
    if steps <= MOST_STEPS or not isinstance(run.mask, masks.Band | None):
        return run.sizes
    return smaller(run.program, run.sizes)


def smaller(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return small sizes with the same pattern of tiles: one, two or more tiles, with the last one ragged or not.

    Blocks keep their order by size; dimensions become as small as their blocks allow.
    """
    larger = sorted({sizes[block] for block in program.blocks} - {1})
    small = {
        block: min(sizes[block], 2 + larger.index(sizes[block])) if sizes[block] > 1 else 1 for block in program.blocks
    }
    cuts: dict[str, set[tuple[int, int]]] = {dim: set() for dim in program.dims}
    for phase in program.phases:
        for node in ir.walk(phase.body):
            if isinstance(node, ir.Loop):
                block = node.range.block
                cuts[node.range.dim].add((ir.length(block, sizes), ir.length(block, small)))

    def alike(size: int, block: int) -> tuple[int, bool]:
        return min(3, -(-size // block)), size % block == 0

    for dim, blocks in cuts.items():
        candidates = range(1, sizes[dim] + 1)
        small[dim] = next(
            (size for size in candidates if all(alike(size, new) == alike(sizes[dim], old) for old, new in blocks)),
            min(sizes[dim], 3 * max((new for _, new in blocks), default=1) + 1),
        )
    return small
