"""Types of the words that kernels on tensor cores move, and the bytes of what they move."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pebblesim.core.units import Bytes
from pebblesim.language import program as ir

WORDS = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of the allowed data types of a matrix word."""

LEAST_SIDE = 16
"""Shortest side of a tile that tensor cores support."""


def word_of(program: ir.Program, tensor: ir.Tensor, dtype: str) -> str:
    """The type of a word of a tensor in memory: vectors, and sums kept there, are float32 for every matrix type."""
    return "float32" if is_float32(program, tensor) else dtype


def word_bytes(program: ir.Program, tensor: ir.Tensor, dtype: str) -> int:
    """Bytes of a word of a tensor in memory."""
    return WORDS[word_of(program, tensor, dtype)]


def is_float32(program: ir.Program, tensor: ir.Tensor) -> bool:
    """Whether a tensor is a vector, or holds sums that are read, added to and written again, there or elsewhere."""
    return len(tensor.shape) == 1 or tensor in _sums(program)


@lru_cache(maxsize=256)
def _sums(program: ir.Program) -> frozenset[ir.Tensor]:
    nodes = [node for phase in program.phases for node in ir.walk(phase.body)]
    read = {node.tile: node.tensor for node in nodes if isinstance(node, ir.Read)}
    return frozenset(read[node.tile] for node in nodes if isinstance(node, ir.Write) and node.tile in read)


def moved_bytes(program: ir.Program, by_tensor: Mapping[str, tuple[int, int]], dtype: str) -> Bytes:
    """Return the bytes that the kernels of a program move, from the words read and written of each tensor."""
    moved = Bytes()
    for tensor, (reads, writes) in by_tensor.items():
        width = word_bytes(program, program.tensors[tensor], dtype)
        moved += Bytes(width * reads, width * writes)
    return moved


def of_launch(settings: Mapping[str, tuple[int, ...]], name: str, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """The settings of a launch, by its name or that of its phase, which has several launches under a mask."""
    return settings.get(name) or settings.get(phase_of(name)) or otherwise


def phase_of(name: str) -> str:
    """The phase of a launch by its name; under a mask a phase has several, which are told apart by a number."""
    phase, _, number = name.rpartition(" ")
    return phase if number.isdecimal() else name
