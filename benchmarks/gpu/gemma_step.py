"""A training step of six layers of Gemma 4, with our attention, PyTorch's, and without attention; on a GPU.

python benchmarks/gpu/gemma_step.py --time-limit 90 -o FOLDER [--lengths 16384 32768 5003] [--peer FILE]

Batch 1, bfloat16, random words: five layers with a window of 1,024 tokens and heads of 256 columns, one layer with
heads of 512 columns and all tokens before. A row for each length is appended to FOLDER/gemma_step.jsonl, and what is
there is not measured again. Steps of all contenders alternate, so that they have the same clock; `ms` is from the first
line of Python until the card is idle, `host_ms` until Python has launched all, and `card_ms` what all kernels of a step
take together. `kernels` are the milliseconds of the kernels that take longest in a step of ours, whose tables take 1
GiB; "pebblesim, 4 GiB" has room for more. `--peer` names a Python file with a function `attend(module, query, key,
value, attention_mask, **others)`, an attention function of transformers, which takes part.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from resumed import add, known, there

LENGTHS = 16384, 32768, 5003, 4096

LEAST, MOST, LONG = 2, 50, 2000.0
"""The least and the most steps of each contender, and milliseconds that they take together."""

ROOM = 2**32
"""Bytes that tables take where a user lets them: those of the longest text here, of two heads that share keys."""

SIZES = {
    "vocab_size": 4096,
    "hidden_size": 2304,
    "intermediate_size": 4608,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--time-limit", type=float, default=90.0, help="seconds after which nothing new is begun")
    parser.add_argument("--peer", type=Path, help="another attention function of transformers")
    parser.add_argument("--table", action="store_true", help="print the table of docs/gemma-4.md, without a GPU")
    asked = parser.parse_args()
    began, file = time.monotonic(), asked.output / "gemma_step.jsonl"
    if asked.table:
        print(*table(there(file)), sep="\n")
        return
    left = [n for n in asked.lengths if n not in known(file, "n")]
    import torch
    from timing import here

    names, model = registered(asked.peer), made(torch, SIZES, "cuda")
    card = here(torch)  # a program that runs for longer has the library after 20 s
    add(file, ({"n": n, **card, **raced(model, names, n)} for n in left), began + asked.time_limit)


COLUMNS = {"pebblesim": "ours", "pebblesim, 4 GiB": "with 4 GiB", "sdpa": "sdpa"}
"""Contenders, as the table names them, but for the one without attention."""


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Milliseconds of a step of each contender, and bytes at most."""
    head = ["n", "no attention, ms", *(f"{name}, {unit}" for unit in ("ms", "GB") for name in COLUMNS.values())]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for row in sorted(rows, key=lambda each: each["n"]):
        cells = [f"{row[name]['ms']:,.1f}" if name in row else "–" for name in ("no attention", *COLUMNS)]
        cells += [f"{row[name]['GB']:.1f}" if name in row else "–" for name in COLUMNS]
        lines.append(f"| {row['n']:,} | {' | '.join(cells)} |")
    return lines


def registered(peer: Path | None) -> list[str]:
    """The names of the attentions that take part, known to transformers."""
    from transformers import AttentionInterface

    from pebblesim.gpu.transformers import register

    register()
    AttentionInterface.register("no attention", nothing)
    register("pebblesim, 4 GiB", workspace=ROOM)
    names = ["pebblesim", "pebblesim, 4 GiB", "sdpa", "no attention"]
    if peer is not None:
        spec = importlib.util.spec_from_file_location("peer", peer)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        AttentionInterface.register("peer", module.attend)
        names.append("peer")
    return names


def made(torch: Any, sizes: dict[str, int], device: str) -> Any:
    """The model, with random weights."""
    from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(0)
    config = Gemma4TextConfig(**sizes, hidden_size_per_layer_input=0, use_cache=False)
    return Gemma4ForCausalLM(config).to(device, torch.bfloat16)


def raced(model: Any, names: list[str], n: int) -> dict[str, Any]:
    """Of each contender milliseconds of a step, bytes at most, seconds of the first step, and what it computed."""
    import torch

    ids = torch.randint(1, SIZES["vocab_size"], (1, n), device=model.device)
    steps = {name: stepping(model, name, ids) for name in names}
    found: dict[str, Any] = {}
    for name, step in steps.items():
        try:
            torch.cuda.reset_peak_memory_stats()
            first, _, loss = timed(torch, step)
            norms = [each.grad.float().norm() for each in model.parameters() if each.grad is not None]
            found[name] = {
                "first_s": first / 1e3,
                "loss": float(loss),
                "gradient_norm": float(torch.stack(norms).norm()),
            }
            found[name] |= {"GB": torch.cuda.max_memory_allocated() / 1e9, "times": [], "of_host": []}
        except Exception as error:  # of PyTorch, or of a peer
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    for number in range(MOST):
        for name, row in found.items():
            if "times" in row and (number < LEAST or sum(row["times"]) < LONG):
                ms, of_host, _ = timed(torch, steps[name])
                row["times"].append(ms)
                row["of_host"].append(of_host)
    for name, row in found.items():
        if times := row.pop("times", None):
            row |= {"ms": median(times), "least_ms": min(times), "host_ms": median(row.pop("of_host"))}
            row["card_ms"] = round(sum(kernels_of(torch, steps[name]).values()), 2)
    return found | {"kernels": dict([*kernels_of(torch, steps["pebblesim"]).items()][:24])}


def stepping(model: Any, name: str, ids: Any) -> Callable[[], Any]:
    """A function that computes the gradients of a step, and returns the loss."""

    def step() -> Any:
        model.set_attn_implementation(name)
        model.zero_grad(set_to_none=True)
        loss = model(ids, labels=ids).loss
        loss.backward()
        return loss.detach()

    return step


def timed(torch: Any, step: Callable[[], Any]) -> tuple[float, float, Any]:
    """Milliseconds of a step, until the card is idle and until all is launched, and what it returns."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    found = step()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3, (launched - begin) * 1e3, found


def kernels_of(torch: Any, step: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of all kernels by name, those that take longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for each in seen.key_averages():
        times[each.key[:60]] = times.get(each.key[:60], 0.0) + each.self_device_time_total / 1e3
    return {name: round(ms, 3) for name, ms in sorted(times.items(), key=lambda each: -each[1])}


def nothing(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **others: Any) -> tuple[Any, None]:
    """All that is not attention: the values of each token, and something of the queries and keys for gradients."""
    shared = query.shape[1] // key.shape[1]
    mixed = (key + value).repeat_interleave(shared, 1) + query
    return mixed.transpose(1, 2).contiguous(), None


if __name__ == "__main__":
    main()
