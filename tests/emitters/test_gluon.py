"""Gluon source, run by a small interpreter: outputs against float64 references, words against the count, no race."""

from __future__ import annotations

import re
from typing import Any

import gluon_interpreter
import numpy as np
import pytest
from hypothesis import given, strategies as st
from words_by_place import by_place

import pebblesim as ps
from pebblesim.core.errors import UsageError
from pebblesim.kernels import releases
from pebblesim.kernels.additions import read_to_be_added_to
from pebblesim.kernels.gluon.gluon import gluon, plans
from pebblesim.kernels.gluon.widths import divided
from pebblesim.kernels.tables import moved_words
from pebblesim.language import masks, program as ir
from pebblesim.language.masks import Band
from pebblesim.language.registry import get
from pebblesim.launches.launches import launches

SCORES, PAIRS, STORED = "scores-stored-resident", "small-cache-backward-resident", "dS-stored-resident"
IN_ROWS = "small-cache-backward-resident-in-rows"
TABLES = SCORES, PAIRS, STORED, IN_ROWS
FORWARD, BACKWARD, ONE_PASS = "flash2-forward", "backward-two-pass-blocked", "flash2-backward-blocked"

BLOCKS = {
    FORWARD: {"B_r": 128, "B_c": 32},
    BACKWARD: {"B_r": 64, "b_c": 16, "B_c": 128, "b_r": 32},
    ONE_PASS: {"B_c": 128, "b_r": 64},
    **{each: {"a": 128, "b": 64, "c": 16, "e": 32} for each in (SCORES, PAIRS)},
    IN_ROWS: {"C": 256, "a": 128, "b": 64, "c": 64, "e": 64},
    STORED: {"a": 128, "b": 128, "c": 16, "e": 32},
}


def source(
    name: str,
    dims: dict[str, int],
    blocks: dict[str, int],
    mask: str | None = None,
    stages: int = 2,
    scale: float = 0.5,
    persistent: bool = False,
) -> str:
    schedule, band = get(name).in_dims(dims), masks.of(mask)
    ring: dict[str, Any] = {"stages": stages, "persistent": persistent}
    return gluon(schedule.under(band), {**dims, **blocks}, "float16", band, scale=scale, **ring).text


def run(
    name: str,
    dims: dict[str, int],
    blocks: dict[str, int],
    mask: str | None,
    stages: int,
    seed: int,
    again: bool,
    release: str = "3.6",
    written_for: dict[str, int] | None = None,
) -> None:
    schedule, band, scale, heads = get(name).in_dims(dims), masks.of(mask), 0.5, 2
    arguments: dict[str, Any] = {"M": 10**9, "mask": band, **dims}
    counted = ps.count(name, blocks=blocks, **arguments)
    allowed = None if band is None else band.allowed(*schedule.problem.grid(dims))
    text = releases.release(release).text(source(name, written_for or dims, blocks, mask, stages, scale, again))
    many = [schedule.problem.random_inputs(counted.dims, seed + head, schedule.kept, allowed) for head in range(heads)]
    order = [tensor for tensor in schedule.program.tensors if tensor in schedule.program.inputs]
    inputs = {tensor: np.stack([one[tensor] for one in many]) for tensor in order}
    inputs["Q"] = inputs["Q"] / scale  # (Q / scale) Kᵀ scale are the same scores
    if "L" in inputs:  # logarithms are to base 2 in the kernels
        inputs["L"] = inputs["L"] * np.log2(np.e)
    outputs, words = gluon_interpreter.run(text, inputs, "float16", schedule.problem.grid(dims), seed)

    ends = {*inputs, *outputs}
    beside = {way: words.pop((way, "beside")) for way in ("read", "written")}
    moved = moved_words(schedule.under(band), {**counted.dims, **blocks}, band)
    assert +words == by_place(moved, ends, heads)
    words.subtract({(way, "between"): number for way, number in beside.items()})
    of_count = by_place(counted.by_tensor, ends, heads)
    if name in TABLES and band is not None and band.before is not None:
        for way in beside:  # tables of a window have whole tiles, whose other words the interpreter does not know
            del words[way, "between"], of_count[way, "between"]
    assert +words == of_count
    for head, one in enumerate(many):
        reference = dict(schedule.problem.reference(one, allowed))
        reference |= {each: reference[each] * scale for each in ("dQ",) if each in reference}
        reference |= {each: reference[each] * np.log2(np.e) for each in ("L",) if each in outputs}
        for each, array in outputs.items():
            error = float(np.linalg.norm(array[head] - reference[each]))
            assert error < 5e-3 * max(float(np.linalg.norm(reference[each])), 0.1), (each, error)


