"""The graph of the attention forward pass, O = softmax(Q Kᵀ) V (Saha & Ye 2024; Dao et al. 2022; Dao 2023).

The softmax can be associated in many ways; each has its own graph. The online softmax keeps a running maximum, and
rescales its sums after each block of columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.graphs.builder import Builder, Mask, sizes, whole
from pebblesim.graphs.projections import absorbable, queries_keys_values

WEIGHTS: Final = ("W_Q", "W_K", "W_V")

SOFTMAX: Final = (
    "early",
    "late",
    "safe",
    "flash1",
    "flash2",
    "logsumexp",
    "split",
    "split-weighted",
    "split-sums",
    "split-scores",
)


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
    rows_block: int | None = None,
    split: int | None = None,
    d: int | None = None,
    absorbed: str | Iterable[str] = (),
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
            sums as in FlashAttention-2; "split" for that of "flash2" in each split of columns by itself, whose results
            are then merged by their weights, as in FlashDecoding; "split-weighted" for a softmax of each block of
            columns by itself, and weights relative to the largest of all, which is found first; "split-sums" for "late"
            with sums of each block of columns by itself, which are then added up; "split-scores" for the probabilities
            of each block of columns by itself, weighted before the product with V.
        column_block: columns in each step of the online softmax, or in each split.
        row_block: rows of a tile of the online softmax. Under a mask, a tile takes only the steps in which it has an
            allowed pair; without a mask row_block has no effect.
        rows_block: rows that are cut into tiles of row_block; all if None.
        split: columns in each split, with "split" alone; as many as column_block if None.
        d: words in a row of the inputs, where Q, K, V are projections of A1 (n_q, d), A2, A3 (n_k, d) by W_Q, W_K
            (d, d_k), W_V (d, d_v); None where Q, K, V are the inputs.
        absorbed: the weights that multiply the other side. "W_K": scores are (Q W_Kᵀ) A2ᵀ. "W_Q": they are
            A1 (K W_Qᵀ)ᵀ, not together with "W_K". "W_V": O = (P A3) W_V. Names, or one text with commas between them.
        outputs: tensors that must be in memory at the end: O, and those kept for a backward pass.
        mask: booleans of shape (n_q, n_k), the pairs that may meet; None for all.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    n_q, n_k, d_k, d_v = sizes(n_q=n_q, n_k=n_k, d_k=d_k, d_v=d_v)
    blocks = checked(softmax, column_block, row_block, rows_block, mask, split)
    b = Builder(summation, mask)
    b.outputs = outputs
    weights = absorbable(absorbed, WEIGHTS)
    queries, keys, values = queries_keys_values(b, n_q, n_k, d_k, d_v, d, weights)
    b.matmul("S", queries, f"{keys}.T", pairs=True)
    if d is not None and "W_V" in weights:
        output(b, softmax, n_q, n_k, blocks, Values(values, d, "PA"))
        b.matmul("O", "PA.last" if softmax == "flash1" else "PA", "W_V")  # flash1 divides after each block
    else:
        output(b, softmax, n_q, n_k, blocks, Values(values, d_v))
    return b


class Values(NamedTuple):
    """The right factor of products with pairs: a tensor with `width` words for each key, and the result's name."""

    name: str
    width: int
    result: str = "O"


Blocks = tuple[int | None, tuple[int, ...], int | None]
"""Columns and rows of a tile of an online softmax, if it is one, and the columns of a split."""


def checked(
    softmax: str,
    column_block: int | None,
    row_block: int | None,
    rows_block: int | None,
    mask: Mask,
    split: int | None = None,
) -> Blocks:
    """A softmax and its blocks, if they go together.

    Raises:
        UsageError: they do not.
    """
    if softmax not in SOFTMAX:
        raise UnknownName("softmax", softmax, SOFTMAX)
    online = softmax in ONLINE
    if (column_block is not None) != online:
        raise UsageError(f"column_block is required with softmax {', '.join(ONLINE)}, and not allowed with any other.")
    if (row_block is not None and not online) or (row_block is None and online and mask is not None):
        raise UsageError(
            f"row_block is required under a mask with softmax {', '.join(ONLINE)}, and not allowed with any other."
        )
    if split is not None and softmax != "split":
        raise UsageError('split is for softmax "split" alone; leave it out with any other.')
    rows = {"rows_block": rows_block, "row_block": row_block}
    return (
        None if column_block is None else whole("column_block", column_block),
        tuple(whole(name, size) for name, size in rows.items() if size is not None),
        None if split is None else whole("split", split),
    )


def output(b: Builder, softmax: str, n_q: int, n_k: int, blocks: Blocks, values: Values) -> None:
    """O, or what is in its place, from the scores S and the values."""
    column_block, rows, split = blocks
    if column_block is None:
        _whole_rows(b, softmax, values)
    elif softmax == "split":
        _split(b, n_q, n_k, column_block, rows, values, split)
    else:
        ONLINE[softmax](b, n_q, n_k, column_block, rows, values)


