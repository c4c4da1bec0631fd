"""Imported before `torch` by modules that need it: a sentence where it is not here."""

from pebblesim.core.errors import UsageError

try:
    import torch as _  # noqa: F401
except ImportError as error:
    raise UsageError(f"attention needs PyTorch, and {error.name} is not here: pip install torch.") from None
