"""The kernels of all writers for Hopper: what they are called with, and the layouts that their texts use."""

from __future__ import annotations

from typing import Generic, TypeVar

from pebblesim.gpu.emit.gluon_rows import Rows
from pebblesim.gpu.emit.triton_kernel import Kernel
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, blocks

RowsOf = TypeVar("RowsOf", bound=Rows)
"""The writer of what the warpgroups of a kernel do."""


class GluonWriter(Generic[RowsOf]):
    """A writer of the kernel of a launch; `_numbers` and `_strides` are names of its arguments behind the arrays."""

    _consumer: RowsOf
    _numbers: tuple[str, ...]
    _strides: tuple[str, ...] = ()

    def __init__(self, setting: Setting, launch: Launch, name: str) -> None:
        self._setting, self._launch, self._name = setting, launch, name

    @property
    def widths(self) -> set[int]:
        """Columns of the tiles whose layouts the text uses."""
        return self._consumer.widths

    @property
    def stored(self) -> set[int]:
        """Columns of the tiles that threads store to memory."""
        return self._consumer.stored

    @property
    def kernel(self) -> Kernel:
        """The kernel, of which `text` is the source."""
        moved = (node for node in ir.walk(self._launch.block) if isinstance(node, ir.Read | ir.Write))
        tensors = tuple(dict.fromkeys(node.tensor.name for node in moved))
        programs = blocks(self._launch, self._setting.sizes, 1)
        return Kernel(self._name, self._launch, tensors, programs, ((), (*self._numbers, *self._strides)))
