"""A hash of everything that defines an object: data, and functions with the code and the values that they use.

Two objects with the same hash compute the same. The opposite does not hold: after a change that changes no result, such
as another order of two lines, the hash is another one.
"""

from __future__ import annotations

import dis
import hashlib
import pickle
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any


def definition(*parts: Any) -> str:
    """Return a hash of these objects, and of this package.

    A user's function counts with its code, defaults, and the values of its closure and of the globals it names, and so
    do the user's functions, classes and modules among them. What belongs to Python or to an installed package counts by
    its name. A file that a function reads is not seen.
    """
    described = _Described()(parts)
    return hashlib.sha256(repr((package(), described)).encode()).hexdigest()


@cache
def package() -> str:
    """Return a hash of the source text of this package."""

    def texts(folder: Any, where: str) -> Iterator[tuple[str, bytes]]:
        for path in folder.iterdir():
            if path.name.endswith(".py"):
                yield where + path.name, path.read_bytes()
            elif path.is_dir():
                yield from texts(path, f"{where}{path.name}/")

    return hashlib.sha256(repr(sorted(texts(files("pebblesim"), ""))).encode()).hexdigest()


class _Described:
    """Nested lists of texts that describe objects; an object that was already described is a number."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other gets its address

    def __call__(self, part: Any) -> Any:
        if part is None or isinstance(part, bool | int | float | complex | str | bytes):
            return repr(part)
        if id(part) in self.seen:
            return self.seen[id(part)][0]
        self.seen[id(part)] = len(self.seen), part
        if isinstance(part, Mapping):
            return ["mapping", *([self(key), self(value)] for key, value in part.items())]
        if isinstance(part, list | tuple):
            return [type(part).__name__, *map(self, part)]
        if isinstance(part, set | frozenset):
            return ["set", *sorted(repr(self(each)) for each in part)]
        if isinstance(part, partial):
            return ["partial", *map(self, (part.func, part.args, part.keywords))]
        if isinstance(part, MethodType):
            return ["method", self(part.__func__), self(part.__self__)]
        if isinstance(part, FunctionType | type | ModuleType):
            return self._named(part)
        if callable(wrapped := getattr(part, "__wrapped__", None)):  # by a cache, or a compiler
            return ["wrapped", self(type(part)), self(wrapped)]
        if is_dataclass(part):
            return [self(type(part)), *([entry.name, self(getattr(part, entry.name))] for entry in fields(part))]
        try:
            return [self(type(part)), hashlib.sha256(pickle.dumps(part)).hexdigest()]
        except Exception:  # what cannot be pickled says so in many ways
            return [self(type(part)), repr(part)]

    def _named(self, part: Any) -> Any:
        module = part.__name__ if isinstance(part, ModuleType) else part.__module__
        name = f"{module}.{getattr(part, '__qualname__', '')}"
        if not _is_of_the_user(module):
            return name
        if isinstance(part, ModuleType):
            return [name, _text(part.__spec__.origin if part.__spec__ else None)]
        if isinstance(part, type):
            kept = {key: value for key, value in vars(part).items() if key not in ("__dict__", "__weakref__")}
            return [name, self(part.__bases__), self({key: _inside(value) for key, value in kept.items()})]
        cells = []
        for cell in part.__closure__ or ():
            with suppress(ValueError):  # a variable that has no value yet
                cells.append(cell.cell_contents)
        return [name, *map(self, (part.__defaults__, part.__kwdefaults__, cells)), self._code(part.__code__, part)]

    def _code(self, code: CodeType, function: FunctionType) -> Any:
        known: Mapping[str, Any] = function.__globals__
        used = {name: self(known[name]) for name in code.co_names if name in known}
        imported = {
            instruction.argval: _imported(instruction.argval)
            for instruction in dis.get_instructions(code)
            if instruction.opname == "IMPORT_NAME"
        }
        constants = [
            self._code(const, function) if isinstance(const, CodeType) else self(const) for const in code.co_consts
        ]
        names = code.co_varnames, code.co_names, code.co_freevars, code.co_cellvars, code.co_flags, code.co_argcount
        return [code.co_code.hex(), repr(names), code.co_kwonlyargcount, constants, used, imported]


def _inside(value: Any) -> Any:
    """The functions of a property or a static method; anything else as it is."""
    if isinstance(value, property):
        return value.fget, value.fset
    return getattr(value, "__func__", getattr(value, "func", value))


def _imported(name: str) -> str:
    """The text of a user's module that a function imports when it is called."""
    if not _is_of_the_user(name):
        return ""
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(name)
        return _text(spec.origin if spec else None)
    return ""


def _text(file: str | None) -> str:
    if file is None or not Path(file).is_file():
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


@cache
def _is_of_the_user(module: str) -> bool:
    """Whether a module is neither Python's, nor this package's, nor installed."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "pebblesim":
        return top == "__main__"
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        with suppress(ImportError, ValueError, AttributeError):
            spec = find_spec(top)
            file = spec.origin if spec else None
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file is None or not any(Path(file).is_relative_to(folder) for folder in installed)
