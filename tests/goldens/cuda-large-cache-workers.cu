// S, h
KERNEL(S_h)(float* const A1, float* const A3, float* const X, float* const S, float* const Y, float* const h, const int n, const int d, const int B_r, const int B_c, const int A1_i_at, const int A3_i_at, const int X_j_at, const int S_ij_at, const int Y_j_at, const int h_ij_at) {
    START
    const int A1_pitch = padded(d); (void)A1_pitch;
    const int A3_pitch = padded(d); (void)A3_pitch;
    const int X_pitch = padded(d); (void)X_pitch;
    const int S_pitch = padded(d); (void)S_pitch;
    const int Y_pitch = padded(d); (void)Y_pitch;
    const int h_pitch = padded(d); (void)h_pitch;
    const int i_most = smaller(n, B_r);
    const int j_most = smaller(d, B_c);
    TILE(A1_i, A1_i_at, i_most * d)
    TILE(A3_i, A3_i_at, i_most * d)
    TILE(X_j, X_j_at, d * j_most)
    TILE(S_ij, S_ij_at, i_most * j_most)
    TILE(Y_j, Y_j_at, d * j_most)
    TILE(h_ij, h_ij_at, i_most * j_most)
    int number = block;
    const int i = number * B_r;
    const int i_length = smaller(B_r, n - i);
    SECTION {
        read_tile(A1_i, d, A1, part(A1_pitch, i, i_length, 0, d), tid, threads);
        read_tile(A3_i, d, A3, part(A3_pitch, i, i_length, 0, d), tid, threads);
    } BARRIER
    for (int j = 0; j < d; j += B_c) {
        const int j_length = smaller(B_c, d - j); (void)j_length;
        SECTION {
            read_tile(X_j, j_most, X, part(X_pitch, 0, d, j, j_length), tid, threads);
        } BARRIER
        SECTION {
            multiply(S_ij, j_most, i_length, j_length, A1_i, d, 1, X_j, j_most, 1, d, false, tid, threads);
        } BARRIER
        SECTION {
            write_tile(S, part(S_pitch, i, i_length, j, j_length), S_ij, j_most, tid, threads);
        } BARRIER
        SECTION {
            read_tile(Y_j, j_most, Y, part(Y_pitch, 0, d, j, j_length), tid, threads);
        } BARRIER
        SECTION {
            multiply(h_ij, j_most, i_length, j_length, A3_i, d, 1, Y_j, j_most, 1, d, false, tid, threads);
        } BARRIER
        SECTION {
            write_tile(h, part(h_pitch, i, i_length, j, j_length), h_ij, j_most, tid, threads);
        } BARRIER
    }
}