def drawn(data: st.DataObject, name: str) -> tuple[dict[str, int], dict[str, int], str | None, int]:
    """Sizes, blocks, a mask and the slots of a ring."""
    mask = data.draw(st.sampled_from([None, "causal"]))
    n_q = data.draw(st.integers(1, 200))
    n_k = data.draw(st.integers(n_q, 300)) if mask else data.draw(st.integers(1, 300))
    d = 8 * data.draw(st.integers(3 if name == ONE_PASS else 2, 6))
    rows, tiles = st.sampled_from([64, 128, 192]), st.sampled_from([16, 32, 64])
    blocks = {"B_r": data.draw(rows), "B_c": data.draw(tiles)}
    if name == BACKWARD:
        high = min(128, blocks["B_r"])  # the kernel of v has tiles of a power of two
        blocks = {"B_r": high, "b_c": blocks["B_c"], "B_c": data.draw(rows), "b_r": data.draw(tiles)}
    if name in TABLES:
        table = {side: data.draw(st.sampled_from([64, 128])) for side in "ab"}
        blocks = {**table, "c": data.draw(st.sampled_from([16, 32, 64])), "e": data.draw(st.sampled_from([32, 64]))}
        blocks |= {"C": 256} if name == IN_ROWS else {}
    if name == ONE_PASS:
        blocks = {"B_c": data.draw(st.sampled_from([64, 128])), "b_r": data.draw(st.sampled_from([64, 128]))}
    return {"n_q": n_q, "n_k": n_k, "d_k": d, "d_v": d}, blocks, mask, data.draw(st.integers(2, 4))


