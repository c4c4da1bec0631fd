"""Least vertex covers of a mask: how many queries and keys it takes to have one of every allowed pair.

By König's theorem the least cover has as many lines as the largest matching, a set of allowed pairs that share no query
and no key. Any matching is a lower bound on it; so is the number of pairs, divided by the most that one line has.
"""

from __future__ import annotations

from functools import lru_cache

from pebblesim.language.masks import LARGEST_TABLE, Band, BlockMask, Mask, Packed

MOST_BLOCKS = 2**17
"""Largest number of allowed blocks for which a largest matching of blocks is searched."""


@lru_cache(maxsize=256)  # each bound of a case asks for it
def least_cover(mask: Mask, grid: tuple[int, int]) -> int:
    """Return a lower bound on the vertex cover number of the allowed pairs, from a matching that is made here.

    It is exact for bands, for sequences one after the other, and for square blocks that all are whole, up to the sizes
    at which these are listed. Masks of other classes have only the bound from their number of pairs.
    """
    n_q, n_k = grid
    most = max(n_q, n_k)
    by_number = -(-mask.pairs(*grid) // most) if most else 0
    return max(by_number, _matched(mask, grid))


def _matched(mask: Mask, grid: tuple[int, int]) -> int:
    if isinstance(mask, Packed):
        lengths = zip(*mask._lengths(grid), strict=True)
        return sum(min(own) if mask.band is None else least_cover(mask.band, own) for own in lengths)
    if isinstance(mask, Band):
        return _matched_in_rows(mask, grid) if mask.rows > 1 and grid[0] <= LARGEST_TABLE else _diagonal(mask, grid)
    return _matched_in_blocks(mask, grid) if isinstance(mask, BlockMask) else 0


def _diagonal(band: Band, grid: tuple[int, int]) -> int:
    """Length of the longest diagonal j - i = δ in a band, with one of the `rows` of each query."""
    before, after = band.limits(grid)
    n_q, n_k = -(-grid[0] // band.rows), grid[1]
    if before + after < 0:
        return 0
    low, high = sorted((0, n_k - n_q))  # diagonals from 0 to n_k - n_q are equally long, those farther off shorter
    at = after if after < low else -before if -before > high else max(low, -before)
    return max(0, min(n_q, n_k - at, n_k, n_q + at))


def _matched_in_rows(band: Band, grid: tuple[int, int]) -> int:
    """The most that can be matched where both ends of the keys of a query grow with the query: each takes the first."""
    before, after = band.limits(grid)
    taken, matched = -1, 0
    for row in range(grid[0]):
        first, last = row // band.rows - before, min(grid[1] - 1, row // band.rows + after)
        key = max(0, first, taken + 1)
        if key <= last:
            taken, matched = key, matched + 1
    return matched


def _matched_in_blocks(mask: BlockMask, grid: tuple[int, int]) -> int:
    """A largest matching of blocks, each of which has the lesser of its sides in pairs that share no line."""
    import networkx as nx
    import numpy as np

    height, width = mask._size(grid)
    rows, columns = np.nonzero(mask._table(grid))
    if len(rows) > MOST_BLOCKS:
        return 0
    graph = nx.Graph()
    graph.add_edges_from(zip(rows.tolist(), (-1 - columns).tolist(), strict=True))
    top = sorted({*rows.tolist()})
    pairs = nx.bipartite.hopcroft_karp_matching(graph, top) if top else {}
    return sum(
        min(height, grid[0] - row * height, width, grid[1] - (-1 - pairs[row]) * width) for row in top if row in pairs
    )
