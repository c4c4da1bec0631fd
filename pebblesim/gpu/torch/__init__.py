"""Attention for PyTorch with kernels from our schedules: `from pebblesim.gpu.torch import attention`.

The forward and the backward pass each use the schedule and the tiles with the shortest forecast for lengths rounded up
to powers of two; `plan` shows which, and why. `attention` is an operator of `torch.library`; PyTorch and Triton are
imported when it is asked for, and kernels are compiled when head dimensions, a type and a mask are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pebblesim.operator.plans import KernelPlan, plan

if TYPE_CHECKING:
    from pebblesim.operator.integrations.flash import flash_attn_func, flash_attn_varlen_func
    from pebblesim.operator.integrations.sdpa import register, replaced_sdpa
    from pebblesim.operator.public import attention

HOMES = {
    "attention": "public",
    "flash_attn_func": "integrations.flash",
    "flash_attn_varlen_func": "integrations.flash",
    "register": "integrations.sdpa",
    "replaced_sdpa": "integrations.sdpa",
}
"""The modules of functions that need PyTorch."""

__all__ = [
    "KernelPlan",
    "attention",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "plan",
    "register",
    "replaced_sdpa",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("pebblesim.operator.pytorch")  # a sentence if PyTorch is not here
    return getattr(import_module(f"pebblesim.operator.{HOMES[name]}"), name)
