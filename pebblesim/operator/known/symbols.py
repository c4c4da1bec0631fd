"""Integers that follow from sizes, and decisions about them: what the host does for some sizes serves others, too.

Code of the host that is given `Number`s in the place of sizes makes expressions of these. Each comparison, and each use
of a number as a plain integer, is a decision. What the code gives is right for all sizes for which every decision is
the one that was made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple


class Untraced(Exception):
    """Something that the host does cannot be written as expressions of sizes."""


class Later(Untraced):
    """Something cannot be traced at this moment, and may be later: a kernel is not compiled, or memory is short."""


class Line(NamedTuple):
    """An expression, or a decision: an operation or a comparison of numbers.

    Attributes:
        name: that of the expression; "" for a decision.
        symbol: the operation, or the comparison.
        one, two: names, or integers; two is 0 where the operation takes one number.
        holds: what a decision was.
    """

    name: str
    symbol: str
    one: str | int
    two: str | int
    holds: bool = True

    @property
    def text(self) -> str:
        """As Python has it."""
        one, two = (f"({each})" if isinstance(each, int) else each for each in (self.one, self.two))
        return f"{one}.bit_length()" if self.symbol == BITS else f"{one} {self.symbol} {two}"


class Script:
    """Expressions of sizes, and decisions about them, in order."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._known: dict[Any, str] = {}
        self._sizes = 0

    def size(self, value: int) -> Number:
        """A new size, with its value now."""
        name = f"s{self._sizes}"
        self._sizes += 1
        return Number(self, name, value)

    def number(self, symbol: str, one: Any, two: Any, value: int) -> Number:
        """The number that an operation gives."""
        key = symbol, _named(one), _named(two)
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = f"t{len(self._lines)}"
            self._lines.append(Line(name, *key))
        return Number(self, name, value)

    def decide(self, symbol: str, one: Any, two: Any, holds: bool) -> bool:
        """Note a decision: whether a comparison holds."""
        key = symbol, _named(one), _named(two), holds
        if key not in self._known:
            self._known[key] = ""
            self._lines.append(Line("", *key))
        return holds

    def _needed(self, made: Any) -> list[Line]:
        """All decisions, and the expressions that these need or what was made, in order."""
        needed, lines = {*_names(made)}, list[Line]()
        for line in reversed(self._lines):
            if not line.name or line.name in needed:
                needed.update(each for each in (line.one, line.two) if isinstance(each, str))
                lines.append(line)
        return lines[::-1]

    def function(self, made: Any) -> Callable[[Sequence[int]], Any]:
        """A function that gives what was made, of tuples, numbers and other values, for other sizes.

        It takes sizes in the order in which they were made, and gives None where a decision is another one.
        """
        rest = list[Any]()
        end = _text(made, rest)
        sizes = "".join(f"s{at}, " for at in range(self._sizes))
        head = ["def found(sizes):", f"    ({sizes}) = sizes"] if sizes else ["def found(sizes):"]
        there: dict[str, Any] = {f"r{at}": each for at, each in enumerate(rest)}
        exec("\n".join([*head, *map(_line, self._needed(made)), f"    return {end}"]), there)
        found: Callable[[Sequence[int]], Any] = there["found"]
        return found

    def registers(self, made: Any) -> tuple[tuple[int, tuple[Any, ...], tuple[int, ...]], Any]:
        """A script for the library in C++ that does as the function does, and what was made: tuples, numbers, None.

        Registers are sizes, what each line gives, and constants, in this order.

        Returns:
            The script: the number of sizes; lines, each as (operation, register, register, whether it holds); and
            constants. And what was made, with a register in the place of each number.
        """
        lines = self._needed(made)
        at: dict[str | int, int] = {f"s{size}": size for size in range(self._sizes)}
        at |= {line.name: self._sizes + number for number, line in enumerate(lines) if line.name}
        constants = dict[int, None]()

        def register(x: Any) -> int:
            if isinstance(x, str):
                return at[x]
            if (number := at.get(x)) is None:
                number = at[x] = self._sizes + len(lines) + len(constants)
                constants[x] = None
            return number

        def of(each: Any) -> Any:
            if isinstance(each, tuple):
                return tuple(map(of, each))
            return None if each is None else register(_named(each))

        told = tuple((CODES[line.symbol], register(line.one), register(line.two), int(line.holds)) for line in lines)
        form = of(made)
        return (self._sizes, told, tuple(constants)), form


class Words(tuple[Any, ...]):
    """Integers of 64 bits that are made as their bytes."""

    def packed(self) -> bytes:
        """Their bytes now."""
        return _struct(len(self)).pack(*map(plain, self))


