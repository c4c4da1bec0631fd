"""An L2 that blocks share: the order of requests, what sets do, and cases that others have measured."""

import itertools
import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given, strategies as st
from strategies import draws
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cachesim import l2, l2_kernel
from pebblesim.cachesim.accesses import accesses, accesses_of_blocks
from pebblesim.cachesim.l2_traffic import kernels_of
from pebblesim.cachesim.requests import READ, WRITE, Stream
from pebblesim.cli.main import app
from pebblesim.core.errors import UsageError
from pebblesim.language.registry import get
from pebblesim.launches.launches import launches

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
    free, expected_places = list(range(at_once)), [0] * len(lengths)
    expected: list[tuple[int, int]] = []
    now = 0.0
    while waiting or running:
        while waiting and len(running) < at_once:
            number = waiting.pop(0)
            first = int(starts[order[number]])
            running[number] = [now + waits[first], first]
            expected_places[number] = free.pop(0)
        number = min(running, key=lambda each: (running[each][0], each))
        now, request = running[number][0], int(running[number][1])
        expected.append((number, request))
        now += spends[request]
        if request + 1 < starts[order[number] + 1]:
            running[number] = [now + waits[request + 1], request + 1]
        else:
            del running[number]
            free.append(expected_places[number])
    who, what, places = l2_kernel.take_turns(starts, np.array(waits, float), np.array(spends, float), order, at_once)
    assert list(zip(who.tolist(), what.tolist(), strict=True)) == expected
    assert places.tolist() == expected_places


class Partition:
    """A group of sets of a partition: pieces by age, and which of their parts are there; dirty ones by age."""

    def __init__(self) -> None:
        self.there: dict[int, set[int]] = {}
        self.dirty: dict[int, set[int]] = {}


