"""Capped scores on this GPU: `python benchmarks/gpu/softcap.py -o FOLDER [--seconds 60]`.

For shapes of three head dimensions the time on the card of both passes: with softcap = 30 by the kernels that
`attention` chooses, by its Triton kernels alone (a process of its own, in which Gluon counts as missing), without
softcap, and by FlexAttention; and the errors of O and of the gradients, divided by those of the definition in bfloat16.
Rows that FOLDER/softcap.jsonl has are not measured again. `--table FILE` prints them, without a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from resumed import add, known, there  # noqa: E402

CAP = 30.0

FLEX = "--flex" in sys.argv

SHAPES = [*product((64, 128, 256), (((8, 8), False, 8192), ((16, 4), True, 8192), ((16, 4), True, 1001)))]
"""Head dimensions; heads of queries and of keys, whether the mask is causal, and tokens."""


def definition(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Attention of capped scores, with a table of all of them, in the type of its matrices."""
    import torch

    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    S = CAP * torch.tanh(q @ k.mT * (q.shape[-1] ** -0.5 / CAP))
    if causal:
        S = S.masked_fill(torch.ones_like(S, dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(S, -1) @ v


def attentions(causal: bool, n: int, triton: bool) -> dict[str, Callable[..., Any]]:
    """The attentions of a process."""
    from pebblesim.gpu.torch import attention

    capped = partial(attention, is_causal=causal, enable_gqa=True, softcap=CAP)
    if triton:
        return {"triton": capped}
    made = {"ours": capped, "without": partial(attention, is_causal=causal, enable_gqa=True)}
    return made | {"flex": partial(flex, causal, n)} if FLEX and causal and n % 128 == 0 else made


@cache
def _flex(causal: bool, n: int) -> Any:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def capped(score: Any, *at: Any) -> Any:
        return CAP * torch.tanh(score / CAP)

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, n, n, device="cuda") if causal else None
    return partial(torch.compile(flex_attention, dynamic=False), score_mod=capped, block_mask=mask, enable_gqa=True)


def flex(causal: bool, n: int, q: Any, k: Any, v: Any) -> Any:
    """FlexAttention with the same scores."""
    return _flex(causal, n)(q, k, v)


def measured(torch: Any, shape: Any, triton: bool, once: bool = False) -> dict[str, Any]:
    """Times and errors of a shape; with `once` kernels are compiled alone."""
    from timing import together

    d, ((heads, kv_heads), causal, n) = shape
    generator = torch.Generator("cuda").manual_seed(n + d)
    normal = partial(torch.randn, generator=generator, device="cuda", dtype=torch.bfloat16)
    *x, grad = (normal(1, h, n, d) for h in (heads, kv_heads, kv_heads, heads))
    x = [(4.0 * each if number == 0 else each).requires_grad_() for number, each in enumerate(x)]  # scores near the cap
    if once:
        for attend in attentions(causal, n, triton).values():
            torch.autograd.grad(attend(*x), x, grad)
        return {}
    row: dict[str, Any] = {"d": d, "heads": [heads, kv_heads], "causal": causal, "n": n, "refused": {}}
    calls = {}
    for name, attend in attentions(causal, n, triton).items():
        try:
            torch.autograd.grad(attend(*x), x, grad)
            calls[name] = attend
        except Exception as error:  # of PyTorch's compiler
            row["refused"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    row["errors"] = errors(torch, {name: each for name, each in calls.items() if name != "without"}, d, causal)

    def forward(attend: Any) -> None:
        with torch.no_grad():
            attend(*x)

    outs = {name: attend(*x) for name, attend in calls.items()}
    backward = {name: [partial(torch.autograd.grad, out, x, grad, retain_graph=True)] for name, out in outs.items()}
    for way, each in (
        ("forward", {name: [partial(forward, attend)] for name, attend in calls.items()}),
        ("backward", backward),
    ):
        row[way] = {name: times["card_us"] for name, times in together(torch, each, 3).items()}
    return row


def errors(torch: Any, calls: dict[str, Any], d: int, causal: bool) -> dict[str, list[float]]:
    """The largest errors of O, dQ, dK and dV of 1,001 tokens, divided by those of the definition in bfloat16."""
    generator = torch.Generator("cuda").manual_seed(d)
    *x, grad = (torch.randn(1, h, 1001, d, generator=generator, device="cuda").bfloat16() for h in (4, 1, 1, 4))
    x[0] = 4 * x[0]

    def made(attend: Any, dtype: Any) -> list[Any]:
        given = [each.detach().to(dtype).requires_grad_() for each in x]
        out = attend(*given)
        return [out.detach().double(), *(g.double() for g in torch.autograd.grad(out, given, grad.to(out.dtype)))]

    defined = partial(definition, causal=causal)
    true, plain = made(defined, torch.float64), made(defined, torch.bfloat16)
    found = {}
    for name, attend in calls.items():
        if name != "flex":  # its mask is for other lengths
            each = zip(made(attend, torch.bfloat16), plain, true, strict=True)
            found[name] = [float((mine - t).abs().max() / (theirs - t).abs().max()) for mine, theirs, t in each]
    return found


def run(asked: argparse.Namespace) -> None:
    import torch

    warnings.simplefilter("ignore")
    if asked.triton:
        from pebblesim.operator.launching import launching

        launching.gluon_lost = lambda: "it is measured without"  # type: ignore[attr-defined]
    if asked.warm is not None:
        measured(torch, SHAPES[asked.warm], asked.triton, once=True)
        return
    began, again = time.monotonic(), [sys.executable, __file__, *sys.argv[1:]]
    if not asked.triton and not asked.compiled:
        wanted = [[str(i), *mode] for i in range(len(SHAPES)) for mode in ([], ["--triton"])]
        for each in [subprocess.Popen([*again, "--warm", *one], stderr=subprocess.DEVNULL) for one in wanted]:
            each.wait()
        print(f"{time.monotonic() - began:.0f} s: kernels are compiled", flush=True)
        if asked.compile:
            return
    path = asked.output / "softcap.jsonl"
    wanted = {f"{'triton' if asked.triton else 'all'} {shape}": shape for shape in SHAPES}
    left = {key: shape for key, shape in wanted.items() if key not in known(path)}
    card = torch.cuda.get_device_name()
    made = ({"key": key, "device": card, **measured(torch, shape, asked.triton)} for key, shape in left.items())
    add(path, made, began + asked.seconds)
    print(f"{time.monotonic() - began:.0f} s: {'Triton' if asked.triton else 'all'}", flush=True)
    if not asked.triton:
        subprocess.run([*again, "--triton"], check=False)


def table(path: Path) -> None:
    """Print the times in microseconds, and the largest error."""
    rows = {row["key"]: row for row in there(path)}
    names = ("ours", "triton", "flex", "without")
    print("| d | heads | mask | n | pass | " + " | ".join(names) + " | largest error |")
    print("|---|---|---|---|---|" + "---|" * len(names) + "---|")
    for key, row in rows.items():
        other = rows.get(key.replace("all", "triton", 1))
        if not key.startswith("all") or other is None:
            continue
        worst = max(max(each) for each in (row["errors"]["ours"], other["errors"]["triton"]))
        for way in ("forward", "backward"):
            times = row[way] | other[way]
            cells = [f"{times[name]:,.0f}" if name in times else "–" for name in names]
            heads, mask = " on ".join(map(str, row["heads"])), "causal" if row["causal"] else "none"
            print("|", " | ".join([str(row["d"]), heads, mask, f"{row['n']:,}", way, *cells, f"{worst:.2f}"]), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="after which nothing new is begun")
    parser.add_argument("--triton", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--flex", action="store_true", help="FlexAttention, too, which takes long to compile")
    parser.add_argument("--compile", action="store_true", help="compile kernels and measure nothing")
    parser.add_argument("--compiled", action="store_true", help="they are compiled")
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    if asked.output:
        run(asked)
    if asked.table:
        table(asked.table)


if __name__ == "__main__":
    main()
