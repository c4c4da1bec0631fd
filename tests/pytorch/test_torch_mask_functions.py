"""Masks of transformers, drawn: functions of its own parts, sizes, positions, padding and flags.

The oracle is the dense mask that transformers' `sdpa_mask` makes when it may leave out nothing, and softmax by its
definition. What a layer gets is equal, or refused, and then the dense mask has holes or keys that begin or end earlier
for a later query.
"""

from __future__ import annotations

import ast
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import event, given, strategies as st
from strategies import draws

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import masking_utils as theirs  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402
from pebblesim.operator import masks as ours  # noqa: E402
from pebblesim.operator.integrations import transformers_masks as masks  # noqa: E402
from pebblesim.operator.integrations.transformers import REFUSED, attend, seen  # noqa: E402
from pebblesim.operator.integrations.transformers_masks import Seen, band_of  # noqa: E402

LONGEST = 64

pytestmark = pytest.mark.filterwarnings("ignore:PyTorch's attention is used")


def packed(function: Any, positions: torch.Tensor, packing: torch.Tensor) -> Any:
    """A mask of packed sequences, as transformers makes it: in two steps from 5.24 on."""
    if hasattr(theirs, "packed_sequence_compatibility_function"):
        return theirs.packed_sequence_compatibility_function(function, positions, packing)
    within = theirs.remap_positions_for_packed_sequence(function, positions)
    return theirs.and_masks(within, theirs.packed_sequence_mask_function(packing))


@st.composite
def functions(draw: st.DrawFn, batch: int, plain: bool) -> tuple[str, Any, int | None, bool]:
    """A mask function of transformers' own parts: its name, its `local_size`, and whether transformers may skip it."""
    kinds = ("sliding", "both ways", "all", "causal") if plain else ("causal", "sliding", "chunked", "all", "both ways")
    kind, size = draw(st.sampled_from(kinds)), draw(st.integers(1, 12))
    start = torch.tensor(draw(st.lists(st.integers(0, 5), min_size=batch, max_size=batch)))
    function = {
        "causal": theirs.causal_mask_function,
        "sliding": theirs.sliding_window_causal_mask_function(size),
        "chunked": theirs.chunked_causal_mask_function(size, start),
        "all": theirs.bidirectional_mask_function,
        "both ways": theirs.sliding_window_bidirectional_mask_function(size),
    }[kind]
    more = "" if plain else draw(st.sampled_from(("", "packed", "images", "prefix", "and", "turned", "holes")))
    if more == "packed":
        lengths = draw(st.lists(st.integers(1, 20), min_size=8, max_size=8))
        at = torch.cat([torch.arange(n) for n in (*lengths, LONGEST)])[None, :LONGEST].expand(batch, -1)
        packing = theirs.find_packed_sequence_indices(at)
        if packing is not None:
            function = packed(function, at, packing)
    elif more == "images":
        ids = torch.tensor(draw(st.lists(st.integers(-1, 1), min_size=LONGEST, max_size=LONGEST)))
        function = theirs.or_masks(function, theirs.blockwise_overlay(ids[None].expand(batch, -1)))
    elif more == "prefix":
        until = draw(st.integers(0, 12))
        function = theirs.or_masks(function, lambda b, h, q, k: k < until)
    elif more == "and":
        left = draw(st.integers(1, 9))
        function = theirs.and_masks(function, lambda b, h, q, k: q - k < left)
    elif more == "turned":
        until = draw(st.integers(0, 40))
        function = theirs.and_masks(function, lambda b, h, q, k: q + k < until)
    elif more == "holes":
        function = theirs.and_masks(function, lambda b, h, q, k: (q + k) % 3 > 0)
    return f"{kind} {more}".strip(), function, size if kind not in ("causal", "all") else None, not more


