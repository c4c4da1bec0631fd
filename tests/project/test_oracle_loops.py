"""The oracle against the definitions (values) and against closed forms added up by hand (I/O and peaks)."""

from __future__ import annotations

import numpy as np
import oracle_loops as oracle
import pytest
from hypothesis import example, given, strategies as st

from pebblesim.language.problems import PROBLEMS

BACKWARD, MATMUL = PROBLEMS["backward"], PROBLEMS["matmul"]
SIZE = st.integers(1, 12)
WIDTH = st.integers(1, 14)
SEED = st.integers(0, 2**16)


def inputs_and_reference(n, d, seed, kept=()):
    """Random inputs of the backward problem and the reference's values."""
    inputs = BACKWARD.random_inputs({"n": n, "d": d}, seed, kept=kept)
    return inputs, BACKWARD.reference(inputs)


def check(result, expected):
    """Outputs equal the reference's up to rounding, and the report is consistent with itself."""
    for name, value in result.outputs.items():
        # p cancels (to zero if n = 1), so rounding errors of order-one summands need a small absolute slack.
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-12)
    assert result.io == result.reads + result.writes
    assert result.reads == sum(reads for reads, _ in result.by_tensor.values())
    assert result.writes == sum(writes for _, writes in result.by_tensor.values())
    assert result.reads == sum(phase.reads for phase in result.by_phase.values())
    assert result.writes == sum(phase.writes for phase in result.by_phase.values())
    if result.peak_words is not None:
        assert result.peak_words == max(phase.peak_words for phase in result.by_phase.values())


def fits_exactly(run, peak):
    """The algorithm runs in fast memory of `peak` words, not in one word fewer."""
    run(M=peak)
    with pytest.raises(oracle.OutOfFastMemory):
        run(M=peak - 1)


# ------------------------------------------------------------------------------------------------ backward
@given(SIZE, SIZE, SEED)
def test_no_cache(n, d, seed):
    inputs, expected = inputs_and_reference(n, d, seed)
    result = oracle.no_cache(n, d, inputs=inputs)
    check(result, expected)
    assert result.reads == oracle.by_hand_trivial_reads(n, d) == 4 * n * d + 2 * d * d
    assert result.writes == d * d
    assert result.peak_words is None


@given(SIZE, SIZE, WIDTH, SEED)
@example(1, 1, 1, 0)
@example(2, 9, 3, 0)
@example(9, 1, 4, 0)
@example(4, 6, 11, 0)
def test_small_cache(n, d, B, seed):
    inputs, expected = inputs_and_reference(n, d, seed)
    result = oracle.small_cache(n, d, B, inputs=inputs)
    check(result, expected)
    assert list(result.by_phase) == ["f", "q", "p", "g"]
    for phase, number in zip("fqpg", (2, 3, 4, 5), strict=True):
        assert result.by_phase[phase].io == getattr(oracle, f"by_hand_alg{number}_io")(n, d, B)
        assert result.by_phase[phase].peak_words == getattr(oracle, f"by_hand_alg{number}_peak")(n, d, B)
    assert result.io == oracle.by_hand_alg6_io(n, d, B)
    assert result.peak_words == oracle.by_hand_alg6_peak(n, d, B) <= 4 * B * B
    # Each of these is written once; l, v never leave fast memory.
    for name, words in {"S": n * d, "h": n * d, "T": n * d, "A": n * n, "f": n * n, "q": n * n, "p": n * n}.items():
        assert result.by_tensor[name][1] == words
    assert not {"l", "v", "O"} & result.by_tensor.keys()


