"""Calls under Nsight Compute, as `ncu --profile-from-start off` sees them; needs a GPU."""

from __future__ import annotations

import sys
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


def launched(case: Any) -> Callable[[], Any]:
    """A case's call, made once, so that Triton's cache on disk holds its kernels; if that fails, a call of nothing."""
    import torch

    try:
        call: Callable[[], Any] = case.call()
        call()
    except Exception as error:  # the other cases are measured
        print(case, error, file=sys.stderr)
        return int
    torch.cuda.synchronize()
    return call
