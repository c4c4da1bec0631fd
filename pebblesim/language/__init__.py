"""The language of schedules: what a schedule may say, and the program that it is traced into."""

from pebblesim.language.machine import (
    Block,
    Index,
    Machine,
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
    trace,
)

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
