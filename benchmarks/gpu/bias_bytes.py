"""Bytes that kernels with a bias move into and out of the multiprocessors, counted and measured; on a GPU, with `ncu`.

    python benchmarks/gpu/bias_bytes.py --seed 1 --calls 8 -o bias_bytes.jsonl

A seed draws layers: lengths that are even or not, heads, sequences that share a bias, and how many of these are at a
time; or, as 0 at a time, layers of the kernels for Hopper, in which rows of the bias stay. Nsight Compute reads the
counters of each kernel of both passes. A row is one kernel of one layer. Threads that have too few registers keep some
words in local memory: what this moves is measured apart.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from profiler import under_profiler

from pebblesim.kernels.passes.bias_stays import SPAN
from pebblesim.kernels.tables import moved_words
from pebblesim.kernels.words import moved_bytes
from pebblesim.launches.launches import launches
from pebblesim.operator.bias import bias as kernels, gradient, pairs, programs

METRICS = {
    "l1tex__m_xbar2l1tex_read_bytes.sum": ("measured", "read"),
    "l1tex__m_l1tex2xbar_write_bytes.sum": ("measured", "written"),
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld_lookup_miss.sum": ("spilled", "read"),
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": ("spilled", "written"),
}
SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": 32}
PROCESSES = 14
"""Those that compile."""

MARK, OTHERS = "spin_kernel", ("::", "transposes", "sums")
"""The kernel that stands between two layers, and what names of kernels have that are no launch of a schedule."""

PASSES = {"O": programs.FORWARD, "dQ": programs.OF_QUERIES, "dK, dV": programs.ACROSS, "dB": programs.OF_BIAS}
"""Kernels of both passes; for Hopper dQ and dB are launched at once, for some keys after others."""


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

    def counted(self, units: int) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes of each kernel, by its launch, in the order in which they run; of all heads and sequences.

        `units`: multiprocessors of the card.
        """
        if not self.at_a_time:
            yield from self._of_hopper(units)
            return
        for name, which in PASSES.items():
            with patch.object(programs, "TILINGS", self.tilings):
                made = programs.kernels_of(which, "16 bits", self.d)
            at_once = self.sequences if name == "dB" else self.at_a_time
            yield from self._moved(which, made, at_once)

    def _moved(
        self, which: int, made: programs.Kernels, at_once: int, keys: int = 0, more: tuple[int, int] = (0, 0)
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes of each launch of a pass of so many keys, or all; `more`: bytes that are read and written beside."""
        program = programs.program(which, made)
        sizes = {"n_q": self.n, "n_k": keys or self.n, "d_k": self.d, "d_v": self.d, **made.tiling.blocks}
        sizes |= {"R": at_once, "B_R": at_once}
        times = self.heads * (self.sequences // at_once)
        for launch in launches(program, masked=True, repeated=True):
            alone = programs.part_of(program, (launch.name,))
            moved = moved_bytes(alone, moved_words(alone, sizes), "bfloat16")
            yield launch.name, {"read": times * moved.reads + more[0], "written": times * moved.writes + more[1]}

    def _of_hopper(self, units: int) -> Iterator[tuple[str, dict[str, int]]]:
        """Those of the kernels for Hopper: v comes before the others of the backward pass, or with dQ and dB."""
        yield from self._staying(units, programs.FORWARD)
        parts = programs.parts_at_once(self.n, self.sequences, self.heads, units)
        if parts.each <= programs.MOST_WITH_V:
            yield from self._gradients(parts, programs.WITH_V)
            yield from self._staying(units, programs.ACROSS)
        else:
            yield from self._staying(units, programs.OF_V, programs.ACROSS)
            yield from self._gradients(parts, programs.AT_ONCE)

    def _staying(self, units: int, *passes: int) -> Iterator[tuple[str, dict[str, int]]]:
        """Those of passes in which blocks that have some of a head's sequences read its rows of the bias."""
        tiles, every = -(-self.n // 64), self.heads * self.sequences
        for which in passes:
            stays = which in programs.STAYING and self.n <= programs.MOST_STAYING[which]
            made = programs.STAYING[which] if stays else programs.kernels_of(which, "16 bits", self.d)
            each = max(-(-every // max(units // tiles, 1)), made.sequences)
            begun = len({*range(0, every, self.sequences), *range(0, every, each)})
            at_once = self.sequences if stays else 1
            yield from self._moved(which, made, at_once, more=(2 * (begun - self.heads) * self.n**2 * stays, 0))

    def _gradients(self, parts: programs.Parts, first: int) -> Iterator[tuple[str, dict[str, int]]]:
        """Those of dQ and dB at once, by the kernel of the first keys and that which goes on."""
        tiles, every = -(-self.n // 64), self.heads * self.sequences
        number, spans = sum(map(parts.of, range(self.heads))), programs.spans(self.n)
        for at, span in enumerate(spans):
            keys, last = span.stop - span.start, span is spans[-1]
            pairs_of_part = self.n * keys
            dQ = 2 * every * self.n * self.d * (not last)  # in float32
            dB = (4 * number - 2 * self.heads) * pairs_of_part
            beside = programs.at_once(keys).tiling.blocks[SPAN] - keys  # of which the copy engine brings zeros
            zeros = 2 * every * tiles * beside * 2 * self.d
            more = 2 * (number - self.heads) * pairs_of_part + zeros, dB + dQ
            which = programs.ONWARD if at else first
            yield from self._moved(which, programs.at_once(keys), self.sequences, keys, more)

    def call(self) -> None:
        """Both passes, by kernels: of Triton's with one part of the sequences."""
        import torch

        shape = self.sequences, self.heads, self.n, self.d
        q, k, v, dO = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        b = torch.randn(1, 1, self.heads, self.n, self.n, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(q)
        made, dB = tuple(map(torch.empty_like, (q, k, v))), torch.empty_like(b)
        asked = pairs.Limits(self.sequences, None, None, False, self.d**-0.5)
        with ExitStack() as patched:
            for module, name, value in self._forced():
                patched.enter_context(patch.object(module, name, value))
            lse = kernels.forward(q, k, v, b, None, out, asked)
            kernels.backward(dO, None, q, k, v, b, out, lse, None, made, dB, asked)

    def _forced(self) -> Iterator[tuple[Any, str, Any]]:
        """What is patched so that a layer has its kernels: modules, names, and values."""
        yield kernels, "_at_once", lambda *given: not self.at_a_time
        if self.at_a_time:
            yield gradient, "_parts", lambda *given: 1
            yield pairs, "multiprocessors", lambda device: 1
            yield programs, "staying", lambda *given: None
            yield programs, "TILINGS", self.tilings
        else:
            yield programs, "FEWEST_STAYING", dict.fromkeys(programs.STAYING, 0.0)
            yield programs, "MOST_BESIDE", 200.0


def drawn(seed: int, number: int) -> Layer:
    """A layer. Rows of the bias and of its gradient are whole sectors of 32 bytes."""
    random = Random(f"{seed}/{number}")
    n = 128 * random.randint(1, 5) if random.random() < 0.5 else 16 * random.randint(4, 40)
    d = random.choice([16, 32, 64])
    at_a_time = random.choice([1, 1, 2, 4] if d < 64 else [1, 2])  # as many as fit into shared memory
    if number % 3 == 2:
        n, d, at_a_time = 64 * random.randint(2, 12), random.choice([16, 32]), 0
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
            layer.call()
            under_profiler(layer.call)
        return
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        list(pool.map(Layer.call, layers))  # so that Triton's cache on disk holds their kernels
    flags = "--clock-control none --cache-control none --profile-from-start off --csv --metrics"
    again = [sys.executable, __file__, "--profiled", *sys.argv[1:]]
    words = ["ncu", *flags.split(), ",".join(METRICS), *again]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:] or done.stdout[-2000:])
    import torch

    rows, units = [], torch.cuda.get_device_properties(0).multi_processor_count
    for layer, found in zip(layers, _measured(done.stdout), strict=True):
        for (name, counted), measured in zip(layer.counted(units), found, strict=True):
            rows.append({**layer._asdict(), "kernel": name, "counted": counted, **measured})
            moved = {way: measured["measured"][way] - measured["spilled"][way] for way in counted}
            ratios = {way: f"{moved[way] / counted[way]:.4f}" for way in counted} | {"spilled": measured["spilled"]}
            print(*layer, name, ratios, flush=True)
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _measured(text: str) -> list[list[dict[str, dict[str, float]]]]:
    """Bytes of each of our kernels, for each layer: all, and those of them that registers were spilled to."""
    found: list[list[dict[str, dict[str, float]]]] = []
    last, mark = None, None
    for line in csv.DictReader(row for row in text.splitlines() if row.startswith('"')):
        name, number = line["Kernel Name"], line["ID"]
        if MARK in name:
            found += [[]] if number != mark else []
            mark = number
        elif not any(other in name for other in OTHERS):
            if number != last:
                found[-1].append({"measured": {}, "spilled": {}})
                last = number
            value = float(line["Metric Value"].replace(",", "")) * SCALE[line["Metric Unit"]]
            which, way = METRICS[line["Metric Name"]]
            found[-1][-1][which][way] = value
    return found


if __name__ == "__main__":
    main()
