"""Which tests a commit is tried with."""

import pytest
from turns import in_turn, one_in

CASES = [f"tests/test_a.py::test_every[{number}]" for number in range(500)]
NAMES = [*CASES, "test_b.py::test_long", "test_b.py::test_few[1]"]
COMMITS = [f"{number:08x}" for number in range(600)]


def test_a_commit_has_few_slow_tests_always_the_same_and_another_has_others() -> None:
    chosen = in_turn("0123abcd", NAMES)
    assert chosen == in_turn("0123abcd", reversed(NAMES)) < {*NAMES} and len(chosen) == 11
    assert len(chosen & {*NAMES[-2:]}) == 1
    assert len(in_turn("0123abce", NAMES) - chosen) > 5


def test_every_slow_test_has_its_turn() -> None:
    assert {name for commit in COMMITS for name in in_turn(commit, NAMES)} == {*NAMES}


@pytest.mark.parametrize("number", [3, 8])
def test_one_case_in_so_many_has_its_turn_always_the_same_and_for_another_commit_others(number: int) -> None:
    test, few = "tests/test_a.py::test_every", CASES[:40]
    chosen = one_in(number, "0123abcd", test, few)
    assert chosen == one_in(number, "0123abcd", test, few[::-1]) < {*few}
    assert len(chosen) in (40 // number, -(-40 // number))
    assert chosen != one_in(number, "0123abce", test, few)
    assert {name for commit in COMMITS[:80] for name in one_in(number, commit, test, few)} == {*few}


def test_a_test_of_one_case_runs_for_one_commit_in_so_many() -> None:
    runs = sum(bool(one_in(4, commit, "test_b.py::test_long", ["test_b.py::test_long"])) for commit in COMMITS)
    assert 100 < runs < 200


@pytest.mark.one_in(5)
@pytest.mark.parametrize("number", range(10))
def test_a_case_of_ten(number: int) -> None:
    """Ten cases, of which two run by default; the next test counts them."""


def test_cases_whose_turn_it_is_not_are_slow(request: pytest.FixtureRequest) -> None:
    cases = [item for item in request.session.items if item.name.startswith("test_a_case_of_ten[")]
    if not cases:
        pytest.skip("the cases are not among the tests that were asked for")
    assert sum(item.get_closest_marker("slow") is None for item in cases) == 2
