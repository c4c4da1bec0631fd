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
    "A": ("exp(S)", "numerators of the softmax; exp(S − m 1ᵀ) if the row maxima m are subtracted"),
    "l": ("exp(S) · 1", "row sums, by which the softmax divides"),
    "m": ("rowmax(S)", "row maxima of the scores, subtracted before exp so that it cannot overflow"),
    "l_m": ("exp(S − m 1ᵀ) · 1", "row sums of the numerators if the maxima m are subtracted"),
    "L": ("m + log(l_m)", "logarithm of the row sums l; with L and the scores, P can be recomputed"),
    "P": ("diag(l)⁻¹ exp(S)", "probabilities, the softmax of the scores: each row adds up to 1"),
    "Sm": ("S − m 1ᵀ", "scores minus the row maxima"),
    "SL": ("S − L 1ᵀ", "scores minus the logarithm of the row sums; exp of it is P"),
}
"""(formula, meaning) of each tensor of a softmax of scores S."""

ONLINE = {
    "m_block": ("rowmax(S_block)", "row maxima over one block of columns"),
    "down": ("m_prev − m", "old minus new running maximum, ≤ 0"),
    "a": ("exp(m_prev − m)", "factor that rescales the older sums to the new maximum"),
    "al": ("a ∘ l_m_prev", "the older row sums, rescaled to the new maximum"),
    "lO": ("diag(a) lO_prev + A_block V_block", "running output, before the division by the row sums"),
    "aO": ("diag(a) lO_prev", "the older running output, rescaled to the new maximum"),
    "log_l": ("log(l_m)", "logarithm of the row sums if the maxima are subtracted"),
}
"""(formula, meaning) of the tensors of the online softmax, block of columns by block; prev is the previous block."""

SPLIT = {
    "m_s": ("rowmax(S_block)", "row maxima over the keys of one split"),
    "l_s": ("A_block · 1", "row sums over the keys of one split"),
    "log_l_s": ("log(l_s)", "logarithm of the row sums of one split"),
    "L_s": ("m_s + log(l_s)", "logarithm of the row sums of one split; it gives the split's weight in the merge"),
    "AV_s": ("A_block V_block", "the output of one split, before the division by the row sums"),
    "O_s": ("diag(l_s)⁻¹ A_block V_block", "the output for the keys of one split alone"),
    "top": ("max(top_prev, L_s)", "the largest L_s so far"),
    "down_top": (
        "top_prev − top",
        "old minus new largest L_s, ≤ 0",
    ),
    "fade": ("exp(top_prev − top)", "factor that rescales the older weights to the new largest L_s"),
    "down_s": ("L_s − top", "this split's L_s minus the largest so far, ≤ 0"),
    "w": ("exp(L_s − top)", "weight of this split, relative to the largest L_s so far"),
    "fadeW": ("fade ∘ W_prev", "the sum of the older weights, rescaled to the new largest L_s"),
    "W": ("fade ∘ W_prev + w", "sum of the weights so far"),
    "fadeO": ("diag(fade) WO_prev", "weighted sum of the older splits' outputs, rescaled to the new largest L_s"),
    "wO": ("diag(w) O_s", "the split's output times its weight"),
    "WO": ("diag(fade) WO_prev + diag(w) O_s", "weighted sum of the splits' outputs so far"),
    "log_W": ("log(W)", "logarithm of the sum of the weights"),
}
"""(formula, meaning) of the tensors of splits of keys: each split has its own softmax; they are merged at the end."""

SPLIT_SCORES = {
    "P_s": ("diag(l_s)⁻¹ A_block", "probabilities of each query among the keys of one split alone"),
    "down_L": ("L_s − L", "logarithm of a split's share of all row sums, ≤ 0"),
    "share": ("exp(L_s − L)", "a split's share of all row sums"),
}
"""(formula, meaning) of the tensors of splits whose probabilities are weighted before the product with V."""

SPLIT_SUMS = {name: SPLIT[name] for name in ("l_s", "AV_s")}
"""(formula, meaning) of the tensors of splits whose sums are only added."""
