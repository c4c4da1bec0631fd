"""PyTorch's `scaled_dot_product_attention` over our kernels, on a GPU: which calls come to them, and with what errors.

`python benchmarks/gpu/sdpa.py -o FOLDER` writes FOLDER/sdpa.json, a row of each shape and way: PyTorch as it is, with
our kernels in its registry, the same where FlashAttention alone may be chosen, and with the function replaced. Names of
kernels are those that PyTorch's profiler has seen; errors are against float64 attention, divided by those of PyTorch's
math kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pebblesim.gpu.torch import register, replaced_sdpa

SHAPES = (
    {"n": 4096, "d": 64, "heads": (16, 16), "causal": True},
    {"n": 4096, "d": 128, "heads": (16, 4), "causal": True},
    {"n": 2000, "d": 128, "heads": (16, 16), "causal": False},
    {"n": 4096, "d": 256, "heads": (8, 8), "causal": True},
    {"n": 4096, "d": 512, "heads": (8, 2), "causal": True},
    {"n": 4096, "d": 80, "heads": (8, 8), "causal": True},
)
WAYS = ("PyTorch", "registry", "registry, FlashAttention alone", "replaced")


def attended(x: list[Any], causal: bool, grad: Any) -> list[Any]:
    """O and the gradients of Q, K and V."""
    gqa = {"enable_gqa": True} if x[0].shape[1] != x[1].shape[1] else {}
    out = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal, **gqa)
    return [out.detach(), *torch.autograd.grad(out, x, grad)]


def within(way: str, call: Callable[[], Any]) -> Any:
    """What a call returns with our kernels in one of the ways."""
    with ExitStack() as stack:
        if way.startswith("registry"):
            torch.nn.attention.activate_flash_attention_impl("pebblesim")
            stack.callback(torch.nn.attention.restore_flash_attention_impl)
        if way.endswith("alone"):
            stack.enter_context(sdpa_kernel(SDPBackend.FLASH_ATTENTION))
        if way == "replaced":
            stack.enter_context(replaced_sdpa())
        return call()


def errors(made: list[Any], true: list[Any]) -> list[float]:
    return [float((a.double() - b).abs().max()) for a, b in zip(made, true, strict=True)]


def row(shape: dict[str, Any], way: str) -> dict[str, Any]:
    """Kernels, errors and seconds of a shape in one way."""
    torch.manual_seed(0)
    sizes = [(1, heads, shape["n"], shape["d"]) for heads in (shape["heads"][0], *shape["heads"][1:] * 2)]
    x = [torch.randn(size, device="cuda").bfloat16().requires_grad_() for size in sizes]
    grad = torch.randn(sizes[0], device="cuda").bfloat16()
    call = lambda: attended(x, shape["causal"], grad)  # noqa: E731
    made = within(way, call)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        within(way, call)
        torch.cuda.synchronize()
    times = []
    for _ in range(10):
        begun = time.perf_counter()
        within(way, call)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    with sdpa_kernel(SDPBackend.MATH):
        plain = call()
        wide = [each.detach().double().requires_grad_() for each in x]
        true = attended(wide, shape["causal"], grad.double())
    against = [a / b for a, b in zip(errors(made, true), errors(plain, true), strict=True)]
    names = sorted({each.key for each in seen.key_averages() if "memset" not in each.key.lower()})
    return {"kernels": names, "errors": against, "seconds": sorted(times)[len(times) // 2]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300.0, help="no row is begun later")
    options, rows, begun = parser.parse_args(), list[Any](), time.monotonic()
    register()
    for shape in SHAPES:
        for way in WAYS:
            if time.monotonic() - begun > options.seconds:
                return
            found = {**shape, "way": way, "on": torch.cuda.get_device_name()}
            try:
                found |= row(shape, way)
            except Exception as error:  # such as that no kernel of PyTorch is for it
                found["error"] = str(error)[:300]
            rows.append(found)
            print(json.dumps(found), flush=True)
            (options.output / "sdpa.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
