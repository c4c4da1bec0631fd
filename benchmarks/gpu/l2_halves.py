"""Measure how a GPU's L2 keeps lines: what its two halves hold, when lines leave, and when written lines are written.

    python benchmarks/gpu/l2_halves.py -o benchmarks/gpu/l2_halves.jsonl

Needs a GPU, CuPy and `ncu`. First, latencies of atomics show on which side of L2 each multiprocessor and each line of
a buffer is: an atomic is done at the line's home. Then lists of lines are read and written by chosen multiprocessors,
past L1, and Nsight Compute counts the bytes from and to memory of the last launch of each test, in one pass.
Lines are named (side, home): the side of their readers, and the half in which their home is.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = r"""
extern "C" {
__device__ unsigned multiprocessor() { unsigned s; asm volatile("mov.u32 %0, %%smid;" : "=r"(s)); return s; }

// A thread of each block: cycles of an atomic, the least of some, at each line of a list; all blocks have the same
// list, or each a part of it.
__global__ void latency(unsigned* data, const unsigned* lines, int each, int repeats, int parts, unsigned* cycles)
{
    extern __shared__ volatile unsigned room[];
    if (threadIdx.x) return;
    unsigned s = multiprocessor();
    for (int i = 0; i < each; i++) {
        int at = parts ? s * each + i : (i + s * 7) % each, to = parts ? at : s * each + at;
        for (int n = 0; n < repeats; n++) {
            long long start = clock64();
            *room = atomicAdd(data + (size_t)lines[at] * 32, 0u);
            unsigned taken = clock64() - start;
            if (taken < cycles[to]) cycles[to] = taken;
        }
    }
}

// Which multiprocessor a block is on; a block stays for a while.
__global__ void placed(unsigned* where)
{
    if (threadIdx.x) return;
    where[blockIdx.x] = multiprocessor();
    for (long long start = clock64(); clock64() - start < 200000; ) ;
}

// Each multiprocessor reads its list of lines, `passes` times, a line per warp and access; bit 31: it writes the line.
// With `steps`, all wait for each other after each 1024 lines.
#define KERNEL(name) \
__global__ void __launch_bounds__(1024) name( \
    unsigned* data, const unsigned* lists, const unsigned* from, const unsigned* to, int passes, unsigned steps, \
    unsigned* gate) \
{ \
    unsigned s = multiprocessor(), last = to[s], turn = 0, sum = 0; \
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32; \
    for (int pass = 0; pass < passes; pass++) \
        for (unsigned first = from[s]; first < last; first += 1024) { \
            unsigned at = first + warp * 32 + lane, mine = at < last ? lists[at] : 0xffffffffu; \
            _Pragma("unroll") \
            for (int n = 0; n < 32; n++) { \
                unsigned line = __shfl_sync(0xffffffffu, mine, n); \
                unsigned* word = data + (size_t)(line & 0x7fffffffu) * 32 + lane; \
                if (line == 0xffffffffu) continue; \
                if (line >> 31) __stcg(word, line + pass); else sum ^= __ldcg(word); \
            } \
            if (steps) { \
                turn++; \
                __syncthreads(); \
                if (threadIdx.x == 0) { \
                    atomicAdd(gate, 1u); \
                    while (*(volatile unsigned*)gate < turn * gridDim.x) ; \
                } \
                __syncthreads(); \
            } \
        } \
    if (sum == 0x12345679u) data[threadIdx.x] = sum; \
}
KERNEL(prepare)
KERNEL(probe)

// Writes an n x n matrix of float32, tile by tile of b x b, along the rows or down the columns of tiles.
__global__ void probe_tiles(float* data, int n, int b, int down)
{
    int across = (n + b - 1) / b;
    for (int tile = blockIdx.x; tile < across * across; tile += gridDim.x) {
        int row = (down ? tile % across : tile / across) * b, column = (down ? tile / across : tile % across) * b;
        int height = min(b, n - row), width = min(b, n - column);
        for (int i = threadIdx.x; i < height * width; i += blockDim.x)
            data[(size_t)(row + i / width) * n + column + i % width] = i;
    }
}
}
"""
METRICS = {"dram__bytes_read.sum": "read", "dram__bytes_write.sum": "written"}
LINE, MIB = 128, 2**20
BUFFER = 512 * MIB
SHARED = 200 * 1024
"""Bytes of shared memory of a block, so that there is one on each multiprocessor."""

WRITE = 1 << 31
SAMPLE = 4 * MIB
"""Bytes whose fate is watched."""

Lists = list[Any]
Kind = tuple[int, int]  # side of the multiprocessors, home of the lines
KINDS: tuple[Kind, ...] = ((0, 0), (0, 1), (1, 0), (1, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("l2_halves.jsonl"))
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        tests()
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        flags = (
            "--csv --page raw --print-units base --clock-control none --cache-control none --kernel-name regex:^probe"
        )
        ncu = [asked.ncu, *flags.split(), "--log-file", log, "--metrics", ",".join(METRICS)]
        done = subprocess.run([*ncu, sys.executable, __file__, "--child"], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
        chip, *found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith('"')]
    header, _, *counted = csv.reader(lines)
    rows = [chip]
    for test, values in zip(found, counted, strict=True):
        measured = {name: int(values[header.index(metric)].replace(",", "")) for metric, name in METRICS.items()}
        rows.append(test | measured)
    asked.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class Bench:
    """A buffer of lines whose homes are known, and multiprocessors whose sides are known."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        module = cupy.RawModule(code=SOURCE, options=("-std=c++17",))
        self.kernels = {
            name: module.get_function(name) for name in ("latency", "placed", "prepare", "probe", "probe_tiles")
        }
        for kernel in self.kernels.values():
            kernel.max_dynamic_shared_size_bytes = SHARED
        self.number = cupy.cuda.Device().attributes["MultiProcessorCount"]
        self.data = cupy.zeros(BUFFER // 4, cupy.uint32)
        self.large = cupy.zeros(96 * MIB, cupy.uint32)
        lines = BUFFER // LINE // self.number * self.number
        some = np.random.default_rng(1).choice(lines, 512, replace=False)
        table = self._latencies(some, 12, parts=False).reshape(self.number, -1).astype(float)
        middle = table - table.mean(1, keepdims=True)
        left = np.linalg.svd(middle - middle.mean(0), full_matrices=False)[0][:, 0]
        self.side = ((left > 0) ^ (left[0] > 0)).astype(int)
        near = table[self.side == 0].mean(0) < table[self.side == 1].mean(0)
        self.cycles = [float(np.median(table[self.side == 0][:, mask])) for mask in (near, ~near)]
        cut = [(np.median(row[near]) + np.median(row[~near])) / 2 for row in table]
        far = self._latencies(np.arange(lines), 3, parts=True).reshape(self.number, -1) > np.array(cut)[:, None]
        home = (self.side[:, None] ^ far).ravel()  # on side 1 of a multiprocessor, "near" in the mean table is far
        self.home = home
        self.homed = [np.flatnonzero(home == half) for half in (0, 1)]
        self.on = [np.flatnonzero(self.side == side) for side in (0, 1)]

    def _latencies(self, lines: Any, repeats: int, *, parts: bool) -> Any:
        cupy = self.cupy
        each = len(lines) // self.number if parts else len(lines)
        cycles = cupy.full(len(lines) if parts else self.number * each, 2**30, cupy.uint32)
        given = (self.data, cupy.asarray(lines.astype(np.uint32)), np.int32(each), np.int32(repeats), np.int32(parts))
        self.kernels["latency"]((self.number,), (32,), (*given, cycles), shared_mem=SHARED)
        return cycles.get()

    def chip(self) -> dict[str, Any]:
        """Facts about the chip: sides in the order of launch, cycles near and far, lines in a row of one home."""
        where = self.cupy.zeros(self.number, self.cupy.uint32)
        self.kernels["placed"]((self.number,), (32,), (where,), shared_mem=SHARED)
        runs = np.diff(np.flatnonzero(np.diff(self.home)))
        return {
            "device": self.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
            "l2": self.cupy.cuda.runtime.getDeviceProperties(0)["l2CacheSize"],
            "sides": "".join(map(str, self.side[where.get()])),
            "cycles": self.cycles,
            "homes": [len(lines) for lines in self.homed],
            "run": int(np.bincount(runs).argmax()),
        }

    def run(self, name: str, lists: Lists, passes: int = 1, together: bool = False) -> None:
        """Launch `prepare` or `probe` with a list of lines, or None, for each multiprocessor."""
        cupy = self.cupy
        parts: list[Any] = []
        spans = np.zeros((2, self.number), np.uint32)
        known: dict[int, tuple[int, int]] = {}
        for number, lines in enumerate(lists):
            if lines is None:
                continue
            if id(lines) not in known:
                start = sum(map(len, parts))
                parts.append(lines.astype(np.uint32))
                known[id(lines)] = start, start + len(lines)
            spans[:, number] = known[id(lines)]
        gate, steps = cupy.zeros(1, cupy.uint32), np.uint32(together)
        given = (self.data, cupy.asarray(np.concatenate(parts)), *map(cupy.asarray, spans), np.int32(passes))
        self.kernels[name]((self.number,), (1024,), (*given, steps, gate), shared_mem=SHARED)
        cupy.cuda.Device().synchronize()

    def empty(self) -> None:
        """Leave nothing of the buffer in L2."""
        self.large.sum()

    def dealt(self, lines: Any, among: Any) -> Lists:
        """Equal parts of lines, one after the other, for these multiprocessors."""
        lists: Lists = [None] * self.number
        for number, part in zip(among, np.array_split(lines, len(among)), strict=True):
            lists[number] = part
        return lists

    def lines(self, kind: Kind, size: int, first: int = 0, write: bool = False) -> Lists:
        """Lines of `size` bytes of a kind, from byte `first` on of those with that home, for that side's readers."""
        side, home = kind
        taken = self.homed[home][first // LINE : (first + size) // LINE]
        return self.dealt(taken | WRITE * write, self.on[side])


def tests() -> None:
    bench = Bench()
    print(json.dumps(bench.chip()))
    for test in (kept, refreshed, stale, left, crowded, tiled, again):
        for row in test(bench):
            print(json.dumps({"test": test.__name__} | row), flush=True)


def kept(bench: Bench) -> Iterator[dict[str, Any]]:
    """A sample is read, then other lines are read or written, then the sample is read again, and counted."""
    for write in (False, True):
        for kind in KINDS[:2]:
            for other in KINDS:
                for size in (
                    (0, 8, 16, 20, 22, 24, 25, 26, 27, 28, 30, 32, 40, 72) if not write else (8, 20, 26, 32, 72)
                ):
                    bench.empty()
                    bench.run("prepare", bench.lines(kind, SAMPLE))
                    if size:
                        bench.run("prepare", bench.lines(other, size * MIB, 2 * SAMPLE, write))
                    bench.run("probe", bench.lines(kind, SAMPLE))
                    yield {"kind": kind, "other": other, "write": write, "size": size * MIB}


def refreshed(bench: Bench) -> Iterator[dict[str, Any]]:
    """As `kept`, but the sample is read again before the last other lines: is it young then, near or at home?"""
    for size in (2, 4, 6, 8, 10, 14, 18, 22, 24, 26, 28, 32):
        for kind, other in (((0, 0), (0, 0)), ((0, 1), (1, 1))):
            bench.empty()
            bench.run("prepare", bench.lines(kind, SAMPLE))
            bench.run("prepare", bench.lines(other, 18 * MIB, 2 * SAMPLE))
            bench.run("prepare", bench.lines(kind, SAMPLE))
            bench.run("prepare", bench.lines(other, size * MIB, 2 * SAMPLE + 18 * MIB))
            if kind == (0, 1):  # what is near goes, so that the home is asked
                bench.run("prepare", bench.lines((0, 0), 50 * MIB, 2 * SAMPLE))
            bench.run("probe", bench.lines(kind, SAMPLE))
            yield {"kind": kind, "size": size * MIB}


def stale(bench: Bench) -> Iterator[dict[str, Any]]:
    """Side 1 reads lines of home 0, side 0 writes them or does not, home 0 is emptied: does side 1 still have them?"""
    for write in (False, True):
        bench.empty()
        bench.run("prepare", bench.lines((1, 0), SAMPLE))
        if write:
            bench.run("prepare", bench.lines((0, 0), SAMPLE, 0, True))
        bench.run("prepare", bench.lines((0, 0), 50 * MIB, 2 * SAMPLE))
        bench.run("probe", bench.lines((1, 0), SAMPLE))
        yield {"write": write}


def left(bench: Bench) -> Iterator[dict[str, Any]]:
    """A sample is written, then other lines are read, and what goes to memory is counted."""
    for kind in KINDS[:2]:
        for other in KINDS:
            for size in (12, 20, 24, 26, 28, 30, 32, 36, 72):
                bench.empty()
                bench.run("prepare", bench.lines(kind, SAMPLE, 0, True))
                bench.run("probe", bench.lines(other, size * MIB, 2 * SAMPLE))
                yield {"kind": kind, "other": other, "size": size * MIB}


def crowded(bench: Bench) -> Iterator[dict[str, Any]]:
    """Lines are written, some of them after as many others were read: how many can be dirty?"""
    every = np.arange(bench.number)
    for reads in (0, 1, 3):
        for size in (4, 8, 12, 16, 20, 24, 26, 28, 30, 32, 36, 40, 48, 64):
            lines = np.arange(size * MIB // LINE)
            mixed = [lines[number :: 1 + reads] for number in range(1 + reads)]
            parts = [np.array_split(part[::1], len(every)) for part in mixed]
            lists: Lists = []
            for number in range(len(every)):
                pieces = [part[number] for part in parts]
                shortest = min(map(len, pieces))
                woven = np.stack([piece[:shortest] for piece in pieces], 1)
                woven[:, -1] |= WRITE
                lists.append(woven.ravel())
            bench.empty()
            bench.run("probe", lists)
            written = sum(int((each >> 31 & 1).sum()) for each in lists) * LINE
            yield {"reads": reads, "size": size * MIB, "lines_written": written}
    for kind in KINDS[:2]:
        for size in (8, 12, 14, 16, 20, 24):
            bench.empty()
            bench.run("probe", bench.lines(kind, size * MIB, 0, True))
            yield {"kind": kind, "size": size * MIB, "lines_written": size * MIB}


def tiled(bench: Bench) -> Iterator[dict[str, Any]]:
    """A matrix is written in tiles: those of 64 and 128 words have whole lines, those of 52 and 127 share lines."""
    for n in (4096, 6144):
        for b in (52, 64, 127, 128):
            for down in (False, True):
                bench.empty()
                given = (bench.data, np.int32(n), np.int32(b), np.int32(down))
                bench.kernels["probe_tiles"]((bench.number,), (256,), given, shared_mem=SHARED)
                bench.cupy.cuda.Device().synchronize()
                yield {"n": n, "b": b, "down": down, "lines_written": 4 * n**2}


def again(bench: Bench) -> Iterator[dict[str, Any]]:
    """Read some lines five times: all by all multiprocessors, or each by one, whose home is where."""
    every, passes = np.arange(bench.number), 5
    own: Callable[[int, int], Lists] = lambda size, turned: [  # noqa: E731
        one if one is not None else other
        for one, other in zip(bench.lines((0, turned), size // 2), bench.lines((1, 1 - turned), size // 2), strict=True)
    ]
    for size in (20, 24, 26, 28, 29, 30, 31, 32, 33, 34, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 80):
        lines = np.arange(size * MIB // LINE)
        if size <= 36:
            bench.empty()
            bench.run("probe", [lines] * bench.number, passes, together=True)
            yield {"readers": "all", "size": size * MIB, "passes": passes}
        if size >= 28:
            for readers, lists in (
                ("one", bench.dealt(lines, every)),
                ("one, near", own(size * MIB, 0)),
                ("one, far", own(size * MIB, 1)),
            ):
                bench.empty()
                bench.run("probe", lists, passes)
                yield {"readers": readers, "size": size * MIB, "passes": passes}


if __name__ == "__main__":
    main()
