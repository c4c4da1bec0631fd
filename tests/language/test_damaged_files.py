"""Files of arrays that are damaged, or made to do harm: each is read, or refused in one sentence."""

import random
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pebblesim.core.errors import UsageError
from pebblesim.core.files import load_numpy, names_of_arrays
from pebblesim.language.masks import from_text
from pebblesim.sparse_backward.inputs import load_head

KINDS = ("stored.npz", "packed.npz", "safetensors", "npy", "mask.npy")


def good(kind: str, folder: Path) -> bytes:
    """The bytes of a file without fault."""
    path, rng = folder / f"good.{kind}", np.random.default_rng(0)
    arrays = {name: rng.standard_normal((4, 3)).astype("f4") for name in ("Q", "K", "V")}
    match kind:
        case "stored.npz":
            np.savez(path, **arrays)  # type: ignore[arg-type]
        case "packed.npz":
            np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
        case "safetensors":
            save_file(arrays, path)
        case "npy":
            np.save(path, arrays["Q"])
        case "mask.npy":
            np.save(path, np.eye(4, dtype=bool))
    return path.read_bytes()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, lost, added, or taken from elsewhere."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at, many = rng.randrange(len(found) + 1), rng.randrange(1, 9)
        match rng.choice(["set", "flip", "end", "lose", "add", "number", "copy"]):
            case "set":
                found[at : at + 1] = rng.randbytes(1)
            case "flip":
                found[at : at + 1] = bytes(byte ^ 1 << rng.randrange(8) for byte in found[at : at + 1])
            case "end":
                del found[at:]
            case "lose":
                del found[at : at + many]
            case "add":
                found[at:at] = rng.randbytes(many)
            case "number":
                found[at : at + 4] = rng.choice([bytes(4), b"\xff" * 4, b"9999", b"-1  "])
            case "copy":
                other = rng.randrange(len(found) + 1)
                found[at : at + 8] = found[other : other + 8]
    return bytes(found)


def read_or_refused(kind: str, data: bytes, folder: Path) -> bool:
    """Whether a file is read; it is refused in one sentence otherwise."""
    path = folder / f"file.{kind.rpartition('.')[2]}"
    path.write_bytes(data)
    try:
        match kind:
            case "npy":
                load_head([f"Q={path}", *(f"{name}={folder / 'good.npy'}" for name in ("K", "V"))])
            case "mask.npy":
                mask = from_text(str(path))
                assert mask is not None
                mask.allowed(7)
            case _:
                load_head([str(path)])
    except UsageError as refused:
        assert len(str(refused).splitlines()) == 1
        assert len(str(refused)) < 500 + len(str(path))
        return False
    return True


def check(draws: int, folder: Path) -> None:
    rng, seen = random.Random(draws), set()
    files = {kind: good(kind, folder) for kind in KINDS}
    for kind, data in files.items():
        assert read_or_refused(kind, data, folder)
    with warnings.catch_warnings(action="error"):
        for number in range(draws):
            kind = KINDS[number % len(KINDS)]
            seen.add((kind, read_or_refused(kind, damaged(files[kind], rng), folder)))
    assert seen == {(kind, read) for kind in KINDS for read in (True, False)}


@pytest.mark.one_in(2)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(tmp_path: Path) -> None:
    check(600, tmp_path)


@pytest.mark.slow
def test_thousands_of_damaged_files_are_read_or_refused_in_one_sentence(tmp_path: Path) -> None:
    check(20_000, tmp_path)


@pytest.mark.parametrize(
    ("place", "byte", "says"),
    [
        (4, 0xFF, "zip file version"),
        (6, 0x01, "is encrypted"),
        (8, 0x63, "compression method is not supported"),
    ],
)
def test_an_archive_that_zipfile_does_not_know(tmp_path: Path, place: int, byte: int, says: str) -> None:
    data = bytearray(good("packed.npz", tmp_path))
    data[place] = data[data.index(b"PK\x01\x02") + 2 + place] = byte  # beside the file, and in the directory
    (tmp_path / "odd.npz").write_bytes(data)
    with pytest.raises(UsageError, match=rf"inputs '.*odd\.npz' cannot be read: .*{says}"):
        load_head([str(tmp_path / "odd.npz")])


def test_a_file_that_is_of_another_kind_than_its_name_says(tmp_path: Path) -> None:
    for kind, ending, says in (
        ("npy", "npz", "File is not a zip file"),
        ("packed.npz", "npy", "the magic string is not"),
    ):
        path = tmp_path / f"file.{ending}"
        path.write_bytes(good(kind, tmp_path))
        with pytest.raises(UsageError, match=f"this cannot be read: {says}"):
            (names_of_arrays if ending == "npz" else load_numpy)(str(path), "this")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("Q", "no array")
    with pytest.raises(UsageError, match="cannot be read: Q in it is not an array"):
        load_head([str(tmp_path / "text.npz")])


def test_a_header_that_asks_for_more_memory_than_there_is(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 1048576), }"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(UsageError, match=r"mask .* cannot be read: "):
        from_text(str(tmp_path / "huge.npy"))
