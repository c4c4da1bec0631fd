"""dQ and dB of a shared bias in one Gluon kernel, run by the interpreter: values, words, and no race."""

from __future__ import annotations

import re
from typing import Any

import gluon_interpreter
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pebblesim.advice import cards
from pebblesim.core.errors import UsageError
from pebblesim.kernels.gluon import gradients
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.bias import biased
from pebblesim.kernels.passes.bias_stays import OF_PART, SPAN, gradients_at_once
from pebblesim.kernels.tables import moved_words
from pebblesim.language.program import Program
from pebblesim.language.registry import get
from pebblesim.operator.bias import forecast as forecast_of_bias, programs

SCALE = 0.25


FORMS = "alone", "onward", "with v"
"""dQ begins as 0, or goes on; or it begins as 0, and v is computed, too."""


def program(form: str = "alone") -> Program:
    schedule = get("backward-two-pass-blocked")
    assert schedule.problem.rectangle is not None
    made = biased(schedule.in_dims(schedule.problem.rectangle.dims).program)
    return gradients_at_once(made, form == "onward", form == "with v")


def text(n_q: int, n_k: int, d: tuple[int, int], span: int, side: int, form: str = "alone", **options: Any) -> str:
    sizes = {"R": 4, "n_q": n_q, "n_k": n_k, "d_k": d[0], "d_v": d[1], OF_PART: 1, "B_r": 64, SPAN: span, "b_c": side}
    return gluon(program(form), sizes, "float16", scale=SCALE, shared=1, **options).text


