"""Warnings that a process gives once."""

from __future__ import annotations

import warnings
from collections.abc import Hashable

_SAID: set[Hashable] = set()


def warn_once(sentence: str, key: Hashable = None) -> None:
    """Warn, unless it was done before with this key or, without one, with this sentence."""
    key = sentence if key is None else key
    if key not in _SAID:
        _SAID.add(key)
        warnings.warn(sentence, stacklevel=4)
