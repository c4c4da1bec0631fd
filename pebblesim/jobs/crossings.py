"""Where the I/O of two schedules crosses as the cache grows: the exact M, the exponent with its proof, and many d.

With the block rule `fit` the I/O of a schedule never rises with M; then two values bound all between them. The search
halves intervals of M until the bounds tell the curves apart, so it finds every change of the lead among all M, back and
forth included, though it looks at few of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf, isqrt
from typing import Any

from pebblesim.errors import UsageError
from pebblesim.growth.overtaking import bound_exponent, crossing_exponent
from pebblesim.jobs import blocks as block_rules
from pebblesim.jobs.arguments import problem_dims
from pebblesim.language.problems import Problem
from pebblesim.language.registry import Schedule, get
from pebblesim.readings.count import io
from pebblesim.readings.peak import peak_red
from pebblesim.results import Result
from pebblesim.sizes import LARGEST
from pebblesim.theory.lower_bounds import best

PAIRS = (("small-cache", "large-cache"), ("small-cache-streamed", "row-stationary"))
"""What is compared unless something else is named: the paper's two algorithms, and ours."""

OVER_D = (8, 16, 32, 64, 128, 256)
"""Head dimensions for which a crossing is measured."""

RATIO = 64
"""n/d where a crossing is measured over many d."""


class Curve:
    """I/O of a schedule with the block rule `fit`, as a function of M; infinite where no blocks are feasible."""

    def __init__(self, schedule: Schedule, dims: Mapping[str, int]) -> None:
        self.schedule, self.dims = schedule, dims
        self._known: dict[int, int] = {}
        self.least_M = peak_red(schedule.program, {**dims, **block_rules.smallest(schedule)})
        whole = block_rules.choose(schedule, dims, LARGEST)
        self.most_M = peak_red(schedule.program, {**dims, **whole})  # from here on blocks hold everything

    def __call__(self, M: int) -> int | float:
        """Words of I/O."""
        if self.least_M > M:
            return inf
        M = min(M, self.most_M)
        if M not in self._known:
            sizes = {**self.dims, **block_rules.choose(self.schedule, self.dims, M)}
            self._known[M] = io(self.schedule.program, sizes)
        return self._known[M]


@dataclass(frozen=True)
class Crossing:
    """Where the second of two schedules moves fewer words than the first.

    Attributes:
        schedules: the two.
        d: the head dimension.
        M: the least M from which on the second moves fewer words for all larger M; None if there is none.
        first: the least M where it does so at all.
        changes: every M at which the lead changes, in order.
        feasible: whether both are feasible just below M: if not, they do not cross, the second just starts there.
        exponent: x, if the crossing is M = Θ(d^x).
        proof: what proves the exponent, or why nothing does.
    """

    schedules: tuple[str, str]
    d: int
    M: int | None
    first: int | None
    changes: tuple[int, ...]
    feasible: bool
    exponent: Fraction | None
    proof: str

    @property
    def M_over_d2(self) -> Fraction | None:
        """M in units of d²."""
        return None if self.M is None else Fraction(self.M, self.d**2)

    def to_dict(self) -> dict[str, Any]:
        """An entry of `pebblesim crossover --json`."""
        return {
            "schedules": list(self.schedules),
            "M": self.M,
            "M_over_d2": None if self.M_over_d2 is None else float(self.M_over_d2),
            "first": self.first,
            "changes": list(self.changes),
            "feasible_below": self.feasible,
            "exponent": _number(self.exponent),
            "proof": self.proof,
        }

    def __str__(self) -> str:
        a, b = self.schedules
        if self.M is None:
            return f"{b} never stays below {a}" + (f"; it is below at M = {self.first:,}" if self.first else "")
        text = f"{b} moves fewer words than {a} from M = {self.M:,} on, {float(self.M_over_d2 or 0):.3f} d²"
        if len(self.changes) > 1:
            text += f"; the lead changes {len(self.changes)} times, at M = {', '.join(f'{M:,}' for M in self.changes)}"
        return text + ("" if self.feasible else f" ({b} or {a} does not fit below)")


