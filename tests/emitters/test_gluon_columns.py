"""Gluon kernels whose warpgroups divide columns, run by the interpreter: values, words moved, order; what is chosen."""

from __future__ import annotations

import re
from typing import Any

import gluon_interpreter
import numpy as np
import pytest
from hypothesis import given, strategies as st

from pebblesim.core.errors import UsageError
from pebblesim.counting.count import count
from pebblesim.kernels.gluon.gluon import gluon, plans
from pebblesim.language.registry import get

BLOCKS, SCALE = {"B_r": 64, "B_c": 128}, 0.05


def written(dims: dict[str, int], **options: Any) -> str:
    """The source for some sizes."""
    program = get("flash2-latent").in_dims(dims).program
    return gluon(program, {**dims, **BLOCKS}, "float16", scale=SCALE, **options).text


def drawn(dims: dict[str, int], heads: int = 1) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(dims["n_q"] + dims["n_k"])
    shapes = {"Q_C": ("n_q", "d_v"), "Q_R": ("n_q", "d_r"), "C": ("n_k", "d_v"), "R": ("n_k", "d_r")}
    return {
        name: np.float64(np.float16(chance.normal(size=(heads, *map(dims.get, sides)))))
        for name, sides in shapes.items()
    }


def right(x: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """O and L, to base 2, in float64."""
    S = SCALE * (x["Q_C"] @ x["C"].swapaxes(-2, -1) + x["Q_R"] @ x["R"].swapaxes(-2, -1))
    most = S.max(-1, keepdims=True)
    P = np.exp(S - most)
    sums = P.sum(-1, keepdims=True)
    return P / sums @ x["C"], (most + np.log(sums))[..., 0] * np.log2(np.e)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= 2e-3 * np.linalg.norm(expected)


def check(n_q: int, n_k: int, d_v: int, d_r: int, heads: int, seed: int) -> None:
    dims = {"n_q": n_q, "n_k": n_k, "d_v": d_v, "d_r": d_r}
    x = drawn(dims, heads)
    found, moved = gluon_interpreter.run(written(dims), x, "float16", None, seed)
    O, L = right(x)
    close(found["O"], O)
    close(found["L"], L)
    counted = count("flash2-latent", **dims, M=10**9, blocks=BLOCKS).by_tensor
    for name, (reads, writes) in counted.items():
        assert (moved["read", name], moved["written", name]) == (heads * reads, heads * writes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("n_q", "n_k", "d_v", "d_r", "heads"),
    [(64, 256, 264, 64, 1), (3, 65, 512, 16, 2), (70, 1, 40, 24, 1)],
)
def test_values_and_words_moved(n_q: int, n_k: int, d_v: int, d_r: int, heads: int) -> None:
    check(n_q, n_k, d_v, d_r, heads, seed=n_k)


@pytest.mark.slow
@given(
    n_q=st.integers(1, 130),
    n_k=st.integers(1, 400),
    d_v=st.integers(3, 64).map(lambda group: 8 * group),
    d_r=st.integers(2, 8).map(lambda group: 8 * group),
    heads=st.integers(1, 2),
    seed=st.integers(0, 1000),
)
def test_values_and_words_moved_at_drawn_sizes(n_q: int, n_k: int, d_v: int, d_r: int, heads: int, seed: int) -> None:
    check(n_q, n_k, d_v, d_r, heads, seed)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shared", [4, 128])
def test_heads_that_share_keys_are_read_where_they_are(shared: int) -> None:
    """`shared`: fewer than a tile has rows, and more, with one position."""
    batch, kv_heads, n_q, n_k, d_v, d_r = 1, 2, 1 if shared > 64 else 5, 130, 272, 24
    chance = np.random.default_rng(shared)
    heads, width = kv_heads * shared, d_v + d_r
    shapes = {"Q_C": (heads, n_q, d_v), "Q_R": (heads, n_q, d_r), "C": (kv_heads, n_k, d_v), "R": (kv_heads, n_k, d_r)}
    x = {name: np.float64(np.float16(chance.normal(size=(batch, *shape)))) for name, shape in shapes.items()}
    apart = {name: (of[0] * of[1] * width, of[1] * width, width, 1) for name, of in shapes.items()}
    dims = {"n_q": n_q * shared, "n_k": n_k, "d_v": d_v, "d_r": d_r}
    of_O = (batch, heads, n_q, d_v)
    found, _ = gluon_interpreter.run(
        written(dims, shared=shared),
        x,
        "float16",
        None,
        1,
        strides=apart,
        results={"O": (of_O, (heads * n_q * d_v, n_q * d_v, d_v, 1))},
    )
    O, _ = right({name: np.repeat(each, shared, axis=1) if name in "CR" else each for name, each in x.items()})
    close(found["O"], O)


LINES = [
    r"mbarrier\.wait\(C_j_full\.index\(mine \* 2\), phase\)",
    r"mbarrier\.wait\(m_new_of_all_full\.index\(1 - w\), phase\)",
    r"mbarrier\.wait\(P_full\.index\(1 - phase\), phase\)",
    r"mbarrier\.wait\(l_i_of_all_full\.index\(1 - w\), 0\)",
    r"mbarrier\.arrive\(R_j_free\.index\(phase\), count=1\)",
    r"mbarrier\.arrive\(C_j_free\.index\(mine \* 2 \+ 1\), count=1\)",
    r"P = warpgroup_mma_wait\(0, deps=\(P,\)\)",
    r"R_j\.index\(mine\)\.reshape\(\[64, 64\]\)\.store\(.*\)\n *fence_async_shared\(\)",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("line", LINES)
def test_each_wait_arrival_and_fence_is_needed(line: str) -> None:
    dims = {"n_q": 64, "n_k": 384, "d_v": 264, "d_r": 64}
    x, text = drawn(dims), written(dims)
    without, number = re.subn(rf"\n *{line}\n", lambda found: _without_last(found[0]), text)
    assert number == 1

    def runs(source: str) -> bool:
        for seed in range(3):
            try:
                found, _ = gluon_interpreter.run(source, x, "float16", None, seed)
                close(found["O"], right(x)[0])
            except Exception:
                return False
        return True

    assert not runs(without)


def _without_last(lines: str) -> str:
    """Lines without the last of them."""
    return lines.rstrip("\n").rpartition("\n")[0] + "\n"


def test_the_program_says_the_shared_memory() -> None:
    dims = {"n_q": 64, "n_k": 256, "d_v": 512, "d_r": 64}
    program, sizes = get("flash2-latent").in_dims(dims).program, {**dims, **BLOCKS}
    (plan,) = plans(program, sizes).values()
    (kernel,) = gluon(program, sizes).kernels
    probabilities, *_ = plan.handed
    assert plan.shares == 2 and probabilities.inside  # probabilities take the place of the rotary keys
    matrices = 2 * (64 * 576 + 128 * 576)
    barriers = 2 + 2 * 2 * (2 + 1) + 2 + 2 * 2
    assert kernel.program.shared == matrices + 2 * 2 * 64 * 4 + 8 * barriers


def test_what_these_kernels_do_not_know_is_said() -> None:
    dims = {"n_q": 64, "n_k": 256, "d_v": 512, "d_r": 64}
    with pytest.raises(UsageError, match=r"blocks that divide columns have one tile each; leave --persistent out\."):
        written(dims, persistent=True)
    with pytest.raises(UsageError, match=r"--stages 4 was given; leave --stages out\."):
        written(dims, stages=4)
