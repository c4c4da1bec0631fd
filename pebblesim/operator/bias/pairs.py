"""The pairs of queries and keys of a call with a bias, as kernels read them, and which kernels are for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from pebblesim.kernels import releases
from pebblesim.kernels.domains import STREAMED, Call
from pebblesim.kernels.key_ranges import ARGUMENTS, KeyRanges
from pebblesim.kernels.strides import WORDS
from pebblesim.language.masks import Band
from pebblesim.operator.bias import programs
from pebblesim.operator.bias.programs import ACROSS, AT_ONCE, OF_KEYS, ONWARD, WITH_V, Kernels, Rows
from pebblesim.operator.launching.boxes import gluon_lost
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launching import card_of
from pebblesim.operator.launching.layout import BYTES, fitted, on_gpu
from pebblesim.operator.masks import arguments_of
from pebblesim.operator.pattern import band_of
from pebblesim.operator.sizes import met


class Limits(NamedTuple):
    """The arguments of the operators behind the tensors.

    Attributes:
        inner: batches of a group.
        left, right, at_end: limits, as of `pattern.limits`.
        scale: factor of Q Kᵀ.
    """

    inner: int
    left: int | None
    right: int | None
    at_end: bool
    scale: float


class Met(NamedTuple):
    """The matrices of queries and keys that meet under limits, as kernels read them.

    Attributes:
        Q, K, V: as kernels read them.
        bias: in groups, with a row for each query and a column for each key, 0 words apart where they are shared.
        transposed: the same with a row for each key, for a backward pass.
        queries, keys: which of all these are.
        sharing: sequences, one after the other in the batch, that share a bias.
        band: the limits, or that kernels read ranges.
        dtype: of words.
        scale: factor of Q Kᵀ.
        ranges: what they read then, by name.
    """

    Q: Tensor
    K: Tensor
    V: Tensor
    bias: Tensor
    transposed: Tensor | None
    queries: slice
    keys: slice
    sharing: int
    band: Band | None
    dtype: str
    scale: float
    ranges: dict[str, Tensor]

    @property
    def grouped(self) -> int:
        """Heads that share keys."""
        return int(self.Q.shape[1] // self.K.shape[1])

    @property
    def units(self) -> int:
        """Multiprocessors of the card."""
        return multiprocessors(self.Q.device)

    def kernels(self, which: int, matrices: Sequence[Tensor] = ()) -> Kernels:
        """The kernels of a pass: those in which rows of the bias stay where they are the faster ones; of the others
        some with fewer sequences at a time where not so many share a bias, or blocks are few.

        `matrices`: those that the pass reads and writes, (batch, heads, n, d).
        """
        if which in (WITH_V, AT_ONCE, ONWARD):
            return programs.at_once(self.K.shape[2])
        width = max(self.Q.shape[3], self.V.shape[3])
        if matrices and self.streams(*matrices) and (found := self._staying(which)) is not None:
            return found
        tiling, number = programs.kernels_of(which, "32 bits" if self.dtype == "float32" else "16 bits", width)
        if self.ranges:  # sequences that are computed together would have several
            number = 1
        if number > 1:
            rows = self.K.shape[2] if which in (OF_KEYS, ACROSS) else self.Q.shape[2]
            blocks = -(-rows // next(iter(tiling.blocks.values()))) * self.Q.shape[1] * self.Q.shape[0]
            fewest = 2 * self.units
            while number > 1 and (self.sharing % number or blocks < fewest * number):
                number //= 2
        return Kernels(tiling, number)

    def streams(self, *matrices: Tensor) -> bool:
        """Whether sequences may stream past rows of the bias that stay, with `matrices` beside Q, K and V: the copy
        engine of Hopper brings their tiles."""
        if gluon_lost():
            return False
        matrices = (self.Q, self.K, self.V, *matrices)
        call = Call(
            {"d_k": self.Q.shape[3], "d_v": self.V.shape[3]},
            self.band,
            dtype=self.dtype,
            shared=self.grouped,
            scale=self.scale,
            words=max(x.shape[2] * x.stride(2) for x in matrices),
            repeated=any(n > 1 and not step for x in matrices for n, step in zip(x.shape, x.stride(), strict=True)),
            capability=card_of(self.Q.device).capability,
            triton=releases.installed(),
        )
        return STREAMED.refusal(call) is None

    def _staying(self, which: int) -> Kernels | None:
        """The kernels of a pass in which rows of the bias stay."""
        if self.sharing == 1:
            return None
        batch, heads, n_q, d = self.Q.shape
        sides = (self.K.shape[2], n_q) if which == ACROSS else (n_q, self.K.shape[2])
        bias = Rows(*sides, batch * heads / self.units)
        return programs.staying(which, (d, self.V.shape[3]), bias)


def meet(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    ranges: Tensor | None,
    asked: Limits,
    backward: bool = False,
) -> Met:
    n_q, n_k = query.shape[2], key.shape[2]
    queries, keys = met(n_q, n_k, *asked[1:4])
    Q, K, V = fitted(query[:, :, queries]), fitted(key[:, :, keys]), fitted(value[:, :, keys])
    bias = bias[..., queries if bias.shape[3] > 1 else slice(None), keys if bias.shape[4] > 1 else slice(None)]
    groups = query.shape[0] // asked.inner, asked.inner
    whole = readable(bias, K.shape[2]).expand(*groups, query.shape[1], Q.shape[2], K.shape[2])
    across = None
    if backward and bias.shape[3] > 1:  # else the transpose would be as long as the bias for each query is not
        across = readable(bias.mT, Q.shape[2]).expand(*groups, query.shape[1], K.shape[2], Q.shape[2])
    at_end = asked.at_end and n_q != n_k
    band = band_of(asked.left, asked.right, at_end, 1) if ranges is None else KeyRanges()
    sharing = asked.inner if bias.shape[1] == 1 else 1
    dtype = str(query.dtype).removeprefix("torch.")
    return Met(Q, K, V, whole, across, queries, keys, sharing, band, dtype, asked.scale, _read(ranges, n_k))


def _read(ranges: Tensor | None, n_k: int) -> dict[str, Tensor]:
    """The arguments of kernels, by name, for ranges of keys, (batch, 2, n_q)."""
    if ranges is None:
        return {}
    first, end = ranges[:, 0].contiguous(), ranges[:, 1].contiguous()
    if not on_gpu(ranges):
        return arguments_of(first, end, n_k)
    from pebblesim.operator.sequences import above_and_below

    return dict(zip(ARGUMENTS, (first, end, *above_and_below(first, end, n_k)), strict=False))


def readable(bias: Tensor, n_k: int) -> Tensor:
    """A bias of n_k columns whose rows begin where wide accesses can: itself, or a copy without what is shared."""
    *others, last = bias.stride()
    apart = any(stride % WORDS for stride, length in zip(others, bias.shape, strict=False) if length > 1)
    if bias.shape[4] == n_k and last == 1 and not apart and bias.data_ptr() % BYTES == 0:
        return bias
    room = rows_of(bias, bias.shape[:4], n_k, bias.dtype)
    if on_gpu(bias) and last != 1 and bias.shape[4] == n_k:
        from pebblesim.operator.bias.transposes import transpose

        return transpose(bias.mT, room)
    return room.copy_(bias)


def rows_of(like: Tensor, shape: tuple[int, ...], n_k: int, dtype: torch.dtype) -> Tensor:
    """Room for rows of n_k words, each of which begins where wide accesses can."""
    return fresh(like.new_empty((*shape, -(-n_k // WORDS) * WORDS), dtype=dtype))[..., :n_k]


@lru_cache(maxsize=64)
def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
