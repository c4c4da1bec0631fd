"""What a forward pass of the kernels for Hopper loses: tiles, orders of tiles, blocks with several tiles, narrow sums.

python benchmarks/gpu/forward_variants.py -o FOLDER --time-limit 60 [--part several …]

Each row of FOLDER/forward_variants.jsonl is a shape and a variant of its kernel:
microseconds on the card alone, the median of rounds in which the variants of a shape alternate, TFLOP/s, the clock and
watts while it runs, and how far O is from that of the first variant. Variants are texts, so that no kernel that
`attention` takes is changed. What is there is not measured again.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from resumed import add, there


@dataclass(frozen=True)
class Variant:
    """A text of `flash2-forward`.

    Attributes:
        rows, keys, stages: its tiles, and slots of its rings.
        several: whether there are as many blocks as multiprocessors, each with several tiles.
        as_taken: whether there are where `run` says so, for tiles that do not stream for long.
        apart: whether exponentials are kept before the wait for the product that was put off.
        no_turns: whether warpgroups with narrow sums take no turns at the tensor cores.
        turns: whether warpgroups with sums of up to 128 columns take turns at the tensor cores.
        of_threads: whether each thread adds up what it has of a row, and threads add up their sums behind the loop.
        scaled_late: whether O is multiplied by its factor behind the next scores' products, and not before them.
        together: heads whose tiles are in one order, longest first; 0 for those that `run` finds.
        first, rest: columns of O that P V is computed for, in one product or two; 0 for all.
        even: whether the text is for lengths that tiles divide.
        held: the part of a thread's registers up to which products are put off; 0 for the usual one.
    """

    rows: int
    keys: int
    stages: int
    several: bool = False
    as_taken: bool = False
    apart: bool = False
    no_turns: bool = False
    turns: bool = False
    of_threads: bool = False
    scaled_late: bool = False
    together: int = 0
    first: int = 0
    rest: int = 0
    even: bool = False
    held: float = 0.0

    def __str__(self) -> str:
        named = [f"{self.rows} x {self.keys}, {self.stages} stages"]
        named += ["several tiles a block" + " everywhere" * (not self.as_taken)] * self.several
        named += ["exponentials apart"] * self.apart + ["no turns"] * self.no_turns
        named += ["turns"] * self.turns + ["sums of threads"] * self.of_threads
        named += ["scaled late"] * self.scaled_late + [f"{self.together} heads together"] * (self.together > 0)
        named += ["even"] * self.even + [f"{self.held:.0%} of registers"] * (self.held > 0)
        columns = f"{self.first} + {self.rest}" if self.rest else str(self.first)
        return ", ".join([*named, *[f"{columns} columns of O"] * (self.first > 0)])


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
    taken = replace(TAKEN[d], several=True, as_taken=True)
    found = [taken, replace(taken, of_threads=True)][: 1 + (masked and d > 64)]
    return (*found, *(replace(each, turns=d > 64, no_turns=d == 64) for each in found))


def orders(d: int) -> tuple[Variant, ...]:
    several = replace(TAKEN[d], several=True)
    return (TAKEN[d], several, replace(several, as_taken=True))


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


def given(text: str) -> Any:
    """A shape of its numbers and its mask: "none", "causal" or "window:W"."""
    from drawn_shapes import Shape

    *numbers, mask = text.split(",")
    kind, _, left = mask.partition(":")
    return Shape(*map(int, numbers), kind, int(left) if left else None)


def text_of(shape: Any, variant: Variant) -> tuple[str, tuple[str, ...]]:
    """The text of a variant, and the names of its kernels."""
    from pebblesim.advice.tiles import Tiling
    from pebblesim.kernels.gluon import block, plan
    from pebblesim.operator import texts
    from pebblesim.operator.pattern import Pattern, band_of

    right = None if shape.mask == "none" else 0
    pattern = Pattern(band_of(left=shape.left, right=right, rows=shape.shared), shape.shared)
    blocks = {"B_r": variant.rows, "B_c": variant.keys}
    tiling = Tiling("flash2-forward", blocks, stages=variant.stages, gluon=True, persistent=variant.several)
    usual, turns, widths = block.MOST_HELD, plan.IN_TURNS, (("d_k", shape.d), ("d_v", shape.d))
    block.MOST_HELD = variant.held or usual
    plan.IN_TURNS = 0 if variant.no_turns else 128 if variant.turns else turns
    try:
        made = texts.written(tiling, widths, variant.even, False, True, "bfloat16", pattern, shape.d**-0.5)
    finally:
        block.MOST_HELD, plan.IN_TURNS = usual, turns
    text = exponentials_apart(made.text) if variant.apart else made.text
    if variant.several and not variant.as_taken:
        text = re.sub(r"\[\((min\(.*, most\)) if .* else .*, 1\)\]\(Q_tiles", r"[(\1, 1)](Q_tiles", text)
    if variant.together:
        text = re.sub(r"    together = .*", f"    together = {variant.together}", text)
    text = scaled_late(text) if variant.scaled_late else text
    text = sums_of_threads(text, variant.keys) if variant.of_threads else text
    return (with_columns(text, variant.first, variant.rest) if variant.first else text), made.kernels


def scaled_late(text: str) -> str:
    """The text with O multiplied by its factor in the next iteration, while the products of its scores run."""
    made, factor = [], "m_i"
    for line in text.splitlines():
        indent, said = line[: len(line) - len(line.lstrip())], line.strip()
        if scaled := re.fullmatch(r"(O_\w+) = (.*)\[:, None\] \* \1", said):
            factor = scaled[2].replace("m_i", "alpha")
            if made[-1].strip() != "alpha = m_i":
                made.append(f"{indent}alpha = m_i")
            continue
        if issued := re.match(r"(O_\w+) = warpgroup_mma\(P_late", said):
            made.append(f"{indent}{issued[1]} = {factor}[:, None] * {issued[1]}")
        made.append(line)
    return "\n".join(made) + "\n"


def sums_of_threads(text: str, keys: int) -> str:
    """The text with sums of eight parts of a row, which are in eight registers of four threads, until the loop ends."""
    parts = f"gl.sum(gl.reshape(P, [64, {keys // 8}, 8]), axis=1)"
    first, rest = text.split("l_i += gl.sum(P, axis=1)", 1)
    first = first[: first.rindex("l_i = m_i * l_i")] + f"l_i = {parts}"
    factor = "gl.convert_layout(m_i, gl.SliceLayout(1, l_i.type.layout))[:, None]"
    rest = rest.replace("l_i = m_i * l_i", f"l_i = {factor} * l_i").replace(
        "l_i += gl.sum(P, axis=1)", f"l_i += {parts}"
    )
    ended = r"\1l_i = gl.convert_layout(gl.sum(l_i, axis=1), l_type)\n\g<0>"
    rest = re.sub(r"( +)O_i = O_i \* gl\.where\(l_i", ended, rest, count=1)
    layout = re.search(r"l_i = gl\.full\(.*, (gl\.SliceLayout\(.*?\))\)\n", first)
    assert layout is not None
    return first + rest.replace("l_type", layout[1])


def exponentials_apart(text: str) -> str:
    """The text with a wait, for what has arrived, before that for the product that was put off.

    ptxas moves exponentials behind a wait for products, but not past the loop of a wait for a barrier.
    """
    made, waited = [], ""
    for line in text.splitlines():
        if re.match(r"\s+mbarrier\.wait\(V_j_full", line):
            waited = line
        if re.match(r"\s+(O_i|O_i_0), P_late = warpgroup_mma_wait", line) and "last_phase" in waited:
            made += [waited] if line.startswith(waited[: len(waited) - len(waited.lstrip())]) else []
        made.append(line)
    return "\n".join(made) + "\n"


def with_columns(text: str, first: int, rest: int) -> str:
    """The text with products P V of the first columns alone, and of `rest` more, so that zeros are left out."""
    layout = "tile_{0} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {0}, 16]))"
    layouts = [layout.format(each) for each in (first, rest) if each]
    text = text.replace("\ntile_128 =", "\n" + "\n".join(layouts) + "\ntile_128 =", 1)
    made = []
    for line in text.splitlines():
        indent, said = line[: len(line) - len(line.lstrip())], line.strip()
        of = [("O_i", first, 0)] + [("O_e", rest, first)] * (rest > 0)
        if said.startswith("O_i = gl.full([64, 128]"):
            made += [f"{indent}{name} = gl.full([64, {width}], 0.0, gl.float32, tile_{width})" for name, width, _ in of]
        elif said.startswith("O_i = warpgroup_mma(P_late"):
            slot = re.search(r"V_j\.index\((\w+)\)", said)
            assert slot is not None
            for name, width, begin in of:
                right = f"V_j.index({slot[1]}).reshape([128, 128]).slice({begin}, {width}, dim=1)"
                left = f"gl.convert_layout(P_late, gl.DotOperandLayout(0, tile_{width}, 2))"
                made.append(f"{indent}{name} = warpgroup_mma({left}, {right}, {name}, is_async=True)")
        elif said.startswith("O_i, P_late = warpgroup_mma_wait(0"):
            names = ", ".join([name for name, _, _ in of] + ["P_late"])
            made.append(f"{indent}{names} = warpgroup_mma_wait(0, deps=({names}))")
        elif said.startswith("O_i = m_i[:, None] * O_i"):
            made += [f"{indent}{name} = {_of_rows('m_i', width)}[:, None] * {name}" for name, width, _ in of]
        elif said.startswith("O_i = O_i * gl.where(l_i"):
            made.append(f"{indent}l_i_ = gl.where(l_i == 0.0, 0.0, 1.0 / l_i)")
            made += [f"{indent}{name} = {name} * {_of_rows('l_i_', width)}[:, None]" for name, width, _ in of]
        elif "warpgroup_mma_wait(1, deps=(P,))" in said:
            made.append(line.replace("wait(1", f"wait({len(of)}"))
        elif said.startswith("across = "):
            continue
        elif said.startswith("gl.store(O_at"):
            for name, width, begin in of:
                made.append(f"{indent}across = {begin} + gl.arange(0, {width}, gl.SliceLayout(0, tile_{width}))")
                stored = said.replace("rows_128", f"tile_{width}").replace("O_i.to(", f"{name}.to(")
                made.append(indent + stored.replace("down", "down_"))
        elif said.startswith("down = "):
            made.append(line)
        else:
            made.append(line)
    whole = "\n".join(made) + "\n"
    return re.sub(  # rows in the layout of each tile
        r"( +)across = (\d+) \+ gl\.arange\(0, (\d+), .*",
        lambda found: f"{found[1]}down_ = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_{found[3]}))\n{found[0]}",
        whole,
    )


def _of_rows(name: str, width: int) -> str:
    return f"gl.convert_layout({name}, gl.SliceLayout(1, tile_{width}))"


Case = tuple[str, Variant]


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
