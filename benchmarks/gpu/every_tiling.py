"""All tiles that may compute a short attention, those that are offered and others, on the card alone.

python benchmarks/gpu/every_tiling.py -o FOLDER --time-limit 90 [--workers 12] [--shape 3/3 …] [--way backward]

Shapes are those of drawn_race.py, by seed and number. Each row of FOLDER/every_tiling.jsonl is a pass of one shape with
one tiling: its forecast, its time on the card alone, what its kernels take, and how far its results are from those of
the tiling that `attention` takes. What is there is not measured again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from resumed import add, known

from pebblesim.advice.tiles import Tiling
from pebblesim.core.errors import UsageError

SHORT = "2,8,1,512,128,causal", "1,4,1,2047,128,causal"
"""Short calls whose backward passes have several schedules that are near each other."""

FEW = "2,8,1,1024,128,causal", "1,2,1,700,64,causal", "1,2,1,700,256,causal", "2,8,1,600,64,none"
"""Calls with few rows, for which tiles of 64 rows are more blocks."""

PACKED = "3/7", "1/6"
"""Packed sequences that are longer."""

SHAPES = "2/12", *SHORT, *FEW, *PACKED, "1/8", "2/10", "3/3", "2/9", "1/12"
"""Shapes on which another contender is ahead of ours on the card alone, and short ones."""

BACKWARD = ("2/10", *SHORT)
"""Those whose backward passes are measured, too."""

WAYS = ("forward", "backward")


def _gluon(rows: int, keys: int, stages: int, persistent: bool = False) -> Tiling:
    blocks = {"B_r": rows, "B_c": keys}
    return Tiling("flash2-forward", blocks, stages=stages, gluon=True, persistent=persistent)


def _triton(rows: int, keys: int, warps: int, stages: int) -> Tiling:
    return Tiling("flash2-forward", {"B_r": rows, "B_c": keys}, warps, stages)


OTHERS = {
    "forward": (
        *(replace(_gluon(128, keys, 2, True), early=True) for keys in (64, 128)),
        *(_gluon(64, keys, stages) for keys in (64, 128) for stages in (2, 3)),
        *(_gluon(128, 64, stages) for stages in (2, 3)),
        *(_triton(64, keys, 4, stages) for keys in (32, 64, 128) for stages in (2, 3)),
        *(_triton(32, keys, 4, 3) for keys in (32, 64)),
        *(_triton(16, keys, 4, 3) for keys in (64, 128)),
        *(_triton(128, 64, 8, stages) for stages in (2, 3)),
        *(_triton(32, keys, 8, stages) for keys, stages in ((16, 2), (32, 1), (32, 2))),
    ),
    "backward": (
        Tiling("backward-two-pass-blocked", {"B_r": 64, "b_c": 32, "B_c": 64, "b_r": 32}, 8, 2),
        Tiling("backward-two-pass-blocked", {"B_r": 64, "b_c": 32, "B_c": 32, "b_r": 32}, 8, 2),
        Tiling("backward-two-pass-blocked", {"B_r": 32, "b_c": 64, "B_c": 32, "b_r": 64}, 8, 2),
        Tiling("backward-two-pass-blocked", {"B_r": 64, "b_c": 64, "B_c": 32, "b_r": 64}, 8, 1),
        Tiling("small-cache-backward-blocked", {"a": 64, "b": 64, "c": 64}, 4, 3),
        Tiling("small-cache-backward-blocked", {"a": 64, "b": 32, "c": 64}, 4, 3),
    ),
}
"""Tiles that are not offered. A Gluon kernel that is `early` has a block for each multiprocessor under a mask, too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--time-limit", type=float, default=90.0, help="seconds after which nothing new is begun")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile kernels")
    parser.add_argument("--shape", nargs="*", default=SHAPES, help="SEED/NUMBER or sizes, as drawn_race.py has them")
    parser.add_argument("--way", nargs="*", choices=WAYS, help="these passes of all shapes")
    asked = parser.parse_args()
    file, until = asked.output / "every_tiling.jsonl", time.monotonic() + asked.time_limit
    before = known(file)
    cases = [case for case in all_cases(asked) if key_of(*case) not in before]
    print(len(cases), "cases", flush=True)
    add(file, rows(cases, asked.workers, until))


