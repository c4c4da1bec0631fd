"""Find the kernels for a card, the schedule and blocks with the least I/O, and the time that the roofline allows.

Our kernels on tensor cores have tiles that these take. Beside them stand the tiles of the paper's model, of any
size, at two boundaries, each with the one-cache game: a thread block on a multiprocessor, where M is the words of its
shared memory, and the whole card, where M is the words of the last cache before the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pebblesim.advice import cards
from pebblesim.advice.cards import Card
from pebblesim.advice.kernels import NAMED, kernels
from pebblesim.advice.result import Advice
from pebblesim.advice.tiles import TILINGS
from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.sizes import check_rule, dtype_of
from pebblesim.counting.arguments import AnyMask
from pebblesim.counting.heads import Heads
from pebblesim.counting.useful import useful_operations
from pebblesim.language import masks
from pebblesim.language.problems import problem


@checked_kinds("workspace")
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
    shared = counted.heads_per_problem
    times = heads // shared * batch
    ranked, own = kernels(solves.name, sizes, chosen, dtype, times, pattern, blocks, workspace, shared)
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
        useful=useful_operations(solves.name, sizes, pattern),
        heads_per_problem=shared,
        kernels=ranked,
        own_kernels=own,
        blocks=blocks or {},
    )
    if blocks or not ranked:
        _ = advice.boundaries  # a block that no schedule has, or a cache that no schedule fits into, is refused here
    return advice
