"""Calls of `attention` whose passes store tables of pairs, kernel by kernel; on a Hopper GPU.

    python benchmarks/gpu/tables.py -o FOLDER [--time-limit 90]

Wide heads, values that are narrower than keys, and passes with the same bits in each call, at 16,384, 4,096 and 1,024
tokens, without a mask and causal. A row of FOLDER/tables.jsonl has the microseconds of both passes and of the forward
pass alone, on the card and with launches, those of each kernel and of cuDNN's passes, and the errors of O and of the
gradients of a head against float64, up to 4,096 tokens. What is there is not measured again. `--table` shows the rows,
without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from resumed import arguments, resumed

CALLS = ((192, 128, False), (512, 512, False), (256, 256, False), (128, 128, True), (96, 96, True))
"""Columns of keys and of values, and whether the bits are to be the same."""

SHAPES = ((1024, 64), (4096, 16), (16384, 4))
"""Tokens, and heads. Kernels are compiled once for all of them."""

WIDEST = 256
"""Most columns of cuDNN's kernels in PyTorch."""

MOST = 4096
"""Most tokens at which errors are found."""


def rows(torch: Any, asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """A row for each call, shape and mask."""
    for (d_k, d_v, same), causal, (n, heads) in product(CALLS, (True, False), SHAPES):
        key = f"d = {d_k}, {d_v}{', same bits' * same}, n = {n}, {heads} heads, {'causal' if causal else 'none'}"
        if key in known:
            continue
        row = {"key": key, "n": n, "heads": heads, "d_k": d_k, "d_v": d_v, "same": same, "causal": causal}
        try:
            row |= measured(torch, n, heads, d_k, d_v, same, causal)
        except Exception as error:  # the others are measured
            row |= {"error": f"{type(error).__name__}: {error}"[:300]}
        yield row | {"card": torch.cuda.get_device_name(), "torch": torch.__version__}


def measured(torch: Any, n: int, heads: int, d_k: int, d_v: int, same: bool, causal: bool) -> dict[str, Any]:
    """Errors of a call, its times, and those of its kernels."""
    from timing import by_kernel, together

    from pebblesim.gpu.torch import attention

    def attend(*x: Any) -> Any:
        return attention(*x, is_causal=causal, deterministic=same)

    make = torch.Generator(device="cuda").manual_seed(n)
    shapes = (1, heads, n, d_k), (1, heads, n, d_k), (1, heads, n, d_v), (1, heads, n, d_v)
    *x, dO = (torch.randn(*each, device="cuda", dtype=torch.bfloat16, generator=make) for each in shapes)
    for each in x:
        each.requires_grad_()
    out = attend(*x)
    found = [each[:, :1] for each in (out, *torch.autograd.grad(out, x, dO))]
    errors = []
    if n <= MOST:
        wide = [each.detach()[:, :1].double().requires_grad_() for each in x]
        scores = wide[0] @ wide[1].transpose(2, 3) * d_k**-0.5
        if causal:
            scores = scores.masked_fill(torch.ones(n, n, device="cuda", dtype=torch.bool).triu(1), -torch.inf)
        right = torch.softmax(scores, -1) @ wide[2]
        true = (right, *torch.autograd.grad(right, wide, dO[:, :1].double()))
        errors = [float(f"{(a - b).norm() / b.norm():.2e}") for a, b in zip(found, true, strict=True)]
        del wide, scores, right, true
    del out, found
    calls = {
        "forward": [lambda: attend(*(each.detach() for each in x))],
        "both": [lambda: torch.autograd.grad(attend(*x), x, dO)],
    }
    if d_k <= WIDEST:
        calls["cuDNN, both"] = [lambda: torch.autograd.grad(_cudnn(torch, causal, *x), x, dO)]
    times = together(torch, calls, 3)
    useful = n * n * heads * (0.5 if causal else 1.0) * 2 * (4 * d_k + 3 * d_v)
    rate = round(useful / times["both"]["card_us"] * 1e-6)
    return {"errors": errors, "times": times, "tflops": rate, "kernels": by_kernel(torch, calls["both"][0])}


def _cudnn(torch: Any, causal: bool, *x: Any) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal)


def table(found: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    lines = ["| d | n | heads | mask | forward, µs | both, µs | both, TFLOP/s | cuDNN, both, µs |", "|---" * 8 + "|"]
    for row in (row for row in found if "times" in row):
        said = [f"{row['d_k']}, {row['d_v']}{', same bits' * row['same']}", f"{row['n']:,}", str(row["heads"])]
        said.append("causal" if row["causal"] else "none")
        said += [f"{row['times'][way]['card_us']:,.0f}" for way in ("forward", "both")]
        other = row["times"].get("cuDNN, both")
        said += [str(row["tflops"]), "–" if other is None else f"{other['card_us']:,.0f}"]
        lines.append(f"| {' | '.join(said)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    resumed(arguments(__doc__, 90.0).parse_args(), "tables.jsonl", rows, table)
