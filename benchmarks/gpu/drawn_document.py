"""What documents say of a race of drawn shapes and of the host's time, written from the rows."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import drawn_words as words
from drawn_report import BEHIND, WAYS, beside, family, host_table, least, loaded, mean, picture, ratios
from drawn_shapes import Shape

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
ATTENTION, HOST_TIME, RACE = (ROOT / "docs" / f"{page}.md" for page in ("attention", "host-time", "race"))

MOST_FFPA = 6
"""Shapes above d = 256 that are shown beside FFPA's kernels: those with the most operations."""

OF_README = "So says [a race](docs/race.md) on {shapes} shapes that {seeds} seeds drew, launches included."
OF_RACE = (
    "So says a race on {shapes} shapes that {seeds} seeds drew, on an {card}; times are those of a Python program, "
    "launches included."
)
"""What pages say of the race after its means."""


def document(folder: Path) -> None:
    """Write the picture, the tables and sentences of docs/race.md and docs/host-time.md, and what README repeats."""
    rows, groups = loaded(folder, "race"), loaded(folder, "groups")
    if rows:
        picture(folder, ROOT / "docs/pictures/drawn_race.png")
        for part, lines in _of_race(rows, loaded(folder, "race_before")).items():
            _put_part(RACE, part, lines)
        for page, measured in ((README, OF_README), (RACE, OF_RACE)):
            _put_part(page, "summary", words.summary(rows, groups, measured))
    if groups:
        _put_part(RACE, "groups", _groups(groups))
    if short := loaded(folder, "short"):
        _put_part(RACE, "short", [*_short(short), "", words.short(short)])
    if first := loaded(folder, "first"):
        _put_part(HOST_TIME, "first", _first(first))
    if host := loaded(folder, "host"):
        _put_part(HOST_TIME, "host", host_table(host, loaded(folder, "host_python")))
        for page in (ATTENTION, HOST_TIME):
            _put_spans(page, host)


