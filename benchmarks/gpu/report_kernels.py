"""Write the tables of docs/kernels.md, and of pages that it leads to, from what was measured.

`python benchmarks/gpu/report_kernels.py` writes each table in the place of the one that has its columns; where several
tables of a page have the same columns, they are in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pebblesim as ps
from pebblesim.advice import cards
from pebblesim.advice.forecast import Forecast, forecast
from pebblesim.advice.tiles import Tiling
from pebblesim.analysis.count import io
from pebblesim.core.errors import UsageError
from pebblesim.language import masks
from pebblesim.language.registry import get
from pebblesim.measuring.results import Row, load

HERE = Path(__file__).parent
ENOUGH = 1e-4
"""Seconds: forecasts of kernels that take more are judged."""


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *lines))


def cells(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows of the same race."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["way"], row["n"], row["d"], row["heads"], row["mask"]), []).append(row)
    return found


def best(rows: Sequence[Row], ours: bool) -> Row | None:
    fine = [row for row in rows if "seconds" in row and row["contender"].startswith("torch-") != ours]
    return min(fine, key=lambda row: row["seconds"], default=None)


@cache
def forecast_of(schedule: str, n: int, d: int, mask: str | None, dtype: str, heads: int, *tile: Any) -> Forecast:
    """The forecast of a kernel; many tables name the same ones.

    `tile`: its blocks, as pairs, then warps and stages, then those of launches that have others, then whether it is a
    Gluon kernel, and whether its blocks stay for several tiles.
    """
    *blocks, warps, stages, apart, gluon, persistent = tile
    tiling = Tiling(schedule, dict(blocks), warps, stages, dict(apart), gluon=gluon, persistent=persistent)
    return forecast(tiling, {"n": n, "d": d}, cards.card("H200"), dtype, heads, masks.of(mask))


def tried(row: Row) -> list[tuple[Forecast, float]]:
    """Forecast and measured time of each kernel of a row."""
    found = []
    for each in row.get("tried", ()):
        if "seconds" in each:
            case = (row[key] for key in ("contender", "n", "d", "mask", "dtype", "heads"))
            try:
                apart = tuple((name, tuple(own)) for name, own in each.get("apart", {}).items())
                kind = each.get("gluon", False), each.get("persistent", False)
                made = forecast_of(*case, *each["blocks"].items(), each["warps"], each["stages"], apart, *kind)
                found.append((made, each["seconds"]))
            except UsageError:
                continue  # is held to spill
    return found


def race(rows: Sequence[Row], way: str) -> str:
    lines = []
    for (of, n, d, heads, mask), cell in cells(rows).items():
        ours, theirs = best(cell, True), best(cell, False)
        if of != way or ours is None or theirs is None:
            continue
        kind = ", Gluon" * ours.get("gluon", False)
        triton = max(kernel["tflops"] for row in cell for kernel in row.get("tried", ()) if in_triton(kernel))
        lines.append(
            (
                *(f"{n:,}", str(d), str(heads), mask or "none", rate(ours), ours["contender"] + kind, f"{triton:.0f}"),
                f"{rate(theirs)} {theirs['contender'].removeprefix('torch-')}",
                f"{ours['tflops'] / theirs['tflops']:.2f}",
                " / ".join(f"{1e3 * max(row['errors'].values()):.1f}" for row in (ours, theirs)),
            )
        )
    columns = (
        *("n", "d", "heads", "mask", "ours, TFLOP/s", "schedule", "in Triton", "PyTorch's best", "ratio"),
        "errors, 10⁻³",
    )
    return table(columns, lines)


def rate(row: Row) -> str:
    """Useful operations a second, and between which rates all but a tenth of the runs at each end are."""
    low, high = (row["tflops"] * row["seconds"] / seconds for seconds in reversed(row["spread"]))
    return f"{row['tflops']:.0f} ({low:.0f}-{high:.0f})"


def in_triton(kernel: Row) -> bool:
    return "tflops" in kernel and not kernel.get("gluon", False)


def named(rows: Sequence[Row]) -> str:
    """In each cell of the grid: what the forecast names, what it takes, and what the fastest takes."""
    lines = []
    for (way, n, d, _, _), cell in cells(rows).items():
        kernels = [each for row in cell for each in tried(row)]
        first = min(kernels, key=lambda each: each[0].seconds)
        fastest = min(kernels, key=lambda each: each[1])
        right = first[0].tiling.schedule == fastest[0].tiling.schedule
        lines.append(
            (
                *(way, f"{n:,}", str(d), first[0].tiling.schedule, first[0].binds),
                *(f"{first[0].seconds * 1e3:.3f}", f"{first[1] * 1e3:.3f}"),
                "" if right else fastest[0].tiling.schedule,
                f"{100 * (first[1] / fastest[1] - 1):.1f} %",
            )
        )
    columns = ("pass", "n", "d", "named", "limited by", "forecast, ms", "measured, ms", "instead", "lost")
    return table(columns, lines)


def causal(rows: Sequence[Row]) -> str:
    """Under the causal mask: the fastest kernel as forecast and as measured, and all kernels of the race."""
    lines = []
    for (way, n, d, heads, mask), cell in cells(rows).items():
        if mask != "causal":
            continue
        kernels = [each for row in cell for each in tried(row)]
        first, fastest = min(kernels, key=lambda each: each[0].seconds), min(kernels, key=lambda each: each[1])
        near = sum(abs(made.seconds / seconds - 1) < 0.2 for made, seconds in kernels)
        said = str(first[0].tiling).rpartition(", ")[0].rpartition(", ")[0]
        lines.append(
            (
                *(way, f"{n:,}", str(d), str(heads), said, f"{first[0].seconds * 1e3:.2f}", f"{first[1] * 1e3:.2f}"),
                *(f"{100 * (first[1] / fastest[1] - 1):.1f} %", f"{near} of {len(kernels)}"),
            )
        )
    columns = ("pass", "n", "d", "heads", "named", "forecast, ms", "measured, ms", "lost", "kernels within 20 %")
    return table(columns, lines)


def judged(rows: Sequence[Row]) -> str:
    """How often forecasts are right."""
    lines = []
    for n in (4096, 1024, 16384, None):
        cell_count = schedules = kernels_named = little = near = many = 0
        for key, cell in cells(rows).items():
            if n not in (None, key[1]):
                continue
            kernels = [each for row in cell for each in tried(row)]
            first = min(kernels, key=lambda each: each[0].seconds)
            fastest = min(kernels, key=lambda each: each[1])
            cell_count += 1
            schedules += first[0].tiling.schedule == fastest[0].tiling.schedule
            kernels_named += first is fastest
            little += first[1] < 1.05 * fastest[1]
            long = [each for each in kernels if each[1] > ENOUGH]
            near += sum(abs(made.seconds / seconds - 1) < 0.2 for made, seconds in long)
            many += len(long)
        called = "all" if n is None else f"{n:,}"
        lines.append((called, str(cell_count), *map(str, (schedules, kernels_named, little)), f"{near} of {many}"))
    columns = ("n", "cells", "schedule named", "tiles named, too", "less than 5 % lost", "kernels within 20 %")
    return table(columns, lines)


def run_of(row: Row) -> tuple[str, ...]:
    """What was run: schedule, sizes, blocks and mask."""
    return (
        row["schedule"],
        ", ".join(f"{size:,}" for size in (*row["dims"].values(), row["heads"])),
        ", ".join(f"{name}={size}" for name, size in row["blocks"].items()),
        row["mask"] or "none",
    )


RUN = ("schedule", "n, d, heads", "blocks", "mask")
"""The columns of `run_of`."""


def traffic() -> str:
    """Bytes into and out of the multiprocessors, counted and measured."""
    lines = []
    for row in load_plain("kernel_bytes"):
        counted, measured = row["counted"], row["measured"]
        both = (f"{counted[what]:,} ({ratio(measured, counted, what)})" for what in ("sm_read", "sm_written"))
        lines.append((*run_of(row), *both, f"{row['spilled']:,}"))
    moved = ("SM read, counted (measured ÷ counted)", "SM written, counted (measured ÷ counted)", "spilled")
    return table((*RUN, *moved), lines)


def of_memory() -> str:
    """Bytes from and to memory, measured, beside the model of L2."""
    lines = []
    for row in load_plain("kernel_bytes"):
        measured, predicted = row["measured"], row["predicted"]
        pairs = (
            (f"{measured[what] / 1e6:,.0f}", "" if predicted is None else ratio(predicted, measured, what, 3))
            for what in ("hbm_read", "hbm_written")
        )
        lines.append((*run_of(row), *(cell for pair in pairs for cell in pair)))
    return table((*RUN, "HBM read, MB", "model ÷ measured", "HBM written, MB", "model ÷ measured"), lines)


def memory() -> str:
    """The bytes that launches read from memory."""
    rows = [row for row in load_plain("kernel_bytes") if "by_launch" in row]
    lines = []
    for name in ("L", "O"):
        for row in rows:
            figures = (row["launches"][name]["hbm_read"], *row["by_launch"][name].values())
            lines.append((name, str(row["dims"]["d"]), *(f"{each / 1e6:,.0f}" for each in figures)))
    return table(("launch", "d", "read, MB", *rows[0]["by_launch"]["L"]), lines)


def ratio(these: dict[str, int], those: dict[str, int], what: str, digits: int = 5) -> str:
    return f"{these[what] / those[what]:.{digits}f}"


def load_plain(name: str) -> list[Row]:
    import json

    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def call_of(row: Row) -> tuple[str, ...]:
    """The sizes, the type and the mask of a call of `attention`."""
    d_v = row.get("d_v", row["d_k"])
    return (
        f"{row['n']:,}" + (f", {row['n_k']:,}" if "n_k" in row else ""),
        f"{row['d_k']}" if d_v == row["d_k"] else f"{row['d_k']}, {d_v}",
        row.get("dtype", "bfloat16"),
        "causal" if row.get("causal") else "none",
    )


CALL = ("n (n_q, n_k)", "d (d_k, d_v)", "type", "mask")
"""The columns of `call_of`."""


def attention() -> str:
    """Errors of `attention` beside those of PyTorch's kernels."""
    lines = []
    for row in load_plain("attention"):
        also = row.get("repeated_ratio")
        lines.append(
            (
                *(*call_of(row), str(row.get("kv_heads", 8)), f"{row['largest_score']:,.0f}"),
                *(row["kernel"].removesuffix("_attention"), f"{row['ratio']:.2f}"),
                f"{also:.2f} ({row['repeated_kernel'].removesuffix('_attention')})" if also else "",
            )
        )
    columns = (
        *(*CALL, "KV heads", "largest score"),
        *("PyTorch's kernel", "error ÷ PyTorch's", "÷ PyTorch's with repeated heads"),
    )
    return table(columns, lines)


