"""`pebblesim.gpu.torch` without PyTorch: a stand-in for it, and kernels run by the interpreter."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton_interpreter

import pebblesim.gpu.torch as ours
from pebblesim.errors import UsageError


class Shape(tuple[int, ...]):
    def numel(self) -> int:
        return int(np.prod(self))

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Shape(found) if isinstance(key, slice) else found


class Tensor:
    """Of what attention asks of a tensor, over numpy."""

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

    def repeat_interleave(self, times: int, axis: int) -> Tensor:
        return self.like(self.values.repeat(times, axis))

    def __getitem__(self, key: Any) -> Tensor:
        return self.like(self.values[key])


class Function:
    """What `torch.autograd.Function` is to us: `apply` calls `forward`, and keeps the context for `backward`."""

    last: Any = None

    @classmethod
    def apply(cls, *given: Any) -> Any:
        context = SimpleNamespace()
        context.save_for_backward = lambda *tensors: setattr(context, "saved_tensors", tensors)
        Function.last = cls, context
        return cls.forward(context, *given)  # type: ignore[attr-defined]


class FakeTorch(SimpleNamespace):
    """Of what attention asks of PyTorch."""

    bfloat16, float16 = "torch.bfloat16", "torch.float16"
    cuda = SimpleNamespace(is_available=lambda: True)
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
    ours._run.cache_clear()
    ours._function.cache_clear()
    yield fake
    ours._run.cache_clear()
    ours._function.cache_clear()


def softmax(S: np.ndarray, causal: bool) -> np.ndarray:
    if causal:
        S = np.where(np.tri(S.shape[-1], dtype=bool), S, -np.inf)
    P = np.exp(S - S.max(-1, keepdims=True))
    return P / P.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("n", "d_k", "d_v", "heads", "shared", "causal", "scale"),
    [
        (70, 24, 24, 2, 2, False, None),
        (33, 40, 8, 2, 1, True, 0.7),
        (1, 3, 5, 1, 1, True, None),
        (20, 320, 300, 1, 1, False, None),
    ],
)
def test_attention_and_its_gradients(
    torch: Any, n: int, d_k: int, d_v: int, heads: int, shared: int, causal: bool, scale: float | None
) -> None:
    random = np.random.default_rng(n)
    q, k, v, dO = (
        random.standard_normal(shape).astype(np.float16).astype(np.float64)
        for shape in ((1, heads, n, d_k), (1, shared, n, d_k), (1, shared, n, d_v), (1, heads, n, d_v))
    )
    made = ours.attention(*map(Tensor, (q, k, v)), is_causal=causal, scale=scale, enable_gqa=heads != shared)
    assert made.shape == (1, heads, n, d_v)
    factor = d_k**-0.5 if scale is None else scale
    k, v = (each.repeat(heads // shared, 1) for each in (k, v))
    P = softmax(q @ k.swapaxes(-1, -2) * factor, causal)
    assert np.abs(made.values - P @ v).max() < 4e-3

    function, context = Function.last
    d = context.saved_tensors[0].shape[-1]
    padded = np.pad(dO, [(0, 0)] * 3 + [(0, d - d_v)]).reshape(heads, n, d)
    dQ, dK, dV, *nothing = function.backward(context, Tensor(padded))
    dP = dO @ v.swapaxes(-1, -2)
    dS = P * (dP - (dP * P).sum(-1, keepdims=True)) * factor
    for found, true in ((dQ, dS @ k), (dK, dS.swapaxes(-1, -2) @ q), (dV, P.swapaxes(-1, -2) @ dO)):
        found = found.values[..., : true.shape[-1]]
        assert np.linalg.norm(found - true[0]) <= 4e-3 * max(np.linalg.norm(true), 0.1)
    assert nothing == [None, None]


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
    assert "have 8, 9, 9 tokens" in refused(*tensors(good, (1, 2, 9, 16), (1, 2, 9, 16)))
    assert "head dimensions 16 and 24" in refused(*tensors(good, (1, 2, 8, 24), good))
    one = (1, 1, 8, 16)
    assert "query has 2 heads and key 1" in refused(*tensors(good, one, one))
    assert "a number that divides 2" in refused(*tensors(good, (1, 3, 8, 16), (1, 3, 8, 16)), enable_gqa=True)
    assert "must agree" in refused(*tensors(good, good, one))
    assert "give (…, heads, tokens" in refused(*tensors((8, 16), (8, 16), (8, 16)))
    many = (40, 2000, 1, 16)
    assert "80,000 heads in all" in refused(*tensors(many, many, many))


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
    assert str(wide).count("most of it") >= 2 and ours.plan(64, 3).d == 16
