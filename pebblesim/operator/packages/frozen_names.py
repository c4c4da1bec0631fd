"""Names of classes of calls in the table of a package of kernels, and texts of kernels for another type and scale."""

from __future__ import annotations

import re
from math import e, log2
from typing import Any

CAP = 30.0
"""The cap of scores in texts of kernels that cap them."""


def name_of(way: str, widths: tuple[int, int], mask: Any, shared: int, capped: bool) -> str:
    """The name of a class of calls: a pass, head dimensions, mask, heads of queries on each of keys, capped scores."""
    kind = "all" if mask is None else f"{mask.name} from the {'end' if mask.at_end else 'start'}"
    return f"{way} {widths[0]}x{widths[1]} {kind} shared {shared}{' capped' if capped else ''}"


def filled_in(text: str, d: int, dtype: str, scale: float, softcap: float = 0.0) -> str:
    """A text of kernels for words of bfloat16, the scale 1/√d and the cap `CAP`, as it is for others of these.

    They stand in it as names and as numbers, if the scale is above 0; without `softcap` the text caps no scores.
    Whoever writes a package checks that this makes what would be written.
    """
    usual = _numbers(d**-0.5, CAP if softcap else 0.0)
    asked = _numbers(float(scale), float(softcap))
    changed = {repr(before): repr(after) for before, after in zip(usual, asked, strict=True)}
    known = "|".join(map(re.escape, changed))
    text = re.sub(rf"(?<![\w.])(?:{known})(?![\w.])", lambda found: changed[found[0]], text)
    return text.replace("bfloat16", dtype)


def _numbers(scale: float, softcap: float) -> list[float]:
    """The numbers that a scale and a cap are in texts of kernels, as `triton.values` and `gluon.scope` compute them."""
    made, to_base_2 = [scale, scale * log2(e)], log2(e)
    if softcap:
        inner = 2 * scale / softcap
        made += [inner, to_base_2 * inner, 2 * softcap * to_base_2, softcap * to_base_2]
    return made
