"""The table in docs/lower-bounds.md of what each theorem was held against is what a run gives, and so is its record.

After a change that is meant, `.venv/bin/python tests/test_evidence.py` writes both anew.
"""

import subprocess
import sys
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from checkout import ROOT

import pebblesim as ps
from pebblesim.claims import evidence
from pebblesim.claims.biting import SMALL, Comparison, biting, drawn
from pebblesim.claims.evidence import ENOUGH, TITLE, TRIES, as_json, recorded, run, section
from pebblesim.claims.strongholds import STRONGHOLDS
from pebblesim.core.errors import BelowBound
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import get, of_problem
from pebblesim.lower_bounds import bounds
from pebblesim.lower_bounds.bounds import Formulation

PAGE = ROOT / "docs" / "lower-bounds.md"
RECORD = Path(evidence.__file__).with_name(evidence.FILE)


def written(page: str, text: str) -> str:
    """The page with this text as its section of this title."""
    before, _, rest = page.partition(f"\n{TITLE}")
    after = rest.partition("\n## ")[2]
    return f"{before.rstrip()}\n\n{text.rstrip()}\n\n## {after}"


@pytest.mark.slow
def test_the_record_is_current() -> None:
    """In a process of its own: what other tests register would be drawn, too."""
    code = "from pebblesim.claims.evidence import as_json, run; print(as_json(run()), end='')"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    assert made.stdout == RECORD.read_text(encoding="utf-8")


def test_the_table_is_that_of_the_record() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page, section([*recorded().values()]))


def test_each_theorem_has_a_row() -> None:
    """Also those that are proved only for many more queries and keys than columns."""
    names = {
        bound.name
        for problem in PROBLEMS.values()
        for bound in bounds.lower_bounds(
            problem, {dim: {"n": 4096, "d": 4}[k] for dim, k in problem.from_nd.items()}, 16
        )
    }
    assert {*recorded()} == names - {"compulsory"}


def test_each_theorem_is_compared_often_enough_and_at_many_sizes() -> None:
    """In the table, which the slow test keeps current."""
    lines = PAGE.read_text(encoding="utf-8").partition(TITLE)[2].partition("\n## ")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    assert len(rows) > 25
    for name, _, counts, sizes, *_ in rows:
        assert int(counts) >= ENOUGH and int(sizes) >= 10, name


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", STRONGHOLDS)
def test_a_theorem_bites_where_it_is_said_to_be_strong(name: str) -> None:
    random, stronghold = Random(1), STRONGHOLDS[name]
    ways = [None, *dict.fromkeys(Formulation.of(schedule) for schedule in of_problem(stronghold.problem))]
    for _ in range(TRIES):
        solves, sizes, M, mask = stronghold.draw(random)
        top = biting(solves, sizes, M, random.choice(ways), mask)
        if top and top.name == name:
            return
    raise AssertionError(f"{name} is never the largest bound")


def test_a_small_graph_is_one_on_which_a_theorem_bites() -> None:
    for name, numbers, M in SMALL:
        solves = get(name).problem
        sizes = dict(zip((solves.rectangle or solves).dims, numbers, strict=True))
        top = biting(solves, sizes, M, Formulation.of(get(name)))
        assert top is not None, name
        known = ps.bounds(solves.name, schedule=name, M=M, **sizes)
        assert known.best.value == top.value > known.lower[0].value


def test_what_is_below_a_bound_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bounds that are half as large again, some draw of matmul is below."""
    known = bounds.best
    one = {"matmul": PROBLEMS["matmul"]}

    def larger(*arguments: object) -> bounds.LowerBound:
        bound = known(*arguments)  # type: ignore[arg-type]
        return bounds.replace(bound, value=3 * bound.value // 2)

    monkeypatch.setattr("pebblesim.claims.biting.PROBLEMS", one)
    found = Comparison(30, 40, 0).run()
    assert found["B"].number.total() >= 30 and found["B"].closest is not None and 1 <= found["B"].closest < 1.5
    monkeypatch.setattr("pebblesim.claims.biting.best", larger)
    with pytest.raises(BelowBound, match="words, below the"):
        Comparison(30, 40, 0).run()


@pytest.mark.one_in(2)
def test_a_number_of_states_gives_one_interval_on_slow_machines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps ends no part of the search."""
    graph = ps.graph("backward-relu", n=2, d=1)
    known = ps.optimum(graph, M=4, states=300)
    assert not known.proven
    clock = count(0, 3)
    monkeypatch.setattr("pebblesim.dags.search.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    again = ps.optimum(graph, M=4, states=300)
    assert (again.io, again.bound, again.moves.tolist()) == (known.io, known.bound, known.moves.tolist())


def test_draws_are_of_all_shapes() -> None:
    random = Random(1)
    shapes = {shape for _ in range(200) for shape in drawn(PROBLEMS["forward"], random).shapes}
    assert shapes == {"rectangle", "mask", "M about nd"}


if __name__ == "__main__":
    records = run()
    RECORD.write_text(as_json(records), encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), section(records)), encoding="utf-8")