@dataclass(frozen=True)
class Crossover(Result):
    """The crossings of pairs of schedules at one n and d, and over many d at n = 64 d.

    Attributes:
        dims: the sizes.
        crossings: one for each pair, in order.
        bounds: the exponent at which the two regimes of the lower bound cross, with its proof.
        regimes: which lower bound with constants, for every way of computing, is the largest, each from an M on.
        measured: crossings of every pair over many d.
    """

    dims: Mapping[str, int]
    crossings: tuple[Crossing, ...]
    part = "crossings"

    bounds: tuple[Fraction | None, str]
    regimes: tuple[tuple[int, str], ...]
    measured: tuple[Crossing, ...]

    @property
    def schedules(self) -> tuple[str, ...]:
        """All that are compared, each once."""
        return tuple(dict.fromkeys(name for crossing in self.crossings for name in crossing.schedules))

    @cached_property
    def exponent(self) -> Fraction | None:
        """The exponent that all pairs and the lower bound have in common."""
        values = {self.bounds[0], *(crossing.exponent for crossing in self.crossings)}
        return values.pop() if len(values) == 1 else None

    def to_dict(self) -> dict[str, Any]:
        """As printed by `pebblesim crossover --json`."""
        proofs = [f"{' and '.join(c.schedules)}: {c.proof}" for c in self.crossings]
        return {
            **self.dims,
            "crossings": [crossing.to_dict() for crossing in self.crossings],
            "exponent": {
                "value": _number(self.exponent),
                "proof": "; ".join([*proofs, f"lower bounds: {self.bounds[1]}"]),
            },
            "lower_bounds": [{"name": name, "M": M, "M_over_d2": M / self.dims["d"] ** 2} for M, name in self.regimes],
            "measured": [
                {
                    "schedules": list(c.schedules),
                    "n": RATIO * c.d,
                    "d": c.d,
                    "M": c.M,
                    "M_over_d2": _number(c.M_over_d2),
                }
                for c in self.measured
            ],
        }

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size:,}" for name, size in self.dims.items())
        lines = [f"{sizes}, blocks: fit"]
        for crossing in self.crossings:
            lines += [str(crossing), f"  {crossing.proof}"]
        lines.append(f"lower bounds: {self.bounds[1]}")
        largest = (f"{name} from M = {M:,} on, {M / self.dims['d'] ** 2:.3f} d²" for M, name in self.regimes)
        lines.append(f"the largest with constants, for every way of computing: {'; '.join(largest)}")
        if self.measured:
            lines.append(f"measured at n = {RATIO} d:")
        for crossing in self.measured:
            M = "never" if crossing.M is None else f"M = {crossing.M:,}, {float(crossing.M_over_d2 or 0):.3f} d²"
            lines.append(f"  d = {crossing.d:<5} {' → '.join(crossing.schedules)}: {M}")
        return "\n".join(lines)


def crossover(*schedules: str | Schedule, over_d: Iterable[int] | None = None, **dims: int) -> Crossover:
    """Where the second schedule of each pair begins to move fewer words than the first.

    Args:
        schedules: pairs, one after the other; by default those of `PAIRS`.
        over_d: head dimensions for which to measure it too, at n = 64 d; those of `OVER_D` by default.
        dims: n and d.

    >>> crossover("small-cache-streamed", "row-stationary", n=4096, d=64, over_d=()).crossings[0].M
    2223

    Raises:
        UsageError: schedules that do not come in pairs or do not solve the same problem, or sizes that are not allowed.
    """
    named = [get(name) for name in schedules] or [get(name) for pair in PAIRS for name in pair]
    if len(named) % 2:
        raise UsageError(f"{len(named)} schedules were given; a crossing is between two, so name them in pairs.")
    pairs = list(zip(named[::2], named[1::2], strict=True))
    for a, b in pairs:
        if a.problem is not b.problem:
            raise UsageError(
                f"{a.name} solves {a.problem.name!r} and {b.name} {b.problem.name!r}; they do not compare."
            )
    if any(set(a.problem.dims) != {"n", "d"} for a, _ in pairs):
        raise UsageError("a crossing is measured in d², so the problem must have the sizes n and d.")
    sizes = problem_dims(named[0].problem, dims)
    proofs = [crossing_exponent(a, b) for a, b in pairs]
    many = ({"n": RATIO * d, "d": d} for d in (OVER_D if over_d is None else over_d))
    return Crossover(
        sizes,
        tuple(_crossing(a, b, sizes, *proof) for (a, b), proof in zip(pairs, proofs, strict=True)),
        bound_exponent(),
        tuple(regimes(named[0].problem, sizes)),
        tuple(_crossing(a, b, size, *proof) for size in many for (a, b), proof in zip(pairs, proofs, strict=True)),
    )


