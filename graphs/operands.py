"""Operations and operands: what the vertices of a family compute, and from which vertices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.numbering import Family
from pebblesim.graphs.cdag import latest_roots, roots, section_roots
from pebblesim.graphs.operations import Op

UNARY: Final = {"exp": Op.EXP, "log": Op.LOG, "relu": Op.RELU, "step": Op.STEP, "sigmoid": Op.SIGMOID}
BINARY: Final = {"mul": Op.MUL, "add": Op.ADD, "sub": Op.SUB, "div": Op.DIV, "max": Op.MAX}
ELEMENTWISE: Final = UNARY | BINARY
TERM: Final = {"matmul": Op.MUL, "rowsum": Op.TERM, "rowmax": Op.TERM}
PARTIAL_SUM: Final = {"matmul": Op.ADD, "rowsum": Op.ADD, "rowmax": Op.MAX}


def arity(family: Family) -> int:
    """Number of operands of each term of a sum, or of each element of a family that is not a sum."""
    return len(family.operands) - family.onto


def entries(
    operand: str, family: Family, block: int, by_name: Mapping[str, Family], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return the ids of an operand's entries as a block of `family` uses them."""
    name, _, how = operand.partition(".")
    source = by_name[name]
    if how == "T":
        return roots(source, dtype).swapaxes(-1, -2)
    if how == "prev":
        return latest_roots(source, block, dtype, source.split(block))
    if how == "last":
        return latest_roots(source, source.blocks, dtype)
    if how == "ends":
        first = block * source.restart
        return latest_roots(source, min(first + source.restart, source.blocks), dtype, first)
    if source.running and family.running:
        return section_roots(source, block, dtype)
    if source.running:
        steps = np.stack([section_roots(source, step, dtype) for step in range(source.blocks)], axis=1)
        return steps[:, np.arange(family.shape[1]) // source.running]
    return roots(source, dtype)


def term_entries(family: Family, block: int, by_name: Mapping[str, Family], dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    """Return for each operand of a sum ids by (row or column of the result, summation index over all blocks)."""
    factors = [entries(operand, family, block, by_name, dtype) for operand in family.operands[: arity(family)]]
    factors[1:] = [ids.swapaxes(-1, -2) for ids in factors[1:]]  # the summed dimension comes last in both factors
    blocks = max(ids.shape[0] if ids.ndim == 3 else 1 for ids in factors)
    if blocks == 1:
        return factors
    return [np.concatenate(ids, axis=-1) if ids.ndim == 3 else np.tile(ids, (1, blocks)) for ids in factors]
