// f 1
KERNEL(f_1)(float* const A1, float* const X, float* const S, const int n, const int d, const int B, const int C_ij_at, const int A_ik_at, const int B_kj_at) {
    START
    const int A1_pitch = padded(d); (void)A1_pitch;
    const int X_pitch = padded(d); (void)X_pitch;
    const int S_pitch = padded(d); (void)S_pitch;
    const int i_most = smaller(n, B);
    const int j_most = smaller(d, B);
    const int k_2_most = smaller(d, B);
    TILE(C_ij, C_ij_at, i_most * j_most)
    TILE(A_ik, A_ik_at, i_most * k_2_most)
    TILE(B_kj, B_kj_at, k_2_most * j_most)
    int number = block;
    const int j = number % tiles_of(d, B) * B;
    const int j_length = smaller(B, d - j);
    number /= tiles_of(d, B);
    const int i = number * B;
    const int i_length = smaller(B, n - i);
    SECTION {
        ENTRIES(r, c, i_length, j_length) C_ij[r * j_most + c] = 0.f;
    } BARRIER
    for (int k_2 = 0; k_2 < d; k_2 += B) {
        const int k_2_length = smaller(B, d - k_2); (void)k_2_length;
        SECTION {
            read_tile(A_ik, k_2_most, A1, part(A1_pitch, i, i_length, k_2, k_2_length), tid, threads);
            read_tile(B_kj, j_most, X, part(X_pitch, k_2, k_2_length, j, j_length), tid, threads);
        } BARRIER
        SECTION {
            multiply(C_ij, j_most, i_length, j_length, A_ik, k_2_most, 1, B_kj, j_most, 1, k_2_length, true, tid, threads);
        } BARRIER
    }
    SECTION {
        write_tile(S, part(S_pitch, i, i_length, j, j_length), C_ij, j_most, tid, threads);
    } BARRIER
}

// f 2
KERNEL(f_2)(float* const S, float* const A2, float* const A, float* const f, const int n, const int d, const int B, const int l_at, const int A_ij_at, const int S_ik_at, const int A2_jk_at, const int A_ij_2_at, const int f_ij_at) {
    START
    const int S_pitch = padded(d); (void)S_pitch;
    const int A2_pitch = padded(d); (void)A2_pitch;
    const int A_pitch = padded(n); (void)A_pitch;
    const int f_pitch = padded(n); (void)f_pitch;
    const int i_most = smaller(n, B);
    const int j_most = smaller(n, B);
    const int k_2_most = smaller(d, B);
    const int j_2_most = smaller(n, B);
    TILE(l, l_at, i_most)
    TILE(A_ij, A_ij_at, i_most * j_most)
    TILE(S_ik, S_ik_at, i_most * k_2_most)
    TILE(A2_jk, A2_jk_at, j_most * k_2_most)
    TILE(A_ij_2, A_ij_2_at, i_most * j_2_most)
    TILE(f_ij, f_ij_at, i_most * j_2_most)
    int number = block;
    const int i = number * B;
    const int i_length = smaller(B, n - i);
    SECTION {
        ENTRIES(r, c, i_length, 1) l[r] = 0.f;
    } BARRIER
    for (int j = 0; j < n; j += B) {
        const int j_length = smaller(B, n - j); (void)j_length;
        SECTION {
            ENTRIES(r, c, i_length, j_length) A_ij[r * j_most + c] = 0.f;
        } BARRIER
        for (int k_2 = 0; k_2 < d; k_2 += B) {
            const int k_2_length = smaller(B, d - k_2); (void)k_2_length;
            SECTION {
                read_tile(S_ik, k_2_most, S, part(S_pitch, i, i_length, k_2, k_2_length), tid, threads);
                read_tile(A2_jk, k_2_most, A2, part(A2_pitch, j, j_length, k_2, k_2_length), tid, threads);
            } BARRIER
            SECTION {
                multiply(A_ij, j_most, i_length, j_length, S_ik, k_2_most, 1, A2_jk, 1, k_2_most, k_2_length, true, tid, threads);
            } BARRIER
        }
        SECTION {
            ENTRIES(r, c, i_length, j_length) A_ij[r * j_most + c] = expf(A_ij[r * j_most + c]);
        } BARRIER
        SECTION {
            write_tile(A, part(A_pitch, i, i_length, j, j_length), A_ij, j_most, tid, threads);
            ROWS(r, i_length) {
                float total = 0.f;
                for (int k = 0, c = r % j_length; k < j_length; ++k, c = c + 1 == j_length ? 0 : c + 1)
                    total += A_ij[r * j_most + c];
                l[r] += total;
            }
        } BARRIER
    }
    for (int j_2 = 0; j_2 < n; j_2 += B) {
        const int j_2_length = smaller(B, n - j_2); (void)j_2_length;
        SECTION {
            read_tile(A_ij_2, j_2_most, A, part(A_pitch, i, i_length, j_2, j_2_length), tid, threads);
        } BARRIER
        SECTION {
            ENTRIES(r, c, i_length, j_2_length) f_ij[r * j_2_most + c] = (A_ij_2[r * j_2_most + c] / l[r]);
        } BARRIER
        SECTION {
            write_tile(f, part(f_pitch, i, i_length, j_2, j_2_length), f_ij, j_2_most, tid, threads);
        } BARRIER
    }
}

