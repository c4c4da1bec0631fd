"""What a call takes of the host by its kind, and what the first call of a kind takes; on a GPU."""

from __future__ import annotations

import compileall
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drawn_shapes import Shape


@dataclass(frozen=True)
class Kind:
    """A kind of call.

    Attributes:
        name: what is particular about it.
        shape: its sizes and mask.
        extra: "sinks", "lse", "padding", "latent" (values are the first 512 columns of keys), "bias" (that sequences of
            one batch share, with a gradient), "lengths" (another length at each call), "nothing" (a function of Python
            that takes three matrices, and gives memory that nobody wrote, is all that is called), or nothing.
    """

    name: str
    shape: Shape
    extra: str = ""


def kinds() -> Iterator[Kind]:
    """Small calls, in which the host is all that takes time; those that say most come first."""
    for n in (511, 516, 512):
        yield Kind(f"n = {n}, d = 128, causal", Shape(2, 8, 1, n, 128, "causal"))
    yield Kind("new lengths, d = 128, causal", Shape(2, 8, 1, 500, 128, "causal"), "lengths")
    yield Kind("nothing, n = 511, d = 128", Shape(2, 8, 1, 511, 128, "causal"), "nothing")
    for sequences in (64, 256):
        name = f"a bias of {sequences} sequences, 4 heads, n = 384, d = 32"
        yield Kind(name, Shape(sequences, 4, 1, 384, 32, "none"), "bias")
    yield Kind("packed, n = 511, d = 128", Shape(1, 8, 1, 511, 128, "packed", None, (0, 100, 300, 511)))
    yield Kind("16 heads on 2, n = 511, d = 128, causal", Shape(1, 2, 8, 511, 128, "causal"))
    for extra in ("padding", "sinks", "lse"):
        yield Kind(f"{extra}, n = 511, d = 128", Shape(2, 8, 1, 511, 128, "causal"), extra)
    yield Kind("latent, 128 heads, n = 1,024", Shape(1, 1, 128, 1024, 576, "causal"), "latent")
    for n, d in ((511, 64), (512, 64), (511, 256), (511, 512), (512, 512)):
        yield Kind(f"n = {n}, d = {d}, causal", Shape(2, 8, 1, n, d, "causal"))
    yield Kind("n = 511, d = 128", Shape(2, 8, 1, 511, 128, "none"))
    yield Kind("window of 128, n = 511, d = 128", Shape(2, 8, 1, 511, 128, "window", 128))
    yield Kind("n = 511, d = 96, causal", Shape(2, 8, 1, 511, 96, "causal"))
    yield Kind("6 heads on 2, n = 511, d = 128", Shape(2, 2, 3, 511, 128, "causal"))
    yield Kind("16 heads on 2, n = 511, d = 512, causal", Shape(1, 2, 8, 511, 512, "causal"))
    yield Kind("new lengths, 16 heads on 2, d = 128", Shape(1, 2, 8, 500, 128, "causal"), "lengths")


def host_times(asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """Microseconds by kind and backend; ours are profiled, too, and FOLDER/profile.txt has the functions."""
    import torch
    from timing import here

    card = here(torch)
    if "parts" not in known:
        yield {"key": "parts", **card, "µs": _parts(torch)}
    for kind in kinds():
        if kind.name in known:
            continue
        if time.monotonic() > asked.until:
            return
        row: dict[str, Any] = {"key": kind.name, **card}
        calls = [each for each in _calls(torch, kind) if each[0] in ("ours", "nothing") or not asked.ours]
        for _ in range(ROUNDS):  # in turn, since the host is slower at times
            for name, call, sets in calls:
                if "refused" in row.get(name, {}):
                    continue
                _forget_lengths(kind)
                try:
                    row[name] = _least(row.get(name), _times(torch, call, sets))
                except Exception as error:  # of a backend that does not take the kind
                    row[name] = {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:160]}
        name, call, sets = calls[0]
        if name == "ours" and "refused" not in row[name]:
            row["off"] = _off(torch, call, sets)
            _profiled(torch, kind, call, sets, asked.output / "profile.txt")
        if asked.ours:
            with _by_triton():
                row["ours, by Triton's launcher"] = _times(torch, call, sets)
        yield row


