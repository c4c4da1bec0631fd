"""Queries, keys and values of a graph of attention: inputs, or projections of inputs; and weights that are absorbed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.graphs.builder import Builder, whole


class Operands(NamedTuple):
    """The tensors of which scores are products, queries by keys, and the values with which pairs are multiplied."""

    queries: str
    keys: str
    values: str


def queries_keys_values(
    b: Builder, n_q: int, n_k: int, d_k: int, d_v: int, d: int | None, absorbed: Collection[str] = ()
) -> Operands:
    """Q (n_q, d_k), K (n_k, d_k) and V (n_k, d_v): inputs, or projections of the inputs A1, A2, A3 by W_Q, W_K, W_V.

    `d` is the number of words in a row of A1, A2 and A3; None if Q, K and V are the inputs. With W_K absorbed, scores
    are (Q W_Kᵀ) A2ᵀ, and K is not made; with W_Q absorbed, they are A1 (K W_Qᵀ)ᵀ. With W_V absorbed, the values are A3.

    Raises:
        UsageError: weights cannot be absorbed together, or there are none.
    """
    shapes = {"Q": (n_q, d_k), "K": (n_k, d_k), "V": (n_k, d_v)}
    if d is None:
        if absorbed:
            raise UsageError("absorbed names weights, but Q, K and V are inputs here; leave it out.")
        for name, shape in shapes.items():
            b.input(name, shape)
        return Operands("Q", "K", "V")
    if {"W_Q", "W_K"} <= {*absorbed}:
        raise UsageError("W_Q and W_K cannot both be absorbed: scores need A1 W_Q or A2 W_K; absorb one of them.")
    d = whole("d", d)
    projections = {"Q": ("A1", "W_Q"), "K": ("A2", "W_K"), "V": ("A3", "W_V")}
    for name, (source, weight) in projections.items():
        rows, columns = shapes[name]
        b.input(source, (rows, d))
        b.input(weight, (d, columns))
    for name, (source, weight) in projections.items():
        if weight not in absorbed:
            b.matmul(name, source, weight)
    values = "A3" if "W_V" in absorbed else "V"
    if "W_K" in absorbed:
        b.matmul("QW", "Q", "W_K.T")
        return Operands("QW", "A2", values)
    if "W_Q" in absorbed:
        b.matmul("KW", "K", "W_Q.T")
        return Operands("A1", "KW", values)
    return Operands("Q", "K", values)


def absorbable(absorbed: str | Iterable[str], weights: Collection[str]) -> frozenset[str]:
    """The weights that a graph absorbs, from their names, or from a text such as "W_K,W_V".

    Raises:
        UnknownName: the graph has no such weights.
    """
    names = [name.strip() for name in absorbed.split(",") if name] if isinstance(absorbed, str) else [*absorbed]
    for name in names:
        if name not in weights:
            raise UnknownName("weight to absorb", name, weights)
    return frozenset(names)
