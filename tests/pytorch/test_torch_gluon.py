"""The Gluon kernels behind the operator: on the CPU, by the interpreter and with stand-ins for what launches them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import nan
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import interpreted_kernels  # noqa: E402
from hypothesis import HealthCheck, given, settings, strategies as st  # noqa: E402
from tensors import check_kernels, close, laid  # noqa: E402

from pebblesim.advice import cards, tiles  # noqa: E402
from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.kernels.key_ranges import KeyRanges  # noqa: E402
from pebblesim.operator import masks, planning, public  # noqa: E402
from pebblesim.operator.cuts import Cut  # noqa: E402
from pebblesim.operator.distributed import parallel  # noqa: E402
from pebblesim.operator.heads import parts as parts_of_heads  # noqa: E402
from pebblesim.operator.launching import boxes, fresh, launch as launch_of_kernels, launching  # noqa: E402
from pebblesim.operator.launching.layout import BYTES, numbers_from  # noqa: E402
from pebblesim.operator.pattern import Pattern, band_of  # noqa: E402
from pebblesim.operator.planning import chosen, chosen_for_latent  # noqa: E402
from pebblesim.operator.plans import plan  # noqa: E402
from pebblesim.operator.sinks import operators as operators_of_sinks  # noqa: E402

H200 = cards.card("H200")
EVERY_PAIR = Pattern()
SIZES = {"n_q": 4096, "n_k": 4096, "d_k": 128, "d_v": 128}


def schedule(way: str, pattern: Pattern = EVERY_PAIR, card: cards.Card = H200, **sizes: int) -> tuple[str, bool]:
    """The schedule that is chosen, and whether its kernels are those of Gluon."""
    found = chosen(way, tuple((SIZES | sizes).items()), 16, "bfloat16", pattern, 2**30, card).forecast.tiling
    return found.schedule, found.gluon


def test_hopper_cards_get_gluon_kernels_and_others_those_of_triton() -> None:
    assert schedule("forward") == ("flash2-forward", True)
    assert schedule("backward") == ("flash2-backward-blocked", True)
    assert schedule("forward", Pattern(band_of(right=0, rows=4), 4), n_q=4 * 4096) == ("flash2-forward", True)
    for card in (replace(H200, capability=""), cards.with_rates(cards.card("A100"))):
        assert not schedule("forward", card=card)[1] and not schedule("backward", card=card)[1]
    for shared in (1, 4):
        assert schedule("forward", Pattern(KeyRanges(rows=shared), shared), n_q=shared * 4096)[1]
        assert schedule("backward", Pattern(KeyRanges(rows=shared), shared), n_q=shared * 4096)[1]
    for pattern in (Pattern(softcap=1.0), Pattern(KeyRanges(rows=3), 3), Pattern(shared=3), Pattern(shared=128)):
        assert not schedule("forward", pattern)[1] and not schedule("backward", pattern)[1]
    assert not schedule("forward", d_k=20, d_v=20)[1]  # rows do not begin where the copy engine can


def test_the_same_bits_at_each_call_take_kernels_that_add_nothing_to_memory() -> None:
    assert schedule("backward", Pattern(same_bits=True))[0] != "flash2-backward-blocked"
    assert schedule("forward", Pattern(same_bits=True)) == schedule("forward")


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Tensors on the CPU go through Gluon kernels, run by the interpreter; the schedules that were used."""
    used: list[str] = []

    def module_of(text: str) -> Any:
        used.append(text.partition(":")[0].strip('"'))
        assert "import gluon" in text
        return interpreted_kernels.module_of(text)

    monkeypatch.setattr(launching, "module_of", module_of)
    monkeypatch.setattr(launching, "card_of", lambda *given: H200)
    monkeypatch.setattr(tiles, "TILINGS", {"forward": (), "backward-qkv": ()})

    interpreted_kernels.forget()
    with fresh.filled(nan):
        yield used
    interpreted_kernels.forget()


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    shared, kv_heads = draw(st.sampled_from([1, 2, 8])), draw(st.integers(1, 2))
    n_q, n_k = draw(st.integers(1, 150)), draw(st.integers(1, 150))
    mask = draw(st.sampled_from([(None, None, False), (None, 0, False), (None, 0, True), (40, 0, False), (9, 4, True)]))
    sizes = (draw(st.integers(1, 2)), shared * kv_heads, kv_heads, n_q, n_k)
    d = draw(st.sampled_from([32, 64, 72]))
    layout = draw(st.sampled_from(["heads first", "tokens first", "cut from wider"]))
    others = {"same": draw(st.booleans()), "with_sinks": draw(st.booleans())}
    return {"sizes": sizes, "d": d, "mask": mask, "layout": layout, **others}


