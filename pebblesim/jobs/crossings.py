"""Find where the I/O of two schedules crosses as M grows: the exact M, the exponent with its proof, for many d.

With the block rule `fit` the I/O of a schedule never increases with M. So its values at two M bound all values between
them. The search halves intervals of M until these bounds separate the curves. It finds every change of the lead among
all M, in both directions, but evaluates few M.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise
from math import inf, isqrt, prod
from typing import Any

from pebblesim.bisection import last_that
from pebblesim.errors import Infeasible, UsageError
from pebblesim.growth.overtaking import bound_exponent, crossing_exponent
from pebblesim.jobs import blocks as block_rules
from pebblesim.jobs.heads import Heads
from pebblesim.language.problems import Problem
from pebblesim.language.registry import Schedule, get
from pebblesim.readings.count import io
from pebblesim.readings.peak import peak_red
from pebblesim.results import Result
from pebblesim.sizes import LARGEST, axis, whole
from pebblesim.theory.lower_bounds import best

PAIRS = (("small-cache", "large-cache"), ("small-cache-streamed", "row-stationary"))
"""Pairs that are compared by default: the paper's two algorithms, and ours."""

OVER_D = (8, 16, 32, 64, 128, 256)
"""Head dimensions for which a crossing is measured."""

RATIO = 64
"""The ratio n/d at which crossings are measured over many d."""


BOTH, NEITHER = "both", "neither"
"""Names of the leader if two schedules move the same number of words, or if neither fits."""


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
        """The same, if the size is M."""
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
            "schedules": list(self.schedules),
            "along": self.along,
            "at": self.at,
            "M": self.M,
            "M_over_d2": None if self.M_over_d2 is None else float(self.M_over_d2),
            "first": self.first,
            "changes": list(self.changes),
            "leads": [{"from": size, "schedule": leader} for size, leader in self.leads],
            "feasible_below": self.fits,
            "words": list(self.words),
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
        then = f"{after} does" if {before, after} == {*self.schedules} else self._says(after)
        text = f"{self._says(before)} up to {self.along} = {last - 1:,}"
        text += f"; from {self.along} = {last:,} on{self._in_d2(last)} {then}"
        if len(changes) > 1:
            turns = (f"{leader} from {size:,}" for size, leader in self.leads)
            text = f"the lead changes {len(changes)} times ({', '.join(turns)}): in the end {text}"
        if not self.fits:
            text += f" ({self._other(after)} or {after} does not fit below)"
        if self.words and None not in self.words:
            a, b = (f"{words:,}" for words in self.words)
            text += f"\n  there {self.schedules[1]} moves {b} words, and {self.schedules[0]} {a}"
        return text

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


