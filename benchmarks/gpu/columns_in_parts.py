"""Heads of 192 columns, and latent ones of 576, on a Hopper GPU: tilings beside PyTorch's kernels, in one process.

    python benchmarks/gpu/columns_in_parts.py -o FOLDER [--seed 1] [--drawn 3] [--time-limit 200] [--way …] [--latent]

With --latent keys have 576 columns and values 512, backward. With --operator `attention` is timed as programs call it,
with gradients and without, and judged at a short length against float64: heads of 192 beside cuDNN, and 128 heads that
share one latent of 576 columns, whose first 512 are the values.

Kernels are compiled first, in processes side by side. Then each contender's errors are measured at a ragged length, and
its times at 16,384 (4 heads), 4,096 (16 heads), 1,024 (64 heads) and at lengths that the seed draws; rounds of all
contenders alternate. A row of FOLDER/parts.jsonl has the microseconds of one shape, `launches` those of each launch of
ours, and TFLOP/s of useful operations; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from hopper import exact, seconds_of, tensors
from resumed import add, known

from pebblesim.kernels.gluon import gluon as reading, plan as gluon_plan, widths as gluon_widths
from pebblesim.kernels.module import module_of
from pebblesim.language import masks
from pebblesim.language.registry import get
from pebblesim.measuring.race import seconds_of_launches

WIDTHS, LATENT = ((192, 192), (192, 128)), ((576, 512),)
SHAPES = ((16384, 4), (4096, 16), (1024, 64))
PAIRS = 2**30
"""About as many pairs of a query and a key has each shape."""

DIVIDED, LATE, LONG, STEP = reading.divided, gluon_plan._late, gluon_plan.LONG, gluon_widths.STEP


class Tiles(NamedTuple):
    """A schedule with its tiles.

    Attributes:
        way: "forward" or "backward".
        schedule, blocks, stages: as for `gluon`.
        padded: whether columns are padded to a power of two, as before they were divided.
        widths: d_k and d_v that they are for.
        late: whether products are put off to the next iteration, if not as the plan says.
        whole: whether products over columns take the zeros behind them, too, as before.
        dense: whether they are for no mask.
    """

    way: str
    schedule: str
    blocks: dict[str, int]
    stages: int
    padded: bool = False
    widths: tuple[tuple[int, int], ...] = WIDTHS
    late: bool | None = None
    whole: bool = False
    dense: bool = False

    def __str__(self) -> str:
        blocks = " ".join(f"{name}={size}" for name, size in self.blocks.items())
        how = " padded" * self.padded + " whole" * self.whole
        how += "" if self.late is None else " late" if self.late else " waiting"
        return f"{self.schedule} {blocks} {self.stages} stages{how}"


def _rows(keys: int) -> dict[str, int]:
    return {"B_r": 128, "B_c": keys}


def _tables(columns: int) -> dict[str, int]:
    return {"a": 128, "b": 128, "c": 64, "e": columns}


def _two_passes(rows: int) -> dict[str, int]:
    return {"B_r": 128, "b_c": 64, "B_c": 128, "b_r": rows}


TILES = (
    Tiles("forward", "flash2-forward", _rows(64), 2, True),
    Tiles("forward", "flash2-forward", _rows(64), 2),
    Tiles("forward", "flash2-forward", _rows(64), 3),
    Tiles("forward", "flash2-forward", _rows(128), 2, widths=((192, 128),)),
    Tiles("backward", "small-cache-backward-resident", _tables(256), 8, True),
    Tiles("backward", "small-cache-backward-resident", _tables(192), 8),
    Tiles("backward", "backward-two-pass-blocked", _two_passes(32), 2, widths=((192, 128),)),
    Tiles("backward", "backward-two-pass-blocked", _two_passes(32), 3, widths=((192, 128),)),
    Tiles("backward", "dS-stored-resident", _tables(192), 3, widths=((192, 128),)),
    Tiles("backward", "dS-stored-resident", _tables(192), 3, widths=((192, 128),), late=False),
    Tiles("backward", "dS-stored-resident", _tables(192), 2, widths=((192, 192), (160, 160))),
    Tiles("backward", "dS-stored-resident", _tables(192), 2, widths=((192, 192),), late=True),
    Tiles("backward", "small-cache-backward-resident", _tables(192), 8, widths=((160, 160),)),
    Tiles("forward", "flash2-forward", _rows(64), 2, widths=((160, 160),), whole=True),
    Tiles("forward", "flash2-forward", _rows(64), 2, widths=((160, 160),)),
    Tiles("forward", "flash2-forward", _rows(128), 2, widths=((80, 80), (96, 96)), whole=True),
    Tiles("forward", "flash2-forward", _rows(128), 2, widths=((80, 80), (96, 96))),
    Tiles("forward", "flash2-forward", {"B_r": 64, "B_c": 64}, 2, widths=((512, 512), (320, 320)), dense=True),
    Tiles("forward", "scores-stored-resident", _tables(256), 8, widths=((512, 512), (320, 320))),
    Tiles("backward", "dS-stored-resident", _tables(128), 3, widths=((128, 128), (96, 96), (80, 80))),
    Tiles("backward", "dS-stored-resident", _tables(128), 3, widths=((128, 128),), late=False),
    Tiles("backward", "dS-stored-resident", _tables(64), 4, widths=((64, 64),)),
    Tiles("backward", "backward-two-pass-blocked", _two_passes(64), 2, widths=((128, 128), (96, 96), (80, 80))),
    Tiles("backward", "backward-two-pass-blocked", _two_passes(64), 2, widths=((128, 128),), late=True),
    Tiles("backward", "backward-two-pass-blocked", _two_passes(64), 3, widths=((128, 128), (80, 80))),
    Tiles("backward", "backward-two-pass-blocked", _two_passes(128), 3, widths=((64, 64),)),
    Tiles("backward", "flash2-backward-blocked", {"B_c": 128, "b_r": 64}, 2, widths=((128, 128), (96, 96), (80, 80))),
    Tiles("backward", "flash2-backward-blocked", {"B_c": 128, "b_r": 64}, 2, widths=((80, 80),), whole=True),
    Tiles("backward", "flash2-backward-blocked", {"B_c": 128, "b_r": 64}, 3, widths=((64, 64),)),
    Tiles("backward", "small-cache-backward-resident", _tables(256), 8, widths=LATENT),
    Tiles("backward", "small-cache-backward-resident", _tables(192), 8, widths=LATENT),
)


class Kernels(NamedTuple):
    """The kernels of some tiles for one shape of heads, mask, and lengths that tiles divide or not."""

    module: Any
    names: list[str]


@cache
def kernels(index: int, widths: tuple[int, int], mask: str | None, even: bool) -> Kernels:
    """Write and load the kernels of `TILES[index]`."""
    tiles, n = TILES[index], 4096 if even else 4001
    dims, band = {"n_q": n, "n_k": n, "d_k": widths[0], "d_v": widths[1]}, masks.of(mask)
    reading.divided = (lambda launch, sizes: launch) if tiles.padded else DIVIDED
    gluon_plan._late = (lambda plan: ()) if tiles.late is False else LATE
    gluon_plan.LONG = 0 if tiles.late else LONG
    gluon_widths.STEP = 256 if tiles.whole else STEP
    again = mask is None and not tiles.dense and "resident" not in tiles.schedule
    ring: dict[str, Any] = {"stages": tiles.stages, "persistent": again}
    program = get(tiles.schedule).in_dims(dims).under(band)
    made = reading.gluon(program, {**dims, **tiles.blocks}, "bfloat16", band, scale=widths[0] ** -0.5, **ring)
    return Kernels(module_of(made.text), [each.name for each in made.kernels])


def compile_all(torch: Any, cases: list[tuple[int, tuple[int, int], str | None, bool]], threads: int) -> None:
    """Compile kernels side by side; Triton's compiler leaves the interpreter's lock."""
    loaded = [kernels(*case) for case in cases]  # one by one: `padded` is set in a module

    def once(case: Any, made: Kernels) -> None:
        _, (d_k, d_v), _, even = case
        given = tensors(torch, 1, 256 if even else 200, d_k, d_v)
        try:
            made.module.run(*inputs(torch, TILES[case[0]], given, None))
        except Exception as error:
            print(case, str(error)[:300], flush=True)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(once, cases, loaded))
    torch.cuda.synchronize()


def inputs(torch: Any, tiles: Tiles, given: list[Any], saved: dict[str, Any] | None) -> list[Any]:
    """What kernels take of Q, K, V, dO and what forward saved."""
    q, k, v, dO = given
    if tiles.way == "forward":
        return [q, k, v]
    saved = saved or {"O": torch.zeros_like(v), "L": torch.zeros(q.shape[:2], device="cuda")}
    return [q, k, v, dO, saved["O"].to(q.dtype), saved["L"].float()]


def operations(way: str, widths: tuple[int, int], mask: str | None, n: int, heads: int) -> float:
    """Useful operations."""
    (d_k, d_v), times = widths, 1 if mask is None else 0.5
    return 2 * times * n * n * heads * (d_k + d_v if way == "forward" else 3 * d_k + 2 * d_v)


def theirs(torch: Any, backend: str, way: str, given: list[Any], mask: str | None) -> Callable[[], Any]:
    """PyTorch's call of a backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, dO = (each[None].detach().requires_grad_(way == "backward") for each in given)

    def attend() -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)

    if way == "forward":
        return attend
    return partial(torch.autograd.grad, attend(), (q, k, v), dO, retain_graph=True)