ROUNDS = 3
"""Rounds of all backends; the least of their medians counts."""


def _least(one: dict[str, float] | None, other: dict[str, float]) -> dict[str, float]:
    return other if one is None else {way: min(one[way], time) for way, time in other.items()}


def _forget_lengths(kind: Kind) -> None:
    """Let lengths be new again, of which those that were traced are known."""
    from pebblesim.operator.known import eager, recorded

    if kind.extra == "lengths":
        recorded._KEPT.clear()
        eager._CHECKED.clear()


@contextmanager
def _by_triton() -> Iterator[None]:
    """Let Triton launch kernels in passes that are made again."""
    from pebblesim.operator.known import eager, recorded
    from pebblesim.operator.known.recent import Recent

    tables = [(recorded, "_KEPT"), (recorded, "_SEEN"), (recorded, "_KINDS"), (eager, "_CHECKED"), (eager, "_ALIKE")]
    driver = recorded.driver
    kept = [getattr(*each) for each in tables]
    recorded.driver = lambda: None
    for module, name in tables:
        setattr(module, name, Recent(recorded.MOST))
    try:
        yield
    finally:
        recorded.driver = driver
        for (module, name), each in zip(tables, kept, strict=True):
            setattr(module, name, each)


def _off(torch: Any, call: Any, sets: list[Any]) -> float:
    """The largest relative difference of results of a pass that is made again from those of its first call."""
    from pebblesim.operator.known import eager, recorded

    (x, dO), found = sets[0], []
    for table in (recorded._KEPT, recorded._SEEN, recorded._KINDS, eager._CHECKED, eager._ALIKE):
        table.clear()
    for _ in range(4):
        out = call(*x)
        out = out[0] if isinstance(out, tuple) else out
        found.append([each.detach().float() for each in (out, *torch.autograd.grad(out, x, dO))])
    return max(
        float((one - right).norm() / right.norm().clamp(min=1e-6))
        for again in found[1:]
        for one, right in zip(again, found[0], strict=True)
    )


def _calls(torch: Any, kind: Kind) -> Iterator[tuple[str, Any, list[Any]]]:
    """The backends, their calls, and tensors that these take in turn."""
    from contenders import contenders, ours
    from drawn_shapes import tensors

    shape = kind.shape
    lengths = range(400, 560) if kind.extra == "lengths" else [shape.n]
    sets = [tensors(torch, replace(shape, n=n)) for n in lengths]
    if kind.extra == "nothing":
        yield "nothing", _nothing(torch), sets
        return
    if kind.extra == "latent":
        from pebblesim.gpu.torch import attention

        (q, k, _), _ = sets[0]
        dO = torch.randn(*q.shape[:3], 512, device="cuda", dtype=q.dtype)
        yield "ours", lambda q, k: attention(q, k, k[..., :512], is_causal=True, enable_gqa=True), [((q, k), dO)]
        return
    if kind.extra == "bias":
        from bias_peers import ours as with_bias

        matrices, dO = sets[0]
        pair = torch.randn(1, shape.heads, shape.n, shape.n, device="cuda", dtype=dO.dtype)
        x = [each.detach()[None].requires_grad_() for each in (*matrices, pair)]  # a batch of sequences
        yield "ours", with_bias, [(x, dO[None])]
        return
    call, rest = ours(torch, shape), {}
    if kind.extra == "sinks":
        rest["sinks"] = torch.randn(shape.heads, device="cuda", requires_grad=True)
    if kind.extra == "lse":
        rest["return_lse"] = True
    if kind.extra == "padding":
        rest["key_padding_mask"] = (torch.arange(shape.n, device="cuda") >= 400)[None]
    yield "ours", partial(call, **rest), sets
    for name, each in contenders(torch, shape, "none").items():
        slow = kind.extra == "lengths" and name.startswith("cudnn")  # 40 to 80 ms for each length
        if name != "ours" and kind.extra in ("", "lengths") and not slow:
            yield name, each, sets


