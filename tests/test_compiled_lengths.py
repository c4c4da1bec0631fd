"""New lengths compile nothing: `attention` on a card that is not there, with a count of what Triton would compile.

Triton's own code decides by the arguments of a launch whether it compiles; here it runs without a GPU, up to there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver, jit  # noqa: E402

from pebblesim.advice import cards  # noqa: E402
from pebblesim.operator import launch, launching, operators  # noqa: E402
from pebblesim.operator.launching import loaded  # noqa: E402

# A module's folder is deleted with it, when the cache of modules is cleared.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Implicitly cleaning up:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

LAUNCHER = SimpleNamespace(global_scratch_size=0, launch_cooperative_grid=False, launch_pdl=False)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that Triton compiles, one for each time; nothing is launched."""
    found: list[str] = []

    def compile_one(self: Any, key: Any, *given: Any) -> Any:
        found.append(self.fn.__name__)
        made = SimpleNamespace(
            run=lambda *given: None, function=0, packed_metadata=(), metadata=SimpleNamespace(tensordesc_meta=None)
        )
        made.launch_metadata = lambda *given: None
        self.device_caches[0][0][key] = made
        return made

    target = GPUTarget("cuda", 90, 32)
    there = {"device": lambda: 0, "target": lambda: target, "stream": lambda device: 0}
    active = SimpleNamespace(**{f"get_current_{name}": each for name, each in there.items()})
    monkeypatch.setattr(driver, "_active", active, raising=False)
    monkeypatch.setattr(jit.JITFunction, "_do_compile", compile_one)
    monkeypatch.setattr(launch, "Compiled", lambda made: None)
    monkeypatch.setattr(launch, "launch", lambda *given: None)
    for name, each in (("_cuda_getDevice", lambda: 0), ("_cuda_getCurrentRawStream", lambda device: 0)):
        monkeypatch.setattr(torch._C, name, each, raising=False)
    there_are = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: there_are)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**37, 2**37))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(launching, "card_of", lambda *given: cards.card("H200"))
    loaded.cache_clear()
    return found


def called(n: int, d: int, causal: bool, heads: int) -> None:
    """Attention of n tokens, and its gradients; the numbers in them are arbitrary."""
    q, k, v, dO = (torch.empty(1, heads, n, d, dtype=torch.bfloat16) for _ in range(4))
    rest = (None, None, None, 0 if causal else None, False, d**-0.5, 0.0, None, False)
    out, lse = operators.forward_on_gpu(q, k, v, *rest)
    operators.backward_on_gpu(dO, None, q, k, v, out, lse, *rest)


@pytest.mark.parametrize(
    ("d", "causal"),
    [pytest.param(128, False), *(pytest.param(d, c, marks=pytest.mark.slow) for d, c in ((64, True), (512, True)))],
)
def test_fifty_new_lengths_compile_nothing(compiled: list[str], d: int, causal: bool) -> None:
    """After powers of two and these less one, with the kernels of Gluon among those that are chosen."""
    for bits in range(5, 15):
        for less in (0, 1):
            called(2**bits - less, d, causal, 2)
    before, kernels = len(compiled), set(compiled)
    assert before >= len(kernels) >= 4
    for n in random.Random(25).choices(range(17, 16384), k=50):
        called(n, d, causal, 2)
    assert compiled[before:] == []
    used: Callable[[], Any] = loaded.cache_info
    assert used().currsize <= 16


def test_another_width_compiles_again(compiled: list[str]) -> None:
    called(256, 128, False, 2)
    before = len(compiled)
    called(256, 128, False, 2)
    assert len(compiled) == before > 0
    called(256, 64, False, 2)
    assert len(compiled) > before
