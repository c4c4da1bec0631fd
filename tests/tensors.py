"""Comparisons of tensors of PyTorch."""

from __future__ import annotations

from typing import Any


def close(made: list[Any], true: list[Any], tolerance: float = 1e-12) -> None:
    """Check that tensors have the same shapes and, relative to the largest number of each or 1, the same numbers."""
    for a, b in zip(made, true, strict=True):
        assert a.shape == b.shape
        assert (a - b).detach().abs().max() <= tolerance * max(1.0, float(b.detach().abs().max()))
