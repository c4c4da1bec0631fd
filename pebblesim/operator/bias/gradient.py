"""The gradient of a bias: dB, by kernels in which a tile of it stays while all sequences that share it stream past.

Each word is written once, by a sum that is in the same order in every run. One kernel of Hopper writes dQ, too, and v.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor

from pebblesim.kernels.key_ranges import ARGUMENTS, END, FIRST
from pebblesim.kernels.passes.bias_stays import BEFORE
from pebblesim.kernels.strides import WORDS
from pebblesim.operator.bias import launches, programs
from pebblesim.operator.bias.pairs import Limits, Met, rows_of
from pebblesim.operator.bias.programs import AT_ONCE, OF_BIAS, ONWARD, WITH_V
from pebblesim.operator.launching.layout import fits, on_gpu
from pebblesim.operator.planning import ROOM


def summed(x: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """A sum over the dimensions that have one entry in a shape of as many."""
    shared = [at for at, (its, mine) in enumerate(zip(x.shape, shape, strict=True)) if mine == 1 != its]
    return x.sum(shared, keepdim=True) if shared else x


class Streams(NamedTuple):
    """Tensors that stream past the tiles of dB: (groups that have a bias each, sequences that share it, heads, …)."""

    Q: Tensor
    K: Tensor
    V: Tensor
    dO: Tensor
    O: Tensor
    L: Tensor
    v: Tensor | None = None

    def of_groups(self, groups: slice, parts: int, each: int, first: int = 0) -> dict[str, Tensor]:
        """The tensors that kernels take, by name: of some groups, so many parts of `each` sequences, from the first on.

        Parts of a group are as groups of their own. Numbers are (groups · parts · heads, sequences, n_q) by their
        number, and in memory as (groups · parts, sequences, heads, n_q).
        """
        there, some = (
            {name: x for name, x in self._asdict().items() if x is not None},
            slice(first, first + parts * each),
        )
        made = {name: x[groups, some].unflatten(1, (parts, each)).flatten(0, 1) for name, x in there.items()}
        vectors = [name for name in ("L", "v") if name in made]
        return made | {name: made[name].contiguous().view(-1, each, self.L.shape[-1]) for name in vectors}


def write(pairs: Met, asked: Limits, given: Mapping[str, Tensor], dB: Tensor, dQ: Tensor | None = None) -> Tensor:
    """Write dB, in the shape of the bias: kernels sum over sequences, and PyTorch over heads, rows and columns; and
    return v.

    Groups with a bias of their own are computed some at a time where their tables would take too much memory.

    Args:
        given: dO, O, L and, if it is there, v, by name.
        dQ: where it is written, too, at once; only then v may be missing.
    """
    (batch, heads, n_q, _), n_k = pairs.Q.shape, pairs.K.shape[2]
    in_turn = dB.shape[1] > 1  # neighbours in the batch have a bias of their own

    def grouped(x: Tensor) -> Tensor:
        x = x.unflatten(0, (batch // asked.inner, asked.inner))
        return x.transpose(0, 1) if in_turn else x

    numbers = {name: given[name].view(batch, heads, n_q) for name in ("L", "v") if name in given}
    matrices = {"Q": pairs.Q, "K": pairs.K, "V": pairs.V, "dO": given["dO"], "O": given["O"]}
    streams = Streams(**{name: grouped(x) for name, x in (matrices | numbers).items()})
    groups, sequences = streams.Q.shape[:2]
    bias, target = (pairs.bias[0], dB[0]) if in_turn else (pairs.bias[:, 0], dB[:, 0])
    of_rows, of_columns = (
        at if side > 1 else slice(None) for at, side in zip((pairs.queries, pairs.keys), dB.shape[3:], strict=True)
    )
    met = target[..., of_rows, of_columns]
    if met.shape != target.shape:
        target.zero_()
    parts = 1 if in_turn or dQ is not None else _parts(pairs, groups, sequences)
    direct = dQ is None and parts == 1 and met.shape[1:] == (heads, n_q, n_k)
    kind = dB.dtype if direct else torch.float32
    names = [name for name in (FIRST, END) * 2 if name in pairs.ranges]  # for each query, whose keys these are
    table, of_all = heads * n_q * (n_k + WORDS) * kind.itemsize, parts
    if dQ is not None:
        of_all = programs.parts_at_once(n_q, sequences, heads * groups, pairs.units).most
    most = 1 if parts > 1 else max(1, ROOM // (table * of_all))
    several, sums = met.shape[0] == groups, list[Tensor]()
    for first in range(0, groups, most):
        some = slice(first, min(first + most, groups))
        part, found = met[some] if several else met, cast(Tensor | float, 0.0)
        if dQ is not None:
            found, of_some = _with_dQ(pairs, streams, some, bias[some], grouped(dQ)[some], part if several else None)
            sums.append(of_some)
        each, left = divmod(sequences, parts) if dQ is None else (0, 0)
        for begin, count, length in ((0, parts, each), (parts * each, 1, left))[each == 0 : 1 + (left > 0)]:
            there = direct and several and fits(part) and n_k % WORDS == 0
            room = part if there else rows_of(dB, ((some.stop - first) * count, heads, n_q), n_k, kind)
            if pairs.band is not None:
                room.zero_()  # tiles without a pair are written by no one
            given = streams.of_groups(some, count, length, begin)
            given["bias"] = bias[some].expand(room.shape[0], -1, -1, -1)[:, None]
            ranges = [_of_parts(grouped(pairs.ranges[name])[some], begin, count * length) for name in names]
            launches.run(OF_BIAS, pairs, given, {"dB": room}, ranges=dict(zip(ARGUMENTS, ranges, strict=False)))
            whole = room if direct else room.unflatten(0, (-1, count)).sum(1)
            found = whole if isinstance(found, float) else found + whole
        assert isinstance(found, Tensor)
        if found is not part:
            found = summed(found, (found.shape[0] if several else 1, *met.shape[1:]))
            part.copy_(found) if several or first == 0 else part.add_(found)
    if "v" in given:
        return given["v"]
    return sums[0] if len(sums) == 1 else torch.cat([x.view(-1, n_q) for x in sums])


def _of_parts(x: Tensor, first: int, number: int) -> Tensor:
    """Numbers of each query, (groups, sequences, n_q), of some sequences of all groups: one after the other."""
    return x[:, first : first + number].reshape(-1, x.shape[-1]).contiguous()


def _with_dQ(
    pairs: Met, streams: Streams, some: slice, bias: Tensor, dQ: Tensor, dB: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Write dQ of some groups, (groups, sequences, heads, n_q, d), and return their dB, and their v, by one kernel.

    Of more keys than its blocks have, it is launched for as many keys each, in order, and dQ goes on in float32 until
    the last of them. `dB`: where the sum over sequences is written, and returned, if it has that shape; else, and for
    None, one in float32 is.
    """
    given = streams.of_groups(some, 1, dQ.shape[1]) | {"bias": bias[:, None]}
    (groups, heads, n_q, n_k), spans = bias.shape, programs.spans(bias.shape[3])
    parts = programs.parts_at_once(n_q, dQ.shape[1], groups * heads, pairs.units)
    room = rows_of(bias, (groups, parts.most, heads, n_q), n_k, torch.float32)
    sums = rows_of(dQ, dQ.shape[:-1], dQ.shape[-1], torch.float32) if len(spans) > 1 else dQ
    for at, keys in enumerate(spans):
        of_keys = {name: given[name][..., keys, :] for name in ("K", "V")} | {"bias": given["bias"][..., keys]}
        of_keys |= {BEFORE: sums} if at else {}
        results = {"dQ": dQ if keys is spans[-1] else sums, "dB": room[..., keys]}
        which = ONWARD if at else AT_ONCE if "v" in given else WITH_V
        found = launches.run(which, pairs._replace(K=pairs.K[:, :, keys]), given | of_keys, results)
        if which == WITH_V:
            given["v"] = found["v"]
    made = room[:, 0] if dB is None or dB.shape != bias.shape or dB.stride(3) != 1 else dB
    _add_up(room, made, parts)
    return made, given["v"]


UNROLLED = 64
"""The most parts that one kernel adds up: with 256 it takes 30 s to compile. Only one or two heads have more."""


def _add_up(room: Tensor, dB: Tensor, parts: programs.Parts) -> None:
    """Write sums of the parts that heads have, (groups, parts, heads, n_q, n_k), in the same order in every run."""
    if on_gpu(room) and parts.most <= UNROLLED:
        from pebblesim.operator.bias.parts import add_up

        add_up(room, dB, parts)
        return
    groups, _, heads = room.shape[:3]
    for head in range(groups * heads):
        at = head // heads, slice(parts.of(head)), head % heads
        dB[at[0], at[2]] = room[at].sum(0)


def _parts(pairs: Met, groups: int, sequences: int) -> int:
    """The parts of the sequences whose sums are made apart, so that there are blocks for all multiprocessors."""
    heads, n_q, n_k = pairs.Q.shape[1] * groups, pairs.Q.shape[2], pairs.K.shape[2]
    sides = pairs.kernels(OF_BIAS).tiling.blocks
    tiles = -(-n_q // sides["B_r"]) * heads
    return programs.parts_of(tiles * -(-n_k // sides["b_c"]), sequences, pairs.units)
