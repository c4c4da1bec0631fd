"""A call is taken on the CPU if and only if it is on a GPU: drawn calls, by the checks that a GPU's tensors get."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import assume, given, settings, strategies as st  # noqa: E402
from strategies import draws  # noqa: E402

from pebblesim.advice import cards  # noqa: E402
from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402
from pebblesim.kernels.key_ranges import KeyRanges  # noqa: E402
from pebblesim.operator import checks, planning  # noqa: E402
from pebblesim.operator.pattern import Pattern, band_of, limits  # noqa: E402

SIZES = st.integers(1, 5)
WIDTHS = st.sampled_from([1, 8, 16, 40, 256, 257, 300, 512, 513, 1024, 1025, 2048])
NUMBERS = st.sampled_from([None, -1, 0, 1, 0.5, -2.5, True, math.nan, math.inf, 10**400, 1e-320, "1", [1]])
FLAGS = st.sampled_from([False] * 4 + [True] * 4 + [1, None, "yes"])
WHERE = st.sampled_from([None, None, None, -1, 0, 2, 2**31 - 1, 2**31, 10**30, -2, 1.0, "2"])

TYPES = [torch.bfloat16, torch.float16]
OTHER_TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.bool, torch.complex64]

OPTIONS = {
    "is_causal": FLAGS,
    "enable_gqa": FLAGS,
    "return_lse": FLAGS,
    "deterministic": FLAGS,
    "scale": NUMBERS,
    "softcap": NUMBERS,
    "window": st.none() | st.tuples(WHERE, WHERE) | st.sampled_from([3, "all", (1,), [0, 1]]),
    "align": st.sampled_from(["start", "start", "end", "end", "middle", None]),
    "workspace": st.sampled_from([None, 0, 10, 1000, 10**6, 10**9, 2**63, 10**30, -1, 1.5, True]),
    "compute_dtype": st.sampled_from([None, None, torch.bfloat16, torch.float32, "float16"]),
    "fallback": st.sampled_from([None, "flash"]),
    "dropout_p": st.sampled_from([0.0, 0.0, 0.5, 1.0, "0"]),
    "key_padding": st.sampled_from([None, None, None, True]),
}


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    is_cuda = True


@st.composite
def calls(draw: Any) -> tuple[list[Any], dict[str, Any]]:
    """Tensors and options: sizes that belong together, and some that do not; a few options that are set."""
    batch, heads, shared, n_q, n_k = (draw(SIZES) for _ in range(5))
    d_k, d_v, kind = draw(WIDTHS), draw(WIDTHS), draw(st.sampled_from([*TYPES * 4, *OTHER_TYPES]))
    shapes = [[batch, heads * shared, n_q, d_k], [batch, heads, n_k, d_k], [batch, heads, n_k, d_v]]
    if draw(st.integers(0, 4)) == 0:
        shapes[draw(st.integers(0, 2))][draw(st.integers(0, 3))] = draw(st.integers(0, 4))
    x = [torch.zeros(shape).to(kind) for shape in shapes]
    names = draw(st.lists(st.sampled_from([*OPTIONS, "masks"]), max_size=3, unique=True))
    options = {name: draw(OPTIONS[name]) for name in names if name != "masks"}
    options |= {"enable_gqa": True} if shared > 1 and "enable_gqa" not in options else {}
    if "masks" in names:
        at, wrong = draw(st.integers(0, 3)), draw(st.integers(0, 3)) == 0
        number = torch.int64 if wrong else torch.int32
        options |= [
            {"key_padding_mask": torch.zeros(batch + wrong, n_k, dtype=torch.bool)},
            {"key_ranges": (torch.zeros(1, n_q, dtype=number), torch.full((batch, n_q), n_k, dtype=number))},
            {"cu_seqlens": torch.tensor([0, min(n_q, n_k)], dtype=torch.float32 if wrong else torch.int32)},
            {"attn_mask": torch.ones(n_q, n_k, dtype=torch.bool)},
        ][at]
    return x, options


def verdict(x: list[Any], options: dict[str, Any]) -> str | None:
    """The sentence of a refusal; None if the call is made."""
    try:
        attention(*x, **options)
    except UsageError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


def check_kernels_for(x: list[Any], options: dict[str, Any]) -> None:
    """Check that there are kernels of both passes, as an H200 chooses them: with Gluon and without."""
    (_, heads, n_q, d_k), (batch, kv_heads, n_k, d_v) = x[0].shape, x[2].shape
    window, align = options.get("window"), options.get("align", "start")
    shared = heads // kv_heads
    mask = band_of(*limits(window, options.get("is_causal", False), align, n_q, n_k), shared)
    if options.keys() & {"key_padding_mask", "key_ranges", "cu_seqlens"}:
        mask = KeyRanges(rows=shared)
    pattern = Pattern(mask, shared, options.get("softcap") or 0.0)
    dims = {"n_q": n_q * pattern.shared, "n_k": n_k, "d_k": max(16, d_k), "d_v": max(16, d_v)}
    room = planning.ROOM if options.get("workspace") is None else options["workspace"]
    card = cards.with_rates(cards.card("H200"))
    for way in ("forward", "backward"):
        planning.chosen(way, tuple(dims.items()), batch * kv_heads, "float16", pattern, room, card)


@pytest.fixture(autouse=True)
def new_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_too_old", lambda device: None)


@draws(150, 5000)
@given(call=calls())
def test_a_call_is_taken_on_the_cpu_if_it_is_on_a_gpu(call: tuple[list[Any], dict[str, Any]]) -> None:
    x, options = call
    here = verdict(x, options)
    there = verdict([each.as_subclass(OnGpu) for each in x], options)
    assert here == there
    if here is None and x[0].shape[-2] and x[1].shape[-2]:  # without a query or a key none is launched
        check_kernels_for(x, options)


@settings(max_examples=60)
@given(call=calls(), wide=st.sampled_from([torch.float32, torch.float64]))
def test_wide_types_alone_are_for_the_cpu(call: tuple[list[Any], dict[str, Any]], wide: Any) -> None:
    """What the CPU takes in float32 or float64 is what both take in 16 bits; a GPU says how it can be rounded."""
    x, options = call
    assume(x[0].dtype in TYPES)
    options = {**options, "compute_dtype": None}
    here = verdict([each.to(wide) for each in x], options)
    assert here == verdict([each.to(torch.float16) for each in x], options)
    there = verdict([each.to(wide).as_subclass(OnGpu) for each in x], options)
    assert there is not None
    if here is None:
        assert f"query is of {wide}; give bfloat16 or float16, or compute_dtype=torch.bfloat16 to round" in there