// g
KERNEL(g)(float* const S, float* const O, float* const dO, float* const A1, float* const l, float* const h, float* const A2, float* const g_copies, const int n, const int d, const int B_r, const int B_c, const int workers, const int g_2_at, const int S_i_at, const int O_i_at, const int dO_i_at, const int A1_i_at, const int l_i_at, const int v_i_at, const int h_j_at, const int q_at, const int A2_j_at, const int A_at, const int f_at, const int p_at, const int T_at) {
    START
    const int S_pitch = padded(d); (void)S_pitch;
    const int O_pitch = padded(d); (void)O_pitch;
    const int dO_pitch = padded(d); (void)dO_pitch;
    const int A1_pitch = padded(d); (void)A1_pitch;
    const int l_pitch = padded(n); (void)l_pitch;
    const int h_pitch = padded(d); (void)h_pitch;
    const int A2_pitch = padded(d); (void)A2_pitch;
    const int g_pitch = padded(d); (void)g_pitch;
    const int i_most = smaller(n, B_r);
    const int j_most = smaller(n, B_c);
    TILE(g_2, g_2_at, d * d)
    TILE(S_i, S_i_at, i_most * d)
    TILE(O_i, O_i_at, i_most * d)
    TILE(dO_i, dO_i_at, i_most * d)
    TILE(A1_i, A1_i_at, i_most * d)
    TILE(l_i, l_i_at, i_most)
    TILE(v_i, v_i_at, i_most)
    TILE(h_j, h_j_at, j_most * d)
    TILE(q, q_at, i_most * j_most)
    TILE(A2_j, A2_j_at, j_most * d)
    TILE(A, A_at, i_most * j_most)
    TILE(f, f_at, i_most * j_most)
    TILE(p, p_at, i_most * j_most)
    TILE(T, T_at, d * j_most)
    const int share = tiles_of(tiles_of(n, B_r), workers), total = tiles_of(tiles_of(n, B_r), share); (void)total;
    float* const g = g_copies + block * ((long long)d * g_pitch);
    SECTION {
        ENTRIES(r, c, d, d) g_2[r * d + c] = 0.f;
    } BARRIER
    const int i_end = smaller(n, (block + 1) * share * B_r);
    for (int i = block * share * B_r; i < i_end; i += B_r) {
        const int i_length = smaller(B_r, n - i); (void)i_length;
        SECTION {
            read_tile(S_i, d, S, part(S_pitch, i, i_length, 0, d), tid, threads);
            read_tile(O_i, d, O, part(O_pitch, i, i_length, 0, d), tid, threads);
            read_tile(dO_i, d, dO, part(dO_pitch, i, i_length, 0, d), tid, threads);
            read_tile(A1_i, d, A1, part(A1_pitch, i, i_length, 0, d), tid, threads);
            read_tile(l_i, 1, l, part(l_pitch, 0, 1, i, i_length), tid, threads);
        } BARRIER
        SECTION {
            ROWS(r, i_length) {
                float total = 0.f;
                for (int k = 0, c = r % d; k < d; ++k, c = c + 1 == d ? 0 : c + 1)
                    total += (dO_i[r * d + c] * O_i[r * d + c]);
                v_i[r] = total;
            }
        } BARRIER
        for (int j = 0; j < n; j += B_c) {
            const int j_length = smaller(B_c, n - j); (void)j_length;
            SECTION {
                read_tile(h_j, d, h, part(h_pitch, j, j_length, 0, d), tid, threads);
            } BARRIER
            SECTION {
                multiply(q, j_most, i_length, j_length, dO_i, d, 1, h_j, 1, d, d, false, tid, threads);
                read_tile(A2_j, d, A2, part(A2_pitch, j, j_length, 0, d), tid, threads);
            } BARRIER
            SECTION {
                multiply(A, j_most, i_length, j_length, S_i, d, 1, A2_j, 1, d, d, false, tid, threads);
            } BARRIER
            SECTION {
                ENTRIES(r, c, i_length, j_length) A[r * j_most + c] = expf(A[r * j_most + c]);
                ENTRIES(r, c, i_length, j_length) f[r * j_most + c] = (A[r * j_most + c] / l_i[r]);
            } BARRIER
            SECTION {
                ENTRIES(r, c, i_length, j_length) p[r * j_most + c] = ((f[r * j_most + c] * q[r * j_most + c]) - (v_i[r] * f[r * j_most + c]));
            } BARRIER
            SECTION {
                multiply(T, j_most, d, j_length, A1_i, 1, d, p, j_most, 1, i_length, false, tid, threads);
            } BARRIER
            SECTION {
                multiply(g_2, d, d, d, T, j_most, 1, A2_j, d, 1, j_length, true, tid, threads);
            } BARRIER
        }
    }
    SECTION {
        write_tile(g, part(g_pitch, 0, d, 0, d), g_2, d, tid, threads);
    } BARRIER
}

// g, sum of g
KERNEL(g_sum_of_g)(float* const g, float* const g_copies, const int n, const int d, const int B_r, const int workers) {
    START
    const int g_pitch = padded(d); (void)g_pitch;
    const int share = tiles_of(tiles_of(n, B_r), workers), total = tiles_of(tiles_of(n, B_r), share); (void)total;
    SECTION { add_copies(g, part(g_pitch, 0, d, 0, d), g_copies, ((long long)d * g_pitch), total, block * threads + tid, blocks * threads); } BARRIER
}

