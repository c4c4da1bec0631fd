"""Batches of heads in the CUDA kernels: what they compute and move, how they are measured, when L2 is of no help."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import strategies
from checkout import ROOT
from hypothesis import given, strategies as st
from simulated_gpu import Simulated
from typer.testing import CliRunner

from pebblesim.advice import cards
from pebblesim.cli.main import app
from pebblesim.core.errors import Infeasible, PebblesimError, UsageError
from pebblesim.kernels.cuda.cuda import memory
from pebblesim.launches.accesses import batch_accesses, block_accesses, blocks_of_batch, number_of_blocks
from pebblesim.launches.batches import Batch
from pebblesim.launches.sectors import moved
from pebblesim.measuring import crossings, measure_batches, ncu
from pebblesim.measuring.beyond_l2 import Chip, beyond_l2, predicted
from pebblesim.measuring.cases import Case, case
from pebblesim.measuring.device import arrays_in, bytes_needed
from pebblesim.measuring.doctor import compiler
from pebblesim.measuring.results import load

DATA = ROOT / "benchmarks" / "gpu"
NAMES = ("small-cache", "large-cache", "flash", "small-cache-forward", "flash2-forward")
TINY = Chip(multiprocessors=4, shared=16_000, l2=73_728, kept=49_152, memory=2**30)
"""A card that a test can fill."""


def drawn(data: st.DataObject) -> Case:
    """A case of some heads at any sizes, if its tiles fit."""
    name = data.draw(st.sampled_from(NAMES))
    n, d = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 11))
    heads, turns = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    for M in (data.draw(st.integers(30, 900)), 2000):
        try:
            return case(name, n=n, d=d, M=M, heads=heads, turns=turns)
        except (Infeasible, UsageError):
            pass
    raise AssertionError("nothing of these sizes needs more than 2,000 words")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C++ compiler on the path, which the simulated GPU needs")
    return tmp_path_factory.mktemp("batches")


def check(one: Case, folder: Path) -> None:
    """Run a batch on a simulated GPU: each head has the reference's outputs, and moves what one head moves."""
    made = folder / str(len(list(folder.iterdir())))
    made.mkdir()
    gpu = Simulated([one.source.text], made)
    problem, kept = one.algorithm.problem, one.algorithm.kept
    inputs = [problem.random_inputs(one.dims, seed, kept) for seed in range(one.heads)]
    for backwards in (False, True):
        outputs, seen = gpu.run_heads(one.source.kernels, one.program, one.sizes, inputs, backwards=backwards)
        for values, found in zip(inputs, outputs, strict=True):
            for name, expected in problem.reference(values).items():
                if name in found:
                    np.testing.assert_allclose(found[name], expected, rtol=1e-3, atol=1e-4)
        for kernel, launched in zip(one.source.kernels, seen, strict=True):
            exact = moved(kernel.launch, one.sizes)
            assert launched.faults == 0
            assert launched.moved == exact.times(one.heads)
            assert exact.times(one.heads).words_read == one.heads * exact.words_read


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMES)
def test_heads_take_turns(name: str, folder: Path) -> None:
    """Five heads, two in each block but for the last, which has one."""
    check(case(name, n=21, d=9, M=400, heads=5, turns=2), folder)


@pytest.mark.one_in(2)
@strategies.draws(2, 40)
@given(data=st.data())
def test_each_head_gets_its_own_result_and_moves_what_one_head_moves(folder: Path, data: st.DataObject) -> None:
    check(drawn(data), folder)


def test_one_head_is_written_as_before() -> None:
    for name in NAMES:
        plain = case(name, n=20, d=5, M=300)
        assert plain.text == case(name, n=20, d=5, M=300, heads=1, turns=3).text
        assert "heads" not in plain.to_dict()
        assert "_of_all_heads" not in plain.source.text


