"""All tiles that may compute a short attention, those that are offered and others, on the card alone.

python benchmarks/gpu/every_tiling.py -o FOLDER --time-limit 90 [--workers 12] [--shape 3/3 …] [--way backward]

Shapes are those of drawn_race.py, by seed and number, or with `--short SEED NUMBER` so many short ones that a seed
draws. Each row of FOLDER/every_tiling.jsonl is a pass of one shape with one tiling: its forecast, its time on the card
alone with other tensors in each call, what its kernels take, and how far its results are from those of the tiling that
`attention` takes. What is there is not measured again.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
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

DRAWN = "short:"
"""What the names of short shapes begin with that a seed draws: behind it are the seed and a number."""

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


def _two_pass(rows: int, keys: int, few_keys: int, few_rows: int, warps: int, stages: int, **own: Any) -> Tiling:
    blocks = {"B_r": rows, "b_c": few_keys, "B_c": keys, "b_r": few_rows}
    return Tiling("backward-two-pass-blocked", blocks, warps, stages, **own)


SHORT_TILES = {
    "forward": (
        *(_triton(64, keys, 4, stages) for keys in (32, 64) for stages in (2, 3)),
        _triton(64, 16, 4, 2),
        _triton(128, 64, 8, 2),
        _gluon(64, 64, 2),
        _gluon(128, 64, 2),
    ),
    "backward": (
        _two_pass(64, 64, 32, 32, 4, 2),
        _two_pass(64, 64, 64, 64, 4, 2),
        _two_pass(64, 64, 32, 32, 8, 2),
        _two_pass(128, 128, 32, 32, 8, 3, apart={"dK, dV": (8, 2)}),
    ),
}
"""Tiles that short shapes are measured with whatever their forecasts say."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--time-limit", type=float, default=90.0, help="seconds after which nothing new is begun")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile kernels")
    parser.add_argument("--shape", nargs="*", default=SHAPES, help="SEED/NUMBER or sizes, as drawn_race.py has them")
    parser.add_argument("--short", nargs=2, type=int, metavar=("SEED", "NUMBER"), help="so many short shapes of a seed")
    parser.add_argument("--way", nargs="*", choices=WAYS, help="these passes of all shapes")
    asked = parser.parse_args()
    if asked.short:
        seed, number = asked.short
        asked.shape, asked.way = [f"{DRAWN}{seed}/{each}" for each in range(number)], asked.way or WAYS
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
    more = ", persistent" * (tiling.gluon and tiling.early) + ", described" * bool(tiling.described)
    return f"{shape} {way} {tiling}{more}"


def all_cases(asked: Any) -> Iterator[Case]:
    """All passes and tilings, the offered ones first."""
    forward = [(shape, "forward") for shape in asked.shape if shape != SHORT[1]]
    wanted = forward + [(shape, "backward") for shape in asked.shape if shape in BACKWARD]
    wanted = [(shape, way) for shape in asked.shape for way in asked.way] if asked.way else wanted
    made = [(*each, at) for each in wanted for at in range(len(tilings(*each)))]
    yield from sorted(made, key=lambda case: case[2] > 0)


def shape_of(name: str) -> Any:
    """A shape of drawn_race.py, by seed and number or by its sizes, or a short one."""
    from drawn_race import given
    from drawn_shapes import drawn, drawn_short

    if name.startswith(DRAWN):
        return drawn_short(*map(int, name.removeprefix(DRAWN).split("/")))
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


PER_CASE = 0.06
"""Seconds that a case is measured for, which compiling leaves."""

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
    always = SHORT_TILES[way] if name.startswith(DRAWN) else ()
    others = (each for each in always or OTHERS[way] if each.refusal(call) is None)
    seconds: dict[Tiling, float] = {}
    for each in {as_written(each): each for each in (*others, *reversed(offered), first)}.values():
        try:
            made = if_it_fits(each, dims, card, "bfloat16", heads, expected(pattern.mask))
        except UsageError:
            continue
        if not isinstance(made, Refusal):
            seconds[each] = made.seconds
    most = SLOWER * min(seconds.values())
    fitting = [each for each in seconds if each in always or (seconds[each] < most and each != first)]
    return (first, *(each for each in fitting if as_written(each) != as_written(first)))


