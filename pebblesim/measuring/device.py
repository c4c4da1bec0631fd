"""Run kernels on a GPU with CuPy: build them, check their results, measure their time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.kernels.cuda.cuda import Kernel, memory
from pebblesim.language import program as ir
from pebblesim.launches.sectors import pitch
from pebblesim.measuring.cases import BYTES, RESERVED, Case

OPTIONS = ("--std=c++17",)
BOUND = "__launch_bounds__(512)"
"""Largest number of threads in a block, as declared by the kernels."""

FREE_BLOCKS = 1024
"""Number of blocks of a launch that works with any number of blocks."""

SECONDS = 0.2
"""Duration of a time measurement, unless one round takes longer."""


def cupy() -> Any:
    """Return the CuPy library.

    Raises:
        UsageError: CuPy is missing, or there is no GPU.
    """
    try:
        import cupy

        devices = cupy.cuda.runtime.getDeviceCount()
    except ImportError:
        raise UsageError("CuPy is not installed: pip install cupy-cuda13x.") from None
    except Exception as error:
        raise UsageError(f"no NVIDIA GPU can be used here ({error}); see `pebblesim gpu doctor`.") from None
    if not devices:
        raise UsageError("no NVIDIA GPU was found; see `pebblesim gpu doctor`.")
    return cupy


def describe() -> dict[str, Any]:
    """The GPU: its name, driver, sizes and clocks."""
    cp = cupy()
    properties = cp.cuda.runtime.getDeviceProperties(0)
    return {
        "device": properties["name"].decode(),
        "driver": _driver() or "unknown",
        "cuda": cp.cuda.runtime.driverGetVersion(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "l2_bytes": properties["l2CacheSize"],
        "shared_bytes_per_block": properties["sharedMemPerBlockOptin"],
        "shared_bytes_per_multiprocessor": properties["sharedMemPerMultiprocessor"],
        "memory_bytes": properties["totalGlobalMem"],
    }


def _driver() -> str | None:
    """Return the driver's version, as reported by its own tool."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def with_registers(text: str, threads: int) -> str:
    """The text of kernels that are launched with this number of threads in a block, as it is built if registers spill.

    It says that one block on a multiprocessor is enough. Otherwise the compiler may spill to leave room for more, even
    where a thread uses 48 of 255 registers.
    """
    return text.replace(BOUND, f"__launch_bounds__({threads}, 1)")


def built(case: Case) -> list[tuple[Kernel, Any]]:
    """Build the kernels of a case; CuPy keeps them on disk.

    Raises:
        PebblesimError: the compiler spilled registers, so the traffic would not be that of the tiles.
    """

    def functions(text: str) -> list[tuple[Kernel, Any]]:
        module = cupy().RawModule(code=text, options=OPTIONS)
        return [(kernel, module.get_function(kernel.name)) for kernel in case.source.kernels]

    kernels = functions(case.text)
    if any(function.local_size_bytes for _, function in kernels):  # with fewer threads each has more registers
        kernels = functions(with_registers(case.text, case.threads))
    for kernel, function in kernels:
        if function.local_size_bytes:
            raise PebblesimError(f"{kernel.name} spills {function.local_size_bytes} bytes of registers per thread.")
    return kernels


def bytes_needed(case: Case) -> int:
    """Bytes of memory in which `arrays_in` places the arrays of a case."""
    return sum(map(_whole, _bytes_of(case).values()))


def arrays_in(memory_of_gpu: Any, case: Case) -> dict[str, Any]:
    """The arrays of a case, of all heads, one after the other in a buffer of bytes, as views."""
    arrays, first = {}, 0
    for name, size in _bytes_of(case).items():
        arrays[name] = memory_of_gpu[first : first + size].view(np.float32)
        first += _whole(size)
    return arrays


def _bytes_of(case: Case) -> dict[str, int]:
    return {name: BYTES * case.heads * apart for name, apart in case.apart.items()}


