"""Attention whose kernels read ranges of keys, as packed sequences are: against float64, and beside others; on a GPU.

python benchmarks/gpu/ranges.py -o FOLDER --part right [--seed 1] [--time-limit 60] [--workers 12]
python benchmarks/gpu/ranges.py -o FOLDER --part times [--time-limit 100] [--peer flash-attn-4] [--tilings]

`right`: calls that a seed draws, one after the other in a process, so that later ones are launched as earlier ones were
with other lengths and other ranges; then each kernel of Gluon that is for ranges, whether it is taken or not. A row of
FOLDER/right.jsonl has the largest error of each result, ‖made - true‖ / ‖true‖, and what is too large, beside the
largest error of a single row, which is divided by that row or, if that is longer, by a mean one.
`times`: a row of FOLDER/times.jsonl for each packed shape: ours and others, then on the card alone our fastest kernels
by the forecast, of Gluon and of Triton; with `--tilings` more of them. What is there is not measured again.
`--table` shows the times that are there, without a GPU.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from drawn_ranges import calls, options_of, true_results
from resumed import add, known, there

HEADS = (
    (128, 128, 4), (64, 64, 1), (128, 128, 1), (80, 80, 2), (192, 128, 2), (64, 64, 4), (256, 256, 1), (128, 128, 8),
    (96, 96, 1), (192, 192, 1), (256, 256, 4), (64, 64, 16), (128, 128, 3),
)  # fmt: skip
"""Head dimensions of queries and of values, and heads that share keys: what kernels are compiled for."""

CALLS = 12
"""Calls of each of them, with lengths and ranges of their own."""

ERROR, ROW = 8e-3, 0.1
"""Largest errors of results in bfloat16: of all of one, and of a single row."""

PARTS = 1, 2, 4
"""Parts in which heads that share keys are taken."""

LONG = 2048
"""Tokens from which on PyTorch's kernels with a mask of booleans take several times as long as others."""

RACED = "3/7", "1/6", "2/17", "2/30", "1/12", "2/9", "1/18"
"""Packed shapes of drawn_race.py, by seed and number."""

OWN = (
    (2, 4, 8192, 128, 16), (8, 1, 16384, 128, 8), (4, 4, 4096, 64, 8), (4, 2, 8192, 256, 6), (8, 1, 4096, 128, 32),
    (8, 4, 8192, 128, 64), (16, 1, 2048, 64, 4), (4, 4, 8192, 192, 8),
)  # fmt: skip
"""Further ones: KV heads, heads that share each, tokens, head dimension, and sequences whose starts are drawn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--part", choices=("right", "times"), default="right")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=100.0, help="seconds after which nothing new is begun")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile kernels")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--tilings", action="store_true", help="each of our kernels, too")
    parser.add_argument("--table", action="store_true", help="the fastest kernels of each shape that was measured")
    asked = parser.parse_args()
    if asked.table:
        print(table(there(asked.output / "times.jsonl")))
        return
    file, until = asked.output / f"{asked.part}.jsonl", time.monotonic() + asked.time_limit
    add(file, (right if asked.part == "right" else times)(asked, known(file), until))


# Right results


def tensors(torch: Any, call: dict[str, Any], heads: tuple[int, int, int], seed: int) -> list[Any]:
    """Q, K, V and dO; of every other one of `HEADS` the heads of a token follow one another in memory."""
    d_k, d_v, shared = heads
    made, kv = torch.Generator("cuda").manual_seed(seed), call["kv_heads"]
    sizes = (
        (kv * shared, call["n_q"], d_k), (kv, call["n_k"], d_k), (kv, call["n_k"], d_v), (kv * shared, call["n_q"], d_v)
    )  # fmt: skip
    found = []
    for h, n, d in sizes:
        x = torch.randn((call["batch"], n, h, d), device="cuda", dtype=torch.bfloat16, generator=made)
        x = x.transpose(1, 2)
        found.append(x if HEADS.index(heads) % 2 else x.contiguous())
    return found


def off(true: dict[str, Any], made: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Errors of each result: of all of it, and of the worst row."""
    found = {}
    for name, each in made.items():
        difference, right_one = each.detach().double() - true[name], true[name]
        rows = right_one.norm(dim=-1)
        least = max(float(right_one.norm()), 1e-3 * right_one.numel() ** 0.5)
        mean = rows[rows > 1e-6].mean() if (rows > 1e-6).any() else rows.mean()  # of a single key dQ and dK are 0
        own = difference.norm(dim=-1) / rows.clamp(min=max(float(mean), 1e-2))
        found[name] = (float(difference.norm()) / least, float(own.max()))
    return found


