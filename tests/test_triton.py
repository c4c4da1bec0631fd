"""Triton source, run by a small interpreter: outputs against float64 references, words touched against the count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import triton_interpreter
from hypothesis import given
from hypothesis import strategies as st

import pebblesim as ps
from pebblesim.errors import UsageError
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.readings.kernels.triton import triton

BLOCKED = ["matmul-blocked", "matmul-tiled", "small-cache-backward-blocked", "small-cache-forward", "flash2-forward"]


def run(name: str, dims: dict[str, int], blocks: dict[str, int], dtype: str = "float32", heads: int = 2) -> None:
    schedule = get(name)
    counted = ps.count(name, M=10**9, blocks=blocks, **dims)
    source = triton(schedule.program, {**counted.dims, **blocks}, dtype)
    many = [schedule.problem.random_inputs(counted.dims, seed, kept=schedule.kept) for seed in range(heads)]
    order = [tensor for tensor in schedule.program.tensors if tensor in schedule.program.inputs]
    inputs = {each: np.stack([one[each] for one in many]) for each in order}
    outputs, words = triton_interpreter.run(source.text, inputs, dtype)

    expected: Counter[tuple[str, str]] = Counter()
    for tensor, (reads, writes) in counted.by_tensor.items():
        place = tensor if tensor in inputs or tensor in outputs else "between"
        expected["read", place] += heads * reads
        expected["written", place] += heads * writes
    assert +words == +expected

    close = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
    for head, one in enumerate(many):
        reference = schedule.problem.reference(one)
        for each, array in outputs.items():
            error = np.linalg.norm(array[head] - reference[each]) / max(np.linalg.norm(reference[each]), 1e-30)
            assert error < close, (each, error)


SIDES = st.sampled_from([16, 32])


@given(name=st.sampled_from(BLOCKED), n=st.integers(1, 70), d=st.integers(1, 40), data=st.data())
def test_kernels_touch_the_words_of_the_count_and_give_the_reference(
    name: str, n: int, d: int, data: st.DataObject
) -> None:
    if name == "flash2-forward":
        d = max(d, 9)  # the whole head dimension is a side of products
    run(
        name,
        {"n": n, "d": d},
        {block: data.draw(SIDES) for block in get(name).blocks},
        heads=data.draw(st.integers(1, 2)),
    )