@st.composite
def calls(draw: st.DrawFn, what: str) -> dict[str, Any]:
    """What transformers gives to a mask function: windows alone, with padding, or anything."""
    batch = draw(st.integers(1, 3))
    name, function, local, plain = draw(functions(batch, what != "anything"))
    least = 1 if what == "anything" else 3
    kv_length = draw(st.integers(least, 24))
    q_length = draw(st.one_of(st.just(kv_length), st.integers(least, 24)))
    kv_offset = draw(st.integers(0, 4))
    meet = max(0, kv_length + kv_offset - q_length)
    q_offset: Any = draw(st.one_of(st.just(meet), st.just(0), st.integers(0, 12)))
    q_offset = torch.tensor(q_offset) if draw(st.integers(0, 3)) == 0 else q_offset
    padding = None
    sides = {"windows": ("not",), "padding": ("left", "right")}.get(what, ("not", "left", "right", "between"))
    if (side := draw(st.sampled_from(sides))) != "not":
        number = draw(st.integers(1, kv_length + kv_offset + 2))
        padding = torch.ones(batch, number, dtype=torch.bool)
        for row in padding:
            cut = draw(st.integers(0, number - 1))
            row[{"left": slice(0, cut), "right": slice(number - cut, number), "between": slice(cut, cut + 1)}[side]] = (
                False
            )
    return {
        "name": name,
        "batch_size": batch,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": function,
        "attention_mask": padding,
        "local_size": local if draw(st.booleans()) else None,
        "allow_is_causal_skip": plain and draw(st.booleans()),
        "allow_is_bidirectional_skip": plain and draw(st.booleans()),
        "use_vmap": draw(st.booleans()),
    }


def dense(call: dict[str, Any]) -> Any:
    """The whole mask, by transformers: booleans (batch, q_length, kv_length)."""
    never = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "use_vmap": False}
    return theirs.sdpa_mask(**call | never)[:, 0]


def by_definition(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """(batch, n, heads, d); 0 for a query without a key."""
    scores = (q @ k.repeat_interleave(2, 1).mT * q.shape[-1] ** -0.5).masked_fill(~mask[:, None], -torch.inf)
    weights = torch.where(mask[:, None].any(-1, keepdim=True), scores.softmax(-1), 0.0)
    return (weights @ v.repeat_interleave(2, 1)).transpose(1, 2)


def tensors(batch: int, n_q: int, n_k: int) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    shapes = (batch, 4, n_q, 8), (batch, 2, n_k, 8), (batch, 2, n_k, 8)
    return [torch.randn(each, generator=generator, dtype=torch.float64) for each in shapes]


def representable(mask: Any) -> bool:
    """Whether first and last keys of rows never decrease, with all keys between; looked at row by row.

    A row without keys lies between the keys of the rows around it.
    """
    for rows in mask.tolist():
        first = end = gap = 0
        for row in rows:
            keys = [j for j, each in enumerate(row) if each]
            if not keys:
                gap = end
            elif keys != list(range(keys[0], keys[-1] + 1)) or keys[0] < max(first, gap) or keys[-1] + 1 < end:
                return False
            else:
                first, end = keys[0], keys[-1] + 1
    return True


@pytest.mark.parametrize("what", ["windows", "padding", "anything"])
@given(data=st.data())
@draws(60, 600)
def test_drawn_masks_are_equal_as_ranges_or_dense(what: str, data: st.DataObject) -> None:
    """The layer may say of itself what it likes: its mask says it all."""
    call = data.draw(calls(what))
    causal, window = data.draw(st.booleans()), data.draw(st.one_of(st.none(), st.integers(1, 9)))
    mask, padding = dense(call), call["attention_mask"]
    x = tensors(*(call[each] for each in ("batch_size", "q_length", "kv_length")))
    layer = SimpleNamespace(is_causal=causal)
    right = by_definition(*x, mask)
    at_once = data.draw(st.sampled_from((40, masks.AT_ONCE)))  # pairs, so that masks are found in several parts
    with mock.patch.object(masks, "AT_ONCE", at_once):
        found = seen(**call)
    made, _ = attend(layer, *x, found, sliding_window=window, is_causal=causal)
    assert (made - right).abs().max() <= 1e-12
    if isinstance(found, torch.Tensor):
        event("dense")
        holes = padding is not None and not representable(padding[:, None])
        assert holes or not representable(mask)
        assert found.dtype == torch.bool and torch.equal(found[:, 0], mask)
    else:
        event("ranges")
        rows, keys = slice(call["q_length"] // 2, None), slice(0, -(-call["kv_length"] // 2))
        part = attend(layer, x[0][:, :, rows], *(each[:, :, keys] for each in x[1:]), found[:, :, rows, keys])[0]
        true = by_definition(x[0][:, :, rows], *(each[:, :, keys] for each in x[1:]), mask[:, rows, keys])
        assert (part - true).abs().max() <= 1e-12


def test_which_functions_are_bands() -> None:
    """Functions that compare positions are bands; those that look at tensors, or join with "or", are not."""
    bands = {
        theirs.causal_mask_function: (None, 0),
        theirs.bidirectional_mask_function: (None, None),
        theirs.sliding_window_causal_mask_function(5): (-4, 0),
        theirs.sliding_window_bidirectional_mask_function(4): (-4, 4),
        theirs.and_masks(theirs.causal_mask_function, lambda b, h, q, k: 3 + q - k < 9): (-5, 0),
    }
    for function, limits in bands.items():
        found = band_of(function)
        assert found is not None and (found.low, found.high) == limits
    for function in (
        theirs.chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long)),
        theirs.or_masks(theirs.causal_mask_function, theirs.sliding_window_overlay(4)),
        lambda b, h, q, k: k % 2 == 0,
        lambda b, h, q, k: q + k <= 5,
        lambda b, h, q, k: k <= q if q >= 3 else k <= 3,
        lambda b, h, q, k: k <= q if q == 3 else k <= 3,
        lambda b, h, q, k: k <= q if k <= 3 else k <= 3,
        lambda b, h, q, k: (k <= q) and (k > q - 3),
        lambda b, h, q, k: k <= q if abs(q - k) == 3 else k <= 3,
        lambda b, h, q, k: True,
    ):
        assert band_of(function) is None


