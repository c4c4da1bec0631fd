"""Check which requirements of the GPU harness are installed, and how to get the others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pebblesim.core.errors import PebblesimError
from pebblesim.measuring import ncu

INSTALL_TOOLKIT = "install the CUDA toolkit, https://developer.nvidia.com/cuda-downloads"

TINY = (
    "import cupy; text = 'extern \"C\" __global__ void pebblesim_try(float* x) { *x = 1; }';"
    "cupy.RawKernel(text, 'pebblesim_try')((1,), (1,), (cupy.zeros(1, 'f4'),)); cupy.cuda.runtime.deviceSynchronize()"
)


@dataclass(frozen=True)
class Requirement:
    """A requirement of some commands.

    Attributes:
        what: its name.
        found: what was found, or None.
        needed_for: the commands that need it.
        get: how to get it.
    """

    what: str
    found: str | None
    needed_for: str
    get: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def compiler() -> str | None:
    """The C++ compiler of this machine."""
    return next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)


def examine() -> list[Requirement]:
    """Look for all requirements; each of them may be missing."""
    gpu = _quiet(_gpu)
    profiler = ncu.find()
    counters = _quiet(_counters) if gpu and profiler else None
    nvcc = shutil.which("nvcc")
    return [
        Requirement("driver and GPU", gpu or _quiet(_driver), "measure, crossover", "an NVIDIA GPU, and its driver"),
        Requirement("CuPy", _quiet(_cupy), "measure, crossover", "pip install cupy-cuda13x"),
        Requirement(
            "Nsight Compute", profiler and f"{profiler}, {ncu.version(profiler)}", "measure, crossover", INSTALL_TOOLKIT
        ),
        Requirement(
            "permission to read counters",
            counters,
            "measure, crossover",
            "run as root, or set the driver's option NVreg_RestrictProfilingToAdminUsers=0",
        ),
        Requirement("nvcc", nvcc, "compiling what `emit` writes, and some tests", INSTALL_TOOLKIT),
        Requirement("C++ compiler", compiler(), "the simulated GPU of the tests", "install g++ or clang++"),
    ]


def ready(requirements: list[Requirement]) -> bool:
    """Whether `measure` can work here."""
    return all(each.found for each in requirements if "measure" in each.needed_for)


def _quiet(look: Callable[[], str | None]) -> str | None:
    try:
        return look()
    except (PebblesimError, OSError, subprocess.SubprocessError, ImportError):
        return None


def _gpu() -> str:
    from pebblesim.measuring.device import describe

    gpu = describe()
    return (
        f"{gpu['device']}, driver {gpu['driver']}, CUDA {gpu['cuda'] // 1000}.{gpu['cuda'] % 1000 // 10}, "
        f"{gpu['multiprocessors']} multiprocessors, {gpu['l2_bytes'] / 2**20:.0f} MiB of L2, "
        f"{gpu['shared_bytes_per_block'] // 4:,} words of shared memory in a block"
    )


def _driver() -> str | None:
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def _cupy() -> str:
    import cupy

    return str(cupy.__version__)


def _counters() -> str:
    launches = ncu.profile([sys.executable, "-c", TINY], kernels="^pebblesim_try$", timeout=120)
    return f"yes ({len(launches[0].values)} counters of a small kernel were read)"
