"""Passes of a kind, traced once with symbols in the place of lengths and strides, and made for all that decide alike.

What a pass launches follows from its sizes by expressions: grids, strides, lengths of descriptors, bytes of memory.
A new length then costs their evaluation, and no search for kernels, no descriptor in Python, and no notes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pebblesim.operator.known import native
from pebblesim.operator.known.direct import Direct, Driver
from pebblesim.operator.known.shadows import LENGTHS, Sizes, Traced, traced
from pebblesim.operator.known.symbols import Script, Untraced
from pebblesim.operator.known.tape import Made, Notes, Step, View, read
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.layout import BYTES
from pebblesim.operator.masks import promise

EVEN = 256
"""Tokens that a length is a multiple of if all tiles divide it."""

GROUP = 16
"""Tokens that a length is a multiple of if each head's numbers of queries begin where wide accesses can."""

ALIGNED = 512
"""Bytes that each piece of memory begins at a multiple of, as PyTorch's own do."""

AXES = tuple(LENGTHS.get(axes, ()) for axes in range(max(LENGTHS) + 1))
"""Axes whose lengths are symbols, of as many axes as the place in the list."""

LITTLE = 2**26
"""Bytes of memory that are taken in one piece."""

Results = tuple[Any, ...]


def kind_of(sizes: tuple[Any, ...]) -> Hashable:
    """The kind of a pass, which is alike for many lengths.

    `sizes`: as of `recorded.sizes_of`.
    """
    way, device, rest, *tensors = sizes
    kind, lengths = [way, device, rest], dict[int, None]()
    for each in tensors:
        if each is None:
            kind.append(None)
            continue
        shape, stride, dtype = each
        long = LENGTHS.get(len(shape), ())
        if len(shape) == 4:
            lengths[shape[2]] = None
        kind += [dtype, *(None if at in long else length for at, length in enumerate(shape)), *stride[-1:]]
    kind += [length_class(n) for n in lengths]
    return tuple(kind)


def length_class(n: int) -> Hashable:
    """Facts of a length that kernels are chosen and compiled by."""
    return (n - 1).bit_length(), n % EVEN == 0, n % GROUP == 0


def symbols_of(inputs: Sequence[Tensor | None]) -> list[int]:
    """The values of the symbols of a pass, in the order of `Shadow.of`."""
    symbols = list[int]()
    for each in inputs:
        if each is not None:
            shape, stride = each.shape, each.stride()
            symbols += [shape[at] for at in LENGTHS.get(len(shape), ())]
            symbols += stride[:-1]
    return symbols


