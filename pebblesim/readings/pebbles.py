"""`pebbles`: a program as the element-by-element moves of the red-blue pebble game.

A tile of a schedule stands for vertices of a graph. Which ones follows from what was computed: the graph says of each
of its tensors from which others it comes, and so does the program. The names in a schedule do not matter, and a
schedule that computes what the graph does not hold is told so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.numbering import Family
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.readings import pebble_machine as vm
from pebblesim.readings.pebble_assembler import Assembler

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
    """The moves of a program, packed (see `pebblesim.game.moves`), in arrays valid until the next one is asked for.

    Args:
        program: a traced schedule.
        sizes: the value of each dimension and block, by name.
        families: the numbering of the graph it is played on.
        write_takes_red: the game's rules take the red pebble at a write, so that a tile just written need not be
            deleted.
        chunk: least length of the arrays' buffer.
        mask: which pairs are allowed; the program and the graph are then under this mask.

    Raises:
        UsageError: the program computes something the graph does not hold, or moves a sum that is still spread over
            several vertices.
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
    """A part of a game: the moves of one primitive, or a loop that begins an iteration, which moves nothing.

    Attributes:
        node: the primitive or loop.
        tile: of a loop, which of its tiles it is at; None of a primitive.
        moves: packed; valid until the next step is asked for.
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
    """The same moves as those of `moves`, with the primitives that they come from; some hundred times slower.

    It is the same machine with the same tables: of its code only one instruction is in place at a time and all others
    are halts, so that it stops behind each. A primitive may take several steps.

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
    """The primitive that a move comes from, counted from 1; None if there are fewer moves.

    The moves in front of it are made again, in chunks; only its own chunk is made step by step.

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
            tile = (loop[vm.OFFSET] - ranges[loop[vm.PARENT], vm.OFFSET] - loop[vm.SKIPPED]) // loop[vm.BLOCK]
            yield Step(assembled.of(pc), int(tile), out[:0])
