"""Kernels that another release of Triton compiled: they are loaded, and take what the launcher here passes."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

sys.path.append(str(ROOT / "benchmarks" / "gpu"))
import other_tritons  # noqa: E402
import stand_in_card  # noqa: E402
from triton.backends.nvidia import driver  # noqa: E402

from pebblesim.operator.known import direct  # noqa: E402
from pebblesim.operator.known.tape import Launched, Place  # noqa: E402
from pebblesim.operator.launching.boxes import Boxes  # noqa: E402

# A module's folder is deleted with it, when the cache of modules is cleared.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Implicitly cleaning up:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

CALLS = [
    {"n": 2048, "d": 64, "heads": 16, "kv_heads": 16, "causal": False},
    {"n": 200, "d": 96, "heads": 6, "kv_heads": 2, "causal": True},
]
"""One for kernels of Gluon, and one for Triton's own."""

BYTES = {"CUdeviceptr": 8, "CUtensorMap": 128, "int8_t": 1, "int32_t": 4, "int64_t": 8, "uint32_t": 4}
"""Types of C in Triton's launcher."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of the kernels of the calls; they are compiled once."""
    folder = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))
        patch.setattr(other_tritons, "CALLS", CALLS)
        other_tritons.pack(folder / "kernels.zip")
        yield folder / "kernels.zip"


class Card:
    """Triton's driver where there is no card: kernels are loaded and launched by noting them.

    Attributes:
        loaded: names, machine code and bytes of shared memory.
        passed: bytes of the arguments that the launcher of each passes.
        launched: what each was launched with, first of all.
    """

    def __init__(self) -> None:
        self.loaded: list[tuple[str, bytes, int]] = []
        self.passed: list[list[int]] = []
        self.launched: list[Any] = []
        self.utils = SimpleNamespace(
            load_binary=self._load,
            get_device_properties=lambda device: {"max_shared_mem": 232_448},
        )

    def _load(self, name: str, code: bytes, shared: int, device: int) -> tuple[int, ...]:
        self.loaded.append((name, code, shared))
        return None, 1, 0, 0, 1024  # without a module there is nothing to unload

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        self.passed.append(passed(source.signature, metadata.tensordesc_meta))
        return lambda x, y, z, stream, function, packed, *given: self.launched.append(packed)


def passed(signature: dict[str, Any], described: Any) -> list[int]:
    """Bytes of the arguments that Triton's own launcher gives the driver, in order."""
    if hasattr(driver, "make_launcher"):  # it writes C
        text = driver.make_launcher({}, signature, described)
        (declared,) = re.findall(r"static void _launch\((.*?)\) \{", text)
        types = dict(reversed(each.rsplit(" ", 1)) for each in declared.split(", "))
        (given,) = re.findall(r"void \*params\[\] = \{ (.*?) \};", text)
        return [BYTES[types[each.strip().lstrip("&")]] for each in given.split(",")]
    given = signature.values(), described, "nvTmaDesc"
    types = driver.expand_signature(*given[: driver.expand_signature.__code__.co_argcount])
    return [*(BYTES[driver.ty_to_cpp(each)] for each in types if each != "constexpr"), 8, 8]


def run(file: Path) -> tuple[Card, Counter[str]]:
    """The calls, with the kernels of a file."""
    card, counts = Card(), Counter[str]()
    with (
        zipfile.ZipFile(file) as archive,
        other_tritons.without_card(utils=card.utils, launcher_cls=card.launcher_cls),
        other_tritons.compiling(other_tritons.replacing(archive, counts)),
    ):
        for call in CALLS:
            made, asked = other_tritons.tensors(call, "cpu")
            other_tritons.both_passes(*made, asked)
    return card, counts


def changed(file: Path, to: Path, **facts: Any) -> list[dict[str, Any]]:
    """Write a file with marked machine code, and other facts of its kernels; returns the facts."""
    found = []
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(to, "w") as marked:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".json"):
                found.append(json.loads(content) | facts)
                content = json.dumps(found[-1]).encode()
            marked.writestr(name, content + b"marked" * name.endswith(".cubin"))
    return found


def test_kernels_of_a_file_are_loaded_and_take_what_the_launcher_passes(packed: Path, tmp_path: Path) -> None:
    facts = changed(packed, tmp_path / "marked.zip", shared=54_321, num_warps=3)
    card, counts = run(tmp_path / "marked.zip")
    assert counts == {"replaced": len(facts)} and len(facts) >= 6
    assert all(code.endswith(b"marked") and shared == 54_321 for _, code, shared in card.loaded)
    assert [name for name, *_ in card.loaded] == [each["name"] for each in facts]
    assert set(card.launched) == {(3, 1, 54_321)}  # warps, blocks of a cluster, bytes of shared memory
    assert card.passed == [each["parameters"] for each in facts]
    assert {128, 8, 4} <= {bytes for each in card.passed for bytes in each}  # descriptors, addresses, lengths


@pytest.mark.parametrize("fact", ["parameters", "specialised"])
def test_kernels_that_take_other_arguments_are_not_launched(packed: Path, tmp_path: Path, fact: str) -> None:
    facts = changed(packed, tmp_path / "marked.zip", **{fact: [8]})
    card, counts = run(tmp_path / "marked.zip")
    assert counts == {"other arguments": len(facts)}
    assert not any(code.endswith(b"marked") for _, code, _ in card.loaded)


def test_the_driver_is_given_what_tritons_launcher_gives_it() -> None:
    """As many arguments, and descriptors in the same places, with whatever release of Triton is here."""
    types = ["*bf16", "tensordesc<bf16[1, 64, 32],Layout()>", "constexpr", "i32", "tensordesc<fp32[1, 8],Layout()>"]
    one, place = stand_in_card.kernel(1, [*types, "i64"]), Place(0, 0)
    shapes = ([5, 300, 40], [12000, 40, 1]), ([9, 8], [8, 1])
    tiles, rows = (Boxes(SimpleNamespace(shape=a, strides=b, padding="zero")) for a, b in shapes)
    given = place, (tiles, place), 3, 7, (rows, place), 8
    several = direct.Direct(stand_in_card.Card().driver, {}, list[int]().append)
    assert several.add(Launched(one, (1, 1, 1), given))
    ((_, _, _, parameters),) = several._made
    sizes = passed(one.made.src.signature, one.made_as)
    assert [each < 0 for each in parameters] == [size == 128 for size in sizes]
