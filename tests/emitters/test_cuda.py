"""The kernels, without a GPU: a C++ compiler builds them, a simulated GPU runs the threads in turn and counts.

They must give the reference's numbers within the bound on float32's error, and move the words that `count` says and the
sectors that `sectors` says. What the simulated GPU counts comes from addresses alone.
"""

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated_gpu
import strategies
from hypothesis import given, strategies as st
from simulated_gpu import Simulated

from pebblesim.analysis.count import count
from pebblesim.core.errors import Infeasible
from pebblesim.kernels.cuda.cuda import Source, cuda, prelude
from pebblesim.kernels.cuda.places import WORKERS
from pebblesim.language import Block, Machine, Tensor, program as ir, relu
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, Schedule, schedule as register
from pebblesim.launches.accesses import block_accesses, number_of_blocks
from pebblesim.launches.launches import launches, layout, shares
from pebblesim.launches.sectors import Moved, moved, sectors_of
from pebblesim.measuring.cases import case
from pebblesim.measuring.device import with_registers
from pebblesim.measuring.doctor import compiler
from pebblesim.measuring.rounding import rounding


def nested(m: Machine, A: Tensor, B: Tensor, *, a: Block, b: Block) -> None:
    """Tiles of tiles, ragged twice over, in a sum that is read from memory and written back."""
    (rows, terms), (_, columns) = A.shape, B.shape
    C = m.tensor("C", rows, columns)
    m.write(C, 0)
    for k in m.tiles(terms, b):
        for i in m.tiles(rows, a):
            A_ik = m.read(A[i, k])
            for r in m.tiles(i, b):
                for j in m.tiles(columns, a):
                    C_rj = m.read(C[r, j])
                    C_rj += A_ik[r, :] @ m.read(B[k, j])
                    m.write(C[r, j], C_rj)


with SCHEDULES.temporary():
    NESTED = register(problem="matmul", source="this test")(nested)
TESTED = {
    name: schedule.in_dims(schedule.problem.rectangle.dims) if schedule.problem.rectangle else schedule
    for name, schedule in {**SCHEDULES, "nested": NESTED}.items()
    if schedule.alike
}
"""In all dimensions of their problems: a square is one of their rectangles."""
every_schedule = strategies.every(TESTED, of=3)

SPLIT = {
    "flash": {"dQ"},
    "flash1-backward": {"dQ"},
    "flash2-backward": {"dQ"},
    "flash2-backward-blocked": {"dQ"},
    "large-cache": {"g"},
    "projected-flash1-backward": {"dQ"},
    "projected-flash2-backward": {"dQ"},
    "row-stationary-absorbed": {"g"},
    "row-stationary-fused": {"g"},
    "small-cache-backward-in-rows": {"dK", "dV"},
    "small-cache-backward-resident-in-rows": {"dK", "dV"},
    "nested": {"C"},
}
"""The schedules with a loop that workers can share, and the tensors that they have copies of."""


@pytest.fixture(scope="module")
def sources() -> dict[tuple[str, bool], Source]:
    return {
        (name, split): cuda(schedule.program, 1 + split, prefix=f"k{number}_{split:d}_")
        for number, (name, schedule) in enumerate(TESTED.items())
        for split in (False, True)
        if not split or name in SPLIT
    }


@pytest.fixture(scope="module")
def gpu(
    request: pytest.FixtureRequest,
    sources: dict[tuple[str, bool], Source],
    tmp_path_factory: pytest.TempPathFactory,
) -> Simulated:
    """With the kernels of the tests that are asked for: the compiler takes long for those of all schedules."""
    if compiler() is None:
        pytest.skip("no C++ compiler on the path, which the simulated GPU needs")
    asked = [item.callspec.params for item in request.session.items if "gpu" in getattr(item, "fixturenames", ())]
    names = {
        params["schedule"].name if "schedule" in params else params.get("name", "matmul-tiled") for params in asked
    }
    texts = [source.text for (name, _), source in sources.items() if name in names]
    return Simulated(texts, tmp_path_factory.mktemp("kernels"))


