"""Launches of the kernels of a pass with a bias: their modules, and the tensors that these take."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.bias_stays import SPAN
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.triton.triton import FAR, triton
from pebblesim.language.masks import Band
from pebblesim.operator.bias.pairs import Met
from pebblesim.operator.bias.programs import ACROSS, OF_BIAS, OF_V, Kernels, launched, program
from pebblesim.operator.launching.launching import running


class Loaded(NamedTuple):
    """The module of the kernels of a pass, and names of the tensors that it takes, in order."""

    module: Any
    taken: tuple[str, ...]


@lru_cache(maxsize=256)
def _loaded(
    which: int,
    kernels: Kernels,
    sizes: tuple[tuple[str, int], ...],
    far: bool,
    dtype: str,
    band: Band | None,
    scale: float,
    kinds: tuple[torch.dtype, ...],
    grouped: int,
) -> Loaded:
    """The kernels of a pass, for all lengths or, where tiles divide those of `sizes`, for such ones.

    Where rows of the bias stay, for lengths of as many tiles of columns as those of `sizes` have.

    `kinds`: types of the matrices, by which its kernels are not told apart at their launch.
    """
    tiling, asked = kernels.tiling, program(which, kernels, band)
    given = {**dict(sizes), **tiling.blocks, SEQUENCES: max(2, kernels.sequences)}
    if tiling.gluon:
        made = gluon(asked, given, dtype, band, scale=scale, stages=tiling.stages, shared=1, streams=kernels.sequences)
    else:
        made = triton(asked, given, dtype, band, scale=scale, far=far, shared=1, grouped=grouped, **launched(tiling))
    return Loaded(running(made.text, tuple(each.name for each in made.kernels)), asked.inputs)


def run(
    which: int,
    pairs: Met,
    given: dict[str, Tensor],
    results: dict[str, Tensor],
    dL: Tensor | None = None,
    ranges: dict[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Launch the kernels of a pass, of tensors by their names: sequences that are computed together are an axis.

    `ranges`: of keys, by name, if they are others than those of the batch.
    """
    matrices = [each for each in (*given.values(), *results.values()) if each.dim() > 3]
    kernels, Q, K = pairs.kernels(which, [each for each in matrices if each.dim() == 4]), pairs.Q, pairs.K
    lengths, sides = (Q.shape[2], K.shape[2]), (("B_r", "b_r"), ("B_c", "b_c", SPAN))
    blocks = kernels.tiling.blocks
    longest = [max(blocks.get(name, 1) for name in names) for names in sides]
    even = all(n % side == 0 for n, side in zip(lengths, longest, strict=True))
    n = [2**14 - (not even)] * 2
    if kernels.tiling.gluon:
        axis = 0 if which == ACROSS else 1
        n[axis] = -(-lengths[axis] // longest[axis]) * longest[axis] - (not even)
    sizes = (("n_q", n[0]), ("n_k", n[1]), ("d_k", Q.shape[3]), ("d_v", pairs.V.shape[3]))
    far = any(each.shape[-2] * max(each.stride(-2), 1) >= FAR for each in matrices)
    kinds = tuple(each.dtype for each in matrices)
    loaded = _loaded(which, kernels, sizes, far, pairs.dtype, pairs.band, pairs.scale, kinds, pairs.grouped)
    number = 1 if which in (OF_BIAS, OF_V) or kernels.tiling.gluon else kernels.sequences
    taken = [_several(given[name], number) for name in loaded.taken]
    written = {name: _several(each, number) for name, each in results.items()}
    others = (pairs.ranges if ranges is None else ranges) | ({} if dL is None else {"dL": _several(dL, number)})
    found = loaded.module.run(*taken, results=written, **others)
    return {name: results.get(name, each) for name, each in found.items()}


def _several(x: Tensor, number: int) -> Tensor:
    """A tensor with an axis of so many sequences that are computed together; all of them have the same bias."""
    if number == 1:
        return x
    if x.dim() == 5:
        return x[:, : x.shape[1] // number]
    if x.dim() == 4:
        return x.unflatten(0, (-1, number))
    return x.view(-1, number, x.shape[-1])
