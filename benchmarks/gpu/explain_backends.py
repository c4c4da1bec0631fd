"""What `explain` says, against this card: `python benchmarks/gpu/explain_backends.py -o FOLDER [--seconds 130]`.

Draws attentions by a seed. For the first part (backends.jsonl) it asks the rules which backend PyTorch takes, PyTorch
itself, and the names of the kernels that ran. For the second (times.jsonl) it measures the time and memory of PyTorch's
kernels and of ours, both passes, beside the forecasts. A row that a file has is not measured again. Without a GPU,
`--report FOLDER` prints how many agree, `--dry` draws and asks the rules alone, and `--fit` writes the rates of
PyTorch's kernels (pebblesim/explaining/pytorch_times.toml) anew: from hopper.jsonl and, where FOLDERs are given to
`--rows`, from the even rows of their times.jsonl; the odd rows judge.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

from pebblesim.explaining import pytorch_times
from pebblesim.explaining.calls import AttentionCall, SeenMask
from pebblesim.explaining.rules import BACKENDS, Where, choose

HERE = Path(__file__).parent
RATES = HERE.parent.parent / "pebblesim" / "explaining" / "pytorch_times.toml"
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


def timed_shape(seed: int) -> dict[str, Any]:
    """An attention whose time is measured: 16-bit words, enough work, backends that occur."""
    draw = Random(10_000 + seed)
    n = draw.choice((512, 1024, 1536, 2048, 3000, 4096, 6144, 8192))
    group = draw.choice((1, 1, 4, 8))
    return {
        "seed": seed,
        "batch": draw.choice((1, 1, 2)),
        "kv": draw.choice((4, 8, 16) if group == 1 else (2, 4)),
        "group": group,
        "n_q": n,
        "n_k": n,
        "d": (d := draw.choice((64, 64, 96, 128, 128, 128, 192, 256, 256, 512))),
        "d_v": d,
        "dtype": "bfloat16",
        "mask": draw.choice(("none", "causal", "causal", "boolean")),
        "training": True,
        "gqa": True,
        "dims": 4,
        "across": False,
        "dropout": 0.0,
        "off": draw.choice(((), (), (), ("cudnn",), ("cudnn", "flash"))),
        "same_bits": False,
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


def times(torch: Any, seeds: range, device: str) -> Iterator[dict[str, Any]]:
    """Rows of times and memory beside forecasts."""
    for seed in seeds:
        shape = timed_shape(seed)
        row: dict[str, Any] = {"shape": shape, "device": torch.cuda.get_device_name() if device == "cuda" else device}
        try:
            x, options = tensors(torch, shape, device)
            for found, call in told(torch, shape, x, options):
                row["rules"], _ = by_rules(torch, found, device)
                row["backend"] = found.calls[0][1].probed
                if device == "cuda":
                    row |= passes(torch, call, x, "")
                    if shape["mask"] in OURS:
                        from pebblesim.gpu.torch import attention

                        ours = partial(attention, *x, is_causal=shape["mask"] == "causal", enable_gqa=True)
                        row |= passes(torch, ours, x, "ours_")
        except RuntimeError as error:  # the other shapes are measured
            row["error"] = " ".join(str(error).split())[:200]
        yield row


def passes(torch: Any, call: Callable[[], Any], x: list[Any], name: str) -> dict[str, float]:
    """Seconds of both passes, and bytes that the forward pass takes besides its output."""
    from triton.testing import do_bench

    out = call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        call()
    beside = torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()
    grad = torch.randn_like(out)
    back = partial(torch.autograd.grad, out, x, grad, retain_graph=True)
    row = {f"{name}bytes": beside}
    for way, again in (("forward", call), ("backward", back)):
        row[f"{name}{way}"] = do_bench(again, warmup=5, rep=25, return_mode="median") / 1e3
    return row


def run(asked: argparse.Namespace) -> None:
    import torch

    device = "cpu" if asked.dry else "cuda"
    began = time.monotonic()
    asked.output.mkdir(parents=True, exist_ok=True)
    if device == "cuda":
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        about["cudnn"] = str(torch.backends.cudnn.version())
        (asked.output / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    for name, made, most, share in (("backends", backends, asked.shapes, 0.4), ("times", times, asked.timed, 1.0)):
        path = asked.output / f"{name}.jsonl"
        done = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
        with path.open("a", encoding="utf-8") as file:
            for row in made(torch, range(done, most), device):
                file.write(json.dumps(row) + "\n")
                file.flush()
                done += 1
                spent = time.monotonic() - began
                if done % 20 == 0:
                    print(f"{spent:.0f} s: {done} of {most} {name}", flush=True)
                if "CUDA error" in row.get("error", ""):  # the process can do no more on the card
                    left = str(max(1.0, asked.seconds - spent))
                    sizes = ["--shapes", str(asked.shapes), "--timed", str(asked.timed)]
                    os.execv(
                        sys.executable, [sys.executable, __file__, "-o", str(asked.output), "--seconds", left, *sizes]
                    )
                if spent > share * asked.seconds:
                    break
        print(f"{time.monotonic() - began:.0f} s: {done} of {most} {name}", flush=True)


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
    errors: dict[str, list[float]] = defaultdict(list)
    for number, row in enumerate(loaded(folder / "times.jsonl")):
        if "forward" not in row:
            continue
        for name, ratio in ratios(row):
            if name.startswith("ours") or number % 2:
                errors[name].append(ratio)
    for name, each in sorted(errors.items()):
        near = sum(0.8 <= ratio <= 1.2 for ratio in each)
        print(f"{name}: forecast ÷ measured {min(each):.2f} to {max(each):.2f}, {near} of {len(each)} within 20 %")


def ratios(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Forecast ÷ measured time of PyTorch's kernels and of ours."""
    from pebblesim.operator.planning import plan

    shape, call = row["shape"], call_of(row["shape"])
    made = None
    if "ours_forward" in row:
        heads = shape["batch"] * shape["kv"]
        causal = shape["mask"] == "causal"
        made = plan(shape["n_q"], shape["d"], heads * shape["group"], kv_heads=heads, is_causal=causal, card="H200")
    for way in ("forward", "backward"):
        theirs = pytorch_times.seconds(call, row["backend"], way, row["device"])
        if theirs is not None and way in row:
            yield f"{row['backend']} {way}", theirs / row[way]
        if made is not None:
            yield f"ours {way}", getattr(made, way)[0].seconds / row[f"ours_{way}"]


