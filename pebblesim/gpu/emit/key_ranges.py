"""Masks that a kernel reads: for each query the range of keys that it may attend to.

Ranges do not decrease from query to query. So a tile of queries meets the keys from the first of its first query to the
end of its last one, and all its pairs are allowed from the first of its last query to the end of its first one. It is
alike for a tile of keys, by the queries that see them: key j is seen from the first query whose end is above j to the
first one whose range begins above j.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    from_start: bool = True


def reads_ranges(mask: Band | None, nodes: list[ir.Node]) -> bool:
    """Whether a launch needs the ranges: it has tiles of pairs, or loops over those with an allowed pair."""
    return isinstance(mask, KeyRanges) and any(
        (isinstance(node, ir.Loop) and node.when is not None)
        or (isinstance(node, ir.Compute) and ir.over_pairs(node.target.tile.ranges))
        or (isinstance(node, ir.Read | ir.Write) and ir.over_pairs(node.tile.ranges))
        for node in nodes
    )


def opening(queries: str, keys: str, rows: int) -> list[str]:
    """Lines that move the addresses to a head's batch; `queries` and `keys` are their numbers, as text."""
    positions = queries if rows == 1 else f"({queries} // {rows})"
    return [
        *(f"{name} += head // {SHARING} * {positions}" for name in (FIRST, END)),
        *(f"{name} += head // {SHARING} * {keys}" for name in (ABOVE, BELOW)),
    ]


def vectors(index: str, exists: str, rows: int) -> list[str]:
    """Lines that read the ranges of a tile of rows, whose indices have this name; none where no row exists."""
    position = index if rows == 1 else f"{index} // {rows}"
    mask = f", mask={exists}, other=0" if exists else ""
    return [f"{index}_{name} = tl.load({name}_ptr + {position}{mask})" for name in ("first", "end")]


def predicate(rows: str, columns: str, along_rows: str, along_columns: str) -> str:
    """The allowed pairs of a tile, by the names of its indices."""
    keys = f"{columns}{along_columns}"
    return f"({keys} >= {rows}_first{along_rows}) & ({keys} < {rows}_end{along_rows})"


def seen_by_rows(start: str, stop: str, by_all: bool) -> tuple[str, str]:
    """The first key that some, or all, positions from `start` to before `stop` see, and the one after the last."""
    first, last = (f"({stop} - 1)", start) if by_all else (start, f"({stop} - 1)")
    return f"tl.load({FIRST} + {first})", f"tl.load({END} + {last})"


def seeing_columns(left: str, right: str, rows: int, by_all: bool) -> tuple[str, str]:
    """The first row that sees some, or all, of the keys from `left` to before `right`, and the one after the last."""
    first, last = (f"({right} - 1)", left) if by_all else (left, f"({right} - 1)")
    several = f" * {rows}" * (rows > 1)
    return f"tl.load({ABOVE} + {first}){several}", f"tl.load({BELOW} + {last}){several}"
