"""Attention with a bias that sequences share, and its gradient: errors of drawn calls, and times; on a GPU.

python benchmarks/gpu/bias.py --seed 1 --calls 60 --shapes 8 --time-limit 120 -o bias.jsonl

Calls are judged by formulas in float64, with all scores, and so is PyTorch's own attention with 16-bit words. Times are
of AlphaFold-like shapes: head dimension 32, heads with a bias (heads, n, n) each that all sequences share; who computes
them is in `bias_peers.py`. A row is appended as soon as it is measured, and not measured again. `--table` shows the
rows, without a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from statistics import geometric_mean, median
from typing import Any

from bias_peers import D, contenders
from resumed import add, there

NAMES = ("O", "dQ", "dK", "dV", "dB")
OTHERS = {
    "atomic": "atomic dB",
    "flex": "FlexAttention",
    "sdpa": "PyTorch, dense bias",
    "openfold3 0.4.1": "openfold3 0.4.1",
    "openfold3 0.5.0": "openfold3 0.5.0",
    "cuequivariance": "cuEquivariance",
}
"""Who else is timed, and the heads of their columns."""


# Drawn calls


WIDTHS, TYPES = (32, 16, 64, 24, 128, 40), ("bfloat16", "float16", "float32")
MASKS = None, "causal", "holes", "window", "packed", "padding", "numbers", "causal and holes"


def drawn_call(seed: int, number: int) -> dict[str, Any]:
    """A call: how batches share the bias, sizes, types, masks and options; all types and widths come in turn."""
    random, turn = Random(f"{seed}/{number}"), number + 7 * seed
    d, dtype, even = WIDTHS[turn % 6], TYPES[(turn + turn // 6) % 3], random.random() < 0.5
    mask, wide = MASKS[(turn * 5 + turn // 8) % 8], random.random() < 0.3
    batch, lead = random.choice([((5,), (1,)), ((4,), (4,)), ((2, 4), (2, 1)), ((3, 2), (1, 2)), ((64,), (1,))])
    n_q = 128 * random.randint(1, 3) if even else random.randint(1, 400)
    alike = random.random() < 0.6 or mask in ("causal", "window", "packed", "causal and holes")
    n_k = n_q if alike else (128 * random.randint(1, 3) if even else random.randint(1, 400))
    own = [random.random() < 0.85, random.random() < 0.85, True]  # of a bias that keys share the gradient is 0
    heads = random.randint(1, 4)
    shape = (*lead, *(side if mine else 1 for side, mine in zip((heads, n_q, n_k), own, strict=True)))
    return {
        "kind": "call", "seed": seed, "number": number, "batch": batch, "heads": heads, "n_q": n_q, "n_k": n_k, "d": d,
        "bias": shape, "dtype": dtype, "of_bias": "float32" if wide else dtype, "mask": mask,
        "shared": heads % 2 == 0 and random.random() < 0.3, "sinks": random.random() < 0.2,
    }  # fmt: skip


def judged(torch: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Errors of a call, and of PyTorch's attention where it gets the same bias: norms, relative to the true ones."""
    from pebblesim.gpu.torch import attention

    make = torch.Generator(device="cuda").manual_seed(row["number"])
    dtype, heads, sizes = getattr(torch, row["dtype"]), row["heads"], (row["n_q"], row["n_k"])
    normal = partial(torch.randn, device="cuda", generator=make)
    of_keys = heads // 2 if row["shared"] else heads
    shapes = (heads, sizes[0]), (of_keys, sizes[1]), (of_keys, sizes[1])
    x = [normal(*row["batch"], *shape, row["d"]).to(dtype) for shape in shapes]
    x.append((2 * normal(*row["bias"])).to(getattr(torch, row["of_bias"])))
    x += [normal(heads)] if row["sinks"] else []
    leaves, truth = [t.clone().requires_grad_() for t in x], [t.double().requires_grad_() for t in x]
    seen, options = masked(torch, row, make)
    dO = normal(*x[0].shape[:-1], row["d"]).to(dtype)
    given = {"enable_gqa": row["shared"], **options}

    def ours(q: Any, k: Any, v: Any, b: Any, sinks: Any = None) -> Any:
        return attention(q, k, v, bias=b, sinks=sinks, **given)

    found, *again = (_passes(torch, ours, leaves, dO) for _ in range(4))  # the last ones by notes of those before
    true = _passes(torch, partial(_formulas, torch, seen), truth, dO.double())
    row["errors"] = _errors(found, true)
    row["same_bits"] = all(torch.equal(a, b) for each in again for a, b in zip(found, each, strict=True))
    if row["of_bias"] == row["dtype"] and not row["sinks"]:
        row["of_pytorch"] = _errors(_passes(torch, partial(_sdpa, torch, seen), leaves, dO), true)
    return row


