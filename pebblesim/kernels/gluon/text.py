"""Parts of the text of Gluon kernels that all of them have: imports, layouts, barriers, descriptors, roles."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pebblesim.kernels.gluon.block import LOADING_REGISTERS, REGISTERS, ROWS, Block
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.terms import HOST, Layout, Term, text
from pebblesim.kernels.triton.ranges import Setting

STREAMED_TOGETHER = 13 * 2**22
"""Most bytes of what heads stream that are to be in L2 at once: up to 52 MiB no other groups of heads were faster on an
H200, and at 64 MiB two halves were."""


def heads_together(heads: int, streamed: int) -> int:
    """Number of heads whose tiles run beside one another under a mask, the longest first.

    Groups of heads are as even as can be: a last one of few heads would have long tiles at the very end.

    Args:
        heads: all of them.
        streamed: bytes that a head streams.
    """
    return -(-heads // -(-heads // max(STREAMED_TOGETHER // streamed, 1)))


HELPERS: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("helpers.toml").read_text(encoding="utf-8"))
"""Text that kernels share: imports, and functions by their names."""

TOLD = ("vectors_of", "sums_of", "pairs_of", "copies_of", "numbers_of")
"""Functions of `run`, besides `tiles_of`, that tell the copy engine of tensors."""


def common(
    dtype: str, apart: bool, widths: set[int], stored: set[Layout], helpers: set[str], kept: set[tuple[int, bool]]
) -> str:
    """The text of what the kernels of a module share.

    Args:
        dtype: type of a word.
        apart: whether matrices have strides of their own.
        widths, stored: columns of the tiles of products, and layouts of those that threads read or store in rows.
        helpers: names of functions of `HELPERS`, and whether threads store what the copy engine takes.
        kept: columns of the tiles of a bias that stay in shared memory, and whether in float32.
    """
    layouts = [
        f"tile_{width} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16]))"
        for width in sorted(widths)
    ]
    layouts += [
        f"{each.id} = gl.constexpr({_whole_sectors(each)})" for each in sorted(stored, key=lambda each: each.id)
    ]
    layouts += [f"order_{width} = gl.constexpr({_as_accumulators(width, wide)})" for width, wide in sorted(kept)]
    names = ["barriers", "tiles_of_strides" if apart else "tiles_of", *(name for name in TOLD if name in helpers)]
    written = "\n\n".join(HELPERS[name].format(dtype=dtype) for name in names)
    imports = HELPERS["imports_of_sums"] * ("sums_of" in helpers)
    imports += HELPERS["imports_of_fences"] * ("fence_async_shared" in helpers)
    return imports + "\n".join(["", *layouts, "", written])


def _whole_sectors(layout: Layout) -> str:
    """A tile of 64 rows whose threads have columns of a row next to each other: 8 words of 16 bits, or 4 of up to 32.

    A warp has the rows that it has of a product. There its threads have 2 columns, and stores of these would send each
    sector twice.
    """
    columns = [[0, 1 << bit] for bit in range((layout.width - 1).bit_length())]
    own = (layout.together - 1).bit_length()
    others, warps = [*columns[own:5], [1, 0], [2, 0], [4, 0], [8, 0]], [[16, 0], [32, 0]]
    registers, lanes = [*columns[:own], *columns[5:], *others[5:]], others[:5]
    return f"gl.DistributedLinearLayout({registers}, {lanes}, {warps}, [], [{ROWS}, {layout.width}])"


def _as_accumulators(width: int, wide: bool) -> str:
    """The order of a tile of 64 rows in shared memory in which a thread's accumulators of a product are together.

    Threads read 16 bytes at a time: four words if these are `wide`, else eight.
    """
    columns = [[0, 1 << bit] for bit in range((width - 1).bit_length())]
    together, others = ([columns[0], [8, 0]], columns[3:]) if wide else ([columns[0], [8, 0], columns[3]], columns[4:])
    order = [*together, *columns[1:3], [1, 0], [2, 0], [4, 0], *others, [16, 0], [32, 0]]
    return f"gl.SharedLinearLayout({order})"


def with_pairs(setting: Setting, plan: Block) -> list[str]:
    """The lines that refuse a query without a key, and a tile of keys without a query where a block streams queries.

    It would wait for words that nobody loads. Who gives matrices with strides sees to it.
    """
    mask, pairs = setting.mask, setting.program.pairs
    if mask is None or isinstance(mask, KeyRanges) or pairs is None or pairs[0] == pairs[1] or setting.strides.of:
        return []
    queries, keys = map(setting.size, pairs)
    positions = queries // mask.rows if mask.rows > 1 else queries
    beyond_keys, beyond_queries = (mask.after, mask.before) if mask.at_end else (mask.before, mask.after)
    lines = list[str]()
    if beyond_keys is not None:
        lines += _needed("a key for each query", positions > _more(keys, beyond_keys))
    if beyond_queries is not None and plan.own.dim == pairs[1] and len(plan.launch.grid) == 1:
        side = plan.height
        last = keys - side if mask.at_end else (keys - 1) // side * side
        lines += _needed(f"a query for each tile of {side} keys", last >= _more(positions, beyond_queries))
    return lines


def _more(size: Term, number: int) -> Term:
    return size + number if number else size


def _needed(what: str, refused: Term) -> list[str]:
    """The lines of `run` that refuse lengths."""
    return [f"    if {text(refused, HOST)}:", f'        raise ValueError("these kernels need {what}")']


def general(numbers: Iterable[str]) -> str:
    """The line before a kernel that is compiled once for all these numbers."""
    named = ", ".join(f'"{name}"' for name in numbers)
    return f"@gluon.jit(do_not_specialize=[{named}])"


def started(name: str, warpgroups: int, rows: Iterable[str], loads: Iterable[str], each: bool) -> list[str]:
    """The lines that start the roles of a block: warpgroups, and a warp that loads, or one for `each` of these."""
    groups, given = warpgroups - 1, ", ".join(loads)
    loading = [f"{w}, {given}" for w in range(warpgroups)] if each else [given]
    registers = [REGISTERS[warpgroups]] * groups + [LOADING_REGISTERS] * len(loading)
    return [
        "    gl.warp_specialize([",
        *(f"        ({name}_rows, ({w}, {', '.join(rows)}))," for w in range(warpgroups)),
        *(f"        ({name}_loads, ({one}))," for one in loading),
        f"    ], {[4] * groups + [1] * len(loading)}, {registers})",
    ]
