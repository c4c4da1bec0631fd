"""Print the largest gaps of three problems from the least M to 4nd, for squares, rectangles and masks.

    .venv/bin/python benchmarks/table_of_gaps.py [--each] [--no-masks]

The first table is for n = 65,536 and d = 128, at M = 5 to 13 and at powers of √2 from 16 to 4nd, with the best blocks:
the largest gap to the bound for every way of computing and to that for a schedule's own way, in ranges of M. `--each`
prints each M. The second is for rectangles and masks, at the M of `SIZES`. The first takes twenty seconds, the second
some minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pebblesim as ps
from pebblesim.core.errors import Infeasible
from pebblesim.counting.count import Counted

N, D = 2**16, 2**7

RANGES = (
    ("5", 6),
    ("6 to 8", 9),
    ("9 to 16", 17),
    ("17 to 512", 513),
    ("to d²/8", D**2 // 8 + 1),
    ("to d²/2", D**2 // 2 + 1),
)
RANGES += (
    ("to 2d²", 2 * D**2 + 1),
    ("to 16d²", 16 * D**2 + 1),
    ("to 128d²", 128 * D**2 + 1),
    ("to nd/2", N * D // 2 + 1),
    ("to nd", N * D + 1),
    ("to 2nd", 2 * N * D + 1),
    ("to 4nd", 4 * N * D + 1),
)
"""Names of ranges of M, and the first M behind each."""

SHAPES = (
    ({"n_q": 1, "n_k": 65_536}, None),
    ({"n_q": 512, "n_k": 65_536}, None),
    ({"n_q": 65_536, "n_k": 512}, None),
    ({"n": 4_096}, "causal"),
    ({"n": 4_096}, "window:256"),
)
"""Lengths and a mask, of width 64."""

SIZES = (8, 1_024, 4_096, 65_536)


def in_ranges(rows: list[Counted]) -> Iterator[tuple[str, Counted, Counted]]:
    """(range, row of the largest gap to the bound for every way, and for its own) of each range that has rows."""
    low = 0
    for name, high in RANGES:
        within = [row for row in rows if low <= row.M < high]
        low = high
        if within:
            yield name, max(within, key=lambda row: row.gap), max(within, key=lambda row: row.gap_of_way)


def said(row: Counted, own: bool) -> str:
    bound, gap = (row.lower_bound, row.gap_of_way) if own else (row.every_way, row.gap)
    return f"{gap:7.3f} at M = {row.M:<10,} {bound.name:10} {row.schedule}"


def squares(problem: str, each: bool) -> None:
    powers = [round(16 * 2 ** (step / 2)) for step in range(44)]
    rows = list(ps.gaps(problem, M=[*range(5, 14), *(M for M in powers if M <= 4 * N * D)], n=N, d=D).rows)
    print(f"\n{problem}: n = {N:,}, d = {D}")
    if each:
        for row in rows:
            print(f"{row.M / D**2:10.4f} d²  every way {said(row, own=False):60}  its way {said(row, own=True)}")
        return
    for name, every, own in in_ranges(rows):
        print(f"{name:10} every way {said(every, own=False):60}  its way {said(own, own=True)}")


def shapes() -> None:
    print(f"\n{'':14}{'lengths, d = 64':26}{'mask':12}{'M':>8}  every way, its way")
    for problem in ("forward", "backward", "backward-qkv"):
        widths = {"d": 64} if problem == "backward" else {"d_k": 64, "d_v": 64}
        for lengths, mask in SHAPES:
            dims = lengths | ({"d": 64} if "n" in lengths else widths)
            for M in SIZES:
                try:
                    row = ps.compare(problem, M=M, blocks="best", mask=mask, **dims).best
                except Infeasible:
                    continue
                text = ", ".join(f"{name} = {size:,}" for name, size in lengths.items())
                gaps = f"{row.gap:7.3f} {row.every_way.name:10} {row.gap_of_way:7.3f} {row.lower_bound.name:10}"
                print(f"{problem:14}{text:26}{mask or 'none':12}{M:8,} {gaps} {row.schedule}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--each", action="store_true", help="each M, in place of ranges")
    parser.add_argument("--no-masks", action="store_true", help="squares alone")
    given = parser.parse_args()
    for problem in ("forward", "backward", "backward-qkv"):
        squares(problem, given.each)
    if not given.no_masks:
        shapes()


if __name__ == "__main__":
    main()
