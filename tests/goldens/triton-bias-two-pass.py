"""backward-two-pass-blocked: d_k = 32, d_v = 32, B_r = 64, b_c = 64, B_c = 64, b_r = 64, bfloat16 words; written by pebblesim."""

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
    at_i = i * 64 + tl.arange(0, 64)
    v_i = tl.full((64,), 0.0, tl.float32)
    for k in range(1):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_k[None, :], mask=at_k[None, :] < 32, other=0.0)
        x_2 = tl.load(O_ptr + i * 64 * O_row + tl.arange(0, 64)[:, None] * O_row + at_k[None, :], mask=at_k[None, :] < 32, other=0.0)
        v_i += tl.sum(tl.where(at_k[None, :] < 32, x.to(tl.float32) * x_2.to(tl.float32), 0.0), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["dO_batch", "dO_head", "dO_row", "Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row", "bias_batch", "bias_head", "bias_row", "bias_several", "bias_within", "V_batch", "V_head", "V_row", "dQ_batch", "dQ_head", "dQ_row"])
def dQ(dO_ptr, v_ptr, Q_ptr, L_ptr, K_ptr, bias_ptr, V_ptr, dQ_ptr, n_q, n_k, dO_batch, dO_head, dO_row, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, bias_batch, bias_head, bias_row, bias_several, bias_within, V_batch, V_head, V_row, dQ_batch, dQ_head, dQ_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_k = tl.arange(0, 32)
    at_d_v = tl.arange(0, 32)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    v_ptr += head * n_q
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    L_ptr += head * n_q
    K_head, K_row = K_head * 8, K_row * 8
    K_ptr += batch * K_batch * 8 + own * K_head
    bias_head, bias_row = bias_head * 8, bias_row * 8
    bias_ptr += batch // bias_several * bias_batch * 8 + batch % bias_several * bias_within * 8 + own * bias_head
    V_head, V_row = V_head * 8, V_row * 8
    V_ptr += batch * V_batch * 8 + own * V_head
    dQ_head, dQ_row = dQ_head * 8, dQ_row * 8
    dQ_ptr += batch * dQ_batch * 8 + own * dQ_head
    i = tl.program_id(0)
    at_i = i * 64 + tl.arange(0, 64)
    dO_i = tl.load(dO_ptr + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :])
    v_i = tl.load(v_ptr + at_i)
    Q_i = tl.load(Q_ptr + i * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :])
    L_i = tl.load(L_ptr + at_i)
    dQ_i = tl.full((64, 32,), 0.0, tl.float32)
    for j in range(n_k // 64):
        at_j = j * 64 + tl.arange(0, 64)
        K_j = tl.load(K_ptr + j * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :])
        bias = tl.load(bias_ptr + i * 64 * bias_row + tl.arange(0, 64)[:, None] * bias_row + at_j[None, :])
        P = tl.dot(Q_i, tl.trans(K_j))
        P = P * 0.125 + bias.to(tl.float32)
        x = tl.load(V_ptr + j * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :])
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dQ_i = tl.dot(dS.to(tl.bfloat16), K_j, dQ_i)
    tl.store(dQ_ptr + i * 64 * dQ_row + tl.arange(0, 64)[:, None] * dQ_row + at_d_k[None, :], (dQ_i * 0.125).to(dQ_ptr.dtype.element_ty))

