"""small-cache-backward-blocked: d_k = 128, d_v = 128, a = 128, b = 256, c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit
def v(dO_ptr, O_ptr, v_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    dO_ptr += head * n_q * 128
    O_ptr += head * n_q * 128
    v_ptr += head * n_q
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    v_i = tl.full((128,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 128 * 128 + tl.arange(0, 128)[:, None] * 128 + at_k[None, :])
        x_2 = tl.load(O_ptr + i * 128 * 128 + tl.arange(0, 128)[:, None] * 128 + at_k[None, :])
        v_i += tl.sum(x.to(tl.float32) * x_2.to(tl.float32), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty))

@triton.jit
def P(Q_ptr, K_ptr, L_ptr, P_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    Q_ptr += head * n_q * 128
    K_ptr += head * n_k * 128
    L_ptr += head * n_q
    P_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    tall, wide = n_q // 128, n_k // 256
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(Q_ptr + i * 128 * 128 + tl.arange(0, 128)[:, None] * 128 + at_k[None, :])
        B_kj = tl.load(K_ptr + j * 256 * 128 + tl.arange(0, 256)[:, None] * 128 + at_k[None, :])
        C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
    x = tl.load(L_ptr + at_i)
    C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - x[:, None])
    tl.store(P_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], C_ij.to(P_ptr.dtype.element_ty))

@triton.jit
def dV(P_ptr, dO_ptr, dV_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    P_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    dO_ptr += head * n_q * 128
    dV_ptr += head * n_k * 128
    tall, wide = n_k // 256, 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 256 + tl.arange(0, 256)
    at_j = j * 128 + tl.arange(0, 128)
    C_ij = tl.full((256, 128,), 0.0, tl.float32)
    for k in range(tl.cdiv(n_q, 64)):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(P_ptr + tl.cast(k // 2 * tl.cdiv(n_k, 256) + i, tl.int64) * 32768 + k % 2 * 64 * 256 + tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :])
        B_kj = tl.load(dO_ptr + k * 64 * 128 + tl.arange(0, 64)[:, None] * 128 + at_j[None, :])
        C_ij = tl.dot(tl.trans(A_ik), B_kj, C_ij)
    tl.store(dV_ptr + i * 256 * 128 + tl.arange(0, 256)[:, None] * 128 + at_j[None, :], C_ij.to(dV_ptr.dtype.element_ty))

@triton.jit
def dS(dO_ptr, V_ptr, v_ptr, P_ptr, dS_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    dO_ptr += head * n_q * 128
    V_ptr += head * n_k * 128
    v_ptr += head * n_q
    P_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    tall, wide = n_q // 128, n_k // 256
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dO_ptr + i * 128 * 128 + tl.arange(0, 128)[:, None] * 128 + at_k[None, :])
        B_kj = tl.load(V_ptr + j * 256 * 128 + tl.arange(0, 256)[:, None] * 128 + at_k[None, :])
        C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
    v_i = tl.load(v_ptr + at_i)
    P_ij = tl.load(P_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :])
    C_ij = P_ij.to(tl.float32) * (C_ij - v_i.to(tl.float32)[:, None])
    tl.store(dS_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], C_ij.to(dS_ptr.dtype.element_ty))

@triton.jit
def dQ(dS_ptr, K_ptr, dQ_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    K_ptr += head * n_k * 128
    dQ_ptr += head * n_q * 128
    tall, wide = n_q // 128, 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(tl.cdiv(n_k, 64)):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dS_ptr + tl.cast(i * tl.cdiv(n_k, 256) + k // 4, tl.int64) * 32768 + k % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
        B_kj = tl.load(K_ptr + k * 64 * 128 + tl.arange(0, 64)[:, None] * 128 + at_j[None, :], mask=at_j[None, :] < 128, other=0.0)
        C_ij = tl.dot(A_ik, B_kj, C_ij)
    tl.store(dQ_ptr + i * 128 * 128 + tl.arange(0, 128)[:, None] * 128 + at_j[None, :], (C_ij * 0.125).to(dQ_ptr.dtype.element_ty), mask=at_j[None, :] < 128)

@triton.jit
def dK(dS_ptr, Q_ptr, dK_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    Q_ptr += head * n_q * 128
    dK_ptr += head * n_k * 128
    tall, wide = n_k // 256, 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 256 + tl.arange(0, 256)
    at_j = j * 128 + tl.arange(0, 128)
    C_ij = tl.full((256, 128,), 0.0, tl.float32)
    for k in range(tl.cdiv(n_q, 64)):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dS_ptr + tl.cast(k // 2 * tl.cdiv(n_k, 256) + i, tl.int64) * 32768 + k % 2 * 64 * 256 + tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :])
        B_kj = tl.load(Q_ptr + k * 64 * 128 + tl.arange(0, 64)[:, None] * 128 + at_j[None, :])
        C_ij = tl.dot(tl.trans(A_ik), B_kj, C_ij)
    tl.store(dK_ptr + i * 256 * 128 + tl.arange(0, 256)[:, None] * 128 + at_j[None, :], (C_ij * 0.125).to(dK_ptr.dtype.element_ty))


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, dL=None):
    """dQ, dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    heads, device = Q_ptr.shape[0], Q_ptr.device
    n_q = Q_ptr.shape[1]
    n_k = K_ptr.shape[1]
    if n_q % 128 or n_k % 256:
        raise ValueError("these kernels need n_q to be a multiple of 128 and n_k to be a multiple of 256")
    if max(each.shape[1] * each.shape[2] for each in (Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr,)) >= 2**31:
        raise ValueError("these kernels need heads of less than 2**31 words")
    P_ptr = torch.empty((heads, triton.cdiv(n_q, 128), triton.cdiv(n_k, 256), 128, 256), dtype=torch.bfloat16, device=device)
    dS_ptr = P_ptr  # tile by tile in its place
    v_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    dQ_ptr = torch.empty((heads, n_q, 128), dtype=torch.bfloat16, device=device)
    dK_ptr = torch.empty((heads, n_k, 128), dtype=torch.bfloat16, device=device)
    dV_ptr = torch.empty((heads, n_k, 128), dtype=torch.bfloat16, device=device)
    v[(n_q // 128, heads)](dO_ptr, O_ptr, v_ptr, n_q, n_k, num_warps=8, num_stages=4)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    P[(n_q // 128 * (n_k // 256), heads)](Q_ptr, K_ptr, L_ptr, P_ptr, n_q, n_k, num_warps=8, num_stages=4)
    dV[(n_k // 256, heads)](P_ptr, dO_ptr, dV_ptr, n_q, n_k, num_warps=8, num_stages=4)
    dS[(n_q // 128 * (n_k // 256), heads)](dO_ptr, V_ptr, v_ptr, P_ptr, dS_ptr, n_q, n_k, num_warps=8, num_stages=4)
    dQ[(n_q // 128, heads)](dS_ptr, K_ptr, dQ_ptr, n_q, n_k, num_warps=8, num_stages=4)
    dK[(n_k // 256, heads)](dS_ptr, Q_ptr, dK_ptr, n_q, n_k, num_warps=8, num_stages=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
