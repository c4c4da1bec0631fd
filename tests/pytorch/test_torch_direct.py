"""Commands for the driver of a card: on the CPU, with a stand-in that reads memory as the real one does."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402
from stand_in_card import Card, Run, kernel  # noqa: E402

from pebblesim.operator.known import direct, recorded  # noqa: E402
from pebblesim.operator.known.symbols import Untraced  # noqa: E402
from pebblesim.operator.known.tape import Done, Launched, Place, View, noted, notes  # noqa: E402
from pebblesim.operator.launching import boxes  # noqa: E402
from pebblesim.operator.launching.launch import Torch  # noqa: E402


def described(shape: list[int], strides: list[int]) -> boxes.Boxes:
    return boxes.Boxes(SimpleNamespace(shape=shape, strides=strides, padding="zero"))


def closed(several: direct.Direct) -> direct.Form:
    """The form of commands that are all there."""
    several.close()
    return several.plain()


NUMBERS = {
    "i8": st.integers(-(2**7), 2**7 - 1),
    "i16": st.integers(-(2**15), 2**15 - 1),
    "i32": st.integers(-(2**31), 2**31 - 1),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "u32": st.integers(0, 2**32 - 1),
    "fp32": st.sampled_from([0.5, -3.0, 0.0]),
    "fp64": st.floats(allow_nan=False),
    "constexpr": st.sampled_from([1, None, "x"]),
}


@settings(max_examples=40)
@given(data=st.data())
def test_arguments_reach_the_driver_in_their_order(data: Any) -> None:
    """Drawn kernels of numbers, addresses and descriptors, launched for two sets of addresses and two streams."""
    card, slots = Card(), 4
    steps, kinds = list[Launched](), list[list[Any]]()
    for number in range(data.draw(st.integers(1, 3))):
        types, given, read = list[str](), list[Any](), list[Any]()
        for _ in range(data.draw(st.integers(0, 6))):
            kind = data.draw(st.sampled_from([*NUMBERS, "*bf16", "*fp32", "tensordesc<bf16[1, 64, 32],Layout()>"]))
            place = Place(data.draw(st.integers(0, slots - 1)), 16 * data.draw(st.integers(0, 9)))
            types.append(kind)
            if kind in NUMBERS:
                given.append(data.draw(NUMBERS[kind]))
                read += [] if kind == "constexpr" else [(kind, given[-1])]
            elif kind[0] == "*":
                given.append(place)
                read.append((kind, place))
            else:
                lengths = [data.draw(st.integers(1, 2**20)) for _ in "abc"]
                given.append((described(lengths, [lengths[1] * 64, 64, 1]), place))
                read += [("map", place), *(("i32", n) for n in lengths)]
                read += [("i64", lengths[1] * 64), ("i64", 64), ("i64", 1)]
        card.kinds[number + 1] = [kind for kind, _ in read]
        kinds.append(read)
        grid = tuple(data.draw(st.integers(1, 99)) for _ in "xyz")
        steps.append(Launched(kernel(number + 1, types, warps=number + 1), grid, tuple(given)))
    several = direct.Direct(card.driver, {}, list[int]().append)
    assert all(several.add(each) for each in steps)
    form = closed(several)
    for places, stream in (([2**20 * each for each in (1, 2, 3, 4)], 7), ([2**40, 2**21, 2**30, 2**35], 9)) * 2:
        card.launches.clear()
        several(places, stream, form)
        for step, read, made in zip(steps, kinds, card.launches, strict=True):
            values = [places[each.slot] + each.offset if isinstance(each, Place) else each for _, each in read]
            expected = step.kernel.function, step.grid, (32 * step.kernel.function, 1, 1), 96, stream, values
            assert made == expected


def test_a_descriptor_is_described_as_triton_does() -> None:
    card = Card()
    card.kinds[1] = ["map", *["i32"] * 3, *["i64"] * 3]
    several = direct.Direct(card.driver, {}, list[int]().append)
    one = kernel(1, ["tensordesc<bf16[1, 64, 32],Layout()>"])
    one.made_as[0]["elem_type"] = 8  # as Triton numbers it for the device
    assert several.add(Launched(one, (1, 1, 1), ((described([5, 300, 40], [12000, 40, 1]), Place(0, 0)),)))
    closed(several)
    lengths, strides, box, ones = [40, 300, 5], [80, 24000], [32, 64, 1], [1, 1, 1]
    assert card.described == (10, lengths, strides, box, ones, 0, 3, 2, 0)


@pytest.mark.parametrize("at", [0, 3, 100])
def test_a_descriptor_that_has_its_address_elsewhere_is_left_to_triton(at: int) -> None:
    """Addresses are written over the first word of a descriptor, so nothing else in it may depend on them."""
    card = Card()
    direct._encoder_of.cache_clear()

    def encode(where: int, kind: int, rank: int, address: int, *rest: Any) -> int:
        ctypes.memmove(where, address.to_bytes(8, "little"), 8)
        ctypes.memmove(where + at, bytes([address >> 40 & 255]), 1)
        return 0

    card.driver.describe = encode
    several = direct.Direct(card.driver, {}, list[int]().append)
    one = kernel(1, ["tensordesc<bf16[1, 64, 32],Layout()>"])
    one.made_as[0]["elem_type"] = 8
    assert several.add(Launched(one, (1, 1, 1), ((described([5, 300, 40], [12000, 40, 1]), Place(0, 0)),)))
    with pytest.raises(Untraced):
        closed(several)


def test_only_what_the_driver_does_alike_is_given_to_it() -> None:
    """Clusters, Triton's profiler, other types and views that are no rows are left to Triton and PyTorch."""

    def taken(step: Any, types: Any = None) -> bool:
        return direct.Direct(Card().driver, types or {}, list[int]().append).add(step)

    plain = ["i32"]
    assert taken(Launched(kernel(1, plain), (1, 1, 1), (5,)))
    for other in ({"run": Run(profile_scratch_size=8)}, {"metadata": (4, 2, 0)}, {"run": Run(launch_pdl=True)}):
        assert not taken(Launched(kernel(1, plain, **other), (1, 1, 1), (5,)))
    assert not taken(Launched(kernel(1, ["(i32, i32)"]), (1, 1, 1), ((5, 6),)))
    assert not taken(Launched(kernel(1, plain), (1, 1, 1), (5, 6)))
    wide, narrow = View(0, 0, torch.Size([3, 5]), (8, 1)), View(1, 2, torch.Size([3, 5]), (5, 1))
    kinds = {0: torch.float32, 1: torch.float32}
    fill, copy = torch.Tensor.fill_, torch.Tensor.copy_
    assert taken(Done(fill, (narrow, 0.0), {}, ()), kinds) and taken(Done(copy, (wide, narrow), {}, ()), kinds)
    assert not taken(Done(fill, (wide, 0.0), {}, ()), kinds)
    assert not taken(Done(fill, (narrow, 1.0), {}, ()), kinds)
    assert not taken(Done(fill, (narrow, 0.0), {}, ()), {1: torch.bfloat16})
    assert not taken(Done(fill, (narrow, wide), {}, ()), kinds)
    assert not taken(Done(copy, (wide, narrow), {}, ()), kinds | {1: torch.bfloat16})
    turned, repeated = View(1, 0, torch.Size([3, 5]), (1, 3)), View(1, 0, torch.Size([3, 5]), (0, 1))
    one = View(1, 0, torch.Size([1, 5]), (5, 1))
    for other in (turned, repeated, one):
        assert not taken(Done(copy, (wide, other), {}, ()), kinds)
    assert not taken(Done(torch.Tensor.mul_, (wide, narrow), {}, ()), kinds)


