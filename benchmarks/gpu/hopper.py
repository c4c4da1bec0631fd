"""Gluon kernels of our schedules beside PyTorch's attentions, in one process; run it on a Hopper GPU.

    python benchmarks/gpu/hopper.py -o FOLDER [--parts table wide cell flex bytes calibrating drawn] [--seed SEED]

Each part adds to a file of FOLDER as it goes, and a case that fails is a row that says why:

- `table`: hopper.jsonl, kernels of the widths 64, 128, 256 and 512 beside PyTorch's; `narrow`: of the first two alone;
  `wide`: of 96, 192 and 384, and of keys wider than values; `cell`: 48 heads x 4, n = 8,192, d = 128, for which others
  publish rates; `flex`: PyTorch's FlexAttention, compiled, at the widths of `table` that it has;
- `bytes`: hopper_bytes.jsonl, counted and measured (`hopper_bytes.py`);
- `calibrating`, `others`, `drawn`, `few`: times of single kernels (`hopper_cells.py`).

A row of hopper.jsonl says useful operations a second, in TFLOP/s (2 n² (d_k + d_v) for each head forward, 2 n² (3 d_k +
2 d_v) backward, half under a causal mask): after a fifth of a second of rest, which lets the card have its highest
clock, the median, best and worst of five replays of a CUDA graph of four calls, with the clock of the multiprocessors
in MHz and watts while they run. `rested` is one call after a third of a second of rest, the median of three, with its
clock. Errors are relative to float64, of bfloat16 words, n = 1,024; `same_again` is whether a second call gives the
same bits; `emitted` and `compiled` are seconds, the latter of each kernel on a core.

Needs PyTorch and Triton 3.6.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from threading import BrokenBarrierError
from typing import Any, NamedTuple

import hopper_cells

from pebblesim.advice.tiles import HOPPER, PROBLEM, Tiling, hopper_tiling
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.module import module_of
from pebblesim.kernels.triton.triton import Source
from pebblesim.language import masks
from pebblesim.language.registry import get
from pebblesim.measuring.race import seconds_of_launches

TWO_PASSES = "backward-two-pass-blocked"
"""Gradients whose bits are the same each time, to d = 128."""

SHAPES = ((16384, 4), (4096, 16), (1024, 64))
"""n, and heads."""

LARGEST_OF_PYTORCH = 256
"""The widest heads of cuDNN's and FlashAttention's kernels."""

CHECKED = 1024
"""Queries and keys of the shapes whose errors are measured."""

PARTS = ("table", "narrow", "wide", "cell", "bytes", "flex", *hopper_cells.PARTS)

REST = 0.2
"""Seconds of rest before each contender."""


class Case(NamedTuple):
    """Kernels of one schedule.

    Attributes:
        way: "forward" or "backward".
        schedule: its name.
        d_k, d_v: widths of a head.
        mask: None or "causal".
        shapes: n and heads.
    """

    way: str
    schedule: str
    d_k: int
    d_v: int
    mask: str | None
    shapes: tuple[tuple[int, int], ...] = SHAPES

    @property
    def tiles(self) -> Tiling:
        """Its blocks, and slots of its rings."""
        return hopper_tiling(self.schedule, {"d": max(self.d_k, self.d_v)})

    def operations(self, n: int, heads: int) -> float:
        """Useful operations of all heads."""
        each = self.d_k + self.d_v if self.way == "forward" else 3 * self.d_k + 2 * self.d_v
        return 2 * n * n * each * heads / (1 if self.mask is None else 2)

    def source(self) -> Source:
        """Its kernels."""
        dims, band = {"n_q": CHECKED, "n_k": CHECKED, "d_k": self.d_k, "d_v": self.d_v}, masks.of(self.mask)
        tiles, program = self.tiles, get(self.schedule).in_dims(dims).under(band)
        ring: dict[str, Any] = {"stages": tiles.stages, "persistent": tiles.persistent and self.mask is None}
        return gluon(program, {**dims, **tiles.blocks}, "bfloat16", band, scale=self.d_k**-0.5, **ring)


def fastest(way: str, d: int) -> str:
    """The fastest schedule of a pass, by the width of a head."""
    if way == "forward":
        return "flash2-forward" if d <= 256 else "scores-stored-resident"
    return "flash2-backward-blocked" if d <= 128 else "small-cache-backward-resident"


def cases(widths: Iterable[tuple[int, int]], shapes: tuple[tuple[int, int], ...] = SHAPES) -> list[Case]:
    """Kernels of the fastest schedules, and those of two passes."""
    found = []
    for (d_k, d_v), mask in product(widths, (None, "causal")):
        wide = max(d_k, d_v)
        schedules = [(way, fastest(way, wide)) for way in PROBLEM] + [("backward", TWO_PASSES)] * (wide <= 128)
        found += [Case(way, schedule, d_k, d_v, mask, shapes) for way, schedule in schedules]
    return found


TABLE, WIDE = [(d, d) for d in (64, 128, 256, 512)], [(96, 96), (192, 192), (384, 384), (192, 128)]
CELL = [Case("backward", fastest("backward", 128), 128, 128, None, ((8192, 192),))]


def tensors(torch: Any, heads: int, n: int, d_k: int, d_v: int) -> list[Any]:
    """Q, K, V and dO."""
    chance = torch.Generator("cuda").manual_seed(0)
    kind = {"device": "cuda", "dtype": torch.bfloat16, "generator": chance}
    return [torch.randn(heads, n, d, **kind) for d in (d_k, d_k, d_v, d_v)]


def exact(torch: Any, given: list[Any], mask: str | None) -> dict[str, Any]:
    """The results in float64; L is to base 2."""
    q, k, v, dO = (each.double() for each in given)
    scale = q.shape[-1] ** -0.5
    scores = q @ k.transpose(1, 2) * scale
    if mask is not None:
        later = torch.ones(scores.shape[-2:], device="cuda", dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    logarithm = torch.logsumexp(scores, -1)
    p = torch.exp(scores - logarithm[..., None])
    o = p @ v
    dS = p * (dO @ v.transpose(1, 2) - (dO * o).sum(-1)[..., None]) * scale
    gradients = {"dQ": dS @ k, "dK": dS.transpose(1, 2) @ q, "dV": p.transpose(1, 2) @ dO}
    return {"O": o, "L": logarithm * math.log2(math.e), **gradients}


def clock() -> tuple[int, int]:
    """The clock of the multiprocessors in MHz, and watts; 0 where the driver does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        return pynvml.nvmlDeviceGetClockInfo(card, 1), pynvml.nvmlDeviceGetPowerUsage(card) // 1000
    except Exception:
        return 0, 0


