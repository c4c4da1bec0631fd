"""The evidence for each theorem, from a run: recorded beside this module, and printed in docs/lower-bounds.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files

from pebblesim.claims.biting import Bites, Comparison, Searched, searched, sizes_of_theorems
from pebblesim.language.problems import PROBLEMS
from pebblesim.lower_bounds.bounds import lower_bounds

TITLE = "## 7. Where each theorem was put to the test"

ENOUGH, DRAWS, TRIES, STATES = 50, 40, 3000, 20_000
"""Comparisons with counts wanted for each theorem, cases drawn for each schedule, cases drawn at most from a theorem's
own sizes, and states of each search."""

WORDS_AT_ONCE = ("C4", "C5", "D5", "D6", "E7", "E9")
"""Theorems that count the words in the cache at a time."""

FILE = "evidence.json"
"""The recorded run, beside this module."""


@dataclass(frozen=True)
class Record:
    """The comparisons in which one theorem is the largest bound and exceeds the compulsory words.

    Attributes:
        theorem: its name.
        problems: in which it bites.
        counts: comparisons with counts of schedules; `sizes` are the different ones among them.
        rectangles, masks, near_nd: how many of the counts are of queries and keys that differ in number, under a mask,
            or of M from nd/2 to 2nd.
        least_ratio: the least I/O ÷ bound among the counts, to three digits; empty without any.
        optima: searches of graphs that were finished; of these optima `met` equal the bound.
        ends: interrupted searches that had proved as many words as the bound; `open` had not.
    """

    theorem: str
    problems: Sequence[str]
    counts: int
    sizes: int
    rectangles: int
    masks: int
    near_nd: int
    least_ratio: str
    optima: int
    met: int
    ends: int
    open: int

    def row(self) -> str:
        """Return its row of the table."""
        shapes = self.rectangles, self.masks, self.near_nd
        searches = f"{self.optima} ({self.met})", self.ends, self.open
        cells = self.theorem, ", ".join(self.problems), self.counts, self.sizes, *shapes, self.least_ratio, *searches
        return f"| {' | '.join(map(str, cells))} |"

    def __str__(self) -> str:
        if not self.counts:
            return "no comparison"
        searches = self.optima + self.ends
        return f"{self.counts} counts, I/O at least {self.least_ratio} of it" + (
            f"; {searches} search{'es' * (searches > 1)}" if searches else ""
        )


_HEAD = f"""{TITLE}

A bound that stays below the compulsory words, or below another bound, is not tested by any number of comparisons. The
table counts the comparisons in which a theorem is *the largest bound and exceeds the compulsory words*: with counts of
schedules, by their own way of computing or, least of all schedules, for every way; and with searches of small graphs,
where it is compared with the optimum, or with what an interrupted search has proved. `tests/test_evidence.py` draws
the cases from a seed, {DRAWS} for each schedule, with rectangles, masks and M near nd among them. If a theorem has
fewer than {ENOUGH} comparisons then, more are drawn from sizes at which it is strong (`pebblesim.claims.strongholds`).
Each comparison is of one drawn case, and of one schedule or of all together; "sizes" are the different ones among them,
whatever M and the mask are. No comparison is below a bound. "Ends" are searches that were interrupted after {STATES:,}
states and had proved as many words as the bound; "open" those that had not. The least ratio is that of
I/O to the bound. It is one at the sizes that are drawn: with more queries and keys to a column bounds may be closer.
So D6 is within 1.01 of a schedule at n = 512d (section 6), where n ≤ 181d is drawn.

| theorem | problems | counts | sizes | rectangles | masks | M near nd | least ratio | optima (met) | ends | open |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def run() -> list[Record]:
    """Compare all theorems with counts and optima; some four minutes on one core."""
    return _records(Comparison(ENOUGH, DRAWS, TRIES).run(), searched(STATES))


@cache
def recorded() -> Mapping[str, Record]:
    """Return the recorded run, by theorem."""
    rows = json.loads(files("pebblesim.claims").joinpath(FILE).read_text(encoding="utf-8"))
    return {row["theorem"]: Record(**row) for row in rows}


def as_json(records: Sequence[Record]) -> str:
    """Return the text of the file for a run."""
    return "[\n" + ",\n".join(json.dumps(asdict(record), ensure_ascii=False) for record in records) + "\n]\n"


def section(records: Sequence[Record]) -> str:
    """Return the last section of docs/lower-bounds.md for a run."""
    return _HEAD + "\n".join(record.row() for record in records) + "\n\n" + "\n".join(_remarks(records))


def _theorems() -> list[str]:
    """The names of all theorems, in the order of the problems."""
    names: dict[str, None] = {}
    for solves in PROBLEMS.values():
        bounds = lower_bounds(solves, sizes_of_theorems(solves), 16)[1:]
        names |= dict.fromkeys(bound.name for bound in bounds if bound.name != "compulsory")
    return list(names)


def _records(bites: dict[str, Bites], graphs: dict[str, Searched]) -> list[Record]:
    return [_record(name, bites.get(name, Bites()), graphs.get(name, Searched())) for name in _theorems()]


def _record(name: str, bites: Bites, graphs: Searched) -> Record:
    return Record(
        name,
        sorted(bites.number),
        bites.number.total(),
        len(bites.sizes),
        bites.shapes["rectangle"],
        bites.shapes["mask"],
        bites.shapes["M about nd"],
        f"{float(bites.closest):.3f}" if bites.closest else "",
        graphs.optima,
        graphs.met,
        graphs.ends,
        graphs.open,
    )


def _remarks(records: Sequence[Record]) -> Iterator[str]:
    """Say which theorems few counts, and which no search, put to the test, and what stands in for it."""
    few = [record.theorem for record in records if record.counts < ENOUGH]
    if few:
        rare = f"Fewer than {ENOUGH} counts, as sizes where they are the largest are rare among the draws:"
        yield f"{rare} {', '.join(few)}.\n"
    missed = [record.theorem for record in records if not record.optima + record.ends]
    cut = [name for name in missed if name not in WORDS_AT_ONCE]
    at_once = [name for name in missed if name in WORDS_AT_ONCE]
    yield (
        f"No search of a graph reaches {', '.join(cut)}.\nInstead, `test_segments.py` of `tests/bounds` applies\n"
        "sections 1 and 2 to random and optimal games and compares the families and products of every segment with\n"
        "the claims, and `test_proved_capacities.py` certifies each capacity. Word-level games in which pairs\n"
        "differ in their order move less than twice C2m and E1m (`test_games_of_mixed_orders.py`). The steps of\n"
        "E8 are tried on games in `test_further_episodes.py`, those of D7 in `test_parts_of_sums.py`.\n"
    )
    if at_once:
        yield (
            f"Nor does any reach {', '.join(at_once)}, as n must be many times d. In their place, the lemmas are\n"
            "tried on games: that of (6) in `test_cases_of_two_times.py`, that of C4 and C5 in\n"
            "`test_words_at_two_times.py`, that of E7 in `test_any_order.py`, that of D5 there and in\n"
            "`test_closed_lines.py`, the steps of (7), for D6, in `test_cases_of_several_times.py`, and those of\n"
            "(10), for E9, in `test_outputs_at_several_times.py`.\n"
        )
