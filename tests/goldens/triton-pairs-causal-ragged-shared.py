"""small-cache-backward-blocked: d_k = 128, d_v = 128, a = 128, b = 256, c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["n_q", "n_k", "dO_batch", "dO_head", "dO_row", "O_batch", "O_head", "O_row"])
def v(dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * 4 * dO_head
    O_head, O_row = O_head * 8, O_row * 8
    O_ptr += batch * O_batch * 8 + own * 4 * O_head
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    L_ptr += head * n_q
    L_in_rows_ptr += head * (tl.cdiv(n_q, 16) * 16)
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    v_i = tl.full((128,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 128 // 4 * dO_row + (tl.arange(0, 128) // 4)[:, None] * dO_row + (tl.arange(0, 128) % 4)[:, None] * dO_head + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        x_2 = tl.load(O_ptr + i * 128 // 4 * O_row + (tl.arange(0, 128) // 4)[:, None] * O_row + (tl.arange(0, 128) % 4)[:, None] * O_head + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        v_i += tl.sum(x.to(tl.float32) * x_2.to(tl.float32), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty), mask=at_i < n_q)
    L_i = tl.load(L_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    tl.store(L_in_rows_ptr + at_i, L_i.to(L_in_rows_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k", "Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row"])
def P(Q_ptr, K_ptr, L_in_rows_ptr, P_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * 4 * Q_head
    K_head, K_row = K_head * 8, 128
    K_ptr += batch * K_batch * 8 + own * K_head
    L_in_rows_ptr += head * (tl.cdiv(n_q, 16) * 16)
    P_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    tall, wide = tl.cdiv(n_q, 128), tl.cdiv(n_k, 256)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    if j * 256 - ((tl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1) >= 0:
        return
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(Q_ptr + i * 128 // 4 * Q_row + (tl.arange(0, 128) // 4)[:, None] * Q_row + (tl.arange(0, 128) % 4)[:, None] * Q_head + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        B_kj = tl.load(K_ptr + j * 256 * K_row + tl.arange(0, 256)[:, None] * K_row + at_k[None, :], mask=at_j[:, None] < n_k, other=0.0)
        C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
    x = tl.load(L_in_rows_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    C_ij = tl.where(at_j[None, :] <= tl.minimum(at_i // 4, n_k - 1)[:, None], C_ij, float("-inf"))
    C_ij = tl.math.exp2(C_ij * 0.18033688011112042 - tl.where(x != float("-inf"), x, 0.0)[:, None])
    if tl.minimum((j + 1) * 256, n_k) - i * 128 // 4 <= 1:
        tl.store(P_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], C_ij.to(P_ptr.dtype.element_ty))
    else:
        tl.store(P_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], C_ij.to(P_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["n_q", "n_k", "dO_batch", "dO_head", "dO_row", "dV_batch", "dV_head", "dV_row"])
def dV(P_ptr, dO_ptr, dV_ptr, n_q, n_k, dO_batch, dO_head, dO_row, dV_batch, dV_head, dV_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    P_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * 4 * dO_head
    dV_head, dV_row = dV_head * 8, 128
    dV_ptr += batch * dV_batch * 8 + own * dV_head
    tall, wide = tl.cdiv(n_k, 256), 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 256 + tl.arange(0, 256)
    at_j = j * 128 + tl.arange(0, 128)
    C_ij = tl.full((256, 128,), 0.0, tl.float32)
    for k in range(tl.maximum(i * 256, 0) * 4 // 128 * 2, n_q // 64):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(P_ptr + tl.cast(k // 2 * tl.cdiv(n_k, 256) + i, tl.int64) * 32768 + k % 2 * 64 * 256 + tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :])
        B_kj = tl.load(dO_ptr + k * 64 // 4 * dO_row + (tl.arange(0, 64) // 4)[:, None] * dO_row + (tl.arange(0, 64) % 4)[:, None] * dO_head + at_j[None, :])
        C_ij = tl.dot(tl.trans(A_ik), B_kj, C_ij)
    for k_2 in tl.range(tl.maximum(tl.maximum(i * 256, 0) * 4 // 128 * 2, n_q // 64), tl.cdiv(n_q, 64), num_stages=1):
        at_k_2 = k_2 * 64 + tl.arange(0, 64)
        A_ik = tl.load(P_ptr + tl.cast(k_2 // 2 * tl.cdiv(n_k, 256) + i, tl.int64) * 32768 + k_2 % 2 * 64 * 256 + tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :])
        B_kj = tl.load(dO_ptr + k_2 * 64 // 4 * dO_row + (tl.arange(0, 64) // 4)[:, None] * dO_row + (tl.arange(0, 64) % 4)[:, None] * dO_head + at_j[None, :], mask=at_k_2[:, None] < n_q, other=0.0)
        C_ij = tl.dot(tl.trans(A_ik), B_kj, C_ij)
    tl.store(dV_ptr + i * 256 * dV_row + tl.arange(0, 256)[:, None] * dV_row + at_j[None, :], C_ij.to(dV_ptr.dtype.element_ty), mask=at_i[:, None] < n_k)

@triton.jit(do_not_specialize=["n_q", "n_k", "dO_batch", "dO_head", "dO_row", "V_batch", "V_head", "V_row"])
def dS(dO_ptr, V_ptr, v_ptr, P_ptr, dS_ptr, n_q, n_k, dO_batch, dO_head, dO_row, V_batch, V_head, V_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * 4 * dO_head
    V_head, V_row = V_head * 8, 128
    V_ptr += batch * V_batch * 8 + own * V_head
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    P_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    tall, wide = tl.cdiv(n_q, 128), tl.cdiv(n_k, 256)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    if j * 256 - ((tl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1) >= 0:
        return
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dO_ptr + i * 128 // 4 * dO_row + (tl.arange(0, 128) // 4)[:, None] * dO_row + (tl.arange(0, 128) % 4)[:, None] * dO_head + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        B_kj = tl.load(V_ptr + j * 256 * V_row + tl.arange(0, 256)[:, None] * V_row + at_k[None, :], mask=at_j[:, None] < n_k, other=0.0)
        C_ij = tl.dot(A_ik, tl.trans(B_kj), C_ij)
    v_i = tl.load(v_ptr + at_i, mask=at_i < n_q, other=0.0)
    P_ij = tl.load(P_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :])
    C_ij = P_ij.to(tl.float32) * (C_ij - v_i.to(tl.float32)[:, None])
    if tl.minimum((j + 1) * 256, n_k) - i * 128 // 4 <= 1:
        tl.store(dS_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], C_ij.to(dS_ptr.dtype.element_ty))
    else:
        tl.store(dS_ptr + tl.cast(i * tl.cdiv(n_k, 256) + j, tl.int64) * 32768 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 256)[None, :], tl.where(at_j[None, :] <= (at_i // 4)[:, None], C_ij, 0.0).to(dS_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["n_q", "n_k", "K_batch", "K_head", "K_row", "dQ_batch", "dQ_head", "dQ_row"])
def dQ(dS_ptr, K_ptr, dQ_ptr, n_q, n_k, K_batch, K_head, K_row, dQ_batch, dQ_head, dQ_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    K_head, K_row = K_head * 8, 128
    K_ptr += batch * K_batch * 8 + own * K_head
    dQ_head, dQ_row = dQ_head * 8, dQ_row * 8
    dQ_ptr += batch * dQ_batch * 8 + own * 4 * dQ_head
    tall, wide = tl.cdiv(n_q, 128), 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    i = tl.cdiv(n_q, 128) - 1 - i  # the longest first
    at_i = i * 128 + tl.arange(0, 128)
    at_j = j * 256 + tl.arange(0, 256)
    C_ij = tl.full((128, 256,), 0.0, tl.float32)
    for k in range(tl.minimum(tl.minimum(tl.minimum(((tl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 + 255) // 256, tl.cdiv(n_k, 256)) * 4, tl.cdiv(n_k, 64)), n_k // 64)):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dS_ptr + tl.cast(i * tl.cdiv(n_k, 256) + k // 4, tl.int64) * 32768 + k % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
        B_kj = tl.load(K_ptr + k * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_j[None, :], mask=at_j[None, :] < 128, other=0.0)
        C_ij = tl.dot(A_ik, B_kj, C_ij)
    for k_2 in tl.range(n_k // 64, tl.minimum(tl.minimum(((tl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 + 255) // 256, tl.cdiv(n_k, 256)) * 4, tl.cdiv(n_k, 64)), num_stages=1):
        at_k_2 = k_2 * 64 + tl.arange(0, 64)
        A_ik = tl.load(dS_ptr + tl.cast(i * tl.cdiv(n_k, 256) + k_2 // 4, tl.int64) * 32768 + k_2 % 4 * 64 + tl.arange(0, 128)[:, None] * 256 + tl.arange(0, 64)[None, :])
        B_kj = tl.load(K_ptr + k_2 * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_j[None, :], mask=(at_k_2[:, None] < n_k) & (at_j[None, :] < 128), other=0.0)
        C_ij = tl.dot(A_ik, B_kj, C_ij)
    tl.store(dQ_ptr + i * 128 // 4 * dQ_row + (tl.arange(0, 128) // 4)[:, None] * dQ_row + (tl.arange(0, 128) % 4)[:, None] * dQ_head + at_j[None, :], (C_ij * 0.125).to(dQ_ptr.dtype.element_ty), mask=(at_i[:, None] < n_q) & (at_j[None, :] < 128))

@triton.jit(do_not_specialize=["n_q", "n_k", "Q_batch", "Q_head", "Q_row", "dK_batch", "dK_head", "dK_row"])
def dK(dS_ptr, Q_ptr, dK_ptr, n_q, n_k, Q_batch, Q_head, Q_row, dK_batch, dK_head, dK_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dS_ptr += head * tl.cdiv(n_q, 128) * tl.cdiv(n_k, 256) * 128 * 256
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * 4 * Q_head
    dK_head, dK_row = dK_head * 8, 128
    dK_ptr += batch * dK_batch * 8 + own * dK_head
    tall, wide = tl.cdiv(n_k, 256), 1
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 256 + tl.arange(0, 256)
    at_j = j * 128 + tl.arange(0, 128)
    C_ij = tl.full((256, 128,), 0.0, tl.float32)
    for k in range(tl.maximum(i * 256, 0) * 4 // 128 * 2, n_q // 64):
        at_k = k * 64 + tl.arange(0, 64)
        A_ik = tl.load(dS_ptr + tl.cast(k // 2 * tl.cdiv(n_k, 256) + i, tl.int64) * 32768 + k % 2 * 64 * 256 + tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :])
        B_kj = tl.load(Q_ptr + k * 64 // 4 * Q_row + (tl.arange(0, 64) // 4)[:, None] * Q_row + (tl.arange(0, 64) % 4)[:, None] * Q_head + at_j[None, :])
        C_ij = tl.dot(tl.trans(A_ik), B_kj, C_ij)
    for k_2 in tl.range(tl.maximum(tl.maximum(i * 256, 0) * 4 // 128 * 2, n_q // 64), tl.cdiv(n_q, 64), num_stages=1):
        at_k_2 = k_2 * 64 + tl.arange(0, 64)
        A_ik = tl.load(dS_ptr + tl.cast(k_2 // 2 * tl.cdiv(n_k, 256) + i, tl.int64) * 32768 + k_2 % 2 * 64 * 256 + tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :])
        B_kj = tl.load(Q_ptr + k_2 * 64 // 4 * Q_row + (tl.arange(0, 64) // 4)[:, None] * Q_row + (tl.arange(0, 64) % 4)[:, None] * Q_head + at_j[None, :], mask=at_k_2[:, None] < n_q, other=0.0)
        C_ij = tl.dot(tl.trans(A_ik), B_kj, C_ij)
    tl.store(dK_ptr + i * 256 * dK_row + tl.arange(0, 256)[:, None] * dK_row + at_j[None, :], (C_ij * 0.125).to(dK_ptr.dtype.element_ty), mask=at_i[:, None] < n_k)


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, results, dL=None):
    """dQ, dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    dQ_ptr = results["dQ"]
    dK_ptr = results["dK"]
    dV_ptr = results["dV"]
    n_q = Q_ptr.shape[2] * 4
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    dO_batch, dO_head, dO_row = (each // 8 for each in dO_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    dQ_batch, dQ_head, dQ_row = (each // 8 for each in dQ_ptr.stride()[:3])
    dK_batch, dK_head, dK_row = (each // 8 for each in dK_ptr.stride()[:3])
    dV_batch, dV_head, dV_row = (each // 8 for each in dV_ptr.stride()[:3])
    P_ptr = torch.empty((heads, triton.cdiv(n_q, 128), triton.cdiv(n_k, 256), 128, 256), dtype=torch.bfloat16, device=device)
    dS_ptr = P_ptr  # tile by tile in its place
    v_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    L_in_rows_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    v[(triton.cdiv(n_q, 128), own, batch)](dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, num_warps=8, num_stages=4)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    P[(triton.cdiv(n_q, 128) * triton.cdiv(n_k, 256), own, batch)](Q_ptr, K_ptr, L_in_rows_ptr, P_ptr, n_q, n_k, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, num_warps=8, num_stages=4)
    dV[(triton.cdiv(n_k, 256), own, batch)](P_ptr, dO_ptr, dV_ptr, n_q, n_k, dO_batch, dO_head, dO_row, dV_batch, dV_head, dV_row, num_warps=8, num_stages=4)
    dS[(triton.cdiv(n_q, 128) * triton.cdiv(n_k, 256), own, batch)](dO_ptr, V_ptr, v_ptr, P_ptr, dS_ptr, n_q, n_k, dO_batch, dO_head, dO_row, V_batch, V_head, V_row, num_warps=8, num_stages=4)
    dQ[(triton.cdiv(n_q, 128), own, batch)](dS_ptr, K_ptr, dQ_ptr, n_q, n_k, K_batch, K_head, K_row, dQ_batch, dQ_head, dQ_row, num_warps=8, num_stages=4)
    dK[(triton.cdiv(n_k, 256), own, batch)](dS_ptr, Q_ptr, dK_ptr, n_q, n_k, Q_batch, Q_head, Q_row, dK_batch, dK_head, dK_row, num_warps=8, num_stages=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
