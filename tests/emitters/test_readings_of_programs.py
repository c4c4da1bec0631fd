"""Loops and tests that are read off a kernel's program, beside those in the syntax tree of its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from golden_texts import GOLDENS, Case

from pebblesim.advice.launch_costs import launch_costs
from pebblesim.advice.tiles import TILINGS, hopper_tiling
from pebblesim.kernels.readings import read
from pebblesim.language import masks

CASES = [name for name, case in GOLDENS.items() if isinstance(case, Case)]


def loops(body: list[ast.stmt]) -> Iterator[ast.For]:
    """The loops over tiles, within others, too; those of static_range are unrolled when a kernel is compiled."""
    for each in body:
        if isinstance(each, ast.For) and not is_of_blocks(each):
            yield each
        yield from loops([*getattr(each, "body", []), *getattr(each, "orelse", [])])


def is_of_blocks(loop: ast.For) -> bool:
    """Whether a loop is unrolled, over the tiles that a block has one after the other, or over parts of one tile.

    Parts are under way before: another warp brings them.
    """
    over = ast.unparse(loop.iter)
    return "static_range" in over or over == "range(k_first, k_end)" or ast.unparse(loop.target) in ("tile", "rest")


def begun(body: list[ast.stmt]) -> int:
    """Innermost loops that statements begin, of two branches in one."""
    number = 0
    for each in body:
        if isinstance(each, ast.If):
            number += max(begun(each.body), begun(each.orelse))
        elif isinstance(each, ast.For):
            number += begun(each.body) if is_of_blocks(each) else not list(loops(each.body))
    return number


def comparisons_of_pairs(loop: ast.For) -> set[str]:
    """Comparisons of what has rows with what has columns."""
    found = (each for each in ast.walk(loop) if isinstance(each, ast.Compare))
    return {
        ast.unparse(each)
        for each in found
        if all(
            any(isinstance(part, ast.Subscript) and "None" in ast.unparse(part.slice) for part in ast.walk(side))
            for side in (each.left, *each.comparators)
        )
    }


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_loops_and_tests_are_those_of_the_text(name: str) -> None:
    """Each function of the text is a kernel, or the part of one that computes."""
    case = GOLDENS[name]
    assert isinstance(case, Case)
    source = case.source()
    functions = {each.name: each for each in ast.parse(source.text).body if isinstance(each, ast.FunctionDef)}
    for kernel in source.kernels:
        written = functions.get(f"{kernel.name}_rows", functions[kernel.name])
        found, within = read(kernel.program).iterations, list(loops(written.body))
        assert found[0].begins == begun(written.body)
        others = [each for line, each in found.items() if line]
        assert {each.begins for each in others} == {begun(loop.body) for loop in within}
        most = max((len(comparisons_of_pairs(loop)) for loop in within), default=0)
        assert max((each.tests for each in others), default=0) == most


def test_a_kernel_of_one_loop_begins_one_under_a_mask() -> None:
    """Narrow heads ask of each tile if the causal mask cuts it; wider ones have a loop for the tiles along it."""
    dims = {"n": 4096, "d": 128}
    for d, loops_of_a_block in ((64, 1), (128, 1), (256, 2)):
        tiling = hopper_tiling("flash2-forward", {"d": d})
        (cost,) = launch_costs(tiling, dims | {"d": d}, "bfloat16", mask=masks.of("causal"))
        assert cost.begun == loops_of_a_block * cost.working


def test_the_shared_memory_of_a_gluon_kernel_is_that_of_its_program() -> None:
    """Rings of two tiles of 128 x 128 keys and values, 128 rows of queries, and barriers; a head of any length."""
    tiling = hopper_tiling("flash2-forward", {"d": 128})
    for n in (1000, 4096):
        (cost,) = launch_costs(tiling, {"n": n, "d": 128}, "bfloat16")
        assert 0 <= cost.storage.shared - (2 * 2 + 1) * 128 * 128 * 2 < 200


def test_tiles_that_are_tested_for_a_mask() -> None:
    """n = 4,096: tiles along the diagonal, all tiles of a window, or those at its two ends and the first of a block."""
    dims, triton = {"n": 4096, "d": 64}, TILINGS["forward"][0]
    assert triton.schedule == "flash2-forward" and dict(triton.blocks) == {"B_r": 64, "B_c": 64}
    cost = launch_costs(triton, dims, "bfloat16", mask=masks.of("causal"))[0]
    assert cost.masked == 64 * 64**2
    cost = launch_costs(triton, dims, "bfloat16", mask=masks.of("window:300"))[0]
    first = [max(0, 64 * block - 299) // 64 for block in range(64)]
    assert cost.masked == 2 * 64**2 * sum(block + 1 - begin for block, begin in enumerate(first))
    narrow = hopper_tiling("flash2-forward", dims)  # asks of each tile but the first if an edge cuts it
    (cost,) = launch_costs(narrow, dims, "bfloat16", mask=masks.of("window:300"))
    assert cost.masked == 2 * 128**2 * 32 * (1 + 2)
