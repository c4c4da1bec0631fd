"""Times of the kernels of attention with a bias in other tiles, warps and stages; on a GPU.

    python benchmarks/gpu/bias_tiles.py -d 32 -o bias_tiles.jsonl

The layer has 4 heads of 384 tokens, or of `-n`, and 512 sequences that share their bias, in bfloat16. A row is one
kernel, of all or of those of `--kernel`; `--wide` takes a bias in float32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from resumed import add

TRIED: dict[str, list[tuple[int, ...]]] = {
    "flash2_forward": [
        (1, 64, 64, 4, 3), (1, 64, 64, 4, 4), (1, 64, 64, 4, 5), (1, 64, 64, 4, 3, 80), (1, 64, 32, 4, 4),
        (2, 64, 64, 4, 3), (2, 64, 32, 4, 3), (2, 64, 32, 4, 4), (4, 64, 32, 4, 3), (2, 64, 64, 4, 4, 160),
        (1, 64, 128, 4, 3), (1, 64, 128, 4, 4), (1, 32, 64, 2, 3), (1, 32, 64, 1, 3), (1, 64, 64, 2, 3),
        (1, 32, 32, 2, 4), (2, 32, 64, 2, 3), (2, 32, 32, 2, 3), (4, 32, 32, 2, 3), (1, 16, 64, 1, 3),
        (1, 32, 128, 2, 3), (2, 32, 64, 1, 3),
    ],
    "dQ": [
        (1, 64, 64, 4, 3), (1, 64, 64, 4, 4), (1, 64, 64, 4, 3, 96), (1, 64, 32, 4, 3), (1, 64, 32, 4, 4),
        (2, 64, 32, 4, 3), (2, 64, 32, 4, 4), (4, 64, 32, 4, 3), (1, 64, 128, 4, 3), (1, 32, 64, 2, 3),
        (1, 32, 64, 1, 3), (1, 64, 64, 2, 3), (1, 32, 32, 2, 4), (2, 32, 32, 2, 3), (2, 32, 64, 2, 3),
        (1, 16, 64, 1, 3), (1, 32, 32, 1, 4),
    ],
    "dK_dV": [
        (1, 64, 64, 4, 3), (1, 64, 64, 4, 4), (1, 64, 64, 4, 3, 128), (1, 64, 32, 4, 3), (1, 64, 32, 4, 4),
        (2, 64, 32, 4, 3), (2, 64, 32, 4, 4), (1, 64, 128, 4, 3), (1, 32, 64, 2, 3), (1, 32, 64, 1, 3),
        (1, 64, 64, 2, 3), (1, 32, 32, 2, 4), (2, 32, 32, 2, 3), (1, 64, 32, 2, 3), (1, 32, 32, 1, 4),
    ],
    "dB": [
        (1, 64, 64, 4, 3), (1, 64, 64, 4, 4), (1, 64, 64, 4, 3, 168), (1, 64, 64, 4, 4, 168), (1, 64, 64, 4, 3, 128),
        (1, 64, 32, 4, 3), (1, 32, 64, 4, 3), (1, 64, 32, 2, 3), (1, 32, 64, 2, 3), (1, 32, 32, 2, 4),
        (1, 32, 32, 1, 3), (1, 64, 64, 2, 3), (1, 32, 64, 1, 3),
    ],
}  # fmt: skip
"""Sequences at a time, tiles, warps and stages of each kernel that are tried for d = 32."""

TRIED_WIDE: dict[str, list[tuple[int, ...]]] = {
    "flash2_forward": [
        (1, 64, 64, 4, 2), (1, 64, 64, 4, 3), (1, 64, 32, 4, 2), (1, 64, 32, 4, 3), (1, 64, 32, 4, 4),
        (1, 128, 64, 8, 2), (1, 128, 32, 8, 2), (1, 128, 32, 8, 3), (2, 64, 32, 4, 2),
    ],
    "dQ": [
        (1, 64, 64, 4, 2), (1, 64, 64, 4, 3), (1, 64, 32, 4, 2), (1, 64, 32, 4, 3), (1, 128, 64, 8, 2),
        (1, 128, 32, 8, 2), (2, 64, 32, 4, 2),
    ],
    "dK_dV": [
        (1, 64, 32, 4, 2), (1, 64, 32, 4, 3), (1, 64, 64, 4, 2), (1, 64, 64, 4, 3), (1, 64, 64, 8, 2),
        (1, 128, 32, 8, 2), (1, 64, 32, 8, 3),
    ],
    "dB": [
        (1, 64, 64, 4, 2), (1, 64, 64, 4, 3), (1, 64, 64, 8, 2), (1, 64, 64, 8, 3), (1, 64, 32, 4, 2),
        (1, 64, 128, 8, 2), (1, 128, 64, 8, 2),
    ],
}  # fmt: skip
"""Those for wider heads."""


def passes(torch: Any, x: tuple[Any, ...], b: Any, dO: Any, asked: Any) -> None:
    """Both passes by kernels, without autograd."""
    from pebblesim.operator.bias import bias as kernels

    out = torch.empty_like(dO)
    lse = kernels.forward(*x, b, None, out, asked)
    made, dB = tuple(map(torch.empty_like, x)), torch.empty_like(b)
    kernels.backward(dO, None, *x, b, out, lse, None, made, dB, asked)


USUAL = {
    32: [(1, 64, 64, 4, 3)] * 4,
    64: [(1, 64, 64, 4, 3), (1, 64, 64, 4, 3), (1, 64, 32, 4, 3), (1, 64, 64, 4, 3)],
    128: [(1, 64, 64, 4, 2), (1, 64, 32, 4, 2), (1, 64, 32, 4, 2), (1, 64, 64, 8, 2)],
}
"""The kernels that others are compared with, by the largest head dimension."""


def tuned(torch: Any, d: int, wide: bool, n: int, kernels: list[str]) -> Iterator[dict[str, Any]]:
    """Times of each kernel with other tiles; `kernels`: some of them, or none for all."""
    from timing import by_kernel

    from pebblesim.operator.bias import pairs, programs
    from pebblesim.operator.launching import compiling

    heads, sequences = 4, 512
    normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    q, k, v, dO = (normal(sequences, heads, n, d) for _ in range(4))
    b = normal(1, 1, heads, n, n)
    b = b.float() if wide else b
    asked = pairs.Limits(sequences, None, None, False, d**-0.5)
    original = dict(programs.TILINGS)
    both = partial(passes, torch, (q, k, v), b, dO, asked)
    key = next(each for each in original if each[0] == "16 bits" and d <= each[1])
    usual = dict(zip(TRIED, USUAL[key[1]], strict=True))
    of_all = TRIED if key[1] == 32 else TRIED_WIDE
    cases, best = [(name, tried) for name, several in of_all.items() for tried in several], dict[str, float]()
    cases = [(name, tried) for name, tried in cases if name in (kernels or of_all)]
    if compiling.can():
        with compiling.together():
            for name, tried in cases:
                programs.TILINGS = original | {key: programs.tilings(*(usual | {name: tried}).values())}
                both()
    chosen = dict(usual)
    for name, tried in cases:
        programs.TILINGS = original | {key: programs.tilings(*(usual | {name: tried}).values())}
        row = {"kind": "tune", "n": n, "d": d, "wide": wide, "kernel": name, "tiles": tried}
        try:
            row["us"] = by_kernel(torch, both)[name]
        except Exception as error:
            row["refused"] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        if row.get("us", 1e9) < 0.98 * best.get(name, 1e9):
            best[name], chosen[name] = row["us"], tried
        yield row
    programs.TILINGS = original | ({} if wide else {key: programs.tilings(*chosen.values())})
    print("the fastest, which are used from here on", chosen, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("-d", type=int, default=32, choices=USUAL, help="head dimension")
    parser.add_argument("-n", type=int, default=384, help="tokens")
    parser.add_argument("--kernel", action="append", default=[], choices=TRIED)
    parser.add_argument("--wide", action="store_true", help="a bias in float32")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds after which nothing new is begun")
    asked = parser.parse_args()
    until = time.monotonic() + asked.time_limit
    import torch

    device = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows = tuned(torch, asked.d, asked.wide, asked.n, asked.kernel)
    add(asked.output, (row | device for row in rows), until)


if __name__ == "__main__":
    main()
