"""Graphs that are made for all sizes, and tensors that have no numbers: masks are taken, and errors are sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402
from tensors import close  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402

MASKS: dict[str, Callable[[int], dict[str, Any]]] = {
    "sequences": lambda n: {"cu_seqlens": torch.tensor([0, n // 2, n])},
    "sequences of both": lambda n: {"cu_seqlens": (torch.tensor([0, n - 1, n]), torch.tensor([0, 1, n]))},
    "padding": lambda n: {"key_padding_mask": (torch.arange(n) >= n - 2)[None]},
    "ranges": lambda n: {"key_ranges": (torch.arange(n)[None].int() // 2, torch.full((1, n), n).int())},
    "a window": lambda n: {"window": (2, 0)},
    "a dense mask": lambda n: {"attn_mask": torch.ones(n, n, dtype=torch.bool).tril(), "fallback": "sdpa"},
}


def tensors(n: int, batch: int = 1, d: int = 4) -> list[Any]:
    return [torch.randn(batch, 2, n, d, dtype=torch.float64) for _ in range(3)]


@pytest.mark.filterwarnings("ignore:PyTorch's attention is used:UserWarning")
@pytest.mark.one_in(3)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("mask", MASKS)
def test_a_compiled_call_takes_masks_of_any_length(mask: str, dynamic: bool | None) -> None:
    """A second length makes a graph for all of them."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, options: attention(*x, **options), fullgraph=True, dynamic=dynamic, backend="aot_eager"
    )
    for n in (8, 11, 13):
        x, options = tensors(n), MASKS[mask](n)
        close([compiled(x, options)], [attention(*x, **options)])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mask", ["sequences", "padding", "ranges"])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_traced_call_takes_masks_and_its_graph_checks_them(mask: str, mode: str) -> None:
    x, options = tensors(8), MASKS[mask](8)
    graph = make_fx(lambda x, options: attention(*x, **options), tracing_mode=mode)(x, options)
    close([graph(x, options)], [attention(*x, **options)])
    wrong = {
        "sequences": {"cu_seqlens": torch.tensor([0, 5, 3])},
        "padding": {"key_padding_mask": (torch.arange(8) == 3)[None]},
        "ranges": {"key_ranges": (torch.zeros(1, 8).int(), torch.full((1, 8), 9).int())},
    }[mask]
    with pytest.raises(RuntimeError, match=r"must|between two keys"):
        graph(x, wrong)


@settings(max_examples=20, deadline=None)
@given(mask=st.sampled_from(sorted(MASKS)), n=st.integers(3, 9), batch=st.integers(1, 3))
def test_tensors_without_numbers_take_masks(mask: str, n: int, batch: int) -> None:
    with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *said, **options: None)
        assert attention(*tensors(n, batch), **MASKS[mask](n)).shape == (batch, 2, n, 4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_padding_is_mapped_inside_and_outside_of_a_compiled_call(backend: str) -> None:
    torch._dynamo.reset()
    x, padding = tensors(8, 3), torch.arange(8) >= torch.tensor([8, 6, 3])[:, None]

    def one(q: Any, k: Any, v: Any, padding: Any) -> Any:
        return attention(q, k, v, key_padding_mask=padding[None])

    true = torch.stack([one(*each, of) for *each, of in zip(*x, padding, strict=True)])
    mapped = torch.vmap(one)
    assert torch.equal(mapped(*x, padding), true)
    assert torch.equal(torch.compile(mapped, fullgraph=True, backend=backend)(*x, padding), true)
    assert torch.equal(torch.vmap(torch.compile(one, backend=backend))(*x, padding), true)
    wrong = padding.clone()
    wrong[1, 2] = True
    with pytest.raises(UsageError, match="between two keys"):
        mapped(*x, wrong)
    with pytest.raises((UsageError, RuntimeError), match="between two keys"):
        torch.compile(mapped, fullgraph=True, backend=backend)(*x, wrong)


@pytest.mark.parametrize("rows", [1, 2])
def test_padding_of_packed_sequences_is_compiled_for_any_length(rows: int) -> None:
    torch._dynamo.reset()
    padding, starts = torch.arange(6).expand(rows, 6) >= 4, torch.tensor([0, 2, 6])

    def call(*x: Any) -> Any:
        return attention(*x, key_padding_mask=padding, cu_seqlens=(starts, starts))

    x = tensors(6, 2)
    assert torch.equal(torch.compile(call, fullgraph=True, dynamic=True, backend="eager")(*x), call(*x))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("shape", "wrong", "options", "said"),
    [
        (lambda m: (m, 2000, 1, 16), 40, {}, "80,000 heads in all; give 65,535 at most"),
        (lambda m: (1, 1, 2, m), 2048, {}, "head dimension of 2,048, and kernels are for 1,024"),
        (lambda m: (1, 1, 2, m), 3000, {"softcap": 1.0}, "head dimension"),
    ],
)
def test_sizes_that_are_refused_are_refused_in_a_sentence(
    shape: Callable[[int], tuple[int, ...]], wrong: int, options: dict[str, Any], said: str
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: attention(*x, **options), dynamic=True, backend="eager")
    for m in (2, 3):
        compiled(*(torch.zeros(1, 1, 1, 1).expand(*shape(m)) for _ in range(3)))
    with pytest.raises(UsageError, match=said):
        compiled(*(torch.zeros(1, 1, 1, 1).expand(*shape(wrong)) for _ in range(3)))