@given(
    n_q=st.integers(1, 40),
    n_k=st.integers(1, 40),
    blocks=st.fixed_dictionaries({"B_c": st.integers(1, 9), "b_r": st.integers(1, 9)}),
)
def test_what_memory_spares_is_a_read_of_each_row_for_each_tile_of_keys(
    n_q: int, n_k: int, blocks: dict[str, int]
) -> None:
    dims = {"n_q": n_q, "n_k": n_k, "d_k": 3, "d_v": 2}
    program = get(ONE_PASS).in_dims(dims).program
    assert read_to_be_added_to(program, {**dims, **blocks}) == {"dQ": 3 * n_q * -(-n_k // blocks["B_c"])}
    assert read_to_be_added_to(get(BACKWARD).program, dict.fromkeys(["n", "d", "B_r", "b_c", "B_c", "b_r"], 4)) == {}


@pytest.mark.slow
@given(name=st.sampled_from([FORWARD, BACKWARD, ONE_PASS, *TABLES]), seed=st.integers(0, 99), data=st.data())
def test_drawn_kernels_move_the_words_of_the_count_give_the_reference_and_have_no_race(
    name: str, seed: int, data: st.DataObject
) -> None:
    dims, blocks, mask, stages = drawn(data, name)
    again = name not in (SCORES, PAIRS, IN_ROWS) and data.draw(st.booleans())
    try:
        run(name, dims, blocks, mask, stages, seed, again)
    except UsageError as error:  # a ring of so many slots has no room; one of two slots has
        taken, most = (int(each.replace(",", "")) for each in re.findall(r"[\d,]+(?= bytes|; take fewer)", str(error)))
        assert taken > most == 227 * 1024 and stages > 2
        run(name, dims, blocks, mask, 2, seed, again)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("name", [FORWARD, BACKWARD, ONE_PASS, *TABLES])
def test_kernels_move_the_words_of_the_count_give_the_reference_and_have_no_race(name: str, mask: str | None) -> None:
    run(name, {"n_q": 70, "n_k": 101, "d_k": 24, "d_v": 24}, BLOCKS[name], mask, 2, 7, False)
    persistent = name not in (SCORES, PAIRS, IN_ROWS)
    run(name, {"n_q": 150, "n_k": 151, "d_k": 24, "d_v": 24}, BLOCKS[name], mask, 2, 8, persistent)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("n_q", "n_k", "mask"), [(150, 151, "causal"), (70, 65, None)])
def test_a_table_is_written_in_whole_tiles(n_q: int, n_k: int, mask: str | None) -> None:
    """All parts of a tile of 128 queries: those beyond the last query, and those that see no key of the tile."""
    run(STORED, {"n_q": n_q, "n_k": n_k, "d_k": 24, "d_v": 16}, BLOCKS[STORED], mask, 3, 6, False)


def test_keys_that_do_not_exist_are_no_terms_of_the_gradient_of_the_queries() -> None:
    """With L far below 0 the exponentials of their scores, which are 0, would be infinite."""
    dims = {"n_q": 64, "n_k": 70, "d_k": 16, "d_v": 16}
    text, chance = source(STORED, dims, BLOCKS[STORED]), np.random.default_rng(3)
    sides = {"Q": (64, 16), "K": (70, 16), "V": (70, 16), "dO": (64, 16)}
    x = {name: np.float64(np.float16(chance.normal(size=(1, *shape)))) for name, shape in sides.items()}
    x["Q"][..., 0], x["K"][..., 0] = 32, -32
    S = 0.5 * x["Q"] @ x["K"].swapaxes(1, 2)
    most = S.max(-1, keepdims=True)
    l = np.exp(S - most).sum(-1, keepdims=True)
    P, L = np.exp(S - most) / l, (most + np.log(l))[..., 0]
    O = P @ x["V"]
    dS = P * (x["dO"] @ x["V"].swapaxes(1, 2) - (x["dO"] * O).sum(-1, keepdims=True))
    found, _ = gluon_interpreter.run(text, {**x, "O": O, "L": L * np.log2(np.e)}, "float16", (64, 70), 1)
    expected, made = (each[..., 1:] for each in (0.5 * dS @ x["K"], found["dQ"]))  # in the first column terms cancel
    assert L.max() < -400 and np.linalg.norm(made - expected) < 5e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", [FORWARD, STORED])
def test_a_product_in_pieces_is_waited_for(name: str) -> None:
    run(name, {"n_q": 65, "n_k": 70, "d_k": 40, "d_v": 40}, BLOCKS[name], None, 3, 2, False)


@pytest.mark.parametrize("mask", [pytest.param(None, marks=pytest.mark.slow), "causal"])
def test_a_pass_that_writes_a_table_may_keep_the_sums_of_both_gradients(mask: str | None) -> None:
    blocks = {"B_c": 128, "b_r": 64, "b": 32, "c": 16}
    run("dS-stored-blocked", {"n_q": 70, "n_k": 101, "d_k": 24, "d_v": 24}, blocks, mask, 2, 7, False)


@pytest.mark.parametrize(
    ("name", "n_q", "band"),
    [
        (FORWARD, 140, masks.of("window:32")),
        (ONE_PASS, 4 * 37, Band("causal", None, 0, rows=4)),  # four heads share keys
        *(
            pytest.param(name, n_q, band, marks=pytest.mark.slow)
            for name in (FORWARD, BACKWARD, ONE_PASS, *TABLES)
            for n_q, band in (
                (140, masks.of("window:7")),
                (140, masks.of("band:20")),
                (4 * 37, Band("causal", None, 0, rows=4)),
                (6 * 37, Band("a window", 9, 3, rows=6)),
            )
            if name != IN_ROWS or band.rows < 6  # which leaves keys without a query: parts of rows need one
        ),
    ],
)
def test_windows_and_heads_that_share_keys(monkeypatch: Any, name: str, n_q: int, band: Any) -> None:
    """Rows of heads that share keys stand next to each other; a mask treats them like their position."""
    monkeypatch.setattr(masks, "of", lambda mask: mask)
    run(name, {"n_q": n_q, "n_k": 151, "d_k": 24, "d_v": 24}, BLOCKS[name], band, 2, 7, False)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mask", ["window:16", "causal:start"])
def test_tiles_of_keys_without_a_query_fill_no_slots(mask: str) -> None:
    """A block has tiles of keys before and after them, whose slots and phases follow from how many were filled."""
    blocks = {"a": 128, "b": 128, "c": 64, "e": 64}
    run(PAIRS, {"n_q": 20, "n_k": 700, "d_k": 16, "d_v": 16}, blocks, mask, 3, 1, False)


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        (SCORES, None),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [(SCORES, "causal"), (PAIRS, "causal")]),
    ],
)
def test_rows_that_a_ring_leaves_no_room_for_stay_in_registers(name: str, mask: str | None) -> None:
    dims, blocks = {"n_q": 70, "n_k": 140, "d_k": 128, "d_v": 128}, {"a": 128, "b": 128, "c": 64, "e": 64}
    slots = 11 if name == SCORES else 9  # with more, the sums have no room either
    assert "_kept" in source(name, dims, blocks, mask, slots) and "_kept" not in source(name, dims, blocks, mask, 8)
    run(name, dims, blocks, mask, slots, 9, False)