def wrong(errors: dict[str, tuple[float, float]]) -> bool:
    """Whether some error is too large, or no number."""
    return any(not (whole <= ERROR and row <= ROW) for whole, row in errors.values())


def both_passes(torch: Any, call: dict[str, Any], x: list[Any], same_bits: bool) -> dict[str, Any]:
    """Results of `attention`."""
    from pebblesim.gpu.torch import attention

    x = [*(each.detach().requires_grad_() for each in x[:3]), x[3]]
    rest = {"enable_gqa": True, "deterministic": same_bits}
    out = attention(*x[:3], **options_of(torch, call), **rest)
    return dict(zip(("O", "dQ", "dK", "dV"), (out, *torch.autograd.grad(out, x[:3], x[3])), strict=True))


@contextmanager
def taking(tiling: Any, sizes: tuple[int, int, int, int, int], parts: int = 1) -> Iterator[None]:
    """Meanwhile the kernels of passes are those of a tiling, and heads that share keys are taken in so many parts.

    `sizes`: numbers of queries and of keys, both head dimensions, and heads that share keys.
    """
    from types import SimpleNamespace

    from pebblesim.kernels.key_ranges import KeyRanges
    from pebblesim.operator import planning
    from pebblesim.operator.launching import launching

    before, of_groups = launching.fitting, launching.groups_of
    n_q, n_k, d_k, d_v, shared = sizes
    rows = shared // parts
    dims = {"n_q": n_q * rows, "n_k": n_k, "d_k": d_k, "d_v": d_v}
    sides, _ = planning._of_lengths(tiling, tuple(dims.items())[2:], "bfloat16", KeyRanges(rows=rows))
    even = all((dims | dict(tiling.blocks))[name] % side == 0 for name, side in sides)
    taken = SimpleNamespace(forecast=SimpleNamespace(tiling=tiling, rounds=1), even=even, bytes=0, cut=None)
    launching.fitting = lambda *given: taken  # type: ignore[assignment, return-value]
    launching.groups_of = lambda *given: parts  # type: ignore[assignment]
    try:
        yield
    finally:
        launching.fitting, launching.groups_of = before, of_groups


def of_gluon(call: dict[str, Any], heads: tuple[int, int, int]) -> dict[str, list[Any]]:
    """The kernels of Gluon that are for a call's ranges, by the pass."""
    from pebblesim.advice import cards
    from pebblesim.advice.tiles import PROBLEM, kernels_for
    from pebblesim.kernels.key_ranges import KeyRanges
    from pebblesim.operator.pattern import Pattern

    (d_k, d_v, shared), card = heads, cards.with_rates(cards.card("H200"))
    dims = {"n_q": call["n_q"] * shared, "n_k": call["n_k"], "d_k": d_k, "d_v": d_v}
    asked = Pattern(KeyRanges(rows=shared), shared).call(dims.items(), "bfloat16", card)
    ways = {way: kernels_for(PROBLEM[way], asked, card.size("shared_per_block")) for way in PROBLEM}
    return {way: [each for each in found if each.gluon] for way, found in ways.items()}