def workspace() -> str:
    found, lines = load_plain("workspace"), []
    keys = ("n", "d", "heads", "causal")
    for row in found:
        if row["mebibytes"] is not None:
            continue
        same = [each for each in found if all(each[key] == row[key] for key in keys)][1:]
        mask = "causal" if row["causal"] else "none"
        for way in ("forward", "backward"):
            whole = row[way]
            cells_of = (
                f"{each[way]['tflops']:.0f} ({each[way]['seconds'] / whole['seconds']:.2f})"
                + (
                    ""
                    if each[way]["kernels"] == whole["kernels"] and each[way]["rounds"] == 1
                    else f" {cut(each, way)}"
                )
                for each in same
            )
            sizes = (f"{row['n']:,}", str(row["d"]), str(row["heads"]))
            lines.append((way, *sizes, mask, f"{whole['tflops']:.0f}", *cells_of))
    limits = dict.fromkeys(f"{row['mebibytes']} MiB" for row in found if row["mebibytes"] is not None)
    return table(("pass", "n", "d", "heads", "mask", "whole matrices", *limits), lines)


def cut(row: dict[str, Any], way: str) -> str:
    """How many heads at once, and how many rows."""
    rows = re.search(r"C=(\d+)", row[way]["kernels"])
    at_once = row["heads"] // row[way]["rounds"]
    return f"{at_once} head{'s' * (at_once > 1)}" + (f", {int(rows[1]):,} rows" if rows else "")


