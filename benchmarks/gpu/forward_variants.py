"""What a forward pass of the kernels for Hopper loses: tiles, orders of tiles, blocks with several tiles, narrow sums.

python benchmarks/gpu/forward_variants.py -o FOLDER --time-limit 60 [--part several …]

Each row of FOLDER/forward_variants.jsonl is a shape and a variant of its kernel:
microseconds on the card alone, the median of rounds in which the variants of a shape alternate, TFLOP/s, the clock and
watts while it runs, and how far O is from that of the first variant. Variants are texts, so that no kernel that
`attention` takes is changed. What is there is not measured again.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from forward_texts import Variant, given, text_of
from resumed import add, there

RESTED = 2e3
"""Microseconds from which on what is taken is measured after a rest, too, with the clock of then."""

TAKEN = {64: Variant(128, 128, 3), 80: Variant(128, 128, 2), 96: Variant(128, 128, 2), 128: Variant(128, 128, 2)}
TAKEN |= {192: Variant(128, 64, 2), 256: Variant(128, 64, 2)}
"""Tiles that `attention` takes, by head dimension."""


def with_heads(d: int, *numbers: int) -> tuple[Variant, ...]:
    return (TAKEN[d], *(replace(TAKEN[d], together=each) for each in numbers))


def of_tiles(d: int) -> tuple[Variant, ...]:
    """Other tiles, and blocks with several of them."""
    tiles = [(128, 128, 2), (128, 64, 3), (192, 64, 3), (192, 64, 2)]
    tiles += [(128, 128, 3), (192, 128, 2)] if d == 64 else []
    found = [TAKEN[d], replace(TAKEN[d], several=True)]
    found += [Variant(*each, several=several) for each in tiles for several in (False, True)]
    found += [Variant(192, 128, stages, held=0.86) for stages in (2, 3) if d == 64]
    return tuple(dict.fromkeys(found))


def masked(d: int) -> tuple[Variant, ...]:
    """Blocks with one tile under masks, as before, with several, and with exponentials kept apart."""
    taken, several = TAKEN[d], replace(TAKEN[d], several=True)
    return (taken, several, replace(taken, apart=True), replace(several, apart=True))


def dense(d: int) -> tuple[Variant, ...]:
    """What is taken without a mask, with exponentials kept apart, and with O scaled late."""
    taken = replace(TAKEN[d], several=True)
    apart = replace(taken, apart=True, no_turns=d == 64)
    return (taken, apart, replace(apart, scaled_late=True))


def in_turns(d: int, masked: bool) -> tuple[Variant, ...]:
    """What is taken, with turns and without, and with sums of threads where the text is one that is rewritten."""
    taken = replace(TAKEN[d], several=True)
    found = [taken, replace(taken, of_threads=True)][: 1 + (masked and d > 64)]
    return (*found, *(replace(each, turns=d > 64, no_turns=d == 64) for each in found))


def orders(d: int) -> tuple[Variant, ...]:
    several = replace(TAKEN[d], several=True)
    return (TAKEN[d], several)


MASKED = (
    "16,2,1,1107,64,causal",
    "32,4,4,372,80,causal",
    "16,4,4,2619,80,causal",
    "16,1,1,4160,128,causal",
    "64,8,4,169,128,causal",
    "1,4,1,16384,64,causal",
    "4,4,1,4096,64,causal",
    "2,2,1,7488,64,causal",
    "32,8,1,512,64,causal",
    "8,8,4,348,80,causal",
    "4,8,4,2048,96,causal",
    "1,4,1,16384,128,causal",
    "1,4,4,8192,128,causal",
    "8,4,4,600,256,causal",
    "2,8,4,5000,256,causal",
    "4,4,4,3000,128,window:256",
    "1,4,4,22000,128,window:1024",
)
"""Shapes with a mask, whose tiles of rows differ in length."""

DENSE = (
    "1,4,1,16384,128,none",
    "16,8,1,500,128,none",
    "8,1,1,4992,256,none",
    "1,4,1,16384,64,none",
    "16,12,2,236,64,none",
    "1,4,1,16384,96,none",
    "1,4,1,1331,192,none",
    "1,4,1,9000,192,none",
)
"""Shapes without a mask."""

PARTS: dict[str, dict[str, tuple[Variant, ...]]] = {
    "several": {
        name: orders(int(name.split(",")[4]))
        for name in (*MASKED, "1,8,4,22209,128,causal", "1,8,4,22209,256,causal", "16,8,1,300,192,causal")
    },
    "changes": {
        **{name: masked(int(name.split(",")[4])) for name in MASKED},
        **{name: dense(int(name.split(",")[4])) for name in DENSE},
    },
    "long": {
        "1,8,4,22209,256,causal": with_heads(256, 1, 2, 3, 4, 8),
        "1,8,4,22208,256,causal": (*with_heads(256, 1), *(replace(each, even=True) for each in with_heads(256, 1))),
        "1,32,1,22209,256,causal": with_heads(256, 1, 2, 4),
        "1,8,4,16384,256,causal": with_heads(256, 1, 2, 3, 4, 8),
        "1,8,8,10486,256,causal": with_heads(256, 1, 2, 3, 4, 8),
        "1,4,1,16384,256,causal": with_heads(256, 1, 2, 4),
        "1,8,4,22209,256,none": (replace(TAKEN[256], several=True),),
    },
    "short": {
        name: of_tiles(int(name.split(",")[4]))
        for name in (
            "32,4,4,372,80,causal",
            "16,2,1,1107,64,causal",
            "16,1,1,4160,128,causal",
            "16,4,4,2619,80,causal",
            "8,8,4,348,80,causal",
            "1,4,1,16384,64,causal",
            "4,4,1,4096,64,causal",
            "2,2,1,7488,64,causal",
            "64,8,4,169,128,causal",
            "16,4,2,230,128,causal",
            "4,8,4,2048,96,causal",
            "1,4,1,16384,96,causal",
        )
    },
    "narrow": {
        "16,4,4,2619,80,causal": (TAKEN[80], *(replace(TAKEN[80], first=64, rest=each) for each in (0, 16, 32))),
        "1,4,1,16384,80,causal": (TAKEN[80], *(replace(TAKEN[80], first=64, rest=each) for each in (0, 16, 32))),
        "1,4,1,16384,96,causal": (TAKEN[96], *(replace(TAKEN[96], first=64, rest=each) for each in (0, 32))),
    },
    "turns": {
        name: in_turns(int(name.split(",")[4]), not name.endswith("none"))
        for name in (
            "16,4,4,2619,80,causal",
            "32,4,4,372,80,causal",
            "8,8,4,348,80,window:2048",
            "16,2,1,1107,64,causal",
            "16,1,1,4160,128,causal",
            "1,4,1,16384,80,causal",
            "1,4,1,16384,80,none",
            "1,4,1,16384,96,none",
            "1,4,1,16384,64,causal",
            "1,4,1,16384,128,none",
            "1,4,4,8192,128,causal",
            "64,8,4,169,128,causal",
            "4,8,4,2048,96,causal",
        )
    },
    "orders": {
        "1,8,4,22209,128,causal": with_heads(128, 1, 2, 4, 8),
        "1,16,1,16384,128,causal": with_heads(128, 1, 2, 4, 8, 16),
        "1,4,8,32768,128,causal": with_heads(128, 1, 2, 4),
        "4,8,1,8192,256,causal": with_heads(256, 1, 2, 4, 8, 16),
        "1,4,4,32768,192,causal": with_heads(192, 1, 2, 4),
        "2,8,4,5000,256,causal": with_heads(256, 2, 4, 8, 16),
    },
}
"""Shapes and their variants."""


Case = tuple[str, Variant]


def drawn_wide(seed: int, number: int) -> Iterator[str]:
    """Causal shapes of wide heads: 256 to 4,096 tokens, 1 to 8 tiles of 128 rows for each multiprocessor."""
    draw = random.Random(seed)
    for _ in range(number):
        n = round(2 ** draw.uniform(8, 12))
        n = draw.choice((n, -(-n // 128) * 128))
        heads = max(1, round(132 * 2 ** draw.uniform(0, 3) / -(-n // 128)))
        yield f"1,{heads},1,{n},{draw.choice((192, 256))},causal"


def drawn_groups(seed: int, number: int) -> Iterator[str]:
    """Shapes whose heads are often in several groups: every second one with 256 columns, others with more heads."""
    draw = random.Random(seed)
    for each in range(number):
        n, wide = round(2 ** draw.uniform(9, 12)), each % 2 == 0
        n = draw.choice((n, -(-n // 128) * 128))
        tiles = -(-n // 128)
        heads = round(2 ** draw.uniform(3, 7)) if wide else max(1, round(132 * draw.uniform(4, 24) / tiles))
        d, mask = draw.choice((64, 80, 96, 128, 192)), draw.choice(("causal", "causal", "causal", "none"))
        yield f"1,{heads},1,{n},{256 if wide else d},{mask if wide else 'causal'}"


def in_groups(d: int) -> tuple[Variant, ...]:
    """One tile a block and several, with groups of heads as they are taken, and each from long to short."""
    several = replace(TAKEN[d], several=True)
    return (TAKEN[d], several, replace(several, falling=True))


GROUPED = (
    "16,4,4,2619,80,causal",
    "32,2,1,1024,256,causal",
    "4,16,1,3000,256,window:700",
    "8,32,1,2000,128,window:1024",
    "2,8,4,5000,256,causal",
    "1,8,4,22209,256,causal",
    "1,8,4,22209,128,causal",
)

PARTS["groups"] = {name: in_groups(int(name.split(",")[4])) for name in (*GROUPED, *drawn_groups(17, 28))}
PARTS["groups"][GROUPED[0]] += (replace(TAKEN[80], several=True, together=64),)
PARTS["wide"] = {name: orders(int(name.split(",")[4])) for name in drawn_wide(12, 44)}


@cache
def module_for(case: Case) -> Any:
    """The module that launches a variant's kernel."""
    from pebblesim.operator.launching.launching import running

    return running(*text_of(given(case[0]), case[1]))