@pytest.mark.parametrize("seed", range(40))
def test_two_partitions(seed: int) -> None:
    """Against a simulation with lists in which everything is looked up anew."""
    rng = np.random.default_rng(seed)
    items, pieces_of_each = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    pieces = items * pieces_of_each
    home = rng.integers(0, 2, pieces).tolist()
    group = rng.integers(0, 2, (pieces, 2)).tolist()
    unit = rng.integers(0, 6, pieces).tolist()
    room = rng.integers(0, 4 * sum(unit) + 1, (2, 2)).tolist()
    soilable = [(a // 2, b // 2) for a, b in room]
    kept = (rng.random(items) < 0.5).tolist()
    columns = (
        rng.integers(0, items, 200),
        rng.integers(1, 16, 200),
        rng.choice([READ, WRITE], 200),
        rng.integers(0, 2, 200),
    )
    requests = list(zip(*(column.tolist() for column in columns), strict=True))
    size = [4 * each for each in unit]
    parts = [[Partition(), Partition()], [Partition(), Partition()]]
    read = written = 0

    def leave(p: int, g: int, x: int) -> int:
        """Take a piece out; return the bytes that go to memory."""
        del parts[p][g].there[x]
        return unit[x] * len(parts[p][g].dirty.pop(x, ()))

    for item, bits, kind, side in requests:
        for x in range(item * pieces_of_each, (item + 1) * pieces_of_each):
            wanted = {n for n in range(4) if bits >> n & 1}
            for p in dict.fromkeys((side, home[x])):
                if not wanted:
                    break
                own, g = parts[p][group[x][p]], group[x][p]
                missing = wanted - own.there.get(x, set())
                own.there[x] = own.there.pop(x, set()) | wanted
                while sum(size[y] for y in own.there) > room[p][g]:
                    written += leave(p, g, next(iter(own.there)))
                if p == home[x]:
                    if kind == READ:
                        read += unit[x] * len(missing)
                        if x in own.dirty:
                            own.dirty[x] = own.dirty.pop(x)
                    elif x in own.there:
                        own.dirty[x] = own.dirty.pop(x, set()) | wanted
                        while sum(size[y] for y in own.dirty) > soilable[p][g]:
                            oldest = next(iter(own.dirty))
                            written += unit[oldest] * len(own.dirty.pop(oldest))
                    else:
                        written += unit[x] * len(wanted)
                if kind == READ:
                    wanted = missing
            if kind == WRITE and side == home[x]:
                parts[1 - side][group[x][1 - side]].there.pop(x, None)
    for partition in parts:
        for one_group in partition:
            written += sum(unit[x] * len(bits) for x, bits in one_group.dirty.items() if kept[x // pieces_of_each])
    ids, bits, kinds, sides = (np.array([each[at] for each in requests], np.int32) for at in range(4))
    given_pieces = np.array(home, np.uint8), np.array(group, np.uint8).reshape(-1, 2), np.array(size), np.array(unit)
    asked = ids, bits.astype(np.uint8), kinds.astype(np.uint8), sides.astype(np.uint8)
    assert l2_kernel.through(*asked, *given_pieces, np.array(kept), np.array(room), np.array(soilable)) == (
        read,
        written,
    )


def halves() -> list[dict[str, Any]]:
    """The measurements of benchmarks/gpu/l2_halves.py on an H200."""
    file = ROOT / "benchmarks" / "gpu" / "l2_halves.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][1:]


GRAIN = 2**15
"""Bytes of an item in which lines are replayed here."""


def replayed(*steps: tuple[tuple[int, int], int, int, int]) -> tuple[int, int]:
    """Bytes read and written by the requests of ((side, home), first byte, bytes, kind), one step after the other."""
    ids, kinds, sides = [], [], []
    for (side, home), first, size, kind in steps:
        start, stop = first // GRAIN, (first + size) // GRAIN
        ids.append(2 * np.arange(start, stop) + home)
        kinds.append(np.full(stop - start, kind, np.uint8))
        sides.append(np.full(stop - start, side, np.uint8))
    asked = np.concatenate(ids).astype(np.int32)
    items = int(asked.max()) + 1
    homes = np.repeat(np.arange(items) % 2, l2.GROUPS).astype(np.uint8)
    numbers = np.tile(np.arange(l2.GROUPS), items)
    group = np.stack(l2._groups(numbers), 1).astype(np.uint8)
    size_of = np.full(items * l2.GROUPS, GRAIN // l2.GROUPS)
    given_pieces = homes, group, size_of, size_of, np.zeros(items, bool)
    found = l2_kernel.through(
        asked,
        np.ones(len(asked), np.uint8),
        np.concatenate(kinds),
        np.concatenate(sides),
        *given_pieces,
        *l2._rooms(60 * 2**20, 2),
    )
    return int(found[0]), int(found[1])


SAMPLE, LISTS = 2**22, 33 / 32
"""Bytes of the sample, and of lines with the list of their numbers, over those of lines."""


def test_what_the_halves_keep_is_what_an_h200_keeps() -> None:
    """Lines that are lost for certain, or kept for certain, and in between the share of the sample to a quarter."""
    rows = [row for row in halves() if row["test"] == "kept"]
    assert len(rows) > 100
    for row in rows:
        kind, other = tuple(row["kind"]), tuple(row["other"])
        sample, rest = (
            (kind, 0, SAMPLE, READ),
            (other, 2**23, int(row["size"] * LISTS), WRITE if row["write"] else READ),
        )
        lost = (replayed(sample, rest, sample)[0] - replayed(sample, rest)[0]) / SAMPLE
        assert lost == pytest.approx(row["read"] / SAMPLE, abs=0.3 if 20 < row["size"] / 2**20 < 30 else 0.04), row


@pytest.mark.one_in(2)
def test_what_is_dirty_is_written_as_on_an_h200() -> None:
    for row in halves():
        if row["test"] == "left":
            kind, other = tuple(row["kind"]), tuple(row["other"])
            steps = (kind, 0, SAMPLE, WRITE), (other, 2**23, int(row["size"] * LISTS), READ)
            expected = row["written"] / SAMPLE
            between = 20 < row["size"] / 2**20 < 36
            assert replayed(*steps)[1] / SAMPLE == pytest.approx(expected, abs=0.35 if between else 0.1), row
        elif row["test"] == "crowded" and "reads" in row:  # both sides read and write, and half of it is far
            share = row["size"] // (1 + row["reads"]) // 4
            steps = []
            for piece in range(0, share, GRAIN):
                for at, kind in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
                    for n in range(row["reads"]):
                        steps.append((kind, (2**24 * (1 + n)) * 4 + (at * share + piece), GRAIN, READ))
                    steps.append((kind, at * share + piece, GRAIN, WRITE))
            dirty, most = 4 * share - replayed(*steps)[1], row["lines_written"] - row["written"]
            assert dirty == pytest.approx(most, rel=0.06, abs=2**20), row


def test_the_constants_are_those_that_were_measured() -> None:
    """How sharply lines leave, how much can be dirty, and that half of L2 is what a side can keep."""
    rows = halves()
    lost = {
        row["size"]: row["read"] / SAMPLE
        for row in rows
        if row["test"] == "kept" and (row["kind"], row["other"], row["write"]) == ([0, 0], [0, 0], False)
    }
    sizes = sorted(lost)
    early, median, late = (
        next(
            a + (b - a) * (share - lost[a]) / (lost[b] - lost[a])
            for a, b in itertools.pairwise(sizes[1:])
            if lost[a] <= share <= lost[b]
        )
        * LISTS
        + SAMPLE
        for share in (0.16, 0.5, 0.84)
    )
    assert median == pytest.approx(30 * 2**20, rel=0.03)
    assert (late - early) / 2 / median == pytest.approx(l2.SPREAD, abs=0.01)
    most = max(row["lines_written"] - row["written"] for row in rows if row["test"] == "crowded" and "reads" in row)
    assert most / (60 * 2**20) == pytest.approx(l2.DIRTY, abs=0.005)


def test_groups_of_sets_have_what_the_l2_has() -> None:
    room, soilable = l2._rooms(60 * 2**20, 2)
    assert room.shape == (2, l2.GROUPS)
    assert room.sum(axis=1) == pytest.approx([30 * 2**20] * 2, rel=1e-6)
    assert (soilable <= room * l2.DIRTY).all()
    here, there = l2._groups(np.arange(l2.GROUPS))
    assert sorted(there) == sorted(here) == list(range(l2.GROUPS))
    assert np.corrcoef(room[0][here], room[1][there])[0, 1] == pytest.approx(0, abs=0.1)


def test_homes_and_groups_of_lines() -> None:
    home, group = l2._dealt_lines(np.arange(2**15), 2)
    assert home.mean() == 0.5 and not l2._dealt_lines(np.arange(2**15), 1)[0].any()
    runs = home.reshape(-1, 32)
    assert (runs == runs[:, :1]).all()  # 4 KiB
    for stride in (2, 4, 8, 16, 64):  # rows of a matrix do not all have one home
        assert 0 < runs[::stride, 0].mean() < 1
    shares = np.bincount(group[:, 0] * l2.GROUPS + group[:, 1], minlength=l2.GROUPS**2) / len(group)
    assert shares == pytest.approx(np.full(l2.GROUPS**2, l2.GROUPS**-2.0), rel=0.06)


def test_what_both_sides_read_is_held_twice() -> None:
    """32 blocks, 16 on each side, and then 32 more, that read the same K and V: halves need twice the size."""
    sizes: dict[str, Any] = {"n": 8192, "d": 64, "M": 2**16, "blocks": {"B_r": 128, "B_c": 64}, "at_once": 32}
    least = {}
    for partitions in (1, 2):
        least[partitions] = next(
            size
            for size in range(2**22, 2**24, 2**19)
            if ps.l2("flash2-forward", size=size, partitions=partitions, **sizes).read == 3 * 8192 * 64 * 4
        )
    assert 1.7 < least[2] / least[1] < 2.1  # each Q and O is held once


TOGETHER = ["flash2-forward", "flash2-backward", "small-cache", "flash", "flash1-forward"]
IN_ROWS = [
    "scores-stored-in-rows",
    "small-cache-forward-in-rows",
    "small-cache-backward-in-rows",
    "small-cache-backward-resident-in-rows",
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*TOGETHER, *IN_ROWS])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_blocks_together_move_what_the_schedule_moves(name: str, mask: str | None) -> None:
    """Groups of C rows, too: launches are repeated for each of them, and the last group is shorter."""
    from pebblesim.language import masks

    sizes = {"n": 23, "d": 5, **dict.fromkeys(get(name).blocks, 4)} | ({"C": 8} if "C" in get(name).blocks else {})
    program, seen = (get(name).program if mask is None else get(name).masked), masks.of(mask)
    whole = accesses(program, sizes, "moves", "tiles", seen)
    kernels = kernels_of(program, sizes, True, seen)
    for kernel in kernels:
        part, back = kernel.forth, kernel.back
        assert back is not None and part.starts is not None and part.blocks is not None
        assert len(part.starts) == len(part.blocks) + 1 and part.starts[-1] == len(part)
        assert len(set(part.blocks.tolist())) == len(part.blocks)
        for block in range(len(part.blocks)):
            span = slice(part.starts[block], part.starts[block + 1])
            assert sorted(zip(part.ids[span], part.kinds[span], strict=True)) == sorted(
                zip(back.ids[span], back.kinds[span], strict=True)
            )
    ids, kinds = (np.concatenate([getattr(each.forth, what) for each in kernels]) for what in ("ids", "kinds"))
    in_turn = {"f", "P_s", "P", "dS"}  # tables of C rows, which have the same place each time
    assert (kinds == whole.kinds).all() and (ids <= whole.ids).all()
    for place in whole.places:
        own = (whole.ids >= place.first) & (whole.ids < place.first + place.items)
        assert (ids[own] == whole.ids[own]).all() or (name in IN_ROWS and place.name in in_turn)
        least = place.items if name not in IN_ROWS or place.name not in in_turn else 2 * place.across  # of 4 rows each
        assert len(set(ids[own].tolist())) <= least
    assert max(len(each.forth.blocks) for each in kernels) > 1 or name == "flash1-forward"
    repeated = sum(launch.around is not None for launch in launches(program, masked=True, repeated=True))
    alone = len({each.number for each in kernels}) - repeated
    assert len(kernels) == alone + 3 * repeated and (repeated > 0) == (name in IN_ROWS)


def test_groups_of_rows_leave_l2_less_to_hold() -> None:
    """Tables of C rows stay in L2 from the launch that writes them to the one that reads them; whole ones do not."""
    given: dict[str, Any] = {"n": 256, "d": 16, "M": 2**20, "size": 2**17, "at_once": 4}
    blocks = {"a": 16, "b": 16, "c": 16, "e": 16}
    whole, cut = (ps.l2("small-cache-forward-in-rows", blocks=blocks | {"C": rows}, **given) for rows in (256, 32))
    table = 4 * 256 * 256
    assert whole.written >= table and cut.written < table / 2
    with pytest.raises(UsageError, match="at_once has 1 numbers, and small-cache-forward-in-rows has 3 launches"):
        ps.l2("small-cache-forward-in-rows", blocks=blocks | {"C": 32}, **given | {"at_once": [4]})


def test_backwards_is_backwards() -> None:
    program, sizes = get("flash2-forward").program, {"n": 10, "d": 1, "B_r": 5, "B_c": 4}
    (launch,) = launches(program)
    walk_of = partial(accesses_of_blocks, program, sizes, launch.body, launch.grid)
    forth, back = walk_of(), walk_of(backwards=True)
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
    block, head = l2.launched(l2.Accesses(stream, None, 2), 2, l2.order_of(order))
    assert list(zip(block.tolist(), head.tolist(), strict=True))[:8] == expected


def test_a_large_l2_reads_what_must_be_read_and_order_does_not_matter() -> None:
    n, d, heads = 512, 32, 3
    for order in ("head-first", "row-major", "grouped:2", "sawtooth", "swizzled:3"):
        found = ps.l2("flash2-forward", n=n, d=d, M=2**14, blocks=BLOCKS, size=2**30, order=order, heads=heads)
        assert (found.read, found.written) == (heads * 3 * n * d * 4, heads * (n * d + n) * 4)
        assert found.requested == heads * 4 * ps.count("flash2-forward", n=n, d=d, M=2**14, blocks=BLOCKS).io


@pytest.mark.one_in(3)
def test_heads_on_chiplets_of_their_own_swizzled() -> None:
    """MI355X, as in FlyDSL's pull request 919, at an eighth of n and of L2: heads spread, and kept together."""
    sizes = {"n": 8192, "d": 128, "M": 2**16, "blocks": {"B_r": 128, "B_c": 64}, "dtype": "bfloat16"}
    chip = {"size": 2**19, "heads": 64, "at_once": 256}
    before = ps.l2("flash2-forward", order="row-major", chiplets=8, contiguous=True, **sizes, **chip)
    after = ps.l2("flash2-forward", order="swizzled:8", **sizes, **chip)
    assert before.requested == after.requested
    assert before.read > 0.95 * before.requested
    assert before.read / after.read > 15.3  # as measured there


@draws(4, 60)
@given(
    chiplets=st.integers(2, 4),
    heads=st.integers(1, 3),
    at_once=st.integers(1, 5),
    n=st.integers(150, 400),
    d=st.sampled_from([8, 16, 32]),
    blocks=st.tuples(st.sampled_from([16, 32]), st.sampled_from([16, 24])),
)
def test_chiplets_with_heads_of_their_own_are_as_many_chips(
    chiplets: int, heads: int, at_once: int, n: int, d: int, blocks: tuple[int, int]
) -> None:
    """Each has its L2, for half of K and V, its heads, and its part of the blocks that run at once."""
    given: dict[str, Any] = {"n": n, "d": d, "M": 2**16, "blocks": dict(zip(("B_r", "B_c"), blocks, strict=True))}
    given |= {"dtype": "float16", "size": 2 * n * d}
    one = ps.l2("flash2-forward", heads=heads, at_once=at_once, **given)
    order = {"order": f"swizzled:{chiplets}", "chiplets": chiplets}
    whole = ps.l2("flash2-forward", heads=heads * chiplets, at_once=at_once * chiplets, **order, **given)
    assert (whole.requested, whole.read, whole.written) == tuple(
        chiplets * each for each in (one.requested, one.read, one.written)
    )


def test_as_many_tiles_as_are_allowed_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q, O and L of each block, and K and V of each of its steps: two heads of three blocks with two steps."""
    given: dict[str, Any] = {"n": 48, "d": 8, "M": 2**14, "blocks": {"B_r": 16, "B_c": 24}, "size": 2**14, "heads": 2}
    tiles = 2 * 3 * (3 + 2 * 2)
    monkeypatch.setattr("pebblesim.cachesim.l2.MOST_REQUESTS", tiles)
    assert ps.l2("flash2-forward", **given).requested > 0
    monkeypatch.setattr("pebblesim.cachesim.l2.MOST_REQUESTS", tiles - 1)
    with pytest.raises(UsageError, match=f"^{tiles} tiles are too many to replay, {tiles - 1} is the most"):
        ps.l2("flash2-forward", **given)


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
        ("--l2 3x20MiB", "not a size in bytes"),
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


def test_count_with_an_l2_in_two_halves() -> None:
    line = "count flash2-forward -n 1024 -d 16 -M 4k --block B_r=16 --block B_c=16 --l2 2x96KiB --at-once 32"
    row = json.loads(CliRunner().invoke(app, [*line.split(), "--json"]).output)["rows"][0]
    given: dict[str, Any] = {"n": 1024, "d": 16, "M": 4096, "blocks": row["blocks"]}
    given |= {"size": 2 * 96 * 2**10, "at_once": 32}
    assert row["l2"] == ps.l2("flash2-forward", partitions=2, **given).to_dict()
    assert row["l2"]["read"] > ps.l2("flash2-forward", **given).read
    assert "196,608 bytes, in two halves" in CliRunner().invoke(app, line.split()).output
    assert "in two halves" in str(ps.l2("flash2-forward", partitions=2, **given))
    with pytest.raises(UsageError, match="partitions = 3"):
        ps.l2("flash2-forward", partitions=3, **given)


def test_a_block_of_ragged_tiles_takes_as_long_as_others() -> None:
    """7 rows, 3 columns and 5 of depth in tiles of 4, 4 and 2."""
    program, sizes = get("flash2-forward").program, {"n": 7, "d": 5, "B_r": 4, "B_c": 3}
    (launch,) = launches(program)
    stream = accesses_of_blocks(program, sizes, launch.body, launch.grid)
    assert stream.starts is not None and stream.work is not None
    first, last = (stream.work[slice(*stream.starts[at : at + 2])].tolist() for at in (0, 1))
    assert first == last and first[3] == first[5]  # what is computed after the first and the second K and V


@pytest.mark.one_in(4)
def test_advice_on_the_order_of_launch() -> None:
    line = "advise --gpu A100 -n 256 -d 16 --problem forward --heads 16 --dtype float16 --orders"
    orders = json.loads(CliRunner().invoke(app, [*line.split(), "--json"]).output)["orders"]
    assert [row["order"] for row in sorted(orders, key=lambda row: row["read"] + row["written"])] == [
        row["order"] for row in orders
    ]
    assert {row["order"] for row in orders} == {"head-first", "row-major", "grouped:8", "sawtooth"}
    assert all(row["at_once"] == 108 and row["heads"] == 16 and row["partitions"] == 2 for row in orders)
    assert f"{orders[0]['order']}: of {orders[0]['requested']:,} bytes" in CliRunner().invoke(app, line.split()).output
