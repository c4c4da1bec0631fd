"""Schedules by name: those that ship with pebblesim, and a user's own beside them, in files and in notebooks."""

import subprocess
import sys
from types import CodeType

import pytest

import pebblesim as ps
from pebblesim.language.registry import SCHEDULES

OWN = """
@ps.schedule(problem="matmul", source="mine", name={name!r})
def {function}(m, A, B):
    m.write(m.tensor("C", A.shape[0], B.shape[1]), m.compute(m.read(A) @ m.read(B)))
"""


def cell(file: str, name: str = "own", function: str = "own") -> CodeType:
    """A schedule of the user's, as a notebook or an editor compiles it: each edit of a cell is a file of its own."""
    return compile(OWN.format(name=name, function=function), file, "exec")


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """A program that has imported nothing yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_a_registry_that_nobody_has_filled_knows_what_ships() -> None:
    ran = fresh(
        "from pebblesim.language.registry import SCHEDULES, get, of_problem\n"
        "print(get('small-cache').name, len(of_problem('matmul')) > 1, len(SCHEDULES) > 40)\n"
    )
    assert (ran.stdout, ran.stderr) == ("small-cache True True\n", "")


def test_a_name_that_ships_cannot_be_taken_before_it_is_loaded() -> None:
    ran = fresh(
        "import pebblesim as ps\n"
        "try:\n"
        "    @ps.schedule(problem='matmul', source='mine', name='small-cache')\n"
        "    def own(m, A, B): ...\n"
        "except ps.UsageError as error:\n"
        "    print(error)\n"
        "print(ps.count('small-cache', n=8, d=4, M=24).io)\n"
    )
    assert ran.stderr == ""
    said, io = ran.stdout.splitlines()
    assert said == "there is a schedule 'small-cache' already; choose another name with @schedule(name=...)."
    assert int(io) == ps.count("small-cache", n=8, d=4, M=24).io


def test_an_edited_cell_defines_its_schedule_again() -> None:
    notebook = {"__name__": "__main__", "ps": ps}
    exec(cell("ipykernel/1.py"), notebook)
    first = SCHEDULES["own"]
    exec(cell("ipykernel/2.py"), notebook)
    assert SCHEDULES["own"] is notebook["own"] is not first
    exec(cell("ipykernel/3.py", function="renamed"), notebook)
    assert SCHEDULES["own"] is notebook["renamed"]


def test_a_file_that_is_read_again_defines_its_schedule_again() -> None:
    for _ in range(2):
        exec(cell("mine.py"), {"__name__": "mine", "ps": ps})
    with pytest.raises(ps.UsageError, match="there is a schedule 'own' already"):
        exec(cell("yours.py"), {"__name__": "yours", "ps": ps})
    with pytest.raises(ps.UsageError, match="there is a schedule 'flash' already"):
        exec(cell("ipykernel/1.py", name="flash"), {"__name__": "__main__", "ps": ps})


def test_what_is_registered_for_a_while_is_forgotten_and_what_it_replaced_is_back() -> None:
    before = dict(SCHEDULES)
    with SCHEDULES.temporary():
        SCHEDULES["flash"] = SCHEDULES["no-cache"]
        exec(cell("mine.py"), {"__name__": "mine", "ps": ps})
        assert "own" in SCHEDULES
    assert dict(SCHEDULES) == before
