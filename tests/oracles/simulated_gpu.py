"""Run kernels without a GPU: a C++ compiler builds the same source, and a simulated GPU runs it and counts."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.kernels.cuda.cuda import Kernel, memory, prelude
from pebblesim.language import program as ir
from pebblesim.launches.sectors import Moved
from pebblesim.measuring.device import rows
from pebblesim.measuring.doctor import compiler

Array = NDArray[Any]

ALIGNMENT = 256
"""Alignment of arrays in memory, in bytes."""


@dataclass(frozen=True)
class Launched:
    """Counters of the simulated GPU for a launch; `faults` are accesses outside the tiles and tensors."""

    name: str
    moved: Moved
    faults: int


class Simulated:
    """A simulated GPU with some kernels."""

    def __init__(self, texts: Iterable[str], folder: Path) -> None:
        """Build the sources of some kernels, in a folder that exists as long as they are used.

        Raises:
            UsageError: there is no C++ compiler.
            PebblesimError: the compiler reports an error.
        """
        command = compiler()
        if command is None:
            raise UsageError("no C++ compiler is on the path (g++, clang++ or c++); install one to simulate kernels.")
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text("\n".join([prelude(), *texts]), encoding="utf-8")
        flags = ["-std=c++17", "-O0", "-w", "-shared", "-fPIC"]
        built = subprocess.run([command, *flags, "-o", library, source], capture_output=True, text=True, check=False)
        if built.returncode:
            raise PebblesimError(f"{command} does not build the kernels: {built.stderr.strip()}")
        self._library = ctypes.CDLL(str(library))
        self._library.gpu_memory.argtypes = [ctypes.c_void_p, ctypes.c_longlong]
        self._library.gpu_launch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_int]

    def run(
        self,
        kernels: Iterable[Kernel],
        program: ir.Program,
        sizes: ir.Sizes,
        inputs: Mapping[str, Array],
        *,
        threads: int = 64,
        backwards: bool = False,
    ) -> tuple[dict[str, Array], list[Launched]]:
        """Launch the kernels of a program one after the other.

        Args:
            kernels: the kernels from `cuda`, built into this GPU.
            program, sizes, inputs: as for the reading `numbers`; `workers` among the sizes.
            threads: in each block, a multiple of 32.
            backwards: let the last thread of a block be the first to run.

        Returns:
            The outputs, in float32, and the traffic of each launch.
        """
        (outputs,), launched = self.run_heads(kernels, program, sizes, [inputs], threads=threads, backwards=backwards)
        return outputs, launched

    def run_heads(
        self,
        kernels: Iterable[Kernel],
        program: ir.Program,
        sizes: ir.Sizes,
        inputs: Sequence[Mapping[str, Array]],
        *,
        threads: int = 64,
        backwards: bool = False,
    ) -> tuple[list[dict[str, Array]], list[Launched]]:
        """Like `run`, with the inputs and outputs of each head of a batch."""
        kernels, heads = list(kernels), range(len(inputs))
        words = memory(kernels, program, sizes)
        apart = {name: room if len(heads) == 1 else (room + 31) // 32 * 32 for name, room in words.items()}
        arrays = {name: _aligned(len(heads) * room) for name, room in apart.items()}

        def part(name: str, head: int) -> Array:
            return rows(arrays[name][head * apart[name] :], program.tensors[name], sizes)

        for name in program.inputs:
            for head in heads:
                part(name, head)[...] = inputs[head][name]
        self._library.gpu_memory(None, 0)
        for array in arrays.values():
            self._library.gpu_memory(array.ctypes.data, array.size)
        launched = [self._launch(kernel, sizes, arrays, threads, backwards) for kernel in kernels]
        return [{name: part(name, head) for name in program.outputs} for head in heads], launched

    def _launch(
        self, kernel: Kernel, sizes: ir.Sizes, arrays: Mapping[str, Array], threads: int, backwards: bool
    ) -> Launched:
        function, counts = getattr(self._library, kernel.name), (ctypes.c_longlong * 5)()
        pointers = [ctypes.c_void_p(arrays[name].ctypes.data) for name in kernel.tensors]
        arguments = [*pointers, *(ctypes.c_int(value) for value in kernel.values(sizes))]
        number = kernel.blocks(sizes) or 3
        self._library.gpu_launch(number, threads, kernel.shared_words(sizes), backwards)
        for block in range(number):
            self._library.gpu_block(block)
            function(*arguments)
        self._library.gpu_counts(counts)
        reads, writes, sectors_read, sectors_written, faults = counts
        return Launched(kernel.launch.name, Moved(reads, writes, sectors_read, sectors_written), faults)


def _aligned(words: int) -> Array:
    """Return an array of this number of float32, all NaN."""
    room = np.full(words + ALIGNMENT // 4, np.nan, np.float32)
    skip = -room.ctypes.data % ALIGNMENT // 4
    return room[skip : skip + words]