@strategies.draws(20, 200)
@given(data=st.data())
def test_accesses_of_a_batch_are_those_of_each_head(data: st.DataObject) -> None:
    """In each head's own order; and a block that serves heads in turn changes between them."""
    one = drawn(data)
    sectors = {name: words // 8 for name, words in one.apart.items()}
    for kernel in one.source.kernels:
        batch = Batch(one.heads, kernel.batch.turns)
        found: dict[int, list[Any]] = {}
        for block in range(blocks_of_batch(kernel.launch, one.sizes, batch)):
            for access in batch_accesses(kernel.launch, one.sizes, batch, sectors, block):
                head = access.first // sectors[access.array] if one.heads > 1 else 0
                found.setdefault(head, []).append(access._replace(first=access.first - head * sectors[access.array]))
        blocks = range(number_of_blocks(kernel.launch, one.sizes, 1))
        alone = [access for block in blocks for access in block_accesses(kernel.launch, one.sizes, 1, block)]
        assert all(found.get(head, []) == alone for head in range(one.heads))


def test_a_batch_is_for_one_worker() -> None:
    with pytest.raises(UsageError, match="give several heads, or several workers"):
        case("large-cache", n=64, d=8, M=1000, workers=2, heads=3)
    with pytest.raises(UsageError, match="heads must be a whole number"):
        case("large-cache", n=64, d=8, M=1000, heads=0)


# -- when L2 is of no help ---------------------------------------------------------------------------------------


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", NAMES)
def test_beyond_l2_memory_gives_what_is_counted(name: str) -> None:
    """On a tiny card, replayed whole: all blocks that run at once, all heads, line by line, through all of its L2."""
    from pebblesim.cachesim.l2 import replay

    one = beyond_l2(case(name, n=72 if name == "large-cache" else 48, d=16, M=800), TINY)
    assert (one.turns > 1) == name.startswith("small-cache")
    room = memory(one.source.kernels, one.program, one.sizes)
    read = words = sectors = 0
    for kernel in one.source.kernels:
        exact = moved(kernel.launch, one.sizes).times(one.heads)
        at_once = one.resident * TINY.multiprocessors
        options = {"at_once": at_once, "l2_bytes": TINY.kept, "batch": kernel.batch}
        read += replay(kernel.launch, one.sizes, 1, room, **options)[0]
        words, sectors = words + exact.words_read, sectors + exact.sectors_read
        assert predicted(one, kernel, at_once, TINY)["sm_read"] == 32 * exact.sectors_read
    # vectors of single words, and narrow columns, share their sectors with those that are read right after them
    assert 0.98 * 4 * words <= read <= 32 * sectors
    if name not in ("flash", "large-cache"):
        assert read >= 0.98 * 32 * sectors
    few = Case(**{**one.to_dict(), "heads": 2, "turns": 1})
    helped = sum(
        replay(kernel.launch, few.sizes, 1, room, at_once=2, l2_bytes=2**20, batch=kernel.batch)[0]
        for kernel in few.source.kernels
    )
    assert helped / 2 < 0.8 * read / one.heads


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMES)
def test_each_head_has_memory_of_its_own(name: str) -> None:
    """An L2 that holds everything reads the words of five heads once, so five times those of one."""
    from pebblesim.cachesim.l2 import replay

    read = {}
    for heads in (1, 5):
        one = case(name, n=48, d=16, M=800)
        some = Case(**{**one.to_dict(), "heads": heads, "turns": 1})
        room = memory(some.source.kernels, some.program, some.sizes)
        options = {"at_once": 2, "l2_bytes": 2**30}
        read[heads] = [
            replay(kernel.launch, some.sizes, 1, room, **options, batch=kernel.batch)[0]  # type: ignore[arg-type]
            for kernel in some.source.kernels
        ]
    assert read[5] == [5 * each for each in read[1]]


def test_too_little_memory_is_said() -> None:
    with pytest.raises(UsageError, match=r"takes [\d,]+ bytes of memory a head .* give a smaller n"):
        beyond_l2(case("small-cache", n=4096, d=16, M=800), TINY)


# -- measuring ---------------------------------------------------------------------------------------------------

GPU = {"device": "a GPU", "driver": "1.2", "multiprocessors": 4, "memory_bytes": 2**30}