def call_of(shape: dict[str, Any]) -> AttentionCall:
    """The call of a shape whose time was measured."""
    n, heads = shape["n_q"], shape["kv"] * shape["group"]
    given = shape["mask"] == "boolean"
    mask = SeenMask("dense", given=True, shape=(1, 1, n, n), boolean=True) if given else mask_of(shape["mask"])
    return AttentionCall(
        "sdpa", shape["batch"], heads, shape["kv"], n, n, shape["d"], shape["d_v"], shape["dtype"], mask, True
    )


def mask_of(kind: str) -> SeenMask:
    """The mask of a flag."""
    return SeenMask("causal", None, 0) if kind == "causal" else SeenMask()


def fit(folders: list[Path]) -> None:
    """Write the rates: for each backend, pass, mask and width the two numbers with the least squares of log errors."""
    found: dict[str, dict[tuple[Any, ...], list[tuple[AttentionCall, float]]]] = defaultdict(lambda: defaultdict(list))
    for path in (HERE / "hopper.jsonl", HERE / "h100" / "hopper.jsonl"):
        for row in loaded(path):
            if row.get("kernel") in ("cudnn", "flash", "efficient", "flex") and "tflops" in row:
                n, heads, mask = row["n"], row["heads"], mask_of(row["mask"] or "none")
                call = AttentionCall(
                    "sdpa", 1, heads, heads, n, n, row["d"], row["d_v"], "bfloat16", mask, row["way"] == "backward"
                )
                if row["d"] == row["d_v"]:
                    took = pytorch_times.operations(call, row["way"]) / (row["tflops"] * 1e12)
                    case = pytorch_times.case_of(call, row["kernel"], row["way"])
                    found[row["device"]][case.backend, case.way, case.mask, case.d].append((call, took))
    for folder in folders:
        for row in (each for each in loaded(folder / "times.jsonl")[::2] if "forward" in each):
            call = call_of(row["shape"])
            for way in ("forward", "backward"):
                case = pytorch_times.case_of(call, row["backend"], way)
                found[row["device"]][case.backend, case.way, case.mask, case.d].append((call, row[way]))
    lines = [
        "# Rates of PyTorch's kernels, fitted to hopper.jsonl, h100/hopper.jsonl and the even rows of what",
        "# explain_backends.py measured (`python benchmarks/gpu/explain_backends.py --fit`): seconds of a row,",
        "# operations per second, for each backend, pass, mask and head dimension.",
    ]
    for device, cases in found.items():
        for (backend, way, mask, d), rows in sorted(cases.items()):
            row, rate = fitted(rows, way, pytorch_times.BANDWIDTH[device])
            lines += ["", f'[["{device}"]]', f'backend = "{backend}"', f'way = "{way}"', f'mask = "{mask}"']
            lines += [f"d = {d}", f"row = {row:.4g}", f"rate = {rate:.4g}"]
    RATES.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fitted(rows: list[tuple[AttentionCall, float]], way: str, bandwidth: float) -> tuple[float, float]:
    """Seconds of a row, and operations per second, by a search over both."""

    def error(row: float, rate: float) -> float:
        each = {"row": row, "rate": rate}
        made = (
            pytorch_times.estimate(each, pytorch_times.operations(c, way), c, pytorch_times.moved(c, way), bandwidth)
            for c, _ in rows
        )
        return sum(log(one / took) ** 2 for one, (_, took) in zip(made, rows, strict=True))

    best, step = (1e-10, 3e14), 2.0
    while step > 1.001:
        near = [(best[0] * step**i, best[1] * step**j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        chosen = min(near, key=lambda each: error(*each))
        best, step = (chosen, step) if chosen != best else (best, exp(log(step) / 1.5))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seconds", type=float, default=130.0)
    parser.add_argument("--shapes", type=int, default=240)
    parser.add_argument("--timed", type=int, default=80)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rows", type=Path, nargs="*", default=[])
    asked = parser.parse_args()
    if asked.output:
        run(asked)
    if asked.fit:
        fit(asked.rows)
    if asked.report:
        report(asked.report)


if __name__ == "__main__":
    main()
