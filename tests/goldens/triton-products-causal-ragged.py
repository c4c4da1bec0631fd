"""small-cache-forward-blocked: d_k = 96, d_v = 96, a = 128, b = 256, c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["n_q", "n_k"])
def L_1(Q_ptr, K_ptr, L_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    Q_ptr += head * n_q * 96
    K_ptr += head * n_k * 96
    L_ptr += head * n_q
    i = tl.program_id(0)
    i = tl.cdiv(n_q, 128) - 1 - i  # the longest first
    at_i = i * 128 + tl.arange(0, 128)
    if 0 - tl.minimum((i + 1) * 128, n_q) >= 0:
        return
    l_i = tl.full((128,), 0.0, tl.float32)
    m_i = tl.full((128,), -float("inf"), tl.float32)
    for j in range(tl.minimum(tl.maximum(i * 128 + 1, 0) // 256, n_k // 256)):
        at_j = j * 256 + tl.arange(0, 256)
        C_ij = tl.full((128, 256,), 0.0, tl.float32)
        for k in range(2):
            at_k = k * 64 + tl.arange(0, 64)
            A_ik = tl.load(Q_ptr + i * 128 * 96 + tl.arange(0, 128)[:, None] * 96 + at_k[None, :], mask=(at_i[:, None] < n_q) & (at_k[None, :] < 96), other=0.0)
            B_kj = tl.load(K_ptr + j * 256 * 96 + tl.arange(0, 256)[:, None] * 96 + at_k[None, :], mask=at_k[None, :] < 96, other=0.0)
            C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
        m_new = tl.max(C_ij, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(tl.where(m_i == m_new, 0.0, m_i - m_new))
        C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - m_new[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(C_ij, axis=1)
        m_i = m_new
    for j_2 in range(tl.minimum(tl.maximum(i * 128 + 1, 0) // 256, n_k // 256), tl.minimum((tl.minimum((i + 1) * 128, n_q) + 255) // 256, tl.cdiv(n_k, 256))):
        at_j_2 = j_2 * 256 + tl.arange(0, 256)
        C_ij = tl.full((128, 256,), 0.0, tl.float32)
        for k_2 in range(2):
            at_k_2 = k_2 * 64 + tl.arange(0, 64)
            A_ik = tl.load(Q_ptr + i * 128 * 96 + tl.arange(0, 128)[:, None] * 96 + at_k_2[None, :], mask=(at_i[:, None] < n_q) & (at_k_2[None, :] < 96), other=0.0)
            B_kj = tl.load(K_ptr + j_2 * 256 * 96 + tl.arange(0, 256)[:, None] * 96 + at_k_2[None, :], mask=(at_j_2[:, None] < n_k) & (at_k_2[None, :] < 96), other=0.0)
            C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
        C_ij = tl.where(at_j_2[None, :] <= tl.minimum(at_i, n_k - 1)[:, None], C_ij, float("-inf"))
        m_new = tl.max(C_ij, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(tl.where(m_i == m_new, 0.0, m_i - m_new))
        C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - tl.where(m_new != float("-inf"), m_new, 0.0)[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(C_ij, axis=1)
        m_i = m_new
    m_i = m_i + tl.log2(l_i)
    tl.store(L_ptr + at_i, m_i.to(L_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k"])
def L_2(L_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    L_ptr += head * n_q
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    if not 0 - tl.minimum((i + 1) * 128, n_q) >= 0:
        return
    tl.store(L_ptr + at_i, tl.full((128,), -float("inf"), tl.float32).to(L_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k"])
def f(Q_ptr, K_ptr, L_ptr, f_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    Q_ptr += head * n_q * 96
    K_ptr += head * n_k * 96
    L_ptr += head * n_q
    f_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    tall, wide = tl.cdiv(n_q, 128), tl.cdiv(n_k, 256)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    if j * 256 - tl.minimum((i + 1) * 128, n_q) >= 0:
        return
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(Q_ptr + i * 128 * 96 + tl.arange(0, 128)[:, None] * 96 + at_k[None, :], mask=(at_i[:, None] < n_q) & (at_k[None, :] < 96), other=0.0)
        B_kj = tl.load(K_ptr + j * 256 * 96 + tl.arange(0, 256)[:, None] * 96 + at_k[None, :], mask=(at_j[:, None] < n_k) & (at_k[None, :] < 96), other=0.0)
        C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
    x = tl.load(L_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    C_ij = tl.where(at_j[None, :] <= tl.minimum(at_i, n_k - 1)[:, None], C_ij, float("-inf"))
    C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - tl.where(x != float("-inf"), x, 0.0)[:, None])
    if tl.minimum((j + 1) * 256, n_k) - i * 128 <= 1:
        tl.store(f_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], C_ij.to(f_ptr.dtype.element_ty))
    else:
        tl.store(f_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], C_ij.to(f_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["n_q", "n_k"])
def O(f_ptr, V_ptr, O_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    f_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    V_ptr += head * n_k * 96
    O_ptr += head * n_q * 96
    tall, wide = tl.cdiv(n_q, 128), 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    i = tl.cdiv(n_q, 128) - 1 - i  # the longest first
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(tl.minimum(tl.minimum(tl.minimum((tl.minimum((i + 1) * 128, n_q) + 255) // 256, tl.cdiv(n_k, 256)) * 4, tl.cdiv(n_k, 64)), n_k // 64)):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(f_ptr + tl.cast(i * tl.cdiv(n_k, 256) + k // 4, tl.int64) * 32768 + k % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
        B_kj = tl.load(V_ptr + k * 64 * 96 + tl.arange(0, 64)[:, None] * 96 + at_j[None, :], mask=at_j[None, :] < 96, other=0.0)
        C_ij = tl.dot(A_ik, B_kj, C_ij)
    for k_2 in tl.range(n_k // 64, tl.minimum(tl.minimum((tl.minimum((i + 1) * 128, n_q) + 255) // 256, tl.cdiv(n_k, 256)) * 4, tl.cdiv(n_k, 64)), num_stages=1):
        at_k_2 = k_2 * 64 + tl.arange(0, 64)
        A_ik = tl.load(f_ptr + tl.cast(i * tl.cdiv(n_k, 256) + k_2 // 4, tl.int64) * 32768 + k_2 % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
        B_kj = tl.load(V_ptr + k_2 * 64 * 96 + tl.arange(0, 64)[:, None] * 96 + at_j[None, :], mask=(at_k_2[:, None] < n_k) & (at_j[None, :] < 96), other=0.0)
        C_ij = tl.dot(A_ik, B_kj, C_ij)
    tl.store(O_ptr + i * 128 * 96 + tl.arange(0, 128)[:, None] * 96 + at_j[None, :], C_ij.to(O_ptr.dtype.element_ty), mask=(at_i[:, None] < n_q) & (at_j[None, :] < 96))


def run(Q_ptr, K_ptr, V_ptr):
    """O, L of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    heads, device = Q_ptr.shape[0], Q_ptr.device
    n_q = Q_ptr.shape[1]
    n_k = K_ptr.shape[1]
    if max(each.shape[1] * each.shape[2] for each in (Q_ptr, K_ptr, V_ptr,)) >= 2**31:
        raise ValueError("these kernels need heads of less than 2**31 words")
    O_ptr = torch.empty((heads, n_q, 96), dtype=torch.bfloat16, device=device)
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    f_ptr = torch.empty((heads, triton.cdiv(n_q, 128), triton.cdiv(n_k, 256), 128, 256), dtype=torch.bfloat16, device=device)
    L_1[(triton.cdiv(n_q, 128), heads)](Q_ptr, K_ptr, L_ptr, n_q, n_k, num_warps=8, num_stages=4)
    L_2[(triton.cdiv(n_q, 128), heads)](L_ptr, n_q, n_k, num_warps=8, num_stages=4)
    f[(triton.cdiv(n_q, 128) * triton.cdiv(n_k, 256), heads)](Q_ptr, K_ptr, L_ptr, f_ptr, n_q, n_k, num_warps=8, num_stages=4)
    O[(triton.cdiv(n_q, 128), heads)](f_ptr, V_ptr, O_ptr, n_q, n_k, num_warps=8, num_stages=4)
    return {"O": O_ptr, "L": L_ptr}