def masked(torch: Any, row: dict[str, Any], make: Any) -> tuple[Any, dict[str, Any]]:
    """The allowed pairs of a call, or numbers that are added to all scores, and the options that say the same."""
    n_q, n_k, mask = row["n_q"], row["n_k"], row["mask"]
    i, j = torch.arange(n_q, device="cuda")[:, None], torch.arange(n_k, device="cuda")[None]
    causal, holes = j <= i, torch.rand(n_q, n_k, device="cuda", generator=make) < 0.6
    holes[:, 0] = True
    if mask == "window":
        return (j - i <= 20) & (i - j <= 70), {"window": (70, 20)}
    if mask == "packed":
        middle = n_q // 3
        starts = torch.tensor([0, middle, n_q], device="cuda", dtype=torch.int32)
        return ((i < middle) == (j < middle)) & causal, {"cu_seqlens": starts, "is_causal": True}
    if mask == "padding":
        batch = 1
        for each in row["batch"]:
            batch *= each
        lengths = torch.randint(1, n_k + 1, (batch, 1), device="cuda", generator=make)
        return (j < lengths).view(*row["batch"], 1, 1, n_k), {"key_padding_mask": j >= lengths}
    if mask == "numbers":
        numbers = torch.randn(n_q, n_k, device="cuda", generator=make).to(getattr(torch, row["dtype"]))
        return numbers.double(), {"attn_mask": numbers}
    if mask is None:
        return j >= 0, {}
    options = {"is_causal": True} if "causal" in mask else {}
    options |= {"attn_mask": holes} if "holes" in mask else {}
    return (causal if "causal" in mask else True) & (holes if "holes" in mask else j >= 0), options


def _passes(torch: Any, call: Callable[..., Any], x: list[Any], dO: Any) -> list[Any]:
    O = call(*x)
    return [O.detach(), *torch.autograd.grad(O, x, dO)]


def _errors(found: list[Any], true: list[Any]) -> dict[str, float]:
    pairs = zip((*NAMES, "ds"), found, true, strict=False)
    return {name: float((mine.double() - its).norm() / its.norm().clamp(min=1e-3)) for name, mine, its in pairs}


def _formulas(torch: Any, seen: Any, q: Any, k: Any, v: Any, b: Any, sinks: Any = None) -> Any:
    k, v = (t.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for t in (k, v))
    S = torch.einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5 + b
    S = S.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else S + seen
    if sinks is not None:
        S = torch.cat([S, sinks[:, None, None].expand(*S.shape[:-1], 1)], -1)
    return torch.einsum("...ij,...jd->...id", S.softmax(-1)[..., : k.shape[-2]], v)


def _sdpa(torch: Any, seen: Any, q: Any, k: Any, v: Any, b: Any) -> Any:
    """PyTorch's attention with a dense bias for each sequence, in rows that begin where its kernels need it."""
    k, v = (t.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for t in (k, v))
    whole = (*q.shape[:-1], k.shape[-2])
    b = b.expand(whole)
    b = b.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else b + seen.to(b.dtype)
    flat = [t.reshape(-1, *t.shape[-3:]) for t in (q, k, v, b)]
    if missing := -flat[3].shape[-1] % 8:
        flat[3] = torch.nn.functional.pad(flat[3], (0, missing))[..., : whole[-1]]
    return torch.nn.functional.scaled_dot_product_attention(*flat).reshape(q.shape)


# Times


