"""Kernels run by the interpreter of Triton over numpy, on tensors of the CPU: for tests without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import triton_interpreter


def module_of(text: str) -> Any:
    """A module with this source, the `run` of which is interpreted."""

    def run(*given: torch.Tensor, **others: torch.Tensor) -> dict[str, torch.Tensor]:
        kind = str(given[0].dtype).removeprefix("torch.")
        shift = others.pop("dL", None)
        arrays = {
            str(number): (each if each.dtype == torch.int32 else each.detach().double()).numpy()
            for number, each in enumerate((*given, *others.values()))
        }
        outputs, _ = triton_interpreter.run(text, arrays, kind, shift=None if shift is None else shift.numpy())
        return {
            name: torch.from_numpy(array).to(torch.float32 if name == "L" else given[0].dtype)
            for name, array in outputs.items()
        }

    names = [line.split("(")[0].removeprefix("def ") for line in text.splitlines() if line.startswith("def ")]
    return SimpleNamespace(**(dict.fromkeys(names) | {"run": run}))
