"""Which slow tests a commit is tried with."""

from turns import in_turn

CASES = [f"tests/test_a.py::test_every[{number}]" for number in range(500)]
NAMES = [*CASES, "test_b.py::test_long", "test_b.py::test_few[1]"]


def test_a_commit_has_few_slow_tests_always_the_same_and_another_has_others() -> None:
    chosen = in_turn("0123abcd", NAMES)
    assert chosen == in_turn("0123abcd", reversed(NAMES)) < {*NAMES} and len(chosen) == 31
    assert len(chosen & {*NAMES[-2:]}) == 1
    assert len(in_turn("0123abce", NAMES) - chosen) > 15


def test_every_slow_test_has_its_turn() -> None:
    assert {name for commit in range(200) for name in in_turn(str(commit), NAMES)} == {*NAMES}
