"""`pebblesim.gpu.torch.attention` as an operator: errors, opcheck, torch.compile, memory, decoding, Gemma 4; on a GPU.

python benchmarks/gpu/operators.py -o benchmarks/gpu/operators.jsonl [shapes opcheck compile host memory decode gemma4]

Each row says what it is of. `--peer PATH` names a Python file with a function `attend(module, query, key, value,
attention_mask, **others)`, an attention function of transformers, that trains Gemma 4 as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

SEED = 20_261_122
LEAST_ERROR = 1e-4
"""Relative errors below this are as good as none."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=[*PARTS], help=", ".join(PARTS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--shapes", type=int, default=200, help="how many shapes are drawn")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--lengths", type=int, nargs="*", default=[4096, 8192, 16384, 32768], help="of Gemma 4's texts")
    parser.add_argument("--models", nargs="*", help="which small models, as 'Gemma 4'; all if none is named")
    parser.add_argument("--peer", type=Path, help="another attention function of transformers")
    asked = parser.parse_args()
    with asked.output.open("w", encoding="utf-8") as file:
        for part in asked.what:
            for row in caught(part, PARTS[part], asked):
                file.write(json.dumps({"part": part, **row}) + "\n")
                file.flush()
                if part != "shapes" or "error" in row or row.get("ratio", 0) > 1.5:
                    print(json.dumps({"part": part, **row}), flush=True)


def caught(part: str, made: Callable[[Any], Iterator[dict[str, Any]]], asked: Any) -> Iterator[dict[str, Any]]:
    """The rows of a part; an error ends the part, not the others."""
    try:
        yield from made(asked)
    except Exception as error:
        yield {"error": f"{type(error).__name__}: {error}"[:500]}


# Errors


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
        return options | {"key_padding": real}, allowed & real[:, None, None, :]
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
    for name, call in (("ours", partial(attention, **options)), ("torch", theirs)):
        try:
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
                found = gradients(call, [q, k, v], dO)
        except RuntimeError:
            if name == "ours":
                raise
            row["kernels"] = "math"  # PyTorch has no other kernel for it; this one computes in float32
            found = gradients(call, [q, k, v], dO)
        row[name] = [
            float((a.double() - b).norm() / b.norm().clamp(min=1e-9)) for a, b in zip(found, right, strict=True)
        ]
        row[f"{name}_finite"] = all(bool(each.isfinite().all()) for each in found)
    pairs = zip(row["ours"], row["torch"], strict=True)
    row["ratio"] = max(max(a, LEAST_ERROR) / max(b, LEAST_ERROR) for a, b in pairs)
    return row


def shapes(asked: Any) -> Iterator[dict[str, Any]]:
    start = time.time()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.workers, context) as pool:
        rows = [made.result() for made in as_completed([pool.submit(error_of, each) for each in range(asked.shapes)])]
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


# The operator


def example(torch: Any, n: int = 256, d: int = 512, heads: int = 4, kv_heads: int = 2, batch: int = 1) -> list[Any]:
    shape = (batch, heads, n, d), (batch, kv_heads, n, d), (batch, kv_heads, n, d)
    return [torch.randn(each, device="cuda", dtype=torch.bfloat16, requires_grad=True) for each in shape]


def opcheck(asked: Any) -> Iterator[dict[str, Any]]:
    import torch

    import pebblesim.gpu.torch.public  # noqa: F401

    x = example(torch)
    arguments = (*x, None, None, 100, 0, True, 0.05, 0.0, None)
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


def host(asked: Any) -> Iterator[dict[str, Any]]:
    """Microseconds that a small call takes of the host, without gradients."""
    import torch

    from pebblesim.gpu.torch import attention

    sdpa = torch.nn.functional.scaled_dot_product_attention
    for n, d, causal in ((128, 64, False), (128, 64, True), (128, 128, True), (1, 512, False)):
        q, k, v = (torch.randn(1, 4, m, d, device="cuda", dtype=torch.bfloat16) for m in (n, 128, 128))
        row: dict[str, Any] = {"n": n, "d": d, "causal": causal}
        for name, call in (("ours", attention), ("torch", sdpa)):
            with torch.no_grad():
                for _ in range(30):
                    call(q, k, v, is_causal=causal)
                torch.cuda.synchronize()
                times = []
                for _ in range(9):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    for _ in range(100):
                        call(q, k, v, is_causal=causal)
                    times.append((time.perf_counter() - start) / 100 * 1e6)
            row[name] = sorted(times)[4]
        yield row


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
        yield row | {"plan": str(plan(n, 512, heads, causal=True))}
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


# Gemma 4