// q 1
KERNEL(q_1)(float* const A3, float* const Y, float* const h, const int n, const int d, const int B, const int C_ij_at, const int A_ik_at, const int B_kj_at) {
    START
    const int A3_pitch = padded(d); (void)A3_pitch;
    const int Y_pitch = padded(d); (void)Y_pitch;
    const int h_pitch = padded(d); (void)h_pitch;
    const int i_most = smaller(n, B);
    const int j_most = smaller(d, B);
    const int k_2_most = smaller(d, B);
    TILE(C_ij, C_ij_at, i_most * j_most)
    TILE(A_ik, A_ik_at, i_most * k_2_most)
    TILE(B_kj, B_kj_at, k_2_most * j_most)
    int number = block;
    const int j = number % tiles_of(d, B) * B;
    const int j_length = smaller(B, d - j);
    number /= tiles_of(d, B);
    const int i = number * B;
    const int i_length = smaller(B, n - i);
    SECTION {
        ENTRIES(r, c, i_length, j_length) C_ij[r * j_most + c] = 0.f;
    } BARRIER
    for (int k_2 = 0; k_2 < d; k_2 += B) {
        const int k_2_length = smaller(B, d - k_2); (void)k_2_length;
        SECTION {
            read_tile(A_ik, k_2_most, A3, part(A3_pitch, i, i_length, k_2, k_2_length), tid, threads);
            read_tile(B_kj, j_most, Y, part(Y_pitch, k_2, k_2_length, j, j_length), tid, threads);
        } BARRIER
        SECTION {
            multiply(C_ij, j_most, i_length, j_length, A_ik, k_2_most, 1, B_kj, j_most, 1, k_2_length, true, tid, threads);
        } BARRIER
    }
    SECTION {
        write_tile(h, part(h_pitch, i, i_length, j, j_length), C_ij, j_most, tid, threads);
    } BARRIER
}