def fake(monkeypatch: pytest.MonkeyPatch, enough: int = 99, names: str = "") -> list[tuple[str, ...]]:
    """A GPU that moves what is counted, and has time to check the first cases only; returns what was asked of it."""
    asked: list[tuple[str, ...]] = []

    def run(command: list[Any], **_: Any) -> Any:
        asked.append(tuple(map(str, command[4:])))
        cases = [Case(**fields) for fields in json.loads(Path(command[3]).read_text(encoding="utf-8"))]
        if command[4] != "build" and enough:  # without time for a case, no file is written
            checks = [
                {
                    "checks": {"g": {"error": 1e-7, "of_bound": None}},
                    "seconds": [0.25] * len(each.source.kernels),
                    "resident": {kernel.name: 2 for kernel in each.source.kernels},
                }
                for each in cases[:enough]
            ]
            Path(command[4]).write_text(json.dumps(checks), encoding="utf-8")
        return SimpleNamespace(returncode=0, stderr="")

    def profile(command: list[str], *, kernels: str, metrics: tuple[str, ...], cold: bool) -> list[ncu.Profiled]:
        asked.append(metrics)
        found = []
        for fields in json.loads(Path(command[3]).read_text(encoding="utf-8")):
            one = Case(**fields)
            for kernel in one.source.kernels:
                exact = moved(kernel.launch, one.sizes).times(one.heads)
                every = {
                    ncu.HBM_READ_BYTES: 32 * exact.sectors_read,
                    ncu.HBM_WRITE_BYTES: 32 * exact.sectors_written,
                    ncu.SM_READ_BYTES: 32 * exact.sectors_read + 1,  # unlike what HBM gives
                }
                found.append(ncu.Profiled(names or f"{kernel.name}(float *)", {name: every[name] for name in metrics}))
                assert re.match(kernels, kernel.name)
        return found

    monkeypatch.setattr(measure_batches, "describe", lambda: GPU)
    monkeypatch.setattr(ncu, "require", lambda: "ncu")
    monkeypatch.setattr(ncu, "version", lambda path: "3")
    monkeypatch.setattr(measure_batches.subprocess, "run", run)
    monkeypatch.setattr(ncu, "profile", profile)
    return asked


def test_rows_hold_what_was_measured_and_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, path = fake(monkeypatch), tmp_path / "rows.jsonl"
    cases = [case(name, n=20, d=5, M=300, heads=6, turns=2) for name in NAMES]
    rows = measure_batches.measure_batches(cases, path)
    for one, row in zip(cases, rows, strict=True):
        assert measure_batches.case_of(row).to_dict() == one.to_dict()
        found, exact = measure_batches.total(row), [moved(kernel.launch, one.sizes) for kernel in one.source.kernels]
        assert found["hbm_read"] == 6 * 32 * sum(each.sectors_read for each in exact)
        assert found["hbm_written"] == 6 * 32 * sum(each.sectors_written for each in exact)
        assert found["sm_read"] == found["hbm_read"] + len(exact)
        assert found["seconds"] == 0.25 * len(exact)
    before = list(asked)
    assert measure_batches.measure_batches(cases[:2], path) == rows[:2]
    assert asked == before
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(NAMES)


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, enough=2)
    monkeypatch.setattr(measure_batches, "AT_ONCE", 1)
    cases = [case(name, n=20, d=5, M=300, heads=6) for name in NAMES]
    assert len(measure_batches.measure_batches(cases, seconds=1e6)) == 2
    assert measure_batches.measure_batches(cases, seconds=0.1) == []
    asked = fake(monkeypatch, enough=0)
    assert measure_batches.measure_batches(cases, seconds=0) == [] and asked[-1][1:] == ("0.0",)


def test_a_batch_that_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch)
    with pytest.raises(UsageError, match="give fewer heads"):
        measure_batches.measure_batches([case("flash", n=20, d=5, M=300, heads=10**6)])
    fake(monkeypatch, names="another")
    with pytest.raises(PebblesimError, match="the profiler saw another"):
        measure_batches.measure_batches([case("flash", n=20, d=5, M=300, heads=2)])


