"""Passes that were made for some sizes, and are made again with other tensors of these sizes.

What kernels compute a pass, and how they are launched, follows from sizes and options alone. A pass of sizes that come
a second time is noted, and from then on costs the host little. One of sizes that come once is not: notes take time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from pebblesim.operator.known import native
from pebblesim.operator.known.direct import driver
from pebblesim.operator.known.lengths import Found, Kind, kind_of, symbols_of
from pebblesim.operator.known.recent import Recent
from pebblesim.operator.known.symbols import Later, Script, Untraced
from pebblesim.operator.known.tape import Done, Launched, Made, Notes, Step, View, noted, place_of, read
from pebblesim.operator.launching.boxes import Described
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launch import launch
from pebblesim.operator.launching.layout import BYTES

MOST = 4096
"""Passes that are kept, and sizes that are known."""

Results = tuple[Any, ...]

Tensors = list[Any]
"""Inputs, and what was made since; None for what is not there, or is not needed any more."""

Call = Callable[[Tensors, list[int], int], None]
"""A step, of tensors, their addresses, and the stream."""


class Kinds:
    """Traced passes of a kind, whose decisions differ."""

    def __init__(self, function: Callable[..., Results], rest: tuple[Hashable, ...]) -> None:
        """Take what is traced: a function of tensors, and of the rest."""
        self._function, self._rest = function, rest
        self.traced, self._can = list[Kind](), True
        self._skipped, self._pause = 0, 1  # calls until the next trace, and before the one behind it
        self._families: tuple[Any, ...] = ()

    def families(self, by: Any) -> tuple[Any, ...]:
        """The traced passes as the library in C++ has them; none if it cannot make them."""
        if len(self._families) < len(self.traced):
            self._families = tuple([each.family(by) for each in self.traced])
        return self._families if all(self._families) else ()

    def of(self, inputs: Sequence[Tensor | None]) -> Found | None:
        """The pass for tensors of this kind; None if it is not traced."""
        if (by := driver()) is None:
            return None
        known = self._known(inputs)
        if known is not None or not self._can or len(self.traced) >= MOST_OF_KIND:
            return known
        if self._skipped:
            self._skipped -= 1
            return None
        try:
            self.traced.append(Kind.traced(self._function, inputs, self._rest, by))
        except Later:
            self._skipped, self._pause = self._pause, min(2 * self._pause, LONGEST)
        except Exception:  # Untraced, or of what takes no number or shadow: the pass itself says what is wrong with it
            self._can = False
        return self._known(inputs)

    def _known(self, inputs: Sequence[Tensor | None]) -> Found | None:
        """The pass, if another one was traced that decides as it does."""
        if (by := native.library) is not None and (families := self.families(by)):
            if (found := by.found(families, inputs)) is None:
                return None
            if found is not False:
                return Found(self.traced[found[0]], made=found[1])
        symbols = symbols_of(inputs)
        for each in self.traced:
            if (form := each.of(symbols)) is not None:
                return Found(each, form)
        return None


class Again:
    """A pass, made again with other tensors of its sizes, with steps that the driver alone does not do."""

    def __init__(self, written: Notes, results: Sequence[View | None], device: int) -> None:
        """Take the notes of a pass, what it returns, and the number of the GPU."""
        inputs = len(written.inputs)
        self._there = [slot for slot, each in enumerate(written.inputs) if each is not None]
        used = {slot for step in written.steps for slot in read(step)} | {each.slot for each in results if each}
        steps = [_laid(each, results) for each in written.steps if not isinstance(each, Made) or each.slot in used]
        whole = {at: known[1:3] for at, known in enumerate(written.inputs) if known is not None}
        whole |= {each.slot: (each.shape, each.stride) for each in steps if isinstance(each, Made)}
        self._results = [each and _short(each, whole) for each in results]
        self._stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        kept = {each.slot for each in results if each}
        self._calls = _alone(steps, kept, whole, inputs)
        self._made, self._nowhere = [None] * (written.slots - inputs), [0] * (written.slots - inputs)
        self._device = device

    def __call__(self, inputs: Sequence[Tensor | None]) -> Results | None:
        """Make the pass, and return what it gives; None if the inputs are at other multiples of bytes."""
        together, places = 0, [0] * len(inputs)
        for slot in self._there:
            places[slot] = address = inputs[slot].data_ptr()  # type: ignore[union-attr]
            together |= address
        if together % BYTES:
            return None
        tensors: Tensors = [*inputs, *self._made]
        places += self._nowhere
        assert self._stream_of is not None
        stream = self._stream_of(self._device)
        for call in self._calls:
            call(tensors, places, stream)
        return tuple([each and _tensor(tensors, each) for each in self._results])

    def if_room(self, inputs: Sequence[Tensor | None]) -> Results | None:
        """As a call; None also if there is too little memory, since other kernels need less."""
        try:
            return self(inputs)
        except torch.OutOfMemoryError:
            return None


_KEPT: Recent[Hashable, Again | Found] = Recent(MOST)

_KINDS: Recent[Hashable, Kinds] = Recent(MOST)
"""Traced passes by their kind."""

LONGEST = 1024
"""Calls between two traces, at most, where one could not be made for the moment: each time twice as many are let by."""

MOST_OF_KIND = 16
"""Traced passes of a kind whose decisions differ."""

_SEEN: Recent[Hashable, bool] = Recent(MOST)
"""Sizes of passes that were made, and whether they may be noted."""


def here(x: Tensor) -> bool:
    """Whether a tensor is on the GPU that is the current one."""
    return x.is_cuda and x.get_device() == torch._C._cuda_getDevice()


def stream() -> int:
    """The current stream of the current GPU."""
    found: int = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    return found


def made(function: Callable[..., Results], inputs: Sequence[Tensor | None], rest: tuple[Hashable, ...]) -> Results:
    """Return what a function gives of tensors and options: by what it did before for such tensors, if that is kept.

    Args:
        function: of the inputs and the rest; what it does follows from their sizes, strides and types.
        inputs: tensors, at least one.
        rest: options.
    """
    if (known := ready(function, inputs, rest)) is not None:
        found = known.if_room(inputs)
        return function(*inputs, *rest) if found is None else found
    if (sizes := sizes_of(function.__name__, inputs, rest)) is None:
        return function(*inputs, *rest)
    seen = _SEEN.get(sizes)
    if seen is None:
        _SEEN[sizes] = True
    unaligned = any(each is not None and each.data_ptr() % BYTES for each in inputs)
    if not seen or unaligned or torch.cuda.is_current_stream_capturing():
        results = function(*inputs, *rest)
    else:
        results = _noted(function, inputs, rest, sizes)
    if (kind := kind_of(sizes)) not in _KINDS:
        _KINDS[kind] = Kinds(function, rest)  # others of its kind may be traced: its kernels are compiled now
    return results


def ready(
    function: Callable[..., Results], inputs: Sequence[Tensor | None], rest: tuple[Hashable, ...]
) -> Again | Found | None:
    """The pass that `made` makes again for such tensors, if it is kept, or traced for others of its kind."""
    sizes = sizes_of(function.__name__, inputs, rest)
    if sizes is None:
        return None
    known = _KEPT.get(sizes)
    if known is None and (kinds := _KINDS.get(kind_of(sizes))) is not None:
        known = kinds.of(inputs)
        if known is not None:
            _KEPT[sizes] = known
    return known


def kinds_of(
    function: Callable[..., Results], inputs: Sequence[Tensor | None], rest: tuple[Hashable, ...]
) -> Kinds | None:
    """The traced passes for such tensors, and for others that are alike but for their lengths and strides."""
    sizes = sizes_of(function.__name__, inputs, rest)
    return None if sizes is None else _KINDS.get(kind_of(sizes))


def _noted(function: Any, inputs: Sequence[Tensor | None], rest: tuple[Any, ...], sizes: Hashable) -> Results:
    """Return what a function gives, and keep it if it does nothing but what can be done again."""
    with noted(inputs) as written:
        results = function(*inputs, *rest)
        views = [None if each is None else written.view(each) for each in results]
    if written.other:
        _SEEN[sizes] = False
    else:
        _KEPT[sizes] = again(written, views, inputs)
    return results


def again(written: Notes, results: Sequence[View | None], inputs: Sequence[Tensor | None]) -> Again | Found:
    """A pass of which these notes were taken, and which gave these results: by the driver alone, if it can be."""
    if (by := driver()) is not None:
        with suppress(Untraced):
            kind = Kind(written, results, inputs, Script(), by)
            return Found(kind, kind.of(()))
    return Again(written, results, next(each for each in inputs if each is not None).get_device())


def sizes_of(way: str, tensors: Sequence[Tensor | None], rest: tuple[Any, ...]) -> tuple[Hashable, ...] | None:
    """The sizes and options of a pass by which it may be kept; None if it may not be.

    Args:
        way: its name.
        tensors: matrices, vectors and ranges; None for one that is not there, at least one is.
        rest: options.
    """
    first = next(each for each in tensors if each is not None)
    if not here(first):
        return None
    of_each = [None if each is None else (each.shape, each.stride(), each.dtype) for each in tensors]
    return way, first.get_device(), rest, *of_each


def _laid(step: Step, results: Sequence[View | None]) -> Step:
    """A step that makes memory, in the order that the result has which is all of it."""
    if isinstance(step, Made):
        for each in results:
            if each and each.slot == step.slot and each.shape.numel() == step.shape.numel():
                return step._replace(shape=each.shape, stride=each.stride)
    return step


def _short(view: View, whole: dict[int, tuple[Any, Any]]) -> View:
    """A view, without a shape if it is all that is in its slot, as it lies there."""
    same = view.offset == 0 and whole.get(view.slot) == (view.shape, view.stride)
    return view._replace(shape=None) if same else view


def _tensor(tensors: Tensors, view: View) -> Tensor:
    slot, offset, shape, stride = view
    one: Tensor = tensors[slot]
    return one if shape is None else one.as_strided(shape, stride, one.storage_offset() + offset)


Whole = dict[int, tuple[Any, Any]]
"""Shape and strides of all that is in a slot."""


def _alone(steps: Sequence[Step], kept: set[int], whole: Whole, inputs: int) -> list[Call]:
    """Steps one by one; what is not needed any more is freed before more memory is made."""
    calls = list[Call]()
    for at, step in enumerate(steps):
        calls.append(_call(step, whole))
        later = {slot for other in steps[at + 1 :] for slot in read(other)}
        gone = [slot for slot in read(step) if slot >= inputs and slot not in kept | later]
        if gone and any(isinstance(other, Made) for other in steps[at + 1 :]):
            calls.append(_freed(gone))
    return calls


def _freed(slots: list[int]) -> Call:
    def free(tensors: Tensors, places: list[int], stream: int) -> None:
        for slot in slots:
            tensors[slot] = None

    return free


def _call(step: Step, whole: dict[int, tuple[Any, Any]]) -> Call:
    """A step as a function."""
    if isinstance(step, Launched):
        return _launched(step)
    if isinstance(step, Done):
        return _done(step, whole)
    slot, shape, stride, options = step

    def make(tensors: Tensors, places: list[int], stream: int) -> None:
        tensors[slot] = new = fresh(torch.empty_strided(shape, stride, **options))
        places[slot] = new.data_ptr()

    return make


def _launched(step: Launched) -> Call:
    kernel, grid, arguments = step
    given = [
        (None, -1, each) if (at := place_of(each)) is None else (None if each is at else each[0], *at)
        for each in arguments
    ]

    def again(tensors: Tensors, places: list[int], stream: int) -> None:
        taken = [
            rest if slot < 0 else places[slot] + rest if boxes is None else Described(boxes, places[slot] + rest)
            for boxes, slot, rest in given
        ]
        launch(kernel, grid, stream, taken)

    return again


def _done(step: Done, whole: dict[int, tuple[Any, Any]]) -> Call:
    function, arguments, options, slots = step

    def shortened(given: Any) -> Any:
        if isinstance(given, View):
            return _short(given, whole)
        return type(given)(map(shortened, given)) if isinstance(given, list | tuple) else given

    def taken(tensors: Tensors, given: Any) -> Any:
        if isinstance(given, View):
            return _tensor(tensors, given)
        return [taken(tensors, each) for each in given] if isinstance(given, list | tuple) else given

    told, named = [shortened(each) for each in arguments], {name: shortened(each) for name, each in options.items()}

    def again(tensors: Tensors, places: list[int], stream: int) -> None:
        found = function(
            *[taken(tensors, each) for each in told], **{name: taken(tensors, each) for name, each in named.items()}
        )
        for slot, each in zip(slots, found if len(slots) > 1 else (found,), strict=False):
            tensors[slot], places[slot] = each, each.data_ptr()

    return again
