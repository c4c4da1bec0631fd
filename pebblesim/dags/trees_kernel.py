"""Labels of trees of values with one use each, and the values that are cut off; see `pebblesim.dags.trees`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part


@part()
def _places(labels: Any, count: int) -> int:
    """The largest of the first labels, which increase, each with the number of larger ones."""
    most = 0
    for k in range(count):
        most = max(most, labels[k] + count - 1 - k)
    return most


@kernel()
def cut_off(order: Any, start: Any, preds: Any, in_tree: Any, M: int) -> int:
    """The tree values that are cut off until each vertex fits into M places, those with large labels first."""
    labels, total = np.zeros(in_tree.size, dtype=np.int64), 0
    for v in order:
        held = np.sort(np.array([labels[u] for u in preds[start[v] : start[v + 1]] if in_tree[u]], dtype=np.int64))
        count = held.size
        while count and _places(held, count) > M:
            count -= 1
            total += 1
        labels[v] = max(start[v + 1] - start[v] + 1, _places(held, count))
    return total
