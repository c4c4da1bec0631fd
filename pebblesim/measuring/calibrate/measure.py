"""Time kernels on this GPU: compiled by several processes, then measured one by one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from math import log2
from statistics import median
from typing import Any

from pebblesim.advice.cards import Card
from pebblesim.advice.launch_costs import LaunchCost, launch_costs
from pebblesim.advice.tiles import Tiling
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.module import module_of, torch_with_gpu
from pebblesim.kernels.triton.triton import Source, triton
from pebblesim.language.program import Program, Tensor
from pebblesim.language.registry import get
from pebblesim.measuring.calibrate.shapes import Cell, Shape
from pebblesim.measuring.race import seconds_of_launches

DTYPE = "bfloat16"
REPLAYS = 9
FLUSHED = 2**28
"""Bytes that are written before each timed run, so that L2 holds nothing of the inputs."""


@dataclass(frozen=True)
class Measured:
    """A kernel that was measured.

    Attributes:
        cell: the kernel.
        costs: the work of its launches.
        seconds: its time on the GPU, all launches in a graph, with nothing in L2; None if it failed.
        launches: the time of each launch, by name, if it was asked for.
        error: why it failed.
    """

    cell: Cell
    costs: tuple[LaunchCost, ...] = ()
    seconds: float | None = None
    launches: dict[str, float] | None = None
    error: str = ""

    def to_row(self) -> dict[str, Any]:
        """Return the measurement as plain data, without the costs."""
        names = ["schedule", "blocks", "warps", "stages", "apart", *["gluon", "persistent"] * self.cell.tiling.gluon]
        tiling = {name: getattr(self.cell.tiling, name) for name in names}
        told = {"shape": asdict(self.cell.shape), "tiling": tiling, "seconds": self.seconds, "launches": self.launches}
        return told | ({"error": self.error} if self.error else {})

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Measured:
        """From plain data; the costs are computed anew."""
        tiling = Tiling(**row["tiling"] | {"apart": {name: tuple(own) for name, own in row["tiling"]["apart"].items()}})
        cell = Cell(Shape(**row["shape"]), tiling)
        costs = costs_of(cell) if row["seconds"] else ()
        return cls(cell, costs, row["seconds"], row["launches"], row.get("error", ""))


def costs_of(cell: Cell) -> tuple[LaunchCost, ...]:
    """The work of the launches of a kernel."""
    return tuple(launch_costs(cell.tiling, cell.shape.dims, DTYPE, cell.shape.heads, cell.shape.band))


def gpu() -> Any:
    """PyTorch with a GPU, as `torch_with_gpu` returns it; Triton and SciPy are there, too."""
    return torch_with_gpu("calibration", "scipy", "triton")


def near(shapes: Sequence[Shape], card: Card, within: float) -> list[Cell]:
    """For each shape the kernels whose forecasts are at most a multiple of the fastest one's."""
    with _pool() as pool:
        found = list(pool.map(Shape.ranked, shapes, repeat(card), repeat(within)))
    return [cell for cells in found for cell in cells]


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), multiprocessing.get_context("spawn"))


def measured(
    cells: Sequence[Cell], by_launch: bool = True, on_progress: Callable[[str], None] | None = None
) -> Iterator[Measured]:
    """Compile all kernels, then measure each; `by_launch` also times its launches one by one.

    `on_progress` is called with "compiled" or "measured" for each.
    """
    told = on_progress or (lambda what: None)
    with _pool() as pool:
        texts, seen = list(pool.map(text_of, cells, chunksize=4)), set[str]()
        compiled: list[Future[tuple[LaunchCost, ...]]] = []
        for cell, text in zip(cells, texts, strict=True):  # one text is for many lengths
            compiled.append(pool.submit(costs_of if text in seen else compile_cell, cell))
            compiled[-1].add_done_callback(lambda _: told("compiled"))
            seen.add(text)
        for future in compiled:
            future.exception()
    for cell, future in zip(cells, compiled, strict=True):
        failed = future.exception()
        yield Measured(cell, error=_said(failed)) if failed else _timed(cell, future.result(), by_launch)
        told("measured")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def compile_cell(cell: Cell) -> tuple[LaunchCost, ...]:
    """Run a kernel once, so that Triton's cache on disk holds it; return the work of its launches."""
    torch = gpu()
    call, _ = prepared(torch, cell)
    call()
    torch.cuda.synchronize()
    return costs_of(cell)


def source_of(cell: Cell) -> tuple[Source, Program]:
    """The source of a kernel, which is one for many lengths, and its program."""
    shape, tiling = cell.shape, cell.tiling
    program = get(tiling.schedule).in_dims(shape.dims).under(shape.band)
    sizes = {**shape.dims, **tiling.blocks}
    options = tiling.options_under(shape.band)
    if not tiling.gluon:
        return triton(program, sizes, DTYPE, shape.band, **options), program
    return gluon(program, sizes, DTYPE, shape.band, shared=shape.group, **options), program


