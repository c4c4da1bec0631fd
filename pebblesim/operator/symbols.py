"""Integers that follow from sizes, and decisions about them: what the host does for some sizes serves others, too.

Code of the host that is given `Number`s in the place of sizes makes expressions of these. Each comparison, and each use
of a number as a plain integer, is a decision. What the code gives is right for all sizes for which every decision is
the one that was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Untraced(Exception):
    """Something that the host does cannot be written as expressions of sizes."""


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


def _text(made: Any, needed: set[str], rest: list[Any]) -> str:
    """The text of what is returned; names in it are added to `needed`, and values without a text to `rest`."""
    if isinstance(made, Number):
        needed.add(made.name)
        return made.name
    if isinstance(made, tuple):
        return f"({''.join(f'{_text(each, needed, rest)}, ' for each in made)})"
    if made is None or type(made) is int:
        return repr(made)
    rest.append(made)
    return f"r{len(rest) - 1}"


class Number:
    """An integer that follows from sizes: the name of its expression, and its value for the sizes now."""

    __slots__ = ("_script", "name", "value")

    def __init__(self, script: Script, name: str, value: int) -> None:
        self._script, self.name, self.value = script, name, value

    def _with(self, symbol: str, other: Any, turned: bool = False) -> Any:
        value = other.value if isinstance(other, Number) else other
        if type(value) is not int:
            return NotImplemented
        name = other.name if isinstance(other, Number) else f"({value})"
        (a, one), (b, two) = (
            ((name, value), (self.name, self.value)) if turned else ((self.name, self.value), (name, value))
        )
        if symbol in ("//", "%") and not two:
            raise ZeroDivisionError
        result = one + two if symbol == "+" else one - two if symbol == "-" else one * two if symbol == "*" else 0
        result = one // two if symbol == "//" else one % two if symbol == "%" else result
        of = tuple(each.name for each in (self, other) if isinstance(each, Number))
        return self._script.number(f"{a} {symbol} {b}", result, of)

    def __add__(self, other: Any) -> Any:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("+", other, True)

    def __sub__(self, other: Any) -> Any:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("-", other, True)

    def __mul__(self, other: Any) -> Any:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("*", other, True)

    def __floordiv__(self, other: Any) -> Any:
        return self._with("//", other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with("//", other, True)

    def __mod__(self, other: Any) -> Any:
        return self._with("%", other)

    def __rmod__(self, other: Any) -> Any:
        return self._with("%", other, True)

    def __neg__(self) -> Any:
        return self._with("-", 0, True)

    def __rpow__(self, other: int) -> int:
        return int(other ** int(self))

    def bit_length(self) -> Number:
        """As of an integer."""
        return self._script.number(f"{self.name}.bit_length()", self.value.bit_length(), (self.name,))

    def _decide(self, symbol: str, other: Any, holds: Callable[[int, int], bool]) -> Any:
        if isinstance(other, Number):
            if other.name == self.name:
                return holds(0, 0)
            both = (self.name, other.name)
            return self._script.decide(f"{self.name} {symbol} {other.name}", holds(self.value, other.value), both)
        if isinstance(other, float):
            raise Untraced
        if not isinstance(other, int):
            return NotImplemented
        return self._script.decide(f"{self.name} {symbol} {int(other)}", holds(self.value, other), (self.name,))

    def __eq__(self, other: object) -> Any:
        return self._decide("==", other, lambda a, b: a == b)

    def __ne__(self, other: object) -> Any:
        return self._decide("!=", other, lambda a, b: a != b)

    def __lt__(self, other: Any) -> Any:
        return self._decide("<", other, lambda a, b: a < b)

    def __le__(self, other: Any) -> Any:
        return self._decide("<=", other, lambda a, b: a <= b)

    def __gt__(self, other: Any) -> Any:
        return self._decide(">", other, lambda a, b: a > b)

    def __ge__(self, other: Any) -> Any:
        return self._decide(">=", other, lambda a, b: a >= b)

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
