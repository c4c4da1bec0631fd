"""flash-decoding-blocked: d_k = 64, d_v = 64, B_r = 16, S = 512, c = 64, e = 16, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


@triton.jit(do_not_specialize=["n_q", "n_k", "Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row", "V_batch", "V_head", "V_row"])
def splits(Q_ptr, K_ptr, L_s_ptr, V_ptr, O_s_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    Q_head, Q_row = Q_head * 8, 64
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    K_head, K_row = K_head * 8, 64
    K_ptr += batch * K_batch * 8 + own * K_head
    L_s_ptr += head * tl.cdiv(n_k, 512) * (tl.cdiv(n_q, 16) * 16)
    V_head, V_row = V_head * 8, 64
    V_ptr += batch * V_batch * 8 + own * V_head
    O_s_ptr += head * tl.cdiv(n_k, 512) * n_q * 64
    Q_tiles = tl.make_tensor_descriptor(Q_ptr, [n_q, 64], [Q_row, 1], [16, 64])
    K_tiles = tl.make_tensor_descriptor(K_ptr, [n_k, 64], [K_row, 1], [512, 64])
    V_tiles = tl.make_tensor_descriptor(V_ptr, [n_k, 64], [V_row, 1], [512, 64])
    tall, wide = tl.cdiv(n_q, 16), tl.cdiv(n_k, 512)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, s = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 16 + tl.arange(0, 16)
    at_s = s * 512 + tl.arange(0, 512)
    if s * 512 - tl.minimum((i + 1) * 16, n_q) >= 0:
        return
    P = tl.full((16, 512,), 0.0, tl.float32)
    for k in range(1):
        at_k = k * 64 + tl.arange(0, 64)
        x = Q_tiles.load([i * 16, k * 64])
        x_2 = K_tiles.load([s * 512, k * 64])
        P = tl.dot(x, tl.trans(x_2), P)
    if tl.minimum((s + 1) * 512, n_k) - i * 16 <= 1:
        P = tl.where(at_s[None, :] < n_k, P, float("-inf"))
        m_i = tl.max(P, axis=1) * 0.18033688011112042
        P = tl.math.exp2(P * 0.18033688011112042 - tl.where(m_i != float("-inf"), m_i, 0.0)[:, None])
        l_i = tl.sum(P, axis=1)
        m_i = m_i + tl.log2(l_i)
        tl.store(L_s_ptr + tl.cast(s, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, m_i.to(L_s_ptr.dtype.element_ty), mask=at_i < n_q)
        for k_2 in range(1):
            at_k_2 = k_2 * 64 + tl.arange(0, 64)
            x_3 = V_tiles.load([s * 512, k_2 * 64])
            O_ik = tl.dot(P.to(tl.bfloat16), x_3)
            O_ik = O_ik * tl.where(l_i == 0.0, 0.0, 1.0 / l_i)[:, None]
            tl.store(O_s_ptr + tl.cast(s, tl.int64) * n_q * 64 + i * 16 * 64 + tl.arange(0, 16)[:, None] * 64 + at_k_2[None, :], O_ik.to(O_s_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)
    else:
        P = tl.where(at_s[None, :] <= tl.minimum(at_i, n_k - 1)[:, None], P, float("-inf"))
        m_i = tl.max(P, axis=1) * 0.18033688011112042
        P = tl.math.exp2(P * 0.18033688011112042 - tl.where(m_i != float("-inf"), m_i, 0.0)[:, None])
        l_i = tl.sum(P, axis=1)
        m_i = m_i + tl.log2(l_i)
        tl.store(L_s_ptr + tl.cast(s, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, m_i.to(L_s_ptr.dtype.element_ty), mask=at_i < n_q)
        for k_3 in range(1):
            at_k_3 = k_3 * 64 + tl.arange(0, 64)
            x_3 = V_tiles.load([s * 512, k_3 * 64])
            O_ik = tl.dot(P.to(tl.bfloat16), x_3)
            O_ik = O_ik * tl.where(l_i == 0.0, 0.0, 1.0 / l_i)[:, None]
            tl.store(O_s_ptr + tl.cast(s, tl.int64) * n_q * 64 + i * 16 * 64 + tl.arange(0, 16)[:, None] * 64 + at_k_3[None, :], O_ik.to(O_s_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k", "O_batch", "O_head", "O_row"])
def merge_1(L_s_ptr, O_s_ptr, O_ptr, L_ptr, n_q, n_k, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    L_s_ptr += head * tl.cdiv(n_k, 512) * (tl.cdiv(n_q, 16) * 16)
    O_s_ptr += head * tl.cdiv(n_k, 512) * n_q * 64
    O_head, O_row = O_head * 8, 64
    O_ptr += batch * O_batch * 8 + own * O_head
    L_ptr += head * n_q
    tall, wide = tl.cdiv(n_q, 16), 4
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, k = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    i = tl.cdiv(n_q, 16) - 1 - i  # the longest first
    at_i = i * 16 + tl.arange(0, 16)
    at_k = k * 16 + tl.arange(0, 16)
    if 0 - tl.minimum((i + 1) * 16, n_q) >= 0:
        return
    O_ik = tl.full((16, 16,), 0.0, tl.float32)
    W_i = tl.full((16,), 0.0, tl.float32)
    top_i = tl.full((16,), -float("inf"), tl.float32)
    for s in range(0, tl.minimum((tl.minimum((i + 1) * 16, n_q) + 511) // 512, tl.cdiv(n_k, 512)), 64):
        all_s = s + tl.arange(0, 64)
        x = tl.load(L_s_ptr + tl.cast(all_s, tl.int64)[:, None] * (tl.cdiv(n_q, 16) * 16) + at_i[None, :], mask=(all_s[:, None] < tl.minimum((tl.minimum((i + 1) * 16, n_q) + 511) // 512, tl.cdiv(n_k, 512))) & (at_i[None, :] < n_q), other=float("-inf"))
        top_i = tl.maximum(top_i, tl.max(x, axis=0))
    for s_2 in range(0, tl.minimum((tl.minimum((i + 1) * 16, n_q) + 511) // 512, tl.cdiv(n_k, 512)), 32):
        all_s_2 = s_2 + tl.arange(0, 32)
        w = tl.load(L_s_ptr + tl.cast(all_s_2, tl.int64)[:, None] * (tl.cdiv(n_q, 16) * 16) + at_i[None, :], mask=(all_s_2[:, None] < tl.minimum((tl.minimum((i + 1) * 16, n_q) + 511) // 512, tl.cdiv(n_k, 512))) & (at_i[None, :] < n_q), other=float("-inf"))
        x_2 = tl.load(O_s_ptr + tl.cast(all_s_2, tl.int64)[:, None, None] * n_q * 64 + at_i[None, :, None] * 64 + at_k[None, None, :], mask=(all_s_2[:, None, None] < tl.minimum((tl.minimum((i + 1) * 16, n_q) + 511) // 512, tl.cdiv(n_k, 512))) & (at_i[None, :, None] < n_q), other=0.0)
        w = tl.math.exp2(tl.where(w == top_i[None, :], 0.0, w - top_i[None, :]))
        W_i = W_i + tl.sum(w, axis=0)
        O_ik = O_ik + tl.sum(w[:, :, None] * x_2.to(tl.float32), axis=0)
    O_ik = O_ik * tl.where(W_i == 0.0, 0.0, 1.0 / W_i)[:, None]
    tl.store(O_ptr + i * 16 * O_row + tl.arange(0, 16)[:, None] * O_row + at_k[None, :], O_ik.to(O_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)
    top_i = top_i + tl.log2(W_i)
    tl.store(L_ptr + at_i, top_i.to(L_ptr.dtype.element_ty), mask=at_i < n_q)


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
    O_s_ptr = torch.empty((heads, triton.cdiv(n_k, 512), n_q, 64), dtype=torch.bfloat16, device=device)
    L_s_ptr = torch.empty((heads, triton.cdiv(n_k, 512), triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    triton.set_allocator(room)
    splits[(triton.cdiv(n_q, 16) * triton.cdiv(n_k, 512), own, batch)](Q_ptr, K_ptr, L_s_ptr, V_ptr, O_s_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row, num_warps=4, num_stages=2)
    merge_1[(triton.cdiv(n_q, 16) * 4, own, batch)](L_s_ptr, O_s_ptr, O_ptr, L_ptr, n_q, n_k, O_batch, O_head, O_row, num_warps=8, num_stages=2)
    return {"O": O_ptr, "L": L_ptr}
