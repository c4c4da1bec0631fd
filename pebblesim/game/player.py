"""`pebbles`: a program as the element-by-element moves of the red-blue pebble game.

A tile of a schedule stands for vertices of a graph. The graph says by which operation, and from which operands, each of
its tensors is computed. The program says the same of each of its tiles. A tile stands for the tensor of the graph that
has the same operation and operands, so the names of tiles in a schedule do not matter. A schedule that computes a
tensor which the graph does not have is refused with an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pebblesim.game import pebble_machine as vm
from pebblesim.game.numbering import Family
from pebblesim.game.pebble_assembler import Assembler
from pebblesim.game.pebble_values import BLOCK, OFFSET, PARENT, SKIPPED
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask

CHUNK = 1 << 16


def moves(
    program: ir.Program,
    sizes: ir.Sizes,
    families: Sequence[Family],
    *,
    write_takes_red: bool = False,
    chunk: int = CHUNK,
    mask: Mask | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Yield the moves of a program, packed (see `pebblesim.game.moves`), in arrays.

    Each array is valid only until the next one is requested, because all share one buffer.

    Args:
        program: a traced schedule.
        sizes: the value of each dimension and block, by name.
        families: the numbering of the graph that the program is played on.
        write_takes_red: True if the rules of the game remove the red pebble at a write. A tile that was just written
            is then not deleted again.
        chunk: smallest length of the buffer, in moves.
        mask: which pairs are allowed, or None. The program and the graph are both under this mask.

    Raises:
        UsageError: the program computes a tensor that the graph does not have, or reads, writes or deletes a sum while
            several vertices hold its partial sums.
    """
    assembled = Assembler(program, sizes, families, write_takes_red, mask)
    tables, longest = assembled.tables(), assembled.longest
    out = np.empty(max(chunk, 2 * longest), np.int64)
    state = vm.start()
    while state[vm.STATUS] == vm.RUNNING:
        used = vm.run(*tables, state, out, longest)  # type: ignore[call-arg] # numba's stubs miscount *tables
        yield out[:used]
    assembled.check(state)


class Step(NamedTuple):
    """A part of a game: moves of one primitive, or the beginning of an iteration of a loop, which has no moves.

    Attributes:
        node: the primitive or loop.
        tile: for a loop, the number of its current tile, from 0; None for a primitive.
        moves: the moves, packed; valid until the next step is requested.
    """

    node: ir.Node
    tile: int | None
    moves: NDArray[np.int64]


def steps(
    program: ir.Program,
    sizes: ir.Sizes,
    families: Sequence[Family],
    *,
    write_takes_red: bool = False,
    mask: Mask | None = None,
) -> Iterator[Step]:
    """Yield the same moves as `moves`, each with the primitive that it comes from; about a hundred times slower.

    The same machine runs on the same tables, but in its code all instructions except the current one are replaced by
    halts. So it stops after each instruction. A primitive may take several steps.

    Args, Raises:
        as for `moves`.
    """
    assembled = Assembler(program, sizes, families, write_takes_red, mask)
    yield from _steps(assembled, assembled.tables(), vm.start())


def source_of(
    number: int,
    program: ir.Program,
    sizes: ir.Sizes,
    families: Sequence[Family],
    *,
    write_takes_red: bool = False,
    mask: Mask | None = None,
) -> ir.Node | None:
    """Return the primitive that makes move `number`, counted from 1; None if there are fewer moves.

    The moves before it are made again, in chunks. Only the chunk that contains it is made step by step.

    Args, Raises:
        as for `moves`.
    """
    assembled = Assembler(program, sizes, families, write_takes_red, mask)
    tables, longest, state = assembled.tables(), assembled.longest, vm.start()
    out = np.empty(max(CHUNK, 2 * longest), np.int64)
    made = 0
    while state[vm.STATUS] == vm.RUNNING:
        changing = (*tables[-3:], state)
        before = [table.copy() for table in changing]
        used = vm.run(*tables, state, out, longest)  # type: ignore[call-arg]
        if made + used >= number:
            for table, earlier in zip(changing, before, strict=True):
                table[...] = earlier
            for step in _steps(assembled, tables, state):
                made += len(step.moves)
                if made >= number:
                    return step.node
        made += used
    return None


def _steps(assembled: Assembler, tables: Any, state: NDArray[np.int64]) -> Iterator[Step]:
    code, *others = tables
    ranges, longest = others[-3], assembled.longest
    out = np.empty(max(CHUNK, 2 * longest), np.int64)
    one = code.copy()
    one[:, vm.OP] = vm.HALT
    while (op := code[state[vm.PC], vm.OP]) != vm.HALT:
        pc = int(state[vm.PC])
        one[pc, vm.OP], state[vm.STATUS] = op, vm.RUNNING
        while state[vm.STATUS] == vm.RUNNING:
            used = vm.run(one, *others, state, out, longest)  # type: ignore[call-arg]
            if used:
                yield Step(assembled.of(pc), None, out[:used])
        assembled.check(state)
        one[pc, vm.OP] = vm.HALT
        if op in (vm.LOOP, vm.NEXT) and state[vm.PC] == (pc + 1 if op == vm.LOOP else code[pc, vm.JUMP]):
            loop = ranges[code[pc, vm.ROWS]]
            tile = (loop[OFFSET] - ranges[loop[PARENT], OFFSET] - loop[SKIPPED]) // loop[BLOCK]
            yield Step(assembled.of(pc), int(tile), out[:0])
