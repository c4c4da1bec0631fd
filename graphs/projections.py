"""Where the queries, keys and values of a graph of attention come from."""

from __future__ import annotations

from pebblesim.graphs.builder import Builder


def queries_keys_values(b: Builder, n: int, d: int, projected: bool) -> None:
    """Q, K and V (n, d): inputs, or projections of the inputs A1, A2, A3 (n, d) by W_Q, W_K, W_V (d, d)."""
    pairs = {"Q": ("A1", "W_Q"), "K": ("A2", "W_K"), "V": ("A3", "W_V")}
    for name, (source, weight) in pairs.items():
        if projected:
            b.input(source, (n, d))
            b.input(weight, (d, d))
        else:
            b.input(name, (n, d))
    if projected:
        for name, (source, weight) in pairs.items():
            b.matmul(name, source, weight)
