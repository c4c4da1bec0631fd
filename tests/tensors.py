"""Tensors of PyTorch: orders of memory, and comparisons."""

from __future__ import annotations

from typing import Any

import torch

from pebblesim.operator import operators
from pebblesim.operator.sinks import operators as operators_of_sinks


def close(made: list[Any], true: list[Any], tolerance: float = 1e-12) -> None:
    """Check that tensors have the same shapes and, relative to the largest number of each or 1, the same numbers."""
    for a, b in zip(made, true, strict=True):
        assert a.shape == b.shape
        assert (a - b).detach().abs().max() <= tolerance * max(1.0, float(b.detach().abs().max()))


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A matrix (batch, heads, n, d) in this order of memory, or with words of others, NaN, beside its own."""
    if layout == "tokens first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return torch.nn.functional.pad(x, (8, 8), value=torch.nan)[..., 8:-8] if layout == "cut from wider" else x


def check_kernels(
    given: list[torch.Tensor], rest: tuple[Any, ...], gradient_of_L: bool, sinks: torch.Tensor | None = None
) -> None:
    """Compare the kernels of Q, K, V and dO, both passes, with the definition; sinks are (batch, heads)."""
    *inputs, dO = given
    of_sinks = () if sinks is None else (sinks,)
    out, lse = (operators.forward_on_gpu if sinks is None else operators_of_sinks._on_gpu)(*inputs, *of_sinks, *rest)
    dL = torch.randn_like(lse).masked_fill(lse.isinf(), 0.0) if gradient_of_L else None
    backward = operators.backward_on_gpu if sinks is None else operators_of_sinks._backward_on_gpu
    made = backward(dO, dL, *inputs, out, lse, *of_sinks, *rest)
    x = [each.double().requires_grad_() for each in (*inputs, *of_sinks)]
    true = (torch.ops.pebblesim.attention if sinks is None else torch.ops.pebblesim.attention_with_sinks)(*x, *rest)
    some = ~true[1].isinf()  # queries with a key
    close([out.double(), lse[some].double()], [true[0], true[1][some]], 4e-3)
    assert (lse.isinf() == ~some).all()
    assert out.stride() == torch.empty_like(true[0].to(out.dtype)).stride()
    wanted = (dO.double(),) if dL is None else (dO.double(), dL.double())
    true = (true[0], true[1].masked_fill(~some, 0.0))
    for found, right in zip(made, torch.autograd.grad(true[: len(wanted)], x, wanted), strict=True):
        assert found.shape == right.shape
        assert float((found.double() - right).norm()) <= 4e-3 * max(float(right.norm()), 0.1)
