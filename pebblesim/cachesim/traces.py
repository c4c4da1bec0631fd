"""Read and write traces of requests: oracleGeneral of libCacheSim, plain text, and CSV."""

from __future__ import annotations

import csv
from dataclasses import replace
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
KNOWN = "a trace is a file *.oracleGeneral.bin, *.txt (an object a line) or *.csv (columns id, and size, kind and kept)"
KINDS = {"r": READ, "w": WRITE, "u": UPDATE}
COLUMNS = ("time", "id", "size", "kind", "kept")


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


def save(stream: Stream, path: Path) -> str:
    """Save a stream, as a whole file or not at all. The sizes of lines are in words.

    Returns:
        What the format does not store, as a sentence: only .csv stores which requests write, and what is kept.

    Raises:
        UsageError: the file name has an unknown ending, its format cannot store the sizes, or the file cannot be
            written.
    """
    if not is_trace(path.name):
        raise UsageError(f"{path}: {KNOWN}.")
    sizes = stream.sizes * stream.unit
    largest = int(sizes.max(initial=1))
    if path.suffix == ".txt" and largest > 1:
        raise UsageError(f"{path}: a .txt cannot store items of several words; save to .csv or .oracleGeneral.bin.")
    if path.suffix not in (".txt", ".csv") and largest >= 2**32:
        raise UsageError(f"{path}: oracleGeneral cannot store items of 2^32 words or more; save to .csv.")
    known = stream.numbers is not None and int(stream.numbers.min(initial=0)) >= 0
    numbers = stream.numbers if known else np.arange(len(sizes))
    assert numbers is not None
    with whole_file(path) as unfinished:
        if path.suffix == ".txt":
            np.savetxt(unfinished, numbers[stream.ids], "%d")
        elif path.suffix == ".csv":
            _save_csv(stream, numbers, sizes, unfinished)
            return ""
        else:
            _save_oracle(stream, numbers, sizes, unfinished)
    writes = bool(len(stream.kinds)) and bool((stream.kinds & WRITE).any())
    return f"{path.name} does not store which requests write; a .csv does." if writes else ""


def _oracle(path: Path) -> Stream:
    if path.stat().st_size % RECORD.itemsize:
        raise UsageError(f"{path} has {path.stat().st_size:,} bytes, which is not a whole number of 24-byte records.")
    records = np.fromfile(path, RECORD)
    records = records[records["size"] > 0]  # libCacheSim skips requests of no bytes, too
    return of_ids(records["id"], records["size"])


def _save_oracle(stream: Stream, numbers: Any, sizes: Any, path: Path) -> None:
    from pebblesim.cachesim.kernels import next_uses

    records = np.empty(len(stream), RECORD)
    following = next_uses(stream.ids, len(stream.sizes))
    records["time"] = np.minimum(np.arange(len(stream)), 2**32 - 1)
    records["id"], records["size"] = numbers[stream.ids], sizes[stream.ids]
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
        lines = csv.DictReader(file, strict=True)
        try:
            names = [name.strip() for name in lines.fieldnames or ()]
            if "id" not in names or not set(names) <= set(COLUMNS) or len(set(names)) < len(names):
                raise UsageError(f"{path}: its first line must name the columns: id, and any of {', '.join(_OTHERS)}.")
            lines.fieldnames = names
            return _of_lines(path, names, lines)
        except csv.Error as error:
            raise UsageError(f"{path}, line {lines.reader.line_num}: {error}.") from None


_OTHERS = tuple(name for name in COLUMNS if name != "id")


def _of_lines(path: Path, names: list[str], lines: csv.DictReader[str]) -> Stream:
    columns: dict[str, list[int]] = {name: [] for name in names}
    for line in lines:
        number = lines.line_num
        if None in line or None in line.values():
            raise UsageError(f"{path}, line {number}: it does not have the {len(names)} columns of the first line.")
        columns["id"].append(_whole(line["id"], path, number))
        if "size" in names:
            columns["size"].append(_whole(line["size"], path, number, "a size"))
        if "kind" in names:
            kind = line["kind"].strip().lower()
            if kind not in KINDS:
                raise UsageError(f"{path}, line {number}: the kind of a request is r, w or u, not {kind[:40]!r}.")
            columns["kind"].append(KINDS[kind])
        if "kept" in names:
            if line["kept"].strip() not in ("0", "1"):
                raise UsageError(f"{path}, line {number}: an object is kept (1) or not (0), not {line['kept'][:40]!r}.")
            columns["kept"].append(int(line["kept"]))
    stream = _stream(path, columns["id"], columns.get("size"), columns.get("kind"))
    if "kept" not in names:
        return stream
    kept = np.zeros(len(stream.sizes), bool)
    kept[stream.ids[np.array(columns["kept"], bool)]] = True
    if kept[stream.ids[~np.array(columns["kept"], bool)]].any():
        raise UsageError(f"{path}: an object is kept in one line and not in another.")
    return replace(stream, kept=kept)


def _stream(path: Path, ids: list[int], sizes: list[int] | None = None, kinds: list[int] | None = None) -> Stream:
    try:
        return of_ids(np.array(ids, np.uint64 if ids else np.int64), sizes, kinds)
    except (OverflowError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from None


def _whole(text: str, path: Path, number: int, what: str = "an object") -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
        raise UsageError(
            f"{path}, line {number}: {digits[:40]!r} is not {what}; it must be a whole number, 0 or more, of 64 bits."
        )
    return int(digits)


def _save_csv(stream: Stream, numbers: Any, sizes: Any, path: Path) -> None:
    letters = {kind: letter for letter, kind in KINDS.items()}
    kinds = [letters[kind] for kind in stream.kinds.tolist()] if len(stream.kinds) else ["r"] * len(stream)
    columns = [range(len(stream)), numbers[stream.ids].tolist(), sizes[stream.ids].tolist(), kinds]
    if len(stream.kept) and not stream.kept.all():
        columns.append(stream.kept[stream.ids].astype(int).tolist())
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS[: len(columns)])
        out.writerows(zip(*columns, strict=True))
