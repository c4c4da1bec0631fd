"""flash2-forward: d_k = 128, d_v = 128, B_r = 64, B_c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


@triton.jit(do_not_specialize=["n_q", "n_k", "Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row", "V_batch", "V_head", "V_row", "O_batch", "O_head", "O_row"])
def flash2_forward(Q_ptr, K_ptr, V_ptr, O_ptr, L_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_v = tl.arange(0, 128)
    at_d_k = tl.arange(0, 128)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    Q_head, Q_row = Q_head * 8, 128
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    K_head, K_row = K_head * 8, 128
    K_ptr += batch * K_batch * 8 + own * K_head
    V_head, V_row = V_head * 8, 128
    V_ptr += batch * V_batch * 8 + own * V_head
    O_head, O_row = O_head * 8, 128
    O_ptr += batch * O_batch * 8 + own * O_head
    L_ptr += head * n_q
    K_tiles = tl.make_tensor_descriptor(K_ptr, [n_k, 128], [K_row, 1], [64, 128])
    V_tiles = tl.make_tensor_descriptor(V_ptr, [n_k, 128], [V_row, 1], [64, 128])
    i = tl.program_id(0)
    at_i = i * 64 + tl.arange(0, 64)
    Q_i = tl.load(Q_ptr + i * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
    O_i = tl.full((64, 128,), 0.0, tl.float32)
    l_i = tl.full((64,), 0.0, tl.float32)
    m_i = tl.full((64,), -float("inf"), tl.float32)
    for j in range(n_k // 64):
        at_j = j * 64 + tl.arange(0, 64)
        K_j = K_tiles.load([j * 64, 0])
        P = tl.dot(Q_i, tl.trans(K_j))
        m_new = tl.max(P, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(m_i - m_new)
        P = tl.math.exp2(P * 0.18033688011112042 - m_new[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(P, axis=1)
        O_i = m_i[:, None] * O_i
        m_i = m_new
        V_j = V_tiles.load([j * 64, 0])
        O_i = tl.dot(P.to(tl.bfloat16), V_j, O_i)
    for j_2 in tl.range(n_k // 64, tl.cdiv(n_k, 64), num_stages=1):
        at_j_2 = j_2 * 64 + tl.arange(0, 64)
        K_j = K_tiles.load([j_2 * 64, 0])
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
        V_j = V_tiles.load([j_2 * 64, 0])
        O_i = tl.dot(P.to(tl.bfloat16), V_j, O_i)
    O_i = O_i * (1.0 / l_i)[:, None]
    tl.store(O_ptr + i * 64 * O_row + tl.arange(0, 64)[:, None] * O_row + at_d_v[None, :], O_i.to(O_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)
    m_i = m_i + tl.log2(l_i)
    tl.store(L_ptr + at_i, m_i.to(L_ptr.dtype.element_ty), mask=at_i < n_q)


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
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    triton.set_allocator(room)
    flash2_forward[(triton.cdiv(n_q, 64), own, batch)](Q_ptr, K_ptr, V_ptr, O_ptr, L_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row, O_batch, O_head, O_row, num_warps=4, num_stages=3)
    return {"O": O_ptr, "L": L_ptr}
