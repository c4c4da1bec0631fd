"""What the kernels for Hopper would take if their warpgroups did nothing but wait for each other: an estimate.

    python benchmarks/gpu/bias_queue.py

Needs Triton, and no GPU. Three warpgroups of a multiprocessor each take one tile after the other, and a tile takes some
cycles of each unit: of a scheduler, one for each instruction of a thread; of the unit for exponentials, 8 for each
instruction; of the tensor cores, one for 2,048 products; and of shared memory, one for 128 bytes. These are counted in
the kernels as an H200 has them (`bias_instructions.py`), and in what the copy engine brings. If warpgroups came to
units at random, the time of a tile would follow from these cycles by the mean value analysis of closed networks (Reiser
and Lavenberg 1980), with no cycle for anything else. The layer is that of `bias_instructions.py`; measured times are
those of a file of rows of `bias_stays.py`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from bias_instructions import CLOCK, KEYS, PAIRS, UNITS, Made, in_loop, kernels

WITH_WIDTHS = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9]+(?:\.\w+)*)")
"""A line of a disassembled kernel, and its instruction with all that says how wide it is."""

NAMES = {"O, rows stay": "flash2_forward", "dK, dV, rows stay": "dK_dV", "dQ, dB": "dQ_dB"}
"""The kernels, and their names in rows of measurements."""

WARPS, LINE, PRODUCTS, TERMS = 4, 128, 2048, 16
"""Warps of a warpgroup; bytes of shared memory and products of tensor cores in a cycle; terms of one instruction."""


def cycles(made: Made, found: Counter[str]) -> dict[str, float]:
    """Cycles of each unit that a tile of a warpgroup takes, of instructions of a thread for each pair."""
    units = dict.fromkeys(("instructions", "exponentials", "tensor cores", "shared memory"), 0.0)
    for name, each in found.items():
        count = each * made.pairs
        units["instructions"] += count
        if name.startswith("MUFU"):
            units["exponentials"] += 8 * count
        elif shape := re.match(r"HGMMA\.64x(\d+)x16", name):
            units["tensor cores"] += count * 64 * int(shape[1]) * TERMS / PRODUCTS
            units["shared memory"] += count * int(shape[1]) * TERMS * 2 / LINE
        elif name.startswith(("LDS", "STS")):
            width = re.search(r"\.(64|128)\b", name)
            bytes_of_warp = 512 if name.startswith(("LDSM", "STSM")) else 32 * (int(width[1]) // 8 if width else 4)
            units["shared memory"] += count * WARPS * bytes_of_warp / LINE
    units["shared memory"] += _copied(made) / LINE
    return units


def _copied(made: Made) -> float:
    """Bytes that the copy engine brings for a tile; where rows of a sequence stay, their part of it."""
    *others, most = sorted(int(each) for each in re.findall(r"mbarrier\.expect\(.*, (\d+)\)", made.text))
    tiles = 64 * KEYS / (128 * made.pairs)
    return most / made.warpgroups if tiles == made.warpgroups else most + sum(others) / tiles


def at_random(demands: list[float], customers: int) -> float:
    """Cycles of a tile where so many warpgroups come to units at random."""
    waiting, time = [0.0] * len(demands), 0.0
    for number in range(1, customers + 1):
        times = [demand * (1 + before) for demand, before in zip(demands, waiting, strict=True)]
        time = sum(times)
        waiting = [number * each / time for each in times]
    return time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = Path(__file__).with_name("bias_stays.jsonl")
    parser.add_argument("--measured", type=Path, default=rows, help="rows of bias_stays.py")
    parser.add_argument("--clock", type=float, default=1.755, help="GHz of the card while they were measured")
    asked = parser.parse_args()
    measured = json.loads(asked.measured.read_text(encoding="utf-8").splitlines()[0])["usual"]
    print("| kernel | instructions | exponentials | tensor cores | shared memory | at random, µs | measured, µs |")
    print("|---" + "|---:" * 6 + "|")
    estimated, whole = 0.0, 0.0
    with TemporaryDirectory() as folder:
        for name, made in kernels():
            if name not in NAMES:
                continue
            units = cycles(made, in_loop(made, Path(folder), WITH_WIDTHS))
            tiles = PAIRS / (128 * made.pairs) / UNITS / made.warpgroups
            micro = 1e-3 * tiles / asked.clock
            time, found = micro * at_random([*units.values()], made.warpgroups), measured[NAMES[name]]
            estimated, whole = estimated + time, whole + found
            busy = [f"{micro * each * made.warpgroups:.0f}" for each in units.values()]
            print("|", " | ".join([name, *busy, f"{time:.0f}", f"{found:.0f}"]), "|")
    print(f"all: {estimated:.0f} µs at random, {whole:.0f} measured; clocks up to {CLOCK / 1e9:g} GHz")


if __name__ == "__main__":
    main()
