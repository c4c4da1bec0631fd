"""Boxes of matrices that the copy engine moves: how they are described, and where they begin.

Contiguous matrices are (heads, rows, columns). Those with strides of their own are (batch, heads, n, columns), and
where heads of queries share keys, a position has a row of each of these: the copy engine takes these heads for one more
axis, and brings their rows next to each other, as a block has them. Those with several copies are (batch, copies,
heads, n, columns).
"""

from __future__ import annotations

from typing import Any

from pebblesim.kernels.passes.sinks import SINKS, first_of_head
from pebblesim.kernels.statements import Let
from pebblesim.kernels.strides import WORDS
from pebblesim.kernels.terms import ZERO, Call, Items, Name, Term, own, product, term, wide
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.kernels.words import is_float32
from pebblesim.language import program as ir

Box = tuple[int, ...]
"""The sides of a box: rows and columns, or indices of a vector."""

HEADS = "own"
"""The argument of a kernel that says how many heads of keys a batch has."""

COPY = "r"
"""The name of the number of a copy, of matrices that have several."""

SPLIT = Let(("batch", "key_head"), (term("head") // HEADS, term("head") % HEADS))
"""The statement of a kernel that finds the batch and the head of keys of matrices with strides."""


def sides(setting: Setting, tensor: ir.Tensor, box: Box) -> tuple[int, ...]:
    """The sides of a slot of shared memory for a box: batches or, of contiguous matrices, heads are one at a time."""
    if tensor in setting.tables.tiled:
        return box
    if tensor not in setting.strides.of:
        return 1, *box
    (rows, width), together = box, setting.strides.several(tensor)
    if tensor in setting.strides.copies:
        return 1, 1, 1, rows, width
    if together > 1:  # of a position some heads, or all of them
        return 1, 1, max(rows // together, 1), min(rows, together), width
    return 1, 1, rows, width


def corner(setting: Setting, tensor: ir.Tensor, box: Box, row: Term, column: Any) -> Items:
    """Where a box begins."""
    if len(box) == 1:
        return Items((Name("head"), row))
    if tensor not in setting.strides.of:
        return Items((Name("head"), row, term(column)))
    if tensor in setting.strides.copies:
        return Items((Name("batch"), Name(COPY), Name("key_head"), row, term(column)))
    together = setting.strides.several(tensor)
    place = [row // together, row % together if together > box[0] else ZERO] if together > 1 else [row]
    return Items((Name("batch"), Name("key_head"), *place, term(column)))


def described(setting: Setting, tensor: ir.Tensor, box: Box) -> Call:
    """The call that describes boxes of a tensor to the copy engine."""
    start, together = setting.of[tensor], setting.strides.several(tensor)
    if tensor in setting.tables.tiled:
        return own("pairs_of", start, *box)
    if len(box) == 1:
        of = "numbers_of" if tensor.apart is not None else "vectors_of"
        return own(of, start, setting.size(tensor.shape[0]), *box)
    if tensor in setting.strides.copies:
        return own("copies_of", start, *box, *[Name("gl.float32")] * is_float32(setting.program, tensor))
    if is_float32(setting.program, tensor):
        return own("sums_of", start, *box)
    return own("tiles_of", start, *box, *[together] * (together > 1))


def address(setting: Setting, tensor: ir.Tensor) -> Term:
    """The address of the first word of a head's matrix or vector; strides are counted in words."""
    start = term(setting.of[tensor])
    if tensor.name == SINKS and setting.strides.of:
        return first_of_head(start, "key_head", setting.strides.shared)
    if tensor not in setting.strides.of:
        return start + product([wide("head"), *setting.lengths(tensor)])
    batch, head, _ = setting.strides.of[tensor]
    first = term("key_head") * setting.strides.several(tensor)
    return start + wide("batch") * batch * WORDS + wide(first) * head
