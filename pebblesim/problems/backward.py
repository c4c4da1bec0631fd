"""dL/dX of attention (Li et al.)."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.language.problems import Array, problem
from pebblesim.problems.softmax import softmax
from pebblesim.theory.theta import COMPULSORY, OF_BACKWARD, repaired


def reference(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """dL/dX of attention, straight from the definitions (Li et al., Defs. 3.2 and B.3-B.9)."""
    kept = softmax(x["A1"] @ x["X"] @ x["A2"].T, allowed)
    f = kept["P"]
    h = x["A3"] @ x["Y"]
    q = x["dO"] @ h.T
    p = f * q - (f * q).sum(axis=1)[:, None] * f
    return {"g": x["A1"].T @ p @ x["A2"], "O": f @ h, "l": kept["l"]}


SHAPES = {
    "dims": ("n_q", "n_k", "d"),
    "from_nd": {"n_q": "n", "n_k": "n", "d": "d"},
    "inputs": {
        "A1": ("n_q", "d"),
        "A2": ("n_k", "d"),
        "A3": ("n_k", "d"),
        "dO": ("n_q", "d"),
        "X": ("d", "d"),
        "Y": ("d", "d"),
    },
    "outputs": {"g": ("d", "d")},
}
"""What goes in and comes out, whatever stands for the softmax."""

problem(
    "backward",
    **SHAPES,
    kept={"O": ("n_q", "d"), "l": ("n_q",)},
    queries=("A1", "dO", "O", "l"),
    keys=("A2", "A3"),
    values=reference,
    source="Li et al., arXiv 2410.09397, Definitions 3.2 and B.3-B.9",
    graph="pebblesim.graphs.backward:declare",
    theta=repaired("Li et al., Theorem 1.1", f"Li et al., Theorem 1.1, {COMPULSORY}", rectangle=OF_BACKWARD),
    bounds="backward",
)
