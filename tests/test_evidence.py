"""The table in docs/lower-bounds.md of what each theorem was held against is what a run gives.

After a change that is meant, `.venv/bin/python tests/test_evidence.py` writes the new table.
"""

from pathlib import Path

import pytest

import pebblesim as ps
from pebblesim.claims.biting import SMALL, Comparison, biting, drawn
from pebblesim.claims.evidence import DRAWS, ENOUGH, TITLE, of_results, section
from pebblesim.core.errors import BelowBound
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import get
from pebblesim.lower_bounds import bounds
from pebblesim.lower_bounds.bounds import Formulation

PAGE = Path(__file__).resolve().parent.parent / "docs" / "lower-bounds.md"


def written(page: str, text: str) -> str:
    """The page with this text as its last section."""
    return page.partition(f"\n{TITLE}")[0].rstrip("\n") + f"\n\n{text.rstrip()}\n"


def rows_of_counts(text: str) -> list[list[str]]:
    """The cells of each theorem's row, without those of searches."""
    return [line.split(" | ")[:7] for line in text.splitlines() if line.startswith("| ")][1:]


@pytest.mark.slow
def test_the_table_is_current() -> None:
    """But for the searches, which are not the same in each run."""
    counted = of_results(Comparison(ENOUGH, DRAWS).run(), {})
    assert rows_of_counts(PAGE.read_text(encoding="utf-8").partition(TITLE)[2]) == rows_of_counts(counted) != []


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
    found = Comparison(30, 8).run()
    assert found["B"].number.total() >= 30 and found["B"].closest is not None and 1 <= found["B"].closest < 1.5
    monkeypatch.setattr("pebblesim.claims.biting.best", larger)
    with pytest.raises(BelowBound, match="words, below the"):
        Comparison(30, 8).run()


def test_draws_are_of_all_shapes() -> None:
    from random import Random

    random = Random(1)
    shapes = {shape for _ in range(200) for shape in drawn(PROBLEMS["forward"], random).shapes}
    assert shapes == {"rectangle", "mask", "M about nd"}


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), section()), encoding="utf-8")
