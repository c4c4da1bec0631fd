"""What `explain` says, against this card: `python benchmarks/gpu/explain_backends.py -o FOLDER [--seconds 130]`.

Draws attentions by a seed, and asks the rules which backend PyTorch takes, PyTorch itself, and the names of the kernels
that ran (backends.jsonl). A row that the file has is not measured again. Without a GPU, `--report FOLDER` prints how
many agree, and `--dry` draws and asks the rules alone. Times are those of explain_times.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pebblesim.advice.pytorch_rules import BACKENDS, Where, choose

HERE = Path(__file__).parent
RATES = HERE.parent.parent / "pebblesim" / "advice" / "pytorch_times.toml"
KERNELS = {"cudnn": "cudnn", "flash_fwd": "flash", "fmha_cutlass": "efficient"}
"""Parts of the names of kernels, and the backend that has them; math has none of these."""

MASKS = ("none", "none", "causal", "causal", "boolean", "bias", "padding", "row", "gradient", "three")
OURS = ("none", "causal")


def drawn(seed: int) -> dict[str, Any]:
    """An attention whose backend is asked, of a seed: few words, many kinds."""
    draw = Random(seed)
    kv, group = draw.choice((1, 2, 4)), draw.choice((1, 1, 1, 2, 8))
    n_q, n_k = draw.choice((1, 2, 77, 128, 333, 512)), draw.choice((1, 77, 128, 333, 512))
    d = draw.choice((1, 4, 20, 40, 64, 64, 64, 72, 100, 128, 128, 128, 160, 192, 200, 224, 256, 256, 264, 512))
    return {
        "seed": seed,
        "batch": draw.choice((1, 1, 2, 3)),
        "kv": kv,
        "group": group,
        "n_q": n_q,
        "n_k": n_q if draw.random() < 0.6 else n_k,
        "d": d,
        "d_v": d if draw.random() < 0.8 else draw.choice((64, 128, 24)),
        "dtype": draw.choice((*("bfloat16",) * 6, "float16", "float16", "float32", "float64")),
        "mask": draw.choice(MASKS),
        "training": draw.random() < 0.5,
        "gqa": draw.random() < 0.8,
        "dims": draw.choice((*(4,) * 14, 3, 5)),
        "across": draw.random() < 0.05,
        "dropout": draw.choice((*(0.0,) * 9, 0.25)),
        "off": draw.choice(((), (), ("cudnn",), ("cudnn", "flash"), ("cudnn", "efficient"))),
        "same_bits": draw.random() < 0.1,
    }


def tensors(torch: Any, shape: dict[str, Any], device: str) -> tuple[list[Any], dict[str, Any]]:
    """Queries, keys, values, and the other arguments."""
    dtype = getattr(torch, shape["dtype"])
    lead = {3: (), 4: (shape["batch"],), 5: (shape["batch"], 1)}[shape["dims"]]
    heads = shape["kv"] * shape["group"]

    def made(count: int, n: int, d: int) -> Any:
        size = (*lead, count, n, d)
        if shape["across"] and n > 1:
            x = torch.randn((*lead, count, d, n), device=device, dtype=dtype).transpose(-1, -2)
        else:
            x = torch.randn(size, device=device, dtype=dtype)
        return x.requires_grad_(shape["training"])

    sides = (heads, shape["n_q"], shape["d"]), (shape["kv"], shape["n_k"], shape["d"])
    q, k, v = (made(*each) for each in (*sides, (shape["kv"], shape["n_k"], shape["d_v"])))
    options: dict[str, Any] = {"dropout_p": shape["dropout"], "enable_gqa": shape["gqa"]}
    n_q, n_k, kind = shape["n_q"], shape["n_k"], shape["mask"]
    table = {
        "boolean": (1, 1, n_q, n_k),
        "padding": (shape["batch"], 1, 1, n_k),
        "row": (n_q, n_k),
        "bias": (shape["batch"], heads, n_q, n_k),
        "gradient": (1, heads, n_q, n_k),
        "three": (heads, n_q, n_k),
    }.get(kind)
    if kind == "causal":
        options["is_causal"] = True
    elif table is not None and kind in ("bias", "gradient"):
        options["attn_mask"] = torch.randn(table, device=device, dtype=dtype).requires_grad_(kind == "gradient")
    elif table is not None:
        options["attn_mask"] = torch.rand(table, device=device) < 0.9
    return [q, k, v], options


def told(torch: Any, shape: dict[str, Any], x: list[Any], options: dict[str, Any]) -> Iterator[Any]:
    """The call within its settings: yields (what explain recorded, the call)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from pebblesim.explaining.watching import recorded

    names = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
    on = [getattr(SDPBackend, names[name]) for name in names if name not in shape["off"]]
    call = partial(torch.nn.functional.scaled_dot_product_attention, *x, **options)
    with ExitStack() as stack:
        if shape["off"]:
            stack.enter_context(sdpa_kernel(on))
        torch.use_deterministic_algorithms(shape["same_bits"])
        stack.callback(torch.use_deterministic_algorithms, False)
        found = recorded(lambda: torch.nn.functional.scaled_dot_product_attention(*x, **options))
        yield found, call


