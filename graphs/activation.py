"""Graphs of attention with an elementwise activation instead of the softmax, forward and backward.

O = A(Q Kᵀ) V, and dL/dX of A(A1 X A2ᵀ) A3 Y, for A = relu or sigmoid without normalisation (Li et al., Remark 5.1).
"""

from __future__ import annotations

from functools import partial

from pebblesim.graphs.builder import Builder, Mask, sizes
from pebblesim.graphs.projections import queries_keys_values


def declare_forward(
    n_q: int, n_k: int, d_k: int, d_v: int, summation: str = "chain", *, activation: str, mask: Mask = None
) -> Builder:
    """The graph of O (n_q, d_v) from Q (n_q, d_k), K (n_k, d_k), V (n_k, d_v); the mask is of shape (n_q, n_k)."""
    n_q, n_k, d_k, d_v = sizes(n_q=n_q, n_k=n_k, d_k=d_k, d_v=d_v)
    b = Builder(summation, mask)
    b.outputs = ("O",)
    queries_keys_values(b, n_q, n_k, d_k, d_v, None)
    b.matmul("S", "Q", "K.T", pairs=True)
    b.elementwise("A", activation, "S")
    b.matmul("O", "A", "V")
    return b


def declare_backward(
    n_q: int, n_k: int, d: int, summation: str = "chain", *, activation: str, mask: Mask = None
) -> Builder:
    """The graph of g = dL/dX = A1ᵀ (p A2), p = q ∘ A'(A1 X A2ᵀ), from A1, dO (n_q, d), A2, A3 (n_k, d), X, Y (d, d)."""
    n_q, n_k, d = sizes(n_q=n_q, n_k=n_k, d=d)
    b = Builder(summation, mask)
    b.outputs = ("g",)
    for name, rows in (("A1", n_q), ("A2", n_k), ("A3", n_k), ("dO", n_q)):
        b.input(name, (rows, d))
    for name in ("X", "Y"):
        b.input(name, (d, d))
    b.matmul("S", "A1", "X")
    b.matmul("Z", "S", "A2.T", pairs=True)
    if activation == "relu":
        b.elementwise("slope", "step", "Z")
    else:
        b.elementwise("A", "sigmoid", "Z")
        b.elementwise("AA", "mul", "A", "A")
        b.elementwise("slope", "sub", "A", "AA")
    b.matmul("h", "A3", "Y")
    b.matmul("q", "dO", "h.T", pairs=True)
    b.elementwise("p", "mul", "slope", "q")
    b.matmul("dQ", "p", "A2")
    b.matmul("g", "A1.T", "dQ")
    return b


forward_relu = partial(declare_forward, activation="relu")
forward_sigmoid = partial(declare_forward, activation="sigmoid")
backward_relu = partial(declare_backward, activation="relu")
backward_sigmoid = partial(declare_backward, activation="sigmoid")
