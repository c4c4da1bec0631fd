"""flash2-forward: d_k = 64, d_v = 64, B_r = 64, B_c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit
def flash2_forward(Q_ptr, K_ptr, V_ptr, O_ptr, L_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    at_d_v = tl.arange(0, 64)
    at_d_k = tl.arange(0, 64)
    Q_ptr += head * n_q * 64
    K_ptr += head * n_k * 64
    V_ptr += head * n_k * 64
    O_ptr += head * n_q * 64
    L_ptr += head * n_q
    i = tl.program_id(0)
    at_i = i * 64 + tl.arange(0, 64)
    Q_i = tl.load(Q_ptr + i * 64 * 64 + tl.arange(0, 64)[:, None] * 64 + at_d_k[None, :])
    O_i = tl.full((64, 64,), 0.0, tl.float32)
    l_i = tl.full((64,), 0.0, tl.float32)
    m_i = tl.full((64,), -float("inf"), tl.float32)
    for j in range(n_k // 64):
        at_j = j * 64 + tl.arange(0, 64)
        K_j = tl.load(K_ptr + j * 64 * 64 + tl.arange(0, 64)[:, None] * 64 + at_d_k[None, :])
        P = tl.dot(Q_i, tl.trans(K_j))
        m_new = tl.max(P, axis=1) * 0.18033688011112042
        m_new = tl.maximum(m_i, m_new)
        m_i = tl.math.exp2(m_i - m_new)
        P = tl.math.exp2(P * 0.18033688011112042 - m_new[:, None])
        l_i = m_i * l_i
        l_i += tl.sum(P, axis=1)
        O_i = m_i[:, None] * O_i
        m_i = m_new
        V_j = tl.load(V_ptr + j * 64 * 64 + tl.arange(0, 64)[:, None] * 64 + at_d_v[None, :])
        O_i = tl.dot(P.to(tl.bfloat16), V_j, O_i)
    O_i = O_i * (1.0 / l_i)[:, None]
    tl.store(O_ptr + i * 64 * 64 + tl.arange(0, 64)[:, None] * 64 + at_d_v[None, :], O_i.to(O_ptr.dtype.element_ty))
    m_i = m_i + tl.log2(l_i)
    tl.store(L_ptr + at_i, m_i.to(L_ptr.dtype.element_ty))


def run(Q_ptr, K_ptr, V_ptr):
    """O, L of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    heads, device = Q_ptr.shape[0], Q_ptr.device
    n_q = Q_ptr.shape[1]
    n_k = K_ptr.shape[1]
    if n_q % 64 or n_k % 64:
        raise ValueError("these kernels need n_q to be a multiple of 64 and n_k to be a multiple of 64")
    if max(each.shape[1] * each.shape[2] for each in (Q_ptr, K_ptr, V_ptr,)) >= 2**31:
        raise ValueError("these kernels need heads of less than 2**31 words")
    O_ptr = torch.empty((heads, n_q, 64), dtype=torch.bfloat16, device=device)
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    flash2_forward[(n_q // 64, heads)](Q_ptr, K_ptr, V_ptr, O_ptr, L_ptr, n_q, n_k, num_warps=4, num_stages=3)
    return {"O": O_ptr, "L": L_ptr}
