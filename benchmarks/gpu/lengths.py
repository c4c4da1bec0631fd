"""Lengths of any kind on this GPU: time, and what is compiled. `python benchmarks/gpu/lengths.py -o lengths.jsonl`.

Odd lengths drawn by a seed against the next multiple of 128, each pair in turn; how many kernels Triton compiles for
lengths that were not seen before; few queries with many keys; many heads on one; windows.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from statistics import median
from typing import Any

from pebblesim.gpu.emit.triton import triton
from pebblesim.gpu.module import module_of
from pebblesim.gpu.tiles import TILINGS
from pebblesim.gpu.torch import attention
from pebblesim.language import masks
from pebblesim.language.registry import get

SEED, TOKENS = 25, 65536


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output, rows = parser.parse_args().output, []
    chance = random.Random(SEED)
    for what in (unseen, odd, decoding, on_one_head, windows):
        for row in what(chance):
            rows.append({"what": what.__name__, **row})
            print(json.dumps(rows[-1]), flush=True)
            output.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")


def timed(call: Any) -> float:
    """Seconds, the median of many calls."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=10, rep=50, return_mode="median")) / 1e3


def both_ways(n: int, d: int, heads: int, causal: bool) -> tuple[float, float]:
    """TFLOP/s of the forward and of the backward pass."""
    import torch

    q, k, v, dO = (torch.randn(1, heads, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    q, k, v = (each.requires_grad_() for each in (q, k, v))
    out = attention(q, k, v, is_causal=causal)
    pairs = n * (n + 1) // 2 if causal else n * n
    forward = timed(lambda: attention(q, k, v, is_causal=causal))
    backward = timed(lambda: torch.autograd.grad(out, (q, k, v), dO, retain_graph=True))
    return 4 * pairs * d * heads / forward / 1e12, 10 * pairs * d * heads / backward / 1e12


def odd(chance: random.Random) -> Any:
    """40 lengths that 16 does not divide, and for each the next multiple of 128."""
    for _ in range(40):
        n = next(n for n in iter(lambda: chance.randrange(600, 9000), None) if n % 16)
        d, causal = chance.choice((64, 96, 128, 256, 512)), chance.random() < 0.5
        heads = max(1, TOKENS // n)
        whole = -(-n // 128) * 128
        pairs = [(both_ways(n, d, heads, causal), both_ways(whole, d, heads, causal)) for _ in range(2)]
        ratios = [median(own[way] / other[way] for own, other in pairs) for way in (0, 1)]
        row = {"n": n, "d": d, "heads": heads, "causal": causal, "forward": ratios[0], "backward": ratios[1]}
        yield row | {"tflops": pairs[0]}


def compiled() -> int:
    """Kernels in Triton's cache on disk."""
    from triton import knobs

    return sum(1 for _ in Path(knobs.cache.dir).glob("*/*.cubin"))


def unseen(chance: random.Random) -> Any:
    """Kernels compiled for some lengths, and then for 50 others."""
    import torch

    def call(n: int, d: int, causal: bool) -> None:
        q, k, v = (torch.randn(1, 2, n, d, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
        torch.autograd.grad(attention(q, k, v, is_causal=causal).sum(), (q, k, v))

    for d, causal in ((128, False), (128, True), (512, True)):
        before = compiled()
        for bits in range(5, 15):
            for n in (2**bits, 2**bits - 1):
                call(n, d, causal)
        first, lengths = compiled() - before, [chance.randrange(17, 16384) for _ in range(50)]
        for n in lengths:
            call(n, d, causal)
        yield {"d": d, "causal": causal, "kernels": first, "lengths": lengths, "more": compiled() - before - first}


def decoding(chance: random.Random) -> Any:
    """One query, 32 heads on 8, 32,768 keys."""
    import torch

    q = torch.randn(1, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, 8, 32768, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = timed(lambda: attention(q, k, v, enable_gqa=True))
    yield {"seconds": seconds, "bytes_per_second": (k.nbytes + v.nbytes) / seconds}


def on_one_head(chance: random.Random) -> Any:
    """128 heads on one, with keys of 576 and values of 512."""
    import torch

    for batch, n_q, n_k in ((64, 1, 8192), (1, 2048, 2048)):
        q = torch.randn(batch, 128, n_q, 576, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(batch, 1, n_k, 576, device="cuda", dtype=torch.bfloat16)
        v = torch.randn(batch, 1, n_k, 512, device="cuda", dtype=torch.bfloat16)
        seconds = timed(lambda q=q, k=k, v=v: attention(q, k, v, enable_gqa=True))
        operations = 2 * batch * 128 * n_q * n_k * (576 + 512)
        yield {"batch": batch, "n_q": n_q, "n_k": n_k, "seconds": seconds, "tflops": operations / seconds / 1e12}


def windows(chance: random.Random) -> Any:
    """A window of 1,024 at d = 256, 16 heads on 8: the fastest of the kernels, forward and backward."""
    import torch

    for n in (8192, 16384):
        several, d = 2, 256
        band = masks.of("window:1024").grouped(several, (n, n))
        dims = {"n_q": several * n, "n_k": n, "d_k": d, "d_v": d}
        given = {name: torch.randn(8, dims[f"n_{side}"], d, device="cuda").bfloat16() for name, side in ROWS.items()}
        given |= {"L": torch.full((8, several * n), 12.0, device="cuda")}
        for way, tilings in TILINGS.items():
            for tiling in tilings:
                program = get(tiling.schedule).in_dims(dims).masked
                shape = {"warps": tiling.warps, "stages": tiling.stages, "apart": tiling.apart}
                try:
                    source = triton(program, {**dims, **tiling.blocks}, mask=band, scale=1 / 16, **shape)
                    run = module_of(source.text).run
                    inputs = [given[name] for name in program.tensors if name in program.inputs]
                    seconds = timed(lambda run=run, inputs=inputs: run(*inputs))
                except Exception as error:  # Triton's: out of shared memory
                    yield {"n": n, "way": way, "tiling": str(tiling), "error": str(error).splitlines()[0][:100]}
                    continue
                yield {"n": n, "way": way, "tiling": str(tiling), "seconds": seconds}


ROWS = {"Q": "q", "K": "k", "V": "k", "dO": "q", "O": "q"}

if __name__ == "__main__":
    main()
