"""flash-decoding: d_k = 128, d_v = 128, B_r = 16, S = 256, B_c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["n_q", "n_k", "Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row", "V_batch", "V_head", "V_row"])
def splits(Q_ptr, K_ptr, V_ptr, O_s_ptr, L_s_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_v = tl.arange(0, 128)
    at_d_k = tl.arange(0, 128)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * 8 * Q_head
    K_head, K_row = K_head * 8, 128
    K_ptr += batch * K_batch * 8 + own * K_head
    V_head, V_row = V_head * 8, 128
    V_ptr += batch * V_batch * 8 + own * V_head
    O_s_ptr += head * tl.cdiv(n_k, 256) * n_q * 128
    L_s_ptr += head * tl.cdiv(n_k, 256) * (tl.cdiv(n_q, 16) * 16)
    tl.extra.cuda.gdc_wait()  # for the launch before, of which blocks may still run
    tl.extra.cuda.gdc_launch_dependents()  # earlier, they would crowd where blocks end first
    tall, wide = tl.cdiv(n_q, 16), tl.cdiv(n_k, 256)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, s = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 16 + tl.arange(0, 16)
    at_s = s * 256 + tl.arange(0, 256)
    Q_i = tl.load(Q_ptr + i * 16 // 8 * Q_row + (tl.arange(0, 16) // 8)[:, None] * Q_row + (tl.arange(0, 16) % 8)[:, None] * Q_head + at_d_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
    O_i = tl.full((16, 128,), 0.0, tl.float32)
    l_i = tl.full((16,), 0.0, tl.float32)
    m_i = tl.full((16,), -float("inf"), tl.float32)
    for j in range(tl.minimum(n_k // 64 - s * 4, 4)):
        at_j = (s * 4 + j) * 64 + tl.arange(0, 64)
        K_j = tl.load(K_ptr + (s * 4 + j) * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :])
        P = tl.dot(Q_i, tl.trans(K_j))
        m_new = tl.max(P, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(m_i - m_new)
        P = tl.math.exp2(P * 0.18033688011112042 - m_new[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(P, axis=1)
        O_i = m_i[:, None] * O_i
        m_i = m_new
        V_j = tl.load(V_ptr + (s * 4 + j) * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :])
        O_i = tl.dot(P.to(tl.bfloat16), V_j, O_i)
    for j_2 in tl.range(n_k // 64 - s * 4, tl.minimum(tl.cdiv(n_k, 64) - s * 4, 4), num_stages=1):
        at_j_2 = (s * 4 + j_2) * 64 + tl.arange(0, 64)
        K_j = tl.load(K_ptr + (s * 4 + j_2) * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :], mask=at_j_2[:, None] < n_k, other=0.0)
        P = tl.dot(Q_i, tl.trans(K_j))
        P = tl.where(at_j_2[None, :] < n_k, P, float("-inf"))
        m_new = tl.max(P, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(m_i - m_new)
        P = tl.math.exp2(P * 0.18033688011112042 - m_new[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(P, axis=1)
        O_i = m_i[:, None] * O_i
        m_i = m_new
        V_j = tl.load(V_ptr + (s * 4 + j_2) * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :], mask=at_j_2[:, None] < n_k, other=0.0)
        O_i = tl.dot(P.to(tl.bfloat16), V_j, O_i)
    O_i = O_i * (1.0 / l_i)[:, None]
    tl.store(O_s_ptr + tl.cast(s, tl.int64) * n_q * 128 + i * 16 * 128 + tl.arange(0, 16)[:, None] * 128 + at_d_v[None, :], O_i.to(O_s_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)
    m_i = m_i + tl.log2(l_i)
    tl.store(L_s_ptr + tl.cast(s, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, m_i.to(L_s_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k", "O_batch", "O_head", "O_row"])
def merge(L_s_ptr, O_s_ptr, O_ptr, L_ptr, n_q, n_k, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_v = tl.arange(0, 128)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    L_s_ptr += head * tl.cdiv(n_k, 256) * (tl.cdiv(n_q, 16) * 16)
    O_s_ptr += head * tl.cdiv(n_k, 256) * n_q * 128
    O_head, O_row = O_head * 8, O_row * 8
    O_ptr += batch * O_batch * 8 + own * 8 * O_head
    L_ptr += head * n_q
    tl.extra.cuda.gdc_wait()  # for the launch before, of which blocks may still run
    tl.extra.cuda.gdc_launch_dependents()  # earlier, they would crowd where blocks end first
    i = tl.program_id(0)
    at_i = i + tl.arange(0, 1)
    O_i = tl.full((1, 128,), 0.0, tl.float32)
    W_i = tl.full((1,), 0.0, tl.float32)
    top_i = tl.full((1,), -float("inf"), tl.float32)
    for s in range(0, tl.cdiv(n_k, 256), 64):
        all_s = s + tl.arange(0, 64)
        w = tl.load(L_s_ptr + tl.cast(all_s, tl.int64)[:, None] * (tl.cdiv(n_q, 16) * 16) + at_i[None, :], mask=(all_s[:, None] < tl.cdiv(n_k, 256)) & (at_i[None, :] < n_q), other=float("-inf"))
        x = tl.load(O_s_ptr + tl.cast(all_s, tl.int64)[:, None, None] * n_q * 128 + at_i[None, :, None] * 128 + at_d_v[None, None, :], mask=(all_s[:, None, None] < tl.cdiv(n_k, 256)) & (at_i[None, :, None] < n_q), other=0.0)
        top = tl.maximum(top_i, tl.max(w, axis=0))
        top_i = tl.math.exp2(top_i - top)
        w = tl.math.exp2(w - top[None, :])
        W_i = top_i * W_i + tl.sum(w, axis=0)
        O_i = top_i[:, None] * O_i + tl.sum(w[:, :, None] * x.to(tl.float32), axis=0)
        top_i = top
    O_i = O_i * (1.0 / W_i)[:, None]
    tl.store(O_ptr + ((i + tl.arange(0, 1)) // 8)[:, None] * O_row + ((i + tl.arange(0, 1)) % 8)[:, None] * O_head + at_d_v[None, :], O_i.to(O_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)
    top_i = top_i + tl.log2(W_i)
    tl.store(L_ptr + at_i, top_i.to(L_ptr.dtype.element_ty), mask=at_i < n_q)


def run(Q_ptr, K_ptr, V_ptr, results):
    """O, L of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    O_ptr = results["O"]
    n_q = Q_ptr.shape[2] * 8
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    O_s_ptr = torch.empty((heads, triton.cdiv(n_k, 256), n_q, 128), dtype=torch.bfloat16, device=device)
    L_s_ptr = torch.empty((heads, triton.cdiv(n_k, 256), triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    splits[(triton.cdiv(n_q, 16) * triton.cdiv(n_k, 256), own, batch)](Q_ptr, K_ptr, V_ptr, O_s_ptr, L_s_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row, launch_pdl=True, num_warps=4, num_stages=3)
    merge[(triton.cdiv(n_q, 1), own, batch)](L_s_ptr, O_s_ptr, O_ptr, L_ptr, n_q, n_k, O_batch, O_head, O_row, launch_pdl=True, num_warps=2, num_stages=2)
    return {"O": O_ptr, "L": L_ptr}
