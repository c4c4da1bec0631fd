"""Times and memory of attention: small calls, long texts, decoding, the middle block of a VAE."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any


def host(asked: Any) -> Iterator[dict[str, Any]]:
    """Microseconds that a small call takes of the host: without gradients, and with a backward pass."""
    import torch

    from pebblesim.gpu.torch import attention

    sdpa = torch.nn.functional.scaled_dot_product_attention
    for n, d, causal in ((128, 64, False), (128, 64, True), (128, 128, True), (128, 256, True), (1, 512, False)):
        x = [torch.randn(1, 4, m, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for m in (n, 128, 128)]
        dO = torch.randn_like(x[0])
        row: dict[str, Any] = {"n": n, "d": d, "causal": causal}
        for name, attend in (("ours", attention), ("torch", sdpa)):
            call = partial(attend, *x, is_causal=causal)
            with torch.no_grad():
                row[name] = microseconds(torch, call)
            row[f"{name}, with gradients"] = microseconds(torch, partial(_gradients, torch, call, x, dO))
        yield row


def microseconds(torch: Any, call: Callable[[], Any]) -> float:
    """What a call takes of the host while the GPU is idle or behind: the median of nine times fifty."""
    for _ in range(30):
        call()
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            call()
        times.append((time.perf_counter() - start) / 50 * 1e6)
    return sorted(times)[4]


def _gradients(torch: Any, call: Callable[[], Any], x: list[Any], dO: Any) -> None:
    torch.autograd.grad(call(), x, dO)


def memory(asked: Any) -> Iterator[dict[str, Any]]:
    """Seconds, and bytes beside inputs and what each pass returns and keeps, of long texts."""
    import torch

    from pebblesim.gpu.torch import attention, plan

    for n, heads in ((16_384, 8), (65_536, 8), (131_072, 8)):
        torch.cuda.empty_cache()
        x = [torch.randn(1, heads, n, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        warm = [each[:, :1, :2048].detach().requires_grad_() for each in x]
        attention(*warm, is_causal=True).sum().backward()
        del warm
        row: dict[str, Any] = {"n": n, "heads": heads, "d": 512}
        for run in ("first", "second"):
            times, beside = [], []
            out, grads = None, ()
            for step in ("forward", "backward"):
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                begin = time.perf_counter()
                if step == "forward":
                    out = attention(*x, is_causal=True)
                else:
                    grads = torch.autograd.grad(out, x, out.detach())
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
                beside.append((torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()) / 2**20)
            row |= {f"{run}_seconds": times, "beside_MiB": beside}
            del out, grads
        yield row | {"plan": str(plan(n, 512, heads, is_causal=True))}
        del x


def decode(asked: Any) -> Iterator[dict[str, Any]]:
    """Milliseconds of one query for each of 32 heads on 8, and bytes of keys and values read each second."""
    import torch
    from triton.testing import do_bench

    from pebblesim.gpu.torch import attention

    for n_k, d, heads, kv in ((32_768, 128, 32, 8), (8192, 128, 32, 8), (32_768, 512, 8, 4), (32_768, 256, 8, 4)):
        q = torch.randn(1, heads, 1, d, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(1, kv, n_k, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        row: dict[str, Any] = {"n_k": n_k, "d": d, "heads": heads, "kv_heads": kv}
        with torch.no_grad():
            for name, call in (("ours", attention), ("torch", torch.nn.functional.scaled_dot_product_attention)):
                row[name] = do_bench(partial(call, q, k, v, enable_gqa=True), return_mode="median")
        row["ours_TBs"] = 2 * k.nbytes / row["ours"] / 1e9
        yield row


def vae(asked: Any) -> Iterator[dict[str, Any]]:
    """A VAE's middle block, one head of 512 over 128 x 128 latents, and the decoder around it: ours and diffusers' own.

    Errors are of the layer's output without its input, and of its gradient, relative to the layer in float64.
    """
    import torch
    from diffusers import AutoencoderKL
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0
    from triton.testing import do_bench

    from pebblesim.operator.integrations.diffusers import Processor

    torch.manual_seed(0)
    model = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    ).to("cuda")
    layer = model.decoder.mid_block.attentions[0]
    x, g = (torch.randn(1, 512, 128, 128, device="cuda") for _ in range(2))
    latents = torch.randn(1, 4, 128, 128, device="cuda")

    def computed(kind: Any) -> list[Any]:
        given = x.to(kind).requires_grad_()
        out = layer(given) - given
        return [out.detach(), *torch.autograd.grad(out, given, g.to(kind))]

    layer.to(torch.float64).set_processor(AttnProcessor())
    right = computed(torch.float64)
    for kind in (torch.float32, torch.bfloat16):
        model.to(kind)
        ours = Processor(compute_dtype=torch.bfloat16 if kind == torch.float32 else None)
        for name, processor in (("diffusers", AttnProcessor2_0()), ("ours", ours)):
            model.set_attn_processor(processor)
            found = computed(kind)
            row: dict[str, Any] = {"type": str(kind), "processor": name}
            row["errors"] = [float((a - b).norm() / b.norm()) for a, b in zip(found, right, strict=True)]
            with torch.no_grad():
                row["layer_ms"] = do_bench(partial(layer, x.to(kind)), return_mode="median")
            row["layer_and_gradient_ms"] = do_bench(partial(computed, kind), return_mode="median")
            with torch.no_grad():
                given = latents.to(kind)
                model.decode(given)
                torch.cuda.reset_peak_memory_stats()
                row["decoder_ms"] = do_bench(partial(model.decode, given), rep=300, return_mode="median")
                row["decoder_GB"] = torch.cuda.max_memory_allocated() / 1e9
            yield row
