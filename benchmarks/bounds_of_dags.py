"""How near do the lower bounds come to the games found? Every row of a folder's costs.csv, without recomputation.

    python benchmarks/bounds_of_dags.py FOLDER [--rows 1000000] [--part name] [-o table.csv]

A row is a graph and an M. The game is found with a fixed number of steps, so that it does not depend on the load of the
machine; where costs.csv has a cheaper game or a proven optimum, that counts. The mean is over the rows whose cost is
above the compulsory words.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pebblesim.dags.bounds import at_once, partition, places, spectral, trees, wavefronts
from pebblesim.dags.formats import load_graph
from pebblesim.dags.orders import Task
from pebblesim.dags.search import pebble
from pebblesim.dags.task_data import TaskData

RULES = "no-recompute"


def table(folder: Path, part: str, seconds: float, steps: int) -> Iterator[dict[str, Any]]:
    with (folder / "costs.csv").open(encoding="utf-8", newline="") as file:
        known = [row for row in csv.DictReader(file) if part in row["file"]]
    for row in known:
        graph, M = load_graph(folder / row["file"]), int(row["M"])
        began = time.process_time()
        game = pebble(graph, M=M, rules=RULES, seconds=0, steps=steps if graph.vertices <= 2_000 else steps // 10)
        others = [int(row[name]) for name in ("peer_foresight", "proven_optimum_no_recompute") if row.get(name)]
        cost = min([game.io, *others])
        playing = time.process_time() - began
        data = TaskData(Task(graph, M, RULES), M)
        made = {"compulsory": at_once(data)[0].value}
        spent = {}
        for bound in (wavefronts, spectral, partition, places, trees):
            began = time.process_time()
            arguments = () if bound in (spectral, trees) else (time.monotonic() + seconds,)
            made[bound.__name__] = bound(data, *arguments).value
            spent[bound.__name__] = round(time.process_time() - began, 2)
        yield {
            "file": row["file"], "vertices": graph.vertices, "M": M, "cost": cost, **made,
            "before": round(max(v for k, v in made.items() if k not in ("places", "trees")) / cost, 3) if cost else 1.0,
            "after": round(max(made.values()) / cost, 3) if cost else 1.0,
            "seconds of the game": round(playing, 2), "seconds of places": spent["places"],
        }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> str:
    above = [row for row in rows if row["cost"] > row["compulsory"]]
    text = f"{len(rows)} rows, {len(above)} above the compulsory words"
    for column in ("before", "after"):
        ratios = sorted(row[column] for row in above)
        if ratios:
            text += f"\nbound / cost {column}: mean {sum(ratios) / len(ratios):.3f}, least {ratios[0]:.3f}"
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", default="", help="only files whose names hold this")
    parser.add_argument("--seconds", type=float, default=5.0, help="most seconds of a bound")
    parser.add_argument("--steps", type=int, default=100, help="steps of the search for a game")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    done = []
    for made in table(asked.folder, asked.part, asked.seconds, asked.steps):
        done.append(made)
        print(*made.values(), flush=True)
    print(summary(done))
    if asked.output:
        with asked.output.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, done[0].keys())
            writer.writeheader()
            writer.writerows(done)
