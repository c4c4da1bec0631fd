"""Derivatives that attention has not: each is refused in a sentence, and none is 0 in silence; those by vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402
from tensors import close  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402
from pebblesim.operator.known import eager  # noqa: E402

pytestmark = [  # of PyTorch itself: in make_dual, and where vmap adds a dimension
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:torch.searchsorted:UserWarning"),
]

func = torch.func


def dual(call: Callable[..., Any], x: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(call(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def dual_gradient(call: Callable[..., Any], x: Any) -> Any:
    """The tangent of a gradient, from that of the gradient of the output."""
    x = x.clone().requires_grad_()
    out = call(x)
    with forward_ad.dual_level():
        (made,) = torch.autograd.grad(out, x, forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out)))
        return forward_ad.unpack_dual(made).tangent


WAYS: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "jvp": lambda call, x: func.jvp(call, (x,), (torch.ones_like(x),)),
    "make_dual": dual,
    "make_dual of what requires gradients": lambda call, x: dual(call, x.clone().requires_grad_()),
    "jacfwd": lambda call, x: func.jacfwd(call)(x),
    "linearize": lambda call, x: func.linearize(call, x),
    "hessian": lambda call, x: func.hessian(lambda x: call(x).sum())(x),
    "grad": lambda call, x: func.grad(lambda x: call(x).sum())(x),
    "vjp": lambda call, x: func.vjp(call, x),
    "jacrev": lambda call, x: func.jacrev(call)(x),
    "jvp of vmap": lambda call, x: func.jvp(lambda x: func.vmap(call)(x[None])[0], (x,), (torch.ones_like(x),)),
    "vmap of jvp": lambda call, x: func.vmap(lambda x: func.jvp(call, (x,), (torch.ones_like(x),)))(x[None]),
    "make_dual of the output's gradient": dual_gradient,
    "forward Jacobian": lambda call, x: torch.autograd.functional.jacobian(
        call, x, vectorize=True, strategy="forward-mode"
    ),
    "jvp inside torch.compile": lambda call, x: torch.compile(
        lambda x: func.jvp(call, (x,), (torch.ones_like(x),)), backend="eager"
    )(x),
    "jvp of torch.compile": lambda call, x: func.jvp(
        torch.compile(call, backend="aot_eager"), (x,), (torch.ones_like(x),)
    ),
    "make_dual into torch.compile": lambda call, x: dual(torch.compile(call, backend="aot_eager"), x),
}


def of_argument(at: int, **options: Any) -> tuple[Callable[..., Any], Any]:
    """Attention as a function of one of its tensors, and this tensor."""
    x = [torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(each)) for each in range(3)]
    return lambda given: attention(*x[:at], given, *x[at + 1 :], **options), x[at]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", range(3))
def test_derivatives_are_refused(way: str, at: int) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match="attention has the derivatives of backward") as error:
        WAYS[way](*of_argument(at))
    if "compile" not in way:  # which has its own errors, with ours in them
        assert type(error.value) is UsageError and "\n" not in str(error.value)


@settings(max_examples=30, deadline=None)
@given(
    way=st.sampled_from([name for name in WAYS if "compile" not in name]),
    at=st.integers(0, 2),
    masks=st.lists(st.sampled_from(["is_causal", "key_padding_mask", "key_ranges", "cu_seqlens"]), unique=True),
    lse=st.booleans(),
)
def test_derivatives_are_refused_with_any_mask(way: str, at: int, masks: list[str], lse: bool) -> None:
    """L has none either; a call that is refused leaves nothing behind."""
    first, end = torch.zeros(1, 3, dtype=torch.int32), torch.full((1, 3), 3, dtype=torch.int32)
    given = {
        "is_causal": True,
        "key_padding_mask": torch.zeros(1, 3, dtype=torch.bool),
        "key_ranges": (first, end),
        "cu_seqlens": torch.tensor([0, 1, 3]),
    }
    call, x = of_argument(at, return_lse=lse, **{name: given[name] for name in masks})
    with pytest.raises(UsageError, match="attention has the derivatives of backward"):
        WAYS[way]((lambda x: call(x)[1]) if lse else call, x)
    assert forward_ad._current_level == -1
    assert all(each.isfinite().all() for each in (call(x) if lse else [call(x)]))


def test_a_call_of_a_gpu_is_no_plain_one_where_tangents_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way past the dispatcher, and the launches that are kept, would drop them."""
    monkeypatch.setattr(eager.recorded, "here", lambda x: True)
    x = torch.zeros(1, 2, 3, 4)
    assert eager.plain(x)
    with forward_ad.dual_level():
        assert not eager.plain(x)
    assert eager.plain(x)