@triton.jit(do_not_specialize=["K_batch", "K_head", "K_row", "V_batch", "V_head", "V_row", "Q_batch", "Q_head", "Q_row", "dO_batch", "dO_head", "dO_row", "bias_T_batch", "bias_T_head", "bias_T_row", "bias_T_several", "bias_T_within", "dK_batch", "dK_head", "dK_row", "dV_batch", "dV_head", "dV_row"])
def dK_dV(K_ptr, V_ptr, Q_ptr, dO_ptr, L_ptr, v_ptr, bias_T_ptr, dK_ptr, dV_ptr, n_q, n_k, K_batch, K_head, K_row, V_batch, V_head, V_row, Q_batch, Q_head, Q_row, dO_batch, dO_head, dO_row, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_v = tl.arange(0, 32)
    at_d_k = tl.arange(0, 32)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    K_head, K_row = K_head * 8, K_row * 8
    K_ptr += batch * K_batch * 8 + own * K_head
    V_head, V_row = V_head * 8, V_row * 8
    V_ptr += batch * V_batch * 8 + own * V_head
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    L_ptr += head * n_q
    v_ptr += head * n_q
    bias_T_head, bias_T_row = bias_T_head * 8, bias_T_row * 8
    bias_T_ptr += batch // bias_T_several * bias_T_batch * 8 + batch % bias_T_several * bias_T_within * 8 + own * bias_T_head
    dK_head, dK_row = dK_head * 8, dK_row * 8
    dK_ptr += batch * dK_batch * 8 + own * dK_head
    dV_head, dV_row = dV_head * 8, dV_row * 8
    dV_ptr += batch * dV_batch * 8 + own * dV_head
    j = tl.program_id(0)
    at_j = j * 64 + tl.arange(0, 64)
    K_j = tl.load(K_ptr + j * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :])
    V_j = tl.load(V_ptr + j * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :])
    dK_j = tl.full((64, 32,), 0.0, tl.float32)
    dV_j = tl.full((64, 32,), 0.0, tl.float32)
    for i in range(n_q // 64):
        at_i = i * 64 + tl.arange(0, 64)
        Q_i = tl.load(Q_ptr + i * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :])
        dO_i = tl.load(dO_ptr + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :])
        L_i = tl.load(L_ptr + at_i)
        v_i = tl.load(v_ptr + at_i)
        bias_T = tl.load(bias_T_ptr + j * 64 * bias_T_row + tl.arange(0, 64)[:, None] * bias_T_row + at_i[None, :])
        P = tl.dot(K_j, tl.trans(Q_i))
        P = P * 0.125 + bias_T.to(tl.float32)
        dS = tl.dot(V_j, tl.trans(dO_i))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[None, :])
        dV_j = tl.dot(P.to(tl.bfloat16), dO_i, dV_j)
        dS = P * (dS - v_i.to(tl.float32)[None, :])
        dK_j = tl.dot(dS.to(tl.bfloat16), Q_i, dK_j)
    tl.store(dK_ptr + j * 64 * dK_row + tl.arange(0, 64)[:, None] * dK_row + at_d_k[None, :], (dK_j * 0.125).to(dK_ptr.dtype.element_ty))
    tl.store(dV_ptr + j * 64 * dV_row + tl.arange(0, 64)[:, None] * dV_row + at_d_v[None, :], dV_j.to(dV_ptr.dtype.element_ty))


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, bias_ptr, bias_T_ptr, results, dL=None):
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
    bias_batch, bias_within, bias_head, bias_row = (each // 8 for each in bias_ptr.stride()[:4])
    bias_several = bias_ptr.shape[1]
    bias_T_batch, bias_T_within, bias_T_head, bias_T_row = (each // 8 for each in bias_T_ptr.stride()[:4])
    bias_T_several = bias_T_ptr.shape[1]
    dQ_batch, dQ_head, dQ_row = (each // 8 for each in dQ_ptr.stride()[:3])
    dK_batch, dK_head, dK_row = (each // 8 for each in dK_ptr.stride()[:3])
    dV_batch, dV_head, dV_row = (each // 8 for each in dV_ptr.stride()[:3])
    if n_q % 64 or n_k % 64:
        raise ValueError("these kernels need n_q to be a multiple of 64 and n_k to be a multiple of 64")
    v_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    v[(n_q // 64, own, batch)](dO_ptr, O_ptr, v_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, num_warps=8, num_stages=3)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    dQ[(n_q // 64, own, batch)](dO_ptr, v_ptr, Q_ptr, L_ptr, K_ptr, bias_ptr, V_ptr, dQ_ptr, n_q, n_k, dO_batch, dO_head, dO_row, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, bias_batch, bias_head, bias_row, bias_several, bias_within, V_batch, V_head, V_row, dQ_batch, dQ_head, dQ_row, num_warps=8, num_stages=3)
    dK_dV[(n_k // 64, own, batch)](K_ptr, V_ptr, Q_ptr, dO_ptr, L_ptr, v_ptr, bias_T_ptr, dK_ptr, dV_ptr, n_q, n_k, K_batch, K_head, K_row, V_batch, V_head, V_row, Q_batch, Q_head, Q_row, dO_batch, dO_head, dO_row, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row, num_warps=8, num_stages=3)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
