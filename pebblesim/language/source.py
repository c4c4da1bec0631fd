"""Where in a schedule's source the tracer is: errors name the line of the schedule, not ours."""

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
    """The innermost frame that is not the tracer's: the schedule's."""
    found: Any = sys._getframe(1)
    while found.f_code.co_filename in _TRACER:
        found = found.f_back
    return found


def line() -> int:
    """The line of the schedule."""
    return int(frame().f_lineno)


def where() -> str:
    """File and line of the schedule."""
    here = frame()
    return f"{here.f_code.co_filename}:{here.f_lineno}"


def where_raised(error: BaseException, otherwise: str) -> str:
    """File and line of the schedule at which something went wrong."""
    lines = [(step.f_code.co_filename, number) for step, number in walk_tb(error.__traceback__)]
    inner = [f"{file}:{number}" for file, number in lines if file not in _TRACER]
    return inner[-1] if inner else otherwise
