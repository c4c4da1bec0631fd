"""Bytes that Triton kernels of our schedules move, counted and measured by Nsight Compute; run it on a GPU.

    python benchmarks/gpu/kernel_bytes.py -o benchmarks/gpu/kernel_bytes.jsonl

Cases that are in FILE already are not measured again. With --predict it needs no GPU: it adds to what was measured in
FILE what the model of L2 predicts for memory.

Needs PyTorch, Triton and `ncu` otherwise. Kernels are compiled by several processes; then one process runs all cases
for each group of metrics. Behind the cases that are listed come some whose lengths, widths and heads a seed draws.
Caches are left as they are between launches; what is in L2 at the end, not yet written to memory, is driven out by a
large read, and counted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
from profiler import counters, under_profiler

from pebblesim.advice import cards
from pebblesim.advice.forecast import MOST_THREADS, RESERVED
from pebblesim.advice.tiles import TILINGS, Tiling
from pebblesim.cachesim.l2 import Chip, HeadsAtOnce, order_of, traffic
from pebblesim.cachesim.l2_traffic import kernels_of
from pebblesim.cachesim.requests import StoredMatrix
from pebblesim.kernels.module import module_of
from pebblesim.kernels.tables import moved_words, tables
from pebblesim.kernels.triton.ranges import GROUP
from pebblesim.kernels.triton.triton import Source, triton
from pebblesim.kernels.words import moved_bytes, word_bytes
from pebblesim.language import masks
from pebblesim.language.program import Program
from pebblesim.language.registry import get
from pebblesim.launches.launches import launches

BACKWARD = "small-cache-backward-blocked"
IN_ROWS = {"C": 1024, "a": 128, "b": 256, "c": 64, "e": 128}
TWO_PASSES = {"B_r": 128, "b_c": 64, "B_c": 64, "b_r": 64}
WIDE = {"B_r": 128, "b_c": 64, "B_c": 128, "b_r": 64}
STORED = {"B_c": 128, "b_r": 64, "b": 128, "c": 64}
Case = tuple[str, dict[str, int], int, dict[str, int], int, int, str | None]
CASES: list[Case] = [
    (BACKWARD, {"n": 4096, "d": 512}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, None),
    (BACKWARD, {"n": 4096, "d": 512}, 16, {"a": 128, "b": 256, "c": 64}, 8, 4, None),
    (BACKWARD, {"n": 4096, "d": 512}, 16, {"a": 256, "b": 128, "c": 64}, 8, 3, None),
    (BACKWARD, {"n": 4096, "d": 512}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, "causal"),
    (BACKWARD, {"n": 1000, "d": 80}, 32, {"a": 128, "b": 128, "c": 64}, 8, 3, None),
    ("flash2-forward", {"n": 4096, "d": 128}, 16, {"B_r": 128, "B_c": 128}, 8, 3, None),
    ("flash2-forward", {"n": 4096, "d": 64}, 32, {"B_r": 128, "B_c": 64}, 8, 3, None),
    ("flash2-forward", {"n": 4096, "d": 128}, 16, {"B_r": 128, "B_c": 128}, 8, 3, "causal"),
    *(
        ("small-cache-forward-blocked", {"n": 4096, "d": d}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, None)
        for d in (384, 448, 512, 576)
    ),
    ("scores-stored-blocked", {"n": 4096, "d": 512}, 16, {"a": 128, "b": 256, "c": 64}, 8, 4, None),
    ("scores-stored-blocked", {"n": 4096, "d": 512}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, "causal"),
    ("backward-two-pass-blocked", {"n": 4096, "d": 64}, 32, TWO_PASSES, 8, 4, None),
    ("backward-two-pass-blocked", {"n": 4096, "d": 128}, 16, WIDE, 8, 4, None),
    ("dS-stored-blocked", {"n": 4096, "d": 128}, 16, STORED, 8, 3, None),
    ("small-cache-backward-in-rows", {"n": 4096, "d": 512}, 16, IN_ROWS, 8, 4, None),
    ("small-cache-backward-in-rows", {"n": 4096, "d": 512}, 16, IN_ROWS, 8, 4, "causal"),
    ("small-cache-forward-in-rows", {"n": 4096, "d": 512}, 16, IN_ROWS, 8, 4, None),
    ("scores-stored-in-rows", {"n": 4096, "d": 512}, 16, IN_ROWS, 8, 4, None),
    ("scores-stored-in-rows", {"n": 4096, "d": 512}, 16, IN_ROWS, 8, 4, "causal"),
    (BACKWARD, {"n": 3000, "d": 320}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, None),
    ("scores-stored-blocked", {"n": 3333, "d": 640}, 8, {"a": 128, "b": 256, "c": 64}, 8, 4, None),
    (BACKWARD, {"n": 3333, "d": 640}, 8, {"a": 128, "b": 256, "c": 64}, 8, 4, None),
    ("dS-stored-blocked", {"n": 5000, "d": 128}, 8, STORED, 8, 3, None),
    (BACKWARD, {"n": 2500, "d": 448}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, "causal"),
    ("flash2-forward", {"n": 7000, "d": 96}, 8, {"B_r": 128, "B_c": 64}, 8, 3, "causal"),
]
SEED, DRAWN, TOKENS, PROCESSES = 26, 10, 40_000, 14
LISTED = 4096
"""The length of those launches of the listed cases that are predicted with other caches, too."""

DRAWN_TILES: list[tuple[str, dict[str, int], int, int]] = [
    (BACKWARD, {"a": 128, "b": 128, "c": 64}, 8, 3),
    (BACKWARD, {"a": 128, "b": 256, "c": 64}, 8, 4),
    ("scores-stored-blocked", {"a": 128, "b": 128, "c": 64}, 8, 3),
    ("small-cache-forward-blocked", {"a": 128, "b": 128, "c": 64}, 8, 3),
    ("small-cache-backward-in-rows", IN_ROWS, 8, 4),
    ("scores-stored-in-rows", IN_ROWS, 8, 4),
]


def drawn() -> Iterator[Case]:
    """Cases of lengths that no tile divides and head dimensions of whole sectors, with some 40,000 tokens."""
    chance = random.Random(SEED)
    for number in range(DRAWN):
        name, blocks, warps, stages = DRAWN_TILES[number % len(DRAWN_TILES)]
        n = next(n for n in iter(lambda: chance.randrange(1000, 6000), None) if n % 16)
        d, mask = 16 * chance.randrange(5, 41), chance.choice((None, None, "causal"))
        yield name, {"n": n, "d": d}, TOKENS // n, blocks, warps, stages, mask


CASES += drawn()

METRICS = (
    {"l1tex__m_xbar2l1tex_read_bytes.sum": "sm_read", "l1tex__m_l1tex2xbar_write_bytes.sum": "sm_written"},
    {"dram__bytes_read.sum": "hbm_read", "dram__bytes_write.sum": "hbm_written"},
)
"""Metrics that are measured together, in one pass: a second one would find in L2 what the profiler has restored."""

FILLING = 8
"""Blocks of PyTorch's kernel that fills a matrix, on a multiprocessor."""

