"""v = (dO ∘ O) · 1, the row sums that the backward passes need (FlashAttention-2 calls them D)."""

from pebblesim.language import rowsum


def write_row_sums(m, v, dO, O, B_r, c=1, rows=None):
    """Compute v in memory, from B_r x c tiles of dO and O; `rows`: those of a tile alone."""
    for i in m.tiles(v.shape[0] if rows is None else rows, B_r, independent=True):
        v_i = m.zeros(i)
        for k in m.tiles(dO.shape[1], c):
            v_i += rowsum(m.read(dO[i, k]) * m.read(O[i, k]))
        m.write(v[i], v_i)


def write_row_sums_of_pairs(m, v, dO, O, a, n_k):
    """Compute v in memory row by row, but for tiles of `a` rows without an allowed pair, which nobody may read."""
    for i in m.tiles(v.shape[0], a, independent=True, queries_of=n_k):
        write_row_sums(m, v, dO, O, 1, rows=i)


def add_row_sums(m, v_i, dO_i, O):
    """Compute v_i += (dO_i ∘ O_i) · 1 with dO_i in the cache and O streamed column by column."""
    (i,) = v_i.shape
    for k in m.tiles(O.shape[1], 1):
        v_i += rowsum(dO_i[:, k] * m.read(O[i, k]))


def times_centred(m, P, v):
    """Return what makes a tile of P ∘ (dP - v 1ᵀ) of one of dP, with P read word by word."""

    def finish(dP_ij, i, j):
        v_i = m.read(v[i])
        for r in m.tiles(i, 1):
            for c in m.tiles(j, 1):
                dP_ij[r, c] = m.read(P[r, c]) * (dP_ij[r, c] - v_i[r])

    return finish