def ceilings() -> str:
    lines = []
    for row in load_plain("ceilings"):
        what = {"read": "read past L1, {} MiB over and over", "copy": "copy of 2 GiB", "products": "product, side {}"}
        said = what[row["ceiling"]].format(row.get("megabytes", row.get("side")))
        rate = row.get("bytes_per_second")
        lines.append(
            (said, f"{rate / 1e12:.2f} TB/s" if rate else f"{row['operations_per_second'] / 1e12:.0f} TFLOP/s")
        )
    return table(("what", "rate"), lines)


def powers() -> str:
    """Powers of two, timed by themselves; `busy`: after half a second of nothing else, with the clock of then."""
    lines = []
    for row in load_plain("lengths"):
        if row["what"] == "even":
            found = [
                f"{row['tflops'][way]:.0f}; {row['busy'][way]:.0f} ({row['megahertz'][way]:,})"
                for way in ("forward", "backward")
            ]
            lines.append((f"{row['n']:,}", str(row["d"]), str(row["heads"]), *found))
    return table(("n", "d", "heads", "forward, TFLOP/s; busy (MHz)", "backward, TFLOP/s; busy (MHz)"), lines)


ANY_ORDER = "flash2-backward-blocked"
"""The schedule that adds dQ to memory, in any order."""

