"""One call under Nsight Compute, as `ncu --profile-from-start off` sees it; needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def under_profiler(call: Callable[[], Any]) -> None:
    """Make a call that was made before while the profiler looks, behind a kernel that marks where it begins."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda._sleep(1000)
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
