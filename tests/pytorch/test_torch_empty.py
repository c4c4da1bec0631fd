"""Attention without keys, queries or batches: O = 0, L = -∞ and gradients 0, and no kernel is launched."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, strategies as st  # noqa: E402
from strategies import draws  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402
from pebblesim.operator import masks, operators  # noqa: E402
from pebblesim.operator.known import eager  # noqa: E402
from pebblesim.operator.launching import launching  # noqa: E402
from pebblesim.operator.sinks import operators as operators_of_sinks  # noqa: E402


def tensors(batch: tuple[int, ...], n_q: int, n_k: int, dtype: Any = torch.float16) -> list[Any]:
    """Four query heads on two KV heads, head dimensions 16 and 8, that want gradients."""
    shapes = (*batch, 4, n_q, 16), (*batch, 2, n_k, 16), (*batch, 2, n_k, 8)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def masks_of(rows: int, n_q: int, n_k: int) -> dict[str, dict[str, Any]]:
    """Each mask, for so many batches; None and all else that looks at positions."""
    none = torch.zeros(rows, n_q, dtype=torch.int32)
    starts = torch.zeros(4, dtype=torch.int32)
    return {
        "none": {},
        "causal": {"is_causal": True},
        "window": {"window": (2, 1), "align": "end"},
        "padding": {"key_padding_mask": torch.zeros(rows, n_k, dtype=torch.bool)},
        "ranges": {"key_ranges": (none, none)},
        "packed": {"cu_seqlens": starts},
        "packed apart": {"cu_seqlens": (starts, starts), "is_causal": True, "align": "end"},
        "softcap": {"softcap": 3.0, "deterministic": True, "workspace": 0},
    }


SIZES = st.sampled_from([((), 3, 0), ((2,), 0, 5), ((2, 3), 0, 0), ((0,), 3, 4), ((2, 0), 3, 0), ((), 0, 1)])


@draws(60, 600)
@given(
    size=SIZES,
    mask=st.sampled_from([*masks_of(1, 1, 1)]),
    dtype=st.sampled_from([torch.float16, torch.float64]),
    compiled=st.sampled_from([False] * 9 + [True]),
)
def test_there_is_nothing_to_add_up(size: tuple[Any, int, int], mask: str, dtype: Any, compiled: bool) -> None:
    batch, n_q, n_k = size
    x = tensors(batch, n_q, n_k, dtype)
    options = masks_of(torch.Size(batch).numel(), n_q, n_k)[mask]

    def call(*x: Any) -> Any:
        return attention(*x, enable_gqa=True, return_lse=True, **options)

    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    out, lse = call(*x)
    assert out.shape == (*batch, 4, n_q, 8) and out.dtype == dtype and not out.any()
    assert lse.shape == (*batch, 4, n_q) and (lse == -torch.inf).all()
    plain = attention(*x, enable_gqa=True, **options)
    assert torch.equal(plain, out)
    for each, grad in zip(x, torch.autograd.grad(out.sum() + plain.sum(), x), strict=True):
        assert grad.shape == each.shape and grad.dtype == dtype and not grad.any()


@draws(20, 200)
@given(size=SIZES.filter(lambda size: len(size[0]) == 1), first=st.booleans())
def test_kernels_are_not_launched(size: tuple[Any, int, int], first: bool) -> None:
    """The functions of the GPU, with and without the dispatcher, on tensors with the heads or the tokens first."""
    batch, n_q, n_k = size
    x = [each.detach() for each in tensors(batch, n_q, n_k)]
    x = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in x] if first else x
    asked = masks.Asked(None, None, None, 0, True, 0.25, 0.0, None, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "compute", lambda *given: pytest.fail("kernels were looked for"))
        patch.setattr(operators, "check_triton", lambda: pytest.fail("Triton was looked for"))
        patch.setattr(launching, "fitting", lambda *given: pytest.fail("kernels were chosen"))
        out, lse = operators.forward_on_gpu(*x, *asked)
        fake, fake_lse = operators.fake(*x, *asked)
        grads = operators.backward_on_gpu(torch.ones_like(out), torch.ones_like(lse), *x, out, lse, *asked)
        wanted = [each.clone().requires_grad_() for each in x]
        made, _ = eager.attention(*wanted, None, asked, False)
        made.sum().backward()
    assert (out.shape, out.stride(), out.dtype) == (fake.shape, fake.stride(), fake.dtype)
    assert (lse.shape, lse.dtype) == (fake_lse.shape, fake_lse.dtype)
    here, here_lse = torch.ops.pebblesim.attention(*x, *asked)
    assert torch.equal(out, here) and torch.equal(lse, here_lse) and torch.equal(made, out)
    there = torch.ops.pebblesim.attention_backward(torch.ones_like(out), torch.ones_like(lse), *x, out, lse, *asked)
    for each, one, other, third in zip(x, grads, there, wanted, strict=True):
        assert one.shape == each.shape and torch.equal(one, other) and torch.equal(one, third.grad)
        assert not one.any()


@pytest.mark.parametrize(("batch", "n_q", "n_k"), [(2, 3, 0), (2, 0, 5), (0, 3, 4), (0, 0, 0)])
@pytest.mark.parametrize("of_L", [True, False])
@pytest.mark.parametrize("of_batches", [True, False])
def test_sinks_get_what_the_gradient_of_L_gives_them(
    batch: int, n_q: int, n_k: int, of_L: bool, of_batches: bool
) -> None:
    """By the functions of the GPU: O is 0 and L = s · log₂e, which alone hands its gradient on."""
    x = [each.detach() for each in tensors((batch,), n_q, n_k)]
    sinks = torch.randn(batch, 4) if of_batches else torch.randn(4)
    asked = masks.Asked(None, None, None, 0, True, 0.25, 0.0, None, False)
    out, lse = operators_of_sinks._on_gpu(*x, sinks, *asked)
    of_lse = torch.randn_like(lse) if of_L else None
    grads = operators_of_sinks._backward_on_gpu(torch.ones_like(out), of_lse, *x, out, lse, sinks, *asked)
    assert not any(grad.any() for grad in grads[:3])
    of_heads = torch.zeros(batch, 4) if of_lse is None else of_lse.double().sum(2) / math.log(2)
    right = of_heads if of_batches else of_heads.sum(0)
    torch.testing.assert_close(grads[3].double(), right.double(), rtol=1e-5, atol=1e-5)


def test_pytorch_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebblesim.operator.once._SAID", set())  # the warning is given once
    for batch, n_q, n_k in ((), 3, 0), ((2,), 0, 5), ((0,), 3, 4):
        x = tensors(batch, n_q, n_k, torch.float32)
        with pytest.warns(UserWarning) if n_k == 0 else pytest.MonkeyPatch.context():
            out = attention(*x, torch.ones(n_q, n_k) > 0, dropout_p=0.5, enable_gqa=True, fallback="sdpa")
        assert out.shape == (*batch, 4, n_q, 8) and not out.any()
        assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), x))


def test_attention_over_the_batch_of_vmap() -> None:
    x = [each.detach() for each in tensors((2, 3), 4, 0)]
    out = torch.func.vmap(lambda *x: attention(*x, enable_gqa=True))(*x)
    assert out.shape == (2, 3, 4, 4, 8) and not out.any()


@pytest.mark.parametrize("given", ["", "sinks", "bias", "bias of each", "key_padding_mask"])
def test_vmap_over_no_call(given: str) -> None:
    """As PyTorch's attention: shapes are known, and gradients are 0."""
    x = [torch.randn(0, 2, 4, n, 8, requires_grad=True) for n in (5, 3, 3)]
    others = {
        "sinks": torch.ones(4),
        "bias": torch.ones(4, 5, 3),
        "bias of each": torch.ones(0, 2, 4, 5, 3),
        "key_padding_mask": torch.zeros(2, 3, dtype=torch.bool),
    }
    name, _, each = given.partition(" of ")

    def call(q: Any, k: Any, v: Any, other: Any) -> Any:
        return attention(q, k, v, return_lse=True, **({name: other} if name else {}))

    other = others.get(given, torch.ones(1)).requires_grad_("bias" in given)
    out, lse = torch.vmap(call, in_dims=(0, 0, 0, 0 if each else None))(*x, other)
    assert out.shape == (0, 2, 4, 5, 8) and lse.shape == (0, 2, 4, 5)
    wanted = [*x, *([other] if "bias" in given else [])]
    for grad, mine in zip(torch.autograd.grad(out.sum() + lse.sum(), wanted), wanted, strict=True):
        assert grad.shape == mine.shape and not grad.any()


@pytest.mark.parametrize(
    ("batch", "of_bias"),
    [((2, 0), (2, 1)), ((0, 2), (1, 2)), ((2, 0), ()), ((0,), (1,)), ((0, 3), (0, 1)), ((2, 0, 3), (2, 0, 1))],
)
def test_a_bias_that_no_sequence_has(batch: tuple[int, ...], of_bias: tuple[int, ...]) -> None:
    q = torch.randn(*batch, 3, 4, 8, requires_grad=True)
    bias = torch.randn(*of_bias, 3, 4, 4, requires_grad=True) if of_bias else torch.randn(4, requires_grad=True)
    out = attention(q, q, q, bias=bias)
    out.sum().backward()
    assert out.shape == q.shape and torch.equal(bias.grad, torch.zeros_like(bias)), bias.grad


def test_heads_and_head_dimensions_are_1_or_more() -> None:
    for shapes in (((1, 0, 3, 16),) * 3, ((1, 2, 3, 0),) * 3, (*((1, 2, 3, 16),) * 2, (1, 2, 3, 0))):
        with pytest.raises(UsageError, match="1 head or more and a head dimension of 1 or more: only batches and tok"):
            attention(*(torch.zeros(shape) for shape in shapes))