def errors(torch: Any, index: int, widths: tuple[int, int], mask: str | None) -> dict[str, float | bool]:
    """Relative errors at a ragged length, and whether a second call gives the same bits."""
    given = tensors(torch, 2, 777, *widths)
    right, tiles = exact(torch, given, mask), TILES[index]
    made, again = (kernels(index, widths, mask, False).module.run(*inputs(torch, tiles, given, right)) for _ in "12")
    judged = [name for name in made if name in right]
    wrong = {name: float(f"{(made[name] - right[name]).norm() / right[name].norm():.2e}") for name in judged}
    return wrong | {"same bits": all(torch.equal(made[name], again[name]) for name in judged)}


def saved_by_forward(torch: Any, given: list[Any], mask: str | None) -> dict[str, Any]:
    """O and L, to base 2, some rows after the others."""
    q, k, v, _ = given
    (heads, n, d_k), rows = q.shape, 1024
    O, L = torch.empty(heads, n, v.shape[-1], device="cuda"), torch.empty(heads, n, device="cuda")
    for head, start in product(range(heads), range(0, n, rows)):
        scores = (q[head, start : start + rows] @ k[head].T).float() * d_k**-0.5
        if mask is not None:
            places = torch.arange(n, device="cuda")
            scores.masked_fill_(places[None, :] > places[start : start + rows, None], -torch.inf)
        L[head, start : start + rows] = torch.logsumexp(scores, -1) * 1.4426950408889634
        O[head, start : start + rows] = torch.softmax(scores, -1).to(v.dtype) @ v[head]
    return {"O": O, "L": L}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=3, help="lengths that the seed draws")
    parser.add_argument("--time-limit", type=float, default=200.0)
    parser.add_argument("--threads", type=int, default=14)
    parser.add_argument("--way", choices=("forward", "backward"), nargs="*", default=["forward", "backward"])
    parser.add_argument("--operator", action="store_true", help="`attention` as a program calls it")
    parser.add_argument("--width", type=int, nargs="*", help="head dimensions of keys and values alike, instead")
    parser.add_argument("--long", action="store_true", help="leave out 1,024 tokens, where the host is waited for")
    parser.add_argument("--latent", action="store_true", help="keys of 576 columns and values of 512, backward alone")
    asked = parser.parse_args()
    asked.widths = LATENT if asked.latent else tuple((d, d) for d in asked.width) if asked.width else WIDTHS
    asked.way = ["backward"] if asked.latent else asked.way
    import torch

    file, until = (
        asked.output / ("operator.jsonl" if asked.operator else "parts.jsonl"),
        time.monotonic() + asked.time_limit,
    )
    before = known(file)
    if asked.operator:
        add(file, operator_rows(torch, asked, before), until)
        return
    chosen = [at for at, tiles in enumerate(TILES) if tiles.way in asked.way]
    chance = random.Random(asked.seed)
    drawn = [chance.randint(700, 20000) for _ in range(asked.drawn)]
    shapes = [*SHAPES[: 2 if asked.long else 3], *((n, max(1, PAIRS // n**2)) for n in drawn)]
    cases = [
        (at, widths, mask, even)
        for at, mask, even in product(chosen, (None, "causal"), (True, False))
        for widths in TILES[at].widths
        if widths in asked.widths and not (TILES[at].dense and mask)
    ]
    began = time.monotonic()
    compile_all(torch, cases, asked.threads)
    print(f"compiled {len(cases)} in {time.monotonic() - began:.0f} s", flush=True)
    add(file, rows(torch, asked, chosen, shapes, before), until)


def operator_rows(torch: Any, asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """A row for each call of `attention`, at chosen lengths and at those that the seed draws."""
    chance = random.Random(asked.seed)
    drawn = [chance.randint(700, 12000) for _ in range(asked.drawn)]
    shapes = [(n, min(64, max(1, PAIRS // n**2)), 0, *widths) for n in (16384, 4096, 1024, *drawn) for widths in WIDTHS]
    latent = [(n, heads, 1, *LATENT[0]) for n, heads in ((4096, 16), (1024, 128), (2048, 64), (drawn[0] % 4000, 16))]
    shapes = [each for pair in zip(latent, shapes, strict=False) for each in pair] + shapes[len(latent) :]
    for (n, heads, kv_heads, d_k, d_v), mask in product(shapes, ("causal", None)):
        key = f"{heads}/{kv_heads or heads} heads, n = {n}, d = {d_k}/{d_v}, {mask}"
        if key in known:
            continue
        row = {"key": key, "d_k": d_k, "d_v": d_v, "mask": mask, "n": n, "heads": heads, "kv_heads": kv_heads or heads}
        row |= {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "seed": asked.seed}
        try:
            yield row | called(torch, n, heads, kv_heads or heads, (d_k, d_v), mask)
        except Exception as error:
            yield row | {"error": f"{type(error).__name__}: {error}"[:300]}
        torch.cuda.empty_cache()


def called(torch: Any, n: int, heads: int, kv_heads: int, widths: tuple[int, int], mask: str | None) -> dict[str, Any]:
    """Times of `attention` and of cuDNN, forward and with gradients, and errors of ours at 300 tokens."""
    from timing import together

    from pebblesim.gpu.torch import attention, plan as planned

    def inputs(n: int) -> list[Any]:
        q, k, v, dO = (torch.randn(1, h, n, d, device="cuda", dtype=torch.bfloat16) for h, d in given)
        q, k, v = q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
        return [q, k, k[..., : widths[1]] if shared else v, dO]

    def ours(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, is_causal=mask is not None, enable_gqa=shared)

    def cudnn(q: Any, k: Any, v: Any) -> Any:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)

    (d_k, d_v), shared = widths, kv_heads < heads
    given = ((heads, d_k), (kv_heads, d_k), (kv_heads, d_v), (heads, d_v))
    q, k, v, dO = inputs(300)
    leaves = (q, k) if shared else (q, k, v)
    found = torch.autograd.grad(ours(q, k, v), leaves, dO)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    values = wide[1][..., :d_v] if shared else wide[2]
    scores = wide[0] @ wide[1].transpose(2, 3) * d_k**-0.5
    if mask is not None:
        scores = scores.masked_fill(torch.ones(300, 300, device="cuda", dtype=torch.bool).triu(1), -torch.inf)
    right = torch.autograd.grad(torch.softmax(scores, -1) @ values, wide, dO.double())
    wrong = [float(f"{(a - b).norm() / b.norm():.2e}") for a, b in zip(found, right, strict=True)]
    del scores, right, wide, found
    q, k, v, dO = inputs(n)
    leaves = (q, k) if shared else (q, k, v)
    calls: dict[str, list[Callable[[], Any]]] = {}
    for name, attend in {"ours": ours, **({} if shared else {"cudnn": cudnn})}.items():
        calls[f"{name} forward"] = [lambda attend=attend: attend(q.detach(), k.detach(), v.detach())]
        calls[f"{name} both"] = [lambda attend=attend: torch.autograd.grad(attend(q, k, v), leaves, dO)]
    times = together(torch, calls, 3)
    ways = {"forward": operations("forward", widths, mask, n, heads)}
    ways["both"] = ways["forward"] + operations("backward", widths, mask, n, heads)
    rates = {
        name: {what: round(ways[name.split()[1]] / each[what] * 1e-6) for what in ("wall_us", "card_us")}
        for name, each in times.items()
    }
    made = planned(n, d_k, d_v=d_v, heads=heads, kv_heads=kv_heads, is_causal=mask is not None, card="H200")
    kernels = [str(each[0].tiling) for each in (made.forward, made.backward)]
    return {"times": times, "tflops": rates, "errors": wrong, "kernels": kernels}


def rows(
    torch: Any, asked: Any, chosen: list[int], shapes: list[tuple[int, int]], known: set[str]
) -> Iterator[dict[str, Any]]:
    """A row for each shape, mask, width and way."""
    for (n, heads), mask, widths, way in product(shapes, ("causal", None), asked.widths, asked.way):
        key = f"{way} {widths} {mask} {n} x {heads}"
        if key in known:
            continue
        row: dict[str, Any] = {"key": key, "way": way, "d_k": widths[0], "d_v": widths[1], "mask": mask, "n": n}
        row |= {"heads": heads, "card": torch.cuda.get_device_name(), "torch": torch.__version__, "seed": asked.seed}
        try:
            yield row | raced(torch, [at for at in chosen if TILES[at].way == way], widths, mask, n, heads)
        except Exception as error:
            yield row | {"error": f"{type(error).__name__}: {error}"[:300]}
        torch.cuda.empty_cache()


def raced(
    torch: Any, chosen: list[int], widths: tuple[int, int], mask: str | None, n: int, heads: int
) -> dict[str, Any]:
    """Times of all contenders, whose rounds alternate."""
    given, even = tensors(torch, heads, n, *widths), n % 128 == 0
    first, saved = TILES[chosen[0]], None
    if first.way == "backward":
        saved = saved_by_forward(torch, given, mask)
    calls: dict[str, Any] = {}
    for name in ("EFFICIENT_ATTENTION" if max(widths) > 256 else "CUDNN_ATTENTION",):  # the fastest of PyTorch's there
        try:
            calls[name] = theirs(torch, name, first.way, given, mask)
        except Exception as error:
            print(name, str(error)[:200], flush=True)
    wrong, launches = {}, {}
    chosen = [at for at in chosen if widths in TILES[at].widths and not (TILES[at].dense and mask)]
    for at in chosen:
        made = kernels(at, widths, mask, even)
        calls[str(TILES[at])] = partial(made.module.run, *inputs(torch, TILES[at], given, saved))
        wrong[str(TILES[at])] = errors(torch, at, widths, mask)
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(4):
        for name, call in calls.items():
            times[name].append(min(seconds_of(torch, call, 3, 1)[0]) * 1e6)
    for at in chosen:
        if TILES[at].way == "backward":
            names = kernels(at, widths, mask, even).names
            named = seconds_of_launches(torch, calls[str(TILES[at])], names, 2)
            launches[str(TILES[at])] = {name: round(seconds * 1e6, 1) for name, seconds in named.items()}
    median = {name: sorted(each)[len(each) // 2] for name, each in times.items()}
    useful = operations(first.way, widths, mask, n, heads)
    return {
        "us": {name: round(each, 1) for name, each in median.items()},
        "tflops": {name: round(useful / each * 1e-6) for name, each in median.items()},
        "launches": launches,
        "errors": wrong,
    }


if __name__ == "__main__":
    main()
