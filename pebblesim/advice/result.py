"""Advice for a real card as a result: traffic, roofline and forecasts, as data and as text.

`pebblesim.advice.advise` finds it. Traffic and roofline are bounds, not forecasts. The operations are those of the
tile on the multiprocessors, where they are executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from pebblesim.advice.amounts import amount, duration, ratio
from pebblesim.advice.answer import advised, beside, first_lines
from pebblesim.advice.boundaries import Boundary, boundaries
from pebblesim.advice.kernels import OurKernels
from pebblesim.core.errors import UsageError
from pebblesim.core.results import Result
from pebblesim.core.sizes import BYTES, assigned, listed
from pebblesim.core.tables import Sheet
from pebblesim.counting.count import Counted, count
from pebblesim.language.loops import in_parts
from pebblesim.language.masks import Band
from pebblesim.language.problems import problem
from pebblesim.language.registry import get

if TYPE_CHECKING:
    from pebblesim.analysis import terms

MODEL = (
    "the paper's tiles, of any size, for one cache of equal words: they show what more or other cache would save, and "
    "are no kernels"
)

LEFT_OUT = (
    "left out: latency, occupancy, and whether there are enough blocks for all multiprocessors; registers, which hold "
    "tiles besides; sums kept in a wider type; work that tensor cores do not do; sectors and cache lines. The last "
    "cache is taken to serve one head at a time, and to hold exactly what the schedule keeps."
)


@dataclass(frozen=True, kw_only=True)
class Advice(OurKernels, Result):
    """The advice for a card.

    Attributes:
        blocks: the user's tile, to be judged at the multiprocessors; empty without one.
    """

    blocks: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def boundaries(self) -> tuple[Boundary, ...]:
        """The results at the multiprocessors and at the memory; under a mask they are found in seconds."""
        return boundaries(self.card, self.dtype, self.problem, self.dims, self.mask, self.blocks)

    @property
    def peak(self) -> float | None:
        """Operations per second on words of this data type; None if no figure is known."""
        figure = self.card.peak.get(self.dtype)
        return None if figure is None else float(figure.value)

    def bytes(self, row: Counted) -> int:
        """Bytes that a schedule moves for all heads."""
        return row.io * BYTES[self.dtype] * self.times

    def per_byte(self, row: Counted) -> float:
        """Operations of the problem per byte that a schedule moves."""
        return ratio(self.useful, row.io * BYTES[self.dtype])

    def seconds(self, boundary: Boundary, row: Counted) -> float | None:
        """The least time in seconds to move these bytes across a boundary."""
        return None if boundary.bandwidth is None else ratio(self.bytes(row), boundary.bandwidth)

    def arithmetic(self, row: Counted) -> float | None:
        """The least time of its arithmetic, in seconds."""
        return None if self.peak is None else ratio(row.operations * self.times, self.peak)

    def bound_by(self, boundary: Boundary, row: Counted) -> str | None:
        """ "memory" or "compute", whichever takes longer at this boundary; None if a figure is missing."""
        moving, computing = self.seconds(boundary, row), self.arithmetic(row)
        if moving is None or computing is None:
            return None
        return "memory" if moving > computing else "compute"

    def limits(self, tile: Counted) -> dict[str, float]:
        """The known limits on the time of a tile on the multiprocessors, in seconds.

        They are "arithmetic"; its traffic at the multiprocessors; and the traffic at the memory of the best blocks of
        its schedule.
        """
        inner, *outer = self.boundaries
        known = {"arithmetic": self.arithmetic(tile), inner.name: self.seconds(inner, tile)}
        for boundary in outer:
            for row in boundary.rows:
                if row.schedule == tile.schedule:
                    known[boundary.name] = self.seconds(boundary, row)
        return {name: seconds for name, seconds in known.items() if seconds is not None}

    def allowed(self, tile: Counted) -> tuple[str, float] | None:
        """Return (limit, seconds), the roofline time of a tile; None if the arithmetic rate is not known."""
        return None if self.peak is None else max(self.limits(tile).items(), key=lambda item: item[1])

    @cached_property
    def fastest(self) -> Counted:
        """The advised tile: that of the kernel with the shortest forecast, where there are forecasts.

        Elsewhere the one with the smallest largest limit among those that fit everywhere; without rates, the one with
        the least I/O. Differences below 1 % are ignored; then it is the tile with the least I/O at the first boundary.
        """
        if self.kernels:
            return self.tile_of(self.kernels[0])
        rows = [row for row in self.boundaries[0].rows if not in_parts(self._program(row))]  # others are no kernels
        worst = [allowed[1] for row in rows if (allowed := self.allowed(row))]
        return next((row for row, each in zip(rows, worst, strict=False) if each <= 1.01 * min(worst)), rows[0])

    def terms(self, boundary: Boundary) -> list[terms.Term]:
        """Return the terms of the closed form of the schedule that `explained` names.

        Raises:
            UsageError: the mask has no closed form.
        """
        from pebblesim.analysis import terms

        row, mask = self.explained(boundary), self.mask
        assert mask is None or isinstance(mask, Band)
        twice: dict[str, Any] = {"M": 2 * boundary.M, "mask": mask, **self.dims}
        doubled = count(row.schedule, blocks="best", **twice).blocks
        sizes = {**self.dims, **row.blocks}
        return terms.terms(self._program(row), sizes, {**self.dims, **doubled}, boundary.M, mask)

    def explained(self, boundary: Boundary) -> Counted:
        """The schedule that moves the fewest words at a boundary, of those that have a closed form under the mask.

        Raises:
            UsageError: the mask has no closed form.
        """
        return _with_closed_form(self, boundary)

    def _program(self, row: Counted) -> Any:
        algorithm = get(row.schedule).in_dims(self.dims)
        return algorithm.under(self.mask)

    def to_dict(self, explain: bool = False) -> dict[str, Any]:
        """Return the data of `pebblesim advise --json`."""
        head = {
            "card": self.card.name,
            "figures": {k: f._asdict() for k, f in self.card.figures.items()},
            "peak": {k: f._asdict() for k, f in self.card.peak.items()},
            "problem": self.problem,
            **self.dims,
            "dtype": self.dtype,
            "heads": self.heads,
            "kv_heads": self.heads // self.heads_per_problem,
            "batch": self.batch,
            "mask": None if self.mask is None else str(self.mask),
            "useful_operations": self.useful * self.times,
        }
        boundaries = [
            {
                "boundary": boundary.name,
                "cache": boundary.cache,
                "M": boundary.M,
                "bandwidth": boundary.bandwidth,
                "too_large": dict(boundary.too_large),
                "rows": [self._row(boundary, row) for row in boundary.rows],
                "own": [self._row(boundary, row) for row in boundary.own],
            }
            | (_terms_as_data(self, boundary) if explain else {})
            for boundary in self.boundaries
        ]
        roofline = {"roofline": self._allowed(self.fastest), "left_out": LEFT_OUT}
        ours = {"kernels": [self.as_data(each) for each in self.kernels]}
        own = {"own_kernels": [self.own_as_data(each) for each in self.own_kernels]}
        others = {}
        if self.kernels:
            found = beside(self)
            others = {"call": advised(self, found), "measured": found.to_dict()}
        return {**head, **ours, **own, **others, "boundaries": boundaries, **roofline}

    def _row(self, boundary: Boundary, row: Counted) -> dict[str, Any]:
        """A row as data."""
        own = {} if row not in boundary.own else {"allowed": self._allowed(row)}
        return (
            row.to_dict(self.dtype)
            | {
                "bytes": self.bytes(row),
                "useful_operations_per_byte": self.per_byte(row),
                "seconds_moving": self.seconds(boundary, row),
                "seconds_computing": self.arithmetic(row),
                "bound_by": self.bound_by(boundary, row),
            }
            | own
        )

    def _allowed(self, tile: Counted) -> dict[str, Any]:
        limit, seconds = self.allowed(tile) or (None, None)
        return {
            "schedule": tile.schedule,
            "operations": tile.operations * self.times,
            "limit": limit,
            "seconds": seconds,
            "limits": self.limits(tile),
        }

    def explain(self) -> str:
        """Explain the I/O of the best schedule at each boundary, term by term."""
        from pebblesim.analysis import terms

        parts = []
        for boundary in self.boundaries:
            row, best = self.explained(boundary), boundary.best
            chosen = {**self.dims, **row.blocks}
            text = terms.explained(self.terms(boundary), self._program(row), chosen, boundary.M)
            head = f"why {row.schedule} moves {row.io:,} words at the {boundary.name} boundary"
            if row is not best:
                head += f"\n({best.schedule} moves {best.io:,}, and has no closed form under a mask)"
            parts.append(f"{head}\n{text}")
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def parts(self) -> list[str | Sheet]:
        """Return the lines to print first: the call to make, its time, and what was measured beside it."""
        first = first_lines(self) if self.kernels else self._fewest_words()
        return [_heading(self), *first, *self.judged()]

    def details(self) -> list[str | Sheet]:
        """Return what stands behind the answer: kernels, schedules, lower bounds and the roofline, to print."""
        parts: list[str | Sheet] = [*self.shown_kernels(), "", MODEL]
        for boundary in self.boundaries:
            parts += ["", *self._shown(boundary)]
        return [*parts, "", self._roofline()]

    def why(self) -> str:
        """Return what stands behind the answer as text."""
        return "\n".join(map(str, self.details()))

    def _fewest_words(self) -> Iterator[str]:
        """Where no kernel is offered: why, the schedules that move the fewest words, and the time that is allowed."""
        yield str(next(self.shown_kernels()))
        for boundary in self.boundaries:
            best = boundary.best
            words = f"{best.io:,} words a head, {best.gap:.2f} x the lower bound"
            yield f"{boundary.name} boundary, M = {boundary.M:,} words: {best.schedule} moves {words}"
        if allowed := self.allowed(self.fastest):
            yield f"time: at least {duration(allowed[1])}, limited by {allowed[0]}"

    def _shown(self, each: Boundary) -> list[str | Sheet]:
        head = f"{each.name} boundary: M = {each.M:,} words ({each.cache}){self._regime(each)}"
        lines: list[str | Sheet] = [head, self._table(each, each.rows)]
        if each.too_large:
            lines.append("too large: " + ", ".join(f"{name} (M ≥ {M:,})" for name, M in each.too_large.items()))
        best = each.best
        lines.append(
            f"least: {best.schedule}, {best.io:,} words a head, {amount(self.bytes(best), 'B')} in all; "
            f"{best.gap:.2f} x the lower bound of {best.every_way}"
        )
        computing = self.arithmetic(best)
        if each.bandwidth is None and computing:
            needed = amount(ratio(self.bytes(best), computing), "B/s")
            lines.append(f"no bandwidth is known here; {needed} would keep up with the arithmetic")
        if each.own:
            lines += ["", "your tile", self._table(each, each.own), *(self._judged(each, row) for row in each.own)]
        return lines

    def _table(self, each: Boundary, rows: tuple[Counted, ...]) -> Sheet:
        columns = ("schedule", "blocks", "I/O per head", "gap", "ops/byte", "moving", "computing", "bound by")
        cells = [
            (
                row.schedule,
                assigned(row.blocks) or "none",
                row.io,
                row.gap,
                self.per_byte(row),
                duration(self.seconds(each, row)),
                duration(self.arithmetic(row)),
                self.bound_by(each, row) or "unknown",
            )
            for row in rows
        ]
        return Sheet(columns, cells, ("schedule", "I/O per head", "gap", "blocks", "bound by"))

    def _judged(self, each: Boundary, own: Counted) -> str:
        """Judge the user's tile in a sentence."""
        said = f"{own.schedule}: "
        if not own.feasible:
            needed = own.least_M or own.peak_red
            said += f"does not fit, it needs {needed:,} words, {ratio(needed, each.M):.2f} M; "
        best = next((row for row in each.rows if row.schedule == own.schedule), None)
        if best is None:
            said += "no tile of this schedule fits"
        elif own.io <= best.io and own.feasible:
            said += "no tile is known that moves less"
        else:
            said += f"{ratio(own.io, best.io):.2f} x the words of {assigned(best.blocks)}"
        if own.feasible and (allowed := self.allowed(own)):
            said += f"; it is allowed {duration(allowed[1])}, limited by {allowed[0]}"
        return said

    def _regime(self, each: Boundary) -> str:
        """Say on which side of M = d² the case is, if the problem's bound changes there."""
        if each.best.bound is None or "Min(" not in each.best.bound.expr or "d" not in self.dims:
            return ""
        ratio = each.M / self.dims["d"] ** 2
        side = "large cache: n²d²/M is below n²d/√M" if ratio >= 1 else "small cache: n²d/√M is below n²d²/M"
        return f" = {ratio:,.2f} d², {side}"

    def _roofline(self) -> str:
        tile = self.fastest
        operations, allowed = tile.operations * self.times, self.allowed(tile)
        if allowed is None:
            known = ", ".join(self.card.peak) or "none"
            lines = [
                f"roofline: no time is given, since no peak rate for {self.dtype} is known (known: {known})",
                f"  arithmetic: {amount(operations, 'FLOP')} of {tile.schedule}",
            ]
        else:
            of = f" with {assigned(tile.blocks)}" if self.kernels else ""
            lines = [
                f"roofline: {tile.schedule}{of} is allowed {duration(allowed[1])}, limited by {allowed[0]}; a real "
                "kernel takes longer",
                f"  arithmetic: {amount(operations, 'FLOP')} at {amount(self.peak or 0, 'FLOP/s')}",
            ]
        if operations > 1.005 * self.useful * self.times:
            lines[-1] += (
                f"; {amount(self.useful * self.times, 'FLOP')} are useful; the rest is recomputation and rescaling"
            )
        solves = problem(self.problem).in_dims(self.dims)
        shapes = (*solves.inputs.values(), *solves.outputs.values())
        held = sum(prod(self.dims[dim] for dim in shape) for shape in shapes) * BYTES[self.dtype] * self.times
        memory = self.card.rate("memory")
        if memory and held > memory:
            lines.append(
                f"  inputs and outputs are {amount(held, 'B')}, more than the {amount(memory, 'B')} of the card"
            )
        return "\n".join([*lines, LEFT_OUT])


