"""Backward passes that take the heads that share keys in parts: when, by kernels of the CPU, and as they are traced."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import interpreted_kernels  # noqa: E402
from checkout import ROOT, TESTS  # noqa: E402
from tensors import check_kernels  # noqa: E402

from pebblesim.advice import cards, tiles  # noqa: E402
from pebblesim.kernels.key_ranges import KeyRanges  # noqa: E402
from pebblesim.operator.heads import apart as heads_apart, parts  # noqa: E402
from pebblesim.operator.heads.parts import even_shares  # noqa: E402
from pebblesim.operator.known.tape import noted  # noqa: E402
from pebblesim.operator.launching import fresh, launching  # noqa: E402
from pebblesim.operator.pattern import Pattern, band_of  # noqa: E402
from pebblesim.operator.planning import chosen  # noqa: E402
from pebblesim.operator.plans import plan  # noqa: E402

H200 = cards.card("H200")
ROOM = 2**30


def taken(n: int, shared: int, heads: int = 1, room: int | None = ROOM, **of: Any) -> int:
    """Parts of latent heads, of 576 columns of which 512 are the values."""
    dims = (("n_q", n * shared), ("n_k", n), ("d_k", of.pop("d_k", 576)), ("d_v", of.pop("d_v", 512)))
    card, pattern = of.pop("card", H200), Pattern(shared=shared)._replace(**of)
    return parts.parts_of_heads(dims, heads, "bfloat16", pattern, room, card)


def test_few_keys_of_many_heads_are_taken_in_parts() -> None:
    """As many parts as there are multiprocessors for tiles of 128 keys; none where that would not be faster."""
    assert taken(1024, 128) == 16 and taken(2048, 64) == 8 and taken(1024, 128, mask=band_of(right=0, rows=128)) == 16
    assert taken(4096, 16) == taken(16384, 16) == 1  # tiles enough
    assert taken(1024, 128, heads=16) == taken(1024, 1, heads=2) == taken(256, 16) == 1  # heads enough; one; too short
    assert taken(1024, 96, d_k=128, d_v=128) == 1  # other schedules were not measured so
    assert taken(1024, 128, gluon=False) == taken(1024, 128, card=cards.with_rates(cards.card("A100"))) == 1


def test_a_plan_says_what_parts_cost() -> None:
    """The words are those of docs/hopper.md."""
    made, causal = (plan(1024, 576, 128, kv_heads=1, d_v=512, is_causal=causal) for causal in (False, True))
    summed = 2 * 1024 * (11 * 576 + 16 * 512)  # shares of 4 pairs of 3 tiles, and of 2, for 132 multiprocessors
    for each, words in ((made, 32 * 1024 * 1088), (causal, summed)):
        (line,) = (line for line in str(each).splitlines() if "besides" in line)
        assert f"{17 * 1024 * 1088:,} words of 16 bits and {words:,} of float32" in line
    assert made.side_by_side is not None and made.side_by_side[0] == 16
    assert made.side_by_side[1].seconds < 0.7 * made.backward[0].seconds
    assert plan(4096, 576, 16, kv_heads=1, d_v=512).side_by_side is None


@pytest.mark.parametrize(
    ("n_k", "d_k", "d_v", "groups", "parts", "shares"),
    [
        (1024, 576, 512, 1, 16, {"dK": 11, "dV": 16}),
        (2048, 576, 512, 1, 8, {"dK": 5, "dV": 8}),
        (1024, 576, 512, 1, 8, None),  # 8 shares of 12 pairs
        (4096, 576, 512, 2, 2, None),  # more pairs than multiprocessors
        (8730, 192, 192, 2, 2, None),  # one share of 70 pairs
    ],
)
def test_shares_are_taken_where_multiprocessors_have_even_ones(
    n_k: int, d_k: int, d_v: int, groups: int, parts: int, shares: dict[str, int] | None
) -> None:
    tiling = next(each for each in tiles.HOPPER if each.schedule == "small-cache-backward-resident" and each.rows == 0)
    tiling = replace(tiling, blocks={"a": 128, "b": 128, "c": 64, "e": 192})
    dims, causal = (("n_q", 2**16), ("n_k", n_k), ("d_k", d_k), ("d_v", d_v)), Pattern(band_of(right=0))
    assert even_shares(tiling, dims, groups, parts, causal, H200) == shares
    assert even_shares(tiling, dims, groups, parts, Pattern(), H200) is None
    two_pass = next(each for each in tiles.HOPPER if each.schedule == "backward-two-pass-blocked")
    assert even_shares(two_pass, dims, groups, parts, causal, H200) is None


def test_parts_need_room() -> None:
    dims = (("n_q", 2**17), ("n_k", 1024), ("d_k", 576), ("d_v", 512))
    needed = parts.bytes_of_parts(dims, 1, 16, "bfloat16")
    assert needed == 16 * 1024 * (576 + 512) * (2 + 4)
    assert taken(1024, 128, room=needed - 1) == 1
    own, some = parts.of_part_of_heads(Pattern(shared=128), 16), parts.sizes_of_part(dims, 16)
    assert chosen("backward", some, 16, "bfloat16", own, None, H200).bytes + needed < ROOM


def test_heads_are_taken_together_while_less_memory_is_free_than_their_parts_take(monkeypatch: Any) -> None:
    """What is free follows from a stand-in for PyTorch; with a workspace it is not asked."""
    for name in ("memory_reserved", "memory_allocated", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: 0)
    monkeypatch.setattr(launching, "card_of", lambda *given: H200)
    q, kv = torch.empty(1, 128, 1024, 576).half(), torch.empty(1, 1, 1024, 576).half()
    given = {"Q": q, "K": kv, "V": kv[..., :512]}

    def parts_with(free: int, workspace: int | None = None) -> int:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2**40))
        return launching.groups_of(given, {}, launching.Setting(Pattern(shared=128), 0.1, workspace))

    needed = 16 * 1024 * (576 + 512) * (2 + 4)
    assert parts_with(needed) == parts_with(needed - 1, ROOM) == 16 and parts_with(needed - 1) == 1
    with noted([q]) as written:
        assert parts_with(needed - 1) == 1
    assert written.other  # others are launched again


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Tensors on the CPU go through Gluon kernels, run by the interpreter; the texts of these."""
    texts: list[str] = []

    def module_of(text: str) -> Any:
        texts.append(text)
        return interpreted_kernels.module_of(text)

    offered = {"flash2-forward", "small-cache-backward-resident"}
    monkeypatch.setattr(launching, "module_of", module_of)
    monkeypatch.setattr(launching, "card_of", lambda *given: H200)
    monkeypatch.setattr(tiles, "HOPPER", tuple(each for each in tiles.HOPPER if each.schedule in offered))
    monkeypatch.setattr(tiles, "TILINGS", {"forward": (), "backward-qkv": ()})
    interpreted_kernels.forget()
    with fresh.filled(torch.nan):
        yield texts
    interpreted_kernels.forget()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("sizes", "number", "mask", "sinks", "together", "in_shares"),
    [
        ((1, 4, 1, 9, 70), 4, (None, None, False), False, True, None),
        ((2, 4, 2, 20, 41), 2, (None, 0, True), True, False, None),
        ((1, 8, 2, 10, 41), 4, (9, 4, True), False, False, None),
        ((1, 4, 1, 9, 70), 4, (None, None, False), False, True, 3),  # shares of a tile; 3 multiprocessors
        ((2, 4, 2, 20, 41), 2, (None, 0, True), True, False, 1),  # one share of each group
        ((1, 4, 1, 300, 300), 4, (None, 0, True), False, True, 1),  # three tiles, one of which has no other
        ((1, 4, 1, 200, 200), 4, (None, 0, True), True, False, 3),  # a pair of tiles
        ((1, 4, 1, 150, 200), 2, (60, 4, True), False, False, 2),
    ],
)
def test_gradients_of_parts_are_added_up(
    interpreted: list[str],
    monkeypatch: Any,
    sizes: Any,
    number: int,
    mask: Any,
    sinks: bool,
    together: bool,
    in_shares: int | None,
) -> None:
    """Against the definition: batches, sinks, values that are a part of keys, and words of all parts in float32.

    `in_shares`: how many shares the terms of a pair of tiles have, where blocks have shares.
    """
    batch, heads, kv_heads, n_q, n_k = sizes
    seen: list[Any] = []
    monkeypatch.setattr(launching, "long_enough", lambda *given: True)
    monkeypatch.setattr(launching, "parts_of_heads", lambda *given: number)
    monkeypatch.setattr(launching, "even_shares", lambda *given: in_shares is not None)
    sums = heads_apart.add_up
    monkeypatch.setattr(heads_apart, "add_up", lambda made, to, many: (seen.append((made, many)), sums(made, to, many)))
    torch.manual_seed(n_q)
    q, k, v = (torch.randn(batch, h, n, 32).half() for h, n in ((heads, n_q), (kv_heads, n_k), (kv_heads, n_k)))
    v = k[..., :16] if together else v
    given = [q, k, v, torch.randn(batch, heads, n_q, v.shape[-1]).half()]
    rest = (None, None, *mask, 0.2, 0.0, None, True)
    check_kernels(given, rest, True, torch.randn(batch, heads) if sinks else None)
    ((made, many),) = seen
    assert all(made[name].dtype == torch.float32 for name in heads_apart.OF_KEYS)
    assert made["dK"].shape[:2] == (batch, kv_heads * number)
    assert many == dict.fromkeys(heads_apart.OF_KEYS, in_shares or number)
    assert "dV_tiles" not in interpreted[-1] and "dQ_tiles" in interpreted[-1]  # threads store dV and dK