// q 2
KERNEL(q_2)(float* const dO, float* const h, float* const q, const int n, const int d, const int B, const int C_ij_at, const int A_ik_at, const int B_kj_at) {
    START
    const int dO_pitch = padded(d); (void)dO_pitch;
    const int h_pitch = padded(d); (void)h_pitch;
    const int q_pitch = padded(n); (void)q_pitch;
    const int i_most = smaller(n, B);
    const int j_most = smaller(n, B);
    const int k_2_most = smaller(d, B);
    TILE(C_ij, C_ij_at, i_most * j_most)
    TILE(A_ik, A_ik_at, i_most * k_2_most)
    TILE(B_kj, B_kj_at, j_most * k_2_most)
    int number = block;
    const int j = number % tiles_of(n, B) * B;
    const int j_length = smaller(B, n - j);
    number /= tiles_of(n, B);
    const int i = number * B;
    const int i_length = smaller(B, n - i);
    SECTION {
        ENTRIES(r, c, i_length, j_length) C_ij[r * j_most + c] = 0.f;
    } BARRIER
    for (int k_2 = 0; k_2 < d; k_2 += B) {
        const int k_2_length = smaller(B, d - k_2); (void)k_2_length;
        SECTION {
            read_tile(A_ik, k_2_most, dO, part(dO_pitch, i, i_length, k_2, k_2_length), tid, threads);
            read_tile(B_kj, k_2_most, h, part(h_pitch, j, j_length, k_2, k_2_length), tid, threads);
        } BARRIER
        SECTION {
            multiply(C_ij, j_most, i_length, j_length, A_ik, k_2_most, 1, B_kj, 1, k_2_most, k_2_length, true, tid, threads);
        } BARRIER
    }
    SECTION {
        write_tile(q, part(q_pitch, i, i_length, j, j_length), C_ij, j_most, tid, threads);
    } BARRIER
}

// p
KERNEL(p)(float* const f, float* const q, float* const p, const int n, const int B, const int v_at, const int f_ij_at, const int q_ij_at, const int f_ij_2_at, const int q_ij_2_at, const int p_ij_at) {
    START
    const int f_pitch = padded(n); (void)f_pitch;
    const int q_pitch = padded(n); (void)q_pitch;
    const int p_pitch = padded(n); (void)p_pitch;
    const int i_most = smaller(n, B);
    const int j_most = smaller(n, B);
    const int j_2_most = smaller(n, B);
    TILE(v, v_at, i_most)
    TILE(f_ij, f_ij_at, i_most * j_most)
    TILE(q_ij, q_ij_at, i_most * j_most)
    TILE(f_ij_2, f_ij_2_at, i_most * j_2_most)
    TILE(q_ij_2, q_ij_2_at, i_most * j_2_most)
    TILE(p_ij, p_ij_at, i_most * j_2_most)
    int number = block;
    const int i = number * B;
    const int i_length = smaller(B, n - i);
    SECTION {
        ENTRIES(r, c, i_length, 1) v[r] = 0.f;
    } BARRIER
    for (int j = 0; j < n; j += B) {
        const int j_length = smaller(B, n - j); (void)j_length;
        SECTION {
            read_tile(f_ij, j_most, f, part(f_pitch, i, i_length, j, j_length), tid, threads);
            read_tile(q_ij, j_most, q, part(q_pitch, i, i_length, j, j_length), tid, threads);
        } BARRIER
        SECTION {
            ROWS(r, i_length) {
                float total = 0.f;
                for (int k = 0, c = r % j_length; k < j_length; ++k, c = c + 1 == j_length ? 0 : c + 1)
                    total += (f_ij[r * j_most + c] * q_ij[r * j_most + c]);
                v[r] += total;
            }
        } BARRIER
    }
    for (int j_2 = 0; j_2 < n; j_2 += B) {
        const int j_2_length = smaller(B, n - j_2); (void)j_2_length;
        SECTION {
            read_tile(f_ij_2, j_2_most, f, part(f_pitch, i, i_length, j_2, j_2_length), tid, threads);
            read_tile(q_ij_2, j_2_most, q, part(q_pitch, i, i_length, j_2, j_2_length), tid, threads);
        } BARRIER
        SECTION {
            ENTRIES(r, c, i_length, j_2_length) p_ij[r * j_2_most + c] = ((f_ij_2[r * j_2_most + c] * q_ij_2[r * j_2_most + c]) - (v[r] * f_ij_2[r * j_2_most + c]));
        } BARRIER
        SECTION {
            write_tile(p, part(p_pitch, i, i_length, j_2, j_2_length), p_ij, j_2_most, tid, threads);
        } BARRIER
    }
}

