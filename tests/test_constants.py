"""The constants in front of the leading terms, and who moves less than whom."""

import pytest

from pebblesim import api

n, d = 2**22, 128


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("row-stationary", 6),
        ("row-stationary-fused", 6),
        ("row-stationary-one-pass", 8),
        ("flash", 8),  # 4 words a row of each column block, and half of M for the columns
        ("row-stationary-forward", 4),
        ("flash1-forward", 6),  # 12 with the printed B_c = M/4d
        ("backward-two-pass", 14),
        ("flash2-backward", 16),
        ("flash1-backward", 20),
    ],
)
def test_words_of_a_large_cache_are_a_constant_times_n2d2_over_M(name: str, constant: int) -> None:
    for mu in (16, 64):
        M = mu * d * d
        words = api.count(name, n=n, d=d, M=M).io
        assert constant <= words * M / (n * n * d * d) < 1.12 * constant


def test_words_of_a_small_cache_are_halved_by_streaming() -> None:
    """About 6(n²d + nd²)/√M + 3n², against 12 and 9 of Algorithm 6 with its printed blocks."""
    for M in (256, 1024, 4096, 16384):
        words = api.count("small-cache-streamed", n=n, d=d, M=M).io
        leading = 6 * n * n * d / M**0.5 + 3 * n * n
        assert leading < words < 1.12 * leading
        printed = api.count("small-cache", n=n, d=d, M=M, blocks="paper").io
        assert 1.9 < printed / words < 2.3


@pytest.mark.parametrize("problem", ["backward", "forward", "backward-qkv"])
@pytest.mark.parametrize("M", [2**10, 2**12, 2**14, 2**16, 2**18, 2**20])
def test_the_best_is_ours(problem: str, M: int) -> None:
    """For n ≫ d, from M below d² to M near nd; small-cache-forward has no streamed rival below d² yet."""
    rows = [row for row in api.compare(problem_name=problem, n=2**16, d=64, M=M) if row.feasible]
    ours = min(row.io for row in rows if row.source.startswith("ours"))
    for row in rows:
        assert ours <= row.io or (row.schedule == "small-cache-forward" and M < 64 * 64)
