"""The stream of requests of a schedule against an interpreter that goes through all loops and all words."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from strategies import draws, every, masks as any_masks, sizes

from pebblesim.analysis.count import count
from pebblesim.cachesim import accesses, requests
from pebblesim.cachesim.homes import homes_of
from pebblesim.cachesim.requests import READ, UPDATE, WRITE, Stream
from pebblesim.core.errors import UsageError
from pebblesim.language import masks, program as ir
from pebblesim.language.registry import SCHEDULES, get

Words = list[tuple[str, int, int, int]]  # of a primitive: (place, row, column, kind) of each request


SEVERAL = {"O_s", "L_s", "AV_s", "l_s", "a"}  # tensors that are kept apart for tiles of a dimension


class Interpreter:
    """Each primitive touches its words in this order."""

    def __init__(self, program: ir.Program, values: dict[str, int], homes: Any, allowed: Any = None) -> None:
        self.values, self.homes, self.allowed = values, homes, allowed
        self.at: dict[ir.Range, tuple[int, int]] = {}
        self.program = program

    def limits(self, rng: ir.Range) -> tuple[int, int]:
        return (0, self.values[rng.name]) if rng.parent is None else self.at[rng]

    def part(self, ranges: ir.Ranges) -> list[list[tuple[int, int]]]:
        (top, bottom), *columns = map(self.limits, ranges)
        left, right = columns[0] if columns else (0, 1)
        return [[(r, c) for c in range(left, right)] for r in range(top, bottom)]

    def run(self, body: list[ir.Node], one: Any) -> Iterator[Words]:
        for node in body:
            if not isinstance(node, ir.Loop):
                yield from one(node)
                continue
            assert node.range.parent is not None
            begin, end = self.limits(node.range.parent)
            block = ir.length(node.range.block, self.values)
            if node.range.first:
                end = min(end, block)
            if node.range.after is not None:
                begin = self.values.get(node.range.after, node.range.after)
            for start in range(begin, end, block):
                self.at[node.range] = start, min(start + block, end)
                if node.when is not None and self.allowed is not None:
                    rows, columns = self.limits(node.when.rows), self.limits(node.when.columns)
                    if self.allowed[slice(*rows), slice(*columns)].any() == node.when.none:
                        continue
                yield from self.run(node.body, one)

    def moves(self, node: ir.Node) -> Iterator[Words]:
        if isinstance(node, ir.Read | ir.Write | ir.Init):
            ranges = node.ranges if isinstance(node, ir.Init) else node.tile.ranges
            kind = READ if isinstance(node, ir.Read) else WRITE
            yield [(self.name(node), r, c, kind) for row in self.part(ranges) for r, c in row]

    def name(self, node: ir.Read | ir.Write | ir.Init) -> str:
        """A tensor's name; with the number of the tile that it is kept apart for, if it is."""
        if isinstance(node, ir.Init) or node.at is None:
            return node.tensor.name
        starts = list(range(0, self.values[node.at.dim], ir.length(node.at.block, self.values)))
        return f"{node.tensor.name} of tile {starts.index(self.at[node.at][0])}"

    def words(self, tile: ir.Tile, ranges: ir.Ranges) -> list[list[tuple[str, int, int]]]:
        if tile in self.homes:
            return [[(self.homes[tile].name, r, c) for r, c in row] for row in self.part(ranges)]
        top, left = (*(self.limits(rng)[0] for rng in tile.ranges), 0)[:2]
        return [[(f"~{tile.name}", r - top, c - left) for r, c in row] for row in self.part(ranges)]

    def uses(self, node: ir.Node) -> Iterator[Words]:
        def each(words: list[list[tuple[str, int, int]]], kind: int) -> Words:
            return [(*word, kind) for row in words for word in row]

        def tensor(node: ir.Read | ir.Write | ir.Init) -> list[list[tuple[str, int, int]]]:
            return [[(self.name(node), r, c) for r, c in row] for row in self.part(ir.moved_part(node))]

        match node:
            case ir.Read(tile=tile, tensor=other) if self.homes.get(tile) is not other:
                yield each(tensor(node), READ)
                yield each(self.words(tile, tile.ranges), WRITE)
            case ir.Write(tile=tile, tensor=other) if self.homes.get(tile) is not other:
                yield each(self.words(tile, tile.ranges), READ)
                yield each(tensor(node), WRITE)
            case ir.Init():
                yield each(tensor(node), WRITE)
            case ir.Zeros(tile=tile) | ir.Constant(tile=tile):
                yield each(self.words(tile, tile.ranges), WRITE)
            case ir.Move(tile=tile, source=source):
                yield each(self.words(source, source.ranges), READ)
                yield each(self.words(tile, tile.ranges), WRITE)
            case ir.Compute():
                yield list(self.compute(node))

    def compute(self, node: ir.Compute) -> Iterator[tuple[str, int, int, int]]:
        def operand(ref: ir.Ref) -> list[list[tuple[str, int, int]]]:
            words = self.words(ref.tile, ref.ranges)
            return [list(column) for column in zip(*words, strict=True)] if ref.transposed else words

        target = self.words(node.target.tile, node.target.ranges)
        if isinstance(node.expr, ir.MatMul):
            left, right = operand(node.expr.left), operand(node.expr.right)
            for i, row in enumerate(target):
                for j, word in enumerate(row):
                    for k in range(len(right)):
                        yield (*left[i][k], READ)
                        yield (*right[k][j], READ)
                        yield (*word, WRITE if k == 0 and node.mode != "add" else UPDATE)
            return
        summed = isinstance(node.expr, ir.RowReduction)
        operands = [operand(ref) for ref in ir.refs(node.expr)]
        for i in range(len(operands[0])):
            for j in range(max(len(each[i]) for each in operands) if summed else len(target[i])):
                for each in operands:
                    yield (*each[i][j if len(each[i]) > 1 else 0], READ)
                first = j == 0 if summed else True
                yield (*target[i][0 if summed else j], WRITE if first and node.mode != "add" else UPDATE)


