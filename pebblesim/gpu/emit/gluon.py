"""`gluon`: a program as Gluon kernels for Hopper: one warp loads by the copy engine, warpgroups hold the sums.

A launch with products is one grid of tiles of rows, and one loop that streams tiles past them. What is read outside of
the loop stays in shared memory, what is read inside is a ring there, and each of one to three warpgroups holds the sums
of 64 rows (`gluon_plan`). Other launches are as in the Triton reading, and so are vectors, scales, exponents to base 2,
and the sizes that a text is for. Beyond the rows of a head the copy engine gives zeros, so no word of another head is
read, and none that is not in the count; rows of d words are for d a multiple of 8.

It is for no mask and for causal ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pebblesim.core.errors import UnknownName
from pebblesim.gpu.emit.gluon_kernel import IMPORTS, GluonKernel, shared_parts, writer
from pebblesim.gpu.emit.gluon_plan import Plan, multiplies, plan, refused
from pebblesim.gpu.emit.triton import Source, Writes, far_away, for_no_pair, module, setting_of
from pebblesim.gpu.emit.words import WORDS, of_launch
from pebblesim.language import program as ir
from pebblesim.language.masks import Band, Mask
from pebblesim.launches.launches import Launch, check_alike, launches

KINDS = ("bfloat16", "float16")
"""Types of words that the products take."""


def gluon(
    program: ir.Program,
    sizes: ir.Sizes,
    dtype: str = "bfloat16",
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    stages: int = 2,
    apart: Mapping[str, int] | None = None,
    persistent: bool = False,
) -> Source:
    """Write the Gluon source of a program, for cards with compute capability 9.0.

    Args:
        program: a traced schedule.
        sizes: dimensions and blocks by name. If the tiles divide the numbers of queries and keys, the source is for all
            numbers that they divide, else for all numbers.
        dtype: type of a word of a matrix, "bfloat16" or "float16".
        mask: None, or causal, for a program traced under a mask.
        scale: factor of the scores, which the schedules omit: each product with Q or K is multiplied by it.
        stages: slots of a ring.
        apart: those of launches that have others, by the name of the launch.
        persistent: as many blocks as multiprocessors, each with several tiles of the grid.

    Raises:
        UsageError: the program, or these sizes, are none that this reading writes.
        UnknownName: the data type is unknown.
    """
    if dtype not in WORDS:
        raise UnknownName("type of a word", dtype, WORDS)
    if dtype not in KINDS:
        raise refused(program, f"matrix units of a Gluon kernel take words of 16 bits, not {dtype}")
    if scale is not None and scale <= 0:
        raise refused(program, f"the scale {scale:g} is not positive")
    if mask is not None and not _causal(mask):
        raise refused(program, f"mask {mask} is not causal")
    if mask is not None and mask.empty(program.grid(sizes), 1, 0).any():
        raise refused(program, f"mask {mask} leaves some queries without a key")
    if far_away(program, sizes):
        raise refused(program, "a head has 2³¹ words or more")
    check_alike(program)
    made = [launch for launch in launches(program, masked=True, repeated=True, adding=True) if not for_no_pair(launch)]
    setting = setting_of(program, made, sizes, dtype, mask if isinstance(mask, Band) else None, scale, False)
    own = apart or {}

    def written(setting: Any, launch: Launch, name: str) -> Writes:
        return writer(setting, launch, name, slots_of(launch, own, stages), persistent)

    return module(setting, made, written, {}, (8, 3), IMPORTS, partial(_shared, dtype))


def plans(
    program: ir.Program,
    sizes: ir.Sizes,
    dtype: str,
    stages: int = 2,
    apart: Mapping[str, int] | None = None,
    persistent: bool = False,
) -> dict[str, Plan]:
    """Return the plans of the launches with products, by the name of the launch."""
    made = [launch for launch in launches(program, masked=True, repeated=True, adding=True) if not for_no_pair(launch)]
    return {
        launch.name: plan(program, launch, sizes, dtype, slots_of(launch, apart or {}, stages), persistent)
        for launch in made
        if launch.kind != "fill" and multiplies(launch)
    }


def slots_of(launch: Launch, apart: Mapping[str, int], otherwise: int) -> int:
    """The slots of a ring of a launch, by its name or that of its phase."""
    return of_launch({name: (slots,) for name, slots in apart.items()}, launch.name, (otherwise,))[0]


def _shared(dtype: str, writers: list[Writes]) -> str:
    return shared_parts([each for each in writers if isinstance(each, GluonKernel)], dtype)


def _causal(mask: Mask) -> bool:
    return type(mask) is Band and mask.before is None and mask.after == 0 and not mask.from_start
