"""`gluon`: a program as Gluon kernels for Hopper: one warp loads by the copy engine, warpgroups hold the sums.

A launch with products is one grid of tiles of rows, and one loop that streams tiles past them. What is read outside of
the loop stays in shared memory, what is read inside is a ring there, and each of one to three warpgroups holds the sums
of 64 rows (`plan`). Other launches are as in the Triton reading, and so are vectors, scales, exponents to base 2,
and the sizes that a text is for. Beyond the rows of a head the copy engine gives zeros, so no word of another head is
read, and none that is not in the count; rows of d words are for d a multiple of 8.

It is for no mask and for bands: causal ones and windows. Kernels whose loop goes through all tiles without a table also
read ranges of keys: a block streams the tiles that the ranges of its own rows meet, one at least.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from pebblesim.core.errors import UsageError
from pebblesim.kernels.domains import GLUON, OF_GLUON, Call
from pebblesim.kernels.gluon.block import Block, loops_of
from pebblesim.kernels.gluon.columns import ColumnsRoles
from pebblesim.kernels.gluon.columns_plan import check_columns, columns_of
from pebblesim.kernels.gluon.consumer import Consumer
from pebblesim.kernels.gluon.gradients import GradientsRoles
from pebblesim.kernels.gluon.gradients_plan import gradients_of
from pebblesim.kernels.gluon.parts_plan import product_of, scores_of
from pebblesim.kernels.gluon.plan import check_shared, multiplies, refused, rows_of
from pebblesim.kernels.gluon.product import ProductRoles
from pebblesim.kernels.gluon.roles import Roles
from pebblesim.kernels.gluon.scores import ScoresRoles
from pebblesim.kernels.gluon.sequences import SequencesRoles
from pebblesim.kernels.gluon.sequences_plan import sequences_of
from pebblesim.kernels.gluon.shares import SharesRoles, columns_of_tile
from pebblesim.kernels.gluon.text import HELPERS, common
from pebblesim.kernels.gluon.widths import divided
from pebblesim.kernels.gluon.writer import GluonWriter
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.passes.bias import has_bias, is_bias
from pebblesim.kernels.passes.fills import copied, filled_before
from pebblesim.kernels.passes.in_parts import part_of, sums_between
from pebblesim.kernels.passes.sequences_past import is_past, of_one
from pebblesim.kernels.products import products
from pebblesim.kernels.strides import WORDS as GROUP
from pebblesim.kernels.tables import GROUP_OF_WORDS, Tables, tables
from pebblesim.kernels.triton.kernel import Writer
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.kernels.triton.triton import Source, Writes, check, for_no_pair, module, most_words, setting_of
from pebblesim.language import program as ir
from pebblesim.language.masks import Band, Mask
from pebblesim.launches.launches import Launch, launches

OF_TABLES, OTHERS = (8, 4), (8, 3)
"""Warps and stages of Triton kernels in the same file: of products with a table of pairs, and without products."""

OTHERWISE = "take --target triton"

OF_KEYS = ("dK", "dV")
"""Results that are sums over the queries."""


def gluon(
    program: ir.Program,
    sizes: ir.Sizes,
    dtype: str = "bfloat16",
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    stages: int = 2,
    persistent: bool = False,
    shared: int = 0,
    dense: bool = False,
    softcap: float = 0.0,
    sums: bool = False,
    streams: int = 3,
    apart: bool = False,
    in_shares: bool = False,
) -> Source:
    """Write the Gluon source of a program, for cards with compute capability 9.0.

    Args:
        program: a traced schedule.
        sizes: dimensions and blocks by name. If the tiles divide the numbers of queries and keys, the source is for all
            numbers that they divide, else for all numbers.
        dtype: type of a word of a matrix, "bfloat16" or "float16".
        mask: None, or a band, for a program traced under a mask.
        scale: factor of the scores, which the schedules omit: each product with Q or K is multiplied by it.
        stages: slots of a ring.
        persistent: as many blocks as multiprocessors, each with several tiles of the grid.
        shared, dense: as for `triton`; so many heads of queries are a power of two of at most 64.
        sums: as for `triton`.
        softcap: as for `triton`.
        streams: of a program of `kernels.sequences_past`, whose sizes are then those of one length in tiles, the
            sequences that a block has at a time.
        apart: the gradients of keys are parts of sums, and `results` has them in float32.
        in_shares: these sums have shares of the terms, as in `kernels.gluon.shares`, where their kernels can.

    Raises:
        UsageError: the program, or these sizes, are none that this reading writes.
        UnknownName: the data type is unknown.
    """
    check(program, dtype, shared, softcap)
    _check_domain(program, sizes, dtype, mask, 1.0 if scale is None else scale, shared)
    if isinstance(mask, KeyRanges) and has_bias(program):
        raise refused(program, "Gluon kernels take no bias beside ranges of keys", OTHERWISE)
    if stages < 2:
        raise refused(program, "a ring of one stage would be waited for by itself", "take --stages 2 or more")
    program = part_of(program)
    onto = sums_between(program)
    if shared:
        program = copied(program, sizes, GROUP_OF_WORDS)
    streams = streams if is_past(program) else 0
    program = of_one(program) if streams else program
    made = _launches(program, onto)
    _check_pairs(program, made, sizes, mask)
    band, apart_in_memory = mask if isinstance(mask, Band) else None, (shared, dense)
    setting = setting_of(program, made, sizes, dtype, band, scale, False, apart_in_memory, softcap, onto)
    setting = replace(setting, sums=sums, apart=apart)

    def written(setting: Setting, launch: Launch, name: str) -> Writes:
        if in_shares:
            setting = replace(setting, sizes=_whole_tiles(launch, setting.sizes))
        found = _planned(program, launch, setting.sizes, stages, persistent, setting.tables, streams)
        if found is None:
            return Writer(setting, launch, name)
        block, roles = found
        if apart and roles is ProductRoles and any(each.tensor.name in OF_KEYS for each in block.writes):
            block = replace(block, outgoing=())  # the copy engine would need twice the room for words of 32 bits
            roles = SharesRoles if in_shares and SharesRoles.suits(block) else roles
        if roles is ColumnsRoles:
            check_columns(program, block, persistent)
        made = GluonWriter(setting, name, block, roles)
        check_shared(program, launch, made.program.shared, stages)
        return made

    if not any(multiplies(launch) and not _is_of_table(launch) for launch in made if launch.kind != "fill"):
        raise refused(program, "it has no single loop within a grid of one dimension")
    of_tables = {launch.name: OF_TABLES for launch in made if launch.kind != "fill" and _is_of_table(launch)}
    return module(setting, made, written, of_tables, OTHERS, HELPERS["imports"], partial(_common, setting))


def _whole_tiles(launch: Launch, sizes: ir.Sizes) -> ir.Sizes:
    """Sizes with which the columns of a gradient of keys are whole tiles, if there are such."""
    written = {node.tensor.name for node in ir.walk(launch.block) if isinstance(node, ir.Write)}
    if len(launch.grid) < 2 or written.isdisjoint(OF_KEYS):
        return sizes
    columns = launch.grid[1].range
    return {**sizes, str(columns.block): columns_of_tile(sizes[columns.dim], ir.length(columns.block, sizes))}


def _check_pairs(program: ir.Program, made: list[Launch], sizes: ir.Sizes, mask: Mask | None) -> None:
    """Check that each tile of a grid has an allowed pair: a block would wait for the first of them.

    Raises:
        UsageError: one has none.
    """
    for rng in (launch.grid[0].range for launch in made if multiplies(launch) and len(launch.grid) == 1):
        if mask is not None and rng.pairs is not None and rng.dim in rng.pairs:
            block, axis = ir.length(rng.block, sizes), rng.pairs.index(rng.dim)
            if mask.empty(program.grid(sizes), block, axis).any():
                why = f"mask {mask} leaves a tile of {block} {('queries', 'keys')[axis]} without a pair"
                raise refused(program, why, f"leave these out, or {OTHERWISE}")


def _check_domain(
    program: ir.Program, sizes: ir.Sizes, dtype: str, mask: Mask | None, scale: float, shared: int
) -> None:
    """Check that what is asked is in the domain of these kernels, with any tiles.

    Raises:
        UsageError: it is not.
    """
    dims, grid = {dim: sizes[dim] for dim in program.dims}, None if mask is None else program.grid(sizes)
    words = 0 if shared else most_words(program, sizes)
    call = Call(dims, mask, grid, dtype, max(shared, 1), scale=scale, words=words)
    domain = replace(OF_GLUON.get(program.name, GLUON), least=GROUP)  # widths are filled up to tiles
    if (refusal := domain.refusal(call, sizes)) is not None:
        raise UsageError(f"{program.name} as Gluon kernels: {refusal.why}; {refusal.advice or OTHERWISE}.")


def plans(program: ir.Program, sizes: ir.Sizes, *, stages: int = 2, persistent: bool = False) -> dict[str, Block]:
    """Return the plans of the Gluon kernels, by the name of the launch."""
    program = part_of(program)
    made = _launches(program)
    kept = tables(program, made, sizes)
    found = ((each.name, _planned(program, each, sizes, stages, persistent, kept)) for each in made)
    return {name: planned[0] for name, planned in found if planned is not None}


def _launches(program: ir.Program, onto: Collection[ir.Tensor] = ()) -> list[Launch]:
    """The launches of a program, with loops that only add to sums in memory as grids, but for those without a pair.

    `onto`: sums that `run` may be given.
    """
    made = launches(program, masked=True, repeated=True, adding=True)
    return filled_before([launch for launch in made if not for_no_pair(launch)], onto)


def _planned(
    program: ir.Program,
    launch: Launch,
    sizes: ir.Sizes,
    stages: int,
    persistent: bool,
    kept: Tables,
    streams: int = 0,
) -> tuple[Block, type[Roles]] | None:
    """The plan of a launch's Gluon kernel, and the maker of its statements; None if it is written as for Triton.

    A launch belongs to the first family whose plan is for it.
    """
    if not multiplies(launch):
        return None
    if streams:
        return sequences_of(program, launch, sizes, stages, streams), SequencesRoles
    loops = loops_of(launch)
    if _is_of_table(launch):
        loops = loops_of(divided(launch, sizes))
        product = None if loops is None else product_of(loops, sizes, kept.tiled)
        return None if product is None else (product, ProductRoles)
    found: tuple[Block, type[Roles]]
    if loops is not None and (scores := scores_of(loops, sizes, stages)):
        found = scores, ScoresRoles
    elif gradients := gradients_of(launch, sizes, stages):
        return gradients, GradientsRoles
    elif columns := columns_of(launch, sizes, stages):
        found = columns, ColumnsRoles
    else:
        loops = loops_of(launch := divided(launch, sizes))
        return rows_of(program, launch, loops, sizes, stages, persistent), Consumer
    if any(map(is_bias, ir.walk(launch.block))):
        raise refused(program, f"{launch.name} takes no bias", OTHERWISE)
    return found


def _is_of_table(launch: Launch) -> bool:
    """Whether a launch multiplies a table of pairs that it reads, in a grid of two dimensions."""
    nodes = list(ir.walk(launch.block))
    read = {node.tile for node in nodes if isinstance(node, ir.Read) and ir.over_pairs(node.tile.ranges)}
    return len(launch.grid) == 2 and any(ref.tile in read for each in products(nodes) for ref in ir.refs(each.expr))


def _common(setting: Setting, writers: list[Writes]) -> str:
    kernels = [each for each in writers if isinstance(each, GluonWriter)]
    layouts, helpers = ({name for each in kernels for name in getattr(each, what)} for what in ("layouts", "helpers"))
    widths = {each.width for each in layouts if not each.together}
    stored = {each for each in layouts if each.together}
    stays = (each.plan.stays for each in kernels)
    kept = {(each.side, each.wide) for each in stays if each is not None}
    return common(setting.dtype, bool(setting.strides.of), widths, stored, helpers, kept)
