"""`pebblesim.gpu.torch` without PyTorch: a stand-in for it, and kernels run by the interpreter."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton_interpreter

import pebblesim.gpu.torch as ours
from pebblesim.core.errors import UsageError
from pebblesim.gpu import tiles
from pebblesim.gpu.advice import forecast
from pebblesim.gpu.emit.tables import workspace
from pebblesim.gpu.tiles import TILINGS, Tiling
from pebblesim.language.registry import get

SMALL = {
    "forward": (Tiling("small-cache-forward-blocked", {"a": 32, "b": 32, "c": 16}),),
    "backward-qkv": (Tiling("small-cache-backward-blocked", {"a": 32, "b": 32, "c": 16}),),
}
"""Tiles of which some fit into few rows."""


class Shape(tuple[int, ...]):
    def numel(self) -> int:
        return int(np.prod(self))

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Shape(found) if isinstance(key, slice) else found


class Tensor:
    """A stand-in for a tensor, over numpy, with all that attention asks of one."""

    def __init__(self, values: np.ndarray, dtype: str = "float16", is_cuda: bool = True) -> None:
        self.values, self.dtype, self.is_cuda = values, f"torch.{dtype}", is_cuda
        self.device = "cuda" if is_cuda else "cpu"

    @property
    def shape(self) -> Shape:
        return Shape(self.values.shape)

    def like(self, values: np.ndarray) -> Tensor:
        return Tensor(values, self.dtype.removeprefix("torch."), self.is_cuda)

    def dim(self) -> int:
        return self.values.ndim

    def reshape(self, *shape: int) -> Tensor:
        return self.like(self.values.reshape(shape))

    def contiguous(self) -> Tensor:
        return self

    def transpose(self, first: int, second: int) -> Tensor:
        return self.like(self.values.swapaxes(first, second))

    def to(self, dtype: str) -> Tensor:
        return Tensor(self.values, dtype.removeprefix("torch."))

    def copy_(self, other: Tensor) -> None:
        self.values[:] = other.values

    def __getitem__(self, key: Any) -> Tensor:
        return self.like(self.values[key])


class Function:
    """A stand-in for `torch.autograd.Function`: `apply` calls `forward`, and keeps the context for `backward`."""

    last: Any = None

    @classmethod
    def apply(cls, *given: Any) -> Any:
        context = SimpleNamespace()
        context.save_for_backward = lambda *tensors: setattr(context, "saved_tensors", tensors)
        Function.last = cls, context
        return cls.forward(context, *given)  # type: ignore[attr-defined]


class FakeTorch(SimpleNamespace):
    """A stand-in for PyTorch with all that attention asks of it."""

    bfloat16, float16 = "torch.bfloat16", "torch.float16"
    cuda = SimpleNamespace(is_available=lambda: True)
    float32 = "torch.float32"
    empty = staticmethod(lambda shape, dtype, device: Tensor(np.full(shape, np.nan), dtype.removeprefix("torch.")))
    autograd = SimpleNamespace(Function=Function)
    nn = SimpleNamespace(
        functional=SimpleNamespace(pad=lambda x, pad: x.like(np.pad(x.values, [(0, 0)] * (x.dim() - 1) + [pad])))
    )
    __hash__ = object.__hash__  # type: ignore[assignment]


def module_of(text: str) -> Any:
    """The text, run by the interpreter."""

    def run(*given: Tensor) -> dict[str, Tensor]:
        kind = given[0].dtype.removeprefix("torch.")
        outputs, _ = triton_interpreter.run(text, {str(number): each.values for number, each in enumerate(given)}, kind)
        return {name: Tensor(array, kind) for name, array in outputs.items()}

    return SimpleNamespace(run=run)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    monkeypatch.setattr(ours, "module_of", module_of)
    cached = (ours._run, ours._function, ours._forecasts, ours._chosen)
    for each in cached:
        each.cache_clear()
    yield fake
    for each in cached:
        each.cache_clear()


def softmax(S: np.ndarray, causal: bool) -> np.ndarray:
    if causal:
        S = np.where(np.tri(*S.shape[-2:], dtype=bool), S, -np.inf)
    P = np.exp(S - S.max(-1, keepdims=True))
    return P / P.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("n", "d", "heads", "causal", "scale", "workspace"),
    [
        ((70, 70), (24, 24), (2, 2), False, None, None),
        ((33, 33), (40, 8), (2, 1), True, 0.7, None),
        ((1, 1), (3, 5), (1, 1), True, None, None),
        ((1, 50), (24, 40), (4, 1), False, None, None),
        ((40, 21), (20, 20), (4, 2), True, None, None),
        ((19, 50), (20, 20), (2, 2), True, None, None),
        pytest.param((20, 35), (320, 300), (1, 1), False, None, None, marks=pytest.mark.slow),
        pytest.param((60, 30), (320, 300), (3, 1), True, None, None, marks=pytest.mark.slow),
        pytest.param((70, 70), (320, 320), (1, 1), False, 0.5, 32 * 70 * 2, marks=pytest.mark.slow),
        ((70, 61), (320, 300), (3, 3), True, 0.0, 32 * 64 * 2),
        ((40, 40), (320, 320), (4, 4), True, None, 2 * 40 * 40 * 2),
    ],
)
def test_attention_and_its_gradients(
    torch: Any,
    monkeypatch: pytest.MonkeyPatch,
    n: tuple[int, int],
    d: tuple[int, int],
    heads: tuple[int, int],
    causal: bool,
    scale: float | None,
    workspace: int | None,
) -> None:
    monkeypatch.setattr(tiles, "FEWEST_ROWS", 32)
    monkeypatch.setattr(tiles, "TILINGS", {problem: tilings + SMALL[problem] for problem, tilings in TILINGS.items()})
    monkeypatch.setattr(forecast, "TILINGS", tiles.TILINGS)
    ours._forecasts.cache_clear()
    ours._chosen.cache_clear()
    random, shared = np.random.default_rng(sum(n)), heads[0] // heads[1]
    q, k, v, dO = (
        random.standard_normal(shape).astype(np.float16).astype(np.float64)
        for shape in (
            (1, heads[0], n[0], d[0]),
            (1, heads[1], n[1], d[0]),
            (1, heads[1], n[1], d[1]),
            (1, heads[0], n[0], d[1]),
        )
    )
    asked = {"is_causal": causal, "scale": scale, "enable_gqa": shared > 1, "workspace": workspace}
    made = ours.attention(*map(Tensor, (q, k, v)), **asked)
    assert made.shape == (1, heads[0], n[0], d[1])
    factor = d[0] ** -0.5 if scale is None else scale
    k, v = (each.repeat(shared, 1) for each in (k, v))
    P = softmax(q @ k.swapaxes(-1, -2) * factor, causal)
    assert np.abs(made.values - P @ v).max() < 4e-3

    def rows(x: np.ndarray, width: int) -> np.ndarray:
        """Put the rows of a position together, of all heads that share keys, and zeros up to so many columns."""
        x = np.pad(x, [(0, 0)] * 3 + [(0, width - x.shape[-1])])
        return x.reshape(-1, shared, n[0], width).swapaxes(1, 2).reshape(-1, shared * n[0], width)

    function, context = Function.last
    Q, _, V, *_ = context.saved_tensors
    dQ, dK, dV, *nothing = function.backward(context, Tensor(rows(dO, V.shape[-1])))
    dP = dO @ v.swapaxes(-1, -2)
    dS = P * (dP - (dP * P).sum(-1, keepdims=True)) * factor
    true_dK, true_dV = (
        (x.swapaxes(-1, -2) @ y).reshape(heads[1], shared, n[1], -1).sum(1) for x, y in ((dS, q), (P, dO))
    )
    for found, true in ((dQ, rows(dS @ k, Q.shape[-1])), (dK, true_dK), (dV, true_dV)):
        found = found.values[..., : true.shape[-1]]
        assert np.linalg.norm(found - true[:, : found.shape[-2]]) <= 4e-3 * max(np.linalg.norm(true), 0.1)
        assert not np.any(true[:, found.shape[-2] :])  # of keys that no query sees
    assert nothing == [None, None, None]


def refused(*given: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as error:
        ours.attention(*given, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_attention_cannot_do_is_said_in_a_sentence(torch: Any) -> None:
    def tensors(*shapes: tuple[int, ...], **options: Any) -> list[Tensor]:
        return [Tensor(np.zeros(shape), **options) for shape in shapes]

    good = (1, 2, 8, 16)
    assert "neither attn_mask nor dropout_p" in refused(*tensors(good, good, good), dropout_p=0.1)
    assert "neither attn_mask" in refused(*tensors(good, good, good), attn_mask=1)
    assert "of torch.float32; give all three in bfloat16" in refused(*tensors(good, good, good, dtype="float32"))
    mixed = [*tensors(good, good), *tensors(good, dtype="bfloat16")]
    assert "value is of torch.bfloat16" in refused(*mixed)
    assert "query is on cpu" in refused(*tensors(good, good, good, is_cuda=False))
    wide = (1, 2, 8, 1025)
    assert "it may be up to 1,024" in refused(*tensors(wide, wide, good))
    assert "key and value have 8 and 9 tokens" in refused(*tensors(good, good, (1, 2, 9, 16)))
    assert "query has no tokens" in refused(*tensors((1, 2, 0, 16), good, good))
    assert "head dimensions 16 and 24" in refused(*tensors(good, (1, 2, 8, 24), good))
    one = (1, 1, 8, 16)
    assert "query has 2 heads and key 1" in refused(*tensors(good, one, one))
    assert "a number that divides 2" in refused(*tensors(good, (1, 3, 8, 16), (1, 3, 8, 16)), enable_gqa=True)
    assert "must agree" in refused(*tensors(good, good, one))
    assert "give (…, heads, tokens" in refused(*tensors((8, 16), (8, 16), (8, 16)))
    many = (40, 2000, 1, 16)
    assert "80,000 heads in all" in refused(*tensors(many, many, many))


def test_heads_or_rows_are_cut_for_a_workspace() -> None:
    """Tables of P, whose place dS takes, have two bytes a word."""

    def cut(n: int, heads: int, room: int) -> list[tuple[int | None, int]]:
        tiling = Tiling("small-cache-backward-blocked", {"a": 128, "b": 128, "c": 64})
        found = tiles.within(tiling, {"n": n, "d": 512}, heads, "bfloat16", room)
        assert all(
            at_once * workspace(get(each.schedule).program, {"n": n, "d": 512, **each.blocks}, "bfloat16") <= room
            for each, at_once in found
        )
        return [(each.blocks.get("C"), at_once) for each, at_once in found]

    assert cut(16384, 2, 2**30) == [(None, 2)]
    assert cut(16384, 2, 2**29) == [(None, 1), (8192, 2)]
    assert cut(16384, 2, 2**28) == [(8192, 1), (4096, 2)]
    assert cut(16384, 2, 2**28 - 1) == [(5632, 1), (3328, 2)]  # evenly: three times, five times
    assert cut(4096, 16, 2**28) == [(None, 8), (2048, 16)]
    assert cut(300, 1, 256 * 384 * 2) == [(256, 1)]  # tables have whole tiles
    two_passes = ours.plan(4096, 64, 16, workspace=1)  # keep no tables
    assert two_passes.backward[0].tiling.schedule == "backward-two-pass-blocked"
    with pytest.raises(UsageError, match="workspace = 1,048,576 bytes is too little for any kernel; give 8,388,608"):
        ours.plan(16384, 512, 2, workspace=2**20)


def test_without_pytorch_or_a_gpu_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "attention needs PyTorch and Triton, and torch is not here" in refused(1, 2, 3)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    assert "needs an NVIDIA GPU" in refused(1, 2, 3)


def test_a_plan_says_which_and_why() -> None:
    found = ours.plan(4096, 64, 16)
    assert found.backward[0].tiling.schedule == "backward-two-pass-blocked"
    assert "small-cache-backward-blocked would take" in str(found) or "dS-stored-blocked would take" in str(found)
    wide = ours.plan(4096, 512, 16)
    assert wide.backward[0].tiling.schedule == "small-cache-backward-blocked"
    assert str(wide).count("most of it") >= 2
    assert ours.plan(64, 3, d_v=20, n_k=9).dims == {"n_q": 64, "n_k": 9, "d_k": 16, "d_v": 20}


@pytest.mark.parametrize(("n", "n_k"), [(300, 1024), (1024, 300), (1, 500), (500, 1), (65, 64)])
@pytest.mark.parametrize("d", [64, 256])
def test_every_launch_takes_the_blocks_that_it_has(n: int, n_k: int, d: int) -> None:
    """Keys without any query: a launch of its own fills their gradients with zeros, and takes as good as no time."""
    plan = ours.plan(n, d, 16, n_k=n_k, causal=True)
    for made in (*plan.forward, *plan.backward):
        assert 0 < made.seconds < 1
        for launch in made.launches:
            assert sum(number for each in launch.cost.rounds for _, number in each) == launch.cost.working
