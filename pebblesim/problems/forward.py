"""Softmax attention."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.language.problems import Array, problem
from pebblesim.problems.softmax import softmax
from pebblesim.theory.theta import COMPULSORY, repaired


def reference(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """Softmax attention and what a backward pass may keep of it: l, or m and l_m, or L, or P."""
    kept = softmax(x["Q"] @ x["K"].T, allowed)
    return {"O": kept["P"] @ x["V"], **kept}


problem(
    "forward",
    dims=("n", "d"),
    from_nd={"n": "n", "d": "d"},
    inputs={"Q": ("n", "d"), "K": ("n", "d"), "V": ("n", "d")},
    outputs={"O": ("n", "d")},
    extra={"l": ("n",), "m": ("n",), "l_m": ("n",), "L": ("n",), "P": ("n", "n")},
    queries=("Q",),
    keys=("K", "V"),
    values=reference,
    source="Saha & Ye 2024, arXiv 2402.07443; Dao et al. 2022, arXiv 2205.14135",
    graph="pebblesim.graphs.forward:declare",
    theta=repaired("Saha & Ye, Theorem 3.1", f"Saha & Ye 2024, Theorems 3.1 and 3.7, {COMPULSORY}"),
    bounds="forward",
)