def total(launched: Any) -> Moved:
    return Moved(*map(sum, zip(*(astuple(each.moved) for each in launched), strict=True)))


@strategies.every(TESTED, of=8)
@strategies.draws(2, 8)
@given(data=st.data())
def test_kernels_move_what_is_counted_and_give_the_reference(
    schedule: Schedule, gpu: Simulated, sources: dict[tuple[str, bool], Source], data: st.DataObject
) -> None:
    split = schedule.name in SPLIT and data.draw(st.booleans())
    workers = data.draw(st.integers(2, 5)) if split else 1
    sizes = data.draw(strategies.sizes(schedule, largest=20)) | {WORKERS: workers}
    threads = data.draw(st.sampled_from([32, 64, 96]))
    kernels = sources[schedule.name, split].kernels
    inputs = schedule.problem.random_inputs(sizes, seed=data.draw(st.integers(0, 9)), kept=schedule.kept)

    outputs, seen = gpu.run(kernels, schedule.program, sizes, inputs, threads=threads)
    assert [each.moved for each in seen] == [moved(kernel.launch, sizes, workers) for kernel in kernels]
    assert not any(each.faults for each in seen)
    counted, words = count(schedule.program, sizes), total(seen)
    if not split:
        assert (words.words_read, words.words_written) == (counted.total.reads, counted.total.writes)
    else:
        extra_reads, extra_writes = extra(schedule, kernels, sizes, workers)
        assert words.words_read == counted.total.reads + extra_reads
        assert words.words_written == counted.total.writes + extra_writes
    assert max(kernel.shared_words(sizes) for kernel in kernels) == counted.peak_words

    reference = schedule.problem.reference(inputs)
    for name, (value, bound) in rounding(schedule.program, sizes, inputs, workers).items():
        np.testing.assert_allclose(value, reference[name], rtol=1e-9, atol=1e-12)
        assert np.all(np.abs(outputs[name] - reference[name]) <= bound), name

    backwards, _ = gpu.run(kernels, schedule.program, sizes, inputs, threads=threads, backwards=True)
    for name, output in outputs.items():
        np.testing.assert_array_equal(output, backwards[name], err_msg="the order of threads matters")


@pytest.mark.parametrize("b", [45, 64])
@pytest.mark.parametrize("threads", [32, 96])
def test_rows_longer_than_a_warp_touch_each_sector_once(
    b: int, threads: int, gpu: Simulated, sources: dict[tuple[str, bool], Source]
) -> None:
    schedule, sizes = SCHEDULES["matmul-tiled"], {"m": 50, "k": 100, "n": 110, "b": b, WORKERS: 1}
    kernels = sources["matmul-tiled", False].kernels
    outputs, seen = gpu.run(kernels, schedule.program, sizes, schedule.problem.random_inputs(sizes), threads=threads)
    assert seen[0].moved == moved(kernels[0].launch, sizes)
    assert np.all(np.isfinite(outputs["C"]))


def test_a_launch_is_of_one_worker_unless_more_are_given(sources: dict[tuple[str, bool], Source]) -> None:
    sizes = {"n": 24, "n_q": 24, "n_k": 24, "d": 8, **dict.fromkeys(SCHEDULES["large-cache"].blocks, 8), WORKERS: 1}
    shared = [kernel.launch for kernel in sources["large-cache", True].kernels]
    alone = [moved(launch, sizes) for launch in shared]
    assert alone == [moved(launch, sizes, 1) for launch in shared] != [moved(launch, sizes, 3) for launch in shared]


