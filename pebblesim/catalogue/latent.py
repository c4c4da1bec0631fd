"""Attention whose values are a part of its keys: multi-head latent attention in absorbed form; all heads share one K.

A key consists of a latent of d_v words, which is also its value, and d_r words that only the scores use (its rotary
part): d_k = d_v + d_r. The bounds on attention are not claimed for this problem, because a word of C has two uses; it
has its own bounds.
"""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.catalogue.softmax import GLOSSARY as OF_SOFTMAX, ONLINE, SPLIT_SUMS, softmax
from pebblesim.catalogue.theta import OF_LATENT
from pebblesim.language.problems import Array, Theta, problem


def reference(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """O = softmax(Q_C Cᵀ + Q_R Rᵀ) C, and the kept values of the softmax."""
    kept = softmax(x["Q_C"] @ x["C"].T + x["Q_R"] @ x["R"].T, allowed)
    return {"O": kept["P"] @ x["C"], **kept}


OF_KEYS = {
    "Q_C": ("", "queries, the part that is multiplied by the latent keys"),
    "Q_R": ("", "queries, the rotary part"),
    "C": ("", "latent keys, which are also the values"),
    "R": ("", "rotary part of the keys, used only for the scores"),
    "S_C": ("Q_C Cᵀ", "scores, the part from the latent keys"),
    "S_R": ("Q_R Rᵀ", "scores, the part from the rotary keys"),
    "S": ("S_C + S_R", "scores: how well each query matches each key"),
}
"""(formula, meaning) of both parts of queries and keys, and of their scores."""

problem(
    "forward-latent",
    dims=("n_q", "n_k", "d_v", "d_r"),
    from_nd={"n_q": "n", "n_k": "n", "d_v": "d", "d_r": "d"},
    totals={"d_k": ("d_v", "d_r")},
    inputs={"Q_C": ("n_q", "d_v"), "Q_R": ("n_q", "d_r"), "C": ("n_k", "d_v"), "R": ("n_k", "d_r")},
    outputs={"O": ("n_q", "d_v")},
    extra=dict.fromkeys(("l", "L"), ("n_q",)),
    queries=("Q_C", "Q_R"),
    keys=("C", "R"),
    scaled=(("Q_C", "Q_R"), ()),
    values=reference,
    source="DeepSeek-AI 2024, arXiv 2405.04434, section 2.1 (absorbed)",
    graph="pebblesim.graphs.latent:declare",
    theta=Theta(
        "d*n + Min(d**2*n**2/M, d*n**2/sqrt(M))",
        "V2, V3 (docs/lower-bounds.md), row-stationary-latent, small-cache-latent-streamed, with the compulsory n·d "
        "added (for n ≥ d)",
        OF_LATENT,
    ),
    bounds="forward-latent",
    glossary={
        **OF_KEYS,
        **{name: OF_SOFTMAX[name] for name in ("A", "l", "m", "l_m", "L", "Sm")},
        **ONLINE,
        "lO": ("diag(a) lO_prev + A_block C_block", "running output, before the division by the row sums"),
        "AV": ("A C", "the output before the division by the row sums"),
        **SPLIT_SUMS,
        "O": ("softmax(S) C", "the result: for each query, the mean of the latent keys under its probabilities"),
    },
)
