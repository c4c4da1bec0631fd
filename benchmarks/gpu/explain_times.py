"""Forecasts of `explain` beside times on this GPU: `python benchmarks/gpu/explain_times.py -o FOLDER [--seconds 130]`.

Attentions drawn by seeds, `--seeds FIRST:END`; both passes of PyTorch's attention and of ours, on the card alone and
with launches (`timing.together`), and the bytes that a forward pass takes besides its output. Kernels are compiled
before, by several processes. A row that FOLDER/times.jsonl has is not measured again.

Without a GPU, `--report FILE…` prints how many forecasts are within 20 % of the card's time, and
`--fit FILE…` writes the rates of PyTorch's kernels (pebblesim/advice/pytorch_times.toml) anew: from hopper.jsonl,
h100/hopper.jsonl and these rows. Rows that were fitted to judge nothing: report those of other seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from explain_backends import loaded, tensors, told  # noqa: E402

from pebblesim.advice import cards, pytorch_times  # noqa: E402
from pebblesim.advice.calls import AttentionCall, SeenMask  # noqa: E402
from pebblesim.advice.pytorch_rules import Where  # noqa: E402
from pebblesim.explaining.judging import judge  # noqa: E402

RATES = HERE.parents[1] / "pebblesim" / "advice" / "pytorch_times.toml"

WAYS = ("forward", "backward")

OURS = ("none", "causal", "window")
"""Masks that our kernels know."""

FUSED = ("cudnn", "flash", "efficient", "flex")
"""Backends of which rates are fitted."""

LEFT = 511
"""Keys before each query that a window allows."""


def drawn(seed: int) -> dict[str, Any]:
    """An attention of 16-bit words, with enough work to be timed, such that all backends occur."""
    draw = Random(10_000 + seed)
    n = draw.choice((512, 1024, 1536, 2048, 3000, 4096, 6144, 8192))
    group = draw.choice((1, 1, 4, 8))
    shape = {
        "seed": seed,
        "batch": draw.choice((1, 1, 2)),
        "kv": draw.choice((4, 8, 16) if group == 1 else (2, 4)),
        "group": group,
        "n_q": n,
        "n_k": n,
        "d": (d := draw.choice((64, 64, 96, 128, 128, 128, 192, 256, 256, 512))),
        "d_v": d,
        "mask": draw.choice(("none", "causal", "causal", "boolean")),
        "off": draw.choice(((), (), (), ("cudnn",), ("cudnn", "flash"))),
    }
    if draw.random() < 0.15:
        shape["mask"] = "window"
    always = {"dtype": "bfloat16", "training": True, "gqa": True, "dims": 4, "across": False}
    return shape | always | {"dropout": 0.0, "same_bits": False}


def of_window(torch: Any, n: int, device: str) -> Any:
    """The mask of a window in memory, as transformers gives it to PyTorch."""
    at = torch.arange(n, device=device)
    return ((at <= at[:, None]) & (at >= at[:, None] - LEFT))[None, None]


def ours(x: list[Any], shape: dict[str, Any]) -> Callable[[], Any]:
    """A call of our attention."""
    from pebblesim.gpu.torch import attention

    window = (LEFT, 0) if shape["mask"] == "window" else None
    return partial(attention, *x, is_causal=shape["mask"] == "causal", window=window, enable_gqa=True)


def warm(torch: Any, shapes: list[dict[str, Any]], part: int, parts: int) -> None:
    """Compile the kernels of ours for one of several parts of the shapes."""
    for shape in shapes[part::parts]:
        if shape["mask"] in OURS:
            x, _ = tensors(torch, shape, "cuda")
            out = ours(x, shape)()
            torch.autograd.grad(out, x, torch.ones_like(out))
            torch.cuda.synchronize()


def measured(torch: Any, shape: dict[str, Any], device: str) -> dict[str, Any]:
    """The times of a shape: seconds by whose, pass and kind of time."""
    from timing import sets_of

    x, options = tensors(torch, shape, device)
    if shape["mask"] == "window":
        options["attn_mask"] = of_window(torch, shape["n_q"], device)
    made: dict[str, Any] = {"shape": shape, "device": torch.cuda.get_device_name() if device == "cuda" else device}
    size = sum(each.numel() * each.element_size() for each in x)
    sets = [x, *(tensors(torch, shape, device)[0] for _ in range(sets_of(4 * size) - 1))]
    for found, _ in told(torch, shape, x, options):
        made["backend"] = found.calls[0][1].probed
        if device != "cuda":
            return made
        calls = {"theirs": [partial(torch.nn.functional.scaled_dot_product_attention, *x, **options) for x in sets]}
        if shape["mask"] in OURS:
            calls["ours"] = [ours(x, shape) for x in sets]
        made["bytes"] = {name: beside(torch, each[0]) for name, each in calls.items()}
        for way in WAYS:
            made[way] = both(torch, calls, sets, way)
    return made


def beside(torch: Any, call: Callable[[], Any]) -> int:
    """Bytes that a forward pass takes at most, besides its output."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = call()
    return int(torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size())


