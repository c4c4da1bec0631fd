"""The scores of the first keys stay: a block of rows needs Q for its scores only, and O only after them.

As in `scores-stored`, scores go through memory between two passes, but both passes are over the same rows. The scores
of the first B_s keys are computed last, when these rows of Q are about to leave, and are used first, when those of O
begin to grow. So they stay in the cache, which saves a write and a read of each. For B_s = 1 this needs no word more:
they lie where those of each other key lie.
"""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.partly_resident import write_rows

IO = "n_q*(d_k + d_v) + n_k*(d_k + d_v)*ceiling(n_q/B_r) + 2*n_q*(n_k - Min(n_k, B_s))"
SOURCE = "ours: scores-stored with both passes over the same rows; the scores of the first keys stay"


def two_passes(m, Q, K, V, B_r, B_s, activate, l=None):
    """Compute O = A V with A = `activate`(Q Kᵀ); with `l`, also the row sums of A, which divide the rows of O."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    A, O = m.tensor("A", n_q, n_k), m.tensor("O", n_q, d_v)

    def scores(A_ij, Q_i, j):
        for k in m.tiles(d_k, 1):
            A_ij += Q_i[:, k] @ m.read(K[j, k]).T

    def values(O_i, l_i, A_ij, j):
        if l is not None:
            l_i += rowsum(A_ij)
        for c in m.tiles(d_v, 1):
            O_i[:, c] += A_ij @ m.read(V[j, c])

    for s in m.first(n_k, B_s):
        for i in m.tiles(n_q, B_r, independent=True):
            Q_i = m.read(Q[i, :])
            for j in m.tiles(n_k, 1, after=B_s, keys_of=i):
                A_ij = m.zeros(i, j)
                scores(A_ij, Q_i, j)
                A_ij[:] = activate(A_ij)
                m.write(A[i, j], A_ij)
            A_is = m.zeros(i, s)
            for j in m.tiles(s, 1, keys_of=i):
                scores(A_is[:, j], Q_i, j)
            m.delete(Q_i)
            A_is[:] = activate(A_is)
            O_i, l_i = m.zeros(i, d_v), None if l is None else m.zeros(i)
            for j in m.tiles(s, 1, keys_of=i):
                values(O_i, l_i, A_is[:, j], j)
            m.delete(A_is)
            for j in m.tiles(n_k, 1, after=B_s, keys_of=i):
                values(O_i, l_i, m.read(A[i, j]), j)
            write_rows(m, O, l, i, d_v, O_i, l_i)


@schedule(problem="forward", source=SOURCE, io=f"{IO} + n_q", fit=["B_r", "B_s"], graph={"softmax": "late"})
def scores_partly_stored(m, Q, K, V, *, B_r, B_s):
    """exp(S) stored but for B_s keys: 2n²d²/M + 2n²."""
    two_passes(m, Q, K, V, B_r, B_s, exp, l=m.tensor("l", Q.shape[0]))
