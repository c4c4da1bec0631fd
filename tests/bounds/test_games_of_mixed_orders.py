"""Word-level games in which each pair has its own order of the products, against the bounds for any order.

Under a mask of one key to each query all pairs need a line of their own that is made with weights. The games make these
lines for queries of the first pairs and for keys of the others, in tiles, and move less than twice the bound.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pebblesim.language.masks import of
from pebblesim.language.problems import PROBLEMS
from pebblesim.lower_bounds.bounds import Formulation, lower_bounds

Word = tuple[Any, ...]


class Cache:
    """Words by name in a cache and in memory; a new value of a word needs a place beside the old one."""

    def __init__(self, **matrices: Any) -> None:
        self.memory = {(name, *at): value for name, matrix in matrices.items() for at, value in np.ndenumerate(matrix)}
        self.red: dict[Word, float] = {}
        self.io = self.peak = 0

    def read(self, *words: Word) -> None:
        for word in words:
            self.red[word] = self.memory[word]
            self.io += 1
        self.peak = max(self.peak, len(self.red))

    def write(self, word: Word) -> None:
        """Write a word and delete it."""
        self.memory[word] = self.red.pop(word)
        self.io += 1

    def delete(self, *words: Word) -> None:
        for word in words:
            del self.red[word]

    def make(self, word: Word, value: Callable[..., float], *operands: Word) -> None:
        result = value(*(self.red[operand] for operand in operands))
        self.peak = max(self.peak, len(self.red) + 1)
        self.red[word] = result

    def add_product(self, word: Word, left: Word, right: Word) -> None:
        if word not in self.red:
            self.make(word, lambda a, b: a * b, left, right)
            return
        self.make(("product",), lambda a, b: a * b, left, right)
        self.make(word, lambda s, p: s + p, word, ("product",))
        self.delete(("product",))


def blocks(rows: range, size: int) -> Iterator[range]:
    yield from (rows[at : at + size] for at in range(0, len(rows), size))


def product_of_tiles(
    cache: Cache, rows: range, names: tuple[str, str], d: int, width: int, transposed: bool, use: Callable[[Word], None]
) -> None:
    """Make elements of a product of rows and a d x d matrix, `width` columns at a time, and use each once."""
    left, right = names
    for columns in blocks(range(d), width):
        for t in range(d):
            of_column = {c: (right, c, t) if transposed else (right, t, c) for c in columns}
            cache.read(*of_column.values())
            for i in rows:
                cache.read((left, i, t))
                for c, word in of_column.items():
                    cache.add_product(("tile", i, c), (left, i, t), word)
                cache.delete((left, i, t))
            cache.delete(*of_column.values())
        for i in rows:
            for c in columns:
                use(("tile", i, c))
                cache.delete(("tile", i, c))


def inner_products(
    cache: Cache, rows: range, names: tuple[str, str, str], d: int, width: int, transposed: bool
) -> None:
    """("inner", i) = (left W)_i · other_i, with Wᵀ in the place of W if transposed."""
    left, weights, other = names

    def use(tile: Word) -> None:
        word = (other, *tile[1:])
        cache.read(word)
        cache.add_product(("inner", tile[1]), tile, word)
        cache.delete(word)

    product_of_tiles(cache, rows, (left, weights), d, width, transposed, use)


def times_vector(cache: Cache, rows: range, matrix: str, vector: str, d: int) -> None:
    """(vector, i) = matrix_i · vector."""
    for t in range(d):
        cache.read((vector, t, 0))
        for i in rows:
            cache.read((matrix, i, t))
            cache.add_product((vector, i), (matrix, i, t), (vector, t, 0))
            cache.delete((matrix, i, t))
        cache.delete((vector, t, 0))


def forward(n: int, d: int, height: int, width: int, half: int) -> Cache:
    """O for d_v = 1, by way of W_Q W_Kᵀ: rows of A1 W_Q W_Kᵀ for the first pairs, of A2 W_K W_Qᵀ for the others."""
    rng = np.random.default_rng(1)
    A1, A2, A3 = (rng.standard_normal((n, d)) * 0.3 for _ in range(3))
    W_Q, W_K, W_V = rng.standard_normal((d, d)), rng.standard_normal((d, d)), rng.standard_normal((d, 1))
    cache = Cache(A1=A1, A2=A2, A3=A3, W_Q=W_Q, W_K=W_K, W_V=W_V)

    def keep(tile: Word) -> None:
        cache.red["W", *tile[1:]] = cache.red[tile]
        cache.write(("W", *tile[1:]))

    for rows in blocks(range(d), height):
        product_of_tiles(cache, rows, ("W_Q", "W_K"), d, width, True, keep)
    for side, of_side in (("A1", range(half)), ("A2", range(half, n))):
        for rows in blocks(of_side, height):
            inner_products(cache, rows, (side, "W", "A2" if side == "A1" else "A1"), d, width, side == "A2")
            for i in rows:
                cache.make(("l", i), math.exp, ("inner", i))  # of one pair alone, so it is l and A
                cache.delete(("inner", i))
            times_vector(cache, rows, "A3", "W_V", d)
            for i in rows:
                cache.make(("AV", i), lambda a, v: a * v, ("l", i), ("W_V", i))
                cache.delete(("W_V", i))
                cache.make(("O", i, 0), lambda s, r: s / r, ("AV", i), ("l", i))
                cache.delete(("AV", i), ("l", i))
                cache.write(("O", i, 0))
    assert np.allclose([cache.memory["O", i, 0] for i in range(n)], (A3 @ W_V)[:, 0])
    return cache


def gradients(n: int, d: int, height: int, width: int, half: int) -> Cache:
    """dQ, dK and dV for d_k = 1: rows of A3 W_V for the first pairs, of dO W_Vᵀ for the others."""
    rng = np.random.default_rng(2)
    A1, A2, A3, dO = (rng.standard_normal((n, d)) * 0.3 for _ in range(4))
    W_Q, W_K, W_V = rng.standard_normal((d, 1)), rng.standard_normal((d, 1)), rng.standard_normal((d, d))
    cache = Cache(A1=A1, A2=A2, A3=A3, W_Q=W_Q, W_K=W_K, W_V=W_V, dO=dO)
    for side, of_side in (("A3", range(half)), ("dO", range(half, n))):
        for rows in blocks(of_side, height):
            inner_products(cache, rows, (side, "W_V", "dO" if side == "A3" else "A3"), d, width, side == "dO")
            times_vector(cache, rows, "A1", "W_Q", d)
            times_vector(cache, rows, "A2", "W_K", d)
            for i in rows:
                of_pair(cache, i, d)
    assert np.allclose([[cache.memory["dV", i, c] for c in range(d)] for i in range(n)], dO)
    return cache


def of_pair(cache: Cache, i: int, d: int) -> None:
    """The gradients of the only pair of a query and a key, from Q_i, K_i (here W_Q, W_K) and dP_ii."""
    cache.make(("A",), lambda q, k: math.exp(q * k), ("W_Q", i), ("W_K", i))
    cache.make(("P",), lambda a: a / a, ("A",))
    cache.delete(("A",))
    cache.make(("v",), lambda p, dP: p * dP, ("P",), ("inner", i))
    cache.make(("dS",), lambda p, dP, v: p * (dP - v), ("P",), ("inner", i), ("v",))
    cache.delete(("v",), ("inner", i))
    for output, operand in (("dQ", "W_K"), ("dK", "W_Q")):
        cache.make((output, i, 0), lambda s, x: s * x, ("dS",), (operand, i))
        cache.write((output, i, 0))
    cache.delete(("dS",), ("W_Q", i), ("W_K", i))
    for c in range(d):
        cache.read(("dO", i, c))
        cache.make(("dV", i, c), lambda p, x: p * x, ("P",), ("dO", i, c))
        cache.write(("dV", i, c))
        cache.delete(("dO", i, c))
    cache.delete(("P",))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("half", [0, 20])
@pytest.mark.parametrize(
    ("play", "name", "bound", "widths"),
    [
        (forward, "projected-forward", "C2m", {"d_k": 24, "d_v": 1}),
        (gradients, "projected-backward-qkv", "E1m", {"d_k": 1, "d_v": 24}),
    ],
)
def test_a_game_of_mixed_orders_moves_less_than_twice_the_bound_and_no_less_than_it(
    play: Callable[..., Cache], name: str, bound: str, widths: dict[str, int], half: int
) -> None:
    n, d = 96, 24
    cache = play(n, d, 4, 4, half)
    any_order = Formulation(graph={"absorbed": ("W_K", "W_V")})
    mask = of("window:1")
    rectangle = PROBLEMS[name].rectangle
    assert rectangle
    bounds = lower_bounds(rectangle, {"n_q": n, "n_k": n, "d": d, **widths}, cache.peak, any_order, mask)
    largest = max(bounds, key=lambda each: each.value)
    assert largest.name == bound
    assert largest.value <= cache.io < 2 * largest.value
