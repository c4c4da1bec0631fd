"""A launch as a Gluon kernel, as text: a warp that loads, warpgroups that compute, and the barriers between them.

A buffer in shared memory has a barrier for each slot that a ring fills, `full`, at which bytes arrive; a ring has
another, `free`, at which each warpgroup arrives when it is done with a slot. The warp that loads waits for the second
before it fills a slot again.
"""

from __future__ import annotations

import re

from pebblesim.gpu.emit.gluon_consumer import Consumer
from pebblesim.gpu.emit.gluon_plan import REGISTERS, ROWS, Buffer, Plan, multiplies, plan
from pebblesim.gpu.emit.triton_kernel import Kernel, Writer
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.gpu.emit.words import WORDS
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, blocks

LOADING_REGISTERS = 24
"""Registers of a thread of the warp that loads."""


class GluonKernel:
    """Writes the kernel of a launch with products."""

    def __init__(self, setting: Setting, launch: Launch, name: str, stages: int) -> None:
        self._setting, self._launch, self._name = setting, launch, name
        self._plan: Plan = plan(setting.program, launch, setting.sizes, setting.dtype, stages)
        self._consumer = Consumer(setting, launch, name, self._plan)
        nodes = [node for node in ir.walk(launch.block) if isinstance(node, ir.Read | ir.Write | ir.Init)]
        matrices = {buffer.read.tensor for buffer in self._plan.buffers.values()}
        self._moved = {node.tensor: buffer for node in nodes if (buffer := self._buffer(node))}
        self._addresses = [
            setting.of[tensor] for tensor in dict.fromkeys(node.tensor for node in nodes) if tensor not in matrices
        ]

    def _buffer(self, node: ir.Node) -> Buffer | None:
        return self._plan.buffers.get(node.tile) if isinstance(node, ir.Read) else None

    @property
    def plan(self) -> Plan:
        """What a block of the kernel keeps and streams."""
        return self._plan

    @property
    def widths(self) -> set[int]:
        """Columns of the tiles whose layouts the text uses."""
        return self._consumer.widths

    @property
    def kernel(self) -> Kernel:
        """The kernel, of which `text` is the source."""
        tensors = tuple(node.tensor.name for node in ir.walk(self._launch.block) if isinstance(node, ir.Read | ir.Write))
        programs = blocks(self._launch, self._setting.sizes, 1)
        return Kernel(self._name, self._launch, tuple(dict.fromkeys(tensors)), programs, ((), self._setting.free))

    def _described(self, buffer: Buffer) -> str:
        return f"{buffer.read.tensor.name}_tiles"

    def call(self, options: str) -> list[str]:
        """The lines that launch it. The warps of a block follow from its tiles."""
        lines = [
            f"    {self._described(buffer)} = tiles_of({self._setting.of[tensor]}, {buffer.rows}, {buffer.width})"
            for tensor, buffer in self._moved.items()
        ]
        own = self._plan.own
        block, total = ROWS * self._plan.warpgroups, self._setting.size(own.dim)
        count = f"triton.cdiv({total}, {block})"
        arguments = ", ".join([*map(self._described, self._moved.values()), *self._addresses, *self._setting.free])
        return [*lines, f"    {self._name}[({count}, heads)]({arguments}, num_warps=4)"]

    def text(self) -> str:
        """The source: what the warp that loads does, what a warpgroup does, and the kernel that starts them."""
        consumer = self._rows()  # first: it names what the others use
        text = "\n\n".join([self._loads(), consumer, self._start()])
        return re.sub(r"\btl\.(math\.)?", "gl.", text)

    # The roles

    def _barriers(self, buffer: Buffer) -> list[str]:
        return [f"{buffer.name}_full", *([f"{buffer.name}_free"] if buffer.streamed else [])]

    @property
    def _shared(self) -> list[str]:
        """Names of buffers and barriers, arguments of each role."""
        return [name for buffer in self._plan.buffers.values() for name in (buffer.name, *self._barriers(buffer))]

    def _rows(self) -> str:
        parameters = ", ".join(["w: gl.constexpr", *self._shared, *self._addresses, *self._setting.free])
        written = self._consumer.text()
        lines = ["@gluon.jit", f"def {self._name}_rows({parameters}):", *self._consumer.opening()]
        for tensor in self._setting.of:
            if self._setting.of[tensor] in self._addresses:
                lengths = self._setting.lengths(tensor, True)
                lines.append(f"    {self._setting.of[tensor]} += head.to(tl.int64) * {' * '.join(lengths)}")
        return "\n".join([*lines, written])

    def _loads(self) -> str:
        described = [self._described(buffer) for buffer in self._moved.values()]
        parameters = ", ".join([*described, *self._shared, *self._setting.free])
        low, high = self._consumer.limits()
        loop, stages = self._plan.loop, self._plan.stages
        lines = ["@gluon.jit", f"def {self._name}_loads({parameters}):", *self._consumer.opening()]
        number = self._consumer.number
        for buffer in self._plan.buffers.values():
            if not buffer.streamed:
                rows = f"({number} * {buffer.slots} + w) * {ROWS}"
                lines += [
                    f"    mbarrier.expect({buffer.name}_full.index(0), {self._bytes(buffer) * buffer.slots})",
                    f"    for w in gl.static_range({buffer.slots}):",
                    f"        {self._copied(buffer, rows, '0', 'w')}",
                ]
        at = loop.range.name
        turn = at if low == "0" else f"({at} - {low})"
        lines += [
            f"    for {at} in range({f'{low}, {high}'.removeprefix('0, ')}):",
            f"        slot, phase = {turn} % {stages}, {turn} // {stages} & 1",
        ]
        for buffer in self._plan.rings:
            lines += [
                f"        mbarrier.wait({buffer.name}_free.index(slot), phase ^ 1)",
                f"        mbarrier.expect({buffer.name}_full.index(slot), {self._bytes(buffer)})",
                f"        {self._copied(buffer, f'{at} * {buffer.rows}', 'slot', 'slot')}",
            ]
        return "\n".join(lines)

    def _bytes(self, buffer: Buffer) -> int:
        return buffer.rows * buffer.width * WORDS[self._setting.dtype]

    def _copied(self, buffer: Buffer, row: str, barrier: str, slot: str) -> str:
        place = f"{buffer.name}_full.index({barrier}), {buffer.name}.index({slot})"
        return f"tma.async_copy_global_to_shared({self._described(buffer)}, [head, {row}, 0], {place})"

    def _start(self) -> str:
        plan, free = self._plan, self._setting.free
        described = [self._described(buffer) for buffer in self._moved.values()]
        lines = ["@gluon.jit", f"def {self._name}({', '.join([*described, *self._addresses, *free])}):"]
        for buffer in plan.buffers.values():
            shape = f"[{buffer.slots}, 1, {buffer.rows}, {buffer.width}]"
            kept = "a ring" if buffer.streamed else "stays"
            lines.append(
                f"    {buffer.name} = gl.allocate_shared_memory(gl.{self._setting.dtype}, {shape}, "
                f"{self._described(buffer)}.layout)  # line {buffer.read.line}: {kept}"
            )
            lines.append(f"    {buffer.name}_full = barriers({buffer.slots if buffer.streamed else 1}, 1)")
            if buffer.streamed:
                lines.append(f"    {buffer.name}_free = barriers({buffer.slots}, {plan.warpgroups})")
        shared = ", ".join(self._shared)
        rows = ", ".join([shared, *self._addresses, *free])
        loads = ", ".join([*described, shared, *free])
        lines.append("    gl.warp_specialize([")
        lines += [f"        ({self._name}_rows, ({w}, {rows}))," for w in range(plan.warpgroups)]
        lines.append(f"        ({self._name}_loads, ({loads})),")
        groups = plan.warpgroups - 1
        registers = [REGISTERS[plan.warpgroups]] * groups + [LOADING_REGISTERS]
        lines.append(f"    ], {[4] * groups + [1]}, {registers})")
        return "\n".join(lines)


IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
"""


def shared_parts(widths: set[int], dtype: str) -> str:
    """The text of what all kernels of a module share: layouts of tiles, barriers, and tiles for the copy engine."""
    layouts = [
        f"tile_{width} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16]))"
        for width in sorted(widths)
    ]
    return "\n".join(layouts) + f'''


@gluon.jit
def barriers(slots: gl.constexpr, count: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [slots, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(slots):
        mbarrier.init(made.index(slot), count=count)
    return made


def tiles_of(tensor, rows, width):
    """For the copy engine: tiles of the heads of a tensor; beyond its rows and columns they are 0."""
    layout = gl.NVMMASharedLayout.get_default_for([1, rows, width], gl.{dtype})
    return TensorDescriptor.from_tensor(tensor, [1, rows, width], layout)'''


def writer(setting: Setting, launch: Launch, name: str, stages: int) -> GluonKernel | Writer:
    """What writes a launch: a kernel without products is the Triton reading's."""
    return GluonKernel(setting, launch, name, stages) if multiplies(launch) else Writer(setting, launch, name)
