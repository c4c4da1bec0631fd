"""Traces for other simulators: what they hold, read by parsers of their own, and what a cache makes of them."""

import struct
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cli import main as cli
from pebblesim.core.errors import UsageError

COMMAND = "cache small-cache -n 8 -d 4 -M 24 --words --save"
Access = tuple[str, int]


def saved(name: str, folder: Path, options: str = "") -> tuple[Path, str]:
    path = folder / name
    ran = CliRunner().invoke(cli.app, [*COMMAND.split(), str(path), *options.split()], catch_exceptions=False)
    assert ran.exit_code == 0
    return path, ran.output


def dinero(path: Path) -> list[Access]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [("rw"[int(label)], int(address, 16)) for label, address in lines]


def ramulator(path: Path) -> list[Access]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [({"LD": "r", "ST": "w"}[kind], int(address, 0)) for kind, address in lines]


def gem5(path: Path) -> list[Access]:
    lines = [line.split(",") for line in path.read_text().splitlines()]
    assert {int(size) for *_, size, _ in lines} == {4}
    ticks = [int(tick) for *_, tick in lines]
    assert ticks == sorted(set(ticks))
    return [(kind, int(address)) for kind, address, *_ in lines]


def champsim(path: Path) -> list[Access]:
    made = []
    for _, branch, _, *rest in struct.iter_unpack("<QBB2B4B2Q4Q", path.read_bytes()):
        assert branch == 0
        stores, loads = rest[6:8], rest[8:12]
        made += [("r", address) for address in loads if address] + [("w", address) for address in stores if address]
    return made


READERS = {"a.din": dinero, "a.ramulator": ramulator, "a.gem5.txt": gem5, "a.champsim": champsim}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", READERS)
def test_a_trace_holds_the_loads_and_stores_of_the_schedule_in_order(name: str, tmp_path: Path) -> None:
    path, output = saved(name, tmp_path)
    stream = ps.accesses("small-cache", n=8, d=4, M=24, grain="words")
    accesses = READERS[name](path)
    kinds = ["rw" if kind == 3 else "r" if kind == 1 else "w" for kind in stream.kinds]
    assert [kind for kind, _ in accesses] == list("".join(kinds))
    items = np.repeat(stream.ids, [len(each) for each in kinds])
    address_of = dict(zip(items.tolist(), (address for _, address in accesses), strict=True))
    assert [address_of[item] for item in items.tolist()] == [address for _, address in accesses]  # one each
    assert len(set(address_of.values())) == len(address_of)
    for place in stream.places:  # each tensor row by row, from its own address on, as the command says
        begin = address_of[place.first]
        assert begin % 4096 == 0 and f"{place.name:<6} from {begin:#x}, {4 * place.items:,} bytes" in output
        assert [address_of[place.first + k] for k in range(place.items)] == [begin + 4 * k for k in range(place.items)]


def test_a_cache_of_addresses_fetches_what_ours_does(tmp_path: Path) -> None:
    held: OrderedDict[int, None] = OrderedDict()
    fetched = 0  # a word that is stored is not fetched
    for kind, address in dinero(saved("a.din", tmp_path)[0]):
        fetched += kind == "r" and address not in held
        held[address] = None
        held.move_to_end(address)
        if len(held) > 24:
            held.popitem(last=False)
    (row,) = ps.cache("small-cache", n=8, d=4, M=24, policy="lru", grain="words")
    assert fetched == row.by_policy["lru"].fetched


def test_words_have_the_bytes_of_their_type(tmp_path: Path) -> None:
    wide, narrow = (dinero(saved("a.din", tmp_path, f"--dtype {dtype}")[0]) for dtype in ("float64", "float16"))
    assert wide[0][1] == narrow[0][1]
    assert wide[1][1] - wide[0][1] == 4 * (narrow[1][1] - narrow[0][1]) != 0


def test_tiles_and_lines_have_no_addresses(tmp_path: Path) -> None:
    for more in ("", "--words --line 32B"):
        line = f"cache small-cache -n 8 -d 4 -M 24 {more} --save {tmp_path / 'a.din'}"
        with pytest.raises(UsageError, match="needs single words of a schedule: --words, without --line"):
            CliRunner().invoke(cli.app, line.split(), catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []
