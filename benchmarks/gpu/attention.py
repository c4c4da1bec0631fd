"""`pebblesim.gpu.torch.attention` beside PyTorch's: errors against float64, times; run it on a GPU.

python benchmarks/gpu/attention.py -o benchmarks/gpu/attention.jsonl
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from pebblesim.gpu.torch import attention, plan

CASES: list[dict[str, Any]] = [
    {"n": 1024, "d_k": 64},
    {"n": 1000, "d_k": 80, "causal": True},
    {"n": 1024, "d_k": 128, "dtype": "float16"},
    {"n": 1024, "d_k": 128, "kv_heads": 2},
    {"n": 1023, "d_k": 192, "d_v": 128, "causal": True},
    {"n": 1024, "d_k": 256, "dtype": "float16", "causal": True},
    {"n": 1024, "d_k": 512},
    {"n": 2047, "d_k": 512, "causal": True},
    {"n": 1024, "d_k": 576, "d_v": 512},
    {"n": 777, "d_k": 1024, "dtype": "float16"},
    {"n": 1024, "d_k": 96, "d_v": 1024, "kv_heads": 4},
    {"n": 1024, "d_k": 64, "largest": 1000},
    {"n": 1024, "d_k": 512, "largest": 1000},
    {"n": 1024, "d_k": 512, "largest": 1000, "causal": True, "dtype": "float16"},
    {"n": 17, "d_k": 8},
    {"n": 1, "n_k": 4096, "d_k": 128, "kv_heads": 2},
    {"n": 1000, "n_k": 333, "d_k": 512},
    {"n": 300, "n_k": 1024, "d_k": 256, "causal": True},
    {"n": 1024, "n_k": 300, "d_k": 576, "d_v": 512, "causal": True},
    {"n": 1024, "d_k": 128, "kv_heads": 2, "causal": True},
    {"n": 1024, "d_k": 512, "kv_heads": 2, "causal": True, "largest": 1000},
    {"n": 4096, "d_k": 256, "time": True},
    {"n": 4096, "d_k": 512, "time": True},
    {"n": 4096, "d_k": 512, "time": True, "causal": True},
    {"n": 4096, "d_k": 1024, "time": True},
]
HEADS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    with ProcessPoolExecutor(10, multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(tried, ({**case, "time": False} for case in CASES)))
    for number, case in enumerate(CASES):
        rows[number] = tried(case) if case.get("time") else rows[number]  # alone on the GPU
        print(json.dumps(rows[number]), flush=True)
    output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def tried(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return case | measured(**case)
    except Exception as error:
        return case | {"error": f"{type(error).__name__}: {error}"[:300]}


def measured(
    n: int,
    d_k: int,
    d_v: int | None = None,
    n_k: int | None = None,
    kv_heads: int = HEADS,
    causal: bool = False,
    dtype: str = "bfloat16",
    largest: float | None = None,
    time: bool = False,
) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    kind, d_v, n_k = getattr(torch, dtype), d_v or d_k, n_k or n
    q = torch.randn(2, HEADS, n, d_k, device="cuda")
    k, v = (torch.randn(2, kv_heads, n_k, d, device="cuda") for d in (d_k, d_v))
    if largest:  # scores up to this
        q = q * largest / (q.double() @ k.double().repeat_interleave(HEADS // kv_heads, 1).mT).abs().max() * d_k**0.5
    q, k, v = (each.to(kind).requires_grad_() for each in (q, k, v))
    dO = torch.randn(2, HEADS, n, d_v, device="cuda").to(kind)
    asked = {"is_causal": causal, "enable_gqa": kv_heads != HEADS}

    def ours() -> Any:
        return attention(q, k, v, **asked)

    def theirs() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **asked)

    def repeated() -> tuple[Any, ...]:
        return q, *(each.repeat_interleave(HEADS // kv_heads, 1) for each in (k, v))

    def theirs_of_repeated() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(*repeated(), is_causal=causal)

    true, largest_score = by_definition(torch, (q, k, v), dO, causal)
    row: dict[str, Any] = {"largest_score": largest_score}
    contenders = {"ours": ours, "torch": theirs}
    row["kernel"] = kernel(torch, (q, k, v), **asked)
    if kv_heads != HEADS:  # PyTorch may have no kernel of 16-bit words for shared heads
        contenders["repeated"] = theirs_of_repeated
        row["repeated_kernel"] = kernel(torch, repeated(), is_causal=causal)
    for name, call in contenders.items():
        made = call()
        found = dict(zip(true, (made, *torch.autograd.grad(made, (q, k, v), dO)), strict=True))
        row[name] = {each: float((found[each].double() - true[each]).norm() / true[each].norm()) for each in true}
        row[f"{name}_finite"] = all(bool(each.isfinite().all()) for each in found.values())
    for name in contenders.keys() - {"ours"}:
        key = {"torch": "ratio", "repeated": "repeated_ratio"}[name]
        row[key] = max(row["ours"][each] / max(row[name][each], 1e-9) for each in true)
    row["plan"] = str(plan(n, d_k, 2 * HEADS, n_k=n_k, d_v=d_v, dtype=dtype, is_causal=causal))
    if time:
        row |= {f"{name}_ms": milliseconds(torch, call, (q, k, v), dO) for name, call in contenders.items()}
    return row


def by_definition(torch: Any, tensors: tuple[Any, ...], dO: Any, causal: bool) -> tuple[dict[str, Any], float]:
    """O, dQ, dK and dV in float64, and the largest score."""
    x = [each.detach().double().requires_grad_() for each in tensors]
    K, V = (each.repeat_interleave(x[0].shape[1] // each.shape[1], 1) for each in x[1:])
    S = x[0] @ K.mT * K.shape[-1] ** -0.5
    if causal:
        S = S.masked_fill(torch.ones(S.shape[-2:], device=S.device, dtype=torch.bool).triu(1), -torch.inf)
    O = torch.softmax(S, -1) @ V
    true = dict(zip(("O", "dQ", "dK", "dV"), (O, *torch.autograd.grad(O, x, dO.double())), strict=True))
    return true, float(S.detach()[S.detach().isfinite()].abs().max())


def milliseconds(torch: Any, call: Callable[[], Any], tensors: tuple[Any, ...], dO: Any) -> list[float]:
    """Times of both passes of a call."""
    from triton.testing import do_bench

    out = call()
    forward = do_bench(call, warmup=10, rep=60, return_mode="median")
    back = do_bench(lambda: torch.autograd.grad(out, tensors, dO, retain_graph=True), return_mode="median")
    return [forward, back]


def kernel(torch: Any, tensors: tuple[Any, ...], **asked: bool) -> str:
    """The name of the kernel that PyTorch chooses; "math" computes in float32."""
    from torch.nn.attention import SDPBackend

    chosen = torch._fused_sdp_choice(*tensors, **asked)
    return next(name for name, value in SDPBackend.__members__.items() if int(value) == chosen).lower()


if __name__ == "__main__":
    main()
