"""An L2 that blocks share: the order of requests, what sets do, and cases that others have measured."""

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.caches import l2, l2_kernel
from pebblesim.cli.main import app
from pebblesim.errors import UsageError
from pebblesim.language.registry import get
from pebblesim.readings.accesses import accesses, accesses_of_blocks
from pebblesim.readings.kernels.launches import grids
from pebblesim.readings.requests import READ, WRITE, Stream

BLOCKS = {"B_r": 64, "B_c": 64}


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
)
def test_blocks_take_turns(lengths: list[list[int]], at_once: int, seed: int) -> None:
    """Against a simulation that looks at all blocks at every step."""
    waits = [time for block in lengths for time in block]
    spends = np.random.default_rng(seed).integers(1, 9, len(waits)).tolist()
    starts = np.cumsum([0, *map(len, lengths)])
    order = np.random.default_rng(seed).permutation(len(lengths))
    waiting = [number for number in range(len(order)) if lengths[order[number]]]
    running: dict[int, list[float]] = {}  # number in the order: when its next request comes, and which it is
    expected: list[tuple[int, int]] = []
    now = 0.0
    while waiting or running:
        while waiting and len(running) < at_once:
            number = waiting.pop(0)
            first = int(starts[order[number]])
            running[number] = [now + waits[first], first]
        number = min(running, key=lambda each: (running[each][0], each))
        now, request = running[number][0], int(running[number][1])
        expected.append((number, request))
        now += spends[request]
        if request + 1 < starts[order[number] + 1]:
            running[number] = [now + waits[request + 1], request + 1]
        else:
            del running[number]
    who, what = l2_kernel.take_turns(starts, np.array(waits, float), np.array(spends, float), order, at_once)
    assert list(zip(who.tolist(), what.tolist(), strict=True)) == expected


