"""Kernels are read by Triton without its rehearsals of loops: a loop in a loop would be read four times.

Triton goes through the body of a loop once to see which variables it changes, and once more to keep what it makes. The
first time is left out here: the variables are those that the text of the body assigns. The instructions are the same.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

HERE = threading.local()
"""State of this thread: `once`, whether it reads a kernel of ours."""


def read_once(make: Callable[[], Any]) -> Any:
    """Read a kernel by `make`; as Triton reads it, if that fails, or if another Triton reads in another way."""
    if not _can():
        return make()
    HERE.once = True
    try:
        return make()
    except Exception:  # Triton's own way says what is wrong, if something is
        HERE.once = False
        return make()
    finally:
        HERE.once = False


@cache
def _can() -> bool:
    """Have Triton ask this module, and say whether it does."""
    from triton.compiler import code_generator

    generator = code_generator.CodeGenerator
    rehearsed = getattr(generator, "_find_carries", None)
    if rehearsed is None or [*signature(rehearsed).parameters] != ["self", "node", "liveins", "ignore"]:
        return False

    def changed(self: Any, node: Any, liveins: dict[str, Any], ignore: Any = frozenset()) -> tuple[list[Any], ...]:
        if not getattr(HERE, "once", False):
            found: tuple[list[Any], ...] = rehearsed(self, node, liveins, ignore)
            return found
        assigned = _assigned(node) - {*ignore}
        values = {
            name: liveins[name]
            for name in liveins
            if name in assigned and isinstance(liveins[name], code_generator.base_value)
        }
        handles = {name: code_generator.flatten_values_to_ir([value]) for name, value in values.items()}
        names = [name for name in values if handles[name]]  # a constant has none
        self.lscope, self.local_defs = liveins.copy(), {}
        return names, [each for name in names for each in handles[name]], [values[name].type for name in names]

    generator._find_carries = changed
    return True


def _assigned(loop: Any) -> set[str]:
    """Names that the text of a loop assigns."""
    nodes = (node for statement in loop.body for node in ast.walk(statement))
    return {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