def test_a_mask_that_somebody_made_is_not_taken_for_ours() -> None:
    """Integers (batch, 1, n, 2) for two keys, in any type, are a dense mask; arithmetic with a mask is refused."""
    x = tensors(1, 2, 2)
    for kind in (torch.int32, torch.int64, torch.uint8, torch.float16):
        with pytest.raises(UsageError, match="attn_mask is of torch"):
            attend(None, *x, torch.ones(1, 1, 2, 2, dtype=kind))
    ours = seen(1, 2, 2, device="cpu")
    bias = torch.zeros(1, 1, 2, 2)
    for made in (
        lambda: bias + ours,
        lambda: ours * 2,
        lambda: 1.0 - ours,
        lambda: ours == 0,
        lambda: ours & bias,
        lambda: ours ^ ours,
        lambda: ours.to(torch.float32),
        lambda: ours.masked_fill(bias > 0, 0),
        lambda: bias.masked_fill(bias > 0, 0) + ours,
        lambda: torch.cat([ours, bias]),
        lambda: torch.where(bias, ours, 1.0),
        lambda: torch.where(bias == 0, ours, torch.finfo(torch.float32).min),
        lambda: torch.where(bias == 0, bias, ours),
        lambda: torch.where(condition=ours, input=bias, other=bias),
        lambda: bias.masked_fill(mask=ours, value=1.0),
        lambda: torch.softmax(ours, -1),
        lambda: ours.sparsity(),
    ):
        with pytest.raises(UsageError, match="has the first and the last key of each query in the place of a mask"):
            made()
    assert (
        not hasattr(ours, "float")
        and ours.contiguous() is ours
        and ours.to("cpu").shape == ours.shape == (1, 1, 2, 2)
        and ours.ndim == 4
    )


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_what_means_the_same_for_booleans(window: int | None, padded: bool) -> None:
    """Single rows and columns, and functions of booleans, are those of the dense mask that transformers would make."""
    from transformers.masking_utils import sdpa_mask

    padding = torch.ones(2, 5, dtype=torch.bool)
    padding[1, : 2 * padded] = False
    function = theirs.sliding_window_causal_mask_function(window) if window else theirs.causal_mask_function
    given = {"mask_function": function, "attention_mask": padding, "allow_is_causal_skip": False, "device": "cpu"}
    made_here, dense = seen(2, 5, 5, **given), sdpa_mask(2, 5, 5, **given)
    none = ~dense.any(-1, keepdim=True)  # transformers lets a query without a key see all
    assert isinstance(made_here, Seen) and made_here.dtype == torch.bool and made_here.device == dense.device
    assert torch.equal(made_here.dense(), dense & ~none) and made_here.dense().shape == made_here.shape
    dense, other, numbers = made_here.dense(), torch.rand(2, 1, 5, 5) < 0.5, torch.randn(2, 1, 5, 5)
    for made, right in (
        (lambda x: x[0], lambda x: x[0]),
        (lambda x: x[:, 0, :, :], lambda x: x[:, 0]),
        (lambda x: x[..., 1:], lambda x: x[..., 1:]),
        (lambda x: ~x, lambda x: ~x),
        (lambda x: x & other, lambda x: x & other),
        (lambda x: other | x, lambda x: other | x),
        (lambda x: torch.cat([x, other, x], -1), lambda x: torch.cat([x, other, x], -1)),
        (lambda x: torch.where(x, numbers, 1.0), lambda x: torch.where(x, numbers, 1.0)),
        (lambda x: numbers.masked_fill(x, 2.0), lambda x: numbers.masked_fill(x, 2.0)),
    ):
        assert torch.equal(made(made_here), right(dense))


