"""Derive closed forms, pseudo-code, and outputs on real arrays from a schedule's program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.sizes import listed
from pebblesim.counting.arguments import AnyMask, BlockRule
from pebblesim.counting.run import Run
from pebblesim.language import masks
from pebblesim.language.catalogue import is_built_in
from pebblesim.language.problems import Scale
from pebblesim.language.registry import Schedule, get

if TYPE_CHECKING:
    from pebblesim.analysis.formula import Formula


@checked_kinds()
def formula(schedule: str | Schedule, mask: AnyMask | None = None, *, rectangular: bool = False) -> Formula:
    """Derive the closed forms of a schedule's reads, writes, I/O and peak from its program, as sympy expressions.

    They are in n and d, or, if `rectangular`, in all dimensions of the problem, such as n_q, n_k, d_k and d_v.

    The masks "causal", "window:W" and "band:W" give closed forms in sizes and blocks. The mask "any" is unknown: its
    closed forms contain functions such as `tiles(B_r, B_c)`, the number of tiles with an allowed pair
    (`pebblesim.analysis.masked_sums`).

    Args:
        schedule: its name, or the schedule itself.
        mask: None, "causal", "window:W", "band:W" or "any".
        rectangular: use all dimensions of the problem instead of n and d.

    Returns:
        The closed forms; their method `evaluate` computes numbers.

    >>> formula("matmul-tiled").io
    k*m*ceiling(n/b) + k*n*ceiling(m/b) + m*n
    >>> formula("matmul-tiled").io.subs({"m": 5, "k": 4, "n": 3, "b": 2})
    91

    Raises:
        UsageError: a name is not known, the mask has no closed form, the problem has no other dimensions, or the I/O
            that a schedule of yours states (`io=`) is not what it moves.
    """
    from pebblesim.analysis.formula import formula as derive

    algorithm = _in_shape(schedule, rectangular)
    _check_stated(get(schedule))
    if isinstance(mask, str) and mask == "any":
        return derive(algorithm.masked)
    band = masks.of(mask)
    if band is None:
        return derive(algorithm.program)
    if not isinstance(band, masks.Band):
        raise UsageError(f"mask {band} has no closed form; use 'any', 'causal', 'window:W' or 'band:W', or `count`.")
    return derive(algorithm.masked, band)


_RIGHT: WeakKeyDictionary[Callable[..., None], set[tuple[str | None, ...]]] = WeakKeyDictionary()
"""Problems for which the I/O that schedules by these functions state is what they move."""


def _check_stated(schedule: Schedule) -> None:
    """Refuse the I/O that a user's schedule states if it differs from counts; the tests do that for those that ship.

    Counts take longer than the closed form, so that they are made once.
    """
    from pebblesim.analysis.count import io
    from pebblesim.core.notation import parse
    from pebblesim.language.small_sizes import small_sizes

    known = _RIGHT.setdefault(schedule.function, set())
    stated_of = (schedule.problem.name, schedule.io, schedule.rectangle_io)
    if is_built_in(schedule.function) or stated_of in known:
        return
    whole = schedule.problem.rectangle
    for shape in (schedule, *([schedule.in_dims(whole.dims)] if whole else [])):
        if shape.io is None:
            continue
        stated = parse(shape.io)
        # Not every loop has a ragged end at the small sizes that make few moves; counts need not be so few.
        ragged = dict(zip(shape.problem.dims, cycle((13, 7, 11, 17, 19)))) | dict(zip(shape.blocks, cycle((2, 3, 4))))
        for sizes in (ragged, *small_sizes(shape.program)):
            said, moved = stated.subs(sizes), io(shape.program, sizes)
            if said != moved:
                raise UsageError(
                    f"schedule {schedule.name!r} states io={shape.io!r}, which is {said} words at {listed(sizes)}, but "
                    f"it moves {moved:,}; correct it, or leave io= out to see the form that is derived."
                )
    known.add(stated_of)


def _in_shape(schedule: str | Schedule, rectangular: bool) -> Schedule:
    algorithm = get(schedule)
    if not rectangular:
        return algorithm
    if algorithm.problem.rectangle is None:
        raise UsageError(
            f"problem {algorithm.problem.name!r} has no other sizes than {', '.join(algorithm.problem.dims)}."
        )
    return algorithm.in_dims(algorithm.problem.rectangle.dims)


@checked_kinds()
def show(schedule: str | Schedule, *, rectangular: bool = False) -> str:
    """Return the pseudo-code of a schedule.

    Args:
        schedule: its name, or the schedule itself.
        rectangular: use all dimensions of its problem instead of n and d.

    Returns:
        The text, with one line for each step.

    >>> print(show("matmul-tiled").splitlines()[0])
    phase matmul-tiled:

    Raises:
        UsageError: a name is not known, or the problem has no other dimensions.
    """
    from pebblesim.language.text import text

    return text(_in_shape(schedule, rectangular).program)


@checked_kinds()
def numbers(
    schedule: str | Schedule,
    *,
    M: int,
    inputs: Mapping[str, Any] | None = None,
    blocks: BlockRule = "fit",
    mask: AnyMask | None = None,
    scale: Scale = 1,
    **dims: int,
) -> dict[str, Any]:
    """Run a schedule on real arrays, tile by tile, and return its outputs.

    Args:
        schedule, M, blocks, mask, dims: as for `count`. Only the mask affects the values; the others decide the tiles.
        inputs: an array for each input; random ones by default (see `Problem.random_inputs`).
        scale: what scores are multiplied by: a number, 1 as in the paper, or "1/sqrt(d_k)" as in practice. What the
            forward pass saved must have been made with the same.

    Returns:
        The outputs by name, in the common type of the inputs; float64 for integers.

    >>> sorted(numbers("flash2-forward", n=6, d=2, M=60))
    ['L', 'O']

    Raises:
        Infeasible, UsageError: as for `count`, or an input is missing or has another shape; or the schedule takes the
            exponential of scores as they are, and they are too large for it.
    """
    from pebblesim.language.numbers import checked as checked_inputs, numbers as compute

    run = Run.of(schedule, dims, M=M, blocks=blocks, mask=masks.of(mask))
    sizes, solves = run.sizes, run.schedule.problem
    factor = solves.factor(scale, run.dims)
    if inputs is None:
        inputs = solves.random_inputs(run.dims, kept=run.schedule.kept, allowed=run.allowed, scale=factor)
    inputs = solves.with_scale(checked_inputs(run.program, run.dims, inputs), factor)
    return solves.with_scale(compute(run.program, sizes, inputs, run.only_mask), factor, True)
