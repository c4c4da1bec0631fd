"""A bias that is added to scores, and its gradient: shapes, kernels, and their launches.

The bias of an operator is (outer, inner, heads, n_q, n_k), and each of these may be 1 where entries are shared: batch b
has the bias of group ⌊b / inner⌋ and place b mod inner. Kernels are those of the catalogue's schedules with a tile of
the bias read for each tile of scores (`kernels.bias`). In dB's, a tile (i, j) stays, and all sequences that share it
stream past: its sum is in the same order in every run, and it is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.key_ranges import ARGUMENTS, END, FIRST, KeyRanges
from pebblesim.kernels.passes.bias_stays import SPAN
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.strides import WORDS
from pebblesim.kernels.triton.triton import FAR, triton
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language.masks import Band
from pebblesim.operator.bias import forecast as forecast_of_bias, programs as programs_of_bias
from pebblesim.operator.bias.programs import (
    ACROSS,
    AT_ONCE,
    FORWARD,
    OF_BIAS,
    OF_KEYS,
    OF_QUERIES,
    OF_V,
    Kernels,
    Rows,
    launched,
    program,
)
from pebblesim.operator.heads import apart as heads_apart
from pebblesim.operator.launching.boxes import gluon_lost
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launching import card_of, running
from pebblesim.operator.launching.layout import BYTES, fits, fitted, on_gpu, room_for
from pebblesim.operator.masks import arguments_of
from pebblesim.operator.pattern import band_of
from pebblesim.operator.planning import ROOM
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


def in_groups(bias: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, int]:
    """A bias that broadcasts to (…, heads, n_q, n_k) as the operators take it, and the batches of a group.

    Raises:
        UsageError: batches that share it lie between others that do not.
    """
    whole = (*query.shape[:-1], key.shape[-2])
    shape = (*(1,) * (len(whole) - bias.dim()), *bias.shape)
    kinds = ["shared" if mine == 1 else "own" for mine, its in zip(shape[:-3], whole, strict=False) if its != 1]
    if sum(a != b for a, b in pairwise(kinds)) > 1:
        raise UsageError(
            f"bias has shape {tuple(bias.shape)} for batches {tuple(whole[:-3])}: those that share it lie between "
            "others that do not; put the dimensions that share it next to each other, behind or before all others."
        )
    batch, parts, sides = query.shape[:-3].numel(), bias.reshape(shape).shape[:-3].numel(), shape[-3:]
    if kinds and (kinds[0], kinds[-1]) == ("shared", "own"):
        return bias.reshape(1, parts, *sides), parts
    return bias.reshape(parts, 1, *sides), batch // parts if parts else 1


def summed(x: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """A sum over the dimensions that have one entry in a shape of as many."""
    shared = [at for at, (its, mine) in enumerate(zip(x.shape, shape, strict=True)) if mine == 1 != its]
    return x.sum(shared, keepdim=True) if shared else x


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

    def kernels(self, which: int, matrices: Sequence[Tensor] = ()) -> Kernels:
        """The kernels of a pass: those in which rows of the bias stay where they are the faster ones; of the others
        some with fewer sequences at a time where not so many share a bias, or blocks are few.

        `matrices`: those that the pass reads and writes, (batch, heads, n, d).
        """
        if which == AT_ONCE:
            return programs_of_bias.at_once(self.K.shape[2])
        width = max(self.Q.shape[3], self.V.shape[3])
        if matrices and self._streams(matrices) and (found := self._staying(which)) is not None:
            return found
        tiling, number = programs_of_bias.kernels_of(which, "32 bits" if self.dtype == "float32" else "16 bits", width)
        if self.ranges:  # sequences that are computed together would have several
            number = 1
        if number > 1:
            rows = self.K.shape[2] if which in (OF_KEYS, ACROSS) else self.Q.shape[2]
            blocks = -(-rows // next(iter(tiling.blocks.values()))) * self.Q.shape[1] * self.Q.shape[0]
            fewest = 2 * multiprocessors(self.Q.device)
            while number > 1 and (self.sharing % number or blocks < fewest * number):
                number //= 2
        return Kernels(tiling, number)

    def _streams(self, matrices: Sequence[Tensor]) -> bool:
        """Whether sequences may stream past a bias: on Hopper, where the copy engine knows where their matrices are."""
        alone = all(stride or length == 1 for x in matrices for stride, length in zip(x.stride(), x.shape, strict=True))
        near = all(x.shape[2] * x.stride(2) < FAR for x in matrices)
        return (
            alone
            and near
            and self.scale > 0
            and self.band is None
            and self.grouped == 1
            and self.dtype != "float32"
            and hopper(self.Q.device)
        )

    def _staying(self, which: int) -> Kernels | None:
        """The kernels of a pass in which rows of the bias stay."""
        if self.sharing == 1:
            return None
        batch, heads, n_q, d = self.Q.shape
        sides = (self.K.shape[2], n_q) if which == ACROSS else (n_q, self.K.shape[2])
        bias = Rows(*sides, batch * heads / multiprocessors(self.Q.device))
        return programs_of_bias.staying(which, (d, self.V.shape[3]), bias)


@lru_cache(maxsize=64)
def hopper(device: torch.device) -> bool:
    """Whether a device is a Hopper card with a Triton that has Gluon."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0) and gluon_lost() is None


