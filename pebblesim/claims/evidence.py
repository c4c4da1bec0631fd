"""The last section of docs/lower-bounds.md: what each theorem was held against where it bites, from a run."""

from __future__ import annotations

from collections.abc import Iterator

from pebblesim.claims.biting import Bites, Comparison, Searched, searched
from pebblesim.language.problems import PROBLEMS
from pebblesim.lower_bounds.bounds import lower_bounds

TITLE = "## 7. Where each theorem was put to the test"

ENOUGH, DRAWS, TRIES, STATES = 50, 40, 3000, 20_000
"""Comparisons with counts wanted for each theorem, cases drawn for each schedule, cases drawn at most from a theorem's
own sizes, and states of each search."""

WORDS_AT_ONCE = ("C4", "C5", "D5", "E7")
"""Theorems that count the words in the cache at a time."""

_HEAD = f"""{TITLE}

A bound that stays below the compulsory words, or below another bound, is not tested by any number of comparisons. The
table counts the comparisons in which a theorem is *the largest bound and exceeds the compulsory words*: with counts of
schedules, by their own way of computing or, least of all schedules, for every way; and with searches of small graphs,
where it is held against the optimum, or against what an interrupted search has proved. `tests/test_evidence.py` draws
the cases from a seed, {DRAWS} for each schedule, with rectangles, masks and M near nd among them. If a theorem has
fewer than {ENOUGH} comparisons then, more are drawn from sizes at which it is strong (`pebblesim.claims.strongholds`).
Each comparison is of one drawn case, and of one schedule or of all together; "sizes" are the different ones among them,
whatever M and the mask are. No comparison is below a bound. "Ends" are searches that were interrupted after {STATES:,}
states and had proved as many words as the bound; "open" those that had not. The least ratio is that of
I/O to the bound.

| theorem | problems | counts | sizes | rectangles | masks | M near nd | least ratio | optima (met) | ends | open |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def section() -> str:
    """Return the section, from a run of about two minutes."""
    return of_results(Comparison(ENOUGH, DRAWS, TRIES).run(), searched(STATES))


def of_results(bites: dict[str, Bites], graphs: dict[str, Searched]) -> str:
    """Return the section with these results."""
    names = _theorems()
    rows = [_row(name, bites.get(name, Bites()), graphs.get(name, Searched())) for name in names]
    return _HEAD + "\n".join(rows) + "\n\n" + "\n".join(_remarks(names, bites, graphs))


def _theorems() -> list[str]:
    """The names of all theorems, in the order of the problems."""
    names: dict[str, None] = {}
    for solves in PROBLEMS.values():
        sizes = {dim: {"n": 64, "d": 8}[kind] for dim, kind in solves.from_nd.items()}
        names |= dict.fromkeys(bound.name for bound in lower_bounds(solves, sizes, 16) if bound.name != "compulsory")
    return list(names)


def _row(name: str, bites: Bites, graphs: Searched) -> str:
    shapes = (bites.shapes[shape] for shape in ("rectangle", "mask", "M about nd"))
    closest = f"{float(bites.closest):.3f}" if bites.closest else ""
    optima = f"{graphs.optima} ({graphs.met})"
    problems = ", ".join(sorted(bites.number))
    cells = (name, problems, bites.number.total(), len(bites.sizes), *shapes, closest, optima, graphs.ends, graphs.open)
    return f"| {' | '.join(map(str, cells))} |"


def _remarks(names: list[str], bites: dict[str, Bites], graphs: dict[str, Searched]) -> Iterator[str]:
    """Say which theorems few counts, and which no search, put to the test, and what stands in for it."""
    few = [name for name in names if bites.get(name, Bites()).number.total() < ENOUGH]
    if few:
        rare = f"Fewer than {ENOUGH} counts, as sizes where they are the largest are rare among the draws:"
        yield f"{rare} {', '.join(few)}.\n"
    found = (graphs.get(name, Searched()) for name in names)
    reached = {name for name, each in zip(names, found, strict=True) if each.optima + each.ends}
    cut = [name for name in names if name not in reached and name not in WORDS_AT_ONCE]
    at_once = [name for name in names if name not in reached and name in WORDS_AT_ONCE]
    yield (
        f"No search of a graph reaches {', '.join(cut)}.\nIn their place, `tests/test_segments.py` applies\n"
        "sections 1 and 2 to random and optimal games and compares the families and products of every segment with\n"
        "the claims, and `tests/test_proved_capacities.py` certifies each capacity. Word-level games in which pairs\n"
        "differ in their order move less than twice C2m and E1m (`tests/test_games_of_mixed_orders.py`).\n"
    )
    if at_once:
        yield (
            f"Nor does any reach {', '.join(at_once)}, as n must be many times d. In their place, the lemmas are\n"
            "tried on games: that of (6) in `tests/test_cases_of_two_times.py`, that of C4 and C5 in\n"
            "`tests/test_words_at_two_times.py`, that of E7 in `tests/test_any_order.py`, that of D5 there and in\n"
            "`tests/test_closed_lines.py`.\n"
        )
