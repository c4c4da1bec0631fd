"""Statements: the program of a kernel, as data, between a launch of a schedule and its text.

Passes build and change statements; `printed` knows how Triton and Gluon write them, and nothing else. `line` is that of
the schedule, 0 for what follows from none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, dataclass_transform

from pebblesim.kernels.terms import TRITON, ZERO, Held, Items, Language, Term, Word, call, dot, own, sides, text, walk
from pebblesim.kernels.words import WORDS
from pebblesim.language import program as ir


@dataclass_transform(eq_default=False, frozen_default=True)
@dataclass(frozen=True, eq=False, kw_only=True)
class Statement:
    """A statement of a kernel: each kind is a record of its own, and no two of them are the same."""

    __match_args__: ClassVar[tuple[str, ...]]
    line: int = 0

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)


class Let(Statement):
    """Names for values that are no tiles, `indices` for those of a tile's rows or columns; `more`: added to them."""

    names: tuple[str, ...]
    values: tuple[Term, ...]
    note: str = ""
    more: bool = False
    indices: bool = False


class Copy(Statement):
    """Memory → registers: the words at an address, or in a box of a descriptor; `absent` where `where` is false."""

    to: Held
    tensor: ir.Tensor
    address: Term
    where: Term | None = None
    absent: Term | None = None
    scale: Term | None = None


class Store(Statement):
    """Registers → memory: a value in the words of memory, at an address, where a predicate holds."""

    tensor: ir.Tensor
    address: Term
    value: Term
    where: Term | None = None


class Map(Statement):
    """A tile computed entry by entry, or reduced along rows; `more`: added to what it was."""

    to: Held
    value: Term
    more: bool = False


class Product(Statement):
    """A product of two operands in the words of memory, added to `onto`; `precise`: of words of float32."""

    to: Held
    left: Term
    right: Term
    onto: Term | None
    precise: bool


class For(Statement):
    """A loop over numbers; `stages`: iterations whose reads are in flight; `unrolled`: when it is compiled."""

    number: str
    low: Term
    high: Term
    body: tuple[Statement, ...]
    step: Term | None = None
    stages: int | None = None
    unrolled: bool = False
    of: ir.Loop | None = None


class When(Statement):
    """Statements for where a condition holds, and for where it does not."""

    condition: Term
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


class Leave(Statement):
    """Nothing is left to do."""


class Do(Statement):
    """A call for what it does."""

    call: Term
    note: str = ""


# What only Gluon kernels have


class Wait(Statement):
    """Wait for a phase of a barrier."""

    barrier: Term
    phase: Term


class Arrive(Statement):
    """Arrive at a barrier, for so many who do."""

    barrier: Term
    count: int = 1


class Expect(Statement):
    """Bytes that are to arrive at a barrier."""

    barrier: Term
    bytes: int


class Fetch(Statement):
    """Memory → shared memory, by the copy engine: the box at a corner; its bytes arrive at a barrier."""

    tiles: str
    corner: Term
    barrier: Term
    room: Term
    bytes: int


class Put(Statement):
    """Registers → shared memory: a tile in a slot."""

    room: Term
    value: Term


class Fence(Statement):
    """Words that threads put into shared memory are there for the copy engine, and for products."""


class Send(Statement):
    """Shared memory → memory, by the copy engine; `added`: to what is there."""

    tiles: str
    corner: Term
    room: Term
    added: bool = False


class Sent(Statement):
    """Wait until the copy engine has taken all that it was to send."""


class Issue(Statement):
    """A product that runs beside what follows, added to `onto` but where it is the first one."""

    to: Held
    left: Term
    right: Term
    onto: Term
    added: Term | None = None


class Settle(Statement):
    """Wait for products, but for the last `left` that were issued: their results, and what they read, are there."""

    tiles: tuple[Term, ...]
    left: int


class Allocate(Statement):
    """Room in shared memory."""

    name: str
    kind: str
    shape: tuple[int, ...]
    layout: Term
    note: str


class Barriers(Statement):
    """Barriers, each of which so many arrivals complete; several names for several groups of them.

    `full`: where slots are given back at the last of these groups, the barriers at which their bytes arrive.
    """

    names: tuple[str, ...]
    slots: int
    counts: tuple[int, ...]
    full: str = ""


Body = Iterable[Statement]
Room = Allocate | Barriers
"""A statement that takes shared memory."""