def test_a_call_of_a_gpu_is_no_plain_one_where_memory_has_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The imaginary part of a conjugate is negated when it is read, and a tensor of zeros has no memory."""
    monkeypatch.setattr(eager.recorded, "here", lambda x: True)
    z = torch.randn(1, 2, 3, 4, dtype=torch.complex64)
    assert eager.plain(z.real, z.imag)
    for each in (z.conj().imag, torch._neg_view(z.real), torch._efficientzerotensor((1, 2, 3, 4))):
        assert not eager.plain(each) and not eager.plain(z.real, each)


def test_a_parameter_is_as_plain_as_a_tensor_and_other_subclasses_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks and biases of models are parameters."""
    monkeypatch.setattr(eager.recorded, "here", lambda x: True)
    x = torch.zeros(1, 2, 3, 4)
    assert eager.plain(torch.nn.Parameter(x), x)
    assert not eager.plain(torch.nn.Buffer(x).as_subclass(type("Own", (torch.Tensor,), {})))


@pytest.mark.filterwarnings("ignore:PyTorch's attention is used")
def test_derivatives_that_pytorch_has_are_its_own_with_the_fallback() -> None:
    call, x = of_argument(0, attn_mask=torch.ones(3, 3).tril().bool(), fallback="sdpa")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found = func.grad(lambda x: call(x).square().sum())(x)
    y = x.clone().requires_grad_()
    close([found], list(torch.autograd.grad(of_argument(0, is_causal=True)[0](y).square().sum(), y)), 1e-5)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["key_padding_mask", "key_ranges", "cu_seqlens"]),
    queries=st.booleans(),
    wrong=st.booleans(),
    seed=st.integers(0, 99),
)
def test_masks_under_vmap(name: str, queries: bool, wrong: bool, seed: int) -> None:
    """Calls with masks of their own, made together, are those made one by one: what they compute, what is refused."""
    generator = torch.Generator().manual_seed(seed)
    shape = (4, 1, 2, 5, 3)
    q = torch.randn(shape if queries else shape[1:], generator=generator, dtype=torch.float64).requires_grad_()
    k, v = (torch.randn(shape[1:], generator=generator, dtype=torch.float64).requires_grad_() for _ in "kv")
    at = torch.randint(0, 5, (4,), generator=generator)
    masks = {
        "key_padding_mask": (torch.arange(5) < at[:, None])[:, None],
        "key_ranges": torch.stack((at, at + 1))[..., None, None].expand(2, 4, 1, 5).int().movedim(0, 1).contiguous(),
        "cu_seqlens": torch.stack((torch.zeros(4).long(), at, torch.full((4,), 5)), 1),
    }[name]
    if wrong:
        masks = ~masks if masks.dtype == torch.bool else masks - 5
        masks[1] = (torch.tensor([1, 0, 1, 0, 1]) > 0) if name == "key_padding_mask" else masks[1]

    def call(q: Any, mask: Any) -> Any:
        return attention(q, k, v, **{name: tuple(mask) if name == "key_ranges" else mask})

    mapped = torch.vmap(call, in_dims=(0 if queries else None, 0))
    if wrong:
        with pytest.raises(UsageError, match=name):
            mapped(q, masks)
        return
    made = mapped(q, masks)
    true = torch.stack([call(q[at] if queries else q, mask) for at, mask in enumerate(masks)])
    grad = torch.randn(true.shape, generator=generator, dtype=true.dtype)
    close([made, *torch.autograd.grad(made, (q, k, v), grad)], [true, *torch.autograd.grad(true, (q, k, v), grad)])


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the calls of our operators that reach a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.namespace == "pebblesim":
            self.names.append(operator._schema.name.removeprefix("pebblesim::"))
        return operator(*args, **(kwargs or {}))


