"""The text of the kernels of a tiling, and what is launched of it: without PyTorch."""

from __future__ import annotations

from typing import NamedTuple

from pebblesim.advice.tiles import Tiling
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.sinks import sinking
from pebblesim.kernels.triton.triton import triton
from pebblesim.operator.pattern import Pattern
from pebblesim.operator.planning import Dims, program_of

BEGIN_WITH_SINKS = True
"""Whether there are kernels whose softmaxes begin with sinks."""


class Written(NamedTuple):
    """A module of kernels, as text.

    Attributes:
        text: the source.
        fills: tensors that its `run` fills, and with what.
        kernels: names of the kernels in it.
        takes: names of the tensors that `run` takes, in order.
        sums: whether `run` takes `SUMS_OF`, and so sums the gradient of sinks.
    """

    text: str
    fills: tuple[tuple[str, float], ...]
    kernels: tuple[str, ...]
    takes: tuple[str, ...]
    sums: bool


def written(
    tiling: Tiling, widths: Dims, even: bool, far: bool, dense: bool, dtype: str, pattern: Pattern, scale: float
) -> Written:
    """Write the kernels of a tiling for all lengths.

    Args:
        tiling: the schedule and its tiles.
        widths: head dimensions by name.
        even: whether they are for lengths that the tiles divide only.
        far, dense: see `triton`.
        dtype: type of the words of matrices.
        pattern: the pairs that are allowed.
        scale: factor of the scores.
    """
    n = 2**14 if even else 2**14 - 1
    program = program_of(tiling, pattern.mask)
    options = {**tiling.options_under(pattern.mask), "softcap": pattern.softcap}
    if pattern.sinks and "dO" not in program.inputs:
        program = sinking(program)
    if tiling.gluon:
        options |= {"apart": pattern.apart, "in_shares": pattern.in_shares}
    else:
        options["far"] = far
    source = (gluon if tiling.gluon else triton)(
        program,
        {"n_q": n * pattern.shared, "n_k": n, **dict(widths), **tiling.blocks},
        dtype,
        pattern.mask,
        scale=scale,
        **options,
        shared=pattern.shared,
        dense=dense,
        sums=pattern.sinks,
    )
    takes = tuple(name for name in program.tensors if name in program.inputs)
    kernels = (*(each.name for each in source.kernels), *source.sums)
    return Written(source.text, source.fills, kernels, takes, bool(source.sums))
