"""Kernels run by the interpreters of Triton and of Gluon over numpy, on tensors of the CPU: for tests without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import nan
from types import SimpleNamespace
from typing import Any

import gluon_interpreter
import numpy as np
import pytest
import torch
import triton_interpreter

from pebblesim.advice import tiles
from pebblesim.kernels.passes.sums_of_sinks import SUMS_OF
from pebblesim.operator import planning
from pebblesim.operator.launching import fresh, launching

SUMMED: list[str] = []
"""Schedules of the passes whose last kernel has summed the gradient of sinks, in order."""


def forget() -> None:
    """Forget which kernels were chosen, and their modules."""
    for each in (planning._forecasts, planning.chosen, planning.chosen_for_latent, launching.loaded):
        each.cache_clear()


@contextmanager
def launched(fewest_rows: int = 32) -> Iterator[Callable[[Any, Any], None]]:
    """Meanwhile tensors on the CPU go through kernels, and new memory holds NaN; called, it sets both passes' tilings.

    `fewest_rows`: the longest side of their tiles.
    """
    with pytest.MonkeyPatch.context() as patch, fresh.filled(nan):
        patch.setattr(launching, "module_of", module_of)
        patch.setattr(tiles, "FEWEST_ROWS", fewest_rows)

        def only(forward: Any, backward: Any) -> None:
            patch.setattr(tiles, "TILINGS", {"forward": tuple(forward), "backward-qkv": tuple(backward)})
            forget()

        forget()
        yield only
    forget()


def module_of(text: str) -> Any:
    """A module with this source, the `run` of which is interpreted."""
    gluon = "import gluon" in text

    def run(
        *given: torch.Tensor,
        results: dict[str, torch.Tensor],
        apart: dict[str, int] | None = None,
        sums_of: tuple[torch.Tensor, torch.Tensor] | None = None,
        **others: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        kind = str(given[0].dtype).removeprefix("torch.")
        shift = others.pop("dL", None)
        tensors = {str(number): each for number, each in enumerate((*given, *others.values()))}
        sums = [name for name, each in results.items() if each.dtype == torch.float32 != given[0].dtype]
        in_numpy = None
        if sums_of is not None:
            types = [triton_interpreter.TYPES[str(each.dtype).removeprefix("torch.")] for each in sums_of]
            sinks, made = (each.detach().float().numpy() for each in sums_of)
            in_numpy = (
                triton_interpreter.Array(sinks, types[0], sums_of[0].stride()),
                triton_interpreter.Array(np.full(made.shape, nan), types[1]),
            )
        interpreted = partial(gluon_interpreter.run, pairs=None, seed=len(tensors)) if gluon else triton_interpreter.run
        outputs, _ = interpreted(
            text,
            {
                name: (each if each.dtype == torch.int32 else each.detach().double()).numpy()
                for name, each in tensors.items()
            },
            dtype=kind,
            shift=None if shift is None else shift.numpy(),
            strides={name: each.stride() for name, each in tensors.items() if each.dim() in (2, 4)},
            results={name: (tuple(each.shape), each.stride()) for name, each in results.items()},
            wide=sums,
            begin={name: results[name].numpy() for name in sums},
            apart=apart,
            sums_of=in_numpy,
        )
        if sums_of is not None and in_numpy is not None:
            SUMMED.append(text.partition(":")[0].strip('"'))
            assert in_numpy[1].there.all()
            sums_of[1].copy_(torch.from_numpy(in_numpy[1].numpy()))
        found = {name: torch.from_numpy(array) for name, array in outputs.items()}
        for name in results.keys() & found.keys():
            if found[name].dim() == 4:
                found[name] = results[name].copy_(found[name])
        return {name: each.to(torch.float32) if each.dim() < 4 else each for name, each in found.items()}

    def summing(*given: Any, sums_of_sinks: Any = None, **others: Any) -> dict[str, torch.Tensor]:
        return run(*given, sums_of=sums_of_sinks, **others)

    names = [line.split("(")[0].removeprefix("def ") for line in text.splitlines() if line.startswith("def ")]
    return SimpleNamespace(**(dict.fromkeys(names) | {"run": summing if f"{SUMS_OF}=None" in text else run}))