def gemma4(asked: Any) -> Iterator[dict[str, Any]]:
    """A training step of six layers: milliseconds, bytes at most, and the loss."""
    import torch
    from transformers import AttentionInterface
    from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

    from pebblesim.gpu.transformers import register

    register()
    AttentionInterface.register("no attention", nothing)
    names = ["pebblesim", "sdpa", "no attention"]
    if asked.peer is not None:
        spec = importlib.util.spec_from_file_location("peer", asked.peer)
        assert spec and spec.loader
        peer = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(peer)
        AttentionInterface.register("peer", peer.attend)
        names.append("peer")
    config = Gemma4TextConfig(
        vocab_size=4096,
        hidden_size=2304,
        intermediate_size=4608,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        global_head_dim=512,
        sliding_window=1024,
        hidden_size_per_layer_input=0,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = Gemma4ForCausalLM(config).to("cuda", torch.bfloat16)
    for n in asked.lengths:
        ids = torch.randint(1, 4096, (1, n), device="cuda")
        for name in names:
            yield {"n": n, "attention": name, **step(torch, model, name, ids)}


def models(asked: Any) -> Iterator[dict[str, Any]]:
    """Small random models: errors against eager attention in float32, ours and those of eager in bfloat16."""
    import torch
    import transformers as hf
    from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

    from pebblesim.gpu.transformers import register

    register()
    small = {
        "vocab_size": 512,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
    }
    window = {"head_dim": 256, "sliding_window": 100, "num_hidden_layers": 6, "query_pre_attn_scalar": 256}
    made = {
        "Gemma 4": (
            Gemma4ForCausalLM,
            Gemma4TextConfig(
                **small,
                num_hidden_layers=6,
                head_dim=256,
                global_head_dim=512,
                sliding_window=100,
                hidden_size_per_layer_input=0,
                attention_k_eq_v=True,
                num_global_key_value_heads=1,
            ),
        ),
        "Gemma 3": (hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**small, **window)),
        "Gemma 2": (hf.Gemma2ForCausalLM, hf.Gemma2Config(**small, **window, attn_logit_softcapping=5.0)),
        "Llama 3": (hf.LlamaForCausalLM, hf.LlamaConfig(**small, num_hidden_layers=2, head_dim=128)),
    }
    for name in asked.models or made:
        kind, config = made[name]
        torch.manual_seed(0)
        model = kind(config).to("cuda").to(torch.bfloat16).float().eval()
        for weight_name, weight in model.named_parameters():
            if weight_name.endswith("q_norm.weight") and name == "Gemma 4":
                weight.data.fill_(0.125)  # random weights have scores of up to the head dimension otherwise
        for text in ("plain", "padded", "packed"):
            try:
                yield {"model": name, "text": text, **against_eager(torch, model, text)}
            except Exception as error:
                yield {"model": name, "text": text, "error": f"{type(error).__name__}: {error}"[:300]}
        for cache in ("dynamic", "static"):
            try:
                yield {"model": name, "generate": cache, **generated(torch, model.to(torch.bfloat16), cache)}
            except Exception as error:
                yield {"model": name, "generate": cache, "error": f"{type(error).__name__}: {error}"[:300]}


def against_eager(torch: Any, model: Any, text: str) -> dict[str, Any]:
    n = 301
    ids = torch.randint(1, 512, (2, n), device="cuda")
    labels, options = ids.clone(), {"use_cache": False}
    if text == "padded":
        real = torch.ones_like(ids)
        real[1, :77] = 0
        labels[1, :78] = -100  # the first token of a text is foretold from padding
        options["attention_mask"] = real
    if text == "packed":
        at = torch.arange(n, device="cuda")
        options["position_ids"] = torch.where(at < 120, at, at - 120)[None].expand(2, -1)
    real = torch.ones_like(ids) == 1 if text != "padded" else options["attention_mask"] == 1
    found: dict[Any, Any] = {}
    for attention, kind in (("eager", torch.float32), ("eager", torch.bfloat16), ("pebblesim", torch.bfloat16)):
        model.to(kind).set_attn_implementation(attention)
        model.zero_grad()
        out = model(ids, labels=labels, **options)
        out.loss.backward()
        grads = torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])
        found[attention, kind] = out.loss.detach().float(), out.logits.detach().float()[real], grads
    model.to(torch.float32)
    right, *others = found.values()
    row = {"loss": float(right[0])}
    for name, values in zip(("eager", "ours"), others, strict=True):
        row[name] = [float((a - b).norm() / b.norm()) for a, b in zip(values, right, strict=True)]
    return row


def generated(torch: Any, model: Any, cache: str) -> dict[str, Any]:
    """Tokens, of 24, that both attentions choose alike, and the largest difference of their logits until then."""
    ids = torch.randint(1, 512, (2, 150), device="cuda")
    real = torch.ones_like(ids)
    real[1, :20] = 0
    options = {"attention_mask": real, "max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    options |= {"output_logits": True, "return_dict_in_generate": True, "disable_compile": True}
    options |= {} if cache == "dynamic" else {"cache_implementation": "static"}
    made = []
    for name in ("eager", "pebblesim"):
        model.set_attn_implementation(name)
        made.append(model.generate(ids, **options))
    alike = (made[0].sequences == made[1].sequences).all(0)[150:]
    same = 24 if bool(alike.all()) else int((~alike).int().argmax())
    pairs = list(zip(made[0].logits, made[1].logits, strict=True))[: same + 1]
    worst = max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)
    model.to(torch.float32)
    return {"same_tokens": same, "logits": worst}


def step(torch: Any, model: Any, name: str, ids: Any) -> dict[str, Any]:
    model.set_attn_implementation(name)

    def run() -> Any:
        model.zero_grad(set_to_none=True)
        loss = model(ids, labels=ids).loss
        loss.backward()
        return loss.detach()

    try:
        first = time.perf_counter()
        loss = run()
        torch.cuda.synchronize()
        first = time.perf_counter() - first
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(4):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    norm = float(torch.stack([p.grad.float().norm() for p in model.parameters() if p.grad is not None]).norm())
    return {
        "ms": min(times),
        "first_s": first,
        "GB": torch.cuda.max_memory_allocated() / 1e9,
        "loss": float(loss),
        "gradient_norm": norm,
    }


def nothing(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **others: Any) -> tuple[Any, None]:
    """All that is not attention: the values of each token, and something of the queries and keys for gradients."""
    shared = query.shape[1] // key.shape[1]
    mixed = (key + value).repeat_interleave(shared, 1) + query
    return mixed.transpose(1, 2).contiguous(), None


PARTS: dict[str, Callable[[Any], Iterator[dict[str, Any]]]] = {
    "opcheck": opcheck,
    "compile": compiled,
    "host": host,
    "gemma4": gemma4,
    "models": models,
    "decode": decode,
    "memory": memory,
    "shapes": shapes,
}

if __name__ == "__main__":
    main()
