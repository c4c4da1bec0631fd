"""What a call asks of the host: launches, fills, copies, operations of PyTorch, and pieces of memory, by kind of call.

A stand-in for the driver takes the commands of passes that are made again, as a card would; `python
tests/test_torch_launches.py` prints the table of docs/host-time.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from native_library import library_in_cpp  # noqa: E402
from stand_in_card import NUMBERS, TYPES, Card, arguments, kernel  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver, jit  # noqa: E402

from pebblesim.advice import cards  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402
from pebblesim.operator import masks, operators, sequences  # noqa: E402
from pebblesim.operator.bias import bias, gradient, operators as biased_operators, pairs, with_bias  # noqa: E402
from pebblesim.operator.known import direct, eager, known, lengths, native, recorded  # noqa: E402
from pebblesim.operator.known.recent import Recent  # noqa: E402
from pebblesim.operator.launching import compiling, launch, launching, layout  # noqa: E402
from pebblesim.operator.launching.launching import loaded  # noqa: E402

# A module's folder is deleted with it, when the cache of modules is cleared.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Implicitly cleaning up:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

PAGE = ROOT / "docs" / "host-time.md"

KINDS: dict[str, tuple[int, int, int, int, bool]] = {
    **{f"n = {n}, d = {d}, causal": (2, 8, n, d, False) for d in (64, 128, 256, 512) for n in (512, 511)},
    "16 heads on 2, n = 511, d = 128, causal": (1, 16, 511, 128, False),
    "packed, n = 511, d = 128": (1, 8, 511, 128, True),
    "sinks, n = 511, d = 128, causal": (2, 8, 511, 128, False),
    "sinks, 16 heads on 2, n = 511, d = 64, causal": (1, 16, 511, 64, False),
}
"""Batches, heads, tokens, head dimension, and whether sequences are packed. With sinks, they have a gradient."""

WITH_BIAS = {f"a bias of {R} sequences, 4 heads, n = {n}, d = 32": (R, n) for R, n in ((256, 384), (64, 768))}
"""Sequences that share a bias with a gradient, and tokens."""


def patch(patched: pytest.MonkeyPatch) -> Card:
    """Let tensors of the CPU take the way of a card, up to the driver."""
    card = Card()
    card.kinds, card.driver.launch = TYPES, lambda *given: 0

    def compile_one(self: Any, key: Any, signature: Any, *given: Any) -> Any:
        made = kernel(next(NUMBERS), list(signature.values()))
        TYPES[made.function] = [each for kind in signature.values() for each in arguments(kind)]
        made.name, made.packed_metadata = self.fn.__name__, made.metadata
        self.device_caches[0][0][key] = made
        made.launch_metadata = lambda *given: None
        return made

    there = {"device": lambda: 0, "target": lambda: GPUTarget("cuda", 90, 32), "stream": lambda device: 0}
    active = SimpleNamespace(**{f"get_current_{name}": each for name, each in there.items()})
    patched.setattr(driver, "_active", active, raising=False)
    patched.setattr(jit.JITFunction, "_do_compile", compile_one)
    patched.setattr(launch, "Compiled", lambda made: made)
    patched.setattr(launch, "launch", lambda *given: None)
    for name, each in (("_cuda_getDevice", lambda: 0), ("_cuda_getCurrentRawStream", lambda device: 0)):
        patched.setattr(torch._C, name, each, raising=False)
    patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    patched.setattr(launching, "card_of", lambda *given: cards.card("H200"))
    properties = SimpleNamespace(multi_processor_count=132)
    patched.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    patched.setattr(layout, "on_gpu", lambda x: True)
    patched.setattr(recorded, "here", lambda x: True)
    patched.setattr(recorded, "driver", lambda: card.driver)
    for module in (sequences, lengths):
        patched.setattr(module, "promise", promise)
    for module in (bias, pairs):
        patched.setattr(module, "card_of", lambda *given: cards.card("H200"))
    for module in (gradient, pairs):
        patched.setattr(module, "on_gpu", lambda x: True)
    patched.setattr(pairs, "multiprocessors", lambda device: 132)
    patched.setattr(biased_operators, "check_triton", lambda: None)
    patched.setattr(torch.cuda, "device", lambda device: nullcontext())
    for name in ("_KEPT", "_SEEN", "_KINDS"):
        patched.setattr(recorded, name, Recent(100))
    loaded.cache_clear()
    return card


def promise(holds: Any, sentence: str) -> None:
    """As `masks.promise`, with an operation of PyTorch in the place of the assertion of a card."""
    if isinstance(holds, torch.Tensor):
        holds.all()
    else:  # a shadow
        masks.promise(holds, sentence)


class Counted(TorchDispatchMode):
    """Counts operations of PyTorch: those that make memory, and others that take the host as long as a launch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        views = ("as_strided", "detach", "view", "expand")
        self.counts["memory" if name.startswith("empty") else "views" if name in views else "operations"] += 1
        return function(*args, **(kwargs or {}))


def counted(call: Any) -> tuple[int, int, int]:
    """Kernels, other operations on the card, and pieces of memory of a call whose passes are made again."""
    for _ in range(3):
        call()
    known, made = len(recorded._KEPT), Counter[str]()
    with pytest.MonkeyPatch.context() as watched:
        given = direct.Direct.__call__

        def commands(self: Any, *rest: Any) -> None:
            made.update(what for what, *_ in self._made)
            given(self, *rest)

        watched.setattr(direct.Direct, "__call__", commands)
        with Counted() as operations:
            call()
    assert len(recorded._KEPT) == known > 0
    others = made["fill"] + made["copy"] + operations.counts["operations"]
    return made["launch"], others, operations.counts["memory"]


