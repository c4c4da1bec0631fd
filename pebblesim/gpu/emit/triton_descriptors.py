"""Tensor descriptors in a Triton kernel, as text: tiles that a loop reads, copied by the chip's own engine.

A descriptor says where a head's matrix is, and which tiles are read from it: an index of a tile is all that a load
needs then, in place of an address for each thread, and what is outside the matrix is 0 without a predicate.
"""

from __future__ import annotations

from pebblesim.gpu.emit.strides import WORDS
from pebblesim.gpu.emit.triton_places import Places
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.gpu.emit.words import is_float32, of_launch
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

ROOM = """
def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")
"""
"""The function that Triton calls for the memory in which descriptors are."""


class Descriptors(Places):
    """The descriptors of a kernel."""

    def __init__(self, setting: Setting, launch: Launch) -> None:
        super().__init__(setting, launch)
        self._described: dict[tuple[ir.Tensor, int, int], str] = {}
        asked = of_launch(dict.fromkeys(setting.described, (1,)), launch.name, ())
        if asked and launch.around is None:  # launched for several groups of rows, some reads were wrong on an H200
            for loop in (node for node in launch.block if isinstance(node, ir.Loop)):
                for node in ir.walk(loop.body):
                    if isinstance(node, ir.Read) and self._describable(node):
                        self._described.setdefault(self._box(node), self._names.new(f"{node.tensor.name}_tiles"))

    @property
    def describes(self) -> bool:
        """Whether the kernel has descriptors."""
        return bool(self._described)

    def _box(self, node: ir.Read) -> tuple[ir.Tensor, int, int]:
        """A matrix, and the rows and columns of a tile that is read from it."""
        rows, columns = map(self._length, node.tile.ranges)
        return node.tensor, rows, columns

    def _describable(self, node: ir.Read) -> bool:
        """Whether a descriptor can be of the tiles of a matrix: its rows are apart by as many words each."""
        tensor, strides, ranges = node.tensor, self._setting.strides, node.tile.ranges
        if len(ranges) != 2 or node.at is not None or ranges[0].parent is None or tensor in self._setting.tables.tiled:
            return False
        if tensor in self._setting.tables.parts or is_float32(self._program, tensor):
            return False
        if self._setting.dtype == "float32":
            return False
        if tensor in strides.of:
            return strides.several(tensor) == 1
        return tensor.sides(self._sizes)[1] % WORDS == 0

    def _describe(self) -> None:
        """Define the descriptors."""
        for (tensor, rows, columns), name in self._described.items():
            height, (*_, width) = self._setting.size(tensor.shape[0]), self._lengths(tensor)
            apart = self._setting.strides.of[tensor][2] if tensor in self._setting.strides.of else width
            self._say(1, f"{name} = tl.make_tensor_descriptor(")
            self._say(2, f"{self._setting.of[tensor]}, [{height}, {width}], [{apart}, 1], [{rows}, {columns}]")
            self._say(1, ")")

    def _copied(self, node: ir.Read) -> str | None:
        """The text that reads a tile by a descriptor; None if there is none."""
        name = self._described.get(self._box(node)) if len(node.tile.ranges) == 2 else None
        if name is None:
            return None
        rows, columns = node.tile.ranges
        row = f"{self._counted[rows]} * {self._length(rows)}"
        row = f"start + {row}" if self._within_rows(rows) else row
        column = "0" if columns.parent is None else f"{self._counted[columns]} * {self._length(columns)}"
        return f"{name}.load([{row}, {column}])"
