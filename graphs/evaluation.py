"""Evaluate a graph with compiled code. This is a separate module because importing numba is slow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.jit import kernel
from pebblesim.graphs.operations import Op

ZERO, MUL, ADD, SUB = int(Op.ZERO), int(Op.MUL), int(Op.ADD), int(Op.SUB)
DIV, EXP, TERM = int(Op.DIV), int(Op.EXP), int(Op.TERM)
LOG, MAX, MINUS_INFINITY = int(Op.LOG), int(Op.MAX), int(Op.MINUS_INFINITY)
RELU, STEP, SIGMOID = int(Op.RELU), int(Op.STEP), int(Op.SIGMOID)


@kernel(*map(int, Op), error_model="numpy")
def evaluate(
    op: NDArray[np.uint8], indptr: NDArray[Any], preds: NDArray[Any], values: NDArray[np.float64], masked: bool
) -> None:
    """Fill in `values`, which holds the inputs, vertex by vertex. Ids must be in topological order.

    In a masked graph 0/0 and (-inf) - (-inf) are 0.
    """
    for v in range(op.size):
        code = op[v]
        at = np.int64(indptr[v])
        if code == MUL:
            values[v] = values[preds[at]] * values[preds[at + 1]]
        elif code == ADD:
            values[v] = values[preds[at]] + values[preds[at + 1]]
        elif code == SUB:
            x, y = values[preds[at]], values[preds[at + 1]]
            values[v] = 0.0 if masked and x == y == -np.inf else x - y
        elif code == DIV:
            x, y = values[preds[at]], values[preds[at + 1]]
            values[v] = 0.0 if masked and x == y == 0 else x / y
        elif code == EXP:
            values[v] = np.exp(values[preds[at]])
        elif code == TERM:
            values[v] = values[preds[at]]
        elif code == LOG:
            values[v] = np.log(values[preds[at]])
        elif code == MAX:
            values[v] = max(values[preds[at]], values[preds[at + 1]])
        elif code == RELU:
            values[v] = max(values[preds[at]], 0.0)
        elif code == STEP:
            values[v] = 1.0 if values[preds[at]] > 0 else 0.0
        elif code == SIGMOID:
            values[v] = 1 / (1 + np.exp(-values[preds[at]]))
        elif code == ZERO:
            values[v] = 0.0
        elif code == MINUS_INFINITY:
            values[v] = -np.inf