@pytest.mark.one_in(2)
@pytest.mark.parametrize("schedule", ["flash2-backward-blocked", "backward-two-pass-blocked"])
def test_parts_of_heads_read_the_ranges_of_their_batch(interpreted: list[str], monkeypatch: Any, schedule: str) -> None:
    """Two batches with ranges of their own, among them queries without a key; none is that of another batch."""
    monkeypatch.setattr(launching, "long_enough", lambda *given: True)
    monkeypatch.setattr(launching, "parts_of_heads", lambda *given: 2)
    offered = (*(each for each in tiles.HOPPER if each.schedule == "flash2-forward"), *OF_RANGES[schedule])
    monkeypatch.setattr(tiles, "HOPPER", offered)
    torch.manual_seed(5)
    q, k, v = (torch.randn(2, heads, n, 32).half() for heads, n in ((8, 37), (2, 150), (2, 150)))
    first = torch.stack([torch.tensor([0] * 12 + [90] * 25), torch.tensor([70] * 37)]).int()
    end = torch.stack([torch.tensor([90] * 12 + [131] * 25), torch.tensor([70] * 4 + [71] * 33)]).int()
    rest = (first, end, None, None, False, 0.2, 0.0, None, schedule == "backward-two-pass-blocked")
    check_kernels([q, k, v, torch.randn(2, 8, 37, 32).half()], rest, True)
    assert all("first_ptr" in text for text in interpreted) and "above_ptr + " in interpreted[-1]


