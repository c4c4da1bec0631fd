"""PyTorch's own `scaled_dot_product_attention` over our kernels: its registry, and the function replaced."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensors import close  # noqa: E402

from pebblesim.gpu.torch import register, replaced_sdpa  # noqa: E402
from pebblesim.operator.integrations import sdpa  # noqa: E402

NAMES = ("list_flash_attention_impls", "activate_flash_attention_impl", "restore_flash_attention_impl")


@pytest.fixture
def active(monkeypatch: Any) -> Iterator[None]:
    """Our implementation is active for tensors of the CPU, where the registry has none."""
    if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
        pytest.skip("PyTorch has no registry of attentions")
    monkeypatch.setattr(sdpa.Handle.__init__, "__defaults__", ("CPU",))
    register()
    torch.nn.attention.activate_flash_attention_impl("pebblesim")
    yield
    torch.nn.attention.restore_flash_attention_impl()


@pytest.mark.parametrize(("causal", "heads", "scale"), [(True, (4, 2), None), (False, (2, 2), 0.3)])
def test_pytorchs_operator_comes_here_with_its_gradients(active: None, causal: bool, heads: Any, scale: Any) -> None:
    assert torch.nn.attention.current_flash_attention_impl() == "pebblesim"
    x = [torch.randn(2, each, 9, 16, dtype=torch.float64, requires_grad=True) for each in (heads[0], *heads[1:] * 2)]
    out, lse, *rest = torch.ops.aten._scaled_dot_product_flash_attention(*x, 0.0, causal, scale=scale)
    gqa = {"enable_gqa": True} if heads[0] != heads[1] else {}
    true = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal, scale=scale, **gqa)
    close([out], [true])
    close(list(torch.autograd.grad(out.square().sum(), x)), list(torch.autograd.grad(true.square().sum(), x)))
    scores = x[0] @ x[1].repeat_interleave(heads[0] // heads[1], 1).mT * (scale or 0.25)
    seen = torch.ones(9, 9, dtype=torch.bool).tril() if causal else torch.ones(9, 9, dtype=torch.bool)
    close([lse], [torch.logsumexp(scores.masked_fill(~seen, -torch.inf), -1)])
    assert len(rest) == 7 and rest[2:4] == [9, 9]


def test_an_implementation_is_taken_back(active: None) -> None:
    x = torch.randn(1, 1, 4, 16)
    torch.ops.aten._scaled_dot_product_flash_attention(x, x, x)
    torch.nn.attention.restore_flash_attention_impl()
    with pytest.raises(NotImplementedError):
        torch.ops.aten._scaled_dot_product_flash_attention(x, x, x)
    torch.nn.attention.activate_flash_attention_impl("pebblesim")


def test_dropout_is_refused_by_an_implementation(active: None) -> None:
    x = torch.randn(1, 1, 4, 16)
    with pytest.raises(Exception, match="no dropout; give 0, or call"):
        torch.ops.aten._scaled_dot_product_flash_attention(x, x, x, 0.5)


def test_the_function_is_replaced_for_a_while(monkeypatch: Any) -> None:
    """What `attention` takes is computed by it; masks, other shapes and tensors of the CPU stay with PyTorch."""
    before, made = torch.nn.functional.scaled_dot_product_attention, list[Any]()
    whole = sdpa.attention
    monkeypatch.setattr(sdpa, "attention", lambda *given, **options: made.append(options) or whole(*given, **options))
    x = [torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3)]
    mask = torch.rand(5, 5) > 0.4
    with replaced_sdpa():
        replaced = torch.nn.functional.scaled_dot_product_attention
        assert replaced is not before
        close([replaced(*x, is_causal=True)], [before(*x, is_causal=True)])
        assert not made  # on the CPU
        monkeypatch.setattr(sdpa, "on_gpu", lambda query: True)
        close([replaced(*x, is_causal=True, scale=0.2)], [before(*x, is_causal=True, scale=0.2)])
        assert len(made) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            close([replaced(*x, mask)], [before(*x, mask).nan_to_num()])
            plain = [each[0, 0] for each in x]
            close([replaced(*plain)], [before(*plain)])  # two dimensions, which `attention` refuses
            broadcast = x[0], x[1][:1], x[2][:1]
            close([replaced(*broadcast)], [before(*broadcast)])
    assert torch.nn.functional.scaled_dot_product_attention is before
    with pytest.raises(ZeroDivisionError), replaced_sdpa():
        raise ZeroDivisionError
    assert torch.nn.functional.scaled_dot_product_attention is before


def test_diffusers_native_backend_takes_the_replaced_function(monkeypatch: Any) -> None:
    dispatch = pytest.importorskip("diffusers.models.attention_dispatch")
    monkeypatch.setattr(sdpa, "on_gpu", lambda query: True)
    made, whole = list[Any](), sdpa.attention
    monkeypatch.setattr(sdpa, "attention", lambda *given, **options: made.append(options) or whole(*given, **options))
    x = [torch.randn(1, 5, 2, 8) for _ in range(3)]
    before = dispatch.dispatch_attention_fn(*x, backend="native")
    with replaced_sdpa():
        after = dispatch.dispatch_attention_fn(*x, backend="native")
    close([after], [before], 1e-6)
    assert len(made) == 1
