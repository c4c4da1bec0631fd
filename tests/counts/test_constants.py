"""The constants in front of the leading terms, and who moves less than whom."""

import pytest

import pebblesim as ps

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
        words = ps.count(name, n=n, d=d, M=M).io
        assert constant <= words * M / (n * n * d * d) < 1.12 * constant


@pytest.mark.parametrize(
    ("name", "products", "through_memory"),
    [("small-cache-forward-streamed", 4, 1), ("small-cache-backward-streamed", 10, 3)],
)
def test_words_of_a_small_cache_are_those_of_its_products(name: str, products: int, through_memory: int) -> None:
    """About `products`·n²d/√M for the products, and a few n² that go through memory."""
    for b in (32, 64):  # which divide d
        row = ps.count(name, n=n, d=d, M=2**20, blocks={"a": b, "b": b})
        leading = products * n * n * d / row.peak_red**0.5 + through_memory * n * n
        assert leading < row.io < 1.05 * leading


def test_words_of_a_small_cache_are_halved_by_streaming() -> None:
    """About 6(n²d + nd²)/√M + 3n², against 12 and 9 of Algorithm 6 with its printed blocks."""
    for M in (256, 1024, 4096, 16384):
        words = ps.count("small-cache-streamed", n=n, d=d, M=M).io
        leading = 6 * n * n * d / M**0.5 + 3 * n * n
        assert leading < words < 1.12 * leading
        printed = ps.count("small-cache", n=n, d=d, M=M, blocks="paper").io
        assert 1.9 < printed / words < 2.3


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("problem", "M"),
    [
        pytest.param(problem, 2**k, marks=[pytest.mark.slow] if k % 8 != turn else [])
        for turn, problem in ((0, "backward"), (2, "forward"), (4, "backward-qkv"))
        for k in range(8, 23)
    ],
)
def test_the_best_is_ours(problem: str, M: int) -> None:
    """For n ≫ d, from M far below d² to M = nd, against the paper's and FlashAttention's."""
    rows = [row for row in ps.compare(problem, n=2**16, d=64, M=M) if row.feasible]
    ours = min(row.io for row in rows if row.source.startswith("ours"))
    assert ours == min(row.io for row in rows)
