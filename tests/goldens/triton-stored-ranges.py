"""scores-stored-blocked: d_k = 256, d_v = 256, a = 128, b = 256, c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


@triton.jit(do_not_specialize=["n_q", "n_k", "Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row"])
def A_1(Q_ptr, K_ptr, a_ptr, A_ptr, l_m_ptr, L_ptr, first_ptr, end_ptr, above_ptr, below_ptr, sharing, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    Q_head, Q_row = Q_head * 8, 256
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    K_head, K_row = K_head * 8, 256
    K_ptr += batch * K_batch * 8 + own * K_head
    a_ptr += head * tl.cdiv(n_k, 256) * (tl.cdiv(n_q, 16) * 16)
    A_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    l_m_ptr += head * n_q
    L_ptr += head * n_q
    Q_tiles = tl.make_tensor_descriptor(Q_ptr, [n_q, 256], [Q_row, 1], [128, 64])
    K_tiles = tl.make_tensor_descriptor(K_ptr, [n_k, 256], [K_row, 1], [256, 64])
    first_ptr += head // sharing * n_q
    end_ptr += head // sharing * n_q
    above_ptr += head // sharing * n_k
    below_ptr += head // sharing * n_k
    i = tl.program_id(0)
    i = tl.cdiv(n_q, 128) - 1 - i  # the longest first
    at_i = i * 128 + tl.arange(0, 128)
    at_i_first = tl.load(first_ptr + at_i, mask=at_i < n_q, other=0)
    at_i_end = tl.load(end_ptr + at_i, mask=at_i < n_q, other=0)
    l_i = tl.full((128,), 0.0, tl.float32)
    m_i = tl.full((128,), -float("inf"), tl.float32)
    for j in range(tl.load(first_ptr + i * 128) // 256, tl.minimum(tl.maximum(tl.cdiv(tl.load(first_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.load(first_ptr + i * 128) // 256), tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256)))):
        at_j = j * 256 + tl.arange(0, 256)
        C_ij = tl.full((128, 256,), 0.0, tl.float32)
        for k in range(4):
            at_k = k * 64 + tl.arange(0, 64)
            A_ik = Q_tiles.load([i * 128, k * 64])
            B_kj = K_tiles.load([j * 256, k * 64])
            C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
        C_ij = tl.where((at_j[None, :] < n_k) & (at_j[None, :] >= at_i_first[:, None]) & (at_j[None, :] < at_i_end[:, None]), C_ij, float("-inf"))
        m_new = tl.max(C_ij, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(tl.where(m_i == m_new, 0.0, m_i - m_new))
        tl.store(a_ptr + tl.cast(j, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, m_i.to(a_ptr.dtype.element_ty), mask=at_i < n_q)
        C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - tl.where(m_new != float("-inf"), m_new, 0.0)[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(C_ij, axis=1)
        tl.store(A_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], tl.where(at_i[:, None] < n_q, C_ij, 0.0).to(A_ptr.dtype.element_ty))
        m_i = m_new
    for j_2 in range(tl.minimum(tl.maximum(tl.cdiv(tl.load(first_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.load(first_ptr + i * 128) // 256), tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256))), tl.minimum(tl.maximum(tl.load(end_ptr + i * 128) // 256, tl.minimum(tl.maximum(tl.cdiv(tl.load(first_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.load(first_ptr + i * 128) // 256), tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256)))), tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256)))):
        at_j_2 = j_2 * 256 + tl.arange(0, 256)
        C_ij = tl.full((128, 256,), 0.0, tl.float32)
        for k_2 in range(4):
            at_k_2 = k_2 * 64 + tl.arange(0, 64)
            A_ik = Q_tiles.load([i * 128, k_2 * 64])
            B_kj = K_tiles.load([j_2 * 256, k_2 * 64])
            C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
        m_new = tl.max(C_ij, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(tl.where(m_i == m_new, 0.0, m_i - m_new))
        tl.store(a_ptr + tl.cast(j_2, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, m_i.to(a_ptr.dtype.element_ty), mask=at_i < n_q)
        C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - m_new[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(C_ij, axis=1)
        tl.store(A_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j_2, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], tl.where(at_i[:, None] < n_q, C_ij, 0.0).to(A_ptr.dtype.element_ty))
        m_i = m_new
    for j_3 in range(tl.minimum(tl.maximum(tl.load(end_ptr + i * 128) // 256, tl.minimum(tl.maximum(tl.cdiv(tl.load(first_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.load(first_ptr + i * 128) // 256), tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256)))), tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256))), tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256))):
        at_j_3 = j_3 * 256 + tl.arange(0, 256)
        C_ij = tl.full((128, 256,), 0.0, tl.float32)
        for k_3 in range(4):
            at_k_3 = k_3 * 64 + tl.arange(0, 64)
            A_ik = Q_tiles.load([i * 128, k_3 * 64])
            B_kj = K_tiles.load([j_3 * 256, k_3 * 64])
            C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
        C_ij = tl.where((at_j_3[None, :] < n_k) & (at_j_3[None, :] >= at_i_first[:, None]) & (at_j_3[None, :] < at_i_end[:, None]), C_ij, float("-inf"))
        m_new = tl.max(C_ij, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(tl.where(m_i == m_new, 0.0, m_i - m_new))
        tl.store(a_ptr + tl.cast(j_3, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, m_i.to(a_ptr.dtype.element_ty), mask=at_i < n_q)
        C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - tl.where(m_new != float("-inf"), m_new, 0.0)[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(C_ij, axis=1)
        tl.store(A_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j_3, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], tl.where(at_i[:, None] < n_q, C_ij, 0.0).to(A_ptr.dtype.element_ty))
        m_i = m_new
    tl.store(l_m_ptr + at_i, l_i.to(l_m_ptr.dtype.element_ty), mask=at_i < n_q)
    m_i = m_i + tl.log2(l_i)
    tl.store(L_ptr + at_i, m_i.to(L_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k", "V_batch", "V_head", "V_row", "O_batch", "O_head", "O_row"])
def O_1(a_ptr, A_ptr, V_ptr, l_m_ptr, O_ptr, first_ptr, end_ptr, above_ptr, below_ptr, sharing, n_q, n_k, V_batch, V_head, V_row, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    a_ptr += head * tl.cdiv(n_k, 256) * (tl.cdiv(n_q, 16) * 16)
    A_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    V_head, V_row = V_head * 8, 256
    V_ptr += batch * V_batch * 8 + own * V_head
    l_m_ptr += head * n_q
    O_head, O_row = O_head * 8, 256
    O_ptr += batch * O_batch * 8 + own * O_head
    first_ptr += head // sharing * n_q
    end_ptr += head // sharing * n_q
    above_ptr += head // sharing * n_k
    below_ptr += head // sharing * n_k
    tall, wide = tl.cdiv(n_q, 128), 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, k = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    i = tl.cdiv(n_q, 128) - 1 - i  # the longest first
    at_i = i * 128 + tl.arange(0, 128)
    at_i_first = tl.load(first_ptr + at_i, mask=at_i < n_q, other=0)
    at_i_end = tl.load(end_ptr + at_i, mask=at_i < n_q, other=0)
    at_k = k * 256 + tl.arange(0, 256)
    O_ik = tl.full((128, 256,), 0.0, tl.float32)
    for j in range(tl.load(first_ptr + i * 128) // 256, tl.minimum(tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256)) * (tl.load(first_ptr + i * 128) < tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1))), n_k // 256)):
        at_j = j * 256 + tl.arange(0, 256)
        x = tl.load(a_ptr + tl.cast(j, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, mask=at_i < n_q, other=0.0)
        O_ik = x.to(tl.float32)[:, None] * O_ik
        for part in range(4):
            at_part = (j * 4 + part) * 64 + tl.arange(0, 64)
            x_2 = tl.load(A_ptr + tl.cast(i * tl.cdiv(n_k, 256) + (j * 4 + part) // 4, tl.int64) * 32768 + (j * 4 + part) % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
            x_3 = tl.load(V_ptr + (j * 4 + part) * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_k[None, :])
            O_ik = tl.dot(x_2, x_3, O_ik)
    for j_2 in tl.range(tl.maximum(tl.load(first_ptr + i * 128) // 256, n_k // 256), tl.minimum(tl.cdiv(tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1)), 256), tl.cdiv(n_k, 256)) * (tl.load(first_ptr + i * 128) < tl.load(end_ptr + (tl.minimum((i + 1) * 128, n_q) - 1))), num_stages=1):
        at_j_2 = j_2 * 256 + tl.arange(0, 256)
        x = tl.load(a_ptr + tl.cast(j_2, tl.int64) * (tl.cdiv(n_q, 16) * 16) + at_i, mask=at_i < n_q, other=0.0)
        O_ik = x.to(tl.float32)[:, None] * O_ik
        for part_2 in range(tl.minimum(tl.cdiv(n_k, 64) - j_2 * 4, 4)):
            at_part_2 = (j_2 * 4 + part_2) * 64 + tl.arange(0, 64)
            x_2 = tl.load(A_ptr + tl.cast(i * tl.cdiv(n_k, 256) + (j_2 * 4 + part_2) // 4, tl.int64) * 32768 + (j_2 * 4 + part_2) % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
            x_3 = tl.load(V_ptr + (j_2 * 4 + part_2) * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_k[None, :], mask=at_part_2[:, None] < n_k, other=0.0)
            O_ik = tl.dot(x_2, x_3, O_ik)
    x_4 = tl.load(l_m_ptr + at_i, mask=at_i < n_q, other=0.0)
    O_ik = O_ik * tl.where(x_4.to(tl.float32) == 0.0, 0.0, 1.0 / x_4.to(tl.float32))[:, None]
    tl.store(O_ptr + i * 128 * O_row + tl.arange(0, 128)[:, None] * O_row + at_k[None, :], O_ik.to(O_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)


def run(Q_ptr, K_ptr, V_ptr, first_ptr, end_ptr, above_ptr, below_ptr, results):
    """O, L, l_m of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    sharing = own
    O_ptr = results["O"]
    n_q = Q_ptr.shape[2]
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    l_m_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    A_ptr = torch.empty((heads, triton.cdiv(n_q, 128), triton.cdiv(n_k, 256), 128, 256), dtype=torch.bfloat16, device=device)
    a_ptr = torch.empty((heads, triton.cdiv(n_k, 256), triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    triton.set_allocator(room)
    A_1[(triton.cdiv(n_q, 128), own, batch)](Q_ptr, K_ptr, a_ptr, A_ptr, l_m_ptr, L_ptr, first_ptr, end_ptr, above_ptr, below_ptr, sharing, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, num_warps=8, num_stages=4)
    O_1[(triton.cdiv(n_q, 128), own, batch)](a_ptr, A_ptr, V_ptr, l_m_ptr, O_ptr, first_ptr, end_ptr, above_ptr, below_ptr, sharing, n_q, n_k, V_batch, V_head, V_row, O_batch, O_head, O_row, num_warps=8, num_stages=4)
    return {"O": O_ptr, "L": L_ptr, "l_m": l_m_ptr}
