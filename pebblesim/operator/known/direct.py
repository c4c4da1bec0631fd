"""Launches, fills and copies by the driver of the card, whose arguments stay in memory from one call to the next.

Triton's launcher takes all arguments of a kernel anew at each launch, and PyTorch finds out anew how it copies. Of a
pass that is made again addresses alone are new, and what follows from its lengths: here they are written where the
driver reads them, and the driver is called. What it does not know how to do in this way is left to Triton and PyTorch.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pebblesim.kernels import releases
from pebblesim.operator.known.recent import Recent
from pebblesim.operator.known.symbols import Number, Untraced, Words, evaluated
from pebblesim.operator.known.tape import Done, Launched, Place, Step, View

MAP, WORD = 128, 8
"""Bytes of a descriptor for the copy engine, which begins at a multiple of them, and of any other argument."""

ON_CARD, L2_128B, WITHOUT_CONTEXT = 2, 2, 201
"""The driver's numbers: memory of the card, the promotion of lines in L2 that Triton asks for, and an error."""

FORMATS = {"i1": "<b", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u1": "<B", "u8": "<B", "u16": "<H"}
FORMATS |= {"u32": "<I", "u64": "<Q", "fp32": "<f", "f32": "<f", "fp64": "<d"}
"""How a number lies in memory, by its type in a kernel."""

MATRICES = 4
"""The most matrices that are copied one by one."""

INTEGERS = ("i32", "i64")
"""Types of numbers that may follow from sizes."""


FUNCTION = ctypes.CFUNCTYPE(None).__mro__[1]
"""The type of functions of libraries."""


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
        self.context = _function(library, "cuDevicePrimaryCtxRetain", ctypes.POINTER(address), ctypes.c_int)
        self.enter = _function(library, "cuCtxSetCurrent", address)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the functions are that give commands, or a context; none of what is not in a library."""
        several: Any = self.launch, self.fill, self.copy, self.context, self.enter, self.describe
        in_library = all(isinstance(each, FUNCTION) for each in several)
        return tuple([ctypes.cast(each, ctypes.c_void_p).value or 0 for each in several]) if in_library else ()


def _function(library: Any, name: str, *types: Any) -> Callable[..., int]:
    found = getattr(library, name)
    found.argtypes, found.restype = types, ctypes.c_int
    return cast(Callable[..., int], found)


@cache
def driver() -> Driver | None:
    """The driver of the card; None without one, and with a Triton that may give kernels other arguments.

    In all releases that are listed a kernel takes its arguments, lengths and strides of a descriptor behind it, and two
    pieces of memory; Triton keeps (warps, blocks of a cluster, bytes of shared memory) of it.
    """
    if releases.release_of(releases.installed() or "") is None:
        return None
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return None


class Form(NamedTuple):
    """The part of commands that follows from sizes: numbers of a script, or those of some sizes, as `Direct.of` has it.

    Attributes:
        words: all words that the driver reads, except addresses; then the bytes of descriptors, and of these words.
        places: for each word that is an address its number, its slot, and bytes from where this begins.
        boxes: lengths and strides of each descriptor; then nothing.
        fills: for each fill its slot, bytes from where this begins, and the number of words.
    """

    words: Any
    places: tuple[Any, ...]
    boxes: tuple[Any, ...]
    fills: tuple[Any, ...]


class Direct:
    """Commands of the driver, one after the other.

    All that the driver reads is in one memory: descriptors, each `MAP` bytes, and behind them words. Arguments of
    kernels that are equal are one word, since kernels do not write them.
    """

    def __init__(self, by: Driver, types: dict[int, torch.dtype], room: Callable[[int], int]) -> None:
        """`types`: those of the words of slots; `room`: a function that makes a slot of so many bytes."""
        self._by, self._types, self._room = by, types, room
        self._words: list[Any] = []
        self._shared: dict[Any, int] = {}  # words of arguments, by what they are
        self._places: list[tuple[int, Place]] = []  # words that are addresses
        self._maps: list[tuple[Any, Any, Place]] = []  # boxes, what Triton knows of them, and where they are
        self._streams: list[int] = []
        self._made: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()
        self._now: Form | None = None

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
                parameters += [self._argument("i32", length) for length in boxes.one.shape]
                parameters += [self._argument("i64", stride) for stride in boxes.one.strides]
            elif isinstance(each, Place):
                parameters.append(self._address(each))
            else:
                parameters.append(self._argument("u64" if kind[0] == "*" else kind, each or 0))
        needed = kernel.run.global_scratch_size * prod(step.grid)
        parameters.append(self._address(Place(self._room(needed), 0)) if needed else self._argument("u64", 0))
        parameters.append(self._argument("u64", 0))  # memory for Triton's profiler, behind that of the kernel
        warps, _, shared = kernel.metadata
        (x, y, z), begin = step.grid, len(self._words)
        self._words += [x + y * HIGH, z + 32 * warps * HIGH, 1 + HIGH, shared, 0, 0, 0]  # a CUlaunchConfig
        self._streams.append(begin + 4)
        self._made.append(("launch", kernel, begin, parameters))
        return True

    def _argument(self, kind: str, number: Any) -> int:
        """The number of the word for an argument."""
        word = _packed(kind, number)
        return self._one(getattr(word, "name", word), word)

    def _address(self, place: Place) -> int:
        """The number of the word for an address."""
        key = place.slot, getattr(place.offset, "name", place.offset)
        if key not in self._shared:
            self._places.append((len(self._words), place))
        return self._one(key, 0)

    def _one(self, key: Any, word: Any) -> int:
        if key not in self._shared:
            self._shared[key] = len(self._words)
            self._words.append(word)
        return self._shared[key]

    def _add_fill(self, step: Done) -> bool:
        if step.function != Tensor.fill_ or step.options or isinstance(step.arguments[1], View):
            return False
        view, value = step.arguments
        if self._types.get(view.slot) != torch.float32 or value != 0 or not _contiguous(view):
            return False
        self._made.append(("fill", (view.slot, 4 * view.offset, view.shape.numel())))
        return True

    def _add_copy(self, step: Done) -> bool:
        """Take a copy of rows, whose words are next to each other, if it changes no type: of one matrix, or of few."""
        if step.function != Tensor.copy_ or step.options or len(step.arguments) != 2:
            return False
        to, of = step.arguments
        if not isinstance(of, View) or to.shape != of.shape:
            return False
        several = [(to, of)]
        while len(several[0][0].shape) > 2:
            number = several[0][0].shape[0]
            if type(number) is not int or number * len(several) > MATRICES:
                return False
            several = [(_at(to, each), _at(of, each)) for to, of in several for each in range(number)]
        kind = self._types.get(to.slot)
        if len(to.shape) < 2 or kind is None or self._types.get(of.slot) != kind:
            return False
        for each in several[0]:
            rows, columns = each.shape
            if (columns > 1 and each.stride[1] != 1) or (rows > 1 and each.stride[0] < columns):
                return False
        for pair in several:
            self._add_rows(*pair, kind.itemsize)
        return True

    def _add_rows(self, to: View, of: View, size: int) -> None:
        """Add a copy of the rows of a matrix, of words of so many bytes."""
        rows, columns = to.shape
        begin, pitches = len(self._words), [each.stride[0] * size if rows > 1 else columns * size for each in (of, to)]
        self._words += [0, 0, ON_CARD, 0, 0, 0, pitches[0], 0, 0, ON_CARD, 0, 0, 0, pitches[1], columns * size, rows]
        self._places += [(begin + 4, Place(of.slot, of.offset * size)), (begin + 11, Place(to.slot, to.offset * size))]
        self._made.append(("copy", begin))

    @property
    def form(self) -> Form:
        """The part that follows from the sizes of the steps, which may be numbers of a script."""
        first = len(self._maps) * MAP // WORD
        places = [(at * MAP // WORD, *place) for at, (*_, place) in enumerate(self._maps)]
        places += [(first + at, *place) for at, place in self._places]
        boxes = tuple(_described(boxes, made_as) for boxes, made_as, _ in self._maps)
        fills = tuple(each for what, *(each, *_) in self._made if what == "fill")
        return Form(Words(self._words), tuple(places), boxes, fills)

    @property
    def told(self) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
        """Each command: what it is, its configuration or copy, its kernel, and its arguments, by bytes from begin."""
        first, found = len(self._maps) * MAP, list[tuple[str, int, int, tuple[int, ...]]]()
        for what, *rest in self._made:
            if what == "launch":
                kernel, configuration, parameters = rest
                of = tuple([-(1 + each) * MAP if each < 0 else first + each * WORD for each in parameters])
                found.append((what, first + configuration * WORD, kernel.function, of))
            else:
                found.append((what, first + rest[0] * WORD if what == "copy" else 0, 0, ()))
        return tuple(found)

    @property
    def streams(self) -> tuple[int, ...]:
        """The words that are the stream, by their number from the begin."""
        return tuple(len(self._maps) * MAP // WORD + each for each in self._streams)

    def close(self) -> None:
        """Make the commands, when all steps are there."""
        self._encode = [_encoder_of(self._by, *_kind_of(made_as, boxes)) for boxes, made_as, _ in self._maps]
        size = len(self._maps) * MAP + len(self._words) * WORD
        self._memory = ctypes.create_string_buffer(size + MAP)
        begin = -(-ctypes.addressof(self._memory) // MAP) * MAP
        whole = (ctypes.c_char * size).from_address(begin)
        self._bytes = memoryview(whole).cast("B")
        self._numbers = self._bytes.cast("q")
        self._commands = list[Callable[[], int]]()
        self._fills, self._copies, self._kept = list[int](), list[tuple[int, int]](), list[Any]()
        self._of_stream = self.streams
        for at, (what, place, function, parameters) in enumerate(self.told):
            command: Callable[[], int] = int
            if what == "launch":
                pointers = (ctypes.c_void_p * len(parameters))(*[begin + each for each in parameters])
                self._kept.append(pointers)
                command = partial(self._by.launch, begin + place, function, ctypes.addressof(pointers), None)
            elif what == "fill":
                self._fills.append(at)
            else:
                self._copies.append((at, begin + place))
            self._commands.append(command)

    def of(self, form: Form) -> Form:
        """The form of some sizes, as commands take it.

        Raises:
            Untraced: the driver does not take a descriptor.
        """
        maps = [encode(*each) for encode, each in zip(self._encode, form.boxes, strict=True)]
        return Form(b"".join([*maps, form.words]), form.places, (), form.fills)

    def boxes_in(self, library: Any) -> tuple[Any, ...]:
        """Encoders of the descriptors in the library in C++."""
        functions = self._by.addresses
        return tuple(_boxes_in(library, functions, *_kind_of(made_as, boxes)) for boxes, made_as, _ in self._maps)

    def plain(self) -> Form:
        """The form of the steps, if no size is a symbol, or for their values now."""
        return self.of(evaluated(self.form))

    def __call__(self, places: Sequence[int], stream: int, form: Form) -> None:
        """Give the commands for slots at these addresses, to a stream of the card, in a form that `of` gave.

        Raises:
            RuntimeError: the driver refuses one.
        """
        numbers, commands = self._numbers, self._commands
        with self._lock:
            if self._now is not form:
                self._now = None
                self._bytes[:] = form.words
                self._now = form
            for at, slot, offset in form.places:
                numbers[at] = places[slot] + offset
            for at in self._of_stream:
                numbers[at] = stream
            for at, (slot, offset, number) in zip(self._fills, form.fills, strict=True):
                commands[at] = partial(self._by.fill, places[slot] + offset, 0, number, stream)
            for at, begin in self._copies:
                commands[at] = partial(self._by.copy, begin, stream)
            for command in commands:
                if refused := command():
                    _again(self._by, refused, command)


HIGH = 2**32
"""Factor of the upper half of a word."""

ANYWHERE = 2**32, 2**47 - 2**21
"""Addresses that descriptors are encoded for."""

Encode = Callable[[tuple[int, ...], tuple[int, ...]], bytes]
"""A function that gives the bytes of a descriptor of some lengths, and strides in bytes, from the innermost axis on."""


KindOfBoxes = tuple[int, int, int, tuple[int, ...]]
"""The driver's number of the type of words, swizzle, whether words outside are NaN, and the sides of a box."""


def _kind_of(made_as: Any, boxes: Any) -> KindOfBoxes:
    """Facts that are alike in descriptors of some boxes, whatever the lengths and strides of their tensors are."""
    from triton.backends.nvidia import driver as nvidia

    kind = nvidia.TMA_DTYPE_DEVICE_TO_HOST[made_as["elem_type"]], made_as["swizzle"], int(boxes.padding == "nan")
    return *kind, tuple(reversed(made_as["block_size"]))


@cache
def _boxes_in(library: Any, functions: tuple[int, ...], *kind: Any) -> Any:
    """An encoder of descriptors of a kind in the library in C++; one in Python has tried this kind before."""
    return library.boxes(functions, *kind)


@cache
def _encoder_of(by: Driver, kind: int, swizzle: int, nan: int, sides: tuple[int, ...]) -> Encode:
    """The function for boxes of a kind.

    The driver takes longer to encode boxes than to launch a kernel, and tensors of one shape differ in their addresses
    alone, which are the first word of a descriptor: so what it has encoded stays.
    """
    known: Recent[tuple[Any, ...], bytes] = Recent(2**11)
    rank = len(sides)
    box, ones = (ctypes.c_uint * rank)(*sides), (ctypes.c_uint * rank)(*[1] * rank)

    def at(address: int, lengths: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
        memory = ctypes.create_string_buffer(2 * MAP)
        begin = -(-ctypes.addressof(memory) // MAP) * MAP
        sizes = (ctypes.c_uint64 * rank)(*lengths), (ctypes.c_uint64 * (rank - 1))(*strides)
        if by.describe(begin, kind, rank, address, *sizes, box, ones, 0, swizzle, L2_128B, nan):
            raise Untraced
        return ctypes.string_at(begin, MAP)

    def encode(lengths: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
        if (made := known.get((lengths, strides))) is None:
            made = at(ANYWHERE[0], lengths, strides)
            if not known:
                other = at(ANYWHERE[1], lengths, strides)
                found = [int.from_bytes(each[:WORD], "little") for each in (made, other)]
                if tuple(found) != ANYWHERE or made[WORD:] != other[WORD:]:
                    raise Untraced
            known[lengths, strides] = made
        return made

    return encode


def _described(one: Any, made_as: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Lengths of boxes, and strides in bytes, from the innermost axis on."""
    size = made_as["elem_size"]
    return tuple(reversed(one.shape)), tuple(size * each for each in reversed(one.strides[:-1]))


def _types(kernel: Any) -> tuple[str, ...] | None:
    """Types of a kernel's arguments; None if it is not launched by the driver alone."""
    run, source = kernel.run, getattr(kernel.made, "src", None)
    if run.profile_scratch_size or run.launch_cooperative_grid or run.launch_pdl:
        return None
    if kernel.metadata[1] != 1 or source is None or not all(map(_tiled, kernel.made_as)):
        return None
    types = tuple(source.signature.values())
    known = {"constexpr", *FORMATS}
    right = all(isinstance(each, str) and (each in known or each[0] == "*" or _boxes(each)) for each in types)
    return types if right and sum(map(_boxes, types)) == len(kernel.made_as) else None


def _tiled(made_as: Any) -> bool:
    """Whether a descriptor is one of tiles, whose words stay as they are."""
    return made_as is not None and not made_as["fp4_padded"] and not made_as.get("is_im2col", False)


def _boxes(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith("tensordesc")


def _packed(kind: str, number: Any) -> Any:
    """A number as a word of 64 bits, of which the kernel reads the first ones."""
    if isinstance(number, Number):
        if kind not in INTEGERS:
            raise Untraced
        return number
    return int.from_bytes(struct.pack(FORMATS[kind], number).ljust(WORD, b"\0"), "little", signed=True)


def _at(view: View, number: int) -> View:
    """A part of a tensor, by a number along its first axis."""
    return View(view.slot, view.offset + number * view.stride[0], view.shape[1:], view.stride[1:])


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
