"""Estimates of the time of PyTorch's own kernels on cards where they were measured (`pytorch_times.toml`).

Blocks of rows are dealt, in order, to the multiprocessors, each to the first that is free. A pass takes the time of
its launches and of the multiprocessor that ends last: `row` seconds for each row of its blocks, and their operations ÷
`rate`, which were fitted to measurements of each backend, pass, mask and head dimension. At head dimensions between two
that were measured the kernels are those of the wider one, if it is less than twice as wide. No pass is faster than its
bytes from and to memory. What was not measured has no estimate, but a time that it takes at least, by published rates
of the card; so has less than a block of queries for more keys, which kernels may split.
"""

from __future__ import annotations

import heapq
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil, prod
from pathlib import Path
from typing import Any

from pebblesim.advice.calls import AttentionCall, SeenMask
from pebblesim.advice.cards import Card
from pebblesim.core.sizes import BYTES

LAUNCH = {"forward": 4e-6, "backward": 12e-6}
"""Seconds of a pass without work: of one launch forward, and of three backward."""

ROWS, FEWER = 128, 64
"""Rows of a block, and those of cuDNN's backward pass for head dimensions above 128, whose times show it."""

UNITS = 132
"""Multiprocessors of the cards that were measured, H100 and H200."""

MANY = 100
"""Blocks for each multiprocessor from which on all are taken to end together."""

TABLES = ("math", "eager")
"""Backends that keep scores and probabilities in memory."""

TOUCHED = {"forward": 4, "backward": 7}
"""How often a pass with tables reads or writes one, where each operation is a kernel.

Forward: scores are written and read, probabilities are written and read. Backward: P is read for dV, dP is written, P
and dP are read and dS is written, and dS is read for dQ and for dK.
"""

BANDWIDTH = {"NVIDIA H100 80GB HBM3": 2.9e12, "NVIDIA H200": 4.2e12}
"""Bytes per second that copies reach on these cards."""


@dataclass(frozen=True)
class Case:
    """A pass of a backend.

    Attributes:
        backend, way: such as "flash" and "backward".
        mask: "all", "causal", "tensor" for one table of booleans in memory for all heads and sequences, "other" for
            another mask in memory, of which nothing was measured.
        d: the larger head dimension.
    """

    backend: str
    way: str
    mask: str
    d: int


def case_of(call: AttentionCall, backend: str, way: str) -> Case:
    """The case of a call: which of the pairs the kernel leaves out."""
    mask = "causal" if call.mask.kind == "causal" else "all"
    if call.mask.given:
        one = prod(call.mask.shape) == call.n_q * call.n_k and call.mask.boolean
        mask = "tensor" if one else "other"
    return Case(backend, way, mask, max(call.d_k, call.d_v))


def operations(call: AttentionCall, way: str) -> float:
    """Operations of the products of a pass, for the pairs that a flag allows, or all under a mask in memory."""
    each = call.d_k + call.d_v if way == "forward" else 3 * call.d_k + 2 * call.d_v
    pairs = call.n_q * call.n_k
    if call.mask.kind in ("causal", "window") and not call.mask.given:
        pairs = allowed(call.mask, call.n_q, call.n_k)
    return 2.0 * call.batch * call.heads * pairs * each


def allowed(mask: SeenMask, n_q: int, n_k: int) -> int:
    """Pairs that a band allows."""
    left, right = (n_q + n_k if each is None else each for each in (mask.left, mask.right))
    return sum(max(0, min(n_k - 1, i + right) - max(0, i - left) + 1) for i in range(n_q))


def moved(call: AttentionCall, way: str) -> float:
    """Bytes from and to memory at least: each tensor once."""
    rows, keys = call.batch * call.heads * call.n_q, call.batch * call.kv_heads * call.n_k
    words = (rows + keys) * (call.d_k + call.d_v) * (1 if way == "forward" else 2)
    if call.mask.given and len(call.mask.shape) >= 2:
        size = 1
        for side in call.mask.shape:
            size *= side
        words += size
    return float(words * BYTES.get(call.dtype, 2))