def drawn(batch: int, R: int, heads: int, n_q: int, n_k: int, d: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
    """Matrices (batch, R, heads, n, d), a bias (batch, 1, heads, n_q, n_k), some of it -∞, numbers as kernels take
    them: L, to base 2, and v of any O; and what other keys have added to dQ."""
    chance = np.random.default_rng(seed)
    sides = {"Q": (n_q, d[0]), "K": (n_k, d[0]), "V": (n_k, d[1]), "dO": (n_q, d[1]), "O": (n_q, d[1])}
    x = {name: chance.normal(size=(batch, R, heads, *each)) for name, each in sides.items()}
    bias = chance.normal(size=(batch, 1, heads, n_q, n_k))
    bias[chance.random(bias.shape) < 0.1] = -np.inf
    x = {name: each.astype(np.float16).astype(float) for name, each in (x | {"bias": bias}).items()}
    S = SCALE * x["Q"] @ x["K"].swapaxes(3, 4) + x["bias"]
    most = np.maximum(S.max(-1), -1e4)
    l = np.exp(S - most[..., None]).sum(-1)
    x["L"] = np.where(l == 0, np.inf, np.log2(np.where(l == 0, 1, l)) + most * np.log2(np.e))
    x["v"] = (x["dO"] * x["O"]).sum(-1)
    x["dQ_before"] = chance.normal(size=x["Q"].shape).astype(np.float32).astype(float)
    return x


def right(x: dict[str, np.ndarray], form: str = "alone") -> dict[str, np.ndarray]:
    """dQ, dB and, where it is computed, v from their definitions."""
    S = SCALE * x["Q"] @ x["K"].swapaxes(3, 4) + x["bias"]
    P = np.exp2(S * np.log2(np.e) - x["L"][..., None])
    dS = P * (x["dO"] @ x["V"].swapaxes(3, 4) - x["v"][..., None])
    dQ = SCALE * dS @ x["K"] + (x["dQ_before"] if form == "onward" else 0)
    return {"dQ": dQ, "dB": dS.sum(1), **({"v": x["v"]} if form == "with v" else {})}


def parts_of(x: dict[str, np.ndarray]) -> list[int]:
    """How many blocks have sequences of each head: on a card of three multiprocessors, by going through all of them."""
    batch, R, heads, n_q, _ = x["Q"].shape
    whole = R + gradients.BEGINNING
    blocks = max(3 // -(-n_q // 64), 1)
    each = max(-(-batch * heads * whole // blocks), gradients.FEWEST)
    if batch * heads <= blocks and (own := -(-R // (blocks // (batch * heads)))) <= each + gradients.BETWEEN:
        return [-(-R // own)] * (batch * heads)
    return [len({at // each for at in range(head * whole, (head + 1) * whole)}) for head in range(batch * heads)]


def run(source: str, x: dict[str, np.ndarray], seed: int, tokens: bool = False) -> Any:
    """What the kernels write, and the words that they move; `tokens`: heads of a position are next to each other."""
    batch, R, heads, n_q, _ = x["Q"].shape
    n_k = x["K"].shape[3]

    behind = [(0, 0)] * 4 + [(0, -n_k % 8)]  # what lies behind a row, up to a group of 8 words, is for no one
    parts, bias = parts_of(x), np.pad(x["bias"], behind, constant_values=100.0)
    shapes = {
        "dQ": x["Q"].shape,
        "dB": (batch, max(parts) + 1, heads, n_q, -(-n_k // 8) * 8),
    }  # in rows of groups of 8 words

    def apart(shape: tuple[int, ...]) -> tuple[int, ...]:
        _, copies, h, n, width = shape
        wide = -(-width // 8) * 8
        if tokens and shape not in (bias.shape, shapes["dB"]):
            return copies * n * h * wide, n * h * wide, wide, h * wide, 1
        return copies * h * n * wide, h * n * wide, n * wide, wide, 1

    taken = re.findall(r"(\w+)_ptr", source.split("def run(")[1].split("):")[0])
    vectors = {name: each.reshape(batch * heads, R, n_q) for name, each in x.items() if name in ("L", "v")}
    given = {name: vectors.get(name, x[name]) for name in taken} | {"bias": bias}
    made, words = gluon_interpreter.run(
        source,
        given,
        "float16",
        None,
        seed,
        strides={name: apart(each.shape) for name, each in given.items() if each.ndim == 5},
        results={name: (shape, apart(shape)) for name, shape in shapes.items()},
        wide={"L", "v", "dB", "dQ_before"},
    )
    dB = np.stack([made["dB"][at // heads, : parts[at], at % heads, :, :n_k].sum(0) for at in range(batch * heads)])
    v = {"v": made["v"].reshape(x["v"].shape)} if "v" in made else {}
    return {"dQ": made["dQ"], "dB": dB.reshape(batch, heads, n_q, n_k), **v}, words


def close(made: dict[str, np.ndarray], true: dict[str, np.ndarray]) -> None:
    for name, each in true.items():
        assert np.allclose(made[name], each, rtol=0.01, atol=0.01 * np.abs(each).max()), name


@pytest.mark.one_in(3)
@settings(max_examples=6, deadline=None)
@given(data=st.data(), side=st.sampled_from([16, 32, 64]), tokens=st.booleans(), form=st.sampled_from(FORMS))
def test_values_words_and_no_race(data: Any, side: int, tokens: bool, form: str) -> None:
    """Of ragged sizes, each in an order of roles that is drawn: the words are those that the program counts."""
    shares = 3 if side == 32 else 2  # warpgroups that divide the keys
    span = shares * data.draw(st.integers(1, 3)) * side
    n_q, n_k = data.draw(st.integers(1, 150)), data.draw(st.integers(span - shares * side + 1, span))
    batch, R, heads = (data.draw(st.integers(1, most)) for most in (2, 5, 2))
    seed = data.draw(st.integers(0, 99))
    stages = data.draw(st.integers(2, 3 if span <= 192 else 2))  # as many as there is shared memory for
    d = data.draw(st.tuples(*[st.sampled_from([16, 24, 32])] * 2))
    x = drawn(batch, R, heads, n_q, n_k, d, seed)
    made, words = run(text(n_q, n_k, d, span, side, form, stages=stages), x, seed, tokens)
    close(made, right(x, form))
    sizes = {
        "R": R,
        "n_q": n_q,
        "n_k": n_k,
        "d_k": d[0],
        "d_v": d[1],
        OF_PART: R,
        "B_r": 64,
        SPAN: span,
        "b_c": side,
    }
    padded = sizes | {"n_k": -(-n_k // 8) * 8}  # rows of the bias and dB are moved in groups of 8 words
    counted = moved_words(program(form), sizes) | {
        name: moved_words(program(), padded)[name] for name in ("bias", "dB")
    }
    assert counted.get("dQ_before", (0, 0)) == (R * n_q * d[0] * (form == "onward"), 0)
    more = sum(parts_of(x)) - batch * heads  # blocks that have some sequences of a head, beside the first one
    again = dict.fromkeys(("bias", "dB"), n_q * padded["n_k"] * more)
    for name, (read, written) in counted.items():
        moved = words["read", name], words["written", name]
        each = again.get(name, 0)
        assert moved == (read * batch * heads + each * (read > 0), written * batch * heads + each * (written > 0)), name


def test_a_head_whose_sequences_several_blocks_have() -> None:
    """And a block that has only some of those of two heads."""
    x = drawn(1, 30, 2, 20, 33, (16, 16), 2)
    assert parts_of(x) == [2, 2]
    made, _ = run(text(20, 33, (16, 16), 96, 32), x, 1)
    close(made, right(x))


@given(rows=st.integers(1, 900), sequences=st.integers(1, 700), heads=st.integers(1, 40), units=st.integers(1, 200))
def test_parts_of_heads(rows: int, sequences: int, heads: int, units: int) -> None:
    """Of each as many as blocks that have some of its sequences; and there is room for those of all heads. No block has
    more than it would have by equal shares of all heads, but for the time that is lost between two."""
    parts = programs.parts_at_once(rows, sequences, heads, units)
    whole, blocks = parts.whole, max(units // -(-rows // 64), 1)
    assert whole >= sequences and -(-heads * whole // parts.each) <= blocks
    equal = max(-(-heads * (sequences + gradients.BEGINNING) // blocks), gradients.FEWEST)
    assert parts.each <= equal + gradients.BETWEEN
    if whole % parts.each == 0 and parts.each != equal:  # no block has two heads, and each has a sequence
        assert whole - sequences < parts.each
    found = [len({at // parts.each for at in range(head * whole, (head + 1) * whole)}) for head in range(heads)]
    assert found == [parts.of(head) for head in range(heads)] and max(found) <= parts.most


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", FORMS)
def test_what_orders_roles_is_missed(form: str) -> None:
    """Without a wait, an arrival or a fence the interpreter finds a race, or roles that wait for ever.

    Where dQ goes on, the slots of a sequence are free when that of the dQ behind it is, which is waited for, too; and
    of the fence behind words that were read, of O, too, `test_rules_of_programs` asks.
    """
    x = drawn(1, 12, 1, 50, 90, (16, 16), 1)  # of which a block has four
    lines = text(50, 90, (16, 16), 96, 32, form).splitlines()
    close(run("\n".join(lines), x, 0)[0], right(x, form))
    ordered = [at for at, line in enumerate(lines) if re.match(r"\s+(mbarrier\.(wait|arrive)|fence_async)", line)]
    freed = {"onward": "dQ_before_free", "with v": "O_i_free"}.get(form, "no barrier")
    left_out = [at for at in ordered if "fence" in lines[at] and freed in lines[at + 1]]
    left_out += [at for at in ordered if form == "onward" and "wait(dO_i_free" in lines[at]]
    ordered = [at for at in ordered if at not in left_out]
    assert len(ordered) == {"with v": 12}.get(form, 9)
    for at in ordered:
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        with pytest.raises(AssertionError):
            run("\n".join([*lines[:at], f"{indent}pass", *lines[at + 1 :]]), x, 0)


@pytest.mark.parametrize(("d", "span", "B_r"), [((8, 16), 96, 64), ((16, 16), 100, 64), ((16, 16), 96, 128)])
def test_sizes_that_a_block_does_not_have_are_refused(d: tuple[int, int], span: int, B_r: int) -> None:
    sizes = {"R": 4, "n_q": 64, "n_k": 96, "d_k": d[0], "d_v": d[1], OF_PART: 1, "B_r": B_r, SPAN: span, "b_c": 32}
    with pytest.raises(UsageError):
        gluon(program(), sizes, "float16", scale=SCALE, shared=1)


def test_another_program_has_no_rows_of_a_bias_that_stay() -> None:
    with pytest.raises(UsageError, match="no loop over rows of queries"):
        gradients_at_once(get("backward-two-pass-blocked").program)


def test_where_both_gradients_are_computed_at_once() -> None:
    """On Hopper cards, of narrow heads in 16 bits, for enough sequences, and where dQ in float32 has room."""
    sizes, card = forecast_of_bias.Sizes(512, 512, 4, 384, 384, 32), cards.card("h200")
    assert forecast_of_bias.at_once(sizes, "bfloat16", card)
    few = {"sequences": 8, "sharing": 8, "n_q": 64, "n_k": 64}
    others = {"d": 64}, few, {"sequences": 1024, "sharing": 1024, "n_q": 2048, "n_k": 2048}
    assert not any(forecast_of_bias.at_once(sizes._replace(**other), "bfloat16", card) for other in others)
    assert not forecast_of_bias.at_once(sizes, "float32", card)
    assert not forecast_of_bias.at_once(sizes, "bfloat16", cards.card("a100"))
    way = forecast_of_bias.names("backward", sizes, "bfloat16", True, card)
    assert "dQ, dB in tiles of 64 x 384" in way and "; dB in" not in way
    apart = forecast_of_bias.seconds("backward", sizes, "bfloat16", None, False, card)
    at_once = forecast_of_bias.seconds("backward", sizes, "bfloat16", None, True, card)
    assert 0.9 * apart < at_once < 1.1 * apart  # v and dB are computed beside dQ
