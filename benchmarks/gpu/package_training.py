"""A package of kernels trains models of transformers on this GPU, beside eager and PyTorch's attention.

pebblesim gpu emit --target package -d 64,256,512 --mask causal,window:256,ranges --shared 4 -n 2048,8192 -o attention
python benchmarks/gpu/package_training.py attention -o FOLDER [--seconds 60]

A small Gemma 4 (head dimensions 256 under a window, 512) and a small gpt-oss (64, sinks, every second layer under a
window) learn drawn Markov chains. transformers loads the folder itself, as `attn_implementation="ORGANISATION/NAME@v1"`
does, by the `kernels` library and its variable LOCAL_KERNELS. package_training.jsonl has the losses of each step: of
eager attention in float32, which the others are judged by, of eager and PyTorch's attention in bfloat16 and of the
package; and the errors of the first gradient. package_training_times.jsonl has the milliseconds and bytes of a step at
two lengths. Rows that are there are not measured again. `--table` prints them, without a GPU; `--tiny` is for a CPU,
and a package of it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

NAME = "an-organisation/attention"
PACKAGE = f"{NAME}@v1"

BESIDE = {"gemma 4": ("eager", "sdpa"), "gpt-oss": ("eager",)}
"""Attentions of transformers that each model can be trained with; none but eager has sinks."""

LOSSES, TIMES = "package_training.jsonl", "package_training_times.jsonl"

STEPS = {"first": 0, "tenth": 9, "twentieth": 19, "thirtieth": 29, "last": -1}
"""Those whose losses a table has."""

VOCABULARY, CHOICES = 512, 4
"""Tokens, and how many of them may follow each."""


def configuration(name: str, tiny: bool) -> Any:
    """A small model; tiny for a CPU."""
    import transformers as hf

    size = 64 if tiny else 1024
    sizes = {"vocab_size": VOCABULARY, "hidden_size": size, "intermediate_size": 2 * size, "use_cache": False}
    sizes["sliding_window"], kinds = 6 if tiny else 256, ["sliding_attention", "full_attention"]
    if name == "gpt-oss":
        heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 32 if tiny else 64}
        experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
        sizes |= {"num_hidden_layers": 4, "layer_types": 2 * kinds}
        return hf.GptOssConfig(**sizes, **heads, **experts)
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "num_global_key_value_heads": 2}
    heads |= {"head_dim": 32 if tiny else 256, "global_head_dim": 32 if tiny else 512}
    sizes |= {"num_hidden_layers": 6, "layer_types": 5 * kinds[:1] + kinds[1:]}
    return hf.Gemma4TextConfig(**sizes, **heads, hidden_size_per_layer_input=0, num_kv_shared_layers=0)


def made(torch: Any, name: str, attention: str, dtype: Any, device: str, tiny: bool) -> Any:
    """A model of drawn weights, the same for all attentions."""
    import transformers as hf

    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(configuration(name, tiny), attn_implementation=attention)
    assert model.config._attn_implementation == attention
    return model.to(device, dtype).train()


@cache
def drawn(torch: Any, seed: int, n: int, device: str) -> Any:
    """Two sequences of a chain in which each token is followed by one of a few, with odds that a seed draws once."""
    chain = torch.Generator().manual_seed(1)
    after = torch.randint(0, VOCABULARY, (VOCABULARY, CHOICES), generator=chain)
    draw = torch.Generator().manual_seed(1000 + seed)
    taken = torch.randint(0, CHOICES, (n, 2), generator=draw)
    tokens = [torch.randint(0, VOCABULARY, (2,), generator=draw)]
    for each in taken[1:]:
        tokens.append(after[tokens[-1], each])
    return torch.stack(tokens, 1).to(device)


def curve(torch: Any, model: Any, asked: argparse.Namespace, n: int) -> tuple[list[float], list[Any]]:
    """Losses of each step, and the gradient of the first one."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3 if asked.tiny else 3e-4)
    losses, first = [], []
    for step in range(asked.steps):
        tokens = drawn(torch, step, n, asked.device)
        optimiser.zero_grad(set_to_none=True)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        first = first or [x.grad.float().cpu() for x in model.parameters() if x.grad is not None]
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist(), first


