"""Passes that put small operations into a launch that was to run anyway, so that the host launches less.

A tensor that begins with a constant is filled by the launch before, if its blocks are tiles of the same rows. L, which
the copy engine reads from where each head's numbers begin at multiples of 64 bytes, is copied there by the launch that
makes the row sums of dO ∘ O.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

L_IN_ROWS = "L_in_rows"
"""The copy of L."""


def copied(program: ir.Program, sizes: ir.Sizes, words: int) -> ir.Program:
    """A program that reads a copy of its input L, which the loop that makes row sums writes; itself without these.

    `words`: if the numbers of each head are a multiple of so many, L is read where it is.
    """
    L, sums = program.tensors.get("L"), program.tensors.get("v")
    if L is None or L.name not in program.inputs or L.apart is not None or sums is None:
        return program
    if sizes[L.shape[0]] % words == 0:
        return program
    rows, places = ir.Tensor(L_IN_ROWS, L.shape), list[ir.Node]()

    def made(node: ir.Node) -> ir.Node:
        if isinstance(node, ir.Read) and node.tensor is L:
            return replace(node, tensor=rows)
        if not isinstance(node, ir.Loop):
            return node
        body = [made(each) for each in node.body]
        if written := next((each for each in body if isinstance(each, ir.Write) and each.tensor is sums), None):
            tile, line = ir.Tile("L_i", written.tile.ranges), written.line
            places.append(written)
            body += [ir.Read(tile, L, line), ir.Write(tile, rows, line), ir.Delete(tile, True, line)]
        return replace(node, body=body)

    phases = [replace(phase, body=[made(each) for each in phase.body]) for phase in program.phases]
    if len(places) != 1:  # other programs are given the row sums
        return program
    return replace(program, tensors={**program.tensors, L_IN_ROWS: rows}, phases=phases)


def filled_before(made: list[Launch], apart: Collection[ir.Tensor] = ()) -> list[Launch]:
    """The launches, without fills that the launch before them does; `apart`: tensors that are not always filled."""
    found = list[Launch]()
    for launch in made:
        fills = found and not any(isinstance(node, ir.Init) and node.tensor in apart for node in launch.body)
        with_fill = _filling(found[-1], launch) if fills else None
        found[-1 if with_fill else len(found) :] = [with_fill or launch]
    return found


def _filling(before: Launch, fill: Launch) -> Launch | None:
    """A launch that also fills a matrix; None if its blocks are no tiles of rows, in which columns come in tiles."""
    if fill.kind != "fill" or before.kind != "tiles" or before.around is not None or len(before.grid) != 1:
        return None
    (node,), (rows,) = fill.body, before.grid
    tiles = [each.range.block for each in rows.body if isinstance(each, ir.Loop)]
    if not isinstance(node, ir.Init) or len(node.ranges) != 2 or before.body != [rows] or not tiles:
        return None
    down, across = node.ranges
    if rows.range.parent is None or rows.range.parent.name != down.name or across.pairs is not None:
        return None
    columns = ir.Range("k", across, tiles[0])
    stores = ir.Loop(columns, [replace(node, ranges=(rows.range, columns))], False, node.line)
    loop = replace(rows, body=[*rows.body, stores])
    return replace(before, body=[loop], grid=(loop,))
