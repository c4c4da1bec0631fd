"""Words that kernels of several heads move, by the place they are moved from or to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping


def by_place(by_tensor: Mapping[str, tuple[int, int]], ends: Container[str], heads: int) -> Counter[tuple[str, str]]:
    """Count ("read" or "written", a tensor, or "between" for what is kept between launches).

    Args:
        by_tensor: words that one head reads and writes, by tensor.
        ends: inputs and outputs.
        heads: their number.
    """
    found: Counter[tuple[str, str]] = Counter()
    for tensor, (reads, writes) in by_tensor.items():
        place = tensor if tensor in ends else "between"
        found["read", place] += heads * reads
        found["written", place] += heads * writes
    return +found
