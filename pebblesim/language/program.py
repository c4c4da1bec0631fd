"""The loop-nest program that a schedule is traced into: plain data, which every reading interprets in its own way.

A program is a list of phases; a phase or a loop has a body; the leaves are the primitives of the language. Sizes
are names of dimensions and blocks, so that one program stands for all sizes. Tiles enter the cache with `Read`,
`Zeros`, `Constant` and `Compute(mode="new")` and leave it with `Delete` and `Move`; the tracer adds the `Delete` that a
schedule leaves out, so that no reading has to know about scopes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from hashlib import sha256
from typing import Any, Literal

Pairs = tuple[str, str]
"""The dimension of queries and that of keys, whose indices pair up; in the square case they are one."""


@dataclass(eq=False)
class Range:
    """An index range: a whole dimension (`parent` is None), or the tiles of `parent` with `block` indices each.

    The last tile of a range may be ragged. `name` is the loop variable's, or the dimension's. `pairs` is None unless
    its dimension is that of queries or of keys. A dimension may be cut in two: `first` is its first tile alone, and
    `after` the tiles of what lies behind a first tile of so many indices.
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
        """The dimension it is a part of."""
        return self.name if self.parent is None else self.parent.dim


Ranges = tuple[Range, ...]


@dataclass(frozen=True)
class Quotient:
    """⌈dim/block⌉, the number of tiles of a dimension."""

    dim: str
    block: str | int

    def value(self, sizes: Sizes) -> int:
        """How many tiles there are."""
        return -(-sizes[self.dim] // length(self.block, sizes))

    def __str__(self) -> str:
        return f"⌈{self.dim}/{self.block}⌉"


@dataclass(eq=False)
class Tensor:
    """A tensor in memory; `shape` names dimensions. With `apart` there is one of that shape for each of these tiles."""

    name: str
    shape: tuple[str, ...]
    apart: Quotient | None = None

    def copies(self, sizes: Sizes) -> int:
        """How many of its shape there are."""
        return 1 if self.apart is None else self.apart.value(sizes)

    def sides(self, sizes: Sizes) -> tuple[int, ...]:
        """Its shape in numbers, that of an array: the tiles that it is kept apart for come first."""
        return (*(() if self.apart is None else (self.copies(sizes),)), *(sizes[dim] for dim in self.shape))


@dataclass(eq=False)
class Tile:
    """A tile in cache: a row and a column range, or a row range alone for a vector."""

    name: str
    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Ref:
    """A tile, or the part of it that `ranges` names, as an operand."""

    tile: Tile
    ranges: Ranges
    transposed: bool = False

    @property
    def shape(self) -> Ranges:
        """Its ranges as seen by the operation that uses it."""
        return self.ranges[::-1] if self.transposed else self.ranges


@dataclass(frozen=True, eq=False)
class Elementwise:
    """`op`, e.g. "exp", "add" or "max", element by element; a vector goes along the rows."""

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
    """The tiles an expression uses, left to right."""
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


@dataclass(eq=False)
class Read:
    """Memory → cache: the part of `tensor` that the tile's ranges name; of the tile `at`, if that is kept apart."""

    tile: Tile
    tensor: Tensor
    line: int
    at: Range | None = None


@dataclass(eq=False)
class Write:
    """Cache → memory: the tile, to the part of `tensor` that its ranges name; `at` as of `Read`."""

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
    """Make room in cache for sums that start at 0."""

    tile: Tile
    line: int


@dataclass(eq=False)
class Constant:
    """A tile that holds a constant, 0 or -inf, in each element."""

    tile: Tile
    value: float
    line: int


@dataclass(eq=False)
class Move:
    """`tile` takes over the words of `source`; its own leave the cache."""

    tile: Tile
    source: Tile
    line: int


@dataclass(eq=False)
class Delete:
    """The tile leaves the cache; `implied` where the end of its loop or phase does it."""

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
    """A condition: the mask allows some pair of `rows` and `columns`, or, if `none`, it allows none of them."""

    rows: Range
    columns: Range
    none: bool = False


@dataclass(eq=False)
class Loop:
    """Run the body for each tile of a range; `independent`: its iterations may run in parallel.

    Under a mask, `when` says for which tiles; it is None where the mask does not matter.
    """

    range: Range
    body: list[Node]
    independent: bool
    line: int
    when: MaskCondition | None = None


@dataclass(eq=False)
class Phase:
    """A named part of a schedule, after which the cache is empty."""

    name: str
    body: list[Node] = field(default_factory=list)


Node = Read | Write | Init | Zeros | Constant | Move | Delete | Compute | Loop


@dataclass(eq=False)
class Program:
    """A traced schedule.

    Attributes:
        name: the schedule's.
        dims: names of the dimensions.
        blocks: names of the block sizes.
        tensors: the tensors in memory, inputs first.
        inputs: names of those that hold a value at the start.
        outputs: names of those that must be written.
        phases: what is done.
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
        """Under a mask, the numbers of queries and of keys."""
        return grid(self.pairs, sizes)


def walk(body: list[Node]) -> Iterator[Node]:
    """Every node of a body, depth first, a loop before its body."""
    for node in body:
        yield node
        if isinstance(node, Loop):
            yield from walk(node.body)


def fingerprint(program: Program) -> str:
    """A hash of all that a program says, but for the lines of source it came from.

    Nodes are the same if they are one object, and so each is described once and then called by its number.
    """
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
        values = [described(getattr(part, each.name)) for each in fields(part) if each.name != "line"]
        return [type(part).__name__, *values]

    return sha256(repr(described(program)).encode()).hexdigest()


def moved_part(node: Read | Write | Init) -> Ranges:
    """The part of a tensor that a primitive moves between cache and memory."""
    return node.ranges if isinstance(node, Init) else node.tile.ranges


def entering(node: Node) -> Tile | None:
    """The tile that a primitive brings into the cache."""
    match node:
        case Read(tile=tile) | Zeros(tile=tile) | Constant(tile=tile) | Compute(mode="new", target=Ref(tile=tile)):
            return tile
    return None


def leaving(node: Node) -> Tile | None:
    """The tile whose words leave the cache with a primitive, or go over to another."""
    match node:
        case Delete(tile=tile) | Move(source=tile):
            return tile
    return None


Sizes = Mapping[str, int]  # dimensions and blocks by name


def grid(pairs: Pairs | None, sizes: Sizes) -> tuple[int, int]:
    """The numbers of queries and of keys."""
    assert pairs is not None
    return sizes[pairs[0]], sizes[pairs[1]]


def over_pairs(ranges: Ranges) -> bool:
    """Whether a tile, as it lies, is over pairs of queries and keys, and a mask may forbid entries of it."""
    return len(ranges) == 2 and (ranges[0].dim, ranges[1].dim) == ranges[0].pairs


def length(size: str | int, sizes: Sizes) -> int:
    """The value of a size that is a name or a literal."""
    return size if isinstance(size, int) else sizes[size]


def stretch(rng: Range, whole: int, sizes: Sizes) -> tuple[int, int]:
    """From where to where, in `whole` indices, the tiles of a range go; nowhere if a first tile holds all of them."""
    if rng.first:
        return 0, min(whole, length(rng.block, sizes))
    return (0 if rng.after is None else min(whole, length(rng.after, sizes))), whole


def in_parts(program: Program) -> bool:
    """Whether a program treats a first tile of some dimension apart from the others."""
    loops = (node for phase in program.phases for node in walk(phase.body) if isinstance(node, Loop))
    return any(loop.range.first or loop.range.after is not None for loop in loops)
