"""Notes of all that a pass does on the GPU: tensors that are made, operations of PyTorch, and launches of kernels.

Tensors are noted by where their memory begins: in one of the inputs, or in memory that was made since. None is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pebblesim.operator.launching.boxes import Described

HERE = threading.local()
"""State of this thread: `notes` are those of the call that it makes, if it makes one."""


class Place(NamedTuple):
    """Memory within a slot: an input, or what was made as the slots behind them; `offset` in bytes."""

    slot: int
    offset: int


class View(NamedTuple):
    """A tensor within a slot; `offset` in words."""

    slot: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class Made(NamedTuple):
    """A step: memory that nobody has written yet."""

    slot: int
    shape: torch.Size
    stride: tuple[int, ...]
    options: dict[str, Any]


class Done(NamedTuple):
    """A step: an operation of PyTorch, with a `View` for each tensor; what it returns anew are these slots."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    slots: tuple[int, ...]


class Launched(NamedTuple):
    """A step: a kernel, its grid, and for each argument a number, a `Place`, or boxes and their `Place`."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]


Step = Made | Done | Launched


def read(step: Step) -> Iterator[int]:
    """Slots that a step reads or changes."""
    if isinstance(step, Launched):
        yield from (each.slot for given in step.arguments if (each := place_of(given)) is not None)
    elif isinstance(step, Done):
        yield from (each.slot for each in _views((*step.arguments, *step.options.values())))


def _views(given: Any) -> Iterator[View]:
    for each in given:
        if isinstance(each, View):
            yield each
        elif isinstance(each, tuple | list):
            yield from _views(each)


def place_of(argument: Any) -> Place | None:
    """The place of an argument of a kernel; None of a number."""
    if isinstance(argument, Place):
        return argument
    return argument[1] if isinstance(argument, tuple) else None


class Notes:
    """Notes of a call.

    Attributes:
        inputs: for each, where it begins, its shape, its strides and the bytes of a word; None for no tensor.
        steps: what was done, in order.
        slots: number of inputs, and of what was made since.
        types: of the words of each.
        other: whether something was done that cannot be noted; then nothing more is.
        alike, promises: none here (`shadows`).
        dry: whether all of it is noted, and nothing is done (`shadows`).
    """

    dry = False

    def __init__(self, inputs: Sequence[Tensor | None] = ()) -> None:
        self.inputs = [None if x is None else (x.data_ptr(), x.shape, x.stride(), x.element_size()) for x in inputs]
        self.steps: list[Step] = []
        self.slots = len(self.inputs)
        self.types = {slot: x.dtype for slot, x in enumerate(inputs) if x is not None}
        self.other = False
        self.alike, self.promises = dict[tuple[int, int], bool](), list[tuple[View, str]]()
        self._made: list[tuple[int, int, int]] = []

    def launched(self, kernel: Any, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Note a launch."""
        places: list[Any] = []
        for each in arguments:
            if isinstance(each, Described):
                places.append((each.boxes, self._place(each.address)))
            else:
                places.append(self._place(each.data_ptr()) if isinstance(each, Tensor) else each)
        if not self.other:
            self.steps.append(Launched(kernel, grid, tuple(places)))

    def done(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
        """Note an operation, unless it gives a view."""
        if function.overloadpacket in EMPTY and not self.other:
            self._make(out)
            return
        taken, found = [*_tensors(arguments), *_tensors(options.values())], [*_tensors((out,))]
        if any(not each.numel() for each in (*taken, *found)):
            self.other = True
        if self.other:
            return
        known, changed = {each.untyped_storage().data_ptr() for each in taken}, function._schema.is_mutable
        new = [each for each in found if each.untyped_storage().data_ptr() not in known]
        if found and not new and not changed:
            return
        self.other |= len(new) not in (0, len(found)) or bool(new and changed)
        given, named = self._views(arguments), {name: self._views(each) for name, each in options.items()}
        self.steps.append(Done(_method(function), given, named, tuple([self._slot(each) for each in new])))

    def empty(self, *given: Any, **options: Any) -> Any:
        """Memory that nobody has written yet; what PyTorch does is noted."""
        return torch.empty(*given, **options)

    def _make(self, x: Tensor) -> None:
        """Note memory that nobody has written yet."""
        if not x.numel():
            self.other = True
            return
        options = {"dtype": x.dtype, "device": x.device}
        self.steps.append(Made(self._slot(x), x.shape, x.stride(), options))

    def _slot(self, x: Tensor) -> int:
        """The slot of memory that was made now."""
        slot, begin = self.slots, x.data_ptr()
        self.slots += 1
        self.types[slot] = x.dtype
        self._made.append((slot, begin, begin + x.untyped_storage().nbytes()))
        return slot

    def _views(self, given: Any) -> Any:
        """Arguments of an operation, with a `View` for each tensor."""
        if isinstance(given, Tensor):
            return self.view(given)
        return type(given)(map(self._views, given)) if isinstance(given, tuple | list) else given

    def view(self, x: Tensor) -> View | Tensor:
        """A tensor, by where it is; itself if it is a number that PyTorch took for one."""
        if x.dim() == 0 and x.device.type == "cpu" and not self._known(x.data_ptr()):
            return x
        slot, offset = self._place(x.data_ptr())
        return View(slot, offset // x.element_size(), x.shape, x.stride())

    def _known(self, address: int) -> bool:
        return any(begin <= address < end for _, begin, end in self._made)

    def _place(self, address: int) -> Place:
        """Where an address is: in what was made last, or in the one input that has a word there."""
        for slot, begin, end in reversed(self._made):
            if begin <= address < end:
                return Place(slot, address - begin)
        within = [
            Place(slot, address - known[0])
            for slot, known in enumerate(self.inputs)
            if known is not None and _has(address - known[0], *known[1:])
        ]
        if len(within) != 1:
            self.other = True
            return Place(0, 0)
        return within[0]


class _Watched(TorchDispatchMode):
    """Notes what PyTorch does meanwhile."""

    def __init__(self, written: Notes) -> None:
        super().__init__()
        self.written = written

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.written.done(function, args, kwargs or {}, out)
        return out


EMPTY = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
)
"""Operations that give memory which nobody has written yet."""


def _tensors(given: Any) -> Iterator[Tensor]:
    for each in given:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple | list):
            yield from _tensors(each)


def notes() -> Notes | None:
    """The notes of the call that this thread makes; None if nobody wants any, or if they are of no use any more."""
    written: Notes | None = getattr(HERE, "notes", None)
    return None if written is None or written.other else written


@contextmanager
def noted(inputs: Sequence[Tensor | None] = ()) -> Iterator[Notes]:
    """Note what is done on the GPU meanwhile."""
    HERE.notes = written = Notes(inputs)
    try:
        with _Watched(written):
            yield written
    finally:
        HERE.notes = None


def _has(offset: int, shape: torch.Size, stride: tuple[int, ...], size: int) -> bool:
    """Whether a tensor has a word this number of bytes behind its first one."""
    words, rest = divmod(offset, size)
    if offset < 0 or rest:
        return False
    for step, length in sorted(zip(stride, shape, strict=True), reverse=True):
        if step and length > 1:
            index = min(words // step, length - 1)
            words -= index * step
    return words == 0


def _method(function: Any) -> Callable[..., Any]:
    """The cheapest way to do an operation again: one that changes a tensor is a method of tensors, too."""
    name = function.overloadpacket.__name__
    found: Callable[..., Any] = getattr(Tensor, name, function) if name.endswith("_") else function
    return found
