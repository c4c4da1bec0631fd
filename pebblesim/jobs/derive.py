"""What is derived from a schedule's program: closed forms, pseudo-code, and its outputs on real arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pebblesim.errors import UsageError
from pebblesim.jobs.arguments import AnyMask, BlockRule, chosen, under
from pebblesim.language import masks
from pebblesim.language.problems import Scale
from pebblesim.language.registry import Schedule, get

if TYPE_CHECKING:
    from pebblesim.readings.formula import Formula


def formula(schedule: str | Schedule, mask: AnyMask | None = None, *, rectangular: bool = False) -> Formula:
    """The closed forms of a schedule's reads, writes, I/O and peak, derived from its program, as sympy expressions.

    In n and d, or in all dimensions of the problem if `rectangular`, such as n_q, n_k, d_k and d_v.

    Under a mask: "causal", "window:W" and "band:W" give closed forms in n and the blocks; "any" those of an unknown
    mask, in functions such as `tiles(B_r, B_c)`, the number of tiles it leaves (`pebblesim.readings.masked_sums`).

    Args:
        schedule: its name, or the schedule itself.
        mask: None, "causal", "window:W", "band:W" or "any".
        rectangular: in all dimensions of the problem instead of n and d.

    Returns:
        The closed forms, which `evaluate` makes numbers of.

    >>> formula("matmul-tiled").io
    k*m*ceiling(n/b) + k*n*ceiling(m/b) + m*n
    >>> formula("matmul-tiled").io.subs({"m": 5, "k": 4, "n": 3, "b": 2})
    91

    Raises:
        UsageError: a name that is not known, a mask without a closed form, or a problem without other dimensions.
    """
    from pebblesim.readings.formula import formula as derive

    algorithm = _in_shape(schedule, rectangular)
    if isinstance(mask, str) and mask == "any":
        return derive(algorithm.masked)
    band = masks.of(mask)
    if band is None:
        return derive(algorithm.program)
    if not isinstance(band, masks.Band):
        raise UsageError(f"mask {band} has no closed form; use 'any', 'causal', 'window:W' or 'band:W', or `count`.")
    return derive(algorithm.masked, band)


def _in_shape(schedule: str | Schedule, rectangular: bool) -> Schedule:
    algorithm = get(schedule)
    if not rectangular:
        return algorithm
    if algorithm.problem.rectangle is None:
        raise UsageError(
            f"problem {algorithm.problem.name!r} has no other sizes than {', '.join(algorithm.problem.dims)}."
        )
    return algorithm.in_dims(algorithm.problem.rectangle.dims)


def show(schedule: str | Schedule, *, rectangular: bool = False) -> str:
    """The pseudo-code of a schedule.

    Args:
        schedule: its name, or the schedule itself.
        rectangular: in all dimensions of its problem instead of n and d.

    Returns:
        The text, a line for each step.

    >>> print(show("matmul-tiled").splitlines()[0])
    phase matmul-tiled:

    Raises:
        UsageError: a name that is not known, or a problem without other dimensions.
    """
    from pebblesim.readings.text import text

    return text(_in_shape(schedule, rectangular).program)


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
        schedule, M, blocks, mask, dims: as for `count`; all but the mask decide the tiles, and nothing else.
        inputs: an array for each input; random ones by default (see `Problem.random_inputs`).
        scale: what scores are multiplied by: a number, 1 as in the paper, or "1/sqrt(d_k)" as in practice. What the
            forward pass kept must have been made with the same.

    Returns:
        The outputs by name, in the common type of the inputs; float64 for integers.

    >>> sorted(numbers("flash2-forward", n=6, d=2, M=60))
    ['L', 'O']

    Raises:
        Infeasible, UsageError: as for `count`, or an input is missing or has another shape; or the schedule takes the
            exponential of scores as they are, and they are too large for it.
    """
    from pebblesim.readings.numbers import checked as checked_inputs, numbers as run

    seen = masks.of(mask)
    algorithm, sizes, M, sides = chosen(schedule, dims, M, blocks, mask=seen)
    program, allowed = under(seen, algorithm, sizes)
    solves = algorithm.problem
    factor = solves.factor(scale, sizes)
    if inputs is None:
        inputs = solves.random_inputs(sizes, kept=algorithm.kept, allowed=allowed, scale=factor)
    inputs = checked_inputs(program, sizes, inputs)
    return solves.with_scale(run(program, {**sizes, **sides}, solves.with_scale(inputs, factor), seen), factor, True)
