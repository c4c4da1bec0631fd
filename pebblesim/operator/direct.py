"""Launches, fills and copies by the driver of the card, whose arguments stay in memory from one call to the next.

Triton's launcher takes all arguments of a kernel anew at each launch, and PyTorch finds out anew how it copies. Of a
pass that is made again addresses alone are new: here they are written where the driver reads them, and the driver is
called. What it does not know how to do in this way is left to Triton and to PyTorch.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from pebblesim.kernels import releases
from pebblesim.operator.tape import Done, Launched, Place, Step, View

MAP, WORD = 128, 8
"""Bytes of a descriptor for the copy engine, which begins at a multiple of them, and of any other argument."""

ON_CARD, L2_128B, WITHOUT_CONTEXT = 2, 2, 201
"""The driver's numbers: memory of the card, the promotion of lines in L2 that Triton asks for, and an error."""

FORMATS = {"i1": "<b", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u1": "<B", "u8": "<B", "u16": "<H"}
FORMATS |= {"u32": "<I", "u64": "<Q", "fp32": "<f", "f32": "<f", "fp64": "<d"}
"""How a number lies in memory, by its type in a kernel."""


class Configuration(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("number", ctypes.c_uint),
    )


class Driver:
    """The functions of the driver, each of which returns 0 if it went well."""

    def __init__(self, library: Any) -> None:
        """Take them from a library, which has all of them.

        Raises:
            AttributeError: it has not.
        """
        address, word, number = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint
        several, numbers = ctypes.POINTER(word), ctypes.POINTER(number)
        encoded = address, number, number, word, several, several, numbers, numbers, *[number] * 4
        self.launch = _function(library, "cuLaunchKernelEx", address, address, address, address)
        self.fill = _function(library, "cuMemsetD32Async", word, number, ctypes.c_size_t, address)
        self.copy = _function(library, "cuMemcpy2DAsync_v2", address, address)
        self.describe = _function(library, "cuTensorMapEncodeTiled", *encoded)
        self.move = _function(library, "cuTensorMapReplaceAddress", address, word)
        self.context = _function(library, "cuDevicePrimaryCtxRetain", ctypes.POINTER(address), ctypes.c_int)
        self.enter = _function(library, "cuCtxSetCurrent", address)


def _function(library: Any, name: str, *types: Any) -> Callable[..., int]:
    found = getattr(library, name)
    found.argtypes, found.restype = types, ctypes.c_int
    return cast(Callable[..., int], found)


@cache
def driver() -> Driver | None:
    """The driver of the card; None without one, or if the Triton here gives kernels other arguments."""
    if not releases.here().two_rooms:
        return None
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return None


class Direct:
    """Commands of the driver, one after the other."""

    def __init__(self, by: Driver, types: dict[int, torch.dtype], room: Callable[[int], int]) -> None:
        """`types`: those of the words of slots; `room`: a function that makes a slot of so many bytes."""
        self._by, self._types, self._room = by, types, room
        self._words: list[int] = []
        self._places: list[tuple[int, Place]] = []  # words that are addresses
        self._maps: list[tuple[Any, Any, Place]] = []  # boxes, what Triton knows of them, and where they are
        self._made: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()
        self._known: tuple[list[int], int] | None = None

    def add(self, step: Step) -> bool:
        """Take a step, if it is one for the driver."""
        if isinstance(step, Launched):
            return self._add_launch(step)
        return isinstance(step, Done) and (self._add_fill(step) or self._add_copy(step))

    def _add_launch(self, step: Launched) -> bool:
        kernel, types = step.kernel, _types(step.kernel)
        if types is None or len(types) != len(step.arguments):
            return False
        made_as, parameters = iter(kernel.made_as), list[int]()
        for kind, each in zip(types, step.arguments, strict=True):
            if kind == "constexpr":
                continue
            if isinstance(each, tuple) and not isinstance(each, Place):
                boxes, place = each
                parameters.append(-1 - len(self._maps))
                self._maps.append((boxes.one, next(made_as), place))
                parameters += [self._word(_packed("i32", length)) for length in boxes.one.shape]
                parameters += [self._word(_packed("i64", stride)) for stride in boxes.one.strides]
            elif isinstance(each, Place):
                self._places.append((len(self._words), each))
                parameters.append(self._word(0))
            else:
                parameters.append(self._word(_packed("u64" if kind[0] == "*" else kind, each or 0)))
        if needed := kernel.run.global_scratch_size * prod(step.grid):
            self._places.append((len(self._words), Place(self._room(needed), 0)))
        parameters += [self._word(0), self._word(0)]  # memory for the kernel while it runs, and for Triton's profiler
        self._made.append(("launch", kernel, step.grid, parameters))
        return True

    def _word(self, value: int) -> int:
        """The number of a new word with this value."""
        self._words.append(value)
        return len(self._words) - 1

    def _add_fill(self, step: Done) -> bool:
        if step.function != Tensor.fill_ or step.options or isinstance(step.arguments[1], View):
            return False
        view, value = step.arguments
        if self._types.get(view.slot) != torch.float32 or value != 0 or not _contiguous(view):
            return False
        self._made.append(("fill", Place(view.slot, 4 * view.offset), view.shape.numel()))
        return True

    def _add_copy(self, step: Done) -> bool:
        """Take a copy of rows, whose words are next to each other, if it changes no type."""
        if step.function != Tensor.copy_ or step.options or len(step.arguments) != 2:
            return False
        to, of = step.arguments
        if not isinstance(of, View) or to.shape != of.shape or len(to.shape) != 2:
            return False
        kind, (rows, columns) = self._types.get(to.slot), to.shape
        if kind is None or self._types.get(of.slot) != kind:
            return False
        for each in (to, of):
            if (columns > 1 and each.stride[1] != 1) or (rows > 1 and each.stride[0] < columns):
                return False
        size = kind.itemsize
        begin, pitches = len(self._words), [each.stride[0] * size if rows > 1 else columns * size for each in (of, to)]
        self._words += [0, 0, ON_CARD, 0, 0, 0, pitches[0], 0, 0, ON_CARD, 0, 0, 0, pitches[1], columns * size, rows]
        self._places += [(begin + 4, Place(of.slot, of.offset * size)), (begin + 11, Place(to.slot, to.offset * size))]
        self._made.append(("copy", begin))
        return True

    def close(self) -> bool:
        """Lay the arguments out, when all commands are there; whether that could be done."""
        bytes_of = len(self._maps) * MAP + len(self._words) * WORD
        self._memory = ctypes.create_string_buffer(bytes_of + MAP)
        start = -(-ctypes.addressof(self._memory) // MAP) * MAP
        self._begin = start + len(self._maps) * MAP
        whole = (ctypes.c_uint64 * max(len(self._words), 1)).from_address(self._begin)
        for at, word in enumerate(self._words):
            whole[at] = word
        self._whole = memoryview(whole).cast("B").cast("Q")
        self._at = [start + number * MAP for number in range(len(self._maps))]
        if not all(self._described(*each) for each in zip(self._at, self._maps, strict=True)):
            return False
        self._configurations, self._commands = list[Configuration](), list[Callable[[], int]]()
        self._fills, self._copies, self._kept = list[tuple[int, Place, int]](), list[tuple[int, int]](), list[Any]()
        for what, *rest in self._made:
            getattr(self, f"_close_{what}")(*rest)
        return True

    def _described(self, at: int, one: tuple[Any, Any, Place]) -> bool:
        from triton.backends.nvidia import driver as nvidia

        boxes, made_as, _ = one
        rank, size = len(boxes.shape), made_as["elem_size"]
        lengths = (ctypes.c_uint64 * rank)(*reversed(boxes.shape))
        strides = (ctypes.c_uint64 * rank)(*(size * each for each in reversed(boxes.strides[:-1])))
        box, ones = (ctypes.c_uint * rank)(*reversed(made_as["block_size"])), (ctypes.c_uint * rank)(*[1] * rank)
        kind = nvidia.TMA_DTYPE_DEVICE_TO_HOST[made_as["elem_type"]]
        rest = 0, made_as["swizzle"], L2_128B, int(boxes.padding == "nan")
        return not self._by.describe(at, kind, rank, ANYWHERE, lengths, strides, box, ones, *rest)

    def _close_launch(self, kernel: Any, grid: tuple[int, int, int], parameters: list[int]) -> None:
        warps, _, shared = kernel.metadata
        made = Configuration((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(32 * warps, 1, 1), shared)
        whole = [self._at[-1 - each] if each < 0 else self._begin + each * WORD for each in parameters]
        pointers = (ctypes.c_void_p * len(whole))(*whole)
        self._configurations.append(made)
        self._kept += [made, pointers, kernel]
        given = ctypes.addressof(made), kernel.function, ctypes.addressof(pointers), None
        self._commands.append(partial(self._by.launch, *given))

    def _close_fill(self, place: Place, number: int) -> None:
        self._fills.append((len(self._commands), place, number))
        self._commands.append(int)

    def _close_copy(self, begin: int) -> None:
        self._copies.append((len(self._commands), self._begin + begin * WORD))
        self._commands.append(int)

    def __call__(self, tensors: Sequence[Any], places: Sequence[int], stream: int) -> None:
        """Give the commands for slots at these addresses, to a stream.

        Raises:
            RuntimeError: the driver refuses one.
        """
        with self._lock:
            if self._known != (places, stream):
                self._move(places, stream)
            for command in self._commands:
                if refused := command():
                    _again(self._by, refused, command)

    def _move(self, places: Sequence[int], stream: int) -> None:
        before = self._known and self._known[0]
        self._known = None
        whole = self._whole
        for at, (slot, offset) in self._places:
            whole[at] = places[slot] + offset
        for at, (_, _, (slot, offset)) in zip(self._at, self._maps, strict=True):
            if (before is None or before[slot] != places[slot]) and self._by.move(at, places[slot] + offset):
                raise RuntimeError("the driver of the card does not move a descriptor.")
        for one in self._configurations:
            one.stream = stream
        for at, (slot, offset), number in self._fills:
            self._commands[at] = partial(self._by.fill, places[slot] + offset, 0, number, stream)
        for at, begin in self._copies:
            self._commands[at] = partial(self._by.copy, begin, stream)
        self._known = [*places], stream


ANYWHERE = 2**32
"""An address for descriptors that are not used before they are moved."""


def _types(kernel: Any) -> tuple[str, ...] | None:
    """Types of a kernel's arguments; None if it is not launched by the driver alone."""
    run, source = kernel.run, getattr(kernel.made, "src", None)
    if run.profile_scratch_size or run.launch_cooperative_grid or run.launch_pdl:
        return None
    if kernel.metadata[1] != 1 or source is None or any(each is None or each["fp4_padded"] for each in kernel.made_as):
        return None
    types = tuple(source.signature.values())
    known = {"constexpr", *FORMATS}
    right = all(isinstance(each, str) and (each in known or each[0] == "*" or _boxes(each)) for each in types)
    return types if right and sum(map(_boxes, types)) == len(kernel.made_as) else None


def _boxes(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith("tensordesc")


def _packed(kind: str, number: Any) -> int:
    """A number as a word of 64 bits, of which the kernel reads the first ones."""
    return int.from_bytes(struct.pack(FORMATS[kind], number).ljust(WORD, b"\0"), "little")


def _contiguous(view: View) -> bool:
    words = 1
    for length, stride in zip(reversed(view.shape), reversed(view.stride), strict=True):
        if length > 1 and stride != words:
            return False
        words *= length
    return True


def _again(by: Driver, refused: int, command: Callable[[], int]) -> None:
    """Give a command again in the context of the current card, if this thread was in none.

    Raises:
        RuntimeError: the driver refuses it still.
    """
    if refused == WITHOUT_CONTEXT:
        context = ctypes.c_void_p()
        refused = by.context(ctypes.byref(context), torch._C._cuda_getDevice()) or by.enter(context) or command()
    if refused:
        raise RuntimeError(f"the driver of the card refuses a launch, with its error {refused}.")