def text_of(cell: Cell) -> str:
    """The text of a kernel's source."""
    return source_of(cell)[0].text


def prepared(torch: Any, cell: Cell) -> tuple[Callable[[], Any], Source]:
    """A call of a kernel on random inputs, and its source."""
    source, program = source_of(cell)
    run, inputs = module_of(source.text).run, list(_inputs(torch, program, cell))
    if not cell.tiling.gluon:
        return lambda: run(*inputs), source
    kind = getattr(torch, DTYPE)
    results = {
        name: torch.empty(_sides(program.tensors[name], cell), device="cuda", dtype=kind)
        for name in program.outputs
        if len(program.tensors[name].shape) == 2
    }
    return lambda: [made.to(kind) for name, made in run(*inputs, results=results).items() if name in results], source


def _inputs(torch: Any, program: Program, cell: Cell) -> Iterator[Any]:
    """Random matrices whose scores have variance 1, and logarithms of sums that belong to such scores."""
    for name, tensor in program.tensors.items():
        if name not in program.inputs:
            continue
        sides = _sides(tensor, cell)
        if len(tensor.shape) == 1:
            yield torch.full(sides, log2(cell.shape.n_k) + 0.7, device="cuda")
        else:
            made = torch.randn(sides, device="cuda")
            yield (made * cell.shape.d**-0.25 if name in "QK" else made).to(getattr(torch, DTYPE))


def _sides(tensor: Tensor, cell: Cell) -> tuple[int, ...]:
    """The sides of a tensor of all heads; Gluon kernels take matrices as frameworks have them, (batch, heads, n, d)."""
    shape, sides = cell.shape, tensor.sides(cell.shape.dims)
    if not cell.tiling.gluon or len(sides) == 1:
        return (shape.heads, *sides)
    several = shape.group if tensor.shape[0] == "n_q" else 1
    return (1, shape.heads * several, sides[0] // several, sides[1])


def _timed(cell: Cell, costs: tuple[LaunchCost, ...], by_launch: bool) -> Measured:
    torch = gpu()
    try:
        call, source = prepared(torch, cell)
        seconds = seconds_in_graph(torch, call)
        launches = None
        if by_launch:
            named = seconds_of_launches(torch, call, [kernel.name for kernel in source.kernels], 3)
            launches = {each.launch.name: named[each.name] for each in source.kernels if each.name in named}
    except Exception as error:  # Triton's and PyTorch's: out of shared memory, of registers, of memory
        return Measured(cell, costs, error=_said(error))
    return Measured(cell, costs, seconds, launches)


def seconds_in_graph(torch: Any, call: Callable[[], Any], replays: int = REPLAYS) -> float:
    """The time of a call on the GPU, without what Python takes to launch it: the median of replays of a graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    scratch = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        scratch.zero_()
        start.record()
        graph.replay()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in times) / 1e3


def ceilings(torch: Any) -> dict[str, float]:
    """Rates that the card reaches by itself: bytes per second of L2, and of a copy in memory."""
    properties = torch.cuda.get_device_properties(0)
    words = max(2**20, properties.L2_cache_size // 2 // 4) // 2**14 * 2**14  # what L2 surely holds
    x = torch.randn(words, device="cuda")
    fastest, threads = 0.0, properties.multi_processor_count
    for programs, block in ((2 * threads, 8192), (8 * threads, 8192), (8 * threads, 16384)):
        loops = max(1, 2**29 // (programs * block))
        out = torch.empty(programs, device="cuda")
        call = streaming(x, out, words, block, loops, programs)
        call()
        fastest = max(fastest, 4 * programs * block * loops / seconds_in_graph(torch, call, 5))
    size = min(2**30, torch.cuda.mem_get_info()[0] // 8)
    a, b = torch.randn(size // 4, device="cuda"), torch.empty(size // 4, device="cuda")
    copied = seconds_in_graph(torch, lambda: torch.mul(a, 2.0, out=b), 5)
    return {"l2_bandwidth": fastest, "memory": 2 * size / copied}


def streaming(x: Any, out: Any, words: int, block: int, loops: int, programs: int) -> Callable[[], Any]:
    """A launch whose programs read the words of x over and over, past L1, each from a place of its own."""
    text = f"""
import triton
import triton.language as tl


@triton.jit
def stream(x_ptr, out_ptr):
    program = tl.program_id(0)
    total = tl.full(({block},), 0.0, tl.float32)
    for loop in range({loops}):
        block = (program + loop * {programs}) % {max(1, words // block)}
        total += tl.load(x_ptr + block * {block} + tl.arange(0, {block}), cache_modifier=".cg")
    tl.store(out_ptr + program, tl.sum(total, axis=0))
"""
    module = module_of(text)
    return lambda: module.stream[(programs,)](x, out, num_warps=8)
