"""Queries, keys and values of a graph of attention: inputs, or projections of inputs."""

from __future__ import annotations

from pebblesim.graphs.builder import Builder, whole


def queries_keys_values(b: Builder, n_q: int, n_k: int, d_k: int, d_v: int, d: int | None) -> None:
    """Q (n_q, d_k), K (n_k, d_k) and V (n_k, d_v): inputs, or projections of the inputs A1, A2, A3 by W_Q, W_K, W_V.

    `d` is the number of words in a row of A1, A2 and A3; None if Q, K and V are the inputs.
    """
    shapes = {"Q": (n_q, d_k), "K": (n_k, d_k), "V": (n_k, d_v)}
    if d is None:
        for name, shape in shapes.items():
            b.input(name, shape)
        return
    d = whole("d", d)
    projections = {"Q": ("A1", "W_Q"), "K": ("A2", "W_K"), "V": ("A3", "W_V")}
    for name, (source, weight) in projections.items():
        rows, columns = shapes[name]
        b.input(source, (rows, d))
        b.input(weight, (d, columns))
    for name, (source, weight) in projections.items():
        b.matmul(name, source, weight)
