"""Block sizes: as printed in the paper, the largest that fit, or the best."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import isqrt, prod

from pebblesim.errors import Infeasible, UnknownName, UsageError
from pebblesim.language import program as ir
from pebblesim.language.registry import Schedule
from pebblesim.readings.count import io, peak_words
from pebblesim.readings.peak import peak_red
from pebblesim.sizes import evaluate_rule, whole

RULES = ("fit", "paper", "best")

MOST_CHOICES = 20_000
"""Most block sizes that `best` tries."""

Blocks = dict[str, int]


def choose(
    schedule: Schedule,
    dims: Mapping[str, int],
    M: int,
    rule: str | Mapping[str, int] = "fit",
    summation: str = "chain",
) -> Blocks:
    """The block sizes of a schedule.

    Args:
        schedule: whose blocks.
        dims: the sizes of the dimensions.
        M: red pebbles, in words.
        rule: "paper" (as printed, whether they fit or not), "fit" (each in the schedule's order as large as is
            feasible), "best" (feasible, with the least I/O), or sizes by name; blocks without a size follow "fit".
        summation: shape of the summation trees, which decides what is feasible. Larger blocks need more pebbles and
            move no more words, so that "fit" and "best" are exact, unless the sums are no chains or a loop runs over
            tiles of tiles; then the blocks found are feasible, but not always the largest or best.

    Raises:
        Infeasible: M is too small for blocks of one index; it carries the M that they need, the least for a chain.
        UsageError, UnknownName: a rule, block or size that there is not.
    """
    if not isinstance(rule, str):
        for name, size in rule.items():
            if name not in schedule.blocks:
                raise UnknownName(f"block of {schedule.name}", name, schedule.blocks)
            whole(name, size)
        fixed = {name: int(size) for name, size in rule.items()}
        if len(fixed) == len(schedule.blocks):
            return fixed
        return _fit(schedule, dims, M, summation, fixed)
    if rule not in RULES:
        raise UnknownName("block rule", rule, RULES)
    if rule == "paper":
        return _printed(schedule, dims, M)
    blocks = _fit(schedule, dims, M, summation, {})
    return _best(schedule.program, dims, M, summation, blocks) if rule == "best" else blocks


def smallest(schedule: Schedule) -> Blocks:
    """Blocks of one index each, which need the least M."""
    return dict.fromkeys(schedule.blocks, 1)


def grow_with_M(schedule: Schedule, names: set[str]) -> bool:
    """Whether "fit" never shrinks these blocks as M grows: none that grows before them competes for the same cache."""
    before: set[str] = set()
    for group in schedule.fit:
        rivals = {name for phase in schedule.program.phases if set(group) & _used(phase) for name in _used(phase)}
        if names & set(group) and rivals & before:
            return False
        before |= set(group)
    return True


def _printed(schedule: Schedule, dims: Mapping[str, int], M: int) -> Blocks:
    if schedule.blocks and not schedule.paper:
        raise UsageError(
            f"the source of {schedule.name} prints no block sizes; use 'fit', 'best', or sizes of your own."
        )

    def sizes(M: int) -> Blocks:
        return {name: evaluate_rule(text, {**dims, "M": M}) for name, text in schedule.paper.items()}

    for name, size in sizes(M).items():
        if size < 1:
            more = range(M + 1, 2**62)
            least_M = more[bisect_left(more, True, key=lambda M: min(sizes(M).values()) >= 1)]
            raise Infeasible(
                f"the printed rule {name} = {schedule.paper[name]} gives {size} for M = {M}; it needs M ≥ {least_M}, "
                "or use 'fit'.",
                least_M,
            )
    return sizes(M)


def _fit(schedule: Schedule, dims: Mapping[str, int], M: int, summation: str, fixed: Blocks) -> Blocks:
    """Let the blocks grow, group after group, from one index each to the largest feasible sizes."""
    program = schedule.program
    sizes: Blocks = smallest(schedule) | fixed
    least_M = peak_red(program, {**dims, **sizes}, summation)
    if least_M > M:
        given = ", ".join(f"{name} = {size}" for name, size in (*dims.items(), *fixed.items()))
        raise Infeasible(
            f"M = {M} words is too small for {schedule.name} at {given}; it needs M ≥ {least_M}"
            + (f" in blocks of one index with summation {summation!r}." if summation != "chain" else "."),
            least_M,
        )
    for group in schedule.fit:
        growing = [name for name in group if name not in fixed]
        caps = {name: _cap(program, dims, name) for name in growing}

        def grown(size: int, sizes: Blocks = sizes, caps: Blocks = caps) -> Blocks:
            return sizes | {name: min(size, cap) for name, cap in caps.items()}

        if growing:
            concerned = _phases(program, set(growing))
            sizes = grown(_largest(concerned, dims, M, summation, grown, max(caps.values())))
    return sizes


def _largest(
    program: ir.Program, dims: Mapping[str, int], M: int, summation: str, grown: Callable[[int], Blocks], cap: int
) -> int:
    """The largest size up to `cap` for which the blocks `grown(size)` are feasible; 1 is.

    Words never fall as a block grows, so they are searched by halving; the pebbles of a game differ from them by
    the few intermediates and by sums that have no term yet, so the last steps are taken one by one.
    """

    def feasible(size: int, summation: str) -> bool:
        return peak_red(program, {**dims, **grown(size)}, summation) <= M

    low, high = 1, cap
    while low < high:
        middle = (low + high + 1) // 2
        fits = peak_words(program, {**dims, **grown(middle)}) <= M
        low, high = (middle, high) if fits else (low, middle - 1)
    while low < cap and feasible(low + 1, "chain"):
        low += 1
    while low > 1 and not feasible(low, summation):  # no tree needs fewer pebbles than a chain
        low -= 1
    return low


def _cap(program: ir.Program, dims: Mapping[str, int], block: str) -> int:
    """The size from which on a block holds everything it cuts."""
    return max((dims[rng.dim] for rng in _cut_by(program, block)), default=1)


def _phases(program: ir.Program, blocks: set[str]) -> ir.Program:
    """The phases that use any of these blocks: only their peaks depend on them."""
    used = [phase for phase in program.phases if blocks & _used(phase)]
    return replace(program, phases=used or program.phases)


def _used(phase: ir.Phase) -> set[str]:
    """Names of the blocks that a phase uses."""
    loops = (node for node in ir.walk(phase.body) if isinstance(node, ir.Loop))
    return {loop.range.block for loop in loops if isinstance(loop.range.block, str)}


def _cut_by(program: ir.Program, block: str) -> Iterator[ir.Range]:
    for phase in program.phases:
        for node in ir.walk(phase.body):
            if isinstance(node, ir.Loop) and node.range.block == block:
                yield node.range


def _best(program: ir.Program, dims: Mapping[str, int], M: int, summation: str, fit: Blocks) -> Blocks:
    """Search the blocks with the least I/O; of those, the ones that need the fewest pebbles.

    Phases that share no block do not depend on each other: the cache is empty between them. Within a group of phases
    that do, I/O only falls as a block grows, and only where its number of tiles falls: all blocks but one run over
    those steps, and the last takes what is left.
    """
    best = dict(fit)
    for names, part in _independent(program):
        *outer, last = sorted(names, key=list(fit).index)
        cap = _cap(part, dims, last)
        least = _cost(part, dims, summation, best)
        steps = []
        for name in outer:

            def alone(size: int, name: str = name, names: set[str] = names) -> Blocks:
                return dict.fromkeys(names, 1) | {name: size}

            most = _largest(part, dims, M, "chain", alone, _cap(part, dims, name))
            steps.append([size for size in _steps(part, dims, name) if size <= most])
        if prod(map(len, steps)) > MOST_CHOICES:
            raise UsageError(
                f"'best' would have to try {prod(map(len, steps)):,} choices of {', '.join(outer)}; use 'fit', or "
                "sizes of your own."
            )
        for values in product(*steps):
            chosen = best | dict(zip(outer, values, strict=True))
            if io(part, {**dims, **chosen, last: cap}) > least[0]:
                continue  # not even with the last block as large as can be
            if peak_red(part, {**dims, **chosen, last: 1}, summation) > M:
                continue

            def grown(size: int, chosen: Blocks = chosen, last: str = last) -> Blocks:
                return chosen | {last: size}

            size = _largest(part, dims, M, summation, grown, cap)
            cost = _cost(part, dims, summation, chosen | {last: size})
            if cost < least:
                least, best = cost, chosen | {last: size}
    return best


def _cost(program: ir.Program, dims: Mapping[str, int], summation: str, blocks: Blocks) -> tuple[int, int]:
    sizes = {**dims, **blocks}
    return io(program, sizes), peak_red(program, sizes, summation)


def _steps(program: ir.Program, dims: Mapping[str, int], block: str) -> list[int]:
    """The sizes of a block at which some number of tiles falls, largest first."""
    steps: set[int] = set()
    for whole_dim in {dims[rng.dim] for rng in _cut_by(program, block)}:
        root = isqrt(whole_dim)
        steps |= {*range(1, root + 2), *(-(-whole_dim // tiles) for tiles in range(1, root + 2))}
    return sorted(steps, reverse=True)


def _independent(program: ir.Program) -> list[tuple[set[str], ir.Program]]:
    """Groups of blocks, each with the phases that use them and no others."""
    groups: list[tuple[set[str], list[ir.Phase]]] = []
    for phase in program.phases:
        names = _used(phase)
        joined = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        groups.append((names.union(*(g[0] for g in joined)), [p for g in joined for p in g[1]] + [phase]))
    return [(names, replace(program, phases=phases)) for names, phases in groups if names]