def test_sizes_of_lru_stand_for_sets() -> None:
    """Against sets of 16 lines at random addresses, with dirty lines written when they are no longer young."""
    rng = np.random.default_rng(5)
    lines, sets, length = 6000, 256, 60_000
    ids = np.concatenate([rng.integers(0, lines, length // 2), np.arange(length // 2) % (lines - 1500)])
    kinds = np.where(rng.random(length) < 0.3, WRITE, READ)
    home = rng.integers(0, sets, lines)
    cache: list[OrderedDict[int, bool]] = [OrderedDict() for _ in range(sets)]
    read = written = 0
    for line, kind in zip(ids.tolist(), kinds.tolist(), strict=True):
        held = cache[home[line]]
        dirty = held.pop(line, None)
        if dirty is None:
            read += kind == READ
            if len(held) == l2.WAYS:
                written += held.popitem(last=False)[1]
        held[line] = bool(dirty) or kind == WRITE
        if len(held) > l2.YOUNG:
            aged = list(held)[-1 - l2.YOUNG]
            written += held[aged]
            held[aged] = False
    stream = Stream(ids.astype(np.int32), kinds.astype(np.uint8), np.ones(lines, np.int64), np.zeros(lines, bool))
    found = l2.behind(stream, round(sets * l2.WAYS / l2.CAPACITY))
    assert found == (pytest.approx(read, rel=0.02), pytest.approx(written, rel=0.02))


def test_arrivals_have_the_mean_and_the_spread_of_an_erlang_distribution() -> None:
    times = np.array(l2.arrivals(16))
    drawn = np.random.default_rng(1).exponential(size=(100_000, 16)).sum(axis=1)
    assert times.mean() == pytest.approx(16, rel=0.005)
    assert np.quantile(drawn, [0.25, 0.5, 0.75]) == pytest.approx(np.quantile(times, [0.25, 0.5, 0.75]), rel=0.02)


@pytest.mark.parametrize("name", ["flash2-forward", "flash2-backward", "small-cache", "flash", "flash1-forward"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_blocks_together_move_what_the_schedule_moves(name: str, mask: str | None) -> None:
    from pebblesim.language import masks

    sizes = {"n": 23, "d": 5, **dict.fromkeys(get(name).blocks, 4)}
    program, seen = (get(name).program if mask is None else get(name).masked), masks.of(mask)
    whole = accesses(program, sizes, "moves", "tiles", seen)
    ids, kinds = [], []
    parallel = 1
    for body, grid in grids(program):
        part = accesses_of_blocks(program, sizes, body, grid, seen)
        assert part.starts is not None and part.blocks is not None
        assert len(part.starts) == len(part.blocks) + 1 and part.starts[-1] == len(part)
        parallel = max(parallel, len(part.blocks))
        ids.append(part.ids)
        kinds.append(part.kinds)
        back = accesses_of_blocks(program, sizes, body, grid, seen, backwards=True)
        for block in range(len(part.blocks)):
            span = slice(part.starts[block], part.starts[block + 1])
            assert sorted(zip(part.ids[span], part.kinds[span], strict=True)) == sorted(
                zip(back.ids[span], back.kinds[span], strict=True)
            )
    assert (np.concatenate(ids) == whole.ids).all() and (np.concatenate(kinds) == whole.kinds).all()
    assert parallel > 1 or name == "flash1-forward"


def test_backwards_is_backwards() -> None:
    program, sizes = get("flash2-forward").program, {"n": 10, "d": 1, "B_r": 5, "B_c": 4}
    ((body, grid),) = grids(program)
    forth, back = (accesses_of_blocks(program, sizes, body, grid, backwards=way) for way in (False, True))
    assert forth.starts is not None
    first = slice(0, forth.starts[1])
    q, *walk, o, l = forth.ids[first].tolist()
    assert back.ids[first].tolist() == [q, *walk[4:6], *walk[2:4], *walk[0:2], o, l]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("head-first", [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (0, 1), (1, 1)]),
        ("row-major", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]),
        ("grouped:2", [(0, 0), (2, 0), (1, 0), (3, 0), (4, 0), (5, 0), (0, 1), (2, 1)]),
    ],
)
def test_orders(order: str, expected: list[tuple[int, int]]) -> None:
    """A grid of 3 rows and 2 columns, for two heads."""
    stream = Stream(*(np.zeros(0, np.int32),) * 4, (), np.zeros(7, np.int64), np.arange(6), np.zeros(0))
    block, head = l2.launched(l2.Kernel(stream, None, 2), 2, l2.order_of(order))
    assert list(zip(block.tolist(), head.tolist(), strict=True))[:8] == expected


def test_a_large_l2_reads_what_must_be_read_and_order_does_not_matter() -> None:
    n, d, heads = 512, 32, 3
    for order in ("head-first", "row-major", "grouped:2", "sawtooth", "swizzled:3"):
        found = ps.l2("flash2-forward", n=n, d=d, M=2**14, blocks=BLOCKS, size=2**30, order=order, heads=heads)
        assert (found.read, found.written) == (heads * 3 * n * d * 4, heads * (n * d + n) * 4)
        assert found.requested == heads * 4 * ps.count("flash2-forward", n=n, d=d, M=2**14, blocks=BLOCKS).io


def test_heads_on_chiplets_of_their_own_swizzled() -> None:
    """MI355X, as in FlyDSL's pull request 919, at an eighth of n and of L2: heads spread, and kept together."""
    sizes = {"n": 8192, "d": 128, "M": 2**16, "blocks": {"B_r": 128, "B_c": 64}, "dtype": "bfloat16"}
    chip = {"size": 2**19, "heads": 64, "at_once": 256}
    before = ps.l2("flash2-forward", order="row-major", chiplets=8, contiguous=True, **sizes, **chip)
    after = ps.l2("flash2-forward", order="swizzled:8", **sizes, **chip)
    assert before.requested == after.requested
    assert before.read > 0.95 * before.requested
    assert before.read / after.read > 15.3  # as measured there


def test_sawtooth_halves_the_misses() -> None:
    """GB10, as arXiv 2601.16032 measured it, at an eighth of length, L2 and multiprocessors: 50 % fewer or better."""
    sizes = {"n": 2**14, "d": 64, "M": 2**16, "blocks": BLOCKS, "dtype": "float16", "size": 3 * 2**20, "at_once": 6}
    forth, back = (ps.l2("flash2-forward", order=order, **sizes) for order in ("head-first", "sawtooth"))
    assert back.read <= 0.5 * forth.read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--l2 60", "not a size in bytes"),
        ("--l2 1MiB --order sideways", "head-first, row-major, grouped:G, sawtooth or swizzled:X"),
        ("--l2 1MiB --order grouped:0", "head-first"),
        ("--order sawtooth", "give its size with --l2"),
        ("--l2 1MiB --chiplets 0", "it is a number, or 8:contiguous"),
        ("--l2 1MiB --order swizzled:4 --chiplets 2", "is for 4 chiplets, and there are 2"),
    ],
)
def test_bad_orders_get_a_sentence(arguments: str, message: str) -> None:
    result = CliRunner().invoke(app, f"count flash2-forward -n 64 -d 4 -M 1k {arguments}".split())
    assert isinstance(result.exception, UsageError) and message in str(result.exception)


def test_count_with_an_l2() -> None:
    line = "count flash2-forward -n 256 -d 16 -M 4k --l2 8KiB --heads 2 --order sawtooth --at-once 4"
    row = json.loads(CliRunner().invoke(app, [*line.split(), "--json"]).output)["rows"][0]
    found: Any = ps.l2(
        "flash2-forward", n=256, d=16, M=4096, size=8192, heads=2, order="sawtooth", at_once=4, blocks=row["blocks"]
    )
    assert row["l2"] == found.to_dict()
    assert f"{found.read:,}" in CliRunner().invoke(app, line.split()).output


def test_advice_on_the_order_of_launch() -> None:
    line = "advise --gpu A100 -n 512 -d 32 --problem forward --heads 16 --dtype float16 --orders"
    orders = json.loads(CliRunner().invoke(app, [*line.split(), "--json"]).output)["orders"]
    assert [row["order"] for row in sorted(orders, key=lambda row: row["read"] + row["written"])] == [
        row["order"] for row in orders
    ]
    assert {row["order"] for row in orders} == {"head-first", "row-major", "grouped:8", "sawtooth"}
    assert all(row["at_once"] == 108 and row["heads"] == 16 for row in orders)
    assert f"{orders[0]['order']}: of {orders[0]['requested']:,} bytes" in CliRunner().invoke(app, line.split()).output
