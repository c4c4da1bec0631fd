// flash2-forward
KERNEL(flash2_forward)(float* const Q, float* const K, float* const V, float* const O, float* const L) {
    START
    constexpr int n = 100;
    constexpr int d = 24;
    constexpr int B_r = 16;
    constexpr int B_c = 32;
    constexpr int Q_i_at = 0;
    constexpr int O_i_at = 384;
    constexpr int l_i_at = 768;
    constexpr int m_i_at = 784;
    constexpr int K_j_at = 800;
    constexpr int P_at = 1568;
    constexpr int m_new_at = 800;
    constexpr int V_j_at = 800;
    const int Q_pitch = padded(d); (void)Q_pitch;
    const int K_pitch = padded(d); (void)K_pitch;
    const int V_pitch = padded(d); (void)V_pitch;
    const int O_pitch = padded(d); (void)O_pitch;
    const int L_pitch = padded(n); (void)L_pitch;
    const int i_most = smaller(n, B_r);
    const int j_most = smaller(n, B_c);
    TILE(Q_i, Q_i_at, i_most * d)
    TILE(O_i, O_i_at, i_most * d)
    TILE(l_i, l_i_at, i_most)
    TILE(m_i, m_i_at, i_most)
    TILE(K_j, K_j_at, j_most * d)
    TILE(P, P_at, i_most * j_most)
    TILE(m_new, m_new_at, i_most)
    TILE(V_j, V_j_at, j_most * d)
    int number = block;
    const int i = number * B_r;
    const int i_length = smaller(B_r, n - i);
    SECTION {
        read_tile(Q_i, d, Q, part(Q_pitch, i, i_length, 0, d), tid, threads);
        ENTRIES(r, c, i_length, d) O_i[r * d + c] = 0.f;
        ENTRIES(r, c, i_length, 1) l_i[r] = 0.f;
        ENTRIES(r, c, i_length, 1) m_i[r] = MINUS_INFINITY;
    } BARRIER
    for (int j = 0; j < n; j += B_c) {
        const int j_length = smaller(B_c, n - j); (void)j_length;
        SECTION {
            read_tile(K_j, d, K, part(K_pitch, j, j_length, 0, d), tid, threads);
        } BARRIER
        SECTION {
            multiply(P, j_most, i_length, j_length, Q_i, d, 1, K_j, 1, d, d, false, tid, threads);
        } BARRIER
        SECTION {
            ROWS(r, i_length) {
                float total = MINUS_INFINITY;
                for (int k = 0, c = r % j_length; k < j_length; ++k, c = c + 1 == j_length ? 0 : c + 1)
                    total = fmaxf(total, P[r * j_most + c]);
                m_new[r] = total;
            }
        } BARRIER
        SECTION {
            ENTRIES(r, c, i_length, 1) m_new[r] = fmaxf(m_i[r], m_new[r]);
            ENTRIES(r, c, i_length, 1) m_i[r] = expf((m_i[r] - m_new[r]));
        } BARRIER
        SECTION {
            ENTRIES(r, c, i_length, j_length) P[r * j_most + c] = expf((P[r * j_most + c] - m_new[r]));
            ENTRIES(r, c, i_length, 1) l_i[r] = (m_i[r] * l_i[r]);
        } BARRIER
        SECTION {
            ROWS(r, i_length) {
                float total = 0.f;
                for (int k = 0, c = r % j_length; k < j_length; ++k, c = c + 1 == j_length ? 0 : c + 1)
                    total += P[r * j_most + c];
                l_i[r] += total;
            }
            ENTRIES(r, c, i_length, d) O_i[r * d + c] = (m_i[r] * O_i[r * d + c]);
        } BARRIER
        SECTION {
            ENTRIES(r, c, i_length, 1) m_i[r] = m_new[r];
        } BARRIER
        SECTION {
            read_tile(V_j, d, V, part(V_pitch, j, j_length, 0, d), tid, threads);
        } BARRIER
        SECTION {
            multiply(O_i, d, i_length, d, P, j_most, 1, V_j, d, 1, j_length, true, tid, threads);
        } BARRIER
    }
    SECTION {
        ENTRIES(r, c, i_length, d) O_i[r * d + c] = (O_i[r * d + c] / l_i[r]);
    } BARRIER
    SECTION {
        write_tile(O, part(O_pitch, i, i_length, 0, d), O_i, d, tid, threads);
        ENTRIES(r, c, i_length, 1) m_i[r] = (m_i[r] + logf(l_i[r]));
    } BARRIER
    SECTION {
        write_tile(L, part(L_pitch, 0, 1, i, i_length), m_i, 1, tid, threads);
    } BARRIER
}