CACHES = {"2 x 30 MiB": (2, 30), "45 MiB": (1, 45), "60 MiB": (1, 60)}
"""Partitions of L2, and MiB of each, that launches are predicted with: those of an H200, and one in their place."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("kernel_bytes.jsonl"))
    parser.add_argument("--predict", action="store_true")
    asked = parser.parse_args()
    output: Path = asked.output
    if asked.predict:
        known = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        rows = [row | {"predicted": predicted(row)} for row in known]
        for row in rows:
            if row["schedule"] == "small-cache-forward-blocked" and row["dims"]["n"] == LISTED:
                row["by_launch"] = by_launch(row)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        output.write_text(text, encoding="utf-8")
        return
    done = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
    rows = list(map(json.loads, done))
    known = [json.dumps(case_of(row)) for row in rows]
    asked_for = [number for number, case in enumerate(CASES) if json.dumps(case) not in known]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compiled, asked_for))
    for row in measured(asked_for):
        rows.append(row)
        output.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
        ratios = ", ".join(
            f"{key} {row['measured'][key] / row['counted'][key]:.4f}" for key in ("sm_read", "sm_written")
        )
        print(f"{row['schedule']}, {row['dims']}, {row['blocks']}, {row['mask'] or 'no mask'}: {ratios}", flush=True)


def case_of(row: dict[str, Any]) -> list[Any]:
    return [row[key] for key in ("schedule", "dims", "heads", "blocks", "warps", "stages", "mask")]


def counted(number: int) -> tuple[dict[str, Any], Source, list[str]]:
    """The counted bytes of a case; the source of its kernels; the names of their arguments."""
    name, dims, heads, blocks, warps, stages, mask = CASES[number]
    schedule, band = get(name), masks.of(mask)
    program = schedule.under(band)
    words = moved_words(program, {**dims, **blocks}, band)
    moved = moved_bytes(program, words, "bfloat16").each(lambda words: words * heads)
    row = {
        "schedule": name,
        "dims": dims,
        "heads": heads,
        "blocks": blocks,
        "mask": mask,
        "warps": warps,
        "stages": stages,
    }
    row |= {"counted": {"sm_read": moved.reads, "sm_written": moved.writes}}
    apart = _tiling(row).apart
    source = triton(program, {**dims, **blocks}, "bfloat16", band, warps=warps, stages=stages, apart=apart)
    return row, source, [tensor for tensor in program.tensors if tensor in program.inputs]


def _tiling(row: dict[str, Any]) -> Tiling:
    """The tiling of a case; launches of those that are offered may have warps and stages of their own."""
    offered = {(each.schedule, *each.blocks.items()): each.apart for each in TILINGS["backward-qkv"]}
    apart = offered.get((row["schedule"], *row["blocks"].items()), {})
    return Tiling(row["schedule"], row["blocks"], row["warps"], row["stages"], apart)


def measured(numbers: list[int]) -> Iterator[dict[str, Any]]:
    """The rows of some cases; the profiler runs one process with all of them for each group of metrics."""
    rows = {number: counted(number)[0] | {"measured": {}, "launches": {}} for number in numbers}
    for metrics in METRICS:
        found, lines = counters(metrics, __file__, *map(str, numbers))
        compiled = {int(facts.pop("case")): facts for facts in map(json.loads, (t for t in lines if t.startswith("{")))}
        for number, counters_of in zip(compiled, found, strict=True):
            row = rows[number]
            row["measured"] |= dict.fromkeys(metrics.values(), 0)
            for kernel, what, each in counters_of:
                ours, moved = "reduce" not in kernel, round(each)
                if ours:
                    row["launches"].setdefault(kernel, {})[what] = moved
                if ours or what == "hbm_written":  # what the large read drives out is ours
                    row["measured"][what] += moved
        for number, facts in compiled.items():
            rows[number] |= facts
    yield from (row for row in rows.values() if len(row["measured"]) == sum(map(len, METRICS)))


def predicted(row: dict[str, Any]) -> dict[str, int]:
    """The traffic of memory by the model of L2, with as many blocks of each launch at once as fit.

    Tables have whole tiles in memory, and zeros fill them up; words of vectors and of sums have 32 bits.
    """
    card, n, d = cards.card("H200"), row["dims"]["n"], row["dims"]["d"]
    band, schedule = masks.of(row["mask"]), get(row["schedule"]).in_dims({"n_q": n, "n_k": n, "d_k": d, "d_v": d})
    program, blocks = schedule.under(band), row["blocks"]
    made = launches(program, masked=True, repeated=True)
    real = {"n_q": n, "n_k": n, "d_k": d, "d_v": d, **blocks}
    tiled = tables(program, made, real).tiled
    tall, wide = (lcm(1, *(tile[axis] for tile in tiled.values())) for axis in (0, 1))
    whole = real | {"n_q": -(-n // tall) * tall, "n_k": -(-n // wide) * wide}
    resident = iter(row["resident"])
    at_once = [card.size("multiprocessors") * (FILLING if each.kind == "fill" else next(resident)) for each in made]
    kernels, names = kernels_of(program, whole, False, band), {tensor.name for tensor in tiled}
    held = np.concatenate(
        [_bytes(place, program, whole if place.name in names else real) for place in kernels[0].forth.places]
    )
    kernels = [replace(each, forth=replace(each.forth, sizes=held), at_once=at_once[each.number]) for each in kernels]
    chip = Chip(max(at_once), card.size("l2"), partitions=card.l2_partitions)
    found = traffic(kernels, HeadsAtOnce(row["heads"]), 1, order_of(f"grouped:{GROUP}"), chip)
    return {"hbm_read": found.read, "hbm_written": found.written}


def _bytes(place: StoredMatrix, program: Program, sizes: Mapping[str, int]) -> Any:
    """Bytes of each item of a matrix that has the rows and columns of these sizes; more items are empty."""
    tensor = program.tensors[place.name]
    rows, columns = (*(sizes[dim] for dim in tensor.shape), 1)[:2]
    heights = np.clip(rows - np.arange(0, place.rows, place.height), 0, place.height)
    widths = np.clip(columns - np.arange(0, place.columns, place.width), 0, place.width)
    words = np.tile((heights[:, None] * widths).astype(np.int64).ravel(), place.copies)
    return words * word_bytes(program, tensor, "bfloat16")


def by_launch(row: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Bytes that each launch by itself reads from memory, as the model says of L2 and of others in its place."""
    schedule, band = get(row["schedule"]), masks.of(row["mask"])
    program = schedule.under(band)
    order, heads = order_of(f"grouped:{GROUP}"), HeadsAtOnce(row["heads"])
    kernels = kernels_of(program, {**row["dims"], **row["blocks"]}, False, band)
    found, card = {}, cards.card("H200")
    for launch, kernel, resident in zip(launches(program), kernels, row["resident"], strict=True):
        at_once = resident * card.size("multiprocessors")
        found[launch.name] = {
            name: traffic(
                [kernel], heads, 2, order, Chip(at_once, partitions * part * 2**20, partitions=partitions)
            ).read
            for name, (partitions, part) in CACHES.items()
        }
    return found


