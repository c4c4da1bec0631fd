"""Benchmarks on graphs: a table that is interrupted and goes on, and the solver of small games beside another one."""

import csv
import random
import re
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from oracle_games import least_io
from oracle_layers import least_by_layers

from pebblesim.dags.bounds import paths, trees
from pebblesim.dags.formats import save_graph
from pebblesim.dags.generators import GENERATORS, generate
from pebblesim.dags.orders import Task
from pebblesim.dags.task_data import TaskData

sys.path.append(str(ROOT / "benchmarks"))
import bounds_of_dags
import small_graphs


@pytest.mark.slow
def test_a_table_goes_on_where_it_ended_and_its_bounds_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds_of_dags, "NARROWING", 0.1)
    graphs = {"pyramid.hdag": generate("pyramid", rows=4), "fft.hdag": generate("fft", n=4)}
    for name, graph in graphs.items():
        save_graph(graph, tmp_path / name)
    known = [{"file": name, "M": M, "peer_foresight": 99} for name in graphs for M in (3, 4)]
    with (tmp_path / "costs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, known[0])
        writer.writeheader()
        writer.writerows(known)
    output = tmp_path / "table.csv"
    first = bounds_of_dags.table(tmp_path, "", 0.1, output, "no-recompute", None)
    begun = [next(first) for _ in range(3)]
    left = []

    def counted(folder: Path, each: dict[str, str], seconds: float, rules: str) -> dict[str, object]:
        left.append((each["file"], each["M"]))
        return made(folder, each, seconds, rules)

    made = bounds_of_dags.row_of
    monkeypatch.setattr(bounds_of_dags, "row_of", counted)
    rows = list(bounds_of_dags.table(tmp_path, "", 0.1, output, "no-recompute", None))
    assert left == [("fft.hdag", "4")] and len(rows) == 4
    for row, old in zip(rows, begun, strict=False):
        assert all(row[name] == value for name, value in old.items())
    for row in rows:
        least = least_by_layers(graphs[row["file"]], int(row["M"]))
        assert int(row["cost"]) >= least >= max(int(row[name]) for name in bounds_of_dags.BOUNDS if row.get(name))
    assert bounds_of_dags.summary(rows).startswith("4 rows, ")


def test_the_page_has_the_means_of_the_table() -> None:
    with (ROOT / "benchmarks" / "bounds_of_dags.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    page = (ROOT / "docs" / "dags.md").read_text(encoding="utf-8")
    head, *lines = bounds_of_dags.summary(rows).splitlines()
    assert head.startswith(f"{len(rows)} rows, 127 above") and f"other 93 of the {len(rows)} rows" in page
    for line in lines:
        graphs, several, mean, least = re.fullmatch(r"(.*): (\d+) rows, mean (.*), least (.*)", line).groups()
        assert f"| {graphs.removesuffix(' vertices')} | {several} | {mean}, least {least} |" in page


@pytest.mark.slow
@pytest.mark.parametrize("rules", small_graphs.RULES)
def test_two_solvers_of_small_games_agree(rules: str) -> None:
    dice, cases = random.Random(f"two solvers {rules}"), 0
    while cases < 60:
        graph = small_graphs.drawn(dice, 6)
        if small_graphs.bits(graph, rules) > 20:
            continue
        M, cases = Task(graph, 2**40, rules).least_M + dice.choice([0, 1]), cases + 1
        assert small_graphs.least_words(graph, M, rules) == least_io(graph, M, rules)


def test_rows_of_generators_are_drawn_again_by_their_seed() -> None:
    """Four rows for each generator of the package, and three more kinds."""
    rows = bounds_of_dags.rows_of(None, None, 7)
    assert len(rows) == 60 and {row["file"].split()[1] for row in rows} > set(GENERATORS)
    for row in rows[::4]:
        again, M = bounds_of_dags.of_generator(*row["file"].split()[1:])
        assert str(M) == row["M"] and Task(again, M, "hong-kung").least_M <= M
        assert (again.preds == bounds_of_dags.graph_of(None, row["file"]).preds).all()


def test_no_bound_that_counts_values_once_is_above_that_of_a_game() -> None:
    """Of a binary tree at M = 3 each sum of two sums has one operand cut off; of others the bounds stay below."""
    tree = TaskData(Task(generate("tree", depth=5), 3, "hong-kung"), 3)
    assert bounds_of_dags.counting_once(tree) == trees(tree).value == 33 + 2 * (1 + 2 + 4 + 8)
    for n, more, M in ((60, 3, 5), (200, 4, 8)):
        data = TaskData(Task(bounds_of_dags.drawn("triangular", n, more, 5), M, "hong-kung"), M)
        assert data.words < max(trees(data).value, paths(data, 1.0).value) <= bounds_of_dags.counting_once(data)
