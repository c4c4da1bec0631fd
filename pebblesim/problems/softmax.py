"""The softmax that references share."""

from __future__ import annotations

from pebblesim.language.problems import Array


def softmax(scores: Array, allowed: Array | None) -> dict[str, Array]:
    """Row maxima m, sums l_m = Σ exp(S - m) and l = Σ exp(S), L = log l and P = exp(S - L), over the allowed pairs.

    Only differences from the maximum are raised to a power, so that P, L, m and l_m are right for scores of any size.
    l overflows to inf where its true value exceeds the largest float64, from scores of 709.8 on.
    """
    import numpy as np

    S = scores if allowed is None else np.where(allowed, scores, -np.inf)
    m = S.max(axis=1)
    A = np.exp(S - np.where(np.isneginf(m), 0, m)[:, None])
    l_m = A.sum(axis=1)
    some = l_m > 0
    L = m + np.log(l_m, out=np.zeros_like(l_m), where=some)
    with np.errstate(over="ignore"):
        l = np.exp(m) * l_m
    return {"l": l, "m": m, "l_m": l_m, "L": L, "P": A / np.where(some, l_m, 1)[:, None]}