@dataclass(frozen=True, eq=False)
class KernelProgram:
    """The statements of a kernel.

    Attributes:
        rows: of what computes: a block of a Triton kernel, or a warpgroup of a Gluon kernel.
        loads: of the warp that loads.
        allocated: those that take shared memory before these roles begin.
    """

    rows: tuple[Statement, ...]
    loads: tuple[Statement, ...] = ()
    allocated: tuple[Room, ...] = ()

    def both(self) -> Iterator[Statement]:
        """Yield the statements of both roles."""
        yield from within((*self.rows, *self.loads))

    @property
    def buffers(self) -> dict[str, Allocate]:
        """Buffers in shared memory, by name."""
        return {each.name: each for each in self.allocated if isinstance(each, Allocate)}

    @property
    def barriers(self) -> dict[str, Barriers]:
        """Barriers, by name."""
        return {name: each for each in self.allocated if isinstance(each, Barriers) for name in each.names}

    @property
    def given_back(self) -> dict[str, str]:
        """Barriers at which slots are given back, with those at which their bytes arrive."""
        return {name: each.full for name, each in self.barriers.items() if each.full and name == each.names[-1]}

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a block takes, with 8 for each barrier; 0 where the compiler decides."""
        taken = sum(prod(each.shape) * WORDS[each.kind] for each in self.buffers.values())
        return taken + 8 * sum(each.slots for each in self.barriers.values())


def put(room: Term, value: Term) -> tuple[Put, Fence]:
    """Put a tile where others read it."""
    return Put(room, value), Fence()


def within(body: Body) -> Iterator[Statement]:
    """Yield all statements, those of loops and conditions behind their own."""
    for each in body:
        yield each
        if isinstance(each, For | When):
            yield from within(each.body)
            yield from within(each.otherwise if isinstance(each, When) else ())


def parts_of(each: Statement) -> tuple[Any, ...]:
    """The parts of a statement, in order, but not the statements within; among them are its terms, as wholes."""
    if isinstance(each, For | When):
        return (each.low, each.high) if isinstance(each, For) else (each.condition,)
    return tuple(getattr(each, name) for name in each.__match_args__)


def terms_of(each: Statement) -> Iterator[Term]:
    """All terms of a statement and all that are in them, but not those of statements within."""
    return walk(parts_of(each))


# How statements are written

INDENT = "    "


def printed(body: Body, language: Language = TRITON, depth: int = 1) -> list[str]:
    """The lines of statements."""
    return [line for each in body for line in _lines(each, language, depth)]


def _lines(each: Statement, language: Language, depth: int) -> Iterator[str]:
    if isinstance(each, For):
        yield f"{INDENT * depth}for {each.number} in {_range(each, language)}:"
        yield from printed(each.body, language, depth + 1)
    elif isinstance(each, When):
        yield f"{INDENT * depth}if {text(each.condition, language)}:"
        yield from printed(each.body, language, depth + 1)
        if each.otherwise:
            yield f"{INDENT * depth}else:"
            yield from printed(each.otherwise, language, depth + 1)
    else:
        yield from (INDENT * depth + line for line in _simple(each, language))


def _range(each: For, language: Language) -> str:
    ends = [text(end, language) for end in (each.low, each.high)]
    if each.stages is not None:
        return f"{language.named('range')}({', '.join(ends)}, num_stages={each.stages})"
    if each.step is not None:
        return f"range({', '.join([*ends, text(each.step, language)])})"
    ends = ends[1:] if each.low == ZERO else ends
    return f"{language.named('static_range') if each.unrolled else 'range'}({', '.join(ends)})"


def _simple(each: Statement, language: Language) -> Iterator[str]:
    def says(value: Term) -> str:
        return text(value, language)

    match each:
        case Let(names=names, values=values, note=note, more=more):
            remark = f"  # {note}" * bool(note)
            yield f"{', '.join(names)} {'+=' if more else '='} {', '.join(map(says, values))}{remark}"
        case Copy(to=to, address=address, where=where, absent=absent, scale=scale):
            edge = {} if where is None else {"mask": where, "other": absent}
            loaded = address if _in_box(address) else call("load", address, **edge)
            yield f"{to.id} = {says(loaded if scale is None else loaded / scale)}"
        case Store(address=address, value=value, where=where):
            yield says(call("store", address, value, **({} if where is None else {"mask": where})))
        case Map(to=to, value=value, more=more):
            yield f"{to.id} {'+=' if more else '='} {says(value)}"
        case Product(to=to, left=left, right=right, onto=onto, precise=precise):
            yield f"{to.id} = {says(dot(left, right, onto, precise))}"
        case Leave():
            yield "return"
        case Do(call=made, note=note):
            yield says(made) + f"  # {note}" * bool(note)
        case _:
            yield _of_gluon(each, language)


def _in_box(address: Term) -> bool:
    """Whether an address is the load of a descriptor."""
    return getattr(address, "name", "") == "load"


def _of_gluon(each: Statement, language: Language) -> str:
    def says(function: str, *args: Any, **named: Any) -> str:
        return text(own(function, *args, **named), language)

    match each:
        case Wait(barrier=barrier, phase=phase):
            return says("mbarrier.wait", barrier, phase)
        case Arrive(barrier=barrier, count=count):
            return says("mbarrier.arrive", barrier, count=count)
        case Expect(barrier=barrier, bytes=number):
            return says("mbarrier.expect", barrier, number)
        case Fetch(tiles=tiles, corner=corner, barrier=barrier, room=room):
            return says("tma.async_copy_global_to_shared", tiles, corner, barrier, room)
        case Send(tiles=tiles, corner=corner, room=room, added=added):
            return says("tma_add" if added else "tma.async_copy_shared_to_global", tiles, corner, room)
        case Put(room=room, value=value):
            return text(room.call("store", value), language)
        case Fence():
            return says("fence_async_shared")
        case Sent():
            return says("tma.store_wait", 0)
        case Issue(to=to, left=first, right=second, onto=onto, added=where):
            options = {"use_acc": where} if where is not None else {}
            return f"{to.id} = {says('warpgroup_mma', first, second, onto, **options, is_async='True')}"
        case Settle(tiles=names, left=left):
            results = ", ".join(text(name, language) for name in names)
            return f"{results} = {says('warpgroup_mma_wait', left, deps=Items(tuple(names), round=True))}"
        case Allocate(name=name, kind=kind, shape=shape, layout=layout, note=note):
            taken = call("allocate_shared_memory", Word(kind), sides(*shape), layout)
            return f"{name} = {text(taken, language)}" + f"  # {note}" * bool(note)
        case Barriers(names=names_, slots=slots, counts=counts):
            return f"{', '.join(names_)} = {', '.join(f'barriers({slots}, {count})' for count in counts)}"
    raise AssertionError(each)