OF_RANGES = {
    name: tuple(each for each in tiles.HOPPER if each.schedule == name and each.widths[0] == 1)
    for name in ("flash2-backward-blocked", "backward-two-pass-blocked")
}
"""Kernels of narrow heads that read ranges."""


def test_ranges_take_parts_where_a_forecast_takes_them_for_equal() -> None:
    """The longest of several sequences is what a pass waits for, and the forecast is that of one sequence."""
    dims, shared = (("n_q", 4 * 14848), ("n_k", 14848), ("d_k", 128), ("d_v", 128)), 4
    for mask, number in ((KeyRanges(rows=shared), 4), (band_of(right=0, rows=shared), 1)):
        assert parts.parts_of_heads(dims, 2, "bfloat16", Pattern(mask, shared), ROOM, H200) == number


@pytest.mark.slow
@pytest.mark.parametrize("in_shares", [False, True])
def test_passes_in_parts_are_traced(in_shares: bool) -> None:
    """They launch what is launched when nothing is traced, by a stand-in for the driver."""
    pytest.importorskip("triton")
    from pytorch.test_torch_lengths import Told, check

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launching, "long_enough", lambda *given: True)
        patched.setattr(launching, "parts_of_heads", lambda *given: 4)
        if in_shares:
            patched.setattr(launching, "even_shares", lambda *given: True)
        told = Told(patched)
        assert [check(told, (1, 1, 16, n, n), 512, None, None) for n in (200, 210)] == [2, 2]
        kernels = [each for each in told.noted if each[0] == "launch"]
        assert len(kernels) == 11  # K, V and L for parts; v, P, dV, dS, dQ, dK; two sums
    launching.loaded.cache_clear()


