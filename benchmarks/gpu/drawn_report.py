"""The table and the picture of a race of drawn shapes, from its rows."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any

WAYS = {"forward": "forward", "both": "forward + backward"}
BEHIND = 0.95
"""A ratio below which a shape is named."""

TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40)

RIGHT = 0.02
"""The largest error of a result with which a contender counts."""


def loaded(folder: Path, part: str) -> list[dict[str, Any]]:
    """Rows of a part of the measurements, of each key the last one; none if it was not made."""
    file = folder / f"{part}.jsonl"
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines() if file.exists() else ())
    return [*{row.get("key", number): row for number, row in enumerate(rows)}.values()]


def right(row: dict[str, Any], way: str) -> set[str]:
    """Contenders that computed a pass, and right: forward O, and with gradients all that it gives."""
    errors = {who: row["errors"][who] for who in row.get(way, {})}
    return {who for who, of in errors.items() if (of["O"] if way == "forward" else max(of.values())) <= RIGHT}


def ratios(rows: list[dict[str, Any]], way: str, what: str = "wall_us") -> list[tuple[float, str, dict[str, Any]]]:
    """Time of the best other ÷ ours, who that is, and the row; the least first."""
    found = []
    for row in rows:
        times = {who: row[way][who][what] for who in right(row, way)}
        ours = times.pop("ours", None)
        if ours and times:
            best = min(times, key=lambda who: times[who])
            found.append((times[best] / ours, best, row))
    return sorted(found, key=lambda each: each[0])


def beside(rows: list[dict[str, Any]], who: str, what: str = "card_us") -> dict[str, list[float]]:
    """Time of a contender ÷ ours of each pass, in order, where both are right; heads as it is fastest with them."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for row, way in product(rows, WAYS):
        times = {each: row[way][each][what] for each in right(row, way)}
        theirs = [each for name, each in times.items() if family(name) == who]
        if theirs and "ours" in times:
            found[way].append(min(theirs) / times["ours"])
    return {way: sorted(each) for way, each in found.items()}


def family(name: str) -> str:
    """A contender without how it was given heads or a mask."""
    return name.partition(",")[0]


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def tflops(row: dict[str, Any], way: str, who: str) -> float:
    """Useful operations of a contender in each second, in 10^12."""
    from drawn_shapes import Shape

    fields = {name: row[name] for name in ("batch", "kv_heads", "shared", "n", "d", "mask", "left")}
    shape = Shape(**fields, starts=tuple(row["starts"]))
    return shape.operations(way) / row[way][who]["wall_us"] / 1e6