def both(torch: Any, calls: dict[str, Any], sets: list[Any], way: str) -> dict[str, dict[str, float]]:
    """Seconds of a pass of each attention, on the card alone and with launches."""
    from timing import together

    if way == "forward":
        with torch.no_grad():
            found = together(torch, calls, 3)
    else:
        passes = {}
        for name, several in calls.items():
            outs = [call() for call in several]
            passes[name] = [
                partial(torch.autograd.grad, out, x, torch.randn_like(out), retain_graph=True)
                for out, x in zip(outs, sets, strict=True)
            ]
        found = together(torch, passes, 3)
    return {name: {kind: each[f"{kind}_us"] / 1e6 for kind in ("card", "wall", "host")} for name, each in found.items()}


def compiled(asked: argparse.Namespace, began: float) -> None:
    """Have several processes compile the kernels of all shapes."""
    command = [sys.executable, __file__, *sys.argv[1:], "--warm"]
    parts = [subprocess.Popen([*command, str(i), str(asked.workers)]) for i in range(asked.workers)]
    for each in parts:
        try:
            each.wait(max(1.0, 0.6 * asked.seconds - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            each.kill()
    print(f"{time.monotonic() - began:.0f} s: kernels are compiled", flush=True)


def run(asked: argparse.Namespace) -> None:
    import torch

    device, began = "cpu" if asked.dry else "cuda", time.monotonic()
    asked.output.mkdir(parents=True, exist_ok=True)
    path = asked.output / "times.jsonl"
    done = {row["shape"]["seed"] for row in loaded(path)}
    shapes = [drawn(seed) for seed in asked.seeds if seed not in done]
    if asked.warm:
        return warm(torch, shapes, *asked.warm)
    if device == "cuda" and asked.workers:
        compiled(asked, began)
    if device == "cuda":
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        about["cudnn"] = str(torch.backends.cudnn.version())
        (asked.output / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    for number, shape in enumerate(shapes if not asked.compile else ()):
        if time.monotonic() - began > asked.seconds:
            print(f"{len(shapes) - number} shapes are left", flush=True)
            break
        try:
            row = measured(torch, shape, device)
        except RuntimeError as error:  # the other shapes are measured
            row = {"shape": shape, "error": " ".join(str(error).split())[:200]}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if number % 10 == 9:
            print(f"{time.monotonic() - began:.0f} s: {number + 1} of {len(shapes)} shapes", flush=True)


# -- without a GPU ----------------------------------------------------------------------------------------------------


def call_of(shape: dict[str, Any], backend: str) -> AttentionCall:
    """The call of a shape, as `explain` has it, of which PyTorch said what backend it takes."""
    n, heads, kind = shape["n_q"], shape["kv"] * shape["group"], shape["mask"]
    mask = mask_of(kind)
    if kind in ("boolean", "window"):
        limits = ("dense", None, None) if kind == "boolean" else ("window", LEFT, 0)
        mask = SeenMask(*limits, given=True, shape=(1, 1, n, n), boolean=True)
    d, d_v = shape["d"], shape["d_v"]
    words = ("sdpa", shape["batch"], heads, shape["kv"], n, n, d, d_v, shape["dtype"])
    return AttentionCall(*words, mask, True, enable_gqa=True, off=tuple(shape["off"]), probed=backend)


def mask_of(kind: str) -> SeenMask:
    """The mask of a flag."""
    return SeenMask("causal", None, 0) if kind == "causal" else SeenMask()


def ratios(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Forecast ÷ time on the card, of PyTorch's kernels and of ours, as `explain` prints them."""
    call, card = call_of(row["shape"], row["backend"]), cards.card("H200")
    made = judge("", "", 1, call, card, Where("9.0", (2, 11), None))
    for way in WAYS:
        one, found = made.passes[way], row[way]
        if one.theirs is not None and one.measured:
            yield f"{row['backend']} {way}", one.theirs / found["theirs"]["card"]
        if one.ours is not None and "ours" in found:
            yield f"ours {way}", one.ours / found["ours"]["card"]


def report(paths: list[Path], far: bool) -> None:
    """Print how many forecasts are near, by whose and pass; with `far` each that is not."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in (row for path in paths for row in loaded(path) if "forward" in row):
        for name, ratio in ratios(row):
            errors[name].append(ratio)
            if far and not 0.8 <= ratio <= 1.2:
                shape = {key: row["shape"][key] for key in ("seed", "batch", "kv", "group", "n_q", "d", "mask")}
                whose, way = "ours" if name.startswith("ours") else "theirs", name.split()[1]
                print(f"{name}: {ratio:.2f} of {row[way][whose]['card'] * 1e6:,.0f} µs, {shape}")
    for whose, chosen in (("ours", True), ("PyTorch's", False)):
        kinds = {name: each for name, each in sorted(errors.items()) if name.startswith("ours") == chosen}
        for name, each in kinds.items():
            print(f"  {name}: forecast ÷ measured {min(each):.2f} to {max(each):.2f}, {near(each)} within 20 %")
        print(f"{whose}: {near([one for each in kinds.values() for one in each])} within 20 %")


def near(ratios: list[float]) -> str:
    return f"{sum(0.8 <= each <= 1.2 for each in ratios)} of {len(ratios)}"


Cases = dict[str, dict[tuple[Any, ...], list[tuple[AttentionCall, float]]]]


def fit(paths: list[Path]) -> None:
    """Write the rates: for each backend, pass, mask and width the two numbers with the least squares of log errors."""
    found: Cases = defaultdict(lambda: defaultdict(list))

    def add(device: str, call: AttentionCall, backend: str, way: str, took: float) -> None:
        case = pytorch_times.case_of(call, backend, way)
        found[device][case.backend, case.way, case.mask, case.d].append((call, took))

    for path in (HERE / "hopper.jsonl", HERE / "h100" / "hopper.jsonl"):
        for row in loaded(path):
            if row.get("kernel") in FUSED and "tflops" in row and row["d"] == row["d_v"]:
                n, heads, mask = row["n"], row["heads"], mask_of(row["mask"] or "none")
                sizes = ("sdpa", 1, heads, heads, n, n, row["d"], row["d_v"], "bfloat16")
                call = AttentionCall(*sizes, mask, row["way"] == "backward")
                took = pytorch_times.operations(call, row["way"]) / (row["tflops"] * 1e12)
                add(row["device"], call, row["kernel"], row["way"], took)
    for row in (row for path in paths for row in loaded(path) if row.get("backend") in FUSED):
        call = call_of(row["shape"], row["backend"])
        for way in WAYS:
            add(row["device"], call, row["backend"], way, row[way]["theirs"]["card"])
    lines = [
        "# Rates of PyTorch's kernels, fitted to hopper.jsonl, h100/hopper.jsonl and rows of explain_times.py",
        "# (`python benchmarks/gpu/explain_times.py --fit FILE…`): seconds of a row and operations per second of one",
        "# multiprocessor, for each backend, pass, mask and head dimension.",
    ]
    for device, cases in found.items():
        for (backend, way, mask, d), rows in sorted(cases.items()):
            row, rate = fitted(rows, {"backend": backend, "d": d}, way, device)
            lines += ["", f'[["{device}"]]', f'backend = "{backend}"', f'way = "{way}"', f'mask = "{mask}"']
            lines += [f"d = {d}", f"row = {row:.4g}", f"rate = {rate:.4g}"]
    RATES.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fitted(rows: list[tuple[AttentionCall, float]], case: dict[str, Any], way: str, device: str) -> tuple[float, float]:
    """Seconds of a row, and operations per second, by a search over both."""

    def error(row: float, rate: float) -> float:
        each = {"row": row, "rate": rate, **case}
        return sum(log(pytorch_times.estimate(each, call, way, device) / took) ** 2 for call, took in rows)

    best, step = (1e-8, 3e12), 2.0
    while step > 1.001:
        near = [(best[0] * step**i, best[1] * step**j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        chosen = min(near, key=lambda each: error(*each))
        best, step = (chosen, step) if chosen != best else (best, exp(log(step) / 1.5))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seeds", default="0:60", help="FIRST:END")
    parser.add_argument("--seconds", type=float, default=130.0, help="after which nothing new is begun")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile kernels before; 0 for none")
    parser.add_argument("--compile", action="store_true", help="compile kernels and measure nothing")
    parser.add_argument("--warm", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help="draw and record calls on the CPU alone")
    parser.add_argument("--report", type=Path, nargs="+")
    parser.add_argument("--far", action="store_true", help="report each forecast that is not within 20 %%, too")
    parser.add_argument("--fit", type=Path, nargs="+")
    asked = parser.parse_args()
    asked.seeds = range(*map(int, asked.seeds.split(":")))
    if asked.output:
        run(asked)
    if asked.fit:
        fit(asked.fit)
    if asked.report:
        report(asked.report, asked.far)


if __name__ == "__main__":
    main()
