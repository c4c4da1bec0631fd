"""New lengths compile nothing: `attention` on a card that is not there, with a count of what Triton would compile.

Triton's own code decides by the arguments of a launch whether it compiles; here it runs without a GPU, up to there.
"""

from __future__ import annotations

import io
import random
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import HealthCheck, example, given, settings, strategies as st  # noqa: E402
from strategies import amount  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver, jit  # noqa: E402

from pebblesim.advice import cards  # noqa: E402
from pebblesim.kernels.gluon.text import HELPERS  # noqa: E402
from pebblesim.kernels.module import module_of  # noqa: E402
from pebblesim.kernels.passes.sums_of_sinks import AND_SUMS  # noqa: E402
from pebblesim.operator import masks, operators  # noqa: E402
from pebblesim.operator.known import eager, recorded  # noqa: E402
from pebblesim.operator.known.recent import Recent  # noqa: E402
from pebblesim.operator.launching import boxes, compiling, launch, launching  # noqa: E402
from pebblesim.operator.launching.launching import loaded  # noqa: E402

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
        made.name = self.fn.__name__
        made.launch_metadata = lambda *given: None
        self.device_caches[0][0][key] = made
        return made

    target = GPUTarget("cuda", 90, 32)
    there = {"device": lambda: 0, "target": lambda: target, "stream": lambda device: 0}
    active = SimpleNamespace(**{f"get_current_{name}": each for name, each in there.items()})
    monkeypatch.setattr(driver, "_active", active, raising=False)
    monkeypatch.setattr(jit.JITFunction, "_do_compile", compile_one)
    monkeypatch.setattr(launch, "Compiled", lambda made: made)
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


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes, a mask, an order of memory, and whether L has a gradient."""
    n_q = draw(st.integers(17, 300))
    return {
        "sizes": (draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 8]))),
        "lengths": (n_q, draw(st.one_of(st.just(n_q), st.integers(17, 300)))),
        "d": draw(st.sampled_from([64, 72, 100, 128, 256, 512])),
        "limits": draw(st.sampled_from([(None, None, False), (None, 0, False), (None, 0, True), (40, 0, False)])),
        "ranges": draw(st.booleans()),
        "tokens_first": draw(st.booleans()),
        "of_L": draw(st.booleans()),
        "sinks": draw(st.sampled_from([None, None, "of heads", "of batches"])),
        "workspace": draw(st.sampled_from([None, None, 2**21])),
    }


def passes(call: dict[str, Any], x: list[Any], grad_L: Any, rest: Any, sinks: Any = None) -> tuple[Any, ...]:
    """Both passes."""
    out, L = operators.forward(*x[:3], rest, sinks)
    return out, L, *operators.backward(x[3], *x[:3], x[4], x[5], rest, grad_L, sinks)


def tensors(call: dict[str, Any]) -> tuple[list[Any], Any, Any]:
    """Q, K, V, dO, O and L of a call, the gradient of L, and the other arguments of the operators."""
    (batch, kv_heads, shared), (n_q, n_k), d = call["sizes"], call["lengths"], call["d"]
    shapes = [
        (batch, kv_heads * shared, n_q, d),
        *[(batch, kv_heads, n_k, d)] * 2,
        *[(batch, kv_heads * shared, n_q, d)] * 2,
    ]
    x = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
    if call["tokens_first"]:
        x = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in x]
    x += [torch.empty(batch * kv_heads, n_q * shared)]
    ranges = [torch.zeros(batch, n_q, dtype=torch.int32) for _ in "ab"] if call["ranges"] else [None, None]
    limits = (None, None, False) if call["ranges"] else call["limits"]
    rest = masks.Asked(*ranges, *limits, d**-0.5, 0.0, call["workspace"], False)
    return x, torch.empty_like(x[5]) if call["of_L"] else None, rest


def sinks_of(call: dict[str, Any]) -> Any:
    """Sinks of the heads of a call, or None."""
    batch, kv_heads, shared = call["sizes"]
    kinds = {None: None, "of heads": torch.zeros(kv_heads * shared, dtype=torch.bfloat16)}
    return (kinds | {"of batches": torch.zeros(batch, kv_heads * shared)})[call["sinks"]]


class Held(TorchDispatchMode):
    """All that is made meanwhile is held, so that no address comes again."""

    def __enter__(self) -> Any:
        self.made: list[Any] = []
        return super().__enter__()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made.append(function(*args, **(kwargs or {})))
        return self.made[-1]


def told(launched: list[Any], known: list[Any]) -> list[Any]:
    """Launches with addresses as places in known tensors, and others by the order in which they come first."""
    others: dict[int, int] = {}

    def place(address: int) -> Any:
        for number, each in enumerate(known):
            if each.data_ptr() <= address < each.data_ptr() + each.untyped_storage().nbytes():
                return number, address - each.data_ptr()
        return others.setdefault(address, len(others))

    def one(argument: Any) -> Any:
        if isinstance(argument, boxes.Described):
            return place(argument.address), argument.boxes.one.shape, argument.boxes.one.strides
        if isinstance(argument, torch.Tensor):
            return place(argument.data_ptr())
        return place(argument) if isinstance(argument, int) and argument > 2**32 else argument

    return [(name, grid, [one(each) for each in given]) for name, grid, given in launched]


IN_PARTS = {
    **dict.fromkeys(("ranges", "tokens_first", "of_L", "sinks")),
    "sizes": (1, 2, 2),
    "lengths": (4000, 4000),
    "d": 512,
    "limits": (None, 0, False),
    "workspace": 2**26,
}
"""A call whose forward pass has two parts of its queries, since tables of all have no room."""


UNSEEING = {
    **dict.fromkeys(("ranges", "tokens_first", "workspace")),
    "of_L": True,
    "sinks": "of heads",
    "sizes": (1, 1, 1),
    "lengths": (18, 17),
    "d": 64,
    "limits": (None, 0, True),
}
"""A call whose first query sees no key but the sink."""


@settings(max_examples=amount(6, 60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(call=calls())
@example(call=IN_PARTS)
@example(call=UNSEEING)
def test_a_pass_made_again_launches_what_the_first_one_launches(compiled: list[str], call: dict[str, Any]) -> None:
    """The same kernels with the same numbers, on the same parts of inputs and of what is made: in the same order."""
    launched: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        for module in (launch, recorded):
            patched.setattr(
                module, "launch", lambda made, grid, stream, given: launched.append((made.name, grid, [*given]))
            )
        for name in ("_KEPT", "_SEEN"):
            patched.setattr(recorded, name, Recent(100))
        patched.setattr(recorded, "here", lambda x: True)
        (x, grad_L, rest), sinks = tensors(call), sinks_of(call)
        known, found = [*x, *(each for each in (grad_L, sinks, rest.first, rest.end) if each is not None)], list[Any]()
        for _ in range(4):  # compiles, is noted, and is made again
            launched.clear()
            with Held():
                results = passes(call, x, grad_L, rest, sinks)
            found.append((told(launched, known), [(each.shape, each.stride(), each.dtype) for each in results]))
        assert found[1][0] and found[1] == found[2] == found[3]
        by_pytorch = call["sinks"] is not None and call["of_L"]  # where a query sees no key but the sink
        assert len(recorded._KEPT) == 2 or (by_pytorch and len(recorded._KEPT) == 1)


def test_each_part_of_a_forward_pass_launches_its_kernels(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And what its parts launch is compiled before the first launch."""
    launched, parts, compute = list[str](), list[Any](), launching.compute

    def part(way: str, given: Any, *rest: Any) -> Any:
        parts.append(given["Q"].shape[2])
        return compute(way, given, *rest)

    monkeypatch.setattr(launch, "launch", lambda made, *given: launched.append(made.name))
    monkeypatch.setattr(eager, "_COMPILED", Recent(10))
    x, _, rest = tensors(IN_PARTS)
    eager.compile_for(*x[:3], None, rest)
    kernels = len(compiled)
    monkeypatch.setattr(launching, "compute", part)
    for _ in range(2):
        launched.clear()
        parts.clear()
        operators.forward(*x[:3], rest)
    assert parts == [2176, 1824]  # the first one of whole tiles of Gluon kernels
    assert launched == ["A_1", "O_1", "L_s_P_s", "L", "O"]
    assert len(compiled) == kernels > 0