def test_arrays_lie_one_after_the_other() -> None:
    one = case("flash", n=20, d=5, M=300, heads=6)
    buffer = np.zeros(bytes_needed(one), np.uint8)
    for number, array in enumerate(arrays_in(buffer, one).values(), 1):
        assert array.base is not None and array.ctypes.data % 64 == buffer.ctypes.data % 64
        assert not array.any(), "arrays overlap"
        array.fill(number)
    assert {name: array.size for name, array in arrays_in(buffer, one).items()} == {
        name: 6 * words for name, words in one.apart.items()
    }


# -- crossings ---------------------------------------------------------------------------------------------------


def row_of(one: Case, hbm: float = 1.0, seconds: float = 1e-3) -> dict[str, Any]:
    """A row as if HBM had given so many times what is counted."""
    launches = []
    for kernel in one.source.kernels:
        exact = moved(kernel.launch, one.sizes).times(one.heads)
        counted = [round(4 * hbm * words) for words in (exact.words_read, exact.words_written)]
        sectors = [32 * exact.sectors_read, None]
        launches.append({"name": kernel.launch.name, "at_once": 8, "seconds": seconds, "moved": [*counted, *sectors]})
    return {"id": str(one), **one.to_dict(), "card": "a GPU", "error": 1e-7, "launches": launches}


@strategies.draws(20, 200)
@given(data=st.data())
def test_a_crossing_is_where_the_order_changes(data: st.DataObject) -> None:
    """Curves that are powers of M between neighbours, drawn: each change of order is found, where they are equal."""
    sizes = sorted(data.draw(st.sets(st.integers(10, 10**5), min_size=2, max_size=6)))
    level = st.floats(1, 1e9)
    measured = [{"M": M, "a": {"hbm": data.draw(level)}, "b": {"hbm": data.draw(level)}} for M in sizes]
    found = crossings.crossings(measured, "a", "b", "hbm")
    ahead = [each["a"]["hbm"] < each["b"]["hbm"] for each in measured]
    assert [(each.low, each.high) for each in found] == [
        (sizes[at], sizes[at + 1]) for at in range(len(sizes) - 1) if ahead[at] != ahead[at + 1]
    ]
    for each in found:
        low, high = (next(point for point in measured if point["M"] == M) for M in (each.low, each.high))
        part = np.log(each.at / each.low) / np.log(each.high / each.low)
        a, b = (low[name]["hbm"] ** (1 - part) * high[name]["hbm"] ** part for name in "ab")
        assert a == pytest.approx(b, rel=1e-6)


def test_points_are_for_one_head() -> None:
    import pebblesim as ps

    one = case("small-cache", n=32, d=8, M=90, heads=6)
    other = case("flash", n=32, d=8, M=300, heads=4)
    at_90, at_300 = crossings.points([row_of(other), row_of(one, hbm=1.5)], ["small-cache", "flash"])
    counted = ps.count("small-cache", n=32, d=8, M=90, blocks=one.blocks).io
    assert (at_90["M"], at_300["M"]) == (90, 300)
    assert "flash" not in at_90
    assert at_90["small-cache"]["counted"] == 4 * counted
    assert at_90["small-cache"]["hbm"] == pytest.approx(1.5 * 4 * counted)
    assert at_90["small-cache"]["seconds"] == pytest.approx(1e-3 * len(one.source.kernels) / 6)
    unknown = row_of(one)
    unknown["launches"][0]["moved"][2] = None
    assert crossings.points([unknown], ["small-cache"])[0]["small-cache"]["sm"] is None