// g 1
KERNEL(g_1)(float* const A1, float* const p, float* const T, const int n, const int d, const int B, const int C_ij_at, const int A_ik_at, const int B_kj_at) {
    START
    const int A1_pitch = padded(d); (void)A1_pitch;
    const int p_pitch = padded(n); (void)p_pitch;
    const int T_pitch = padded(n); (void)T_pitch;
    const int i_most = smaller(d, B);
    const int j_most = smaller(n, B);
    const int k_2_most = smaller(n, B);
    TILE(C_ij, C_ij_at, i_most * j_most)
    TILE(A_ik, A_ik_at, k_2_most * i_most)
    TILE(B_kj, B_kj_at, k_2_most * j_most)
    int number = block;
    const int j = number % tiles_of(n, B) * B;
    const int j_length = smaller(B, n - j);
    number /= tiles_of(n, B);
    const int i = number * B;
    const int i_length = smaller(B, d - i);
    SECTION {
        ENTRIES(r, c, i_length, j_length) C_ij[r * j_most + c] = 0.f;
    } BARRIER
    for (int k_2 = 0; k_2 < n; k_2 += B) {
        const int k_2_length = smaller(B, n - k_2); (void)k_2_length;
        SECTION {
            read_tile(A_ik, i_most, A1, part(A1_pitch, k_2, k_2_length, i, i_length), tid, threads);
            read_tile(B_kj, j_most, p, part(p_pitch, k_2, k_2_length, j, j_length), tid, threads);
        } BARRIER
        SECTION {
            multiply(C_ij, j_most, i_length, j_length, A_ik, 1, i_most, B_kj, j_most, 1, k_2_length, true, tid, threads);
        } BARRIER
    }
    SECTION {
        write_tile(T, part(T_pitch, i, i_length, j, j_length), C_ij, j_most, tid, threads);
    } BARRIER
}

// g 2
KERNEL(g_2)(float* const T, float* const A2, float* const g, const int n, const int d, const int B, const int C_ij_at, const int A_ik_at, const int B_kj_at) {
    START
    const int T_pitch = padded(n); (void)T_pitch;
    const int A2_pitch = padded(d); (void)A2_pitch;
    const int g_pitch = padded(d); (void)g_pitch;
    const int i_most = smaller(d, B);
    const int j_most = smaller(d, B);
    const int k_2_most = smaller(n, B);
    TILE(C_ij, C_ij_at, i_most * j_most)
    TILE(A_ik, A_ik_at, i_most * k_2_most)
    TILE(B_kj, B_kj_at, k_2_most * j_most)
    int number = block;
    const int j = number % tiles_of(d, B) * B;
    const int j_length = smaller(B, d - j);
    number /= tiles_of(d, B);
    const int i = number * B;
    const int i_length = smaller(B, d - i);
    SECTION {
        ENTRIES(r, c, i_length, j_length) C_ij[r * j_most + c] = 0.f;
    } BARRIER
    for (int k_2 = 0; k_2 < n; k_2 += B) {
        const int k_2_length = smaller(B, n - k_2); (void)k_2_length;
        SECTION {
            read_tile(A_ik, k_2_most, T, part(T_pitch, i, i_length, k_2, k_2_length), tid, threads);
            read_tile(B_kj, j_most, A2, part(A2_pitch, k_2, k_2_length, j, j_length), tid, threads);
        } BARRIER
        SECTION {
            multiply(C_ij, j_most, i_length, j_length, A_ik, k_2_most, 1, B_kj, j_most, 1, k_2_length, true, tid, threads);
        } BARRIER
    }
    SECTION {
        write_tile(g, part(g_pitch, i, i_length, j, j_length), C_ij, j_most, tid, threads);
    } BARRIER
}

