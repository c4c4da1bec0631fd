"""Tensors of no memory, whose lengths and strides are expressions: what a pass does with them is noted, and not done.

A shadow of an input, or of memory that the pass makes, has what the code of the host asks of a tensor. What it has not
is left to passes that are noted as they are made (`tape`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from pebblesim.operator.known.symbols import Script, Untraced
from pebblesim.operator.known.tape import HERE, Done, Launched, Made, Place, Step, View
from pebblesim.operator.launching.boxes import Described
from pebblesim.operator.launching.layout import BYTES

LENGTHS = {1: (0,), 2: (1,), 4: (2,)}
"""Axes whose lengths are symbols, by the number of axes: sequences, numbers of each query, and tokens."""


class Sizes(tuple[Any, ...]):
    """As `torch.Size`, of numbers."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return Sizes(found) if isinstance(at, slice) else found

    def numel(self) -> Any:
        """The product."""
        return prod(self)


@dataclass(eq=False)
class Address:
    """A slot, and bytes behind where it begins, which is at a multiple of `BYTES`."""

    slot: int
    offset: Any
    written: Traced

    def __mod__(self, by: int) -> Any:
        if BYTES % by:
            raise Untraced
        return self.offset % by

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Address):
            raise Untraced
        if other.slot == self.slot:
            return bool(other.offset == self.offset)
        if any(type(each) is not int or each for each in (self.offset, other.offset)):
            raise Untraced  # parts of two inputs may be in one memory
        return self.written.same(self.slot, other.slot)


class Traced:
    """Notes of a pass of shadows; as `tape.Notes`, with numbers for sizes.

    Attributes:
        steps, slots, types, other: as of `Notes`.
        promises: tensors of booleans that are to hold, and the sentences where they do not.
        begins: addresses of the inputs now; None for no tensor.
        alike: pairs of inputs, and whether both begin at one address.
        dry: nothing is done.
    """

    dry = True

    def __init__(self, begins: list[int | None]) -> None:
        self.steps: list[Step] = []
        self.slots, self.other = len(begins), False
        self.begins, self.alike = begins, dict[tuple[int, int], bool]()
        self.types: dict[int, torch.dtype] = {}
        self.promises: list[tuple[View, str]] = []

    def same(self, one: int, other: int) -> bool:
        """Whether two inputs begin at one address, as a decision; they may share their memory in other ways."""
        if max(one, other) >= len(self.begins):
            raise Untraced
        self.alike[one, other] = found = self.begins[one] == self.begins[other]
        return found

    def launched(self, kernel: Any, grid: Any, arguments: Sequence[Any]) -> None:
        """Note a launch."""
        places: list[Any] = []
        for each in arguments:
            if isinstance(each, Tensor):
                raise Untraced
            if isinstance(each, Described):
                places.append((each.boxes, self._place(each.address)))
            else:
                places.append(self._place(each.data_ptr()) if isinstance(each, Shadow) else each)
        self.steps.append(Launched(kernel, grid, tuple(places)))

    @staticmethod
    def _place(address: Any) -> Place:
        return Place(address.slot, address.offset)

    def empty(self, *shape: Any, dtype: torch.dtype, device: torch.device) -> Shadow:
        """Note memory that nobody has written yet."""
        lengths = Sizes(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape)
        if not lengths.numel():
            raise Untraced
        strides = contiguous(lengths)
        slot, self.slots = self.slots, self.slots + 1
        self.types[slot] = dtype
        self.steps.append(Made(slot, lengths, strides, {"dtype": dtype, "device": device}))
        return Shadow(self, View(slot, 0, lengths, strides), dtype, device)


