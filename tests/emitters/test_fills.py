"""Tensors that begin with zeros, filled by a launch of their own or by the one before it; and the copy of L."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pebblesim.kernels.passes.fills import L_IN_ROWS, copied, filled_before
from pebblesim.language import program as ir
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import get
from pebblesim.launches.launches import Launch, launches


def fills(made: list[Launch]) -> list[tuple[str, list[str], float]]:
    """What launches fill: the name of the tensor, the dimensions of its ranges, and the number."""
    found = [node for launch in made for node in ir.walk(launch.body) if isinstance(node, ir.Init)]
    return sorted((node.tensor.name, [each.dim for each in node.ranges], node.value) for node in found)


@pytest.mark.parametrize("schedule", ["flash2-backward-blocked", "flash1-backward", "flash2-forward"])
def test_what_is_filled_stays_and_no_launch_waits_for_it(schedule: str) -> None:
    made = launches(get(schedule).program, masked=True, repeated=True, adding=True)
    after = filled_before(made)
    assert fills(after) == fills(made)
    rows_before = [each.kind == "fill" for each in made[1:]] if made[0].name == "v" else []
    assert len(made) - len(after) == sum(rows_before[:1]) == (schedule == "flash2-backward-blocked")
    assert [each.name for each in after if each.kind == "tiles"] == [each.name for each in made if each.kind == "tiles"]


def test_a_fill_of_other_rows_stays_a_launch() -> None:
    v, fill, *_ = launches(get("flash2-backward-blocked").program, masked=True, repeated=True, adding=True)
    (node,) = fill.body
    assert isinstance(node, ir.Init)
    turned = replace(fill, body=[replace(node, ranges=node.ranges[::-1])])
    for other in ([fill], [v, turned], [replace(v, grid=()), fill], [replace(v, kind="fill"), fill]):
        assert filled_before(other) == other


OF_L = ["backward-two-pass-blocked", "dS-stored-resident", "flash2-backward-blocked", "small-cache-backward-blocked"]


@pytest.mark.parametrize("n", [1, 5, 19])
@pytest.mark.parametrize("name", OF_L)
def test_l_is_read_once_and_its_copy_gives_the_same_gradients(name: str, n: int) -> None:
    """Unless a head's numbers begin where the copy engine can read them."""
    schedule = get(name)
    sizes = {"n": n, "d": 3, **dict.fromkeys(schedule.program.blocks, 2)}
    made = copied(schedule.program, sizes, 4)
    nodes = [node for phase in made.phases for node in ir.walk(phase.body) if isinstance(node, ir.Read | ir.Write)]
    moved = [(type(node), node.tensor.name) for node in nodes]
    assert moved.count((ir.Read, "L")) == moved.count((ir.Write, L_IN_ROWS)) == 1 and (ir.Read, L_IN_ROWS) in moved
    inputs = schedule.problem.random_inputs({"n": n, "d": 3}, kept=("O", "L"))
    right = numbers(schedule.program, sizes, inputs)
    for each, values in numbers(made, sizes, inputs).items():
        np.testing.assert_array_equal(values, right[each])
    assert copied(schedule.program, {**sizes, "n": 8}, 4) is schedule.program


def test_a_program_without_l_or_without_row_sums_has_no_copy() -> None:
    for name in ("flash1-backward", "flash2-forward"):
        program = get(name).program
        assert copied(program, {**dict.fromkeys(program.dims, 5), **dict.fromkeys(program.blocks, 2)}, 4) is program
