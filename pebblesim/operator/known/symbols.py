"""Integers that follow from sizes, and decisions about them: what the host does for some sizes serves others, too.

Code of the host that is given `Number`s in the place of sizes makes expressions of these. Each comparison, and each use
of a number as a plain integer, is a decision. What the code gives is right for all sizes for which every decision is
the one that was made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any


class Untraced(Exception):
    """Something that the host does cannot be written as expressions of sizes."""


class Uncompiled(Untraced):
    """A kernel is not compiled yet that is launched."""


class Script:
    """Expressions of sizes, and decisions about them, in order."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str, tuple[str, ...]]] = []  # name or "", text, and the names in it
        self._known: dict[str, str] = {}
        self._values: dict[str, int] = {}
        self._sizes = 0

    def size(self, value: int) -> Number:
        """A new size, with its value now."""
        name = f"s{self._sizes}"
        self._sizes += 1
        self._values[name] = value
        return Number(self, name, value)

    def number(self, text: str, value: int, of: tuple[str, ...]) -> Number:
        """The number that an expression of other names gives."""
        name = self._known.get(text)
        if name is None:
            name = self._known[text] = f"t{len(self._lines)}"
            self._lines.append((name, text, of))
        return Number(self, name, value)

    def decide(self, text: str, holds: bool, of: tuple[str, ...]) -> bool:
        """Note a decision: whether a comparison holds."""
        text = text if holds else f"not {text}"
        if text not in self._known:
            self._known[text] = ""
            self._lines.append(("", text, of))
        return holds

    def function(self, made: Any) -> Callable[[Sequence[int]], Any]:
        """A function that gives what was made, of tuples, numbers and other values, for other sizes.

        It takes sizes in the order in which they were made, and gives None where a decision is another one.
        """
        needed, rest = set[str](), list[Any]()
        end = _text(made, needed, rest)
        lines = list[str]()
        for name, text, of in reversed(self._lines):
            if not name or name in needed:
                needed.update(of)
                lines.append(f"    {name} = {text}" if name else f"    if not ({text}): return None")
        sizes = "".join(f"s{at}, " for at in range(self._sizes))
        head = ["def found(sizes):", f"    ({sizes}) = sizes"] if sizes else ["def found(sizes):"]
        there: dict[str, Any] = {f"r{at}": each for at, each in enumerate(rest)}
        exec("\n".join([*head, *reversed(lines), f"    return {end}"]), there)
        found: Callable[[Sequence[int]], Any] = there["found"]
        return found


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


def _text(made: Any, needed: set[str], rest: list[Any]) -> str:
    """The text of what is returned; names in it are added to `needed`, and values without a text to `rest`."""
    if isinstance(made, Number):
        needed.add(made.name)
        return made.name
    if isinstance(made, tuple):
        parts = "".join([f"{_text(each, needed, rest)}, " for each in made])
        if not isinstance(made, Words) and not hasattr(made, "_fields"):
            return f"({parts})"
        rest.append(_struct(len(made)).pack if isinstance(made, Words) else type(made))
        return f"r{len(rest) - 1}({parts})"
    if made is None or type(made) is int:
        return repr(made)
    rest.append(made)
    return f"r{len(rest) - 1}"


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}
NEUTRAL = {"+": 0, "-": 0, "*": 1, "//": 1}
"""The second number of an operation that gives the first one."""

COMPARISONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}
COMPARISONS |= {">": operator.gt, ">=": operator.ge}


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
        value = OPERATIONS[symbol](plain(one), plain(two))
        return self._script.number(f"{_named(one)} {symbol} {_named(two)}", value, _names(one, two))

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
        return self._script.decide(f"{self.name} {symbol} {_named(other)}", holds, _names(self, other))

    return method


def _named(x: Any) -> str:
    return x.name if isinstance(x, Number) else f"({int(x)})"


def _names(*several: Any) -> tuple[str, ...]:
    return tuple([each.name for each in several if isinstance(each, Number)])


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
        return self._script.number(f"{self.name}.bit_length()", self.value.bit_length(), (self.name,))

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