Case = tuple[str, str, int]
"""A shape by seed and number, a pass, and the number of a tiling."""


def key_of(shape: str, way: str, number: int) -> str:
    """The name of a row."""
    tiling = tilings(shape, way)[number]
    return f"{shape} {way} {tiling}{', persistent' * (tiling.gluon and tiling.early)}"


def all_cases(asked: Any) -> Iterator[Case]:
    """All passes and tilings, the offered ones first."""
    forward = [(shape, "forward") for shape in asked.shape if shape != SHORT[1]]
    wanted = forward + [(shape, "backward") for shape in asked.shape if shape in BACKWARD]
    wanted = [(shape, way) for shape in asked.shape for way in asked.way] if asked.way else wanted
    made = [(*each, at) for each in wanted for at in range(len(tilings(*each)))]
    yield from sorted(made, key=lambda case: case[2] > 0)


def shape_of(name: str) -> Any:
    """A shape of drawn_race.py, by seed and number or by its sizes."""
    from drawn_race import given
    from drawn_shapes import drawn

    return given(name) if "," in name else drawn(*map(int, name.split("/")))


def pattern_of(shape: Any) -> Any:
    """Its pairs, as kernels are chosen for them."""
    from pebblesim.kernels.key_ranges import KeyRanges
    from pebblesim.operator.pattern import Pattern, band_of

    if shape.mask == "packed":
        return Pattern(KeyRanges(rows=shape.shared), shape.shared)
    return Pattern(band_of(right=0 if shape.mask == "causal" else None, rows=shape.shared), shape.shared)


def sizes(shape: Any) -> dict[str, int]:
    """Dimensions of its problem; heads that share keys are one with the rows of all."""
    return {"n_q": shape.n * shape.shared, "n_k": shape.n, "d_k": shape.d, "d_v": shape.d}


SLOWER = 1.7
"""Factor by which a kernel may be slower than the fastest one, by forecasts, to be measured."""


@cache
def tilings(name: str, way: str) -> tuple[Tiling, ...]:
    """Tilings for a pass of a shape, the one that `attention` takes first."""
    from pebblesim.advice import cards
    from pebblesim.advice.forecast import if_it_fits
    from pebblesim.advice.tiles import PROBLEM, kernels_for
    from pebblesim.kernels.domains import Refusal, expected
    from pebblesim.operator.planning import ROOM, chosen

    shape, card = shape_of(name), cards.with_rates(cards.card("H200"))
    pattern, dims = pattern_of(shape), sizes(shape)
    heads = shape.batch * shape.kv_heads
    first = chosen(way, tuple(dims.items()), heads, "bfloat16", pattern, ROOM, card).forecast.tiling
    call = pattern.call(tuple(dims.items()), "bfloat16", card)
    offered = kernels_for(PROBLEM[way], call, card.size("shared_per_block"))
    others = (each for each in OTHERS[way] if each.refusal(call) is None)
    seconds: dict[Tiling, float] = {}
    for each in dict.fromkeys((first, *offered, *others)):
        try:
            made = if_it_fits(each, dims, card, "bfloat16", heads, expected(pattern.mask))
        except UsageError:
            continue
        if not isinstance(made, Refusal):
            seconds[each] = made.seconds
    return tuple(each for each in seconds if each == first or seconds[each] < SLOWER * min(seconds.values()))


@contextmanager
def taking(tiling: Tiling, shape: Any) -> Iterator[None]:
    """Meanwhile the kernels of passes are those of a tiling."""
    from types import SimpleNamespace

    from pebblesim.operator import planning, texts
    from pebblesim.operator.launching import launching

    before, dims, writing = launching.fitting, sizes(shape), texts.gluon
    sides, _ = planning._of_lengths(tiling, tuple(dims.items())[2:], "bfloat16", pattern_of(shape).mask)
    even = not tiling.one_source and all((dims | dict(tiling.blocks))[name] % side == 0 for name, side in sides)
    taken = SimpleNamespace(forecast=SimpleNamespace(tiling=tiling, rounds=1), even=even, bytes=0, cut=None)
    launching.fitting = lambda *given: taken  # type: ignore[assignment, return-value]
    if tiling.gluon and tiling.early:
        texts.gluon = lambda *given, **options: writing(*given, **options | {"persistent": True})
    try:
        yield
    finally:
        launching.fitting, texts.gluon = before, writing


