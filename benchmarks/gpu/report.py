"""Print the tables of docs/gpu.md from what was measured: `python benchmarks/gpu/report.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pebblesim as ps
from pebblesim.launches.sectors import Moved, moved
from pebblesim.measuring.crossings import crossings as crossings_of, points
from pebblesim.measuring.measure import QUANTITIES, error_of
from pebblesim.measuring.measure_batches import case_of, total

HERE = Path(__file__).parent
Row = dict[str, Any]


def rows(group: str) -> list[Row]:
    return [json.loads(line) for line in (HERE / f"{group}.jsonl").read_text(encoding="utf-8").splitlines()]


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *lines))


def turned(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The table with its lines as columns, for many columns and few lines."""
    first, *others = zip(columns, *lines, strict=True)
    return table(first, others)


def sizes(row: Row) -> str:
    split = f", P = {row['workers']}" if row["workers"] > 1 else ""
    return ", ".join(f"{name} = {size:,}" for name, size in {**row["dims"], "M": row["M"]}.items()) + split


def megabytes(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:,.1f}"


def exact() -> str:
    """Every group: launches, and those whose counters are not what was predicted, to the byte."""
    lines = []
    for group in ("exact", "crossover", "fitted", "unseen", "workers", "heads", "rectangles"):
        found = rows(group)
        launches = [launch for row in found for launch in row["launches"]]
        wrong = [str(sum(error_of(launch, q) != 0 for launch in launches)) for q in QUANTITIES[:4]]
        lines.append((group, str(len(found)), str(len(launches)), *wrong))
    return table(("group", "cases", "launches", "words read", "words written", "SM reads", "SM writes"), lines)


def samples() -> str:
    """The first group: one line for each case."""
    lines = []
    for row in rows("exact"):
        p, m = row["total"]["predicted"], row["total"]["measured"]
        pairs = [f"{p[q]:,}" if p[q] == m[q] else f"{p[q]:,} / {m[q]:,}" for q in QUANTITIES[:4]]
        lines.append((row["schedule"], sizes(row), *pairs))
    return table(("schedule", "sizes", "words read", "words written", "SM reads, bytes", "SM writes, bytes"), lines)


def merged() -> str:
    """The launches that wrote fewer sectors than predicted."""
    lines = []
    for group in ("exact", "crossover", "fitted", "unseen", "workers", "heads", "rectangles"):
        for row in rows(group):
            for launch in row["launches"]:
                if error := error_of(launch, "sm_written"):
                    written = launch["predicted"]["sm_written"] // 32
                    lines.append((row["schedule"], sizes(row), launch["name"], f"{written:,}", f"{error // 32:+,}"))
    return table(("schedule", "sizes", "launch", "sectors predicted", "measured less predicted"), lines)


MIB = 2**20
KINDS = {(0, 0): "near", (0, 1): "far", (1, 0): "far, other side", (1, 1): "near, other side"}
"""Lines by (side of the reader, home): a sample is read on side 0."""


