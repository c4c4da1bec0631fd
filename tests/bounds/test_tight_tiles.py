"""Games of a forward pass in 4 to 8 pebbles, and of dL/dX in 5: fewer words than any schedule of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest
from oracle_tight_tiles import BACKWARD, FORWARD, game

import pebblesim as ps
from pebblesim import graphs
from pebblesim.game.referee import Game, Referee
from pebblesim.graphs.cdag import Cdag

LATE = {"softmax": "late"}
CENTRED = {"order": "U", "kept": True, "centred": True}


def played(graph: Cdag, M: int, chunks: Iterable[Any]) -> Game:
    board = Referee(graph, M)
    for chunk in chunks:
        board.play(chunk)
    return board.finish()


def forward_words(n: int, d: int, a: int, b: int) -> int:
    """Scores and O in a x b tiles, exp(S) written and read for the row sums, which are read for each tile of O."""
    products = n * d * (-(-n // a) + -(-n // b)) + n * n * -(-d // b) + n * d * -(-n // a)
    return products + 2 * n * n + n + n * -(-d // b) + n * d


def backward_words(n: int, d: int, a: int, b: int) -> int:
    def streamed(rows: int, inner: int, columns: int) -> int:
        return rows * inner * -(-columns // b) + inner * columns * -(-rows // a) + rows * columns

    pairs = 2 * streamed(n, d, n) + n * n + 2 * n * -(-n // b)
    return 2 * streamed(n, d, d) + 2 * n * d + n + pairs + streamed(n, n, d) + streamed(d, n, d)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 2), (4, 2), (5, 3), (7, 4)])
@pytest.mark.parametrize(("M", "sides"), [(4, (1, 1)), (5, (1, 2)), (6, (1, 3)), (7, (1, 4)), (8, (2, 2))])
def test_forward(n: int, d: int, M: int, sides: tuple[int, int]) -> None:
    graph = graphs.build("forward", "chain", None, n=n, d=d, **LATE)
    judged = played(graph, M, game(graph, FORWARD, sides))
    assert judged.complete and judged.io == forward_words(n, d, *sides)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (3, 2), (5, 3)])
def test_backward(n: int, d: int) -> None:
    graph = graphs.build("backward", "chain", None, n=n, d=d, **CENTRED)
    judged = played(graph, 5, game(graph, BACKWARD, (1, 2)))
    assert judged.complete and judged.io == backward_words(n, d, 1, 2)


def test_they_halve_the_gap_of_the_catalogue() -> None:
    n, d = 2**16, 2**7
    for M, sides, most in ((5, (1, 2), 1.22), (6, (1, 3), 1.36), (7, (1, 4), 1.37), (8, (2, 2), 1.19)):
        bound = ps.bounds("forward", n=n, d=d, M=M).best.value
        assert bound <= forward_words(n, d, *sides) < most * bound
    bound = ps.bounds("backward", n=n, d=d, M=5).best.value
    assert bound <= backward_words(n, d, 1, 2) < 1.57 * bound


def test_gradients_of_the_catalogue_hold_words_of_the_narrow_side() -> None:
    """Rows of c sums beside a word of each operand, for dQ as for dK and dV, whose tiles are turned."""
    for M in range(6, 9):
        assert ps.count("kept-dS-tiled", n=9, d=5, M=M, blocks={"a": 1, "b": M - 4}).peak_red == M
    (row,) = ps.gaps("backward-qkv", n=2**16, d=2**7, M=8).rows
    assert row.gap < Fraction(3, 2)
