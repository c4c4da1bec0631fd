"""benchmarks/shared_memory_tiles.py: words between shared memory and registers, against products counted by hand."""

import json
from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import pytest

import pebblesim as ps
from benchmarks import shared_memory_tiles as made
from pebblesim.analysis.count import count

MEASURED = Path(made.__file__).parent / "gpu" / "shared_memory.jsonl"

D = 128


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return {row.label: row for row in made.rows()}


@pytest.mark.parametrize("case", [case for case in made.CASES if case[1] == "flash2-forward"], ids=lambda case: case[0])
def test_operands_of_the_forward_pass(case: Any, found: dict[str, Any]) -> None:
    """Each instruction has a rows and b columns; it reads its operands, d of both, unless they are in registers."""
    label, _, below, given = case
    blocks = {"B_c": 128, "a_2": 128, "b_2": 128} | given
    B_r, B_c, a, b = (blocks[name] for name in ("B_r", "B_c", "a_2", "b_2"))
    of_queries = D / made.N if "Q_i" in below else ceil(B_c / b) * D / B_c  # once for all, or for each tile
    of_keys, of_values = ceil(B_r / a) * D / B_r, ceil(B_r / a) * ceil(D / b) * D / B_r
    assert found[label].parts["operands"] == pytest.approx(of_queries + of_keys + of_values, rel=0.01)


def test_the_backward_pass_of_flash_attention_2(found: dict[str, Any]) -> None:
    """S and dP read two operands, the gradients one; dQ goes down and up."""
    row = found["backward: FlashAttention-2, 128 x 128"]
    assert row.parts["operands"] == pytest.approx(2 + 2 + 1 + 1 + 1, rel=0.001)
    assert row.parts["partial sums"] == pytest.approx(2, rel=0.02)


def test_the_cycles_that_flash_attention_4_states(found: dict[str, Any]) -> None:
    """arXiv 2603.05451 says 3,328 for shared memory, which moves 128 bytes a cycle, and 2,560 for tensor cores."""
    row = found["backward: FlashAttention-4, 128 x 128, all traffic"]
    assert [round(tiles, 1) for tiles in row.parts.values()] == [7, 2, 4]
    assert row.total * D * D * 2 / 128 == pytest.approx(3328, rel=0.001)
    assert 5 * 2 * 128 * 128 * D / 8192 == 2560  # five products, at 8,192 operations a cycle


@pytest.mark.one_in(2)
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    made.main(["-o", str(tmp_path / "shared-memory.png")])
    assert (tmp_path / "shared-memory.png").stat().st_size > 10_000


def test_no_count_is_below_its_bound(found: dict[str, Any]) -> None:
    least = made.bounds()
    for row in found.values():
        assert row.total >= least["forward" if "forward" in row.schedule else "backward"]


def test_the_counters_of_our_backward_kernel_are_the_words_that_come_down() -> None:
    """Two warpgroups with instructions of 64 x 64 scores: operands, and dS for dQ; by 128 x 128 pairs, as measured."""
    blocks = {"B_r": 64, "B_c": 128, "a_2": 64, "b_2": 64}
    below = ("P", "dS", "dK_j", "dV_j", "v_i", "L_i")
    counted = ps.on_machine(made.FLASH4, machine=made.PLACE, below=below, blocks=blocks, n=4096, d=D)
    into = count(counted.nest.boundary(2), {**counted.dims, **counted.blocks}).by_tensor
    words = sum(into[tensor].reads for tensor in ("Q", "K", "V", "dO", "copies"))
    words -= 4096 * D  # dO for the row sums of dO and O, which another kernel computes
    rows = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    counters = Counter[str]()
    for row in rows:
        if (row["case"], row["times"]) == ("flash2-backward-blocked", 128):
            counters.update(row["counters"])
    assert counters["smsp__sass_data_bytes_mem_shared_op_gmma"] == 2 * words == 16 * 2 * D * D * (4096 // D) ** 2
