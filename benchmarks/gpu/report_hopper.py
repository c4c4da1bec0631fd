"""Print the tables of docs/hopper.md from what was measured: `python benchmarks/gpu/report_hopper.py`.

With `--write` they are put into the document, behind the comments that name them.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from typing import Any

from hopper_bytes import case_of

from pebblesim.language.masks import Packed

HERE = Path(__file__).resolve().parent
PYTORCH = ("cudnn", "flash", "efficient", "flex")
GRID, NEAR = (16384, 4096, 1024), 0.93

Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """The rows of a file; none if it is not there."""
    path = HERE / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def in_order(each: tuple[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    """Forward passes first, then narrow heads, then those without a mask."""
    (way, d, d_v, mask), _ = each
    return way != "forward", d, -d_v, mask is not None


def rates(name: str) -> Iterator[str]:
    """Useful operations a second, ours beside PyTorch's best."""
    found: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows_of(name):
        if "tflops" in row:
            found[row["way"], row["d"], row["d_v"], row["mask"]][row["kernel"]][row["n"]] = row
    yield "| pass | d | mask | schedule | ours | PyTorch | ours ÷ PyTorch |"
    yield "|---|---|---|---|---|---|---|"
    ratios: list[float] = []
    for (way, d, d_v, mask), by in sorted(
        found.items(), key=lambda each: (each[0][0] != "forward", *map(str, each[0][1:]))
    ):
        for schedule in [each for each in by if each not in PYTORCH]:
            best = [
                max(
                    (by[each][n] for each in PYTORCH if n in by.get(each, {})),
                    key=lambda row: row["tflops"],
                    default=None,
                )
                for n in GRID
            ]
            own = [by[schedule].get(n) for n in GRID]
            if not any(own) or None in own:
                continue
            each = [a["tflops"] / b["tflops"] for a, b in zip(own, best, strict=True) if a and b]
            if "two-pass" not in schedule and d == d_v and d in (64, 128, 256):
                ratios += each
            names = " ".join(dict.fromkeys(row["kernel"] for row in best if row))
            theirs = " / ".join(str(row["tflops"]) if row else "–" for row in best)
            mine = " / ".join(str(row["tflops"]) for row in own if row)
            told = " / ".join(f"{ratio:.2f}" for ratio in each)
            width = str(d) if d == d_v else f"{d}, {d_v}"
            yield f"| {way} | {width} | {mask or 'none'} | {schedule} | {mine} | {theirs} {names} | {told} |"
    if ratios:
        ahead, behind = sum(ratio >= 1 for ratio in ratios), sum(ratio < NEAR for ratio in ratios)
        yield ""
        yield (
            f"At d = 64, 128 and 256 our fastest kernels are ahead of the best of PyTorch in {ahead} of {len(ratios)} "
            f"cells, below {NEAR} of it in {behind}, and at the lowest {min(ratios):.2f}; geometric mean "
            f"{exp(sum(map(log, ratios)) / len(ratios)):.2f}."
        )


def attention() -> Iterator[str]:
    """Useful operations a second of `attention`, as users call it, beside PyTorch's best; passes alone and together."""
    passes = {"forward_ms": 4, "backward_ms": 10, "both_ms": 14}
    found: dict[tuple[int, bool], dict[int, Row]] = defaultdict(dict)
    for row in rows_of("operator_rates.jsonl"):
        if row["part"] == "rates":
            found[row["d"], row["causal"]][row["n"]] = row
    backward = "backward: ours, with the same bits each time, PyTorch"
    yield f"| d | mask | forward: ours, PyTorch | {backward} | both: ours, PyTorch |"
    yield "|---|---|---|---|---|"
    for (d, causal), by in found.items():
        cells = []
        for way, operations in passes.items():
            shown = []
            for names in (["ours"], ["ours, same bits"], ["cudnn", "flash", "efficient"]):
                if names != ["ours, same bits"] or way == "backward_ms":
                    rates = [
                        operations * n * n * d * row["heads"] / (1 + causal) / 1e9 / milliseconds
                        for n, row in sorted(by.items(), reverse=True)
                        for milliseconds in [min(row[name][way] for name in names if way in row.get(name, {}))]
                    ]
                    shown.append(" / ".join(f"{rate:.0f}" for rate in rates))
            cells.append(", ".join(shown))
        yield f"| {d} | {'causal' if causal else 'none'} | {' | '.join(cells)} |"


def flex() -> Iterator[str]:
    """Useful operations a second of FlexAttention."""
    found: dict[tuple[int, Any], dict[tuple[str, int], int]] = defaultdict(dict)
    for row in rows_of("hopper_flex.jsonl"):
        found[row["d"], row["mask"]][row["way"], row["n"]] = row["tflops"]
    yield "| d | mask | forward | backward |"
    yield "|---|---|---|---|"
    for (d, mask), by in found.items():
        cells = [" / ".join(str(by.get((way, n), "–")) for n in GRID[:2]) for way in ("forward", "backward")]
        yield f"| {d} | {mask or 'none'} | {' | '.join(cells)} |"


def moved() -> Iterator[str]:
    """Bytes into and out of the multiprocessors, counted and measured."""
    heads_of_columns = ("kernels", "n, d, heads", "mask", "read, counted", "and zeros of boxes", "measured ÷ both")
    yield f"| {' | '.join((*heads_of_columns, 'written, counted', 'measured ÷ sent'))} |"
    yield "|---" * 8 + "|"
    for row in rows_of("hopper_bytes.jsonl"):
        case, heads, measured = case_of(row), row["heads"], row["measured"]
        (both, zeros), wide = case.sent(), f"/{row['d_v']}" * (row["d_v"] != row["d"])
        mask = row["mask"] or "none"
        if isinstance(case.band, Packed):
            mask = f"{len(case.band.queries)} packed" + ", causal" * mask.endswith("causal")
        yield (
            f"| {row['schedule']} | {row['n']:,}, {row['d']}{wide}, {heads} | {mask} | "
            f"{heads * (both.reads - zeros):,} | {heads * zeros:,} | {measured['read'] / heads / both.reads:.5f} | "
            f"{row['counted']['written']:,} | {measured['written'] / heads / both.writes:.5f} |"
        )


def tables() -> dict[str, str]:
    """The tables by what the comments in the document say."""
    made = {f"rates {name}": "\n".join(rates(name)) for name in ("hopper.jsonl", "h100/hopper.jsonl")}
    return made | {
        name: "\n".join(table()) for name, table in (("attention", attention), ("flex", flex), ("moved", moved))
    }


def filled(text: str) -> str:
    """A document with its tables."""
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->", "<!-- end -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            text = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    document = HERE.parents[1] / "docs" / "hopper.md"
    if sys.argv[1:] == ["--write"]:
        document.write_text(filled(document.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(f"{name}:\n\n{table}" for name, table in tables().items()))


if __name__ == "__main__":
    main()
