"""Linear attention, whose product is associative."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.catalogue.backward import GLOSSARY
from pebblesim.language.problems import Array, Theta, problem


def reference(x: Mapping[str, Array]) -> dict[str, Array]:
    """Linear attention: without a softmax the product is associative (Li et al., Remark 5.1)."""
    return {"O": x["A1"] @ x["X"] @ (x["A2"].T @ x["A3"]) @ x["Y"]}


problem(
    "linear",
    dims=("n", "d"),
    from_nd={"n": "n", "d": "d"},
    inputs=dict.fromkeys(("A1", "A2", "A3"), ("n", "d")) | {"X": ("d", "d"), "Y": ("d", "d")},
    outputs={"O": ("n", "d")},
    values=reference,
    source="Li et al., arXiv 2410.09397, Remark 5.1",
    graph="pebblesim.graphs.linear:declare",
    theta=Theta("d*n + d**2*n/sqrt(M)", "products with d x d matrices alone: Hong & Kung 1981 (for n ≥ d)"),
    bounds="linear",
    glossary={name: GLOSSARY[name] for name in ("A1", "A2", "A3", "X", "Y")}
    | {
        "W": ("A2ᵀ A3", "keys times values, summed over all keys; no query is needed for it"),
        "XW": ("X W", "W times the weights of queries and keys"),
        "XWY": ("X W Y", "the d × d matrix that the queries are multiplied by"),
    }
    | {name: GLOSSARY[name] for name in ("S", "h", "Z")}
    | {"O": ("A1 X A2ᵀ A3 Y", "the result: attention without a softmax")},
)
