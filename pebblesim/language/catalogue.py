"""Things by name, those that ship with pebblesim first: the schedules, the problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class Catalogue(MutableMapping[str, T]):
    """Things by name, in the order in which they were registered.

    What ships with pebblesim is registered when the catalogue is first asked for something, or first given something,
    so that nobody's own can take its names.
    """

    def __init__(self, home: str) -> None:
        """`home` is the package that registers what ships, when it is imported."""
        self._home = home
        self._known: dict[str, T] = {}

    @property
    def _all(self) -> dict[str, T]:
        import_module(self._home)  # nothing happens while it is being imported, or after
        return self._known

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
        """Whatever is registered inside is forgotten at the end."""
        before = dict(self._all)
        try:
            yield
        finally:
            self._known.clear()
            self._known.update(before)


def place(function: Callable[..., Any]) -> str:
    """Where a function is defined, and may be defined anew: its file, or the notebook, whose cells are files each."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    return "__main__" if function.__module__ == "__main__" or code is None else str(code.co_filename)