def test_a_ring_of_fewer_slots_than_parts_does_not_keep_a_warpgroup_waiting() -> None:
    """The second begins when the first has issued most of its first products, or all that the ring has slots for."""
    run(PAIRS, {"n_q": 128, "n_k": 256, "d_k": 64, "d_v": 48}, {"a": 128, "b": 64, "c": 16, "e": 32}, None, 2, 3, False)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize(
    ("name", "d_k", "d_v"),
    [
        (FORWARD, 192, 128),
        (FORWARD, 136, 192),
        (BACKWARD, 192, 128),
        (BACKWARD, 64, 144),
        (PAIRS, 200, 64),
        (SCORES, 64, 200),
        (FORWARD, 80, 96),
        (BACKWARD, 72, 160),
        (STORED, 160, 72),
    ],
)
def test_columns_in_parts_move_no_word_more_and_give_the_reference(
    name: str, d_k: int, d_v: int, mask: str | None
) -> None:
    blocks = {**BLOCKS[name], **({"c": 64, "e": 192} if name in TABLES else {})}
    run(name, {"n_q": 130, "n_k": 150, "d_k": d_k, "d_v": d_v}, blocks, mask, 3, 5, name == FORWARD)


@pytest.mark.parametrize(("d", "parts"), [(128, 1), (129, 3), (192, 3), (193, 1), (256, 1)])
def test_columns_are_divided_where_parts_are_fewer_than_a_power_of_two(d: int, parts: int) -> None:
    dims = {"n_q": 128, "n_k": 128, "d_k": d, "d_v": 64}
    (launch,) = launches(get(FORWARD).in_dims(dims).program)
    reads = [node for node in ir.walk(divided(launch, {**dims, **BLOCKS[FORWARD]}).block) if isinstance(node, ir.Read)]
    assert len(reads) == 2 * parts + 1  # of Q and K, and of V


