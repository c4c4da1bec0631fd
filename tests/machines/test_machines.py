"""Machines in files and by name: drawn, and what gaps, rooflines and advice make of them."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.advice.cards import cards
from pebblesim.cli.main import app
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.counting.useful import useful_operations
from pebblesim.machines import finding
from pebblesim.machines.choosing import choose
from pebblesim.machines.counting import Nesting, count_nesting
from pebblesim.machines.machine import Level, Machine
from pebblesim.machines.named import machine, machines
from pebblesim.views.plots.roofs import Roof, roofs

TREE = """
name = "two cores"
root = "DRAM"
source = "made up"
[peak]
float32 = 8e9
[[memory]]
name = "L2"
capacity = 4096
bandwidth = 4e9
energy = 2e-12
[[memory]]
name = "core 0"
capacity = 256
[[memory]]
name = "core 1"
capacity = 256
above = "L2"
"""
PATH = TREE.partition('[[memory]]\nname = "core 1"')[0]


def file(folder: Path, text: str) -> str:
    (folder / "m.toml").write_text(text)
    return str(folder / "m.toml")


def run(line: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == code, str(done.exception) + done.output
    return done.output


def test_a_tree_is_drawn(tmp_path: Path) -> None:
    found = machine(file(tmp_path, TREE))
    assert found.drawn() == [
        "DRAM",
        "│ 4 GB/s, 2 pJ/B",
        "└ L2: 4,096 bytes",
        "  │ bandwidth not known, energy not known",
        "  ├ core 0: 256 bytes",
        "  │ bandwidth not known, energy not known",
        "  └ core 1: 256 bytes",
    ]
    assert found.tree("float32").above == [0, 1, 1]
    data = json.loads(run(f"machine {tmp_path}/m.toml --json"))
    assert [each["above"] for each in data["memories"]] == ["DRAM", "L2", "L2"] and data["peak"] == {"float32": 8e9}
    assert "two cores" in run(f"machine {tmp_path}/m.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('above = "L2"', 'above = "core 2"', "must be the name of a memory before it: DRAM, L2, core 0"),
        ('above = "L2"', "above = 1", "above = 1 must be the name"),
        ("float32 = 8e9", 'float32 = "fast"', "peak of float32 = 'fast' must be a number above 0"),
        ("float32 = 8e9", "float31 = 8e9", "float31"),
        ("[peak]\nfloat32 = 8e9", "peak = 3", "peak must be a table of rates by type"),
    ],
)
def test_wrong_entries(old: str, new: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        machine(file(tmp_path, TREE.replace(old, new)))


def test_machines_that_come_with_pebblesim_have_sources() -> None:
    assert machines() == ["TPUv3", "TPUv5e"] and not {*machines()} & {*cards()}
    for name in (*machines(), "tpuV3"):
        found = machine(name)
        assert found.source and all(each.source for each in found.levels)
        assert name.casefold() in str(found).replace(" ", "").casefold()
    with pytest.raises(UsageError, match=r"no machine is called 'TPUv2'; known: .*TPUv3, TPUv5e; describe"):
        machine("TPUv2")


def test_a_machine_with_several_leaves_is_not_counted(tmp_path: Path) -> None:
    name = file(tmp_path, TREE)
    dims = {"m": 4, "k": 4, "n": 4}
    for call in (
        lambda: machine(name).beneath("float32"),
        lambda: ps.on_machine("matmul-tiled", machine=name, **dims),
        lambda: choose("matmul", machine=name, **dims),
    ):
        with pytest.raises(UsageError, match="two cores has several memories below one that are levels of their own"):
            call()


def test_gaps_at_the_boundaries(tmp_path: Path) -> None:
    place = file(tmp_path, PATH)
    data = json.loads(run(f"gaps matmul -n 16 -d 16 --machine {place} --dtype float32 --json"))
    assert data["below"] == {"L2": 1024 + 64, "core 0": 64}
    assert [row["M"] for row in data["rows"]] == [1088, 64]
    alone = json.loads(run("gaps matmul -n 16 -d 16 -M 1088 -M 64 --json"))
    assert data["rows"] == alone["rows"]
    assert "L2 and all below it, 1,088" in run(f"gaps matmul -n 16 -d 16 --machine {place} --dtype float32")
    assert "one of the two" in str(
        CliRunner().invoke(app, ["gaps", "-n", "9", "-d", "4", "-M", "9", "--machine", place]).exception
    )


def compared(folder: Path, problem: str, **dims: int) -> None:
    """Rows are counts of their own blocks and tiles; they are sorted; the time is that of the slowest."""
    path = PATH.replace("capacity = 256", "capacity = 2600")
    known = path + "bandwidth = 1e10\nenergy = 1e-12\n"
    found = choose(problem, machine=file(folder, known), dtype="float32", **dims)
    every = {row.schedule for row in ps.compare(problem, M=9999, **dims).rows}
    assert {row.schedule for row in found.rows} | {*found.left_out} == every
    slowest = []
    for row in found.rows:
        same: dict[str, Any] = {"machine": found.machine, "dtype": "float32", "below": row.below, "blocks": row.blocks}
        again = ps.on_machine(row.schedule, **same, **dims)
        assert [each.words for each in again.boundaries] == [each.words for each in row.boundaries] and row.feasible
        times = [4 * each.words / rate for each, rate in zip(row.boundaries, (4e9, 1e10), strict=True)]
        times.append(found.operations[row.schedule] / 8e9)
        assert found.limit(row) == (["L2", "core 0", "arithmetic"][times.index(max(times))], max(times))
        above, below = row.boundaries
        assert found.joules(row) == pytest.approx(4 * (2e-12 * above.words + 1e-12 * below.words))
        slowest.append(max(times))
    assert all(a <= b for a, b in pairwise(slowest))
    unknown = choose(problem, machine=file(folder, path), dtype="float32", **dims)
    gaps = [max(each.gap for each in row.boundaries) for row in unknown.rows]
    assert gaps == sorted(gaps) and "bandwidth to core 0 is not known" in unknown.order


@pytest.mark.one_in(3)
def test_schedules_are_compared(tmp_path: Path) -> None:
    compared(tmp_path, "matmul", m=9, k=7, n=8)
    said = run(f"advise --machine {tmp_path}/m.toml -p matmul -n 8 -d 8 --dtype float32")
    assert "matmul: m = 8, k = 8, n = 8 on two cores, float32" in said
    said = run(f"advise --machine {tmp_path}/m.toml -p backward -n 4 -d 2 --dtype float32 --mask causal --batch 3")
    assert "on two cores, float32, causal, 1 head, 3 sequences" in " ".join(said.split())
    data = json.loads(run(f"advise --machine {tmp_path}/m.toml -p matmul -n 8 -d 8 --dtype float32 --json"))
    assert all(row["feasible"] for row in data["rows"]) and data["problem"] == "matmul"


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["forward", "backward-qkv"])
def test_schedules_of_attention_are_compared(problem: str, tmp_path: Path) -> None:
    compared(tmp_path, problem, n=24, d=2)
    place = machine(file(tmp_path, PATH.replace("capacity = 256", "capacity = 2600")))
    rows = choose(problem, machine=place, dtype="float32", n=24, d=2).rows
    needed = {row.schedule: row.below for row in rows}
    if problem == "forward":  # tiles that must be below are found
        with pytest.raises(UsageError, match="its tile m_i takes over"):
            ps.on_machine("flash2-forward", machine=place, search=False, n=24, d=2)
        assert {"m_i", "m_new"} <= {*needed["flash2-forward"]}


def test_marks_of_a_roofline_with_several_roofs(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    edges = [Roof("a", 4e9, 500, 250), Roof("b", 1e12, 5000, 100), Roof("c", None, 7, 7)]
    ax = roofs(edges, Figure().subplots(), useful=1000, peak=8e9, dtype="float32")
    marks = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if len(line.get_xdata()) == 1]
    assert marks == [(1, 4e9), (0.5, 2e9), (2.5, 8e9), (0.05, 8e9)]
    said = [text.get_text() for text in ax.get_legend().get_texts()]
    assert said[0].startswith("a: 4") and "c: bandwidth not known" in said
    with pytest.raises(UsageError, match="no bandwidth is known of c"):
        roofs(edges[2:], Figure().subplots(), useful=1, peak=1, dtype="float32")


@pytest.mark.one_in(2)
def test_a_roofline_of_a_machine_is_written(tmp_path: Path) -> None:
    place, picture = file(tmp_path, PATH), tmp_path / "o.png"
    run(f"plot roofline matmul-tiled --machine {place} --dtype float32 -n 16 -d 16 -o {picture}")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert useful_operations("matmul", {"m": 16, "k": 16, "n": 16}) == 2 * 16**3 - 16**2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plot roofline --machine H100 -n 16 -d 4 -o o.png", "0 were named"),
        ("plot roofline flash --machine H100 --gpu H100 -n 16 -d 4 -o o.png", "leave out --gpu"),
        ("plot roofline flash --below P -n 16 -d 4 -o o.png", "are for a --machine"),
        ("plot roofline matmul-tiled --machine H100 --dtype int8 -n 16 -d 4 -o o.png", "int8"),
        ("advise --machine H100 --orders -n 16 -d 4", "leave out --orders"),
        ("machine nothing.toml", "cannot be read"),
        ("machine H1000", "no machine is called 'H1000'"),
        ("count flash -n 8 -d 4 --machine H1000", "give its name, such as mine.toml (docs/machines.md)"),
    ],
)
def test_what_is_refused(line: str, says: str) -> None:
    done = CliRunner().invoke(app, line.split())
    said = str(done.exception) + done.output
    assert done.exit_code != 0 and says in said and not ("called 'H1000'" in said and "--gpu" in said)


def test_a_peak_that_is_not_known() -> None:
    place = Machine("m", "R", (Level("a", 64),), {"float16": 1e9})
    with pytest.raises(UsageError, match="peak rate of m for float32 is not known; it is known for float16"):
        place.peak_of("float32")
    with pytest.raises(UsageError, match="under \\[peak\\]"):
        Machine("m", "R", ()).peak_of("float32")


CHIP = """
name = "a chip"
root = "HBM"
[peak]
bfloat16 = 1e12
float16 = 1e12
[[memory]]
name = "SRAM"
capacity = 1024
bandwidth = 1e9
[[memory]]
name = "registers"
capacity = 512
bandwidth = 1e10
"""


def taken(output: str, start: str) -> list[str]:
    """The options of a line of an output."""
    (line,) = [line for line in output.splitlines() if line.startswith(start)]
    return shlex.split(line.removeprefix(start))


def test_one_file_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and blocks are found, as `advise` finds them; the line that says which gives the same table again."""
    monkeypatch.setenv("COLUMNS", "200")
    line = f"count flash2-forward -n 32 -d 4 --machine {file(tmp_path, CHIP)}"
    said = run(line)
    options = taken(said, "taken: ")
    assert "m_i" in options[options.index("--below") + 1] and options.count("--block") == 4
    done = CliRunner().invoke(app, [*line.split(), *options])
    table = said.partition("taken: ")[0].rstrip()
    assert done.exit_code == 0 and done.output.rstrip() == table and "float16" in table.splitlines()[0]
    data = json.loads(run(f"{line} --json"))
    assert data["feasible"]
    narrow = json.loads(run(f"{line} --block B_r=2 --json"))
    assert narrow["blocks"]["B_r"] == 2 and narrow["feasible"]
    kept = json.loads(run(f"{line} --below m_new,m_i --json"))
    assert kept["below"] == ["m_new", "m_i"] and kept["feasible"]
    gap = max(each["gap"] for each in data["boundaries"])
    every = ["P", "O_i", "l_i", "m_i", "m_new", "S"]
    names = {tile for tile in every if f" {tile} " in ps.show("flash2-forward")} | {"m_i", "m_new"}
    tried = []
    for side, below in product((1, 2, 4, 8, 16), (["m_i", "m_new"], sorted(names - {"S"}))):
        try:
            other = ps.on_machine(
                "flash2-forward",
                machine=f"{tmp_path}/m.toml",
                dtype="float16",
                below=below,
                blocks={"B_r": side, "B_c": side},
                n=32,
                d=4,
            )
        except Infeasible:
            continue
        tried += [max(each.gap for each in other.boundaries)] if other.feasible else []
    assert len(tried) > 4 and gap <= min(tried)
    for name, factor in product(("B_r", "B_c"), (Fraction(1, 2), 2)):
        blocks = {"B_r": data["blocks"]["B_r"], "B_c": data["blocks"]["B_c"]}
        blocks[name] = max(1, int(blocks[name] * factor))
        more = ["--below", ",".join(data["below"]), *(f"--block={name}={side}" for name, side in blocks.items())]
        with contextlib.suppress(Infeasible):
            other = CliRunner().invoke(app, [*line.split(), *more, "--json"], catch_exceptions=False)
            assert other.exit_code or gap <= max(each["gap"] for each in json.loads(other.output)["boundaries"])


