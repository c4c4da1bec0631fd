"""Terms: values in the text of a kernel, as data, and the one function that prints them.

Passes build terms with Python's operators. What adds nothing is left out, such as + 0 and * 1, and parentheses follow
from precedence. How a language names its functions is a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import isinf
from operator import add, and_, mul
from typing import Any, ClassVar, dataclass_transform

from pebblesim.language import program as ir


def _operation(op: str) -> Callable[[Any, Any], Term]:
    """The operation of two terms, or of a term with what becomes one."""
    return lambda left, right: _made(op, left, term(right))


def _made(op: str, left: Term, right: Term) -> Term:
    """An operation, or what it is equal to if one side is the integer that changes nothing, or makes all 0."""
    if _is(right, UNITS.get(op)):
        return left
    if op == "+" and _is(left, 0):
        return right
    return ZERO if op in ("*", "//") and _is(left, 0) else Binary(op, left, right)


def _is(made: Term, value: int | None) -> bool:
    return isinstance(made, Number) and isinstance(made.value, int) and made.value == value


@dataclass_transform(frozen_default=True)
class Term:
    """A value in a text, of which each kind is a record; as a string it is written as Triton has it."""

    __match_args__: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __str__(self) -> str:
        return text(self)

    __add__ = _operation("+")
    __sub__ = _operation("-")
    __mul__ = _operation("*")
    __truediv__ = _operation("/")
    __floordiv__ = _operation("//")
    __mod__ = _operation("%")
    __and__ = _operation("&")
    __or__ = _operation("|")
    __xor__ = _operation("^")
    __lt__ = _operation("<")
    __gt__ = _operation(">")
    __le__ = _operation("<=")
    __ge__ = _operation(">=")

    def to(self, kind: Any) -> Term:
        """The value in words of another type."""
        return self.call("to", kind)

    def call(self, method: str, *args: Any, **named: Any) -> Term:
        """The value that a method of this one returns."""
        return Method(self, method, tuple(map(term, args)), _named(named))

    def equals(self, other: Any) -> Term:
        """The condition that two values are the same."""
        return Binary("==", self, term(other))

    def reshape(self, *lengths: int) -> Term:
        """A slot of shared memory as a matrix, or as a vector."""
        return self.call("reshape", sides(*lengths))

    def turned(self) -> Term:
        """The transpose of a matrix in shared memory."""
        return self.call("permute", Items((ONE, ZERO), round=True))

    def along(self, axes: str) -> Term:
        """The value with more axes, such as "[:, None]"."""
        return Along(self, axes)

    def index(self, at: Any) -> Term:
        """A slot of a buffer in shared memory, or of its barriers."""
        return self.call("index", at)


class Name(Term):
    """A name, or a constant as it is written."""

    id: str


class Held(Name):
    """The value of a tile, under its name."""

    tile: ir.Tile


class Number(Term):
    """A number."""

    value: int | float


class Word(Term):
    """A word of the language, such as a type."""

    id: str


class Binary(Term):
    """An operation on two values."""

    op: str
    left: Term
    right: Term


class Not(Term):
    """The opposite of a condition."""

    inner: Term


class Call(Term):
    """A call of a function of the language or, if it is `own`, of the text and its imports."""

    function: str
    args: tuple[Term, ...]
    named: tuple[tuple[str, Term], ...] = ()
    own: bool = False


class Method(Term):
    """A call of a method of a value."""

    of: Term
    name: str
    args: tuple[Term, ...]
    named: tuple[tuple[str, Term], ...] = ()


class Along(Term):
    """A value with more axes."""

    of: Term
    axes: str


class Items(Term):
    """A list or, between parentheses, a tuple; `comma`: behind the last one, too."""

    items: tuple[Term, ...]
    round: bool = False
    comma: bool = False


class Choice(Term):
    """One value where a condition holds, and another one elsewhere."""

    where: Term
    then: Term
    otherwise: Term


class Layout(Name):
    """The layout of a tile of so many columns in the registers of a warpgroup: as products have it, or as memory does.

    Attributes:
        width: columns.
        together: of these, how many next to each other a thread reads or stores at a time; 0 for products.
    """

    width: int = 0
    together: int = 0

    @classmethod
    def of_memory(cls, width: int, together: int = 8) -> Layout:
        """The layout in which two or four threads read or store a sector, with so many columns each."""
        return cls(f"rows_{width}" + f"_by_{together}" * (together != 8), width, together)


UNITS = {"+": 0, "-": 0, "*": 1, "//": 1}
"""The integers that change nothing on the right of an operation."""

ZERO, ONE = Number(0), Number(1)
NOTHING = Number(0.0)
INFINITY, MINUS_INFINITY = Name('float("inf")'), Name('float("-inf")')


def term(value: Any) -> Term:
    """A term for a term, a number, or a name."""
    if isinstance(value, Term):
        return value
    return Name(value) if isinstance(value, str) else Number(value)


def constant(value: float) -> Term:
    """A number of a program, an infinite one too."""
    return Name(f'{"-" * (value < 0)}float("inf")') if isinf(value) else Number(float(value))


def _named(named: Mapping[str, Any]) -> tuple[tuple[str, Term], ...]:
    return tuple((name, term(value)) for name, value in named.items())


def call(function: str, *args: Any, **named: Any) -> Term:
    """A call of a function of the language."""
    return Call(function, tuple(map(term, args)), _named(named))


def own(function: str, *args: Any, **named: Any) -> Call:
    """A call of a function that is not the language's."""
    return Call(function, tuple(map(term, args)), _named(named), own=True)


