"""Measure on a GPU what docs/gpu.md tells: `python benchmarks/gpu/run.py FOLDER [GROUP…]` writes FOLDER/GROUP.jsonl.

Each file is one that `pebblesim gpu measure --output` reads and adds to; what it holds already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pebblesim.core.errors import PebblesimError
from pebblesim.language.registry import of_problem
from pebblesim.measuring.cases import Case, case
from pebblesim.measuring.device import built
from pebblesim.measuring.measure import QUANTITIES, error_of, kernels_of, measure
from pebblesim.measuring.results import save

ALL = 58_112  # words of shared memory that a block can have on this GPU

EXACT = """
    small-cache             512 64 4096  500 50 1000  1000 40 2500  777 33 700  2048 128 16384 \
        130 70 300  37 5 200  1 1 40
    large-cache             512 64 16384  333 40 9000  1000 24 4000  777 56 20000  2048 128 40000 \
        100 100 30000  61 7 300
    flash                   512 64 8192  500 50 3000  1000 24 2000  777 33 5000  2048 64 32768  130 70 2000  37 5 200
    flash2-forward          512 64 8192  501 50 8192  2048 128 40000  777 33 3000  4096 64 16640  130 70 2000  37 5 100
    row-stationary-forward  512 64 8192  200 50 5000  300 33 2000  256 128 20000  130 70 3000  37 5 100
    row-stationary          256 64 8192  200 50 3000  130 33 1000  100 130 9000  61 7 300  37 5 100
    small-cache-streamed    256 64 1024  200 50 1000  130 33 400  100 130 4000  61 7 300  37 5 100
"""  # n d M, and again
WORKERS = {"large-cache": 16, "flash": 16}
TILES = {"flash": {"B_r": 32}, "flash2-forward": {"B_r": 32, "B_c": 32}}  # where there is room: else the default


def exact() -> Iterator[Case]:
    """The count against the SMs' counters: ragged sizes, tiny ones, n < d, one block and many."""
    for line in EXACT.strip().splitlines():
        name, *numbers = line.split()
        for number, (n, d, M) in enumerate(zip(*[map(int, numbers)] * 3, strict=True)):
            workers = WORKERS.get(name, 1) if number % 2 else 1
            try:
                yield case(name, n=n, d=d, M=M, workers=workers, blocks=TILES.get(name, "fit"))
            except PebblesimError:
                yield case(name, n=n, d=d, M=M, workers=workers)


def fitted() -> Iterator[Case]:
    """Traffic to HBM: what the model of L2 was fitted to."""
    for n, d, M in [(2048, 64, 16384), (3000, 100, 24000), (4096, 128, 49152), (6000, 64, 8192), (6144, 64, 49152)]:
        yield case("small-cache", n=n, d=d, M=M)
    for m, k, n, M in [(6000, 1000, 6000, 12000), (8192, 512, 8192, 49152), (2048, 8192, 2048, 49152)]:
        yield case("matmul-tiled", m=m, k=k, n=n, M=M)


def unseen() -> Iterator[Case]:
    """Traffic to HBM: sizes that the model was not fitted to."""
    for n, d, M in [(5000, 64, 12000), (4500, 96, 30000), (3500, 32, 6000), (7000, 128, 58000)]:
        yield case("small-cache", n=n, d=d, M=M)
    for m, k, n, M in [(4096, 4096, 4096, 49152), (5000, 3000, 5000, 20000), (16384, 256, 4096, 24576)]:
        yield case("matmul-tiled", m=m, k=k, n=n, M=M)
    yield case("small-cache-forward", n=8192, d=64, M=49152)
    yield case("small-cache-forward", n=6000, d=100, M=20000)
    yield case("standard-forward", n=6000, d=64, M=49152)
    yield case("flash2-forward", n=16384, d=64, M=16640, blocks={"B_r": 64, "B_c": 64})
    yield case("large-cache", n=8192, d=64, M=32768, workers=132)
    yield case("flash", n=8192, d=64, M=49152, workers=132, blocks={"B_r": 64})
    yield case("standard-backward", n=5000, d=64, M=49152)


def crossover() -> Iterator[Case]:
    """The paper's two regimes: M from a few hundred words to all of shared memory, n = 512."""
    for d in (32, 64, 128, 256):
        for eighths in range(-32, 40, 4):
            M = round(d * d * 2 ** (eighths / 8))
            if 300 <= M <= ALL:
                for name in ("small-cache", "flash"):
                    try:
                        yield case(name, n=512, d=d, M=M)
                    except PebblesimError as error:
                        print(f"left out: {error}", file=sys.stderr)


