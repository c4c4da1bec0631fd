"""Read and write traces of requests: oracleGeneral of libCacheSim, plain text, and CSV."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from pebblesim.cachesim.requests import READ, UPDATE, WRITE, Stream
from pebblesim.cachesim.streams import of_ids
from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
"""A request of oracleGeneral: 24 bytes; `next` is the number of the next request of the object, or -1."""

ENDINGS = (".oracleGeneral", ".oracleGeneral.bin", ".txt", ".csv")
KNOWN = "a trace is a file *.oracleGeneral.bin, *.txt (an object a line) or *.csv (columns id, and size and kind)"
KINDS = {"r": READ, "w": WRITE, "u": UPDATE}
COLUMNS = ("time", "id", "size", "kind")


def is_trace(name: str) -> bool:
    """Whether a file name is that of a trace."""
    return name.endswith(ENDINGS)


def load(path: Path) -> Stream:
    """Load a stream from a file, with the object sizes in the file.

    Raises:
        UsageError: the file does not exist, or is not a trace.
    """
    if not is_trace(path.name):
        raise UsageError(f"{path}: {KNOWN}.")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file.")
    if path.suffix == ".txt":
        return _text(path)
    return _csv(path) if path.suffix == ".csv" else _oracle(path)


def save(stream: Stream, path: Path) -> None:
    """Save a stream, as a whole file or not at all; only .csv stores which requests write.

    Raises:
        UsageError: the file name has an unknown ending, or the file cannot be written.
    """
    if not is_trace(path.name):
        raise UsageError(f"{path}: {KNOWN}.")
    with whole_file(path) as unfinished:
        if path.suffix == ".txt":
            np.savetxt(unfinished, stream.ids, "%d")
        elif path.suffix == ".csv":
            _save_csv(stream, unfinished)
        else:
            _save_oracle(stream, unfinished)


def _oracle(path: Path) -> Stream:
    if path.stat().st_size % RECORD.itemsize:
        raise UsageError(f"{path} has {path.stat().st_size:,} bytes, which is not a whole number of 24-byte records.")
    records = np.fromfile(path, RECORD)
    ids = records["id"]
    return of_ids(ids, np.maximum(records["size"], 1))


def _save_oracle(stream: Stream, path: Path) -> None:
    from pebblesim.cachesim.kernels import next_uses

    records = np.empty(len(stream), RECORD)
    following = next_uses(stream.ids, len(stream.sizes))
    records["time"] = np.minimum(np.arange(len(stream)), 2**32 - 1)
    records["id"], records["size"] = stream.ids, stream.sizes[stream.ids]
    records["next"] = np.where(following == len(stream), -1, following)
    records.tofile(path)


def _text(path: Path) -> Stream:
    ids: list[int] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip() and not line.startswith("#"):
                ids.append(_whole(line, path, number))
    return _stream(path, ids)


def _csv(path: Path) -> Stream:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        lines = csv.DictReader(file)
        names = [name.strip() for name in lines.fieldnames or ()]
        if "id" not in names or not set(names) <= set(COLUMNS):
            raise UsageError(f"{path}: its first line must name the columns: id, and any of time, size and kind.")
        lines.fieldnames = names
        columns: dict[str, list[Any]] = {name: [] for name in names}
        for number, line in enumerate(lines, 2):
            if None in line or None in line.values():
                raise UsageError(f"{path}, line {number}: it does not have the {len(names)} columns of the first line.")
            columns["id"].append(_whole(line["id"], path, number))
            if "size" in names:
                columns["size"].append(_whole(line["size"], path, number))
            if "kind" in names:
                kind = line["kind"].strip().lower()
                if kind not in KINDS:
                    raise UsageError(f"{path}, line {number}: the kind of a request is r, w or u, not {kind!r}.")
                columns["kind"].append(KINDS[kind])
    return _stream(path, columns["id"], columns.get("size"), columns.get("kind"))


def _stream(path: Path, ids: list[int], sizes: list[int] | None = None, kinds: list[int] | None = None) -> Stream:
    try:
        return of_ids(np.array(ids, np.uint64 if ids else np.int64), sizes, kinds)
    except (OverflowError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from None


def _whole(text: str, path: Path, number: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise UsageError(
            f"{path}, line {number}: {text.strip()!r} is not an object; it must be a whole number, 0 or more."
        )
    return value


def _save_csv(stream: Stream, path: Path) -> None:
    letters = {kind: letter for letter, kind in KINDS.items()}
    kinds = [letters[kind] for kind in stream.kinds.tolist()] if len(stream.kinds) else ["r"] * len(stream)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows(
            zip(range(len(stream)), stream.ids.tolist(), stream.sizes[stream.ids].tolist(), kinds, strict=True)
        )
