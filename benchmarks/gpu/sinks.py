"""What sinks cost: layers as in gpt-oss, drawn by a seed, timed with and without them, beside others; on a GPU.

python benchmarks/gpu/sinks.py --seed 1 --shapes 12 --time-limit 120 -o sinks.jsonl
python benchmarks/gpu/sinks.py --check --seed 1 --shapes 12 --time-limit 120 -o sinks_check.jsonl

64 heads on 8, d = 64, causal or a window of 128 keys. "flex" multiplies FlexAttention's O with σ(L - s), as
transformers does; "eager" appends a column to the scores. Both get the gradient of s from PyTorch. With `--alone` there
are, in their place, "fixed", ours with sinks that have no gradient, and "view": attention without sinks beside a view
of s, with gradients of both, which is what PyTorch takes for one more gradient for which nothing is computed. A row is
appended as soon as it is measured, and not measured again. `--table` shows the rows, without a GPU. `--check` compares
results of drawn calls with scores in float64: each call several times, and for other lengths, so that passes of Python,
noted passes and those of the library are among them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import cache, partial
from math import isnan
from pathlib import Path
from random import Random
from statistics import geometric_mean
from typing import Any

HEADS, KV_HEADS, D, WINDOW = 64, 8, 64, 128

MOST_OF_EAGER = 2048
"""Queries up to which all scores are stored."""

ROUNDS = 25
"""Rounds in which contenders take turns: what a program waits for differs much from one to the next."""

ALONE = ("without", "fixed")
"""Contenders without a gradient of s."""


def drawn(seed: int, number: int) -> tuple[int, int, bool]:
    """Batch, length, and whether there is a window: 2^8 to 2^14 queries in all, odd lengths as often as others."""
    random = Random(f"{seed}/{number}")
    n = round(2 ** random.uniform(8, 13.5))
    batch = 2 ** random.randrange(0, 1 + max(0, (2**14 // n).bit_length() - 1))
    return batch, n if random.random() < 0.5 else n - n % 8, random.random() < 0.5


def measured(torch: Any, batch: int, n: int, window: bool, alone: bool) -> dict[str, Any]:
    """Times and errors of each contender for a layer; `alone`: of ours."""
    from timing import together

    from pebblesim.gpu.torch import attention

    make = torch.Generator(device="cuda").manual_seed(n)
    normal = partial(torch.randn, device="cuda", generator=make, dtype=torch.bfloat16)
    x = [normal(batch, heads, n, D).requires_grad_() for heads in (HEADS, KV_HEADS, KV_HEADS)]
    dO, s = normal(batch, HEADS, n, D), normal(HEADS).requires_grad_()
    options: dict[str, Any] = {"is_causal": True, "enable_gqa": True} | ({"window": (WINDOW - 1, 0)} if window else {})
    attends: dict[str, Callable[..., Any]] = {
        "without": lambda Q, K, V, s: attention(Q, K, V, **options),
        "ours": lambda Q, K, V, s: attention(Q, K, V, sinks=s, **options),
    }
    if alone:
        fixed = s.detach()
        attends["fixed"] = lambda Q, K, V, s: attention(Q, K, V, sinks=fixed, **options)
        attends["view"] = lambda Q, K, V, s: (attention(Q, K, V, **options), s.view(-1))
    else:
        attends["flex"] = _flex(n, window)
    if n <= MOST_OF_EAGER and not alone:
        attends["eager"] = partial(_eager, torch, window)
    truth = [t.detach().double().requires_grad_() for t in (*(t[:1] for t in x), s)]
    O = _eager(torch, window, *truth) if n <= MOST_OF_EAGER else None
    row: dict[str, Any] = {"errors": {}, "refused": {}}
    for name, attend in list(attends.items()):
        try:
            made = attend(*x, s)
            torch.autograd.grad(made, x if name in ALONE else [*x, s], (dO, s.detach()) if name == "view" else dO)
        except Exception as error:  # of PyTorch's compiler
            row["refused"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            del attends[name]
            continue
        if O is not None and name not in ("without", "view"):
            row["errors"][name] = float((made[:1] - O).norm() / O.norm())
    del O, truth
    for way in ("forward", "both"):
        calls = {
            name: [partial(_step, torch, way, attend, x if name in ALONE else [*x, s], (*x, s), given)]
            for name, attend in attends.items()
            for given in [(dO, s.detach()) if name == "view" else dO]
        }
        row[way] = together(torch, calls, ROUNDS, "without")
    return row


def _step(torch: Any, way: str, attend: Callable[..., Any], wanted: list[Any], x: tuple[Any, ...], given: Any) -> None:
    if way == "forward":
        with torch.no_grad():
            attend(*x)
        return
    torch.autograd.grad(attend(*x), wanted, given)


def _seen(q: Any, k: Any, window: bool) -> Any:
    return (q >= k) & (q - k < WINDOW) if window else q >= k


def _eager(torch: Any, window: bool, Q: Any, K: Any, V: Any, s: Any) -> Any:
    K, V = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (K, V))
    at = torch.arange(Q.shape[2], device=Q.device)
    S = (Q @ K.mT * D**-0.5).masked_fill(~_seen(at[:, None], at, window), -torch.inf)
    sinks = s[None, :, None, None].expand(*S.shape[:3], 1)
    return torch.cat([S, sinks], -1).softmax(-1)[..., :-1] @ V


def _flex(n: int, window: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask

    compiled = _compiled()
    mask = create_block_mask(lambda b, h, q, k: _seen(q, k, window), None, None, n, n, device="cuda")

    def attend(Q: Any, K: Any, V: Any, s: Any) -> Any:
        import torch

        O, L = compiled(Q, K, V, block_mask=mask, enable_gqa=True, return_lse=True)
        return O * torch.sigmoid(L - s[:, None].float())[..., None].to(O.dtype)

    return attend


@cache
def _compiled() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def checked(torch: Any, seed: int, number: int) -> dict[str, Any]:
    """The errors of a drawn call's O and gradients, relative to norms, each the largest of several calls."""
    from pebblesim.gpu.torch import attention

    random = Random(f"{seed}/{number}/check")
    d, (heads, kv_heads) = (
        random.choice((64, 64, 64, 128, 128, 256, 512)),
        random.choice(((64, 8), (8, 8), (8, 2), (16, 1))),
    )
    mask, kind = (
        random.choice(("none", "causal", "window", "packed", "padding")),
        random.choice(("bfloat16", "float16")),
    )
    of_sinks = random.choice(("same", "float32"))
    row: dict[str, Any] = {
        "d": d,
        "heads": heads,
        "kv_heads": kv_heads,
        "mask": mask,
        "type": kind,
        "of_sinks": of_sinks,
    }
    row |= {"lengths": [], "errors": {}}
    n, batch = random.randrange(100, 1200), 1 if mask == "packed" else random.choice((1, 2))
    for length in (n, n, n, n + 1, n + 1, n + 3, n + 16, n + 16):
        for name, error in _errors(torch, attention, batch, length, row).items():
            several = error, row["errors"].get(name, 0.0)
            row["errors"][name] = max((isnan(each), each) for each in several)[1]  # what is no number stays
        row["lengths"].append(length)
    return row


