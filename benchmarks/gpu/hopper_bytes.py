"""Bytes into and out of the multiprocessors, counted and measured, of Gluon kernels that a seed draws; on a Hopper GPU.

    python benchmarks/gpu/hopper_bytes.py -o benchmarks/gpu/hopper_bytes.jsonl

Tiles are those of `tiles.HOPPER`, with lengths that they need not divide, and head dimensions of any group of 16 bytes.
Some are of packed sequences, whose kernels read two numbers of each query, or of each key, besides.
Memory adds what a kernel adds to a tensor (`m.add`): the old words, which the count has among the words read, do not
cross to the multiprocessors, and are left out here. Nsight Compute reads the counters of one process that runs all
cases, one after the other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from profiler import counters, launched, under_profiler

from pebblesim.advice.tiles import HOPPER, Tiling
from pebblesim.core.units import Bytes
from pebblesim.kernels.additions import read_to_be_added_to
from pebblesim.kernels.gluon.bytes import crossing
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.key_ranges import KeyRanges, reads_ranges
from pebblesim.kernels.module import module_of
from pebblesim.kernels.tables import moved_words
from pebblesim.kernels.words import moved_bytes, word_bytes
from pebblesim.language import masks, program as ir
from pebblesim.language.masks import Band, Mask, Packed
from pebblesim.language.program import Program
from pebblesim.language.registry import get

SEED, PLAIN, PACKED, DTYPE = 28, 22, 10, "bfloat16"
CASES = PLAIN + PACKED
OFFERED = tuple(each for each in HOPPER if each.schedule != "flash2-latent")
"""Tiles of attentions whose keys and values are matrices of their own."""

RANGED = tuple(each for each in HOPPER if KeyRanges in each.domain.masks)

METRICS = {
    "l1tex__m_xbar2l1tex_read_bytes.sum": "read",
    "l1tex__m_l1tex2xbar_write_bytes.sum": "written",
    "dram__bytes_read.sum": "from memory",
    "dram__bytes_write.sum": "to memory",
}
FILL = "FillFunctor"
"""PyTorch's kernel that fills with zeros what is added to."""


RANGE = 8
"""Bytes of the two numbers of a query, or of a key, by which kernels know packed sequences."""


class Case(NamedTuple):
    tiles: Tiling
    n: int
    d: int
    heads: int
    mask: str | None

    @property
    def dims(self) -> dict[str, int]:
        return {"n_q": self.n, "n_k": self.n, "d_k": self.d, "d_v": min(self.d, self.tiles.widest["d_v"])}

    @property
    def band(self) -> Mask | None:
        return masks.of(self.mask)

    @property
    def taken(self) -> Band | None:
        """The mask that kernels are made for: of packed sequences they read ranges of keys."""
        return KeyRanges() if isinstance(self.band, Packed) else cast(Band | None, self.band)

    @property
    def program(self) -> Program:
        return get(self.tiles.schedule).in_dims(self.dims).under(self.taken)

    def sent(self) -> tuple[Bytes, int]:
        """The bytes that cross for a head, with ranges of packed sequences, and those that are zeros of boxes."""
        program = self.program
        moved, zeros = crossing(program, {**self.dims, **self.tiles.blocks}, DTYPE, self.band, self.tiles.stages)
        reading = sum(reads_ranges(self.taken, list(ir.walk(phase.body))) for phase in program.phases)
        return moved + Bytes(RANGE * self.n * reading), zeros

    def counted(self) -> dict[str, int]:
        """Bytes read and written by all heads, and those that memory adds without sending them."""
        program, sizes, band = self.program, {**self.dims, **self.tiles.blocks}, self.band
        moved = moved_bytes(program, moved_words(program, sizes, band), DTYPE)
        spared = sum(
            word_bytes(program, program.tensors[name], DTYPE) * words
            for name, words in read_to_be_added_to(program, sizes, band).items()
        )
        each = {"read": moved.reads - spared, "written": moved.writes, "spared": spared}
        return {name: self.heads * number for name, number in each.items()}

    def call(self) -> Callable[[], Any]:
        """A function that launches the kernels once."""
        import torch

        program, sizes = self.program, {**self.dims, **self.tiles.blocks}
        options = self.tiles.options_under(self.taken)
        source = gluon(program, sizes, DTYPE, self.taken, scale=self.d**-0.5, **options)
        module, given = module_of(source.text), []
        for name in (each for each in program.tensors if each in program.inputs):
            sides = program.tensors[name].sides(self.dims)
            made = torch.full((self.heads, *sides), 8.0, device="cuda")
            given.append(made if len(sides) == 1 else torch.randn_like(made).to(torch.bfloat16))
        ranges = ranges_of(self.band, self.n) if isinstance(self.band, Packed) else {}
        return lambda: module.run(*given, **ranges)