@pytest.mark.parametrize(("d_k", "d_v"), [(32, 16), (16, 16), (16, 32)])
def test_keys_and_values_that_begin_at_one_place(d_k: int, d_v: int) -> None:
    """Each part has all columns of both, whichever has more; values within keys are copied once."""
    both = torch.randn(2, 3, 5, 32)
    given = {"Q": torch.randn(2, 12, 7, d_k), "K": both[..., :d_k], "V": both[..., :d_v]}
    made = heads_apart.given_to_parts(given, 4, 2)
    for name in ("K", "V"):
        assert torch.equal(made[name], given[name].repeat_interleave(2, 1))
    assert (made["K"].data_ptr() == made["V"].data_ptr()) is (d_v <= d_k)


def against_pytorch(seed: int, draws: int) -> None:
    """Compare the kernels beside a pass with PyTorch: rows that lie apart, odd widths, several heads of keys."""
    from triton.runtime import interpreter

    from pebblesim.operator.heads import kernels as kernel_of_parts
    from pebblesim.operator.launching import layout

    patch: Any = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:  # NumPy 2.5 takes no array of one number for an integer
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    kernel_of_parts._kernel = lambda *of: kernel_of_parts.between
    kernel_of_parts.ORDERS = kernel_of_parts.orders
    layout.on_gpu = lambda x: True
    chance = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(draws):
        batch, heads, number, each = (chance.randint(1, 3) for _ in range(4))
        n, d = chance.choice([1, 5, 70]), chance.choice([16, 20, 72])
        x = torch.randn(batch, n, heads, 80).half().transpose(1, 2)[..., :d]
        made = heads_apart._repeated(x, number)
        assert torch.equal(made, x.repeat_interleave(number, 1))
        of_parts = heads_apart.room_for_parts({"dK": x, "dV": x}, number)
        for part in of_parts.values():
            part.normal_()
        whole = torch.full((2, *x.shape[:3], 72), torch.nan).half()[..., :d]
        many = {name: chance.randint(1, number) for name in heads_apart.OF_KEYS}
        heads_apart.add_up(of_parts, dict(zip(heads_apart.OF_KEYS, whole, strict=True)), many)
        for name, found in zip(heads_apart.OF_KEYS, whole, strict=True):
            right = torch.zeros(x.shape)
            for part in range(many[name]):
                right += of_parts[name].unflatten(1, (heads, number))[:, :, part]
            assert torch.equal(found, right.half())
        L = torch.randn(batch * heads, n * number * each)
        apart = heads_apart._in_parts(L, n, number * each, number)
        assert torch.equal(apart.view(-1, number, n, each), L.view(-1, n, number, each).transpose(1, 2))
        further = torch.nn.functional.pad(apart, (0, 3))
        assert torch.equal(heads_apart.numbers_of_all(further, n, number * each, number), L)


@pytest.mark.slow
def test_kernels_beside_a_pass_are_those_of_pytorch() -> None:
    """Under Triton's own interpreter."""
    here = Path(__file__)
    paths = os.pathsep.join(map(str, (here.parent, TESTS, TESTS / "oracles", ROOT)))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    run = f"import {here.stem} as test; test.against_pytorch(1, 12)"
    subprocess.run([sys.executable, "-c", run], env=environment, check=True)
