"""`explain` for users: around a block of Python, or for a function in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from traceback import walk_tb
from types import ModuleType, TracebackType
from typing import Any

from pebblesim.advice import cards
from pebblesim.advice.calls import Recorded
from pebblesim.advice.cards import Card
from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.explaining.result import Explained, explained


class explain(AbstractContextManager["explain"]):
    """Find the attention calls of a model that runs within a block: `with ps.explain(model) as found: model(batch)`.

    Behind the block, `found.result` is what is known of them, and prints as `pebblesim explain` does. Calls that
    torch.compile has compiled are not seen.

    Args:
        model: a `torch.nn.Module`, for the paths of its modules; without one they are named by their classes.
        gpu: name of a card; the one that is here if None.

    Raises:
        UsageError: PyTorch is not here, or no card is and none is named, or the model is compiled.
    """

    def __init__(self, model: Any = None, gpu: str | None = None) -> None:
        torch = _torch()
        from pebblesim.explaining.watching import watched

        self._card, self._capability = _card(torch, gpu)
        self._name = "the model" if model is None else type(model).__name__
        self._watched = watched(model)
        self._result: Explained | None = None

    @property
    def result(self) -> Explained:
        """The calls of the block, and what is known of them.

        Raises:
            UsageError: the block has not ended, or an error ended it.
        """
        if self._result is None:
            raise UsageError("the result is known behind the block; read it after `with ps.explain(…)` has ended.")
        return self._result

    def __enter__(self) -> explain:
        self._recorder = self._watched.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watched.__exit__(kind, error, trace)
        if error is None:
            self._result = explained(self._recorder.result(), self._card, self._capability, self._name)


def explain_file(asked: str, gpu: str | None = None, *, live: bool = False, forward: bool = False) -> Explained:
    """Explain the model that a function in a file makes.

    Args:
        asked: "FILE.py:function"; the function returns (model, batch), or something to call.
        gpu: name of a card; the one that is here if None.
        live: run it with the tensors that the function makes; otherwise all have shapes alone (the meta device).
        forward: look at the forward pass alone.

    Raises:
        UsageError: PyTorch or the file or the function is not here, or it fails; the message names the line.
    """
    torch = _torch()
    from pebblesim.explaining.watching import recorded, run_of

    file, _, name = asked.rpartition(":")
    if not file or not name.isidentifier():
        raise UsageError(f"{asked!r} is no file and function; give them as in model.py:llama.")
    if not Path(file).is_file():
        raise UsageError(f"{file}: this file does not exist.")
    card, capability = _card(torch, gpu)

    def within() -> tuple[Recorded, str]:
        made = _names_of(file).get(name)
        if not callable(made):
            raise UsageError(f"{file} has no function {name}.")
        with torch.device("meta") if not live else nullcontext(), torch.set_grad_enabled(not forward):
            call, model = run_of(made())
            return recorded(call, model), name if model is None else type(model).__name__

    sys.path.insert(0, str(Path(file).resolve().parent))  # it may import what stands beside it
    try:
        found, model = _telling(file, within, live)
    finally:
        sys.path.pop(0)
        sys.modules.pop(MODULE, None)
    return explained(found, card, capability, model)


MODULE = "pebblesim_explain"
"""The name of a user's file as a module."""


def _names_of(file: str) -> dict[str, Any]:
    """Run a file as a module, so that functions that it imported by their names are found as in other modules."""
    module = sys.modules[MODULE] = ModuleType(MODULE)
    module.__file__ = file
    exec(compile(Path(file).read_bytes(), file, "exec"), vars(module))
    return vars(module)


def _telling(file: str, call: Callable[[], Any], live: bool) -> Any:
    """Call a function; what goes wrong in a user's file is one sentence with the line."""
    try:
        return call()
    except PebblesimError:
        raise
    except (Exception, SystemExit) as error:
        lines = [number for frame, number in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
        place = f"{file}:{lines[-1]}" if lines else file
        said = f"{place}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if not live and ("meta" in said or "item()" in said):
            said += "; tensors have shapes alone here, and this looks at their values: run it with --live"
        elif not live and ("BF16" in said or "BFloat16" in said):  # until PyTorch 2.13, and later
            said = f"{said.removesuffix('.')}; by shapes alone PyTorch has this for bfloat16: return model.bfloat16()"
        raise UsageError(f"{said.removesuffix('.')}.") from None


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"explain needs PyTorch, and {error.name} is not here: pip install torch.") from None
    return torch


def _card(torch: Any, gpu: str | None) -> tuple[Card, str]:
    """The card and its compute capability."""
    if gpu is not None:
        card = cards.card(gpu)
        return card, card.capability
    if not torch.cuda.is_available():
        raise UsageError("there is no card here; name one with --gpu, such as --gpu H200.")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return cards.of_device(properties), cards.capability_of(properties)
