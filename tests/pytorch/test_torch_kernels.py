"""The kernels behind the operator: on the CPU, by the interpreter and with stand-ins for what launches them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

torch = pytest.importorskip("torch")

import interpreted_kernels  # noqa: E402
from tensors import check_kernels, close, laid  # noqa: E402

from pebblesim.advice import cards  # noqa: E402
from pebblesim.advice.tiles import TILINGS, Tiling  # noqa: E402
from pebblesim.operator import masks, operators, planning  # noqa: E402
from pebblesim.operator.cuts import Cut, cuts  # noqa: E402
from pebblesim.operator.known.tape import noted  # noqa: E402
from pebblesim.operator.launching import launching, layout as layout_of_tensors  # noqa: E402
from pebblesim.operator.launching.launch import Torch  # noqa: E402
from pebblesim.operator.pattern import Pattern, band_of, limits  # noqa: E402
from pebblesim.operator.plans import plan  # noqa: E402
from pebblesim.operator.sinks import operators as operators_of_sinks  # noqa: E402

SMALL = {
    "forward": (Tiling("small-cache-forward-blocked", {"a": 32, "b": 32, "c": 16}),),
    "backward-qkv": (Tiling("small-cache-backward-blocked", {"a": 32, "b": 32, "c": 16}),),
}
"""Tiles of which some fit into few rows."""

PASSES = {
    "flash": (
        Tiling("flash2-forward", {"B_r": 32, "B_c": 16}),
        Tiling("backward-two-pass-blocked", {"B_r": 32, "b_c": 16, "B_c": 32, "b_r": 16}),
    ),
    "small cache": (*SMALL["forward"], *SMALL["backward-qkv"]),
    "stored": (
        Tiling("scores-stored-blocked", {"a": 32, "b": 32, "c": 16}),
        Tiling("dS-stored-blocked", {"B_c": 32, "b_r": 32, "b": 32, "c": 16}),
    ),
}
"""Small tiles of both passes."""

OF_SINKS = {
    "decoding": (Tiling("flash-decoding", {"B_r": 16, "S": 32, "B_c": 16}), PASSES["flash"][1]),
    "wide decoding": (Tiling("flash-decoding-blocked", {"B_r": 16, "S": 32, "c": 16, "e": 16}), PASSES["flash"][1]),
    "rows": (
        Tiling("scores-stored-in-rows", {"C": 32, "a": 32, "b": 32, "c": 16, "e": 16}),
        Tiling("small-cache-backward-in-rows", {"C": 32, "a": 32, "b": 32, "c": 16, "e": 16}),
    ),
}
"""Those of which softmaxes are put together from parts, and those that have some rows at a time."""


@pytest.fixture
def interpreted() -> Iterator[Any]:
    """Tensors on the CPU go through kernels, run by the interpreter; called, it sets the tiles of both passes."""
    with interpreted_kernels.launched() as only:
        only(*(made + SMALL[problem] for problem, made in TILINGS.items()))
        yield only


@pytest.mark.parametrize("layout", ["heads first", "tokens first", "cut from wider"])
def test_matrices_are_read_and_written_where_they_are(interpreted: Any, monkeypatch: Any, layout: str) -> None:
    """No copy is made of what kernels can read, and none of what they write."""
    shapes = (2, 5, 6, 24), (2, 5, 2, 24), (2, 5, 2, 16), (2, 5, 6, 16)
    q, k, v, dO = (torch.randn(*shape[:3], shape[3] + 8).half()[..., : shape[3]].transpose(1, 2) for shape in shapes)
    if layout == "tokens first":
        q, k, v, dO = (laid(x, layout) for x in (q, k, v, dO))
    if layout == "heads first":
        q, k, v, dO = (x.contiguous() for x in (q, k, v, dO))
    monkeypatch.setattr(launching, "room_for", None)
    monkeypatch.setattr(layout_of_tensors, "room_for", None)
    rest = (None, None, None, 0, False, 0.3, 0.0, None, False)
    out, lse = operators.forward_on_gpu(q, k, v, *rest)
    operators.backward_on_gpu(dO, None, q, k, v, out, lse, *rest)
    with pytest.raises(TypeError):  # rows of 20 words do not begin where they must
        operators.forward_on_gpu(*(torch.randn(1, 1, 5, 20).half() for _ in range(3)), *rest)


@pytest.mark.parametrize("noting", [noted, nullcontext])
def test_tables_of_some_heads_are_freed_before_others_need_theirs(noting: Any, monkeypatch: Any) -> None:
    """Two rounds of them at once would take more than the limit of memory, also where a call is noted."""
    made: list[Any] = []

    def run(*given: Any, results: Any, **others: Any) -> Any:
        assert not any(each() is not None for each in made)
        found = {name: Torch.empty(each.shape).fill_(1.0) for name, each in results.items()}
        made.extend(map(weakref.ref, found.values()))
        return found

    choice = SimpleNamespace(forecast=SimpleNamespace(rounds=3, tiling=SimpleNamespace(gluon=False)), cut=None)
    kernels = launching.Loaded(run, ("Q", "K"), False)
    monkeypatch.setattr(launching, "_prepared", lambda way, given, *others: (choice, kernels, given))
    tensors = {name: torch.zeros(3, 1, 8, 16).half() for name in ("Q", "K")} | {"L": torch.zeros(3, 8)}
    results = {name: torch.zeros(3, 1, 8, 16).half() for name in ("dQ", "dK")}
    with noting():
        launching.compute("backward", tensors, results, launching.Setting(Pattern(), 1.0, None))
    assert len(made) == 6
    assert all((each == 1).all() for each in results.values())


CUTS = {
    "one head of three": ((6, 2), 37, Cut(1, 1, (37,))),
    "two heads of four": ((8, 2), 37, Cut(1, 2, (37,))),
    "three parts of queries": ((4, 2), 37, Cut(1, 2, (9, 20, 37))),
    "of two KV heads": ((6, 2), 37, Cut(2, 3, (16, 37))),
    "of both batches": ((2, 2), 37, Cut(4, 1, (1, 37))),
    "with more keys": ((4, 2), 50, Cut(1, 2, (9, 20, 37))),
}
"""Heads and KV heads, keys, and what is computed at once, of two batches with 37 queries."""


@pytest.mark.parametrize("case", CUTS)
def test_a_forward_pass_in_parts(interpreted: Any, monkeypatch: Any, case: str) -> None:
    """O and L are right, and in their places: under a causal mask, without one, with key ranges, and with sinks."""
    (of_q, of_k), n_k, cut = CUTS[case]
    prepared, n, parts = launching._prepared, 37, list[tuple[int, ...]]()
    number = 2 * of_q // (cut.kv_heads * cut.heads) * len(cut.ends)

    def in_parts(way: str, given: Any, results: Any, setting: Any) -> Any:
        choice, *rest = prepared(way, given, results, setting)
        sizes = tuple(given["Q"].shape[:3])
        parts.extend([sizes] * (way == "forward"))
        return replace(choice, cut=cut if way == "forward" and sizes == (2, of_q, n) else None), *rest

    monkeypatch.setattr(launching, "_prepared", in_parts)
    x = [torch.randn(2, heads, rows, 16).half() for heads, rows in ((of_q, n), (of_k, n_k), (of_k, n_k), (of_q, n))]
    first = torch.arange(n, dtype=torch.int32).clamp(max=20)[None].expand(2, n) // 2
    ranges = [] if len(cut.ends) > 1 else [((first, first + 5), None)]
    for where, right in (((None, None), 0), ((None, None), None), *ranges):
        rest = *where, None, right, right is not None and n_k > n, 0.3, 0.0, None, False
        parts.clear()
        check_kernels(x, rest, False, torch.randn(2, of_q))
        assert len(parts) == 1 + number and sum(b * h * rows for b, h, rows in parts[1:]) == 2 * of_q * n
    asked, sinks = masks.Asked(None, None, None, 0, n_k > n, 0.3, 0.0, None, False), torch.randn(2, of_q)
    made = operators.forward(*x[:3], asked, sinks)
    monkeypatch.setattr(launching, "_prepared", prepared)
    close(made, operators.forward(*x[:3], asked, sinks), 1e-3)


IN_PARTS = [(9801, 16, 2), (16384, 16, 2), (32768, 8, 4)]
"""Queries, heads and KV heads at d = 512, whose tables do not have room."""


def chosen_in_parts(way: str, n: int, heads: int, kv_heads: int) -> tuple[Any, Any]:
    """The kernels of a pass at d = 512 under a causal mask, with the usual limit of memory, and without one."""
    card, shared = cards.with_rates(cards.card("H200")), heads // kv_heads
    dims = {"n_q": n * shared, "n_k": n, "d_k": 512, "d_v": 512}
    arguments = tuple(dims.items()), kv_heads, "bfloat16", Pattern(band_of(right=0, rows=shared), shared)
    limited, free = (planning.chosen(way, *arguments, room, card) for room in (2**30, None))
    return limited, free


@pytest.mark.parametrize(("n", "heads", "kv_heads"), IN_PARTS)
def test_whole_tables_of_parts_of_a_forward_pass_beat_some_rows_of_all(n: int, heads: int, kv_heads: int) -> None:
    """Tables of parts have room where those of all have not, and cost little."""
    limited, free = chosen_in_parts("forward", n, heads, kv_heads)
    assert limited.forecast.tiling.gluon and limited.cut is not None and free.cut is None
    assert limited.bytes <= 2**30 < free.bytes and limited.cut.ends[-1] == n
    made = plan(n, 512, heads, kv_heads=kv_heads, is_causal=True)
    first, others = made.forward[0], [each for each in made.forward if each.tiling.schedule == "scores-stored-in-rows"]
    assert first.seconds < 0.8 * min(each.seconds for each in others)
    assert first.seconds < 1.3 * made.unlimited[0].seconds
    assert made.cut is not None and f"  {made.cut.said(heads // kv_heads)}" in str(made).splitlines()


@pytest.mark.parametrize(("n", "heads", "kv_heads"), IN_PARTS)
def test_parts_of_a_backward_pass_have_room_for_tables_and_sums(n: int, heads: int, kv_heads: int) -> None:
    """dK and dV of all keys are in memory from part to part, in float32, beside the tables of the largest part."""
    limited, free = chosen_in_parts("backward", n, heads, kv_heads)
    cut, blocks = limited.cut, limited.forecast.tiling.blocks
    assert limited.forecast.tiling.schedule == "small-cache-backward-resident-in-rows" and "C" not in blocks
    assert free.forecast.tiling.schedule == "small-cache-backward-resident" and free.bytes > 2**30 >= limited.bytes
    rows = [(span.stop - span.start) * cut.heads for span in cut.spans]
    pairs = (-(-each // 128) * -(-end // 128) * 128**2 for each, end in zip(rows, cut.ends, strict=True))
    assert limited.bytes == cut.kv_heads * (2 * max(pairs) + 4 * n * (512 + 512))
    made = plan(n, 512, heads, kv_heads=kv_heads, is_causal=True)
    first, others = (
        made.backward[0],
        [each for each in made.backward if each.tiling.schedule.endswith("backward-in-rows")],
    )
    assert first.seconds < 0.9 * min(each.seconds for each in others)
    assert made.cut_backward == cut and f"  {cut.said(heads // kv_heads)}" in str(made).splitlines()


@given(
    n=st.tuples(st.integers(1, 3000), st.integers(0, 3000)),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 8), (3, 2)]),
    mask=st.sampled_from([None, band_of(right=0), band_of(right=0, at_end=True), band_of(9, 0), band_of(right=4)]),
    room=st.integers(1, 2**25),
    sums=st.just(0) | st.integers(1, 2**22),
)
def test_parts_have_all_queries_once_and_their_tables_room(n: Any, heads: Any, mask: Any, room: int, sums: int) -> None:
    """Two bytes a pair, beside sums of each KV head; queries are cut behind multiples of 128, if the mask lets them."""
    (n_q, more), (kv_heads, shared) = n, heads
    n_k = n_q + more
    tables = 2 * n_q * n_k * shared
    for cut in cuts(Pattern(mask, shared), n_q, n_k, kv_heads, tables, room, 132, sums):
        assert kv_heads % cut.kv_heads == shared % cut.heads == 0 and cut.ends[-1] == n_q
        lengths, keys = [each.stop - each.start for each in cut.spans], cut.keys(Pattern(mask, shared), n_k)
        assert min(lengths) > 0 and sum(lengths) == n_q and not any(end % 128 for end in cut.ends[:-1])
        most = max(rows * columns for rows, columns in zip(lengths, keys, strict=True))
        assert (2 * most * cut.heads + sums) * cut.kv_heads <= room
        if len(lengths) > 1:
            assert mask is None or ((mask.before, mask.after) == (None, 0) and (mask.at_end or not more))
            assert cut.heads == shared and (mask is None or cut.pattern(Pattern(mask, shared)).mask.at_end)
            below = [end + more for end in cut.ends] if mask else [n_k] * len(keys)
            assert keys == below


def test_tables_are_smaller_where_less_memory_is_free(monkeypatch: Any) -> None:
    monkeypatch.setattr(launching, "card_of", lambda *given: cards.card("H200"))
    for name, found in (("memory_reserved", 2**25), ("memory_allocated", 0), ("is_current_stream_capturing", False)):
        monkeypatch.setattr(torch.cuda, name, lambda *device, found=found: found)
    dims = tuple({"n_q": 2**14, "n_k": 2**14, "d_k": 512, "d_v": 512}.items())

    def taken(free: int, workspace: int | None = None) -> int:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2**40))
        choice = launching.fitting("backward", dims, 8, "bfloat16", Pattern(band_of(right=0)), workspace, None)
        return choice.bytes

    assert 2**29 < taken(2**37) <= 2**30
    assert 2**26 < taken(2**28) <= 2**28 + 2**25  # with what PyTorch holds and does not use
    assert taken(2**28, 2**29) > 2**28  # as it was asked for
    for free, short in ((2**37, False), (2**28, True)):  # a choice for this moment is not kept for others
        with noted() as written:
            taken(free)
        assert written.other == short


def test_kernels_run_on_the_device_of_the_tensors(monkeypatch: Any) -> None:
    current, used = [0], []

    @contextmanager
    def device(its: Any) -> Iterator[None]:
        before, current[0] = current[0], its.index
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    for name in ("fitted", "fits"):
        monkeypatch.setattr(launching, name, lambda each: each)
    choice = SimpleNamespace(forecast=SimpleNamespace(rounds=1, tiling=SimpleNamespace(gluon=False)), cut=None)
    kernels = launching.Loaded(lambda *given, **others: used.append(current[0]) or {}, ("Q", "K"), False)
    monkeypatch.setattr(launching, "_prepared", lambda way, given, *others: (choice, kernels, given))
    x = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 1), shape=(1, 1, 8, 16), dim=lambda: 4)
    monkeypatch.setattr(launching, "_of_part", lambda tensors, *given: tensors)
    launching.compute("backward", {"Q": x, "K": x}, {}, launching.Setting(Pattern(), 1.0, None))
    assert (used, current) == ([1], [0])


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize(
    ("n", "n_k", "heads", "mask"),
    [
        (70, 70, (2, 2), {"cu_seqlens": [0, 13, 13, 50, 61], "is_causal": True}),
        (61, 61, (4, 2), {"cu_seqlens": [0, 40, 61], "is_causal": True, "window": (7, None)}),
        (64, 64, (2, 2), {"cu_seqlens": [0, 3, 64]}),
        (33, 70, (4, 2), {"key_padding_mask": [0, 45], "is_causal": True, "align": "end"}),
        (33, 33, (2, 1), {"key_padding_mask": [30, 0], "is_causal": True}),
        (50, 50, (3, 3), {"window": (9, 4)}),
        (50, 50, (4, 2), {"softcap": 1.0, "is_causal": True}),
        (50, 50, (2, 2), {"softcap": 1.0, "cu_seqlens": [0, 20, 50]}),
    ],
)
def test_masks_of_kernels_by_the_interpreter(
    interpreted: Any, passes: str, n: int, n_k: int, heads: tuple[int, int], mask: dict[str, Any]
) -> None:
    """Key ranges, windows and capped scores, with gradients of O and of L, against the definition."""
    if passes == "small cache" and "softcap" in mask:
        pytest.skip("these kernels have no scores where they compute gradients")
    forward, backward = PASSES["flash" if "softcap" in mask else passes][0], PASSES[passes][1]
    interpreted((forward,), (backward,))
    torch.manual_seed(n)
    shapes = (2, heads[0], n, 20), (2, heads[1], n_k, 20), (2, heads[1], n_k, 20), (2, heads[0], n, 20)
    q, k, v, dO = (torch.randn(shape).half() for shape in shapes)
    asked = dict(mask)
    if "cu_seqlens" in asked:
        asked["cu_seqlens"] = torch.tensor(asked["cu_seqlens"])
    if "key_padding_mask" in asked:
        asked["key_padding_mask"] = torch.arange(n_k) < torch.tensor(asked["key_padding_mask"])[:, None]
    within = limits(asked.get("window"), asked.get("is_causal", False), asked.get("align", "start"), n, n_k)
    limited = masks.Asked(None, None, *within, 0.3, asked.get("softcap", 0.0), None, False)
    given = {name: asked.get(name) for name in ("cu_seqlens", "key_padding_mask", "key_ranges")}
    rest = masks.ranged(q, k, limited, given)
    out, lse = operators.forward_on_gpu(q, k, v, *rest)
    dL = torch.randn_like(lse).masked_fill(lse.isinf(), 0.0)
    made = operators.backward_on_gpu(dO, dL, q, k, v, out, lse, *rest)
    x = [each.double().requires_grad_() for each in (q, k, v)]
    true, true_lse = torch.ops.pebblesim.attention(*x, *rest)
    assert (lse.isinf() == true_lse.isinf()).all()
    close(
        [out.double(), lse.masked_fill(lse.isinf(), 0.0).double()], [true, true_lse.masked_fill(lse.isinf(), 0.0)], 4e-3
    )
    right = torch.autograd.grad((true, true_lse.masked_fill(lse.isinf(), 0.0)), x, (dO.double(), dL.double()))
    for found, each in zip(made, right, strict=True):
        assert float((found.double() - each).norm()) <= 2e-3 * float(each.norm())


@pytest.mark.parametrize(
    ("n", "d", "heads", "mask", "scale", "workspace"),
    [
        ((70, 70), (24, 24), (2, 2), (None, None, False), None, None),
        ((33, 33), (40, 8), (2, 1), (None, 0, False), 0.7, None),
        ((1, 1), (3, 5), (1, 1), (None, 0, False), None, None),
        ((1, 50), (24, 40), (4, 1), (None, None, False), None, None),
        ((40, 21), (20, 20), (4, 2), (None, 0, False), None, None),
        ((19, 50), (20, 20), (2, 2), (None, 0, False), None, None),
        ((19, 50), (20, 20), (2, 2), (None, 0, True), None, None),
        ((70, 61), (320, 300), (3, 3), (None, 0, False), 0.0, 32 * 64 * 2),
        pytest.param((70, 70), (320, 320), (1, 1), (None, None, False), 0.5, 32 * 96 * 2, marks=pytest.mark.slow),
        ((40, 40), (320, 320), (4, 4), (None, 0, False), None, 2 * 40 * 40 * 2),
        ((35, 41), (24, 16), (6, 2), (None, 0, True), None, None),
    ],
)
@pytest.mark.parametrize("layout", ["heads first", "tokens first", "cut from wider"])
def test_kernels_by_the_interpreter(
    interpreted: Any,
    n: tuple[int, int],
    d: tuple[int, int],
    heads: tuple[int, int],
    mask: tuple[int | None, int | None, bool],
    scale: float | None,
    workspace: int | None,
    layout: str,
) -> None:
    torch.manual_seed(sum(n))
    (n_q, n_k), (d_k, d_v), (h, kv) = n, d, heads
    shapes = (2, h, n_q, d_k), (2, kv, n_k, d_k), (2, kv, n_k, d_v), (2, h, n_q, d_v)
    given = [laid(torch.randn(shape).half(), layout) for shape in shapes]
    rest = (None, None, *mask, d_k**-0.5 if scale is None else scale, 0.0, workspace, False)
    check_kernels(given, rest, False)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("of", ["heads", "batches", "afterwards"])
@pytest.mark.parametrize("passes", [*PASSES, *OF_SINKS])
@pytest.mark.parametrize("mask", ["window", "ranges"])
def test_kernels_with_sinks(interpreted: Any, monkeypatch: Any, passes: str, mask: str, of: str) -> None:
    """Also of queries without a key, whose L is the sink's, from far below the scores to far above them.

    Tables have room for some heads at a time. Sinks are of all batches, in 16 bits, or of each batch, in 32 bits; or O
    and L get them behind kernels without.
    """
    monkeypatch.setattr(operators_of_sinks, "BEGIN_WITH_SINKS", of != "afterwards")
    interpreted(*((each,) for each in (PASSES | OF_SINKS)[passes]))
    n_q, n_k, heads, batch = 70, 40, 4, 2
    draw = torch.Generator().manual_seed(0)
    x = [
        torch.randn(batch, *shape, 16, generator=draw).half()
        for shape in ((heads, n_q), (2, n_k), (2, n_k), (heads, n_q))
    ]
    sinks = torch.tensor([[-torch.inf, -3.0, 1.0, 9.0], [2.0, -torch.inf, 0.0, -20.0]])
    sinks = sinks if of == "batches" else sinks[0].bfloat16()
    i, j = torch.arange(n_q)[:, None], torch.arange(n_k)
    if mask == "window":
        rest, allowed = (None, None, 9, 0, True), (j <= i + n_k - n_q) & (j >= i + n_k - n_q - 9)
    else:
        ends = torch.where(i < 34, i // 3, i // 2)  # a tile of queries that have no key, and one of which some have
        first, end = (i[:, 0] // 3)[None].int(), ends[:, 0][None].int()
        rest, allowed = (first, end, None, None, False), (j >= i // 3) & (j < ends)
    assert not allowed.any(-1).all()
    rest = *(each if each is None else each.expand(batch, -1).contiguous() for each in rest[:2]), *rest[2:]
    rest = *rest, 0.3, 0.0, None if passes in ("flash", "decoding", "wide decoding") else 40_000, False
    out, lse = operators_of_sinks._on_gpu(*x[:3], sinks, *rest)
    dL = torch.randn(lse.shape, generator=draw).masked_fill(lse.isinf(), 0.0)
    made = operators_of_sinks._backward_on_gpu(x[3], dL, *x[:3], out, lse, sinks, *rest)
    assert made[3].shape == sinks.shape and made[3].dtype == sinks.dtype

    q, k, v, s = (each.double().requires_grad_() for each in (*x[:3], sinks))
    K, V = (each.repeat_interleave(2, 1) for each in (k, v))
    S = (q @ K.mT * 0.3).masked_fill(~allowed, -1e30)
    whole = torch.cat([S, s[..., None, None].expand(batch, heads, n_q, 1).clamp(min=-1e25)], -1)
    O, L = whole.softmax(-1)[..., :-1] @ V, whole.logsumexp(-1) / math.log(2)
    assert torch.equal(lse.isinf(), L < -1e20)
    close([out.double(), lse.masked_fill(lse.isinf(), 0.0).double()], [O, L.masked_fill(L < -1e20, 0.0)], 4e-3)
    true = torch.autograd.grad((O, L), (q, k, v, s), (x[3].double(), dL.double()))
    for found, right in zip(made, true, strict=True):
        assert float((found.double() - right).norm()) <= 4e-3 * float(right.norm())