def kind_of(case: Case) -> tuple[str, ...]:
    """What decides how a kernel is compiled: its text without what `run` does."""
    return (text_of(given(case[0]), case[1])[0].partition("\ndef run(")[0],)


def compiled(case: Case) -> str:
    """Run a variant with a short length, so that Triton's cache has its kernel; what went wrong, if something did."""
    import torch

    shape = replace(given(case[0]), batch=1, kv_heads=1, n=256)
    try:
        call_of(torch, case, *inputs(torch, shape))()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def inputs(torch: Any, shape: Any) -> list[Any]:
    from drawn_shapes import tensors

    return [each.detach() for each in tensors(torch, shape)[0]]


def call_of(torch: Any, case: Case, Q: Any, K: Any, V: Any) -> Callable[[], Any]:
    """A call of a variant."""
    O, run = torch.empty_like(Q), module_for(case).run
    return lambda: run(Q, K, V, results={"O": O})


def table(found: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    lines = ["| shape | variant | µs | TFLOP/s | MHz | W | µs after a rest |", "|---" * 7 + "|"]
    for row in found:
        if "error" not in row:
            rested = f"{row['rested_us']:,.0f}" if row["rested_us"] else ""
            numbers = (f"{row['card_us']:,.1f}", f"{row['tflops']:.0f}", str(row["clock"]), str(row["watts"]), rested)
            lines.append(f"| {row['shape']} | {row['variant']} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds after which nothing new is begun")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile kernels; 0: they are compiled")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS), help="groups of shapes")
    parser.add_argument("--texts", type=Path, help="write the texts into this folder, and measure nothing")
    parser.add_argument("--table", action="store_true", help="show the rows that are there")
    asked = parser.parse_args()
    cases = [(shape, each) for part in asked.part for shape, variants in PARTS[part].items() for each in variants]
    if asked.texts is not None:
        asked.texts.mkdir(parents=True, exist_ok=True)
        for shape, each in dict.fromkeys(cases):
            name = re.sub(r"\W+", "_", f"{shape} {each}")
            (asked.texts / f"{name}.py").write_text(text_of(given(shape), each)[0])
        return
    file, until = asked.output / "forward_variants.jsonl", time.monotonic() + asked.time_limit
    found = there(file)
    if asked.table:
        print(table(found))
        return
    measured_before = {row["key"] for row in found}
    cases = [case for case in dict.fromkeys(cases) if f"{case[0]}: {case[1]}" not in measured_before]
    add(file, rows(cases, asked.workers, until))


def rows(cases: list[Case], workers: int, until: float) -> Iterator[dict[str, Any]]:
    """A row for each variant; those of a shape are measured in turn."""
    import torch

    wrong: dict[tuple[str, ...], str] = {}
    if workers:
        kinds = {kind_of(case): case for case in reversed(cases)}
        pool = ProcessPoolExecutor(workers, get_context("spawn"))
        waiting = {pool.submit(compiled, case): kind for kind, case in kinds.items()}
        begin = time.monotonic()
        for done in as_completed(waiting):
            wrong[waiting[done]] = done.result()
        pool.shutdown()
        print(len(kinds), "kernels compiled in", round(time.monotonic() - begin), "s", flush=True)
    for name in dict.fromkeys(shape for shape, _ in cases):
        if time.monotonic() > until:
            print("time is over", flush=True)
            return
        good, x, shape = {}, inputs(torch, given(name)), given(name)
        for case in (each for each in cases if each[0] == name):
            if error := wrong.get(kind_of(case), ""):
                yield {"key": f"{name}: {case[1]}", "error": error}
            else:
                good[case] = call_of(torch, case, *x)
        yield from measured(torch, shape, good)


def measured(torch: Any, shape: Any, calls: dict[Case, Callable[[], Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a shape's variants, whose rounds alternate."""
    from hopper import clock
    from timing import of_host

    first, apart, seen = None, dict[Case, float](), dict[Case, tuple[int, int]]()
    times: dict[Case, list[float]] = {case: [] for case in calls}
    for case, call in calls.items():
        O = call()["O"].float()
        first = O if first is None else first
        apart[case] = float((O - first).norm() / first.norm())
    del first, O
    host = {case: of_host(torch, call, 7) for case, call in calls.items()}
    for _ in range(5):
        for case, call in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            number = max(2, min(12, round(4e3 / (median(times[case]) if times[case] else 2e3))))
            torch.cuda.synchronize()
            torch.cuda._sleep(int((host[case] * number * 1.5 + 300) * 2000))
            begin.record()
            for _ in range(number - 1):
                call()
            middle = torch.cuda.Event()
            middle.record()
            call()
            end.record()
            middle.synchronize()
            seen[case] = clock()
            torch.cuda.synchronize()
            times[case].append(begin.elapsed_time(end) / number * 1e3)
    for case, call in calls.items():
        micro = sorted(times[case])
        rested = (
            sorted(alone(torch, call) for _ in range(3))[1] if micro[2] > RESTED and case[1] in TAKEN.values() else None
        )
        yield {
            "key": f"{case[0]}: {case[1]}",
            "shape": str(shape),
            "variant": str(case[1]),
            "card_us": round(micro[2], 2),
            "spread_us": [round(micro[0], 2), round(micro[-1], 2)],
            "tflops": round(shape.operations("forward") / micro[2] * 1e-6, 1),
            "clock": seen[case][0],
            "watts": seen[case][1],
            "rested_us": rested,
            "host_us": round(host[case], 1),
            "apart": apart[case],
            "card": torch.cuda.get_device_name(),
        }


def alone(torch: Any, call: Callable[[], Any]) -> float:
    """Microseconds of one call, after the card has rested."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    time.sleep(0.2)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


if __name__ == "__main__":
    main()
