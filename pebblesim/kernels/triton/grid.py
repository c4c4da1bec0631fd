"""The grid of a Triton kernel: which tiles each of its programs has, and which leave at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.kernels.bands import launched_across
from pebblesim.kernels.key_ranges import KeyRanges, seen_by_rows
from pebblesim.kernels.statements import Leave, Let, Statement, When
from pebblesim.kernels.terms import Name, Not, Number, Term, call, minimum, term
from pebblesim.kernels.triton.loops import bounds
from pebblesim.kernels.triton.ranges import GROUP, Scope
from pebblesim.language import program as ir
from pebblesim.language.masks import Band
from pebblesim.launches.launches import Launch


def programs(scope: Scope) -> list[Term]:
    """How many programs a kernel is launched with for each head: factors, one for each loop of its grid."""
    return [_launched(scope, loop) for loop in scope.launch.grid]


def grid(scope: Scope) -> list[Statement]:
    """Find the tiles of a program, and leave where it has no work."""
    loops, made = scope.launch.grid, list[Statement]()
    if len(loops) > 2:
        raise UsageError(f"{scope.program.name}: more than two loops of independent tiles in one launch.")
    names = [scope.names.new(loop.range.name) for loop in loops]
    counts, own = [_launched(scope, loop) for loop in loops], call("program_id", 0)
    if len(loops) == 1:
        made.append(Let((names[0],), (own,)))
    elif loops:
        tall, wide = counts
        even = isinstance(tall, Number) and tall.value % GROUP == 0
        height = Number(GROUP) if even else minimum(term("tall") - term("group") * GROUP, GROUP)
        made.append(Let(("tall", "wide"), (tall, wide)))
        made += in_groups(names, own, Number(GROUP) * "wide", GROUP, height)
    for loop, name in zip(loops, names, strict=True):
        number = Name(name)
        if longest_last(scope.launch, loop, scope.mask):
            made.append(Let((name,), (scope.count(loop.range) - 1 - number,), "the longest first"))
        if launched_across(loop, scope.mask, scope.sizes) is not None:
            made.append(Let((name,), (bounds(scope, loop)[0],), more=True))
        made += scope.enter(loop, number)
        scope.numbers[loop.range] = number
    for loop in loops:
        if loop.when is not None and scope.mask is not None:
            made += _guard(scope, loop)
    return made


def in_groups(names: Iterable[str], own: Term, many: Term, size: Any, height: Term, note: str = "") -> Iterator[Let]:
    """Find the row and the column that a number stands for: `size` rows together, column by column.

    `many`: numbers of a group; `height`: rows of one, the last of which may have fewer; a note says why it has a name.
    """
    group, rank = term("group"), term("rank")
    yield Let(("group", "rank"), (own // many, own % many))
    if note:
        yield Let(("side",), (height,), note)
        height = Name("side")
    yield Let(tuple(names), (group * size + rank % height, rank // height))


def _launched(scope: Scope, loop: ir.Loop) -> Term:
    """The number of tiles of a loop of the grid that are launched."""
    count, across = scope.count(loop.range), launched_across(loop, scope.mask, scope.sizes)
    return count if across is None else minimum(count, across)


def _guard(scope: Scope, loop: ir.Loop) -> list[Statement]:
    """Leave where the mask says so: where a tile has no allowed pair, or, if `when.none`, where it has one."""
    when = loop.when
    assert when is not None
    (top, bottom), (left, right) = scope.positions(when.rows), scope.ends(when.columns)
    out: list[Term] = []
    if launched_across(loop, scope.mask, scope.sizes) is not None:
        out.append(left >= scope.setting.size(when.columns.dim))
    if scope.after is not None:
        out.append(left - bottom >= scope.after)
    if scope.before is not None:
        out.append(top - right >= scope.before)
    if isinstance(scope.mask, KeyRanges) and not scope.past and None not in (when.rows.parent, when.columns.parent):
        first, end = seen_by_rows(top, bottom, False)
        out += [left >= end, right <= first]
    if out:
        met = reduce(or_, out)
        return [When(Not(met) if when.none else met, (Leave(),))]
    return [Leave()] if when.none else []


def longest_last(launch: Launch, loop: ir.Loop, mask: Band | None) -> bool:
    """Whether the later tiles of rows in a grid meet more columns than the earlier ones, and so take longer."""
    return (
        mask is not None
        and (mask.after is not None or isinstance(mask, KeyRanges))
        and any(
            isinstance(node, ir.Loop) and node.when is not None and node.when.rows is loop.range
            for node in ir.walk(launch.block)
        )
    )
