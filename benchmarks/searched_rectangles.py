"""Hold the bound for every way of computing against what `search` finds, at sizes that a seed draws.

    .venv/bin/python benchmarks/searched_rectangles.py --seed 23 --number 25 --results rectangles.jsonl

So many searches are made for each problem that `search` knows. Queries and keys differ in number, rows in width, and M
starts where a schedule is just possible; half of the problems with pairs are under a mask. A line of the results is one
search: the problem, its sizes and mask, the words of the schedule found, the bound for every way and its name. With the
file there, a run that was interrupted goes on. The exit status is 1 if a bound exceeds what was found, or the game of a
schedule found is not as predicted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pebblesim as ps
from pebblesim.core.errors import Infeasible
from pebblesim.language.problems import PROBLEMS
from pebblesim.synthesis.equations import systems


def known_to_search() -> list[str]:
    """The problems whose graphs have plain sums."""
    return [name for name, each in PROBLEMS.items() if systems(each.rectangle or each)]


def drawn(dice: random.Random, name: str) -> tuple[dict[str, int], int, str | None]:
    """Sizes, M and a mask: few queries or keys as often as many, widths below and above them."""
    problem = PROBLEMS[name].rectangle or PROBLEMS[name]
    lines = {*(problem.pairs or ()), "n", "m"}

    def size(dim: str) -> int:
        return dice.choice([dice.randint(1, 3), dice.randint(1, 60)]) if dim in lines else dice.randint(1, 8)

    dims, M = {dim: size(dim) for dim in problem.dims}, int(2 ** dice.uniform(2, 9))
    band = dice.choice(["causal", f"window:{dice.randint(1, 20)}", f"band:{dice.randint(0, 9)}", "causal:start"])
    return dims, M, band if problem.maskable and dice.random() < 0.5 else None


def searched(name: str, dims: dict[str, int], M: int, mask: str | None) -> dict[str, Any]:
    """The schedule found, or that with the least M that is possible, beside the bound for every way."""
    start = time.process_time()
    try:
        found = ps.search(name, M=M, mask=mask, **dims)
    except Infeasible as error:
        assert error.least_M is not None
        M = error.least_M
        found = ps.search(name, M=M, mask=mask, **dims)
    bounds = ps.bounds(name, M=M, mask=mask, **dims)
    compulsory = min(each.value for each in bounds.lower if each.name == "compulsory")
    return {
        "problem": name,
        **dims,
        "M": M,
        "mask": mask,
        "schedule": found.counted.schedule,
        "new": found.new,
        "io": found.io,
        "bound": bounds.best.value,
        "name": bounds.best.name,
        "compulsory": compulsory,
        "passed": found.played.passed,
        "seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=25, help="of searches for each problem")
    parser.add_argument("--problem", choices=known_to_search(), action="append", help="by default all of them")
    parser.add_argument("--results", type=Path, required=True, help="where a line is added for each search")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    names = given.problem or known_to_search()
    for name in names:
        done = sum(row["problem"] == name for row in rows)
        for number in range(done, given.number):
            rows.append(searched(name, *drawn(random.Random(f"{given.seed} {name} {number}"), name)))
            with given.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    wrong = [row for row in rows if row["io"] < row["bound"] or not row["passed"]]
    print(f"{'problem':24}{'searches':>9}{'bites':>7}{'new':>5}{'closest':>9}")
    for name in names:
        own = [row for row in rows if row["problem"] == name]
        sharp = Counter(row["name"] for row in own if row["bound"] > row["compulsory"])
        closest = min((row["io"] / row["bound"] for row in own), default=float("nan"))
        print(
            f"{name:24}{len(own):9}{sharp.total():7}{sum(row['new'] for row in own):5}{closest:9.3f}  "
            + ", ".join(f"{bound} {times}" for bound, times in sharp.items())
        )
    print(f"{len(rows)} searches, {len(wrong)} below the bound for every way, or with a game that is not as predicted")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
