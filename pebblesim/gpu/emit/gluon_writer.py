"""The kernels of all writers for Hopper: a warp that loads, warpgroups that compute, and what starts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Generic, TypeVar

from pebblesim.gpu.emit import statements as st
from pebblesim.gpu.emit.gluon_additions import FENCE
from pebblesim.gpu.emit.gluon_boxes import HEADS, address, stored, strides_in_words
from pebblesim.gpu.emit.gluon_plan import Block
from pebblesim.gpu.emit.gluon_rows import Rows
from pebblesim.gpu.emit.gluon_text import STREAMED_TOGETHER, for_each_query, general, started
from pebblesim.gpu.emit.statements import Program, printed, terms_of, within
from pebblesim.gpu.emit.terms import GLUON, HOST, Call, Layout, Name, Term, own, sides
from pebblesim.gpu.emit.triton_kernel import Kernel
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.gpu.emit.words import WORDS
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, blocks, moves

RowsOf = TypeVar("RowsOf", bound=Rows)
"""The writer of what the warpgroups of a kernel do."""


class GluonWriter(ABC, Generic[RowsOf]):
    """A writer of the kernel of a launch; `_numbers` and `_strides` are names of its arguments behind the arrays."""

    def __init__(
        self,
        setting: Setting,
        launch: Launch,
        name: str,
        plan: Block,
        rows: type[RowsOf],
        loaded: Iterable[ir.Tensor],
        others: Iterable[ir.Tensor],
    ) -> None:
        """Take the tensors that the copy engine brings for the warp that loads, and those that it moves otherwise."""
        self._setting, self._launch, self._name, self._block = setting, launch, name, plan
        here = {tensor: f"{tensor.name}_at" for tensor in setting.of}
        self._consumer = rows(replace(setting, of=here), launch, plan)
        self._loaded, self._others = list(dict.fromkeys(loaded)), list(dict.fromkeys(others))
        tensors = dict.fromkeys(node.tensor for node in moves(launch))
        self._addresses = [setting.of[each] for each in tensors if each not in (*self._loaded, *self._others)]
        self._numbers = (*setting.free, *self._consumer.numbers, *[HEADS] * bool(setting.strides.of))
        self._strides = tuple(setting.strides.names(stored(setting, self._addresses)))

    # Facts of the program

    @property
    def _layouts(self) -> set[Layout]:
        """Layouts of tiles that the program uses."""
        terms = (each for statement in within(self.program.rows) for each in terms_of(statement))
        return {each for each in terms if isinstance(each, Layout)}

    @property
    def widths(self) -> set[int]:
        """Columns of the tiles of products."""
        return {each.width for each in self._layouts if not each.stored}

    @property
    def stored(self) -> set[int]:
        """Columns of the tiles that threads store to memory."""
        return {each.width for each in self._layouts if each.stored}

    @property
    def helpers(self) -> set[str]:
        """Names of shared functions that the text uses."""
        made = {each.function for each in self._described().values()}
        fenced = any(isinstance(each, st.Do) and each.call == FENCE.call for each in within(self.program.rows))
        return made | {"fence_async_shared"} if fenced else made

    @property
    def kernel(self) -> Kernel:
        """The kernel, of which `text` is the source."""
        tensors = tuple(
            dict.fromkeys(node.tensor.name for node in moves(self._launch) if not isinstance(node, ir.Init))
        )
        programs = blocks(self._launch, self._setting.sizes, 1)
        return Kernel(self._name, self._launch, tensors, programs, ((), (*self._numbers, *self._strides)), self.program)

    # The launch

    @abstractmethod
    def _described(self) -> dict[str, Call]:
        """The calls of `run` that tell the copy engine of the tensors, by the names of what they return."""

    def _descriptors(self) -> list[str]:
        return printed([st.Let((name,), (made,)) for name, made in self._described().items()], HOST)

    @property
    def _streamed_words(self) -> int:
        """Words of a row of what is streamed, by which heads share L2 under a mask."""
        raise NotImplementedError

    def call(self, options: str) -> list[str]:
        """The lines that launch it. The warps of a block follow from its tiles."""
        setting, plan = self._setting, self._block
        count = f"triton.cdiv({setting.size(plan.own.dim)}, {plan.height})"
        lines, grid = [*for_each_query(setting), *self._descriptors()], f"{count}, heads"
        if setting.mask is not None:
            row = self._streamed_words * WORDS[setting.dtype]
            streamed = f"({setting.size(plan.loop.range.dim)} * {row})"
            groups = f"triton.cdiv(heads, max({STREAMED_TOGETHER} // {streamed}, 1))"
            lines.append(f"    together = triton.cdiv(heads, {groups})  # heads whose long tiles come first")
            grid = f"{count} * heads, 1"
        if plan.persistent:
            lines.append("    most = torch.cuda.get_device_properties(device).multi_processor_count")
            grid = f"min({count} * heads, most), 1"
        return [*lines, self._launched(grid)]

    def _launched(self, grid: str) -> str:
        return f"    {self._name}[({grid})]({', '.join([*self._tiles, *self._behind_tiles])}, num_warps=4)"

    # The arguments of the roles

    @property
    def _tiles(self) -> list[str]:
        """Names of what the copy engine is told of the tensors."""
        return tiles_of(*self._loaded, *self._others)

    @property
    def _behind_tiles(self) -> list[str]:
        return [*self._addresses, *self._numbers, *self._strides]

    @property
    @abstractmethod
    def _shared(self) -> list[str]:
        """Names of buffers and barriers that all roles have."""

    @property
    def _own(self) -> list[str]:
        """Names of what only warpgroups have in shared memory."""
        return []

    @property
    def _of_rows(self) -> list[str]:
        return [*self._shared, *self._own, *tiles_of(*self._others), *self._behind_tiles]

    @property
    def _of_loads(self) -> list[str]:
        return [*tiles_of(*self._loaded), *self._shared, *self._numbers]

    # The roles

    def text(self) -> str:
        """The source: what the warp that loads does, what a warpgroup does, and the kernel that starts them."""
        parameters = ", ".join(["w: gl.constexpr", *self._of_rows])
        program = self.program
        roles = started(self._name, self._block.warpgroups, self._of_rows, self._of_loads)
        return "\n".join(
            [
                "@gluon.jit",
                f"def {self._name}_loads({', '.join(self._of_loads)}):",
                *printed(program.loads, GLUON),
                "",
                "@gluon.jit",
                f"def {self._name}_rows({parameters}):",
                *printed(program.rows, GLUON),
                "",
                general((*self._numbers, *self._strides)),
                f"def {self._name}({', '.join([*self._tiles, *self._behind_tiles])}):",
                *printed(program.allocated, GLUON),
                *roles,
            ]
        )

    @cached_property
    def program(self) -> Program:
        """The statements of both roles, and those that take shared memory."""
        rows, setting = self._consumer, self._setting
        addresses = [
            st.Let((f"{tensor.name}_at",), (address(setting, tensor),))
            for tensor, name in setting.of.items()
            if name in self._addresses
        ]
        of_rows = [*strides_in_words(setting, self._addresses), *rows.within_tile([*addresses, *rows.tile()])]
        return Program(tuple(of_rows), tuple(rows.within_tile(self._loading())), tuple(self._allocated()))

    @abstractmethod
    def _loading(self) -> list[st.Statement]:
        """The statements of the warp that loads, for a tile of the grid."""

    @abstractmethod
    def _allocated(self) -> list[st.Statement]:
        """The statements that take shared memory, and make barriers."""

    def _room(self, name: str, shape: tuple[int, ...], layout: Term, note: str, kind: str = "") -> st.Allocate:
        """Room in shared memory, of words of matrices unless another kind is given."""
        return st.Allocate(name, kind or self._setting.dtype, shape, layout, note)


def barriers(name: str, slots: int, count: int) -> st.Barriers:
    """Barriers of one buffer, of one kind."""
    return st.Barriers((name,), slots, (count,))


def default(shape: tuple[int, ...], kind: str) -> Term:
    """The layout in shared memory that a tile of these sides has unless another one is asked for."""
    return own("gl.NVMMASharedLayout.get_default_for", sides(*shape), Name(f"gl.{kind}"))


def tiles_of(*tensors: ir.Tensor) -> list[str]:
    """Names of what the copy engine is told of some tensors."""
    return [f"{tensor.name}_tiles" for tensor in tensors]