def drawn_shape(seed: int, number: int) -> dict[str, Any]:
    """A layer: tokens, heads and sequences."""
    random = Random(f"{seed}/shape/{number}")
    n, heads = (384, 768)[number % 2], random.choice([4, 8, 16])
    sequences = 2 ** random.randint(6, 9)
    while sequences * heads * n * n > 2**31.3:
        sequences //= 2
    return {"kind": "time", "seed": seed, "number": number, "n": n, "heads": heads, "sequences": sequences, "d": D}


def timed(torch: Any, row: dict[str, Any], openfold: dict[str, Path]) -> dict[str, Any]:
    """Times, peaks of memory and errors of all contenders; the words that our kernels are counted to move."""
    from timing import by_kernel, together

    n, heads, sequences = row["n"], row["heads"], row["sequences"]
    make = torch.Generator(device="cuda").manual_seed(n)
    normal = partial(torch.randn, device="cuda", generator=make, dtype=torch.bfloat16)
    x = [normal(sequences, heads, n, D).requires_grad_() for _ in "QKV"] + [normal(1, heads, n, n).requires_grad_()]
    dO = normal(sequences, heads, n, D)
    torch._dynamo.reset()  # else FlexAttention is not compiled after some layers
    calls = contenders(sequences, heads, n, openfold)
    row |= {"errors": {}, "refused": {}, "peak_mib": {}, "counted": counted(n, heads, sequences)}
    some = [t.detach()[:2].double().requires_grad_() for t in x[:3]] + [x[3].detach().double().requires_grad_()]
    true = _formulas(torch, torch.ones(n, n, dtype=torch.bool, device="cuda"), *some)
    dBs = {}
    for name, call in list(calls.items()):
        try:
            torch.cuda.synchronize()
            made = _passes(torch, call, x, dO)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            made = None
            made = _passes(torch, call, x, dO)
        except Exception as error:  # of PyTorch's compiler, or no memory
            row["refused"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            del calls[name]
            continue
        row["peak_mib"][name] = (torch.cuda.max_memory_allocated() - before) // 2**20
        row["errors"][name] = float((made[0][:2] - true).norm() / true.norm())
        dBs[name] = made[4].float()
        del made
    row["dB_from_ours"] = {name: float((t - dBs["ours"]).norm() / dBs["ours"].norm()) for name, t in dBs.items()}
    del true, some, dBs
    for way in ("forward", "both"):
        row[way] = together(torch, {name: [partial(_step, torch, way, call, x, dO)] for name, call in calls.items()}, 3)
    row["kernels"] = {
        name: by_kernel(torch, partial(_step, torch, "both", call, x, dO)) for name, call in calls.items()
    }
    return row


def _step(torch: Any, way: str, call: Callable[..., Any], x: list[Any], dO: Any) -> None:
    if way == "forward":
        with torch.no_grad():
            call(*x)
        return
    torch.autograd.grad(call(*x), x, dO)


def counted(n: int, heads: int, sequences: int) -> dict[str, dict[str, list[int]]]:
    """Words that each pass reads and writes of each tensor, counted in its program: of all heads and sequences.

    Of dB they are those of one part of the sequences.
    """
    from pebblesim.kernels.tables import moved_words
    from pebblesim.operator.bias import programs

    found = {}
    passes_of = {"O": programs.FORWARD, "dQ": programs.OF_QUERIES, "dK, dV": programs.ACROSS, "dB": programs.OF_BIAS}
    for name, which in passes_of.items():
        made = programs.kernels_of(which, "16 bits", D)
        at_once = sequences if name == "dB" else made.sequences
        sizes = {"n_q": n, "n_k": n, "d_k": D, "d_v": D, **made.tiling.blocks, "R": at_once}
        moved = moved_words(programs.program(which, made), sizes)
        found[name] = {
            tensor: [heads * (sequences // at_once) * words for words in both] for tensor, both in moved.items()
        }
    return found


# Tables


def table(rows: list[dict[str, Any]]) -> None:
    """Print errors of the calls, and times of the layers, with geometric means."""
    calls = [row for row in rows if row["kind"] == "call" and "errors" in row]
    if calls:
        alike = sum(row["same_bits"] for row in calls)
        print(f"{len(calls)} drawn calls, {alike} with the same bits when they are made again; errors:\n")
        print("| | median | most | beside PyTorch's, median | most |\n|---|---|---|---|---|")
        for name in NAMES:
            own = [row["errors"][name] for row in calls]
            beside = [row["errors"][name] / max(row["of_pytorch"][name], 1e-4) for row in calls if "of_pytorch" in row]
            print(f"| {name} | {median(own):.4f} | {max(own):.4f} | {median(beside):.2f} | {max(beside):.2f} |")
        print()
    shapes = sorted((row for row in rows if row["kind"] == "time"), key=lambda row: (row["n"], row["heads"]))
    if not shapes:
        return
    others = [name for name in OTHERS if any(name in row["both"] for row in shapes)]
    heads = ["n, heads, sequences", "pass", "ours, ms", *(OTHERS[name] for name in others)]
    print("|", " | ".join(heads), "|\n" + "|---" * len(heads) + "|")
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in shapes:
        for way in ("forward", "both"):
            times = {name: each["wall_us"] for name, each in row[way].items()}
            for name in (each for each in others if each in times):
                for kind in ("wall_us", "card_us"):
                    ratio = row[way][name][kind] / row[way]["ours"][kind]
                    ratios.setdefault((f"{way}, {kind}", name), []).append(ratio)
            card = {name: each["card_us"] / 1e3 for name, each in row[way].items()}
            all_of_them = ("ours", *others)
            cells = [f"{times[name] / 1e3:.2f} ({card[name]:.2f})" if name in times else "–" for name in all_of_them]
            layer = ", ".join(str(row[what]) for what in ("n", "heads", "sequences"))
            print("|", " | ".join([layer, "forward" if way == "forward" else "both passes", *cells]), "|")
    print()
    for name in ("ours", *others):
        peaks = [row["peak_mib"][name] for row in shapes if name in row["peak_mib"]]
        print(f"memory of both passes beside inputs: {name} {min(peaks)} to {max(peaks)} MiB")
    print()
    for (way, name), values in ratios.items():
        print(f"{way}: {name} {geometric_mean(values):.2f} times ours, {min(values):.2f} to {max(values):.2f}")


def beside(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, each with who was timed for the same layer in other rows alone."""
    of_layers = {(row["seed"], row["number"]): row for row in others if row["kind"] == "time"}
    made = []
    for row in rows:
        other = of_layers.get((row["seed"], row["number"])) if row["kind"] == "time" else None
        named = {} if other is None else {name: other[name] | row[name] for name in ("forward", "both", "peak_mib")}
        made.append(row | named)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--shapes", type=int, default=8)
    parser.add_argument("--openfold3", nargs="*", default=(), metavar="RELEASE=FILE", help="evoformer.py of a wheel")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds after which nothing new is begun")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--beside", type=Path, help="rows of the same layers, with who is not among those of -o")
    asked, began = parser.parse_args(), time.monotonic()
    if asked.table:
        return table(beside(there(asked.output), [] if asked.beside is None else there(asked.beside)))
    import torch

    add(asked.output, measured(torch, asked), began + asked.time_limit)
    table(there(asked.output))


def measured(torch: Any, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of what is asked for and not there yet."""
    from pebblesim.operator.known import native

    if asked.shapes and (thread := native.begin()) is not None:
        thread.join()  # the library that makes known calls: it is compiled once for a machine
    known = {(row["kind"], row.get("seed"), row.get("number")) for row in there(asked.output)}
    device = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "library": native.state()}
    openfold = {release: Path(path) for release, path in (each.split("=", 1) for each in asked.openfold3)}
    todo: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        *((judged, drawn_call(asked.seed, number)) for number in range(asked.calls)),
        *((partial(timed, openfold=openfold), drawn_shape(asked.seed, number)) for number in range(asked.shapes)),
    ]
    for measure, row in todo:
        if (row["kind"], row["seed"], row["number"]) in known:
            continue
        try:
            yield measure(torch, row) | device
        except torch.OutOfMemoryError as error:
            print("no memory for", row, str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