@pytest.mark.parametrize(
    ("d", "pieces"),
    [
        *((64, ""), (128, ""), (192, ""), (256, ""), (16, ""), (40, "0 32, 32 16"), (72, "0 64, 64 16")),
        *((80, "0 64, 64 16"), (96, "0 64, 64 32"), (112, "0 64, 64 32, 96 16"), (160, "0 32"), (136, "0 16")),
    ],
)
def test_products_over_columns_take_no_zeros_behind_them(d: int, pieces: str) -> None:
    """What is not a whole tile, or a whole part of 64 columns, is cut in pieces of powers of two."""
    text = source(FORWARD, {"n_q": 128, "n_k": 128, "d_k": d, "d_v": 64}, BLOCKS[FORWARD])
    cut = re.findall(r"Q_i\w*\.index\(w\)\.reshape\(\[64, \d+\]\)\.slice\((\d+), (\d+), dim=1\)", text)
    assert ", ".join(dict.fromkeys(f"{begin} {length}" for begin, length in cut)) == pieces


def test_a_product_is_not_put_off_where_its_slots_would_all_be_in_use() -> None:
    """Of two slots one has the rows of dO that dV still needs, and the other those of dP."""
    dims, blocks = {"n_q": 256, "n_k": 256, "d_k": 64, "d_v": 64}, {"a": 128, "b": 128, "c": 64, "e": 64}
    program = get(STORED).in_dims(dims).program
    late = {stages: plans(program, {**dims, **blocks}, stages=stages)["dV, dS"].late for stages in (2, 3)}
    assert not late[2] and [node.target.tile.name for node in late[3]] == ["dV_j"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("n_q", "n_k", "d_k", "d_v"), [(70, 150, 264, 264), (130, 33, 512, 320)])
def test_warpgroups_divide_columns_of_sums_that_are_too_wide_for_one(n_q: int, n_k: int, d_k: int, d_v: int) -> None:
    dims, blocks = {"n_q": n_q, "n_k": n_k, "d_k": d_k, "d_v": d_v}, {"B_r": 64, "B_c": 32}
    (plan,) = plans(get(FORWARD).in_dims(dims).program, {**dims, **blocks}).values()
    assert (plan.shares, plan.height) == (2, 64)
    run(FORWARD, dims, blocks, None, 2, 4, False)


SQUARE = {"n_q": 70, "n_k": 71, "d_k": 64, "d_v": 64}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "mask", "n_q", "n_k"),
    [
        *((FORWARD, *each) for each in [("causal:start", 200, 70), ("window:7:start", 76, 70), ("band:3", 73, 70)]),
        *((BACKWARD, *each) for each in [("window:7", 70, 203), ("band:3:start", 254, 257)]),
        *((PAIRS, *each) for each in [("causal:start", 20, 450), ("band:3:start", 70, 301), ("window:7", 70, 301)]),
    ],
)
def test_a_text_is_right_at_lengths_that_it_was_not_written_for(name: str, mask: str, n_q: int, n_k: int) -> None:
    """Keys without a query among them, or as many queries as can have a key."""
    run(name, {**SQUARE, "n_q": n_q, "n_k": n_k}, BLOCKS[name], mask, 3, 5, name == BACKWARD, written_for=SQUARE)


