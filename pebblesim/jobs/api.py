"""The main jobs as functions: count, compare, formula, show, play, graph. The command line calls these and prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pebblesim import schedules  # noqa: F401 - importing it registers them
from pebblesim.errors import Infeasible, UsageError
from pebblesim.jobs import blocks as block_rules
from pebblesim.language import masks
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem, problem
from pebblesim.language.registry import Schedule, get, of_problem
from pebblesim.readings.count import count as count_program
from pebblesim.readings.work import work
from pebblesim.sizes import bytes_of, whole
from pebblesim.theory.lower_bounds import STANDARD, LowerBound, Way, best
from pebblesim.theory.theta import THETA, Theta

if TYPE_CHECKING:
    from pebblesim.game.exhaustive import Optimum
    from pebblesim.game.referee import Game, Graph
    from pebblesim.graphs import Plan
    from pebblesim.graphs.cdag import Cdag
    from pebblesim.language.program import Program
    from pebblesim.readings.formula import Formula

BlockRule = str | Mapping[str, int]
AnyMask = Mask | str | Any
"""A mask, a text such as "causal" or "window:256", a file's name, or booleans for blocks of pairs."""


@dataclass(frozen=True)
class Counted:
    """What a schedule moves and holds for given sizes; all numbers of words are exact.

    Attributes:
        schedule, problem, source: which schedule it is.
        dims, M: the sizes it was counted for.
        blocks: its block sizes.
        reads, writes: words into and out of the cache.
        peak_words: most words resident between two primitives.
        peak_red: most red pebbles at any moment of the game.
        least_M: None, or the least M that works, if no blocks are feasible and the smallest were counted.
        by_tensor, phases: where the words go, as (reads, writes).
        work: operations of each kind, such as "mul" and "exp".
        mask: which pairs are allowed; None for all. Under one, `peak_red` is that of the game without it, which no mask
            exceeds.
        way: how it computes, as far as lower bounds can tell.
    """

    schedule: str
    problem: str
    source: str
    dims: Mapping[str, int]
    M: int
    blocks: Mapping[str, int]
    reads: int
    writes: int
    peak_words: int
    peak_red: int
    least_M: int | None
    by_tensor: Mapping[str, tuple[int, int]]
    phases: Mapping[str, tuple[int, int]]
    work: Mapping[str, int]
    mask: Mask | None = None
    way: Way = STANDARD

    @property
    def operations(self) -> int:
        """Operations of all kinds."""
        return sum(self.work.values())

    @property
    def intensity(self) -> float:
        """Operations for each word moved."""
        return float(Fraction(self.operations, self.io))

    def arithmetic_intensity(self, dtype: str) -> float:
        """Operations for each byte moved, with words of that type, such as "float32"."""
        return float(Fraction(self.operations, self.io * bytes_of(dtype)))

    @property
    def pairs(self) -> int | None:
        """Z, the number of pairs that the mask allows; None without a mask."""
        return None if self.mask is None else self.mask.pairs(self.dims["n"])

    @property
    def io(self) -> int:
        """Reads and writes together, in words."""
        return self.reads + self.writes

    @property
    def warning(self) -> str | None:
        """Why the schedule cannot be right, if it moves fewer words than any that is."""
        if self.io >= self.lower_bound.value:
            return None
        return (
            f"{self.schedule} moves fewer words than the lower bound of {self.lower_bound.value:,}: it cannot solve "
            f"{self.problem}; `play` shows what is missing."
        )

    @property
    def feasible(self) -> bool:
        """Whether the game fits: peak_red ≤ M."""
        return self.peak_red <= self.M

    @property
    def bound(self) -> Theta:
        """The expression inside Θ for the problem; under a mask with its Z pairs in the place of n²."""
        return THETA[self.problem] if self.mask is None else THETA[self.problem].of_pairs()

    @property
    def bound_value(self) -> Decimal:
        """Its value for these sizes."""
        pairs = {} if self.pairs is None else {"Z": self.pairs}
        return self.bound.value({**self.dims, **pairs, "M": self.M})

    @property
    def bound_ratio(self) -> float:
        """I/O ÷ the expression inside Θ."""
        return float(self.io / self.bound_value)

    @cached_property
    def lower_bound(self) -> LowerBound:
        """The largest lower bound on all that compute in this way, with M pebbles, or with its peak if that is more."""
        return best(problem(self.problem), self.dims, max(self.M, self.peak_red), self.way, self.mask)

    @property
    def gap(self) -> float:
        """I/O ÷ the largest lower bound known."""
        return float(Fraction(self.io, self.lower_bound.value))

    def to_dict(self, dtype: str | None = None) -> dict[str, Any]:
        """A row of `pebblesim count --json`; with a data type, its arithmetic intensity in that type, too."""
        per_byte = {} if dtype is None else {"operations_per_byte": self.arithmetic_intensity(dtype)}
        return {
            "schedule": self.schedule,
            "source": self.source,
            "blocks": dict(self.blocks),
            "reads": self.reads,
            "writes": self.writes,
            "io": self.io,
            "peak_words": self.peak_words,
            "peak_red": self.peak_red,
            "feasible": self.feasible,
            "least_M": self.least_M,
            "bound_ratio": self.bound_ratio,
            "lower_bound": {"value": self.lower_bound.value, "source": self.lower_bound.source},
            "gap": self.gap,
            "by_tensor": {name: {"reads": r, "writes": w} for name, (r, w) in self.by_tensor.items()},
            "phases": [{"name": name, "reads": r, "writes": w, "io": r + w} for name, (r, w) in self.phases.items()],
            "work": dict(self.work),
            **per_byte,
        }

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in {**self.dims, "M": self.M, **self.blocks}.items())
        lines = {
            "schedule": f"{self.schedule} ({self.source})",
            "sizes": sizes,
            **({} if self.mask is None else {"mask": f"{self.mask}, {self.pairs:,} pairs"}),
            "reads": f"{self.reads:,} words",
            "writes": f"{self.writes:,} words",
            "I/O": f"{self.io:,} words",
            "peak words": f"{self.peak_words:,} words",
            "peak red": f"{self.peak_red:,} of M = {self.M:,} words" + ("" if self.feasible else ": does not fit"),
            "work": f"{self.operations:,} operations, {self.intensity:.3g} per word",
            "gap": f"{self.gap:.3g} x the lower bound of {self.lower_bound.value:,} words ({self.lower_bound.source})",
        }
        if self.warning:
            lines["warning"] = self.warning
        return "\n".join(f"{label:<12}{value}" for label, value in lines.items())


