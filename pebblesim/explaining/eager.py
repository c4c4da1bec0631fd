"""Attention that a model writes itself, as a product, a softmax and a product, found while it runs; needs PyTorch.

Tables of scores are followed from the product that makes them, through all that is added, masked and rounded, to the
softmax over keys and the product with values. A softmax written as an exponential and a sum is not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pebblesim.advice.calls import SeenMask
from pebblesim.explaining import masks
from pebblesim.explaining.recorder import Recorder

PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
ADDING = ("add", "radd", "iadd", "sub", "isub")
HIDING = ("masked_fill", "where")
CAPPING = "tanh"
LINEAR = ("linear", "addmm", "mm", "grouped_mm", "_grouped_mm")


@dataclass(frozen=True, eq=False)
class _Scores:
    """A score matrix, (…, n_q, n_k), and what happened to it.

    Attributes:
        q, k: the tensors of its product, as (…, n, d).
        masks: what was added or hidden.
        softcap, sinks, normal: whether it was capped, has a column for sinks, went through a softmax.
    """

    q: Tensor
    k: Tensor
    masks: tuple[SeenMask, ...] = ()
    softcap: bool = False
    sinks: bool = False
    normal: bool = False

    def fits(self, out: Any) -> bool:
        """Whether a tensor has the sides of this table, or a column more."""
        if not isinstance(out, Tensor) or out.dim() < 2:
            return False
        n_q, n_k = self.q.shape[-2], self.k.shape[-2]
        return out.shape[-2] == n_q and out.shape[-1] in (n_k, n_k + 1)


class _Factors(NamedTuple):
    """The factors of a product.

    Attributes:
        a, b: as (…, n, d) and (…, d, m).
        given: as they were given.
        table: the first one if it was given as a table, else None.
        makes_table: whether the result is (…, n, m).
    """

    a: Tensor
    b: Tensor
    given: tuple[Tensor, Tensor]
    table: Tensor | None
    makes_table: bool


class Eager(TorchFunctionMode):
    """Records attention that is written out, and counts the operations of all other products."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._tables = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        out = func(*args, **kwargs)
        try:
            self._follow(name, args, kwargs, out)
        except (IndexError, RuntimeError, TypeError, ValueError):  # of what is no attention, nothing is said
            return out
        return out

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if name in PRODUCTS or name == "rmatmul":
            factors = _factors(name, args, kwargs)
            if factors is not None:
                self._product(factors, out)
        elif isinstance(out, Tensor) and (name in LINEAR or name.startswith("conv")):
            self._recorder.other += _operations(name, args, kwargs, out)
        else:
            self._changed(name, args, kwargs, out)

    def _product(self, of: _Factors, out: Tensor) -> None:
        table = None if of.table is None else self._tables.get(of.table)
        if table is not None and table.normal and of.a.shape[-1] == table.k.shape[-2]:
            self._recorder.other -= 2 * prod(of.a.shape) * table.q.shape[-1]  # they were those of a score matrix
            self._found(table, of.a, of.b)
            return
        self._recorder.other += 2 * out.numel() * of.a.shape[-1]
        if of.makes_table and not any(isinstance(x, torch.nn.Parameter) for x in of.given):
            self._tables[out] = _Scores(of.a, of.b.transpose(-1, -2))

    def _found(self, table: _Scores, scores: Tensor, value: Tensor) -> None:
        lead = scores.shape[:-2]
        batch = lead[0] if len(lead) > 1 else 1
        heads = lead.numel() // batch
        q, k, v = (
            x.reshape(batch, -1, *x.shape[-2:]) if x.shape[:-2].numel() % batch == 0 else x
            for x in (table.q, table.k, value)
        )
        if heads % k.shape[-3]:  # heads and batches are mixed up: each table is a head of its own
            k, v = (x.expand(*lead, *x.shape[-2:]).reshape(batch, heads, *x.shape[-2:]) for x in (k, v))
        mask = SeenMask()
        for each in table.masks:
            before = sorted((mask.kinds | each.kinds) - {"none", each.kind})
            mask = replace(each, also=" + ".join(before))
        self._recorder.record(
            "eager", q, k, v, mask, softcap=table.softcap, sinks=table.sinks, enable_gqa=q.shape[-3] != k.shape[-3]
        )

    def _changed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Follow a score matrix through an operation."""
        given = [x for x in _tensors((*args, *kwargs.values())) if x in self._tables]
        table = next((self._tables[x] for x in given if self._tables[x].fits(out)), None)
        if table is None:
            return
        if name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if dim not in (-1, out.dim() - 1):
                return
            table = replace(table, normal=True)
        elif name == CAPPING:
            table = replace(table, softcap=True)
        elif name in ("cat", "concat") and out.shape[-1] == table.k.shape[-2] + 1:
            table = replace(table, sinks=True)
        elif not table.normal and name in (*ADDING, *HIDING):
            table = replace(table, masks=(*table.masks, *self._masks(name, args, kwargs, table)))
        self._tables[out] = table

    def _masks(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], table: _Scores) -> Iterator[SeenMask]:
        n_q, n_k = table.q.shape[-2], table.k.shape[-2]
        for x in _tensors((*args, *kwargs.values())):
            other = x not in self._tables or not self._tables[x].fits(x)
            if other and x.dim() and x.shape[-1] == n_k > 1 and (name in ADDING or x.dtype == torch.bool):
                seen = masks.of_tensor(x, n_q, n_k, self._recorder.made, removes=name == "masked_fill")
                if seen.kind != "none":
                    yield seen


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _factors(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Factors | None:
    """The factors of a product; None if it is another one."""
    if name == "einsum":
        return _of_einsum(*args)
    given = [*args, *(kwargs[key] for key in ("mat2", "other", "batch1", "batch2") if key in kwargs)]
    given = given[1:] if name == "baddbmm" else given[::-1] if name == "rmatmul" else given
    a, b, *_ = given
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() > 1 and b.dim() > 1):
        return None
    return _Factors(a, b, (a, b), a, True)


def _of_einsum(equation: Any, *given: Any) -> _Factors | None:
    """A product whose factors share one letter, which is summed over, and have one of their own each."""
    tensors = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    if not isinstance(equation, str) or len(tensors) != 2 or "..." in equation or "->" not in equation:
        return None
    inputs, _, output = equation.replace(" ", "").partition("->")
    left, right = inputs.split(",")
    summed = [letter for letter in left if letter in right and letter not in output]
    lead = [letter for letter in output if letter in left and letter in right]
    rows = [letter for letter in left if letter in output and letter not in right]
    columns = [letter for letter in right if letter in output and letter not in left]
    once = len({*left}) == len(left) and len({*right}) == len(right)
    if not once or not (len(summed) == len(rows) == len(columns) == 1):
        return None
    orders = [*lead, *rows, *summed], [*lead, *summed, *columns]
    first = tensors[0].permute([left.index(letter) for letter in orders[0]])
    second = tensors[1].permute([right.index(letter) for letter in orders[1]])
    table = tensors[0] if orders[0] == [*left] else None
    return _Factors(first, second, (tensors[0], tensors[1]), table, [*output] == [*lead, *rows, *columns])


def _operations(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> int:
    """Operations of a linear layer or a convolution: 2 for each multiplication and addition."""
    given = list(_tensors((*args, *kwargs.values())))
    if name.startswith("conv"):
        weight = given[1]
        shared = given[0].numel() // given[0].shape[1] if "transpose" in name else out.numel() // weight.shape[0]
        return 2 * shared * weight.numel()
    factor = given[1] if name == "addmm" else given[0]
    return 2 * out.numel() * factor.shape[-1]