@pytest.mark.one_in(2)
def test_advice_for_a_machine_shows_its_seconds_and_its_options(tmp_path: Path) -> None:
    place = file(tmp_path, CHIP)
    said = run(f"advise -p matmul -n 16 -d 16 --machine {place}")
    (head,) = [line.split() for line in said.splitlines() if line.split()[:1] == ["schedule"]]
    assert head[1] == "seconds"
    found = json.loads(run(f"advise -p matmul -n 16 -d 16 --machine {place} --json"))
    assert len(found["rows"]) > 3
    for row in found["rows"]:
        options = taken(said, f"count {row['schedule']} ")
        again = CliRunner().invoke(
            app, ["count", row["schedule"], *options, *f"-n 16 -d 16 --machine {place} --json".split()]
        )
        assert json.loads(again.output)["boundaries"] == row["boundaries"]
        same = json.loads(run(f"count {row['schedule']} -n 16 -d 16 --machine {place} --json"))
        assert {name: row[name] for name in same} == same


def test_gaps_and_seconds_are_seen_at_80_columns(tmp_path: Path) -> None:
    said = run(f"count matmul-tiled -n 4096 -d 4096 --machine {file(tmp_path, CHIP)}")
    (head,) = [line.split() for line in said.splitlines() if line.split()[:1] == ["boundary"]]
    assert {"gap", "seconds", "down", "up"} <= {*head}


