"""How near do the lower bounds come to the games found? Every row of a folder's costs.csv, without recomputation.

    python benchmarks/bounds_of_dags.py FOLDER -o table.csv [--part name] [--rules hong-kung]
    python benchmarks/bounds_of_dags.py --families -o table.csv
    python benchmarks/bounds_of_dags.py --drawn SEED -o table.csv
    python benchmarks/bounds_of_dags.py --generators SEED -o table.csv

The second form takes graphs of known structure from the generators instead, the third one grids, random triangular
systems (a vertex for each unknown), random layers, and products with a random matrix again and again. The fourth one
draws four rows for each generator of the package, and for each kind of the third form: sizes, matrices and M by a seed.
A row is a graph and an M. A game is found with a fixed number of steps of the search, so that it does not depend on
the load of the machine; where costs.csv has a cheaper game or a proven optimum, that counts. On graphs of up to 120
vertices, `optimum` narrows what is left for 8 seconds. Rows are written as they are made, and a second call goes
on where the first one ended. The mean is over the rows whose cost is above the compulsory words.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pebblesim.core.files import whole_file
from pebblesim.dags.bounds import (
    at_once,
    partition,
    parts,
    paths,
    places,
    products,
    spectral,
    trees,
    wavefronts,
    windows,
)
from pebblesim.dags.formats import load_graph
from pebblesim.dags.generators import GENERATORS, generate
from pebblesim.dags.optimum import optimum
from pebblesim.dags.orders import Task
from pebblesim.dags.search import pebble
from pebblesim.dags.task_data import TaskData
from pebblesim.graphs.cdag import Cdag

RULES = "no-recompute"
BOUNDS = (
    "compulsory",
    "products",
    "windows",
    "trees",
    "paths",
    "places",
    "parts",
    "wavefronts",
    "spectral",
    "partition",
    "optimum",
)
COLUMNS = ("file", "vertices", "M", "cost", *BOUNDS, "CPU seconds")
NARROWING = 8.0
"""Seconds for which `optimum` narrows what is left between the bounds and the game of a small graph."""
FAMILIES = {
    ("tree", "depth", 7): (3, 4, 6),
    ("pyramid", "rows", 8): (3, 4, 5, 6),
    ("pyramid", "rows", 20): (3, 4, 5, 8, 12),
    ("fft", "n", 8): (3, 4, 5),
    ("fft", "n", 16): (3, 4, 5, 8),
    ("fft", "n", 64): (3, 4, 5, 8, 16),
    ("matmul", "n", 2): (4, 5),
    ("matmul", "n", 4): (4, 6),
    ("matmul", "n", 8): (4, 8, 16),
}
"""Generators, their parameter and its value, and the M of rows."""

DRAWN = {
    "grid 24 24": (3, 4, 8),
    "triangular 400 3": (8, 32),
    "triangular 1500 4": (8, 32),
    "layers 20 30": (8, 24),
    "iterated 30 12": (9, 40),
    "iterated 60 8": (12, 60),
}
"""Drawn graphs with their sizes, and the M of rows."""

SIZED: dict[str, dict[str, tuple[int, ...]]] = {
    "fft": {"n": (8, 16, 32, 64, 128)},
    "pyramid": {"rows": tuple(range(5, 41))},
    "tree": {"depth": (3, 4, 5), "k": (2, 3, 4)},
    "stencil": {"n": tuple(range(8, 41)), "t": tuple(range(4, 25))},
    "matmul": {"n": tuple(range(2, 13)), "m": tuple(range(2, 13)), "k": tuple(range(2, 13))},
    "strassen": {"n": (2, 4, 8)},
    "triangular-solve": {"matrix": tuple(range(8, 61))},
    "spmv": {"matrix": tuple(range(8, 61))},
    "prefix-sums": {"n": tuple(range(8, 257))},
    "sorting-network": {"n": (8, 16, 32)},
    "layered": {"layers": tuple(range(4, 21)), "width": tuple(range(6, 31)), "indegree": (2, 3, 4)},
    "transformer": {"n": tuple(range(2, 7)), "d": (1, 2, 3)},
    "grid": {"n": tuple(range(6, 31))},
    "triangular": {"n": tuple(range(50, 1_001)), "more": (2, 3, 4)},
    "iterated": {"n": tuple(range(8, 41)), "more": tuple(range(2, 11))},
}
"""What sizes are drawn from for each generator; a matrix has so many rows, and four entries in each or fewer."""

ROWS_OF_EACH = 4
"""Drawn rows of each generator."""

MOST_MORE = 40
"""M is drawn from the least that is possible to so many times that, with equal chances for each doubling."""

PARTS = 90.0
"""Seconds for parts of families, which are alike and can all be solved."""

SIZES = (120, 400, 10**9)
"""Vertices up to which graphs are summed up together."""


def graph_of(folder: Path | None, name: str) -> Cdag:
    """Return a graph of a folder, or of a generator: "fft n 64"."""
    if folder is not None:
        return load_graph(folder / name)
    if name.startswith("generator "):
        return of_generator(*name.split()[1:])[0]
    family, parameter, value, *seed = name.split()
    if seed:
        return drawn(family, int(parameter), int(value), int(seed[-1]))
    return generate(family, **{parameter: int(value)})


def of_generator(kind: str, number: str, seed: str) -> tuple[Cdag, int]:
    """Return a graph with drawn sizes, and an M for it."""
    random = np.random.default_rng([int(seed), int(number), *kind.encode()])
    sizes: dict[str, Any] = {size: int(random.choice(several)) for size, several in SIZED[kind].items()}
    if "matrix" in sizes:
        n = sizes["matrix"]
        matrix = np.eye(n, dtype=int) | (random.random((n, n)) < 3 / n)
        sizes["matrix"] = np.tril(matrix) if kind == "triangular-solve" else matrix
    if kind == "layered":
        sizes["seed"] = int(random.integers(10**6))
    if kind in GENERATORS:
        graph = generate(kind, **sizes)
    else:
        graph = drawn(kind, sizes["n"], sizes.get("more", sizes["n"]), int(random.integers(10**6)))
    least = Task(graph, 2**40, RULES).least_M
    return graph, int(least * MOST_MORE ** random.random())


def drawn(kind: str, n: int, more: int, seed: int) -> Cdag:
    """Return a drawn graph: a grid of side n, n unknowns of `more` others, or n layers or values, `more` times."""
    random = np.random.default_rng(seed)
    if kind == "layers":
        return generate("layered", layers=n, width=more, seed=seed)
    if kind == "triangular":
        return Cdag.from_edges(n, sorted({(int(u), v) for v in range(1, n) for u in random.integers(0, v, more)}))
    if kind == "grid":
        edges = [(n * i + j, n * i + j + step) for i in range(n) for j in range(n) for step in (1, n)]
        return Cdag.from_edges(n * n, [(u, v) for u, v in edges if v < n * n and (v - u > 1 or v % n)])
    matrix = [(i, int(j)) for i in range(n) for j in np.unique(random.integers(0, n, 4))]
    now, edges, number = list(range(len(matrix), len(matrix) + n)), [], len(matrix) + n
    for _ in range(more):
        sums: dict[int, list[int]] = {}
        for entry, (i, j) in enumerate(matrix):
            edges += [(entry, number), (now[j], number)]
            sums.setdefault(i, []).append(number)
            number += 1
        edges += [(term, number + i) for i, terms in sums.items() for term in terms]
        now, number = list(range(number, number + n)), number + n
    return Cdag.from_edges(number, edges)


def rows_of(folder: Path | None, seed: int | None, generators: int | None = None) -> list[dict[str, str]]:
    """Return the rows of a folder's costs.csv, of drawn graphs, or of the families, with the columns file and M."""
    if generators is not None:
        names = [(kind, str(number), str(generators)) for kind in SIZED for number in range(ROWS_OF_EACH)]
        return [{"file": f"generator {' '.join(each)}", "M": str(of_generator(*each)[1])} for each in names]
    if seed is not None:
        return [{"file": f"{each} {seed}", "M": str(M)} for each, sizes in DRAWN.items() for M in sizes]
    if folder is None:
        return [{"file": " ".join(map(str, each)), "M": str(M)} for each, sizes in FAMILIES.items() for M in sizes]
    with (folder / "costs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row_of(folder: Path | None, known: dict[str, str], seconds: float, rules: str) -> dict[str, Any]:
    """Return the cheapest game known of a graph at an M, and the bounds; a bound not needed is left out.

    Orders of up to 500 steps are searched as a whole, which takes about a second a step; of longer ones each step
    changes a part.
    """
    graph, M = graph_of(folder, known["file"]), int(known["M"])
    began = time.process_time()
    game = pebble(graph, M=M, rules=rules, seconds=0, steps=4 if graph.vertices <= 500 else 200)
    others = [int(known[name]) for name in ("peer_foresight", "proven_optimum_no_recompute") if known.get(name)]
    cost = min([game.io, *others])
    data = TaskData(Task(graph, M, rules), M)
    made = {"compulsory": at_once(data)[0].value}
    limits = {paths: seconds, places: 60, parts: seconds if folder else PARTS, wavefronts: seconds, partition: seconds}
    for bound in (products, windows, trees, paths, places, parts, wavefronts, spectral, partition):
        if max(made.values()) < cost:
            work = [limits[bound]] if bound in limits else []
            made[bound.__name__] = bound(data, *work).value
    if max(made.values()) < cost and graph.vertices <= SIZES[0]:
        interval = optimum(graph, M, rules, seconds=NARROWING)
        made["optimum"], cost = interval.bound, min(cost, interval.io)
    spent = round(time.process_time() - began, 2)
    return {"file": known["file"], "vertices": graph.vertices, "M": M, "cost": cost, **made, "CPU seconds": spent}


def table(
    folder: Path | None,
    part: str,
    seconds: float,
    output: Path,
    rules: str,
    seed: int | None,
    generators: int | None = None,
) -> Iterator[dict[str, str]]:
    """Yield the rows that the output already has, then the others, each of which is added to it."""
    known = [row for row in rows_of(folder, seed, generators) if part in row["file"]]
    done: dict[tuple[str, str], dict[str, str]] = {}
    if output.exists():
        with output.open(encoding="utf-8", newline="") as file:
            done = {(row["file"], row["M"]): row for row in csv.DictReader(file)}
    for each in known:
        if (each["file"], each["M"]) not in done:
            row = {name: str(value) for name, value in row_of(folder, each, seconds, rules).items()}
            done[each["file"], each["M"]] = row
            _write(output, done.values())
        yield done[each["file"], each["M"]]


def _write(output: Path, rows: Any) -> None:
    """Write the table whole, or leave it as it was."""
    with whole_file(output) as path, path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)


