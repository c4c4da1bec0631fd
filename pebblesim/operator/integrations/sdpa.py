"""Our kernels behind PyTorch's own `scaled_dot_product_attention`, in two ways.

`register` makes "pebblesim" one of PyTorch's implementations of FlashAttention: after `activate_flash_attention_impl`,
the calls that PyTorch gives to FlashAttention come here. PyTorch decides which: head dimensions up to 256, words of 16
bits, no `attn_mask`, and with a causal mask as many queries as keys. `replaced_sdpa` puts `attention` in the place of
the function itself, so that wider heads come here, too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import e, log, log2
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator.once import warn_once
from pebblesim.operator.public import attention

NAME = "pebblesim"
"""The name of the implementation in PyTorch's registry."""

ASKING = threading.local()
"""Whether this thread is in a call of `attention` by the function that `replaced_sdpa` has put."""

FORWARD = "_scaled_dot_product_flash_attention"
BACKWARD = f"{FORWARD}_backward"


class Handle:
    """An object that PyTorch keeps while the implementation is active; `remove` gives its own kernels back."""

    def __init__(self, key: str = "CUDA") -> None:
        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl(FORWARD, _forward, key)
        self.library.impl(BACKWARD, _backward, key)

    def remove(self) -> None:
        """Undo it."""
        self.library._destroy()


def register() -> None:
    """Name our kernels in PyTorch's registry, for `torch.nn.attention.activate_flash_attention_impl("pebblesim")`.

    Raises:
        UsageError: the PyTorch here has no such registry.
    """
    named = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if named is None:
        raise UsageError(
            f"PyTorch {torch.__version__} has no registry of attentions; take PyTorch 2.11 or later, or "
            "pebblesim.gpu.torch.replaced_sdpa."
        )
    named(NAME, register_fn=Handle)


def _options(query: Tensor, dropout_p: float, is_causal: bool, scale: float | None) -> tuple[Any, ...]:
    """The arguments of our operators behind the matrices, for those of PyTorch's.

    Raises:
        UsageError: there is dropout.
    """
    if dropout_p:
        raise UsageError(
            f"dropout_p is {dropout_p!r}, and the kernels of pebblesim have no dropout; give 0, or call "
            "torch.nn.attention.restore_flash_attention_impl()."
        )
    right = 0 if is_causal else None
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return None, None, None, right, False, scale, 0.0, None, torch.are_deterministic_algorithms_enabled()


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """As `aten::_scaled_dot_product_flash_attention`: O, the natural L, sizes, and a state of random numbers."""
    out, lse = torch.ops.pebblesim.attention(query, key, value, *_options(query, dropout_p, is_causal, scale))
    state = torch.zeros(2, dtype=torch.uint64, device=query.device), query.new_zeros((), dtype=torch.int64)
    return out, lse * log(2), None, None, query.shape[2], key.shape[2], *state, query.new_empty(0)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `aten::_scaled_dot_product_flash_attention_backward`."""
    options = _options(query, dropout_p, is_causal, scale)
    lse = logsumexp * log2(e)
    made: tuple[Tensor, Tensor, Tensor] = torch.ops.pebblesim.attention_backward(
        grad_out, None, query, key, value, out, lse, *options
    )
    return made


def on_gpu(query: Tensor) -> bool:
    """Whether a call is one for kernels: on the CPU PyTorch's attention stays."""
    return query.is_cuda


@contextmanager
def replaced_sdpa() -> Iterator[None]:
    """Meanwhile `torch.nn.functional.scaled_dot_product_attention` is `attention`, for all threads.

    What these kernels do not support, such as dropout, PyTorch computes as before, and a warning gives
    each reason once; tensors of the CPU stay with PyTorch, too. A program that took the function by its name before,
    with `from torch.nn.functional import …`, keeps PyTorch's.
    """
    before = torch.nn.functional.scaled_dot_product_attention

    @functools.wraps(before)
    def replaced(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        given = query, key, value, attn_mask, dropout_p, is_causal
        if on_gpu(query) and not getattr(ASKING, "fallback", False):
            ASKING.fallback = True  # which calls this function again
            try:
                return attention(*given, scale, enable_gqa, fallback="sdpa")
            except UsageError as error:  # what PyTorch allows and `attention` does not
                warn_once(f"PyTorch's attention is used: {error}")
            finally:
                ASKING.fallback = False
        return before(*given, scale=scale, enable_gqa=enable_gqa)

    torch.nn.functional.scaled_dot_product_attention = replaced
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = before
