"""The current source line of a schedule, so that errors name the line of the schedule instead of the tracer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

_HERE = Path(__file__).parent
_TRACER = {
    str(_HERE / f"{name}.py")
    for name in ("source", "expressions", "machine", "tracing", "tile_by_tile", "every_iteration")
}
_TRACER.add(contextmanager.__code__.co_filename)


def frame() -> Any:
    """Return the innermost frame outside the tracer: the frame of the schedule."""
    caller: Any = sys._getframe(1)
    while caller.f_code.co_filename in _TRACER:
        caller = caller.f_back
    return caller


class Line(int):
    """A line number in a schedule's source, together with its file."""

    file: str

    def __new__(cls, number: int, file: str) -> Line:
        line = super().__new__(cls, number)
        line.file = file
        return line

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override] # programs are sent to other processes
        return int(self), self.file

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.file}:{int(self)}"


def line() -> Line:
    """Return the current line of the schedule."""
    here = frame()
    return Line(here.f_lineno, here.f_code.co_filename)


def where() -> str:
    """Return file and line of the schedule."""
    return line().where


def where_is(node_line: int) -> str:
    """Return file and line, if the file is known. Files of this package are given relative to the package."""
    if not isinstance(node_line, Line):
        return f"line {node_line}"
    file = Path(node_line.file)
    return f"{file.relative_to(_HERE.parent.parent) if file.is_relative_to(_HERE.parent) else file}:{int(node_line)}"


def where_raised(error: BaseException, otherwise: str) -> str:
    """Return file and line of the schedule at which an error was raised."""
    inner = _steps(error)
    return f"{inner[-1][0].f_code.co_filename}:{inner[-1][1]}" if inner else otherwise


def what_raised(error: Exception, inputs: Sequence[str], blocks: Sequence[str]) -> str:
    """Return what is wrong. For a name that is not defined, this names the nearest one, and the inputs and blocks."""
    from difflib import get_close_matches

    from pebblesim import language

    *_, (raised_in, _) = walk_tb(error.__traceback__)
    if raised_in.f_code.co_filename in _TRACER:  # whose objects lack what those of another run have
        return "an argument is not of this run of the schedule."
    if isinstance(error, AttributeError) and error.name:
        public = [attribute for attribute in dir(error.obj) if not attribute.startswith("_")]
        near = get_close_matches(error.name, public, n=1)
        return f"{error}; did you mean {near[0]!r}?" if near else f"{error}."
    if not isinstance(error, NameError) or error.name is None:
        return f"{type(error).__name__}: {error}"
    name = error.name
    if name in language.__all__:
        return f"{name!r} is not defined; import it: from pebblesim.language import {name}."
    known = (*inputs, *blocks, *(variable for step, _ in _steps(error)[-1:] for variable in step.f_locals))
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    near = near or [other for other in known if other.casefold() == name.casefold()]
    hint = f"did you mean {near[0]!r}? The" if near else "the"
    kinds = (("input", inputs), ("block", blocks))
    has = [f"the {kind}{'s' * (len(names) > 1)} {', '.join(names)}" for kind, names in kinds if names]
    return f"{name!r} is not defined; {hint} schedule has {' and '.join(has) or 'no inputs'}."


def _steps(error: BaseException) -> list[tuple[Any, int]]:
    """Return the frames outside the tracer in which an error was raised, with their lines; the innermost comes last."""
    return [step for step in walk_tb(error.__traceback__) if step[0].f_code.co_filename not in _TRACER]