def row(name: str) -> str:
    """A line of the table."""
    batch, heads, n, d, packed = KINDS[name]
    kv_heads = 2 if heads > 8 else heads
    Q, K, V, dO = (torch.empty(batch, of, n, d, dtype=torch.bfloat16) for of in (heads, kv_heads, kv_heads, heads))
    starts = torch.tensor([0, 100, 300, n], dtype=torch.int32) if packed else None
    limited = masks.Asked(None, None, None, 0, False, d**-0.5, 0.0, None, False)
    asked = limited if starts is None else limited._replace(right=None)
    sinks = torch.empty(heads, dtype=torch.bfloat16) if name.startswith("sinks") else None
    inputs = Q, K, V, sinks, *((None, None) if starts is None else (starts, None, None))
    function = operators.without_notes if starts is None else eager._with_ranges

    def forward() -> Any:
        return recorded.made(function, inputs, asked[2:])

    out, L, *ranges = forward()
    saved = Q, K, V, out, L, sinks, *(ranges or (None, None))
    backward = partial(recorded.made, *eager._backward(dO, None, saved, sinks is not None, asked[2:])[1:])
    return line(name, forward, backward)


def row_with_bias(name: str) -> str:
    """A line of the table, of a call with a bias and its gradient."""
    sequences, n = WITH_BIAS[name]
    Q, K, V, dO = (torch.empty(sequences, 4, n, 32, dtype=torch.bfloat16) for _ in range(4))
    x, limits = (Q, K, V, torch.empty(1, 1, 4, n, n, dtype=torch.bfloat16)), (sequences, None, None, False, 32**-0.5)
    forward = partial(recorded.made, biased_operators.biased_without_notes, x, limits)
    saved = dO, None, *x, *forward()
    return line(
        name,
        forward,
        partial(recorded.made, biased_operators.gradients_of_biased_without_notes, saved, (True, *limits)),
    )


def line(name: str, forward: Any, backward: Any) -> str:
    """The line of a call."""
    both = counted(forward), counted(backward)
    cells = (f"{kernels} + {others}, {memory}" for kernels, others, memory in both)
    return f"| {name} | {' | '.join(cells)} |"


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    """A stand-in for a card."""
    yield patch(monkeypatch)
    loaded.cache_clear()


@pytest.mark.parametrize("name", [*KINDS, *WITH_BIAS])
def test_a_call_asks_of_the_host_what_the_page_says(card: Card, name: str) -> None:
    made = row(name) if name in KINDS else row_with_bias(name)
    assert made in PAGE.read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("learns", [True, False], ids=["bias learns", "bias does not"])
@pytest.mark.parametrize("lead", [(6,), (1, 6)], ids=["one batch", "batches"])
def test_a_call_with_a_bias_is_one_function_of_the_library(
    card: Card, monkeypatch: pytest.MonkeyPatch, lead: tuple[int, ...], learns: bool
) -> None:
    """With gradients and without, once its passes are known, and what Python launches; with L, Python asks for each."""
    told, at_once, by_python = Card(), list[bool](), Counter[str]()
    told.kinds = TYPES
    monkeypatch.setattr(recorded, "driver", lambda: told.driver)
    monkeypatch.setattr(compiling, "can", lambda: False)
    for name in ("_CHECKED", "_ALIKE"):
        monkeypatch.setattr(eager, name, Recent(100))
    whole, later = known.Known.at_once, with_bias._gradients
    monkeypatch.setattr(
        known.Known, "at_once", lambda *given: at_once.append((out := whole(*given)) is not None) or out
    )
    monkeypatch.setattr(with_bias, "_gradients", lambda *given: by_python.update(["gradients"]) or later(*given))
    x = [torch.zeros(*lead, 4, 64, 32, dtype=torch.bfloat16, requires_grad=True) for _ in "QKV"]
    pair = torch.zeros(*(1 for _ in lead), 4, 64, 64, dtype=torch.bfloat16, requires_grad=learns)
    wanted = [*x, pair] if learns else x

    def both(**options: Any) -> list[Any]:
        out = attention(*x, bias=pair, **options)
        O = out[0] if options else out
        return [O, *torch.autograd.grad(O, wanted, torch.ones_like(O))]

    def launches() -> list[Any]:
        """Those of a call, of whose arguments addresses are left out."""
        before = len(told.launches)
        both()
        return [
            (*given, [word for kind, word in zip(TYPES[given[0]], taken, strict=False) if kind not in ("u64", "map")])
            for *given, taken in told.launches[before:]
        ]

    for _ in range(4):
        both()
    right = launches()
    assert len(right) == 5 + learns and by_python and not any(at_once)
    monkeypatch.setattr(native, "library", library_in_cpp())
    for _ in range(3):
        found = both()
    assert at_once[-2:] == [True, True]
    assert [each.shape for each in found] == [x[0].shape] * 4 + [pair.shape] * learns
    leaves = [type(each).__name__ for each, _ in found[0].grad_fn.next_functions if each is not None]
    assert leaves == ["AccumulateGrad"] * len(wanted)  # no view in between
    by_python.clear()
    assert launches() == right and not by_python
    with torch.no_grad():
        for _ in range(4):
            attention(*x, bias=pair)
    assert at_once[-2:] == [True, True]
    asked = len(at_once)
    for _ in range(4):
        assert attention(*x, bias=pair, return_lse=True)[1].shape == (*lead, 4, 64)
        both(return_lse=True)
    assert len(at_once) == asked


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        patch(patched)
        print(*map(row, KINDS), *map(row_with_bias, WITH_BIAS), sep="\n")