def _heading(advice: Advice) -> str:
    """The card and the attention, as it was asked for."""
    under = "" if advice.mask is None else f", mask {advice.mask}"
    heads = f"{advice.heads:,} head{'s' * (advice.heads > 1)}" + (f" x batch {advice.batch:,}" * (advice.batch > 1))
    if (shared := advice.heads_per_problem) > 1:
        heads += f" ({advice.heads // shared:,} KV heads; the {shared:,} query heads of each are counted as one head "
        heads += f"with {next(iter(advice.dims.values())):,} rows of queries)"
    given = listed(advice.asked or advice.dims)
    return f"{advice.card.name}: {advice.problem}, {given}, {advice.dtype}{under}, {heads}"


def _terms_as_data(advice: Advice, boundary: Boundary) -> dict[str, Any]:
    from pebblesim.analysis import terms

    row = advice.explained(boundary)
    return {"explained": row.schedule, "terms": [terms.as_data(term, row.io) for term in advice.terms(boundary)]}


def _with_closed_form(advice: Advice, boundary: Boundary) -> Counted:
    """As `Advice.explained`."""
    from pebblesim.analysis.formula import formula

    mask = advice.mask
    if mask is None:
        return boundary.best
    if not isinstance(mask, Band):
        raise UsageError(f"mask {mask} has no closed form to explain; causal, window:W and band:W have one.")
    for row in boundary.rows:
        with suppress(UsageError):  # its tiles are not alike, or cut from others
            formula(get(row.schedule).in_dims(advice.dims).under(mask), mask)
            return row
    raise UsageError(f"no schedule that fits has a closed form under the mask {mask}; leave out --explain.")
