"""A bias that is added to scores, and its gradient: shapes, kernels, and their launches.

The bias of an operator is (outer, inner, heads, n_q, n_k), and each of these may be 1 where entries are shared: batch b
has the bias of group ⌊b / inner⌋ and place b mod inner. Kernels are those of the catalogue's schedules with a tile of
the bias read for each tile of scores (`kernels.bias`). In dB's, a tile (i, j) stays, and all sequences that share it
stream past: its sum is in the same order in every run, and it is written once.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import cast

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator.bias import forecast, gradient, launches, programs
from pebblesim.operator.bias.pairs import Limits, Met, meet
from pebblesim.operator.bias.programs import ACROSS, FORWARD, OF_KEYS, OF_QUERIES, OF_V
from pebblesim.operator.heads import apart as heads_apart
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launching import card_of
from pebblesim.operator.launching.layout import fits, fitted, room_for


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
            f"bias or attn_mask has shape {tuple(bias.shape)} for batches {tuple(whole[:-3])}: those that share it lie "
            "between others that do not; put the dimensions that share it next to each other, behind or before all "
            "others."
        )
    batch, parts, sides = prod(query.shape[:-3]), prod(shape[:-3]), shape[-3:]
    if kinds and (kinds[0], kinds[-1]) == ("shared", "own"):
        return bias.reshape(1, parts, *sides), parts
    return bias.reshape(parts, 1, *sides), batch // parts if parts else 1


def without_pairs(query: Tensor, key: Tensor) -> bool:
    """Whether there is no query, no key or no batch, so that no kernel is launched."""
    return 0 in (query.shape[0], query.shape[2], key.shape[2])


def forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, ranges: Tensor | None, out: Tensor, asked: Limits
) -> Tensor:
    """Write O, and return L to base 2, (batch, heads, n_q), by kernels: +∞ where the bias leaves out all keys.

    So exponentials less L are 0 there. L is -∞ where the limits leave out all keys: then no kernel reads it.
    """
    pairs = meet(query, key, value, bias, ranges, asked)
    O = out[:, :, pairs.queries]
    room = O if fits(O) else room_for(O, O.shape[3])
    given = {"Q": pairs.Q, "K": pairs.K, "V": pairs.V, "bias": pairs.bias}
    L = launches.run(FORWARD, pairs, given, {"O": room})["L"].view(*pairs.Q.shape[:3])
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
    pairs = meet(query, key, value, bias, ranges, asked, True)
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
    at_once = dB is not None and _at_once(pairs, (dO, O), dB)
    if dB is not None and at_once and dL is None and _with_v(pairs):
        given["v"], dB = gradient.write(pairs, asked, given, dB, dQ).view(L.shape), None
    else:
        kernel, results = (OF_V, {}) if at_once else (OF_QUERIES, {"dQ": dQ})
        given["v"] = launches.run(kernel, pairs, given, results, dL)["v"].view(L.shape)
    which, of_keys = OF_KEYS, dict(zip(heads_apart.OF_KEYS, others, strict=True))
    if pairs.transposed is not None:
        given, which = given | {"bias_T": pairs.transposed}, ACROSS
    if pairs.grouped == 1:
        launches.run(which, pairs, given, of_keys)
    else:
        of_each = heads_apart.room_for_parts(of_keys, pairs.grouped)
        launches.run(which, pairs, given, of_each)
        heads_apart.add_up(of_each, of_keys)
    if dB is not None:
        gradient.write(pairs, asked, given, dB, dQ if at_once else None)
    for taken, each in zip(room, parts, strict=True):
        if taken is not each:
            each.copy_(taken[..., : each.shape[3]])


def _with_v(pairs: Met) -> bool:
    """Whether v is computed by the kernel of dQ and dB: a launch less, where blocks have few sequences.

    Not where dQ goes on from launch to launch in float32: beside 384 keys shared memory has no room for both.
    """
    batch, heads, n_q, _ = pairs.Q.shape
    groups = batch // pairs.sharing
    each = programs.parts_at_once(n_q, pairs.sharing, heads * groups, pairs.units).each
    return len(programs.spans(pairs.K.shape[2])) == 1 and each <= programs.MOST_WITH_V


def _at_once(pairs: Met, of_rows: tuple[Tensor, ...], dB: Tensor) -> bool:
    """Whether dQ and dB are computed by one kernel: on cards that it is for, where it is faster by the forecast."""
    if dB.shape[1] > 1 or not pairs.streams(*of_rows):
        return False
    Q, K, width = pairs.Q, pairs.K, max(pairs.Q.shape[3], pairs.V.shape[3])
    sizes = forecast.Sizes(Q.shape[0], pairs.sharing, Q.shape[1], Q.shape[2], K.shape[2], width)
    return forecast.at_once(sizes, pairs.dtype, card_of(Q.device))
