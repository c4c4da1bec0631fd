"""The text of a Gluon kernel for Hopper: a warp that loads, warpgroups that compute, and what starts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import Block
from pebblesim.kernels.gluon.boxes import HEADS, described
from pebblesim.kernels.gluon.roles import Roles
from pebblesim.kernels.gluon.text import general, started, with_pairs
from pebblesim.kernels.passes.sinks import numbers_of_sinks
from pebblesim.kernels.rules import broken
from pebblesim.kernels.statements import KernelProgram, printed, terms_of, within
from pebblesim.kernels.terms import GLUON, HOST, Call, Layout, Name
from pebblesim.kernels.triton.kernel import Kernel, Launching
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.language import program as ir
from pebblesim.launches.launches import blocks, moves


class GluonWriter:
    """Writes the kernel of a launch."""

    def __init__(self, setting: Setting, name: str, plan: Block, roles: Callable[[Setting, Block], Roles]) -> None:
        here = {tensor: f"{tensor.name}_at" for tensor in setting.of}
        self._setting, self._name, self.plan = setting, name, plan
        self._roles = roles(replace(setting, of=here), plan)
        tensors = dict.fromkeys(node.tensor for node in self._moves)
        self._stored = [tensor for tensor in tensors if tensor not in self._roles.boxes]
        self._strides = [tensor for tensor in setting.strides.of if tensor in self._stored]
        apart = bool(setting.strides.of)
        self._ranges = self._roles.scope.addresses_of_ranges
        self._numbers = (*setting.free, *self._roles.numbers, *[HEADS] * apart, *numbers_of_sinks(tensors, apart))

    @property
    def _moves(self) -> list[ir.Read | ir.Write | ir.Init]:
        """The primitives that move words, that of what stays first."""
        stays = self.plan.stays
        return [*([] if stays is None else [stays.read]), *moves(self.plan.launch)]

    @cached_property
    def program(self) -> KernelProgram:
        """The statements of both roles, and those that take shared memory."""
        roles, setting = self._roles, self._setting
        strides = [setting.strides.in_words(tensor) for tensor in self._strides]
        stored = [tensor for tensor in setting.of if tensor in self._stored]
        rows = [*strides, *roles.within_tile([*roles.addresses(setting, stored), *roles.tile()])]
        return KernelProgram(tuple(rows), tuple(roles.within_tile(roles.loading())), tuple(roles.allocated()))

    # Facts of the program

    @property
    def layouts(self) -> set[Layout]:
        """Layouts of tiles that the program uses."""
        terms = (each for statement in within(self.program.rows) for each in terms_of(statement))
        return {each for each in terms if isinstance(each, Layout)}

    @property
    def helpers(self) -> set[str]:
        """Names of shared functions that the text uses."""
        made = {each.function for each in self._described.values()}
        fenced = any(isinstance(each, st.Fence) for each in within(self.program.rows))
        return made | {"fence_async_shared"} if fenced else made

    @property
    def kernel(self) -> Kernel:
        """The kernel, of which `text` is the source."""
        launch, numbers = self.plan.launch, ((), tuple(self._behind_tiles[self._pointers :]))
        tensors = dict.fromkeys(node.tensor.name for node in self._moves if not isinstance(node, ir.Init))
        return Kernel(self._name, launch, tuple(tensors), blocks(launch, self._setting.sizes, 1), numbers, self.program)

    # The launch

    @property
    def _described(self) -> dict[str, Call]:
        """The calls of `run` that tell the copy engine of the tensors, by the names of what they return."""
        boxes = self._roles.boxes.items()
        return {f"{tensor.name}_tiles": described(self._setting, tensor, box) for tensor, box in boxes}

    @property
    def _behind_tiles(self) -> list[str]:
        """Arguments of the kernel behind what the copy engine is told."""
        addresses = (self._setting.of[tensor] for tensor in self._stored)
        return [*addresses, *self._ranges, *self._numbers, *self._setting.strides.names(self._strides)]

    @property
    def _pointers(self) -> int:
        """How many of these are addresses."""
        return len(self._stored) + len(self._ranges)

    def launching(self, options: str) -> Launching:
        """Its launch by `run`. The warps of a block follow from its tiles."""
        lines, grid = self._roles.grid()
        checks = with_pairs(self._setting, self.plan) if self._roles.numbers else []
        told = printed([st.Let((name,), (made,)) for name, made in self._described.items()], HOST)
        behind = self._behind_tiles
        given, before = (*self._described, *behind), (*checks, *told, *lines)
        general = tuple(behind[self._pointers :])
        return Launching(self._name, "gluon", general, given, grid, "num_warps=4", before, self.plan.persistent)

    def text(self) -> str:
        """The source: what the warp that loads does, what a warpgroup does, and the kernel that starts them."""
        program, name, behind = self.program, self._name, self._behind_tiles
        assert not (wrong := broken(program)), f"{name}: {'; '.join(wrong)}"
        used = {each.id for made in within(program.loads) for each in terms_of(made) if isinstance(each, Name)}
        loaded = {each.tiles for each in within(program.loads) if isinstance(each, st.Fetch)}
        named = (each.names if isinstance(each, st.Barriers) else (each.name,) for each in program.allocated)
        rooms = [name for names in named for name in names]
        each = self.plan.stays is not None
        of_loads = [*["w: gl.constexpr"] * each, *(tiles for tiles in self._described if tiles in loaded)]
        of_rows = [*rooms, *(tiles for tiles in self._described if tiles not in loaded), *behind]
        of_loads += [*(room for room in rooms if room in used), *self._ranges, *self._numbers]
        return "\n".join(
            [
                "@gluon.jit",
                f"def {name}_loads({', '.join(of_loads)}):",
                *printed(program.loads, GLUON),
                "",
                "@gluon.jit",
                f"def {name}_rows({', '.join(['w: gl.constexpr', *of_rows])}):",
                *printed(program.rows, GLUON),
                "",
                general(behind[self._pointers :]),
                f"def {name}({', '.join([*self._described, *behind])}):",
                *printed(program.allocated, GLUON),
                *started(name, self.plan.warpgroups, of_rows, of_loads[each:], each),
            ]
        )
