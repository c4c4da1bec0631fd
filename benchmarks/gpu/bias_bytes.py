"""Bytes that kernels with a bias move into and out of the multiprocessors, counted and measured; on a GPU, with `ncu`.

    python benchmarks/gpu/bias_bytes.py --seed 1 --calls 8 -o bias_bytes.jsonl

A seed draws layers: lengths that are even or not, heads, sequences that share a bias, and how many of these are at a
time; or, as 0 at a time, layers of 384 for which one kernel computes dQ and dB. Nsight Compute reads the counters of
each kernel of both passes. A row is one kernel of one layer.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from profiler import under_profiler

from pebblesim.kernels.tables import moved_words
from pebblesim.kernels.words import moved_bytes
from pebblesim.launches.launches import launches
from pebblesim.operator.bias import bias as kernels, pairs, programs

METRICS = {"l1tex__m_xbar2l1tex_read_bytes.sum": "read", "l1tex__m_l1tex2xbar_write_bytes.sum": "written"}
SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
MARK, OTHERS = "spin_kernel", ("::", "transposes")
"""The kernel that stands between two layers, and what names of kernels have that are no launch of a schedule."""

PASSES = {"O": programs.FORWARD, "dQ": programs.OF_QUERIES, "dK, dV": programs.ACROSS, "dB": programs.OF_BIAS}
AT_ONCE = {"O": programs.FORWARD, "v": programs.OF_V, "dK, dV": programs.ACROSS, "dQ, dB": programs.AT_ONCE}


class Layer(NamedTuple):
    """A layer: bfloat16, heads with a bias each that all sequences share."""

    n: int
    d: int
    heads: int
    sequences: int
    at_a_time: int

    @property
    def tilings(self) -> Any:
        """Kernels with so many sequences at a time, by what `attention` looks them up."""
        found = {}
        for (words, width), each in programs.TILINGS.items():
            several = [programs.Kernels(made.tiling, max(1, self.at_a_time)) for made in each[:3]]
            found[words, width] = programs.Tilings(*several, each.of_bias)
        return found

    def counted(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes of each kernel, by its launch, in the order in which they run; of all heads and sequences."""
        for name, which in (PASSES if self.at_a_time else AT_ONCE).items():
            with patch.object(programs, "TILINGS", self.tilings):
                if which == programs.AT_ONCE:
                    made = programs.at_once(self.n)
                else:
                    made = programs.kernels_of(which, "16 bits", self.d)
            program, at_once = programs.program(which, made), max(1, self.at_a_time)
            sizes = {"n_q": self.n, "n_k": self.n, "d_k": self.d, "d_v": self.d, **made.tiling.blocks}
            if name in ("dB", "dQ, dB"):
                at_once = sizes["B_R"] = self.sequences
            sizes["R"] = at_once
            times = self.heads * (self.sequences // at_once)
            for launch in launches(program, masked=True, repeated=True):
                phase = next(each for each in program.phases if each.name == launch.name)
                alone = programs.part_of(program, (phase.name,))
                moved = moved_bytes(alone, words := moved_words(alone, sizes), "bfloat16")
                of_sums = 2 * words["dB"][1] if which == programs.AT_ONCE else 0  # which are in float32
                yield launch.name, {"read": times * moved.reads, "written": times * (moved.writes + of_sums)}

    def call(self) -> None:
        """Both passes, by kernels, of one part of the sequences."""
        import torch

        shape = self.sequences, self.heads, self.n, self.d
        q, k, v, dO = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        b = torch.randn(1, 1, self.heads, self.n, self.n, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(q)
        made, dB = tuple(map(torch.empty_like, (q, k, v))), torch.empty_like(b)
        asked = pairs.Limits(self.sequences, None, None, False, self.d**-0.5)
        one = patch.multiple(
            kernels,
            _parts=lambda *given: 1,
            multiprocessors=lambda device: 1,
            _at_once=lambda *given: not self.at_a_time,
        )
        of_triton = patch.object(programs, "staying", lambda *given: None)
        with one, of_triton, patch.object(programs, "TILINGS", self.tilings):
            lse = kernels.forward(q, k, v, b, None, out, asked)
            kernels.backward(dO, None, q, k, v, b, out, lse, None, made, dB, asked)


def drawn(seed: int, number: int) -> Layer:
    """A layer. Rows of the bias and of its gradient are whole sectors of 32 bytes."""
    random = Random(f"{seed}/{number}")
    n = 128 * random.randint(1, 5) if random.random() < 0.5 else 16 * random.randint(4, 40)
    d = random.choice([16, 32, 64])
    at_a_time = random.choice([1, 1, 2, 4] if d < 64 else [1, 2])  # as many as fit into shared memory
    if number % 3 == 2:
        n, d, at_a_time = 384, random.choice([16, 32]), 0
    return Layer(n, d, random.randint(1, 6), 8 * random.randint(1, 4), at_a_time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    layers = [drawn(asked.seed, number) for number in range(asked.calls)]
    if asked.profiled:
        for layer in layers:
            layer.call()  # compiled, and in Triton's cache
            under_profiler(layer.call)
        return
    flags = "--clock-control none --cache-control none --profile-from-start off --csv --metrics"
    again = [sys.executable, __file__, "--profiled", *sys.argv[1:]]
    words = ["ncu", *flags.split(), ",".join(METRICS), *again]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:] or done.stdout[-2000:])
    rows = []
    for layer, found in zip(layers, _measured(done.stdout), strict=True):
        for (name, counted), measured in zip(layer.counted(), found, strict=True):
            rows.append({**layer._asdict(), "kernel": name, "counted": counted, "measured": measured})
            ratios = {way: f"{measured[way] / counted[way]:.4f}" for way in counted}
            print(*layer, name, ratios, flush=True)
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _measured(text: str) -> list[list[dict[str, float]]]:
    """Bytes of each of our kernels, for each layer."""
    found: list[list[dict[str, float]]] = []
    last, mark = None, None
    for line in csv.DictReader(row for row in text.splitlines() if row.startswith('"')):
        name, number = line["Kernel Name"], line["ID"]
        if MARK in name:
            found += [[]] if number != mark else []
            mark = number
        elif not any(other in name for other in OTHERS):
            if number != last:
                found[-1].append({})
                last = number
            value = float(line["Metric Value"].replace(",", "")) * SCALE[line["Metric Unit"]]
            found[-1][-1][METRICS[line["Metric Name"]]] = value
    return found


if __name__ == "__main__":
    main()