def prepared(number: int) -> tuple[Callable[[], Any], Any, dict[str, Any], Source]:
    """A call of a case, made once; the module of its kernels, its row and its source."""
    import torch

    row, source, arguments = counted(number)
    module = module_of(source.text)
    heads, (n, d) = row["heads"], row["dims"].values()
    matrix = {name: torch.randn(heads, n, d, device="cuda").bfloat16() for name in ("Q", "K", "V", "dO", "O")}
    arrays = [matrix[name] if name in matrix else torch.full((heads, n), 8.0, device="cuda") for name in arguments]
    module.run(*arrays)
    torch.cuda.synchronize()
    return lambda: module.run(*arrays), module, row, source


def compiled(number: int) -> None:
    """Run a case once, so that Triton's cache on disk holds its kernels."""
    prepared(number)


def profiled(number: int) -> None:
    """Run a case under the profiler, behind a mark, and print what its kernels take."""
    import torch

    call, module, row, source = prepared(number)
    large = torch.zeros(2**28, device="cuda")
    large.sum()  # leaves nothing in L2 that is to be written
    under_profiler(lambda: (call(), large.sum()))
    spilled, resident, tiling = 0, [], _tiling(row)  # bytes that all threads spill, each once
    figures = cards.card("H200").figures
    for kernel in source.kernels:
        threads = 32 * tiling.of(kernel.launch.name)[0]
        (compiled,) = next(iter(getattr(module, kernel.name).device_caches.values()))[0].values()
        spilled += 4 * compiled.n_spills * kernel.programs * row["heads"] * threads
        registers = -(-compiled.n_regs // 8) * 8 * threads  # eight are given at a time
        shared = compiled.metadata.shared + RESERVED
        by_shared = int(figures["shared_per_multiprocessor"].value) // shared
        resident.append(min(int(figures["registers"].value) // 4 // registers, by_shared, MOST_THREADS // threads))
    print(json.dumps({"case": number, "spilled": spilled, "resident": resident}), flush=True)


if __name__ == "__main__":
    if all(each.isdecimal() for each in sys.argv[1:]) and sys.argv[1:]:
        for each in sys.argv[1:]:
            profiled(int(each))
    else:
        main()