def check(
    sizes: tuple[int, ...], d: int, mask: tuple[Any, ...], layout: str, same: bool, with_sinks: bool = False
) -> None:
    batch, heads, kv_heads, n_q, n_k = sizes
    torch.manual_seed(n_q)
    shapes = (batch, heads, n_q, d), (batch, kv_heads, n_k, d), (batch, kv_heads, n_k, d), (batch, heads, n_q, d)
    given = [laid(torch.randn(shape).half(), layout) for shape in shapes]
    sinks = torch.randn(batch, heads).masked_fill(torch.arange(heads) == 0, -torch.inf) if with_sinks else None
    check_kernels(given, (None, None, *mask, d**-0.5, 0.0, None, same), True, sinks)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases())
def test_drawn_cases_of_the_operator(interpreted: list[str], case: dict[str, Any]) -> None:
    check(**case)


@pytest.mark.parametrize(
    ("sizes", "mask", "layout", "same", "backward", "sinks"),
    [
        ((2, 4, 2, 35, 41), (None, 0, True), "tokens first", False, "flash2-backward-blocked", False),
        ((2, 4, 2, 35, 41), (9, 4, True), "heads first", False, "flash2-backward-blocked", True),
        ((1, 2, 2, 33, 33), (None, None, False), "cut from wider", True, "backward-two-pass-blocked", False),
        ((1, 4, 1, 33, 33), (None, None, False), "tokens first", True, "backward-two-pass-blocked", True),
    ],
)
def test_the_operator_by_gluon_kernels(
    interpreted: list[str], monkeypatch: Any, sizes: Any, mask: Any, layout: str, same: bool, backward: str, sinks: bool
) -> None:
    offered = {"flash2-forward", "flash2-backward-blocked", backward}
    monkeypatch.setattr(tiles, "HOPPER", tuple(tiling for tiling in tiles.HOPPER if tiling.schedule in offered))
    check(sizes, 32, mask, layout, same, sinks)
    assert interpreted == ["flash2-forward", backward]


@pytest.mark.parametrize("sinks", [None, torch.tensor([-torch.inf, -3.0, 1.0, 9.0, 0.0, 2.0, -torch.inf, 4.0])])
@pytest.mark.parametrize(("together", "schedule"), [(True, "flash2-latent"), (False, "scores-stored-resident")])
def test_values_that_are_a_part_of_the_keys_are_read_with_them(
    interpreted: list[str], together: bool, schedule: str, sinks: Any
) -> None:
    torch.manual_seed(1)
    q, k = torch.randn(1, 8, 3, 288).half(), torch.randn(1, 2, 70, 288).half()
    v = k[..., :264] if together else k[..., :264].clone()
    rest = (None, None, None, None, False, 288**-0.5, 0.0, None, False)
    out, L = operators_of_sinks.forward(q, k, v, sinks, masks.Asked(*rest))
    wide = q.double(), k.double(), v.double()
    if sinks is None:
        true = torch.ops.pebblesim.attention(*wide, *rest)
    else:
        true = torch.ops.pebblesim.attention_with_sinks(*wide, sinks.double()[None], *rest)
    close([out.double(), numbers_from(L, q, 2).double()], list(true), 4e-3)
    assert interpreted == [schedule]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("mask", "forward"), [((None, None), "flash2-latent"), ((None, 0), "scores-stored-resident")])
def test_latent_attention_of_many_heads_is_trained(interpreted: list[str], mask: Any, forward: str) -> None:
    """Values are the first 512 of 576 columns of keys, which 128 heads share; their gradients are those of both."""
    torch.manual_seed(2)
    q, k = torch.randn(1, 128, 2, 576).half(), torch.randn(1, 1, 70, 576).half()
    given = [q, k, k[..., :512], torch.randn(1, 128, 2, 512).half()]
    check_kernels(given, (None, None, *mask, True, 576**-0.5, 0.0, None, True), True)
    assert interpreted == [forward, "small-cache-backward-resident"]


