"""Advice for cards x cases: `python benchmarks/gpu/advice.py` prints what `advise` says first, and its CPU time.

The cases are forward and backward passes, a causal mask with heads that share keys and values, a window, decoding, and
a long sequence of one head with d = 512.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import pebblesim as ps

CARDS = ("RTX4090", "RTX5090", "L40S", "A10", "RTXPRO6000", "A100", "H100", "H200", "B200", "MI300X")

CASES: dict[str, dict[str, Any]] = {
    "forward": {"n": 8192, "d": 128, "heads": 32},
    "causal, heads in groups of 4": {"n": 8192, "d": 128, "heads": 32, "kv_heads": 8, "mask": "causal"},
    "backward": {"problem_name": "backward-qkv", "n": 8192, "d": 128, "heads": 32, "mask": "causal"},
    "window": {"n": 32768, "d": 64, "heads": 16, "mask": "window:1024"},
    "decoding": {"n_q": 1, "n_k": 32768, "d_k": 128, "d_v": 128, "heads": 32, "kv_heads": 8},
    "one head, d = 512": {"problem_name": "backward-qkv", "n": 16384, "d": 512},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", nargs="*", default=CARDS)
    longest = 0.0
    for card in parser.parse_args().card:
        for case, asked in CASES.items():
            began = time.process_time()
            advice = ps.advise(card, **asked)
            took = time.process_time() - began
            longest = max(longest, took)
            said = next((line for line in str(advice).splitlines()[2:] if line), "")
            forecast = f"{advice.kernels[0].seconds * 1e6:,.0f} µs" if advice.card.calibrated else "no forecast"
            print(f"{card:11} {case:29} {took:4.1f} s  {forecast:12}  {said}", flush=True)
    print(f"longest: {longest:.1f} s of CPU")


if __name__ == "__main__":
    main()