def minimum(left: Any, right: Any) -> Term:
    """The smaller one of two numbers."""
    return call("minimum", left, right)


def maximum(left: Any, right: Any) -> Term:
    """The larger one of two numbers."""
    return call("maximum", left, right)


def cdiv(total: Term, block: int) -> Term:
    """The number of blocks of a total, rounded up; a number if the total is one."""
    return Number(-(-total.value // block)) if isinstance(total, Number) else call("cdiv", total, block)


def sides(*lengths: int) -> Items:
    """A list of lengths."""
    return Items(tuple(map(term, lengths)))


def full(shape: Iterable[int], value: Term) -> Term:
    """A tile of one value, in a layout that the compiler finds."""
    return call("full", Items(tuple(map(term, shape)), round=True, comma=True), value, Word("float32"))


def dot(left: Term, right: Term, onto: Term | None, precise: bool) -> Term:
    """The product of two tiles, added to one; `precise`: of words of float32."""
    options = {"input_precision": '"ieee"'} if precise else {}
    return call("dot", left, right, *([] if onto is None else [onto]), **options)


def wide(number: Any) -> Term:
    """A number in 64 bits."""
    return call("cast", number, Word("int64"))


def total(parts: Iterable[Term]) -> Term:
    """The sum of some terms."""
    return reduce(add, parts)


def product(parts: Iterable[Term]) -> Term:
    """The product of some terms."""
    return reduce(mul, parts)


def all_of(parts: Iterable[Term]) -> Term | None:
    """The predicate that all of some predicates hold; None if there are none."""
    made = list(parts)
    return reduce(and_, made) if made else None


def only(value: Term, parts: Iterable[Term], otherwise: Any) -> Term:
    """A value where all of some predicates hold; everywhere if there are none."""
    where = all_of(parts)
    return value if where is None else call("where", where, value, otherwise)


def both(left: Term, right: Term) -> Term:
    """The condition that two conditions hold, the second asked only where the first one does."""
    return Binary("and", left, right)


def walk(made: Any) -> Iterator[Term]:
    """Yield a term and all that are in it, each before its parts.

    A list of what is left, and not a generator within a generator: checks of kernels spend most of their time here.
    """
    left = [made]
    while left:
        each = left.pop()
        if isinstance(each, tuple):
            left += each[::-1]
        elif isinstance(each, Term):
            yield each
            left += [getattr(each, name) for name in each.__match_args__[::-1]]


def calls(made: Term, function: str) -> bool:
    """Whether a function is called somewhere in a term."""
    return any(isinstance(each, Call) and each.function == function for each in walk(made))


# How terms are written


@dataclass(frozen=True)
class Language:
    """A language: the text before each of its words, and words that have other names."""

    before: str
    others: Mapping[str, str] = field(default_factory=dict)

    def named(self, word: str) -> str:
        """A word as the language has it."""
        return self.others.get(word, self.before + word)


TRITON = Language("tl.", {"exp2": "tl.math.exp2"})
GLUON = Language("gl.")
HOST = Language("triton.", {"minimum": "min"})

PRECEDENCE = {"and": 0, "<": 1, ">": 1, "<=": 1, ">=": 1, "==": 1, "!=": 1, "|": 2, "^": 3, "&": 4, "+": 6, "-": 6}
PRECEDENCE |= dict.fromkeys(("*", "/", "//", "%"), 7)
TIGHT = 9
BITWISE = ("&", "|", "^")


def _binding(made: Term) -> int:
    match made:
        case Binary(op=op):
            return PRECEDENCE[op]
        case Choice():
            return -1
    return TIGHT


def text(made: Term, language: Language = TRITON) -> str:
    """A term as a language has it."""

    def within(each: Term, binding: int) -> str:
        found = text(each, language)
        return f"({found})" if _binding(each) < binding else found

    def given(args: tuple[Term, ...], named: tuple[tuple[str, Term], ...]) -> str:
        return ", ".join([*(text(each, language) for each in args), *(f"{n}={text(v, language)}" for n, v in named)])

    match made:
        case Name(id=name):
            return name
        case Number(value=value):
            return repr(value)
        case Word(id=word):
            return language.named(word)
        case Binary(op=op, left=left, right=right):
            binding = PRECEDENCE[op]
            if op not in BITWISE:
                return f"{within(left, binding)} {op} {within(right, binding + 1)}"
            chained = isinstance(left, Binary) and left.op == op  # else parentheses: few know how these bind
            return f"{within(left, binding if chained else TIGHT)} {op} {within(right, TIGHT)}"
        case Call(function=function, args=args, named=named, own=of_text):
            return f"{function if of_text else language.named(function)}({given(args, named)})"
        case Method(of=of, name=name, args=args, named=named):
            return f"{within(of, TIGHT)}.{name}({given(args, named)})"
        case Along(of=of, axes=axes):
            return f"{within(of, TIGHT)}{axes}"
        case Items(items=items, round=round_, comma=comma):
            listed = given(items, ())
            return f"({listed}{',' * (comma or len(items) == 1)})" if round_ else f"[{listed}]"
        case Not(inner=inner):
            return f"not {within(inner, PRECEDENCE['<'])}"
        case Choice(where=where, then=then, otherwise=otherwise):
            return f"{text(then, language)} if {text(where, language)} else {text(otherwise, language)}"
    raise AssertionError(made)
