"""Our kernels as an attention processor of diffusers: `vae.set_attn_processor(Processor())`."""

from pebblesim.operator.integrations.diffusers import Processor

__all__ = ["Processor"]
