"""Count the I/O of schedules: one, or all of a problem side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from pebblesim.analysis.count import count as count_program
from pebblesim.analysis.peak import IN_PLACE, spared
from pebblesim.analysis.work import work
from pebblesim.core.errors import BelowBound, Infeasible
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import assigned, listed
from pebblesim.core.units import Traffic
from pebblesim.counting.arguments import AnyMask, BlockRule
from pebblesim.counting.checked_theta import check_theta
from pebblesim.counting.heads import Heads
from pebblesim.counting.run import Run
from pebblesim.language.masks import AnyHeads, Mask
from pebblesim.language.problems import Problem, Theta, problem
from pebblesim.language.registry import Schedule, get
from pebblesim.launches.path import Stage, path
from pebblesim.lower_bounds.bounds import Formulation, LowerBound, added_up, best, largest
from pebblesim.lower_bounds.own import own_bounds

OF_WAY = "own-way gap"
"""Head of the column, behind that of the gap, for I/O ÷ the lower bound for a schedule's own way of computing."""


def ratio(value: float | None) -> str:
    """A gap, or I/O ÷ Θ, as tables print it; empty for None."""
    if value is None:
        return ""
    return f"{value:,.2f}" if value < 1e6 else f"{value:.3g}"


@dataclass(frozen=True)
class Counted(Result):
    """I/O and occupancy of a schedule at given sizes; all numbers of words are exact.

    Attributes:
        schedule, problem, source: the schedule, which may be registered nowhere.
        credit, title, kept: as of the `Schedule`.
        dims, M: the sizes.
        blocks: its block sizes.
        reads, writes: words read into and written out of the cache.
        peak_words: most words resident between two primitives.
        peak_red: most red pebbles at any moment of the game.
        least_M: None; or, if no blocks are feasible and the smallest blocks were counted, the smallest feasible M.
        by_tensor, phases: (reads, writes) of each tensor and of each phase.
        work: operations of each kind, such as "mul" and "exp".
        mask: the allowed pairs; None for all. Under a mask, `peak_red` is the peak of the game without the mask, an
            upper bound.
        summation: how sums are added up, as for `count`.
        formulation: the way of computing, as the lower bounds see it.
        path: the sequential steps if all independent iterations run at once: (name, workers, words of the worker that
            moves most) of each step; empty under a mask.
        heads: the heads and sequences it was counted for. All figures here are of one head; of the heads that share
            keys and values, whose sizes `dims` then are; or, under a mask for each head, of all heads of a sequence.
        parts: where each head has its own mask, the figures of each; else empty.
        times: how often all this is done; see `total`.
        io_without_sharing: words moved for all where heads share keys and values and each is counted for itself; None
            where nothing is shared.
    """

    schedule: str
    problem: str
    source: str
    credit: str
    title: str
    kept: tuple[str, ...]
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
    mask: AnyHeads | None = None
    summation: str = "chain"
    formulation: Formulation = field(default_factory=Formulation)
    path: tuple[Stage, ...] = ()
    heads: Heads = field(default_factory=Heads)
    parts: tuple[Counted, ...] = ()
    times: int = 1
    io_without_sharing: int | None = None

    @property
    def blocks_in_words(self) -> str:
        """Block sizes as a line of text."""
        if any(part.blocks != self.blocks for part in self.parts):
            return "each head its own"
        return assigned(self.blocks) or "none"

    @property
    def total(self) -> Traffic:
        """Words moved for all heads and sequences; `.in_bytes(dtype)` are the bytes."""
        return Traffic(self.reads * self.times, self.writes * self.times)

    @property
    def operations(self) -> int:
        """Number of operations of all kinds."""
        return sum(self.work.values())

    @property
    def intensity(self) -> float:
        """Operations per word moved."""
        return float(Fraction(self.operations, self.io))

    def arithmetic_intensity(self, dtype: str) -> float:
        """Operations per byte moved, with words of a data type such as "float32"."""
        return float(Fraction(self.operations, Traffic(self.reads, self.writes).in_bytes(dtype).io))

    @property
    def _solves(self) -> Problem:
        """The problem in the dimensions of the count."""
        return problem(self.problem).in_dims(self.dims)

    @property
    def only_mask(self) -> Mask | None:
        """The mask, where it is not one for each head."""
        assert self.mask is None or isinstance(self.mask, Mask)
        return self.mask

    @property
    def pairs(self) -> int | None:
        """Z, the number of pairs that the mask allows; None without a mask."""
        if self.parts:
            return sum(part.pairs or 0 for part in self.parts)
        return self.mask.pairs(*self._solves.grid(self.dims)) if isinstance(self.mask, Mask) else None

    @property
    def all_pairs(self) -> int:
        """The number of pairs, allowed or not."""
        queries, keys = self._solves.grid(self.dims)
        return queries * keys * max(1, len(self.parts))

    @property
    def io(self) -> int:
        """Reads and writes together, in words."""
        return self.reads + self.writes

    @property
    def feasible(self) -> bool:
        """Whether the game fits: peak_red ≤ M."""
        return self.peak_red <= self.M

    @property
    def bound(self) -> Theta | None:
        """The expression inside Θ, if the problem has one; under a mask with Z (allowed pairs) instead of n²."""
        theta = self._solves.theta
        return theta.of_pairs() if theta and self.mask is not None else theta

    @property
    def bound_value(self) -> Decimal | None:
        """Value of the expression inside Θ at these sizes."""
        if self.parts and self.bound is not None:
            return Decimal(sum(part.bound_value or 0 for part in self.parts))
        return None if self.bound is None else self.bound.value(self.sizes)

    @property
    def sizes(self) -> dict[str, int]:
        """Dimensions, M and, under a mask, Z, by their names in bounds."""
        return {**self.dims, **({} if self.pairs is None else {"Z": self.pairs}), "M": self.M}

    @property
    def bound_ratio(self) -> float | None:
        """I/O ÷ the expression inside Θ."""
        return None if self.bound_value is None else float(self.io / self.bound_value)

    @cached_property
    def lower_bound(self) -> LowerBound:
        """The largest lower bound for this way of computing, with M pebbles or, if larger, the schedule's peak.

        With sums in place it is that of two pebbles more: a game that has a pebble for each product and each new sum
        can do the same.
        """
        return self._bounded(self.formulation)

    @cached_property
    def every_way(self) -> LowerBound:
        """The lower bound for all ways of computing, with the same number of pebbles."""
        return self._bounded(None)

    @property
    def has_way(self) -> bool:
        """Whether the bound for this way of computing is above that for every way."""
        return self.lower_bound.value > self.every_way.value

    def _bounded(self, formulation: Formulation | None) -> LowerBound:
        if self.parts:
            return added_up([part._bounded(formulation) for part in self.parts])
        proved = _best(self._solves, tuple(self.dims.items()), self._pebbles, formulation, self.only_mask)
        own = [] if self.only_mask is not None else own_bounds(self._solves, self.dims, self._pebbles)
        return largest([proved, *own])

    @property
    def _pebbles(self) -> int:
        """The number of pebbles that lower bounds are for; a game with sums in place is one on chains with two more."""
        return max(self.M, self.peak_red) + spared(self.summation)

    @property
    def on_pebbles(self) -> str:
        """For which M the lower bounds are, to be said after them, if the blocks need a larger one; else empty."""
        return "" if self.feasible else f", for the M = {self.peak_red:,} that its blocks need"

    @property
    def on_bounds(self) -> str:
        """A sentence on what the lower bounds are for, where that is not M pebbles; empty otherwise."""
        if self.summation != IN_PLACE:
            return ""
        return "sums in place: the lower bounds are those of two pebbles more, for a product and a new sum"

    @property
    def gap(self) -> float:
        """I/O ÷ `every_way`, one bound for all schedules, so that their gaps compare.

        Raises:
            BelowBound: as for `gap_of_way`.
        """
        self._refuse_below_bound()
        return float(Fraction(self.io, self.every_way.value))

    @property
    def gap_of_way(self) -> float:
        """I/O ÷ `lower_bound`, the bound for this way of computing; no more than `gap`.

        Raises:
            BelowBound: the gap is below 1, so the schedule does not compute what it states, or a user's bound is none.
        """
        self._refuse_below_bound()
        return float(Fraction(self.io, self.lower_bound.value))

    def _refuse_below_bound(self) -> None:
        least = self.lower_bound
        if self.io < least.value and least.own:
            raise BelowBound(
                f"{least.name} gives {least.value:,} words for {self.problem} with {listed(self.dims)} at M = "
                f"{self.M:,}, where {self.schedule} moves {self.io:,} words: it is not a lower bound, unless "
                f"{self.schedule} computes something else, which `play` shows."
            )
        if self.io < least.value:
            raise BelowBound(
                f"{self.schedule} moves {self.io:,} words, and whatever solves {self.problem!r} as it says it does "
                f"({least.of_way}) moves {least.value:,} at least, by {least.source}: it computes something else; "
                "`play` shows what, and graph= says in which other way it computes."
            )

    def to_dict(self, dtype: str | None = None) -> dict[str, Any]:
        """Return a row of `pebblesim count --json`; with a data type, also its arithmetic intensity.

        Where each head has a mask of its own, `heads` has the same of each.
        """
        per_byte = {} if dtype is None else {"operations_per_byte": self.arithmetic_intensity(dtype)}
        of_game = "reads", "writes", "io", "peak_words", "peak_red", "feasible", "least_M"
        return {
            **plain(self, "schedule", "source", "blocks", *of_game),
            **plain(self, "bound_ratio", "gap", "every_way", "gap_of_way", "lower_bound"),
            "by_tensor": {name: {"reads": r, "writes": w} for name, (r, w) in self.by_tensor.items()},
            "phases": [{"name": name, "reads": r, "writes": w, "io": r + w} for name, (r, w) in self.phases.items()],
            "path": [plain(stage, "name", "workers", "words") for stage in self.path],
            **plain(self, "work"),
            **per_byte,
            **({"heads": [part.to_dict(dtype) for part in self.parts]} if self.parts else {}),
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
            "gap": f"{self.gap:.3g} x the lower bound of {self.every_way}{self.on_pebbles}",
            **({OF_WAY: f"{self.gap_of_way:.3g} x the lower bound of {self.lower_bound}"} if self.has_way else {}),
            **({"in all": f"{self.heads}: {self.total.io:,} words"} if self.heads.is_given else {}),
        }
        return "\n".join(f"{label:<12}{value}" for label, value in lines.items())


