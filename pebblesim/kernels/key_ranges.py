"""Masks that a kernel reads: for each query the range of keys that it may attend to.

Ranges do not decrease from query to query. So a tile of queries meets the keys from the first of its first query to the
end of its last one, and all its pairs are allowed from the first of its last query to the end of its first one. It is
alike for a tile of keys, by the queries that see them: key j is seen from the first query whose end is above j to the
first one whose range begins above j.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pebblesim.kernels.statements import Let, Statement
from pebblesim.kernels.terms import Name, Term, call, term
from pebblesim.language import program as ir
from pebblesim.language.masks import Band

FIRST, END, ABOVE, BELOW, SHARING = ARGUMENTS = ("first_ptr", "end_ptr", "above_ptr", "below_ptr", "sharing")
"""Arguments of the kernels: ranges of keys of each query, ranges of queries of each key, and heads of each batch."""


@dataclass(frozen=True)
class KeyRanges(Band):
    """Pairs that are allowed by ranges of keys, which kernels take as arguments; each position has so many `rows`.

    As a band it allows all pairs, since no more is known before the kernels run.
    """

    name: str = "key ranges"
    before: int | None = None
    after: int | None = None
    at_end: bool = field(default=False, kw_only=True)


def reads_ranges(mask: Band | None, nodes: list[ir.Node]) -> bool:
    """Whether a launch needs the ranges: it has tiles of pairs, or loops over those with an allowed pair."""
    return isinstance(mask, KeyRanges) and any(
        (isinstance(node, ir.Loop) and node.when is not None)
        or (isinstance(node, ir.Compute) and ir.over_pairs(node.target.tile.ranges))
        or (isinstance(node, ir.Read | ir.Write) and ir.over_pairs(node.tile.ranges))
        for node in nodes
    )


def opening(queries: Term, keys: Term, rows: int) -> list[Statement]:
    """Statements that move the addresses to a head's batch; `queries` and `keys` are their numbers."""
    moved = [*((name, queries // rows) for name in (FIRST, END)), *((name, keys) for name in (ABOVE, BELOW))]
    return [Let((name,), (term("head") // SHARING * number,), more=True) for name, number in moved]


def vectors(
    index: str,
    exists: Term | None,
    rows: int,
    before: Term | None = None,
    addresses: tuple[str, str] = (FIRST, END),
    times: int = 1,
) -> list[Statement]:
    """Statements that read the ranges of a tile of rows, whose indices have this name; 0 where no row exists.

    `before`: positions of other sequences before those of this one; `addresses`: names of those of what each index
    meets, in so many `times`.
    """
    at = term(index) // rows
    at = at if before is None else before + at
    edge = {} if exists is None else {"mask": exists, "other": 0}
    names = zip(of_tile(index), addresses, strict=True)
    return [Let((name,), (call("load", Name(address) + at, **edge) * times,)) for name, address in names]


def of_tile(index: str) -> tuple[str, str]:
    """The names of the ranges of a tile, whose indices have this name."""
    return f"{index}_first", f"{index}_end"


def predicate(rows: str, columns: str, along_rows: str, along_columns: str) -> list[Term]:
    """The allowed pairs of a tile, by the names of its indices."""
    keys = Name(columns).along(along_columns)
    first, end = (Name(each).along(along_rows) for each in of_tile(rows))
    return [keys >= first, keys < end]


def met(first: str, end: str, start: Term, stop: Term, by_all: bool) -> tuple[Term, Term]:
    """The first of what some, or all, indices from `start` to before `stop` meet, and the one after the last.

    `first`, `end`: names of the addresses of what each index meets.
    """
    low, high = (stop - 1, start) if by_all else (start, stop - 1)
    return call("load", Name(first) + low), call("load", Name(end) + high)


def seen_by_rows(start: Term, stop: Term, by_all: bool) -> tuple[Term, Term]:
    """The first key that some, or all, positions from `start` to before `stop` see, and the one after the last."""
    return met(FIRST, END, start, stop, by_all)


def seeing_columns(left: Term, right: Term, rows: int, by_all: bool) -> tuple[Term, Term]:
    """The first row that sees some, or all, of the keys from `left` to before `right`, and the one after the last."""
    first, end = met(ABOVE, BELOW, left, right, by_all)
    return first * rows, end * rows
