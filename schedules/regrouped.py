"""The sum over rows regrouped as in Algorithm 8, with rows of A1 and dO resident: about 4n²d²/M words, like bound D3.

For each block of rows, Algorithm 8 adds the products of T = A1ᵀ p with A2 to g, so no row of dQ is resident. Here no
row of S is resident either: S_r = A1_r X is computed again for each row and column, from X, which is resident like g.
That costs n²d² multiplications instead of nd², but no words.
"""

from pebblesim.language import exp
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import gemm_resident, resident
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import add_row_sums

GRAPH = {"order": "T", "kept": True, "centred": True, "row_block": "B_r"}


def past_rows(m, g_, A1_i, dO_i, l_i, v_i, X_, A2_j, h_j):
    """Add (A1_iᵀ p) A2_j to g for one column of p; S is computed row by row."""
    i, _ = A1_i.shape
    j, _ = A2_j.shape
    p = m.compute(dO_i @ h_j.T)  # q
    p[:] = p - v_i
    for r in m.tiles(i, 1):
        S_r = m.compute(A1_i[r, :] @ X_)
        f = m.compute(S_r @ A2_j.T)
        f[:] = exp(f)
        f[:] = f / l_i[r]
        p[r, j] = f * p[r, j]
    T_j = m.compute(A1_i.T @ p)
    g_ += T_j @ A2_j


@schedule(
    problem="backward",
    source="ours: Algorithm 8's sum over rows; rows of A1 and dO stationary; S recomputed",
    io=f"{resident('n', 'd', 'd')} + 2*d**2 + 3*n*d + n + 2*n*d*ceiling(n/B_r)",
    fit=["B_r", "b"],
    graph=GRAPH,
)
def regrouped(m, A1, A2, A3, dO, X, Y, O, l, *, B_r, b):
    """Regrouped: 4n²d²/(M - 2d²), S recomputed for each pair."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    h, g = m.tensor("h", n_k, d), m.tensor("g", d, d)

    in_phase(gemm_resident, m, h, A3, Y, b)

    with m.phase("g"):
        X_, g_ = m.read(X), m.zeros(d, d)
        for i in m.tiles(n_q, B_r, queries_of=n_k):
            A1_i, dO_i, l_i, v_i = m.read(A1[i, :]), m.read(dO[i, :]), m.read(l[i]), m.zeros(i)
            add_row_sums(m, v_i, dO_i, O)
            for j in m.tiles(n_k, 1, keys_of=i):
                past_rows(m, g_, A1_i, dO_i, l_i, v_i, X_, m.read(A2[j, :]), m.read(h[j, :]))
        m.write(g, g_)


@schedule(
    problem="backward",
    source="ours: Algorithm 8's sum over rows; rows of A1 and dO stationary; S and h recomputed",
    io="3*d**2 + 3*n*d + n + 2*n*d*ceiling(n/B_r)",
    fit=["B_r"],
    graph=GRAPH,
)
def regrouped_h(m, A1, A2, A3, dO, X, Y, O, l, *, B_r):
    """Regrouped, with h recomputed: only the compulsory words for M ≥ 2nd + 3d²."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    g = m.tensor("g", d, d)
    X_, Y_, g_ = m.read(X), m.read(Y), m.zeros(d, d)
    for i in m.tiles(n_q, B_r, queries_of=n_k):
        A1_i, dO_i, l_i, v_i = m.read(A1[i, :]), m.read(dO[i, :]), m.read(l[i]), m.zeros(i)
        add_row_sums(m, v_i, dO_i, O)
        for j in m.tiles(n_k, 1, keys_of=i):
            A3_j = m.read(A3[j, :])
            h_j = m.compute(A3_j @ Y_)
            m.delete(A3_j)
            past_rows(m, g_, A1_i, dO_i, l_i, v_i, X_, m.read(A2[j, :]), h_j)
    m.write(g, g_)
