"""Stand-ins for the driver of a card and for kernels, which read memory as the real ones do."""

from __future__ import annotations

import ctypes
import struct
from itertools import count
from types import SimpleNamespace
from typing import Any

from pebblesim.operator.known import direct

SIZES = {
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u32": "I",
    "u64": "Q",
    "fp32": "f",
    "fp64": "d",
    "*bf16": "Q",
    "*fp32": "Q",
}
"""Types of arguments, and how `struct` reads them."""


NUMBERS, TYPES = count(1), dict[int, list[str]]()
"""Numbers of functions, and types of their arguments: kernels of a module stay from one card to the next."""


def arguments(kind: str) -> list[str]:
    """The arguments of the driver for one of a kernel."""
    if kind.startswith("tensordesc"):
        axes = kind.partition("[")[2].partition("]")[0].count(",") + 1
        return ["map", *["i32"] * axes, *["i64"] * axes]
    return [] if kind == "constexpr" else ["u64" if kind[0] == "*" else kind]


class Card:
    """A driver that notes what it is asked for, and does fills and copies in the memory of the CPU.

    Attributes:
        launches: function, grid, block, shared memory, stream and arguments of each launch, in order.
        rooms: arguments behind the others, which are 0.
        fails: errors that it gives, one after the other, before it does anything.
    """

    def __init__(self) -> None:
        self.kinds: dict[int, list[str]] = {}
        self.launches: list[Any] = []
        self.fails: list[int] = []
        self.entered, self.rooms = 0, 2
        self.kernels: dict[int, Any] = {}
        word, number, size, address = ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
        several, numbers = ctypes.POINTER(word), ctypes.POINTER(number)
        kinds: dict[str, Any] = {
            "cuLaunchKernelEx": (self.launch, [address] * 4),
            "cuMemsetD32Async": (self.fill, [word, number, size, address]),
            "cuMemcpy2DAsync_v2": (self.copy, [address] * 2),
            "cuTensorMapEncodeTiled": (
                self.encode,
                [address, number, number, word, several, several, numbers, numbers, *[number] * 4],
            ),
            "cuTensorMapReplaceAddress": (self.move, [address, word]),
            "cuDevicePrimaryCtxRetain": (lambda *given: 0, [ctypes.POINTER(address), ctypes.c_int]),
            "cuCtxSetCurrent": (self.enter, [address]),
        }
        functions = {name: ctypes.CFUNCTYPE(ctypes.c_int, *types)(made) for name, (made, types) in kinds.items()}
        self.driver = direct.Driver(SimpleNamespace(**functions))

    def enter(self, context: int) -> int:
        self.entered += 1
        return 0

    def launch(self, configuration: int, function: int, parameters: int, extra: int) -> int:
        if self.fails:
            return self.fails.pop(0)
        *sizes, stream, attributes, number = struct.unpack("@7I4xQQI", ctypes.string_at(configuration, 52))
        assert not attributes and not number and extra is None
        taken = []
        pointers = (ctypes.c_uint64 * (len(self.kinds[function]) + self.rooms)).from_address(parameters)
        assert all(ctypes.string_at(each, 8) == bytes(8) for each in pointers[len(self.kinds[function]) :])
        for kind, where in zip(self.kinds[function], pointers, strict=False):
            if kind == "map":
                assert where % 64 == 0
                taken.append(struct.unpack("<Q", ctypes.string_at(where, 8))[0])
            else:
                form = "<" + SIZES[kind]
                taken.append(struct.unpack(form, ctypes.string_at(where, struct.calcsize(form)))[0])
        self.launches.append((function, tuple(sizes[:3]), tuple(sizes[3:6]), sizes[6], stream, taken))
        if function in self.kernels:
            self.kernels[function](*taken)
        return 0

    def fill(self, address: int, value: int, number: int, stream: int) -> int:
        ctypes.memset(address, 0, 4 * number)
        return 0

    def copy(self, told: int, stream: int) -> int:
        given = struct.unpack("<16Q", ctypes.string_at(told, 128))
        assert given[2] == given[9] == 2 and [given[at] for at in (0, 1, 3, 5, 7, 8, 10, 12)] == [0] * 8
        for row in range(given[15]):
            ctypes.memmove(given[11] + row * given[13], given[4] + row * given[6], given[14])
        return 0

    def encode(self, at: int, kind: int, rank: int, address: int, *rest: Any) -> int:
        lengths, strides, box, ones, interleave, swizzle, promotion, fill = rest
        found = lengths[:rank], strides[: rank - 1], box[:rank], ones[:rank]
        self.described = (kind, *found, interleave, swizzle, promotion, fill)
        ctypes.memmove(at, struct.pack("<Q", address), 8)
        return 0

    def move(self, at: int, address: int) -> int:
        ctypes.memmove(at, struct.pack("<Q", address), 8)
        return 0


class Run(SimpleNamespace):
    """What Triton's launcher says of a kernel; called, it does nothing."""

    global_scratch_size, profile_scratch_size, launch_cooperative_grid, launch_pdl = 0, 0, False, False

    def __call__(self, *given: Any) -> None:
        """Launch nothing."""


def kernel(number: int, types: list[str], warps: int = 4, shared: int = 96, **others: Any) -> Any:
    """A kernel as `launch.Compiled` has it."""
    boxes = [each.partition("[")[2].partition("]")[0] for each in types if each.startswith("tensordesc")]
    made_as = [
        {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [*map(int, box.split(","))], "fp4_padded": False}
        for box in boxes
    ]
    source = SimpleNamespace(signature=dict(enumerate(types)))
    rest = {"metadata": (warps, 1, shared), "run": Run()} | others
    return SimpleNamespace(function=number, made=SimpleNamespace(src=source), made_as=made_as, **rest)