def ranges_of(mask: Packed, n: int) -> dict[str, Any]:
    """The ranges of keys of packed sequences, as kernels take them."""
    import torch

    from pebblesim.operator.masks import arguments_of

    allowed = torch.from_numpy(mask.allowed(n, n)).cuda().int()
    first = allowed.argmax(1).int()
    return arguments_of(first[None], (first + allowed.sum(1).int())[None], n)


def cases() -> list[Case]:
    """Tiles that are offered, each with sizes that a seed draws; every second one has rows of whole sectors."""
    chance, found = random.Random(SEED), list[Case]()
    for number in range(CASES):
        packed = number >= PLAIN
        offered = RANGED if packed else OFFERED
        tiles = offered[number % PLAIN] if number % PLAIN < len(offered) else chance.choice(offered)
        least, most = tiles.widths
        step = 8 if number % 4 == 3 else 16
        d = step * chance.randint(max((least - 1) // step + 1, 2), most // step)
        n, heads, mask = chance.randrange(300, 3000), chance.randrange(2, 9), chance.choice((None, None, "causal"))
        if packed:
            cuts = [0, *sorted(chance.sample(range(1, n), chance.randrange(1, 6))), n]
            lengths = ",".join(str(b - a) for a, b in pairwise(cuts))
            mask = f"lengths:{lengths}" + (f":{mask}" if mask else "")
        found.append(Case(tiles, n, d, heads, mask))
    return found


def case_of(row: dict[str, Any]) -> Case:
    """The case of a row, by the tiles that are offered now."""
    alike = (each for each in HOPPER if each.schedule == row["schedule"] and each.widths[0] <= row["d"])
    tiles = next(
        each
        for each in alike
        if (dict(each.blocks), each.stages) == (row["blocks"], row["stages"])
        and row["d"] <= each.widths[1]
        and row["d_v"] <= each.widest["d_v"]
    )
    return Case(tiles, row["n"], row["d"], row["heads"], row["mask"])


def compiled(number: int) -> None:
    launched(cases()[number])


def profiled() -> None:
    """Run all cases under the profiler, each behind a mark."""
    for number in range(CASES):
        under_profiler(launched(cases()[number]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    with ProcessPoolExecutor(CASES, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compiled, range(CASES)))
    measured, _ = counters(METRICS, __file__, "all")
    rows = []
    for case, counters_of in zip(cases(), measured, strict=True):
        counted, found = case.counted(), dict[str, dict[str, float]]()
        for each in counters_of:
            if "::" not in each.kernel or FILL in each.kernel:
                of = found.setdefault("dQ, filled" if FILL in each.kernel else each.kernel.partition("(")[0], {})
                of[each.what] = of.get(each.what, 0.0) + each.bytes
        total = {name: sum(each.get(name, 0.0) for each in found.values()) for name in METRICS.values()}
        row = {"schedule": case.tiles.schedule, "blocks": dict(case.tiles.blocks), "n": case.n, "d": case.d}
        row |= {"d_v": case.dims["d_v"], "stages": case.tiles.stages}
        row |= {"heads": case.heads, "mask": case.mask, "counted": counted, "measured": total, "launches": found}
        rows.append(row)
        ratios = {name: f"{total[name] / counted[name]:.5f}" for name in ("read", "written")}
        print(case.tiles.schedule, case.n, case.d, case.heads, case.mask, ratios, flush=True)
        output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    profiled() if sys.argv[1:] == ["all"] else main()
