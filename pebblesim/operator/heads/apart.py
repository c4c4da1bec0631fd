"""The tensors of a backward pass whose heads that share keys are in parts, as kernels take and write them.

When heads are taken in parts, `parts` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pebblesim.kernels.strides import WORDS
from pebblesim.operator.launching import layout
from pebblesim.operator.launching.fresh import fresh

OF_KEYS = ("dK", "dV")
"""The gradients that are sums over the queries."""


def given_to_parts(given: dict[str, Any], shared: int, parts: int) -> dict[str, Any]:
    """The tensors of a backward pass, by name, as kernels take those of so many parts of the heads.

    Matrices of queries and ranges of keys are as they were. `shared`: heads that share keys.
    """
    (K, V), n = (given["K"], given["V"]), given["Q"].shape[2]
    own: dict[str, Any] = {name: _in_parts(given[name], n, shared, parts) for name in ("L", "dL") if name in given}
    own["K"] = _repeated(K, parts)
    together = (K.data_ptr(), K.stride(), K.shape[:3]) == (V.data_ptr(), V.stride(), V.shape[:3])
    within = together and V.shape[3] <= K.shape[3]  # else the keys are the first columns of the values
    own["V"] = own["K"][..., : V.shape[3]] if within else _repeated(V, parts)
    return given | own


def _repeated(x: Any, parts: int) -> Any:
    """A copy of a matrix, (batch, heads, n, d), for each part: (batch, heads · parts, n, d)."""
    batch, heads, n, d = x.shape
    room = fresh(x.new_empty((batch, heads * parts, n, _whole(d))))[..., :d]
    if layout.on_gpu(x):
        from pebblesim.operator.heads.kernels import repeat

        repeat(x, room)
    else:
        room.copy_(x.repeat_interleave(parts, 1))
    return room


def _whole(d: int) -> int:
    return -(-d // WORDS) * WORDS


def _in_parts(x: Any, n: int, shared: int, parts: int) -> Any:
    """Numbers of each query, (groups, n · shared), of parts of the heads: (groups · parts, n · shared / parts)."""
    groups, each = x.shape[0], shared // parts
    made = fresh(x.new_empty((groups * parts, n * each)))
    if layout.on_gpu(x):
        from pebblesim.operator.heads.kernels import order

        order(x, made, n, each, parts)
    else:
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
        room = fresh(results[name].new_empty((batch, heads * parts, n, _whole(d)), dtype=torch.float32))
        made[name] = room[..., :d]
    return made


def add_up(made: dict[str, Any], results: dict[str, Any], sums: Mapping[str, int] | None = None) -> None:
    """Write the gradients of keys: sums of their parts in order, rounded once; `sums`: of so many, the first ones."""
    for name in OF_KEYS:
        parts, x = made[name], results[name]
        many = parts.shape[1] // x.shape[1] if sums is None else sums[name]
        if layout.on_gpu(x):
            from pebblesim.operator.heads.kernels import add_up as add_up_on_gpu

            add_up_on_gpu(parts, x, many)
        else:
            x.copy_(parts.unflatten(1, (x.shape[1], -1))[:, :, :many].sum(2))