def heads() -> Iterator[Case]:
    """Large head dimensions, with all of shared memory."""
    for d in (64, 128, 256, 512, 576):
        for name, options in {
            "small-cache": {},
            "small-cache-streamed": {},
            "row-stationary": {},
            "large-cache": {"workers": 64},
            "flash": {"workers": 64, "blocks": {"B_r": 16}},
            "small-cache-forward": {},
            "row-stationary-forward": {},
            "flash2-forward": {"blocks": {"B_c": 32}},
        }.items():
            try:
                yield case(name, n=1024, d=d, M=ALL, **options)
            except PebblesimError as error:
                print(f"left out: {error}", file=sys.stderr)


def workers() -> Iterator[Case]:
    """A loop that carries sums, shared by more and more blocks."""
    for P in (1, 2, 4, 8, 16, 32, 64):
        yield case("large-cache", n=4096, d=64, M=32768, workers=P)
        yield case("flash", n=4096, d=64, M=32768, workers=P, blocks={"B_r": 64})


def rectangles() -> Iterator[Case]:
    """Every schedule of attention, forward and backward, for decoding, one value a key, and sizes that are all ragged.

    M is the first with which it fits; with more threads than that, registers would spill.
    """
    shapes = [
        {"n_q": 1, "n_k": 500, "d_k": 64, "d_v": 40},
        {"n_q": 130, "n_k": 77, "d_k": 33, "d_v": 1},
        {"n_q": 70, "n_k": 210, "d_k": 24, "d_v": 50},
    ]
    for schedule in (*of_problem("forward"), *of_problem("backward-qkv")):
        for shape in shapes:
            for M in (4096, ALL):
                try:
                    yield case(schedule, M=M, threads=256, **shape)
                    break
                except PebblesimError as error:
                    if M == ALL:
                        print(f"left out: {error}", file=sys.stderr)


GROUPS = {each.__name__: each for each in (exact, fitted, unseen, crossover, heads, workers, rectangles)}


def spills(each: Case) -> bool:
    """Whether the compiler lets registers of its kernels spill, so that traffic would not be that of the tiles."""
    try:
        built(each)
    except PebblesimError as error:
        if "spills" not in str(error):
            raise
        print(f"left out: {each.schedule}, {dict(each.dims)}: {error}", file=sys.stderr)
        return True
    return False


TORCH = (
    "import torch; q, k, v = (torch.randn(1, 1, {n}, {d}, device='cuda', dtype=torch.bfloat16) for _ in range(3));"
    "torch.nn.functional.scaled_dot_product_attention(q, k, v); torch.cuda.synchronize()"
)


def framework(path: Path) -> None:
    """The attention of PyTorch, in bfloat16, with one head."""
    rows = []
    for n, d in [(4096, 64), (4096, 128), (8192, 64), (8192, 128)]:
        for kernel in kernels_of([sys.executable, "-c", TORCH.format(n=n, d=d)]):
            rows.append({"id": f"{n}-{d}-{kernel['kernel']}", "n": n, "d": d, "type": "bfloat16", **kernel})
    save(path, [row for row in rows if "sdpa" in row["kernel"] or "flash" in row["kernel"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the results are kept")
    parser.add_argument("groups", nargs="*", default=[*GROUPS, "framework"], help=f"{', '.join(GROUPS)}, framework")
    parser.add_argument("--list", action="store_true", help="print the cases and measure nothing")
    chosen = parser.parse_args()
    for group in chosen.groups:
        started, path = time.perf_counter(), chosen.folder / f"{group}.jsonl"
        if group == "framework":
            framework(path)
            continue
        cases = list(GROUPS[group]())
        if group == "rectangles" and not chosen.list:
            cases = [each for each in cases if not spills(each)]
        if chosen.list:
            print("\n".join(json.dumps(each.to_dict()) for each in cases))
            continue
        rows = measure(cases, path)
        wrong = {q: sum(error_of(row, q) != 0 for row in rows) for q in QUANTITIES[:4]}
        print(
            f"{group}: {len(rows)} cases in {time.perf_counter() - started:.0f} s; not as predicted: {wrong}",
            flush=True,
        )


if __name__ == "__main__":
    main()
