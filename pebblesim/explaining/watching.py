"""`explain`: find the attention calls of a model while it runs; needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pebblesim.advice.calls import Recorded
from pebblesim.core.errors import UsageError
from pebblesim.explaining.eager import Eager
from pebblesim.explaining.entries import replaced
from pebblesim.explaining.recorder import Recorder


@contextmanager
def watched(model: Any = None) -> Iterator[Recorder]:
    """Record all attention calls within a block.

    Raises:
        UsageError: the model is compiled: what runs is not what it says.
    """
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        raise UsageError("this model is compiled, and its calls cannot be seen; explain it before torch.compile.")
    recorder = Recorder(model)
    functional: Any = torch.nn.functional
    asks = functional.has_torch_function
    # multi_head_attention_forward would be handed over as a whole, and its products not be seen.
    functional.has_torch_function = lambda tensors: False
    try:
        with recorder.following(), replaced(recorder), Eager(recorder):
            yield recorder
    finally:
        functional.has_torch_function = asks


def recorded(call: Callable[[], Any], model: Any = None) -> Recorded:
    """Return the attention calls of a function."""
    with watched(model) as recorder:
        call()
    return recorder.result()


def run_of(made: Any) -> tuple[Callable[[], Any], Any]:
    """Return what runs, and the model in it, from what a user's function returned.

    Args:
        made: (model, batch), where batch is a tensor, a tuple of arguments or a dictionary of named ones; or something
            to call.

    Raises:
        UsageError: it is something else.
    """
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        model, batch = made
        if isinstance(batch, dict):
            return (lambda: model(**batch)), model
        return (lambda: model(*batch) if isinstance(batch, tuple | list) else model(batch)), model
    if callable(made):
        return made, made if isinstance(made, torch.nn.Module) else None
    raise UsageError(
        f"the function returned {type(made).__name__}; it must return (model, batch), where batch is a tensor, a tuple "
        "or a dictionary of arguments, or something to call without arguments."
    )
