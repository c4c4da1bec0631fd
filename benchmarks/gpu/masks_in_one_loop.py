"""Kernels of stored scores: each tile asks if it is cut, by a causal mask or an end, or cut tiles have their own loop.

    python benchmarks/gpu/masks_in_one_loop.py -o FOLDER [--time-limit 100]

A row has the microseconds of each kernel of `attention` with gradients, the median of rounds in turn, how far O, L and
gradients are off each other, and whether all have the same bits. What is there is not measured again. It needs a Hopper
GPU.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from resumed import add, known

CASES = [(512, 16384, 4, 1, True), (512, 8192, 2, 8, True), (512, 16383, 4, 1, False), (256, 16384, 4, 1, True)]
CASES += [(512, 4096, 4, 1, True), (512, 9801, 2, 8, True), (512, 16383, 4, 1, True), (512, 4095, 2, 8, False)]
CASES += [(192, 16384, 4, 1, True), (384, 8192, 4, 1, True)]
"""Head dimension, tokens, KV heads, query heads that share each, and whether the mask is causal."""

ROUNDS = 3

WAYS = ("one loop", "two loops")
WIDE = "one loop with 256 columns, too"
"""Of a kernel whose products are put off."""


def rows(torch: Any, asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """A row for each case."""
    from pebblesim.gpu.torch import attention
    from pebblesim.kernels.gluon import scope
    from pebblesim.kernels.gluon.scope import RowsScope

    asks, apart = RowsScope.one_by_one, scope.APART
    for d, n, kv_heads, shared, causal in CASES:
        key = f"d = {d}, n = {n}, {kv_heads * shared} heads on {kv_heads}, {'causal' if causal else 'none'}"
        if key in known:
            continue
        if time.monotonic() > asked.until:
            return
        torch.manual_seed(44)
        sides = (kv_heads * shared, kv_heads, kv_heads)
        x = [torch.randn(1, heads, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in sides]
        dO = torch.randn_like(x[0])

        def call(x: list[Any] = x, dO: Any = dO, causal: bool = causal) -> Any:
            out, lse = attention(*x, is_causal=causal, enable_gqa=True, return_lse=True)
            return out, lse, *torch.autograd.grad(out, x, dO)

        ways = (*WAYS, *[WIDE] * (apart < d <= 256 and causal))
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        bits = {}
        for _ in range(ROUNDS):
            for way in ways:
                scope.APART = 256 if way == WIDE else apart
                RowsScope.one_by_one = asks if way != WAYS[1] else lambda self: bool(self.plan.late) and asks(self)
                forget()
                bits[way] = [each.detach().clone() for each in call()]
                call()
                found[way].append(kernels(torch, call))
        row: dict[str, Any] = {"key": key, "card": torch.cuda.get_device_name(), "torch": torch.__version__}
        row |= {
            way: {name: median(each.get(name, 0.0) for each in found[way]) for name in found[way][0]} for way in ways
        }
        pairs = [(one.float(), two.float()) for one, two in zip(*(bits[way] for way in WAYS), strict=True)]
        row["off"] = max(float((one - two).norm() / two.norm()) for one, two in pairs)
        row["same bits"] = all(all(map(torch.equal, bits[way], bits[WAYS[0]])) for way in ways)
        yield row
        del x, dO, bits, call
        torch.cuda.empty_cache()


def forget() -> None:
    """Let kernels be written again."""
    from pebblesim.operator.known import eager, recorded
    from pebblesim.operator.launching import launching

    launching.loaded.cache_clear()
    for table in (recorded._KEPT, recorded._SEEN, recorded._KINDS, eager._CHECKED, eager._ALIKE, eager._COMPILED):
        table.clear()


def kernels(torch: Any, call: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of each kernel of a call, by its name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    times = {each.key[:40]: float(getattr(each, "device_time_total", 0.0)) / 3 for each in seen.key_averages()}
    return {name: micro for name, micro in times.items() if micro} | {"all": sum(times.values())}


def main() -> None:
    """Append rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=100.0, help="seconds after which no case begins")
    asked = parser.parse_args()
    asked.until = time.monotonic() + asked.time_limit
    os.environ["PEBBLESIM_NATIVE"] = "0"  # known passes are forgotten between rounds
    import torch

    file = asked.output / "masks_in_one_loop.jsonl"
    add(file, rows(torch, asked, known(file)))


if __name__ == "__main__":
    main()
