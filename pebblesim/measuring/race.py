"""A race: kernels from our schedules against every attention kernel of PyTorch, on this GPU, in one run.

Each contender computes the same attention on the same random arrays, several heads at once. Times are medians of many
runs; a tenth of the runs is outside of their `spread` at each end. Only useful operations are counted (4d for each
allowed pair forward, 10d backward), so recomputation does not look efficient. Errors are those of the first head
against float64.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import e, log2
from pathlib import Path
from statistics import median
from typing import Any

from pebblesim.advice.cards import capability_of, card
from pebblesim.advice.tiles import PROBLEM, Tiling, kernels_for, too_large
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.kernels.domains import HOPPER, TRITON, Call
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.module import module_of, torch_with_gpu
from pebblesim.kernels.tables import moved_words
from pebblesim.kernels.triton.storage import Storage, storage
from pebblesim.kernels.triton.triton import Source, triton
from pebblesim.kernels.words import moved_bytes
from pebblesim.language import masks
from pebblesim.language.masks import Band
from pebblesim.language.program import Program
from pebblesim.language.registry import get
from pebblesim.measuring.results import load, save

Row = dict[str, Any]

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
"""PyTorch's attention kernels, with PyTorch's names for them."""

DEMANGLED = {"f": "float", "v": "void"}
"""Names that the profiler shows for kernels whose names are also C++ types."""

LARGEST_TABLE = 12 * 2**30
"""Largest size of the scores, in bytes, for which the unfused attention is tried."""


@dataclass(frozen=True)
class Track:
    """The task of a race: sizes, mask and data type of a word.

    Attributes:
        way: "forward" or "backward".
        n, d, heads: sizes of the attention; the arrays are (heads, n, d).
        mask: None, or "causal".
        dtype: "bfloat16" or "float16".
    """

    way: str
    n: int
    d: int
    heads: int
    mask: str | None = None
    dtype: str = "bfloat16"
    pairs: int = field(init=False)

    def __post_init__(self) -> None:
        if self.way not in PROBLEM:
            raise UsageError(f"way {self.way!r} was given; a race is forward or backward.")
        if self.mask not in (None, "causal"):
            raise UsageError(f"mask {self.mask!r} was given; PyTorch's attention knows causal, or none.")
        if self.dtype not in TRITON.dtypes:
            raise UsageError(f"words of {self.dtype} were given; a race is in bfloat16 or float16.")
        band = masks.of(self.mask)
        object.__setattr__(self, "pairs", self.n**2 if band is None else band.pairs(self.n))

    @property
    def dims(self) -> dict[str, int]:
        """The dimensions of its problem."""
        return {"n_q": self.n, "n_k": self.n, "d_k": self.d, "d_v": self.d}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The results that are compared."""
        return ("O",) if self.way == "forward" else ("dQ", "dK", "dV")

    @property
    def operations(self) -> int:
        """Useful operations of all heads."""
        return (4 if self.way == "forward" else 10) * self.pairs * self.d * self.heads

    def identity(self, contender: str) -> str:
        """A hash of everything that defines a row."""
        text = json.dumps({**asdict(self), "contender": contender}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def offered(track: Track, hopper: bool = True) -> list[Tiling]:
    """Return our kernels for the length, head dimension and mask of a task; `hopper`: those in Gluon, too."""
    call = Call(track.dims, masks.of(track.mask), dtype=track.dtype, capability=HOPPER if hopper else "")
    return [*kernels_for(PROBLEM[track.way], call, card("H200").size("shared_per_block"))]


def contenders(track: Track, hopper: bool = True) -> tuple[str, ...]:
    """Return the contenders for a task: our schedules, and PyTorch's kernels."""
    ours = dict.fromkeys(tiling.schedule for tiling in offered(track, hopper))
    return (*ours, *(f"torch-{name}" for name in (*BACKENDS, "flex")))


def race(
    track: Track,
    output: Path | None = None,
    on_progress: Callable[[Row], None] | None = None,
    only: Sequence[str] | None = None,
    kernels: Sequence[Tiling] | None = None,
    by_launch: bool = True,
) -> list[Row]:
    """Run every contender that is not in `output` yet; return the rows, as they are stored there.

    Args:
        track: the task.
        only: these contenders; all if None.
        kernels: of our schedules; all that are for the task if None.
        by_launch: also time the launches of our kernels one by one.
        output: a file of JSON lines, updated after each contender, so that a stopped race can be resumed.
        on_progress: called with each new row.

    Raises:
        UsageError: there is no PyTorch with a GPU, or no Triton.
    """
    torch = torch_with_gpu("a race", "triton")
    hopper = capability_of(torch.cuda.get_device_properties(0)) == HOPPER
    tried = offered(track, hopper) if kernels is None else kernels
    known = {row["id"]: row for row in load(output)} if output else {}
    rows, arrays = [], None
    for contender in only or contenders(track, hopper):
        key = track.identity(f"{contender} on {torch.cuda.get_device_name()}")
        if key not in known:
            arrays = arrays or Arrays(torch, track)
            own = [tiling for tiling in tried if tiling.schedule == contender]
            known[key] = {
                "id": key,
                **asdict(track),
                "contender": contender,
                **_run(torch, arrays, contender, own, by_launch),
            }
            if output:
                save(output, known.values())
            if on_progress:
                on_progress(known[key])
        rows.append(known[key])
    return rows


class Arrays:
    """The arrays of a race, and the expected results in float64."""

    def __init__(self, torch: Any, track: Track) -> None:
        self.torch, self.track = torch, track
        torch.manual_seed(0)
        dtype = getattr(torch, track.dtype)
        shape = (track.heads, track.n, track.d)
        self.of = {name: (torch.randn(shape, device="cuda") / track.d**0.25).to(dtype) for name in "QKV"}
        self.of["dO"] = torch.randn(shape, device="cuda").to(dtype)
        self.expected = {name: torch.zeros(shape[1:], device="cuda", dtype=torch.float64) for name in track.outputs}
        self.of["O"] = torch.empty(shape, device="cuda", dtype=dtype)
        self.of["L"] = torch.empty(shape[:2], device="cuda")
        for head in range(track.heads):
            self._head(head)

    def _head(self, head: int, rows: int = 1024) -> None:
        """Compute the arrays that the forward pass keeps of a head; for the first head, all outputs in float64."""
        torch, n = self.torch, self.track.n
        kind = torch.float64 if head == 0 else torch.float32
        Q, K, V, dO = (self.of[name][head].to(kind) for name in ("Q", "K", "V", "dO"))
        for start in range(0, n, rows):
            part = slice(start, min(start + rows, n))
            S = Q[part] @ K.T
            if self.track.mask:
                S.masked_fill_(torch.arange(n, device="cuda") > torch.arange(n, device="cuda")[part, None], -torch.inf)
            P = torch.softmax(S, 1)
            O = P @ V
            self.of["O"][head, part], self.of["L"][head, part] = O, torch.logsumexp(S, 1) * log2(e)
            if head:
                continue
            if self.track.way == "forward":
                self.expected["O"][part] = O
                continue
            dS = P * (dO[part] @ V.T - (dO[part] * O).sum(1, keepdim=True))
            self.expected["dQ"][part] = dS @ K
            self.expected["dK"] += dS.T @ Q[part]
            self.expected["dV"] += P.T @ dO[part]

    def errors(self, outputs: Mapping[str, Any]) -> dict[str, float]:
        """‖output - expected‖ / ‖expected‖ of the first head."""
        return {
            name: float((outputs[name][0].double() - true).norm() / true.norm()) for name, true in self.expected.items()
        }


def _run(torch: Any, arrays: Arrays, contender: str, kernels: Sequence[Tiling], by_launch: bool) -> Row:
    """Time a contender. The row of a schedule has its fastest kernels, and all that were `tried`."""
    try:
        if contender.startswith("torch-"):
            return _of_torch(torch, arrays, contender.removeprefix("torch-"))
        tried = [run_tiling(torch, arrays, tiling, by_launch) for tiling in kernels]
    except torch.cuda.OutOfMemoryError:
        return {"error": "out of memory"}
    if not tried:
        return {"error": f"it has no kernels for d = {arrays.track.d}"}
    fine = [row for row in tried if "seconds" in row]
    return (min(fine, key=lambda row: row["seconds"]) if fine else tried[-1]) | {"tried": tried}


def _timed(torch: Any, track: Track, call: Callable[[], Any]) -> Row:
    """Seconds of a call on the GPU, the median of many; `spread`: a tenth of them take less, and a tenth more.

    Calls are replays of a CUDA graph, so that the GPU waits for no launch of the host; what cannot be in a graph, as
    some backward passes of cuDNN, is called as it is.
    """
    from triton.testing import do_bench

    call()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
        again: Callable[[], Any] = graph.replay
    except Exception:  # PyTorch's
        torch.cuda.synchronize()
        again = call
    seconds, *spread = (each / 1e3 for each in do_bench(again, warmup=10, rep=40, quantiles=[0.5, 0.1, 0.9]))
    row = {"seconds": seconds, "spread": spread, "tflops": track.operations / seconds / 1e12}
    return row | ({"called": True} if again is call else {})


def source_of(track: Track, tiling: Tiling) -> Source:
    """Return the kernels of a tiling for a task.

    Raises:
        UsageError: there are no such kernels.
    """
    program, band = _program(track, tiling)
    sizes = {**track.dims, **tiling.blocks}
    return (gluon if tiling.gluon else triton)(program, sizes, track.dtype, band, **tiling.options_under(band))


def held(source: Source, track: Track, tiling: Tiling) -> list[tuple[str, Storage]]:
    """Return the storage of a block of each kernel, by name."""
    sizes = {**track.dims, **tiling.blocks}
    return [
        (kernel.name, storage(kernel.launch, sizes, track.dtype, tiling.of(kernel.launch.name)[1]))
        for kernel in source.kernels
    ]


def _program(track: Track, tiling: Tiling) -> tuple[Program, Band | None]:
    band = masks.of(track.mask)
    assert band is None or isinstance(band, Band)
    return get(tiling.schedule).in_dims(track.dims).under(band), band


def fits(tiling: Tiling, source: Source, track: Track) -> None:
    """Check that thread blocks fit into a multiprocessor of a Hopper card.

    Raises:
        UsageError: they do not.
    """
    hopper = card("H200")
    why = too_large(held(source, track, tiling), hopper.size("shared_per_block"), hopper.size("registers"))
    if why:
        raise UsageError(f"{tiling}: {why}.")


def run_tiling(torch: Any, arrays: Arrays, tiling: Tiling, by_launch: bool) -> Row:
    """Return time, errors and traffic of a schedule's kernels with given tiles; or the error that they end with."""
    track, (program, band) = arrays.track, _program(arrays.track, tiling)
    row: Row = {"blocks": dict(tiling.blocks), "warps": tiling.warps, "stages": tiling.stages}
    row |= {"apart": dict(tiling.apart)} if tiling.apart else {}
    row |= {"gluon": True, "persistent": tiling.persistent} if tiling.gluon else {}
    try:
        source = source_of(track, tiling)
        if not tiling.gluon:
            fits(tiling, source, track)
        call = prepared(source, program, arrays.of, track.outputs)
        row["errors"] = arrays.errors(call())
        row |= _timed(torch, track, call)
        if by_launch:
            row["launches"] = seconds_of_launches(torch, call, [kernel.name for kernel in source.kernels])
    except (UsageError, Infeasible) as error:
        return row | {"error": str(error)}
    except torch.cuda.OutOfMemoryError:
        return row | {"error": "out of memory"}
    except Exception as error:  # Triton's: out of registers, of shared memory
        return row | {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
    words = moved_words(program, {**track.dims, **tiling.blocks}, band)
    moved = moved_bytes(program, words, track.dtype).each(lambda moved: moved * track.heads)
    return row | {"read_bytes": moved.reads, "written_bytes": moved.writes}


def prepared(
    source: Source, program: Program, given: Mapping[str, Any], outputs: Sequence[str]
) -> Callable[[], dict[str, Any]]:
    """A call of kernels; sums that memory added are rounded to the words of the inputs, which takes time, too."""
    run, inputs = module_of(source.text).run, [given[name] for name in program.tensors if name in program.inputs]

    def call() -> dict[str, Any]:
        made = run(*inputs)
        return {name: made[name].to(given["Q"].dtype) for name in outputs}

    return call


def seconds_of_launches(torch: Any, call: Callable[[], Any], names: Sequence[str], times: int = 5) -> dict[str, float]:
    """Seconds of each kernel by name, the median of some calls."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    seconds_of: dict[str, list[float]] = {name: [] for name in names}
    called = {DEMANGLED.get(name, name): name for name in names}
    for event in profiled.events():
        if event.name in called and event.device_type == torch.autograd.DeviceType.CUDA:
            seconds_of[called[event.name]].append(event.time_range.elapsed_us() / 1e6)
    return {name: median(seconds) for name, seconds in seconds_of.items() if seconds}


def _of_torch(torch: Any, arrays: Arrays, name: str) -> Row:
    track = arrays.track
    if name == "math" and track.heads * track.n**2 * 2 > LARGEST_TABLE:
        return {"error": "its scores would not fit"}
    Q, K, V = (arrays.of[each][None].detach().requires_grad_() for each in "QKV")
    attend = _flex(torch, track) if name == "flex" else _dot_product(torch, track, name)
    try:
        O = attend(Q, K, V)
        if track.way == "forward":
            return {"errors": arrays.errors({"O": O[0]}), **_timed(torch, track, lambda: attend(Q, K, V))}

        def back() -> Any:
            return torch.autograd.grad(O, (Q, K, V), arrays.of["dO"][None], retain_graph=True)

        gradients = dict(zip(("dQ", "dK", "dV"), (each[0] for each in back()), strict=True))
        return {"errors": arrays.errors(gradients), **_timed(torch, track, back)}
    except Exception as error:  # PyTorch's, Triton's and those of its compiler
        return {"error": (str(error).splitlines() or [type(error).__name__])[0][:120]}


def _dot_product(torch: Any, track: Track, name: str) -> Callable[..., Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    causal = track.mask is not None

    def attend(Q: Any, K: Any, V: Any) -> Any:
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[name])):
            return torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=causal, scale=1.0)

    return attend


def _flex(torch: Any, track: Track) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query >= key

    mask = None if track.mask is None else create_block_mask(causal, None, None, track.n, track.n)
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda Q, K, V: compiled(Q, K, V, block_mask=mask, scale=1.0)