def _crossing(a: Schedule, b: Schedule, dims: Mapping[str, int], exponent: Fraction | None, proof: str) -> Crossing:
    of_a, of_b = Curve(a, dims), Curve(b, dims)
    low = min(of_a.least_M, of_b.least_M)
    high = max(of_a.most_M, of_b.most_M, low + 1)
    changes = tuple(_changes(of_a, of_b, low, high))
    at_first = of_b(low) < of_a(low)
    ends_below = at_first == (len(changes) % 2 == 0)
    M = (changes[-1] if changes else low) if ends_below else None
    first = low if at_first else changes[0] if changes else None
    feasible = M is None or max(of_a(M - 1), of_b(M - 1)) < inf
    return Crossing((a.name, b.name), dims["d"], M, first, changes, feasible, exponent, proof)


def regimes(problem: Problem, dims: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """(M, name) of the lower bound for every way of computing, as it is from there on.

    Looked for at every half power of 2 up to 4nd; where neighbours differ the change is found by halving.
    """

    def name(M: int) -> str:
        return best(problem, dims, M).name

    most = 4 * dims["n"] * dims["d"]
    low, now = 1, name(1)
    yield low, now
    for high in (isqrt(2**power) for power in range(2, 2 * most.bit_length())):
        while name(high) != now:
            first = low + 1 + bisect_left(range(low + 1, high), True, key=lambda M, now=now: name(M) != now)  # type: ignore[misc]
            low, now = first, name(first)
            yield low, now
        low = high


def _changes(a: Curve, b: Curve, low: int, high: int) -> Iterator[int]:
    """Every M in (low, high] where b begins or ceases to be below a; both fall, so their ends bound them."""
    if b(low) < a(high) or b(high) >= a(low) or (a(low), b(low)) == (a(high), b(high)):
        return
    if high - low == 1:
        if (b(low) < a(low)) != (b(high) < a(high)):
            yield high
        return
    middle = (low + high) // 2
    yield from _changes(a, b, low, middle)
    yield from _changes(a, b, middle, high)


def _number(value: Fraction | None) -> int | float | None:
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)


@dataclass(frozen=True)
class Sweep:
    """I/O over M, in words: what the picture of a crossover shows.

    Attributes:
        dims: the sizes.
        M: cache sizes, rising.
        io: for each schedule its I/O at each M, None where it is not feasible.
        theta: the expression inside Θ at each M; empty if the problem states none.
        lower: the lower bound for every way of computing at each M.
        crossings: where the schedules cross.
    """

    dims: Mapping[str, int]
    M: Sequence[int]
    io: Mapping[str, Sequence[int | None]]
    theta: Sequence[float]
    lower: Sequence[int]
    crossings: tuple[Crossing, ...]


def sweep(found: Crossover, points: int = 160) -> Sweep:
    """The I/O of the schedules of a crossover, from the least M that one of them can use to 4nd."""
    curves = {name: Curve(get(name), found.dims) for name in found.schedules}
    low = min(curve.least_M for curve in curves.values())
    high = max(4 * found.dims["n"] * found.dims["d"], 2 * low)
    steps = sorted({round(low * (high / low) ** (i / (points - 1))) for i in range(points)})
    solves = next(iter(curves.values())).schedule.problem
    theta = solves.theta
    return Sweep(
        found.dims,
        steps,
        {name: [None if curve.least_M > M else int(curve(M)) for M in steps] for name, curve in curves.items()},
        [] if theta is None else [float(theta.value({**found.dims, "M": M})) for M in steps],
        [best(solves, found.dims, M).value for M in steps],
        found.crossings,
    )
