"""Kernels that another release of Triton compiled, launched by the Triton of a card's machine, against float64.

python benchmarks/gpu/other_tritons.py pack .dev/tritons/3.9.0.zip
python benchmarks/gpu/other_tritons.py check .dev/tritons/*.zip -o benchmarks/gpu/other_tritons.jsonl

The first needs no card: `attention` runs up to its launches, and what the Triton here compiles for them is kept. The
second needs a Hopper card and any Triton: it compiles the same kernels, and puts the machine code that was kept in
their place, if it takes the same arguments. A row names how many of the kernels of a call were replaced; without a
file, kernels are the card's own.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from pebblesim.advice import cards
from pebblesim.operator import operators
from pebblesim.operator.known import recorded
from pebblesim.operator.launching import launch, launching
from pebblesim.operator.masks import Asked

CALLS = [
    {"n": 2048, "d": 64, "heads": 16, "kv_heads": 16, "causal": False},
    {"n": 2001, "d": 128, "heads": 8, "kv_heads": 8, "causal": False},
    {"n": 2048, "d": 128, "heads": 16, "kv_heads": 4, "causal": True},
    {"n": 2048, "d": 256, "heads": 8, "kv_heads": 8, "causal": True},
    {"n": 2048, "d": 512, "heads": 8, "kv_heads": 8, "causal": True},
    {"n": 1000, "d": 96, "heads": 6, "kv_heads": 2, "causal": True},  # three heads share keys: Triton's own kernels
]

KEPT = (
    *("name", "shared", "num_warps", "num_ctas", "tensordesc_meta", "launch_pdl", "launch_cooperative_grid"),
    *("global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align"),
)
"""Facts of compiled kernels that a launch depends on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("pack", "check"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.what == "pack":
        (file,) = asked.files
        pack(file)
        return
    rows = []
    for file in (None, *asked.files):
        for row in checked(file):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if asked.output:
        asked.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@contextmanager
def compiling(make: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile `make` compiles: it is given Triton's function, what this is given, and a name of the kernel."""
    owners: dict[int, str] = {}
    keep: list[Any] = []
    numbers: Counter[str] = Counter()
    module_of, compile_one = launching.module_of, jit.JITFunction._do_compile

    def named(text: str) -> Any:
        module = module_of(text)
        keep.append(module)
        owners.update({id(each): sha256(text.encode()).hexdigest()[:16] for each in vars(module).values()})
        return module

    def compiled(self: Any, *given: Any) -> Any:
        name = f"{owners[id(self)]} {self.fn.__name__}"
        numbers[name] += 1
        return make(compile_one, self, given, f"{name} {numbers[name]}")

    launching.loaded.cache_clear()
    recorded._KEPT.clear()
    launching.module_of, jit.JITFunction._do_compile = named, compiled
    try:
        yield
    finally:
        launching.module_of, jit.JITFunction._do_compile = module_of, compile_one
        launching.loaded.cache_clear()
        recorded._KEPT.clear()


def tensors(call: dict[str, Any], device: str) -> tuple[list[Any], Asked]:
    """Q, K, V and dO of a call, and the arguments of the operator behind them."""
    torch.manual_seed(1)
    n, d = call["n"], call["d"]
    heads = (call[name] for name in ("heads", "kv_heads", "kv_heads", "heads"))
    made = [torch.randn(1, each, n, d, device=device).to(torch.bfloat16) for each in heads]
    return made, Asked(None, None, None, 0 if call["causal"] else None, False, d**-0.5, 0.0, None, False)


def parameters(ptx: str) -> list[int]:
    """Bytes of each parameter of the kernel in a text of PTX, in order; the last two are for scratch memory."""
    of_kernel = ptx.partition(".entry")[2].partition("{")[0]
    found = re.findall(r"\.param\b[^,)]*?\.[bsuf](\d+)\b[^,)\[]*(?:\[(\d+)\])?", of_kernel)
    return [int(bits) // 8 * int(length or 1) for bits, length in found]


def specialised(signature: dict[str, str], attributes: dict[Any, Any]) -> list[Any]:
    """What a kernel was compiled for: types of its arguments, and those that 16 divides."""
    types = [[name, of.partition("<")[0] if isinstance(of, str) else repr(of)] for name, of in signature.items()]
    return [types, sorted([list(path), list(map(list, facts))] for path, facts in attributes.items())]


@contextmanager
def without_card(**there: Any) -> Iterator[None]:
    """Meanwhile tensors of the CPU go the way of those of an H200, up to launches; `there`: more of Triton's driver."""
    target = GPUTarget("cuda", 90, 32)
    current = {"device": lambda: 0, "target": lambda: target, "stream": lambda device: 0}
    active = SimpleNamespace(**{f"get_current_{name}": each for name, each in current.items()}, **there)
    with ExitStack() as stack:
        for where, name, each in (
            (driver, "_active", active),
            (launch, "Compiled", lambda made: None),
            (launch, "launch", lambda *given: None),
            (launching, "card_of", lambda *given: cards.card("H200")),
            (torch._C, "_cuda_getDevice", lambda: 0),
            (torch._C, "_cuda_getCurrentRawStream", lambda device: 0),
            (torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132)),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch.cuda, "mem_get_info", lambda device: (2**37, 2**37)),
            (torch.cuda, "memory_reserved", lambda device: 0),
            (torch.cuda, "memory_allocated", lambda device: 0),
        ):
            stack.enter_context(patch.object(where, name, each, create=True))
        yield


def both_passes(q: Any, k: Any, v: Any, grad: Any, asked: Asked) -> list[Any]:
    """O, dQ, dK and dV of a call."""
    out, lse = operators.forward_on_gpu(q, k, v, *asked)
    return [out, *operators.backward_on_gpu(grad, None, q, k, v, out, lse, *asked)]


def pack(file: Path) -> None:
    """Keep the machine code of all kernels of the calls, compiled by the Triton here for compute capability 9.0."""
    found: dict[str, tuple[bytes, dict[str, Any]]] = {}

    def make(compile_one: Any, function: Any, given: tuple[Any, ...], name: str) -> Any:
        key, signature, _, constants, options, attributes, *_ = given
        source = function.ASTSource(function, signature, constants, attributes)
        result = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options.__dict__)
        facts = {each: getattr(result.metadata, each, None) for each in KEPT}
        facts |= {"parameters": parameters(result.asm["ptx"]), "specialised": specialised(signature, attributes)}
        found[name] = result.asm["cubin"], facts
        made = SimpleNamespace(
            run=lambda *given: None, function=0, packed_metadata=(), metadata=SimpleNamespace(tensordesc_meta=None)
        )
        made.launch_metadata = lambda *given: None
        function.device_caches[0][0][key] = made
        return made

    with without_card(), compiling(make):
        for call in CALLS:
            made, asked = tensors(call, "cpu")
            both_passes(*made, asked)
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("triton", triton.__version__)
        for name, (cubin, facts) in found.items():
            archive.writestr(f"{name}.cubin", cubin)
            archive.writestr(f"{name}.json", json.dumps(facts))
    print(f"{file}: {len(found)} kernels, {file.stat().st_size:,} bytes, Triton {triton.__version__}")


