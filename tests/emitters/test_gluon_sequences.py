"""Gluon kernels whose rows of a bias stay while sequences stream past, by the interpreter: values and words."""

from __future__ import annotations

import ast
import re
from collections import Counter
from itertools import product
from typing import Any

import gluon_interpreter
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pebblesim.advice.tiles import Tiling
from pebblesim.core.errors import UsageError
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.bias import biased
from pebblesim.kernels.passes.sequences_past import of_one, past
from pebblesim.kernels.tables import moved_words
from pebblesim.kernels.triton.triton import triton
from pebblesim.language import program as ir
from pebblesim.operator.bias.programs import part_of
from pebblesim.operator.planning import program_of

SCALE, D = 0.3, 16


def of_queries(side: int, rows: int = 64) -> ir.Program:
    """O and L for one sequence."""
    return biased(program_of(Tiling("flash2-forward", {"B_r": rows, "B_c": side}), None))


def of_keys(side: int) -> ir.Program:
    """dK and dV for one sequence, from a transpose of the bias."""
    two_passes = program_of(Tiling("backward-two-pass-blocked", {"B_c": 64, "b_r": side}), None)
    return part_of(biased(two_passes, ("dK, dV",)), ("dK, dV",))


def written(program: ir.Program, n_q: int, n_k: int, side: int, stages: int = 2, streams: int = 3) -> Any:
    """The kernels of a program of `past` for lengths in tiles."""
    blocks = {"B_r": 64, "B_c": side} if "O" in program.outputs else {"B_c": 64, "b_r": side}
    sizes = {"n_q": n_q, "n_k": n_k, "d_k": D, "d_v": D, "R": 2, **blocks}
    return gluon(program, sizes, "float16", scale=SCALE, stages=stages, shared=1, streams=streams), sizes


def by_definition(Q: Any, K: Any, V: Any, dO: Any, bias: Any) -> dict[str, Any]:
    """O, L to base 2, row sums of dO ∘ O, dK and dV; a query whose keys are all left out has O = 0."""
    S = SCALE * np.einsum("...id,...jd->...ij", Q, K) + bias
    most = S.max(-1, keepdims=True)
    P = np.exp(S - np.where(np.isfinite(most), most, 0.0))
    total = P.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        L = (np.log(total) + most)[..., 0]
    P = P / np.where(total == 0, 1.0, total)
    O = P @ V
    v = (dO * O).sum(-1)
    dS = P * (np.einsum("...id,...jd->...ij", dO, V) - v[..., None])
    L = np.where(np.isfinite(L), L, np.inf) / np.log(2)
    return {"O": O, "L": L, "v": v, "dK": SCALE * np.swapaxes(dS, -1, -2) @ Q, "dV": np.swapaxes(P, -1, -2) @ dO}


