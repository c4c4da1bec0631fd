"""The softmax of the references, and the names of its tensors."""

from __future__ import annotations

from pebblesim.language.problems import Array


def softmax(scores: Array, allowed: Array | None) -> dict[str, Array]:
    """Row maxima m, sums l_m = Σ exp(S - m) and l = Σ exp(S), L = log l and P = exp(S - L), over the allowed pairs.

    The exponential is taken only of differences from the maximum, so P, L, m and l_m are correct for scores of any
    size. l overflows to inf where its true value exceeds the largest float64, from scores of 709.8 on.
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


GLOSSARY = {
    "A": ("exp(S)", "numerators of the softmax; exp(S − m 1ᵀ) where row maxima m are taken off"),
    "l": ("exp(S) · 1", "row sums, by which the softmax divides"),
    "m": ("rowmax(S)", "row maxima of the scores; taken off before exp, so that it cannot overflow"),
    "l_m": ("exp(S − m 1ᵀ) · 1", "row sums of the numerators where the maxima m are taken off"),
    "L": ("m + log(l_m)", "logarithm of the row sums l: one number for each row from which P follows"),
    "P": ("diag(l)⁻¹ exp(S)", "probabilities, the softmax of the scores: each row adds up to 1"),
    "Sm": ("S − m 1ᵀ", "scores with the row maxima taken off"),
    "SL": ("S − L 1ᵀ", "scores with the logarithm of the row sums taken off; exp of it is P"),
}
"""(formula, meaning) of each tensor of a softmax of scores S."""

ONLINE = {
    "m_block": ("rowmax(S_block)", "row maxima over one block of columns"),
    "down": ("m_prev − m", "how far the running maximum has risen with this block, as a number that is not positive"),
    "a": ("exp(m_prev − m)", "factor that makes older sums relative to the new maximum"),
    "al": ("a ∘ l_m_prev", "the older row sums, relative to the new maximum"),
    "lO": ("diag(a) lO_prev + A_block V_block", "running output, not yet divided by the row sums"),
    "aO": ("diag(a) lO_prev", "the older running output, relative to the new maximum"),
    "log_l": ("log(l_m)", "logarithm of the row sums where the maxima are taken off"),
}
"""The same of the online softmax, which takes the columns block by block; prev is the block before."""

SPLIT = {
    "m_s": ("rowmax(S_block)", "row maxima over the keys of one split"),
    "l_s": ("A_block · 1", "row sums over the keys of one split"),
    "log_l_s": ("log(l_s)", "logarithm of the row sums of one split"),
    "L_s": ("m_s + log(l_s)", "logarithm of the row sums of one split: what it weighs against the others"),
    "AV_s": ("A_block V_block", "the output of one split, not divided by the row sums"),
    "O_s": ("diag(l_s)⁻¹ A_block V_block", "the result for the keys of one split alone"),
    "top": ("max(top_prev, L_s)", "the largest L_s so far"),
    "down_top": (
        "top_prev − top",
        "how far the largest L_s has risen with this split, not positive",
    ),
    "fade": ("exp(top_prev − top)", "factor that makes older weights relative to the new largest"),
    "down_s": ("L_s − top", "how far this split's L_s is below the largest so far"),
    "w": ("exp(L_s − top)", "weight of this split relative to the largest so far"),
    "fadeW": ("fade ∘ W_prev", "the older weights, relative to the new largest"),
    "W": ("fade ∘ W_prev + w", "sum of the weights so far"),
    "fadeO": ("diag(fade) WO_prev", "the older splits' results by their weights, relative to the new largest"),
    "wO": ("diag(w) O_s", "the split's result, by its weight"),
    "WO": ("diag(fade) WO_prev + diag(w) O_s", "the splits' results by their weights, added up so far"),
    "log_W": ("log(W)", "logarithm of the sum of the weights"),
}
"""The same of keys in splits, each with a softmax of its own, that are merged."""

SPLIT_SUMS = {name: SPLIT[name] for name in ("l_s", "AV_s")}
"""The same of splits whose sums are added up."""
