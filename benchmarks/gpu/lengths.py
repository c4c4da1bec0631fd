"""Lengths of any kind on this GPU: times of kernels, and what is compiled. `python benchmarks/gpu/lengths.py -o FILE`.

Odd lengths drawn by a seed beside the next multiple of 128; few queries with many keys; many heads on one; windows; how
many kernels Triton compiles for lengths that were not seen before. Calls are captured in CUDA graphs, so that times are
those of the GPU. Kernels are compiled by several processes first. Powers of two are timed after a rest, and again with
the clock that the card has after half a second of nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from pebblesim.gpu.torch import attention
from pebblesim.operator.launching.launching import Setting, compute
from pebblesim.operator.pattern import Pattern, band_of

SEED, TOKENS, PROCESSES = 25, 65536, 14
MEASURED, REPLAYS, TURNS, CYCLES = 8, 3, 3, 400_000
NO_LIMIT = 2**40
ALL = Pattern()


@dataclass(frozen=True)
class Task:
    """An attention of heads of keys, each with `shared` query heads; `latent`: values are a part of the keys."""

    n_q: int
    n_k: int
    d_k: int
    d_v: int
    heads: int
    pattern: Pattern = ALL
    backward: bool = True
    latent: bool = False

    @property
    def pairs(self) -> int:
        """Allowed pairs of a head of keys."""
        rows, band = self.n_q * self.pattern.shared, self.pattern.mask
        return rows * self.n_k if band is None else band.pairs(rows, self.n_k)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """A call of each pass."""
        import torch

        def normal(heads: int, n: int, width: int) -> Any:
            return torch.randn(1, heads, n, width, device="cuda", dtype=torch.bfloat16)

        queries, scale = self.heads * self.pattern.shared, self.d_k**-0.5
        Q, K = normal(queries, self.n_q, self.d_k), normal(self.heads, self.n_k, self.d_k)
        V = K[..., : self.d_v] if self.latent else normal(self.heads, self.n_k, self.d_v)
        given, O = {"Q": Q, "K": K, "V": V}, normal(queries, self.n_q, self.d_v)
        found = {"forward": lambda: compute("forward", given, {"O": O}, Setting(self.pattern, scale, NO_LIMIT))}
        if self.backward:
            kept = given | {"dO": normal(queries, self.n_q, self.d_v), "O": O, "L": found["forward"]()}
            made = {f"d{name}": torch.empty_like(each) for name, each in given.items()}
            found["backward"] = lambda: compute("backward", kept, made, Setting(self.pattern, scale, NO_LIMIT))
        return found

    def seconds(self, sets: int = 1) -> dict[str, float]:
        """Seconds of each pass; `sets`: as many sets of tensors in turn, so that none is in L2."""
        several = [self.calls() for _ in range(sets)]
        return {way: timed([calls[way] for calls in several]) for way in several[0]}

    def rates(self) -> dict[str, float]:
        """TFLOP/s of each pass, of the useful operations."""
        operations = {"forward": 2 * (self.d_k + self.d_v), "backward": 2 * (3 * self.d_k + 2 * self.d_v)}
        found = self.seconds()
        return {way: operations[way] * self.pairs * self.heads / found[way] / 1e12 for way in found}


def timed(calls: list[Callable[[], Any]]) -> float:
    """Seconds of a call, the median of many replays of all of them.

    The GPU is busy when a measurement begins, and replays follow one another: it waits for no launch of the host.
    """
    import torch

    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    found = []
    for _ in range(MEASURED):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(CYCLES)
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / len(calls) / REPLAYS)
    return median(found[2:])


def lengths(seed: int) -> Iterator[tuple[Task, Task]]:
    """40 lengths that 16 does not divide, and for each the next multiple of 128."""
    chance = random.Random(seed)
    for _ in range(40):
        n = next(n for n in iter(lambda: chance.randrange(600, 9000), None) if n % 16)
        d, causal = chance.choice((64, 96, 128, 256, 512)), chance.random() < 0.5
        pattern, heads = Pattern(band_of(right=0 if causal else None)), max(1, TOKENS // n)
        whole = -(-n // 128) * 128
        yield Task(n, n, d, d, heads, pattern), Task(whole, whole, d, d, heads, pattern)


def odd(seed: int) -> Iterator[dict[str, Any]]:
    """Each length and the multiple in turn, `TURNS` times: the clock of the card is not the same for long."""
    for own, whole in lengths(seed):
        turns = [(own.rates(), whole.rates()) for _ in range(TURNS)]
        several = zip(*turns, strict=True)
        rates, of_whole = ({way: median(each[way] for each in made) for way in made[0]} for made in several)
        ratios = {way: rates[way] / of_whole[way] for way in rates}
        seconds = {way: own.pairs / whole.pairs / ratio for way, ratio in ratios.items()}
        facts = {"seed": seed, "n": own.n_q, "d": own.d_k, "heads": own.heads, "causal": own.pattern.mask is not None}
        yield {**facts, **ratios, "seconds": seconds, "tflops": [rates, of_whole]}


DECODING = [Task(1, n, 128, 128, 8, Pattern(shared=4), False) for n in (32768, 8192, 131072)]


def decoding() -> Iterator[dict[str, Any]]:
    """One query, 32 heads on 8; and 4 GiB that are only read."""
    import torch

    plain = torch.ones(2**30, device="cuda")
    yield {"bytes": plain.nbytes, "bytes_per_second": plain.nbytes / timed([plain.sum])}
    for task in DECODING:
        seconds = task.seconds(sets=4)["forward"]
        rate = task.heads * task.n_k * (task.d_k + task.d_v) * 2 / seconds
        yield {"n_k": task.n_k, "seconds": seconds, "bytes_per_second": rate}


ON_ONE = [
    Task(n_q, n_k, 576, 512, batch, Pattern(shared=128), False, latent)
    for batch, n_q, n_k, latent in ((64, 1, 8192, False), (64, 1, 8192, True), (1, 2048, 2048, False))
]


def on_one_head() -> Iterator[dict[str, Any]]:
    """128 heads on one, with keys of 576 and values of 512; `flushed`: where 256 MiB are written before each call."""
    import torch

    filled = torch.empty(2**28, device="cuda", dtype=torch.int8)
    for task in ON_ONE:
        sizes = {"batch": task.heads, "n_q": task.n_q, "n_k": task.n_k, "latent": task.latent}
        call, operations = task.calls()["forward"], 2 * (task.d_k + task.d_v) * task.pairs * task.heads / 1e12
        both = timed([lambda call=call: (filled.zero_(), call())])
        flushed = operations / (both - timed([filled.zero_]))
        yield {**sizes, "tflops": operations / timed([call]), "flushed": flushed}


WINDOWS = [Task(n, n, 256, 256, 8, Pattern(band_of(1023, 0, True, 2), 2)) for n in (8192, 16384)]


def windows() -> Iterator[dict[str, Any]]:
    """A window of 1,024 at d = 256, 16 heads on 8."""
    for task in WINDOWS:
        yield {"n": task.n_q, "seconds": task.seconds()}


EVEN = [Task(n, n, d, d, TOKENS // n) for d in (64, 128, 256) for n in (4096, 16384)]
EVEN += [Task(n, n, 512, 512, TOKENS // n) for n in (1024, 4096, 16384)]
REST, BUSY = 0.2, 0.5


def even() -> Iterator[dict[str, Any]]:
    """Powers of two; the median of three times after a rest, and one of a card that has been busy."""
    import torch

    for task in EVEN:
        sizes, calls = {"n": task.n_q, "d": task.d_k, "heads": task.heads}, task.calls()
        row: dict[str, Any] = {"tflops": {}, "busy": {}, "megahertz": {}}
        for way, call in calls.items():
            operations = (4 if way == "forward" else 10) * task.d_k * task.pairs * task.heads / 1e12
            several = []
            for _ in range(3):
                time.sleep(REST)
                several.append(timed([call]))
            row["tflops"][way] = operations / median(several)
            for _ in range(int(BUSY / median(several))):
                call()
            row["megahertz"][way] = torch.cuda.clock_rate()
            row["busy"][way] = operations / timed([call])
        yield {**sizes, **row}


def compiled() -> int:
    """Kernels in Triton's cache on disk."""
    from triton import knobs

    return sum(1 for _ in Path(knobs.cache.dir).glob("*/*.cubin"))