def exp_of_difference(b: Builder, name: str, difference: str, x: str, y: str) -> None:
    """Declare exp(x - y), and the difference."""
    b.elementwise(difference, "sub", x, y)
    b.elementwise(name, "exp", difference)


def log_of_sum(b: Builder, name: str, log: str, maximum: str, total: str) -> None:
    """Declare m + log l, from a maximum m and a sum l of exponentials relative to it, and the logarithm."""
    b.elementwise(log, "log", total)
    b.elementwise(name, "add", maximum, log)


def _whole_rows(b: Builder, softmax: str, values: Values) -> None:
    """Compute the row sums over all columns, then divide."""
    if softmax == "safe":
        b.rowmax("m", "S")
        exp_of_difference(b, "A", "Sm", "S", "m")
    else:
        b.elementwise("A", "exp", "S")
    l = "l_m" if softmax == "safe" else "l"
    b.rowsum(l, "A")
    if softmax == "late":
        b.matmul("AV", "A", values.name)
        b.elementwise(values.result, "div", "AV", l)
    else:
        b.elementwise("P", "div", "A", l)
        b.matmul(values.result, "P", values.name)


def _flash1(b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], values: Values) -> None:
    """Dao et al. 2022, Algorithm 1: probabilities relative to the block's own maximum;

    O is divided by l after each block.
    """
    with b.loop(n_k, block, rows):
        b.rowmax("m_block", "S")
    exp_of_difference(b, "A", "Sm", "S", "m_block")
    with b.loop(n_k, block, rows):
        b.running("m", (n_q,), float("-inf"))
        b.running("l_m", (n_q,), 0.0)
        b.running(values.result, (n_q, values.width), 0.0)
        b.rowsum("l_block", "A")
        b.elementwise("m", "max", "m.prev", "m_block")
        exp_of_difference(b, "a", "down", "m.prev", "m")
        exp_of_difference(b, "a_block", "down_block", "m_block", "m")
        b.elementwise("al", "mul", "a", "l_m.prev")
        b.elementwise("al_block", "mul", "a_block", "l_block")
        b.elementwise("l_m", "add", "al", "al_block")
        b.matmul("AV", "A", values.name)
        b.elementwise("aAV", "mul", "a_block", "AV")
        b.elementwise("alO", "mul", "al", f"{values.result}.prev")
        b.elementwise("lO", "add", "alO", "aAV")
        b.elementwise(values.result, "div", "lO", "l_m")


def _running_maximum(b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], split: int = 0) -> None:
    """Declare m after each block of columns, the factor a that rescales earlier sums, and A relative to m."""
    with b.loop(n_k, block, rows, split):
        b.running("m", (n_q,), float("-inf"))
        b.rowmax("m_block", "S")
        b.elementwise("m", "max", "m.prev", "m_block")
        exp_of_difference(b, "a", "down", "m.prev", "m")
    exp_of_difference(b, "A", "Sm", "S", "m")


def _flash2(b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], values: Values) -> None:
    """Dao 2023, Algorithm 1: probabilities relative to the running maximum, O is divided by l once, at the end."""
    _running_output(b, n_q, n_k, block, rows, values)
    b.elementwise(values.result, "div", "lO.last", "l_m.last")
    log_of_sum(b, "L", "log_l", "m.last", "l_m.last")


def _running_output(
    b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], values: Values, split: int = 0
) -> None:
    """Declare m, l and O, which is to be divided by l, after each block of columns."""
    _running_maximum(b, n_q, n_k, block, rows, split)
    with b.loop(n_k, block, rows, split):
        b.running("l_m", (n_q,), 0.0)
        b.running("lO", (n_q, values.width), 0.0)
        b.elementwise("al", "mul", "a", "l_m.prev")
        b.rowsum("l_m", "A", onto="al")
        b.elementwise("aO", "mul", "a", "lO.prev")
        b.matmul("lO", "A", values.name, onto="aO")


def _logsumexp(b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], values: Values) -> None:
    """Compute L from a running maximum and running sums, then compute every score again."""
    _running_maximum(b, n_q, n_k, block, rows)
    with b.loop(n_k, block, rows):
        b.running("l_m", (n_q,), 0.0)
        b.elementwise("al", "mul", "a", "l_m.prev")
        b.rowsum("l_m", "A", onto="al")
    log_of_sum(b, "L", "log_l", "m.last", "l_m.last")
    exp_of_difference(b, "f", "SL", "S", "L")
    b.matmul(values.result, "f", values.name)


def _own_softmax(b: Builder, n_k: int, block: int, rows: tuple[int, ...]) -> None:
    """Declare A, relative to the maximum of each block of columns."""
    with b.loop(n_k, block, rows):
        b.rowmax("m_s", "S")
    exp_of_difference(b, "A", "Sm", "S", "m_s")


