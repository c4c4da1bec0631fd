"""Drawn calls of `attention` on this GPU against float64: `python benchmarks/gpu/attention_page.py -o FILE`.

What a call means is `tests/oracles/oracle_attention.py`, written from docs/attention.md without a look at the code.
Each call is made for other numbers first, which compiles and notes what it launches; then for those that are
judged, with PyTorch told to stop where the host waits for the GPU, and the allocator's free memory filled with NaN;
then again, with other words in that memory. All is to be the same to the last bit, but for dQ where the page says
so. Every fifth call is captured in a CUDA graph, too. With `--sinks` each call has sinks besides. A row for each
call: what is wrong with it, and each result's error, PyTorch's, and the most that is allowed, all relative.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "oracles"))

import torch
from judged_attention import called, computed, gradients, wrong
from oracle_attention import Call, Room, again, draw, options, tensors

LENGTHS = (1, 2, 5, 16, 31, 64, 77, 128, 129, 200, 256, 333, 500)
ROOMS = [
    Room(LENGTHS, [dims], types, rounds=True)
    for dims, types in {
        (64, 64): ["bfloat16", "bfloat16", "float32"],
        (128, 128): ["float16"],
        (256, 256): ["bfloat16"],
        (512, 512): ["bfloat16", "float32"],
        (576, 512): ["bfloat16"],
        (33, 65): ["float16"],
        (5, 3): ["bfloat16"],
        (192, 128): ["float16", "float64"],
        (96, 96): ["bfloat16", "float32"],
    }.items()
]
FILLED = 2**26


def drawn(seed: int, sinks: bool = False) -> Call:
    """A call; with sinks, which PyTorch does not compute in our place, without a dense mask and dropout."""
    call = draw(seed, ROOMS[seed % len(ROOMS)])
    return replace(call, sinks="float32" if seed % 2 else "bfloat16", dense=None) if sinks else call


def fill(device: str, word: float) -> None:
    """Leave a word in the memory that the allocator gives out next."""
    if device == "cuda":
        held = [torch.full((size,), word, device=device) for size in (FILLED, *([2**12] * 64), *([2**17] * 64))]
        del held


@contextmanager
def not_waiting(device: str, call: Call) -> Iterator[None]:
    """Stop where the host waits for the GPU; what PyTorch computes in our place may."""
    stops = device == "cuda" and not call.dense
    if stops:
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if stops:
            torch.cuda.set_sync_debug_mode("default")


def checked(call: Call, device: str) -> dict[str, Any]:
    """One call, as the file's first lines say."""
    from pebblesim.gpu.torch import attention

    began = time.perf_counter()
    first = again(call, call.seed + 10**6)
    computed(attention, first, tensors(first, device), options(first, device), *gradients(first, device))
    compiled = time.perf_counter() - began
    leaves, given, seeds = tensors(call, device), options(call, device), gradients(call, device)
    fill(device, float("nan"))
    with not_waiting(device, call):
        found = computed(attention, call, leaves, given, *seeds)
    said, rows = wrong(call, found, leaves, *seeds)
    fill(device, 777.0)
    other = computed(attention, call, leaves, given, *seeds)
    if not call.dense:
        for name in found:
            free = name == "dQ" and not call.deterministic and max(call.d_k, call.d_v) <= 128
            if not free and not torch.equal(found[name], other[name]):
                said.append(f"{name} is not the same to the last bit in a second run")
    said += [
        f"{name} is not in the order of its tensor"
        for name, how in zip(("O", "dQ", "dK", "dV"), (call.layouts[0], *call.layouts), strict=True)
        if how == "tokens" and not call.dense and not (name == "dV" and call.latent)
        if not found[name].transpose(-3, -2).is_contiguous()
    ]
    if device == "cuda" and call.seed % 5 == 0 and not call.dense:
        said += captured(attention, call, leaves, given, found)
    return {"seconds": round(compiled, 2), "wrong": said, "errors": rows}


