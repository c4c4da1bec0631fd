"""Schedules inside schedules under masks, and of heads: words, closed forms, games and numbers of each boundary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import strategies
from counts.test_masked_schedules import MASKABLE
from hypothesis import given, settings, strategies as st
from machines.test_nested import PRODUCTS, Inner
from strategies import amount

import pebblesim as ps
from pebblesim import graphs
from pebblesim.analysis.count import count, peak_words
from pebblesim.analysis.formula import formula
from pebblesim.analysis.masked_peak import masked_peak_red
from pebblesim.analysis.peak import peak_red
from pebblesim.core.errors import UsageError
from pebblesim.game.trees import Tree, play
from pebblesim.language.masks import Band, Mask, of
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import get
from pebblesim.machines.machine import Level, Machine
from pebblesim.machines.nesting import nested, tiles
from pebblesim.machines.playing import moves
from pebblesim.machines.routes import Nested

Case = tuple[str, dict[str, int], dict[str, int], list[Inner], Mask]


def agree(case: Case, closed: bool = False) -> None:
    """Assert that all readings agree; `closed`: closed forms, too."""
    name, dims, blocks, inner, mask = case
    schedule = get(name)
    nest, sizes = Nested(schedule.masked), {**dims, **blocks}
    for product, below, sides in inner:
        nest = nested(nest, get(product), below)
        sizes |= {f"{block}_{nest.lowest}": side for block, side in sides.items()}
    allowed = mask.allowed(dims["n"])
    options = schedule.graph_options(sizes)
    graph = graphs.build(schedule.problem.name, mask=allowed, summation="chain", **dims, **options)
    tree = Tree.path(*[10**6] * nest.lowest)
    game = play(graph, tree, [np.concatenate(list(moves(nest, sizes, graph, tree, mask)))])
    assert game.missing == []
    for level in range(1, nest.lowest + 1):
        program = nest.boundary(level)
        moved = count(program, sizes, mask=mask).total
        assert (game.down[level - 1], game.up[level - 1]) == (moved.reads, moved.writes)
        if closed:
            assert isinstance(mask, Band)
            form = formula(program, mask)
            values = form.function_of("reads")(**sizes), form.function_of("writes")(**sizes)
            assert values == (moved.reads, moved.writes)
    for level in range(1, nest.lowest):
        assert game.peak[level - 1] <= peak_words(nest.held(level), sizes, mask)
    assert game.peak[-1] == masked_peak_red(nest.computed, sizes, mask) <= peak_red(nest.computed, sizes)
    inputs = schedule.problem.random_inputs(dims, kept=schedule.kept, allowed=allowed)
    reference = schedule.problem.reference(inputs, allowed)
    for output, values in numbers(nest.computed, sizes, inputs, mask).items():
        np.testing.assert_allclose(values, reference[output], rtol=1e-9, atol=1e-9)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    schedule = MASKABLE[draw(st.sampled_from(sorted(MASKABLE)))]
    dims = {dim: draw(st.integers(1, 5)) for dim in schedule.problem.dims}
    blocks = {block: draw(st.integers(1, 4)) for block in schedule.blocks}
    known = sorted({tile.name for tile in tiles(schedule.masked)} - {""})
    below = tuple(draw(st.sets(st.sampled_from(known)))) if known else ()
    inner = []
    for kept in (below, ())[: draw(st.integers(1, 2))]:
        product = draw(st.sampled_from(PRODUCTS))
        inner.append((product, kept, {block: draw(st.integers(1, 3)) for block in get(product).blocks}))
    return schedule.name, dims, blocks, inner, draw(strategies.masks(dims["n"]))


@given(cases())
@settings(max_examples=amount(3, 1000))
def test_all_readings_under_a_mask_agree_or_the_schedule_is_refused(case: Case) -> None:
    try:
        agree(case)
    except UsageError:
        return


BELOW = {
    "flash2-forward": ("P", "l_i", "m_i", "m_new", "O_i"),
    "flash2-backward": ("P", "dS", "dK_j", "dV_j"),
    "row-stationary-forward": ("A", "O_i", "l_i"),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("text", ["causal", "window:3"])
@pytest.mark.parametrize("name", BELOW)
def test_bands_have_closed_forms_at_each_boundary(name: str, text: str) -> None:
    schedule, mask = get(name), of(text)
    assert mask is not None
    for n, blocks in amount(((7, (2, 3)), (1, (2, 2))), ((7, (2, 3)), (6, (4, 4)), (1, (2, 2)), (9, (3, 1)))):
        sizes = dict(zip(schedule.blocks, blocks, strict=False))
        agree((name, {"n": n, "d": 3}, sizes, [("matmul-streamed", BELOW[name], {"a": 2, "b": 2})], mask), closed=True)


def test_a_first_share_of_a_tile_under_a_mask_is_counted_as_it_is_played() -> None:
    """A tile of a first part of the keys, whose first iteration stands apart: sums begin in it."""
    inner: list[Inner] = [("matmul-streamed", ("A", "K_s", "Q_i"), {"a": 3, "b": 3})]
    mask = of("causal")
    assert mask is not None
    agree(("keys-partly-resident-forward-sigmoid", {"n": 4, "d": 1}, {"B_r": 3, "B_s": 2}, inner, mask))


PLACE = Machine("m", "R", (Level("L1", 4 * 3000), Level("L2", 4 * 600)))


@pytest.mark.parametrize(
    "shape",
    [
        {"mask": "causal"},
        {"mask": "window:9", "heads": 6, "kv_heads": 2, "batch": 3},
        {"heads": 4, "kv_heads": 2, "separate": True},
        {"mask": np.tril(np.ones((40, 40), bool))},
    ],
    ids=["causal", "groups", "separate", "table"],
)
def test_the_first_boundary_is_the_count_of_two_levels(shape: dict[str, Any]) -> None:
    """With the same blocks; and all words and bounds are those of all heads and sequences."""
    sizes: dict[str, Any] = {"blocks": {"B_r": 16, "B_c": 9}, "n": 40, "d": 8, **shape}
    counted = ps.on_machine("flash2-forward", machine=PLACE, below=BELOW["flash2-forward"], **sizes)
    outer, inner = counted.boundaries
    alone = ps.count("flash2-forward", M=3600, **sizes)
    assert (outer.down, outer.up) == (alone.total.reads, alone.total.writes)
    assert outer.bound.value == alone.every_way.value * alone.times
    assert inner.words >= inner.bound.value and inner.most == inner.words
    assert counted.to_dict().get("heads", 1) == shape.get("heads", 1)


def test_masks_of_each_head_are_refused() -> None:
    masks = np.ones((2, 8, 8), bool)
    with pytest.raises(UsageError, match="has a mask for each head; a machine takes one for all heads"):
        ps.on_machine("flash2-backward", machine=PLACE, mask=masks, heads=2, n=8, d=4)
