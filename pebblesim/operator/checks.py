"""Checks of the arguments of attention, and a sentence about what it does not take."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import quantity
from pebblesim.kernels.domains import ATTENTION, GLUON, Call
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.operator.launching.launching import fitting
from pebblesim.operator.masks import Asked, promise
from pebblesim.operator.sizes import check_heads, check_workspace, met, refused

TYPES = tuple(getattr(torch, name) for name in ATTENTION.dtypes)
"""Types of the words that kernels take."""

WIDE = (torch.float32, torch.float64)
"""Types that are computed on the CPU, too, where no kernel is: for tests and references."""

LARGEST_FACTOR, LEAST_FACTOR = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
"""Factors of scores that kernels can hold, in float32."""


def check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Check that shapes, types and devices are such that kernels support them.

    Raises:
        UsageError: they do not.
    """
    arguments = {"query": query, "key": key, "value": value}
    for name, each in arguments.items():
        if not isinstance(each, Tensor):
            raise UsageError(f"{name} is of {type(each).__name__}; give a tensor.")
        if each.layout != torch.strided or each.is_nested:
            raise UsageError(
                f"{name} is {'nested' if each.is_nested else f'of layout {each.layout}'}; give a dense tensor, or "
                "sequences of several lengths one after another with cu_seqlens."
            )
        if each.dim() < 3:
            raise UsageError(f"{name} has shape {tuple(each.shape)}; give (…, heads, tokens, head dimension).")
        if each.dtype != query.dtype:
            raise UsageError(f"{name} is of {each.dtype} and query of {query.dtype}; give all three in one type.")
        if each.device != query.device or each.device.type not in ("cuda", "cpu", "meta"):
            others = "" if each.device == query.device else f" and query on {query.device}"
            raise UsageError(f"{name} is on {each.device}{others}; give all on one GPU, or the CPU.")
        if each.dtype not in (*TYPES, *WIDE):
            raise UsageError(f"{name} is of {each.dtype}; give bfloat16 or float16, or on the CPU float32 or float64.")
        if not (each.shape[-3] and each.shape[-1]):
            raise UsageError(
                f"{name} has shape {tuple(each.shape)}; give 1 head or more and a head dimension of 1 or more: only "
                "batches and tokens may be 0."
            )
    if key.shape[-2] != value.shape[-2]:
        raise UsageError(f"key and value have {key.shape[-2]} and {value.shape[-2]} tokens; give as many of both.")
    if query.shape[-1] != key.shape[-1]:
        raise UsageError(f"query and key have head dimensions {query.shape[-1]} and {key.shape[-1]}; give the same.")
    if key.shape[:-2] != value.shape[:-2] or query.shape[:-3] != key.shape[:-3]:
        shapes = ", ".join(str(tuple(argument.shape)) for argument in arguments.values())
        raise UsageError(
            f"query, key and value have shapes {shapes}; give the same dimensions before the heads to all three, and "
            "the same number of heads to key and value."
        )
    heads, shared = query.shape[-3], key.shape[-3]
    if heads != shared and not (enable_gqa and heads % shared == 0):
        raise UsageError(
            f"query has {heads} heads and key {shared}; give as many, or with enable_gqa a number that divides {heads}."
        )
    check_heads(prod(query.shape[:-2]))


def check_numbers(scale: Any, softcap: Any, workspace: Any, dropout_p: Any, compute_dtype: Any, fallback: Any) -> None:
    """Check the arguments that are numbers or names.

    Raises:
        UsageError: attention does not take one of them.
    """
    if softcap is not None and not (_is_number(softcap) and LEAST_FACTOR <= softcap <= LARGEST_FACTOR):
        raise UsageError(f"softcap is {softcap!r}; give a number above 0 that float32 holds, or None.")
    if scale is not None and not (_is_number(scale) and abs(scale) <= LARGEST_FACTOR):
        raise UsageError(f"scale is {scale!r}; give a number that float32 holds, or None for 1/√d_k.")
    check_workspace(workspace)
    if not (_is_number(dropout_p) and 0 <= dropout_p < 1):
        raise UsageError(f"dropout_p is {dropout_p!r}; give a probability from 0 to below 1.")
    if compute_dtype is not None and compute_dtype not in TYPES:
        raise UsageError(f"compute_dtype is {compute_dtype!r}; give torch.bfloat16, torch.float16 or None.")
    if fallback not in (None, "sdpa"):
        raise UsageError(f'fallback is {fallback!r}; give None or "sdpa".')


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, Real)) and not isinstance(x, bool)


def check_version(what: str, needed: str, here: str) -> None:
    """Check the version of a library that `what` is for, such as "transformers>=5.4,<6".

    Raises:
        UsageError: it is another one.
    """
    from packaging.requirements import Requirement

    asked = Requirement(needed)
    if not asked.specifier.contains(here, prereleases=True):
        raise UsageError(f"{what} is for {needed}, and here is {asked.name} {here}: pip install '{needed}'.")