def test_layers_without_a_mask() -> None:
    """One query sees all keys, a triangle is one of as many queries as keys; what is not known is refused."""
    x = tensors(1, 6, 6)
    layer = SimpleNamespace(is_causal=True)
    triangle, all_keys = torch.ones(1, 6, 6).tril().bool(), torch.ones(1, 6, 6).bool()
    assert torch.allclose(attend(layer, *x, None)[0], by_definition(*x, triangle))
    assert torch.allclose(attend(layer, *x, None, is_causal=False)[0], by_definition(*x, all_keys))
    one = [x[0][:, :, :1], *x[1:]]
    assert torch.allclose(attend(layer, *one, None)[0], by_definition(*one, all_keys[:, :1]))
    with pytest.raises(UsageError, match="2 queries and 6 keys came without a mask"):
        attend(layer, x[0][:, :, :2], *x[1:], None)
    with pytest.raises(UsageError, match="window of 3 tokens came without a mask, and has 6 keys"):
        attend(layer, *x, None, sliding_window=3)
    with pytest.raises(UsageError, match="mask of this layer is 6 x 6, queries x keys, and the layer has 2 x 6"):
        attend(layer, x[0][:, :, :2], *x[1:], seen(1, 6, 6))


def test_ranges_of_a_mask_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer checked them again; ranges that a user gives are checked at each call."""
    x, checked = tensors(2, 6, 6), list[str]()
    monkeypatch.setattr(ours, "promise", lambda holds, sentence: checked.append(sentence))
    padding = torch.ones(2, 6, dtype=torch.bool)
    padding[1, :2] = False
    chunked = theirs.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long))
    turned = theirs.sliding_window_bidirectional_mask_function(2)
    for mask in (
        seen(2, 6, 6, attention_mask=padding),
        seen(2, 6, 6, mask_function=chunked),
        seen(2, 6, 6, mask_function=chunked)[:, :, 1:, :],
        seen(2, 6, 6, q_offset=5, mask_function=turned),  # a band in which queries see no key
    ):
        n_q = mask.shape[2]
        options = mask.options(n_q, 6, "cpu")
        first, end = options["key_ranges"]
        for _ in range(3):
            attend(None, x[0][:, :, :n_q], *x[1:], mask)
        assert checked == []
        assert (first.diff() >= 0).all() and (end.diff() >= 0).all() and first.min() >= 0 and end.max() <= 6
        attention(x[0][:, :, :n_q], *x[1:], enable_gqa=True, key_ranges=(first, end))
        assert len(checked) == 1
        checked.clear()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_what_is_promised_may_have_quotes(backend: str) -> None:
    """torch.compile writes the sentence into C++, between double quotes."""

    def call(x: Any) -> Any:
        ours.promise((x >= 0).all(), 'give align="end" instead')
        return x + 1

    compiled = torch.compile(call, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="give align='end' instead"):
        compiled(-torch.ones(3))


LEFT_TO_EAGER = {"output_attentions", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
"""What layers give that changes no number: eager's attention does not read it, either."""


def test_no_layer_of_transformers_asks_for_what_is_not_known() -> None:
    """Names of arguments of every call of an attention in transformers' models, read from their sources."""
    folder = Path(transformers.__file__).parent / "models"
    given = {
        argument.arg
        for file in folder.glob("*/modeling_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and "attention_interface" in node.func.id
        for argument in node.keywords
        if argument.arg is not None
    }
    assert len(given) > 10
    assert given - set(signature(attend).parameters) - set(REFUSED) <= LEFT_TO_EAGER | {"deterministic"}
