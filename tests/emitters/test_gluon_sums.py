"""Blocks of the last Gluon kernel of a pass that sum the gradient of sinks: by the interpreter, against plain loops."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import gluon_interpreter
import numpy as np
import pytest
from triton_interpreter import TYPES, Array

from pebblesim.advice.tiles import Tiling
from pebblesim.kernels.passes import sums_of_sinks
from pebblesim.operator.pattern import Pattern, band_of
from pebblesim.operator.texts import Written, written

TWO_PASS, ONE_PASS, STORED = "backward-two-pass-blocked", "flash2-backward-blocked", "dS-stored-resident"

BLOCKS: dict[str, list[dict[str, int]]] = {
    TWO_PASS: [{"B_r": 64, "b_c": 32, "B_c": 64, "b_r": 32}, {"B_r": 128, "b_c": 16, "B_c": 128, "b_r": 64}],
    ONE_PASS: [{"B_c": 64, "b_r": 64}, {"B_c": 128, "b_r": 64}],
    STORED: [{"a": 128, "b": 64, "c": 32, "e": 32}],
}


def kernels(name: str, blocks: dict[str, int], d: int, pattern: Pattern, even: bool = False) -> Written:
    """The kernels of a backward pass with sinks, for all lengths, or for those that tiles divide."""
    tiling = Tiling(name, blocks, gluon=True, stages=2)
    return written(tiling, (("d_k", d), ("d_v", d)), even, False, False, "bfloat16", pattern, d**-0.5)


def plain(v: np.ndarray, L: np.ndarray, s: np.ndarray, kv_heads: int, parts: int) -> np.ndarray:
    """The sums, one head and query after the other.

    Args:
        v: of each query and head, (batch, heads, n).
        L: to base 2, (batch · kv_heads · parts, n · heads that share keys in a part).
        s: sinks, (heads,) or (batch, heads).
        parts: of the heads that share keys.
    """
    made, (batch, heads, n) = np.zeros(s.shape), v.shape
    shared = heads // (kv_heads * parts)
    for at in range(batch):
        for head in range(heads):
            to = (at, head) if s.ndim == 2 else (head,)
            for query in range(n):
                of_query = float(L[at * kv_heads * parts + head // shared, query * shared + head % shared])
                if of_query > -math.inf:
                    made[to] -= math.exp(float(s[to]) - of_query * math.log(2)) * float(v[at, head, query])
    return made


def ordered(x: np.ndarray, order: str) -> tuple[int, ...]:
    """The strides of a matrix (batch, heads, n, d) in this order of memory."""
    _, heads, n, d = x.shape
    if order == "tokens first":
        return heads * n * d, d, heads * d, 1
    return (heads + 1) * (n + 1) * (d + 8), (n + 1) * (d + 8), d + 8, 1


class Case:
    """A drawn pass, with memory of NaN between the words of its tensors."""

    def __init__(self, name: str, chance: Random, even: bool) -> None:
        numbers = np.random.default_rng(chance.getrandbits(32))
        self.seed, self.kv_heads = chance.getrandbits(16), chance.randint(1, 3)
        batch, shared, n = chance.randint(1, 3), chance.choice([1, 2, 4, 8]), chance.randint(1, 90)
        n = 128 if even else n
        d, heads = chance.choice([32, 64, 128]), self.kv_heads * shared
        mask = chance.choice([None, band_of(None, 0, False, shared), band_of(9, 0, False, shared)])
        pattern = Pattern(mask, shared, sinks=True)
        self.found = kernels(name, chance.choice(BLOCKS[name]), d, pattern, even)
        shapes = dict.fromkeys("QKV", (batch, self.kv_heads, n, d))
        shapes |= dict.fromkeys(("Q", "dO", "O"), (batch, heads, n, d))
        x: dict[str, Any] = {
            each: TYPES["bfloat16"].round(numbers.standard_normal(shape)) for each, shape in shapes.items()
        }
        order = chance.choice(["tokens first", "within others"])
        self.strides = {each: ordered(array, order) for each, array in x.items()}
        self.results = {"d" + each: (x[each].shape, ordered(x[each], order)) for each in "QKV"}
        x["L"] = (2 * numbers.standard_normal((batch * self.kv_heads, n * shared)) + 3).astype(np.float32)
        self.strides["L"] = (n * shared, 1)
        self.inputs = {each: x[each] for each in self.found.takes}
        rows = np.sum(x["dO"].astype(np.float64) * x["O"], axis=-1)
        s = numbers.standard_normal((batch, heads) if chance.random() < 0.5 else (heads,))
        s[..., 0] = chance.choice([-np.inf, 0.5, 4.0])
        if mask is not None and s.flat[0] == -np.inf:  # L as of a query without a key; its scores are finite
            x["L"][:: self.kv_heads, 0], x["Q"][:, 0, 0] = -np.inf, 0.0
        kind = TYPES[chance.choice(["bfloat16", "float32"])]
        self.s = kind.round(s)
        self.sinks = Array(self.s, kind, (heads + chance.choice([0, 3]), 1) if s.ndim == 2 else (1,))
        self.made = Array(np.full(s.shape, np.nan), kind)
        self.true = plain(rows, x["L"], self.s, self.kv_heads, 1)

    def run(self, **others: Any) -> dict[str, np.ndarray]:
        """What the pass writes, and its row sums."""
        outputs, _ = gluon_interpreter.run(
            self.found.text,
            self.inputs,
            "bfloat16",
            None,
            self.seed,
            strides=self.strides,
            results=self.results,
            **others,
        )
        return outputs


def check(name: str, chance: Random, even: bool = False) -> None:
    """What the pass writes it writes alone, too; and its sums of a head are those of plain loops, one number each."""
    case = Case(name, chance, even)
    assert case.found.kernels[-1].endswith("_and_sums")
    alone, both = case.run(), case.run(sums_of=(case.sinks, case.made))
    assert alone.keys() == both.keys()
    assert all(np.array_equal(alone[each], both[each], equal_nan=True) for each in alone)
    assert case.made.written == case.made.numel() and case.made.there.all()
    precision = {"bfloat16": 2**-8, "float32": 1e-5}[case.made.dtype.name]
    assert np.abs(case.made.numpy() - case.true).max() < precision * (np.abs(case.true).max() + 1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [TWO_PASS, ONE_PASS, STORED])
def test_blocks_of_the_last_kernel_sum_as_plain_loops_do(name: str) -> None:
    check(name, Random(name))


def test_l_is_read_for_sums_where_no_kernel_copies_it() -> None:
    """At lengths that tiles divide."""
    check(TWO_PASS, Random(1), even=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [TWO_PASS, ONE_PASS, STORED])
def test_drawn_blocks_of_the_last_kernel_sum_as_plain_loops_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them have more shares than a block takes at once."""
    for seed in range(20):
        monkeypatch.setattr(sums_of_sinks, "SIDE", (1024, 2)[seed % 2])
        check(name, Random(f"{name} {seed}"))


@pytest.mark.parametrize("shared", [1, 8])
def test_kernels_that_ask_how_many_blocks_there_are_do_not_sum(shared: int) -> None:
    """These have as many blocks as multiprocessors, and go from tile to tile by that number."""
    tiling = Tiling(TWO_PASS, BLOCKS[TWO_PASS][0], gluon=True, stages=2, persistent=True)
    sinking = Pattern(None, shared, sinks=True)
    found = written(tiling, (("d_k", 64), ("d_v", 64)), False, False, False, "bfloat16", sinking, 1.0)
    assert "gl.num_programs(0)" in found.text and "sums_of_sinks" not in found.text
    assert not found.kernels[-1].endswith("_and_sums")