@lru_cache(maxsize=256)  # the same for all schedules that compute in the same way
def _best(
    solves: Problem, dims: tuple[tuple[str, int], ...], M: int, formulation: Formulation | None, mask: Mask | None
) -> LowerBound:
    return best(solves, dict(dims), M, formulation, mask)


@checked_kinds()
def count(
    schedule: str | Schedule,
    *,
    M: int,
    blocks: BlockRule = "fit",
    summation: str = "chain",
    mask: AnyMask | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    **dims: int,
) -> Counted:
    """Count the I/O of a schedule, exactly, for sizes of any magnitude.

    Args:
        schedule: its name, or the schedule itself.
        M: red pebbles, in words.
        blocks: a block rule, "fit", "paper" or "best", or block sizes by name.
        summation: shape of the summation trees: "chain", "balanced" or "blocked:b"; or "in-place", chains whose next
            term is added in one step, in the place of the sum. It affects only the peak of red pebbles.
        mask: the allowed pairs of queries and keys: "causal", "window:256", a file such as "mask.npy", an array of
            booleans for the pairs or for blocks of them, or a `Mask`. Tiles without an allowed pair are left out. An
            array or a file of three dimensions is a mask for each head.
        heads, batch: how many query heads, and sequences, there are. The figures of the result are of one; its
            `total` is of all.
        kv_heads: KV heads, as many by default. Heads that share them are one head with all their
            queries, and counted so.
        separate: count each head for itself, though heads share keys and values.
        dims: the dimensions of the problem, such as n=4096, d=64: those of one head.

    Returns:
        Words read and written, by phase and by tensor; the peak, the operations, and the gap.

    >>> count("small-cache", n=4096, d=64, M=16384, blocks="paper").io
    254021632
    >>> decoding = count("flash2-forward", n_q=1, n_k=32768, d=128, M=2**16, heads=32, kv_heads=8)
    >>> decoding.total.in_bytes("bf16").io
    134234176

    Raises:
        Infeasible: M is too small; the message and `least_M` give the smallest feasible M.
        UsageError: a name or size that is not allowed.
    """
    among = Heads(heads, kv_heads, batch, separate)
    check_theta(get(schedule).problem)
    return count_run(Run.of(schedule, dims, M=M, blocks=blocks, summation=summation, mask=mask, heads=among))