def run(
    way: str, n_q: int, n_k: int, groups: int, sequences: int, heads: int, side: int, seed: int, **how: int
) -> Counter[tuple[str, str]]:
    """Compare what kernels compute with the definition; the words that they moved."""
    chance = np.random.default_rng(seed)
    batch = groups * sequences

    def matrix(n: int) -> Any:
        return chance.standard_normal((batch, heads, n, D)).astype(np.float16).astype(float)

    Q, K, V, dO = matrix(n_q), matrix(n_k), matrix(n_k), matrix(n_q)
    bias = chance.standard_normal((groups, heads, n_q, n_k)).astype(np.float16).astype(float)
    bias[:, :, 0] = bias[:, 0, :, -1] = -np.inf  # a query without a key, and a key without a query
    bias[:, 0, -1, : n_k // 2] = -np.inf
    true = by_definition(Q, K, V, dO, np.repeat(bias, sequences, 0))
    program = past(of_queries(side) if way == "forward" else of_keys(side))
    source, sizes = written(program, n_q, n_k, side, **how)
    name, rows = ("bias", bias) if way == "forward" else ("bias_T", np.swapaxes(bias, -1, -2))
    across = -(-rows.shape[-1] // 8) * 8
    behind = [(0, 0)] * 3 + [(0, across - rows.shape[-1])]  # up to a group of 8 words, and for no one
    padded = np.pad(rows, behind, constant_values=100.0)
    whole = np.broadcast_to(padded[:, None], (groups, sequences, *padded.shape[1:]))
    numbers = {each: true[each].reshape(batch * heads, n_q) for each in ("L", "v")}
    given = {"Q": Q, "K": K, "V": V, "dO": dO, **numbers, name: whole}
    given = {each: given[each] for each in program.tensors if each in program.inputs}
    strides = {each: tuple(np.cumprod([1, *x.shape[:0:-1]])[::-1]) for each, x in given.items() if x.ndim == 4}
    strides[name] = (heads * rows.shape[-2] * across, 0, rows.shape[-2] * across, across, 1)
    made = {each: true[each] for each in program.outputs if true[each].ndim == 4}
    results = {each: (x.shape, tuple(np.cumprod([1, *x.shape[:0:-1]])[::-1])) for each, x in made.items()}
    found, words = gluon_interpreter.run(
        source.text, given, "float16", None, seed, strides=strides, results=results, wide={"L", "v"}
    )
    for each, array in found.items():
        mine, its = array.reshape(true[each].shape), true[each]
        there = np.isfinite(its)
        assert (np.isfinite(mine) == there).all()
        assert np.linalg.norm(mine[there] - its[there]) < 3e-3 * max(float(np.linalg.norm(its[there])), 0.1), each
    counted: Counter[tuple[str, str]] = Counter()
    for each, both in moved_words(program, {**sizes, "R": sequences}).items():
        for what, number in zip(("read", "written"), both, strict=True):
            counted[what, each] = number * groups * heads
    own = counted["read", name]
    assert own == groups * heads * n_q * n_k
    tiles, streams = -(-rows.shape[-2] // 64), how.get("streams", 3)
    every = groups * heads * sequences
    each = max(-(-every // max(3 // tiles, 1)), streams)  # of a block: the interpreter's card has three multiprocessors
    again = [at for at in range(each, every, each) if at % sequences]  # blocks begin with a head that others have, too
    assert words["read", name] == (groups * heads + len(again)) * rows.shape[-2] * across
    words["read", name] = own
    assert +words == +counted
    return words


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_ragged_rows_columns_and_sequences(way: str) -> None:
    run(way, 70, 101, groups=2, sequences=5, heads=2, side=64, seed=3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize(("streams", "stages"), [(1, 2), (2, 3), (4, 2)])
def test_sequences_at_a_time_and_stages(way: str, streams: int, stages: int) -> None:
    run(way, 64, 96, groups=1, sequences=3, heads=1, side=32, seed=4, streams=streams, stages=stages)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    way=st.sampled_from(["forward", "backward"]),
    n=st.tuples(st.integers(2, 200), st.integers(2, 200)),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 2)),
    side=st.sampled_from([16, 32, 64, 128]),
    seed=st.integers(0, 99),
)
def test_drawn_sizes(way: str, n: tuple[int, int], shape: tuple[int, int, int], side: int, seed: int) -> None:
    groups, sequences, heads = shape
    run(way, *n, groups=groups, sequences=sequences, heads=heads, side=side, seed=seed)


def test_a_bias_that_is_too_long_for_float32_stays_in_16_bits() -> None:
    """Its words are then made wider, and divided by the scale, for each tile of scores."""
    program = past(of_queries(64))
    short, long = (written(program, 64, n, 64)[0].text for n in (256, 1024))
    assert "bias_rows = gl.allocate_shared_memory(gl.float32, [4, 64, 64], order_64)" in short
    assert "bias_rows = gl.allocate_shared_memory(gl.float16, [16, 64, 64], order_64)" in long
    assert "bias_rows.index(j).load(tile_64), is_async" in short
    assert f"bias_rows.index(j).load(tile_64).to(gl.float32) * {1 / SCALE}, is_async" in long


@pytest.mark.parametrize("side", [16, 64, 128])
@pytest.mark.parametrize("n", [256, 250])
def test_no_two_loads_of_a_warp_ask_for_the_same_sector_of_the_bias(side: int, n: int) -> None:
    """A thread reads 8 words at once, as predicates are those of 8 words, too; a sector has 16."""
    text = written(past(of_keys(side)), n, n, side)[0].text
    (name,) = re.findall(r"at_columns = .*SliceLayout\(0, (\w+)\)", text)
    (bases,) = re.findall(rf"^{name} = gl.constexpr\(gl.DistributedLinearLayout\((.*)\)\)", text, re.M)
    registers, lanes, warps, _, _ = ast.literal_eval(bases)
    assert registers[:3] == [[0, 1], [0, 2], [0, 4]]
    loads, spots = ([*product(*(((0, 0), tuple(base)) for base in of))] for of in ([*registers[3:], *warps], lanes))
    sectors = Counter[tuple[int, int]]()
    for load in loads:
        places = (map(sum, zip(*load, *spot, (0, 0), strict=True)) for spot in spots)
        sectors.update({(row, column // 16) for row, column in places})
    assert sectors == Counter(product(range(64), range(side // 16)))
    mask = "(at_rows[:, None] < n_k) & (at_columns[None, :] < gl.cdiv(n_q, 8) * 8)"
    assert re.findall("entries = .*mask=(.*), other", text) == [mask] * (n == 250)


@pytest.mark.parametrize("program", [of_queries(64), of_keys(64)])
def test_rows_of_a_sequence_are_given_back_behind_a_fence(program: ir.Program) -> None:
    """The copy engine fills them again. Products that are waited for took L and v, so that these need none."""
    lines = written(past(program), 64, 64, 64)[0].text.splitlines()
    given = [
        at
        for at, line in enumerate(lines)
        if ("arrive(" in line and "_free.index(w)" in line) or "_free.index(slot)" in line
    ]
    behind = [at for at in given if "arrive(" in lines[at] and lines[at - 1].strip() == "fence_async_shared()"]
    assert len(behind) == 1


@pytest.mark.parametrize("wide", [True, False])
def test_a_mask_of_the_least_number_of_a_type(wide: bool, monkeypatch: Any) -> None:
    """Keys that have it are left out, as by -inf."""
    if not wide:
        monkeypatch.setattr("pebblesim.kernels.gluon.sequences_plan.BESIDE", 2**20)
    chance, least = np.random.default_rng(3), -3.3895313892515355e38
    Q, K, V = (np.trunc(64 * chance.standard_normal((2, 1, 64, D))) / 64 for _ in range(3))
    bias = np.where(chance.random((64, 64)) < 0.5, least, 0.0)
    bias[5], bias[6, :-1], bias[6, -1], bias[7] = least, least, 0.0, -np.inf
    program = past(of_queries(64))
    sizes = {"n_q": 64, "n_k": 64, "d_k": D, "d_v": D, "R": 2, "B_r": 64, "B_c": 64}
    text = gluon(program, sizes, "bfloat16", scale=SCALE, shared=1, streams=3).text
    whole, strides = np.broadcast_to(bias, (1, 2, 1, 64, 64)), (64 * D, 64 * D, D, 1)
    given = {"Q": Q, "K": K, "V": V, "bias": whole}
    of = dict.fromkeys("QKV", strides) | {"bias": (64 * 64, 0, 64 * 64, 64, 1)}
    found, _ = gluon_interpreter.run(
        text, given, "bfloat16", None, 1, strides=of, results={"O": (Q.shape, strides)}, wide={"L"}
    )
    O = found["O"].reshape(V.shape)
    for row, true in ((5, np.zeros_like(V[:, :, -1])), (6, V[:, :, -1]), (7, np.zeros_like(V[:, :, -1]))):
        assert np.allclose(O[:, :, row], true, atol=0.02)
    true = by_definition(Q, K, V, V, np.where(bias == least, -np.inf, bias))["O"]
    assert np.allclose(O[:, :, 8:], true[:, :, 8:], atol=0.03)


def test_words_in_16_bits(monkeypatch: Any) -> None:
    monkeypatch.setattr("pebblesim.kernels.gluon.sequences_plan.BESIDE", 2**20)
    run("forward", 64, 101, groups=1, sequences=2, heads=1, side=64, seed=5)
    run("backward", 70, 64, groups=1, sequences=2, heads=1, side=64, seed=5)


@pytest.mark.parametrize("program", [of_queries(64), of_keys(32)])
def test_the_program_of_one_sequence_is_found_again(program: ir.Program) -> None:
    """With the same reads, the same words and the same kernels."""
    again, sizes = of_one(past(program)), {"n_q": 100, "n_k": 90, "d_k": D, "d_v": D, "B_r": 64, "B_c": 64, "b_r": 32}
    assert moved_words(again, sizes) == moved_words(program, sizes)
    texts = [triton(each, sizes, scale=SCALE, shared=1).text for each in (again, program)]
    assert texts[0] == texts[1]


@given(n=st.integers(1, 200), d=st.integers(1, 60), R=st.integers(1, 9), side=st.sampled_from([16, 32, 64]))
@settings(max_examples=25, deadline=None)
def test_the_words_of_the_page(n: int, d: int, R: int, side: int) -> None:
    """docs/bias.md: words of R sequences of one head whose rows of the bias stay."""
    tiles = -(-n // 64)
    page = {
        of_queries(side): n * n + R * (2 * n * d + 2 * n * d * tiles + n),
        of_keys(side): n * n + R * (4 * n * d + (2 * n * d + 2 * n) * tiles),
    }
    for program, words in page.items():
        sizes = {"n_q": n, "n_k": n, "d_k": d, "d_v": d, "R": R, "B_r": 64, "B_c": 64, "b_r": side}
        sizes |= {"B_c": side} if "O" in program.outputs else {}
        assert sum(map(sum, moved_words(past(program), sizes).values())) == words


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="no loop over rows in which a bias is read"):
        past(program_of(Tiling("flash2-forward", {"B_r": 64, "B_c": 64}), None))
    with pytest.raises(UsageError, match="a block has 128 rows; give blocks of 64 rows"):
        gluon(
            past(of_queries(64, 128)),
            {"n_q": 128, "n_k": 64, "d_k": D, "d_v": D, "B_r": 128, "B_c": 64, "R": 2},
            shared=1,
        )
    with pytest.raises(UsageError, match="bytes of shared memory"):
        written(past(of_queries(64)), 64, 2048, 64)