class Shadow:
    """A tensor of no memory: an input of a pass, or a part of what it makes."""

    def __init__(self, written: Traced, view: View, dtype: torch.dtype, device: torch.device) -> None:
        self._written, self.view_of, self.dtype, self.device = written, view, dtype, device
        self.shape, self._strides = view.shape, view.stride
        self.is_cuda = device.type == "cuda"

    @staticmethod
    def of(x: Tensor, slot: int, written: Traced, script: Script) -> Shadow:
        """The shadow of an input, whose sizes are symbols in the order of `sizes_of`."""
        long, last = LENGTHS.get(x.dim(), ()), x.dim() - 1
        shape = Sizes([script.size(length) if at in long else length for at, length in enumerate(x.shape)])
        strides = tuple([each if at == last else script.size(each) for at, each in enumerate(x.stride())])
        written.types[slot] = x.dtype
        return Shadow(written, View(slot, 0, shape, strides), x.dtype, x.device)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        raise Untraced(name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> None:
        """Note a promise; other functions of PyTorch are not traced."""
        if function not in (torch.ops.pebblesim.promise, torch.ops.pebblesim.promise.default):
            raise Untraced
        holds, sentence = args
        holds._written.promises.append((holds.view_of, sentence))

    def _part(self, offset: Any, shape: Any, strides: Any) -> Shadow:
        return Shadow(
            self._written, View(self.view_of.slot, offset, Sizes(shape), tuple(strides)), self.dtype, self.device
        )

    def dim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def stride(self, at: int | None = None) -> Any:
        """Strides in words, or one of them."""
        return self._strides if at is None else self._strides[at]

    def numel(self) -> Any:
        """Number of words."""
        return self.shape.numel()

    def data_ptr(self) -> Any:
        """Where it begins."""
        return Address(self.view_of.slot, self.view_of.offset * self.dtype.itemsize, self._written)

    def new_empty(self, shape: Any, dtype: Any = None) -> Shadow:
        """Memory of a shape, in its type if no other is given."""
        return self._written.empty(tuple(shape), dtype=dtype or self.dtype, device=self.device)

    def transpose(self, a: int, b: int) -> Shadow:
        """With two axes in turn."""
        order = [*range(self.dim())]
        order[a], order[b] = order[b], order[a]
        return self._part(self.view_of.offset, [self.shape[at] for at in order], [self._strides[at] for at in order])

    def __getitem__(self, parts: Any) -> Shadow:
        parts = parts if isinstance(parts, tuple) else (parts,)
        if parts[0] is ...:
            parts = *[slice(None)] * (self.dim() - len(parts) + 1), *parts[1:]
        offset, shape, strides = self.view_of.offset, list[Any](), list[Any]()
        whole = [*parts, *[slice(None)] * (self.dim() - len(parts))]
        for part, length, stride in zip(whole, self.shape, self._strides, strict=True):
            if isinstance(part, int):
                offset = offset + part * stride
                continue
            if not isinstance(part, slice) or part.step is not None:
                raise Untraced
            start, stop = 0 if part.start is None else part.start, length if part.stop is None else part.stop
            if start < 0 or stop < start:
                raise Untraced
            stop = stop if stop <= length else length
            offset = offset + start * stride
            shape.append(stop - start)
            strides.append(stride)
        return self._part(offset, shape, strides)

    def view(self, *shape: Any) -> Shadow:
        """In another shape, if its words are next to each other in order."""
        shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        assert self.contiguous() is self and prod(shape) == self.numel()
        return self._part(self.view_of.offset, shape, contiguous(shape))

    def expand(self, *lengths: Any) -> Shadow:
        """With axes of one position repeated, and others before them."""
        wanted = lengths[0] if len(lengths) == 1 and isinstance(lengths[0], tuple) else lengths
        before = len(wanted) - self.dim()
        words = self.shape[0] * self._strides[0] if before else 0  # as PyTorch has it for an axis of one position
        shape, strides = [*wanted[:before]], [words if length == 1 else 0 for length in wanted[:before]]
        for length, own, stride in zip(wanted[before:], self.shape, self._strides, strict=True):
            same = length == -1 or bool(length == own)
            if not same and own != 1:
                raise Untraced
            shape.append(own if same else length)
            strides.append(stride if same else 0)
        return self._part(self.view_of.offset, shape, strides)

    def unflatten(self, at: int, lengths: Sequence[Any]) -> Shadow:
        """With several axes in the place of one; the length of one of them may be -1."""
        whole, rest = self.shape[at], prod(each for each in lengths if type(each) is not int or each != -1)
        several = [whole // rest if type(each) is int and each == -1 else each for each in lengths]
        if prod(several) != whole:
            raise Untraced
        strides = [each * self._strides[at] for each in contiguous(several)]
        shape = [*self.shape[:at], *several, *self.shape[at + 1 :]]
        return self._part(self.view_of.offset, shape, [*self._strides[:at], *strides, *self._strides[at + 1 :]])

    def flatten(self, start: int = 0, end: int = -1) -> Shadow:
        """With one axis in the place of several, if its words are as far apart as those of the last of them."""
        end = end % self.dim()
        words = self._strides[end]
        for length, stride in zip(self.shape[end : start - self.dim() - 1 : -1], self._strides[end::-1], strict=False):
            if length > 1 and stride != words:
                raise Untraced
            words = words * length
        shape = [*self.shape[:start], prod(self.shape[start : end + 1]), *self.shape[end + 1 :]]
        return self._part(
            self.view_of.offset, shape, [*self._strides[:start], self._strides[end], *self._strides[end + 1 :]]
        )

    def is_contiguous(self) -> bool:
        """Whether its words are next to each other in order."""
        words: Any = 1
        for length, stride in zip(reversed(self.shape), reversed(self._strides), strict=True):
            if length > 1 and stride != words:
                return False
            words = words * length
        return True

    def contiguous(self) -> Shadow:
        """Itself, if its words are next to each other in order."""
        if not self.is_contiguous():
            raise Untraced
        return self

    def fill_(self, value: float) -> Shadow:
        """Note that it is filled."""
        self._written.steps.append(Done(Tensor.fill_, (self.view_of, value), {}, ()))
        return self

    def copy_(self, of: Any) -> Shadow:
        """Note that it becomes another one."""
        if not isinstance(of, Shadow):
            raise Untraced
        self._written.steps.append(Done(Tensor.copy_, (self.view_of, of.view_of), {}, ()))
        return self


def contiguous(lengths: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of a tensor whose words are next to each other in order."""
    return tuple(prod(lengths[at + 1 :]) for at in range(len(lengths)))


@contextmanager
def traced(inputs: Sequence[Tensor | None], script: Script) -> Iterator[tuple[Traced, list[Any]]]:
    """Notes of what is done meanwhile with the shadows of inputs, and these."""
    written = Traced([None if x is None else x.data_ptr() for x in inputs])
    HERE.notes = written
    try:
        yield (
            written,
            [None if x is None else Shadow.of(x, slot, written, script) for slot, x in enumerate(inputs)],
        )
    finally:
        HERE.notes = None