class Kind:
    """A pass that the driver makes, for all sizes for which the host decides as it did."""

    def __init__(
        self,
        written: Traced | Notes,
        results: Sequence[View | None],
        inputs: Sequence[Tensor | None],
        script: Script,
        by: Driver,
    ) -> None:
        """Take what is noted of a pass, and what it returns; `script` has the expressions in the notes.

        Raises:
            Untraced: the pass does what the driver alone does not do.
        """
        self._alike = tuple(written.alike.items())
        self._inputs = [slot for slot, each in enumerate(inputs) if each is not None]
        self._device = next(each for each in inputs if each is not None).device
        noted = written.slots
        self._several = several = _commands(written, by, self._device)
        promised = [view for view, _ in written.promises]
        self._sentences = [sentence for _, sentence in written.promises]
        kept = {each.slot for each in (*results, *promised) if each is not None}
        used = kept | {slot for step in written.steps for slot in read(step)}
        used |= {*range(noted, written.slots)}  # memory that kernels take beside their arguments, for descriptors
        made = [each for each in written.steps if isinstance(each, Made) and each.slot in used]
        alone, rest_of = ([each for each in made if (each.slot in kept) == one] for one in (True, False))
        self._types = [each.options["dtype"] for each in alone]
        whole = {each.slot: (each.shape, each.stride) for each in alone}
        for each in results:
            if each is not None and each.slot in whole and each.shape.numel() == whole[each.slot][0].numel():
                whole[each.slot] = each.shape, each.stride
        memory = tuple((each.slot, *whole[each.slot]) for each in alone)
        rooms = _rooms(rest_of, written.steps)
        views = tuple(None if each is None else _short(each, whole) for each in results)
        holds = tuple(_short(each, whole) for each in promised)
        self._by, self._number = by, len(inputs)
        self._family: Any = None
        self._script, self._form = script, (several.form, memory, rooms, views, holds)
        self._find: Any = None
        self._slots = [None] * (written.slots - len(inputs)), [0] * (written.slots - len(inputs))
        self._stream_of = torch._C._cuda_getCurrentRawStream

    @classmethod
    def traced(
        cls, function: Callable[..., Results], inputs: Sequence[Tensor | None], rest: tuple[Any, ...], by: Driver
    ) -> Kind:
        """Trace a function of the inputs and the rest, whose kernels are compiled.

        Raises:
            Untraced: it does what is not traced, or what the driver alone does not do.
        """
        script = Script()
        with traced(inputs, script) as (written, shadows):
            results = [None if each is None else each.view_of for each in function(*shadows, *rest)]
        return cls(written, results, inputs, script, by)

    def of(self, symbols: Sequence[int]) -> Any:
        """The form of the pass for values of its symbols; None if some decision is another one.

        Raises:
            Untraced: the driver does not take a descriptor.
        """
        if self._find is None:
            self._find = self._script.function(self._form)
        form = self._find(symbols)
        return None if form is None else (self._several.of(form[0]), *form[1:])

    def make(self, inputs: Sequence[Tensor | None], form: Any) -> Results | None:
        """Make the pass; None if the inputs are at other multiples of bytes, or other ones begin at one address."""
        together, places = 0, [0] * len(inputs)
        for slot in self._inputs:
            places[slot] = address = inputs[slot].data_ptr()  # type: ignore[union-attr]
            together |= address
        if together % BYTES:
            return None
        for (one, other), alike in self._alike:
            if (places[one] == places[other]) is not alike:
                return None
        made, nowhere = self._slots
        tensors: list[Any] = [*inputs, *made]
        places += nowhere
        commands, memory, (rooms, begins), views, holds = form
        for (slot, shape, stride), dtype in zip(memory, self._types, strict=True):
            tensors[slot] = new = fresh(torch.empty_strided(shape, stride, dtype=dtype, device=self._device))
            places[slot] = new.data_ptr()
        there = [fresh(torch.empty(words, dtype=torch.float32, device=self._device)) for words in rooms]
        for slot, room, begin in begins:
            places[slot] = there[room].data_ptr() + begin
        self._several(places, self.stream(), commands)
        return self.checked(tuple([None if each is None else _tensor(tensors, each) for each in (*views, *holds)]))

    def stream(self) -> int:
        """The current stream of the device."""
        found: int = self._stream_of(self._device.index or 0)
        return found

    def checked(self, made: Results | None) -> Results | None:
        """Results, of which the last are whether what was promised holds."""
        if made is None or not self._sentences:
            return made
        results = len(made) - len(self._sentences)
        for each, sentence in zip(made[results:], self._sentences, strict=True):
            _assert(each, sentence)
        return made[:results]

    def family(self, by: Any) -> Any:
        """The family of passes in the library in C++; False if the driver's functions have no address."""
        if self._family is None:
            types = tuple([torch.zeros(0, dtype=each) for each in self._types])
            alike = tuple([(one, other, int(same)) for (one, other), same in self._alike])
            like, slots = torch.zeros(0, device=self._device), self._number + len(self._slots[0])
            at = self._several.told, self._several.streams, tuple(self._inputs), types, alike, slots, like
            kept = self._several, tuple(self._sentences), _assert
            if there := self._by.addresses:
                kind, boxes = by.kind(there, *at, kept), self._several.boxes_in(by)
                self._family = by.family(kind, AXES, boxes, *self._script.registers(self._form))
            else:
                self._family = False
        return self._family


