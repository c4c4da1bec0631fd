"""The graph of the attention forward pass, O = softmax(Q Kᵀ) V (Saha & Ye 2024; Dao et al. 2022; Dao 2023).

The softmax can be associated in many ways; each has its own graph. The online softmax keeps a running maximum, and
rescales its sums after each block of columns.
"""

from __future__ import annotations

from typing import Final

from pebblesim.errors import UnknownName, UsageError
from pebblesim.graphs.builder import Builder, Mask, sizes, whole
from pebblesim.graphs.projections import queries_keys_values

SOFTMAX: Final = ("early", "late", "safe", "flash1", "flash2", "logsumexp")


def declare(
    n_q: int,
    n_k: int,
    d_k: int,
    d_v: int,
    summation: str = "chain",
    *,
    softmax: str = "early",
    column_block: int | None = None,
    row_block: int | None = None,
    d: int | None = None,
    outputs: tuple[str, ...] = ("O",),
    mask: Mask = None,
) -> Builder:
    """The graph of O (n_q, d_v) from Q (n_q, d_k), K (n_k, d_k) and V (n_k, d_v).

    Args:
        n_q, n_k: numbers of queries and of keys.
        d_k, d_v: words in a row of Q and K; words in a row of V.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        softmax: "early" for P = A / l before the product with V, "late" for O = (A V) / l, both with A = exp(S) and l
            its row sums; "safe" with the row maximum m subtracted first, as in frameworks; "flash1" and "flash2" for
            the online softmax of FlashAttention-1 and -2; "logsumexp" for f = exp(S - L), where L comes from running
            sums as in FlashAttention-2.
        column_block: columns in each step of the online softmax.
        row_block: rows of a tile of the online softmax. Under a mask, a tile takes only the steps in which it has an
            allowed pair; without a mask row_block has no effect.
        d: words in a row of the inputs, where Q, K, V are projections of A1 (n_q, d), A2, A3 (n_k, d) by W_Q, W_K
            (d, d_k), W_V (d, d_v); None where Q, K, V are the inputs.
        outputs: tensors that must be in memory at the end: O, and those kept for a backward pass.
        mask: booleans of shape (n_q, n_k), the pairs that may meet; None for all.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    n_q, n_k, d_k, d_v = sizes(n_q=n_q, n_k=n_k, d_k=d_k, d_v=d_v)
    if softmax not in SOFTMAX:
        raise UnknownName("softmax", softmax, SOFTMAX)
    online = softmax in ONLINE
    if (column_block is not None) != online:
        raise UsageError(f"column_block is required with softmax {', '.join(ONLINE)}, and not allowed with any other.")
    if (row_block is not None and not online) or (row_block is None and online and mask is not None):
        raise UsageError(
            f"row_block is required under a mask with softmax {', '.join(ONLINE)}, and not allowed with any other."
        )
    b = Builder(summation, mask)
    b.outputs = outputs
    queries_keys_values(b, n_q, n_k, d_k, d_v, d)
    b.matmul("S", "Q", "K.T", pairs=True)
    if column_block is None:
        _whole_rows(b, softmax)
    else:
        blocks = whole("column_block", column_block), None if row_block is None else whole("row_block", row_block)
        ONLINE[softmax](b, n_q, n_k, d_v, *blocks)
    return b


def _whole_rows(b: Builder, softmax: str) -> None:
    """Compute the row sums over all columns, then divide."""
    if softmax == "safe":
        b.rowmax("m", "S")
        b.elementwise("Sm", "sub", "S", "m")
        b.elementwise("A", "exp", "Sm")
    else:
        b.elementwise("A", "exp", "S")
    l = "l_m" if softmax == "safe" else "l"
    b.rowsum(l, "A")
    if softmax == "late":
        b.matmul("AV", "A", "V")
        b.elementwise("O", "div", "AV", l)
    else:
        b.elementwise("P", "div", "A", l)
        b.matmul("O", "P", "V")


def _flash1(b: Builder, n_q: int, n_k: int, d_v: int, block: int, row_block: int | None) -> None:
    """Dao et al. 2022, Algorithm 1: probabilities relative to the block's own maximum;

    O is divided by l after each block.
    """
    with b.loop(n_k, block, row_block):
        b.rowmax("m_block", "S")
    b.elementwise("Sm", "sub", "S", "m_block")
    b.elementwise("A", "exp", "Sm")
    with b.loop(n_k, block, row_block):
        b.running("m", (n_q,), float("-inf"))
        b.running("l_m", (n_q,), 0.0)
        b.running("O", (n_q, d_v), 0.0)
        b.rowsum("l_block", "A")
        b.elementwise("m", "max", "m.prev", "m_block")
        b.elementwise("down", "sub", "m.prev", "m")
        b.elementwise("a", "exp", "down")
        b.elementwise("down_block", "sub", "m_block", "m")
        b.elementwise("a_block", "exp", "down_block")
        b.elementwise("al", "mul", "a", "l_m.prev")
        b.elementwise("al_block", "mul", "a_block", "l_block")
        b.elementwise("l_m", "add", "al", "al_block")
        b.matmul("AV", "A", "V")
        b.elementwise("aAV", "mul", "a_block", "AV")
        b.elementwise("alO", "mul", "al", "O.prev")
        b.elementwise("lO", "add", "alO", "aAV")
        b.elementwise("O", "div", "lO", "l_m")


def _running_maximum(b: Builder, n_q: int, n_k: int, block: int, row_block: int | None) -> None:
    """Declare m after each block of columns, the factor a that rescales earlier sums, and A relative to m."""
    with b.loop(n_k, block, row_block):
        b.running("m", (n_q,), float("-inf"))
        b.rowmax("m_block", "S")
        b.elementwise("m", "max", "m.prev", "m_block")
        b.elementwise("down", "sub", "m.prev", "m")
        b.elementwise("a", "exp", "down")
    b.elementwise("Sm", "sub", "S", "m")
    b.elementwise("A", "exp", "Sm")


def flash2(b: Builder, n_q: int, n_k: int, d_v: int, block: int, row_block: int | None, values: str = "V") -> None:
    """Dao 2023, Algorithm 1: probabilities relative to the running maximum, O is divided by l once, at the end."""
    _running_maximum(b, n_q, n_k, block, row_block)
    with b.loop(n_k, block, row_block):
        b.running("l_m", (n_q,), 0.0)
        b.running("lO", (n_q, d_v), 0.0)
        b.elementwise("al", "mul", "a", "l_m.prev")
        b.rowsum("l_m", "A", onto="al")
        b.elementwise("aO", "mul", "a", "lO.prev")
        b.matmul("lO", "A", values, onto="aO")
    b.elementwise("O", "div", "lO.last", "l_m.last")
    b.elementwise("log_l", "log", "l_m.last")
    b.elementwise("L", "add", "m.last", "log_l")


def _logsumexp(b: Builder, n_q: int, n_k: int, d_v: int, block: int, row_block: int | None) -> None:
    """Compute L from a running maximum and running sums, then compute every score again."""
    _running_maximum(b, n_q, n_k, block, row_block)
    with b.loop(n_k, block, row_block):
        b.running("l_m", (n_q,), 0.0)
        b.elementwise("al", "mul", "a", "l_m.prev")
        b.rowsum("l_m", "A", onto="al")
    b.elementwise("log_l", "log", "l_m.last")
    b.elementwise("L", "add", "m.last", "log_l")
    b.elementwise("SL", "sub", "S", "L")
    b.elementwise("f", "exp", "SL")
    b.matmul("O", "f", "V")


ONLINE: Final = {"flash1": _flash1, "flash2": flash2, "logsumexp": _logsumexp}
"""The kinds of softmax that keep a running maximum over blocks of columns."""
