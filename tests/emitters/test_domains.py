"""Kernels are for the attentions that they are written for: their domains, beside what emitters refuse."""

from __future__ import annotations

from math import prod
from types import NoneType

import pytest
from hypothesis import assume, given, strategies as st
from strategies import draws

from pebblesim.advice import cards
from pebblesim.advice.kernels import call_of, kernels
from pebblesim.advice.tiles import (
    HOPPER as OF_HOPPER,
    PARTS,
    PROBLEM,
    SMALL_TILINGS,
    TILINGS,
    Tiling,
    kernels_for,
    tilings,
)
from pebblesim.core.errors import UsageError
from pebblesim.kernels.additions import added_to
from pebblesim.kernels.domains import ATTENTION, GLUON, KERNELS, OF_GLUON, OF_TRITON, Call
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.triton.triton import triton
from pebblesim.language.masks import Band
from pebblesim.language.registry import get

H200 = cards.card("H200")
EVERY = [
    *((problem, each) for pool in (TILINGS, SMALL_TILINGS) for problem in pool for each in pool[problem]),
    *((get(each.schedule).problem.name, each) for each in OF_HOPPER),
]


def test_tiles_for_few_rows_or_for_ranges_of_keys_alone_are_for_no_others() -> None:
    """Which rows and masks they are for is a choice, as others are faster there."""
    few = next(each for _, each in EVERY if each.rows and not each.ranged)
    ranged = next(each for _, each in EVERY if each.ranged)
    for tiling, mask in ((few, None), (ranged, KeyRanges())):
        call = Call({"n_q": tiling.rows, "n_k": 4096, **tiling.widest}, mask)
        assert tiling.refusal(call) is None
        refusal = tiling.refusal(call._replace(dims={**call.dims, "n_q": tiling.rows + 1}))
        assert refusal is not None and f"up to {tiling.rows:,} rows of queries" in refusal.why
    for mask in (None, Band("causal", None, 0)):
        refusal = ranged.refusal(Call({"n_q": 8, "n_k": 8, **ranged.widest}, mask))
        assert refusal is not None and refusal.why.startswith("they know ranges of keys, and not")


def written(tiling: Tiling, call: Call) -> bool:
    """Whether an emitter writes the kernels."""
    program = get(tiling.schedule).in_dims(call.dims).under(call.mask)
    emit, sizes = (gluon if tiling.gluon else triton), {**call.dims, **tiling.blocks}
    try:
        return bool(emit(program, sizes, call.dtype, call.mask, scale=call.scale, stages=tiling.stages))
    except UsageError:
        return False


@st.composite
def under_masks(draw: st.DrawFn) -> tuple[Tiling, Call]:
    """A kernel, and an attention under a band that may leave queries or keys alone."""
    problem, tiling = draw(st.sampled_from([each for each in EVERY if each[0] in TILINGS and not each[1].even]))
    n_q, n_k = (draw(st.sampled_from([1, 40, 128, 130, 300, 700])) for _ in "qk")
    before, after = (draw(st.none() | st.sampled_from([0, 5, 127, 128, 500])) for _ in range(2))
    band = Band("band", before, after, at_end=draw(st.booleans()))
    dims = {"n_q": n_q, "n_k": n_k, **tiling.widest}
    assume(tiling.masked is not False and not tiling.ranged and (not tiling.rows or n_q <= tiling.rows))
    return tiling, call_of(problem, dims, H200, "bfloat16", band, 1)


@pytest.mark.one_in(2)
@draws(40, 800)
@given(case=under_masks())
def test_a_kernel_is_for_a_mask_if_it_is_written_for_it(case: tuple[Tiling, Call]) -> None:
    tiling, call = case
    assert (tiling.refusal(call) is None) == written(tiling, call)


