// v
KERNEL(v)(float* const dO, float* const O, float* const v, const int n, const int d, const int B_r, const int v_i_at, const int x_at, const int x_2_at) {
    START
    const int dO_pitch = padded(d); (void)dO_pitch;
    const int O_pitch = padded(d); (void)O_pitch;
    const int v_pitch = padded(n); (void)v_pitch;
    const int i_most = smaller(n, B_r);
    const int k_2_most = smaller(d, 1);
    TILE(v_i, v_i_at, i_most)
    TILE(x, x_at, i_most * k_2_most)
    TILE(x_2, x_2_at, i_most * k_2_most)
    int number = block;
    const int i = number * B_r;
    const int i_length = smaller(B_r, n - i);
    SECTION {
        ENTRIES(r, c, i_length, 1) v_i[r] = 0.f;
    } BARRIER
    for (int k_2 = 0; k_2 < d; k_2 += 1) {
        const int k_2_length = 1; (void)k_2_length;
        SECTION {
            read_tile(x, k_2_most, dO, part(dO_pitch, i, i_length, k_2, k_2_length), tid, threads);
            read_tile(x_2, k_2_most, O, part(O_pitch, i, i_length, k_2, k_2_length), tid, threads);
        } BARRIER
        SECTION {
            ROWS(r, i_length) {
                float total = 0.f;
                for (int k = 0, c = r % k_2_length; k < k_2_length; ++k, c = c + 1 == k_2_length ? 0 : c + 1)
                    total += (x[r * k_2_most + c] * x_2[r * k_2_most + c]);
                v_i[r] += total;
            }
        } BARRIER
    }
    SECTION {
        write_tile(v, part(v_pitch, 0, 1, i, i_length), v_i, 1, tid, threads);
    } BARRIER
}

// dQ, dK, dV 1
KERNEL(dQ_dK_dV_1)(float* const dQ, const int n, const int d) {
    START
    const int dQ_pitch = padded(d); (void)dQ_pitch;
    SECTION {
        fill(dQ, part(dQ_pitch, 0, n, 0, d), 0.f, block * threads + tid, blocks * threads);
    } BARRIER
}

// dQ, dK, dV 2
KERNEL(dQ_dK_dV_2)(float* const K, float* const V, float* const Q, float* const dO, float* const L, float* const v, float* const dQ, float* const dK, float* const dV, const int n, const int d, const int B_r, const int B_c, const int K_j_at, const int V_j_at, const int dK_j_at, const int dV_j_at, const int Q_i_at, const int dO_i_at, const int L_i_at, const int v_i_at, const int P_at, const int dS_at, const int dQ_i_at) {
    START
    const int K_pitch = padded(d); (void)K_pitch;
    const int V_pitch = padded(d); (void)V_pitch;
    const int Q_pitch = padded(d); (void)Q_pitch;
    const int dO_pitch = padded(d); (void)dO_pitch;
    const int L_pitch = padded(n); (void)L_pitch;
    const int v_pitch = padded(n); (void)v_pitch;
    const int dQ_pitch = padded(d); (void)dQ_pitch;
    const int dK_pitch = padded(d); (void)dK_pitch;
    const int dV_pitch = padded(d); (void)dV_pitch;
    const int j_most = smaller(n, B_c);
    const int i_most = smaller(n, B_r);
    TILE(K_j, K_j_at, j_most * d)
    TILE(V_j, V_j_at, j_most * d)
    TILE(dK_j, dK_j_at, j_most * d)
    TILE(dV_j, dV_j_at, j_most * d)
    TILE(Q_i, Q_i_at, i_most * d)
    TILE(dO_i, dO_i_at, i_most * d)
    TILE(L_i, L_i_at, i_most)
    TILE(v_i, v_i_at, i_most)
    TILE(P, P_at, i_most * j_most)
    TILE(dS, dS_at, i_most * j_most)
    TILE(dQ_i, dQ_i_at, i_most * d)
    for (int j = 0; j < n; j += B_c) {
        const int j_length = smaller(B_c, n - j); (void)j_length;
        SECTION {
            read_tile(K_j, d, K, part(K_pitch, j, j_length, 0, d), tid, threads);
            read_tile(V_j, d, V, part(V_pitch, j, j_length, 0, d), tid, threads);
            ENTRIES(r, c, j_length, d) dK_j[r * d + c] = 0.f;
            ENTRIES(r, c, j_length, d) dV_j[r * d + c] = 0.f;
        } BARRIER
        for (int i = 0; i < n; i += B_r) {
            const int i_length = smaller(B_r, n - i); (void)i_length;
            SECTION {
                read_tile(Q_i, d, Q, part(Q_pitch, i, i_length, 0, d), tid, threads);
                read_tile(dO_i, d, dO, part(dO_pitch, i, i_length, 0, d), tid, threads);
                read_tile(L_i, 1, L, part(L_pitch, 0, 1, i, i_length), tid, threads);
                read_tile(v_i, 1, v, part(v_pitch, 0, 1, i, i_length), tid, threads);
            } BARRIER
            SECTION {
                multiply(P, j_most, i_length, j_length, Q_i, d, 1, K_j, 1, d, d, false, tid, threads);
            } BARRIER
            SECTION {
                ENTRIES(r, c, i_length, j_length) P[r * j_most + c] = expf((P[r * j_most + c] - L_i[r]));
            } BARRIER
            SECTION {
                multiply(dV_j, d, j_length, d, P, 1, j_most, dO_i, d, 1, i_length, true, tid, threads);
                multiply(dS, j_most, i_length, j_length, dO_i, d, 1, V_j, 1, d, d, false, tid, threads);
            } BARRIER
            SECTION {
                ENTRIES(r, c, i_length, j_length) dS[r * j_most + c] = (P[r * j_most + c] * (dS[r * j_most + c] - v_i[r]));
            } BARRIER
            SECTION {
                read_tile(dQ_i, d, dQ, part(dQ_pitch, i, i_length, 0, d), tid, threads);
            } BARRIER
            SECTION {
                multiply(dQ_i, d, i_length, d, dS, j_most, 1, K_j, d, 1, j_length, true, tid, threads);
            } BARRIER
            SECTION {
                write_tile(dQ, part(dQ_pitch, i, i_length, 0, d), dQ_i, d, tid, threads);
                multiply(dK_j, d, j_length, d, dS, 1, j_most, Q_i, d, 1, i_length, true, tid, threads);
            } BARRIER
        }
        SECTION {
            write_tile(dK, part(dK_pitch, j, j_length, 0, d), dK_j, d, tid, threads);
            write_tile(dV, part(dV_pitch, j, j_length, 0, d), dV_j, d, tid, threads);
        } BARRIER
    }
}