def ratio(row: dict[str, str]) -> float:
    """Largest bound ÷ cost."""
    return max(int(row[name]) for name in BOUNDS if row.get(name)) / int(row["cost"])


def summary(rows: list[dict[str, str]]) -> str:
    """Say how many rows there are, and the mean and the least of bound ÷ cost by the size of graphs."""
    above = [row for row in rows if int(row["cost"]) > int(row["compulsory"])]
    seconds = sum(float(row["CPU seconds"]) for row in rows)
    lines = [f"{len(rows)} rows, {len(above)} above the compulsory words, {seconds:.0f} s of CPU"]
    for low, high in (*zip((0, *SIZES[:-1]), SIZES, strict=True), (0, SIZES[-1])):
        ratios = [ratio(row) for row in above if low < int(row["vertices"]) <= high]
        if ratios:
            to = f"{low + 1} to {high} vertices" if high < SIZES[-1] else f"more than {low} vertices" if low else "all"
            lines.append(f"{to}: {len(ratios)} rows, mean {sum(ratios) / len(ratios):.3f}, least {min(ratios):.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="graphs, and costs.csv")
    parser.add_argument("--families", action="store_true", help="graphs of known structure in the place of a folder")
    parser.add_argument("--drawn", type=int, metavar="SEED", help="drawn graphs in the place of a folder")
    parser.add_argument("--generators", type=int, metavar="SEED", help="every generator, with drawn sizes and M")
    parser.add_argument("--rules", default=RULES, choices=["no-recompute", "hong-kung"], help="rules of the games")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="the table; rows that it has are not made again"
    )
    parser.add_argument("--part", default="", help="only files whose names hold this")
    parser.add_argument("--seconds", type=float, default=3.0, help="most seconds of a bound; places takes its own")
    asked = parser.parse_args()
    ways = (asked.folder, asked.drawn, asked.generators)
    if asked.families + sum(each is not None for each in ways) != 1:
        parser.error("give a folder, --families, --drawn SEED, or --generators SEED")
    rows = []
    for made in table(
        asked.folder, asked.part, asked.seconds, asked.output, asked.rules, asked.drawn, asked.generators
    ):
        rows.append(made)
        print(*made.values(), flush=True)
    print(summary(rows))
