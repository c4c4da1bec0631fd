"""small-cache-backward-blocked: d_k = 128, d_v = 128, a = 128, b = 256, c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["dO_batch", "dO_head", "dO_row", "O_batch", "O_head", "O_row"])
def v(dO_ptr, O_ptr, v_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    O_head, O_row = O_head * 8, O_row * 8
    O_ptr += batch * O_batch * 8 + own * O_head
    v_ptr += head * n_q
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    v_i = tl.full((128,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + tl.cast(i * 128, tl.int64) * dO_row + tl.arange(0, 128)[:, None] * dO_row + at_k[None, :])
        x_2 = tl.load(O_ptr + tl.cast(i * 128, tl.int64) * O_row + tl.arange(0, 128)[:, None] * O_row + at_k[None, :])
        v_i += tl.sum(x.to(tl.float32) * x_2.to(tl.float32), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row"])
def P(Q_ptr, K_ptr, L_ptr, P_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    K_head, K_row = K_head * 8, K_row * 8
    K_ptr += batch * K_batch * 8 + own * K_head
    L_ptr += head * n_q
    P_ptr += head * tl.cdiv(n_q, 128) * tl.minimum(tl.cdiv(n_k, 256), 2) * 128 * 256
    tall, wide = n_q // 128, tl.minimum(n_k // 256, 2)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 128 + tl.arange(0, 128)
    j += tl.maximum(i * 128 - 100, 0) // 256
    at_j = j * 256 + tl.arange(0, 256)
    if (j * 256 >= n_k) | (j * 256 - (i + 1) * 128 >= 28) | (i * 128 - (j + 1) * 256 >= 100):
        return
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(Q_ptr + tl.cast(i * 128, tl.int64) * Q_row + tl.arange(0, 128)[:, None] * Q_row + at_k[None, :])
        B_kj = tl.load(K_ptr + tl.cast(j * 256, tl.int64) * K_row + tl.arange(0, 256)[:, None] * K_row + at_k[None, :])
        C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
    x = tl.load(L_ptr + at_i)
    C_ij = tl.where((at_j[None, :] <= (at_i + 28)[:, None]) & (at_j[None, :] >= (at_i - 100)[:, None]), C_ij, float("-inf"))
    C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - tl.where(x != float("-inf"), x, 0.0)[:, None])
    tl.store(P_ptr + tl.cast(i * tl.minimum(tl.cdiv(n_k, 256), 2) + (j - tl.maximum(i * 128 - 100, 0) // 256), tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], C_ij.to(P_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["dO_batch", "dO_head", "dO_row", "dV_batch", "dV_head", "dV_row"])
def dV(P_ptr, dO_ptr, dV_ptr, n_q, n_k, dO_batch, dO_head, dO_row, dV_batch, dV_head, dV_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    P_ptr += head * tl.cdiv(n_q, 128) * tl.minimum(tl.cdiv(n_k, 256), 2) * 128 * 256
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    dV_head, dV_row = dV_head * 8, dV_row * 8
    dV_ptr += batch * dV_batch * 8 + own * dV_head
    tall, wide = n_k // 256, 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 256 + tl.arange(0, 256)
    at_j = j * 128 + tl.arange(0, 128)
    C_ij = tl.full((256, 128,), 0.0, tl.float32)
    for k in range(tl.maximum(i * 256 - 28, 0) // 128 * 2, tl.minimum(tl.minimum(((i + 1) * 256 + 100 + 127) // 128, n_q // 128) * 2, tl.cdiv(n_q, 64))):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(P_ptr + tl.cast(k // 2 * tl.minimum(tl.cdiv(n_k, 256), 2) + (i - tl.maximum(k // 2 * 128 - 100, 0) // 256), tl.int64) * 32768 + k % 2 * 64 * 256 + tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :])
        B_kj = tl.load(dO_ptr + tl.cast(k * 64, tl.int64) * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_j[None, :])
        C_ij = tl.dot(tl.trans(A_ik), B_kj, C_ij)
    tl.store(dV_ptr + tl.cast(i * 256, tl.int64) * dV_row + tl.arange(0, 256)[:, None] * dV_row + at_j[None, :], C_ij.to(dV_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["dO_batch", "dO_head", "dO_row", "V_batch", "V_head", "V_row"])
def dS(dO_ptr, V_ptr, v_ptr, P_ptr, dS_ptr, n_q, n_k, dO_batch, dO_head, dO_row, V_batch, V_head, V_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    V_head, V_row = V_head * 8, V_row * 8
    V_ptr += batch * V_batch * 8 + own * V_head
    v_ptr += head * n_q
    P_ptr += head * tl.cdiv(n_q, 128) * tl.minimum(tl.cdiv(n_k, 256), 2) * 128 * 256
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.minimum(tl.cdiv(n_k, 256), 2) * 128 * 256
    tall, wide = n_q // 128, tl.minimum(n_k // 256, 2)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 128 + tl.arange(0, 128)
    j += tl.maximum(i * 128 - 100, 0) // 256
    at_j = j * 256 + tl.arange(0, 256)
    if (j * 256 >= n_k) | (j * 256 - (i + 1) * 128 >= 28) | (i * 128 - (j + 1) * 256 >= 100):
        return
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dO_ptr + tl.cast(i * 128, tl.int64) * dO_row + tl.arange(0, 128)[:, None] * dO_row + at_k[None, :])
        B_kj = tl.load(V_ptr + tl.cast(j * 256, tl.int64) * V_row + tl.arange(0, 256)[:, None] * V_row + at_k[None, :])
        C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
    v_i = tl.load(v_ptr + at_i)
    P_ij = tl.load(P_ptr + tl.cast(i * tl.minimum(tl.cdiv(n_k, 256), 2) + (j - tl.maximum(i * 128 - 100, 0) // 256), tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :])
    C_ij = P_ij.to(tl.float32) * (C_ij - v_i.to(tl.float32)[:, None])
    tl.store(dS_ptr + tl.cast(i * tl.minimum(tl.cdiv(n_k, 256), 2) + (j - tl.maximum(i * 128 - 100, 0) // 256), tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], tl.where((at_j[None, :] <= (at_i + 28)[:, None]) & (at_j[None, :] >= (at_i - 100)[:, None]), C_ij, 0.0).to(dS_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["K_batch", "K_head", "K_row", "dQ_batch", "dQ_head", "dQ_row"])
def dQ(dS_ptr, K_ptr, dQ_ptr, n_q, n_k, K_batch, K_head, K_row, dQ_batch, dQ_head, dQ_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.minimum(tl.cdiv(n_k, 256), 2) * 128 * 256
    K_head, K_row = K_head * 8, K_row * 8
    K_ptr += batch * K_batch * 8 + own * K_head
    dQ_head, dQ_row = dQ_head * 8, dQ_row * 8
    dQ_ptr += batch * dQ_batch * 8 + own * dQ_head
    tall, wide = n_q // 128, 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    i = n_q // 128 - 1 - i  # the longest first
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(tl.maximum(i * 128 - 100, 0) // 256 * 4, tl.minimum(tl.minimum(((i + 1) * 128 + 28 + 255) // 256, n_k // 256) * 4, tl.cdiv(n_k, 64))):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dS_ptr + tl.cast(i * tl.minimum(tl.cdiv(n_k, 256), 2) + (k // 4 - tl.maximum(i * 128 - 100, 0) // 256), tl.int64) * 32768 + k % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
        B_kj = tl.load(K_ptr + tl.cast(k * 64, tl.int64) * K_row + tl.arange(0, 64)[:, None] * K_row + at_j[None, :], mask=at_j[None, :] < 128, other=0.0)
        C_ij = tl.dot(A_ik, B_kj, C_ij)
    tl.store(dQ_ptr + tl.cast(i * 128, tl.int64) * dQ_row + tl.arange(0, 128)[:, None] * dQ_row + at_j[None, :], (C_ij * 0.125).to(dQ_ptr.dtype.element_ty), mask=at_j[None, :] < 128)

@triton.jit(do_not_specialize=["Q_batch", "Q_head", "Q_row", "dK_batch", "dK_head", "dK_row"])
def dK(dS_ptr, Q_ptr, dK_ptr, n_q, n_k, Q_batch, Q_head, Q_row, dK_batch, dK_head, dK_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.minimum(tl.cdiv(n_k, 256), 2) * 128 * 256
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    dK_head, dK_row = dK_head * 8, dK_row * 8
    dK_ptr += batch * dK_batch * 8 + own * dK_head
    tall, wide = n_k // 256, 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 256 + tl.arange(0, 256)
    at_j = j * 128 + tl.arange(0, 128)
    C_ij = tl.full((256, 128,), 0.0, tl.float32)
    for k in range(tl.maximum(i * 256 - 28, 0) // 128 * 2, tl.minimum(tl.minimum(((i + 1) * 256 + 100 + 127) // 128, n_q // 128) * 2, tl.cdiv(n_q, 64))):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dS_ptr + tl.cast(k // 2 * tl.minimum(tl.cdiv(n_k, 256), 2) + (i - tl.maximum(k // 2 * 128 - 100, 0) // 256), tl.int64) * 32768 + k % 2 * 64 * 256 + tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :])
        B_kj = tl.load(Q_ptr + tl.cast(k * 64, tl.int64) * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_j[None, :])
        C_ij = tl.dot(tl.trans(A_ik), B_kj, C_ij)
    tl.store(dK_ptr + tl.cast(i * 256, tl.int64) * dK_row + tl.arange(0, 256)[:, None] * dK_row + at_j[None, :], (C_ij * 0.125).to(dK_ptr.dtype.element_ty))


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, results, dL=None):
    """dQ, dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    dQ_ptr = results["dQ"]
    dK_ptr = results["dK"]
    dV_ptr = results["dV"]
    n_q = Q_ptr.shape[2]
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    dO_batch, dO_head, dO_row = (each // 8 for each in dO_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    dQ_batch, dQ_head, dQ_row = (each // 8 for each in dQ_ptr.stride()[:3])
    dK_batch, dK_head, dK_row = (each // 8 for each in dK_ptr.stride()[:3])
    dV_batch, dV_head, dV_row = (each // 8 for each in dV_ptr.stride()[:3])
    if n_q % 128 or n_k % 256:
        raise ValueError("these kernels need n_q to be a multiple of 128 and n_k to be a multiple of 256")
    P_ptr = torch.empty((heads, triton.cdiv(n_q, 128), min(triton.cdiv(n_k, 256), 2), 128, 256), dtype=torch.bfloat16, device=device)
    dS_ptr = P_ptr  # tile by tile in its place
    v_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    v[(n_q // 128, own, batch)](dO_ptr, O_ptr, v_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, num_warps=8, num_stages=4)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    P[(n_q // 128 * min(n_k // 256, 2), own, batch)](Q_ptr, K_ptr, L_ptr, P_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, num_warps=8, num_stages=4)
    dV[(n_k // 256, own, batch)](P_ptr, dO_ptr, dV_ptr, n_q, n_k, dO_batch, dO_head, dO_row, dV_batch, dV_head, dV_row, num_warps=8, num_stages=4)
    dS[(n_q // 128 * min(n_k // 256, 2), own, batch)](dO_ptr, V_ptr, v_ptr, P_ptr, dS_ptr, n_q, n_k, dO_batch, dO_head, dO_row, V_batch, V_head, V_row, num_warps=8, num_stages=4)
    dQ[(n_q // 128, own, batch)](dS_ptr, K_ptr, dQ_ptr, n_q, n_k, K_batch, K_head, K_row, dQ_batch, dQ_head, dQ_row, num_warps=8, num_stages=4)
    dK[(n_k // 256, own, batch)](dS_ptr, Q_ptr, dK_ptr, n_q, n_k, Q_batch, Q_head, Q_row, dK_batch, dK_head, dK_row, num_warps=8, num_stages=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