def by_each(
    torch: Any, call: dict[str, Any], heads: tuple[int, int, int], x: list[Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The results of each kernel of Gluon that is for a call, by its name."""
    from pebblesim.operator import operators
    from pebblesim.operator.masks import Asked, ranged

    (d_k, d_v, shared), options = heads, options_of(torch, call)
    causal = options.pop("is_causal", False)
    asked = Asked(None, None, None, 0 if causal else None, False, d_k**-0.5, 0.0, None, False)
    masks = {name: options.get(name) for name in ("cu_seqlens", "key_padding_mask", "key_ranges")}
    asked = ranged(x[0], x[1], asked, masks)
    out, L = operators.without_notes(*x[:3], None, *asked)
    sizes = (call["n_q"], call["n_k"], d_k, d_v, shared)
    for way, tilings in of_gluon(call, heads).items():
        for tiling in tilings:
            if way == "forward":
                with taking(tiling, sizes):
                    O, own = operators.without_notes(*x[:3], None, *asked)
                same = bool((torch.isinf(own) == torch.isinf(L)).all())
                yield str(tiling), {"O": O if same else torch.full_like(O, torch.nan)}
            for parts in PARTS[: 2 if heads == HEADS[0] else 1] if way == "backward" else ():
                with taking(tiling, sizes, parts):
                    made = operators.gradients_without_notes(x[3], None, *x[:3], out, L, None, *asked)
                yield f"{tiling}, {parts} parts", dict(zip(("dQ", "dK", "dV"), made, strict=True))


def calls_of(seed: int, heads: tuple[int, int, int]) -> list[dict[str, Any]]:
    """The calls with these heads; of most of them kernels for lengths that tiles divide need not be compiled."""
    return calls(seed, heads, CALLS, HEADS.index(heads) % 3 != 0)


def one(torch: Any, heads: tuple[int, int, int], seed: int, number: int, call: dict[str, Any]) -> dict[str, Any]:
    """A row: errors of a call, twice, and of each kernel of Gluon for it."""
    x = tensors(torch, call, heads, 1000 * seed + number)
    true = true_results(torch, call, x, heads[2], heads[0] ** -0.5)
    found: dict[str, Any] = {}
    for same_bits in (False, True):
        for again in range(2):
            found[f"attention{' same bits' * same_bits}{' again' * again}"] = both_passes(torch, call, x, same_bits)
    errors = {name: off(true, made) for name, made in found.items()}
    for name, made in by_each(torch, call, heads, x):
        errors[name] = off(true, made)
    bad = {name: each for name, each in errors.items() if wrong(each)}
    shape = {name: value for name, value in call.items() if not isinstance(value, list)}
    worst = {name: max(each[name][0] for each in errors.values() if name in each) for name in true}
    return {"call": shape, "heads": heads, "kernels": len(errors), "worst": worst, "wrong": bad}


def compiled(heads: tuple[int, int, int], seed: int) -> str:
    """Make the calls of these heads once, so that Triton's cache has their kernels."""
    import torch

    try:
        for number, call in enumerate(calls_of(seed, heads)):
            one(torch, heads, seed, number, call)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{heads}: {type(error).__name__}: {error}"[:300]
    return ""


def right(asked: Any, known: set[str], until: float) -> Iterator[dict[str, Any]]:
    """A row for each call, of heads whose kernels are compiled: others are compiled meanwhile."""
    import torch

    began, pool = time.monotonic(), ProcessPoolExecutor(max(1, asked.workers), get_context("spawn"))
    wanted = [each for each in HEADS if f"{asked.seed}/{each}/{CALLS - 1}" not in known]
    waiting = {pool.submit(compiled, heads, asked.seed): heads for heads in wanted if asked.workers}
    try:
        for each in as_completed(waiting, timeout=max(1.0, until - began)):
            print(f"{waiting[each]} compiled in {time.monotonic() - began:.0f} s; {each.result()}", flush=True)
            yield from of_heads(torch, waiting[each], asked.seed, known, until)
    except TimeoutError:
        print("not all were compiled in time", flush=True)
    pool.shutdown(wait=False, cancel_futures=True)
    for heads in () if asked.workers else wanted:
        yield from of_heads(torch, heads, asked.seed, known, until)
    for process in (pool._processes or {}).values():  # which would compile on
        process.kill()


def of_heads(
    torch: Any, heads: tuple[int, int, int], seed: int, known: set[str], until: float
) -> Iterator[dict[str, Any]]:
    """A row for each call of these heads."""
    for at, call in enumerate(calls_of(seed, heads)):
        key = f"{seed}/{heads}/{at}"
        if key in known or time.monotonic() > until:
            continue
        try:
            yield {"key": key, **one(torch, heads, seed, at, call)}
        except Exception as error:  # which is what this is about
            yield {"key": key, "heads": heads, "error": f"{type(error).__name__}: {error}"[:400]}
            if "CUDA error" in str(error):
                raise


# Times


def shapes() -> dict[str, Any]:
    """Packed shapes, by a name."""
    from drawn_shapes import Shape, drawn as drawn_shape

    found: dict[str, Any] = {}
    for kv_heads, shared, n, d, sequences in OWN:
        chance = random.Random(f"{n}/{d}/{sequences}")
        starts = tuple(sorted({0, n, *(chance.randrange(1, n) for _ in range(sequences - 1))}))
        made = Shape(1, kv_heads, shared, n, d, "packed", None, starts)
        found[str(made)] = made
    raced = {name: drawn_shape(*map(int, name.split("/"))) for name in RACED}
    return {RACED[0]: raced[RACED[0]], **found, **raced}


def times(asked: Any, known: set[str], until: float) -> Iterator[dict[str, Any]]:
    """A row for each shape: ours and others, and our kernels on the card alone."""
    import torch
    from contenders import contenders
    from drawn_race import step
    from drawn_shapes import errors, right as true_of, tensors as tensors_of
    from timing import sets_of, together

    names = [name for name in shapes() if name not in known]
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, asked.workers), get_context("spawn")) as pool:
        work = partial(made_once, peers=tuple(asked.peer), tilings=asked.tilings)
        said = [each for each in pool.map(work, names) if each] if asked.workers else []
    print(f"compiled in {time.monotonic() - began:.0f} s; {said}", flush=True)
    for name in names:
        if time.monotonic() > until:
            return
        shape = shapes()[name]
        sets = [tensors_of(torch, shape, seed) for seed in range(sets_of(2 * shape.heads * shape.n * shape.d))]
        row: dict[str, Any] = {"key": name, "shape": str(shape), **shape.row(), "card": torch.cuda.get_device_name()}
        true, row["errors"] = true_of(torch, shape, *sets[0]), {}
        attends = contenders(torch, shape, "none", tuple(asked.peer))
        attends = {who: each for who, each in attends.items() if shape.n <= LONG or not who.endswith("mask")}
        for who in [*attends]:
            try:
                x, dO = sets[0]
                out = attends[who](*x)
                made = dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(out, x, dO), strict=True))
                row["errors"][who] = errors(true, made | {"O": out})
            except Exception as error:
                row.setdefault("refused", {})[who] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
                del attends[who]
        for way in ("forward", "both"):
            every = {who: [partial(step, torch, way, each, *one) for one in sets] for who, each in attends.items()}
            row[way] = together(torch, every)
        row["tilings"] = dict(by_tiling(torch, shape, name, asked.tilings))
        yield row
        torch.cuda.empty_cache()