def test_sinks_of_another_type_compile_again(compiled: list[str]) -> None:
    """A forward pass alone, since the backward pass does not read them; and one type once."""
    (x, _, rest), made = tensors({**BESIDE, **PLAIN}), list[int]()
    for kind in (torch.bfloat16, torch.float32, torch.bfloat16):
        operators.forward(*x[:3], rest, torch.zeros(2, dtype=kind))
        made.append(len(compiled))
    assert made[1] == 2 * made[0] == made[2] > 0


@pytest.mark.parametrize("causal", [False, True])
def test_sinks_are_launched_with_what_there_is(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    """A forward pass launches as many kernels as without, and a backward pass the same; the last may sum."""
    launched = list[str]()
    monkeypatch.setattr(launch, "launch", lambda made, *given: launched.append(made.name))
    x, _, rest = tensors({**BESIDE, **PLAIN, "limits": (None, 0 if causal else None, False)})
    found = []
    for sinks in (None, torch.zeros(2, dtype=torch.bfloat16)):
        for _ in range(2):  # compiles, and launches
            launched.clear()
            passes({}, x, None, rest, sinks)
        found.append([*launched])
    assert found[0] == [each.removesuffix(AND_SUMS) for each in found[1]]


def test_both_passes_are_compiled_before_the_first_launch(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each kind of call; nothing is launched meanwhile, and nothing is compiled afterwards."""
    launched = list[str]()
    monkeypatch.setattr(launch, "launch", lambda made, *given: launched.append(made.name))
    monkeypatch.setattr(eager, "_COMPILED", Recent(10))
    x, _, rest = tensors({**BESIDE, **PLAIN})
    q, k, v = (each.requires_grad_() for each in x[:3])
    eager.compile_for(q, k, v, None, rest)
    kernels = set(compiled)
    assert len(kernels) >= 3 and not launched
    eager.compile_for(q, k, v, None, rest)
    assert len(compiled) == len(kernels)
    passes({}, [each.detach() for each in x], None, rest)
    assert len(compiled) == len(kernels)
    with torch.no_grad():  # another kind: the forward pass alone
        eager.compile_for(q, k, v, None, rest._replace(scale=0.3))
    assert 0 < len(compiled) - len(kernels) < len(kernels)


BESIDE = dict.fromkeys(("ranges", "tokens_first", "of_L", "workspace"))
PLAIN = {"sizes": (1, 2, 1), "lengths": (200, 200), "d": 128, "limits": (None, 0, False)}


def test_a_line_says_that_kernels_are_compiled_where_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal alone, and not before it has taken a while."""
    monkeypatch.setattr(compiling, "PATIENCE", 0.05)

    def said(terminal: bool, seconds: float) -> str:
        stream = io.StringIO()
        stream.isatty = lambda: terminal  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stderr", stream)
        with compiling.together():
            time.sleep(seconds)
        return stream.getvalue()

    assert said(True, 0.3) == "pebblesim: compiling kernels, once for this kind of call ... done\n"
    assert said(False, 0.3) == said(True, 0.0) == ""


@given(
    shapes=st.lists(
        st.tuples(*(st.integers(1, 9) for _ in range(3)), st.sampled_from([1, 2, 4])), min_size=2, max_size=6
    ),
    laid=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_descriptors_of_other_shapes_are_those_that_triton_makes(shapes: list[Any], laid: list[bool]) -> None:
    """The first of a kind is Triton's; others have their own lengths and strides, and all else of it."""
    functions = ("tiles_of_strides", "vectors_of", "pairs_of")
    text = [HELPERS["imports"], *(HELPERS[name].format(dtype="bfloat16") for name in functions)]
    module = module_of("".join(text))
    tiles, vectors, pairs = (boxes.remembered(getattr(module, name)) for name in ("tiles_of", "vectors_of", "pairs_of"))
    for (batch, heads, n, several), tokens_first in zip(shapes, laid, strict=False):
        x = torch.empty(batch, heads * several, n, 64, dtype=torch.bfloat16)
        x = x.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first else x
        numbers, table = torch.empty(batch, 16 * n), torch.empty(n, batch, 16, 64, dtype=torch.bfloat16)
        for kind, name, each, box in (
            (tiles, "tiles_of", x, (64, 64, several)),
            (tiles, "tiles_of", x, (128, 64)),
            (vectors, "vectors_of", numbers, (15 * n, 64)),
            (pairs, "pairs_of", table, (16, 64)),
        ):
            made, right = kind(each, *box).boxes.one, getattr(module, name)(boxes.Place.of(each), *box)
            assert [*made.shape] == [*right.shape] and [*made.strides] == [*right.strides]
            assert (made.block_shape, made.layout, made.padding) == (right.block_shape, right.layout, right.padding)
            assert (made.base.shape, made.base.strides, made.base.dtype) == (each.shape, right.base.strides, each.dtype)