def curves(torch: Any, name: str, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of the losses of a model with each attention."""
    n, exact = 33 if asked.tiny else 2048, []
    ways = [("eager", torch.float32), *((each, torch.bfloat16) for each in (*BESIDE[name], PACKAGE))]
    for attention, dtype in ways:
        began = time.monotonic()
        model = made(torch, name, attention, dtype, asked.device, asked.tiny)
        losses, gradient = curve(torch, model, asked, n)
        row = {"model": name, "n": n, "attention": attention, "dtype": str(dtype), "losses": losses}
        exact = exact or gradient
        apart = sum(float((x - y).square().sum()) for x, y in zip(gradient, exact, strict=True)) ** 0.5
        row["gradient"] = apart / sum(float(x.square().sum()) for x in exact) ** 0.5
        yield row | {"seconds": time.monotonic() - began}


def times(torch: Any, name: str, n: int, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of milliseconds and bytes of a step of a model at a length, without the optimiser's."""
    tokens = drawn(torch, 0, n, asked.device)
    for attention in (*BESIDE[name], PACKAGE):
        model = made(torch, name, attention, torch.bfloat16, asked.device, asked.tiny)
        row: dict[str, Any] = {"model": name, "n": n, "attention": attention}

        def step(model: Any = model) -> None:
            model.zero_grad(set_to_none=True)
            model(tokens, labels=tokens).loss.backward()

        try:
            row |= measured(torch, step, asked.device)
        except torch.OutOfMemoryError as error:
            row["error"] = str(error)[:120]
        yield row


def measured(torch: Any, step: Any, device: str) -> dict[str, float]:
    """The first step, the median of the next ones in milliseconds, and the bytes that they take at most."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    found = []
    for number in range(6):
        if number == 1 and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        wait()
        began = time.perf_counter()
        step()
        wait()
        found.append((time.perf_counter() - began) * 1e3)
    most = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return {"first_ms": found[0], "ms": median(found[1:]), "bytes": most}


def run(asked: argparse.Namespace) -> None:
    os.environ["LOCAL_KERNELS"] = f"{NAME}={asked.package.resolve()}"
    import torch
    import transformers

    began = time.monotonic()
    asked.output.mkdir(parents=True, exist_ok=True)
    about = {"torch": torch.__version__, "transformers": transformers.__version__, "steps": asked.steps}
    about |= {"device": torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"}
    (asked.output / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    lengths = (33, 65) if asked.tiny else (2048, 8192)
    jobs = [(LOSSES, name, curves(torch, name, asked)) for name in BESIDE]
    jobs += [(TIMES, f"{name} {n}", times(torch, name, n, asked)) for n in lengths[::-1] for name in BESIDE]
    for file, what, rows in jobs:
        done = [each["what"] for each in loaded(asked.output / file)]
        if what in done:
            continue
        if time.monotonic() - began > asked.seconds:
            print(f"no time is left for {file} of {what}", flush=True)
            continue
        found = [{"what": what, **row} for row in rows]
        with (asked.output / file).open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in found)
        print(f"{time.monotonic() - began:.0f} s: {file} of {what}", flush=True)


def loaded(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none if it is not there."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def table(folder: Path) -> None:
    """Print what was measured: losses, as in docs/plugging-in.md, and steps."""
    print(f"| loss | {' | '.join(STEPS)} |", "| --- " * (1 + len(STEPS)) + "|", sep="\n")
    for row in loaded(folder / LOSSES):
        name = "the package" if row["attention"] == PACKAGE else row["attention"]
        losses = [f"{loss:.2f}" for step in STEPS.values() for loss in row["losses"][step : step + 1 or None]]
        model = row["model"].replace("gemma", "Gemma")
        print("|", " | ".join([f"{model}, {name}, {row['dtype'].rpartition('.')[2]}", *losses]), "|")
    print("\n| model | tokens | attention | ms a step | first step, ms | GiB at most |\n|---|---|---|---|---|---|")
    for row in loaded(folder / TIMES):
        name = "the package" if row["attention"] == PACKAGE else row["attention"]
        cells = (
            [f"{row['ms']:.1f}", f"{row['first_ms']:,.0f}", f"{row['bytes'] / 2**30:.1f}"] if "ms" in row else ["–"] * 3
        )
        print("|", " | ".join([row["model"], f"2 x {row['n']:,}", name, *cells]), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, nargs="?", help="folder of a package of kernels")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="after which nothing new is begun")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tiny", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--table", type=Path, help="print the rows of this folder")
    asked = parser.parse_args()
    asked.device = "cpu" if asked.tiny else "cuda"
    if asked.table:
        table(asked.table)
    elif asked.package is None or asked.output is None:
        parser.error("give a package and -o, or --table")
    else:
        run(asked)


if __name__ == "__main__":
    main()
