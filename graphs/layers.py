"""Positions of a graph's vertices in a drawing: tensors in layers from left to right, each sum as a small tree.

A tensor is one layer to the right of its last operand. Its elements are placed below each other, row by row. Inside an
element of a sum the terms come first; each partial sum is to the right of its two operands. If a layer is too tall it
gets further columns, so that any drawing has about the requested proportions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError
from pebblesim.game.numbering import Family
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.summation import Role

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NAME, BETWEEN_ELEMENTS, BETWEEN_ROWS, BETWEEN_COLUMNS, BETWEEN_TENSORS, BETWEEN_LAYERS = 1.5, 0.4, 0.6, 0.9, 1.8, 3.0

LETTER = 0.6
"""Width of a letter of a name."""


@dataclass(frozen=True, eq=False)
class Layers:
    """Coordinates of a drawing. Two neighbouring terms have distance 1; x grows to the right, y down.

    Attributes:
        x, y: of each vertex.
        family, element: for each vertex, the index of its tensor in `graph.families`, and the index of its element in
            row-major order.
        value: whether the vertex holds the final value of its element.
        names: (tensor, x, y) of the left end of each tensor's name, above its first element.
        width, height: size of the drawing.
    """

    x: Floats
    y: Floats
    family: Ints
    element: Ints
    value: NDArray[np.bool_]
    names: tuple[tuple[str, float, float], ...]
    width: float
    height: float


def layers(graph: Cdag, aspect: float = 1.6) -> Layers:
    """Lay out a graph of tensors with about the ratio `aspect` of width to height.

    Raises:
        UsageError: the graph was made from edges, so it has no tensors.
    """
    if not graph.families:
        raise UsageError("this graph was made from edges, so it has no tensors to lay out in layers.")
    of, element, place, value = located(graph)
    boxes = [_Box(family, index, of, element, place) for index, family in enumerate(graph.families)]
    level = levels(graph.families)
    here = [(at, box) for at, box in zip(level, boxes, strict=True) if box.count]
    bands = [[box for at, box in here if at == number] for number in sorted({at for at, _ in here})]
    low = max(NAME + box.tall for box in boxes)
    high = max(sum(NAME + box.count * (box.tall + BETWEEN_ROWS + 1) for box in band) for band in bands)
    for _ in range(12):  # bisection: higher columns make the drawing narrower
        middle = (low + high) / 2
        width, height = _place(bands, middle)
        low, high = (middle, high) if width > aspect * height else (low, middle)

    def room(column: float) -> float:
        """Return the height of the frame with this aspect that contains the drawing."""
        width, height = _place(bands, column)
        return max(width / aspect, height)

    width, height = _place(bands, min(low, high, key=room))
    at = np.concatenate([box.vertices for box in boxes])
    x, y = np.empty(graph.vertices), np.empty(graph.vertices)
    x[at] = np.concatenate([box.x for box in boxes])
    y[at] = np.concatenate([box.y for box in boxes])
    names = tuple((box.family.name, float(box.left), float(box.top)) for box in boxes if box.count)
    return Layers(x, y, of, element, value, names, width, height)


class _Box:
    """A tensor in the drawing."""

    def __init__(self, family: Family, number: int, of: Ints, element: Ints, place: Floats) -> None:
        self.family = family
        self.vertices = np.flatnonzero(of == number)
        self.inside = place[self.vertices] - place[self.vertices].min(axis=0, initial=0)
        self.deep, self.tall = self.inside.max(axis=0, initial=0) + 1
        # elements of the same index in different blocks are different slots
        starts = np.append(True, np.diff(element[self.vertices]) != 0)[: len(self.vertices)]
        self.slot = np.cumsum(starts) - 1
        self.count = int(starts.sum())
        self.left = self.top = 0.0
        self.x = self.y = np.empty(0)

    def place(self, at: _Cursor, height: float) -> None:
        """Place the tensor into the free part of the cursor's column if it fits, else into its own columns."""
        gap = BETWEEN_ELEMENTS if self.tall > 1 else 0.0
        row = self.family.shape[1] if len(self.family.shape) == 2 else 1
        unit = row * (self.tall + gap) + (BETWEEN_ROWS if row > 1 else 0.0)
        if NAME + unit > height:  # a row is longer than a column: break it
            row, unit = 1, self.tall + gap
        units = -(-self.count // row)
        if at.top > 0 and at.top + NAME + units * unit > height:
            at.left, at.top = at.right + BETWEEN_TENSORS, 0.0
        rows = max(1, int((height - at.top - NAME) / unit))
        slots = np.arange(self.count)
        column, line = np.divmod(slots // row, rows)
        x = at.left + column * (self.deep + BETWEEN_COLUMNS)
        y = at.top + NAME + line * unit + slots % row * (self.tall + gap)
        self.left, self.top = at.left, at.top
        self.x, self.y = x[self.slot] + self.inside[:, 0], y[self.slot] + self.inside[:, 1]
        at.right = max(at.right, float(self.x.max()), at.left + LETTER * len(self.family.name))
        at.top = height if units > rows else at.top + NAME + units * unit + BETWEEN_ROWS


@dataclass
class _Cursor:
    """Where the next tensor of a layer may go: left end of a column, its free part, and right end of the layer."""

    left: float
    top: float
    right: float


def _place(bands: list[list[_Box]], height: float) -> tuple[float, float]:
    """Place all layers in columns of that height, centred; returns the width and height of the whole."""
    at = _Cursor(-BETWEEN_LAYERS, 0.0, -BETWEEN_LAYERS)
    tall = []
    for band in bands:
        at = _Cursor(at.right + BETWEEN_LAYERS, 0.0, at.right + BETWEEN_LAYERS)
        for box in band:
            box.place(at, height)
        tall.append(max((float(box.y.max()) for box in band), default=0.0))
    for band, own in zip(bands, tall, strict=True):
        for box in band:
            box.y, box.top = box.y + (max(tall) - own) / 2, box.top + (max(tall) - own) / 2
    return at.right, max(tall)


def located(graph: Cdag) -> tuple[Ints, Ints, Floats, NDArray[np.bool_]]:
    """For each vertex: family index, element index (row-major), position in the element, whether it is the value."""
    number = {family.name: index for index, family in enumerate(graph.families)}
    of, element = np.empty(graph.vertices, np.int64), np.empty(graph.vertices, np.int64)
    place, value = np.empty((graph.vertices, 2)), np.empty(graph.vertices, bool)
    for v in range(graph.vertices):
        family, _, index, part = graph.locate(v)
        of[v] = number[family.name]
        element[v] = index[0] if len(index) == 1 else index[0] * family.shape[1] + index[1]
        place[v] = inside(family, part)
        value[v] = part.kind not in ("term", "zero", "initial", "running", "inner")
    return of, element, place, value


def inside(family: Family, part: Role) -> tuple[float, float]:
    """Return the position of a vertex inside its element."""
    if part.kind == "zero":
        return 0.0, -1.0
    if not part.terms:
        return 0.0, 0.0
    tree = min(family.tree, part.terms)
    begin = part.first
    adds_blocks = family.start or family.onto or part.terms > tree
    running = part.kind == "running" or (part.kind == "value" and adds_blocks and part.stop > 0)
    if running:
        begin = (part.stop - 1) // tree * tree
    layer = (part.stop - begin - 1).bit_length()
    if running and (begin > 0 or family.start or family.onto):
        layer = (tree - 1).bit_length() + 1
    return float(layer), (begin + part.stop - 1) / 2


def levels(families: tuple[Family, ...]) -> list[int]:
    """Return the layer of each tensor: the longest path to it, without values from the previous iteration."""
    by_name = {family.name: family for family in families}
    level: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in level:
            operands = [operand for operand in by_name[name].operands if not operand.endswith(".prev")]
            level[name] = max((1 + of(operand.partition(".")[0]) for operand in operands), default=0)
        return level[name]

    return [of(family.name) for family in families]