def count(
    schedule: str | Schedule,
    *,
    M: int,
    blocks: BlockRule = "fit",
    summation: str = "chain",
    mask: AnyMask | None = None,
    **dims: int,
) -> Counted:
    """Count the I/O of a schedule, exactly, for sizes however large.

    Args:
        schedule: its name, or the schedule itself.
        M: red pebbles, in words.
        blocks: "fit", "paper", "best", or sizes by name.
        summation: shape of the summation trees; it decides the peak of red pebbles.
        mask: which pairs of queries and keys are allowed: "causal", "window:256", a file such as "mask.npy", an array
            of booleans for the pairs or for blocks of them, or a `Mask`. Tiles without an allowed pair are left out.
        dims: the dimensions of the problem, such as n=4096, d=64.

    >>> count("small-cache", n=4096, d=64, M=16384, blocks="paper").io
    254021632

    Raises:
        Infeasible: M is too small; the message and `least_M` say what works.
        UsageError: a name or size that is not allowed.
    """
    algorithm, sizes, M, chosen = _chosen(schedule, dims, M, blocks, summation)
    return _counted(algorithm, sizes, M, chosen, summation, masks.of(mask))


def _chosen(
    schedule: str | Schedule, dims: Mapping[str, int], M: int, blocks: BlockRule, summation: str = "chain"
) -> tuple[Schedule, dict[str, int], int, dict[str, int]]:
    """(schedule, dimensions, M, block sizes), all checked."""
    algorithm = get(schedule)
    sizes, M = problem_dims(algorithm.problem, dims), whole("M", M)
    return algorithm, sizes, M, block_rules.choose(algorithm, sizes, M, blocks, summation)


