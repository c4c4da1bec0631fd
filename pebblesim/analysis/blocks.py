"""Block sizes: as printed in the paper, the largest that fit, or the best.

Phases that share no block do not depend on each other, because the cache is empty between them: the blocks of each
part of a schedule are chosen separately, with its words and pebbles in closed form (`pebblesim.analysis.words_moved`,
`pebblesim.analysis.cache_needed`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from pebblesim.analysis.block_parts import Blocks, Part
from pebblesim.analysis.block_rules import best, fit
from pebblesim.analysis.block_search import least_of_part, part_moves_at_least
from pebblesim.analysis.cache_needed import CacheNeed
from pebblesim.analysis.peak import CHAINS, peak_red
from pebblesim.analysis.words_moved import Words
from pebblesim.core.bisection import last_that
from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.core.sizes import LARGEST, check_rule, evaluate_rule, whole
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.registry import Schedule

RULES = ("fit", "paper", "best")


def choose(
    schedule: Schedule,
    dims: Mapping[str, int],
    M: int,
    rule: str | Mapping[str, int] = "fit",
    summation: str = "chain",
    mask: Mask | None = None,
) -> Blocks:
    """Choose the block sizes of a schedule.

    Args:
        schedule: the schedule.
        dims: the sizes of the dimensions.
        M: red pebbles, in words.
        rule: "paper" (as printed, whether they fit or not), "fit", "best" (feasible, with the least I/O), or sizes by
            name; blocks without a size follow "fit".
        summation: shape of the summation trees; it affects which blocks are feasible.
        mask: which pairs are allowed; it affects how many words are moved.

    "fit" increases blocks from one index each in the schedule's order; a group of blocks grows when the group before it
    holds everything that it cuts. Among the feasible sizes on this way it takes those that move the fewest words. These
    are the largest, unless smaller tiles let a mask exclude more. The remaining space is given to blocks that do not
    change the words moved. If several groups that do change them share the cache, this order would leave no space for
    all but the first group. Then "fit" is the proved best; or, under a mask or with a first part, the best found on a
    grid of blocks that does not depend on M: on drawn sizes mostly what "best" moves, and seldom a tenth more. A larger
    M never moves more words.

    "best" moves no more than "fit", and no more than any feasible blocks if `MOST_BOXES` are enough to prove this. They
    are enough at small sizes, also under masks and for four blocks, and without a mask for two blocks that share a
    cache of up to a billion words. For larger cases the result is a local optimum.

    Raises:
        Infeasible: M is too small; the error has the M that the `least_feasible` blocks need, the least for a chain.
        UsageError, UnknownName: the rule, block or size does not exist.
    """
    check_rule(rule)
    if not isinstance(rule, str):
        for name, size in rule.items():
            if name not in schedule.blocks:
                raise UnknownName(f"block of {schedule.name}", name, schedule.blocks)
            whole(name, size)
        fixed = {name: int(size) for name, size in rule.items()}
        if len(fixed) == len(schedule.blocks):
            return fixed
        return _fit(schedule, dims, M, summation, mask, fixed)
    if rule not in RULES:
        raise UnknownName("block rule", rule, RULES)
    if rule == "paper":
        return _printed(schedule, dims, M)
    blocks = _fit(schedule, dims, M, summation, mask, {})
    if rule == "best":
        for part in parts(schedule, dims, summation, mask):
            blocks |= best(part, M, blocks)
    return blocks


def smallest(schedule: Schedule) -> Blocks:
    """Return blocks of one index each."""
    return dict.fromkeys(schedule.blocks, 1)


def least_feasible(
    schedule: Schedule, dims: Mapping[str, int], summation: str = "chain", fixed: Mapping[str, int] | None = None
) -> Blocks:
    """Return the blocks that need the least M on chains, and those that are fixed.

    They are blocks of one index each, unless the whole of a short dimension needs less: it has no second tile, and so
    nothing waits for one. On other summation trees they are always blocks of one index.
    """
    blocks = smallest(schedule) | dict(fixed or {})
    for part in parts(schedule, dims, summation, None):
        blocks = min(starts(part, tuple(blocks.items()), frozenset(fixed or {})), key=part.room)
    return blocks


def _printed(schedule: Schedule, dims: Mapping[str, int], M: int) -> Blocks:
    if schedule.blocks and not schedule.paper:
        raise UsageError(
            f"the source of {schedule.name} prints no block sizes; use 'fit', 'best', or sizes of your own."
        )

    given = {**dims, **_in_nd(schedule, dims)}

    def sizes(M: int) -> Blocks:
        return {name: evaluate_rule(text, {**given, "M": M}) for name, text in schedule.paper.items()}

    for name, size in sizes(M).items():
        if size < 1:
            least_M = last_that(lambda M: min(sizes(M).values()) < 1, M, LARGEST) + 1
            raise Infeasible(
                f"the printed rule {name} = {schedule.paper[name]} gives {size} for M = {M}; it needs M ≥ {least_M}, "
                "or use 'fit'.",
                least_M,
            )
    return sizes(M)


def _in_nd(schedule: Schedule, dims: Mapping[str, int]) -> dict[str, int]:
    """The n and d of printed rules, which are for one number of queries and keys, and one width.

    Raises:
        UsageError: a rule has one of them, and the sizes that it stands for differ.
    """
    of, named = schedule.problem.in_dims(dims), set(re.findall(r"\w+", " ".join(schedule.paper.values())))
    meant = of.from_nd
    found: dict[str, int] = {}
    if not of.pairs or of.pairs[0] == of.pairs[1]:
        return found  # no other case than the square one
    for name in sorted(named & set(meant.values())):
        its = {dim: size for dim, size in dims.items() if meant[dim] == name}
        if len(set(its.values())) > 1:
            differ = ", ".join(f"{dim} = {size}" for dim, size in its.items())
            raise UsageError(
                f"the source of {schedule.name} prints block sizes for one {name}, and here {differ}; use 'fit', "
                "'best', or sizes of your own."
            )
        found[name] = next(iter(its.values()))
    return found


def _fit(
    schedule: Schedule, dims: Mapping[str, int], M: int, summation: str, mask: Mask | None, fixed: Blocks
) -> Blocks:
    sizes: Blocks = smallest(schedule) | fixed
    least_M = peak_red(schedule.program, {**dims, **sizes}, summation)
    if least_M > M:
        least_M = peak_red(schedule.program, {**dims, **least_feasible(schedule, dims, summation, fixed)}, summation)
    if least_M > M:
        described = ", ".join(f"{name} = {size}" for name, size in (*dims.items(), *fixed.items()))
        raise Infeasible(
            f"M = {M} words is too small for {schedule.name} at {described}; it needs M ≥ {least_M}"
            + (f" in blocks of one index with summation {summation!r}." if summation not in CHAINS else "."),
            least_M,
        )
    for part in parts(schedule, dims, summation, mask):
        sizes |= _fit_of(part, M, tuple(sizes.items()), frozenset(fixed))
    return sizes


@lru_cache(maxsize=1024)  # the same for every M
def starts(part: Part, sizes: tuple[tuple[str, int], ...], fixed: frozenset[str]) -> tuple[Blocks, ...]:
    """Return the blocks from which those of a part grow: the given ones, and wholes of dimensions that need less."""
    return tuple(part.starts(dict(sizes), fixed))


@lru_cache(maxsize=1024)  # "best" starts from it, and whoever compares asks for both
def _fit_of(part: Part, M: int, sizes: tuple[tuple[str, int], ...], fixed: frozenset[str]) -> Blocks:
    feasible = (start for start in starts(part, sizes, fixed) if part.fits(M, start))
    found = (
        fit(part, M, start, fixed.union(name for name, size in sizes if start[name] != size)) for start in feasible
    )
    return min(found, key=part.words)


def least_words(schedule: Schedule, dims: Mapping[str, int], M: int, summation: str, mask: Mask | None) -> int:
    """Return a lower bound on the words that a schedule moves with any feasible blocks, without a search for them."""
    fixed, used = _without_blocks(schedule.under(mask), tuple(dims.items()), mask)
    return fixed + sum(
        least_of_part(part, M) for part in parts(schedule, dims, summation, mask) if not used.isdisjoint(part.cuts)
    )


def moves_at_least(
    schedule: Schedule, dims: Mapping[str, int], M: int, summation: str, mask: Mask | None, words: int
) -> bool:
    """Return whether it is proved, by a short search, that a schedule moves so many words with any feasible blocks."""
    missing = words - least_words(schedule, dims, M, summation, mask)
    return missing <= 0 or any(
        part_moves_at_least(part, M, least_of_part(part, M) + missing)
        for part in parts(schedule, dims, summation, mask)
    )


@lru_cache(maxsize=64)
def _without_blocks(
    counted: ir.Program, dims: tuple[tuple[str, int], ...], mask: Mask | None
) -> tuple[int, frozenset[str]]:
    """The words of the phases that have no blocks, and the blocks that the others have."""
    phases = [phase for phase in counted.phases if not _used(phase)]
    return Words(phases, dict(dims), mask)({}), frozenset().union(*map(_used, counted.phases))


def parts(schedule: Schedule, dims: Mapping[str, int], summation: str, mask: Mask | None) -> tuple[Part, ...]:
    """The parts of a schedule that have blocks."""
    program = schedule.under(mask)
    return _parts_of(schedule.program, program, schedule.fit, tuple(dims.items()), summation, mask)


@lru_cache(maxsize=64)
def _parts_of(
    program: ir.Program,
    counted: ir.Program,
    fit: tuple[tuple[str, ...], ...],
    dims: tuple[tuple[str, int], ...],
    summation: str,
    mask: Mask | None,
) -> tuple[Part, ...]:
    """The parts of a program that have blocks; `counted` is the program whose words are counted, under the mask.

    The cache needed is that without the mask.
    """
    parts: list[set[str]] = []
    for names in (*map(set, fit), *map(_used, program.phases)):
        joined = names.union(*(part for part in parts if part & names))
        parts = [part for part in parts if not part & names] + [joined]
    made = []
    for names in filter(None, parts):
        groups = tuple(group for group in fit if names & set(group))
        room = CacheNeed(_only(program, names), dict(dims), summation)
        unmasked = Words(room.program.phases, dict(dims), None)
        words = unmasked if mask is None else Words(_only(counted, names).phases, dict(dims), mask)
        cuts = {name: _cut_by(program, name, dict(dims)) for name in names}
        made.append(Part(groups, cuts, words, room, unmasked))
    return tuple(made)


def _only(program: ir.Program, blocks: set[str]) -> ir.Program:
    """The phases that use any of these blocks."""
    used = [phase for phase in program.phases if blocks & _used(phase)]
    return replace(program, phases=used or program.phases)


def _used(phase: ir.Phase) -> set[str]:
    """Names of the blocks that a phase uses."""
    loops = (node for node in ir.walk(phase.body) if isinstance(node, ir.Loop))
    return {size for loop in loops for size in (loop.range.block, loop.range.after) if isinstance(size, str)}


def _cut_by(program: ir.Program, block: str, dims: Mapping[str, int]) -> frozenset[int]:
    """The sizes of the dimensions that a block cuts."""
    loops = (node for phase in program.phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop))
    return frozenset(dims[loop.range.dim] for loop in loops if loop.range.block == block) or frozenset({1})
