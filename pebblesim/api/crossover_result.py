"""Crossings as results: which of two schedules moves fewer words, as data and as text.

`pebblesim.api.crossover` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from pebblesim.core.results import Result, plain
from pebblesim.core.tables import Sheet
from pebblesim.counting.count import Counted, ratio
from pebblesim.counting.heads import Heads
from pebblesim.language.problems import Problem
from pebblesim.language.registry import Schedule

RATIO = 64
"""The ratio n/d at which crossings are measured over many d."""


BOTH, NEITHER = "both", "neither"
"""Names of the leader if two schedules move the same number of words, or if neither fits."""


@dataclass(frozen=True)
class Crossing:
    """Which of two schedules moves fewer words, as a function of M or of a dimension.

    Attributes:
        schedules: the two schedules; the second is the one that moves fewer words at the end, independent of the order
            given.
        dims, M: the sizes; for the size that varies, its last value.
        along: the size that varies, "M" or a dimension.
        leads: (size, name) pairs: from this size on this schedule moves fewer words; "both" if they move the same,
            "neither" if neither fits.
        fits: whether both fit just below `at`. If not, they do not cross: the second becomes feasible there.
        words: I/O of both at `at`, for all heads and sequences; empty if there is no crossing.
        exponent: x, if the crossing is M = Θ(d^x).
        proof: the proof of the exponent, or the reason why there is none.
    """

    schedules: tuple[str, str]
    dims: Mapping[str, int]
    along: str
    leads: tuple[tuple[int, str], ...]
    fits: bool
    words: tuple[int | None, ...]
    exponent: Fraction | None = None
    proof: str = ""

    @property
    def at(self) -> int | None:
        """The smallest size such that the second schedule moves fewer words there and for all larger sizes;

        None if there is none.
        """
        last, leader = self.leads[-1]
        return last if leader == self.schedules[1] else None

    @property
    def M(self) -> int | None:
        """The smallest M from which on the second schedule moves fewer words; None if there is none."""
        return self.at if self.along == "M" else None

    @property
    def first(self) -> int | None:
        """The smallest size at which the second schedule moves fewer words."""
        return next((size for size, leader in self.leads if leader == self.schedules[1]), None)

    @property
    def changes(self) -> tuple[int, ...]:
        """Every size at which the lead changes, in order."""
        return tuple(size for size, _ in self.leads[1:])

    @property
    def d(self) -> int | None:
        """The head dimension; None if the rows of keys and values have different lengths."""
        return _head_dimension(self.dims)

    @property
    def M_over_d2(self) -> Fraction | None:
        """M in units of d²; None if there is no single d."""
        return None if self.M is None or self.d is None else Fraction(self.M, self.d**2)

    def to_dict(self) -> dict[str, Any]:
        """Return an entry of `pebblesim crossover --json`."""
        return {
            **plain(self, "schedules", "along", "at", "M"),
            "M_over_d2": None if self.M_over_d2 is None else float(self.M_over_d2),
            **plain(self, "first", "changes"),
            "leads": [{"from": size, "schedule": leader} for size, leader in self.leads],
            "feasible_below": self.fits,
            **plain(self, "words"),
            "exponent": _number(self.exponent),
            "proof": self.proof,
        }

    def __str__(self) -> str:
        """Return which schedule moves fewer words where, and the I/O at the last change."""
        (start, leader), *changes = self.leads
        if not changes:
            where = f"M from {start:,} on" if self.along == "M" else f"{self.along} looked at"
            return f"{self._says(leader)} at every {where}"
        last, after = changes[-1]
        before = self.leads[-2][1]
        if len(changes) > 1:
            turns = (f"{leader} from {size:,}" for size, leader in self.leads[:-1])
            text = f"the lead changes {len(changes)} times: along {self.along}, {', '.join(turns)} up to {last - 1:,}"
            then = self._says(after)
        else:
            text = f"{self._says(before)} up to {self.along} = {last - 1:,}"
            then = f"{after} does" if {before, after} == {*self.schedules} else self._says(after)
        text += f"; from {self.along} = {last:,} on{self._in_d2(last)} {then}"
        if not self.fits and before in self.schedules:
            text += f" ({self._other(before)} does not fit below)"
        if self.words and None not in self.words:
            a, b = (f"{words:,}" for words in self.words)
            text += f"\n  there {self.schedules[1]} moves {b} words, and {self.schedules[0]} {a}"
        return text

    def brief(self, first: str, second: str) -> str:
        """From which M on the second schedule moves fewer words, and how often the lead changes if more than once.

        They are called `first` and `second`.
        """
        if self.M is None or None in self.words:
            return str(self)
        less, more = f"{self.words[1]:,}", f"{self.words[0]:,}"
        fits = "" if self.fits else f" ({second} does not fit below)"
        text = f"from M = {self._measured(self.M)} on, {second} is below {first}: {less} against {more}{fits}"
        if len(self.changes) > 1:
            times, first = len(self.changes), self._measured(self.changes[0])
            text += f"\n  the two change places {times} times, first at M = {first}; this is the last time"
        return text

    def _measured(self, M: int) -> str:
        """M, and what it is in units of d²."""
        return f"{M:,}" + (f" = {M / self.d**2:.2f} d²" if self.d else "")

    def _says(self, leader: str) -> str:
        if leader in self.schedules:
            return f"{leader} moves fewer words than {self._other(leader)}"
        both = " and ".join(self.schedules)
        return f"{both} move the same" if leader == BOTH else f"neither {' nor '.join(self.schedules)} fits"

    def _other(self, name: str) -> str:
        return self.schedules[self.schedules[0] == name]

    def _in_d2(self, M: int) -> str:
        return f" ({M / self.d**2:.3f} d²)" if self.along == "M" and self.d else ""


def _head_dimension(dims: Mapping[str, int]) -> int | None:
    widths = {size for name, size in dims.items() if name.startswith("d")}
    return widths.pop() if len(widths) == 1 else None


class Around(NamedTuple):
    """Schedules at one M.

    Attributes:
        M: the cache, in words.
        rows: the counts of the compared schedules.
        best: that of the schedule of the problem that moves the fewest words; None if none fits.
    """

    M: int
    rows: tuple[Counted, ...]
    best: Counted | None

    def to_dict(self) -> dict[str, Any]:
        """Return an entry of `pebblesim crossover --json`."""
        names = "schedule", "io", "bound_ratio", "gap", "feasible", "least_M"
        best = None if self.best is None else plain(self.best, *names)
        return {"M": self.M, "rows": [plain(row, *names) for row in self.rows], "best": best}


@dataclass(frozen=True)
class Crossover(Result):
    """The crossings of pairs of schedules at given sizes, and for many d at n = 64 d.

    Attributes:
        named: the compared schedules, by name; they may be registered nowhere.
        dims, M: the sizes as given, with M if the crossings are along a dimension.
        looked_at: the sizes of that dimension at which the schedules were compared; between two sizes with different
            leaders the change was found by bisection. Empty for crossings along M, where every M is covered.
        heads, times: the heads and sequences, and the factor from the counted problem to all of them; see
            `pebblesim.count`.
        crossings: the crossing of each pair, in order.
        bounds: the exponent at which the two regimes of the lower bound cross, with its proof.
        regimes: which lower bound for all ways of computing is the largest, each with its first M.
        measured: crossings of each pair for many d.
        around: the counts of the schedules for some M around d², if there is a single d.
        beside: the counts of FlashAttention's own passes at the largest of these M, beside the default comparison.
    """

    part = "crossings"

    named: Mapping[str, Schedule] = field(repr=False)
    dims: Mapping[str, int]
    M: int | None
    looked_at: tuple[int, ...]
    heads: Heads
    times: int
    crossings: tuple[Crossing, ...]
    bounds: tuple[Fraction | None, str]
    regimes: tuple[tuple[int, str], ...]
    measured: tuple[Crossing, ...]
    around: tuple[Around, ...] = ()
    beside: tuple[Counted, ...] = ()

    @property
    def schedules(self) -> tuple[str, ...]:
        """All compared schedules, without repetition."""
        return tuple(dict.fromkeys(name for crossing in self.crossings for name in crossing.schedules))

    @property
    def solves(self) -> Problem:
        """The problem that all of them solve."""
        return self.named[self.schedules[0]].problem

    @property
    def along(self) -> str:
        """The size along which the schedules were compared."""
        return self.crossings[0].along

    def sizes(self, at: int) -> tuple[dict[str, int], int]:
        """Return (dimensions, M) of the counted problem at an M, or at a size of the dimension."""
        if self.M is None:
            return dict(self.dims), at
        return self.heads.cases(self.solves, {**self.dims, self.along: at}, None).sizes, self.M

    @cached_property
    def exponent(self) -> Fraction | None:
        """The common exponent of the lower bound and of all pairs that have one; None if they differ."""
        values = {self.bounds[0], *(each.exponent for each in self.crossings if each.exponent is not None)}
        return values.pop() if len(values) == 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim crossover --json`."""
        proofs = [f"{' and '.join(c.schedules)}: {c.proof}" for c in self.crossings if c.proof]
        proofs += [f"lower bounds: {self.bounds[1]}"] if self.bounds[1] else []
        d = _head_dimension(self.dims)
        return {
            **self.dims,
            **({} if self.M is None else {"M": self.M}),
            "along": self.along,
            "looked_at": list(self.looked_at),
            **({**self.heads.to_dict(), "times": self.times} if self.heads.is_given else {}),
            **({"around": [each.to_dict() for each in self.around]} if self.around else {}),
            "crossings": [crossing.to_dict() for crossing in self.crossings],
            "exponent": {"value": _number(self.exponent), "proof": "; ".join(proofs)},
            "lower_bounds": [
                {"name": name, "M": M, "M_over_d2": None if d is None else M / d**2} for M, name in self.regimes
            ],
            "measured": [
                plain(c, "schedules") | {"n": c.dims["n"]} | plain(c, "d", "M") | {"M_over_d2": _number(c.M_over_d2)}
                for c in self.measured
            ],
        }

    @property
    def title(self) -> str:
        """The sizes that do not vary."""
        fixed = {name: size for name, size in self.dims.items() if name != self.along}
        words = [f"{name} = {size:,}" for name, size in fixed.items()]
        return ", ".join([*words, *([] if self.M is None else [f"M = {self.M:,} words"])])

    def parts(self, wide: bool = False) -> list[str | Sheet]:
        """Return the parts to print: the schedules around M = d², and the crossings.

        `wide`: also why they cross, the regimes of the lower bounds, and the crossings for many d.
        """
        along = f"; along {self.along}, from {self.looked_at[0]:,} to {self.looked_at[-1]:,}" if self.looked_at else ""
        parts: list[str | Sheet] = [self.solves.heading(self.title + along, options=False)]
        if self.around:
            parts += [self._sheet, *self._said]
        for crossing in self.crossings:
            called = (self.named[name].known_as or name for name in crossing.schedules)
            parts.append(str(crossing) if wide or not self.around else crossing.brief(*called))
            if crossing.proof and wide:
                parts.append(f"  {'why, ' if crossing.exponent else ''}{crossing.proof}")
        if self.heads.is_given:
            parts.append(f"{self.heads}: what moves is for all, {self.times:,} times what is counted")
        if self.looked_at:
            parts.append(
                f"looked for at {len(self.looked_at):,} sizes, and between two that differ in their lead by halving; a "
                "lead that comes and goes between two is not seen"
            )
        return parts + self._own_passes + (self._on_bounds + self._over_d if wide else [])

    @property
    def _sheet(self) -> Sheet:
        """The schedules around M = d²."""
        lines = []
        for at in self.around:
            M = f"{at.M:,} = {_in_d2(Fraction(at.M, (self.crossings[0].d or 1) ** 2))}"
            for row in at.rows:
                io = f"{row.io:,}" if row.least_M is None else f"needs M ≥ {row.least_M:,}"
                lines.append((M, row.title, io, *_ratios(row)))
                M = ""
            if at.best is not None:
                lines.append((M, f"best: {at.best.schedule}", f"{at.best.io:,}", *_ratios(at.best)))
        return Sheet(("M, words", "schedule", "I/O, words", "÷ Θ", "gap"), lines, ("schedule", "I/O, words"), left=2)

    @property
    def _said(self) -> list[str]:
        """Sentences on what the columns divide by, and on which blocks were taken."""
        bound = self.around[0].rows[0].bound
        divides = "the literature's bound without its constant"
        return [
            "I/O: words moved between memory and a cache of M words; gap: I/O ÷ the proved lower bound",
            *([f"÷ Θ: I/O ÷ ({bound.written}), {divides}"] if bound else []),
            "blocks: the largest that fit; those of the best schedule are chosen for the fewest words",
        ]

    @property
    def _own_passes(self) -> list[str]:
        """FlashAttention's own passes: they solve other problems."""
        if not self.beside:
            return []
        rows = (
            f"  {row.problem}: {row.schedule} ({row.credit}) moves {row.io:,} words, gap {ratio(row.gap)}"
            for row in self.beside
        )
        others = "other problems, attention's own passes"
        return [f"{others}, at M = {self.beside[0].M:,} (for their crossings, name two schedules):", *rows]

    @property
    def _on_bounds(self) -> list[str]:
        """The regimes of the lower bounds."""
        lines = [f"lower bounds: {self.bounds[1]}"] if self.bounds[1] else []
        if self.regimes:
            d = _head_dimension(self.dims)
            largest = (f"{name} from M = {M:,} on" + (f" ({M / d**2:.3f} d²)" if d else "") for M, name in self.regimes)
            lines.append(f"the largest with constants, for every way of computing: {'; '.join(largest)}")
        return lines

    @property
    def _over_d(self) -> list[str]:
        """The crossings for many d."""
        lines = [f"counted at n = {RATIO} d:"] if self.measured else []
        for crossing in self.measured:
            M = "never" if crossing.M is None else f"M = {crossing.M:,}, {float(crossing.M_over_d2 or 0):.3f} d²"
            lines.append(f"  d = {crossing.d:<5} {' → '.join(crossing.schedules)}: {M}")
        return lines

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts(wide=True)))


def _ratios(row: Counted) -> tuple[str, str]:
    """I/O ÷ Θ, and the gap; empty where a schedule does not fit."""
    return ("", "") if row.least_M is not None else (ratio(row.bound_ratio), ratio(row.gap))


def _in_d2(factor: Fraction) -> str:
    """A multiple of d²: d²/4, d², 4 d²."""
    above = "" if factor.numerator == 1 else f"{factor.numerator} "
    return f"{above}d²" + (f"/{factor.denominator}" if factor.denominator > 1 else "")


def _number(value: Fraction | None) -> int | float | None:
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)
