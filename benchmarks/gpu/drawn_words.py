"""What documents say in words of a race of drawn shapes: each figure is one of the rows'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from drawn_report import BEHIND, RIGHT, WAYS, beside, mean, ratios

FA4 = "flash-attn-4"
FFPA_TRITON, FFPA_CUTE = "ffpa triton", "ffpa cutedsl"
"""Contenders that sentences are about, as rows name them."""

Rows = list[dict[str, Any]]


def summary(rows: Rows, groups: Rows, measured: str) -> list[str]:
    """The first sentences of a page: means with launches, then others' kernels on the card alone.

    `measured` has places for the numbers of shapes and of seeds, and for the card.
    """
    one, other = ([ratio for ratio, _, _ in ratios(rows, way)] for way in WAYS)
    longer, single = "times as long as ours in the geometric mean, and from", "times on single shapes"
    lines = [
        f"Forward, the fastest other kernel takes {mean(one):.2f} {longer} {_ends(one)} {single}.",
        f"With gradients, it takes {mean(other):.2f} {longer} {_ends(other)} {single}.",
        measured.format(shapes=len(rows), seeds=seeds(rows), card=card(rows)),
    ]
    forward, both = (found := beside(rows, FA4)).values()
    if both:
        lines.append(
            f"On the card alone, FlashAttention-4 takes {mean(forward):.2f} times as long as ours forward, and "
            f"{mean(both):.2f} times with gradients, in the geometric mean of {numbers(found)} shapes"
        )
        found = beside([row for row in rows if row["mask"] != "packed"], FA4)
        if all(found.values()):
            lines[-1] += (
                f"; without packed sequences, {_two(map(mean, found.values()), '.2f')} times, of {numbers(found)}"
            )
        lines[-1] += "."
    kernels = {"its Triton kernels": (FFPA_TRITON, rows), "its kernels in the CuTe DSL": (FFPA_CUTE, rows + groups)}
    spans = [f"{name} take {said}" for name, (who, some) in kernels.items() if (said := _spans(some, who))]
    if spans:
        lines += [
            "Above a head dimension of 256 the other contender is FFPA. On the card alone,",
            f"{'; '.join(spans)}.",
        ]
    return lines


def of_code(rows: Rows, before: Rows) -> list[str]:
    """Which commits were raced, and what was behind before that; shapes that both races have are compared."""
    by = Counter(row.get("commit") for row in rows)
    said = ", ".join(f"{commit or 'not named'} ({number})" for commit, number in by.most_common())
    lines = [
        f"- Commits of the code that was raced, and rows of each: {said}. Of a shape that was raced again, the last "
        "row counts."
    ]
    keys = {row["key"] for row in rows} & {row["key"] for row in before}
    now, then = (
        [[r for r, _, row in ratios(each, way) if row["key"] in keys] for way in WAYS] for each in (rows, before)
    )
    if all([*now, *then]):
        lines.append(
            f"- {len(keys)} of these shapes were raced [before](../benchmarks/gpu/h200/drawn_race/race_before.jsonl), "
            "without FlashAttention-4, when Python made known passes. Their geometric means forward and with "
            f"gradients, with launches, were {_two(map(mean, then), '.2f')} then, and {_two(map(few, then))} ratios "
            f"were below {BEHIND}; now the means are {_two(map(mean, now), '.2f')}, and {_two(map(few, now))} ratios "
            "are below."
        )
    return lines


def wrong(rows: Rows) -> list[str]:
    """Results that do not count, and the passes that are not computed by ours."""
    found = []
    for row in rows:
        for who, errors in row.get("errors", {}).items():
            if bad := [name for name, each in errors.items() if each > RIGHT]:
                said = f"an error of {max(errors.values()):.2g}"
                found.append(f"{', '.join(bad)} of {who} on {row['shape']} ({said})")
    left = [row["shape"] for row in rows if "ours" not in row.get("both", {})]
    lines = [
        f"- Results that are wrong by more than {100 * RIGHT:.0f} %, and do not count: {'; '.join(found) or 'none'}."
    ]
    return lines + ([f"- Ours did not compute {'; '.join(left)}."] if left else [])


def short(rows: Rows) -> str:
    """How many ratios of short sequences are behind, and what a call takes."""
    times = {(way, what): [row[way]["ours"][what] for row in rows] for way in WAYS for what in ("wall_us", "card_us")}
    behind = [
        sum(few([ratio for ratio, _, _ in ratios(rows, way, what)]) for way in WAYS) for what in ("wall_us", "card_us")
    ]
    calls, card = (_two(span(times[way, what]) for way in WAYS) for what in ("wall_us", "card_us"))
    late = sum(row.get("native", "on") != "on" for row in rows)
    without = f" {late} of {len(rows)} shapes were raced before the [library](host-time.md) was compiled."
    return (
        f"Of {len(WAYS) * len(rows)} ratios, {behind[0]} are below {BEHIND} with launches, and {behind[1]} on the card "
        f"alone. A call of ours takes {calls} µs forward and with both passes, of which the card works {card} µs."
        f"{without if late else ''}"
    )


def few(found: Iterable[float]) -> int:
    """How many ratios are behind."""
    return sum(each < BEHIND for each in found)


def seeds(rows: Rows) -> int:
    return len({row["key"].split("/")[0] for row in rows})


def card(rows: Rows) -> str:
    return str(rows[0]["card"]).replace("NVIDIA ", "")


def span(values: Iterable[float]) -> str:
    """The least and the largest of some values, as whole numbers."""
    found = sorted(round(each) for each in values)
    return f"{found[0]} to {found[-1]}"


def _two(values: Iterable[Any], form: str = "") -> str:
    return " and ".join(format(each, form) for each in values)


def _ends(found: list[float]) -> str:
    return f"{found[0]:.2f} to {found[-1]:.2g}"


def numbers(found: dict[str, list[float]]) -> str:
    """How many shapes there are, forward and with gradients where these differ."""
    return " and ".join(f"{each}" for each in dict.fromkeys(map(len, found.values())))


def _spans(rows: Rows, who: str) -> str:
    """What a contender takes on the card alone on single shapes; nothing if it ran nowhere."""
    forward, both = (found := beside(rows, who)).values()
    if not both:
        return ""
    one, other = (f"{found[0]:.2g} to {found[-1]:.2g}" for found in (forward, both))
    return f"{one} times as long as ours forward, and {other} with gradients, on {numbers(found)} shapes"