def compare(
    names: Iterable[str] | None = None,
    *,
    problem_name: str = "backward",
    M: int,
    blocks: BlockRule = "fit",
    summation: str = "chain",
    mask: AnyMask | None = None,
    **dims: int,
) -> list[Counted]:
    """Count several schedules of a problem, or all of them, sorted by I/O; those that do not fit come last.

    A schedule that no blocks make fit is counted at its smallest blocks and says so by `least_M`. All schedules means
    those that a block rule can be meant for: "paper" for those whose source prints block sizes, sizes for those with
    such blocks.

    Raises:
        UsageError: a name or size that is not allowed, or a schedule of another problem.
    """
    solves = problem(problem_name)
    if isinstance(names, str):
        names = [names]
    algorithms = [get(name) for name in dict.fromkeys(names)] if names else of_problem(problem_name)
    if not names:
        algorithms = [algorithm for algorithm in algorithms if _follows(algorithm, blocks)]
        if not algorithms:
            raise UsageError(f"no schedule of problem {solves.name!r} has such blocks as were given: {blocks}.")
    for algorithm in algorithms:
        if algorithm.problem is not solves:
            raise UsageError(
                f"{algorithm.name} solves {algorithm.problem.name!r}, not {solves.name!r}; "
                f"add --problem {algorithm.problem.name}."
            )
    sizes, M, mask = problem_dims(solves, dims), whole("M", M), masks.of(mask)
    rows = []
    for algorithm in algorithms:
        try:
            chosen = block_rules.choose(algorithm, sizes, M, blocks, summation)
            rows.append(_counted(algorithm, sizes, M, chosen, summation, mask))
        except Infeasible as error:
            given = {} if isinstance(blocks, str) else blocks
            smallest = block_rules.smallest(algorithm) | dict(given)
            rows.append(_counted(algorithm, sizes, M, smallest, summation, mask, error.least_M))
    return sorted(rows, key=lambda row: (not row.feasible, row.least_M or 0, row.io))


def _follows(algorithm: Schedule, rule: BlockRule) -> bool:
    """Whether a block rule can be meant for a schedule that was not named."""
    if isinstance(rule, str):
        return rule != "paper" or bool(algorithm.paper) or not algorithm.blocks
    return set(rule) <= set(algorithm.blocks)


def formula(schedule: str | Schedule, mask: AnyMask | None = None) -> Formula:
    """The closed forms of a schedule's reads, writes, I/O and peak, derived from its program, as sympy expressions.

    Under a mask: "causal", "window:W" and "band:W" give closed forms in n and the blocks; "any" those of an unknown
    mask, in functions such as `tiles(B_r, B_c)`, the number of tiles it leaves (`pebblesim.readings.masked_sums`).

    >>> formula("matmul-tiled").io
    k*m*ceiling(n/b) + k*n*ceiling(m/b) + m*n
    """
    from pebblesim.readings.formula import formula as derive

    algorithm = get(schedule)
    if isinstance(mask, str) and mask == "any":
        return derive(algorithm.masked)
    band = masks.of(mask)
    if band is None:
        return derive(algorithm.program)
    if not isinstance(band, masks.Band):
        raise UsageError(f"mask {band} has no closed form; use 'any', 'causal', 'window:W' or 'band:W', or `count`.")
    return derive(algorithm.masked, band)


def numbers(
    schedule: str | Schedule,
    *,
    M: int,
    inputs: Mapping[str, Any] | None = None,
    blocks: BlockRule = "fit",
    mask: AnyMask | None = None,
    **dims: int,
) -> dict[str, Any]:
    """Run a schedule on real arrays, tile by tile, and return its outputs.

    Args:
        schedule, M, blocks, mask, dims: as for `count`; all but the mask decide the tiles, and nothing else.
        inputs: an array for each input; random ones by default (see `Problem.random_inputs`).

    >>> sorted(numbers("flash2-forward", n=6, d=2, M=60))
    ['L', 'O']

    Raises:
        Infeasible, UsageError: as for `count`, or an input is missing or has another shape.
    """
    from pebblesim.readings.numbers import numbers as run

    algorithm, sizes, M, chosen = _chosen(schedule, dims, M, blocks)
    seen = masks.of(mask)
    program, allowed = _under(seen, algorithm, sizes)
    if inputs is None:
        inputs = algorithm.problem.random_inputs(sizes, kept=algorithm.kept, allowed=allowed)
    return run(program, {**sizes, **chosen}, inputs, seen)


def show(schedule: str | Schedule) -> str:
    """The pseudo-code of a schedule."""
    from pebblesim.readings.text import text

    return text(get(schedule).program)