@dataclass(frozen=True)
class Crossover(Result):
    """The crossings of pairs of schedules at given sizes, and for many d at n = 64 d.

    Attributes:
        dims, M: the sizes as given, with M if the crossings are along a dimension.
        looked_at: the sizes of that dimension at which the schedules were compared; between two sizes with different
            leaders the change was found by bisection. Empty for crossings along M, where every M is covered.
        heads, times: the heads and sequences, and the factor from the counted problem to all of them; see
            `pebblesim.count`.
        crossings: the crossing of each pair, in order.
        bounds: the exponent at which the two regimes of the lower bound cross, with its proof.
        regimes: which lower bound for all ways of computing is the largest, each with its first M.
        measured: crossings of each pair for many d.
    """

    part = "crossings"

    dims: Mapping[str, int]
    M: int | None
    looked_at: tuple[int, ...]
    heads: Heads
    times: int
    crossings: tuple[Crossing, ...]
    bounds: tuple[Fraction | None, str]
    regimes: tuple[tuple[int, str], ...]
    measured: tuple[Crossing, ...]

    @property
    def schedules(self) -> tuple[str, ...]:
        """All compared schedules, without repetition."""
        return tuple(dict.fromkeys(name for crossing in self.crossings for name in crossing.schedules))

    @property
    def along(self) -> str:
        """The size along which the schedules were compared."""
        return self.crossings[0].along

    def sizes(self, at: int) -> tuple[dict[str, int], int]:
        """Return (dimensions, M) of the counted problem at an M, or at a size of the dimension."""
        if self.M is None:
            return dict(self.dims), at
        solves = get(self.schedules[0]).problem
        return self.heads.cases(solves, {**self.dims, self.along: at}, None).sizes, self.M

    @cached_property
    def exponent(self) -> Fraction | None:
        """The common exponent of all pairs and of the lower bound; None if they differ."""
        values = {self.bounds[0], *(crossing.exponent for crossing in self.crossings)}
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
            **({**self.heads.to_dict(), "times": self.times} if self.heads.said else {}),
            "crossings": [crossing.to_dict() for crossing in self.crossings],
            "exponent": {"value": _number(self.exponent), "proof": "; ".join(proofs)},
            "lower_bounds": [
                {"name": name, "M": M, "M_over_d2": None if d is None else M / d**2} for M, name in self.regimes
            ],
            "measured": [
                {
                    "schedules": list(c.schedules),
                    "n": c.dims["n"],
                    "d": c.d,
                    "M": c.M,
                    "M_over_d2": _number(c.M_over_d2),
                }
                for c in self.measured
            ],
        }

    @property
    def title(self) -> str:
        """The sizes that do not vary."""
        fixed = {name: size for name, size in self.dims.items() if name != self.along}
        words = [f"{name} = {size:,}" for name, size in fixed.items()]
        return ", ".join([*words, *([] if self.M is None else [f"M = {self.M:,} words"])])

    def __str__(self) -> str:
        head = f"{self.title}, blocks: fit"
        if self.looked_at:
            head += f"; along {self.along}, from {self.looked_at[0]:,} to {self.looked_at[-1]:,}"
        lines = [head]
        for crossing in self.crossings:
            lines.append(str(crossing))
            lines += [f"  {'why, ' if crossing.exponent else ''}{crossing.proof}"] if crossing.proof else []
        if self.heads.said:
            lines.append(f"{self.heads}: what moves is for all, {self.times:,} times what is counted")
        if self.looked_at:
            lines.append(
                f"looked for at {len(self.looked_at):,} sizes, and between two that differ in their lead by halving; a "
                "lead that comes and goes between two is not seen"
            )
        if self.bounds[1]:
            lines.append(f"lower bounds: {self.bounds[1]}")
        if self.regimes:
            d = _head_dimension(self.dims)
            largest = (f"{name} from M = {M:,} on" + (f" ({M / d**2:.3f} d²)" if d else "") for M, name in self.regimes)
            lines.append(f"the largest with constants, for every way of computing: {'; '.join(largest)}")
        if self.measured:
            lines.append(f"measured at n = {RATIO} d:")
        for crossing in self.measured:
            M = "never" if crossing.M is None else f"M = {crossing.M:,}, {float(crossing.M_over_d2 or 0):.3f} d²"
            lines.append(f"  d = {crossing.d:<5} {' → '.join(crossing.schedules)}: {M}")
        return "\n".join(lines)


def crossover(
    *schedules: str | Schedule,
    M: int | None = None,
    over_d: Iterable[int] | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    **dims: int | str | Iterable[int],
) -> Crossover:
    """Find which schedule of each pair moves fewer words, and where this changes: along M, or along a dimension.

    Args:
        schedules: pairs of schedules as one flat list, each pair in any order; by default `PAIRS`.
        M: cache size in words, for a crossing along a dimension. Without it, the crossing is along M, and exact for all
            M.
        over_d: head dimensions at which a crossing along M is also measured, with n = 64 d; by default `OVER_D`, if
            only n and d are given.
        heads, kv_heads, batch, separate: as for `count`; sharing keys and values changes the crossing.
        dims: the sizes: n and d, or all dimensions of the problem. With M, one of them has several sizes, such as
            n="1k:1M:x2"; the crossing is along this dimension.

    Returns:
        A crossing for each pair, the exponent with its proof, and the crossings over d.

    >>> crossover("small-cache-streamed", "row-stationary", n=4096, d=64, over_d=()).crossings[0].M
    2223
    >>> crossover("flash2-forward", "standard-forward", n="64:1024:x2", d=64, M=3000).crossings[0].leads
    ((64, 'flash2-forward'),)

    Raises:
        UsageError: the schedules are not pairs, or do not solve the same problem; a size is not allowed; or no
            dimension, or more than one, has several sizes.
    """
    named = [get(name) for name in schedules] or [get(name) for pair in PAIRS for name in pair]
    if len(named) % 2:
        raise UsageError(
            f"{len(named)} schedules were given; a crossing is between two schedules, so give them in pairs."
        )
    pairs = list(zip(named[::2], named[1::2], strict=True))
    for a, b in pairwise(named):
        if a.problem is not b.problem:
            raise UsageError(
                f"{a.name} solves {a.problem.name!r} and {b.name} {b.problem.name!r}; schedules of different "
                "problems cannot be compared."
            )
    solves, among = named[0].problem, Heads(heads, kv_heads, batch, separate)
    axes = {name: axis(name, sizes) for name, sizes in dims.items()}
    several = [name for name, sizes in axes.items() if len(sizes) > 1]
    if len(several) > 1 or bool(several) != (M is not None):
        raise UsageError(_what_is_open(several, M))
    last = {name: sizes[-1] for name, sizes in axes.items()}
    cases = among.cases(solves, last, None)
    if several:
        (along,), at = several, whole("M", M)
        ascending = tuple(sorted(axes[along]))

        @cache
        def shape(size: int) -> dict[str, int]:
            return among.cases(solves, {**last, along: size}, None).sizes

        compared = tuple(_along(a, b, shape, at, along, ascending, cases.times) for a, b in pairs)
        given = {**last, along: ascending[-1]}
        return Crossover(given, at, ascending, among, cases.times, compared, (None, ""), (), ())
    square = set(cases.sizes) == {"n", "d"}
    found: Iterable[Crossing] = [_crossing(a, b, cases.sizes, cases.times) for a, b in pairs]
    many = [{"n": RATIO * d, "d": d} for d in (OVER_D if over_d is None else over_d)] if square else []
    measured: Iterable[Crossing] = [_crossing(a, b, size, 1) for size in many for a, b in pairs]
    if square:
        found, measured = (_with_proofs(each, pairs) for each in (found, measured))
    return Crossover(
        cases.sizes,
        None,
        (),
        among,
        cases.times,
        tuple(found),
        bound_exponent() if square and solves.bounds == "backward" else (None, ""),
        tuple(regimes(solves.in_dims(cases.sizes), cases.sizes)),
        tuple(measured),
    )


