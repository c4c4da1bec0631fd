"""The loop-nest program that a schedule is traced into: plain data that each reading interprets in its own way.

A program is a list of phases; a phase or a loop has a body; the leaves are the primitives of the language. Sizes are
names of dimensions and blocks, so one program represents all sizes. Tiles enter the cache with `Read`, `Zeros`,
`Constant` and `Compute(mode="new")` and leave it with `Delete` and `Move`. The tracer adds each `Delete` that a
schedule leaves out, so readings need not know about scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

Pairs = tuple[str, str]
"""The dimensions of queries and of keys, whose indices form pairs; in the square case they are the same."""


@dataclass(eq=False)
class Range:
    """An index range: a whole dimension (`parent` is None), or the tiles of `parent` with `block` indices each.

    The last tile of a range may be ragged. `name` is the name of the loop variable or of the dimension. `pairs` is None
    unless the dimension is that of queries or of keys. A dimension may be cut in two: `first` is its
    first tile only, and `after` is the tiles of the rest, behind a first tile of that size.
    """

    name: str
    parent: Range | None = None
    block: str | int = 1
    pairs: Pairs | None = None
    first: bool = False
    after: str | int | None = None

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.pairs = self.parent.pairs

    @property
    def dim(self) -> str:
        """The dimension of the range."""
        return self.name if self.parent is None else self.parent.dim

    @property
    def around(self) -> Iterator[Range]:
        """The range, the tiles that it is cut from, and so on, up to the whole dimension."""
        yield self
        if self.parent is not None:
            yield from self.parent.around

    def within(self, outer: Range) -> bool:
        """Whether it is another range, or cut from its tiles."""
        return any(axis_range is outer for axis_range in self.around)

    @property
    def apart(self) -> bool:
        """Whether it is, or is cut from, a first part of a dimension or the others."""
        return any(each.first or each.after is not None for each in self.around)

    @property
    def outermost(self) -> Range:
        """The tiles of the whole dimension that the range is a part of, or the dimension."""
        return self if self.parent is None or self.parent.parent is None else self.parent.outermost


Ranges = tuple[Range, ...]


@dataclass(frozen=True)
class Quotient:
    """⌈dim/block⌉, the number of tiles of a dimension."""

    dim: str
    block: str | int

    def value(self, sizes: Sizes) -> int:
        """Return the number of tiles at these sizes."""
        return -(-sizes[self.dim] // length(self.block, sizes))

    def __str__(self) -> str:
        return f"⌈{self.dim}/{self.block}⌉"


@dataclass(eq=False)
class Tensor:
    """A tensor in memory; `shape` names dimensions. With `apart` there is a separate copy for each of these tiles."""

    name: str
    shape: tuple[str, ...]
    apart: Quotient | None = None

    def copies(self, sizes: Sizes) -> int:
        """Return the number of copies; 1 without `apart`."""
        return 1 if self.apart is None else self.apart.value(sizes)

    def sides(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the shape as an array, in numbers; with `apart` the first number is that of the copies."""
        return (*(() if self.apart is None else (self.copies(sizes),)), *(sizes[dim] for dim in self.shape))


@dataclass(eq=False)
class Tile:
    """A tile in the cache: a row range and a column range, or only a row range for a vector."""

    name: str
    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Ref:
    """A tile as an operand, or the part of it given by `ranges`."""

    tile: Tile
    ranges: Ranges
    transposed: bool = False

    @property
    def shape(self) -> Ranges:
        """Ranges of the tile in the operation that uses it, transposed if needed."""
        return self.ranges[::-1] if self.transposed else self.ranges


@dataclass(frozen=True, eq=False)
class Elementwise:
    """`op`, e.g. "exp", "add" or "max", element by element; an entry of a vector applies to its whole row."""

    op: str
    operands: tuple[Expr, ...]
    shape: Ranges


@dataclass(frozen=True, eq=False)
class RowReduction:
    """`op` of each row: its sum, x · 1, or its maximum."""

    op: Literal["rowsum", "rowmax"]
    operand: Expr
    shape: Ranges


@dataclass(frozen=True, eq=False)
class MatMul:
    """The product of two resident tiles."""

    left: Ref
    right: Ref
    shape: Ranges


Expr = Ref | Elementwise | RowReduction | MatMul


def refs(expr: Expr) -> Iterator[Ref]:
    """Yield the tiles that an expression uses, left to right."""
    match expr:
        case Ref():
            yield expr
        case Elementwise():
            for operand in expr.operands:
                yield from refs(operand)
        case RowReduction():
            yield from refs(expr.operand)
        case MatMul():
            yield expr.left
            yield expr.right


def index_of(expr: Expr) -> Range:
    """Return the range of the index that a product or a row reduction sums over."""
    if isinstance(expr, MatMul):
        return expr.left.shape[1]
    assert isinstance(expr, RowReduction)
    return expr.operand.shape[1]


@dataclass(eq=False)
class Read:
    """Memory → cache: the part of `tensor` given by the tile's ranges, of the copy for tile `at` if any."""

    tile: Tile
    tensor: Tensor
    line: int
    at: Range | None = None


@dataclass(eq=False)
class Write:
    """Cache → memory: write the tile to the part of `tensor` given by its ranges; `at` as for `Read`."""

    tile: Tile
    tensor: Tensor
    line: int
    at: Range | None = None


@dataclass(eq=False)
class Init:
    """Write a constant, 0 or -inf, to a part of a tensor, one word at a time through the cache."""

    tensor: Tensor
    ranges: Ranges
    value: float
    line: int


@dataclass(eq=False)
class Zeros:
    """Create a tile for sums that start at 0."""

    tile: Tile
    line: int


