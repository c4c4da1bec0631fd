"""backward-two-pass-blocked, dB: d_k = 32, d_v = 32, B_r = 64, b_c = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["R", "n_q", "n_k", "bias_batch", "bias_head", "bias_row", "bias_several", "bias_within", "dO_batch", "dO_head", "dO_row", "dO_copy", "Q_batch", "Q_head", "Q_row", "Q_copy", "K_batch", "K_head", "K_row", "K_copy", "V_batch", "V_head", "V_row", "V_copy", "dB_batch", "dB_head", "dB_row"])
def dB(bias_ptr, dO_ptr, v_ptr, Q_ptr, L_ptr, K_ptr, V_ptr, dB_ptr, R, n_q, n_k, bias_batch, bias_head, bias_row, bias_several, bias_within, dO_batch, dO_head, dO_row, dO_copy, Q_batch, Q_head, Q_row, Q_copy, K_batch, K_head, K_row, K_copy, V_batch, V_head, V_row, V_copy, dB_batch, dB_head, dB_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_k = tl.arange(0, 32)
    at_d_v = tl.arange(0, 32)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    bias_head, bias_row = bias_head * 8, bias_row * 8
    bias_ptr += batch // bias_several * bias_batch * 8 + batch % bias_several * bias_within * 8 + own * bias_head
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    dO_copy = dO_copy * 8
    v_ptr += (batch * tl.cdiv(R, 1) * tl.num_programs(1) + own) * (tl.cdiv(n_q, 16) * 16)
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    Q_copy = Q_copy * 8
    L_ptr += (batch * tl.cdiv(R, 1) * tl.num_programs(1) + own) * (tl.cdiv(n_q, 16) * 16)
    K_head, K_row = K_head * 8, K_row * 8
    K_ptr += batch * K_batch * 8 + own * K_head
    K_copy = K_copy * 8
    V_head, V_row = V_head * 8, V_row * 8
    V_ptr += batch * V_batch * 8 + own * V_head
    V_copy = V_copy * 8
    dB_head, dB_row = dB_head * 8, dB_row * 8
    dB_ptr += batch * dB_batch * 8 + own * dB_head
    tall, wide = tl.cdiv(n_q, 64), tl.cdiv(n_k, 64)
    group, rank = tl.program_id(0) // (8 * wide), tl.program_id(0) % (8 * wide)
    i, j = group * 8 + rank % tl.minimum(tall - group * 8, 8), rank // tl.minimum(tall - group * 8, 8)
    at_i = i * 64 + tl.arange(0, 64)
    at_j = j * 64 + tl.arange(0, 64)
    dB = tl.full((64, 64,), 0.0, tl.float32)
    bias = tl.load(bias_ptr + i * 64 * bias_row + tl.arange(0, 64)[:, None] * bias_row + at_j[None, :], mask=(at_i[:, None] < n_q) & (at_j[None, :] < n_k), other=0.0)
    for r in range(tl.cdiv(R, 1)):
        at_r = r + tl.arange(0, 1)
        dO_i = tl.load(dO_ptr + tl.cast(r, tl.int64) * dO_copy + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :], mask=at_i[:, None] < n_q, other=0.0)
        v_i = tl.load(v_ptr + tl.cast(r, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i, mask=at_i < n_q, other=0.0)
        Q_i = tl.load(Q_ptr + tl.cast(r, tl.int64) * Q_copy + i * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        L_i = tl.load(L_ptr + tl.cast(r, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i, mask=at_i < n_q, other=float("inf"))
        K_j = tl.load(K_ptr + tl.cast(r, tl.int64) * K_copy + j * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :], mask=at_j[:, None] < n_k, other=0.0)
        P = tl.dot(Q_i, tl.trans(K_j))
        P = P * 0.125 + bias.to(tl.float32)
        x = tl.load(V_ptr + tl.cast(r, tl.int64) * V_copy + j * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :], mask=at_j[:, None] < n_k, other=0.0)
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dB += dS
    tl.store(dB_ptr + i * 64 * dB_row + tl.arange(0, 64)[:, None] * dB_row + at_j[None, :], dB.to(dB_ptr.dtype.element_ty), mask=(at_i[:, None] < n_q) & (at_j[None, :] < tl.cdiv(n_k, 8) * 8))


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, L_ptr, bias_ptr, v_ptr, results):
    """dB of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:3:2], K_ptr.device
    heads = batch * own
    dB_ptr = results["dB"]
    R = K_ptr.shape[1]
    n_q = Q_ptr.shape[3]
    n_k = K_ptr.shape[3]
    Q_batch, Q_copy, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:4])
    K_batch, K_copy, K_head, K_row = (each // 8 for each in K_ptr.stride()[:4])
    V_batch, V_copy, V_head, V_row = (each // 8 for each in V_ptr.stride()[:4])
    dO_batch, dO_copy, dO_head, dO_row = (each // 8 for each in dO_ptr.stride()[:4])
    bias_batch, bias_within, bias_head, bias_row = (each // 8 for each in bias_ptr.stride()[:4])
    bias_several = bias_ptr.shape[1]
    dB_batch, dB_head, dB_row = (each // 8 for each in dB_ptr.stride()[:3])
    if n_q % 16:  # each head's begins where wide accesses can
        given, L_ptr = L_ptr, torch.empty((heads, triton.cdiv(R, 1), triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
        L_ptr[:, :, :n_q].copy_(given)
    if n_q % 16:  # each head's begins where wide accesses can
        given, v_ptr = v_ptr, torch.empty((heads, triton.cdiv(R, 1), triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
        v_ptr[:, :, :n_q].copy_(given)
    dB[(triton.cdiv(n_q, 64) * triton.cdiv(n_k, 64), own, batch)](bias_ptr, dO_ptr, v_ptr, Q_ptr, L_ptr, K_ptr, V_ptr, dB_ptr, R, n_q, n_k, bias_batch, bias_head, bias_row, bias_several, bias_within, dO_batch, dO_head, dO_row, dO_copy, Q_batch, Q_head, Q_row, Q_copy, K_batch, K_head, K_row, K_copy, V_batch, V_head, V_row, V_copy, dB_batch, dB_head, dB_row, num_warps=8, num_stages=3)
    return {"dB": dB_ptr}
