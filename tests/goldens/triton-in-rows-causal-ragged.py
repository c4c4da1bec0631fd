"""scores-stored-in-rows: d_k = 512, d_v = 512, C = 16384, a = 128, b = 256, c = 64, e = 256, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["start", "at_once", "n_q", "n_k", "Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row"])
def L_s_P_s(start, at_once, Q_ptr, K_ptr, L_s_ptr, P_s_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    Q_head, Q_row = Q_head * 8, 512
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    K_head, K_row = K_head * 8, 512
    K_ptr += batch * K_batch * 8 + own * K_head
    L_s_ptr += head * tl.cdiv(n_k, 256) * (tl.cdiv(n_q, 16) * 16)
    P_s_ptr += head * tl.cdiv(at_once, 128) * tl.cdiv(n_k, 256) * 128 * 256
    rows = tl.minimum(at_once, n_q - start)
    tall, wide = tl.cdiv(rows, 128), tl.cdiv(n_k, 256)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = start + i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    if j * 256 - tl.minimum(start + (i + 1) * 128, n_q) >= 0:
        return
    A_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(8):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(Q_ptr + (start + i * 128) * Q_row + tl.arange(0, 128)[:, None] * Q_row + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        x_2 = tl.load(K_ptr + j * 256 * K_row + tl.arange(0, 256)[:, None] * K_row + at_k[None, :], mask=at_j[:, None] < n_k, other=0.0)
        A_ij = tl.dot(x, tl.trans(x_2), A_ij)
    if tl.minimum((j + 1) * 256, n_k) - (start + i * 128) <= 1:
        A_ij = tl.where(at_j[None, :] < n_k, A_ij, float("-inf"))
        m_i = tl.max(A_ij, axis=1) * 0.18033688011112042
        A_ij = tl.math.exp2(A_ij * 0.18033688011112042 - tl.where(m_i != float("-inf"), m_i, 0.0)[:, None])
        l_i = tl.sum(A_ij, axis=1)
        A_ij = A_ij * tl.where(l_i == 0.0, 0.0, 1.0 / l_i)[:, None]
        m_i = m_i + tl.log2(l_i)
        tl.store(L_s_ptr + tl.cast(j, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, m_i.to(L_s_ptr.dtype.element_ty), mask=at_i < n_q)
        tl.store(P_s_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], tl.where(at_i[:, None] < n_q, A_ij, 0.0).to(P_s_ptr.dtype.element_ty))
    else:
        A_ij = tl.where(at_j[None, :] <= tl.minimum(at_i, n_k - 1)[:, None], A_ij, float("-inf"))
        m_i = tl.max(A_ij, axis=1) * 0.18033688011112042
        A_ij = tl.math.exp2(A_ij * 0.18033688011112042 - tl.where(m_i != float("-inf"), m_i, 0.0)[:, None])
        l_i = tl.sum(A_ij, axis=1)
        A_ij = A_ij * tl.where(l_i == 0.0, 0.0, 1.0 / l_i)[:, None]
        m_i = m_i + tl.log2(l_i)
        tl.store(L_s_ptr + tl.cast(j, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, m_i.to(L_s_ptr.dtype.element_ty), mask=at_i < n_q)
        tl.store(P_s_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], tl.where(at_i[:, None] < n_q, A_ij, 0.0).to(P_s_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["start", "at_once", "n_q", "n_k"])
def L(start, at_once, L_s_ptr, L_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    L_s_ptr += head * tl.cdiv(n_k, 256) * (tl.cdiv(n_q, 16) * 16)
    L_ptr += head * n_q
    rows = tl.minimum(at_once, n_q - start)
    i = tl.program_id(0)
    i = tl.cdiv(rows, 128) - 1 - i  # the longest first
    at_i = start + i * 128 + tl.arange(0, 128)
    W_i = tl.full((128,), 0.0, tl.float32)
    top_i = tl.full((128,), -float("inf"), tl.float32)
    for j in range(0, tl.minimum((tl.minimum(start + (i + 1) * 128, n_q) + 255) // 256, tl.cdiv(n_k, 256)), 64):
        all_j = j + tl.arange(0, 64)
        w = tl.load(L_s_ptr + tl.cast(all_j, tl.int64)[:, None] * (tl.cdiv(n_q, 16) * 16) + at_i[None, :], mask=(all_j[:, None] < tl.minimum((tl.minimum(start + (i + 1) * 128, n_q) + 255) // 256, tl.cdiv(n_k, 256))) & (at_i[None, :] < n_q), other=float("-inf"))
        top = tl.maximum(top_i, tl.max(w, axis=0))
        top_i = tl.math.exp2(tl.where(top_i == top, 0.0, top_i - top))
        w = tl.math.exp2(tl.where(w == top[None, :], 0.0, w - top[None, :]))
        W_i = top_i * W_i + tl.sum(w, axis=0)
        top_i = top
    top_i = top_i + tl.log2(W_i)
    tl.store(L_ptr + at_i, top_i.to(L_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["start", "at_once", "n_q", "n_k", "V_batch", "V_head", "V_row", "O_batch", "O_head", "O_row"])
def O(start, at_once, L_ptr, L_s_ptr, P_s_ptr, V_ptr, O_ptr, n_q, n_k, V_batch, V_head, V_row, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    L_ptr += head * n_q
    L_s_ptr += head * tl.cdiv(n_k, 256) * (tl.cdiv(n_q, 16) * 16)
    P_s_ptr += head * tl.cdiv(at_once, 128) * tl.cdiv(n_k, 256) * 128 * 256
    V_head, V_row = V_head * 8, 512
    V_ptr += batch * V_batch * 8 + own * V_head
    O_head, O_row = O_head * 8, 512
    O_ptr += batch * O_batch * 8 + own * O_head
    rows = tl.minimum(at_once, n_q - start)
    tall, wide = tl.cdiv(rows, 128), 2
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, k = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    i = tl.cdiv(rows, 128) - 1 - i  # the longest first
    at_i = start + i * 128 + tl.arange(0, 128)
    at_k = k * 256 + tl.arange(0, 256)
    L_i = tl.load(L_ptr + at_i, mask=at_i < n_q, other=0.0)
    O_ik = tl.full((128, 256,), 0.0, tl.float32)
    for j in range(tl.minimum(tl.minimum((tl.minimum(start + (i + 1) * 128, n_q) + 255) // 256, tl.cdiv(n_k, 256)), n_k // 256)):
        at_j = j * 256 + tl.arange(0, 256)
        w = tl.load(L_s_ptr + tl.cast(j, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, mask=at_i < n_q, other=0.0)
        w = tl.math.exp2(tl.where(w == L_i, 0.0, w - L_i))
        for part in range(4):
            at_part = (j * 4 + part) * 64 + tl.arange(0, 64)
            P_ij = tl.load(P_s_ptr + tl.cast(i * tl.cdiv(n_k, 256) + (j * 4 + part) // 4, tl.int64) * 32768 + (j * 4 + part) % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
            P_ij = w[:, None] * P_ij.to(tl.float32)
            x = tl.load(V_ptr + (j * 4 + part) * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_k[None, :])
            O_ik = tl.dot(P_ij.to(tl.bfloat16), x, O_ik)
    for j_2 in tl.range(n_k // 256, tl.minimum((tl.minimum(start + (i + 1) * 128, n_q) + 255) // 256, tl.cdiv(n_k, 256)), num_stages=1):
        at_j_2 = j_2 * 256 + tl.arange(0, 256)
        w = tl.load(L_s_ptr + tl.cast(j_2, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, mask=at_i < n_q, other=0.0)
        w = tl.math.exp2(tl.where(w == L_i, 0.0, w - L_i))
        for part_2 in range(tl.minimum(tl.cdiv(n_k, 64) - j_2 * 4, 4)):
            at_part_2 = (j_2 * 4 + part_2) * 64 + tl.arange(0, 64)
            P_ij = tl.load(P_s_ptr + tl.cast(i * tl.cdiv(n_k, 256) + (j_2 * 4 + part_2) // 4, tl.int64) * 32768 + (j_2 * 4 + part_2) % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
            P_ij = w[:, None] * P_ij.to(tl.float32)
            x = tl.load(V_ptr + (j_2 * 4 + part_2) * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_k[None, :], mask=at_part_2[:, None] < n_k, other=0.0)
            O_ik = tl.dot(P_ij.to(tl.bfloat16), x, O_ik)
    tl.store(O_ptr + (start + i * 128) * O_row + tl.arange(0, 128)[:, None] * O_row + at_k[None, :], O_ik.to(O_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)


def run(Q_ptr, K_ptr, V_ptr, results):
    """O, L of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    O_ptr = results["O"]
    n_q = Q_ptr.shape[2]
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    at_once = min(16384, n_q)
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    P_s_ptr = torch.empty((heads, triton.cdiv(at_once, 128), triton.cdiv(n_k, 256), 128, 256), dtype=torch.bfloat16, device=device)
    L_s_ptr = torch.empty((heads, triton.cdiv(n_k, 256), triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    for start in range(0, n_q, at_once):
        rows = min(at_once, n_q - start)
        L_s_P_s[(triton.cdiv(rows, 128) * triton.cdiv(n_k, 256), own, batch)](start, at_once, Q_ptr, K_ptr, L_s_ptr, P_s_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, num_warps=8, num_stages=4)
        L[(triton.cdiv(rows, 128), own, batch)](start, at_once, L_s_ptr, L_ptr, n_q, n_k, num_warps=8, num_stages=4)
        O[(triton.cdiv(rows, 128) * 2, own, batch)](start, at_once, L_ptr, L_s_ptr, P_s_ptr, V_ptr, O_ptr, n_q, n_k, V_batch, V_head, V_row, O_batch, O_head, O_row, num_warps=8, num_stages=4)
    return {"O": O_ptr, "L": L_ptr}