def _whole(size: int) -> int:
    return -(-size // 512) * 512


class Runner:
    """A case on the GPU, with its memory."""

    def __init__(self, case: Case, inputs: Sequence[Mapping[str, Any]], memory_of_gpu: Any) -> None:
        """Build the kernels and fill the memory: inputs, and NaN elsewhere.

        Args:
            case: the case.
            inputs: those of the first heads; the other heads have the same ones, in turn.
            memory_of_gpu: `bytes_needed` of the GPU's memory, or more. Cases that follow each other share it: memory
                that is given back seems to be cleared while the next kernels run, and the counters see that.

        Raises:
            PebblesimError: the compiler spilled registers, so the traffic would not be that of the tiles.
        """
        self.case, self._cp, self.kernels = case, cupy(), built(case)
        of_multiprocessor = self._cp.cuda.runtime.getDeviceProperties(0)["sharedMemPerMultiprocessor"]
        self.shared = {kernel.name: _shared_bytes(case, kernel, of_multiprocessor) for kernel, _ in self.kernels}
        for kernel, function in self.kernels:
            function.max_dynamic_shared_size_bytes = self.shared[kernel.name]
            if case.resident:
                function.preferred_shared_memory_carveout = 100  # so that as many blocks run at once as fit
        self.arrays = arrays_in(memory_of_gpu, case)
        self.words = memory(case.source.kernels, case.program, case.sizes)
        for name, array in self.arrays.items():
            array.fill(np.nan)
            for number, values in enumerate(inputs if name in case.program.inputs else ()):
                filled = np.full(self.words[name], np.nan, np.float32)
                rows(filled, case.program.tensors[name], case.sizes)[...] = values[name]
                self._heads(name)[number :: len(inputs)] = self._cp.asarray(filled)

    def _heads(self, name: str) -> Any:
        """The parts of an array, one for each head, as a view."""
        return self.arrays[name].reshape(self.case.heads, -1)[:, : self.words[name]]

    def launch(self, kernel: Kernel, function: Any) -> None:
        """Launch a kernel asynchronously."""
        case = self.case
        blocks = kernel.blocks(case.sizes) or FREE_BLOCKS
        pointers = tuple(self.arrays[name] for name in kernel.tensors)
        function((blocks,), (case.threads,), pointers, shared_mem=self.shared[kernel.name])

    def run(self) -> list[float]:
        """All launches, in order; return the time of each."""
        events = [self._event() for _ in range(len(self.kernels) + 1)]
        events[0].record()
        for number, (kernel, function) in enumerate(self.kernels):
            self.launch(kernel, function)
            events[number + 1].record()
        events[-1].synchronize()
        return [self._cp.cuda.get_elapsed_time(*pair) / 1e3 for pair in pairwise(events)]

    def outputs(self, head: int = 0) -> dict[str, Any]:
        """Return the outputs of the kernels for a head."""
        program = self.case.program
        return {
            name: rows(self._cp.asnumpy(self._heads(name)[head]), program.tensors[name], self.case.sizes).astype(float)
            for name in program.outputs
        }

    def repeat(self, every: int) -> bool:
        """Whether heads that are `every` apart, and so have the same inputs, have the same outputs, to the bit."""
        found = (self._heads(name).view(np.uint32) for name in self.case.program.outputs)
        return all(bool((bits[at::every] == bits[at]).all()) for bits in found for at in range(every))

    def resources(self) -> dict[str, dict[str, int]]:
        """For each kernel, the registers of a thread, and the blocks that a multiprocessor can hold at once."""
        occupancy = self._cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        return {
            "registers": {kernel.name: function.num_regs for kernel, function in self.kernels},
            "resident": {
                kernel.name: occupancy(function.kernel.ptr, self.case.threads, self.shared[kernel.name])
                for kernel, function in self.kernels
            },
        }

    def seconds(self, first: list[float]) -> list[float]:
        """Return the time of each launch: the median of some rounds, with caches as the previous launch left them.

        Args:
            first: what the first round took; if that is long, there is no other.
        """
        rounds = [first] if sum(first) > SECONDS else []
        while len(rounds) < 20 and sum(map(sum, rounds)) <= SECONDS:
            rounds.append(self.run())
        return [median(each) for each in zip(*rounds, strict=True)]

    def _event(self) -> Any:
        return self._cp.cuda.Event()


def _shared_bytes(case: Case, kernel: Kernel, of_multiprocessor: int) -> int:
    """Return the shared memory with which a kernel is launched: its tiles', or so much that no more blocks run at once
    than the case wants."""
    least = max(kernel.shared_words(case.sizes) * BYTES, 1)
    if not case.resident:
        return least
    return max(least, (of_multiprocessor // case.resident - RESERVED) // 128 * 128)


def copy_bandwidth() -> float:
    """Return bytes read and written per second by a large copy inside the GPU's memory: the roof of HBM."""
    cp = cupy()
    source, target = cp.zeros(2**28, np.float32), cp.empty(2**28, np.float32)
    return 2 * source.nbytes / _fastest(cp, lambda: cp.copyto(target, source))


def _fastest(cp: Any, job: Callable[[], Any]) -> float:
    """The least time of some rounds on the GPU, in seconds."""
    times = []
    for _ in range(5):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        job()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end) / 1e3)
    return min(times)


def rows(array: NDArray[Any], tensor: ir.Tensor, sizes: ir.Sizes) -> NDArray[Any]:
    """The entries of a tensor in an array with padded rows, as a view."""
    columns = sizes[tensor.shape[-1]]
    if len(tensor.shape) == 1:
        return array[:columns]
    return array[: sizes[tensor.shape[0]] * pitch(tensor, sizes)].reshape(sizes[tensor.shape[0]], -1)[:, :columns]
