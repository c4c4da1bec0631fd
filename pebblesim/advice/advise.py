"""Find the kernels for a card, the schedule and blocks with the least I/O, and the time that the roofline allows.

Our kernels on tensor cores have tiles that these take. Beside them stand the tiles of the paper's model, of any
size, at two boundaries, each with the one-cache game: a thread block on a multiprocessor, where M is the words of its
shared memory, and the whole card, where M is the words of the last cache before the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pebblesim.advice import cards
from pebblesim.advice.cards import Card
from pebblesim.advice.kernels import NAMED, kernels
from pebblesim.advice.result import Advice, Boundary
from pebblesim.advice.tiles import TILINGS
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.sizes import check_rule, dtype_of
from pebblesim.counting.arguments import AnyMask
from pebblesim.counting.best import best_of
from pebblesim.counting.compare import compare, runs_of
from pebblesim.counting.count import Counted, count
from pebblesim.counting.heads import Heads
from pebblesim.counting.useful import useful_operations
from pebblesim.language import masks
from pebblesim.language.masks import Mask
from pebblesim.language.problems import problem
from pebblesim.language.registry import Schedule, some_of_problem

NEAR = 1.5
"""The best blocks are searched for schedules whose largest blocks move at most this multiple of the fewest words."""


def _binary(size: int) -> str:
    for unit, each in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= each:
            return f"{size / each:.4g} {unit}"
    return f"{size} bytes"


SEARCHED = 3
"""Schedules for which better blocks are searched at most, at each boundary: a search takes up to a second."""


def advise(
    gpu: str | Card | None = None,
    *,
    dtype: str | None = None,
    problem_name: str = "forward",
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    mask: AnyMask | None = None,
    card: str | Path | None = None,
    blocks: Mapping[str, int] | None = None,
    workspace: int | None = None,
    **dims: int,
) -> Advice:
    """Find the schedule and blocks with the least I/O on a card, and the time that the roofline allows.

    Args:
        gpu: the name of a known card, such as "H200", or a `Card`.
        dtype: data type of a word, such as "bf16"; in the paper's model sums have the same type. If None, bfloat16 for
            problems with kernels on tensor cores (forward, backward-qkv), else float32.
        problem_name: the problem.
        heads, batch: numbers of heads and sequences; the traffic is counted for one, and the times are for all.
        kv_heads: number of KV heads, if heads share them; heads that share them are counted as one with
            all their queries.
        separate: count each head separately instead.
        mask: as for `count`.
        card: a TOML file that describes another card, instead of `gpu`.
        blocks: sizes of the user's tile, such as {"B_r": 128, "B_c": 128}. It is judged at the multiprocessors for
            every schedule with these blocks; missing blocks get the largest size that fits.
        workspace: bytes that the tables of kernels may take; forecasts are then for fewer heads at once, or for tables
            of fewer rows.
        dims: the dimensions of the problem.

    Returns:
        The I/O of each schedule at the boundaries of the card, the roofline, and kernels with their forecasts.

    >>> advise("A100", problem_name="backward", n=4096, d=128).boundaries[0].best.schedule
    'row-stationary-absorbed'

    Raises:
        Infeasible: no schedule fits into the shared memory of a block.
        UsageError: a name, size or file is not allowed.
    """
    if (gpu is None) == (card is None):
        raise UsageError("give either a known card with --gpu, such as --gpu H200, or a file with --card.")
    chosen = cards.from_file(Path(card)) if card is not None else gpu if isinstance(gpu, Card) else cards.card(str(gpu))
    check_rule(blocks or {})
    for block in blocks or ():
        if meant := [name for name, called in NAMED.items() if called == block]:
            named = " or ".join(f"{name}={(blocks or {})[block]}" for name in meant)
            raise UsageError(f"{block} is a kernel's name; a tile is given by the schedule's blocks, such as {named}.")
    solves, pattern = problem(problem_name), masks.of(mask)
    dtype = dtype_of(dtype or ("bfloat16" if solves.name in TILINGS else "float32"))
    counted = Heads(heads, kv_heads, batch, separate)
    sizes, (pattern,), _ = counted.cases(solves, dims, pattern)
    last = chosen.last_cache
    boundary = partial(_boundary, chosen, dtype, solves.name, sizes, pattern)
    boundaries = (
        boundary("SM", "shared memory of a block", "shared_per_block", "l2_bandwidth", blocks),
        boundary("HBM", last.upper(), last, "memory_bandwidth"),
    )
    useful = useful_operations(solves.name, sizes, pattern)
    shared = counted.heads_per_problem
    advice = Advice(
        card=chosen,
        problem=solves.name,
        dims=sizes,
        dtype=dtype,
        heads=heads,
        kv_heads=kv_heads,
        batch=batch,
        mask=pattern,
        asked=dims,
        useful=useful,
        heads_per_problem=shared,
        boundaries=boundaries,
    )
    ranked, own = kernels(solves.name, sizes, chosen, dtype, advice.times, pattern, blocks, workspace, shared)
    return replace(advice, kernels=ranked, own_kernels=own)


def _boundary(
    card: Card,
    dtype: str,
    problem_name: str,
    sizes: Mapping[str, int],
    mask: Mask | None,
    name: str,
    cache: str,
    figure: str,
    bandwidth: str,
    blocks: Mapping[str, int] | None = None,
) -> Boundary:
    M = cards.words(card, figure, dtype)
    arguments: dict[str, Any] = {**sizes, "M": M, "mask": mask}
    rows, too_large = [], {}
    for algorithm in some_of_problem(problem_name, sizes, mask is not None):
        try:
            rows.append(_largest(algorithm, arguments))
        except Infeasible as error:
            too_large[algorithm.name] = error.least_M
    if not rows:
        least = min(too_large.values())
        raise Infeasible(f"no schedule of {problem_name} fits into {M:,} words ({cache}); one needs {least:,}.", least)
    # Better blocks change little, so they are searched only for schedules that may win, and for the one that does
    # without a mask: to find the one that does under it takes seconds.
    rows.sort(key=lambda row: row.io)
    searched = [
        count(row.schedule, blocks="best", **arguments) for row in rows[:SEARCHED] if row.io <= NEAR * rows[0].io
    ]
    unmasked = arguments | {"mask": None}
    runs = runs_of(problem_name, schedules=[row.schedule for row in rows], blocks="best", **unmasked)
    best = best_of(runs, searched[0].schedule)
    if best is not None:
        searched.append(best if mask is None else count(best.schedule, blocks="best", **arguments))
    rows = sorted({row.schedule: row for row in (*rows, *searched)}.values(), key=lambda row: row.io)
    own = tuple(compare(problem_name, blocks=blocks, **arguments)) if blocks else ()
    said = f"{cache}, {_binary(card.size(figure))}"
    return Boundary(name, said, M, tuple(rows), too_large, card.rate(bandwidth), own)


def _largest(algorithm: Schedule, arguments: dict[str, Any]) -> Counted:
    """Count with the largest blocks that fit; with tiles without an allowed pair, a smaller block could move less."""
    chosen = count(algorithm, **arguments | {"mask": None})
    return chosen if arguments["mask"] is None else count(algorithm, **arguments | {"blocks": chosen.blocks})