@dataclass(eq=False)
class Constant:
    """Create a tile that holds a constant, 0 or -inf, in each element."""

    tile: Tile
    value: float
    line: int


@dataclass(eq=False)
class Move:
    """Move the words of `source` to `tile`; the old words of `tile` leave the cache."""

    tile: Tile
    source: Tile
    line: int


@dataclass(eq=False)
class Delete:
    """Delete the tile from the cache; `implied` if this happens at the end of its loop or phase."""

    tile: Tile
    implied: bool
    line: int


@dataclass(eq=False)
class Compute:
    """`mode` "new": a new tile; "assign": in place, element by element; "add": add the terms of a sum to `target`."""

    target: Ref
    expr: Expr
    mode: Literal["new", "assign", "add"]
    line: int


@dataclass(frozen=True, eq=False)
class MaskCondition:
    """The condition that the mask allows a pair of `rows` and `columns`, or, if `none`, that it allows no such pair."""

    rows: Range
    columns: Range
    none: bool = False


@dataclass(eq=False)
class Loop:
    """Run the body for each tile of a range; `independent`: its iterations may run in parallel.

    Under a mask, `when` is the condition for a tile to run; None if all tiles run.
    """

    range: Range
    body: list[Node]
    independent: bool
    line: int
    when: MaskCondition | None = None


@dataclass(eq=False)
class Phase:
    """A named part of a schedule; the cache is empty after it."""

    name: str
    body: list[Node] = field(default_factory=list)


Node = Read | Write | Init | Zeros | Constant | Move | Delete | Compute | Loop


@dataclass(eq=False)
class Program:
    """A traced schedule.

    Attributes:
        name: name of the schedule.
        dims: names of the dimensions.
        blocks: names of the block sizes.
        tensors: the tensors in memory, inputs first.
        inputs: names of the tensors that hold a value at the start.
        outputs: names of the tensors that must be written.
        phases: the phases, in order.
        pairs: under a mask, the dimensions of queries and of keys; None for a program without a mask.
    """

    name: str
    dims: tuple[str, ...]
    blocks: tuple[str, ...]
    tensors: dict[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    phases: list[Phase]
    pairs: Pairs | None = None

    def grid(self, sizes: Sizes) -> tuple[int, int]:
        """Return the numbers of queries and of keys, under a mask."""
        return grid(self.pairs, sizes)


def walk(body: list[Node]) -> Iterator[Node]:
    """Yield every node of a body, depth first, each loop before its body."""
    for node in body:
        yield node
        if isinstance(node, Loop):
            yield from walk(node.body)


Part = Tile | Tensor | Range


def rebuilt(part: Any, change: Callable[[Part], Part]) -> Any:
    """Return a primitive, or a part of one, with other parts in the place of some.

    `change` is given each tile, tensor and range, and returns the one in its place, or the same one.
    """
    if isinstance(part, Part):
        return change(part)
    if isinstance(part, tuple):
        return tuple(rebuilt(each, change) for each in part)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    return replace(part, **{each.name: rebuilt(getattr(part, each.name), change) for each in fields(part)})


def fingerprint(program: Program) -> str:
    """Return a hash of a program, without its source lines.

    Node identity matters, so each node is described once and then referred to by number.
    """
    from hashlib import sha256

    numbers: dict[int, int] = {}

    def described(part: Any) -> Any:
        if isinstance(part, Mapping):
            return [[described(key), described(value)] for key, value in part.items()]
        if isinstance(part, list | tuple):
            return [described(each) for each in part]
        if not is_dataclass(part):
            return repr(part)
        if id(part) in numbers:
            return numbers[id(part)]
        numbers[id(part)] = len(numbers)
        values = [described(getattr(part, entry.name)) for entry in fields(part) if entry.name != "line"]
        return [type(part).__name__, *values]

    return sha256(repr(described(program)).encode()).hexdigest()


def moved_part(node: Read | Write | Init) -> Ranges:
    """Return the part of a tensor that a primitive moves between cache and memory."""
    return node.ranges if isinstance(node, Init) else node.tile.ranges


def entering(node: Node) -> Tile | None:
    """Return the tile that a primitive brings into the cache, or None."""
    match node:
        case Read(tile=tile) | Zeros(tile=tile) | Constant(tile=tile) | Compute(mode="new", target=Ref(tile=tile)):
            return tile
    return None


def leaving(node: Node) -> Tile | None:
    """Return the tile whose words leave the cache with a primitive, or move to another tile; or None."""
    match node:
        case Delete(tile=tile) | Move(source=tile):
            return tile
    return None


Sizes = Mapping[str, int]  # dimensions and blocks by name


def grid(pairs: Pairs | None, sizes: Sizes) -> tuple[int, int]:
    """Return the numbers of queries and of keys."""
    assert pairs is not None
    return sizes[pairs[0]], sizes[pairs[1]]


def over_pairs(ranges: Ranges) -> bool:
    """Whether a tile (not transposed) is over pairs of queries and keys, so that a mask may forbid entries."""
    return len(ranges) == 2 and (ranges[0].dim, ranges[1].dim) == ranges[0].pairs


def length(size: str | int, sizes: Sizes) -> int:
    """Return the value of a size, which is a name or a number."""
    return size if isinstance(size, int) else sizes[size]


def stretch(rng: Range, whole: int, sizes: Sizes) -> tuple[int, int]:
    """Return (start, stop), the indices among `whole` that a range covers; empty if the first tile has all of them."""
    if rng.first:
        return 0, min(whole, length(rng.block, sizes))
    return (0 if rng.after is None else min(whole, length(rng.after, sizes))), whole