BACK_IN_PARTS = {
    "one head of four": ((2, 8, 2, 35, 41), Cut(1, 1, (35,))),
    "two heads of four": ((1, 8, 2, 35, 41), Cut(1, 2, (35,))),
    "two parts of queries": ((2, 4, 2, 150, 150), Cut(1, 2, (128, 150))),
    "of two KV heads": ((1, 8, 4, 150, 150), Cut(2, 2, (128, 150))),
    "of both batches, with more keys": ((2, 2, 2, 140, 150), Cut(4, 1, (128, 140))),
}
"""Batches, heads, KV heads, queries and keys, and what is computed at once."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", BACK_IN_PARTS)
def test_a_backward_pass_in_parts(interpreted: list[str], monkeypatch: Any, case: str) -> None:
    """Each part adds its terms of dK and dV; the gradient of L and of sinks are those of all parts, too."""
    (sizes, cut), whole = BACK_IN_PARTS[case], "small-cache-backward-resident"
    offered = {"flash2-forward", whole}
    monkeypatch.setattr(tiles, "HOPPER", tuple(tiling for tiling in tiles.HOPPER if tiling.schedule in offered))
    first = planning._first

    def without_rounds(asked: planning.Pass, *given: Any) -> Any:
        if asked.way == "backward" and asked.room is not None:
            raise UsageError("no kernels for some heads at a time")
        return first(asked, *given)

    monkeypatch.setattr(planning, "_first", without_rounds)
    monkeypatch.setattr(planning, "ways_to_cut", lambda *given: [cut])
    torch.manual_seed(3)
    batch, heads, kv_heads, n_q, n_k = sizes
    shapes = (batch, heads, n_q, 32), (batch, kv_heads, n_k, 32), (batch, kv_heads, n_k, 32), (batch, heads, n_q, 32)
    given = [laid(torch.randn(shape).half(), "tokens first") for shape in shapes]
    room = planning.chosen(
        "backward",
        tuple({"n_q": n_q * heads // kv_heads, "n_k": n_k, "d_k": 32, "d_v": 32}.items()),
        batch * kv_heads,
        "float16",
        Pattern(shared=heads // kv_heads),
        None,
        H200,
    ).bytes
    mask = (None, 0, n_k > n_q)
    check_kernels(given, (None, None, *mask, 32**-0.5, 0.0, room - 1, False), True, torch.randn(batch, heads))
    assert interpreted == ["flash2-forward", tiles.IN_PARTS[whole]]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("backward", "d", "parts"),
    [
        ("flash2-backward-blocked", 32, 2),
        ("backward-two-pass-blocked", 32, 4),
        ("dS-stored-resident", 32, 2),
        ("small-cache-backward-resident", 32, 2),
    ],
)
def test_heads_that_share_keys_in_parts(
    interpreted: list[str], monkeypatch: Any, backward: str, d: int, parts: int
) -> None:
    """Each part has its own gradients of keys, in float32, which are added up."""
    offered = {"flash2-forward", backward}
    monkeypatch.setattr(tiles, "HOPPER", tuple(tiling for tiling in tiles.HOPPER if tiling.schedule in offered))
    asked: list[int] = []

    def some(dims: Any, heads: int, *rest: Any) -> int:
        asked.append(heads)
        return parts

    monkeypatch.setattr(launching, "long_enough", lambda *given: True)
    monkeypatch.setattr(launching, "parts_of_heads", some)
    check((1, 8, 2, 35, 41), d, (None, 0, True), "tokens first", False, True)
    assert interpreted == ["flash2-forward", backward] and asked == [2]


def test_passes_whose_blocks_are_few_take_heads_in_parts() -> None:
    """138 blocks for 132 multiprocessors are two rounds; with as many heads of keys as blocks fill, none is idle."""
    card = cards.with_rates(H200)

    def parts(n: int, d: int, heads: int, kv_heads: int, room: int = 2**30, **others: Any) -> int:
        shared = heads // kv_heads
        pattern = Pattern(band_of(right=0, rows=shared), shared, **others)
        dims = tuple({"n_q": n * shared, "n_k": n, "d_k": d, "d_v": d}.items())
        if not parts_of_heads.long_enough(dims, kv_heads, "bfloat16", pattern, room, card):
            return 1
        return parts_of_heads.parts_of_heads(dims, kv_heads, "bfloat16", pattern, room, card)

    assert parts(8704, 96, 16, 2) > 1 and parts(16384, 128, 8, 1) > 1
    assert parts(4096, 128, 32, 8) == 1  # 256 blocks of different lengths
    assert parts(8704, 96, 16, 16) == parts(512, 96, 16, 2) == parts(8704, 96, 16, 2, gluon=False) == 1
    assert parts(8704, 96, 16, 2, 2**20) == 1  # copies of keys have no room
    made = plan(8730, 96, 16, kv_heads=2, is_causal=True)
    assert made.side_by_side is not None and made.side_by_side[0] == parts(9216, 96, 16, 2)
    assert 1.5 * made.side_by_side[1].seconds < made.backward[0].seconds
    assert any("heads that share keys are in" in line for line in str(made).splitlines())
    assert plan(8730, 96, 16, is_causal=True).side_by_side is None


def test_more_heads_than_a_tile_has_rows_share_keys_that_are_values() -> None:
    dims = (("n_q", 128), ("n_k", 8192), ("d_v", 512), ("d_r", 64))
    found = chosen_for_latent(dims, 64, "bfloat16", Pattern(shared=128), H200)
    assert found is not None and found.forecast.tiling.schedule == "flash2-latent"
    for pattern in (Pattern(shared=96), Pattern(band_of(right=0, rows=128), 128), Pattern(shared=128, softcap=1.0)):
        assert chosen_for_latent(dims, 64, "bfloat16", pattern, H200) is None
    assert chosen_for_latent(dims, 64, "bfloat16", Pattern(shared=128), replace(H200, capability="")) is None
    for d_v, d_r in ((256, 64), (512, 72), (512, 60), (520, 64)):
        others = (*dims[:2], ("d_v", d_v), ("d_r", d_r))
        assert chosen_for_latent(others, 64, "bfloat16", Pattern(shared=128), H200) is None


@dataclass(frozen=True)
class Told:
    """A descriptor as the generated modules make it."""

    base: Any
    box: tuple[int, ...]


def test_a_descriptor_is_made_once_for_each_place_and_keeps_no_memory(monkeypatch: Any) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(boxes, "_arguments", lambda told, made_as: made.append((told.base.address, made_as)) or [told])
    shapes: list[Any] = []
    describe = boxes.remembered(lambda place, *box: shapes.append(place) or Told(place, box))
    x, y = (torch.empty(2, 1, 24, 16).half() for _ in range(2))
    described = [describe(each, 64, 16) for each in (x, y, x)]
    places = [each.data_ptr() for each in (x, y, x)]
    assert [each.address for each in described] == places
    assert [each.boxes.at(each.address, "as")[0].base.address for each in described] == places
    assert len(shapes) == 1 and made == [(place, "as") for place in places[:2]]
    assert not any(isinstance(each, torch.Tensor) for each in vars(shapes[0]).values())
    describe(x[:, :, :7], 64, 16)
    describe(x, 32, 16)
    assert len(shapes) == 3


def test_descriptors_of_many_shapes_and_places_are_not_kept_for_ever(monkeypatch: Any) -> None:
    monkeypatch.setattr(boxes, "_arguments", lambda told, made_as: [told])
    monkeypatch.setattr(boxes, "_MADE", boxes.Recent(8))
    describe = boxes.remembered(lambda place, *box: Told(place, box))
    all_boxes = [describe(torch.empty(1, 1, n, 16).half(), 64, 16).boxes for n in range(1, 7)]
    for address in range(0, 16 * 10, 16):
        for each in all_boxes:
            assert each.at(address, "as")[0].base.address == address
            assert len(boxes._MADE) <= 8


def test_words_from_one_head_to_the_next_do_not_matter_where_there_is_one() -> None:
    place = boxes.Place.of(torch.empty(3, 5, 20, 16)[:, :1, ::2])
    assert place.stride() == (5 * 20 * 16, BYTES, 32, 1) and place.numel() == 3 * 10 * 16


def test_a_launch_takes_descriptors_that_are_made_already(monkeypatch: Any) -> None:
    monkeypatch.setattr(boxes, "_arguments", lambda told, made_as: [told, made_as])
    monkeypatch.setattr(boxes.Boxes, "described", lambda self, address: f"at {address}")
    started: list[Any] = []

    def launched_anew(*given: Any) -> None:
        started.append(("anew", *given))

    launcher = lambda *given: started.append(given)  # noqa: E731
    run = SimpleNamespace(
        launch=lambda *given: launcher(*given), launch_cooperative_grid=0, launch_pdl=1, global_scratch_size=0
    )
    kernel = SimpleNamespace(
        run=run, function="f", packed_metadata="m", metadata=SimpleNamespace(tensordesc_meta=["first", "second"])
    )
    compiled = launch_of_kernels.Compiled(kernel)
    one, other = (boxes.Described(boxes.Boxes(None), address) for address in (16, 32))
    launch_of_kernels.launch(compiled, (1, 2, 1), 7, (one, other, 5, 48))
    assert started == [
        (1, 2, 1, 7, "f", 0, 1, None, None, "m", None, None, None, "at 16", "first", "at 32", "second", 5, 48)
    ]
    run.global_scratch_size = 16  # which Triton's own launcher takes, and gives to the kernel
    assert launch_of_kernels.Compiled(kernel).start is None
    kernel.run = launched_anew  # of a Triton that has it elsewhere
    kernel.run.launch, kernel.run.global_scratch_size = print, 0  # type: ignore[attr-defined]
    started.clear()
    launch_of_kernels.launch(launch_of_kernels.Compiled(kernel), (1, 2, 1), 7, (one, 5))
    assert started == [("anew", 1, 2, 1, 7, "f", "m", None, None, None, "at 16", 5)]


def test_triton_here_has_what_the_kernels_are_made_of() -> None:
    """Gluon, its function that adds to memory, and the launcher that takes descriptors: private parts of Triton."""
    pytest.importorskip("triton")
    assert boxes.gluon_lost() is None, "look at these parts again, then name this release"
    from triton._C.libtriton import gluon_ir, ir
    from triton.backends.nvidia import driver

    assert hasattr(gluon_ir.GluonOpBuilder, "create_async_tma_reduce") and ir.DESCRIPTOR_REDUCE_KIND.ADD is not None

    wrapped = driver.wrap_handle_tensordesc(print, {0: "tensordesc<bf16[1, 16]>"}, None)
    assert boxes.start_of(SimpleNamespace(launch=wrapped)) is print
    assert "make_tensordesc_arg" in vars(driver)


def test_a_grid_of_two_sides_has_a_third_of_one(monkeypatch: Any) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(launch_of_kernels, "launch", lambda made, grid, *others: launched.append(grid))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    kernel = launch_of_kernels.Kernel(None)
    kernel._made[0, (False, True, False)] = "compiled"
    kernel[5, 2](16)
    assert launched == [(5, 2, 1)]


def test_determinism_is_asked_for_by_the_argument_or_by_pytorch(monkeypatch: Any) -> None:
    asked: list[bool] = []
    before = public.masks.Asked
    monkeypatch.setattr(public.masks, "Asked", lambda *given: asked.append(given[-1]) or before(*given))
    x = [torch.randn(1, 1, 4, 16) for _ in range(3)]
    public.attention(*x)
    public.attention(*x, deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        public.attention(*x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == [False, True, True]
    assert before(None, None, None, 0, False, 1.0, 0.0, None, True).pattern(x[0], x[1]).same_bits


def test_devices_heed_the_determinism_that_pytorch_is_asked_for(monkeypatch: Any) -> None:
    asked: list[bool] = []

    def attention(query: Any, *given: Any) -> tuple[Any, Any]:
        asked.append(given[-1])
        return query, query[..., 0]

    monkeypatch.setattr(parallel.torch.ops.pebblesim, "attention", attention)
    x = torch.randn(1, 1, 4, 16)
    for wanted in (False, True):
        torch.use_deterministic_algorithms(wanted)
        try:
            parallel.Kernels(1.0).forward(x, x, x, causal=True)
        finally:
            torch.use_deterministic_algorithms(False)
    assert asked == [False, True]