def kept() -> str:
    """The share of a sample that is lost when so many other lines are read after it."""
    found = [row for row in rows("l2_halves") if row.get("test") == "kept" and not row["write"] and row["size"]]
    sizes_of, lines = sorted({row["size"] for row in found}), []
    for sample in ((0, 0), (0, 1)):
        for other in KINDS:
            lost = {
                row["size"]: row["read"] / (4 * MIB)
                for row in found
                if (tuple(row["kind"]), tuple(row["other"])) == (sample, other)
            }
            lines.append((f"{KINDS[sample]}, then {KINDS[other]}", *(f"{lost[size]:.2f}" for size in sizes_of)))
    return turned(("MiB read then", *(str(size // MIB) for size in sizes_of)), lines)


def dirty() -> str:
    """MiB that are dirty after a stream of writes, with reads between them."""
    found = [row for row in rows("l2_halves") if row.get("test") == "crowded" and "reads" in row]
    sizes_of, lines = sorted({row["size"] for row in found if row["size"] >= 16 * MIB}), []
    for reads in (0, 1, 3):
        left = {row["size"]: row["lines_written"] - row["written"] for row in found if row["reads"] == reads}
        lines.append((f"{reads} to 1", *(f"{left[size] / MIB:.1f}" for size in sizes_of)))
    return table(("reads to writes, MiB", *(str(size // MIB) for size in sizes_of)), lines)


def again() -> str:
    """The share that is missed when the same lines are read again and again."""
    found = [row for row in rows("l2_halves") if row.get("test") == "again"]
    sizes_of, lines = sorted({row["size"] for row in found}), []
    for readers in ("all", "one", "one, near", "one, far"):
        missed = {
            row["size"]: (row["read"] / row["size"] - 1) / (row["passes"] - 1)
            for row in found
            if row["readers"] == readers
        }
        lines.append((f"read by {readers}", *(f"{missed[size]:.2f}" if size in missed else "" for size in sizes_of)))
    return turned(("MiB", *(str(size // MIB) for size in sizes_of)), lines)


def hbm(group: str) -> str:
    lines = []
    for row in rows(group):
        p, m = row["total"]["predicted"], row["total"]["measured"]
        cells = []
        for q in ("hbm_read", "hbm_written"):
            small = m[q] < 1e7
            error = "" if small else f"{100 * (p[q] - m[q]) / m[q]:+.1f} %"
            cells += [megabytes(p[q]), megabytes(m[q]), error]
        lines.append((row["schedule"], sizes(row), *cells))
    columns = (
        "schedule",
        "sizes",
        "reads, MB: predicted",
        "measured",
        "error",
        "writes, MB: predicted",
        "measured",
        "error",
    )
    return table(columns, lines)


NAMES = {"small-cache": "Algorithm 6", "large-cache": "Algorithm 9", "flash": "FlashAttention"}
FORWARD = {"small-cache-forward": "small-cache-forward", "flash2-forward": "flash2-forward"}
ROUND = ((384, 32), (768, 64), (1024, 128), (2048, 32), (4096, 64))
"""The sizes n and d that were not drawn."""


def ratio(row: Row, exact: Sequence[Moved]) -> str:
    """Bytes at HBM over those counted, read and written."""
    found = total(row)
    pairs = (("hbm_read", "words_read"), ("hbm_written", "words_written"))
    return " / ".join(f"{found[hbm] / 4 / sum(getattr(each, words) for each in exact):.3f}" for hbm, words in pairs)


def exact_of(row: Row) -> list[Moved]:
    one = case_of(row)
    return [moved(kernel.launch, one.sizes).times(one.heads) for kernel in one.source.kernels]


def batches(names: dict[str, str]) -> str:
    """What HBM gave over what is counted, and the time for one head, at the sizes that were not drawn."""
    lines = []
    for n, d in ROUND:
        found = [row for row in rows("hbm") if row["dims"] == {"n": n, "d": d} and row["schedule"] in names]
        for M in sorted({row["M"] for row in found}):
            cells = []
            for name in names:
                mine = [row for row in found if (row["M"], row["schedule"]) == (M, name)]
                if not mine:
                    cells.append("")
                    continue
                exact = exact_of(mine[0])
                words = 4 * sum(each.words_read + each.words_written for each in exact) / mine[0]["heads"]
                micro = 1e6 * total(mine[0])["seconds"] / mine[0]["heads"]
                cells.append(f"{words / 1e6:,.2f}; {ratio(mine[0], exact)}; {micro:,.1f}")
            lines.append((f"{n:,}, {d}", f"{M:,}", f"{M / d**2:.2f}", *cells))
    columns = [f"{label}: MB counted; HBM ÷ counted; µs" for label in names.values()]
    return table(("n, d", "M", "M/d²", *columns), lines)


def drawn() -> str:
    """What HBM gave over what is counted and predicted, at the sizes that were drawn."""
    lines = []
    for row in rows("hbm"):
        if tuple(row["dims"].values()) not in ROUND:
            exact, found = exact_of(row), total(row)
            words = 4 * sum(each.words_read + each.words_written for each in exact)
            read, _ = row["predicted"]
            model = "" if read is None else f"{found['hbm_read'] / read:.3f}"
            tiles = ", ".join(f"{name} = {size}" for name, size in row["blocks"].items())
            size = f"{row['dims']['n']:,}, {row['dims']['d']}, {row['M']:,}"
            lines.append((size, row["schedule"], tiles, f"{words / 1e9:,.1f}", ratio(row, exact), model))
    columns = ("n, d, M", "schedule", "blocks", "GB counted", "HBM ÷ counted", "reads ÷ model of L2")
    return table(columns, lines)


def crossings() -> str:
    """Where Algorithm 6 crosses the others, in multiples of d²."""
    lines = []
    for n, d in ROUND[:3]:
        for other in ("flash", "large-cache"):
            found = [row for row in rows("hbm") if row["dims"] == {"n": n, "d": d} and not row["id"].endswith("-2")]
            measured = points(found, ("small-cache", other))
            (exact,) = ps.crossover("small-cache", other, n=n, d=d).crossings
            assert exact.at is not None
            cells = []
            for what in ("counted", "hbm", "sm", "seconds"):
                between = crossings_of(measured, "small-cache", other, what)
                told = (f"{x.at / d**2:.2f} ({x.low / d**2:.2f} to {x.high / d**2:.2f})" for x in between)
                cells.append(", ".join(told))
            lines.append((f"{n:,}, {d}", NAMES[other], f"{exact.at / d**2:.2f}", *cells))
    columns = ("n, d", "Algorithm 6 and", "counted, exactly", "counted at these M", "HBM", "multiprocessors", "time")
    return table(columns, lines)


TABLE = 2 * 64 * 16 * 1024**2
"""Bytes of a score matrix of FlashAttention's Figure 2, in 16-bit words."""

TENSOR = TABLE // 1024 * 64
"""Bytes of Q, of K, and of any other tensor with a row for each token."""

ATTENTION = (
    ("forward", "Q, K, V", "O"),
    ("zeros for dQ", "", "dQ in float32"),
    ("row sums of dO ∘ O", "dO, O", ""),
    ("backward", "Q, K, V, dO, dQ in float32", "dK, dV, dQ in float32"),
    ("dQ in 16 bits", "dQ in float32", "dQ"),
)
"""The kernels of `attention`, and the tensors that they read and write."""

STANDARD = (
    "S = Q Kᵀ",
    "P = softmax(S)",
    "O = P V",
    "dV = Pᵀ dO",
    "dP = dO Vᵀ",
    "P ∘ dP",
    "dS, from P ∘ dP and P",
    "dK = dSᵀ Q",
    "dK, scaled",
    "dQ = dS K",
    "dQ, scaled",
)
"""What the kernels of standard attention compute."""


def figure_2() -> Iterator[str]:
    """Bytes at HBM of attention in GPT-2 medium: of each way, and of each kernel of standard attention."""
    found, lines = rows("figure_2"), []
    for name in dict.fromkeys(row["case"] for row in found):
        mine = [row for row in found if row["case"] == name]
        read, written, seconds = (sum(row[what] for row in mine) for what in ("read", "written", "seconds"))
        both = read + written
        cells = (f"{read / 1e9:.2f}", f"{written / 1e9:.2f}", f"{both / 1e9:.2f}", f"{both / TABLE:.2f}")
        lines.append((name, str(len(mine)), *cells, f"{1e3 * seconds:.2f}"))
    yield table(("", "kernels", "read, GB", "written, GB", "both, GB", "in tables", "ms"), lines)
    lines = [
        (what, *(f"{row[way] / TABLE:.2f}" for way in ("read", "written")))
        for what, row in zip(STANDARD, [row for row in found if row["case"] == "standard"], strict=True)
    ]
    yield table(("kernel", "tables read", "tables written"), lines)
    ours, lines = [row for row in found if row["case"] == "attention"], []
    for (what, reads, writes), row in zip(ATTENTION, ours, strict=True):
        tensors = [each for each in (*reads.split(", "), *writes.split(", ")) if each]
        counted = TENSOR * sum(2 if "float32" in each else 1 for each in tensors)
        lines.append((what, reads, writes, f"{counted / 1e9:.2f}", f"{(row['read'] + row['written']) / 1e9:.2f}"))
    yield table(("kernel", "reads", "writes", "GB counted", "GB measured"), lines)


def times() -> str:
    lines = []
    for row in rows("workers"):
        m = row["total"]["measured"]
        lines.append(
            (
                row["schedule"],
                str(row["workers"]),
                f"{(m['words_read'] + m['words_written']) / 1e6:.1f}",
                megabytes(m["sm_read"] + m["sm_written"]),
                megabytes(m["hbm_read"] + m["hbm_written"]),
                f"{row['seconds'] * 1e3:.2f}",
                f"{100 * row['roofline']['fraction']:.1f} %",
            )
        )
    lines.sort(key=lambda line: (line[0], int(line[1])))
    return table(("schedule", "P", "M words", "SM, MB", "HBM, MB", "ms", "of the roofline"), lines)


def heads() -> Iterator[str]:
    for problem in ("backward", "forward"):
        lines = []
        for row in rows("heads"):
            if ps.count(row["schedule"], M=row["M"], **row["dims"]).problem != problem:
                continue
            m = row["total"]["measured"]
            lines.append(
                (
                    str(row["dims"]["d"]),
                    row["schedule"] + (f", P = {row['workers']}" if row["workers"] > 1 else ""),
                    f"{(m['words_read'] + m['words_written']) / 1e6:.2f}",
                    megabytes(m["sm_read"] + m["sm_written"]),
                    megabytes(m["hbm_read"] + m["hbm_written"]),
                    f"{row['seconds'] * 1e3:,.2f}",
                )
            )
        yield table(("d", "schedule", "M words", "SM, MB", "HBM, MB", "ms"), lines)


def framework() -> str:
    lines = []
    for row in rows("framework"):
        n, d = row["n"], row["d"]
        counted = ps.count("flash2-forward", n=n, d=d, M=2**20, blocks={"B_r": 128, "B_c": 128}).reads * 2
        lines.append((str(n), str(d), f"{counted:,}", f"{row['sm_read']:,}", f"{row['sm_read'] - counted:+,}"))
    return table(("n", "d", "counted, bytes", "measured, bytes", "difference"), lines)


SECTIONS: dict[str, Callable[[], Iterable[str]]] = {
    "exact": lambda: [exact(), merged()],
    "crossings": lambda: [crossings()],
    "batches": lambda: [batches(NAMES)],
    "batches of the forward pass": lambda: [batches(FORWARD)],
    "drawn": lambda: [drawn()],
    "caches": lambda: [kept(), dirty(), again()],
    "unseen": lambda: [hbm("unseen")],
    "fitted": lambda: [hbm("fitted")],
    "heads": heads,
    "times": lambda: [times(), framework(), samples()],
    "figure 2": figure_2,
}
"""Tables, in the order in which they are printed."""


def main() -> None:
    print("\n\n".join(each for section in SECTIONS.values() for each in section()))


if __name__ == "__main__":
    main()