def by_tiling(torch: Any, shape: Any, name: str, every: bool) -> Iterator[tuple[str, Any]]:
    """Microseconds of the card of each pass by the kernels of some tilings: those of Gluon, and the best others."""
    from every_tiling import passes
    from timing import by_kernel, of_card, of_host

    with torch.no_grad():
        made = passes(torch, shape)
        for way, tilings in tilings_of(shape, every).items():
            for (number, tiling), parts in product(enumerate(tilings), PARTS):
                if parts > (shape.shared if way == "backward" and tiling.gluon else 1):
                    continue
                key = f"{way} {tiling}{f', {parts} parts' * (parts > 1)}"
                with taking(tiling, (shape.n, shape.n, shape.d, shape.d, shape.shared), parts):
                    try:
                        host = of_host(torch, made[way], 5)
                        found = sorted(of_card(torch, [made[way]], 8, host) for _ in range(5))[2]
                        kernels = by_kernel(torch, made[way]) if number < 2 else {}
                    except Exception as error:
                        yield key, f"{type(error).__name__}: {error}"[:120]
                        continue
                yield key, [round(found, 2), {name: each for name, each in kernels.items() if each >= 0.5}]


def tilings_of(shape: Any, every: bool) -> dict[str, list[Any]]:
    """Our kernels for a packed shape that may be near, the fastest forecast first."""
    from every_tiling import pattern_of

    from pebblesim.advice import cards
    from pebblesim.operator.planning import ROOM, Pass, ranked_for

    card, pattern = cards.with_rates(cards.card("H200")), pattern_of(shape)
    dims = (("n_q", shape.n * shape.shared), ("n_k", shape.n), ("d_k", shape.d), ("d_v", shape.d))
    found = {}
    for way in ("forward", "backward"):
        _, ranked = ranked_for(Pass(way, dims, shape.kv_heads, "bfloat16", pattern, ROOM, card))
        tables = [each.tiling for each in ranked if each.rounds == 1]
        near = [each for at, each in enumerate(tables) if at < 4 or each.gluon]
        others = [next(each for each in tables if not each.gluon)]
        found[way] = list(dict.fromkeys([*near, *others])) if every else list(dict.fromkeys([tables[0], *others]))
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Microseconds of the card alone: both passes as a user calls them, and our fastest kernels of each kind."""
    lines = [
        "| shape | forward: call, Gluon, Triton | backward: Gluon, Triton | both passes: call, varlen of PyTorch |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        least: dict[tuple[str, bool], float] = {}
        for name, found in row["tilings"].items():
            key = name.split()[0], "Gluon" in name
            if not isinstance(found, str):
                least[key] = min(least.get(key, inf), found[0])
        cells = [[least.get((way, gluon)) for gluon in (True, False)] for way in ("forward", "backward")]
        first = [row["forward"]["ours"]["card_us"], *cells[0]]
        both = [row["both"][who]["card_us"] if who in row["both"] else None for who in ("ours", "varlen")]
        said = (", ".join("–" if x is None else f"{x:,.0f}" for x in some) for some in (first, cells[1], both))
        lines.append(f"| {row['shape'].removeprefix('1 x ')} | {' | '.join(said)} |")
    return "\n".join(lines)


def made_once(name: str, peers: tuple[str, ...], tilings: bool) -> str:
    """Make all calls of a shape once, so that caches on disk have their kernels."""
    import torch
    from contenders import contenders
    from drawn_race import KEPT, step
    from drawn_shapes import tensors as tensors_of
    from every_tiling import passes

    shape, said = shapes()[name], ""
    x, dO = tensors_of(torch, shape)
    for who, attend in contenders(torch, shape, "none", peers).items():
        if who in KEPT:
            try:
                step(torch, "both", attend, x, dO)
            except Exception as error:
                said += f"{who}: {type(error).__name__}: {error}"[:160]
    with torch.no_grad():
        made: dict[str, Callable[[], Any]] = passes(torch, shape)
        for way, found in tilings_of(shape, tilings).items():
            for tiling, parts in product(found, PARTS):
                if parts > (shape.shared if way == "backward" and tiling.gluon else 1):
                    continue
                with taking(tiling, (shape.n, shape.n, shape.d, shape.d, shape.shared), parts):
                    try:
                        made[way]()
                    except Exception as error:
                        said += f"{tiling}: {type(error).__name__}: {error}"[:160]
    torch.cuda.synchronize()
    return said


if __name__ == "__main__":
    main()