@settings(max_examples=30, deadline=None)
@given(
    batch=st.lists(st.integers(1, 2), max_size=2),
    shared=st.lists(st.booleans(), min_size=5, max_size=5),
    mapped=st.sampled_from([("q",), ("q", "bias"), ("bias",), ("k", "v"), ("q", "k", "v", "bias")]),
    seed=st.integers(0, 99),
)
def test_a_bias_under_vmap(batch: list[int], shared: list[bool], mapped: tuple[str, ...], seed: int) -> None:
    """Calls with a bias made together are those made one by one, by one operator in each pass."""
    generator = torch.Generator().manual_seed(seed)
    shapes = dict.fromkeys("qkv", (*batch, 2, 3, 4))
    if len(batch) == 2 and shared[0] and not shared[1]:
        shared = [False, *shared[1:]]  # sequences that share it are next to each other
    shapes["bias"] = tuple(1 if one else n for one, n in zip(shared[-len(batch) - 3 :], (*batch, 2, 3, 3), strict=True))
    x = {
        name: torch.randn((3, *shape) if name in mapped else shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    leaves = [each.requires_grad_() for each in x.values()]

    def call(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return attention(q, k, v, bias=bias)

    with Calls() as calls:
        made = torch.vmap(call, in_dims=tuple(0 if name in mapped else None for name in x))(*leaves)
        grad = torch.randn(made.shape, generator=generator, dtype=made.dtype)
        found = torch.autograd.grad(made, leaves, grad)
    assert calls.names == ["attention_with_bias", "attention_with_bias_backward"]
    true = torch.stack([call(*(x[name][at] if name in mapped else x[name] for name in x)) for at in range(3)])
    close([made, *found], [true, *torch.autograd.grad(true, leaves, grad)])


@pytest.mark.parametrize("of_bias", [True, False])
def test_gradients_of_a_bias_for_several_gradients_of_the_output(of_bias: bool) -> None:
    """PyTorch maps the backward operator alone: each gradient of O has a gradient of the bias that batches share."""
    generator = torch.Generator().manual_seed(1)
    q, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 2, 2, 3, 4), (2, 3, 3)))
    wanted = [q.requires_grad_(), *([bias.requires_grad_()] if of_bias else [])]
    out = attention(q, q.detach(), q.detach(), bias=bias)
    grads = torch.randn((3, *out.shape), generator=generator, dtype=out.dtype)
    found = torch.autograd.grad(out, wanted, grads, is_grads_batched=True, retain_graph=True)
    true = [torch.autograd.grad(out, wanted, grad, retain_graph=True) for grad in grads]
    close(list(found), [torch.stack(each) for each in zip(*true, strict=True)])


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["key_padding_mask", "key_ranges", "cu_seqlens"])
def test_a_bias_and_masks_under_vmap(name: str, batch: int) -> None:
    """Each call has masks of its own, and all have one bias."""
    generator = torch.Generator().manual_seed(2)
    x = [torch.randn(3, batch, 2, 4, 2, generator=generator, dtype=torch.float64).requires_grad_() for _ in "qkv"]
    bias = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64).requires_grad_()
    at = torch.arange(1, 3 * batch + 1).reshape(3, batch, 1) % 4 + 1
    masks = {
        "key_padding_mask": torch.arange(4) >= at,
        "key_ranges": torch.stack((at - 1, at), 1).expand(3, 2, batch, 4).int().contiguous(),
        "cu_seqlens": torch.stack((torch.zeros(3).long(), at[:, 0, 0], torch.full((3,), 4)), 1),
    }[name]

    def call(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attention(q, k, v, bias=bias, **{name: tuple(mask) if name == "key_ranges" else mask})

    made = torch.vmap(call)(*x, masks)
    grad = torch.randn(made.shape, generator=generator, dtype=made.dtype)
    true = torch.stack([call(*(each[at] for each in x), masks[at]) for at in range(3)])
    found, wanted = (torch.autograd.grad(out, [*x, bias], grad) for out in (made, true))
    close([made, *found], [true, *wanted])
