"""Attention as an operator of PyTorch: opcheck, torch.compile, CUDA graphs, streams, autocast, a second process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any


def example(torch: Any, n: int = 256, d: int = 512, heads: int = 4, kv_heads: int = 2, batch: int = 1) -> list[Any]:
    shape = (batch, heads, n, d), (batch, kv_heads, n, d), (batch, kv_heads, n, d)
    return [torch.randn(each, device="cuda", dtype=torch.bfloat16, requires_grad=True) for each in shape]


def opcheck(asked: Any) -> Iterator[dict[str, Any]]:
    import torch

    import pebblesim.operator.public  # noqa: F401

    x = example(torch)
    arguments = (*x, None, None, 100, 0, True, 0.05, 0.0, None, False)
    yield {"forward": torch.library.opcheck(torch.ops.pebblesim.attention, arguments)}
    out, lse = (each.detach() for each in torch.ops.pebblesim.attention(*arguments))
    for grad_lse in (None, torch.randn_like(lse)):
        backward = (torch.randn_like(out), grad_lse, *(each.detach() for each in x), out, lse, *arguments[3:])
        yield {"backward": torch.library.opcheck(torch.ops.pebblesim.attention_backward, backward)}


def compiled(asked: Any) -> Iterator[dict[str, Any]]:
    import torch

    from pebblesim.gpu.torch import attention

    call = partial(attention, is_causal=True, enable_gqa=True)
    for dynamic in (False, True):
        torch._dynamo.reset()
        made = torch.compile(lambda *x: call(*x).square(), fullgraph=True, dynamic=dynamic)
        for n in (256, 300, 512) if dynamic else (256,):
            x = example(torch, n)
            a, b = (torch.autograd.grad(f.sum(), x) for f in (made(*x), call(*x).square()))
            same = all(torch.allclose(p.float(), q.float(), atol=0.02, rtol=0.02) for p, q in zip(a, b, strict=True))
            yield {"dynamic": dynamic, "n": n, "same": same}
    x = example(torch)
    with torch.no_grad():
        call(*x)
    graph, outputs = torch.cuda.CUDAGraph(), []
    with torch.no_grad(), torch.cuda.graph(graph):
        outputs.append(call(*x))
    with torch.no_grad():
        for each in x:
            each.normal_()
        graph.replay()
        yield {"cuda_graph": bool((outputs[0] == call(*x)).all())}
    yield {"cuda_graph_with_gradients": captured_gradients(torch, call)}
    stream, x = torch.cuda.Stream(), example(torch, 2048)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        there = call(*x)
    stream.synchronize()
    yield {"stream": bool((there == call(*x)).all())}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = [each.detach().float().requires_grad_() for each in x]
        out = call(*y)
    yield {"autocast": [str(out.dtype), *(str(each.dtype) for each in torch.autograd.grad(out.float().sum(), y))]}
    q, k, v = (each.detach() for each in x)
    q[0, 1, 5, 3] = torch.nan
    rows = call(q, k, v).isfinite().all(-1)
    yield {"not_a_number": {"rows": int((~rows).sum()), "the_one": not bool(rows[0, 1, 5])}}


def strided(asked: Any) -> Iterator[dict[str, Any]]:
    """How far results of tensors that repeat, overlap or lie apart in memory are from those of copies of them.

    Those that repeat take Triton kernels, which round otherwise than Gluon kernels. Q, K and V are drawn each for
    itself: where Q is K a row attends to itself alone, and its gradients are rounding. Where all rows of K are one row
    dQ is zero, so the differences of gradients are divided by the norm of the largest gradient.
    """
    import torch

    from pebblesim.gpu.torch import attention

    for d in (64, 128, 256, 512):
        bases = [torch.randn(2, 4, 600, d, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        layouts: dict[str, Callable[[Any], Any]] = {
            "one row": lambda base: base[:, :, :1].expand(2, 4, 600, -1),
            "one head": lambda base: base[:, :1].expand(2, 4, 600, -1),
            "one batch": lambda base: base[:1].expand(2, 4, 600, -1),
            "every second": lambda base: base.repeat_interleave(2, 2)[:, :, ::2],
            "overlapping": lambda base: base.flatten().as_strided((2, 4, 600, base.shape[-1]), (19200, 4800, 8, 1)),
            "one token": lambda base: base[:, :, ::600],
        }
        for name, layout in layouts.items():
            given = [layout(base) for base in bases]
            row: dict[str, Any] = {"d": d, "layout": name}
            found = []
            for tensors in (given, [each.contiguous() for each in given]):
                q, k, v = (each.detach().requires_grad_() for each in tensors)
                out = attention(q, k, v, is_causal=True)
                found.append((out, *torch.autograd.grad(out, (q, k, v), bases[0][:, :, : q.shape[2]].contiguous())))
            (out, *gradients), (right, *of_copies) = found
            row["off"] = max(_off([out], [right]), _off(gradients, of_copies))
            with torch.no_grad():
                row["off_without_gradients"] = max(_off([attention(*given, is_causal=True)], [right]) for _ in "abc")
            yield row


def _off(found: list[Any], right: list[Any]) -> float:
    """The largest norm of a difference of two tensors, divided by the largest norm of what is right."""
    differences = [float((a.detach().float() - b.detach().float()).norm()) for a, b in zip(found, right, strict=True)]
    return max(differences) / max(float(each.detach().float().norm()) for each in right)


def captured_gradients(torch: Any, call: Any) -> bool:
    """Whether a graph of both passes, replayed with other numbers, gives the gradients of a call outside."""
    x = example(torch)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        torch.autograd.grad(call(*x).square().sum(), x)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = torch.autograd.grad(call(*x).square().sum(), x)
    with torch.no_grad():
        for each in x:
            each.normal_()
    graph.replay()
    true = torch.autograd.grad(call(*x).square().sum(), x)
    return all(bool((a == b).all()) for a, b in zip(made, true, strict=True))


def waits(asked: Any) -> Iterator[dict[str, Any]]:
    """Whether a call whose mask is in tensors waits for the GPU, and whether two calls give the same bits."""
    import torch

    from pebblesim.gpu.torch import attention

    masks = {
        "packed": {"cu_seqlens": torch.tensor([0, 700, 701, 2000], dtype=torch.int32, device="cuda")},
        "padded": {"key_padding_mask": (torch.arange(2000, device="cuda") < 300)[None]},
        "window": {"window": (500, 0)},
    }
    for d in (64, 128, 256, 512, 1024):
        x = example(torch, 2000, d)
        for name, mask in masks.items():
            call = partial(attention, *x, is_causal=True, enable_gqa=True, **mask)
            g = torch.randn_like(x[0])
            first = call(), *torch.autograd.grad(call(), x, g)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                out = call()
                second = out, *torch.autograd.grad(out, x, g)
                waited = False
            except RuntimeError as error:
                waited = str(error)[:200]
            finally:
                torch.cuda.set_sync_debug_mode("default")
            row: dict[str, Any] = {"d": d, "mask": name, "waited": waited}
            if not waited:
                row["same_bits"] = all(bool((a == b).all()) for a, b in zip(first, second, strict=True))
            yield row


def again(asked: Any) -> Iterator[dict[str, Any]]:
    """Kernels that two processes compile one after the other, with an empty cache before the first of them."""
    with TemporaryDirectory() as folder:
        for process in (1, 2):
            ran = subprocess.run(
                [sys.executable, "-c", ONE_PROCESS],
                env=os.environ | {"TRITON_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=False,
            )
            if ran.returncode:
                raise RuntimeError(ran.stderr[-400:])
            yield {"process": process, **json.loads(ran.stdout)}


ONE_PROCESS = """
import json, time
import torch, triton
from pebblesim.gpu.torch import attention
found = []
triton.knobs.compilation.listener = lambda cache_hit, **others: found.append(cache_hit)
torch.zeros(1, device="cuda")
start = time.perf_counter()
for n, d, options in ((4096, 512, {}), (1000, 256, {"window": (1023, 0)}), (1, 128, {"align": "end"})):
    q, k, v = (
        torch.randn(1, heads, m, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for heads, m in ((8, n), (4, max(n, 4096)), (4, max(n, 4096)))
    )
    k, v = (x if n == 1 else x[:, :, :n] for x in (k, v))
    out = attention(q, k, v, is_causal=True, enable_gqa=True, **options)
    torch.autograd.grad(out, (q, k, v), out.detach())
torch.cuda.synchronize()
seconds = time.perf_counter() - start
print(json.dumps({"kernels": len(found), "compiled": found.count(False), "seconds": seconds}))
"""
