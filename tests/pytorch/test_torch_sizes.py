"""Graphs for all sizes: `torch.compile(dynamic=True)` and `torch.export` do not take a size for a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pebblesim.gpu.torch import attention, flash_attn_varlen_func  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def query(batch: int, n: int) -> Any:
    return torch.randn(batch, 4, n, 8, generator=torch.Generator().manual_seed(n))


def starts(batch: int, n: int) -> Any:
    return torch.tensor([0, 2, 2, n], dtype=torch.int32)


def padding(batch: int, n: int) -> Any:
    return (torch.arange(n) >= n - 2).expand(batch, n)


def first(batch: int, n: int) -> Any:
    return torch.zeros(batch, n, dtype=torch.int32)


def end(batch: int, n: int) -> Any:
    return torch.arange(1, n + 1, dtype=torch.int32).repeat(batch, 1)


def square(q: Any) -> Any:
    return (q @ q.mT).tanh()


Case = tuple[Callable[..., Any], tuple[Callable[[int, int], Any], ...], tuple[tuple[str, ...], ...]]

CASES: dict[str, Case] = {
    "causal": (lambda q: attention(q, q, q, is_causal=True), (query,), (("batch", "", "n"),)),
    "heads": (lambda q: attention(q[0], q[0], q[0]), (query,), (("batch", "", "n"),)),
    "batches": (lambda q: attention(*[q[:, None]] * 3), (query,), (("batch", "", "n"),)),
    "sinks": (lambda q: attention(q, q, q, sinks=q[0, :, 0, 0]), (query,), (("batch", "", "n"),)),
    "bias": (lambda q: attention(q, q, q, bias=square(q[0])), (query,), (("batch", "", "n"),)),
    "mask": (lambda q: attention(q, q, q, attn_mask=square(q) > -0.9), (query,), (("batch", "", "n"),)),
    "padding": (
        lambda q, x: attention(q, q, q, key_padding_mask=x),
        (query, padding),
        (("batch", "", "n"), ("batch", "n")),
    ),
    "packed": (
        lambda q, x: attention(q, q, q, cu_seqlens=(x, x), is_causal=True),
        (query, starts),
        (("batch", "", "n"), ()),
    ),
    "ranges": (
        lambda q, x, y: attention(q, q, q, key_ranges=(x, y)),
        (query, first, end),
        (("batch", "", "n"), ("batch", "n"), ("batch", "n")),
    ),
    "packed and a bias": (
        lambda q, x: attention(q, q, q, cu_seqlens=x, bias=square(q[0])),
        (query, starts),
        (("batch", "", "n"), ()),
    ),
    "flash": (
        lambda q, x: flash_attn_varlen_func(*[q[0].transpose(0, 1)] * 3, x, x, 9, 9, causal=True),
        (query, starts),
        (("batch", "", "n"), ()),
    ),
}
"""Functions of tensors, what makes these for a batch and a length, and which of their dimensions are of any size."""

some = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "packed" else pytest.mark.slow) for name in CASES]
)


@some
def test_one_graph_for_more_lengths_than_are_compiled_again(name: str) -> None:
    function, given, _ = CASES[name]
    graphs = []

    def counting(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counting)
    for batch, n in ((3, 7), (3, 9), (2, 16), (5, 17)):
        x = [each(batch, n) for each in given]
        assert torch.equal(compiled(*x), function(*x))
    assert len(graphs) == 1


@some
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_export_for_any_batch_and_length(name: str, strict: bool) -> None:
    function, given, dimensions = CASES[name]

    class Model(torch.nn.Module):
        def forward(self, *x: Any) -> Any:
            return function(*x)

    sizes = {"batch": torch.export.Dim("batch", min=2, max=64), "n": torch.export.Dim("n", min=4, max=512)}
    free = tuple({at: sizes[size] for at, size in enumerate(each) if size} for each in dimensions)
    x = tuple(each(3, 7) for each in given)
    exported = torch.export.export(Model(), x, dynamic_shapes=(free,), strict=strict).module()
    for batch, n in ((3, 7), (2, 16)):
        x = tuple(each(batch, n) for each in given)
        assert torch.equal(exported(*x), function(*x))
