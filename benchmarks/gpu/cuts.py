"""Ways to cut a pass whose score matrices have no room, each timed kernel by kernel; on a Hopper GPU.

    python benchmarks/gpu/cuts.py -o FOLDER [--time-limit 60]

Shapes are causal, with heads that share keys and d = 512, and a workspace of 1 GiB. A row of FOLDER/cuts.jsonl is a
pass of a shape with one cut: its time on the card alone and that of each kernel in microseconds, its forecast, and how
far the results are from those of the cut that `attention` takes, which comes first; the second one has parts of about
the same number of queries. What is there is not measured again. `--table` shows the rows, without a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resumed import add, known, there

from pebblesim.advice import cards
from pebblesim.operator import cuts, planning
from pebblesim.operator.pattern import Pattern, band_of

D = 512

SHAPES = ((32768, 4, 2), (16384, 2, 8), (9801, 2, 8), (16384, 4, 2), (24576, 4, 2))
"""Tokens, KV heads, and query heads that share each of them."""

WAYS = ("backward", "forward")

TRIED = 4
"""Cuts of a pass that are timed, at most."""

ALIKE = {
    (32768, "backward"): (1, 2, (8448, 17024, 25600, 32768)),
    (32768, "forward"): (1, 2, (8192, 16384, 24704, 32768)),
    (16384, "backward"): (1, 8, (4096, 8320, 12544, 16384)),
    (9801, "backward"): (2, 8, (1920, 3840, 5760, 7808, 9801)),
    (9801, "forward"): (2, 8, (3200, 6528, 9801)),
    (24576, "backward"): (2, 2, (4096, 8192, 12288, 16384, 20480, 24576)),
    (24576, "forward"): (1, 2, (13824, 24576)),
}
"""Cuts with parts of about the same number of queries: KV heads and heads at once, and ends."""


def pattern_of(shared: int) -> Pattern:
    """The causal pairs of heads that share keys."""
    return Pattern(band_of(right=0, rows=shared), shared)


def sizes(n: int, shared: int) -> planning.Dims:
    """The sizes of an attention: rows of all heads that share keys are one dimension."""
    return (("n_q", n * shared), ("n_k", n), ("d_k", D), ("d_v", D))


def choices(way: str, n: int, heads: int, shared: int, card: cards.Card) -> list[planning.Choice]:
    """Choices with a cut: first that which is taken, then one with parts of one size, then those that are tried."""
    pattern, dims = pattern_of(shared), sizes(n, shared)
    taken = planning.chosen(way, dims, heads, "bfloat16", pattern, planning.ROOM, card)
    if taken.cut is None:
        return []

    def parts() -> list[planning.Choice]:
        asked = planning.Pass(way, dims, heads, "bfloat16", pattern, planning.ROOM, card)
        return [*planning._in_parts(asked, planning.ROOM)]

    found, usual = {each.cut: each for each in parts()}, planning.ways_to_cut
    if taken.cut.heads == shared and (n, way) in ALIKE:
        planning.ways_to_cut = lambda *given: iter([cuts.Cut(*ALIKE[n, way])])  # type: ignore[assignment]
        found = {each.cut: each for each in parts()} | found
        planning.ways_to_cut = usual
    del found[taken.cut]
    return [taken, *found.values()][:TRIED]


def seconds(choice: planning.Choice, n: int, heads: int, shared: int, card: cards.Card) -> float:
    """The forecast of a choice."""
    return planning.first_at(choice, dict(sizes(n, shared)), card, "bfloat16", heads, pattern_of(shared)).seconds


@contextmanager
def taking(choice: planning.Choice, n_q: int, heads: int) -> Iterator[None]:
    """Meanwhile passes of all queries of all heads are cut in this way, and their parts are as usual."""
    from pebblesim.operator.launching import launching

    usual = launching.fitting

    def fitting(way: str, dims: planning.Dims, some: int, *rest: Any) -> planning.Choice:
        whole = dict(dims)["n_q"] == n_q and some == heads
        return choice if whole else usual(way, dims, some, *rest)

    launching.fitting = fitting
    try:
        yield
    finally:
        launching.fitting = usual


def passes(torch: Any, n: int, heads: int, shared: int) -> dict[str, Any]:
    """Both passes of a shape, of random words, as functions."""
    from pebblesim.operator import operators

    made, of_queries = torch.Generator("cuda").manual_seed(n), heads * shared
    options = {"device": "cuda", "dtype": torch.bfloat16, "generator": made}
    Q, K, V, dO = (torch.randn(1, some, n, D, **options) for some in (of_queries, heads, heads, of_queries))
    rest = (None, None, None, 0, False, D**-0.5, 0.0, None, False)
    out, L = operators.without_notes(Q, K, V, None, *rest)
    return {
        "forward": lambda: operators.without_notes(Q, K, V, None, *rest),
        "backward": lambda: operators.gradients_without_notes(dO, None, Q, K, V, out, L, None, *rest),
    }


def rows(asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """A row for each shape, pass and cut."""
    import torch
    from timing import by_kernel, of_card, of_host

    card = cards.of_device(torch.cuda.get_device_properties(0))
    for n, heads, shared in SHAPES:
        both = passes(torch, n, heads, shared)
        for way in WAYS:
            right: Any = None
            for number, choice in enumerate(choices(way, n, heads, shared, card)):
                cut = choice.cut
                assert cut is not None
                key = f"{heads * shared} on {heads}, n = {n}, {way}: {cut.kv_heads} KV heads, {cut.heads} heads, "
                key += f"ends {list(cut.ends)}{'' if number else ', taken'}"
                if key in known:
                    continue
                if time.monotonic() > asked.until:
                    return
                row: dict[str, Any] = {"key": key, "way": way, "n": n, "shared": shared}
                row |= {**cut._asdict(), "card": torch.cuda.get_device_name(), "torch": torch.__version__}
                with torch.no_grad(), taking(choice, n * shared, heads):
                    found = both[way]()
                    right = [each.clone() for each in found] if right is None else right
                    pairs = zip(found, right, strict=True)
                    row["apart"] = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs)
                    host = of_host(torch, both[way], 3)
                    row["card_us"] = sorted(of_card(torch, [both[way]], 2, host) for _ in range(3))[1]
                    row["kernels"] = by_kernel(torch, both[way])
                yield row | {"forecast_us": seconds(choice, n, heads, shared, card) * 1e6}


def table(found: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    head = "n", "heads", "pass", "KV heads at once", "parts", "measured, ms", "forecast, ms"
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in found:
        times = (f"{row[name] / 1e3:.2f}" for name in ("card_us", "forecast_us"))
        heads = row["key"].partition(",")[0]  # `heads` of a row are those of a cut
        lines.append(
            f"| {row['n']:,} | {heads} | {row['way']} | {row['kv_heads']} | {len(row['ends'])} | {' | '.join(times)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds after which nothing new is begun")
    parser.add_argument("--table", action="store_true", help="show the rows that are there")
    parser.add_argument("--dry", action="store_true", help="print the cuts and their forecasts, without a GPU")
    asked = parser.parse_args()
    asked.until = time.monotonic() + asked.time_limit
    if asked.dry:
        card = cards.with_rates(cards.card("H200"))
        for n, heads, shared in SHAPES:
            for way in WAYS:
                for each in choices(way, n, heads, shared, card):
                    print(n, heads, shared, way, each.cut, f"{seconds(each, n, heads, shared, card) * 1e3:.2f} ms")
        return
    file = asked.output / "cuts.jsonl"
    if asked.table:
        print(table(there(file)))
        return
    add(file, rows(asked, known(file)))


if __name__ == "__main__":
    main()
