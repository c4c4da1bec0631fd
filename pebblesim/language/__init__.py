"""The language of schedules, and the program that a schedule is traced into."""

from pebblesim.language.expressions import (
    Block,
    Index,
    Tensor,
    Tile,
    Value,
    exp,
    log,
    maximum,
    relu,
    rowmax,
    rowsum,
    sigmoid,
    step,
)
from pebblesim.language.machine import Machine, trace

__all__ = [
    "Block",
    "Index",
    "Machine",
    "Tensor",
    "Tile",
    "Value",
    "exp",
    "log",
    "maximum",
    "relu",
    "rowmax",
    "rowsum",
    "sigmoid",
    "step",
    "trace",
]
