"""Programs of a tiling's kernels, each read once for all lengths that have the same statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import lcm

from pebblesim.advice.tiles import Tiling
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.readings import Reading, read
from pebblesim.kernels.strides import WORDS as GROUP
from pebblesim.kernels.triton.triton import longest_sides, triton
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language.masks import Band, Mask

TILES = 64
"""Tiles along the lengths with which kernels are written to be read."""

WINDOW = 256
"""The largest limit of a mask with which they are."""

KEPT = 1024
"""Readings that are kept."""


def readings(tiling: Tiling, dims: Mapping[str, int], dtype: str, mask: Mask | None) -> dict[str, Reading]:
    """Read the program of each kernel of a tiling, by the name of its launch.

    Raises:
        UsageError: there is no such kernel.
    """
    sides = longest_sides(tiling.traced(dims, mask), {**dims, **tiling.blocks})
    ragged, rows = any(dims[dim] % side for dim, side in sides.items()), getattr(mask, "rows", 1)
    tokens = TILES * lcm(*tiling.blocks.values()) - ragged
    alike = {name: max(LEAST_SIDE, -(-size // GROUP) * GROUP) for name, size in dims.items() if name.startswith("d")}
    alike = {**dims, **alike, **{dim: tokens * (rows if dim == "n_q" else 1) for dim in sides}}
    if isinstance(mask, Band):
        before, after = (None if each is None else max(0, min(each, WINDOW)) for each in (mask.before, mask.after))
        mask = replace(mask, name="mask", before=before, after=after)
    return _readings(tiling, tuple(alike.items()), dtype, mask)


@lru_cache(maxsize=KEPT)
def _readings(tiling: Tiling, dims: tuple[tuple[str, int], ...], dtype: str, mask: Mask | None) -> dict[str, Reading]:
    sizes = {**dict(dims), **tiling.blocks}
    program = tiling.traced(dict(dims), mask)
    options = tiling.options_under(mask)
    if tiling.gluon:
        made = gluon(program, sizes, dtype, mask, **options)
    else:
        made = triton(program, sizes, dtype, mask, far=False, **options)
    return {each.launch.name: read(each.program) for each in made.kernels}
