"""Write traces of addresses for other simulators: Dinero IV, Ramulator 2, gem5 and ChampSim.

Each tensor lies in memory row by row, from an address of its own on, which is a multiple of `PAGE`. A request is a load
or a store of one word; a word that is updated is loaded and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from pebblesim.cachesim.requests import READ, START, WRITE, Stream
from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file

FIRST: Final = 0x10000000
"""Address of the first tensor; ChampSim takes 0 for no address."""

PAGE: Final = 4096
"""Bytes; each tensor begins at a multiple of them."""

TICKS: Final = 1000
"""Ticks of gem5 from one request to the next: a nanosecond."""

CHAMPSIM: Final = np.dtype(
    [
        ("ip", "<u8"),
        ("is_branch", "u1"),
        ("branch_taken", "u1"),
        ("destination_registers", "u1", 2),
        ("source_registers", "u1", 4),
        ("destination_memory", "<u8", 2),
        ("source_memory", "<u8", 4),
    ]
)
"""An instruction of a ChampSim trace, 64 bytes."""

CODE: Final = 0x400000
"""Address of the load instruction of a ChampSim trace; those of stores and of updates follow."""


def is_for_simulators(name: str) -> bool:
    """Whether a file name is that of a trace of addresses."""
    return name.endswith(tuple(WRITERS))


def save(stream: Stream, path: Path, word: int) -> str:
    """Save a stream of single words as loads and stores, as a whole file or not at all.

    Args:
        stream: requests of a schedule, word by word.
        path: a file name that ends in one of `WRITERS`.
        word: bytes of a word.

    Returns:
        Where each tensor lies, in a line each.

    Raises:
        UsageError: items are not single words, the stream is not from a schedule, or the file cannot be written.
    """
    if not stream.places or stream.unit != 1 or int(stream.sizes.max(initial=1)) > 1:
        raise UsageError(
            f"{path}: a trace of addresses needs single words of a schedule: --words, without --line; the other "
            "simulator has lines of its own."
        )
    bases, end, lines = np.zeros(len(stream.sizes), np.int64), FIRST, []
    for place in stream.places:
        bases[place.first : place.first + place.items] = end + word * np.arange(place.items)
        lines.append(f"{place.name:<6} from {end:#x}, {word * place.items:,} bytes")
        end += -(-word * place.items // PAGE) * PAGE
    kinds = stream.kinds if len(stream.kinds) else np.full(len(stream), READ, np.uint8)
    requests = kinds != START
    write = next(write for ending, write in WRITERS.items() if path.name.endswith(ending))
    with whole_file(path) as unfinished:
        write(bases[stream.ids[requests]], kinds[requests], word, unfinished)
    return "\n".join(lines)


def _accesses(addresses: Any, kinds: Any) -> Iterator[tuple[bool, int]]:
    """Yield (whether it stores, address); an update is a load and a store."""
    for address, kind in zip(addresses.tolist(), kinds.tolist(), strict=True):
        if kind & READ:
            yield False, address
        if kind & WRITE:
            yield True, address


def _dinero(addresses: Any, kinds: Any, word: int, path: Path) -> None:
    """Label 0 or 1, and the address in hexadecimal digits."""
    with path.open("w", encoding="ascii") as file:
        file.writelines(f"{store:d} {address:x}\n" for store, address in _accesses(addresses, kinds))


def _ramulator(addresses: Any, kinds: Any, word: int, path: Path) -> None:
    """LD or ST, and the address."""
    with path.open("w", encoding="ascii") as file:
        file.writelines(f"{'ST' if store else 'LD'} {address:#x}\n" for store, address in _accesses(addresses, kinds))


def _gem5(addresses: Any, kinds: Any, word: int, path: Path) -> None:
    """r or w, address, bytes, tick: what gem5's util/encode_packet_trace.py reads."""
    with path.open("w", encoding="ascii") as file:
        for tick, (store, address) in enumerate(_accesses(addresses, kinds)):
            file.write(f"{'w' if store else 'r'},{address},{word},{TICKS * tick}\n")


def _champsim(addresses: Any, kinds: Any, word: int, path: Path) -> None:
    """One instruction a request, with a source and a destination in memory."""
    records = np.zeros(len(addresses), CHAMPSIM)
    records["ip"] = CODE + 4 * (kinds.astype(np.uint64) - 1)
    records["source_memory"][:, 0] = np.where(kinds & READ, addresses, 0)
    records["destination_memory"][:, 0] = np.where(kinds & WRITE, addresses, 0)
    records.tofile(path)


WRITERS: Final[dict[str, Callable[[Any, Any, int, Path], None]]] = {
    ".din": _dinero,
    ".ramulator": _ramulator,
    ".gem5.txt": _gem5,
    ".champsim": _champsim,
}
"""The formats, by the end of a file name."""
