"""Boxes of matrices that the copy engine moves, as text: how they are described, and where they begin.

Contiguous matrices are (heads, rows, columns). Those with strides of their own are (batch, heads, n, columns), and
where heads of queries share keys, a position has a row of each of these: the copy engine takes these heads for one more
axis, and brings their rows next to each other, as a block has them.
"""

from __future__ import annotations

from pebblesim.gpu.emit.gluon_additions import ROWS
from pebblesim.gpu.emit.strides import WORDS
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.language import program as ir

HEADS = "own"
"""The argument of a kernel that says how many heads of keys a batch has."""

SPLIT = f"batch, key_head = head // {HEADS}, head % {HEADS}"
"""The line of a kernel that finds the batch and the head of keys of matrices with strides."""


def several(setting: Setting, tensor: ir.Tensor) -> int:
    """Rows of a matrix at each position."""
    return setting.strides.several(tensor) if tensor in setting.strides.of else 1


def sides(setting: Setting, tensor: ir.Tensor, rows: int, width: int) -> str:
    """The sides of a box but for the first, as text: batches or, of contiguous matrices, heads are one at a time."""
    together = several(setting, tensor)
    if tensor not in setting.strides.of:
        return f"{rows}, {width}"
    if together > 1:  # of a position some heads, or all of them
        return f"1, {max(rows // together, 1)}, {min(rows, together)}, {width}"
    return f"1, {rows}, {width}"


def corner(setting: Setting, tensor: ir.Tensor, row: str, column: str, rows: int = ROWS) -> str:
    """Where a box of so many rows begins, as text."""
    if tensor not in setting.strides.of:
        return f"[head, {row}, {column}]"
    together = several(setting, tensor)
    head = f"{row} % {together}" if together > rows else "0"
    place = f"{row} // {together}, {head}" if together > 1 else row
    return f"[batch, key_head, {place}, {column}]"


def described(setting: Setting, tensor: ir.Tensor, rows: int, width: int) -> str:
    """The call that describes boxes of a matrix to the copy engine."""
    together = several(setting, tensor)
    return f"tiles_of({setting.of[tensor]}, {rows}, {width}" + f", {together}" * (together > 1) + ")"


def address(setting: Setting, tensor: ir.Tensor) -> str:
    """The address of the first word of a head's matrix or vector, as text; strides are counted in words."""
    name = setting.of[tensor]
    if tensor not in setting.strides.of:
        return f"{name} + tl.cast(head, tl.int64) * {' * '.join(setting.lengths(tensor, True))}"
    batch, head, _ = setting.strides.of[tensor]
    first = f"key_head * {together}" if (together := several(setting, tensor)) > 1 else "key_head"
    return f"{name} + tl.cast(batch, tl.int64) * {batch} * {WORDS} + tl.cast({first}, tl.int64) * {head}"


def strides_in_words(setting: Setting, addresses: list[str]) -> list[str]:
    """The lines of a kernel that count the strides of what it stores in words."""
    return [f"    {setting.strides.in_words(tensor)}" for tensor in stored(setting, addresses)]


def stored(setting: Setting, addresses: list[str]) -> list[ir.Tensor]:
    """The matrices with strides that a kernel has the addresses of: it stores to them."""
    return [tensor for tensor in setting.strides.of if setting.of[tensor] in addresses]
