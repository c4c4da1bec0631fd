"""Heads that share keys in parts, each with gradients of the keys of its own, which are then added up.

The gradients of keys are sums over the queries of all heads that share them. Where these are many, and the keys few,
products have too few tiles for a card: 128 heads on one latent and 1,024 keys have 24. So these heads are taken in
parts. Each has a copy of K and V, and gradients of these in float32, which are added up in order.
"""

from __future__ import annotations

from typing import Any

import torch

from pebblesim.kernels.strides import WORDS
from pebblesim.operator import layout
from pebblesim.operator.fresh import fresh

OF_KEYS = ("dK", "dV")
"""The gradients that are sums over the queries."""


def given_to_parts(given: dict[str, Any], shared: int, parts: int) -> dict[str, Any]:
    """The tensors of a backward pass, by name, as kernels take those of so many parts of the heads.

    Matrices of queries and ranges of keys are as they were. `shared`: heads that share keys.
    """
    (K, V), n = (given["K"], given["V"]), given["Q"].shape[2]
    own = {name: _in_parts(given[name], n, shared, parts) for name in ("L", "dL") if name in given}
    own["K"] = _repeated(K, parts)
    together = (K.data_ptr(), K.stride(), K.shape[:3]) == (V.data_ptr(), V.stride(), V.shape[:3])
    own["V"] = own["K"][..., : V.shape[3]] if together else _repeated(V, parts)
    return given | own


def _repeated(x: Any, parts: int) -> Any:
    """A copy of a matrix, (batch, heads, n, d), for each part: (batch, heads · parts, n, d)."""
    batch, heads, n, d = x.shape
    room = fresh(x.new_empty((batch, heads * parts, n, _whole(d))))
    for head in range(heads):
        of_head = room[:, head * parts : (head + 1) * parts, :, :d]
        of_head.copy_(x[:, head : head + 1].expand(batch, parts, n, d))
    return room[..., :d]


def _whole(d: int) -> int:
    return -(-d // WORDS) * WORDS


def _in_parts(x: Any, n: int, shared: int, parts: int) -> Any:
    """Numbers of each query, (groups, n · shared), of parts of the heads: (groups · parts, n · shared / parts)."""
    groups, each = x.shape[0], shared // parts
    made = fresh(x.new_empty((groups * parts, n * each)))
    made.view(groups, parts, n, each).copy_(x.view(groups, n, parts, each).transpose(1, 2))
    return made


def numbers_of_all(x: Any, n: int, shared: int, parts: int) -> Any:
    """Numbers of each query of parts, in rows that may lie further apart, as those of all heads that share keys."""
    groups, each = x.shape[0] // parts, shared // parts
    return x[:, : n * each].unflatten(0, (groups, parts)).unflatten(2, (n, each)).transpose(1, 2).reshape(groups, -1)


def room_for_parts(results: dict[str, Any], parts: int) -> dict[str, Any]:
    """Where kernels write gradients: those of keys in float32, for each part."""
    made = dict(results)
    for name in OF_KEYS:
        batch, heads, n, d = results[name].shape
        room = results[name].new_empty((batch, heads * parts, n, _whole(d)), dtype=torch.float32)
        made[name] = fresh(room)[..., :d]
    return made


def add_up(made: dict[str, Any], results: dict[str, Any]) -> None:
    """Write the gradients of keys: sums of those of parts in order, rounded once."""
    for name in OF_KEYS:
        parts, x = made[name], results[name]
        if layout.on_gpu(x):
            from pebblesim.operator.kernel_of_parts import add_up_on_gpu

            add_up_on_gpu(parts, x)
        else:
            x.copy_(parts.unflatten(1, (x.shape[1], -1)).sum(2))