def timed(torch: Any, call: Callable[[], Any], operations: float, rested: bool = False) -> dict[str, Any]:
    """Operations a second of a call, in 10¹²; in a CUDA graph, if it can be in one."""
    call()
    call()
    torch.cuda.synchronize()
    four, graph = (lambda: [call() for _ in range(4)] and None), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            four()
        replay: Callable[[], Any] = graph.replay
    except Exception:  # cuDNN's backward at d = 64
        torch.cuda.synchronize()
        replay = four
    torch.cuda.synchronize()
    time.sleep(REST)
    times, seen = seconds_of(torch, replay, 5, 4)
    found = {"tflops": median(times), "best": min(times), "worst": max(times)}
    row: dict[str, Any] = {name: round(operations / each * 1e-12) for name, each in found.items()}
    row |= {"graph": replay is not four, "clock": seen[0], "watts": seen[1]}
    if rested:
        alone: list[tuple[float, int]] = []
        for _ in range(3):
            time.sleep(0.33)
            each, after = seconds_of(torch, call, 1, 1)
            alone.append((each[0], after[0]))
        seconds, at = sorted(alone)[1]
        row |= {"rested": round(operations / seconds * 1e-12), "rested_clock": at}
    return row


def seconds_of(torch: Any, call: Callable[[], Any], number: int, calls: int) -> tuple[list[float], tuple[int, int]]:
    """Seconds of each of a number of runs, one after the other, and the clock and watts before the last one ends."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(number)]
    if number > 1:
        call()
    for begin, end in events:
        begin.record()
        call()
        end.record()
    events[-1][0].synchronize()
    seen = clock()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 / calls for begin, end in events], seen


def gradients(torch: Any, module: Any, given: list[Any]) -> dict[str, Any]:
    """The results of a module; sums that were added in memory are rounded to the words of the inputs."""
    kind = given[0].dtype
    return {
        name: x.to(kind) if name == "dQ" and x.dtype == torch.float32 else x for name, x in module.run(*given).items()
    }


def ours(torch: Any, case: Case) -> Iterator[dict[str, Any]]:
    """Rows of our kernels."""
    began = time.perf_counter()
    source, tiles = case.source(), case.tiles
    emitted = time.perf_counter() - began
    module = module_of(source.text)
    q, k, v, dO = tensors(torch, 2, CHECKED, case.d_k, case.d_v)
    right = exact(torch, [q, k, v, dO], case.mask)
    backward = (dO, right["O"].bfloat16(), right["L"].float()) if case.way == "backward" else ()
    made, again = (gradients(torch, module, [q, k, v, *backward]) for _ in range(2))
    compared = {name: x for name, x in made.items() if name in right}
    errors = {name: ((x.double() - right[name]).norm() / right[name].norm()).item() for name, x in compared.items()}
    found = {
        "kernel": case.schedule,
        "way": case.way,
        "d": case.d_k,
        "d_v": case.d_v,
        "mask": case.mask,
        "persistent": tiles.persistent and case.mask is None,
        "blocks": dict(tiles.blocks),
        "stages": tiles.stages,
        "errors": {name: float(f"{error:.2e}") for name, error in errors.items()},
        "same_again": all(torch.equal(x, again[name]) for name, x in made.items()),
        "emitted": round(emitted, 3),
    }
    for n, heads in case.shapes:
        q, k, v, dO = tensors(torch, heads, n, case.d_k, case.d_v)
        given = [q, k, v]
        if case.way == "backward":
            forward = Case("forward", fastest("forward", max(case.d_k, case.d_v)), case.d_k, case.d_v, case.mask)
            before = module_of(forward.source().text).run(q, k, v)
            given += [dO, before["O"], before["L"]]
            del before
        call = partial(gradients, torch, module, given)
        row = {**found, "n": n, "heads": heads, **timed(torch, call, case.operations(n, heads), case.d_k >= 256)}
        if case.d_k >= 256:
            named = seconds_of_launches(torch, call, [kernel.name for kernel in source.kernels], 3)
            row["launches"] = {name: float(f"{seconds:.4g}") for name, seconds in named.items()}
        yield row


def theirs(torch: Any, case: Case) -> Iterator[dict[str, Any]]:
    """Rows of the attentions that PyTorch has at this width, both ways."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def dot_product(backend: Any, q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=case.mask is not None)

    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    if max(case.d_k, case.d_v) > LARGEST_OF_PYTORCH:
        backends = {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    for n, heads in case.shapes:
        for name, backend in backends.items():
            yield from rows_of(torch, case, n, heads, name, partial(dot_product, backend))


def rows_of(
    torch: Any, case: Case, n: int, heads: int, name: str, attend: Callable[..., Any]
) -> Iterator[dict[str, Any]]:
    """Rows of an attention of PyTorch, both ways, or one that says why there are none."""
    q, k, v, dO = (each[None].requires_grad_() for each in tensors(torch, heads, n, case.d_k, case.d_v))
    row = {"kernel": name, "d": case.d_k, "d_v": case.d_v, "mask": case.mask, "n": n, "heads": heads}
    try:
        o = attend(q, k, v)
        back = partial(torch.autograd.grad, o, (q, k, v), dO, retain_graph=True)
        for way, call in (("forward", partial(attend, q, k, v)), ("backward", back)):
            yield {**row, "way": way, **timed(torch, call, case._replace(way=way).operations(n, heads))}
    except Exception as error:  # the others are measured
        yield {**row, "error": said(error)}


def flexible(torch: Any, case: Case, n: int) -> Callable[..., Any]:
    """FlexAttention, compiled for a length."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query >= key

    mask = None if case.mask is None else create_block_mask(causal, None, None, n, n)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def flexed(case: Case, together: Any, alone: Any, told: Any) -> None:
    """Rows of FlexAttention, in a process that compiles beside those of other cases and then measures alone."""
    import torch
    from torch._functorch import config

    config.donated_buffer = False  # so that a backward pass can be made again
    attends = {}
    for n, heads in case.shapes:
        attends[n] = flexible(torch, case, n)
        q, k, v, dO = (each[None].requires_grad_() for each in tensors(torch, heads, n, case.d_k, case.d_v))
        try:
            torch.autograd.grad(attends[n](q, k, v), (q, k, v), dO)
        except Exception as error:  # its row says so, too
            print(f"{case}: {error}"[-2000:], flush=True)
    torch.cuda.synchronize()
    with suppress(BrokenBarrierError):  # another one failed or takes too long
        together.wait()
    with alone:
        for n, heads in case.shapes:
            for row in rows_of(torch, case, n, heads, "flex", attends[n]):
                told.put(row)


def flexes(asked: list[Case], notes: Notes) -> None:
    """FlexAttention in all cases, each compiled in a process of its own, since one takes up to a minute."""
    context = multiprocessing.get_context("spawn")
    together, alone, told = context.Barrier(len(asked), timeout=150), context.Lock(), context.Queue()
    processes = [context.Process(target=flexed, args=(case, together, alone, told)) for case in asked]
    for each in processes:
        each.start()
    while any(each.is_alive() for each in processes) or not told.empty():
        try:
            row = told.get(timeout=5)
        except queue.Empty:
            continue
        notes.add(row)
    for each in processes:
        each.join()


def said(error: BaseException) -> str:
    """The first line of what an error says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def compiled(case: Case) -> dict[str, Any]:
    """Compile a case's kernels, so that Triton's cache on disk holds them; the seconds that each takes."""
    import torch
    import triton

    spent: dict[str, float] = {}

    def told(*, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        if not cache_hit:
            spent[src.name] = round((times.ir_initialization + sum(t for _, t in times.lowering_stages)) / 1e6, 2)

    triton.knobs.compilation.listener = told
    row = {
        "compiled": spent,
        "kernel": case.schedule,
        "way": case.way,
        "d": case.d_k,
        "d_v": case.d_v,
        "mask": case.mask,
    }
    try:
        next(ours(torch, case._replace(shapes=((CHECKED, 2),))))
    except Exception as error:
        row["error"] = said(error)
    return row


class Notes:
    """A file of rows."""

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device = path, device

    def add(self, row: dict[str, Any]) -> None:
        row["device"] = self.device
        print(json.dumps(row), flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def table(torch: Any, asked: list[Case], notes: Notes) -> None:
    """PyTorch's attentions, and ours; a case that fails is a row that says why."""
    seen: set[tuple[int, int, str | None]] = set()
    for case in asked:
        made = [partial(ours, torch, case)]
        if (case.d_k, case.d_v, case.mask) not in seen:
            seen.add((case.d_k, case.d_v, case.mask))
            made.insert(0, partial(theirs, torch, case))
        for each in made:
            try:
                for row in each():
                    notes.add(row)
            except Exception as error:  # the other cases are measured
                notes.add(
                    {"kernel": case.schedule, "way": case.way, "d": case.d_k, "mask": case.mask, "error": said(error)}
                )


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the files")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--schedules", nargs="+", default={each.schedule for each in HOPPER}, help="to calibrate with")
    parser.add_argument("--widths", type=int, nargs="+", default=(64, 128, 256, 512), help="to calibrate with")
    parser.add_argument("--seed", type=int, default=hopper_cells.SEED, help="of the attentions that are drawn")
    parser.add_argument("--number", type=int, default=hopper_cells.NUMBER, help="of these")
    given, began = parser.parse_args(), time.monotonic()
    given.output.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name()
    notes = Notes(given.output / "hopper.jsonl", device)
    listed = {"table": cases(TABLE), "narrow": cases(TABLE[:2]), "wide": cases(WIDE), "cell": CELL}
    asked = {name: listed[name] for name in given.parts if name in listed}
    flex = [case._replace(shapes=SHAPES[:2]) for case in cases(TABLE) if case.way == "forward" and case.d_k <= 256]
    with ProcessPoolExecutor(14, multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(compiled, [case for each in asked.values() for case in each]):
            notes.add(row)
    for part in given.parts:
        print(f"{time.monotonic() - began:.0f} s: {part}", flush=True)
        try:
            if part in asked:
                table(torch, asked[part], notes)
            elif part == "flex":
                flexes(flex, notes)
            elif part == "bytes":
                script, output = Path(__file__).with_name("hopper_bytes.py"), given.output / "hopper_bytes.jsonl"
                subprocess.run([sys.executable, str(script), "-o", str(output)], check=False)
            else:
                cells_of = partial(hopper_cells.cells_of, schedules=given.schedules, widths=given.widths)
                for made, name, by_launch in cells_of(part, device, seed=given.seed, number=given.number):
                    hopper_cells.add(made, given.output / name, by_launch)
        except Exception as error:  # the other parts are run
            print(f"{part}: {said(error)}", flush=True)
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - began:.0f} s: done", flush=True)


if __name__ == "__main__":
    main()
