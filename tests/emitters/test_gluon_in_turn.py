"""Blocks with several tiles under a band: each tile once, in rounds from long to short and back, with even shares."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from pebblesim.advice.tiles import HOPPER, Tiling
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.language import masks
from tests.emitters.test_gluon import FORWARD, run, source

DIMS = {"n_q": 500, "n_k": 501, "d_k": 16, "d_v": 16}

TEXT = source(FORWARD, DIMS, {"B_r": 128, "B_c": 64}, "causal", persistent=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mask", ["causal", "window:40"])
def test_blocks_with_several_tiles_move_the_words_of_the_count_and_give_the_reference(mask: str) -> None:
    """Eight tiles of two heads, for the three multiprocessors of the interpreter."""
    run(FORWARD, DIMS, {"B_r": 128, "B_c": 64}, mask, 2, 5, True)


def places(blocks: int, tiles: int) -> list[list[int]]:
    """The places, from the longest tile on, that each block computes, as the text of a kernel says."""
    lines = re.findall(r"        place = (gl\.where.*?)(?:  #.*)?\n", TEXT)
    assert len(lines) == 2 and len(set(lines)) == 1  # of both roles
    found = []
    for block in range(blocks):
        own = []
        for tile in range(block, tiles, blocks):
            gl = SimpleNamespace(
                where=lambda holds, one, two: one if holds else two,
                cdiv=lambda one, two: -(-one // two),
                num_programs=lambda axis: blocks,
            )
            known = {"gl": gl, "tiles": tiles, "heads": 1, "turn": tile // blocks, "tile": tile}
            own.append(eval(lines[0], known))
        found.append(own)
    return found


def tiles_of_blocks(blocks: int, tiles: int, heads: int, together: int) -> list[list[tuple[int, int]]]:
    """The tiles of each block, (head, number), as the lines of a kernel find them from its place."""
    lines = re.findall(r"        ((?:group, rank|side|head, i|i) = .*?)(?:  #.*)?\n", TEXT)[:4]
    gl = SimpleNamespace(
        where=lambda holds, one, two: one if holds else two, cdiv=lambda one, two: -(-one // two), minimum=min
    )
    found = []
    for own in places(blocks, tiles * heads):
        each = []
        for place in own:
            known = {"gl": gl, "tiles": tiles, "heads": heads, "together": together, "groups": -(-heads // together)}
            known |= {"place": place}
            exec("\n".join(lines), known)
            each.append((known["head"], known["i"]))
        found.append(each)
    return found


@given(blocks=st.integers(1, 40), tiles=st.integers(1, 9), heads=st.integers(1, 30), together=st.integers(1, 30))
def test_each_tile_of_each_head_is_computed_once(blocks: int, tiles: int, heads: int, together: int) -> None:
    found = tiles_of_blocks(min(blocks, tiles * heads), tiles, heads, together)
    assert sorted(each for own in found for each in own) == [(a, b) for a in range(heads) for b in range(tiles)]


@pytest.mark.parametrize(("tiles", "heads", "together"), [(8, 64, 32), (9, 76, 38), (24, 34, 12), (20, 40, 40)])
def test_shares_are_even_with_several_groups_of_heads(tiles: int, heads: int, together: int) -> None:
    """Causal tiles of 132 blocks: were all groups from long to short, a share of the first case would be 1.38 means."""
    shares = [sum(number + 1 for _, number in own) for own in tiles_of_blocks(132, tiles, heads, together)]
    assert max(shares) < 1.1 * sum(shares) / 132


@given(blocks=st.integers(1, 40), tiles=st.integers(1, 300))
def test_each_tile_is_computed_once_and_shares_are_even(blocks: int, tiles: int) -> None:
    """Tiles become shorter by one from place to place; whole rounds in one order would differ by one for each round."""
    blocks = min(blocks, tiles)
    found = places(blocks, tiles)
    assert sorted(place for own in found for place in own) == list(range(tiles))
    shares = [sum(tiles - place for place in own) for own in found]
    assert max(shares) - min(shares) <= 2 * blocks


@pytest.mark.parametrize(("mask", "d"), [("causal", 80), ("causal", 256), ("window:40", 256)])
@pytest.mark.parametrize(("tiles", "expected"), [(100, 100), (133, 132), (10_000, 132)])
def test_there_are_as_many_blocks_as_multiprocessors(mask: str, d: int, tiles: int, expected: int) -> None:
    """Or as tiles of 128 rows, where these are fewer."""
    dims = {"n_q": 500, "n_k": 501, "d_k": d, "d_v": d}
    text = source(FORWARD, dims, {"B_r": 128, "B_c": 64}, mask, persistent=True)
    (launched,) = re.findall(r"\[\((.*), 1\)\]\(Q_tiles", text)
    known = {"triton": SimpleNamespace(cdiv=lambda one, two: -(-one // two)), "heads": 1, "most": 132, "min": min}
    assert eval(launched, {**known, "n_q": tiles * 128}) == expected


def test_tiles_say_under_which_masks_their_blocks_have_several() -> None:
    forward = next(each for each in HOPPER if each.schedule == FORWARD and each.persistent)
    backward = next(each for each in HOPPER if each.schedule == "flash2-backward-blocked")
    for mask in (None, "causal", "window:40"):
        assert forward.options_under(masks.of(mask))["persistent"] is True
        assert backward.options_under(masks.of(mask))["persistent"] is (mask is None)
    assert forward.options_under(KeyRanges())["persistent"] is False
    assert "persistent" not in Tiling(FORWARD, {"B_r": 64, "B_c": 64}).options_under(None)