def _parts(torch: Any) -> dict[str, float]:
    """Microseconds of single things that calls are made of: of the driver, and of PyTorch."""
    import ctypes

    from pebblesim.operator.known import direct

    by, x = direct.driver(), torch.empty(2, 8, 512, 128, device="cuda", dtype=torch.bfloat16)
    stream, address, memory = torch.cuda.current_stream().cuda_stream, x.data_ptr(), ctypes.create_string_buffer(384)
    assert by is not None
    at = -(-ctypes.addressof(memory) // 128) * 128
    lengths, strides = (ctypes.c_uint64 * 4)(128, 512, 8, 2), (ctypes.c_uint64 * 3)(256, 131072, 1048576)
    box, ones = (ctypes.c_uint * 4)(64, 128, 1, 1), (ctypes.c_uint * 4)(1, 1, 1, 1)
    size = direct.L2_128B
    told = (ctypes.c_uint64 * 16)(0, 0, 2, 0, address, 0, 2048, 0, 0, 2, 0, address + 2**18, 0, 2048, 2048, 8)
    calls = {
        "a descriptor is encoded": partial(by.describe, at, 9, 4, address, lengths, strides, box, ones, 0, 3, size, 0),
        "a fill": partial(by.fill, address, 0, 2**17, stream),
        "a copy of rows": partial(by.copy, ctypes.addressof(told), stream),
        "memory of PyTorch": partial(torch.empty_like, x),
        "its sizes and strides": lambda: (x.shape, x.stride()),
    }
    found = {}
    for name, call in calls.items():
        refused = call()
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(200):
            call()
        found[name] = (time.perf_counter_ns() - begin) / 200e3
        if isinstance(refused, int) and refused:
            found[name] = float("nan")
    return found


def _nothing(torch: Any) -> Any:
    """What the autograd engine and a function of Python take, without any kernel."""

    class Nothing(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            out = torch.empty_like(q)
            ctx.save_for_backward(q, k, v, out)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))

    return Nothing.apply


def _times(torch: Any, call: Any, sets: list[Any]) -> dict[str, float]:
    """Microseconds without gradients, of a forward pass with gradients, and of its backward pass."""
    from timing import of_host

    state: dict[str, Any] = {"at": -1, "out": None}

    def next_one() -> None:
        state["at"], state["out"] = (state["at"] + 1) % len(sets), None

    def forward() -> None:
        out = call(*sets[state["at"]][0])
        state["out"] = out[0] if isinstance(out, tuple) else out

    def prepared() -> None:
        next_one()
        forward()

    def backward() -> None:
        x, dO = sets[state["at"]]
        torch.autograd.grad(state["out"], x, dO)

    for _ in range(3):
        prepared()
        backward()
    found = {}
    with torch.no_grad():
        found["without gradients"] = of_host(torch, forward, before=next_one)
    found["forward"] = of_host(torch, forward, before=next_one)
    found["backward"] = of_host(torch, backward, before=prepared)
    return found


def _profiled(torch: Any, kind: Kind, call: Any, sets: list[Any], file: Path) -> None:
    """Append the functions that take the time of both passes, by their own time."""
    watched = cProfile.Profile()
    for number in range(30):
        x, dO = sets[number % len(sets)]
        torch.cuda.synchronize()
        watched.enable()
        out = call(*x)
        torch.autograd.grad(out[0] if isinstance(out, tuple) else out, x, dO)
        watched.disable()
    with file.open("a", encoding="utf-8") as out:
        out.write(f"\n== {kind.name}\n")
        pstats.Stats(watched, stream=out).sort_stats("tottime").print_stats(22)