def captured(attention: Any, call: Call, leaves: list[Any], given: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The forward pass in a CUDA graph, replayed over memory that holds other words."""
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.autocast("cuda", dtype=call.computed, enabled=call.rounding == "autocast"):
        called(attention, call, leaves, given)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            results = called(attention, call, leaves, given)
    O = results[0] if call.return_lse else results
    O.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    return [] if torch.equal(O, found["O"]) else ["O of a CUDA graph is not the same to the last bit"]


def usable(device: str) -> bool:
    """Whether no launch before has failed: an error of a launch may come to light in a later call."""
    try:
        if device == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def work(tasks: Any, done: Any, device: str, sinks: bool) -> None:
    """Check calls until there are no more; end after an error that leaves the GPU unusable."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    while (task := tasks.get()) is not None:
        for seed in task:
            call = drawn(seed, sinks)
            row: dict[str, Any] = {"seed": seed, "call": str(call)}
            lost = False
            try:
                row |= checked(call, device)
                row["errors"] = {name: [float(f"{x:.3g}") for x in three] for name, three in row["errors"].items()}
            except Exception as error:
                row["wrong"] = [f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"]
                lost = not usable(device)
            done.put(row)
            if lost:
                tasks.put([left for left in task if left > seed])
                return


def run(
    seeds: list[int], workers: int, parts: int, seconds: float, device: str, sinks: bool
) -> Iterator[dict[str, Any]]:
    """Rows as they come; processes that end early are replaced, and all end after so many seconds."""
    context = get_context("spawn")
    tasks, done = context.Queue(), context.Queue()
    kinds = sorted(seeds, key=lambda seed: (str(drawn(seed, sinks).kind), seed))
    for first in range(0, len(kinds), parts):
        tasks.put(sorted(kinds[first : first + parts]))
    begin = lambda: context.Process(target=work, args=(tasks, done, device, sinks), daemon=True)  # noqa: E731
    crew = [begin() for _ in range(workers)]
    for process in crew:
        process.start()
    until, left = time.monotonic() + seconds, len(seeds)
    while left and time.monotonic() < until:
        try:
            yield done.get(timeout=1)
            left -= 1
        except Empty:
            for place, process in enumerate(crew):
                if not process.is_alive():
                    crew[place] = begin()
                    crew[place].start()
    for process in crew:
        process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--out", type=Path, required=True, help="rows are written here, a JSON object a line")
    parser.add_argument("--seed", type=int, default=0, help="the first of the calls' seeds")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--part", type=int, default=4, help="calls of one kind that a process takes at a time")
    parser.add_argument("--seconds", type=float, default=230, help="calls that are not done by then are left out")
    parser.add_argument("--only", type=int, nargs="*", help="head dimensions of queries; all of the list by default")
    parser.add_argument("--sinks", action="store_true", help="all calls have sinks, and none a dense mask")
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    wanted = (seed for seed in count(asked.seed) if not asked.only or drawn(seed).d_k in asked.only)
    seeds = list(islice(wanted, asked.calls))
    began, verdicts, worst = time.monotonic(), Counter[str](), dict[str, tuple[float, float, int]]()
    with asked.out.open("w") as file:
        for row in run(seeds, asked.workers, asked.part, asked.seconds, asked.device, asked.sinks):
            file.write(json.dumps(row) + "\n")
            file.flush()
            verdicts["wrong" if row["wrong"] else "right"] += 1
            if row["wrong"]:
                print(row["call"], *row["wrong"], sep="\n    ", flush=True)
            for name, (off, theirs, most) in row.get("errors", {}).items():
                worst[name] = max(worst.get(name, (0.0, 0.0, 0)), (off / most, off / (theirs or 1e-30), row["seed"]))
    print(f"{dict(verdicts)} of {asked.calls} in {time.monotonic() - began:.0f} s")
    for name, (part, ratio, seed) in worst.items():
        print(f"{name}: at most {part:.2f} of what is allowed, {ratio:.2f} times PyTorch's error (seed {seed})")


if __name__ == "__main__":
    main()