SAME_BITS = {
    "two passes": ("backward-two-pass-blocked",),
    "storing dS": ("dS-stored-blocked",),
    "storing P and dS": ("small-cache-backward-blocked", "small-cache-backward-resident"),
}
"""Schedules of backward passes with the same bits at each call, by what they do in the place of additions."""


def determinism(rows: Sequence[Row]) -> str:
    """Words and time of backward passes with the same bits at each call, over those of additions in any order."""
    lines = []
    for (way, n, d, heads, mask), cell in sorted(cells(rows).items(), key=lambda each: each[0][:4]):
        kernels = {row["contender"]: row for row in cell if "seconds" in row}
        if way != "backward" or mask is not None or (added := kernels.get(ANY_ORDER)) is None:
            continue
        words, ratios = words_of(added), list[tuple[float, float]]()
        for names in SAME_BITS.values():
            best = min((kernels[name] for name in names if name in kernels), key=lambda row: row["seconds"])
            ratios.append((words_of(best) / words, best["seconds"] / added["seconds"]))
        named = [f"{moved:.2f}; {slower:.2f}" for moved, slower in ratios]
        price = f"{min(slower for _, slower in ratios) - 1:.0%}".replace("%", " %")
        lines.append((f"{n:,}", str(d), str(heads), f"{words:,}; {added['seconds'] * 1e3:.3f}", *named, price))
    columns = ("n", "d", "heads", "additions to memory: words of a head; ms", *SAME_BITS, "price")
    return table(columns, lines)


def words_of(row: Row) -> int:
    """Words that the schedule of a kernel moves for each head, an addition to memory counted as two."""
    dims = {name: row["n"] if name.startswith("n") else row["d"] for name in ("n_q", "n_k", "d_k", "d_v")}
    return io(get(row["contender"]).in_dims(dims).program, {**dims, **row["blocks"]})


def drawn() -> str:
    """Bytes of drawn kernels."""
    lines = []
    for row in load_plain("drawn_bytes"):
        sizes = f"{row['n_q']:,}, {row['d_k']}, {row['heads']}"
        kernels = re.sub(r", \d warps.*", "", row["tiling"]) + ", by descriptors" * bool(row["described"])
        ratios = (f"{row['measured'][way] / row['counted'][way]:.5f}" for way in ("read", "written"))
        counted = (f"{row['counted'][way]:,}" for way in ("read", "written"))
        mask = "causal" if row["causal"] else "none"
        pairs = (each for pair in zip(counted, ratios, strict=True) for each in pair)
        lines.append((kernels, sizes, mask, *pairs))
    moved = ("read, counted", "measured ÷ counted", "written, counted", "measured ÷ counted")
    return table(("kernels", "n, d, heads", "mask", *moved), lines)