def test_a_thread_without_a_context_gets_one_and_other_errors_are_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    card = Card()
    card.kinds[1] = ["i32"]
    several = direct.Direct(card.driver, {}, list[int]().append)
    assert several.add(Launched(kernel(1, ["i32"]), (1, 1, 1), (5,)))
    form = closed(several)
    card.fails = [201]
    several([0], 7, form)
    assert card.entered == 1 and len(card.launches) == 1
    card.fails = [700]
    with pytest.raises(RuntimeError, match="error 700"):
        several([0], 7, form)
    assert len(card.launches) == 1


def test_a_kernel_that_takes_memory_while_it_runs_gets_it_for_all_blocks() -> None:
    """It is the last argument but one, at the address of a slot that is made for it."""
    card, rooms = Card(), list[int]()

    def room(size: int) -> int:
        rooms.append(size)
        return 1

    card.kinds[1] = ["i32", "u64"]
    several = direct.Direct(card.driver, {}, room)
    assert several.add(Launched(kernel(1, ["i32"], run=Run(global_scratch_size=96)), (5, 3, 1), (5,)))
    form = closed(several)
    assert rooms == [96 * 15]
    card.rooms = 1
    several([0, 2**20], 7, form)
    assert card.launches[0][-1] == [5, 2**20]


def test_threads_do_not_take_each_others_addresses() -> None:
    """Each thread's launches have its own addresses, though all write them to one place."""
    card, wrong = Card(), list[Any]()
    card.kinds[1] = ["*fp32", "*fp32"]
    several = direct.Direct(card.driver, {}, list[int]().append)
    step = Launched(kernel(1, ["*fp32", "*fp32"]), (1, 1, 1), (Place(0, 0), Place(1, 0)))
    assert several.add(step) and several.add(step)
    form = closed(several)
    card.kernels[1] = lambda one, other: wrong.append((one, other)) if other != one + 1 else None

    def work(number: int) -> None:
        for turn in range(200):
            several([1000 * number + turn, 1000 * number + turn + 1], number, form)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong and len(card.launches) == 1600
    for one, other in zip(card.launches[::2], card.launches[1::2], strict=True):
        assert one == other and one[5][0] // 1000 == one[4]


