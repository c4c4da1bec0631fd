"""Run kernels on a GPU with CuPy: build them, check their results, measure their time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.gpu.cases import BYTES, Case
from pebblesim.gpu.emit.cuda import Kernel, memory
from pebblesim.language import program as ir
from pebblesim.launches.sectors import pitch

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
        raise UsageError("CuPy is not installed; `pip install 'pebblesim[gpu]'` brings it.") from None
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


class Runner:
    """A case on the GPU, with its memory."""

    def __init__(self, case: Case, inputs: Mapping[str, Any]) -> None:
        """Build the kernels and fill the memory: inputs, and NaN elsewhere.

        Raises:
            PebblesimError: the compiler spilled registers, so the traffic would not be that of the tiles.
        """
        self.case, self._cp = case, cupy()
        kernels = case.source.kernels
        self.kernels = self._built(case.text)
        if any(function.local_size_bytes for _, function in self.kernels):  # with fewer threads each has more registers
            self.kernels = self._built(with_registers(case.text, case.threads))
        for kernel, function in self.kernels:
            if function.local_size_bytes:
                raise PebblesimError(f"{kernel.name} spills {function.local_size_bytes} bytes of registers per thread.")
            words = kernel.shared_words(case.sizes)
            function.max_dynamic_shared_size_bytes = max(words * BYTES, 1)
        self.arrays = {}
        for name, words in memory(kernels, case.program, case.sizes).items():
            filled = np.full(words, np.nan, np.float32)
            if name in case.program.inputs:
                rows(filled, case.program.tensors[name], case.sizes)[...] = inputs[name]
            self.arrays[name] = self._cp.asarray(filled)

    def _built(self, text: str) -> list[tuple[Kernel, Any]]:
        module = self._cp.RawModule(code=text, options=OPTIONS)
        return [(kernel, module.get_function(kernel.name)) for kernel in self.case.source.kernels]

    def launch(self, kernel: Kernel, function: Any) -> None:
        """Launch a kernel asynchronously."""
        case = self.case
        blocks = kernel.blocks(case.sizes) or FREE_BLOCKS
        pointers = tuple(self.arrays[name] for name in kernel.tensors)
        function((blocks,), (case.threads,), pointers, shared_mem=kernel.shared_words(case.sizes) * BYTES)

    def run(self) -> None:
        """All launches, in order."""
        for kernel, function in self.kernels:
            self.launch(kernel, function)
        self._cp.cuda.runtime.deviceSynchronize()

    def outputs(self) -> dict[str, Any]:
        """Return the outputs of the kernels."""
        program = self.case.program
        return {
            name: rows(self._cp.asnumpy(self.arrays[name]), program.tensors[name], self.case.sizes).astype(np.float64)
            for name in program.outputs
        }

    def registers(self) -> dict[str, int]:
        """Registers per thread of each kernel."""
        return {kernel.name: function.num_regs for kernel, function in self.kernels}

    def resident(self) -> dict[str, int]:
        """Blocks of each kernel that a multiprocessor can hold at once."""
        driver = self._cp.cuda.driver
        return {
            kernel.name: driver.occupancyMaxActiveBlocksPerMultiprocessor(
                function.kernel.ptr, self.case.threads, kernel.shared_words(self.case.sizes) * BYTES
            )
            for kernel, function in self.kernels
        }

    def seconds(self) -> list[float]:
        """Return the time of each launch: the median of some rounds, with caches as the previous launch left them."""
        times: list[list[float]] = [[] for _ in self.kernels]
        events = [[self._event() for _ in range(len(self.kernels) + 1)] for _ in range(20)]
        spent = 0.0
        for round_of_events in events:
            round_of_events[0].record()
            for number, (kernel, function) in enumerate(self.kernels):
                self.launch(kernel, function)
                round_of_events[number + 1].record()
            round_of_events[-1].synchronize()
            for number in range(len(self.kernels)):
                elapsed = self._cp.cuda.get_elapsed_time(round_of_events[number], round_of_events[number + 1])
                times[number].append(elapsed / 1e3)
                spent += elapsed / 1e3
            if spent > SECONDS:
                break
        return [median(each) for each in times]

    def _event(self) -> Any:
        return self._cp.cuda.Event()


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
