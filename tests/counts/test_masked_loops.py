"""Reads and writes under masks against plain loops over tiles, written from the pseudo-code of the sources.

The loops know the table of allowed pairs and nothing of pebblesim. Drawn masks are compared with the count, and causal
masks, windows and bands with the closed forms, too.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, settings, strategies as st

from pebblesim.analysis.count import count
from pebblesim.analysis.formula import Formula, formula
from pebblesim.language.masks import of
from pebblesim.language.registry import SCHEDULES

Words = tuple[int, int]
Table = Any


def cut(length: int, block: int) -> Iterator[slice]:
    yield from (slice(start, min(start + block, length)) for start in range(0, length, block))


def size(part: slice) -> int:
    return part.stop - part.start


def flash2_forward(table: Table, d: int, B_r: int, B_c: int) -> Words:
    """Rows of Q stay while K and V pass; O and L are written once. Rows that see nothing get constants."""
    n, reads, writes = len(table), 0, 0
    for i in cut(n, B_r):
        if table[i].any():
            reads += size(i) * d
            reads += sum(2 * size(j) * d for j in cut(n, B_c) if table[i, j].any())
        writes += size(i) * (d + 1)
    return reads, writes


def small_cache_forward(table: Table, d: int, B: int) -> Words:
    """exp(S) goes through memory in square tiles; the row sums l, too."""
    n, reads, writes = len(table), 0, 0
    for i in cut(n, B):
        seen = [size(j) for j in cut(n, B) if table[i, j].any()]
        for keys in seen:
            reads += sum((size(i) + keys) * size(k) for k in cut(d, B))
            writes += size(i) * keys
        writes += size(i)  # l
        reads += size(i)
        for column in cut(d, B):
            reads += sum(keys * (size(i) + size(column)) for keys in seen)
            writes += size(i) * size(column)
    return reads, writes


def flash1_backward(table: Table, d: int, B_r: int, B_c: int) -> Words:
    """Keys stay while rows pass; dQ is read and written for each of them, and starts as zeros in memory."""
    n, reads, writes = len(table), 0, len(table) * d
    for j in cut(n, B_c):
        if table[:, j].any():
            reads += 2 * size(j) * d
            for i in cut(n, B_r):
                if table[i, j].any():
                    reads += size(i) * (4 * d + 2)  # Q, O, dO, dQ; l, m
                    writes += size(i) * d
        writes += 2 * size(j) * d
    return reads, writes


def flash2_backward(table: Table, d: int, B_r: int, B_c: int) -> Words:
    """As above, after the row sums of dO * O."""
    n = len(table)
    reads, writes = 2 * n * d, n + n * d
    for j in cut(n, B_c):
        if table[:, j].any():
            reads += 2 * size(j) * d
            for i in cut(n, B_r):
                if table[i, j].any():
                    reads += size(i) * (3 * d + 2)  # Q, dO, dQ; L, v
                    writes += size(i) * d
        writes += 2 * size(j) * d
    return reads, writes


def backward_two_pass(table: Table, d: int, B_r: int, B_c: int) -> Words:
    """Rows stay for dQ and single keys pass; then keys stay for dK and dV, and single rows pass."""
    n, reads, writes = len(table), 0, 0
    for i in cut(n, B_r):
        if table[i].any():
            reads += size(i) * (3 * d + 1) + 2 * d * sum(bool(table[i, j].any()) for j in range(n))
            writes += size(i)  # v
        writes += size(i) * d
    for j in cut(n, B_c):
        if table[:, j].any():
            reads += 2 * size(j) * d + (2 * d + 2) * sum(bool(table[i, j].any()) for i in range(n))
        writes += 2 * size(j) * d
    return reads, writes


LOOPS: dict[str, Callable[..., Words]] = {
    "flash2-forward": flash2_forward,
    "small-cache-forward": small_cache_forward,
    "flash1-backward": flash1_backward,
    "flash2-backward": flash2_backward,
    "backward-two-pass": backward_two_pass,
}


def sizes_of(data: st.DataObject, name: str, most: int) -> tuple[int, int, dict[str, int]]:
    blocks = {block: data.draw(st.integers(1, 7), label=block) for block in SCHEDULES[name].blocks}
    return data.draw(st.integers(1, most)), data.draw(st.integers(1, 5)), blocks


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", LOOPS)
@given(data=st.data())
@settings(max_examples=strategies.amount(5, 300))
def test_words_under_drawn_masks_are_those_of_loops(name: str, data: st.DataObject) -> None:
    n, d, blocks = sizes_of(data, name, 12)
    mask = data.draw(strategies.masks(n))
    counted = count(SCHEDULES[name].masked, {"n": n, "d": d, **blocks}, mask=mask).total
    assert (counted.reads, counted.writes) == LOOPS[name](mask.allowed(n), d, **blocks)


def band(mask: str, n: int) -> Table:
    """The allowed pairs of a causal mask, of a window (the last W keys), and of a band (W keys to either side)."""
    kind, _, width = mask.partition(":")
    back = np.subtract.outer(np.arange(n), np.arange(n))
    if kind == "causal":
        return back >= 0
    return (back >= 0) & (back < int(width)) if kind == "window" else np.abs(back) <= int(width)


@cache
def closed(name: str, mask: str) -> Formula:
    return formula(SCHEDULES[name].masked, of(mask))


MASKS = ("causal", "window:4", "window:1", "band:2")
QUICK = {("flash2-forward", "causal"), ("flash2-backward", "window:4")}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "mask"),
    [
        pytest.param(name, mask, marks=[pytest.mark.slow] * ((name, mask) not in QUICK))
        for name in LOOPS
        for mask in MASKS
    ],
)
@given(data=st.data())
@settings(max_examples=strategies.amount(10, 100), deadline=None)
def test_closed_forms_under_bands_are_words_of_loops(name: str, mask: str, data: st.DataObject) -> None:
    n, d, blocks = sizes_of(data, name, 40)
    form, sizes = closed(name, mask), {"n": n, "d": d, **blocks}
    moved = tuple(form.function_of(which)(**sizes) for which in ("reads", "writes"))
    assert moved == LOOPS[name](band(mask, n), d, **blocks)