FIRST = """
import json, sys, time
import torch
x = torch.ones(1, device="cuda", requires_grad=True)
torch.autograd.grad(x * x, x, x.detach())  # for which PyTorch imports sympy, where gradients are given
d, n, shared, causal, who = json.loads(sys.argv[1])
q, k, v = (torch.randn(1, h, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for h in (4 * shared, 4, 4))
torch.cuda.synchronize()
begin, marks, kernels = time.perf_counter(), [], []
def mark(name):
    marks.append([name, round(time.perf_counter() - begin, 3)])
if who == "ours":
    from pebblesim.gpu.torch import attention as attend
else:
    from ffpa_attn import ffpa_attn_func as attend
imported = time.perf_counter()
if who == "ours":
    from drawn_host import watch
    watch(mark, kernels)
out = attend(q, k, v, is_causal=causal, enable_gqa=shared > 1)
torch.cuda.synchronize()
forward = time.perf_counter()
torch.autograd.grad(out, (q, k, v), out.detach())
torch.cuda.synchronize()
backward = time.perf_counter()
times = {"import": imported - begin, "forward": forward - imported, "backward": backward - forward}
print(json.dumps(times | ({"marks": marks, "kernels": kernels} if who == "ours" else {})))
"""


def watch(mark: Callable[[str], None], kernels: list[Any]) -> None:
    """Mark when parts of a first call are done, and note for each kernel the seconds of Triton's stages."""
    from pebblesim.operator.launching import compiling, launching

    def marked(module: Any, name: str, said: str) -> None:
        function = getattr(module, name)

        def call(*given: Any, **options: Any) -> Any:
            found = function(*given, **options)
            mark(said)
            return found

        setattr(module, name, call)

    for name, said in (("fitting", "chosen"), ("loaded", "written"), ("_launched", "launched")):
        marked(launching, name, said)
    begin = compiling.begin

    def begun() -> Any:
        ready = begin()
        if not ready.done():
            ready.add_done_callback(lambda _: (mark("Triton is ready"), _listen(mark, kernels)))
        return ready

    compiling.begin = begun


def _listen(mark: Callable[[str], None], kernels: list[Any]) -> None:
    from triton import knobs

    def compiled(*, src: Any, times: Any, cache_hit: bool, **rest: Any) -> None:
        stages = dict(times.lowering_stages)
        kernels.append({"kernel": src.name, "front": times.ir_initialization / 1e6, "hit": cache_hit})
        kernels[-1] |= {name: micros / 1e6 for name, micros in stages.items()}
        mark(f"{src.name} is compiled")

    knobs.compilation.listener = compiled


def first_calls(asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """Seconds of the first call of a process, and of its parts.

    With an empty cache of Triton, and with the one it left. Python has all modules, those of Triton among them, as
    bytecode, as pip leaves them.
    """
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    triton = find_spec("triton")
    assert triton is not None and triton.origin is not None
    ours = (Path(__file__).parents[2] / folder for folder in ("pebblesim", "graphs", "schedules"))
    for folder in (*ours, Path(triton.origin).parent):
        compileall.compile_dir(folder, quiet=2, workers=0)
    cases = [(d, 2047, 1, True) for d in (512, 256, 128)] + [(512, 4096, 8, True), (256, 16384, 1, True)]
    cases += [(64, 2047, 1, True), (128, 2048, 1, False), (1024, 2048, 1, True), (192, 2048, 1, True)]
    for case in cases:
        for who in ("ours", *(each for each in asked.peer if each == "ffpa" and case[0] > 256)):
            key = f"{who}: d = {case[0]}, n = {case[1]}, shared = {case[2]}, causal = {case[3]}"
            if key in known:
                continue
            if time.monotonic() > asked.until:
                return
            row: dict[str, Any] = {"key": key, "processors": len(os.sched_getaffinity(0))}
            with TemporaryDirectory() as folder:
                for cache in ("empty", "kept"):
                    ran = subprocess.run(
                        [sys.executable, "-c", FIRST, json.dumps([*case, who])],
                        env=os.environ | {"TRITON_CACHE_DIR": folder, "PYTHONPATH": path},
                        capture_output=True,
                        text=True,
                        check=False,
                    )
                    row[cache] = json.loads(ran.stdout) if not ran.returncode else {"error": ran.stderr[-300:]}
            yield row