def extra(schedule: Schedule, kernels: Any, sizes: dict[str, int], workers: int) -> tuple[int, int]:
    """Words that workers read and write besides those of the schedule: each has a copy, and a sum is made of them."""
    reads = writes = 0
    for kernel in kernels:
        launch = kernel.launch
        for tensor in launch.copies if launch.kind == "sum" else ():
            assert launch.split is not None and launch.split.range.parent is not None
            size = sizes[launch.split.range.block] if isinstance(launch.split.range.block, str) else 1
            tiles = len(range(0, sizes[launch.split.range.dim], size))
            share = next(s for s in range(1, tiles + 1) if s * workers >= tiles)
            copies = len(range(0, tiles, share))
            words = int(np.prod([sizes[dim] for dim in tensor.shape]))
            reads += copies * words
            writes += copies * words  # instead of once, and the sum
    return reads, writes


@every_schedule
def test_which_loops_workers_can_share(schedule: Schedule) -> None:
    copied = {tensor.name for launch in launches(schedule.program, 2) for tensor in launch.copies}
    assert copied == SPLIT.get(schedule.name, set())
    assert all(launch.split is None for launch in launches(schedule.program, 1))


def test_what_workers_cannot_share() -> None:
    """A sum that is looked at, changed, or used after the loop before it is written."""

    @register(problem="matmul", source="this test")
    def looked_at(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        C = m.tensor("C", A.shape[0], B.shape[1])
        C_ = m.zeros(A.shape[0], B.shape[1])
        for k in m.tiles(A.shape[1], b):
            C_ += m.read(A[:, k]) @ m.read(B[k, :])
            twice = m.compute(C_ + C_)
            m.delete(twice)
        m.write(C, C_)

    @register(problem="matmul", source="this test")
    def changed(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        C = m.tensor("C", A.shape[0], B.shape[1])
        C_ = m.zeros(A.shape[0], B.shape[1])
        for k in m.tiles(A.shape[1], b):
            A_k, B_k = m.read(A[:, k]), m.read(B[k, :])
            C_ += A_k @ B_k
            product = m.compute(A_k @ B_k)
            C_[:] = relu(product)
        m.write(C, C_)

    @register(problem="matmul", source="this test")
    def used_after(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        C = m.tensor("C", A.shape[0], B.shape[1])
        C_ = m.zeros(A.shape[0], B.shape[1])
        for k in m.tiles(A.shape[1], b):
            C_ += m.read(A[:, k]) @ m.read(B[k, :])
        C_[:] = relu(C_)
        m.write(C, C_)

    for name in ("looked-at", "changed", "used-after"):
        program = SCHEDULES[name].program
        assert [launch.split for launch in launches(program, 4)] == [None], name


def test_parts_of_a_tile_and_the_whole_wait_for_each_other(tmp_path: Path) -> None:
    """Threads share the entries of a part in another way than those of the whole."""

    @register(problem="matmul", source="this test")
    def in_parts(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
        C = m.tensor("C", A.shape[0], B.shape[1])
        C_ = m.compute(m.read(A) @ m.read(B))
        for c in m.tiles(B.shape[1], b):
            C_[:, c] = C_[:, c] + C_[:, c]
            C_[:] = C_ * C_
        m.write(C, C_)

    schedule = SCHEDULES["in-parts"]
    source, sizes = cuda(schedule.program), {"m": 9, "k": 4, "n": 11, "b": 3}
    outputs, _ = run_one(source.text, source, tmp_path, schedule, **sizes)
    expected = numbers(schedule.program, sizes, schedule.problem.random_inputs(sizes))
    np.testing.assert_allclose(outputs["C"], expected["C"], rtol=1e-4)


@strategies.every(TESTED, of=4)
@strategies.draws(2, 12)
@given(data=st.data())
def test_sectors_are_those_of_the_tiles_one_by_one(schedule: Schedule, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 4))
    sizes = data.draw(strategies.sizes(schedule, largest=24))
    for launch in launches(schedule.program, workers):
        seen: Counter[bool] = Counter()
        for block in range(number_of_blocks(launch, sizes, workers)):
            for access in block_accesses(launch, sizes, workers, block):
                seen[access.write] += access.rows * access.sectors
        predicted = moved(launch, sizes, workers)
        assert (predicted.sectors_read, predicted.sectors_written) == (seen[False], seen[True])


def test_every_sector_of_a_product_is_moved() -> None:
    sizes = {"m": 11, "k": 30, "n": 21, "b": 7}
    (launch,) = launches(SCHEDULES["matmul-tiled"].program)
    seen: dict[tuple[str, bool], set[int]] = {}
    for block in range(number_of_blocks(launch, sizes, 1)):
        for each in block_accesses(launch, sizes, 1, block):
            for row in range(each.rows):
                start = each.first + row * each.stride
                seen.setdefault((each.array, each.write), set()).update(range(start, start + each.sectors))
    assert seen == {
        ("A", False): set(range(11 * 4)),  # 30 words are 4 sectors
        ("B", False): set(range(30 * 3)),
        ("C", True): set(range(11 * 3)),
    }


@pytest.mark.parametrize("name", SPLIT)
@strategies.draws(3, 20)
@given(data=st.data())
def test_every_sector_of_the_copies_of_workers_is_filled_once_and_added_once(name: str, data: st.DataObject) -> None:
    """Of matrices whose rows are up to three sectors long, and of what lies behind them nothing."""
    schedule, workers = TESTED[name], data.draw(st.integers(2, 5))
    drawn = {dim: data.draw(st.integers(9, 24)) for dim in schedule.problem.dims}
    drawn |= {block: data.draw(st.integers(1, 9)) for block in schedule.blocks}
    sizes = strategies.in_whole_blocks(schedule, drawn)
    for launch in launches(schedule.program, workers):
        if launch.kind == "tiles":
            continue
        seen = Counter(
            (each.array, each.write, each.first + row * each.stride + sector)
            for each in block_accesses(launch, sizes, workers, 0)
            for row in range(each.rows)
            for sector in range(each.sectors)
        )
        expected: Counter[tuple[str, bool, int]] = Counter()
        for tensor in launch.copies:
            rows, columns = (sizes[dim] for dim in tensor.shape)
            one, copies = rows * -(-columns // 8), shares(launch, sizes, workers)
            expected.update((f"copies of {tensor.name}", launch.kind == "fill", at) for at in range(copies * one))
            if launch.kind == "sum":
                expected.update((tensor.name, True, at) for at in range(one))
        if launch.copies:
            assert seen == expected


@given(start=st.integers(0, 100), words=st.integers(1, 100))
def test_sectors_of_a_run_of_words(start: int, words: int) -> None:
    assert sectors_of(start, words) == len({word // 8 for word in range(start, start + words)})


def test_sectors_of_astronomical_sizes() -> None:
    """All of a matrix product by tiles of 8: each word is 1/8 of a sector, however many there are."""
    n, b = 2**20, 8
    (launch,) = launches(SCHEDULES["matmul-tiled"].program)
    predicted = moved(launch, {"m": n, "k": n, "n": n, "b": b})
    assert predicted == Moved(2 * n**3 // b, n**2, 2 * n**3 // b // 8, n**2 // 8)


@strategies.every(TESTED, of=4)
@strategies.draws(2, 12)
@given(data=st.data())
def test_tiles_that_are_in_cache_together_lie_apart(schedule: Schedule, data: st.DataObject) -> None:
    sizes = data.draw(strategies.sizes(schedule, largest=40))
    for launch in launches(schedule.program):
        at = layout(launch, sizes)
        for held in _held_together(launch.block, []):
            taken = sorted((at.offsets[tile], at.offsets[tile] + _words(tile, launch, sizes)) for tile in held)
            assert all(end <= start for (_, end), (start, _) in pairwise(taken))
            assert not taken or (taken[0][0] >= 0 and taken[-1][1] <= at.words)


def _held_together(body: list[ir.Node], held: list[ir.Tile]) -> Any:
    """The tiles in cache after each node, in the order of the program."""
    for node in body:
        if isinstance(node, ir.Loop):
            yield from _held_together(node.body, held)
        if tile := ir.entering(node):
            held.append(tile)
        elif tile := ir.leaving(node):
            held.remove(tile)
        yield list(held)


def _words(tile: ir.Tile, launch: Any, sizes: dict[str, int]) -> int:
    words = 1
    for rng in tile.ranges:
        length, ranges = sizes[rng.dim], []
        while rng is not None:
            ranges.append(rng)
            rng = rng.parent  # type: ignore[assignment]
        for each in ranges[:-1]:
            length = min(length, sizes[each.block] if isinstance(each.block, str) else each.block)
        words *= length
    return words


@given(tiles=st.integers(1, 300), workers=st.integers(1, 40))
def test_no_worker_is_idle(tiles: int, workers: int) -> None:
    launch = next(launch for launch in launches(SCHEDULES["large-cache"].program, 2) if launch.kind == "sum")
    used = shares(launch, {"n": tiles, "d": 1, "B_r": 1, "B_c": 1}, workers)
    share = -(-tiles // workers)
    assert used <= workers
    assert (used - 1) * share < tiles <= used * share


def run_one(text: str, source: Source, folder: Path, schedule: Schedule, **sizes: int) -> tuple[Any, Any]:
    if compiler() is None:
        pytest.skip("no C++ compiler on the path, which the simulated GPU needs")
    inputs = schedule.problem.random_inputs(sizes, kept=schedule.kept)
    simulated = Simulated([text], folder)
    outputs, seen = simulated.run(source.kernels, schedule.program, sizes | {WORKERS: 1}, inputs)
    return outputs, (seen, schedule.problem.reference(inputs))


def test_a_missing_barrier_is_seen(tmp_path: Path) -> None:
    schedule = SCHEDULES["matmul-tiled"]
    source = cuda(schedule.program)
    without = re.sub(r"\} BARRIER\s+SECTION \{", "", source.text)
    assert without != source.text
    outputs, (_, reference) = run_one(without, source, tmp_path, schedule, m=9, k=9, n=9, b=4)
    assert not np.allclose(outputs["C"], reference["C"], rtol=1e-3)


@pytest.mark.one_in(2)
def test_a_word_outside_its_tile_or_tensor_is_seen(tmp_path: Path) -> None:
    schedule = SCHEDULES["matmul-tiled"]
    source = cuda(schedule.program)
    wrongs = [(r"read_tile\((\w+), (\w+),", r"read_tile(\1, \2 + 1,"), (r"part\(C_pitch, i,", "part(C_pitch, i + 1,")]
    for number, (right, wrong) in enumerate(wrongs):
        text, folder = re.sub(right, wrong, source.text), tmp_path / str(number)
        assert text != source.text
        folder.mkdir()
        _, (seen, _) = run_one(text, source, folder, schedule, m=9, k=9, n=9, b=9)
        assert seen[0].faults > 0


@pytest.mark.one_in(2)
def test_a_word_outside_of_memory_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a word would be another array's, or the allocator's."""
    rooms = []

    def between_guards(words: int) -> Any:
        rooms.append(np.full(words + 256, np.nan, np.float32))
        return rooms[-1][128 : 128 + words]

    monkeypatch.setattr(simulated_gpu, "_aligned", between_guards)
    schedule = SCHEDULES["matmul-tiled"]
    source = cuda(schedule.program)
    for number, wrong in enumerate(("i + 1", "i - 1")):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = source.text.replace("part(C_pitch, i,", f"part(C_pitch, {wrong},")
        _, (seen, _) = run_one(text, source, folder, schedule, m=9, k=9, n=9, b=9)
        assert seen[0].faults > 0
    assert all(np.isnan(room[:128]).all() and np.isnan(room[-128:]).all() for room in rooms)


def test_sizes_can_be_constants_of_the_text(tmp_path: Path) -> None:
    schedule = SCHEDULES["flash2-forward"]
    sizes = {"n": 13, "d": 5, "B_r": 4, "B_c": 3}
    source = cuda(schedule.program, sizes=sizes | {WORKERS: 1})
    assert "constexpr int B_r = 4;" in source.text
    outputs, (seen, reference) = run_one(source.text, source, tmp_path, schedule, **sizes)
    np.testing.assert_allclose(outputs["O"], reference["O"], rtol=1e-4)
    assert total(seen).words_read == count(schedule.program, sizes).total.reads


@pytest.mark.parametrize("name", ["flash-decoding", "row-stationary-split"])
def test_a_worker_writes_to_its_own_split(name: str, gpu: Simulated, sources: dict[tuple[str, bool], Source]) -> None:
    schedule, sizes = TESTED[name], {"n_q": 3, "n_k": 8, "d_k": 2, "d_v": 9, "B_r": 2, "S": 3, "B_c": 2, WORKERS: 1}
    inputs = schedule.problem.random_inputs(sizes)
    outputs, seen = gpu.run(sources[name, False].kernels, schedule.program, sizes, inputs)
    np.testing.assert_allclose(outputs["O"], schedule.problem.reference(inputs)["O"], rtol=1e-4)
    assert not any(each.faults for each in seen)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "turn"), [("sm_80", 0), ("sm_90", 2)])
def test_nvcc_takes_kernels_as_they_are_launched_and_spills_nothing(
    architecture: str, turn: int, tmp_path: Path
) -> None:
    """With the sizes as constants and blocks of 256 threads, built as those that spill; every fourth schedule."""
    names = [name for name in TESTED if name in SCHEDULES][turn::4]
    texts = [launched(SCHEDULES[name], f"k{number}_") for number, name in enumerate(names)]
    said = compiled("\n".join(texts), architecture, tmp_path)
    kernels = "".join(texts).count("KERNEL(")
    assert len(re.findall(r"Used \d+ registers", said)) == kernels >= len(names)
    reports = re.findall(r"Function properties for k(\d+)_(\w+)\s+(.*)", said)
    assert len(reports) == kernels
    nothing = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    assert not [(names[int(number)], kernel, report) for number, kernel, report in reports if report != nothing]


def launched(schedule: Schedule, prefix: str) -> str:
    """The kernels of a case with 40,000 words of cache, or as many as the schedule needs."""
    dims = {dim: 1000 if dim[0] in "nm" else 64 for dim in schedule.problem.dims}
    try:
        found = case(schedule, M=40_000, workers=1 + (schedule.name in SPLIT), threads=256, **dims)
    except Infeasible as error:
        found = case(schedule, M=error.least_M, threads=256, **dims)
    return cuda(found.program, found.workers, found.sizes, prefix).text


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "turn"), [("sm_80", 0), ("sm_90", 8)])
def test_nvcc_takes_kernels_for_any_sizes(
    architecture: str, turn: int, tmp_path: Path, sources: dict[tuple[str, bool], Source]
) -> None:
    """Such kernels are emitted for readers of the text; those that are launched know their sizes."""
    compiled("\n".join(source.text for source in list(sources.values())[turn::16]), architecture, tmp_path)


def compiled(text: str, architecture: str, folder: Path) -> str:
    """The report of ptxas about the kernels."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on the path; install the CUDA toolkit to compile kernels for real GPUs")
    source = folder / "kernels.cu"
    built = with_registers(prelude(), 256)
    assert built != prelude()
    source.write_text(built + text, encoding="utf-8")
    options = ["-std=c++17", f"-arch={architecture}", "-Xptxas", "-v", "-cubin", "-o", str(folder / "kernels.cubin")]
    done = subprocess.run([nvcc, *options, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr
