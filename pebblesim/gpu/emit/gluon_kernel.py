"""A launch as a Gluon kernel, as text: a warp that loads, warpgroups that compute, and the barriers between them.

A buffer in shared memory has a barrier for each slot that a ring fills, `full`, at which bytes arrive; a ring has
another, `free`, at which each warpgroup arrives when it is done with a slot. The warp that loads waits for the second
before it fills a slot again.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pebblesim.gpu.emit.gluon_additions import ROWS
from pebblesim.gpu.emit.gluon_boxes import HEADS, address, corner, described, sides, stored, strides_in_words
from pebblesim.gpu.emit.gluon_consumer import Consumer
from pebblesim.gpu.emit.gluon_plan import Buffer, Plan, plan
from pebblesim.gpu.emit.gluon_text import STREAMED_TOGETHER, for_each_query, general, started
from pebblesim.gpu.emit.gluon_writer import GluonWriter
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.gpu.emit.words import WORDS
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch


class GluonKernel(GluonWriter[Consumer]):
    """Writes the kernel of a launch with products."""

    def __init__(self, setting: Setting, launch: Launch, name: str, stages: int, persistent: bool) -> None:
        super().__init__(setting, launch, name)
        self._plan: Plan = plan(setting.program, launch, setting.sizes, setting.dtype, stages, persistent)
        here = {tensor: f"{tensor.name}_at" for tensor in setting.of}
        self._consumer = Consumer(replace(setting, of=here), launch, name, self._plan)
        masked = setting.mask is not None
        nodes = [node for node in ir.walk(launch.block) if isinstance(node, ir.Read | ir.Write | ir.Init)]
        self._described = {buffer.read.tensor: buffer for buffer in self._plan.buffers.values()}
        self._addresses = [
            setting.of[tensor]
            for tensor in dict.fromkeys(node.tensor for node in nodes)
            if tensor not in self._described and tensor not in {each.write.tensor for each in self._plan.additions}
        ]
        needed = (*setting.free, *["heads"] * (masked or persistent), *["together"] * masked)
        self._numbers = (*needed, *[HEADS] * bool(setting.strides.of))
        self._strides = tuple(setting.strides.names(stored(setting, self._addresses)))

    @property
    def plan(self) -> Plan:
        """The plan of a block."""
        return self._plan

    @property
    def helpers(self) -> set[str]:
        """Names of shared functions that the text uses."""
        vectors = any(buffer.vector for buffer in self._plan.buffers.values())
        return {*["vectors_of"] * vectors, *["sums_of"] * bool(self._plan.additions)}

    @property
    def _tiles(self) -> list[str]:
        """Names of what the copy engine is told of the tensors."""
        return [*map(_tiles_of, self._described), *self._sums]

    @property
    def _sums(self) -> list[str]:
        """Names of what the copy engine is told of the tensors that it adds to."""
        return [_tiles_of(each.write.tensor) for each in self._plan.additions]

    def call(self, options: str) -> list[str]:
        """The lines that launch it. The warps of a block follow from its tiles."""
        lines, mask = for_each_query(self._setting), self._setting.mask
        for tensor, buffer in self._described.items():
            asked = f"vectors_of({self._setting.of[tensor]}, {self._setting.size(tensor.shape[0])}, {buffer.rows})"
            if not buffer.vector:
                asked = described(self._setting, tensor, buffer.rows, buffer.width)
            lines.append(f"    {_tiles_of(tensor)} = {asked}")
        for each in self._plan.additions:
            asked = f"sums_of({self._setting.of[each.write.tensor]}, {each.rows}, {each.columns})"
            lines.append(f"    {_tiles_of(each.write.tensor)} = {asked}")
        own = self._plan.own
        block, total = ROWS * self._plan.warpgroups, self._setting.size(own.dim)
        grid = f"triton.cdiv({total}, {block}), heads"
        if mask is not None:
            row = sum(ring.width for ring in self._plan.rings) * WORDS[self._setting.dtype]
            streamed = f"({self._setting.size(self._plan.loop.range.dim)} * {row})"
            lines.append(f"    together = max({STREAMED_TOGETHER} // {streamed}, 1)  # heads")
            grid = f"triton.cdiv({total}, {block}) * heads, 1"
        if self._plan.persistent:
            lines.append("    most = torch.cuda.get_device_properties(device).multi_processor_count")
            grid = f"min(triton.cdiv({total}, {block}) * heads, most), 1"
        arguments = ", ".join([*self._tiles, *self._addresses, *self._numbers, *self._strides])
        return [*lines, f"    {self._name}[({grid})]({arguments}, num_warps=4)"]

    def text(self) -> str:
        """The source: what the warp that loads does, what a warpgroup does, and the kernel that starts them."""
        consumer = self._rows()  # first: it names what the others use
        text = "\n\n".join([self._loads(), consumer, self._start()])
        return re.sub(r"\btl\.(math\.)?", "gl.", text)

    # The roles

    @property
    def _shared(self) -> list[str]:
        """Names of buffers and barriers, arguments of each role."""
        names: list[str] = []
        for buffer in self._plan.buffers.values():
            names.append(buffer.name)
            if not buffer.vector:
                names += [f"{buffer.name}_full", *[f"{buffer.name}_free"] * self._is_freed(buffer)]
        return names

    @property
    def _exchanged(self) -> list[str]:
        """Names of what warpgroups share of what is added to memory, and of barriers."""
        return [name for each in self._plan.additions for name in (each.handed, f"{each.handed}_full", each.part)]

    def _is_freed(self, buffer: Buffer) -> bool:
        return buffer.streamed or self._plan.persistent

    def _rows(self) -> str:
        own = [*self._shared, *self._exchanged, *["turns"] * self._plan.turns, *self._sums]
        parameters = ", ".join(["w: gl.constexpr", *own, *self._addresses, *self._numbers, *self._strides])
        written = self._consumer.text()
        opening = [*strides_in_words(self._setting, self._addresses), *self._consumer.opening()]
        lines = ["@gluon.jit", f"def {self._name}_rows({parameters}):", *opening]
        for tensor, name in self._setting.of.items():
            if name in self._addresses:
                lines.append(f"{'    ' * self._consumer.depth}{tensor.name}_at = {address(self._setting, tensor)}")
        return "\n".join([*lines, written, *self._consumer.closing()])

    def _loads(self) -> str:
        tiles = [*map(_tiles_of, self._described)]
        parameters = ", ".join([*tiles, *self._shared, *self._numbers])
        (low, high), at = self._consumer.limits(), self._plan.loop.range.name
        opening = ["@gluon.jit", f"def {self._name}_loads({parameters}):", *self._consumer.opening()]
        number, turn, lines = self._consumer.number, self._consumer.turn, list[str]()
        for buffer in self._plan.buffers.values():
            if not buffer.streamed:
                rows = f"({number} * {buffer.slots} + w) * {buffer.rows}"
                each = buffer.slot_bytes(self._setting.dtype)
                if self._plan.persistent:
                    lines.append(f"    mbarrier.wait({buffer.barrier}_free.index(0), {turn} ^ 1)")
                lines += [
                    f"    mbarrier.expect({buffer.barrier}_full.index(0), {each * buffer.slots})",
                    f"    for w in gl.static_range({buffer.slots}):",
                    f"        {self._copied(buffer, rows, '0', 'w')}",
                ]
        lines.append(f"    for {at} in range({f'{low}, {high}'.removeprefix('0, ')}):")
        lines.append(f"        {self._consumer.slot(at)}")
        tile = self._consumer.streamed(at)
        for ring in self._plan.rings:
            together = self._plan.together(ring)
            expected = sum(buffer.slot_bytes(self._setting.dtype) for buffer in together)
            lines.append(f"        mbarrier.wait({ring.barrier}_free.index(slot), phase ^ 1)")
            lines.append(f"        mbarrier.expect({ring.barrier}_full.index(slot), {expected})")
            lines += [f"        {self._copied(each, f'{tile} * {each.rows}', 'slot', 'slot')}" for each in together]
        indented = ("    " * (self._consumer.depth - 1) + line for line in lines)
        return "\n".join([*opening, *indented, *self._consumer.closing()])

    def _copied(self, buffer: Buffer, row: str, barrier: str, slot: str) -> str:
        """A copy of a tile that begins at a row into a slot."""
        place = f"{buffer.barrier}_full.index({barrier}), {buffer.name}.index({slot})"
        at = f"[head, {row}]" if buffer.vector else corner(self._setting, buffer.read.tensor, row, "0")
        return f"tma.async_copy_global_to_shared({_tiles_of(buffer.read.tensor)}, {at}, {place})"

    def _start(self) -> str:
        plan, numbers = self._plan, [*self._numbers, *self._strides]
        lines = [general(numbers), f"def {self._name}({', '.join([*self._tiles, *self._addresses, *numbers])}):"]
        for buffer in plan.buffers.values():
            box = sides(self._setting, buffer.read.tensor, buffer.rows, buffer.width)
            shape = f"[{buffer.slots}, 1, {buffer.rows if buffer.vector else box}]"
            kind, kept = "float32" if buffer.vector else self._setting.dtype, "a ring" if buffer.streamed else "stays"
            layout = f"{_tiles_of(buffer.read.tensor)}.layout"
            lines.append(
                f"    {buffer.name} = gl.allocate_shared_memory(gl.{kind}, {shape}, {layout})"
                f"  # line {buffer.read.line}: {kept}"
            )
            if buffer.vector:
                continue
            lines.append(f"    {buffer.name}_full = barriers({buffer.slots if buffer.streamed else 1}, 1)")
            if self._is_freed(buffer):
                slots = buffer.slots if buffer.streamed else 1
                lines.append(f"    {buffer.name}_free = barriers({slots}, {plan.warpgroups})")
        for each in plan.additions:
            shape, word = f"[{plan.stages}, {each.depth}, {each.rows}]", f"gl.{self._setting.dtype}"
            layout = f"gl.NVMMASharedLayout.get_default_for([{each.depth}, {each.rows}], {word})"
            lines += [
                f"    {each.handed} = gl.allocate_shared_memory({word}, {shape}, {layout})"
                f"  # line {each.product.line}: all warpgroups read it",
                f"    {each.handed}_full = barriers({plan.stages}, {plan.warpgroups})",
                f"    {each.part} = gl.allocate_shared_memory(gl.float32, [{plan.warpgroups}, 1, {each.rows}, "
                f"{each.columns}], {_tiles_of(each.write.tensor)}.layout)  # line {each.write.line}: added to memory",
            ]
        if plan.turns:
            lines.append(f"    turns = barriers({plan.warpgroups}, 1)")
        turns = ["turns"] * plan.turns
        own = [*self._shared, *self._exchanged, *turns, *self._sums, *self._addresses, *numbers]
        loads = [*map(_tiles_of, self._described), *self._shared, *self._numbers]
        return "\n".join([*lines, *started(self._name, plan.warpgroups, own, loads)])


def _tiles_of(tensor: ir.Tensor) -> str:
    """The name of what the copy engine is told of a tensor."""
    return f"{tensor.name}_tiles"