def count_run(run: Run, fallback_to_smallest: bool = False) -> Counted:
    """Count a run.

    `fallback_to_smallest`: a schedule that does not fit is counted with its smallest blocks, instead of an error.
    """
    parts = [_count_part(part, fallback_to_smallest) for part in run.parts]
    alone = None
    if run.heads.heads_per_problem > 1 and parts[0].least_M is None:
        alone = count_run(replace(run, heads=run.heads.alone()), fallback_to_smallest=True)
    return replace(
        parts[0] if len(parts) == 1 else _together(parts),
        heads=run.heads,
        mask=parts[0].mask if len(parts) == 1 else run.mask,
        times=run.times,
        io_without_sharing=None if alone is None or alone.least_M is not None else alone.total.io,
    )


def _count_part(run: Run, fallback_to_smallest: bool) -> Counted:
    """Count one head under one mask."""
    least_M = None
    try:
        sizes = run.sizes
    except Infeasible as error:
        if not fallback_to_smallest:
            raise
        run, least_M = run.with_smallest_blocks(), error.least_M
        sizes = run.sizes
    mask = run.only_mask
    counted = count_program(run.program, sizes, run.summation, mask)
    return Counted(
        schedule=run.schedule.name,
        problem=run.schedule.problem.name,
        source=run.schedule.source,
        credit=run.schedule.credit,
        title=run.schedule.title,
        kept=run.schedule.kept,
        dims=run.dims,
        M=run.M,
        blocks=run.block_sizes,
        reads=counted.total.reads,
        writes=counted.total.writes,
        peak_words=counted.peak_words,
        peak_red=counted.peak_red,
        least_M=least_M,
        by_tensor={name: (traffic.reads, traffic.writes) for name, traffic in counted.by_tensor.items()},
        phases={name: (traffic.reads, traffic.writes) for name, traffic in counted.by_phase.items()},
        work=work(run.program, sizes, mask),
        mask=mask,
        summation=run.summation,
        formulation=Formulation.of(run.schedule),
        path=path(run.program, sizes) if mask is None else (),
    )


def _together(parts: Sequence[Counted]) -> Counted:
    """All heads of a sequence, one after the other in the same cache."""
    first, *_ = parts

    def traffic(each: Sequence[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
        amounts = {name: [of.get(name, (0, 0)) for of in each] for of in each for name in of}
        return {name: (sum(r for r, _ in moved), sum(w for _, w in moved)) for name, moved in amounts.items()}

    kinds = dict.fromkeys(kind for part in parts for kind in part.work)
    return replace(
        first,
        blocks=first.blocks if all(part.blocks == first.blocks for part in parts) else {},
        reads=sum(part.reads for part in parts),
        writes=sum(part.writes for part in parts),
        peak_words=max(part.peak_words for part in parts),
        peak_red=max(part.peak_red for part in parts),
        by_tensor=traffic([part.by_tensor for part in parts]),
        phases=traffic([part.phases for part in parts]),
        work={kind: sum(part.work.get(kind, 0) for part in parts) for kind in kinds},
        parts=tuple(parts),
    )