def by_rules(torch: Any, found: Any, device: str) -> tuple[str, str]:
    """The backend that the rules name, and what they say against others."""
    (_, call), *_ = found.calls
    capability = ".".join(map(str, torch.cuda.get_device_capability())) if device == "cuda" else "9.0"
    choice = choose(call, Where(capability, found.release, found.cudnn))
    return choice.backend, str(choice)


def backends(torch: Any, seeds: range, device: str) -> Iterator[dict[str, Any]]:
    """Rows of what the rules, PyTorch and the names of kernels say."""
    for seed in seeds:
        shape = drawn(seed)
        row: dict[str, Any] = {"shape": shape}
        try:
            x, options = tensors(torch, shape, device)
            for found, call in told(torch, shape, x, options):
                row["rules"], row["why"] = by_rules(torch, found, device)
                row["probed"] = found.calls[0][1].probed
                row["kernels"] = [] if device != "cuda" else kernels_of(torch, call)
                row["ran"] = backend_of(row["kernels"])
        except (RuntimeError, ValueError) as error:  # PyTorch refuses the call, such as heads that do not divide
            row["error"] = " ".join(str(error).split())[:200]
        yield row


def kernels_of(torch: Any, call: Callable[[], Any]) -> list[str]:
    """Names of the kernels of a call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        call()
        torch.cuda.synchronize()
    return [each.key[:80] for each in seen.key_averages() if each.device_type == torch.autograd.DeviceType.CUDA]


def backend_of(names: list[str]) -> str:
    """The backend that has kernels of these names."""
    return next((backend for part, backend in KERNELS.items() if any(part in name for name in names)), "math")


def run(asked: argparse.Namespace) -> None:
    import torch

    device = "cpu" if asked.dry else "cuda"
    began = time.monotonic()
    asked.output.mkdir(parents=True, exist_ok=True)
    if device == "cuda":
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        about["cudnn"] = str(torch.backends.cudnn.version())
        (asked.output / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    path = asked.output / "backends.jsonl"
    done = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    with path.open("a", encoding="utf-8") as file:
        for row in backends(torch, range(done, asked.shapes), device):
            file.write(json.dumps(row) + "\n")
            file.flush()
            done += 1
            spent = time.monotonic() - began
            if done % 20 == 0:
                print(f"{spent:.0f} s: {done} of {asked.shapes}", flush=True)
            if "CUDA error" in row.get("error", ""):  # the process can do no more on the card
                rest = ["--seconds", str(max(1.0, asked.seconds - spent)), "--shapes", str(asked.shapes)]
                os.execv(sys.executable, [sys.executable, __file__, "-o", str(asked.output), *rest])
            if spent > asked.seconds:
                break
    print(f"{time.monotonic() - began:.0f} s: {done} of {asked.shapes}", flush=True)


def loaded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def report(folder: Path) -> None:
    """Print what agrees."""
    rows = [row for row in loaded(folder / "backends.jsonl") if "error" not in row]
    asked = [row for row in rows if row["probed"] is not None]
    for first, second in (("rules", "probed"), ("probed", "ran"), ("rules", "ran")):
        wrong = [row for row in asked if row[first] != row[second]]
        print(f"{first} = {second}: {len(asked) - len(wrong)} of {len(asked)}")
        for row in wrong[:8]:
            print(f"  {row[first]}, {row[second]}: {row['shape']} {row['why']} {row['kernels'][:2]}")
    counts = {name: sum(row["ran"] == name for row in asked) for name in BACKENDS}
    print(f"ran: {counts}; refused by PyTorch: {len(loaded(folder / 'backends.jsonl')) - len(rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--shapes", type=int, default=240)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    if asked.output:
        run(asked)
    if asked.report:
        report(asked.report)


if __name__ == "__main__":
    main()
