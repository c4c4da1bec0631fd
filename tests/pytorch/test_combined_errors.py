"""Drawn calls with masks and options in combination: `attention` on the CPU against scores that are written out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def combined() -> Iterator[Any]:
    before, folder = torch.get_num_threads(), str(ROOT / "benchmarks" / "gpu")
    torch.set_num_threads(1)
    sys.path.insert(0, folder)
    import combined_errors

    yield combined_errors
    sys.path.remove(folder)
    torch.set_num_threads(before)


def cases(combined: Any, number: int, end: str = "", widest: int = 128) -> Iterator[dict[str, Any]]:
    """The first small calls of a seed."""
    drawn = (combined.drawn(f"test.{at}{end}") for at in range(10**6))
    small = (case for case in drawn if case["n_q"] * case["n_k"] * case["heads"] <= 8_000 and case["d"] <= widest)
    return (case for case, _ in zip(small, range(number), strict=False))


@pytest.mark.parametrize("end", ["", " edges"])
def test_calls_are_right_in_float64(combined: Any, end: str) -> None:
    for case in cases(combined, 30, end, 1024 if end else 128):
        row = combined.errors(torch, case, "cpu")
        assert row["ratio"] <= combined.MOST, (combined.shown(case), row)
        assert not row["differ"]


@pytest.mark.parametrize("end", ["", " edges"])
def test_peers_round_as_16_bit_kernels_do(combined: Any, end: str) -> None:
    for case in cases(combined, 25, end):
        its = combined.Tensors(torch, case | {"lse": False}, torch.device("cpu"))
        right = its.results(its.true, torch.float64)
        written_out, terms = its.written_out(its.kind)
        peers = [written_out] if "softcap" in case else [written_out, its.results(its.sdpa)]
        for name, b in right.items():
            most = 1.5 * combined.rounding(torch, torch.finfo(its.kind).eps, written_out[name], terms[name])
            for peer in peers:
                assert float((peer[name].double() - b).norm()) <= most, (name, combined.shown(case))
