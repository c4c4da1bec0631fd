"""Find where the I/O of two schedules crosses as M grows: the exact M, the exponent with its proof, for many d.

With the block rule `fit` the I/O of a schedule never increases with M. So its values at two M bound all values between
them. The search halves intervals of M until these bounds separate the curves. It finds every change of the lead among
all M, in both directions, but evaluates few M.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import inf, isqrt, prod
from typing import Any, TypeVar

from pebblesim.analysis import blocks as block_rules
from pebblesim.analysis.count import io
from pebblesim.analysis.peak import peak_red
from pebblesim.api.crossover_result import BOTH, NEITHER, RATIO, Around, Crossing, Crossover
from pebblesim.api.overtaking import bound_exponent, crossing_exponent
from pebblesim.core.bisection import last_that
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.sizes import LARGEST, axis, quantity, whole
from pebblesim.counting.best import best_of
from pebblesim.counting.compare import compare, runs_of
from pebblesim.counting.count import Counted
from pebblesim.counting.heads import Heads
from pebblesim.language.problems import Problem
from pebblesim.language.registry import Schedule, by_name, get
from pebblesim.lower_bounds.own import best_with_own

T = TypeVar("T")

PAIRS = (("small-cache", "large-cache"), ("small-cache", "flash"), ("flash", "large-cache"))
"""Pairs that are compared by default: the paper's Algorithms 6 and 9, and FlashAttention."""

OWN_PASSES = ("flash2-forward", "flash2-backward")
"""FlashAttention's own passes, which are other problems than the paper's gradient, beside the default comparison."""

AROUND = (Fraction(1, 4), Fraction(1), Fraction(4), Fraction(16))
"""M ÷ d² at which the schedules are counted."""


OVER_D = (8, 16, 32, 64, 128, 256)
"""Head dimensions for which a crossing is measured."""


class Curve:
    """I/O of a schedule with the block rule `fit`, as a function of M; infinite where no blocks are feasible."""

    def __init__(self, schedule: Schedule, dims: Mapping[str, int]) -> None:
        self.schedule, self.dims = schedule, dims
        self._known: dict[int, int] = {}
        self.least_M = peak_red(schedule.program, {**dims, **block_rules.least_feasible(schedule, dims)})
        self.most_M = self._most_M()  # from here on blocks hold everything

    def _most_M(self) -> int:
        """Return an M from which on the blocks are the largest. They may need less than others on the way to them."""
        whole = block_rules.choose(self.schedule, self.dims, LARGEST)
        M = peak_red(self.schedule.program, {**self.dims, **whole})
        while block_rules.choose(self.schedule, self.dims, M) != whole:
            M *= 2
        return M

    def __call__(self, M: int) -> int | float:
        """Words of I/O."""
        if self.least_M > M:
            return inf
        M = min(M, self.most_M)
        if M not in self._known:
            sizes = {**self.dims, **block_rules.choose(self.schedule, self.dims, M)}
            self._known[M] = io(self.schedule.program, sizes)
        return self._known[M]


