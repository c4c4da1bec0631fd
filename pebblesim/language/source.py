"""The current source line of a schedule, so that errors name the line of the schedule instead of the tracer."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

_HERE = Path(__file__).parent
_TRACER = {str(_HERE / name) for name in ("source.py", "expressions.py", "machine.py")}
_TRACER.add(contextmanager.__code__.co_filename)


def frame() -> Any:
    """Return the innermost frame outside the tracer: the frame of the schedule."""
    found: Any = sys._getframe(1)
    while found.f_code.co_filename in _TRACER:
        found = found.f_back
    return found


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
    lines = [(step.f_code.co_filename, number) for step, number in walk_tb(error.__traceback__)]
    inner = [f"{file}:{number}" for file, number in lines if file not in _TRACER]
    return inner[-1] if inner else otherwise
