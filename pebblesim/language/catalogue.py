"""Catalogues of schedules and problems by name; the built-in ones come first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class Catalogue(MutableMapping[str, T]):
    """Objects by name, in order of registration.

    The built-in objects are registered at the first lookup or registration, so that users cannot take their names.
    """

    def __init__(self, home: str) -> None:
        """`home` is the package that registers the built-in objects when it is imported."""
        self._home = home
        self._known: dict[str, T] = {}

    @property
    def _all(self) -> dict[str, T]:
        import_module(self._home)  # has no effect while the package is being imported, or afterwards
        return self._known

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._all

    def __getitem__(self, name: str) -> T:
        return self._all[name]

    def __setitem__(self, name: str, made: T) -> None:
        self._all[name] = made

    def __delitem__(self, name: str) -> None:
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """Forget at the end all objects that were registered inside the `with` block."""
        before = dict(self._all)
        try:
            yield
        finally:
            self._known.clear()
            self._known.update(before)


def place(function: Callable[..., Any]) -> str:
    """Return where a function is defined and may be redefined: its file, or the notebook for all notebook cells."""
    function = _without_arguments(function)
    code = getattr(function, "__code__", None)
    return "__main__" if function.__module__ == "__main__" or code is None else str(code.co_filename)


def is_built_in(function: Callable[..., Any]) -> bool:
    """Whether a function belongs to this package, so that every process knows what it declares."""
    return str(_without_arguments(function).__module__).startswith("pebblesim.")  # None in a text that is executed


def _without_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    return function