def _of_race(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The parts of docs/race.md that are of the drawn shapes."""
    return {
        "ratios": _ratios(rows),
        "each": _each(rows),
        "rows": [*words.of_code(rows, before), *words.wrong(rows)],
        "behind": _behind(rows),
        "alone": _behind_alone(rows),
        "ffpa": _ffpa(rows),
    }


def _put_part(page: Path, part: str, lines: list[str]) -> None:
    """Write the lines between the marks of a part of a page."""
    _put(page, rf"(<!-- race: {part} -->\n\n).*?(\n\n<!-- end -->)", "\n".join(lines))


def _put_spans(page: Path, host: list[dict[str, Any]]) -> None:
    """Write the least and the largest CPU time of calls of known lengths."""
    known = [row for row in host if "ours" in row and least(row, "forward") and not row["key"].startswith("new")]
    said = ";\n".join(
        f"a {way} pass takes {words.span(row['ours'][way] for row in known)} µs, and PyTorch's "
        f"{words.span(best for row in known if (best := least(row, way)))} µs"
        for way in ("forward", "backward")
    )
    span = r"\d+ to \d+ µs"
    forward, backward = (rf"a {way} pass takes {span}, and PyTorch's {span}" for way in ("forward", "backward"))
    _put(page, rf"(){forward};\s+{backward}()", said)


def _groups(rows: list[dict[str, Any]]) -> list[str]:
    """Rates of chosen shapes on the card alone: of ours, and of the fastest other contender in each pass."""
    head = (
        "| shape | forward, ours | the fastest other | backward, ours | the fastest other | errors ÷ the least other |"
    )
    lines = [head, "| --- " * 6 + "|"]
    for row in rows:
        rates = {who: _rates(row, who) for who in row["forward"] if who in row["both"]}
        ours, cells = rates.pop("ours"), list[str]()
        for way in (0, 1):
            best = max(rates, key=lambda who: rates[who][way])
            cells += [f"{ours[way]:.0f}", f"{rates[best][way]:.0f} ({best})"]
        wrong = {who: row["errors"][who] for who in (*rates, "ours")}
        least = {name: min(each[name] for who, each in wrong.items() if who != "ours") for name in wrong["ours"]}
        worst = max(wrong["ours"][name] / least[name] for name in least)
        lines.append(f"| {row['shape']} | {' | '.join(cells)} | {worst:.2f} |")
    return lines


def _short(rows: list[dict[str, Any]]) -> list[str]:
    """The time of the best other contender divided by ours, of short sequences, and the geometric means."""
    kinds = [*product(WAYS, ("wall_us", "card_us"))]
    names = ["both passes" if way == "both" else way for way in WAYS]
    head = ["shape", *(f"{name}, {where}" for name in names for where in ("with launches", "card alone"))]
    lines, all_of = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"], dict[Any, list[float]]()
    for row in rows:
        cells = [row["shape"]]
        for way, what in kinds:
            best = min(row[way].items(), key=lambda each: (each[0] == "ours", each[1][what]))
            ratio = best[1][what] / row[way]["ours"][what]
            all_of.setdefault((way, what), []).append(ratio)
            cells.append(f"{ratio:.2f} ({best[0]})")
        lines.append(f"| {' | '.join(cells)} |")
    means = (f"{mean(sorted(all_of[kind])):.2f}" for kind in kinds)
    return [*lines, f"| geometric mean | {' | '.join(means)} |"]


STAGES = {"front": ("front",), "passes": ("ttir", "ttgir"), "LLVM": ("llir",), "PTX": ("ptx",), "ptxas": ("cubin",)}
"""Stages of Triton's compiler, as a table names them."""


def _first(rows: list[dict[str, Any]]) -> list[str]:
    """Seconds of first calls; and, of one with an empty cache, until kernels compile, and of the longest kernel's
    stages."""
    head = ["call", "empty cache", "cache on disk", "until kernels compile", "the longest kernel", *STAGES, "then done"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for row in rows:
        watched = row["empty"]
        marks, longest = watched["marks"], max(watched["kernels"], key=_seconds)
        when = {name: next(at for said, at in marks if said == name) for name in ("written", "Triton is ready")}
        done = next(at for said, at in marks if said == f"{longest['kernel']} is compiled")
        parts = [sum(longest.get(name, 0.0) for name in names) for names in STAGES.values()]
        ready = max(when.values()) - watched["import"]
        taken = [watched["forward"], row["kept"]["forward"], ready]
        cells = [row["key"].removeprefix("ours: "), *(f"{each:.2f}" for each in taken)]
        parts.append(watched["import"] + watched["forward"] - done)
        cells += [f"{longest['kernel']}, {_seconds(longest):.2f}", *(f"{each:.2f}" for each in parts)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _seconds(kernel: dict[str, Any]) -> float:
    return float(sum(each for each in kernel.values() if isinstance(each, float)))


def _rates(row: dict[str, Any], who: str) -> tuple[float, float]:
    """TFLOP/s of both passes of a contender on the card alone; backward is what both take beside forward."""
    fields = {name: row[name] for name in ("batch", "kv_heads", "shared", "n", "d", "mask", "left")}
    shape = Shape(**fields, starts=tuple(row["starts"]))
    forward, both = (row[way][who]["card_us"] for way in WAYS)
    return shape.operations("forward") / forward / 1e6, shape.operations("backward") / (both - forward) / 1e6


def _put(file: Path, pattern: str, text: str) -> None:
    """Write a text between what the two groups of a pattern match.

    Raises:
        SystemExit: the file has no such place, or several.
    """
    whole, number = re.subn(
        pattern, lambda match: match[1] + text + match[2], file.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    if number != 1:
        raise SystemExit(f"{file} has {number} places for {pattern!r}, and 1 is needed.")
    file.write_text(whole, encoding="utf-8")


def _ratios(rows: list[dict[str, Any]]) -> list[str]:
    """The distribution of ratios."""
    others, seeds, card = len(ratios(rows, "forward")), words.seeds(rows), words.card(rows)
    torch = rows[0]["torch"].split("+")[0]
    lines = [
        f"{len(rows)} shapes of {seeds} seeds on an {card} (PyTorch {torch}; "
        f"[rows](../benchmarks/gpu/h200/drawn_race/race.jsonl)); {others} of them run in another contender, too. The "
        "table has the time of the best other contender divided by ours, so above 1 ours are faster:",
        "",
        "| | geometric mean | median | least | largest | below 0.95 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for way, name in WAYS.items():
        for what, said in (("wall_us", "with launches"), ("card_us", "on the card alone")):
            found = [ratio for ratio, _, _ in ratios(rows, way, what)]
            figures = f"{mean(found):.2f} | {found[len(found) // 2]:.2f} | {found[0]:.2f} | {found[-1]:.1f}"
            lines.append(f"| {name}, {said} | {figures} | {words.few(found)} |")
    return lines


def _behind(rows: list[dict[str, Any]]) -> list[str]:
    """Every shape that is behind, with both times."""
    lines = []
    for way, name in WAYS.items():
        for ratio, who, row in ratios(rows, way):
            if ratio < BEHIND:
                ours, theirs = row[way]["ours"], row[way][who]
                alone, host = theirs["card_us"] / ours["card_us"], f"{ours['host_us']:.0f} / {theirs['host_us']:.0f}"
                lines.append(f"| {row['shape']} | {name} | {ratio:.2f} | {alone:.2f} | {host} | {who} |")
    if not lines:
        return [f"None of {len(rows)} shapes is below {BEHIND} with launches."]
    return [
        f"Of {len(rows)} shapes, these are below {BEHIND} with launches. The column *on the card alone* compares ours "
        "with the contender of the last column:",
        "",
        "| shape | pass | with launches | on the card alone | CPU time, ours / theirs, µs | best other |",
        "| --- " * 6 + "|",
        *lines,
    ]


def _behind_alone(rows: list[dict[str, Any]]) -> list[str]:
    """Every shape that is behind on the card alone."""
    lines = []
    for way, name in WAYS.items():
        for ratio, who, row in ratios(rows, way, "card_us"):
            if ratio < BEHIND:
                times = " / ".join(f"{row[way][each]['card_us']:,.0f}" for each in ("ours", who))
                lines.append(f"| {row['shape']} | {name} | {ratio:.2f} | {times} | {who} |")
    if not lines:
        return [f"On the card alone, no shape is below {BEHIND}."]
    return [
        f"On the card alone, these are below {BEHIND} beside the contender that is fastest there:",
        "",
        "| shape | pass | on the card alone | ours / theirs, µs | best other |",
        "| --- " * 5 + "|",
        *lines,
    ]


def _ffpa(rows: list[dict[str, Any]]) -> list[str]:
    """Shapes above d = 256, ours beside FFPA's kernels and PyTorch's."""
    lines = ["| shape | ours, µs | FFPA, µs | PyTorch's best, µs |", "| --- | --- | --- | --- |"]
    raced = [row for row in rows if any(name.startswith("ffpa") for name in row.get("both", {}))]
    for row in sorted(raced, key=lambda row: -row["both"]["ours"]["card_us"])[:MOST_FFPA]:
        cells = []
        for chosen in (lambda name: name == "ours", lambda name: name.startswith("ffpa"), _by_pytorch):
            times = [
                min((each["card_us"] for name, each in row[way].items() if chosen(name)), default=None) for way in WAYS
            ]
            cells.append(" / ".join("–" if each is None else f"{each:,.0f}" for each in times))
        lines.append(f"| {row['shape']} | {' | '.join(cells)} |")
    return lines


def _each(rows: list[dict[str, Any]]) -> list[str]:
    """Geometric means of the time of each contender divided by ours, over the shapes that it computes."""
    lines = [
        "| contender | shapes | forward, with launches | on the card alone | both, with launches | on the card alone |"
    ]
    lines.append("| --- " * 6 + "|")
    for name in sorted({family(name) for row in rows for name in row.get("both", {})} - {"ours"}):
        by = {what: beside(rows, name, what) for what in ("wall_us", "card_us")}
        if (found := by["wall_us"])["both"]:
            cells = " | ".join(f"{mean(by[what][way]):.2f}" for way, what in product(WAYS, by))
            lines.append(f"| {name} | {words.numbers(found)} | {cells} |")
    return lines


def _by_pytorch(name: str) -> bool:
    return name != "ours" and not name.startswith(("ffpa", "flash-attn"))
