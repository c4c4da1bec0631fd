"""A launch as a Gluon kernel: a warp that loads, warpgroups that compute, and the barriers between them.

A buffer in shared memory has a barrier for each slot that a ring fills, `full`, at which bytes arrive; a ring has
another, `free`, at which each warpgroup arrives when it is done with a slot. The warp that loads waits for the second
before it fills a slot again.
"""

from __future__ import annotations

from pebblesim.gpu.emit import statements as st
from pebblesim.gpu.emit.gluon_additions import filled, freed
from pebblesim.gpu.emit.gluon_boxes import corner, described, sides
from pebblesim.gpu.emit.gluon_consumer import Consumer
from pebblesim.gpu.emit.gluon_plan import Buffer, Plan
from pebblesim.gpu.emit.gluon_writer import GluonWriter, barriers, default, tiles_of
from pebblesim.gpu.emit.terms import ZERO, Call, Group, Items, Name, Number, Term, own, term
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

    def _described(self) -> dict[str, Call]:
        setting, made = self._setting, dict[str, Call]()
        for name, (tensor, buffer) in zip(tiles_of(*self._loaded), self._buffers.items(), strict=True):
            if buffer.vector:
                made[name] = own("vectors_of", setting.of[tensor], setting.size(tensor.shape[0]), buffer.rows)
            else:
                made[name] = described(setting, tensor, buffer.rows, buffer.width)
        for name, each in zip(tiles_of(*self._others), self._block.additions, strict=True):
            made[name] = own("sums_of", setting.of[each.write.tensor], each.rows, each.columns)
        return made

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

    def _loading(self) -> list[st.Statement]:
        rows, plan, made, dtype = self._consumer, self._block, list[st.Statement](), self._setting.dtype
        (low, high), at = rows.limits(), plan.loop.range.name
        for buffer in plan.buffers.values():
            if buffer.streamed:
                continue
            first = Group(rows.number * buffer.slots + "w") * buffer.rows
            if plan.persistent:
                made.append(st.Wait(freed(buffer.barrier, 0), rows.turn ^ 1))
            made.append(st.Expect(filled(buffer.barrier, 0), buffer.slot_bytes(dtype) * buffer.slots))
            copied = self._copied(buffer, first, ZERO, Name("w"))
            made.append(st.For("w", ZERO, Number(buffer.slots), (copied,), unrolled=True))
        stream: list[st.Statement] = [rows.slot(Name(at))]
        tile, slot = rows.streamed(Name(at)), Name("slot")
        for ring in plan.rings:
            together = plan.together(ring)
            expected = sum(buffer.slot_bytes(dtype) for buffer in together)
            stream.append(st.Wait(freed(ring.barrier, slot), term("phase") ^ 1))
            stream.append(st.Expect(filled(ring.barrier, slot), expected))
            stream += [self._copied(each, tile * each.rows, slot, slot) for each in together]
        return [*made, Piece(low, high).loop(at, stream, plan.loop)]

    def _copied(self, buffer: Buffer, row: Term, barrier: Term, slot: Term) -> st.Fetch:
        """A copy of a tile that begins at a row into a slot."""
        at = Items((Name("head"), row)) if buffer.vector else corner(self._setting, buffer.read.tensor, row, 0)
        (tiles,) = tiles_of(buffer.read.tensor)
        room = Name(buffer.name).index(slot)
        return st.Fetch(tiles, at, filled(buffer.barrier, barrier), room, line=buffer.read.line)

    def _allocated(self) -> list[st.Statement]:
        plan, made, groups = self._block, list[st.Statement](), self._block.warpgroups
        dtype = self._setting.dtype
        for buffer in plan.buffers.values():
            (tiles,) = tiles_of(buffer.read.tensor)
            kept, line = "a ring" if buffer.streamed else "stays", buffer.read.line
            box = sides(self._setting, buffer.read.tensor, buffer.rows, buffer.width)
            shape = (buffer.slots, 1, *((buffer.rows,) if buffer.vector else box))
            kind = "float32" * buffer.vector
            made.append(self._room(buffer.name, shape, Name(f"{tiles}.layout"), f"line {line}: {kept}", kind))
            if buffer.vector:
                continue
            slots = buffer.slots if buffer.streamed else 1
            made.append(barriers(f"{buffer.name}_full", slots, 1))
            if self._is_freed(buffer):
                made.append(barriers(f"{buffer.name}_free", slots, groups))
        for each, tiles in zip(plan.additions, tiles_of(*self._others), strict=True):
            shape, line = (plan.stages, each.depth, each.rows), each.product.line
            note = f"line {line}: all warpgroups read it"
            made.append(self._room(each.handed, shape, default(shape[1:], dtype), note))
            made.append(barriers(f"{each.handed}_full", plan.stages, groups))
            part = (groups, 1, each.rows, each.columns)
            note = f"line {each.write.line}: added to memory"
            made.append(st.Allocate(each.part, "float32", part, Name(f"{tiles}.layout"), note))
        if plan.turns:
            made.append(barriers("turns", groups, 1))
        return made
