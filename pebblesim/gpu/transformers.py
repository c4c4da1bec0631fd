"""Our kernels as an attention of Hugging Face's transformers: `register()`, then `attn_implementation="pebblesim"`."""

from pebblesim.operator.integrations.transformers import register

__all__ = ["register"]