@pytest.mark.one_in(3)
def test_crossover_measures_counts_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"capability": "8.6", "l2_bytes": 24_576, "shared_bytes_per_multiprocessor": 16_000}
    monkeypatch.setattr("pebblesim.measuring.device.describe", lambda: {**GPU, **gpu})
    monkeypatch.setattr(measure_batches, "measure_batches", lambda cases, output: [row_of(each) for each in cases])
    picture, line = tmp_path / "curves.svg", "gpu crossover -n 32 -d 8 --at 40,1024,90"
    result = CliRunner().invoke(app, [*line.split(), "--json", "--picture", str(picture)])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [point["M"] for point in told["points"]] == [40, 90, 1024]
    assert "large-cache" not in told["points"][0]
    found = {(each["schedules"][1], each["of"]): each["between"] for each in told["crossings"]}
    (by_hbm,), (by_count,) = found["flash", "hbm"], found["flash", "counted"]
    assert by_hbm == pytest.approx(by_count)
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    shown = CliRunner().invoke(app, line.split())
    assert "left out: M = 40 words is too small for large-cache" in shown.stderr
    (last,) = (each for each in shown.stdout.splitlines() if each.startswith(" FlashAttention (flash)   "))
    assert last.count(f" = {by_hbm['at'] / 64:.2f} d²") >= 2  # counted, and at HBM
    nothing = CliRunner().invoke(app, [*line.replace("40,1024,90", "1,2").split(), "--picture", str(picture)])
    assert nothing.exit_code != 0 and "do not fit into any M of --at 1,2" in str(nothing.exception)


@pytest.mark.slow
def test_the_page_has_what_the_command_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, with the rows that it measured on a card."""
    rows, chip = load(DATA / "crossover_command.jsonl"), Chip.of_card(cards.card("H200"))
    monkeypatch.setattr("pebblesim.measuring.device.describe", dict)
    monkeypatch.setattr(Chip, "of", lambda gpu: chip)
    monkeypatch.setattr(measure_batches, "measure_batches", lambda cases, output: rows)
    page = (DATA.parent.parent / "docs" / "gpu.md").read_text(encoding="utf-8")
    (line, printed) = re.findall(r"```text\n\$ pebblesim (gpu crossover .*)\n([^`]*)```", page)[0]
    assert CliRunner().invoke(app, line.split()).stdout == printed


# -- what was measured -------------------------------------------------------------------------------------------

ROWS = load(DATA / "hbm.jsonl")


def whole(one: Case) -> bool:
    """Whether rows of Algorithm 6's tiles, and of its matrices, are whole pieces of 64 bytes."""
    return one.blocks.get("B", 1) % 16 == 0 and all(-(-size // 8) % 2 == 0 for size in one.dims.values())


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['schedule']}-{row['dims']['d']}-{row['M']}-{row['machine']}"
)
def test_what_was_measured_of_batches(row: dict[str, Any]) -> None:
    """Bytes into the multiprocessors are predicted to the byte; HBM gives what is counted where rows are whole."""
    one, found = measure_batches.case_of(row), measure_batches.total(row)
    exact = [moved(kernel.launch, one.sizes).times(one.heads) for kernel in one.source.kernels]
    for each, launch in zip(exact, row["launches"], strict=True):
        assert launch["moved"][2] in (None, 32 * each.sectors_read)
    read, written = (4 * sum(getattr(each, f"words_{way}") for each in exact) for way in ("read", "written"))
    both = found["hbm_read"] + found["hbm_written"]
    cleared = (row["schedule"], row["dims"]["d"], row["M"]) in CLEARED
    if whole(one) and one.schedule == "small-cache" and one.dims["n"] == 4096:  # memory has no room for enough heads
        for launch, each in zip(row["launches"], exact, strict=True):
            of_count = launch["moved"][0] / (4 * each.words_read)
            assert 0.64 < of_count < 0.82 if launch["name"][0] in "fq" else of_count == pytest.approx(1, rel=0.001)
    elif whole(one) and one.schedule.startswith("small-cache"):
        assert found["hbm_read"] == pytest.approx(read, rel=0.04)
        assert cleared or found["hbm_written"] == pytest.approx(written, rel=0.02)
    if one.schedule == "flash2-forward":
        assert found["hbm_read"] == pytest.approx(read, rel=0.04)
    if one.schedule in ("flash", "large-cache"):
        assert 0.9 < both / (read + written) < (1.12 if one.dims["d"] % 32 == 0 else 1.24)
    assert row["error"] < 1e-5 * max(1, one.dims["n"] / 2048)  # of float32, by the number of terms


CLEARED = {("small-cache", 32, 12736), ("flash2-forward", 64, 880)}
"""The runs during which memory that the run before had given back was written over (docs/gpu.md)."""