def test_sides_of_products_are_no_longer_than_their_tiles(tmp_path: Path) -> None:
    blocks = ps.on_machine("matmul-tiled", machine="H100", m=4096, k=4096, n=100, blocks={"b": 64}).blocks
    assert blocks == {"b": 64, "a_2": 64, "b_2": 64}
    below = ["P", "O_i", "l_i", "m_i", "m_new"]
    blocks = {"B_r": 64, "B_c": 32}
    found = ps.on_machine("flash2-forward", machine="H100", below=below, n=4096, d=128, blocks=blocks)
    large = ps.on_machine(
        "flash2-forward", machine="H100", below=below, n=4096, d=128, blocks={**blocks, "a_2": 4096, "b_2": 4096}
    )
    assert found.blocks == {**blocks, "a_2": 64, "b_2": 128}
    assert [each.to_dict() for each in found.boundaries] == [each.to_dict() for each in large.boundaries]


def test_a_memory_that_is_too_small_says_a_sentence(tmp_path: Path) -> None:
    said = run(
        f"count matmul-tiled -n 64 -d 64 --machine {file(tmp_path, CHIP)} --below C_ij --block b=16 "
        "--block a_2=16 --block b_2=16",
        2,
    )
    needed = 16 * 16 + 16 + 1 + 2  # sums, a column, a word of the row; a product, and the sum that it is added to
    assert f"registers holds 256 words, and matmul-tiled needs {needed} there" in " ".join(said.split())
    assert "SRAM holds 512 words" not in " ".join(said.split())