def _struct(words: int) -> Struct:
    return Struct(f"<{words}q")


def evaluated(made: Any) -> Any:
    """All that was made, with the values now, without a decision."""
    if isinstance(made, Words):
        return made.packed()
    if isinstance(made, tuple):
        each = map(evaluated, made)
        return type(made)(*each) if hasattr(made, "_fields") else tuple(each)
    return plain(made)


def _line(line: Line) -> str:
    """A line of a function."""
    if line.name:
        return f"    {line.name} = {line.text}"
    return f"    if not ({line.text if line.holds else f'not {line.text}'}): return None"


def _text(made: Any, rest: list[Any]) -> str:
    """The text of what is returned; values without a text are added to `rest`."""
    if isinstance(made, Number):
        return made.name
    if isinstance(made, tuple):
        parts = "".join([f"{_text(each, rest)}, " for each in made])
        if not isinstance(made, Words) and not hasattr(made, "_fields"):
            return f"({parts})"
        rest.append(_struct(len(made)).pack if isinstance(made, Words) else type(made))
        return f"r{len(rest) - 1}({parts})"
    if made is None or type(made) is int:
        return repr(made)
    rest.append(made)
    return f"r{len(rest) - 1}"


def _names(made: Any) -> Iterator[str]:
    """The names of the numbers in what was made."""
    if isinstance(made, Number):
        yield made.name
    elif isinstance(made, tuple):
        for each in made:
            yield from _names(each)


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}
NEUTRAL = {"+": 0, "-": 0, "*": 1, "//": 1}
"""The second number of an operation that gives the first one."""

COMPARISONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}
COMPARISONS |= {">": operator.gt, ">=": operator.ge}

BITS = "bit_length"
CODES = {BITS: "b", "//": "/", "==": "=", "!=": "!", "<=": "l", ">=": "g", **{each: each for each in "+-*%<>"}}
"""Operations and comparisons as the library in C++ has them."""


def _operation(symbol: str, turned: bool = False) -> Callable[[Number, Any], Any]:
    """The method of an operation, `turned` if the number is the second of both."""

    def method(self: Number, other: Any) -> Any:
        one, two = (other, self) if turned else (self, other)
        if any(type(plain(each)) is not int for each in (one, two)):
            return NotImplemented
        if symbol in NEUTRAL and type(two) is int and two == NEUTRAL[symbol]:
            return one
        if symbol in "+*" and type(one) is int and one == NEUTRAL[symbol]:
            return two
        if symbol == "*" and any(type(each) is int and not each for each in (one, two)):
            return 0
        return self._script.number(symbol, one, two, OPERATIONS[symbol](plain(one), plain(two)))

    return method


def _comparison(symbol: str) -> Callable[[Number, Any], Any]:
    """The method of a comparison, which is a decision."""

    def method(self: Number, other: Any) -> Any:
        if isinstance(other, float):
            raise Untraced
        if not isinstance(other, int | Number):
            return NotImplemented
        holds = COMPARISONS[symbol](self.value, plain(other))
        if isinstance(other, Number) and other.name == self.name:
            return holds
        return self._script.decide(symbol, self, other, holds)

    return method


def _named(x: Any) -> str | int:
    return x.name if isinstance(x, Number) else int(x)


class Number:
    """An integer that follows from sizes: the name of its expression, and its value for the sizes now."""

    __slots__ = ("_script", "name", "value")

    def __init__(self, script: Script, name: str, value: int) -> None:
        self._script, self.name, self.value = script, name, value

    __add__, __radd__ = _operation("+"), _operation("+", True)
    __sub__, __rsub__ = _operation("-"), _operation("-", True)
    __mul__, __rmul__ = _operation("*"), _operation("*", True)
    __floordiv__, __rfloordiv__ = _operation("//"), _operation("//", True)
    __mod__, __rmod__ = _operation("%"), _operation("%", True)
    __eq__, __ne__ = _comparison("=="), _comparison("!=")
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("<", "<=", ">", ">="))

    def __neg__(self) -> Any:
        return 0 - self

    def __rpow__(self, other: int) -> int:
        return int(other ** int(self))

    def bit_length(self) -> Number:
        """As of an integer."""
        return self._script.number(BITS, self, 0, self.value.bit_length())

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __index__(self) -> int:
        assert self == self.value
        return self.value

    __int__ = __index__

    def __hash__(self) -> int:
        return hash(int(self))


def plain(x: Any) -> Any:
    """The value of a number now, without a decision; other values as they are."""
    return x.value if isinstance(x, Number) else x