@checked_kinds()
def crossover(
    *schedules: str | Schedule,
    M: int | None = None,
    over_d: Iterable[int] | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    proofs: bool = True,
    progress: Callable[[float], None] | None = None,
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
        proofs: whether to prove the exponents, and to find which lower bound is the largest where; it takes seconds.
        progress: called with the part of the sizes of M at which bounds were compared, which takes long for a large n.
        dims: the sizes: n and d, or all dimensions of the problem. With M, one of them has several sizes, such as
            n="1k:1M:x2"; the crossing is along this dimension.

    Returns:
        A crossing for each pair, the exponent with its proof, and the crossings over d.

    >>> crossover("small-cache-streamed", "row-stationary", n=4096, d=64, over_d=()).crossings[0].M
    2223
    >>> crossover("flash2-forward", "standard-forward", n="64:256:x2", d=64, M=3000).crossings[0].leads
    ((64, 'flash2-forward'),)

    Raises:
        UsageError: the schedules are not pairs, or do not solve the same problem; a size is not allowed; or no
            dimension, or more than one, has several sizes.
    """
    named = [get(name) for name in schedules] or [get(name) for pair in PAIRS for name in pair]
    if len(named) % 2:
        raise UsageError(
            f"{quantity(len(named), 'schedule')} given; a crossing is between two schedules, so give them in pairs."
        )
    pairs = list(zip(named[::2], named[1::2], strict=True))
    for a, b in pairwise(named):
        if a.problem is not b.problem:
            raise UsageError(
                f"{a.name} solves {a.problem.name!r} and {b.name} {b.problem.name!r}; schedules of different "
                "problems cannot be compared."
            )
    compared, solves, among = by_name(named), named[0].problem, Heads(heads, kv_heads, batch, separate)
    axes = {name: axis(name, sizes) for name, sizes in dims.items()}
    several = [name for name, sizes in axes.items() if len(sizes) > 1]
    if len(several) > 1 or bool(several) != (M is not None):
        raise UsageError(_axis_error(several, M))
    last = {name: sizes[-1] for name, sizes in axes.items()}
    cases = among.cases(solves, last, None)
    if several:
        (along,), at = several, whole("M", M)
        ascending = tuple(sorted(axes[along]))

        @cache
        def shape(size: int) -> dict[str, int]:
            return among.cases(solves, {**last, along: size}, None).sizes

        found = tuple(_along(a, b, shape, at, along, ascending, cases.times) for a, b in pairs)
        largest = {**last, along: ascending[-1]}
        return Crossover(compared, largest, at, ascending, among, cases.times, found, (None, ""), (), ())
    square = set(cases.sizes) == {"n", "d"}
    rows = list(_around(solves, compared, cases.sizes)) if "d" in cases.sizes else []
    beside = list(_own_passes(cases.sizes, rows[-1].M)) if rows and not schedules else []
    crossings: Iterable[Crossing] = [_crossing(a, b, cases.sizes, cases.times) for a, b in pairs]
    many = [{"n": RATIO * d, "d": d} for d in (OVER_D if over_d is None else over_d)] if square else []
    measured: Iterable[Crossing] = [_crossing(a, b, size, 1) for size in many for a, b in pairs]
    if square and proofs:
        crossings, measured = (_with_proofs(each, compared) for each in (crossings, measured))
    return Crossover(
        compared,
        cases.sizes,
        None,
        (),
        among,
        cases.times,
        tuple(crossings),
        bound_exponent() if square and proofs and solves.bounds == "backward" else (None, ""),
        tuple(regimes(solves.in_dims(cases.sizes), cases.sizes, progress)) if proofs else (),
        tuple(measured),
        tuple(rows),
        tuple(beside),
    )


def _around(solves: Problem, named: Mapping[str, Schedule], dims: dict[str, Any]) -> Iterator[Around]:
    """Yield the counts of the schedules, and of the best one, for some M around d²."""
    for factor in AROUND:
        if (M := factor * dims["d"] ** 2).denominator == 1:
            rows = {row.schedule: row for row in compare(schedules=named.values(), M=int(M), **dims)}
            yield Around(int(M), tuple(rows[name] for name in named), _best(solves, dims, int(M)))


def _best(solves: Problem, dims: Mapping[str, int], M: int, like: str = "") -> Counted | None:
    """The schedule that moves the fewest words, with its best blocks; `like`: the best one for a similar M."""
    shape: dict[str, Any] = {"schedules": None, "M": M, "blocks": "best", **dims}
    return best_of(runs_of(solves.name, **shape), like)


def _own_passes(dims: dict[str, Any], M: int) -> Iterator[Counted]:
    """Yield the counts of FlashAttention's own passes, if they fit."""
    for name in OWN_PASSES:
        if (row := compare(schedules=[name], M=M, **dims)[0]).feasible:
            yield row


def _axis_error(several: Sequence[str], M: int | None) -> str:
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
    of_a, of_b = (Curve(schedule.in_dims(dims), dims) for schedule in (a, b))
    low = min(of_a.least_M, of_b.least_M)
    high = max(of_a.most_M, of_b.most_M, low + 1)
    leads = [(low, _lead(of_a(low), of_b(low))), *_changes(of_a, of_b, low, high)]
    return _made((a.name, b.name), (of_a, of_b), leads, "M", dims, times)


def _with_proofs(crossings: Iterable[Crossing], named: Mapping[str, Schedule]) -> Iterator[Crossing]:
    """Add the exponents, which are the same for all sizes."""
    known: dict[tuple[str, str], tuple[Fraction | None, str]] = {}
    for crossing in crossings:
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
    leads = list(_turns(lambda size: _lead(of_a(size), of_b(size)), sizes))
    return _made((a.name, b.name), (of_a, of_b), leads, along, shape(sizes[-1]), times)


def _turns(value: Callable[[int], T], sizes: Iterable[int]) -> Iterator[tuple[int, T]]:
    """Yield (first size, value), then each size at which the value changes, and its new value.

    Between neighbours of `sizes` with different values, bisection finds the change.
    """
    ascending = iter(sizes)
    low = next(ascending)
    now = value(low)
    yield low, now
    for high in ascending:
        while value(high) != now:
            low = last_that(lambda size, now=now: value(size) == now, low, high) + 1  # type: ignore[misc]
            now = value(low)
            yield low, now
        low = high


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


def regimes(
    problem: Problem, dims: Mapping[str, int], progress: Callable[[float], None] | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (M, name) of the largest lower bound for all ways of computing, from this M on.

    It is evaluated at every half power of 2 up to four times the largest input.
    """

    def tried() -> Iterator[int]:
        powers = range(2, 2 * _most(problem, dims).bit_length())
        yield 1
        for done, power in enumerate(powers, 1):
            yield isqrt(2**power)
            if progress:
                progress(done / len(powers))

    return _turns(lambda M: best_with_own(problem, dims, M).name, tried())


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


@dataclass(frozen=True)
class Sweep:
    """I/O of the counted problem in words, over M or over a dimension: the data of the picture of a crossover.

    Attributes:
        crossover: the crossings.
        at: values of M, or of the dimension, increasing.
        io: for each schedule its I/O at each, None where it is not feasible.
        theta: the expression inside Θ at each; empty if the problem states none.
        lower: the lower bound for all ways of computing at each.
        own: users' own bounds among these, by name.
        best: (size, I/O of the schedule of the problem that moves the fewest words) for some of them.
    """

    crossover: Crossover
    at: Sequence[int]
    io: Mapping[str, Sequence[int | None]]
    theta: Sequence[float]
    lower: Sequence[int]
    own: Sequence[str] = ()
    best: Sequence[tuple[int, int]] = ()


def sweep(result: Crossover, points: int = 160) -> Sweep:
    """Compute the I/O of the schedules of a crossover.

    It is over M, from the smallest feasible M to four times the largest input, or over the compared sizes of the
    dimension.
    """
    solves, named = result.solves, {name: result.named[name] for name in result.schedules}
    if result.looked_at:
        low, high = result.looked_at[0], result.looked_at[-1]
    else:
        low = min(Curve(each.in_dims(result.dims), result.dims).least_M for each in named.values())
        high = max(_most(solves.in_dims(result.dims), result.dims), 2 * low)
    steps = sorted({round(low * (high / low) ** (i / (points - 1))) for i in range(points)})
    cases = [result.sizes(at) for at in steps]
    theta = solves.in_dims(cases[0][0]).theta
    lower = [best_with_own(solves.in_dims(dims), dims, M) for dims, M in cases]
    return Sweep(
        result,
        steps,
        {name: [_words(each.in_dims(dims), dims, M) for dims, M in cases] for name, each in named.items()},
        [] if theta is None else [float(theta.value({**dims, "M": M})) for dims, M in cases],
        [bound.value for bound in lower],
        list(dict.fromkeys(bound.name for bound in lower if bound.own)),
        list(_least(solves, zip(steps[::4], cases[::4], strict=True))),
    )


def _least(solves: Problem, cases: Iterable[tuple[int, tuple[dict[str, int], int]]]) -> Iterator[tuple[int, int]]:
    """Yield the I/O of the best schedule of a problem at each size where one fits."""
    like = ""
    for at, (dims, M) in cases:
        if (row := _best(solves, dims, M, like)) is not None:
            like = row.schedule
            yield at, row.io


def _words(schedule: Schedule, dims: Mapping[str, int], M: int) -> int | None:
    """I/O with the block rule `fit`; None where no blocks are feasible."""
    try:
        return io(schedule.program, {**dims, **block_rules.choose(schedule, dims, M)})
    except Infeasible:
        return None