def passes(torch: Any, shape: Any) -> dict[str, Any]:
    """Both passes as functions: kernels are found at each call."""
    from drawn_shapes import tensors

    from pebblesim.operator import operators
    from pebblesim.operator.sequences import ranges_of_sequences

    (Q, K, V), dO = tensors(torch, shape)
    Q, K, V = (each.detach() for each in (Q, K, V))
    ranges: tuple[Any, Any] = (None, None)
    if shape.mask == "packed":
        starts = torch.tensor(shape.starts, dtype=torch.int32, device="cuda")
        ranges = ranges_of_sequences(starts, starts, shape.n, shape.n, (None, 0, False))
    right = 0 if shape.mask == "causal" else None
    rest = (*ranges, None, right, False, shape.d**-0.5, 0.0, None, False)
    out, L = operators.without_notes(Q, K, V, None, *rest)
    return {
        "forward": lambda: operators.without_notes(Q, K, V, None, *rest),
        "backward": lambda: operators.gradients_without_notes(dO, None, Q, K, V, out, L, None, *rest),
    }


def compiled(case: Case) -> str:
    """Make a pass once with a tiling, so that Triton's cache has its kernels; what went wrong, if something did."""
    import torch

    name, way, number = case
    try:
        with torch.no_grad():
            made = passes(torch, shape_of(name))
            with taking(tilings(name, way)[number], shape_of(name)):
                made[way]()
            torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def rows(cases: list[Case], workers: int, until: float) -> Iterator[dict[str, Any]]:
    """A row for each case, measured while the next ones are compiled, in rounds that are long enough for that."""
    import torch
    from timing import by_kernel, of_card, of_host

    from pebblesim.advice import cards
    from pebblesim.advice.forecast import if_it_fits
    from pebblesim.kernels.domains import Refusal, expected

    card = cards.with_rates(cards.card("H200"))
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    waiting = {pool.submit(compiled, case): case for case in cases}
    good = []
    try:
        for each in as_completed(waiting, timeout=max(1.0, until - time.monotonic() - len(cases) * 0.15)):
            if error := each.result():
                yield {"key": key_of(*waiting[each]), "error": error}
            else:
                good.append(waiting[each])
    except TimeoutError:
        print("not all were compiled in time", flush=True)
    pool.shutdown(wait=False, cancel_futures=True)
    of_shape: dict[str, dict[str, Any]] = {}
    right: dict[tuple[str, str], Any] = {}
    for name, way, number in sorted(good, key=lambda case: (case[0], case[1], case[2])):
        if time.monotonic() > until:
            return
        shape, tiling = shape_of(name), tilings(name, way)[number]
        with torch.no_grad():
            made = of_shape.setdefault(name, passes(torch, shape))
            if (name, way) not in right:
                right[name, way] = [each.clone() for each in made[way]()]
            with taking(tiling, shape):
                found = made[way]()
                pairs = list(zip(found, right[name, way], strict=True))
                error = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs[:1])
                host = of_host(torch, made[way], 5)
                times = sorted(of_card(torch, [made[way]], 8, host) for _ in range(5))
                kernels = by_kernel(torch, made[way]) if number == 0 else {}
        forecast = if_it_fits(
            tiling, sizes(shape), card, "bfloat16", shape.batch * shape.kv_heads, expected(pattern_of(shape).mask)
        )
        yield {
            "key": key_of(name, way, number),
            "shape": str(shape),
            "way": way,
            "tiling": str(tiling),
            "taken": number == 0,
            "card_us": round(times[2], 2),
            "spread_us": [round(times[0], 2), round(times[-1], 2)],
            "forecast_us": None if isinstance(forecast, Refusal) else round(forecast.seconds * 1e6, 2),
            "kernels_us": kernels,
            "apart": error,
            "card": torch.cuda.get_device_name(),
        }


if __name__ == "__main__":
    main()
