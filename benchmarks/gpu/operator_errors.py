"""Errors of attention and its gradients against float64, for shapes that a seed draws, beside PyTorch's kernels.

Each shape is computed three times: as kernels are chosen and noted, and twice as they are launched again.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

SEED = 20_261_122
LEAST_ERROR = 1e-4
"""Relative errors below this are as good as none."""


def drawn(number: int) -> dict[str, Any]:
    """The shape with this number: sizes, type, layout and mask."""
    draw = random.Random(SEED + number)
    kv_heads, shared = draw.choice([1, 2, 3, 4]), draw.choice([1, 1, 2, 4, 7])
    n_q, n_k = (int(2 ** draw.uniform(1, 10.5)) for _ in range(2))
    n_q, n_k = (n_q, n_k) if draw.random() < 0.5 else (n_k, n_k)
    d = draw.choice(
        [8, 24, 64, 64, 80, 96, 128, 128, 192, 256, 256, 320, 512, 512, 576, 768, 1024, 8 * draw.randint(1, 128)]
    )
    mask = draw.choice(["none", "causal", "end", "window", "packed", "padded"])
    case = {
        "number": number,
        "batch": draw.choice([1, 2]),
        "heads": kv_heads * shared,
        "kv_heads": kv_heads,
        "n_q": min(n_q, n_k) if mask in ("end", "packed") else n_q,
        "n_k": n_k,
        "d": d,
        "d_v": d if draw.random() < 0.7 else 8 * draw.randint(1, 128),
        "dtype": draw.choice(["bfloat16", "float16"]),
        "layout": draw.choice(["heads first", "tokens first", "cut from wider"]),
        "mask": mask,
    }
    if mask == "window":
        case |= {"left": max(draw.randint(0, n_k), n_q - n_k), "right": draw.choice([0, 0, draw.randint(0, 50)])}
    if mask == "packed":
        case["n_q"] = n_k
        case["starts"] = [0, *sorted(draw.randint(0, n_k) for _ in range(draw.randint(0, 5))), n_k]
    if mask == "padded":
        case["left_out"] = [draw.randint(0, n_k - 1) for _ in range(case["batch"])]
    return case


def options_of(torch: Any, case: dict[str, Any], device: str) -> tuple[dict[str, Any], Any]:
    """The arguments of `attention`, and the pairs that are allowed: booleans (batch or 1, 1, n_q, n_k)."""
    n_q, n_k = case["n_q"], case["n_k"]
    i, j = torch.arange(n_q, device=device)[:, None], torch.arange(n_k, device=device)[None, :]
    allowed = torch.ones(1, 1, n_q, n_k, dtype=torch.bool, device=device)
    options: dict[str, Any] = {"enable_gqa": True}
    if case["mask"] == "causal":
        return options | {"is_causal": True}, allowed & (j <= i)
    if case["mask"] == "end":
        return options | {"is_causal": True, "align": "end"}, allowed & (j <= i + n_k - n_q)
    if case["mask"] == "window":
        window = case["left"], case["right"]
        return options | {"window": window}, allowed & (j >= i - window[0]) & (j <= i + window[1])
    if case["mask"] == "packed":
        starts = torch.tensor(case["starts"], device=device)
        of = torch.searchsorted(starts, torch.arange(n_k, device=device), right=True)
        return options | {"cu_seqlens": starts.int(), "is_causal": True}, allowed & (of[:, None] == of) & (j <= i)
    if case["mask"] == "padded":
        real = j >= torch.tensor(case["left_out"], device=device)[:, None]
        return options | {"key_padding_mask": ~real}, allowed & real[:, None, None, :]
    return options, allowed


def error_of(number: int) -> dict[str, Any]:
    case = drawn(number)
    try:
        return case | errors(case)
    except Exception as error:
        return case | {"error": f"{type(error).__name__}: {error}"[:500]}


def errors(case: dict[str, Any]) -> dict[str, Any]:
    """Errors of O and the gradients against float64, ours and those of PyTorch's kernels with heads repeated."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from pebblesim.gpu.torch import attention
    from pebblesim.operator.known import recorded

    torch.manual_seed(case["number"])
    kind, shared = getattr(torch, case["dtype"]), case["heads"] // case["kv_heads"]

    def tensor(heads: int, n: int, d: int) -> Any:
        if case["layout"] == "tokens first":
            return torch.randn(case["batch"], n, heads, d, device="cuda").to(kind).transpose(1, 2)
        wider = 8 * (case["layout"] == "cut from wider")
        return torch.randn(case["batch"], heads, n, d + wider, device="cuda").to(kind)[..., :d]

    sizes = (case["heads"], case["n_q"]), (case["kv_heads"], case["n_k"])
    q, k, v = tensor(*sizes[0], case["d"]), tensor(*sizes[1], case["d"]), tensor(*sizes[1], case["d_v"])
    dO = tensor(*sizes[0], case["d_v"])
    options, allowed = options_of(torch, case, "cuda")

    def gradients(call: Callable[..., Any], x: list[Any], dO: Any) -> list[Any]:
        x = [each.detach().requires_grad_() for each in x]
        out = call(*x)
        return [out.detach(), *torch.autograd.grad(out, x, dO)]

    def true(q: Any, k: Any, v: Any) -> Any:
        k, v = (each.repeat_interleave(shared, 1) for each in (k, v))
        S = (q @ k.mT * case["d"] ** -0.5).masked_fill(~allowed, -torch.inf)
        return torch.softmax(S, -1) @ v

    def theirs(q: Any, k: Any, v: Any) -> Any:
        k, v = (each.repeat_interleave(shared, 1) for each in (k, v))
        if case["mask"] in ("none", "causal"):
            return sdpa(q, k, v, is_causal=case["mask"] == "causal")
        mask = torch.zeros(allowed.shape, dtype=kind, device="cuda").masked_fill(~allowed, -torch.inf)
        wide = torch.nn.functional.pad(mask, (0, -mask.shape[-1] % 8))[..., : mask.shape[-1]]
        return sdpa(q, k, v, wide.expand(q.shape[0], q.shape[1], -1, -1))

    sdpa = torch.nn.functional.scaled_dot_product_attention
    right = gradients(true, [each.double() for each in (q, k, v)], dO.double())
    row: dict[str, Any] = {"kernels": "16 bit"}
    ours = partial(attention, **options)
    for name, call in (("ours", ours), ("again", ours), ("once more", ours), ("torch", theirs)):
        try:
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
                found = gradients(call, [q, k, v], dO)
        except RuntimeError:
            if call is ours:
                raise
            row["kernels"] = "math"  # PyTorch has no other kernel for it; this one computes in float32
            found = gradients(call, [q, k, v], dO)
        row[name] = [
            float((a.double() - b).norm() / b.norm().clamp(min=1e-9)) for a, b in zip(found, right, strict=True)
        ]
        row[f"{name}_finite"] = all(bool(each.isfinite().all()) for each in found)
    pairs = [pair for name in ("ours", "again", "once more") for pair in zip(row[name], row["torch"], strict=True)]
    row["ratio"] = max(max(a, LEAST_ERROR) / max(b, LEAST_ERROR) for a, b in pairs)
    row["ours_finite"] &= row["again_finite"] and row["once more_finite"]
    row["kept"] = len(recorded._KEPT)
    return row


def shapes(asked: Any) -> Iterator[dict[str, Any]]:
    start = time.time()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.workers, context) as pool:
        numbers = range(asked.first, asked.first + asked.shapes)
        rows = [made.result() for made in as_completed([pool.submit(error_of, each) for each in numbers])]
    yield from sorted(rows, key=lambda row: row["number"])
    good = [row for row in rows if "ratio" in row]
    yield {
        "shapes": len(rows),
        "computed": len(good),
        "finite": sum(row["ours_finite"] for row in good),
        "within_1.5": sum(row["ratio"] <= 1.5 for row in good),
        "against_math": sum(row["kernels"] == "math" for row in good),
        "worst": max((row["ratio"] for row in good), default=None),
        "seconds": time.time() - start,
    }
