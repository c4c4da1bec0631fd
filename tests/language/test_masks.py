"""Masks: tiles with an allowed pair are counted in closed form, and must be as many as can be seen in the table."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

from pebblesim.analysis.mask_answers import RememberedMask
from pebblesim.core.errors import UsageError
from pebblesim.language import masks
from pebblesim.language.tile_ranges import Copies, TileRange, floor_sum_of_grid


@given(data=st.data())
def test_tiles_are_those_that_have_a_pair_in_the_table(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 14))
    mask = data.draw(strategies.masks(n))
    table = mask.allowed(n)
    assert table.shape == (n, n)

    def cut() -> TileRange:
        start, stop = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
        return TileRange(start, stop, data.draw(st.integers(1, 6)))

    rows, columns = cut(), cut()
    seen = sum(
        bool(table[i : min(i + rows.block, rows.stop), j : min(j + columns.block, columns.stop)].any())
        for i in range(rows.start, rows.stop, rows.block)
        for j in range(columns.start, columns.stop, columns.block)
    )
    assert mask.tiles((n, n), rows, columns) == seen
    assert mask.pairs(n) == table.sum()


@given(n=st.integers(1, 30), w=st.integers(1, 30))
def test_bands_are_what_their_names_say(n: int, w: int) -> None:
    i, j = np.indices((n, n))
    assert np.array_equal(masks.of("causal").allowed(n), j <= i)
    assert np.array_equal(masks.of(f"window:{w}").allowed(n), (j <= i) & (j > i - w))
    assert np.array_equal(masks.of(f"band:{w}").allowed(n), abs(i - j) <= w)


def test_pairs_of_any_number_of_rows() -> None:
    """By hand: causal n(n+1)/2, window nw - w(w-1)/2, symmetric n(2w+1) - w(w+1)."""
    n, w = 2**40, 256
    assert masks.of("causal").pairs(n) == n * (n + 1) // 2
    assert masks.of(f"window:{w}").pairs(n) == n * w - w * (w - 1) // 2
    assert masks.of(f"band:{w}").pairs(n) == n * (2 * w + 1) - w * (w + 1)


def test_tiles_of_64_x_128_lose_up_to_half_of_what_a_narrow_band_saves() -> None:
    """At n = 4096: causal tile density 0.5156 against 0.5001, window 256: 0.0908 against 0.0606."""
    n = 4096
    for name, tiles, pairs in (("causal", 0.5156, 0.5001), ("window:256", 0.0908, 0.0606)):
        mask = masks.of(name)
        found = mask.tiles((n, n), TileRange(0, n, 64), TileRange(0, n, 128)) / (n // 64 * (n // 128))
        assert (round(found, 4), round(mask.pairs(n) / n**2, 4)) == (tiles, pairs)


def test_bigbird_has_a_window_global_blocks_and_random_ones() -> None:
    mask = masks.of("bigbird:2:3:1:1:7")
    table = mask.allowed(13)[::2, ::2]
    blocks = np.arange(7)
    window = abs(blocks[:, None] - blocks) <= 1
    assert table[window].all()
    assert table[0].all()
    assert table[:, 0].all()
    assert (table & ~window)[1:, 1:].any()  # the random ones
    assert np.array_equal(mask.allowed(13), masks.of("bigbird:2:3:1:1:7").allowed(13))
    assert not np.array_equal(mask.allowed(13), masks.of("bigbird:2:3:1:1:8").allowed(13))


def test_a_table_of_blocks_stands_for_pairs(tmp_path: Path) -> None:
    table = np.array([[1, 0, 1], [0, 1, 1]], bool)
    file = tmp_path / "blocks.npy"
    np.save(file, table)
    mask = masks.of(str(file))
    assert str(mask) == "blocks.npy"
    assert np.array_equal(mask.allowed(5), table.repeat(3, axis=0).repeat(2, axis=1)[:5, :5])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("causl", "mask 'causl' is not known; it is dense, causal, window:W, "),
        ("window:", "'' is not a whole number"),
        ("window:0", "'0' is not a whole number, 1 or more, such as 256"),
        ("band:x", "'x' is not a whole number, 0 or more"),
        ("window:-3", "'-3' is not a whole number"),
        ("bigbird:64", "is not known; it is "),
        ("bigbird:0:1:1:1", "a block has at least one row"),
        ("nowhere.npy", "mask 'nowhere.npy': there is no such file."),
    ],
)
def test_masks_that_there_are_not(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        masks.of(text)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (np.ones(3, bool), r"has shape \(3,\); it must have rows and columns"),
        (np.ones((0, 3), bool), r"has shape \(0, 3\)"),
        (np.full((2, 2), 2), "holds int64 values other than 0 and 1"),
        (np.array([[0.0, np.nan]]), "holds float64 values other than 0 and 1"),
        (np.array([["a"]]), "values other than 0 and 1; it must be booleans"),
    ],
)
def test_tables_that_are_no_masks(table: np.ndarray, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        masks.from_array(table)


def test_files_that_are_no_masks(tmp_path: Path) -> None:
    file = tmp_path / "text.npy"
    file.write_text("not numpy")
    with pytest.raises(UsageError, match=r"text\.npy. cannot be read: the magic string is not correct"):
        masks.of(str(file))


def test_a_table_must_fit_the_rows() -> None:
    mask = masks.from_array(np.ones((4, 4), bool))
    with pytest.raises(UsageError, match=r"has 4 rows of blocks, which cannot be blocks of 3 of n = 9; give an array"):
        mask.pairs(9)
    assert mask.pairs(8) == 64


def test_what_is_too_large_to_spell_out_says_so() -> None:
    with pytest.raises(UsageError, match="is spelled out for n up to 16,384; `count` takes any n"):
        masks.of("causal").allowed(20000)
    with pytest.raises(UsageError, match="are too many to look up in a table"):
        masks.from_array(np.ones((4, 4), bool)).pairs(2**30)


@given(data=st.data())
@strategies.draws(60, 500)
def test_packed_sequences_pair_by_pair(data: st.DataObject) -> None:
    """Each sequence sees itself alone, causal or not, and rows of a position stand together where heads share."""
    queries = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    keys = queries if data.draw(st.booleans()) else [data.draw(st.integers(1, 5)) for _ in queries]
    within = data.draw(st.sampled_from(["", ":causal", ":causal:start", ":window:2"]))
    text = (
        f"lengths:{','.join(map(str, queries))}" + ("" if keys is queries else f"/{','.join(map(str, keys))}") + within
    )
    mask, grid, table = masks.of(text), (sum(queries), sum(keys)), np.zeros((sum(queries), sum(keys)), bool)
    i = j = 0
    for q, k in zip(queries, keys, strict=True):
        table[i : i + q, j : j + k] = masks.of(within[1:]).allowed(q, k) if within else True
        i, j = i + q, j + k
    rows = data.draw(st.integers(1, 3))
    mask, grid, table = mask.grouped(rows, grid), (rows * grid[0], grid[1]), table.repeat(rows, axis=0)
    assert np.array_equal(mask.allowed(*grid), table)
    assert mask.pairs(*grid) == table.sum()
    cuts = [
        TileRange(*sorted(data.draw(st.tuples(*2 * [st.integers(0, n)]))), data.draw(st.integers(1, 9))) for n in grid
    ]
    seen = [
        [
            bool(table[i : min(i + cuts[0].block, cuts[0].stop), j : min(j + cuts[1].block, cuts[1].stop)].any())
            for j in range(cuts[1].start, cuts[1].stop, cuts[1].block)
        ]
        for i in range(cuts[0].start, cuts[0].stop, cuts[0].block)
    ]
    assert mask.tiles(grid, *cuts) == sum(map(sum, seen))
    if all(cut.start < cut.stop for cut in cuts):
        assert mask.met(grid, *cuts).tolist() == [sum(row) for row in seen]
        assert mask.met(grid, *cuts, axis=1).tolist() == [sum(column) for column in zip(*seen, strict=True)]


@given(data=st.data())
def test_tiles_of_copies_are_those_of_each(data: st.DataObject) -> None:
    rows, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    grid = rows * n, data.draw(st.just(n) | st.integers(1, 40))
    mask = data.draw(strategies.masks(n)) if grid == (n, n) else masks.of("window:3").grouped(rows, grid)

    def copies(n: int) -> Copies:
        step, block = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
        tiles = TileRange(*sorted(data.draw(st.tuples(*2 * [st.integers(0, min(n, step))]))), block)
        return Copies(tiles, step, data.draw(st.integers(1, (n - tiles.stop) // step + 1)))

    both = copies(grid[0]), data.draw(st.just(Copies(TileRange(0, grid[1], 3)))) if n % 2 else copies(grid[1])
    table = mask.allowed(*grid)
    each = [[slice(at, min(at + t.block, stop)) for stop, at in places(t, step, m)] for t, step, m in both]
    assert mask.tiles_of_copies(grid, *both) == sum(bool(table[a, b].any()) for a in each[0] for b in each[1])


def places(tiles: TileRange, step: int, copies: int) -> Iterator[tuple[int, int]]:
    """(where a copy ends, where a tile starts) for all tiles of all copies."""
    for at in (step * copy for copy in range(copies)):
        for start in range(tiles.start + at, tiles.stop + at, tiles.block):
            yield tiles.stop + at, start


@given(data=st.data())
def test_sums_of_floors_over_a_grid(data: st.DataObject) -> None:
    """In whichever of the ways takes the fewest sums of one dimension."""
    counts, steps = (data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))) for _ in "01")
    m, b = data.draw(st.integers(1, 12)), data.draw(st.integers(-99, 99))
    expected = sum((steps[0] * i + steps[1] * j + b) // m for i in range(counts[0]) for j in range(counts[1]))
    assert floor_sum_of_grid(counts, m, steps, b) == expected


@given(st.integers(1, 999), st.integers(1, 60), st.integers(1, 2000), st.integers(1, 300))
def test_tiles_of_many_tiles_under_a_causal_mask(length: int, block: int, number: int, width: int) -> None:
    """Tile by tile: rows up to r see ⌈(r + 1) / width⌉ tiles of columns; and two parts add up, however many."""
    starts = np.arange(0, length, block)
    ends = np.minimum(starts + block, length) + length * np.arange(number)[:, None]
    rows, n, causal = Copies(TileRange(0, length, block), length, number), length * number, masks.of("causal")
    columns = Copies(TileRange(0, n, width))
    assert causal.tiles_of_copies((n, n), rows, columns) == (-(-ends // width)).sum()
    many, n = 2**60 // length, 2**60 // length * length
    columns = Copies(TileRange(0, n, width))
    later = TileRange(length * number, length * (number + 1), block)
    parts = [rows._replace(number=min(number, many)), Copies(later, length, max(0, many - number))]
    assert causal.tiles_of_copies((n, n), rows._replace(number=many), columns) == sum(
        causal.tiles_of_copies((n, n), part, columns) for part in parts
    )


def test_too_many_tiles_of_tiles_are_one_sentence_under_any_mask() -> None:
    rows, columns = Copies(TileRange(0, 2**30, 3), 2**30, 2**30), Copies(TileRange(0, 2**60, 2**31 - 1))
    for mask in (masks.of("causal"), masks.from_array(np.ones((4, 4), bool))):
        with pytest.raises(UsageError, match=r"tiles that are cut into smaller tiles, .* too many to be counted"):
            mask.tiles_of_copies((2**60, 2**60), rows, columns)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("step", [2, 3, 4])
def test_copies_are_counted_and_remembered_one_by_one(rows: int, step: int) -> None:
    """Tiles of rows that stand together, some at a step that they do not divide; and the same tiles at other steps."""
    grid, columns = (24, 24 // rows), Copies(TileRange(0, 24 // rows, 2))
    mask = masks.of("window:3").grouped(rows, grid)
    remembered = RememberedMask(mask)
    for number in (3, 6):
        each = [TileRange(1 + k * step, 3 + k * step, 2) for k in range(number)]
        expected = sum(mask.tiles(grid, tiles, columns.tiles) for tiles in each)
        copies = Copies(TileRange(1, 3, 2), step, number)
        assert (
            mask.tiles_of_copies(grid, copies, columns) == remembered.tiles_of_copies(grid, copies, columns) == expected
        )


def test_lengths_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(
        UsageError, match="mask lengths:3,5 is of 8 queries, and there are 9; the lengths of sequences add"
    ):
        masks.of("lengths:3,5").pairs(9)
    for wrong in ("lengths:3,x", "lengths:3,5:bigbird:1:1:1:1", "lengths:1/2/3", "lengths:1,2/3"):
        with pytest.raises(UsageError, match="mask 'lengths"):
            masks.of(wrong)


@pytest.mark.parametrize(("text", "what"), [("bigbird:2:1:1:99", "99 random"), ("bigbird:2:1:5:1", "5 global")])
def test_a_row_cannot_have_more_blocks_than_there_are(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=rf"{what} blocks in a row was given, but a row has 4 blocks"):
        masks.from_text(text).allowed(8)
    assert masks.from_text("bigbird:2:1:1:4").allowed(8).all()


def test_as_many_pairs_as_are_allowed_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebblesim.language.mask_kinds.LARGEST_TABLE", 6)
    assert masks.of("causal").allowed(9, 4).shape == (9, 4)
    with pytest.raises(UsageError, match="spelled out for n up to 6"):
        masks.of("causal").allowed(37, 1)
