"""The number of operations that a problem needs. A roofline counts these, so that recomputation is not rewarded."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.analysis.work import work
from pebblesim.language.masks import Mask
from pebblesim.language.registry import some_of_problem


def useful_operations(problem_name: str, dims: Mapping[str, int], mask: Mask | None = None) -> int:
    """Return the fewest operations of any schedule of a problem, with tiles that hold everything and no recomputation.

    For `backward-qkv` this is a schedule that keeps P: four products, twice the forward pass. Schedules that recompute
    the scores execute a fifth product; this is the difference between model utilization and hardware utilization.

    >>> useful_operations("matmul", {"m": 2, "k": 3, "n": 4})
    40

    Raises:
        UsageError: the problem takes no mask, or has no schedule for it, or the mask does not fit its size.
    """
    operations = []
    for algorithm in some_of_problem(problem_name, dims, mask is not None):
        algorithm = algorithm.in_dims(dims)
        program = algorithm.under(mask)
        whole = dict.fromkeys(algorithm.blocks, max(dims.values()))
        operations.append(sum(work(program, {**dims, **whole}, mask).values()))
    return min(operations)
