"""The graph of attention whose values are the first part of its keys, with any softmax of the forward pass."""

from __future__ import annotations

from pebblesim.graphs.builder import Builder, Mask, sizes
from pebblesim.graphs.forward import Values, checked, output


def declare(
    n_q: int,
    n_k: int,
    d_v: int,
    d_r: int,
    summation: str = "chain",
    *,
    softmax: str = "early",
    column_block: int | None = None,
    row_block: int | None = None,
    outputs: tuple[str, ...] = ("O",),
    mask: Mask = None,
) -> Builder:
    """The graph of O (n_q, d_v) from Q_C (n_q, d_v), Q_R (n_q, d_r), C (n_k, d_v) and R (n_k, d_r).

    Args:
        n_q, n_k: numbers of queries and of keys.
        d_v, d_r: words of a key that are also its value; words of a key that only the scores use.
        summation, softmax, column_block, row_block, outputs, mask: as for the graph of the forward pass.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    n_q, n_k, d_v, d_r = sizes(n_q=n_q, n_k=n_k, d_v=d_v, d_r=d_r)
    blocks = checked(softmax, column_block, row_block, None, mask)
    b = Builder(summation, mask)
    b.outputs = outputs
    for name, shape in {"Q_C": (n_q, d_v), "Q_R": (n_q, d_r), "C": (n_k, d_v), "R": (n_k, d_r)}.items():
        b.input(name, shape)
    b.matmul("S_C", "Q_C", "C.T", pairs=True)
    b.matmul("S_R", "Q_R", "R.T", pairs=True)
    b.elementwise("S", "add", "S_C", "S_R")
    output(b, softmax, n_q, n_k, blocks, Values("C", d_v))
    return b
