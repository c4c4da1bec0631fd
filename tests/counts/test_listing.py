"""What `list` says of schedules is true of them."""

import pytest

import pebblesim as ps
from pebblesim.core.errors import UsageError
from pebblesim.kernels.triton.triton import triton
from pebblesim.language.registry import SCHEDULES, Schedule


def emits(schedule: Schedule) -> bool:
    sizes = dict.fromkeys(schedule.program.dims, 64) | dict.fromkeys(schedule.blocks, 16)
    try:
        triton(schedule.program, sizes)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("name", ["forward", pytest.param("backward-qkv", marks=pytest.mark.slow), "matmul", "linear"])
def test_a_schedule_is_listed_as_a_triton_kernel_if_it_can_be_written_as_one(name: str) -> None:
    listed = {schedule.name: "Triton" in schedule.kernels for schedule in ps.list(name)[name]}
    assert listed == {schedule: emits(SCHEDULES[schedule]) for schedule in listed}
    assert len(set(listed.values())) == (1 if name == "linear" else 2)


def test_the_list_has_a_line_of_readings_for_each_schedule() -> None:
    lines = str(ps.list("forward")).splitlines()
    assert any(line.split()[:2] == ["flash2-forward", "TCm·"] for line in lines)
    assert any(line.split()[:2] == ["values-in-columns", "··mp"] for line in lines)
    (row,) = [row for row in ps.list("forward").to_dict()["rows"] if row["schedule"] == "row-stationary-forward"]
    assert (row["kernels"], row["mask"], row["first_parts"]) == (["CUDA"], True, False)