@given(SIZE, SIZE, WIDTH, WIDTH, SEED)
@example(1, 1, 1, 1, 0)
@example(2, 9, 3, 4, 0)
@example(9, 2, 4, 5, 0)
@example(9, 9, 9, 1, 0)  # the start of a row block holds most
@example(5, 3, 11, 11, 0)
def test_large_cache(n, d, B_r, B_c, seed):
    inputs, expected = inputs_and_reference(n, d, seed, kept=("O", "l"))
    result = oracle.large_cache(n, d, B_r, B_c, inputs=inputs)
    check(result, expected)
    assert list(result.by_phase) == ["Sh", "g"]
    assert result.by_phase["Sh"].io == oracle.by_hand_alg7_io(n, d, B_r, B_c)
    assert result.by_phase["Sh"].peak_words == oracle.by_hand_alg7_peak(n, d, B_r, B_c)
    assert result.by_phase["g"].io == oracle.by_hand_alg8_io(n, d, B_r, B_c)
    assert result.by_phase["g"].peak_words == oracle.by_hand_alg8_peak(n, d, B_r, B_c)
    assert result.io == oracle.by_hand_alg9_io(n, d, B_r, B_c)
    assert result.peak_words == oracle.by_hand_alg9_peak(n, d, B_r, B_c)
    rounds = -(-n // B_r)
    assert result.by_tensor["A2"] == (rounds * n * d, 0)
    assert result.by_tensor["h"] == (rounds * n * d, n * d)
    assert result.by_tensor["l"] == (n, 0)


@given(SIZE, SIZE, WIDTH, WIDTH, WIDTH, SEED)
@example(1, 1, 1, 1, 1, 0)
@example(2, 9, 3, 1, 1, 0)
@example(9, 2, 2, 4, 5, 0)
@example(9, 9, 1, 9, 1, 0)  # v holds most
@example(9, 9, 9, 1, 1, 0)  # the tile products hold most
@example(5, 3, 11, 11, 11, 0)
def test_flash(n, d, B, B_r, B_c, seed):
    inputs, expected = inputs_and_reference(n, d, seed, kept=("O", "l"))
    result = oracle.flash(n, d, B, B_r, B_c, inputs=inputs)
    check(result, expected)
    assert list(result.by_phase) == ["S", "h", "v", "dQ", "g"]
    assert result.io == oracle.by_hand_flash_io(n, d, B, B_r, B_c)
    assert result.peak_words == oracle.by_hand_flash_peak(n, d, B, B_r, B_c)
    rounds, tiles = -(-n // B_c), -(-d // B)
    x, y, r, c = min(n, B), min(d, B), min(n, B_r), min(n, B_c)
    for phase, (m, k, io) in {
        "S": (n, d, oracle.by_hand_matmul_io(n, d, d, B, B)),
        "h": (n, d, oracle.by_hand_matmul_io(n, d, d, B, B)),
        "g": (d, n, oracle.by_hand_matmul_io(d, n, d, B, B)),
    }.items():
        assert result.by_phase[phase].io == io
        assert result.by_phase[phase].peak_words == oracle.by_hand_matmul_tiled_peak(m, k, d, B) == 2 * x * y + y * y
    assert (result.by_phase["v"].io, result.by_phase["v"].peak_words) == (2 * n * d + n, 2 * r * d + r)
    assert result.by_phase["dQ"].io == 3 * n * d + rounds * (4 * n * d + 2 * n)
    assert result.by_phase["dQ"].peak_words == 2 * c * d + r * d + 2 * r * c
    assert result.by_tensor["dQ"] == ((rounds + tiles) * n * d, (rounds + 1) * n * d)
    assert result.by_tensor["S"] == (rounds * n * d, n * d)
    assert result.by_tensor["dO"] == ((rounds + 1) * n * d, 0)
    assert result.by_tensor["v"] == (rounds * n, n)
    assert result.by_tensor["l"] == (rounds * n, 0)


def test_larger_sizes_and_random_inputs_by_default():
    """n >> d and n << d at sizes of several blocks; inputs are drawn when none are given."""
    for n, d in ((37, 8), (6, 23)):
        expected = BACKWARD.reference(BACKWARD.random_inputs({"n": n, "d": d}, 3))
        small = oracle.small_cache(n, d, 5, seed=3)
        large = oracle.large_cache(n, d, 7, 4, seed=3)
        flash = oracle.flash(n, d, 5, 7, 4, seed=3)
        for result in (small, large, flash):
            check(result, expected)
        assert small.io == oracle.by_hand_alg6_io(n, d, 5)
        assert large.io == oracle.by_hand_alg9_io(n, d, 7, 4)
        assert flash.io == oracle.by_hand_flash_io(n, d, 5, 7, 4)


def test_peaks_are_capacities():
    """A capacity of the reported peak is enough, one word fewer is not."""
    fits_exactly(lambda M: oracle.small_cache(5, 4, 2, M=M), oracle.by_hand_alg6_peak(5, 4, 2))
    fits_exactly(lambda M: oracle.large_cache(7, 3, 2, 3, M=M), oracle.by_hand_alg9_peak(7, 3, 2, 3))
    fits_exactly(lambda M: oracle.flash(7, 3, 2, 2, 3, M=M), oracle.by_hand_flash_peak(7, 3, 2, 2, 3))
    fits_exactly(lambda M: oracle.matmul_tiled(5, 4, 3, 2, M=M), oracle.by_hand_matmul_tiled_peak(5, 4, 3, 2))
    fits_exactly(lambda M: oracle.matmul_streamed(5, 4, 3, 2, 2, M=M), 2 * 2 + 2 + 1)


@given(SIZE, st.integers(1, 6), st.integers(0, 120))
def test_feasible_blocks_of_erratum_2(n, d, spare):
    """B_c = 1 and the B_r of erratum 2 fit in M words from M = d^2+6d+5 on, where B_r reaches 1."""
    M = d * d + 6 * d + 5 + spare
    rows = oracle.by_hand_alg8_rows(d, M)
    assert rows >= 1
    assert oracle.by_hand_alg8_rows(d, d * d + 6 * d + 4) == 0
    assert oracle.large_cache(n, d, rows, 1, M=M).peak_words <= M


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_least_memory_of_algorithm_9(d):
    """With blocks of one row, Algorithm 9 needs exactly d^2+6d+3 words (d = 1: 11), not d^2+6d+5."""
    fits_exactly(lambda M: oracle.large_cache(3, d, 1, 1, M=M), d * d + 6 * d + 3 if d > 1 else 11)


@pytest.mark.parametrize(("mu", "needed"), [(1, 2.57), (4, 2.26), (16, 1.50), (64, 1.31)])
def test_printed_blocks_do_not_fit(mu, needed):
    """Erratum 2: Algorithm 8's printed block sizes need more than M words (d = 64, n large)."""
    d, M = 64, mu * 64**2
    B_c = -(-M // (4 * d))
    assert oracle.by_hand_alg8_peak(10**6, d, min(B_c, d), B_c) / M == pytest.approx(needed, abs=0.005)


@pytest.mark.parametrize(("n", "d"), [(5, 3), (3, 5), (1, 2), (4, 1)])
def test_reference_gradient_is_the_derivative(n, d):
    """g is dL/dX of L(X) = sum(dO∘O(X)), O = diag(l)^-1 exp(A1 X A2^T) A3 Y, by central differences."""
    inputs, expected = inputs_and_reference(n, d, 11)

    def loss(X):
        A = np.exp(inputs["A1"] @ X @ inputs["A2"].T)
        return np.sum(inputs["dO"] * (A / A.sum(axis=1)[:, None] @ inputs["A3"] @ inputs["Y"]))

    step = 1e-5
    difference = np.empty((d, d))
    for index in np.ndindex(d, d):
        delta = np.zeros((d, d))
        delta[index] = step
        difference[index] = (loss(inputs["X"] + delta) - loss(inputs["X"] - delta)) / (2 * step)
    np.testing.assert_allclose(difference, expected["g"], rtol=1e-6, atol=1e-9)
    assert n == 1 or np.abs(expected["g"]).max() > 1e-3


# ------------------------------------------------------------------------------------------------ matmul
@given(SIZE, SIZE, SIZE, WIDTH, SEED)
@example(1, 1, 1, 1, 0)
@example(9, 1, 5, 4, 0)
def test_matmul_tiled(m, k, n, B, seed):
    inputs = MATMUL.random_inputs({"m": m, "k": k, "n": n}, seed)
    result = oracle.matmul_tiled(m, k, n, B, inputs=inputs)
    check(result, MATMUL.reference(inputs))
    assert result.io == oracle.by_hand_matmul_io(m, k, n, B, B)
    assert result.by_tensor == {"A": (m * k * -(-n // B), 0), "B": (k * n * -(-m // B), 0), "C": (0, m * n)}
    assert result.peak_words == oracle.by_hand_matmul_tiled_peak(m, k, n, B)


@given(SIZE, SIZE, SIZE, WIDTH, WIDTH, SEED)
@example(1, 1, 1, 1, 1, 0)
@example(9, 1, 5, 4, 11, 0)
def test_matmul_streamed(m, k, n, a, b, seed):
    inputs = MATMUL.random_inputs({"m": m, "k": k, "n": n}, seed)
    result = oracle.matmul_streamed(m, k, n, a, b, inputs=inputs)
    check(result, MATMUL.reference(inputs))
    assert result.io == oracle.by_hand_matmul_io(m, k, n, a, b)
    assert result.by_tensor == {"A": (m * k * -(-n // b), 0), "B": (k * n * -(-m // a), 0), "C": (0, m * n)}
    assert result.peak_words == oracle.by_hand_matmul_streamed_peak(m, k, n, a, b)


# ------------------------------------------------------------------------------------------------ the memory itself
def test_memory_refuses_wrong_use():
    """Reading unwritten words, using or deleting a deleted block, leaving blocks behind, moves outside a phase."""
    here = (slice(0, 2),)
    mem = oracle.Memory(3)
    mem.place({"x": np.arange(2.0)})
    mem.reserve("y", 2)
    with pytest.raises(oracle.WrongUse, match="outside"):
        mem.new(1)
    with pytest.raises(oracle.WrongUse, match="left 1 blocks"), mem.phase("p"):
        block = mem.read("x", here)
        with pytest.raises(oracle.WrongUse, match="had not been written"):
            mem.read("y", here)
        with pytest.raises(oracle.WrongUse, match="shape"):
            mem.write("y", (slice(0, 1),), block)
        mem.delete(block)
        with pytest.raises(oracle.WrongUse, match="deleted"):
            mem.delete(block)
        with pytest.raises(oracle.WrongUse, match="deleted"):
            mem.write("y", here, block)
        mem.read("x", here)
    with pytest.raises(oracle.WrongUse, match="in full"):
        mem.result("y")


def test_memory_counts():
    """A small exchange by hand."""
    mem = oracle.Memory(3)
    mem.place({"x": np.arange(5.0)})
    mem.reserve("y", 2)
    with mem.phase("p"):
        a = mem.read("x", (slice(3, 5),))
        with pytest.raises(oracle.OutOfFastMemory):
            mem.new(2)
        b = mem.new(1)
        mem.write("y", (slice(0, 2),), a)
        mem.delete(a, b)
    result = mem.result("y")
    assert (result.reads, result.writes, result.io, result.peak_words) == (2, 2, 4, 3)
    assert result.by_tensor == {"x": (2, 0), "y": (0, 2)}
    assert result.outputs["y"].tolist() == [3.0, 4.0]