def graph(problem_name: str, *, summation: str = "chain", mask: AnyMask | None = None, **options: Any) -> Cdag:
    """The computational DAG of a problem.

    Args:
        problem_name: a problem, such as "backward" or "matmul".
        summation: "chain", "balanced" or "blocked:b".
        mask: as for `count`; a graph under a mask has chains only.
        options: the dimensions, and what the graph's builder takes besides (see `pebblesim.graphs`).
    """
    from pebblesim import graphs

    solves = problem(problem_name)
    given = {name: options.pop(name) for name in {*solves.dims, "n", "d"} & set(options)}
    dims, seen = problem_dims(solves, given), masks.of(mask)
    allowed = None if seen is None else seen.allowed(dims["n"])
    return graphs.build(solves.name, summation=summation, mask=allowed, **dims, **options)


def optimum(
    of: str | Graph,
    *,
    M: int,
    rules: str = "hong-kung",
    states: int | None = None,
    **options: Any,
) -> Optimum:
    """The least I/O of any game on a small graph, found by exhaustive search.

    Args:
        of: a problem, or a graph such as `Cdag.from_edges(...)`.
        M: red pebbles.
        rules: "hong-kung", where a vertex may be computed again, or "no-recompute".
        states: most states to keep, some 60 bytes each; 4 million by default.
        options: of a problem, its dimensions and what else `graph` takes.

    >>> optimum("matmul", m=2, k=1, n=2, M=4).io
    8

    Raises:
        Infeasible: M is too small for any game.
        UsageError: the graph has more than 64 vertices, or the states did not suffice.
    """
    from pebblesim.game import exhaustive

    if not isinstance(of, str) and options:
        raise UsageError(f"a graph takes no options; got {', '.join(options)}.")
    cdag = graph(of, **options) if isinstance(of, str) else of
    return exhaustive.optimum(cdag, M, rules, exhaustive.STATES if states is None else states)


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
    algorithm, sizes, M, chosen = _chosen(schedule, dims, M, blocks, summation)
    seen = masks.of(mask)
    return Match(algorithm, sizes, M, chosen, summation, seen, *_under(seen, algorithm, sizes))


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


def _under(mask: Mask | None, algorithm: Schedule, sizes: Mapping[str, int]) -> tuple[Program, Any]:
    """A schedule's program under a mask, and the mask pair by pair; None for no mask."""
    if mask is None:
        return algorithm.program, None
    return algorithm.masked, mask.allowed(sizes["n"])


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


def problem_dims(solves: Problem, dims: Mapping[str, int]) -> dict[str, int]:
    """The dimensions of a problem, checked; n and d alone are enough for any problem."""
    meant = dims_meant(solves, dims)
    return {name: whole(name, dims[meant[name]]) for name in solves.dims}


def dims_meant(solves: Problem, given: Mapping[str, object]) -> Mapping[str, str]:
    """By which of the given names each dimension of a problem is meant.

    Raises:
        UsageError: they are neither the problem's dimensions nor n and d.
    """
    if set(given) == {"n", "d"}:
        return solves.from_nd
    if set(given) != set(solves.dims):
        meant = ", ".join(f"{dim} = {name}" for dim, name in solves.from_nd.items())
        short = "" if solves.dims == ("n", "d") else f", or n and d alone, which mean {meant}"
        raise UsageError(
            f"problem {solves.name!r} takes the sizes {', '.join(solves.dims)}{short}; it got "
            f"{', '.join(f'{name} = {size}' for name, size in given.items()) or 'none'}."
        )
    return {name: name for name in solves.dims}


def _counted(
    algorithm: Schedule,
    dims: Mapping[str, int],
    M: int,
    blocks: Mapping[str, int],
    summation: str,
    mask: Mask | None,
    least_M: int | None = None,
) -> Counted:
    program = algorithm.program if mask is None else algorithm.masked
    counted = count_program(program, {**dims, **blocks}, summation, mask)
    return Counted(
        schedule=algorithm.name,
        problem=algorithm.problem.name,
        source=algorithm.source,
        dims=dims,
        M=M,
        blocks=blocks,
        reads=counted.total.reads,
        writes=counted.total.writes,
        peak_words=counted.peak_words,
        peak_red=counted.peak_red,
        least_M=least_M,
        by_tensor={name: (traffic.reads, traffic.writes) for name, traffic in counted.by_tensor.items()},
        phases={name: (traffic.reads, traffic.writes) for name, traffic in counted.by_phase.items()},
        work=work(program, {**dims, **blocks}, mask),
        mask=mask,
        way=Way.of(algorithm),
    )
