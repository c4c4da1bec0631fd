"""Hold the bound for every way of computing against all schedules, at rectangles, masks and M that a seed draws.

    .venv/bin/python benchmarks/drawn_rectangles.py --seed 23 --number 10000 --results drawn.jsonl

Lengths and widths are from 1 to 64, or powers of two up to 2^20; about one in four has a mask. Each
schedule gets blocks by chance, twice; M is what one of these games holds at its peak, so that this game is just
possible, and the least of all that fit into M must not be below the bound. For one rectangle in a hundred all schedules
get their best blocks, too. Behind the table are two games of one query, whose words a schedule reaches within 1 %. The
exit status is 1 if a bound exceeds what a schedule moves. Ctrl-C ends a run with what was drawn until then; with a file
of results, a line for each rectangle, the next run goes on from there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

import pebblesim as ps
from pebblesim.analysis.count import io
from pebblesim.analysis.peak import peak_red
from pebblesim.language import masks
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.lower_bounds.bounds import bounds_of_ways, largest, least_of_ways

KNOWN = {
    name: [each.in_dims(problem.rectangle.dims) for each in SCHEDULES.values() if each.problem.name == name]
    for name, problem in PROBLEMS.items()
    if problem.rectangle
}
"""The schedules of each problem with queries and keys, in the dimensions of its rectangles."""

TRIES = 2
"""Blocks by chance for each schedule."""

BEST = 100
"""Of so many rectangles, one gets the best blocks of all schedules."""

POINTS = (
    ("projected-forward", {"n_q": 1, "n_k": 4096, "d": 64, "d_k": 64, "d_v": 64}, 256, 536_704),
    ("backward", {"n_q": 1, "n_k": 4096, "d": 64}, 326, 536_768),
)
"""Problem, sizes, M and the words of a game in an order of the products that suits one query."""


def size(dice: random.Random) -> int:
    """A length or a width."""
    return dice.choice([dice.randint(1, 3), dice.randint(1, 64), 2 ** dice.randint(0, 20)])


def mask_of(dice: random.Random, n_q: int, n_k: int) -> masks.Mask | None:
    """None, a band, or any pairs where there are few."""
    kind = dice.choice(["none", "none", "none", "none", "band", "pairs"])
    if kind == "band":
        width = 2 ** dice.randint(0, max(n_q, n_k).bit_length())
        return masks.of(dice.choice(["causal", f"window:{width}", f"band:{width}"]) + dice.choice(["", ":start"]))
    if kind == "pairs" and n_q * n_k <= 2**12:
        pairs = np.random.default_rng(dice.randrange(2**32)).random((n_q, n_k)) < dice.choice([0.1, 0.5, 0.9])
        return masks.from_array(pairs, size=(1, 1)) if pairs.any() else None
    return None


def games(
    dice: random.Random, schedules: list[Schedule], dims: dict[str, int], mask: Any
) -> list[tuple[int, Schedule, dict[str, int]]]:
    """(peak, schedule, sizes) with blocks by chance."""
    found = []
    for schedule in schedules:
        for _ in range(TRIES if schedule.blocks else 1):
            most = max(dims.values()).bit_length()
            blocks = {block: int(2 ** dice.uniform(0, dice.choice([3, most]))) for block in schedule.blocks}
            found.append((peak_red(schedule.under(mask), dims | blocks), schedule, dims | blocks))
    return found


def judged(seed: int, number: int) -> dict[str, Any]:
    """One rectangle: the least that a schedule moves, beside the bound for every way."""
    dice = random.Random(f"{seed} {number}")
    name = dice.choice(sorted(KNOWN))
    problem = PROBLEMS[name].rectangle
    assert problem is not None
    dims = {dim: size(dice) for dim in problem.dims}
    mask = mask_of(dice, dims["n_q"], dims["n_k"]) if PROBLEMS[name].maskable else None
    known = [each for each in KNOWN[name] if mask is None or each.maskable]
    played = games(dice, known, dims, mask)
    M = min(dice.choice(played)[0] for _ in range(2))
    counts = [(io(each.under(mask), sizes, mask), each.name) for peak, each, sizes in played if peak <= M]
    if number % BEST == 0:
        best = ps.compare(name, M=M, blocks="best", mask=mask, **dims).best
        counts.append((best.io, best.schedule))
    moved, by = min(counts)
    ways = bounds_of_ways(problem, dims, M, mask)
    bound = least_of_ways({way: largest(each) for way, each in ways.items()})
    compulsory = min(each.value for of_way in ways.values() for each in of_way if each.name == "compulsory")
    sharp = bound.name if bound.value > compulsory else None
    found = {"number": number, "M": M, "schedule": by, "io": moved, "bound": bound.value, "name": sharp}
    return {"problem": name, **dims, "mask": mask and str(mask), **found}


def drawn(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All rectangles, those of the results and those that are missing there, in order; fewer after Ctrl-C."""
    rows: list[dict[str, Any]] = []
    if given.results is not None and given.results.exists():
        rows = [json.loads(line) for line in given.results.read_text().splitlines()][: given.number]
    rest = range(len(rows), given.number)
    each = Parallel(given.jobs, return_as="generator")(delayed(judged)(given.seed, at) for at in rest)
    file = given.results.open("a") if given.results is not None else nullcontext()
    with file as lines:
        try:
            for row in each:
                rows.append(row)
                if lines is not None:
                    print(json.dumps(row), file=lines, flush=True)
        except KeyboardInterrupt:
            print(f"interrupted: the first {len(rows):,} of {given.number:,}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=10_000, help="of rectangles")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--results", type=Path, help="a file with a line for each rectangle of this seed")
    given = parser.parse_args()
    start = time.monotonic()
    rows = drawn(given)
    wrong = [row for row in rows if row["io"] < row["bound"]]
    print(f"{'problem':24}{'drawn':>7}{'masks':>7}{'bites':>7}{'closest':>9}  largest bound where it bites")
    for name in sorted(KNOWN):
        own = [row for row in rows if row["problem"] == name]
        sharp = Counter(row["name"] for row in own if row["name"])
        closest = min((row["io"] / row["bound"] for row in own), default=float("nan"))
        masked = sum(row["mask"] is not None for row in own)
        biting = ", ".join(f"{bound} {times}" for bound, times in sharp.most_common())
        print(f"{name:24}{len(own):7}{masked:7}{sharp.total():7}{closest:9.3f}  {biting}")
    print(f"{len(rows):,} rectangles, {len(wrong)} below the bound; {time.monotonic() - start:.0f} s")
    for name, dims, M, game in POINTS:
        bound, best = ps.bounds(name, M=M, **dims).best.value, ps.compare(name, M=M, blocks="best", **dims).best
        print(f"{name}, n_q = 1, M = {M}: bound {bound:,}, game {game:,}, {best.schedule} {best.io:,}")
        if bound > game or best.io > 1.01 * game:
            wrong.append({"problem": name, **dims, "M": M, "bound": bound, "io": best.io})
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
