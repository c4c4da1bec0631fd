"""Attention on many GPUs, each with a part of the tokens: `from pebblesim.gpu.torch.parallel import attention`."""

from pebblesim.operator.distributed.parallel import (
    RUNNING,
    Differentiable,
    Inside,
    Kernels,
    Network,
    attention,
    counted,
    tokens_of,
)

__all__ = ["RUNNING", "Differentiable", "Inside", "Kernels", "Network", "attention", "counted", "tokens_of"]