def _split(
    b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], values: Values, split: int | None = None
) -> None:
    """FlashDecoding: O_s and L_s of each split by an online softmax; then the mean of O_s with weights exp(L_s)."""
    split = block if split is None else split
    _running_output(b, n_q, n_k, block, rows, values, split)
    with b.loop(n_k, split, rows):
        b.elementwise("O_s", "div", "lO.ends", "l_m.ends")
        log_of_sum(b, "L_s", "log_l_s", "m.ends", "l_m.ends")
    with b.loop(n_k, split, rows):
        _weight(b, n_q)
        b.running("WO", (n_q, values.width), 0.0)
        b.elementwise("fadeO", "mul", "fade", "WO.prev")
        b.elementwise("wO", "mul", "w", "O_s")
        b.elementwise("WO", "add", "fadeO", "wO")
    b.elementwise(values.result, "div", "WO.last", "W.last")
    log_of_sum(b, "L", "log_W", "top.last", "W.last")


def _outputs_of_blocks(b: Builder, n_k: int, block: int, rows: tuple[int, ...], values: Values) -> None:
    """Declare O_s and L_s of each block of columns."""
    _own_softmax(b, n_k, block, rows)
    with b.loop(n_k, block, rows):
        b.rowsum("l_s", "A")
        b.matmul("AV", "A", values.name)
        b.elementwise("O_s", "div", "AV", "l_s")
        log_of_sum(b, "L_s", "log_l_s", "m_s", "l_s")


def _split_weighted(b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], values: Values) -> None:
    """O_s and L_s of each block of columns; then the mean of O_s with weights exp(L_s - top), top the largest L_s."""
    _outputs_of_blocks(b, n_k, block, rows, values)
    with b.loop(n_k, block, rows):
        b.running("top", (n_q,), float("-inf"))
        b.elementwise("top", "max", "top.prev", "L_s")
    with b.loop(n_k, block, rows):
        b.running("W", (n_q,), 0.0)
        b.running("WO", (n_q, values.width), 0.0)
        exp_of_difference(b, "w", "down_s", "L_s", "top.last")
        b.elementwise("W", "add", "W.prev", "w")
        b.elementwise("wO", "mul", "w", "O_s")
        b.elementwise("WO", "add", "WO.prev", "wO")
    b.elementwise(values.result, "div", "WO.last", "W.last")
    log_of_sum(b, "L", "log_W", "top.last", "W.last")


def _weight(b: Builder, n_q: int) -> None:
    """Declare the weight of a block of columns relative to the largest so far, and the sum W of the weights so far."""
    b.running("top", (n_q,), float("-inf"))
    b.running("W", (n_q,), 0.0)
    b.elementwise("top", "max", "top.prev", "L_s")
    exp_of_difference(b, "fade", "down_top", "top.prev", "top")
    exp_of_difference(b, "w", "down_s", "L_s", "top")
    b.elementwise("fadeW", "mul", "fade", "W.prev")
    b.elementwise("W", "add", "fadeW", "w")


def _split_scores(b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], values: Values) -> None:
    """P_s and L_s of each block of columns; then P = exp(L_s - L) P_s, and O = P V."""
    _own_softmax(b, n_k, block, rows)
    with b.loop(n_k, block, rows):
        b.rowsum("l_s", "A")
        log_of_sum(b, "L_s", "log_l_s", "m_s", "l_s")
    b.elementwise("P_s", "div", "A", "l_s")
    with b.loop(n_k, block, rows):
        _weight(b, n_q)
    log_of_sum(b, "L", "log_W", "top.last", "W.last")
    with b.loop(n_k, block, rows):
        exp_of_difference(b, "share", "down_L", "L_s", "L")
    b.elementwise("P", "mul", "share", "P_s")
    b.matmul(values.result, "P", values.name)


def _split_sums(b: Builder, n_q: int, n_k: int, block: int, rows: tuple[int, ...], values: Values) -> None:
    """A, its row sums and A V for each block of columns, without a maximum; then the sums of these sums."""
    b.elementwise("A", "exp", "S")
    with b.loop(n_k, block, rows):
        b.running("l", (n_q,), 0.0)
        b.running("AV", (n_q, values.width), 0.0)
        b.rowsum("l_s", "A")
        b.matmul("AV_s", "A", values.name)
        b.elementwise("l", "add", "l.prev", "l_s")
        b.elementwise("AV", "add", "AV.prev", "AV_s")
    b.elementwise(values.result, "div", "AV.last", "l.last")


ONLINE: Final = {
    "flash1": _flash1,
    "flash2": _flash2,
    "logsumexp": _logsumexp,
    "split": _split,
    "split-weighted": _split_weighted,
    "split-sums": _split_sums,
    "split-scores": _split_scores,
}
"""The kinds of softmax that go through blocks of columns."""
