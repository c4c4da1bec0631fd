"""The product of two matrices."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.catalogue.theta import repaired
from pebblesim.language.problems import Array, problem


def reference(x: Mapping[str, Array]) -> dict[str, Array]:
    return {"C": x["A"] @ x["B"]}


problem(
    "matmul",
    dims=("m", "k", "n"),
    from_nd={"m": "n", "k": "d", "n": "n"},
    inputs={"A": ("m", "k"), "B": ("k", "n")},
    outputs={"C": ("m", "n")},
    values=reference,
    source="Hong & Kung 1981, section 6",
    graph="pebblesim.graphs.matmul:declare",
    theta=repaired("Hong & Kung, Corollary 6.2", "Hong & Kung 1981, Corollary 6.2, with the compulsory terms added"),
    bounds="matmul",
    glossary={
        "A": ("", "left factor"),
        "B": ("", "right factor"),
        "C": ("A B", "the result: the product of two matrices"),
    },
)