def replacing(archive: zipfile.ZipFile | None, counts: Counter[str]) -> Callable[..., Any]:
    """A function for `compiling` that puts the machine code of an archive in the place of what is compiled.

    It counts kernels: "own" without an archive, "replaced", "missing" in the archive, and "other arguments", where the
    launcher here would pass what the kernel of the archive does not take.
    """

    def make(compile_one: Any, function: Any, given: tuple[Any, ...], name: str) -> Any:
        kernel = compile_one(function, *given)
        if archive is None:
            counts["own"] += 1
            return kernel
        if f"{name}.cubin" not in archive.namelist():
            counts["missing"] += 1
            return kernel
        facts = json.loads(archive.read(f"{name}.json"))
        _, signature, device, _, _, attributes, *_ = given
        mine = json.loads(json.dumps([parameters(kernel.asm["ptx"]), specialised(signature, attributes)]))
        if [facts["parameters"], facts["specialised"]] != mine:
            counts["other arguments"] += 1
            return kernel
        counts["replaced"] += 1
        known = {each: facts[each] for each in KEPT if each in kernel.metadata._fields and facts[each] is not None}
        kernel.metadata = kernel.metadata._replace(**known)
        kernel.packed_metadata = function.device_caches[device][3].pack_metadata(kernel.metadata)
        kernel.name, kernel.kernel = kernel.metadata.name, archive.read(f"{name}.cubin")
        return kernel

    return make


def checked(file: Path | None) -> Iterator[dict[str, Any]]:
    """Errors of each call against float64, and its times, with the kernels of a file."""
    archive = None if file is None else zipfile.ZipFile(file)
    version = triton.__version__ if archive is None else archive.read("triton").decode()
    counts: Counter[str] = Counter()

    with compiling(replacing(archive, counts)):
        for call in CALLS:
            counts.clear()
            made, asked = tensors(call, "cuda")
            passes = partial(both_passes, *made, asked)
            errors = {
                name: float((mine.double() - true).norm() / true.norm())
                for name, mine, true in zip(("O", "dQ", "dK", "dV"), passes(), true_passes(*made, call), strict=True)
            }
            yield {"triton": version, **call, "kernels": dict(counts), "errors": errors, "ms": milliseconds(passes)}


def true_passes(q: Any, k: Any, v: Any, grad: Any, call: dict[str, Any]) -> list[Any]:
    """O, dQ, dK and dV in float64, by PyTorch's derivatives of the definition."""
    x = [each.double().requires_grad_() for each in (q, k, v)]
    wide = [each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in x]
    S = wide[0] @ wide[1].mT * call["d"] ** -0.5
    if call["causal"]:
        S = S.masked_fill(torch.ones_like(S[0, 0], dtype=torch.bool).triu(1), -torch.inf)
    out = S.softmax(-1) @ wide[2]
    return [out.detach(), *torch.autograd.grad(out, x, grad.double())]


def milliseconds(passes: Callable[[], Any]) -> float:
    """The median of 20 runs of both passes."""
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        passes()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return round(median(times), 4)


if __name__ == "__main__":
    main()