class Found:
    """A pass of some sizes, which is made again with other tensors."""

    __slots__ = ("_form", "_kind", "_native")

    def __init__(self, kind: Kind, form: Any = None, made: Any = None) -> None:
        """`form`: as `Kind.of` has it; `made`: as the library in C++ has it. Either may be found later."""
        self._kind, self._form, self._native = kind, form, made

    @property
    def made(self) -> Any:
        """The pass as the library in C++ has it, if it was found; None or False else."""
        return self._native

    def native(self, by: Any, inputs: Sequence[Tensor | None]) -> Any:
        """The pass as the library in C++ has it; None if it cannot make it alone."""
        if self._native is None:
            family = self._kind.family(by)
            self._native = bool(family) and (by.found((family,), inputs) or (0, False))[1]
        return self._native or None

    def if_room(self, inputs: Sequence[Tensor | None]) -> Results | None:
        """Results of tensors of these sizes; None if they are at other multiples of bytes, or memory is short."""
        try:
            if (by := native.library) is not None and (one := self.native(by, inputs)) is not None:
                found: Results | None = by.run(one, inputs, self._kind.stream())
                return found
            if self._form is None:
                self._form = self._kind.of(symbols_of(inputs))
            return self._kind.make(inputs, self._form)
        except torch.OutOfMemoryError:
            return None


def _assert(holds: Tensor, sentence: str) -> None:
    """As `masks.promise`, without the operator that other calls have it by: that takes longer than a launch."""
    if holds.is_cuda:
        torch._assert_async(holds if holds.numel() == 1 else holds.all(), sentence)
    else:
        promise(holds, sentence)


def _commands(written: Traced | Notes, by: Driver, device: torch.device) -> Direct:
    """The steps of a pass as commands of the driver."""

    def room(size: Any) -> int:
        options = {"dtype": torch.float32, "device": device}
        written.steps.append(Made(written.slots, Sizes((-(-size // 4),)), (1,), options))
        written.slots += 1
        return written.slots - 1

    several = Direct(by, written.types, room)
    for step in [*written.steps]:
        if not isinstance(step, Made) and not several.add(step):
            raise Untraced
    several.close()
    several.plain()  # raises Untraced where the driver takes no descriptor
    return several


def _rooms(made: Sequence[Made], steps: Sequence[Step]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Memory for what only the steps need: words of its pieces; and for each slot its piece, and bytes to its begin.

    What is made after the last step that needs other memory takes its place. All is in one piece if it is little.
    """
    used: dict[int, list[int]] = {}
    for at, step in enumerate(steps):
        for slot in read(step):
            used.setdefault(slot, []).append(at)
    rooms, taken = list[tuple[Any, int]](), list[tuple[int, int]]()  # bytes, and the last step that needs them
    for each in made:
        times, size = used.get(each.slot, [0, len(steps)]), _bytes(each)
        free = (at for at, (room, last) in enumerate(rooms) if last < times[0] and size <= room)
        at = next(free, len(rooms))
        rooms[at : at + 1] = [(size if at == len(rooms) else rooms[at][0], times[-1])]
        taken.append((each.slot, at))
    ends = [*accumulate((size for size, _ in rooms), initial=0)]
    if ends[-1] > LITTLE:
        return tuple(size // 4 for size, _ in rooms), tuple((slot, at, 0) for slot, at in taken)
    return (ends[-1] // 4,) if rooms else (), tuple((slot, 0, ends[at]) for slot, at in taken)


def _bytes(step: Made) -> Any:
    size = step.options["dtype"].itemsize
    words: Any = 1
    for length, stride in zip(step.shape, step.stride, strict=True):
        words = words + (length - 1) * stride
    return -(-size * words // ALIGNED) * ALIGNED


def _short(view: View, whole: dict[int, tuple[Any, Any]]) -> tuple[Any, ...]:
    """A view, without a shape if it is all that is in its slot, as it lies there."""
    same = view.offset == 0 and whole.get(view.slot) == (view.shape, view.stride)
    return view.slot, view.offset, None if same else view.shape, view.stride


def _tensor(tensors: list[Any], view: tuple[Any, ...]) -> Tensor:
    slot, offset, shape, stride = view
    one: Tensor = tensors[slot]
    return one if shape is None else one.as_strided(shape, stride, one.storage_offset() + offset)