@pytest.mark.parametrize(
    ("name", "mask", "n_q", "n_k", "said"),
    [
        (FORWARD, "causal", 71, 70, "a key for each query"),
        (FORWARD, "window:7:start", 77, 70, "a key for each query"),
        (PAIRS, "band:3", 74, 70, "a key for each query"),
        (BACKWARD, "window:7", 70, 204, "a query for each tile of 128 keys"),
        (BACKWARD, "band:3:start", 253, 257, "a query for each tile of 128 keys"),
        (ONE_PASS, "causal:start", 70, 301, "a query for each tile of 128 keys"),
        (STORED, "causal:start", 70, 301, "a query for each tile of 128 keys"),
    ],
)
def test_lengths_that_leave_a_block_without_a_pair_are_refused_at_the_call(
    name: str, mask: str, n_q: int, n_k: int, said: str
) -> None:
    """It would wait for ever for words that nobody loads."""
    text, lengths = source(name, SQUARE, BLOCKS[name], mask, 3), {"n_q": n_q, "n_k": n_k, "d_k": 64, "d_v": 64}
    schedule = get(name).in_dims(lengths)
    inputs = schedule.problem.random_inputs(lengths, 1, schedule.kept, masks.of(mask).allowed(n_q, n_k))
    order = [tensor for tensor in schedule.program.tensors if tensor in schedule.program.inputs]
    with pytest.raises(ValueError, match=f"these kernels need {said}"):
        gluon_interpreter.run(text, {each: np.asarray(inputs[each])[None] for each in order}, "float16", (n_q, n_k), 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("mbarrier.wait(K_j_full.index(slot), phase)", "pass"), "may not have arrived|never filled"),
        (("mbarrier.wait(V_j_free.index(slot), phase ^ 1)", "pass"), "is filled|nobody read|may not have"),
        (("warpgroup_mma_wait(1, deps=(P,))", "P"), "before its product has ended"),
        (("mbarrier.arrive(K_j_free.index(slot), count=1)", "pass"), "all roles wait"),
        (("mbarrier.arrive(turns.index(1 - w), count=1)", "pass"), "all roles wait"),
        (("mbarrier.expect(Q_i_full.index(0), ", "mbarrier.expect(Q_i_full.index(0), 2 * "), "all roles wait"),
        (("mbarrier.wait(Q_i_free.index(0), (turn & 1) ^ 1)", "pass"), "is filled|may not have|nobody read"),
        (("deps=(O_i, P_late)", "deps=(O_i, O_i)"), "not kept"),
    ],
)
def test_the_interpreter_finds_what_is_left_out(change: tuple[str, str], said: str) -> None:
    dims = {"n_q": 128, "n_k": 128, "d_k": 16, "d_v": 16}
    text = source(
        FORWARD, dims, {"B_r": 128, "B_c": 16}, persistent=True
    )  # four heads: one of three blocks has two tiles
    broken = text.replace(*change)
    assert broken != text
    inputs = get(FORWARD).in_dims(dims).problem.random_inputs(dims, 3, (), None)
    given_ = {each: np.stack([np.asarray(inputs[each])] * 4) for each in "QKV"}
    with pytest.raises((AssertionError, TypeError), match=said):
        gluon_interpreter.run(broken, given_, "float16", (128, 128), 1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("fence_async_shared()", "pass"), "without a fence"),
        (("mbarrier.wait(dS_of_all_full.index(slot), phase)", "pass"), "not have been stored|may still be read|nobody"),
        (("mbarrier.arrive(dS_of_all_full.index(slot), count=1)", "pass"), "all roles wait"),
        (("tma.store_wait(0)", "pass"), "stored to while something reads it"),
        (("    tma.store_wait(0)\n    down", "    down"), "additions that nobody waited for"),
        (("[head, i * 64, w * 16]", "[head, i * 64, 0]"), "wrong"),
        (
            ("warpgroup_mma_wait(0, deps=(dV_j, P_16, dK_j, dS_16, dQ_added))", "(dV_j, P_16, dK_j, dS_16, dQ_added)"),
            "Flying",
        ),
    ],
)
def test_the_interpreter_finds_what_is_left_out_of_additions(change: tuple[str, str], said: str) -> None:
    dims, heads = {"n_q": 256, "n_k": 128, "d_k": 32, "d_v": 32}, 2
    text = source(ONE_PASS, dims, {"B_c": 128, "b_r": 64}, scale=1.0)
    broken = text.replace(*change)
    assert broken != text
    inputs = get(ONE_PASS).in_dims(dims).problem.random_inputs(dims, 3, ("O", "L"), None)
    given_ = {each: np.stack([np.asarray(inputs[each])] * heads) for each in ("Q", "K", "V", "dO", "O", "L")}
    given_["L"] = given_["L"] * np.log2(np.e)

    def compared() -> None:
        outputs, _ = gluon_interpreter.run(broken, given_, "float16", (256, 128), 1)
        right = get(ONE_PASS).in_dims(dims).problem.reference(inputs, None)
        error = float(np.linalg.norm(outputs["dQ"][0] - right["dQ"]))
        assert error < 5e-3 * float(np.linalg.norm(right["dQ"])), "wrong"

    with pytest.raises((AssertionError, TypeError), match=said):
        compared()


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("fence_async_shared()", "pass"), "without a fence"),
        (("mbarrier.wait(V_j_full.index(slot), phase)", "pass"), "may not have arrived|never filled"),
        (("mbarrier.arrive(V_j_free.index(last), count=1)", "pass"), "all roles wait|is filled"),
        (
            ("mbarrier.wait(V_j_free.index(slot), phase ^ 1)", "pass"),
            "is filled|nobody read|may not have|more arrivals",
        ),
        (
            ("mbarrier.wait(dS_tile_full.index(2 * w + ((filled + j) & 1)), ((filled + j) // 2) & 1)", "pass"),
            "may not have arrived|never filled",
        ),
        (
            ("    tma.store_wait(0)\n                    mbarrier.expect(dS", "    mbarrier.expect(dS"),
            "being sent|reads it",
        ),
        (("mbarrier.wait(dO_i_full.index(k), turn & 1)", "pass"), "may not have arrived|never filled"),
        (("mbarrier.wait(dO_i_free.index(k), (turn & 1) ^ 1)", "pass"), "is filled|nobody read|may not have"),
        (("mbarrier.arrive(dO_i_free.index(k), count=1)", "pass"), "all roles wait"),
        (("mbarrier.arrive(turns.index(w), count=1)", "pass"), "all roles wait"),
        (("S_ij = warpgroup_mma_wait(0, deps=(S_ij,))", "pass"), "Flying|has ended"),
    ],
)
def test_the_interpreter_finds_what_is_left_out_of_tables(change: tuple[str, str], said: str) -> None:
    check_without({"a": 128, "b": 64, "c": 16, "e": 32}, "dS", change, said)


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("fence_async_shared()", "pass"), "without a fence"),
        (("mbarrier.wait(free.index(slot), phase ^ 1)\n            mbarrier.arrive", "mbarrier.arrive"), "more arr"),
        (("mbarrier.arrive(full.index(slot), count=1)", "pass"), "all roles wait"),
        (("mbarrier.arrive(free.index(slot), count=2)", "pass"), "all roles wait"),
        (
            ("mbarrier.arrive(free.index(slot), count=2)", "mbarrier.arrive(free.index(slot), count=1)"),
            "all roles wait",
        ),
        (("tma.store_wait(0)", "pass"), "additions that nobody waited for"),
        (("filled += end - first + 2", "filled += end - first"), "all roles wait|may not|more arrivals"),
    ],
)
def test_the_interpreter_finds_what_is_left_out_of_products(change: tuple[str, str], said: str) -> None:
    """A result goes through slots of the ring, behind the parts of its terms and before those of the next one."""
    check_without({"a": 128, "b": 128, "c": 64, "e": 64}, "dQ", change, said)