def check_sinks(query: Tensor, sinks: Any) -> None:
    """Check that sinks are one number for each query head.

    Raises:
        UsageError: they are not.
    """
    heads = query.shape[-3]
    if not isinstance(sinks, Tensor):
        raise UsageError(f"sinks is of {type(sinks).__name__}; give a tensor of shape ({heads},), or None.")
    if sinks.dtype not in (*TYPES, *WIDE):
        raise UsageError(f"sinks is of {sinks.dtype}; give bfloat16, float16, float32 or float64.")
    if sinks.layout != torch.strided or sinks.shape != (heads,):
        given = f"shape {tuple(sinks.shape)}" if sinks.layout == torch.strided else f"layout {sinks.layout}"
        raise UsageError(
            f"sinks has {given}, and query has {quantity(heads, 'head')}; give a dense tensor of shape ({heads},), a "
            "number for each of them."
        )
    if sinks.device.type == "cpu":
        promise(
            sinks < torch.inf,
            "sinks has NaN or +∞ among its numbers; give finite ones, or -∞ for a head without a sink.",
        )


def check_key_padding(key_padding: object) -> None:
    """Refuse an argument that `key_padding_mask` has replaced."""
    if key_padding is not None:
        raise UsageError(
            "key_padding was documented as True where a key is padding, and computed as True where a key is not "
            "padding; give key_padding_mask, which is True where a key is padding: key_padding_mask=~mask if the mask "
            "is True where a key is not padding."
        )


def check_masks(query: Tensor, **masks: Any) -> None:
    """Check that the tensors of masks, and others beside the matrices, are where the queries are.

    Args:
        query: the queries.
        masks: by name, None, a tensor or several.

    Raises:
        UsageError: one is on another device.
    """
    for name, mask in masks.items():
        for each in mask if isinstance(mask, tuple | list) else (mask,):
            if isinstance(each, Tensor) and each.device != query.device:
                raise UsageError(f"{name} is on {each.device} and query on {query.device}; give both on one device.")


def unsupported(query: Tensor, value: Tensor, dropout_p: float, softcap: float | None) -> str | None:
    """A sentence where kernels do not compute this, and PyTorch's attention may; else None.

    Tensors of the CPU get the same sentences as those of a GPU, but for wide types and the age of the card.
    """
    if dropout_p:
        return 'attention has no dropout; give dropout_p=0, or fallback="sdpa" to have PyTorch compute it.'
    if query.is_cuda and query.dtype not in TYPES:
        return f"query is of {query.dtype}; give bfloat16 or float16, or compute_dtype=torch.bfloat16 to round to it."
    if sentence := refused(Call({"d_k": query.shape[-1], "d_v": value.shape[-1]}, softcap=softcap)):
        return sentence
    if torch.compiler.is_compiling():  # then the operators check what they are called for
        return None
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    if forward_ad._current_level >= 0 or any(each.key() in _TRANSFORMS for each in transforms):
        return DERIVATIVES
    return _too_old(query.device) if query.is_cuda else None


DERIVATIVES = (
    "attention has the derivatives of backward() and torch.autograd.grad, and not those of torch.func (grad, vjp, jvp, "
    "jacrev, jacfwd, hessian) and torch.autograd.forward_ad; use torch.autograd, or PyTorch's "
    "scaled_dot_product_attention with its math kernel."
)

_TRANSFORMS = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


def check_forward_mode() -> None:
    """Check that no derivative in forward mode is computed: an operator would lose it, and it would be taken for 0.

    Raises:
        UsageError: one is.
    """
    if forward_ad._current_level >= 0:
        raise UsageError(DERIVATIVES)


def check_room(query: Tensor, key: Tensor, value: Tensor, asked: Asked) -> None:
    """Check that tables fit into a given workspace, those of the backward pass, too, if gradients are wanted.

    On the CPU the kernels are those of the card that `plan` has.

    Raises:
        UsageError: they do not.
    """
    if asked.workspace is None or torch.compiler.is_compiling() or not (query.numel() and key.numel()):
        return
    copied = GLUON.refusal(Call({}, scale=asked.scale)) is None
    pattern, kind = asked.pattern(query, key)._replace(gluon=copied), query.dtype if query.dtype in TYPES else TYPES[0]
    queries, keys = met(query.shape[-2], key.shape[-2], asked.left, asked.right, asked.at_end)
    sizes = {"n_q": (queries.stop - queries.start) * pattern.shared, "n_k": keys.stop - keys.start}
    sizes |= {"d_k": max(key.shape[-1], LEAST_SIDE), "d_v": max(value.shape[-1], LEAST_SIDE)}
    gradients = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    for way in ("forward", "backward") if gradients else ("forward",):
        rest = str(kind).removeprefix("torch."), pattern, asked.workspace, query.device
        fitting(way, tuple(sizes.items()), key.shape[:-2].numel(), *rest)


@lru_cache(maxsize=64)
def _too_old(device: torch.device) -> str | None:
    """A sentence where kernels do not run on a card, else None."""
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return refused(Call({}, card=torch.cuda.get_device_name(device), capability=capability))
