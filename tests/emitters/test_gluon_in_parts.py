"""Gluon source of a part of a backward pass, run part after part: sums over all of them, and the words of the whole."""

from __future__ import annotations

from collections import Counter

import gluon_interpreter
import numpy as np
import pytest
from hypothesis import given, strategies as st
from words_by_place import by_place

import pebblesim as ps
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.in_parts import part_of, sums_between
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.launches.launches import launches

IN_ROWS, WHOLE = "small-cache-backward-resident-in-rows", "small-cache-backward-resident"
ROWS = "Q", "dO", "O", "L"


def check(n_q: int, n_k: int, d: int, C: int, blocks: dict[str, int], seed: int) -> None:
    """Compare groups of C rows, one after the other, with float64 gradients and with the count of the schedule."""
    schedule, dims = get(IN_ROWS), {"n_q": n_q, "n_k": n_k, "d_k": d, "d_v": d}
    counted = ps.count(IN_ROWS, M=10**9, blocks={"C": C, **blocks}, **dims)
    schedule = schedule.in_dims(dims)
    many = [schedule.problem.random_inputs(counted.dims, seed + head, schedule.kept, None) for head in range(2)]
    order = [tensor for tensor in schedule.program.tensors if tensor in schedule.program.inputs]
    inputs = {name: np.stack([one[name] for one in many]) for name in order}
    given = {**inputs, "Q": inputs["Q"] / 0.5, "L": inputs["L"] * np.log2(np.e)}  # the kernels' scale and base

    moved, sums, dQ = Counter[tuple[str, str]](), None, []
    for start in range(0, n_q, C):
        own = {name: each[:, start : start + C] if name in ROWS else each for name, each in given.items()}
        rows = own["Q"].shape[1]
        text = gluon(schedule.program, {**dims, "n_q": rows, "C": C, **blocks}, "float16", scale=0.5, stages=4).text
        assert "def dV_rows" in text and "def dK_rows" in text  # by the copy engine, and not by Triton
        made, words = gluon_interpreter.run(text, own, "float16", (rows, n_k), seed, onto=sums)
        for way in ("read", "written"):  # tiles of a table are whole
            words[way, "between"] -= words.pop((way, "beside"))
        moved += words
        sums, dQ = {name: made[name] for name in ("dK", "dV")}, [*dQ, made["dQ"]]
    assert moved == +by_place(counted.by_tensor, {*inputs, "dQ", "dK", "dV"}, 2)
    assert sums is not None
    for head, one in enumerate(many):
        reference = dict(schedule.problem.reference(one, None))
        reference["dQ"] = reference["dQ"] * 0.5
        for name, array in {**sums, "dQ": np.concatenate(dQ, axis=1)}.items():
            error = float(np.linalg.norm(array[head] - reference[name]))
            assert error < 5e-3 * max(float(np.linalg.norm(reference[name])), 0.1), (name, error)


@pytest.mark.one_in(2)
def test_parts_follow_parts() -> None:
    """The first part writes zeros, which are counted once; all of them read and write what they add to."""
    check(150, 70, 72, 64, {"a": 64, "b": 64, "c": 64, "e": 64}, 1)


@pytest.mark.slow
@given(data=st.data())
def test_drawn_parts_follow_parts(data: st.DataObject) -> None:
    blocks = {each: data.draw(st.sampled_from([64, 128])) for each in "ab"}
    blocks |= {"c": 64, "e": data.draw(st.sampled_from([64, 128, 192]))}
    sizes = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 200)), 8 * data.draw(st.integers(2, 26))
    check(*sizes, data.draw(st.integers(1, 3)) * blocks["a"], blocks, data.draw(st.integers(0, 99)))


def test_a_part_is_launched_as_the_whole_is() -> None:
    """Its launches have no loop around them, and those of the schedule for all rows have the same names."""
    part = part_of(get(IN_ROWS).program)
    made = [each for each in launches(part, masked=True, repeated=True) if each.kind == "tiles"]
    whole = [each for each in launches(get(WHOLE).program, masked=True, repeated=True) if each.kind == "tiles"]
    assert all(each.around is None for each in made) and [each.name for each in made] == [each.name for each in whole]
    assert "C" in get(IN_ROWS).program.blocks and "C" not in part.blocks and part_of(part) is part
    assert {tensor.name for tensor in sums_between(part)} == {"dK", "dV"}


def test_only_schedules_in_rows_have_parts() -> None:
    parted = [name for name, each in SCHEDULES.items() if part_of(each.program) is not each.program]
    assert parted and all(name.endswith("-in-rows") for name in parted)
