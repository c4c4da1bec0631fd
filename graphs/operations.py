"""The operations of the vertices of a graph."""

from __future__ import annotations

from enum import IntEnum


class Op(IntEnum):
    """Operation of a vertex: how its value is computed from its predecessors."""

    INPUT = 0
    ZERO = 1  # the constant 0: it has no predecessor, but is not an input
    MUL = 2
    ADD = 3
    SUB = 4
    DIV = 5
    EXP = 6
    TERM = 7  # x·1, the term of a row sum: one predecessor
    LOG = 8
    MAX = 9
    MINUS_INFINITY = 10  # the constant that a running maximum starts from
    RELU = 11
    STEP = 12  # 1 where positive, else 0: the derivative of RELU
    SIGMOID = 13
    GENERIC = 14  # vertex of a graph made from edges
