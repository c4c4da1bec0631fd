"""Row-stationary schedules for a large cache: rows of S, dO and dQ stay; the rows of A2 and h are streamed.

As in FlashAttention-2's forward pass the outer loop is over rows. Single columns of scores are enough, so a row needs
3d + 4 words of cache, and no d x d matrix is resident: about 6n²d²/M words of I/O. `row-stationary` keeps S and dQ in
memory between its phases; `row-stationary-fused` computes them block by block; `row-stationary-one-pass` needs nothing
from the forward pass.
"""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import (
    CLOSED_RESIDENT,
    CLOSED_STREAMED,
    gemm_resident,
    gemm_streamed,
    resident,
    streamed,
    write_projections,
)
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import add_row_sums

CLOSED_ROWS = {"B_r": "floor((M - d - 3)/(3*d + 6))"}
CLOSED_OF_G = {f"{block}_g": size for block, size in CLOSED_STREAMED.items()}


def stream_past(m, dQ_i, S_i, dO_i, l_i, v_i, A2, h):
    """Compute dQ_i += p_i A2, one row of A2 and one word of h at a time."""
    n_k, d = A2.shape
    i, _ = S_i.shape
    for j in m.tiles(n_k, 1, keys_of=i):
        A2_j = m.read(A2[j, :])
        f = m.compute(S_i @ A2_j.T)
        f[:] = exp(f)
        f[:] = f / l_i
        p = m.zeros(i, j)
        for k in m.tiles(d, 1):
            p += dO_i[:, k] @ m.read(h[j, k]).T  # q
        p[:] = f * (p - v_i)
        dQ_i += p @ A2_j


def add_to_g(m, g, A1, dQ_i):
    """Compute g += A1_iᵀ dQ_i in memory, word by word."""
    i, d = dQ_i.shape
    for k in m.tiles(d, 1):
        A1_ik = m.read(A1[i, k])
        for c in m.tiles(d, 1):
            g_kc = m.read(g[k, c])
            g_kc += A1_ik.T @ dQ_i[:, c]
            m.write(g[k, c], g_kc)


def one_pass(m, A1, A2, h, rows, B_r, a, b):
    """Compute g by way of dQ in memory; `rows(i)` makes rows of S and of dO, or of dO Yᵀ where h is A3.

    The sums of a row are l, w = (A ∘ q)·1, dQ_i = (A ∘ q) A2 and U2_i = A A2, none of which needs another one; in the
    end, dQ_i = (dQ_i - (w/l) U2_i) / l.
    """
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    dQ, g = m.tensor("dQ", n_q, d), m.tensor("g", d, d)

    with m.phase("dQ"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={dQ: 0}):
            S_i, dO_i = rows(i)
            dQ_i, U2_i, l_i, w_i = m.zeros(i, d), m.zeros(i, d), m.zeros(i), m.zeros(i)
            for j in m.tiles(n_k, 1, keys_of=i):
                Aq = m.zeros(i, j)
                for k in m.tiles(d, 1):
                    Aq += dO_i[:, k] @ m.read(h[j, k]).T  # q
                A2_j = m.read(A2[j, :])
                A = m.compute(S_i @ A2_j.T)
                A[:] = exp(A)
                l_i += rowsum(A)
                U2_i += A @ A2_j
                Aq[:] = A * Aq
                w_i += rowsum(Aq)
                dQ_i += Aq @ A2_j
            m.delete(S_i, dO_i)
            w_i[:] = w_i / l_i
            dQ_i[:] = dQ_i - w_i * U2_i
            dQ_i[:] = dQ_i / l_i
            m.write(dQ[i, :], dQ_i)

    in_phase(gemm_streamed, m, g, A1, dQ, a, b, A_T=True)