def one_query() -> str:
    """Forecasts of decoding: what `advise` names, and drawn kernels that nothing was fitted to."""
    lines = []

    def line(keys: int, d: int, heads: int, kv_heads: int, seconds: float, measured: float, where: str) -> None:
        sizes = f"{keys:,} keys, d = {d}, {heads} heads ({kv_heads} KV heads)"
        lines.append((sizes, f"{1e6 * seconds:.1f}", f"{1e6 * measured:.1f}", f"{seconds / measured:.2f}", where))

    busy = min(row["seconds"] for row in load_plain("variants") if row["what"] == "decode early 131072")
    plain = [row for row in load_plain("operators") if row.get("part") == "decode"]
    plain.append({"n_k": 131_072, "d": 128, "heads": 32, "kv_heads": 8, "ours": 1e3 * busy})
    for row in plain:
        d, heads, kv_heads = row["d"], row["heads"], row["kv_heads"]
        advice = ps.advise("H200", n_q=1, n_k=row["n_k"], d_k=d, d_v=d, heads=heads, kv_heads=kv_heads)
        where = "kernels one behind the other" if row["n_k"] > 2**16 else "a call, L2 evicted before"
        line(row["n_k"], d, heads, kv_heads, advice.kernels[0].seconds, row["ours"] / 1e3, where)
    for row in load_plain("h200/gluon_drawn_2811"):
        shape, tile = row["shape"], row["tiling"]
        if shape["n_q"] == 1 and tile["schedule"] == "flash-decoding" and not shape["mask"]:
            apart = {name: tuple(each) for name, each in tile["apart"].items()}
            tiling = Tiling(tile["schedule"], tile["blocks"], tile["warps"], tile["stages"], apart, early=True)
            d, shared, kv_heads = shape["d"], shape["group"], shape["heads"]
            dims = {"n_q": shared, "n_k": shape["n_k"], "d_k": d, "d_v": d}
            made = forecast(tiling, dims, cards.card("H200"), "bfloat16", kv_heads)
            line(shape["n_k"], d, shared * kv_heads, kv_heads, made.seconds, row["seconds"], "drawn, held out")
    return table(("one query", "forecast, µs", "measured, µs", "forecast ÷ measured", "how"), lines)


def tables() -> dict[str, list[str]]:
    """The tables of each page, in order."""
    grid, races = load(HERE / "grid.jsonl"), load(HERE / "race.jsonl")
    return {
        "rates": [powers(), *(race(rows, way) for rows in (grid, races) for way in ("backward", "forward"))],
        "forecast": [ceilings(), judged(grid), named(grid), causal(races), one_query()],
        "kernel-bytes": [traffic(), of_memory(), drawn(), memory()],
        "attention-tests": [attention()],
        "workspace": [workspace()],
        "determinism": [determinism(grid)],
    }


def with_tables(page: str, made: Sequence[str]) -> str:
    """The text of a page with these tables.

    Raises:
        SystemExit: the page has no table with the columns of one of them.
    """
    at = 0
    for each in made:
        columns = each.partition("\n")[0]
        found = re.compile(rf"^{re.escape(columns)}\n(?:\|.*\n)+", re.MULTILINE).search(page, at)
        if found is None:
            raise SystemExit(f"A page has no place for the table with the columns {columns!r}.")
        page = f"{page[: found.start()]}{each}\n{page[found.end() :]}"
        at = found.start() + len(each)
    return page


def main() -> None:
    for name, made in tables().items():
        page = HERE.parents[1] / "docs" / f"{name}.md"
        page.write_text(with_tables(page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