def called(asked: tuple[int, int, bool]) -> None:
    """Attention of n tokens with head dimension d, and its gradients."""
    import torch

    n, d, causal = asked
    q, k, v = (torch.randn(1, 2, n, d, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    torch.autograd.grad(attention(q, k, v, is_causal=causal).sum(), (q, k, v))


def unseen() -> Iterator[dict[str, Any]]:
    """Kernels compiled for some lengths, and then for 50 others."""
    chance = random.Random(SEED)
    for d, causal in ((128, False), (128, True), (512, True)):
        before, drawn = compiled(), [chance.randrange(17, 16384) for _ in range(50)]
        with get_context("spawn").Pool(PROCESSES) as pool:
            pool.map(called, [(n, d, causal) for bits in range(5, 15) for n in (2**bits, 2**bits - 1)], chunksize=1)
        first = compiled() - before
        for n in drawn:
            called((n, d, causal))
        yield {"d": d, "causal": causal, "kernels": first, "lengths": drawn, "more": compiled() - before - first}


PARTS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    each.__name__: each for each in (decoding, on_one_head, windows, even, unseen)
}


def warm(task: Task) -> str:
    """Compile the kernels of a task; the error that this ends with."""
    try:
        task.seconds()
    except Exception as error:  # Triton's, PyTorch's
        return f"{task}: {error}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=["odd", *PARTS], default=["odd", *PARTS])
    parser.add_argument("--seed", type=int, default=SEED, help="of the odd lengths")
    asked = parser.parse_args()
    parts = {"odd": partial(odd, asked.seed)} | PARTS
    tasks = {
        "odd": [task for pair in lengths(asked.seed) for task in pair],
        "decoding": DECODING,
        "on_one_head": ON_ONE,
        "windows": WINDOWS,
        "even": EVEN,
    }
    with get_context("spawn").Pool(PROCESSES) as pool:
        alike = [task for part in asked.only for task in tasks.get(part, [])]
        for error in filter(None, pool.imap_unordered(warm, alike, chunksize=1)):
            print(error, flush=True)
    import torch

    rows, device = [], torch.cuda.get_device_name()
    for part in asked.only:
        for row in parts[part]():
            rows.append({"what": part, "device": device, **row})
            print(json.dumps(rows[-1]), flush=True)
            asked.output.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