def of_the_last(call: AttentionCall, backend: str, way: str) -> tuple[float, float]:
    """Rows, and operations of a pass, of the multiprocessor that ends last."""
    causal = call.mask.kind == "causal" and not call.mask.given
    block = FEWER if backend == "cudnn" and way == "backward" and max(call.d_k, call.d_v) > ROWS else ROWS
    rows, pairs = _dealt(call.n_q, call.n_k, causal, call.batch * call.heads, block)
    each = call.d_k + call.d_v if way == "forward" else 3 * call.d_k + 2 * call.d_v
    return rows, 2.0 * pairs * each


@lru_cache(maxsize=1024)
def _dealt(n_q: int, n_k: int, causal: bool, heads: int, block: int) -> tuple[float, float]:
    """Rows and pairs of the multiprocessor that ends last, for blocks that are dealt head by head."""
    each = [block * (min(n_k, last) if causal else n_k) for last in range(block, n_q + block, block)]
    blocks = len(each) * heads
    if blocks > MANY * UNITS:
        return block * blocks / UNITS, sum(each) * heads / UNITS
    free = [0] * UNITS
    for pairs in each * heads:
        heapq.heapreplace(free, free[0] + pairs)
    return float(block * ceil(blocks / UNITS)), float(max(free))


def seconds(call: AttentionCall, backend: str, way: str, device: str) -> float | None:
    """Estimate the seconds of a pass on a card; None if this backend was not measured there.

    Args:
        call: the attention.
        backend: "cudnn", "flash", "efficient", "math" or "flex".
        way: "forward" or "backward".
        device: the name by which the driver knows the card.
    """
    case = case_of(call, backend, way)
    rows = [row for row in known().get(device, ()) if case.d <= row["d"] < 2 * case.d and _same(row, case)]
    few = call.n_q < ROWS and call.n_q < call.n_k
    if not rows or few or (call.mask.kind == "window" and not call.mask.given):
        return None
    row = min(rows, key=lambda row: row["d"])
    return estimate(row, call, way, device)


def at_least(call: AttentionCall, backend: str, way: str, card: Card) -> float | None:
    """Return the least seconds of a pass by published rates: its products, and its bytes from and to memory.

    A kernel under a mask in memory computes all pairs. Of tables, what L2 can hold is taken to cost nothing.
    """
    peak, bandwidth = card.peak.get(call.dtype), card.rate("memory_bandwidth")
    if peak is None or bandwidth is None or not backend:
        return None
    work, touched = operations(call, way), moved(call, way)
    if backend in TABLES:
        each = (call.d_k + call.d_v) * (1 if way == "forward" else 2)
        work = 2.0 * call.batch * call.heads * call.n_q * call.n_k * each
        table = call.batch * call.heads * call.n_q * call.n_k * BYTES.get(call.dtype, 2)
        touched += TOUCHED[way] * max(0, table - card.size(card.last_cache))
    return max(work / peak.value, touched / bandwidth)


def estimate(row: Mapping[str, Any], call: AttentionCall, way: str, device: str) -> float:
    """Seconds of a pass by a row of rates, which may be those of a wider head dimension."""
    rows, work = of_the_last(call, row["backend"], way)
    work *= row["d"] / max(call.d_k, call.d_v)
    return LAUNCH[way] + max(rows * row["row"] + work / row["rate"], moved(call, way) / BANDWIDTH[device])


def _same(row: Mapping[str, Any], case: Case) -> bool:
    return (row["backend"], row["way"], row["mask"]) == (case.backend, case.way, case.mask)


@cache
def known() -> Mapping[str, Iterable[Mapping[str, Any]]]:
    """The rates, by the name that a card's driver gives it."""
    with (Path(__file__).parent / "pytorch_times.toml").open("rb") as file:
        return tomllib.load(file)