def named(stream: Stream, requests: Any) -> Words:
    """Requests by the words that they stand for."""
    found = []
    for item, kind in requests:
        place = next(p for p in stream.places if p.first <= item < p.first + p.items)
        copy, row = divmod((int(item) - place.first) // place.across, -(-place.rows // place.height))
        column = (int(item) - place.first) % place.across
        name = place.name if place.name not in SEVERAL else f"{place.name} of tile {copy}"
        assert name != place.name or copy == 0
        for r in range(row * place.height, min((row + 1) * place.height, place.rows)):
            for c in range(column * place.width, min((column + 1) * place.width, place.columns)):
                found.append((name, r, c, int(kind)))
    return found


def check(name: str, values: dict[str, int], mask: masks.Mask | None) -> None:
    program = get(name).program if mask is None else get(name).masked
    seen = mask
    allowed = None if seen is None else seen.allowed(values["n"])
    tiles = accesses.accesses(program, values, "moves", "tiles", seen)
    naive = Interpreter(program, values, {}, allowed)
    expected = [words for phase in program.phases for words in naive.run(phase.body, naive.moves)]
    single = accesses.accesses(program, values, "moves", "words", seen)
    assert named(single, zip(single.ids, single.kinds, strict=True)) == [w for words in expected for w in words]
    at = 0
    for words in expected:  # a tile is made of whole items
        found: Words = []
        while len(found) < len(words):
            found += named(tiles, [(tiles.ids[at], tiles.kinds[at])])
            at += 1
        assert sorted(found) == sorted(words)
    assert at == len(tiles)
    counted = count(program, values, mask=seen).total
    moved = [int(tiles.sizes[tiles.ids[(tiles.kinds & kind) > 0]].sum()) for kind in (READ, WRITE)]
    assert moved == [counted.reads, counted.writes]

    single = accesses.accesses(program, values, "uses", "words", seen)
    nodes = [node for phase in program.phases for node in ir.walk(phase.body)]
    naive = Interpreter(program, values, homes_of(nodes), allowed)
    uses = [word for phase in program.phases for words in naive.run(phase.body, naive.uses) for word in words]
    assert named(single, zip(single.ids, single.kinds, strict=True)) == uses
    tiles = accesses.accesses(program, values, "uses", "tiles", seen)
    touched = {word[:3] for word in uses}
    different = [named(tiles, [request]) for request in set(zip(tiles.ids.tolist(), tiles.kinds.tolist(), strict=True))]
    assert all(any(word[:3] in touched for word in words) for words in different)
    found = {word for words in different for word in words}
    assert {word for word in found if word[:3] in touched} <= {(*w[:3], k) for w in uses for k in (1, 2, 3)}
    words = {word[:3] for word in found}
    assert words >= touched
    # Under a mask, perhaps only the last tile is used, which is shorter than the place of a tile.
    assert {name[0] for name, *_ in words - touched} <= ({"~"} if mask is not None else set())


@every(SCHEDULES, "name", of=6)
@draws(2, 20)
@given(data=st.data())
def test_requests_are_those_of_an_interpreter(name: str, data: st.DataObject) -> None:
    """Whether iterations are derived from the first two or made one by one, and operations at once or row by row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accesses, "LONG", data.draw(st.sampled_from([0, 9, 2**16])))
        patch.setattr(accesses, "PIECE", data.draw(st.sampled_from([1, 7, 2**20])))
        patch.setattr(requests, "SHORT", data.draw(st.sampled_from([1, 3, 2**12])))
        check(name, data.draw(sizes(get(name), 5)), None)


@pytest.mark.parametrize("B_s", [1, 2, 3])
def test_the_place_of_a_tile_has_room_for_the_rows_behind_the_first_ones(B_s: int) -> None:
    """Of 2 rows, one is left behind the first, or none; the place had room for B_r = 2."""
    check("first-rows-by-columns", {"n": 2, "d": 1, "B_r": 2, "B_s": B_s, "B_v": 1}, None)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["flash2-forward", "flash2-backward", "backward-two-pass", "small-cache"])
@draws(6, 60)
@given(data=st.data())
def test_requests_under_a_mask(name: str, data: st.DataObject) -> None:
    values = data.draw(sizes(get(name), 6))
    check(name, values, data.draw(any_masks(values["n"])))


def test_a_tile_has_the_place_of_the_longest_even_if_only_the_last_is_used() -> None:
    table = np.zeros((6, 6), bool)
    table[4:] = True
    check("flash2-forward", {"n": 6, "d": 1, "B_r": 4, "B_c": 1}, masks.from_array(table, size=(1, 1)))


def test_tiles_that_are_left_out_leave_gaps() -> None:
    """The first and the last four of six tiles of columns are left: the second iteration is two tiles on."""
    table = np.ones((2, 6), bool)
    table[:, 1] = False
    check("flash2-forward", {"n": 12, "d": 2, "B_r": 6, "B_c": 2}, masks.from_array(table, size=(6, 2)))


def test_too_many_requests_are_refused_before_they_are_made() -> None:
    program = get("flash2-forward").program
    with pytest.raises(UsageError, match="tiles in the place of words"):
        accesses.accesses(program, {"n": 2**20, "d": 64, "B_r": 1024, "B_c": 1024}, "moves", "words")


@pytest.mark.parametrize(
    ("name", "homes"),
    [
        # m_i is changed and not written back; l_block is made while l_m is still read
        ("flash1-forward", "K_j K, V_j V, Q_i Q, O_i O, l_i l_m, m_new m"),
        ("flash2-forward", "Q_i Q, K_j K, V_j V, O_i O"),  # m_new becomes m_i, which is written as L
        ("matmul-tiled", "C_ij C"),
    ],
)
def test_where_tiles_live_without_a_scratchpad(name: str, homes: str) -> None:
    nodes = [node for phase in get(name).program.phases for node in ir.walk(phase.body)]
    found = {tile.name: tensor.name for tile, tensor in homes_of(nodes).items()}
    assert {tile: home for tile, home in found.items() if tile.split("_")[0] not in ("A", "B")} == dict(
        pair.split() for pair in homes.split(", ")
    )