def table(folder: Path) -> None:
    """Print how ours compare with the best other, who that is, and each shape that is behind; then the host's time."""
    rows = loaded(folder, "race")
    for way, name in WAYS.items():
        for what, said in (("wall_us", "with launches"), ("card_us", "on the card alone")):
            found = ratios(rows, way, what)
            if not found:
                continue
            values = [ratio for ratio, _, _ in found]
            middle, few = values[len(values) // 2], sum(ratio < BEHIND for ratio in values)
            best = ", ".join(f"{who} {count}" for who, count in Counter(who for _, who, _ in found).most_common())
            print(
                f"{name}, {said}: {len(values)} shapes, geometric mean {mean(values):.2f}, median {middle:.2f}, "
                f"least {values[0]:.2f}, largest {values[-1]:.2f}, {few} below {BEHIND}; best other: {best}"
            )
        by_mask: dict[str, list[float]] = {}
        for ratio, _, row in ratios(rows, way):
            for kind in (row["mask"], f"d = {row['d']}", "grouped" if row["shared"] > 1 else "not grouped"):
                by_mask.setdefault(kind, []).append(ratio)
        print("  " + ", ".join(f"{kind} {mean(each):.2f} ({len(each)})" for kind, each in sorted(by_mask.items())))
    print(
        "\n| shape | | ours, TFLOP/s | best other | ratio | on the card | host, ours and theirs, µs |\n"
        + "| --- " * 7
        + "|"
    )
    for way, name in WAYS.items():
        for ratio, who, row in ratios(rows, way):
            if ratio < BEHIND:
                ours, theirs = row[way]["ours"], row[way][who]
                alone = theirs["card_us"] / ours["card_us"]
                rates = [f"{tflops(row, way, each):.0f}" for each in ("ours", who)]
                print(
                    f"| {row['shape']} | {name} | {rates[0]} | {who} {rates[1]} | {ratio:.2f} | {alone:.2f} | "
                    f"{ours['host_us']:.0f}, {theirs['host_us']:.0f} |"
                )
    for row in loaded(folder, "groups"):
        for way in WAYS:
            alone = {who: f"{each['card_us']:,.0f}" for who, each in row.get(way, {}).items()}
            print(f"{row['shape']}, {way}, µs on the card alone: {alone}")
    if host := loaded(folder, "host"):
        print("", *host_table(host, loaded(folder, "host_python")), sep="\n")
    for row in loaded(folder, "first"):
        print(row["key"], *(f"{cache} {row[cache]}" for cache in ("empty", "kept")))


def host_table(rows: list[dict[str, Any]], by_python: list[dict[str, Any]]) -> list[str]:
    """Lines of a table: microseconds of the host by kind of call, forward with gradients / backward.

    `by_python`: rows without the library in C++.
    """
    lines = ["| call | by Python alone | with the library | PyTorch's least |", "| --- | --- | --- | --- |"]
    old = {row["key"]: row for row in by_python}
    for row in rows:
        if "ours" in row:
            cells = [_both(old.get(row["key"], {}).get("ours")), _both(row["ours"])]
            best = [least(row, way) for way in ("forward", "backward")]
            cells.append("–" if None in best else f"{best[0]:.0f} / {best[1]:.0f}")
            lines.append(f"| {row['key']} | {' | '.join(cells)} |")
    return lines


def _both(times: dict[str, float] | None) -> str:
    return "–" if times is None else f"{times['forward']:.0f} / {times['backward']:.0f}"


def least(row: dict[str, Any], way: str) -> float | None:
    """Microseconds of the host that the quickest kernel of PyTorch takes; None if none takes the call."""
    others = [each[way] for who, each in row.items() if isinstance(each, dict) and "ours" not in who and way in each]
    return min(others, default=None)


def picture(folder: Path, file: Path) -> None:
    """Draw the ratio of each shape over its operations, forward and with gradients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = loaded(folder, "race")
    figure, axes = plt.subplots(2, 1, figsize=(5.6, 8.2), sharex=True, layout="constrained")
    colours = {"none": "tab:blue", "causal": "tab:orange", "window": "tab:green", "packed": "tab:red"}
    for axis, (way, name) in zip(axes, WAYS.items(), strict=True):
        found = ratios(rows, way)
        for mask, colour in colours.items():
            for grouped, marker in ((False, "o"), (True, "^")):
                some = [
                    (tflops(row, way, "ours") * row[way]["ours"]["wall_us"] / 1e3, ratio)
                    for ratio, _, row in found
                    if row["mask"] == mask and (row["shared"] > 1) is grouped
                ]
                label = f"{mask}{', grouped heads' if grouped else ''}"
                axis.scatter(*zip(*some, strict=True), c=colour, marker=marker, s=24, label=label) if some else None
        values = [ratio for ratio, _, _ in found]
        axis.axhline(1, color="0.5", linewidth=1)
        axis.axhline(mean(values), color="0.2", linewidth=1, linestyle="--")
        axis.set(xscale="log", yscale="log", ylabel="time of the best other ÷ ours\n(above 1 ours are faster)")
        axis.set_title(f"{name}: geometric mean {mean(values):.2f}, least {values[0]:.2f}", fontsize=10)
        axis.set_yticks(TICKS, [f"{each:g}" for each in TICKS])
        axis.minorticks_off()
    axes[1].set_xlabel("useful operations, 10⁹")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=9, loc="outside lower center", ncols=2)
    figure.savefig(file, dpi=130)
