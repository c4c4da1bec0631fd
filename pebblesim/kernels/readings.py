"""Readings of a kernel's program before it runs: loops that it begins, its tests of pairs, its shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pebblesim.kernels.statements import Body, For, KernelProgram, Statement, When, terms_of, within
from pebblesim.kernels.terms import Along, Binary, Term, walk

COMPARISONS = frozenset({"<", "<=", ">", ">="})


@dataclass(frozen=True)
class Iteration:
    """The work of an iteration of a loop, or of a block outside of its loops.

    Attributes:
        begins: innermost loops that it begins. What one reads is under way only after a while.
        tests: comparisons for the edges of a mask, of each pair of a tile that is tested.
        apart: whether other tiles are not tested: those that no edge cuts.
    """

    begins: int
    tests: int
    apart: bool


@dataclass(frozen=True)
class Reading:
    """A kernel as its program has it.

    Attributes:
        iterations: the work of an iteration of each loop of the schedule, by the loop's line; 0 is for the block.
        shared: bytes of shared memory of a block; 0 where the compiler decides.
    """

    iterations: Mapping[int, Iteration]
    shared: int


def read(program: KernelProgram) -> Reading:
    """Read a program. A loop may be written as several, for whole tiles and for those at an edge."""
    written: dict[int, list[Body]] = {0: [program.rows]}
    for each in within(program.rows):
        if isinstance(each, For) and each.of is not None:
            written.setdefault(each.of.line, []).append(each.body)
    return Reading({line: _iteration(bodies) for line, bodies in written.items()}, program.shared)


def _iteration(bodies: list[Body]) -> Iteration:
    tests = [({*_tests(body)}, {*_tests(body, guarded=True)}) for body in bodies]
    most = max(len(always | guarded) for always, guarded in tests)
    return Iteration(max(map(_begun, bodies)), most, any(len(always) < most for always, _ in tests))


def _begun(body: Body) -> int:
    """Innermost loops of a body; of two bodies for a condition, those of one."""
    return sum(
        max(_begun(each.body), _begun(each.otherwise))
        if isinstance(each, When)
        else (not any(map(_is_loop, within(each.body))) if _is_loop(each) else _begun(each.body))
        for each in body
        if isinstance(each, When | For)
    )


def _is_loop(each: Statement) -> bool:
    """Whether it is a loop of the schedule; others are over tiles of a block, over parts of a tile, or unrolled."""
    return isinstance(each, For) and each.of is not None


def _tests(body: Iterable[Statement], guarded: bool = False, here: bool = False) -> Iterator[Term]:
    """Yield the comparisons of rows with columns, not of loops within; `guarded`: those behind a condition."""
    for each in body:
        if isinstance(each, When):
            yield from _tests((*each.body, *each.otherwise), guarded, True)
        elif isinstance(each, For):
            yield from () if _is_loop(each) else _tests(each.body, guarded, here)
        elif here is guarded:
            yield from filter(_compares_axes, terms_of(each))


def _compares_axes(made: Term) -> bool:
    return (
        isinstance(made, Binary)
        and made.op in COMPARISONS
        and all(any(isinstance(part, Along) for part in walk(side)) for side in (made.left, made.right))
    )
