"""Tensors that begin with zeros: filled by a launch of their own, or by the one before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pebblesim.kernels.fills import filled_before
from pebblesim.language import program as ir
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
