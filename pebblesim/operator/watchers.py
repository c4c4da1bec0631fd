"""Functions that are told of each call of `attention`, with its arguments by their names: `explain` has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WATCHERS: list[Callable[[dict[str, Any]], None]] = []
