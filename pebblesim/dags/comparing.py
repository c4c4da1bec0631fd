"""Play games on all graphs of a folder at several M, and compare them with the costs of others."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.dags.formats import SUFFIXES, load_graph
from pebblesim.dags.orders import Task
from pebblesim.dags.search import pebble

MULTIPLES: Final = (2, 3, 4, 6, 10)
"""Values of M, in units of half the smallest feasible M."""

PEER, PROVEN = "peer_foresight", "proven_optimum_no_recompute"
"""Columns of costs.csv to compare with, if they exist."""


def rows(
    folder: Path, rules: str, seconds: float, progress: Callable[[float], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Return one row for each graph and M: its size, the game, the bound, and the costs from costs.csv.

    A file costs.csv in the folder, with columns file and M, chooses the rows. Without it, each graph is played at the
    smallest feasible M and at 1½, 2, 3 and 5 times that. Rows that follow each other share a graph's games and bounds.

    All files are read before the first game is played.

    Raises:
        UsageError: the folder does not exist or holds no graph, or one of its files cannot be read.
        Infeasible: M is too small for a graph.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give a folder that holds graphs ({', '.join(SUFFIXES)}).")
    known = _known(folder / "costs.csv")
    tasks: list[tuple[Path, int, dict[str, str]]] = []
    if known:
        tasks = [(folder / row["file"], int(row["M"]), row) for row in known]
    else:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        tasks = [(path, factor, {}) for path in files for factor in MULTIPLES]
    if not tasks:
        raise UsageError(f"{folder} holds no graph; their files end in {', '.join(SUFFIXES)}.")
    graphs = {path: load_graph(path) for path in dict.fromkeys(path for path, _, _ in tasks)}
    least = {path: Task(graph, 2**62, rules).least_M for path, graph in graphs.items()}
    cases = [(path, M if row else max(1, least[path] * M // 2), row) for path, M, row in tasks]
    for path, M, _ in cases:
        if least[path] > M:
            raise Infeasible(
                f"{path}: M = {M} red pebbles are too few for this graph; it needs M ≥ {least[path]}.", least[path]
            )
    number = 0
    for _, of_one in groupby(cases, lambda case: case[0]):
        made = []
        for path, M, row in of_one:
            if progress is not None:
                progress(number / len(cases))
            number += 1
            graph = graphs[path]
            pebbling = pebble(graph, M=M, rules=rules, seconds=seconds)
            made.append({
                "file": path.name,
                "vertices": graph.vertices,
                "edges": graph.edges,
                "M": M,
                "io": pebbling.io,
                "bound": pebbling.bound.value,
                "by": pebbling.bound.name,
                "peer": int(row[PEER]) if row.get(PEER) else None,
                "proven": int(row[PROVEN]) if row.get(PROVEN) else None,
                "seconds": round(pebbling.seconds, 2),
            })  # fmt: skip
        yield from _shared(made)


def _shared(of_one: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a graph with games from rows of smaller M, and bounds from rows of larger M.

    A game that fits into fewer places fits into more, so the least I/O does not grow with M.
    """
    shared = []
    for row in of_one:
        io = min(other["io"] for other in of_one if other["M"] <= row["M"])
        bounding = max((other for other in of_one if other["M"] >= row["M"]), key=lambda other: other["bound"])
        if bounding["bound"] > row["bound"]:
            row = row | {"bound": bounding["bound"], "by": f"{bounding['by']} at M = {bounding['M']}"}
        shared.append(row | {"io": io})
    return shared


def summary(table: list[dict[str, Any]]) -> str:
    """Summarise how far the games are from proven optima on average, and how often they cost more than the peer's."""
    lines = [f"{len(table)} rows, {sum(row['io'] == row['bound'] for row in table)} games proven optimal by a bound"]
    proven = [row for row in table if row["proven"] is not None]
    if proven:
        above = [row["io"] / row["proven"] - 1 for row in proven if row["proven"]]
        lines.append(
            f"above the proven optimum: {100 * sum(above) / len(above):.2f} % on average of {len(above)}, "
            f"{100 * max(above):.1f} % at most"
        )
    peer = [row for row in table if row["peer"] is not None]
    if peer:
        ratio = [row["io"] / row["peer"] for row in peer if row["peer"]]
        lines.append(
            f"compared with the peer: {sum(r > 1 for r in ratio)} rows cost more, {sum(r < 1 for r in ratio)} less; "
            f"{sum(ratio) / len(ratio):.3f} of its cost on average"
        )
    lines.append(f"at most {max(row['seconds'] for row in table):.1f} s a row")
    return "\n".join(lines)


def _known(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            records = list(csv.DictReader(file))
        for row in records:
            int(row["M"]), row["file"].lower()
            for name in (PEER, PROVEN):
                int(row.get(name) or 0)
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a table with the columns file and M in every row: {error}.") from None
    return records
