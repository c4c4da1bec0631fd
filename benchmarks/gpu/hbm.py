"""Measure what memory gives where L2 does not help: `python benchmarks/gpu/hbm.py FILE.jsonl [--seed SEED]`.

Algorithms 6 and 9, FlashAttention, and two forward passes, from M = d²/16 to all of shared memory, each for as many
heads as it takes for L2 to be of no help (`pebblesim.measuring.beyond_l2`). M is such that the tiles of Algorithm 6
have B rows and columns: B is a multiple of 16 where rows of tiles are to be whole 64-byte pieces. With a seed, n and d
are drawn, too. What the file holds already is not measured again; `--list` prints the cases.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pebblesim.advice import cards
from pebblesim.analysis.totals import totals
from pebblesim.core.errors import PebblesimError
from pebblesim.language import program as ir
from pebblesim.measuring.beyond_l2 import Chip, beyond_l2, predicted
from pebblesim.measuring.cases import Case, case
from pebblesim.measuring.measure_batches import case_of, measure_batches, total
from pebblesim.measuring.results import load, save

ROUND = {  # d: n, and the sides of Algorithm 6's tiles
    128: (1024, (16, 24, 32, 48, 64, 80, 96, 112, 128)),
    64: (768, (8, 16, 24, 32, 40, 48, 64, 80, 112)),
    32: (384, (8, 16, 20, 24, 32, 48, 64)),
}
BACKWARD = ("small-cache", "large-cache", "flash")
FORWARD = ("small-cache-forward", "flash2-forward")
MOST_MOVES = 800_000
"""Most tiles that a block moves one after the other: each takes about a microsecond."""
MOST_WORDS = 58_112
H200 = Chip.of_card(cards.card("H200"))


def words_for(side: int) -> int:
    """The largest M with which Algorithm 6's tiles have this side: three of them, and vectors."""
    return 3 * side * side + 7 * side


def rounds() -> Iterator[tuple[str, int, int, int]]:
    yield from ((name, 2048, 32, words_for(128)) for name in BACKWARD)
    for d, (n, sides) in ROUND.items():
        for side in sides:
            for name in BACKWARD:
                yield name, n, d, words_for(side)
        for side in sides[1::2]:
            for name in FORWARD:
                yield name, n, d, words_for(side)


def drawn(seed: int) -> Iterator[tuple[str, int, int, int]]:
    """Any n and d, and M from a quarter of d² on; then sizes at which rows and tiles take whole 64-byte pieces."""
    chance = random.Random(seed)
    for _ in range(4):
        d = chance.randrange(24, 128)
        n = chance.randrange(max(5 * d, 250), 10 * d + 200)
        M = min(MOST_WORDS, int(d * d * 4 ** chance.uniform(-1, 1)))
        for name in (*BACKWARD, chance.choice(FORWARD)):
            yield name, n, d, M
    for d in chance.sample((48, 80, 96, 112), 2):
        n = 16 * chance.randrange(5 * d // 16, 9 * d // 16) - chance.randrange(8)
        M = words_for(16 * chance.randrange(round(d / 32), d // 16 + 1))
        for name in (*BACKWARD, chance.choice(FORWARD)):
            yield name, n, d, M


def moves(one: Case) -> int:
    """Tiles that the longest block moves one after the other."""
    each = [
        sum(totals(kernel.launch.body, one.sizes, lambda node, _: [("moved", 1)] if moved(node) else []).values())
        for kernel in one.source.kernels
        if kernel.launch.kind == "tiles" and not kernel.launch.grid
    ]
    return max(each, default=0)


def moved(node: ir.Node) -> bool:
    return isinstance(node, ir.Read | ir.Write)


def cases(seed: int | None, chip: Chip) -> Iterator[Case]:
    for name, n, d, M in [*rounds(), *(drawn(seed) if seed is not None else ())]:
        try:
            one = case(name, n=n, d=d, M=M)
            if (long := moves(one)) > MOST_MOVES:
                raise PebblesimError(f"{long:,} tiles one after the other take too long")
            yield beyond_l2(one, chip)
        except PebblesimError as error:
            print(f"left out: {name}, n = {n}, d = {d}, M = {M}: {error}", file=sys.stderr)


def predict(path: Path) -> None:
    """Add the bytes that the model of L2 predicts for HBM, read and written; None where the replay would take long."""
    rows = load(path)
    for row in rows:
        if "predicted" not in row:
            one = case_of(row)
            found = [
                predicted(one, kernel, launch["at_once"], H200)
                for kernel, launch in zip(one.source.kernels, row["launches"], strict=True)
            ]
            sums = [[each[name] for each in found] for name in ("hbm_read", "hbm_written")]
            row["predicted"] = [None if None in each else sum(each) for each in sums]
            save(path, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="where the results are kept")
    parser.add_argument("--seed", type=int, help="draw more sizes")
    parser.add_argument("--list", action="store_true", help="print the cases and measure nothing")
    parser.add_argument("--cases", type=Path, help="measure these cases, as --list prints them")
    parser.add_argument("--predict", action="store_true", help="measure nothing; add to its rows what L2's model says")
    parser.add_argument("--seconds", type=float, help="begin no case when about so much time has gone")
    chosen = parser.parse_args()
    if chosen.predict:
        predict(chosen.file)
        return
    if chosen.cases:
        found = [Case(**json.loads(line)) for line in chosen.cases.read_text(encoding="utf-8").splitlines()]
    else:
        found = list(cases(chosen.seed, H200))
    if chosen.list:
        print("\n".join(json.dumps(each.to_dict()) for each in found))
        return
    started = time.perf_counter()
    rows = measure_batches(found, chosen.file, chosen.seconds)
    for row in rows:
        print(row["schedule"], row["dims"], f"M = {row['M']}:", total(row), f"error {row['error']:.1e}")
    print(f"{len(rows)} of {len(found)} cases in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
