"""Play games that a seed draws, word by word under the referee, and hold all lower bounds against the words they move.

    .venv/bin/python benchmarks/drawn_games.py --seed 30 --number 3400

Each game is of a schedule, a shape (rectangles where the problem has them), a mask in one of four cases, blocks and a
shape of the sums drawn by chance, small enough to be played move by move. M is the most pebbles that the referee sees
at a time, so that this game is just possible. The words that it counts must not be below the largest bound for the way
in which the schedule computes, nor below that for every way. A bound *bites* where it is the largest and exceeds the
compulsory words. The exit status is 1 if a game moves fewer words than a bound, or if the referee refuses one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from math import prod
from typing import NamedTuple

from pebblesim.api.graph import graph_of
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.counting.run import Run
from pebblesim.game.player import moves
from pebblesim.game.referee import Referee
from pebblesim.language import masks
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.lower_bounds.bounds import Formulation, LowerBound, best, bounds_of_ways, largest, least_of_ways

MOST = 200_000
"""The largest three of all sizes, each taken twice, multiply to no more: a game takes some tenths of a second."""

SQUARE = list(SCHEDULES.values())
KNOWN = [each.in_dims(each.problem.rectangle.dims) if each.problem.rectangle else each for each in SQUARE]
"""All schedules, for rectangles where their problem has them."""


class Game(NamedTuple):
    """A game that was played, in words; `bounds` are the largest for its way and for every way."""

    problem: str
    text: str
    io: int
    complete: bool
    bounds: tuple[LowerBound, LowerBound]


def drawn(dice: random.Random) -> tuple[Schedule, dict[str, int], dict[str, int], masks.Mask | None]:
    """Draw a schedule, sizes, blocks and a mask, or none."""
    while True:
        schedule = dice.choice(dice.choice([SQUARE, KNOWN]))
        problem = schedule.problem
        sizes = {
            dim: dice.choice([dice.randint(1, 4), dice.randint(4, 24), dice.randint(24, 96)]) for dim in problem.dims
        }
        sizes |= {dim: dice.randint(1, 8) for dim in problem.dims if dim.startswith("d")}
        if prod(sorted((*sizes.values(), *sizes.values()))[-3:]) <= MOST:
            break
    blocks = {block: round(2 ** dice.uniform(0, dice.choice([2, 5]))) for block in schedule.blocks}
    mask = None
    if problem.maskable and schedule.maskable and dice.random() < 0.25:
        mask = masks.of(dice.choice(["causal", f"window:{dice.randint(1, 8)}"]))
    return schedule, sizes, blocks, mask


def play(seed: int, number: int) -> Game:
    """Draw a game, play it, and compute the bounds."""
    dice = random.Random(f"{seed} {number}")
    while True:
        schedule, sizes, blocks, mask = drawn(dice)
        summation = "chain" if mask is not None else dice.choice(["chain", "balanced"])
        try:
            run = Run.of(schedule, sizes, M=10**9, blocks=blocks, summation=summation, mask=mask)
            graph = graph_of(run)
            board = Referee(graph, run.M)
            for chunk in moves(run.program, run.sizes, graph.families, mask=run.only_mask):
                board.play(chunk)
        except (Infeasible, UsageError):  # chains only, or blocks that must fit together
            continue
        break
    game, problem = board.finish(), schedule.problem
    ways = bounds_of_ways(problem, sizes, game.peak_red, mask)
    every = least_of_ways({name: largest(each) for name, each in ways.items()})
    own = best(problem, sizes, game.peak_red, Formulation.of(schedule), mask)
    text = ", ".join(f"{name} = {size}" for name, size in (sizes | blocks | {"M": game.peak_red}).items())
    return Game(problem.name, f"{schedule.name}, {text}, {mask or 'no mask'}", game.io, game.complete, (own, every))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=10_000, help="of games")
    given = parser.parse_args()
    start, wrong, played = time.monotonic(), 0, Counter[str]()
    bites: defaultdict[str, Counter[str]] = defaultdict(Counter)
    closest: dict[str, float] = {}
    for number in range(given.number):
        game = play(given.seed, number)
        played[game.problem] += 1
        for bound in game.bounds:
            bites[game.problem][bound.name] += bound.name != "compulsory"
            ratio = game.io / max(1, bound.value)
            closest[game.problem] = min(closest.get(game.problem, ratio), ratio)
            if game.io < bound.value or not game.complete:
                wrong += 1
                print(f"{game.text}: {game.io:,} words, complete: {game.complete}; {bound}")
    print(
        f"{'problem':26}{'games':>7}{'closest':>9}  bounds that are the largest and bite, for its way and for every way"
    )
    for name in sorted(played):
        counts = ", ".join(f"{bound} {times}" for bound, times in bites[name].most_common() if times)
        print(f"{name:26}{played[name]:7}{closest[name]:9.3f}  {counts}")
    print(f"{given.number:,} games, {wrong} below a bound or refused; {time.monotonic() - start:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
