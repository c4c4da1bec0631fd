"""Kernels with a bias whose rows stay while sequences stream past, beside those that read a tile of it for each tile of
scores: is a layer faster with them? On an H200.

    python benchmarks/gpu/bias_stays.py --time-limit 60 -o bias_stays.jsonl

A row has the microseconds of each kernel of both passes of a layer with head dimension 32, by the kernels that
`attention` takes, and with today's limits off: wherever rows can stay, and nowhere; and how often of eight times O, L,
dK and dV have the same bits when they are computed again.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

from resumed import add

D = 32
LAYERS = (
    (384, 4, 512), (384, 4, 256), (384, 4, 128), (384, 4, 64), (384, 4, 32), (768, 16, 64), (768, 4, 512),
    (371, 4, 64), (512, 8, 128), (320, 4, 512), (128, 4, 512), (256, 8, 64),
)  # fmt: skip
"""Tokens, heads, and sequences that share a bias."""

AGAIN, NAMES = 8, ("O", "L", "dK", "dV")
"""How often results are computed again, and their names."""


def forced(programs: Any, kernels: Any, how: str) -> None:
    """Have rows of the bias stay, and dQ and dB computed at once, wherever it can be, or nowhere, or as `attention`."""
    usual = forced.__dict__.setdefault("usual", (programs.FEWEST_STAYING, programs.MOST_BESIDE, kernels._at_once))
    all_of_them, none = (dict.fromkeys(programs.STAYING, number) for number in (0.0, float("inf")))
    others = {"everywhere": (all_of_them, 200.0, lambda *given: True), "nowhere": (none, 1.0, lambda *given: False)}
    programs.FEWEST_STAYING, programs.MOST_BESIDE, kernels._at_once = others.get(how, usual)


def rows(torch: Any) -> Any:
    """Yield the row of each layer."""
    from bias_tiles import passes
    from timing import by_kernel

    from pebblesim.operator.bias import bias as kernels, pairs, programs
    from pebblesim.operator.launching import compiling

    def layer(n: int, heads: int, sequences: int) -> Any:
        normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        x, dO, b = (
            [normal(sequences, heads, n, D) for _ in range(3)],
            normal(sequences, heads, n, D),
            normal(1, 1, heads, n, n),
        )
        return x, b, dO, pairs.Limits(sequences, None, None, False, D**-0.5)

    if compiling.can():
        with compiling.together():
            for n in sorted({each for each, _, _ in LAYERS}):
                for how in ("everywhere", "nowhere", "usual"):
                    forced(programs, kernels, how)
                    passes(torch, *layer(n, 4, 64))
    for n, heads, sequences in LAYERS:
        given = layer(n, heads, sequences)
        row: dict[str, Any] = {"n": n, "heads": heads, "sequences": sequences}
        for how in ("everywhere", "nowhere", "usual"):
            forced(programs, kernels, how)
            row[how] = by_kernel(torch, partial(passes, torch, *given))
            if how != "usual":
                first = computed(torch, kernels, *given)
                again = [computed(torch, kernels, *given) for _ in range(AGAIN)]
                row[f"same_bits_{how}"] = {
                    name: sum(torch.equal(one, each[at]) for each in again)
                    for at, (name, one) in enumerate(zip(NAMES, first, strict=True))
                }
                row[f"finite_{how}"] = all(bool(each.isfinite().all()) for each in first)
        yield row


def bits(torch: Any, times: int) -> Any:
    """Yield for some layers how often of so many times each result has the bits of the first time, and how far it is
    from that of the kernels for each card."""
    from pebblesim.operator.bias import bias as kernels, pairs, programs

    for n, heads, sequences in ((256, 8, 64), (128, 4, 512), (384, 4, 512), (768, 4, 64), (1000, 2, 64)):
        normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        x, dO, b = (
            [normal(sequences, heads, n, D) for _ in range(3)],
            normal(sequences, heads, n, D),
            normal(1, 1, heads, n, n),
        )
        asked = pairs.Limits(sequences, None, None, False, D**-0.5)
        others: dict[str, Any] = {}
        for how in ("nowhere", "everywhere"):
            forced(programs, kernels, how)
            first = gradients(torch, kernels, x, b, dO, asked)
            others = others or first
            same = dict.fromkeys(first, 0)
            for _ in range(times):
                again = gradients(torch, kernels, x, b, dO, asked)
                for name, one in first.items():
                    same[name] += torch.equal(one, again[name])
            finite = all(bool(each.isfinite().all()) for each in first.values())
            yield {
                "n": n,
                "heads": heads,
                "sequences": sequences,
                "how": how,
                "of": times,
                "same": same,
                "finite": finite,
                "apart": {
                    name: float((one - others[name]).norm() / others[name].norm()) for name, one in first.items()
                },
            }


def gradients(torch: Any, kernels: Any, x: Any, b: Any, dO: Any, asked: Any) -> dict[str, Any]:
    """All results by name."""
    out, made, dB = torch.empty_like(dO), tuple(map(torch.empty_like, x)), torch.empty_like(b)
    lse = kernels.forward(*x, b, None, out, asked)
    kernels.backward(dO, None, *x, b, out, lse, None, made, dB, asked)
    return dict(zip(("O", "L", "dQ", "dK", "dV", "dB"), (out, lse, *made, dB), strict=True))


def computed(torch: Any, kernels: Any, x: Any, b: Any, dO: Any, asked: Any) -> tuple[Any, ...]:
    """O, L, dK and dV."""
    out, made = torch.empty_like(dO), tuple(map(torch.empty_like, x))
    lse = kernels.forward(*x, b, None, out, asked)
    kernels.backward(dO, None, *x, b, out, lse, None, made, None, asked)
    return out, lse, *made[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--bits", type=int, default=0, help="compare the bits of so many runs, and time nothing")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds after which nothing new is begun")
    asked = parser.parse_args()
    until = time.monotonic() + asked.time_limit
    import torch

    torch.manual_seed(0)
    add(asked.output, bits(torch, asked.bits) if asked.bits else rows(torch), until)


if __name__ == "__main__":
    main()
