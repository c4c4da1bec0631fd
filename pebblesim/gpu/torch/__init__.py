"""Attention for PyTorch with kernels from our schedules: `from pebblesim.gpu.torch import attention`.

The forward and the backward pass each use the schedule and the tiles with the shortest forecast for lengths rounded up
to powers of two; `plan` shows which, and why. `attention` is an operator of `torch.library`; PyTorch and Triton are
imported when it is asked for, and kernels are compiled when head dimensions, a type and a mask are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pebblesim.operator.planning import KernelPlan, plan

if TYPE_CHECKING:
    from pebblesim.operator.public import attention

__all__ = ["KernelPlan", "attention", "plan"]


def __getattr__(name: str) -> Any:
    if name != "attention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pebblesim.operator.public import attention

    return attention
