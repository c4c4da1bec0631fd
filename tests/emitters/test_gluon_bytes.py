"""Bytes of Gluon kernels: the count and the zeros of boxes, against boxes counted one by one, and against a card."""

from __future__ import annotations

import json
from typing import Any

import pytest
from checkout import ROOT
from hypothesis import given, strategies as st

from pebblesim.kernels.gluon.bytes import SECTOR, crossing
from pebblesim.kernels.tables import moved_words
from pebblesim.kernels.words import moved_bytes
from pebblesim.language.registry import get

BENCHMARKS = ROOT / "benchmarks" / "gpu"
MEASURED = [json.loads(line) for line in (BENCHMARKS / "hopper_bytes.jsonl").read_text(encoding="utf-8").splitlines()]

SPILLING = "backward-two-pass-blocked", 48, False
"""Kernels whose loop stores registers: dK and dV of ranges of keys, at this head dimension, under a mask."""


@given(n_q=st.integers(1, 400), n_k=st.integers(1, 400), d=st.integers(1, 16))
def test_whole_boxes_cross(n_q: int, n_k: int, d: int) -> None:
    dims, blocks = {"n_q": n_q, "n_k": n_k, "d_k": 16 * d, "d_v": 16 * d}, {"B_r": 128, "B_c": 64}
    both, zeros = crossing(get("flash2-forward").in_dims(dims).program, {**dims, **blocks}, "bfloat16")
    wide = 192 if 128 < 16 * d <= 192 else 1 << (16 * d - 1).bit_length()  # columns of a box, or of three of 64
    tall, keys = -(-n_q // 128), -(-n_k // 64)
    assert both.reads == 2 * wide * (tall * 128 + 2 * tall * keys * 64)
    assert zeros == both.reads - 2 * 16 * d * (n_q + 2 * tall * n_k)


def test_all_parts_of_a_tile_are_streamed_those_beyond_the_matrix_too() -> None:
    """Of two tiles of 64 queries the pass over them takes as many bytes if all queries are in the first."""

    def read(n_q: int) -> int:
        dims, blocks = {"n_q": n_q, "n_k": 128, "d_k": 64, "d_v": 64}, {"a": 128, "b": 128, "c": 64, "e": 64}
        program = get("dS-stored-resident").in_dims(dims).program
        return crossing(program, {**dims, **blocks}, "bfloat16")[0].reads

    of_sums, of_dK = 2 * 64 * 64, 64 * 64 + 64 * 128  # words of 64 queries: O and dO; Q and dS
    assert read(128) - read(64) == 2 * (of_sums + of_dK)


@pytest.mark.parametrize(
    "name",
    ["flash2-backward-blocked", "small-cache-backward-resident", "scores-stored-resident", "dS-stored-resident"],
)
def test_nothing_but_the_count_crosses_where_boxes_are_full(name: str) -> None:
    dims = {"n_q": 256, "n_k": 384, "d_k": 64, "d_v": 64}
    program = get(name).in_dims(dims).program
    sizes = {**dims, **dict.fromkeys(program.blocks, 64)}
    counted = moved_bytes(program, moved_words(program, sizes), "bfloat16")
    both, zeros = crossing(program, sizes, "bfloat16")
    assert zeros == 0 and both.writes == counted.writes
    added = 4 * 256 * 64 * (384 // 64) if name == "flash2-backward-blocked" else 0  # dQ, which memory adds
    assert both.reads == counted.reads - added


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['schedule']}, n={row['n']}, d={row['d']}")
def test_the_count_and_the_zeros_of_boxes_are_what_a_card_reads(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import hopper_bytes

    both, _ = hopper_bytes.case_of(row).sent()
    read, written = (row["measured"][way] / row["heads"] for way in ("read", "written"))
    spills = (row["schedule"], row["d"], row["mask"] is None) == SPILLING
    assert abs(read / both.reads - 1) < (1e-3 if spills else 3e-4)
    if 2 * row["d"] > 2 * SECTOR and not spills:
        assert 0.988 < written / both.writes < 1.01


def test_the_document_has_the_tables_of_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import report_hopper

    text = (BENCHMARKS.parents[1] / "docs" / "hopper.md").read_text(encoding="utf-8")
    assert report_hopper.filled(text) == text