def as_written(tiling: Tiling) -> Tiling:
    """A tiling for all shapes: that of its kernels."""
    return replace(tiling, widths=(1, 1024), sides={}, masked=None, rows=0, ranged=False)


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


def passes(torch: Any, shape: Any, seed: int = 0) -> dict[str, Any]:
    """Both passes as functions, of tensors that a seed has drawn: kernels are found at each call."""
    from drawn_shapes import tensors

    from pebblesim.operator import operators
    from pebblesim.operator.sequences import ranges_of_sequences

    (Q, K, V), dO = tensors(torch, shape, seed)
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
    from pebblesim.operator.planning import launched

    card = cards.with_rates(cards.card("H200"))
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    waiting = {pool.submit(compiled, case): case for case in in_kinds(cases)}
    good = []
    try:
        for each in as_completed(waiting, timeout=max(1.0, until - time.monotonic() - len(cases) * PER_CASE)):
            if error := each.result():
                yield {"key": key_of(*waiting[each]), "error": error}
            else:
                good.append(waiting[each])
    except TimeoutError:
        print("not all were compiled in time", flush=True)
    pool.shutdown(wait=False, cancel_futures=True)
    of_shape: dict[str, list[dict[str, Any]]] = {}
    right: dict[tuple[str, str], Any] = {}
    for name, way, number in sorted(good, key=lambda case: (case[0], case[1], case[2])):
        if time.monotonic() > until:
            return
        shape, tiling = shape_of(name), tilings(name, way)[number]
        with torch.no_grad():
            if name not in of_shape:
                of_shape = {name: sets(torch, shape)}
            calls = [each[way] for each in of_shape[name]]
            if (name, way) not in right:
                right[name, way] = [each.clone() for each in calls[0]()]
            with taking(tiling, shape):
                found = calls[0]()
                pairs = list(zip(found, right[name, way], strict=True))
                error = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs[:1])
                host = of_host(torch, calls[0], 5)
                times = sorted(of_card(torch, calls, 8, host) for _ in range(5))
                kernels = by_kernel(torch, calls[0]) if number == 0 and not name.startswith(DRAWN) else {}
        forecast = if_it_fits(
            tiling, sizes(shape), card, "bfloat16", shape.batch * shape.kv_heads, expected(pattern_of(shape).mask)
        )
        yield {
            "key": key_of(name, way, number),
            "shape": str(shape),
            "way": way,
            "tiling": str(tiling),
            "taken": number == 0,
            "sets": len(calls),
            "card_us": round(times[2], 2),
            "spread_us": [round(times[0], 2), round(times[-1], 2)],
            "forecast_us": None if isinstance(forecast, Refusal) else round(launched(forecast).seconds * 1e6, 2),
            "kernels_us": kernels,
            "apart": error,
            "card": torch.cuda.get_device_name(),
        }


def sets(torch: Any, shape: Any) -> list[dict[str, Any]]:
    """Both passes of several sets of tensors, so that none is in L2 when its turn comes."""
    from timing import sets_of

    return [passes(torch, shape, each) for each in range(sets_of(2 * shape.batch * shape.heads * shape.n * shape.d))]


def in_kinds(cases: list[Case]) -> list[Case]:
    """The cases, those whose kernels no case before them has compiled first: others find these in Triton's cache."""
    seen = Counter[object]()

    def before(case: Case) -> int:
        shape, tiling = shape_of(case[0]), tilings(*case[:2])[case[2]]
        kind = tiling, case[1], shape.d, shape.mask, shape.shared, shape.n % 128 == 0, shape.n % 16 == 0
        seen[kind] += 1
        return seen[kind]

    numbers = {case: before(case) for case in cases}
    return sorted(cases, key=lambda case: numbers[case])


if __name__ == "__main__":
    main()
