"""A small interpreter of the few Triton primitives that our kernels use, over numpy, which counts the words they touch.

`run` runs the text of a module with stand-ins for torch and triton. A kernel runs program by program. Pointers are
arrays with offsets; a load or a store outside its array is an error. Each array knows which of its words were written:
a load of another one is an error that names kernel and tensor, also where the kernel would drop the value later, since
0 times what memory holds may be NaN. Where a load is masked off, nothing is read. Matrix products take words as they
are in memory and add in float32.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import contextmanager
from itertools import product
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class Type:
    """A type of words, and how it rounds float32."""

    def __init__(self, name: str, bits: int) -> None:
        self.name, self.bits = name, bits

    def round(self, values: np.ndarray) -> np.ndarray:
        if self.name == "bfloat16":
            raw = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
            even = (raw + 0x7FFF + ((raw >> 16) & 1)) & 0xFFFF0000
            return np.where(np.isfinite(values), even.astype(np.uint32).view(np.float32), values)
        if self.name == "float16":
            with np.errstate(over="ignore"):
                return np.asarray(values, np.float16).astype(np.float32)
        return np.asarray(values, np.int64 if self.name.startswith("int") else np.float32)


BITS = {"bfloat16": 16, "float16": 16, "float32": 32, "int32": 32, "int64": 64}
TYPES = {name: Type(name, bits) for name, bits in BITS.items()}


class Array:
    """A tensor in memory, (heads, …), perhaps with strides.

    Attributes:
        values: words, NaN where nobody wrote one, as between the words of a tensor with strides.
        there: which of them were written.
        name: as kernels call it.
    """

    def __init__(self, values: np.ndarray, dtype: Type, strides: tuple[int, ...] | None = None) -> None:
        self.shape, self.dtype, self.device, self.name = values.shape, dtype, "numpy", "a tensor"
        self.strides, self.places = strides, None
        rounded = dtype.round(np.asarray(values, np.float32))
        if strides is None:
            self.values = rounded.reshape(-1).copy()
        else:
            axes = zip(strides, values.shape, strict=True)
            self.places = sum(np.ix_(*(np.arange(length) * stride for stride, length in axes)), np.int64(0))
            self.values = np.full(int(self.places.max()) + 1, np.nan, np.float32)
            self.values[self.places] = rounded
        self.there = ~np.isnan(self.values)
        self.read, self.written = 0, 0
        self.pairs: tuple[int, int] | None = None  # of a table that is kept tile by tile
        self.allowed: np.ndarray | None = None  # of a table that has only the tiles of a band
        self.part = False  # whether it has fewer rows than there are: those from the start of a group on
        self.copied: Array | None = None  # what it stands for, with longer rows
        self.beside = [0, 0]  # words read and written where there is no pair

    def get(self, places: np.ndarray) -> np.ndarray:
        """The words at these places, read by the kernel that runs."""
        assert self.there[places].all(), f"{LANGUAGE.kernel} reads words of {self.name} that nobody wrote"
        self.touched(places.reshape(-1), False)
        return self.values[places]

    def put(self, places: np.ndarray, words: np.ndarray) -> None:
        """Write words at these places, by the kernel that runs."""
        assert not np.isnan(words).any(), f"{LANGUAGE.kernel} writes NaN to {self.name}"
        self.values[places] = words
        self.there[places] = True
        self.touched(places.reshape(-1), True)

    def touched(self, places: np.ndarray, written: bool) -> None:
        if written:
            self.written += places.size
        else:
            self.read += places.size
        if self.pairs is not None:
            _, *numbers = np.unravel_index(places, self.shape)
            if self.allowed is not None:
                numbers[1] = numbers[1] + self.first(numbers[0] * self.shape[3] + LANGUAGE.start * self.part)
            rows, columns = (numbers[axis] * self.shape[3 + axis] + numbers[2 + axis] for axis in (0, 1))
            rows = rows + LANGUAGE.start * self.part
            self.beside[written] += int(((rows >= self.pairs[0]) | (columns >= self.pairs[1])).sum())

    def first(self, rows: np.ndarray) -> np.ndarray:
        """The number of the first tile with an allowed pair, in tiles of rows that begin at these."""
        assert self.allowed is not None
        tall, wide = self.shape[3:]
        number = {row: int(np.argmax(self.allowed[row : row + tall].any(axis=0))) // wide for row in set(rows.tolist())}
        return np.array([number[row] for row in rows.tolist()], np.int64)

    def fill_(self, value: float) -> None:
        self.values[:], self.there[:] = value, True
        self.written += self.values.size

    def __getitem__(self, key: tuple[slice, ...]) -> Rows:
        assert len(key) == len(self.shape)
        return Rows(self, key[-1].stop)

    def numel(self) -> int:
        return self.values.size

    def numpy(self) -> np.ndarray:
        return self.values.reshape(self.shape) if self.places is None else self.values[self.places]

    def stride(self, axis: int | None = None) -> Any:
        strides = self.strides
        if strides is None:
            assert axis is not None, "matrices have strides, given with them"
            strides = tuple(prod(self.shape[at + 1 :]) for at in range(len(self.shape)))
        return strides if axis is None else strides[axis]

    def dim(self) -> int:
        return len(self.shape)


class Rows:
    """The first words of each row of an array."""

    def __init__(self, array: Array, words: int) -> None:
        self.array, self.values = array, array.numpy()[..., :words]
        self.there = array.there.reshape(array.shape)[..., :words]

    def copy_(self, other: Array) -> None:
        self.values[:], self.there[:] = other.numpy(), True
        self.array.copied = other

    def sub_(self, other: Array) -> None:
        assert self.there.all(), "a vector is changed that nobody wrote"
        self.values -= other.numpy()


class Pointer:
    def __init__(self, array: Array, offsets: Any = 0) -> None:
        self.array, self.offsets = array, offsets
        self.dtype = SimpleNamespace(element_ty=array.dtype)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.array, self.offsets + np.asarray(other))

    __iadd__ = __add__


class Descriptor:
    """A matrix of which tiles are read: it begins, as each of its rows does, at a multiple of 8 words of 16 bits."""

    def __init__(self, base: Pointer, shape: list[Any], strides: list[Any], block: list[int]) -> None:
        assert base.array.dtype.bits == 16 and strides[1] == 1
        assert int(base.offsets) % 8 == 0 and int(strides[0]) % 8 == 0
        assert not any(side & (side - 1) or side > 256 for side in block[:1]), "a box of more than 256 rows"
        self.base, self.shape, self.strides, self.block = base, shape, strides, block

    def load(self, at: list[Any]) -> Value:
        rows, columns = (np.int64(first) + np.arange(side) for first, side in zip(at, self.block, strict=True))
        places = rows[:, None] * self.strides[0] + columns[None, :]
        return _load(self.base + places, (rows[:, None] < self.shape[0]) & (columns[None, :] < self.shape[1]))


class Value(np.ndarray):
    """A block of values in registers."""

    def __truediv__(self, other: Any) -> Value:  # integers become numbers in float32, and not in float64
        return np.divide(np.asarray(self, np.float32), np.asarray(other, np.float32)).view(Value)

    def to(self, dtype: Type) -> Value:
        return dtype.round(self).view(Value)


def _value(values: Any) -> Value:
    return np.asarray(values).view(Value)


def _kernel(function: Any = None, do_not_specialize: Any = ()) -> Any:
    """`kernel[grid](…)` runs the function for each program of the grid."""
    if function is None:
        return _kernel

    class Launcher:
        def __call__(self, *given: Any) -> Any:
            return function(*given)

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(*arrays: Array | int, **options: int | bool) -> None:
                LANGUAGE.grid = (*grid, 1, 1)[:3]
                given = [Pointer(each) if isinstance(each, Array) else _value(each) for each in arrays]
                named(function, arrays)
                for programs in product(*map(range, LANGUAGE.grid)):
                    LANGUAGE.programs = programs
                    LANGUAGE.start = arrays[0] if isinstance(arrays[0], int) else 0
                    with np.errstate(all="ignore"):
                        function(*given)

            return launch

    return Launcher()


def named(function: Any, arguments: Iterable[Any]) -> None:
    """Note that a kernel runs, and how it calls its tensors."""
    LANGUAGE.kernel = function.__name__
    for name, each in zip(inspect.signature(function).parameters, arguments, strict=True):
        array = getattr(each, "array", each)  # of a descriptor
        if isinstance(array, Array):
            array.name = name.removesuffix("_ptr")


def _places(pointer: Pointer, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.asarray(pointer.offsets)
    inside = np.broadcast_to(True if mask is None else np.asarray(mask), offsets.shape)
    places = offsets[inside]
    assert places.size == 0 or (places.min() >= 0 and places.max() < pointer.array.values.size), "outside the array"
    return inside, places


def _load(pointer: Pointer, mask: Any = None, other: float = 0.0) -> Value:
    inside, places = _places(pointer, mask)
    values = np.full(inside.shape, other, np.int64 if pointer.array.dtype is TYPES["int64"] else np.float32)
    values[inside] = pointer.array.get(places)
    return _value(values)


def _store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    inside, places = _places(pointer, mask)
    pointer.array.put(places, np.broadcast_to(value, inside.shape)[inside])


def _dot(left: Value, right: Value, onto: Any = 0.0, input_precision: str = "") -> Value:
    assert min(*left.shape, *right.shape) >= 16
    return _value(np.asarray(left, np.float32) @ np.asarray(right, np.float32) + onto)


def _arange(start: int, stop: int) -> Value:
    assert (stop - start) & (stop - start - 1) == 0, "a block has a power of two of elements"
    return _value(np.arange(start, stop))


LANGUAGE: Any = SimpleNamespace(
    programs=(0, 0),
    grid=(1, 1),
    start=0,
    kernel="",
    program_id=lambda axis: _value(np.int64(LANGUAGE.programs[axis])),
    num_programs=lambda axis: _value(np.int64(LANGUAGE.grid[axis])),
    arange=_arange,
    load=_load,
    store=_store,
    dot=_dot,
    full=lambda shape, value, dtype: _value(np.full(shape, value, np.float32)),
    trans=lambda x: _value(np.asarray(x).T),
    sum=lambda x, axis: _value(np.sum(x, axis=axis)),
    reshape=lambda x, shape: _value(np.reshape(x, shape)),
    max=lambda x, axis: _value(np.max(x, axis=axis)),
    extra=SimpleNamespace(cuda=SimpleNamespace(gdc_launch_dependents=lambda: None, gdc_wait=lambda: None)),
    math=SimpleNamespace(exp2=lambda x: _value(np.exp2(x))),
    exp2=lambda x: _value(np.exp2(x)),
    log2=lambda x: _value(np.log2(x)),
    sigmoid=lambda x: _value(1 / (1 + np.exp(-x))),
    maximum=lambda x, y: _value(np.maximum(x, y)),
    cdiv=lambda x, y: _value(-(-x // y)),
    cast=lambda x, dtype: x,
    make_tensor_descriptor=Descriptor,
    range=lambda start, stop, num_stages: range(start, stop),
    minimum=lambda x, y: _value(np.minimum(x, y)),
    where=lambda condition, x, y: _value(np.where(condition, x, y)),
    **TYPES,
)


CUDA = SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(multi_processor_count=3))


@contextmanager
def _modules(**stand_ins: Any) -> Any:
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _type(values: np.ndarray, dtype: str) -> Type:
    """The type of an argument: vectors for each head are in float32, and numbers of tokens are integers."""
    if values.dtype.kind == "i":
        return TYPES["int64"]
    return TYPES["float32" if values.ndim == 2 else dtype]


def run(
    text: str,
    inputs: dict[str, np.ndarray],
    dtype: str,
    pairs: tuple[int, int] | None = None,
    shift: np.ndarray | None = None,
    band: np.ndarray | None = None,
    others: dict[str, Any] | None = None,
    strides: dict[str, tuple[int, ...]] | None = None,
    results: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
    wide: Collection[str] = (),
    begin: dict[str, np.ndarray] | None = None,
    onto: dict[str, np.ndarray] | None = None,
    apart: dict[str, int] | None = None,
    sums_of: tuple[Array, Array] | None = None,
) -> tuple[dict[str, np.ndarray], Counter[tuple[str, str]]]:
    """The outputs of a module's `run`, and the words that it read and wrote, by ("read" or "written", tensor).

    `inputs`: an array for each argument, (heads, …), in the order of the arguments. `pairs`: rows and columns of
    tables; what is moved beside them, in tiles that are filled up, is by ("read" or "written", "beside"), too. `shift`:
    the gradient of L, if it is an argument. `band`: the allowed pairs, if tables have only the tiles of a band.
    `others`: stand-ins for other modules that the text imports.
    `strides`: of inputs that have some; `results`: shapes and strides of the matrices that are to be written. `wide`:
    which of these are in float32 whatever the type of the others; `begin`: what some of them hold already; `onto`:
    sums in float32 of contiguous matrices, that results are added to. `apart`: of how many parts gradients are sums.
    `sums_of`: sinks, and where their gradient is written.
    """
    arrays: list[tuple[str, Array]] = []

    def empty(shape: tuple[int, ...], dtype: Type, device: Any) -> Array:
        arrays.append(("", Array(np.full(shape, np.nan), dtype)))
        if len(shape) == 5:
            arrays[-1][1].pairs, arrays[-1][1].allowed = pairs, band
            arrays[-1][1].part = pairs is not None and shape[1] * shape[3] < pairs[0]
        return arrays[-1][1]

    module = ModuleType("kernels")
    triton = SimpleNamespace(
        jit=_kernel, language=LANGUAGE, cdiv=lambda x, y: -(-x // y), set_allocator=lambda function: None
    )
    modules = {"torch": SimpleNamespace(empty=empty, cuda=CUDA, **TYPES), "triton": triton, "triton.language": LANGUAGE}
    with _modules(**modules, **(others or {})):
        exec(compile(text, "kernels", "exec"), module.__dict__)
        kinds = {name: _type(x, "float32" if name in wide else dtype) for name, x in inputs.items()}
        given = [Array(x, kinds[name], (strides or {}).get(name)) for name, x in inputs.items()]
        arrays += zip(inputs, given, strict=True)
        options: dict[str, Any] = {} if shift is None else {"dL": Array(shift, TYPES["float32"])}
        options |= {} if apart is None else {"apart": apart}
        options |= {} if sums_of is None else {"sums_of_sinks": sums_of}
        if onto is not None:
            options["onto"] = {name: Array(x, TYPES["float32"]) for name, x in onto.items()}
            arrays += options["onto"].items()
        if results is not None:
            options["results"] = {
                name: Array(
                    (begin or {}).get(name, np.full(shape, np.nan)), TYPES["float32" if name in wide else dtype], apart
                )
                for name, (shape, apart) in results.items()
            }
            arrays += options["results"].items()
        outputs = module.run(*given, **options)
    names = {id(array): name for name, array in outputs.items()} | {
        id(a): name for name, a in zip(inputs, given, strict=True)
    }
    words: Counter[tuple[str, str]] = Counter()
    for _, array in arrays:
        name = names.get(id(array.copied or array), "between")
        words["read", name] += array.read
        words["written", name] += array.written
        words["read", "beside"] += array.beside[False]
        words["written", "beside"] += array.beside[True]
    return {name: array.numpy() for name, array in outputs.items()}, words
