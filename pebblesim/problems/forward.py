"""Softmax attention."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.language.problems import Array, problem
from pebblesim.problems.softmax import softmax
from pebblesim.theory.theta import COMPULSORY, OF_QKV, repaired


def reference(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """Softmax attention and what a backward pass may keep of it: l, or m and l_m, or L, or P."""
    kept = softmax(x["Q"] @ x["K"].T, allowed)
    return {"O": kept["P"] @ x["V"], **kept}


SHAPES = {
    "dims": ("n_q", "n_k", "d_k", "d_v"),
    "from_nd": {"n_q": "n", "n_k": "n", "d_k": "d", "d_v": "d"},
    "inputs": {"Q": ("n_q", "d_k"), "K": ("n_k", "d_k"), "V": ("n_k", "d_v")},
    "outputs": {"O": ("n_q", "d_v")},
}
"""What goes in and comes out, whatever stands for the softmax."""

problem(
    "forward",
    **SHAPES,
    extra=dict.fromkeys(("l", "m", "l_m", "L"), ("n_q",)) | {"P": ("n_q", "n_k")},
    queries=("Q",),
    keys=("K", "V"),
    values=reference,
    source="Saha & Ye 2024, arXiv 2402.07443; Dao et al. 2022, arXiv 2205.14135",
    graph="pebblesim.graphs.forward:declare",
    theta=repaired("Saha & Ye, Theorem 3.1", f"Saha & Ye 2024, Theorems 3.1 and 3.7, {COMPULSORY}", rectangle=OF_QKV),
    bounds="forward",
)
