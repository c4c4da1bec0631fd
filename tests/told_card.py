"""What calls of `attention` tell a card: by a stand-in for its driver, or by Triton and PyTorch."""

from __future__ import annotations

import ctypes
import struct
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_torch_launches import patch
from torch.utils._python_dispatch import TorchDispatchMode

from pebblesim.operator.known import eager, known, recorded
from pebblesim.operator.known.recent import Recent
from pebblesim.operator.launching import boxes, launch


class Watched(TorchDispatchMode):
    """Fills and copies of PyTorch, as the driver would be asked for them; no memory is used twice."""

    def __init__(self, noted: list[Any]) -> None:
        super().__init__()
        self.noted, self.kept = noted, list[Any]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name == "fill_":
            self.noted.append(("fill", args[0].data_ptr(), args[0].numel()))
        elif name == "copy_":
            to, of = args[0], args[1].expand(args[0].shape)
            for at in product(*map(range, to.shape[:-2])):  # a matrix after the other
                self._copied(to[at], of[at])
        self.kept.append(function(*args, **(kwargs or {})))
        return self.kept[-1]

    def _copied(self, *matrices: Any) -> None:
        to, of = matrices
        apart = [4 * (x.stride(0) if x.shape[0] > 1 else x.shape[1]) for x in (of, to)]
        where = [place for x, pitch in zip((of, to), apart, strict=True) for place in (x.data_ptr(), pitch)]
        self.noted.append(("copy", *where, to.shape[1] * 4, to.shape[0]))


class Told:
    """What is launched, filled and copied: by the driver, or by Triton and PyTorch."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.card, self.noted = patch(patched), list[Any]()
        driver = self.card.driver

        def launched(configuration: Any, function: Any, parameters: Any, extra: Any) -> int:
            self.card.launch(configuration, function, parameters, extra)
            number, grid, *_, taken = self.card.launches.pop()
            kinds = self.card.kinds[number]
            places = (ctypes.c_uint64 * len(kinds)).from_address(parameters)
            at = [place for place, kind in zip(places, kinds, strict=True) if kind == "map"]
            shapes = [struct.unpack("<8xQ", ctypes.string_at(each, 16))[0] for each in at]
            self.noted.append(("launch", number, grid, *taken, *shapes))
            return 0

        def described(at: int, kind: int, rank: int, address: int, lengths: Any, strides: Any, *rest: Any) -> int:
            shape = self._shape(lengths[:rank], strides[: rank - 1])  # which may be pointers
            ctypes.memmove(at + 8, struct.pack("<Q", shape), 8)
            return self.card.encode(at, kind, rank, address, lengths, strides, *rest)

        driver.launch, driver.describe = launched, described
        driver.fill = lambda *given: self.noted.append(("fill", given[0], given[2])) or self.card.fill(*given)
        driver.copy = self._copied
        for module in (launch, recorded):
            patched.setattr(module, "launch", self._by_triton)
        some = SimpleNamespace(multi_processor_count=132)
        patched.setattr(torch.cuda, "get_device_properties", lambda device: some)
        for module, name in ((recorded, "_KINDS"), (eager, "_CHECKED"), (eager, "_ALIKE")):
            patched.setattr(module, name, Recent(100))

    @staticmethod
    def _shape(lengths: Any, strides: Any) -> int:
        """A number that stands for what a descriptor is encoded for, from the innermost axis on."""
        return hash((*lengths, *strides)) % 2**40

    def _copied(self, told: int, stream: int) -> int:
        given = struct.unpack("<16Q", ctypes.string_at(told, 128))
        self.noted.append(("copy", given[4], given[6], given[11], given[13], given[14], given[15]))
        return self.card.copy(told, stream)

    def _by_triton(self, kernel: Any, grid: Any, stream: int, arguments: Any) -> None:
        taken, shapes, types = list[Any](), list[int](), kernel.made.src.signature.values()
        for kind, each in zip(types, arguments, strict=True):
            if isinstance(each, boxes.Described):
                one = each.boxes.one
                taken += [each.address, *one.shape, *one.strides]
                shapes.append(self._shape(one.shape[::-1], [2 * stride for stride in one.strides[-2::-1]]))
            elif kind != "constexpr":
                taken.append(each.data_ptr() if isinstance(each, torch.Tensor) else each)
        self.noted.append(("launch", kernel.function, tuple(grid), *taken, *shapes))

    def of(self, call: Any, inputs: list[Any], untraced: bool) -> Any:
        """What a call tells the card, with places in the order in which they come in the place of addresses."""
        self.noted.clear()
        with pytest.MonkeyPatch.context() as patched:
            if untraced:
                patched.setattr(recorded, "sizes_of", lambda *given: None)
                patched.setattr(known.Known, "ready", lambda *given: None)  # which keeps passes, too
            with Watched(self.noted):
                results = call()
        places = {each.data_ptr(): f"input {at}" for at, each in enumerate(inputs)}
        told = list[Any]()
        for what, *rest in self.noted:
            told.append((what, *(self._place(each, places) for each in rest)))
        shapes = [(each.shape, each.stride(), self._place(each.data_ptr(), places)) for each in results]
        return told, shapes

    @staticmethod
    def _place(each: Any, places: dict[int, str]) -> Any:
        if isinstance(each, int) and each > 2**40:
            return places.setdefault(each, f"place {len(places)}")
        return each


def causal(n: int) -> dict[str, Any]:
    return {"is_causal": True}


def in_library(told: Told, patched: pytest.MonkeyPatch) -> None:
    """Let the driver's functions have an address, as those of a library have."""
    word, number, size, address = ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
    several, numbers = ctypes.POINTER(word), ctypes.POINTER(number)
    driver = told.card.driver
    for name, types in (
        ("launch", [address] * 4),
        ("fill", [word, number, size, address]),
        ("copy", [address] * 2),
        ("describe", [address, number, number, word, several, several, numbers, numbers, *[number] * 4]),
    ):
        call = getattr(driver, name)
        made = ctypes.CFUNCTYPE(ctypes.c_int, *types)(lambda *given, call=call: int(bool(call(*given))))
        patched.setattr(driver, name, made)


def packed(n: int) -> dict[str, Any]:
    return {"cu_seqlens": torch.tensor([0, n // 3, n // 3, n - 1], dtype=torch.int32), "is_causal": True}


def packed_apart(n: int) -> dict[str, Any]:
    return {"cu_seqlens": tuple(torch.tensor([0, n // at, n]) for at in (2, 3)), "window": (30, 0), "align": "end"}


def padding(n: int) -> dict[str, Any]:
    return {"key_padding_mask": (torch.arange(n) > n // 2).repeat(2, 1), "is_causal": True}


def a_part_of_padding(n: int) -> dict[str, Any]:
    return {"key_padding_mask": (torch.arange(n + 1) > n // 2).repeat(2, 1)[:, 1:], "is_causal": True}


def padding_for_all(n: int) -> dict[str, Any]:
    return {"key_padding_mask": (torch.arange(n) > n // 2)[None]}


def sinks(n: int) -> dict[str, Any]:
    return {"sinks": torch.zeros(4, requires_grad=True), "is_causal": True}


def packed_with_sinks(n: int) -> dict[str, Any]:
    """Sinks that begin, within others, where wide accesses do not."""
    return packed(n) | {"sinks": torch.zeros(7, dtype=torch.bfloat16)[3:].requires_grad_()}