def _what_is_open(several: Sequence[str], M: int | None) -> str:
    if len(several) > 1:
        return (
            f"{' and '.join(several)} have several sizes each; a crossing is along one dimension, so give one size "
            "for the others."
        )
    if several:
        return (
            f"{several[0]} has several sizes, so that the crossing is along it: give the cache, too, as M; or one "
            f"{several[0]}, for the crossing in M."
        )
    return (
        f"M = {M} and one size for each dimension were given, which leaves nothing to look along; leave M out, or give "
        "several sizes for a dimension, such as n = 1k:1M:x2."
    )


def _crossing(a: Schedule, b: Schedule, dims: Mapping[str, int], times: int) -> Crossing:
    """Find the crossing along M, for all M."""
    of_a, of_b = (Curve(each.in_dims(dims), dims) for each in (a, b))
    low = min(of_a.least_M, of_b.least_M)
    high = max(of_a.most_M, of_b.most_M, low + 1)
    leads = [(low, _lead(of_a(low), of_b(low))), *_changes(of_a, of_b, low, high)]
    return _made((a.name, b.name), (of_a, of_b), leads, "M", dims, times)


def _with_proofs(found: Iterable[Crossing], pairs: Iterable[tuple[Schedule, Schedule]]) -> Iterator[Crossing]:
    """Add the exponents, which are the same for all sizes."""
    named = {each.name: each for pair in pairs for each in pair}  # some may not be registered
    known: dict[tuple[str, str], tuple[Fraction | None, str]] = {}
    for crossing in found:
        if crossing.schedules not in known:
            known[crossing.schedules] = crossing_exponent(*(named[name] for name in crossing.schedules))
        exponent, proof = known[crossing.schedules]
        yield replace(crossing, exponent=exponent, proof=proof)


def _along(
    a: Schedule,
    b: Schedule,
    shape: Callable[[int], dict[str, int]],
    M: int,
    along: str,
    sizes: Sequence[int],
    times: int,
) -> Crossing:
    """Find the crossing along a dimension, from each given size to the next."""

    def moved_by(schedule: Schedule) -> Callable[[int], int | float]:
        @cache
        def moved(size: int) -> int | float:
            dims = shape(size)
            words = _words(schedule.in_dims(dims), dims, M)
            return inf if words is None else words

        return moved

    of_a, of_b = moved_by(a), moved_by(b)

    def lead(size: int) -> int:
        return _lead(of_a(size), of_b(size))

    found = [(sizes[0], lead(sizes[0]))]
    for low, high in pairwise(sizes):
        while lead(high) != found[-1][1]:
            now = found[-1][1]
            low = last_that(lambda size, now=now: lead(size) == now, low, high) + 1  # type: ignore[misc]
            found.append((low, lead(low)))
    return _made((a.name, b.name), (of_a, of_b), found, along, shape(sizes[-1]), times)