def _met(
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
    whole = _readable(bias, K.shape[2]).expand(*groups, query.shape[1], Q.shape[2], K.shape[2])
    across = None
    if backward and bias.shape[3] > 1:  # else the transpose would be as long as the bias for each query is not
        across = _readable(bias.mT, Q.shape[2]).expand(*groups, query.shape[1], K.shape[2], Q.shape[2])
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


def _readable(bias: Tensor, n_k: int) -> Tensor:
    """A bias of n_k columns whose rows begin where wide accesses can: itself, or a copy without what is shared."""
    *others, last = bias.stride()
    apart = any(stride % WORDS for stride, length in zip(others, bias.shape, strict=False) if length > 1)
    if bias.shape[4] == n_k and last == 1 and not apart and bias.data_ptr() % BYTES == 0:
        return bias
    room = _rows(bias, bias.shape[:4], n_k, bias.dtype)
    if on_gpu(bias) and last != 1 and bias.shape[4] == n_k:
        from pebblesim.operator.bias.transposes import transpose

        return transpose(bias.mT, room)
    return room.copy_(bias)


def _rows(like: Tensor, shape: tuple[int, ...], n_k: int, dtype: torch.dtype) -> Tensor:
    """Room for rows of n_k words, each of which begins where wide accesses can."""
    return fresh(like.new_empty((*shape, -(-n_k // WORDS) * WORDS), dtype=dtype))[..., :n_k]


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
        made = gluon(asked, given, dtype, band, scale=scale, stages=tiling.stages, shared=1, at_once=kernels.sequences)
    else:
        made = triton(asked, given, dtype, band, scale=scale, far=far, shared=1, grouped=grouped, **launched(tiling))
    return Loaded(running(made.text, tuple(each.name for each in made.kernels)), asked.inputs)


def _run(
    which: int,
    pairs: Met,
    scale: float,
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
    loaded = _loaded(which, kernels, sizes, far, pairs.dtype, pairs.band, scale, kinds, pairs.grouped)
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


def without_pairs(query: Tensor, key: Tensor) -> bool:
    """Whether there is no query, no key or no batch, so that no kernel is launched."""
    return 0 in (query.shape[0], query.shape[2], key.shape[2])


def forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, ranges: Tensor | None, out: Tensor, asked: Limits
) -> Tensor:
    """Write O, and return L to base 2, (batch, heads, n_q), by kernels: +∞ where the bias leaves out all keys.

    So exponentials less L are 0 there. L is -∞ where the limits leave out all keys: then no kernel reads it.
    """
    pairs = _met(query, key, value, bias, ranges, asked)
    O = out[:, :, pairs.queries]
    room = O if fits(O) else room_for(O, O.shape[3])
    given = {"Q": pairs.Q, "K": pairs.K, "V": pairs.V, "bias": pairs.bias}
    L = _run(FORWARD, pairs, asked.scale, given, {"O": room})["L"].view(*pairs.Q.shape[:3])
    if room is not O:
        O.copy_(room[..., : O.shape[3]])
    if (pairs.queries, pairs.keys) == (slice(0, query.shape[2]), slice(0, key.shape[2])):
        return cast(Tensor, L)
    lse = fresh(L.new_empty(query.shape[:3])).fill_(-torch.inf)
    lse[:, :, pairs.queries] = L
    for rows in (slice(0, pairs.queries.start), slice(pairs.queries.stop, query.shape[2])):
        out[:, :, rows].zero_()
    return lse


def backward(
    grad: Tensor,
    grad_L: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    ranges: Tensor | None,
    made: tuple[Tensor, Tensor, Tensor],
    dB: Tensor | None,
    asked: Limits,
) -> None:
    """Write dQ, dK and dV, and dB in the shape of the bias if it is wanted, by kernels.

    `lse` and `grad_L`: L to base 2, and the gradient of the natural one, (batch, heads, n_q).
    """
    pairs = _met(query, key, value, bias, ranges, asked, True)
    queries, keys = pairs.queries, pairs.keys
    parts = [each[:, :, at] for each, at in zip(made, (queries, keys, keys), strict=True)]
    for whole, part in zip(made, parts, strict=True):
        if part.shape != whole.shape:
            whole.zero_()
    room = [each if fits(each) else room_for(each, each.shape[3]) for each in parts]
    dO, O = fitted(grad[:, :, queries]), fitted(out[:, :, queries])
    L = lse[:, :, queries].reshape(-1, pairs.Q.shape[2]).contiguous()
    given = {"Q": pairs.Q, "K": pairs.K, "V": pairs.V, "dO": dO, "O": O, "L": L, "bias": pairs.bias}
    dL = None if grad_L is None else grad_L[:, :, queries].reshape(L.shape).contiguous()
    dQ, *others = room
    at_once = dB is not None and _at_once(pairs, asked, dO, dB)
    kernel, results = (OF_V, {}) if at_once else (OF_QUERIES, {"dQ": dQ})
    given["v"] = v = _run(kernel, pairs, asked.scale, given, results, dL)["v"].view(L.shape)
    which, of_keys = OF_KEYS, dict(zip(heads_apart.OF_KEYS, others, strict=True))
    if pairs.transposed is not None:
        given, which = given | {"bias_T": pairs.transposed}, ACROSS
    if pairs.grouped == 1:
        _run(which, pairs, asked.scale, given, of_keys)
    else:
        of_each = heads_apart.room_for_parts(of_keys, pairs.grouped)
        _run(which, pairs, asked.scale, given, of_each)
        heads_apart.add_up(of_each, of_keys)
    if dB is not None:
        _write_dB(pairs, asked, dO, L, v, dB, dQ if at_once else None)
    for taken, each in zip(room, parts, strict=True):
        if taken is not each:
            each.copy_(taken[..., : each.shape[3]])


def _at_once(pairs: Met, asked: Limits, dO: Tensor, dB: Tensor) -> bool:
    """Whether dQ and dB are computed by one kernel: on cards that it is for, where it is faster by the forecast."""
    Q, K, matrices = pairs.Q, pairs.K, (pairs.Q, pairs.K, pairs.V, dO)
    repeated = any(n > 1 and not step for x in matrices for n, step in zip(x.shape, x.stride(), strict=True))
    others = pairs.band is not None or pairs.grouped > 1 or asked.scale <= 0 or dB.shape[1] > 1
    if others or repeated or gluon_lost():
        return False
    widths = Q.shape[3], pairs.V.shape[3]
    if min(widths) < LEAST_SIDE:
        return False
    sizes = forecast_of_bias.Sizes(Q.shape[0], pairs.sharing, Q.shape[1], Q.shape[2], K.shape[2], max(widths))
    return forecast_of_bias.at_once(sizes, pairs.dtype, card_of(Q.device))


class Streams(NamedTuple):
    """Tensors that stream past the tiles of dB: (groups that have a bias each, sequences that share it, heads, …)."""

    Q: Tensor
    K: Tensor
    V: Tensor
    dO: Tensor
    L: Tensor
    v: Tensor

    def of_groups(self, groups: slice, parts: int, each: int, first: int = 0) -> dict[str, Tensor]:
        """The tensors that kernels take, by name: of some groups, so many parts of `each` sequences, from the first on.

        Parts of a group are as groups of their own. Numbers are (groups · parts · heads, sequences, n_q) by their
        number, and in memory as (groups · parts, sequences, heads, n_q).
        """
        some = [x[groups, first : first + parts * each].unflatten(1, (parts, each)).flatten(0, 1) for x in self]
        made = dict(zip(self._fields, some, strict=True))
        return made | {name: made[name].contiguous().view(-1, each, self.L.shape[-1]) for name in ("L", "v")}


def _write_dB(
    pairs: Met, asked: Limits, dO: Tensor, L: Tensor, v: Tensor, dB: Tensor, dQ: Tensor | None = None
) -> None:
    """Write dB, in the shape of the bias: kernels sum over sequences, and PyTorch over heads, rows and columns.

    Groups with a bias of their own are computed some at a time where their tables would take too much memory. `dQ`:
    where it is written, too, at once.
    """
    (batch, heads, n_q, _), n_k = pairs.Q.shape, pairs.K.shape[2]
    in_turn = dB.shape[1] > 1  # neighbours in the batch have a bias of their own

    def grouped(x: Tensor) -> Tensor:
        x = x.unflatten(0, (batch // asked.inner, asked.inner))
        return x.transpose(0, 1) if in_turn else x

    numbers = (x.view(batch, heads, n_q) for x in (L, v))
    streams = Streams(*map(grouped, (pairs.Q, pairs.K, pairs.V, dO, *numbers)))
    groups, sequences = streams.Q.shape[:2]
    bias, target = (pairs.bias[0], dB[0]) if in_turn else (pairs.bias[:, 0], dB[:, 0])
    of_rows, of_columns = (
        at if side > 1 else slice(None) for at, side in zip((pairs.queries, pairs.keys), dB.shape[3:], strict=True)
    )
    met = target[..., of_rows, of_columns]
    if met.shape != target.shape:
        target.zero_()
    parts = 1 if in_turn else _parts(pairs, groups, sequences, dQ is not None)
    direct = parts == 1 and met.shape[1:] == (heads, n_q, n_k)
    kind = dB.dtype if direct else torch.float32
    names = [name for name in (FIRST, END) * 2 if name in pairs.ranges]  # for each query, whose keys these are
    most = 1 if parts > 1 else max(1, ROOM // (heads * n_q * (n_k + WORDS) * kind.itemsize))
    several = met.shape[0] == groups
    for first in range(0, groups, most):
        some = slice(first, min(first + most, groups))
        part, found = met[some] if several else met, cast(Tensor | float, 0.0)
        if dQ is not None:
            found = _with_dQ(pairs, asked.scale, streams, some, bias[some], grouped(dQ)[some], parts)
        each, left = divmod(sequences, parts) if dQ is None else (0, 0)
        for begin, count, length in ((0, parts, each), (parts * each, 1, left))[each == 0 : 1 + (left > 0)]:
            there = direct and several and fits(part) and n_k % WORDS == 0
            room = part if there else _rows(dB, ((some.stop - first) * count, heads, n_q), n_k, kind)
            if pairs.band is not None:
                room.zero_()  # tiles without a pair are written by no one
            given = streams.of_groups(some, count, length, begin)
            given["bias"] = bias[some].expand(room.shape[0], -1, -1, -1)[:, None]
            ranges = [_of_parts(grouped(pairs.ranges[name])[some], begin, count * length) for name in names]
            _run(OF_BIAS, pairs, asked.scale, given, {"dB": room}, ranges=dict(zip(ARGUMENTS, ranges, strict=False)))
            whole = room if direct else room.unflatten(0, (-1, count)).sum(1)
            found = whole if isinstance(found, float) else found + whole
        assert isinstance(found, Tensor)
        if found is not part:
            found = summed(found, (found.shape[0] if several else 1, *met.shape[1:]))
            part.copy_(found) if several or first == 0 else part.add_(found)


def _of_parts(x: Tensor, first: int, number: int) -> Tensor:
    """Numbers of each query, (groups, sequences, n_q), of some sequences of all groups: one after the other."""
    return x[:, first : first + number].reshape(-1, x.shape[-1]).contiguous()


def _with_dQ(pairs: Met, scale: float, streams: Streams, some: slice, bias: Tensor, dQ: Tensor, parts: int) -> Tensor:
    """Write dQ of some groups, (groups, sequences, heads, n_q, d), and return their dB in float32, by one kernel.

    Of more keys than its blocks have, dQ has a part from as many keys each, which are added up in order.
    """
    given = streams.of_groups(some, 1, dQ.shape[1]) | {"bias": bias[:, None]}
    (groups, heads, n_q, n_k), spans = bias.shape, programs_of_bias.spans(bias.shape[3])
    room = _rows(bias, (groups, parts, heads, n_q), n_k, torch.float32)
    of_spans = [dQ]
    if len(spans) > 1:
        of_spans = [*fresh(dQ.new_empty((len(spans), *dQ.shape), dtype=torch.float32))]
    for keys, each in zip(spans, of_spans, strict=True):
        of_keys = {name: given[name][..., keys, :] for name in ("K", "V")} | {"bias": given["bias"][..., keys]}
        results = {"dQ": each, "dB": room[..., keys]}
        _run(AT_ONCE, pairs._replace(K=pairs.K[:, :, keys]), scale, given | of_keys, results)
    if len(spans) > 1:
        dQ.copy_(reduce(torch.add, of_spans))
    return room[:, 0] if parts == 1 else room.sum(1)


def _parts(pairs: Met, groups: int, sequences: int, with_dQ: bool) -> int:
    """The parts of the sequences whose sums are made apart, so that there are blocks for all multiprocessors."""
    units = multiprocessors(pairs.Q.device)
    heads, n_q, n_k = pairs.Q.shape[1] * groups, pairs.Q.shape[2], pairs.K.shape[2]
    sides = pairs.kernels(AT_ONCE if with_dQ else OF_BIAS).tiling.blocks
    tiles = -(-n_q // sides["B_r"]) * heads
    if with_dQ:
        return programs_of_bias.parts_at_once(tiles, sequences, units)
    return programs_of_bias.parts_of(tiles * -(-n_k // sides["b_c"]), sequences, units)


@lru_cache(maxsize=64)
def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
