"""Arguments of another kind than a function asks for: refused in one sentence, before they are used or ignored."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, wraps
from itertools import islice
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from pebblesim.core.errors import UsageError, as_given

P = ParamSpec("P")
R = TypeVar("R")
Fits = Callable[[Any], bool]

MOST = 10_000_000
"""Most names or numbers in one argument; without an end, an iterable would be read for ever."""

_KINDS: dict[str, tuple[str, Fits]] = {
    "bool": ("True or False", lambda value: type(value).__name__ in ("bool", "bool_")),  # numpy's, too
    "str": ("a text", lambda value: isinstance(value, str)),
    "int": ("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "str | Path": ("a path", lambda value: isinstance(value, str | os.PathLike)),
    "Progress": ("a function", callable),
    "Callable": ("a function", callable),
    "Cdag": ("a graph", lambda value: all(hasattr(value, name) for name in ("indptr", "preds", "inputs", "outputs"))),
    "Mapping[str, int]": ("sizes by name", lambda value: isinstance(value, Mapping)),
    "Mapping": ("values by name", lambda value: isinstance(value, Mapping)),
}
"""Annotations that are checked: what they allow, in words, and whether a value is of that kind. A container without its
contents stands for all of its kind."""

_SEVERAL = {"str": "names", "int": "whole numbers", "float": "numbers"}
"""Contents of `Iterable[…]`, `Sequence[…]`, `Collection[…]` and `tuple[…, ...]`, and how several of them are called."""

_CONTENTS = re.compile(r"(?:Iterable|Sequence|Collection)\[(.+)\]|tuple\[(\w+), (?:\.\.\.|\w+)\]")


@cache
def _one(annotation: str) -> tuple[str, Fits] | None:
    """Return what an annotation of one value allows, in words, and whether a value is of it; None if not known."""
    container = re.fullmatch(r"(\w+)\[(?!.*\] \|).*\]", annotation)
    return _KINDS.get(annotation) or (_KINDS.get(container[1]) if container else None)


def check_kind(name: str, value: Any, annotation: str) -> Any:
    """Check an argument against its annotation, if `_KINDS` or `_SEVERAL` have it, with None or without.

    Returns:
        The value; a whole number of numpy's as Python's, and names or numbers that are no list as a tuple.

    Raises:
        UsageError: it is of another kind.
    """
    if isinstance(value, Integral) and not isinstance(value, int):
        value = int(value)
    kind = annotation.removesuffix(" | None")
    if value is None and kind != annotation:
        return value
    beside = "" if kind == annotation else " or None"
    if kind.startswith("str | ") and isinstance(value, str):
        return value
    several = _CONTENTS.fullmatch(kind.removeprefix("str | "))
    if several and (inside := several[1] or several[2]) in _SEVERAL:
        words = _SEVERAL[inside] if kind[:3] != "str" else f"a name, or {_SEVERAL[inside]}"
        return _all_of(name, value, inside, words + beside)
    if (one := _one(kind)) and not one[1](value):
        raise _refused(name, value, one[0] + beside)
    return value


def _all_of(name: str, value: Any, inside: str, words: str) -> Any:
    """Names or numbers, each checked; as a tuple if they are no list."""
    try:
        given = value if isinstance(value, list | tuple) else tuple(islice(iter(value), MOST + 1))
    except TypeError:
        raise _refused(name, value, words) from None
    if len(given) > MOST:
        raise UsageError(f"{name} = {as_given(value)} has more than {MOST:,} values; give fewer.")
    if isinstance(value, str | bytes) or not all(map(_KINDS[inside][1], given)):
        raise _refused(name, value, words)
    return given


def _refused(name: str, value: Any, allowed: str) -> UsageError:
    return UsageError(f"{name} = {as_given(value)} was given; {name} must be {allowed}.")


def checked_kinds(*whole: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a function by their annotations: flags, texts, numbers, paths, functions, names and sizes.

    Python takes any value for true or false, so that "no" would switch something on. Whole numbers are checked where
    they are used, which says how small they may be; only those that are named here are checked before.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        by_place = [name for name, each in parameters.items() if each.kind <= each.POSITIONAL_OR_KEYWORD]
        kinds = {
            name: str(each.annotation)
            for name, each in parameters.items()
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            and (name in whole or not str(each.annotation).startswith("int"))
        }

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> R:
            given = [check_kind(name, each, kinds.get(name, "")) for name, each in zip(by_place, args, strict=False)]
            named = {name: check_kind(name, each, kinds.get(name, "")) for name, each in kwargs.items()}
            return function(*given, *args[len(given) :], **named)

        return checked

    return decorate
