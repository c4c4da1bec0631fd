"""The forward pass with relu or sigmoid instead of the softmax: as with the softmax, without row sums and division."""

from pebblesim.language import relu, sigmoid
from pebblesim.language.registry import schedule
from pebblesim.schedules import partly_resident, partly_stored
from pebblesim.schedules.forward import CLOSED_ROWS, add_scores, add_values
from pebblesim.schedules.matmul import CLOSED_STREAMED, gemm_streamed, streamed
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.stored_pairs import stored_scores

ACTIVATIONS = {"relu": relu, "sigmoid": sigmoid}


def define(activation):
    """Register the schedules for an activation."""
    value = ACTIVATIONS[activation]

    def activate(A_ij, i, j):
        A_ij[:] = value(A_ij)

    def as_with_softmax(name, of, **options):
        return schedule(
            name=f"{name}-{activation}",
            problem=f"forward-{activation}",
            source=f"ours, for Li et al., Remark 5.1: as {of} without normalisation",
            **options,
        )

    @as_with_softmax(
        "small-cache-forward",
        "matmul-streamed, twice,",
        io=f"{streamed('n_q', 'd_k', 'n_k')} + {streamed('n_q', 'n_k', 'd_v')}",
        fit=[("a", "b")],
        closed=CLOSED_STREAMED,
    )
    def small_cache_forward(m, Q, K, V, *, a, b):
        """Small cache, streamed: the activation is applied before a tile of scores is written."""
        (n_q, _), (n_k, d_v) = Q.shape, V.shape
        A, O = m.tensor("A", n_q, n_k), m.tensor("O", n_q, d_v)
        with m.phase("A"):
            gemm_streamed(m, A, Q, K, a, b, B_T=True, finish=activate, every_tile=False)
        in_phase(gemm_streamed, m, O, A, V, a, b)

    @as_with_softmax(
        "row-stationary-forward",
        "row-stationary-forward",
        io="n_q*d_k + n_k*(d_k + d_v)*ceiling(n_q/B_r) + n_q*d_v",
        closed=CLOSED_ROWS,
    )
    def row_stationary_forward(m, Q, K, V, *, B_r):
        """Row-stationary: 4n²d²/M."""
        (n_q, _), (n_k, d_v) = Q.shape, V.shape
        O = m.tensor("O", n_q, d_v)
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={O: 0}):
            Q_i, O_i = m.read(Q[i, :]), m.zeros(i, d_v)
            for j in m.tiles(n_k, 1, keys_of=i):
                A = m.zeros(i, j)
                add_scores(m, A, Q_i, K, j)
                A[:] = value(A)
                add_values(m, O_i, A, V, j)
            m.write(O[i, :], O_i)

    @as_with_softmax(
        "scores-stored",
        "scores-stored",
        io=f"n_q*d_k + n_k*d_k*ceiling(n_q/B_r) + n_q*n_k + {streamed('n_q', 'n_k', 'd_v')}",
        fit=["B_r", ("a", "b")],
    )
    def scores_stored(m, Q, K, V, *, B_r, a, b):
        """Scores stored: n²d²/M + 2n²d/√M + n²."""
        (n_q, _), (n_k, d_v) = Q.shape, V.shape
        A, O = m.tensor("A", n_q, n_k), m.tensor("O", n_q, d_v)
        with m.phase("A"):
            stored_scores(m, A, Q, K, B_r, value, lambda i: (lambda A_ij: None, lambda: None))
        in_phase(gemm_streamed, m, O, A, V, a, b)

    @as_with_softmax("scores-partly-stored", "scores-partly-stored", io=partly_stored.IO, fit=["B_r", "B_s"])
    def scores_partly_stored(m, Q, K, V, *, B_r, B_s):
        """Scores stored but for B_s keys: 2n²d²/M + 2n²."""
        partly_stored.two_passes(m, Q, K, V, B_r, B_s, value)

    @as_with_softmax(
        "keys-partly-resident-forward", "keys-partly-resident-forward", io=partly_resident.BY_ROWS, fit=["B_r", "B_s"]
    )
    def keys_partly_resident(m, Q, K, V, *, B_r, B_s):
        """Keys partly resident: row-stationary, and B_s keys and values stay in cache."""
        partly_resident.by_rows(m, Q, K, V, B_r, B_s, value)

    @as_with_softmax("values-in-columns", "values-in-columns", io=partly_resident.BY_COLUMNS, fit=["B_v", "B_s"])
    def values_in_columns(m, Q, K, V, *, B_v, B_s):
        """Values in columns: K resident, with B_v columns of V and B_s queries; 5nd from M = 3nd/2."""
        partly_resident.by_columns(m, Q, K, V, B_v, B_s, value)


for each in ACTIVATIONS:
    define(each)
