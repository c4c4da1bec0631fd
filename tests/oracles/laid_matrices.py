"""Arrays of matrices as frameworks have them: their strides, and rows of heads that share keys."""

from __future__ import annotations

import numpy as np


def grouped(x: np.ndarray, shared: int) -> np.ndarray:
    """(batch, heads, n, …) with rows of heads that share keys next to each other: (batch * heads of keys, rows, …)."""
    batch, heads, n, *rest = x.shape
    apart = x.reshape(batch, heads // shared, shared, n, *rest).swapaxes(2, 3)
    return apart.reshape(batch * heads // shared, n * shared, *rest)


def strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Strides of (batch, heads, n, d): heads or tokens first, or of tokens among other words."""
    _, heads, n, d = shape
    if layout == "heads":
        return heads * n * d, n * d, d, 1
    width = heads * d + (24 if layout == "wider" else 0)
    return n * width, d, width, 1
