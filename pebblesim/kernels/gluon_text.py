"""Parts of the text of Gluon kernels that all of them have: imports, layouts, barriers, descriptors, roles."""

from __future__ import annotations

from collections.abc import Iterable

from pebblesim.kernels.gluon_block import LOADING_REGISTERS, REGISTERS, ROWS
from pebblesim.kernels.triton_ranges import Setting

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


IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
"""

FENCE = """from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
"""

ADDING = """from triton._C.libtriton import ir
from triton.experimental.gluon.language._core import builtin
"""

COMMON = """
@gluon.jit
def barriers(slots: gl.constexpr, count: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [slots, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(slots):
        mbarrier.init(made.index(slot), count=count)
    return made


"""

CONTIGUOUS = """
def tiles_of(tensor, rows, width):
    \"\"\"For the copy engine: tiles of the heads of a tensor; beyond its rows and columns they are 0.\"\"\"
    layout = gl.NVMMASharedLayout.get_default_for([1, rows, width], gl.{dtype})
    return TensorDescriptor.from_tensor(tensor, [1, rows, width], layout)"""

APART = """
def tiles_of(tensor, rows, width, several=1):
    \"\"\"For the copy engine: tiles of (batch, heads, n, columns); beyond n and the columns they are 0.

    A position has a row of each of `several` heads that share keys.
    \"\"\"
    (batch, heads, n, d), (far, wide, row, one) = tensor.shape, tensor.stride()
    shape, strides, block = [batch, heads, n, d], [far, wide, row, one], [1, 1, rows, width]
    if several > 1:
        shape, strides = [batch, heads // several, n, several, d], [far, wide * several, row, wide, one]
        block = [1, 1, max(rows // several, 1), min(rows, several), width]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.{dtype})
    return TensorDescriptor(tensor, shape, strides, block, layout)"""

HELPERS = {
    "vectors_of": """
def vectors_of(tensor, length, rows):
    layout = gl.NVMMASharedLayout.get_default_for([1, rows], gl.float32)
    return TensorDescriptor(tensor, [tensor.shape[0], length], [tensor.shape[1], 1], [1, rows], layout)""",
    "sums_of": """
@builtin
def tma_add(tiles, at, part, _semantic=None):
    \"\"\"Add a tile in shared memory to memory by the copy engine, for which Gluon has no name yet.\"\"\"
    at = _semantic._convert_to_ir_values(at, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tiles.handle, at, part.handle)


def sums_of(tensor, rows, width):
    layout = gl.NVMMASharedLayout.get_default_for([1, rows, width], gl.float32)
    return TensorDescriptor.from_tensor(tensor, [1, rows, width], layout)""",
    "pairs_of": """
def pairs_of(tensor, rows, width):
    \"\"\"For the copy engine: a table of pairs, tile after tile.\"\"\"
    layout, whole = gl.NVMMASharedLayout.get_default_for([rows, width], gl.{dtype}), tensor.shape[-1]
    return TensorDescriptor(tensor, [tensor.numel() // whole, whole], [whole, 1], [rows, width], layout)""",
}
"""Functions that some kernels use, by name."""


def common(dtype: str, apart: bool, widths: set[int], stored: set[int], helpers: set[str]) -> str:
    """The text of what the kernels of a module share.

    Args:
        dtype: type of a word.
        apart: whether matrices have strides of their own.
        widths, stored: columns of the tiles of products, and of those that threads store to memory.
        helpers: names of `HELPERS`, and whether threads store what the copy engine takes.
    """
    fence = FENCE * ("fence_async_shared" in helpers)
    layouts = [
        f"tile_{width} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16]))"
        for width in sorted(widths)
    ]
    layouts += [f"rows_{width} = gl.constexpr({_whole_sectors(width)})" for width in sorted(stored)]
    functions = [COMMON, APART if apart else CONTIGUOUS, *(text for name, text in HELPERS.items() if name in helpers)]
    written = "\n\n".join(each.format(dtype=dtype) for each in functions)
    return ADDING * ("sums_of" in helpers) + fence + "\n".join(["", *layouts, "", written])


def _whole_sectors(width: int) -> str:
    """The layout of a tile of 64 rows whose threads have 8 columns each: 16 bytes, two of which are a sector.

    A warp has the rows that it has of a product. There its threads have 2 columns, and stores of these would send each
    sector twice.
    """
    columns = [[0, 1 << bit] for bit in range((width - 1).bit_length())]
    registers, lanes, warps = [*columns[:3], *columns[5:]], [*columns[3:5], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]]
    (lanes if len(lanes) < 5 else registers).append([8, 0])
    return f"gl.DistributedLinearLayout({registers}, {lanes}, {warps}, [], [{ROWS}, {width}])"


def for_each_query(setting: Setting) -> list[str]:
    """The lines that refuse a query without a key: a block would wait for words that nobody loads.

    Who gives matrices with strides sees to it.
    """
    mask, pairs = setting.mask, setting.program.pairs
    if mask is None or pairs is None or pairs[0] == pairs[1] or setting.strides.of:
        return []
    queries, keys = map(setting.size, pairs)
    return [
        f"    if {queries} > {keys}{f' * {mask.rows}' if mask.rows > 1 else ''}:",
        '        raise ValueError("these kernels need a key for each query")',
    ]


def general(numbers: Iterable[str]) -> str:
    """The line before a kernel that is compiled once for all these numbers."""
    named = ", ".join(f'"{name}"' for name in numbers)
    return f"@gluon.jit(do_not_specialize=[{named}])"


def started(name: str, warpgroups: int, rows: Iterable[str], loads: Iterable[str]) -> list[str]:
    """The lines that start the roles of a block: warpgroups, and a warp that loads."""
    groups = warpgroups - 1
    registers = [REGISTERS[warpgroups]] * groups + [LOADING_REGISTERS]
    return [
        "    gl.warp_specialize([",
        *(f"        ({name}_rows, ({w}, {', '.join(rows)}))," for w in range(warpgroups)),
        f"        ({name}_loads, ({', '.join(loads)})),",
        f"    ], {[4] * groups + [1]}, {registers})",
    ]