@schedule(
    problem="backward",
    source="ours: rows of S, dO and dQ stationary",
    io=f"2*{resident('n', 'd', 'd')} + 4*n*d + n + 2*n*d*ceiling(n/B_r) + {streamed('d', 'n', 'd', 'a_g', 'b_g')}",
    fit=["B_r", "b", ("a_g", "b_g")],
    closed=CLOSED_ROWS | CLOSED_RESIDENT | CLOSED_OF_G,
    graph={"order": "U", "kept": True, "centred": True},
)
def row_stationary(m, A1, A2, A3, dO, X, Y, O, l, *, B_r, b, a_g, b_g):
    """Row-stationary: 6n²d²/M; S and dQ go through memory."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    S, h = write_projections(m, A1, A3, X, Y, gemm_resident, b)
    dQ, g = m.tensor("dQ", n_q, d), m.tensor("g", d, d)

    with m.phase("dQ"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={dQ: 0}):
            dO_i = m.read(dO[i, :])
            v_i = m.zeros(i)
            add_row_sums(m, v_i, dO_i, O)
            S_i, l_i = m.read(S[i, :]), m.read(l[i])
            dQ_i = m.zeros(i, d)
            stream_past(m, dQ_i, S_i, dO_i, l_i, v_i, A2, h)
            m.write(dQ[i, :], dQ_i)

    in_phase(gemm_streamed, m, g, A1, dQ, a_g, b_g, A_T=True)


@schedule(
    problem="backward",
    source="ours: row-stationary; S_i is computed from A1_i; g is summed in memory",
    io=f"{resident('n', 'd', 'd')} + 4*n*d + n + d**2 + ceiling(n/B_r)*(3*d**2 + 2*n*d)",
    fit=["B_r", "b"],
    closed=CLOSED_ROWS | CLOSED_RESIDENT,
    graph={"order": "U", "kept": True, "centred": True, "g_block": "B_r"},
)
def row_stationary_fused(m, A1, A2, A3, dO, X, Y, O, l, *, B_r, b):
    """Row-stationary, fused: neither S nor dQ goes through memory."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    h, g = m.tensor("h", n_k, d), m.tensor("g", d, d)

    in_phase(gemm_resident, m, h, A3, Y, b)

    with m.phase("g"):
        m.write(g, 0)
        for i in m.tiles(n_q, B_r, queries_of=n_k):
            S_i = m.zeros(i, d)
            for k in m.tiles(d, 1):
                A1_ik = m.read(A1[i, k])
                for c in m.tiles(d, 1):
                    S_i[:, c] += A1_ik @ m.read(X[k, c])
            dO_i = m.read(dO[i, :])
            v_i = m.zeros(i)
            add_row_sums(m, v_i, dO_i, O)
            l_i = m.read(l[i])
            dQ_i = m.zeros(i, d)
            stream_past(m, dQ_i, S_i, dO_i, l_i, v_i, A2, h)
            m.delete(S_i, dO_i, v_i, l_i)
            add_to_g(m, g, A1, dQ_i)


@schedule(
    problem="backward",
    source="ours: row-stationary; the division by the row sums comes at the end",
    io=f"2*{resident('n', 'd', 'd')} + 3*n*d + 2*n*d*ceiling(n/B_r) + {streamed('d', 'n', 'd', 'a_g', 'b_g')}",
    fit=["B_r", "b", ("a_g", "b_g")],
    closed={"B_r": "floor((M - d - 3)/(4*d + 6))"} | CLOSED_RESIDENT | CLOSED_OF_G,
    graph={"order": "one-pass"},
)
def row_stationary_one_pass(m, A1, A2, A3, dO, X, Y, *, B_r, b, a_g, b_g):
    """Row-stationary without O and l: 8n²d²/M."""
    S, h = write_projections(m, A1, A3, X, Y, gemm_resident, b)

    def rows(i):
        S_i, dO_i = m.read(S[i, :]), m.read(dO[i, :])
        return S_i, dO_i

    one_pass(m, A1, A2, h, rows, B_r, a_g, b_g)