MASKS = {NoneType: None, Band: Band("causal", None, 0), KeyRanges: KeyRanges()}
"""A mask of each kind."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("tiling", [each for each in OF_HOPPER if "latent" not in each.schedule], ids=str)
def test_gluon_kernels_mind_tiles_of_keys_without_a_query_where_a_block_has_one(tiling: Tiling) -> None:
    for n_q in (250, 100):  # the last tile of 128 keys has queries, or not
        dims = {"n_q": n_q, "n_k": 300, **tiling.widest}
        call = call_of("forward", dims, H200, "bfloat16", Band("diagonal", 3, 9, at_end=False), 1)
        assert (tiling.refusal(call) is None) == written(tiling, call)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("tiling", OF_HOPPER, ids=str)
def test_what_a_gluon_kernel_is_not_for_is_refused_by_its_emitter(tiling: Tiling) -> None:
    d = tiling.widths[1]
    dims = {"n_q": 256, "n_k": 256, **({"d_v": d, "d_r": 64} if "latent" in tiling.schedule else tiling.widest)}
    call = Call(dims)
    assert tiling.refusal(call) is None and written(tiling, call)
    others = [call._replace(scale=0.0), call._replace(dtype="float32")]
    others += [call._replace(dims={**dims, name: 20}) for name in dims if name.startswith("d")]
    for other in others:
        assert tiling.refusal(other) is not None and not written(tiling, other)
    causal = call._replace(mask=Band("causal", None, 0))
    assert (tiling.refusal(causal) is None) == written(tiling, causal)


@pytest.mark.parametrize(("problem", "tiling"), EVERY, ids=str)
def test_what_is_refused_for_all_kernels_each_refuses_and_sums_in_memory_are_in_any_order(
    problem: str, tiling: Tiling
) -> None:
    assert tiling.domain.same_bits == (not (tiling.gluon and added_to(get(tiling.schedule).program)))
    call = Call({"d": tiling.widths[1], **tiling.widest}, MASKS[tiling.domain.masks[0]])
    assert tiling.refusal(call) is None or "latent" in tiling.schedule
    others = [call._replace(dims={"d": 1025}), call._replace(dims={**call.dims, "d_v": 8})]
    for other in (*others, call._replace(dtype="float32"), call._replace(capability="7.5")):
        assert KERNELS.refusal(other) is not None and tiling.refusal(other) is not None


@pytest.mark.parametrize("shared", sorted({card.size("shared_per_block") for card in cards.cards().values()}))
@pytest.mark.parametrize("way", PROBLEM)
def test_what_attention_takes_has_kernels_for_every_card(way: str, shared: int) -> None:
    for d in (16, 17, 64, 65, 128, 129, 256, 257, 512, 513, 1024):
        for softcap in (0.0, 30.0):
            call = Call({"n_q": 37, "n_k": 1001, "d_k": 16, "d_v": d}, Band("causal", None, 0), softcap=softcap)
            there = kernels_for(PROBLEM[way], call._replace(capability=""), shared)
            assert there or ATTENTION.refusal(call)
    assert ATTENTION.softcap == min(
        max(each.widths[1] for each in pool[PROBLEM["backward"]] if each.domain.softcap)
        for pool in (TILINGS, SMALL_TILINGS)
    )


def test_gluon_kernels_have_domains_of_their_own() -> None:
    """Another name in the table would be a domain that nobody asks."""
    assert OF_GLUON.keys() <= {each.schedule for each in (*OF_HOPPER, *PARTS)}
    assert OF_TRITON.keys() <= {each.schedule for _, each in EVERY if not each.gluon}
    assert {each.schedule for each in tilings("forward", 2**18, True) if each.domain.copied} == {
        each.schedule for each in OF_HOPPER if get(each.schedule).problem.name == "forward"
    }


def test_a_workspace_is_not_asked_for_where_no_kernel_knows_the_mask() -> None:
    """It was said how many bytes are enough, and with these there was none either."""
    dims, room = {"n_q": 1024, "n_k": 4096, "d_k": 768, "d_v": 768}, 2**10
    with pytest.raises(UsageError, match="workspace = 1,024 bytes is too little for any kernel"):
        kernels("backward-qkv", dims, cards.card("RTX5090"), "bfloat16", 1, None, None, room)
    window = Band("window:1000", 999, 0)
    assert kernels("backward-qkv", dims, cards.card("RTX5090"), "bfloat16", 1, window, None, room) == ((), ())


def test_long_heads_and_words_in_several_places_are_not_for_the_copy_engine() -> None:
    dims = {"n": 2**25, "d": 64}
    call = call_of("forward", dims, H200, "bfloat16", None, 1)
    assert call.words == prod(dims.values()) == 2**31
    for other in (call, Call(dims, repeated=True), Call(dims, triton="3.5.0"), Call(dims, capability="10.0")):
        found = kernels_for("forward", other, H200.size("shared_per_block"))
        assert found and not any(each.gluon for each in found)
    assert GLUON.refusal(Call({})) is None is ATTENTION.refusal(Call({}))  # of matrices alone, or a card
    assert any(each.gluon for each in kernels_for("forward", Call(dims), H200.size("shared_per_block")))


def test_reasons_and_advice_are_apart() -> None:
    """Whoever asks decides what to say: a sentence has both, or advice of its own."""
    said = KERNELS.refusal(Call({"d": 64}, dtype="float32"))
    assert said == ("they take words of 16 bits, and not of float32", "add --dtype bf16")
    assert str(said) == "they take words of 16 bits, and not of float32; add --dtype bf16"
    wide = ATTENTION.refusal(Call({"d": 1025}))
    assert wide is not None and not wide.advice and str(wide) == wide.why


@pytest.mark.parametrize("d", [64, 128, 130, 192, 256, 512])
def test_a_square_problem_has_the_kernels_of_its_rectangle(d: int) -> None:
    """Tiles for narrow values only were offered where d stands for both widths, and did not fit."""
    for tiling in OF_HOPPER:
        square, sides = (Call(dims, None, None, "bfloat16") for dims in ({"n": 512, "d": d}, {"d_k": d, "d_v": d}))
        assert (tiling.refusal(square) is None) == (tiling.refusal(sides) is None)
