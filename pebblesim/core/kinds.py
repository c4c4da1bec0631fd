"""Arguments of another kind than a function asks for: refused in one sentence, before they are used or ignored."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from pebblesim.core.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("True or False", lambda value: type(value).__name__ in ("bool", "bool_")),  # numpy's, too
    "str": ("a text", lambda value: isinstance(value, str)),
    "int": ("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "str | Path": ("a path", lambda value: isinstance(value, str | os.PathLike)),
    "Mapping[str, int]": ("sizes by name", lambda value: isinstance(value, Mapping)),
}
"""Annotations that are checked: what they allow, in words, and whether a value is of that kind."""


def check_kind(name: str, value: Any, annotation: str) -> None:
    """Check an argument against its annotation, if that is one of `_KINDS`, with None or without.

    Raises:
        UsageError: it is of another kind.
    """
    kind = annotation.removesuffix(" | None")
    if kind not in _KINDS or (value is None and kind != annotation):
        return
    allowed, fits = _KINDS[kind]
    if not fits(value):
        beside = "" if kind == annotation else " or None"
        raise UsageError(f"{name} = {value!r} was given; {name} must be {allowed}{beside}.")


def checked_kinds(*whole: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a function by their annotations: flags, texts, numbers, paths and sizes by name.

    Python takes any value for true or false, so that "no" would switch something on. Whole numbers are checked where
    they are used, which says how small they may be; only those that are named here are checked before.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        by_place = [name for name, each in signature.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
        kinds = {
            name: each.annotation
            for name, each in signature.parameters.items()
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
            and (name in whole or not str(each.annotation).startswith("int"))
        }

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in (*zip(by_place, args, strict=False), *kwargs.items()):
                check_kind(name, value, kinds.get(name, ""))
            return function(*args, **kwargs)

        return checked

    return decorate