def _errors(torch: Any, attention: Any, batch: int, n: int, row: dict[str, Any]) -> dict[str, float]:
    kind, d, heads, kv_heads = getattr(torch, row["type"]), row["d"], row["heads"], row["kv_heads"]
    make = torch.Generator(device="cuda").manual_seed(n)
    x = [torch.randn(batch, of, n, d, device="cuda", generator=make).to(kind) for of in (heads, kv_heads, kv_heads)]
    x = [each.requires_grad_() for each in x]
    s = torch.randn(heads, device="cuda", generator=make).to(kind if row["of_sinks"] == "same" else torch.float32)
    s[0] = -torch.inf
    s = torch.nn.Parameter(s)
    dO = torch.randn(batch, heads, n, d, device="cuda", generator=make).to(kind)
    at = torch.arange(n, device="cuda")
    seen, options = torch.ones(batch, 1, n, n, dtype=torch.bool, device="cuda"), {}
    if row["mask"] in ("causal", "window"):
        seen, options = seen & (at[:, None] >= at), {"is_causal": True}
    if row["mask"] == "window":
        seen, options = seen & (at[:, None] - at < 40), options | {"window": (39, 0)}
    if row["mask"] == "packed":
        starts = torch.tensor([0, n // 3, n // 3, n - 2], dtype=torch.int32, device="cuda")
        of = torch.bucketize(at, starts[1:], right=True)
        seen, options = (of[:, None] == of) & (at < n - 2)[:, None] & (at < n - 2) & seen, {"cu_seqlens": starts}
    if row["mask"] == "padding":
        padding = (at > n // 2).repeat(batch, 1)
        seen, options = seen & ~padding[:, None, None], {"key_padding_mask": padding}
    O = attention(*x, sinks=s, enable_gqa=True, **options)
    made = [O, *torch.autograd.grad(O, [*x, s], dO)]
    y = [each.detach().double().requires_grad_() for each in (*x, s)]
    K, V = (each.repeat_interleave(heads // kv_heads, 1) for each in y[1:3])
    S = (y[0] @ K.mT * d**-0.5).masked_fill(~seen, -torch.inf)
    whole = torch.logaddexp(S.logsumexp(-1), y[3][None, :, None])
    P = (S - whole.masked_fill(whole == -torch.inf, 0.0)[..., None]).exp()
    truth = [P @ V]
    truth += torch.autograd.grad(truth[0], y, dO.double())
    names = ("O", "dQ", "dK", "dV", "ds")
    pairs = zip(names, made, truth, strict=True)
    return {
        name: float((one.detach().double() - other.nan_to_num()).norm() / other.nan_to_num().norm())
        for name, one, other in pairs
    }


NAMES = {"ours": "sinks", "fixed": "sinks without a gradient", "view": "no sinks, and the gradient of a view of s"}


def table(rows: list[dict[str, Any]]) -> None:
    """Print times of each layer, and the geometric means of what sinks cost, with the least and the most."""
    others = ("flex", "eager") if any("flex" in row["both"] for row in rows) else ("fixed", "view")
    print(f"| batch | n | keys | pass | without | sinks | cost | {' | '.join(others)} |\n|{'---|' * 9}")
    costs: dict[tuple[str, str, str], list[float]] = {}
    for row in sorted(rows, key=lambda row: (row["window"], row["n"])):
        for way in ("forward", "both"):
            for name in [name for name in NAMES if name in row[way]]:
                for kind in ("card", "wall"):
                    costs.setdefault((name, way, kind), []).append(_cost(row[way], name, kind))
            each = {name: times["wall_us"] for name, times in row[way].items()}
            cells = [f"{each[name] / 1e3:.3f}" if name in each else "" for name in ("without", "ours", *others)]
            cells.insert(2, f"{_cost(row[way], 'ours', 'wall'):.2f}" if "ours" in each else "")
            keys = f"window {WINDOW}" if row["window"] else "causal"
            print("|", " | ".join([str(row["batch"]), f"{row['n']:,}", keys, way, *cells]), "|")
    print("\n| | forward, card | forward, with launches | both, card | both, with launches |\n|---|---|---|---|---|")
    for name, said in NAMES.items():
        found = [
            costs[name, way, kind]
            for way in ("forward", "both")
            for kind in ("card", "wall")
            if costs.get((name, way, kind))
        ]
        if found:
            cells = [f"{geometric_mean(each):.3f} ({min(each):.3f} to {max(each):.3f})" for each in found]
            print("|", " | ".join([said, *cells]), "|")


def _cost(times: dict[str, dict[str, float]], name: str, kind: str) -> float:
    """How often as long a contender takes as without sinks: in the same rounds, where the row says it."""
    own = times[name]
    return own.get(f"{kind}_times", own[f"{kind}_us"] / times["without"][f"{kind}_us"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", type=int, default=12)
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds after which nothing new is begun")
    parser.add_argument("--alone", action="store_true", help="with and without sinks alone, and no others")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--check", action="store_true", help="errors of drawn calls, and no times")
    asked, began = parser.parse_args(), time.monotonic()
    text = asked.output.read_text(encoding="utf-8") if asked.output.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    if asked.table:
        return table(rows)
    import torch

    from pebblesim.operator.known import native

    if (thread := native.begin()) is not None:  # or it is compiled while rows are measured
        thread.join()
    known = {row["key"] for row in rows}
    for number in range(asked.shapes):
        key, (batch, n, window) = f"{asked.seed}/{number}", drawn(asked.seed, number)
        if key in known or time.monotonic() - began > asked.time_limit:
            continue
        row = {"key": key, "card": torch.cuda.get_device_name(), "native": native.state()}
        if asked.check:
            row |= checked(torch, asked.seed, number)
        else:
            row |= {"batch": batch, "n": n, "window": window} | measured(torch, batch, n, window, asked.alone)
        with asked.output.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        print(json.dumps(row)[:400], flush=True)


if __name__ == "__main__":
    main()