@settings(max_examples=15)
@given(heads=st.integers(1, 3), n=st.integers(1, 20), wanted=st.booleans())
def test_a_pass_in_one_piece_of_memory_gives_what_it_gave(heads: int, n: int, wanted: bool) -> None:
    """Rows that are copied to wider ones, sums that begin with zeros, kernels, and an operation of PyTorch between."""
    card, wide = Card(), -(-n // 16) * 16
    card.kinds = {1: ["*fp32", "*fp32", "i32"], 2: ["*fp32", "*fp32", "*fp32"]}
    kinds = {number: list(each) for number, each in card.kinds.items()}

    def at(address: int, number: int) -> Any:
        return np.frombuffer((ctypes.c_char * (4 * number)).from_address(address), dtype=np.float32)

    def add(one: int, other: int, number: int) -> None:
        at(other, number)[:] += at(one, number)

    def together(rows: int, sums: int, out: int) -> None:
        one = at(rows, heads * wide).reshape(heads, wide)[:, :n]
        at(out, heads * n)[:] = one.flatten() + at(sums, heads * n)

    card.kernels = {1: add, 2: together}
    made = {number: kernel(number, kinds[number]) for number in kinds}

    def launched(number: int, *given: Any) -> None:
        card.kernels[number](*(each.data_ptr() if isinstance(each, torch.Tensor) else each for each in given))
        notes() and notes().launched(made[number], (1, 1, 1), given)  # type: ignore[union-attr]

    def call(x: Any) -> Any:
        rows = Torch.empty((heads, wide), dtype=torch.float32)
        rows[:, :n].copy_(x)
        sums, out = (Torch.empty((heads, n), dtype=torch.float32) for _ in "ab")
        sums.fill_(0.0)
        launched(1, x, sums, heads * n)
        if wanted:
            sums.mul_(2.0)
        launched(2, rows, sums, out)
        return (out,)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorded, "driver", lambda: card.driver)
        patched.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
        patched.setattr(recorded, "launch", lambda one, grid, stream, given: card.kernels[one.function](*given))
        x = torch.randn(heads, n)
        with noted([x]) as written:
            views = [written.view(each) for each in call(x)]
        again = recorded.again(written, views, [x])
        assert isinstance(again, recorded.Again if wanted else recorded.Found)
        for _ in range(3):
            x = torch.randn(heads, n + 4 - n % 4)[:, :n].contiguous()
            if x.data_ptr() % 16 == 0:
                (found,) = again.if_room([x])
                assert (found == call(x)[0]).all()


def test_a_pass_has_the_memory_that_its_kernels_take_while_they_run() -> None:
    """No step speaks of it; it is none of what the pass returns, and large enough for all blocks."""
    card, scratch = Card(), list[int]()
    card.kinds, card.rooms = {1: ["*fp32", "*fp32", "u64"]}, 1
    one = kernel(1, ["*fp32", "*fp32"], run=Run(global_scratch_size=96))

    def work(x: int, out: int, room: int) -> None:
        scratch.append(room)
        ctypes.memset(room, 255, 96 * 15 * bool(room))
        ctypes.memmove(out, x, 4 * 8)

    card.kernels = {1: work}

    def call(x: Any) -> Any:
        out = Torch.empty((8,), dtype=torch.float32)
        notes() and notes().launched(one, (5, 3, 1), (x, out))  # type: ignore[union-attr]
        return (out,)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorded, "driver", lambda: card.driver)
        patched.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
        x = torch.randn(8)
        with noted([x]) as written:
            views = [written.view(each) for each in call(x)]
        again = recorded.again(written, views, [x])
        (found,) = again.if_room([x])
    assert scratch[0] > 2**12 and torch.equal(found, x)


def test_fills_and_copies_begin_within_their_memory() -> None:
    """Parts of a memory that do not begin where it does, as PyTorch fills and copies them."""
    card, kinds = Card(), {0: torch.float32, 1: torch.float32}
    several = direct.Direct(card.driver, kinds, list[int]().append)
    parts = (3, (2, 2), (2, 1)), (9, (2, 3), (5, 1)), (5, (2, 3), (4, 1))
    filled, to, of = (
        View(slot, at, torch.Size(shape), by) for slot, (at, shape, by) in zip((0, 0, 1), parts, strict=True)
    )
    assert several.add(Done(torch.Tensor.fill_, (filled, 0.0), {}, ()))
    assert several.add(Done(torch.Tensor.copy_, (to, of), {}, ()))
    form = closed(several)
    x = [torch.randn(20) for _ in "ab"]
    right = [each.clone() for each in x]
    several([each.data_ptr() for each in x], 7, form)
    views = [right[slot].as_strided(shape, by, at) for slot, (at, shape, by) in zip((0, 0, 1), parts, strict=True)]
    views[0].fill_(0.0)
    views[1].copy_(views[2])
    assert all((one == other).all() for one, other in zip(x, right, strict=True))
