"""Bytes into and out of the multiprocessors, counted and measured, of kernels and sizes that a seed draws; on a GPU.

    python benchmarks/gpu/drawn_bytes.py -o benchmarks/gpu/drawn_bytes.jsonl

Kernels are those that `attention` launches, for lengths that no tile divides and head dimensions whose rows are whole
sectors of 32 bytes. They are compiled by several processes; then Nsight Compute reads the counters of one process that
runs all cases, one after the other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from profiler import counters, launched, under_profiler

from pebblesim.advice import cards
from pebblesim.advice.tiles import PROBLEM, Tiling, kernels_for
from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.kernels.domains import Call
from pebblesim.kernels.tables import moved_words
from pebblesim.kernels.triton.storage import entries
from pebblesim.kernels.triton.triton import triton
from pebblesim.kernels.words import WORDS, moved_bytes, of_launch
from pebblesim.language import program as ir
from pebblesim.launches.launches import launches
from pebblesim.operator.launching.launching import loaded
from pebblesim.operator.pattern import Pattern, band_of
from pebblesim.operator.planning import program_of

SEED, CASES, CARD, PROCESSES = 25, 20, "H200", 14
METRICS = {"l1tex__m_xbar2l1tex_read_bytes.sum": "read", "l1tex__m_l1tex2xbar_write_bytes.sum": "written"}
DESCRIPTOR = 128
"""Bytes of a tensor descriptor, which a program writes to memory for the copy engine."""


class Case(NamedTuple):
    way: str
    tiling: Tiling
    n: int
    d: int
    heads: int
    pattern: Pattern

    def counted(self) -> dict[str, int]:
        """Bytes read and written by all heads; beside the count the zeros of boxes that the copy engine reads, and the
        descriptors that each program writes."""
        program, sizes = program_of(self.tiling, self.pattern.mask), {**self.dims, **self.tiling.blocks}
        words = moved_words(program, sizes, self.pattern.mask)
        moved = moved_bytes(program, words, "bfloat16")
        described = self._described(program)
        boxes = {node for nodes in described.values() for node in nodes}

        def zeros(node: ir.Node, at: LoopContext) -> Iterator[tuple[str, int]]:
            if isinstance(node, ir.Read) and node in boxes:
                yield "zeros", entries(node.tile.ranges, sizes) - at.words(node.tile.ranges)

        beside = sum(totals(phase.body, sizes, zeros, self.pattern.mask)["zeros"] for phase in program.phases)
        reads = moved.reads + beside * WORDS["bfloat16"]
        made = triton(program, sizes, "bfloat16", self.pattern.mask, **self.tiling.options).kernels
        tensors = {name: len({node.tensor.name for node in nodes}) for name, nodes in described.items()}
        descriptors = sum(kernel.programs * tensors.get(kernel.launch.name, 0) for kernel in made)
        return {"read": self.heads * reads, "written": self.heads * (moved.writes + DESCRIPTOR * descriptors)}

    def _described(self, program: ir.Program) -> dict[str, list[ir.Read]]:
        """The reads that descriptors serve, by launch: of tiles of matrices, in loops."""
        named, found = dict.fromkeys(self.tiling.described, (1,)), dict[str, list[ir.Read]]()
        for launch in launches(program, masked=True, repeated=True):
            if of_launch(named, launch.name, ()):
                loops = [loop for loop in launch.block if isinstance(loop, ir.Loop)]
                reads = [node for loop in loops for node in ir.walk(loop.body) if isinstance(node, ir.Read)]
                matrices = [node for node in reads if len(node.tile.ranges) == 2 and node.tensor.name in program.inputs]
                found[launch.name] = [node for node in matrices if node.tile.ranges[0].parent is not None]
        return found

    @property
    def dims(self) -> dict[str, int]:
        return {"n_q": self.n, "n_k": self.n, "d_k": self.d, "d_v": self.d}

    def call(self) -> Any:
        """A function that launches the kernels once."""
        import torch

        def normal() -> Any:
            return torch.randn(1, self.heads, self.n, self.d, device="cuda", dtype=torch.bfloat16)

        widths = (("d_k", self.d), ("d_v", self.d))
        kernels = loaded(self.tiling, widths, False, False, True, "bfloat16", self.pattern, self.d**-0.5)
        given = {name: normal() for name in kernels.takes if name != "L"}
        given |= {"L": torch.full((self.heads, self.n), 8.0, device="cuda")} if "L" in kernels.takes else {}
        results = {name: normal() for name in (["O"] if self.way == "forward" else ["dQ", "dK", "dV"])}
        return lambda: kernels(given, results)


def cases() -> list[Case]:
    """Tilings that are offered, with sizes and masks."""
    chance, shared, found = random.Random(SEED), cards.card(CARD).size("shared_per_block"), list[Case]()
    while len(found) < CASES:
        way, d = chance.choice(list(PROBLEM)), 16 * chance.randrange(2, chance.choice((9, 33)))
        n, heads = chance.randrange(300, 3000), chance.randrange(2, 9)
        causal = chance.random() < 0.4
        pattern = Pattern(band_of(right=0 if causal else None))
        call = Call({"n": n, "d": d}, pattern.mask, capability="")
        offered = kernels_for(PROBLEM[way], call, shared)
        schedule = chance.choice(sorted({each.schedule for each in offered}))
        tiling = chance.choice([each for each in offered if each.schedule == schedule])
        if n % 16 and "rows" not in tiling.schedule:
            found.append(Case(way, tiling, n, d, heads, pattern))
    return found


def compiled(number: int) -> None:
    launched(cases()[number])


def profiled() -> None:
    """Run all cases under the profiler, each behind a mark."""
    for number in range(CASES):
        under_profiler(launched(cases()[number]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compiled, range(CASES)))
    found, _ = counters(METRICS, __file__, "all")
    rows = []
    for case, launches_of in zip(cases(), found, strict=True):
        counted, measured = case.counted(), dict.fromkeys(METRICS.values(), 0.0)
        for each in launches_of:
            if "::" not in each.kernel:  # PyTorch's align vectors
                measured[each.what] += each.bytes
        row = {"way": case.way, "tiling": str(case.tiling), "described": case.tiling.described, **case.dims}
        row |= {"heads": case.heads, "causal": case.pattern.mask is not None, "counted": counted, "measured": measured}
        rows.append(row)
        ratios = {name: f"{measured[name] / counted[name]:.5f}" for name in counted}
        print(case.tiling, case.n, case.d, case.heads, case.pattern.mask is not None, ratios, flush=True)
    output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    profiled() if sys.argv[1:] == ["all"] else main()
