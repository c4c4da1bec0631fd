"""dQ, dK and dV from probabilities saved by the forward pass, for a small cache: scores are not recomputed."""

from pebblesim.language import rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.backward_qkv import write_gradients
from pebblesim.schedules.matmul import gemm_streamed, rank_one_updates, streamed
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import times_centred, write_row_sums_of_pairs


@schedule(
    problem="backward-qkv",
    source="ours: streamed operands; P is kept; dP and dS through memory",
    io=(
        f"{streamed('n_q', 'd_v', 'n_k')} + 4*n_q*n_k + {streamed('n_q', 'n_k', 'd_k')}"
        f" + {streamed('n_k', 'n_q', 'd_k', 'b', 'a')} + {streamed('n_k', 'n_q', 'd_v', 'b', 'a')}"
    ),
    fit=[("a", "b")],
    graph={"kept": "P"},
)
def small_cache_backward_kept(m, Q, K, V, dO, P, *, a, b):
    """Small cache, streamed, P kept: 8n²d/√M + 5n²."""
    n_q, n_k = P.shape
    dP, dS = m.tensor("dP", n_q, n_k), m.tensor("dS", n_q, n_k)

    with m.phase("dS"):
        for i in m.tiles(n_q, a, independent=True):
            v_i = m.zeros(i)
            for j in m.tiles(n_k, b, keys_of=i):
                dP_ij = m.zeros(i, j)
                rank_one_updates(m, dP_ij, dO, V, B_T=True)
                for r in m.tiles(i, 1):
                    for c in m.tiles(j, 1):
                        v_i[r] += rowsum(m.read(P[r, c]) * dP_ij[r, c])
                m.write(dP[i, j], dP_ij)
            for j in m.tiles(n_k, b, independent=True, keys_of=i):
                for r in m.tiles(i, 1):
                    for c in m.tiles(j, 1):
                        dS_rc = m.read(dP[r, c])
                        dS_rc[:] = m.read(P[r, c]) * (dS_rc - v_i[r])
                        m.write(dS[r, c], dS_rc)

    write_gradients(m, dS, P, Q, K, dO, a, b)


@schedule(
    problem="backward-qkv",
    name="kept-dS-tiled",
    source="ours: streamed operands; P and O are kept; dS through memory",
    io=(
        f"2*n_q*d_v + n_q + {streamed('n_q', 'd_v', 'n_k')} + n_q*n_k + n_q*ceiling(n_k/b)"
        f" + {streamed('n_q', 'n_k', 'd_k')} + {streamed('n_k', 'n_q', 'd_k', 'b', 'a')}"
        f" + {streamed('n_k', 'n_q', 'd_v', 'b', 'a')}"
    ),
    fit=[("a", "b")],
    graph={"kept": "P, O"},
)
def kept_ds_tiled(m, Q, K, V, dO, O, P, *, a, b):
    """Small cache, streamed, P and O kept: 8n²d/√M + 2n²; with O, the row sums of P ∘ dP are there before dP is."""
    dS, v = m.tensor("dS", *P.shape), m.tensor("v", P.shape[0])

    in_phase(write_row_sums_of_pairs, m, v, dO, O, a, P.shape[1])
    # of dP = dO Vᵀ
    in_phase(gemm_streamed, m, dS, dO, V, a, b, B_T=True, finish=times_centred(m, P, v), every_tile=False)

    write_gradients(m, dS, P, Q, K, dO, a, b)