def _made(
    names: tuple[str, str],
    curves: tuple[Callable[[int], int | float], Callable[[int], int | float]],
    leads: Sequence[tuple[int, int]],
    along: str,
    dims: Mapping[str, int],
    times: int,
) -> Crossing:
    """Make the crossing of two schedules in any order: the second is the one that leads last."""
    led = tuple((size, (*names, BOTH, NEITHER)[leader]) for size, leader in leads)
    second = next((leader for _, leader in reversed(led) if leader in names), max(names))
    order = (1, 0) if names[0] == second else (0, 1)
    at = led[-1][0] if led[-1][1] == second else None
    words: tuple[int | None, ...] = ()
    fits = True
    if at is not None:
        fits = at == led[0][0] or max(curve(at - 1) for curve in curves) < inf
        moved = [curves[which](at) for which in order]
        words = tuple(None if each == inf else int(each) * times for each in moved)
    return Crossing((names[order[0]], names[order[1]]), dims, along, led, fits, words)


def _lead(a: int | float, b: int | float) -> int:
    """Which of the two moves fewer words, 0 or 1; 2 for both, 3 for neither."""
    if a == b:
        return 3 if a == inf else 2
    return int(b < a)


def regimes(problem: Problem, dims: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Yield (M, name) of the largest lower bound for all ways of computing, from this M on.

    It is evaluated at every half power of 2 up to four times the largest input. Between neighbours that differ,
    bisection finds the change.
    """

    def name(M: int) -> str:
        return best(problem, dims, M).name

    low, now = 1, name(1)
    yield low, now
    for high in (isqrt(2**power) for power in range(2, 2 * _most(problem, dims).bit_length())):
        while name(high) != now:
            low = last_that(lambda M, now=now: name(M) == now, low, high) + 1  # type: ignore[misc]
            now = name(low)
            yield low, now
        low = high


def _most(problem: Problem, dims: Mapping[str, int]) -> int:
    """Four times the words of the largest input; 4nd in the square case."""
    return 4 * max(prod(dims[dim] for dim in shape) for shape in problem.inputs.values())


def _changes(a: Curve, b: Curve, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield every M in (low, high] where the lead changes, and the new leader.

    Both curves fall, so their values at the ends are bounds.
    """
    if b(low) < a(high) or a(low) < b(high) or (a(low), b(low)) == (a(high), b(high)):
        return
    if high - low == 1:
        if (lead := _lead(a(high), b(high))) != _lead(a(low), b(low)):
            yield high, lead
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
    """I/O of the counted problem in words, over M or over a dimension: the data of the picture of a crossover.

    Attributes:
        found: the crossings.
        at: values of M, or of the dimension, increasing.
        io: for each schedule its I/O at each, None where it is not feasible.
        theta: the expression inside Θ at each; empty if the problem states none.
        lower: the lower bound for all ways of computing at each.
    """

    found: Crossover
    at: Sequence[int]
    io: Mapping[str, Sequence[int | None]]
    theta: Sequence[float]
    lower: Sequence[int]


def sweep(found: Crossover, points: int = 160) -> Sweep:
    """Compute the I/O of the schedules of a crossover.

    It is over M, from the smallest feasible M to four times the largest input, or over the compared sizes of the
    dimension.
    """
    solves = get(found.schedules[0]).problem
    if found.looked_at:
        low, high = found.looked_at[0], found.looked_at[-1]
    else:
        low = min(Curve(get(name).in_dims(found.dims), found.dims).least_M for name in found.schedules)
        high = max(_most(solves.in_dims(found.dims), found.dims), 2 * low)
    steps = sorted({round(low * (high / low) ** (i / (points - 1))) for i in range(points)})
    cases = [found.sizes(at) for at in steps]
    theta = solves.in_dims(cases[0][0]).theta
    return Sweep(
        found,
        steps,
        {name: [_words(get(name).in_dims(dims), dims, M) for dims, M in cases] for name in found.schedules},
        [] if theta is None else [float(theta.value({**dims, "M": M})) for dims, M in cases],
        [best(solves.in_dims(dims), dims, M).value for dims, M in cases],
    )


def _words(schedule: Schedule, dims: Mapping[str, int], M: int) -> int | None:
    """I/O with the block rule `fit`; None where no blocks are feasible."""
    try:
        return io(schedule.program, {**dims, **block_rules.choose(schedule, dims, M)})
    except Infeasible:
        return None
