"""Names of classes of calls in the table of a package of kernels, and texts of kernels for another type and scale."""

from __future__ import annotations

import re
from math import e, log2
from typing import Any


def name_of(way: str, widths: tuple[int, int], mask: Any, shared: int) -> str:
    """The name of a class of calls: a pass, the head dimensions, a mask, heads of queries on each head of keys."""
    kind = "all" if mask is None else f"{mask.name} from the {'end' if mask.at_end else 'start'}"
    return f"{way} {widths[0]}x{widths[1]} {kind} shared {shared}"


def filled_in(text: str, d: int, dtype: str, scale: float) -> str:
    """A text of kernels for words of bfloat16 and the scale 1/√d, as it is for another type and scale.

    These stand in it as names and as numbers, if the scale is above 0. Whoever writes a package checks that this makes
    what would be written.
    """
    usual, scale = d**-0.5, float(scale)
    for before, after in ((usual, scale), (usual * log2(e), scale * log2(e))) if scale != usual else ():
        text = re.sub(rf"(?<![\w.]){re.escape(repr(before))}(?![\w.])", repr(after), text)
    return text.replace("bfloat16", dtype)
