"""v = (dO ∘ O) · 1, the row sums that the backward passes need (FlashAttention-2 calls them D)."""

from pebblesim.language import rowsum


def write_row_sums(m, v, dO, O, B_r):
    """Compute v in memory, from columns of dO and O of B_r words."""
    for i in m.tiles(v.shape[0], B_r, independent=True):
        v_i = m.zeros(i)
        for k in m.tiles(dO.shape[1], 1):
            v_i += rowsum(m.read(dO[i, k]) * m.read(O[i, k]))
        m.write(v[i], v_i)


def add_row_sums(m, v_i, dO_i, O):
    """Compute v_i += (dO_i ∘ O_i) · 1 with dO_i in the cache and O streamed column by column."""
    (i,) = v_i.shape
    for k in m.tiles(O.shape[1], 1):
        v_i += rowsum(dO_i[:, k] * m.read(O[i, k]))


def write_row_sums_of_tiles(m, v, dO, O, B_r, c):
    """Compute v in memory, from B_r x c tiles of dO and O."""
    for i in m.tiles(v.shape[0], B_r, independent=True):
        v_i = m.zeros(i)
        for k in m.tiles(dO.shape[1], c):
            v_i += rowsum(m.read(dO[i, k]) * m.read(O[i, k]))
        m.write(v[i], v_i)
