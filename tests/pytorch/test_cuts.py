"""Parts of a pass whose score matrices have no room: they are all queries, have room, and fill the multiprocessors."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, floor

import pytest
from hypothesis import example, given, strategies as st

from pebblesim.advice import cards
from pebblesim.advice.forecast import forecast
from pebblesim.kernels.domains import expected
from pebblesim.operator import planning
from pebblesim.operator.cuts import FEW, MOST, Cut, cuts
from pebblesim.operator.pattern import Pattern, band_of
from pebblesim.operator.planning import ROOM, Dims, chosen, first_at

TILE, UNITS = 128, 132


def pattern(causal: bool, shared: int) -> Pattern:
    return Pattern(band_of(right=0 if causal else None, rows=shared), shared)


def tiles(n: int) -> int:
    return -(-n // TILE)


def widths(cut: Cut) -> list[int]:
    """Tiles of the queries of each part."""
    return [tiles(end - start) for start, end in pairwise((0, *cut.ends))]


@given(
    st.booleans(),
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((1, 2, 3, 4)),
    st.integers(1, 40_000),
    st.integers(1, 64),
    st.integers(0, 2**10),
)
@example(True, 8, 2, 16384, 4, 0)  # room for 32 tiles of queries in the last part, and 16 are a wave
def test_parts_are_all_queries_have_room_and_are_whole_waves(
    causal: bool, shared: int, heads: int, n: int, divisor: int, sums: int
) -> None:
    tables = 2 * shared * (tiles(n) * TILE) ** 2
    room, sums = tables // divisor + sums * n, sums * n
    found = list(cuts(pattern(causal, shared), n, n, heads, tables, room, UNITS, sums))
    assert len(found) == len(set(found))
    for cut in found:
        assert cut.ends[-1] == n
        assert heads % cut.kv_heads == 0
        assert shared % cut.heads == 0
        if len(cut.ends) == 1:  # some heads with all their queries
            assert cut.heads < shared
            assert 2 * cut.heads * (tiles(n) * TILE) ** 2 <= room - sums
            continue
        assert cut.heads == shared
        assert len(cut.ends) <= MOST
        assert all(start < end and start % TILE == 0 for start, end in pairwise((0, *cut.ends)))
        wave = UNITS / (cut.kv_heads * shared)
        for width, end in zip(widths(cut), cut.ends, strict=True):
            rows, keys = width * TILE * shared * cut.kv_heads, tiles(end if causal else n) * TILE
            assert 2 * rows * keys <= room - sums * cut.kv_heads
        if causal:
            for width in widths(cut)[1:]:
                whole = width == floor(ceil(width / wave) * wave)
                assert width <= max(1, wave) or whole or width % wave > 0.74 * wave - 1


def test_parts_without_a_mask_may_be_of_one_size() -> None:
    """3 parts have room for 60 tiles each: 60, 60 and 8, or 43, 43 and 42."""
    n, tables = 128 * TILE, 2 * (128 * TILE) ** 2
    found = [widths(cut) for cut in cuts(pattern(False, 1), n, n, 1, tables, tables * 60 // 128, UNITS)]
    assert found == [[8, 60, 60], [42, 43, 43]]


def test_where_few_parts_have_room_they_are_few() -> None:
    """16 heads on 2: a wave of blocks is 16 tiles of queries of one KV head, so that 128 tiles are 7 parts or fewer."""
    n, tables = 16384, 2 * 8 * 16384**2
    for cut in cuts(pattern(True, 8), n, n, 2, tables, ROOM, UNITS):
        assert len(cut.ends) <= FEW
    assert not list(cuts(pattern(True, 1), n, n, 1, tables, 2 * TILE * n - 1, UNITS))  # not even a tile of rows


@pytest.mark.slow
def test_the_last_parts_of_gemma_s_global_layer_leave_no_block_alone() -> None:
    """With 8 heads on 4 and 32,768 tokens, two parts of 134 blocks once took as long as parts of 264 blocks."""
    dims: Dims = (("n_q", 65536), ("n_k", 32768), ("d_k", 512), ("d_v", 512))
    for way in ("forward", "backward"):
        cut = chosen(way, dims, 4, "bfloat16", pattern(True, 2), ROOM, cards.card("H200")).cut
        assert cut is not None
        together = cut.kv_heads * cut.heads  # blocks for each tile of queries
        blocks = [width * together for width in widths(cut)[1:]]
        assert all(number <= UNITS or -number % UNITS < max(together, UNITS / 4) for number in blocks)


@pytest.mark.parametrize(
    ("n", "shared", "room"), [(16384, 8, ROOM), pytest.param(16384, 8, 2**29, marks=pytest.mark.slow)]
)
def test_the_forecast_of_parts_is_the_sum_of_theirs(n: int, shared: int, room: int) -> None:
    """Of more than 8 parts, as under the lower limit, only some are forecast."""
    dims, card, band = {"n_q": n * shared, "n_k": n, "d_k": 512, "d_v": 512}, cards.card("H200"), pattern(True, shared)
    made = chosen("backward", tuple(dims.items()), 2, "bfloat16", band, room, card)
    assert made.cut is not None
    assert (len(made.cut.ends) > planning.PARTS) == (room < ROOM)
    heads, own = made.cut.kv_heads, made.cut.pattern(band)
    seconds = 0.0
    for start, end in pairwise((0, *made.cut.ends)):
        part = dims | {"n_q": (end - start) * shared, "n_k": end}
        seconds += forecast(made.forecast.tiling, part, card, "bfloat16", heads, expected(own.mask)).seconds
    found = first_at(made, dims, card, "bfloat16", 2, band).seconds
    assert found == pytest.approx(seconds * 2 / heads, rel=1e-9 if room == ROOM else 0.05)


def test_lengths_of_a_class_are_cut_alike() -> None:
    """And a new length of the class is not forecast."""
    card, band = cards.card("H200"), pattern(True, 8)

    def cut_of(n: int) -> Cut:
        dims = (("n_q", n * 8), ("n_k", n), ("d_k", 512), ("d_v", 512))
        found = chosen("backward", dims, 2, "bfloat16", band, ROOM, card).cut
        assert found is not None
        assert found.ends[-1] == n
        return found

    one, forecasts = cut_of(16384), planning._of_part.cache_info().misses
    others = [cut_of(n) for n in (15999, 16000, 16383)]
    assert {(each.kv_heads, each.heads, each.waves) for each in others} == {(one.kv_heads, one.heads, one.waves)}
    assert planning._of_part.cache_info().misses == forecasts


@pytest.mark.one_in(2)
def test_lengths_that_are_equal_only_when_rounded_are_not_cut_like_equal_ones() -> None:
    """Query i sees the keys up to i, of which there are more than queries: queries are not cut."""
    dims: Dims = (("n_q", 16000 * 2), ("n_k", 16100), ("d_k", 512), ("d_v", 512))
    found = chosen("forward", dims, 4, "bfloat16", pattern(True, 2), ROOM, cards.card("H200"))
    assert found.cut is None or found.cut.heads == 1
    assert found.bytes <= ROOM
