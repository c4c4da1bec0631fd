"""Python state that one iteration of a schedule's loop would hand to the next.

A loop's body is traced once and stands for all iterations. That is right if the body leaves Python's names as it found
them; a flag that it sets, or a name that it binds to another tile, would make the second iteration differ from the
first. So the names before and after a body are compared, with what lists, dictionaries, objects and closures hold.
"""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, pairwise, zip_longest
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any

from pebblesim.core.errors import TraceError
from pebblesim.language.expressions import Block, Index, Tensor, Value
from pebblesim.language.source import Line, frames, of_tracer

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SYMBOLS = (Block, Index, Tensor, Value, *_PLAIN)
_SEVERAL = (list, tuple, set, frozenset, deque)
_UNBOUND = object()
_ONCE = "A loop is traced once, for all its iterations, so the next one would not see the change"


class Names:
    """The names of a schedule at the start of a loop, in the function with the loop and in those that called it."""

    def __init__(self, loop: Line, gone: Callable[[Index | Value], bool]) -> None:
        """Remember what all names stand for.

        Args:
            loop: the line of the loop.
            gone: whether an index or an expression can no longer be used.

        Raises:
            TraceError: a name holds an iterator; how far it is cannot be seen.
        """
        self._loop, self._gone = loop, gone
        self._before = [
            (frame, {name: (value, self._is_gone(value), self._held(name, value)) for name, value in _bound(frame)})
            for frame in frames()
        ]
        self._globals = [(frame, dict(frame.f_globals)) for frame, _ in self._before]

    def check(self) -> None:
        """Compare the names with those at the end of the body.

        A name may be used again for what can no longer be used, as indices and tiles of an earlier loop.

        Raises:
            TraceError: a name stands for something else; the message gives the line that binds it.
        """
        contents = []
        for frame, before in self._before:
            now = dict(_bound(frame))
            for name, (value, was_gone, held) in before.items():
                new = now.get(name, _UNBOUND)
                if was_gone and (new is _UNBOUND or self._is_gone(new)):
                    continue
                if not _same(value, new):
                    self._refuse(frame, name)
                if held:
                    contents.append((name, held, new))
        for frame, variables in self._globals:
            for name, value in variables.items():
                if not _same(value, frame.f_globals.get(name, _UNBOUND)):
                    self._refuse(frame, name)
        for name, held, new in contents:
            if not all(_same(one, other) for one, other in zip_longest(held, self._held(name, new))):
                raise TraceError(
                    f"{self._loop.where}: what {name!r} holds changes in this loop. {_ONCE}; use a tile for what "
                    "changes, or write a separate loop."
                )

    def _refuse(self, frame: Any, name: str) -> None:
        raise TraceError(
            f"{self._loop.file}:{_line_that_binds(frame, name) or int(self._loop)}: {name!r} has a value before the "
            f"loop in line {int(self._loop)}, and is bound anew in it. {_ONCE}; change a tile in place (x[:] = ..., "
            "x += ...), use another name, or write a separate loop."
        )

    def _is_gone(self, value: object) -> bool:
        if isinstance(value, _SEVERAL) and value:
            return all(map(self._is_gone, value))
        return isinstance(value, Index | Value) and self._gone(value)

    def _held(self, name: str, value: object) -> list[object]:
        if isinstance(value, _SYMBOLS):
            return []
        held = list(_within(value, set()))
        if any(isinstance(each, Iterator) and not of_tracer(each) for each in held):
            raise TraceError(
                f"{self._loop.where}: {name!r} holds an iterator at the start of this loop. {_ONCE}; make it a list or "
                "a tuple."
            )
        return held


def _bound(frame: Any) -> list[tuple[str, Any]]:
    """The variables of a function, without the iterators of its comprehensions, which Python calls .0."""
    return [(name, value) for name, value in frame.f_locals.items() if not name.startswith(".")]


def _same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)


def _within(value: Any, seen: set[int]) -> Iterator[object]:
    """Whatever Python code may reach from a value and change: elements, attributes, variables of closures."""
    if isinstance(value, _PLAIN) or id(value) in seen or of_tracer(value):
        yield value
        return
    seen.add(id(value))
    yield value
    parts: list[Any] = []
    if isinstance(value, _SEVERAL):
        parts.extend(value)
    elif isinstance(value, dict):
        parts.extend(chain.from_iterable(value.items()))
    elif isinstance(value, MethodType | BuiltinMethodType):
        parts.append(value.__self__)
    elif isinstance(value, FunctionType):
        parts.extend(map(_contents, value.__closure__ or ()))
        parts.extend(value.__defaults__ or ())
    if not isinstance(value, type) and isinstance(attributes := getattr(value, "__dict__", None), dict):
        parts.append(attributes)
    for part in parts:
        yield from _within(part, seen)


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return _UNBOUND


def _line_that_binds(frame: Any, name: str) -> int | None:
    """The line at which the loop that a function is in binds or deletes a name; None if it does not do so itself.

    Of a tile `x`, `x += ...` is no such line, unless there is no other.
    """
    steps = list(dis.get_instructions(frame.f_code))
    loop = next((step for step in steps if step.offset == frame.f_lasti and step.opname == "FOR_ITER"), None)
    lines = []
    for before, step in pairwise(steps):
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        binds = step.opname.startswith(("STORE_", "DELETE_")) and name in names
        if loop and loop.offset < before.offset < loop.argval and binds and step.positions:
            in_place = before.opname == "BINARY_OP" and before.argrepr.endswith("=")
            lines.append((in_place, step.positions.lineno))
    return min(lines)[1] if lines else None
