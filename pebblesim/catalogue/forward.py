"""Softmax attention."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.catalogue.softmax import GLOSSARY as OF_SOFTMAX, ONLINE, SPLIT, SPLIT_SCORES, softmax
from pebblesim.catalogue.theta import COMPULSORY, OF_QKV, repaired
from pebblesim.language.problems import Array, problem


def reference(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """Softmax attention, and values that a backward pass may use: l, or m and l_m, or L, or P."""
    kept = softmax(x["Q"] @ x["K"].T, allowed)
    return {"O": kept["P"] @ x["V"], **kept}


SHAPES = {
    "dims": ("n_q", "n_k", "d_k", "d_v"),
    "from_nd": {"n_q": "n", "n_k": "n", "d_k": "d", "d_v": "d"},
    "inputs": {"Q": ("n_q", "d_k"), "K": ("n_k", "d_k"), "V": ("n_k", "d_v")},
    "outputs": {"O": ("n_q", "d_v")},
}
"""Shapes of the inputs and outputs, the same with a softmax and with an activation."""

GLOSSARY = {
    "Q": ("", "queries, one row for each"),
    "K": ("", "keys, one row for each"),
    "V": ("", "values, one row for each key"),
    "S": ("Q Kᵀ", "scores: how well each query matches each key"),
}
"""(formula, meaning) of each tensor that is the same with a softmax and with an activation."""

problem(
    "forward",
    **SHAPES,
    extra=dict.fromkeys(("l", "m", "l_m", "L"), ("n_q",)) | {"P": ("n_q", "n_k")},
    queries=("Q",),
    scaled=(("Q",), ()),
    keys=("K", "V"),
    values=reference,
    source="Saha & Ye 2024, arXiv 2402.07443; Dao et al. 2022, arXiv 2205.14135",
    graph="pebblesim.graphs.forward:declare",
    theta=repaired("Saha & Ye, Theorem 3.1", f"Saha & Ye 2024, Theorems 3.1 and 3.7, {COMPULSORY}", rectangle=OF_QKV),
    bounds="forward",
    glossary=GLOSSARY
    | OF_SOFTMAX
    | ONLINE
    | SPLIT
    | SPLIT_SCORES
    | {
        "O": ("P V", "the result: for each query, the mean of the values under its probabilities"),
        "f": ("exp(S − L 1ᵀ)", "probabilities, computed from the scores once more when L is known"),
        "AV": ("A V", "the output before the division by the row sums; in FlashAttention-1, of one block of columns"),
        "l_block": ("A_block · 1", "row sums over one block of columns"),
        "down_block": ("m_block − m", "maximum of this block minus the running maximum, ≤ 0"),
        "a_block": ("exp(m_block − m)", "factor that rescales the block's sums to the running maximum"),
        "al_block": ("a_block ∘ l_block", "the block's row sums, rescaled to the running maximum"),
        "aAV": ("diag(a_block) A_block V_block", "the block's output, rescaled to the running maximum"),
        "alO": ("diag(a ∘ l_m_prev) O_prev", "the older output, with its division by the row sums undone"),
    },
)