def check_without(blocks: dict[str, int], kernel: str, change: tuple[str, str], said: str) -> None:
    """Four tiles of queries for three blocks: one of these has two, one after the other."""
    dims = {"n_q": 512, "n_k": 256, "d_k": 64, "d_v": 48}
    text = source(PAIRS, dims, blocks)
    begin = text.index(f"def {kernel}_loads(")
    broken = text[:begin] + text[begin:].replace(*change)
    assert broken != text
    inputs = get(PAIRS).in_dims(dims).problem.random_inputs(dims, 3, ("O", "L"), None)
    given_ = {each: np.asarray(inputs[each])[None] for each in ("Q", "K", "V", "dO", "O", "L")}
    with pytest.raises((AssertionError, TypeError), match=said):
        gluon_interpreter.run(broken, given_, "float16", (512, 256), 1)


@pytest.mark.parametrize(
    ("name", "changed", "mask", "dtype", "said"),
    [
        (FORWARD, {"B_r": 96}, None, "bfloat16", "block B_r is 96"),
        (FORWARD, {"B_r": 256}, None, "bfloat16", "block B_r is 256"),
        (FORWARD, {"d_k": 20, "d_v": 20}, None, "bfloat16", "d_k in whole groups of 8 words, and it is 20"),
        (FORWARD, {"d_k": 512, "d_v": 512}, None, "bfloat16", "512 columns"),
        (FORWARD, {}, "bigbird:64:1:1:1", "bfloat16", "know causal, window:W and band:W, and not bigbird"),
        (FORWARD, {}, None, "float32", "words of 16 bits, and not of float32; add --dtype bf16"),
        (PAIRS, {"d_k": 20}, None, "bfloat16", "d_k in whole groups of 8 words, and it is 20; take"),
        (PAIRS, {"d_v": 20}, None, "bfloat16", "d_v in whole groups of 8 words, and it is 20; take"),
        (SCORES, {"d_v": 36}, None, "bfloat16", "d_v in whole groups of 8 words, and it is 36; take"),
        (FORWARD, {"stages": 1}, None, "bfloat16", "ring of one stage"),
        (PAIRS, {"stages": 1}, None, "bfloat16", "ring of one stage"),
        (FORWARD, {"stages": 100}, None, "bfloat16", "bytes of shared memory with 100 stages .* 232,448"),
        (PAIRS, {"stages": 100}, None, "bfloat16", "bytes of shared memory with 100 stages .* 232,448"),
        (
            BACKWARD,
            {"n_q": 40, "n_k": 400},
            "window:32",
            "bfloat16",
            "a query for each tile of keys, and mask window:32 leaves some without",
        ),
        (
            ONE_PASS,
            {"n_q": 40, "n_k": 400},
            "window:32",
            "bfloat16",
            "a query for each tile of keys, and mask window:32 leaves some without",
        ),
        (
            FORWARD,
            {"n_q": 512},
            "causal",
            "bfloat16",
            "a key for each query, and mask causal leaves some without; leave these queries out",
        ),
        (ONE_PASS, {"b_r": 32}, None, "bfloat16", "adds 32 x 64 words"),
        (PAIRS, {"a": 256}, None, "bfloat16", "block a is 256"),
        ("small-cache-forward-blocked", {}, None, "bfloat16", "no single loop"),
        ("flash1-backward", {"B_r": 64, "B_c": 64}, None, "bfloat16", "takes entries of dO_i"),
    ],
)
def test_other_programs_are_refused_in_a_sentence(
    name: str, changed: dict[str, int], mask: str | None, dtype: str, said: str
) -> None:
    schedule, band = get(name), masks.of(mask)
    sides = {"n_q": 256, "n_k": 256, "d_k": 64, "d_v": 64} | changed
    dims = {dim: side for dim, side in sides.items() if "_" in dim and dim[0] in "nd"}
    sizes = {**dims, **{block: changed.get(block, 128) for block in schedule.blocks}}
    with pytest.raises(UsageError, match=said) as refused:
        gluon(schedule.in_dims(dims).under(band), sizes, dtype, band, stages=changed.get("stages", 2))
    sentence = str(refused.value)
    assert sentence.count("; ") == 1 and sentence.count(". ") == 0 and sentence.endswith(".")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("release", releases.RELEASES)
@pytest.mark.parametrize("name", [FORWARD, ONE_PASS, PAIRS])
def test_kernels_are_right_by_the_names_of_a_release(monkeypatch: pytest.MonkeyPatch, name: str, release: str) -> None:
    """With the functions of a release alone; Triton's own compilers are asked by `benchmarks/gpu/versions.py`."""
    monkeypatch.setattr(gluon_interpreter.HOPPER, "tma", gluon_interpreter.tma(release))
    dims = {"n_q": 70, "n_k": 40, "d_k": 32, "d_v": 32}
    run(name, dims, BLOCKS[name], None, 2, 1, False, release)
