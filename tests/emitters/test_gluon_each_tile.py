"""Predicates of single tiles in Gluon kernels: in tiles that a mask or the end of the keys cuts, and in no others."""

from __future__ import annotations

import re
import textwrap
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.gluon.text import STREAMED_TOGETHER, heads_together
from pebblesim.language.masks import Band
from pebblesim.language.registry import get

SCALARS = SimpleNamespace(minimum=min, maximum=max, cdiv=lambda a, b: -(-a // b))
"""Gluon's operations on numbers of tiles."""

ASKED = re.compile(r"if (.*):\n +P = gl\.where\(")


@pytest.mark.one_in(2)
@example(n=200, more=0, before=15, after=0, at_end=False, shared=1, width=16)  # a tile ends with the window
@example(n=90, more=7, before=8, after=9, at_end=True, shared=8, width=16)
@example(n=300, more=3, before=None, after=12, at_end=False, shared=2, width=64)
@given(
    n=st.integers(1, 300),
    more=st.integers(0, 60),
    before=st.none() | st.integers(0, 150),
    after=st.integers(0, 40),
    at_end=st.booleans(),
    shared=st.sampled_from([1, 2, 8]),
    width=st.sampled_from([16, 64]),
)
def test_a_tile_has_predicates_exactly_if_the_mask_cuts_it(
    n: int, more: int, before: int | None, after: int, at_end: bool, shared: int, width: int
) -> None:
    """Each pair of a tile is looked at, also those of keys that do not exist."""
    keys, blocks = n + more, {"B_r": 128, "B_c": width}
    first = more if at_end else 0
    away = np.arange(keys + width)[None, :] - np.arange(n)[:, None] - first
    allowed = (away <= after) & (away >= -np.inf if before is None else away >= -before)
    allowed[:, keys:] = False
    if not allowed[:, :keys].any(1).all():
        return
    dims = {"n_q": n * shared, "n_k": keys, "d_k": 16, "d_v": 16}
    band = Band("band", before, after, at_end=at_end, rows=shared)
    program = get("flash2-forward").in_dims(dims).under(band)
    text = gluon(program, {**dims, **blocks}, "float16", band, shared=shared).text
    (condition,) = ASKED.findall(text)
    (number,) = set(re.findall(r"\bj_\d\b", condition))
    known = {"gl": SCALARS, "n_q": n * shared, "n_k": keys, "n": n}
    known |= {name: int(value) for name, value in re.findall(r"(?m)^    (after|before) = (-?\d+)$", text)}
    for name, value in re.findall(r"(?m)^    (after|before) = (.*)$", text):
        known[name] = eval(value, dict(known))
    rows = np.arange(n * shared) // shared
    for tile in range(-(-n * shared // 128)):
        own = allowed[rows[tile * 128 : (tile + 1) * 128]]
        for at in range(-(-keys // width)):
            cut = not own[:, at * width : (at + 1) * width].all()
            assert bool(eval(condition, {**known, "i": tile, number: at})) == cut, (condition, tile, at)


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize(
    ("schedule", "blocks"),
    [
        ("flash2-forward", {"B_r": 128, "B_c": 64}),
        ("backward-two-pass-blocked", {"B_r": 128, "b_c": 64, "B_c": 128, "b_r": 64}),
    ],
)
def test_the_ragged_tile_is_streamed_before_the_loop(schedule: str, blocks: dict[str, int], shared: int) -> None:
    """What is put off goes through one loop, which has no predicates: those of the last tile are before it."""
    dims = {"n_q": 300 * max(shared, 1), "n_k": 301, "d_k": 64, "d_v": 64}
    program = get(schedule).in_dims(dims).program
    text = gluon(program, {**dims, **blocks}, shared=shared, persistent=True, stages=3).text
    # With three stages, there is a slot for what is put off.
    roles = [role for role in re.split(r"(?m)^@gluon\.jit", text) if "_late = " in role]
    parts = [re.split(r"(?m)^ +for (?!tile )", role) for role in roles]
    assert any("gl.where(" in before for before, *_ in parts)
    for _, *loops in parts:
        assert len(loops) == 1 and "gl.where(" not in loops[0]


@example(n=2176, heads=31)  # in groups of 30, one head was left alone at the end
@example(n=65536, heads=3)  # one head streams 32 MiB
@given(n=st.integers(1, 70000), heads=st.integers(1, 300))
def test_heads_that_are_ordered_together_are_in_even_groups(n: int, heads: int) -> None:
    band, dims, blocks = Band("causal", None, 0), {"n_q": n, "n_k": n, "d_k": 128, "d_v": 128}, {"B_r": 128, "B_c": 128}
    text = gluon(get("flash2-forward").in_dims(dims).under(band), {**dims, **blocks}, "bfloat16", band).text
    asked, streamed = re.search(r"together = (.*?)  #", text), n * 2 * 128 * 2
    assert asked is not None
    together = eval(asked[1], {"triton": SCALARS, "heads": heads, "n": n, "n_q": n, "n_k": n})
    sides = [min(together, heads - first) for first in range(0, heads, together)]
    assert together == heads_together(heads, streamed) and sum(sides) == heads
    assert together * streamed <= STREAMED_TOGETHER or together == 1
    if heads * streamed <= STREAMED_TOGETHER:
        assert sides == [heads]
    assert sides[-1] > together - len(sides)


@cache
def role_of(kernel: str) -> str:
    """The lines of the warp that loads that find a tile, under a causal mask, for all lengths."""
    band, dims = Band("causal", None, 0), {"n_q": 901, "n_k": 901, "d_k": 192, "d_v": 64}
    blocks, name = {"a": 128, "b": 128, "c": 64, "e": 64}, "small-cache-backward-resident"
    text = gluon(get(name).in_dims(dims).under(band), {**dims, **blocks}, "bfloat16", band, stages=8).text
    (role,) = re.findall(rf"def {kernel}_loads\(.*?(?=    for k in)", text, re.DOTALL)
    return str(role)


@given(
    n=st.integers(1, 900),
    heads=st.integers(1, 9),
    together=st.integers(1, 9),
    kernel=st.sampled_from(["dQ", "dK"]),
    blocks=st.integers(1, 30),
)
def test_products_with_a_table_have_each_tile_once(n: int, heads: int, together: int, kernel: str, blocks: int) -> None:
    """Under a causal mask; tiles of keys of several heads are in one order, the longest first."""
    begin, each = re.split(r"    for tile in .*\n", role_of(kernel).partition("\n")[2])
    told = SimpleNamespace(**vars(SCALARS), num_programs=lambda axis: blocks)
    known = {"gl": told, "n": n, "n_q": n, "n_k": n, "heads": heads, "together": min(together, heads)}
    exec(textwrap.dedent(begin), known)
    tiles, seen, lengths = -(-n // 128), set[tuple[int, int, int]](), dict[int, list[int]]()
    for tile in range(tiles * 3 * heads):
        exec(textwrap.dedent(each), known | {"tile": tile}, found := dict[str, int]())
        seen.add((found["head"], found["i"], found["j"]))
        lengths.setdefault(found["group"], []).append(found["end"] - found["first"])
    assert len(seen) == tiles * 3 * heads and seen <= {*product(range(heads), range(tiles), range(3))}
    if kernel == "dK":
        assert all(some == sorted(some, reverse=True) for some in lengths.values())


@pytest.mark.parametrize("shared", [0, 2])
def test_rows_that_do_not_exist_are_asked_for_once_in_each_tile_of_a_table(shared: int) -> None:
    """Warpgroups all of whose rows exist go past the predicates."""
    dims = {"n_q": 300 * max(shared, 1), "n_k": 301, "d_k": 128, "d_v": 128}
    sizes = {**dims, "a": 128, "b": 128, "c": 64, "e": 128}
    text = gluon(get("scores-stored-resident").in_dims(dims).program, sizes, stages=8, shared=shared).text
    (role,) = re.findall(r"def A_rows\(.*?(?=\n@gluon)", text, re.DOTALL)
    asked = re.findall(r"if \(part \+ 1\) \* 64 > (?:n_q|n \* 2|n):\n +(\w+) = gl\.where\(at_i\[:, None\]", role)
    assert asked == ["S_ij"] and role.count("gl.where(at_i[:, None]") == 1
    assert len(re.findall(r"(?m)^ +for j\w* in", role)) == 1, "the ragged tile is in the loop of all tiles"