def test_types_without_a_dtype_are_those_of_kernels(tmp_path: Path) -> None:
    place = file(tmp_path, CHIP)
    assert "float16" in run(f"count matmul-tiled -n 8 -d 8 --machine {place}").splitlines()[0]
    assert "float16" in run(f"gaps matmul -n 16 -d 16 --machine {place}").splitlines()[0]
    assert "float16" in run(f"advise -p matmul -n 8 -d 8 --machine {place}").splitlines()[0]
    data = json.loads(run(f"gaps matmul -n 16 -d 16 --machine {place} --json"))
    assert data["below"] == {"SRAM": 768, "registers": 256}


def test_python_counts_as_the_command_does(tmp_path: Path) -> None:
    place = file(tmp_path, CHIP)
    for name, sizes in (("matmul-tiled", {"m": 40, "k": 40, "n": 40}), ("flash2-forward", {"n": 24, "d": 2})):
        data = json.loads(run(f"count {name} -n {sizes['n']} -d {sizes.get('d', 40)} --machine {place} --json"))
        assert ps.on_machine(name, machine=place, **sizes).to_dict() == data


def test_advice_with_a_mask_for_each_head_gets_a_sentence() -> None:
    with pytest.raises(UsageError, match="has a mask for each head; a machine takes one for all heads"):
        choose("forward", machine="H100", mask=np.ones((2, 8, 8), bool), heads=2, n=8, d=4)


@pytest.mark.one_in(2)
def test_what_is_not_counted_whole_is_not_the_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Count all that the search tries: no gap is below what it is said to be at least, and none below the one found."""
    gaps, least = list[float](), finding.least_gaps

    def asked(nesting: Nesting, dtype: str, blocks: dict[str, int]) -> Iterator[float]:
        with contextlib.suppress(UsageError, Infeasible):
            counted = count_nesting(nesting, dtype, blocks)
            at_least = list(least(nesting, dtype, blocks))
            assert all(low <= each.gap for low, each in zip(at_least, counted.boundaries, strict=True))
            gaps.extend([max(each.gap for each in counted.boundaries)] * counted.feasible)
        return least(nesting, dtype, blocks)

    monkeypatch.setattr(finding, "least_gaps", asked)
    for place in (file(tmp_path, CHIP), "H100"):
        for name, dims in (("flash2-forward", {"n": 50, "d": 5}), ("flash2-backward", {"n": 37, "d": 3})):
            gaps.clear()
            found = ps.on_machine(name, machine=place, **dims)
            assert max(each.gap for each in found.boundaries) == min(gaps) and len(gaps) > 9


def test_a_problem_on_a_machine_is_sent_to_advise() -> None:
    for line in ("count -p forward -n 8 -d 4 --machine H100", "count -n 8 -d 4 --machine H100"):
        done = CliRunner().invoke(app, line.split())
        assert done.exit_code != 0 and "pebblesim advise --machine" in str(done.exception) + done.output


def test_the_readme_leads_to_the_page_of_machines() -> None:
    assert "](docs/machines.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
