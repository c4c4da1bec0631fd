"""A launch as a Gluon kernel, as text: a warp that loads, warpgroups that compute, and the barriers between them.

A buffer in shared memory has a barrier for each slot that a ring fills, `full`, at which bytes arrive; a ring has
another, `free`, at which each warpgroup arrives when it is done with a slot. The warp that loads waits for the second
before it fills a slot again.
"""

from __future__ import annotations

from pebblesim.gpu.emit.gluon_boxes import corner, described, sides
from pebblesim.gpu.emit.gluon_consumer import Consumer
from pebblesim.gpu.emit.gluon_plan import Buffer, Plan
from pebblesim.gpu.emit.gluon_writer import GluonWriter, tiles_of
from pebblesim.gpu.emit.triton_loops import Piece
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.launches.launches import Launch


class GluonKernel(GluonWriter[Consumer]):
    """Writes the kernel of a launch with products."""

    _block: Plan

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Plan) -> None:
        self._buffers = {buffer.read.tensor: buffer for buffer in plan.buffers.values()}
        added = (each.write.tensor for each in plan.additions)
        super().__init__(setting, launch, name, plan, Consumer, self._buffers, added)

    def _described(self) -> list[str]:
        setting, lines = self._setting, list[str]()
        for name, (tensor, buffer) in zip(tiles_of(*self._loaded), self._buffers.items(), strict=True):
            asked = f"vectors_of({setting.of[tensor]}, {setting.size(tensor.shape[0])}, {buffer.rows})"
            if not buffer.vector:
                asked = described(setting, tensor, buffer.rows, buffer.width)
            lines.append(f"    {name} = {asked}")
        for name, each in zip(tiles_of(*self._others), self._block.additions, strict=True):
            lines.append(f"    {name} = sums_of({setting.of[each.write.tensor]}, {each.rows}, {each.columns})")
        return lines

    @property
    def _streamed_words(self) -> int:
        return sum(ring.width for ring in self._block.rings)

    @property
    def _shared(self) -> list[str]:
        names: list[str] = []
        for buffer in self._block.buffers.values():
            names.append(buffer.name)
            if not buffer.vector:
                names += [f"{buffer.name}_full", *[f"{buffer.name}_free"] * self._is_freed(buffer)]
        return names

    @property
    def _own(self) -> list[str]:
        """Names of what warpgroups share of what is added to memory, of its barriers, and of those of their turns."""
        exchanged = [name for each in self._block.additions for name in (each.handed, f"{each.handed}_full", each.part)]
        return [*exchanged, *["turns"] * self._block.turns]

    def _is_freed(self, buffer: Buffer) -> bool:
        return buffer.streamed or self._block.persistent

    def _loading(self) -> list[str]:
        (low, high), at = self._consumer.limits(), self._block.loop.range.name
        number, turn, lines = self._consumer.number, self._consumer.turn, list[str]()
        for buffer in self._block.buffers.values():
            if not buffer.streamed:
                rows = f"({number} * {buffer.slots} + w) * {buffer.rows}"
                each = buffer.slot_bytes(self._setting.dtype)
                if self._block.persistent:
                    lines.append(f"mbarrier.wait({buffer.barrier}_free.index(0), {turn} ^ 1)")
                lines += [
                    f"mbarrier.expect({buffer.barrier}_full.index(0), {each * buffer.slots})",
                    f"for w in gl.static_range({buffer.slots}):",
                    f"    {self._copied(buffer, rows, '0', 'w')}",
                ]
        lines.append(f"for {at} in {Piece(low, high).range}:")
        lines.append(f"    {self._consumer.slot(at)}")
        tile = self._consumer.streamed(at)
        for ring in self._block.rings:
            together = self._block.together(ring)
            expected = sum(buffer.slot_bytes(self._setting.dtype) for buffer in together)
            lines.append(f"    mbarrier.wait({ring.barrier}_free.index(slot), phase ^ 1)")
            lines.append(f"    mbarrier.expect({ring.barrier}_full.index(slot), {expected})")
            lines += [f"    {self._copied(each, f'{tile} * {each.rows}', 'slot', 'slot')}" for each in together]
        return lines

    def _copied(self, buffer: Buffer, row: str, barrier: str, slot: str) -> str:
        """A copy of a tile that begins at a row into a slot."""
        place = f"{buffer.barrier}_full.index({barrier}), {buffer.name}.index({slot})"
        at = f"[head, {row}]" if buffer.vector else corner(self._setting, buffer.read.tensor, row, "0")
        (tiles,) = tiles_of(buffer.read.tensor)
        return f"tma.async_copy_global_to_shared({tiles}, {at}, {place})"

    def _allocated(self) -> list[str]:
        plan, lines = self._block, list[str]()
        for buffer in plan.buffers.values():
            box, (tiles,) = (
                sides(self._setting, buffer.read.tensor, buffer.rows, buffer.width),
                tiles_of(buffer.read.tensor),
            )
            shape = f"[{buffer.slots}, 1, {buffer.rows if buffer.vector else box}]"
            kind, kept = "float32" if buffer.vector else self._setting.dtype, "a ring" if buffer.streamed else "stays"
            lines.append(
                f"    {buffer.name} = gl.allocate_shared_memory(gl.{kind}, {shape}, {tiles}.layout)"
                f"  # line {buffer.read.line}: {kept}"
            )
            if buffer.vector:
                continue
            slots = buffer.slots if buffer.streamed else 1
            lines.append(f"    {buffer.name}_full = barriers({slots}, 1)")
            if self._is_freed(buffer):
                lines.append(f"    {buffer.name}_free = barriers({slots}, {plan.warpgroups})")
        for each, tiles in zip(plan.additions, tiles_of(*self._others), strict=True):
            shape, word = f"[{plan.stages}, {each.depth}, {each.rows}]", f"gl.{self._setting.dtype}"
            layout = f"gl.NVMMASharedLayout.get_default_for([{each.depth}, {each.rows}], {word})"
            lines += [
                f"    {each.handed} = gl.allocate_shared_memory({word}, {shape}, {layout})"
                f"  # line {each.product.line}: all warpgroups read it",
                f"    {each.handed}_full = barriers({plan.stages}, {plan.warpgroups})",
                f"    {each.part} = gl.allocate_shared_memory(gl.float32, [{plan.warpgroups}, 1, {each.rows}, "
                f"{each.columns}], {tiles}.layout)  # line {each.write.line}: added to memory",
            ]
        if plan.turns:
            lines.append(f"    turns = barriers({plan.warpgroups}, 1)")
        return lines
