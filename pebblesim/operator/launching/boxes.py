"""Descriptors of tensors for the copy engine of Hopper, made once for each place in memory.

A Gluon kernel takes a descriptor for each tensor that the copy engine moves: its address, its shape, and the boxes that
are moved. Triton makes one at each launch, from a layout that is worked out anew, which takes longer than the launch.
Here the layout is found once for a shape, and the descriptor once for an address; tensors themselves are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getclosurevars
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor

from pebblesim.kernels import releases
from pebblesim.operator.known.recent import Recent
from pebblesim.operator.known.symbols import Later, Untraced
from pebblesim.operator.launching.layout import BYTES

MOST_SHAPES = 1024
"""Shapes that are kept, for each function that describes tensors."""

MOST_DESCRIPTORS = 2**14
"""Descriptors that are kept in all: some 10 MB."""

MAKERS = ("tiles_of", "vectors_of", "sums_of", "pairs_of", "copies_of", "numbers_of")
"""Functions of the generated modules that describe tensors."""


@cache
def gluon_lost() -> str | None:
    """The reason why Gluon kernels do not run with the Triton here, None if they do: a part of a sentence."""
    if reason := releases.without_gluon(releases.installed()):
        return reason
    try:
        from triton._C.libtriton import ir as _ir  # noqa: F401
        from triton.experimental.gluon.language._core import builtin as _builtin  # noqa: F401
        from triton.experimental.gluon.language.nvidia import hopper as _hopper  # noqa: F401
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as _Described  # noqa: F401
    except ImportError as error:
        return f"Gluon cannot be imported from the Triton here ({error})"
    return None


@dataclass(eq=False)
class Place:
    """Where a tensor is, with the methods of one that descriptors are made by; its memory is not kept."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @staticmethod
    def of(x: Tensor) -> Place:
        """The place of a tensor; from one position to the next where there is one only, any number of words will do."""
        shape, strides = x.shape, x.stride()
        if 1 in shape[:-1]:
            *others, last = zip(strides, shape, strict=True)
            strides = *(stride if length > 1 else BYTES for stride, length in others), last[0]
        return Place(x.data_ptr(), tuple(shape), strides, x.dtype)

    def data_ptr(self) -> int:
        """Address of the first word."""
        return self.address

    def stride(self) -> tuple[int, ...]:
        """Strides of the axes, in words."""
        return self.strides

    def numel(self) -> int:
        """Number of words."""
        number = 1
        for length in self.shape:
            number *= length
        return number


class Boxes:
    """The descriptors of tensors of one shape.

    Attributes:
        one: the descriptor of one of them, as Triton has it.
    """

    def __init__(self, one: Any) -> None:
        self.one = one

    def at(self, address: int, made_as: Any) -> tuple[Any, ...]:
        """The arguments of a launch for the tensor at an address; `made_as`: what Triton knows of the descriptor."""
        found = _MADE.get((self, address))
        if found is None:
            found = _MADE[self, address] = tuple(_arguments(self.described(address), made_as))
        return found

    def described(self, address: int) -> Any:
        """The descriptor of the tensor at an address, as Triton has it."""
        return _with(self.one, base=_with(self.one.base, address=address))


_MADE: Recent[tuple[Boxes, int], tuple[Any, ...]] = Recent(MOST_DESCRIPTORS)
"""The arguments of a launch for boxes at an address."""


class Described(NamedTuple):
    """An argument of a kernel: the boxes of a tensor, and its address."""

    boxes: Boxes
    address: int


def remembered(make: Callable[..., Any]) -> Callable[..., Described]:
    """A function of a generated module that describes tensors, so that it is called once for each kind of boxes.

    What it works out anew for a shape is where tensors have their rows, which `outline` finds without their layout.
    """
    known: Recent[tuple[Any, ...], Boxes] = Recent(MOST_SHAPES)
    kinds: Recent[tuple[Any, ...], Any] = Recent(MOST_SHAPES)
    outline = _outline(make)

    def alike(place: Place, box: tuple[int, ...]) -> Any:
        assert outline is not None
        lengths, strides, sides = outline(place, *box)
        kind = place.dtype, len(lengths), *sides
        if (one := kinds.get(kind)) is None and not isinstance(place.address, int):
            raise Later  # no tensor was described for these kernels yet
        if one is None:
            one = kinds[kind] = make(place, *box)
        return _with(one, base=place, shape=lengths, strides=strides)

    def described(x: Any, *box: int) -> Described:
        if not isinstance(x, Tensor):  # a shadow
            if outline is None:
                raise Untraced
            return Described(Boxes(alike(Place.of(x), box)), x.data_ptr())
        shape = (x.shape, x.stride(), box)
        boxes = known.get(shape)
        if boxes is None:
            place = Place.of(x)
            boxes = known[shape] = Boxes(make(place, *box) if outline is None else alike(place, box))
        return Described(boxes, x.data_ptr())

    return described


Outline = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Lengths and strides of the axes of a tensor, and the sides of a box."""


class _Outlines:
    """Stands in for the class of descriptors, and gives what is different from one tensor to the next."""

    def __call__(self, tensor: Any, shape: list[int], strides: list[int], box: list[int], layout: Any) -> Outline:
        return shape, strides, box

    def from_tensor(self, tensor: Any, box: list[int], layout: Any) -> Outline:
        return tensor.shape, tensor.stride(), box


class _Layouts:
    """Stands in for the language of kernels, whose layouts take long to find: all that it has is nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *given: Any) -> None:
        return None


def _outline(make: Callable[..., Any]) -> Callable[..., Outline] | None:
    """A function that describes tensors, with stand-ins; None if it is of no generated module."""
    if not isinstance(make, FunctionType) or "TensorDescriptor" not in make.__globals__:
        return None
    stand_ins = {"gl": _Layouts(), "TensorDescriptor": _Outlines()}
    return FunctionType(make.__code__, stand_ins, make.__name__, make.__defaults__)


def _with(one: Any, **changed: Any) -> Any:
    """Another one like it, without the checks that it has passed, which take longer than a launch."""
    other = object.__new__(type(one))
    other.__dict__.update(one.__dict__, **changed)
    return other


def start_of(run: Any) -> Any:
    """The function that starts a kernel with descriptors that are made already; None if Triton has it elsewhere.

    Triton's launcher makes them anew at each call, and keeps the one that does not in a variable of its own.
    """
    try:
        return getclosurevars(run.launch).nonlocals.get("launcher")
    except TypeError:
        return None


def _arguments(described: Any, made_as: Any) -> list[Any]:
    from triton.backends.nvidia.driver import make_tensordesc_arg

    found: list[Any] = make_tensordesc_arg(described, made_as, *[None] * releases.here().unread)
    return found
