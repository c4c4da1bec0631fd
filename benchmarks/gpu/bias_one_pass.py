"""A backward pass of attention with a bias that has its exponentials once for dQ, dK and dV: is it faster? On a GPU.

    python benchmarks/gpu/bias_one_pass.py --time-limit 60 -o bias_one_pass.jsonl

The kernel is `flash2-backward` of the catalogue with a bias, as `kernels.bias` reads it: a block has a head of a
sequence, keys stay, queries stream past them, and a tile of dQ is read from memory in float32, added to and written
for each tile of pairs. No block adds to what another one has, so sums are in the same order in every run. The kernels
of `attention` compute dQ in one launch, and dK and dV in another. A row has the times of one choice of tiles: of the
kernel, and of the launches around it, which set dQ to 0 and put it into 16 bits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from resumed import add

D = 32
LAYERS = ((384, 4, 512), (768, 16, 64))
"""Tokens, heads, and sequences that share a bias."""

TRIED: tuple[tuple[int, ...], ...] = (
    (64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2, 128), (32, 64, 4, 2), (64, 32, 4, 2),
    (64, 128, 4, 1), (64, 128, 4, 2), (64, 128, 8, 2), (128, 64, 4, 2), (128, 64, 8, 2), (128, 128, 8, 1),
    (128, 128, 8, 2),
)  # fmt: skip
"""Rows of queries and of keys of a tile, warps, stages, and perhaps the most registers of a thread."""


def source(tried: tuple[int, ...]) -> tuple[Any, Any]:
    """The program and the text of its kernels."""
    from pebblesim.advice.tiles import Tiling
    from pebblesim.kernels.passes.bias import biased
    from pebblesim.kernels.triton.triton import triton
    from pebblesim.operator.planning import program_of

    rows, columns, warps, stages, *registers = tried
    blocks = {"B_r": rows, "B_c": columns}
    program = biased(program_of(Tiling("flash2-backward", blocks, warps, stages), None))
    sizes = {"n_q": 2**14, "n_k": 2**14, "d_k": D, "d_v": D, **blocks}
    several = {program.phases[-1].name: (warps, stages, *registers)}
    options: dict[str, Any] = {"scale": D**-0.5, "far": False, "shared": 1, "warps": 4, "stages": 2, "apart": several}
    return program, triton(program, sizes, "bfloat16", **options)


Module = tuple[Any, tuple[str, ...]]
"""Kernels, and the names of what they take."""


def module_of(tried: tuple[int, ...]) -> Module:
    """The kernels of one choice of tiles."""
    from pebblesim.operator.launching.launching import running

    program, found = source(tried)
    return running(found.text, tuple(each.name for each in found.kernels)), program.inputs


def one_pass(torch: Any, module: Module, given: dict[str, Any]) -> tuple[Any, ...]:
    """dQ, dK and dV."""
    kernels, taken = module
    results = {"dK": torch.empty_like(given["K"]), "dV": torch.empty_like(given["V"])}
    found = kernels.run(*(given[name] for name in taken), results=results)
    return found["dQ"].view(given["Q"].shape).to(given["Q"].dtype), found["dK"], found["dV"]


def rows(torch: Any) -> Iterator[dict[str, Any]]:
    """A row for each choice of tiles."""
    from bias_tiles import passes
    from timing import by_kernel

    from pebblesim.operator.bias import bias as kernels, pairs
    from pebblesim.operator.launching import compiling

    modules = {tried: module_of(tried) for tried in TRIED}
    for n, heads, sequences in LAYERS:
        normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        q, k, v, dO = (normal(sequences, heads, n, D) for _ in range(4))
        b, out = normal(1, 1, heads, n, n), torch.empty_like(q)
        limits = pairs.Limits(sequences, None, None, False, D**-0.5)
        lse = kernels.forward(q, k, v, b, None, out, limits)
        true = tuple(map(torch.empty_like, (q, k, v)))
        kernels.backward(dO, None, q, k, v, b, out, lse, None, true, None, limits)
        layer: dict[str, Any] = {"n": n, "heads": heads, "sequences": sequences}
        usual = by_kernel(torch, partial(passes, torch, (q, k, v), b, dO, limits))
        yield layer | {"tiles": "usual", "kernels": usual}
        given = {"Q": q, "K": k, "V": v, "dO": dO, "O": out, "L": lse.flatten(0, 1)}
        given["bias"] = b[0].expand(sequences, heads, n, n)[:, None]
        if compiling.can():
            with compiling.together():
                for module in modules.values():
                    one_pass(torch, module, given)
        for tried, module in modules.items():
            yield layer | {"tiles": tried} | judged(torch, partial(one_pass, torch, module, given), true)


def judged(torch: Any, call: Callable[[], tuple[Any, ...]], true: tuple[Any, ...]) -> dict[str, Any]:
    """Times, whether a second call has the same bits, and differences from the gradients of the usual kernels."""
    from timing import by_kernel

    try:
        found, again = call(), call()
        both = zip(found, true, strict=True)
        return {
            "same_bits": all(map(torch.equal, found, again)),
            "from_usual": [float((mine.float() - its.float()).norm() / its.float().norm()) for mine, its in both],
            "kernels": by_kernel(torch, call),
        }
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:160]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds after which nothing new is begun")
    asked, began = parser.parse_args(), time.monotonic()
    import torch

    torch.manual_seed(0)
    add(asked.output, rows(torch), began + asked.time_limit)


if __name__ == "__main__":
    main()
