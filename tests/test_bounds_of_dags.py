"""`benchmarks/bounds_of_dags.py`: its rows beside the least I/O, and a table that is interrupted and goes on."""

import csv
import sys
from pathlib import Path

import pytest
from oracle_layers import least_by_layers

from pebblesim.dags.formats import save_graph
from pebblesim.dags.generators import generate

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import bounds_of_dags


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
    first = bounds_of_dags.table(tmp_path, "", 0.1, output)
    begun = [next(first) for _ in range(3)]
    left = []

    def counted(folder: Path, each: dict[str, str], seconds: float) -> dict[str, object]:
        left.append((each["file"], each["M"]))
        return made(folder, each, seconds)

    made = bounds_of_dags.row_of
    monkeypatch.setattr(bounds_of_dags, "row_of", counted)
    rows = list(bounds_of_dags.table(tmp_path, "", 0.1, output))
    assert left == [("fft.hdag", "4")] and len(rows) == 4
    for row, old in zip(rows, begun, strict=False):
        assert all(row[name] == value for name, value in old.items())
    for row in rows:
        least = least_by_layers(graphs[row["file"]], int(row["M"]))
        assert int(row["cost"]) >= least >= max(int(row[name]) for name in bounds_of_dags.BOUNDS if row.get(name))
    assert bounds_of_dags.summary(rows).startswith("4 rows, ")
