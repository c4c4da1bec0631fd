"""backward-two-pass-blocked: d_k = 32, d_v = 32, B_r = 64, b_c = 64, B_c = 64, b_r = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["R", "n_q", "n_k", "dO_batch", "dO_head", "dO_row", "dO_copy", "O_batch", "O_head", "O_row", "O_copy"])
def v(dO_ptr, O_ptr, v_ptr, R, n_q, n_k, dO_batch, dO_head, dO_row, dO_copy, O_batch, O_head, O_row, O_copy):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    dO_copy = dO_copy * 8
    O_head, O_row = O_head * 8, O_row * 8
    O_ptr += batch * O_batch * 8 + own * O_head
    O_copy = O_copy * 8
    v_ptr += (batch * tl.cdiv(R, 1) * tl.num_programs(1) + own) * (tl.cdiv(n_q, 16) * 16)
    i = tl.program_id(0)
    at_i = i * 64 + tl.arange(0, 64)
    v_i = tl.full((64,), 0.0, tl.float32)
    v_i_2 = tl.full((64,), 0.0, tl.float32)
    for k in range(1):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_k[None, :], mask=(at_i[:, None] < n_q) & (at_k[None, :] < 32), other=0.0)
        x_2 = tl.load(O_ptr + i * 64 * O_row + tl.arange(0, 64)[:, None] * O_row + at_k[None, :], mask=(at_i[:, None] < n_q) & (at_k[None, :] < 32), other=0.0)
        v_i += tl.sum(tl.where(at_k[None, :] < 32, x.to(tl.float32) * x_2.to(tl.float32), 0.0), axis=1)
        x_3 = tl.load(dO_ptr + tl.cast(1, tl.int64) * dO_copy + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_k[None, :], mask=(at_i[:, None] < n_q) & (at_k[None, :] < 32), other=0.0)
        x_4 = tl.load(O_ptr + tl.cast(1, tl.int64) * O_copy + i * 64 * O_row + tl.arange(0, 64)[:, None] * O_row + at_k[None, :], mask=(at_i[:, None] < n_q) & (at_k[None, :] < 32), other=0.0)
        v_i_2 += tl.sum(tl.where(at_k[None, :] < 32, x_3.to(tl.float32) * x_4.to(tl.float32), 0.0), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty), mask=at_i < n_q)
    tl.store(v_ptr + tl.cast(1, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i, v_i_2.to(v_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["R", "n_q", "n_k", "dO_batch", "dO_head", "dO_row", "dO_copy", "Q_batch", "Q_head", "Q_row", "Q_copy", "bias_batch", "bias_head", "bias_row", "bias_several", "bias_within", "K_batch", "K_head", "K_row", "K_copy", "V_batch", "V_head", "V_row", "V_copy", "dQ_batch", "dQ_head", "dQ_row", "dQ_copy"])
def dQ(dO_ptr, v_ptr, Q_ptr, L_ptr, bias_ptr, K_ptr, V_ptr, dQ_ptr, R, n_q, n_k, dO_batch, dO_head, dO_row, dO_copy, Q_batch, Q_head, Q_row, Q_copy, bias_batch, bias_head, bias_row, bias_several, bias_within, K_batch, K_head, K_row, K_copy, V_batch, V_head, V_row, V_copy, dQ_batch, dQ_head, dQ_row, dQ_copy):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_k = tl.arange(0, 32)
    at_d_v = tl.arange(0, 32)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    dO_copy = dO_copy * 8
    v_ptr += (batch * tl.cdiv(R, 1) * tl.num_programs(1) + own) * (tl.cdiv(n_q, 16) * 16)
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    Q_copy = Q_copy * 8
    L_ptr += (batch * tl.cdiv(R, 1) * tl.num_programs(1) + own) * (tl.cdiv(n_q, 16) * 16)
    bias_head, bias_row = bias_head * 8, bias_row * 8
    bias_ptr += batch // bias_several * bias_batch * 8 + batch % bias_several * bias_within * 8 + own * bias_head
    K_head, K_row = K_head * 8, K_row * 8
    K_ptr += batch * K_batch * 8 + own * K_head
    K_copy = K_copy * 8
    V_head, V_row = V_head * 8, V_row * 8
    V_ptr += batch * V_batch * 8 + own * V_head
    V_copy = V_copy * 8
    dQ_head, dQ_row = dQ_head * 8, dQ_row * 8
    dQ_ptr += batch * dQ_batch * 8 + own * dQ_head
    dQ_copy = dQ_copy * 8
    i = tl.program_id(0)
    at_i = i * 64 + tl.arange(0, 64)
    dO_i = tl.load(dO_ptr + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :], mask=at_i[:, None] < n_q, other=0.0)
    v_i = tl.load(v_ptr + at_i, mask=at_i < n_q, other=0.0)
    Q_i = tl.load(Q_ptr + i * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
    L_i = tl.load(L_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    dQ_i = tl.full((64, 32,), 0.0, tl.float32)
    dO_i_2 = tl.load(dO_ptr + tl.cast(1, tl.int64) * dO_copy + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :], mask=at_i[:, None] < n_q, other=0.0)
    v_i_2 = tl.load(v_ptr + tl.cast(1, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i, mask=at_i < n_q, other=0.0)
    Q_i_2 = tl.load(Q_ptr + tl.cast(1, tl.int64) * Q_copy + i * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
    L_i_2 = tl.load(L_ptr + tl.cast(1, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i, mask=at_i < n_q, other=float("inf"))
    dQ_i_2 = tl.full((64, 32,), 0.0, tl.float32)
    for j in range(n_k // 64):
        at_j = j * 64 + tl.arange(0, 64)
        bias = tl.load(bias_ptr + i * 64 * bias_row + tl.arange(0, 64)[:, None] * bias_row + at_j[None, :], mask=at_i[:, None] < n_q, other=0.0)
        K_j = tl.load(K_ptr + j * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :])
        P = tl.dot(Q_i, tl.trans(K_j))
        P = P * 0.125 + bias.to(tl.float32)
        x = tl.load(V_ptr + j * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :])
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dQ_i = tl.dot(dS.to(tl.bfloat16), K_j, dQ_i)
        K_j_2 = tl.load(K_ptr + tl.cast(1, tl.int64) * K_copy + j * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :])
        P_2 = tl.dot(Q_i_2, tl.trans(K_j_2))
        P_2 = P_2 * 0.125 + bias.to(tl.float32)
        x_2 = tl.load(V_ptr + tl.cast(1, tl.int64) * V_copy + j * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :])
        dS_2 = tl.dot(dO_i_2, tl.trans(x_2))
        P_2 = tl.math.exp2(P_2 * 1.4426950408889634 - L_i_2[:, None])
        dS_2 = P_2 * (dS_2 - v_i_2.to(tl.float32)[:, None])
        dQ_i_2 = tl.dot(dS_2.to(tl.bfloat16), K_j_2, dQ_i_2)
    for j_2 in tl.range(n_k // 64, tl.cdiv(n_k, 64), num_stages=1):
        at_j_2 = j_2 * 64 + tl.arange(0, 64)
        bias = tl.load(bias_ptr + i * 64 * bias_row + tl.arange(0, 64)[:, None] * bias_row + at_j_2[None, :], mask=(at_i[:, None] < n_q) & (at_j_2[None, :] < n_k), other=0.0)
        K_j = tl.load(K_ptr + j_2 * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :], mask=at_j_2[:, None] < n_k, other=0.0)
        P = tl.dot(Q_i, tl.trans(K_j))
        P = P * 0.125 + bias.to(tl.float32)
        x = tl.load(V_ptr + j_2 * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :], mask=at_j_2[:, None] < n_k, other=0.0)
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dQ_i = tl.dot(tl.where(at_j_2[None, :] < n_k, dS, 0.0).to(tl.bfloat16), K_j, dQ_i)
        K_j_2 = tl.load(K_ptr + tl.cast(1, tl.int64) * K_copy + j_2 * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :], mask=at_j_2[:, None] < n_k, other=0.0)
        P_2 = tl.dot(Q_i_2, tl.trans(K_j_2))
        P_2 = P_2 * 0.125 + bias.to(tl.float32)
        x_2 = tl.load(V_ptr + tl.cast(1, tl.int64) * V_copy + j_2 * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :], mask=at_j_2[:, None] < n_k, other=0.0)
        dS_2 = tl.dot(dO_i_2, tl.trans(x_2))
        P_2 = tl.math.exp2(P_2 * 1.4426950408889634 - L_i_2[:, None])
        dS_2 = P_2 * (dS_2 - v_i_2.to(tl.float32)[:, None])
        dQ_i_2 = tl.dot(tl.where(at_j_2[None, :] < n_k, dS_2, 0.0).to(tl.bfloat16), K_j_2, dQ_i_2)
    tl.store(dQ_ptr + i * 64 * dQ_row + tl.arange(0, 64)[:, None] * dQ_row + at_d_k[None, :], (dQ_i * 0.125).to(dQ_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)
    tl.store(dQ_ptr + tl.cast(1, tl.int64) * dQ_copy + i * 64 * dQ_row + tl.arange(0, 64)[:, None] * dQ_row + at_d_k[None, :], (dQ_i_2 * 0.125).to(dQ_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)

@triton.jit(do_not_specialize=["R", "n_q", "n_k", "K_batch", "K_head", "K_row", "K_copy", "V_batch", "V_head", "V_row", "V_copy", "bias_T_batch", "bias_T_head", "bias_T_row", "bias_T_several", "bias_T_within", "Q_batch", "Q_head", "Q_row", "Q_copy", "dO_batch", "dO_head", "dO_row", "dO_copy", "dK_batch", "dK_head", "dK_row", "dK_copy", "dV_batch", "dV_head", "dV_row", "dV_copy"])
def dK_dV(K_ptr, V_ptr, bias_T_ptr, Q_ptr, dO_ptr, L_ptr, v_ptr, dK_ptr, dV_ptr, R, n_q, n_k, K_batch, K_head, K_row, K_copy, V_batch, V_head, V_row, V_copy, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, Q_batch, Q_head, Q_row, Q_copy, dO_batch, dO_head, dO_row, dO_copy, dK_batch, dK_head, dK_row, dK_copy, dV_batch, dV_head, dV_row, dV_copy):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_v = tl.arange(0, 32)
    at_d_k = tl.arange(0, 32)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    K_head, K_row = K_head * 8, K_row * 8
    K_ptr += batch * K_batch * 8 + own * K_head
    K_copy = K_copy * 8
    V_head, V_row = V_head * 8, V_row * 8
    V_ptr += batch * V_batch * 8 + own * V_head
    V_copy = V_copy * 8
    bias_T_head, bias_T_row = bias_T_head * 8, bias_T_row * 8
    bias_T_ptr += batch // bias_T_several * bias_T_batch * 8 + batch % bias_T_several * bias_T_within * 8 + own * bias_T_head
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * Q_head
    Q_copy = Q_copy * 8
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    dO_copy = dO_copy * 8
    L_ptr += (batch * tl.cdiv(R, 1) * tl.num_programs(1) + own) * (tl.cdiv(n_q, 16) * 16)
    v_ptr += (batch * tl.cdiv(R, 1) * tl.num_programs(1) + own) * (tl.cdiv(n_q, 16) * 16)
    dK_head, dK_row = dK_head * 8, dK_row * 8
    dK_ptr += batch * dK_batch * 8 + own * dK_head
    dK_copy = dK_copy * 8
    dV_head, dV_row = dV_head * 8, dV_row * 8
    dV_ptr += batch * dV_batch * 8 + own * dV_head
    dV_copy = dV_copy * 8
    j = tl.program_id(0)
    at_j = j * 64 + tl.arange(0, 64)
    K_j = tl.load(K_ptr + j * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :], mask=at_j[:, None] < n_k, other=0.0)
    V_j = tl.load(V_ptr + j * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :], mask=at_j[:, None] < n_k, other=0.0)
    dK_j = tl.full((64, 32,), 0.0, tl.float32)
    dV_j = tl.full((64, 32,), 0.0, tl.float32)
    K_j_2 = tl.load(K_ptr + tl.cast(1, tl.int64) * K_copy + j * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :], mask=at_j[:, None] < n_k, other=0.0)
    V_j_2 = tl.load(V_ptr + tl.cast(1, tl.int64) * V_copy + j * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :], mask=at_j[:, None] < n_k, other=0.0)
    dK_j_2 = tl.full((64, 32,), 0.0, tl.float32)
    dV_j_2 = tl.full((64, 32,), 0.0, tl.float32)
    for i in range(n_q // 64):
        at_i = i * 64 + tl.arange(0, 64)
        bias_T = tl.load(bias_T_ptr + j * 64 * bias_T_row + tl.arange(0, 64)[:, None] * bias_T_row + at_i[None, :], mask=at_j[:, None] < n_k, other=0.0)
        Q_i = tl.load(Q_ptr + i * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :])
        dO_i = tl.load(dO_ptr + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :])
        L_i = tl.load(L_ptr + at_i)
        v_i = tl.load(v_ptr + at_i)
        P = tl.dot(K_j, tl.trans(Q_i))
        P = P * 0.125 + bias_T.to(tl.float32)
        dS = tl.dot(V_j, tl.trans(dO_i))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[None, :])
        dV_j = tl.dot(P.to(tl.bfloat16), dO_i, dV_j)
        dS = P * (dS - v_i.to(tl.float32)[None, :])
        dK_j = tl.dot(dS.to(tl.bfloat16), Q_i, dK_j)
        Q_i_2 = tl.load(Q_ptr + tl.cast(1, tl.int64) * Q_copy + i * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :])
        dO_i_2 = tl.load(dO_ptr + tl.cast(1, tl.int64) * dO_copy + i * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :])
        L_i_2 = tl.load(L_ptr + tl.cast(1, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i)
        v_i_2 = tl.load(v_ptr + tl.cast(1, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i)
        P_2 = tl.dot(K_j_2, tl.trans(Q_i_2))
        P_2 = P_2 * 0.125 + bias_T.to(tl.float32)
        dS_2 = tl.dot(V_j_2, tl.trans(dO_i_2))
        P_2 = tl.math.exp2(P_2 * 1.4426950408889634 - L_i_2[None, :])
        dV_j_2 = tl.dot(P_2.to(tl.bfloat16), dO_i_2, dV_j_2)
        dS_2 = P_2 * (dS_2 - v_i_2.to(tl.float32)[None, :])
        dK_j_2 = tl.dot(dS_2.to(tl.bfloat16), Q_i_2, dK_j_2)
    for i_2 in tl.range(n_q // 64, tl.cdiv(n_q, 64), num_stages=1):
        at_i_2 = i_2 * 64 + tl.arange(0, 64)
        bias_T = tl.load(bias_T_ptr + j * 64 * bias_T_row + tl.arange(0, 64)[:, None] * bias_T_row + at_i_2[None, :], mask=(at_j[:, None] < n_k) & (at_i_2[None, :] < n_q), other=0.0)
        Q_i = tl.load(Q_ptr + i_2 * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :], mask=at_i_2[:, None] < n_q, other=0.0)
        dO_i = tl.load(dO_ptr + i_2 * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :], mask=at_i_2[:, None] < n_q, other=0.0)
        L_i = tl.load(L_ptr + at_i_2, mask=at_i_2 < n_q, other=float("inf"))
        v_i = tl.load(v_ptr + at_i_2, mask=at_i_2 < n_q, other=0.0)
        P = tl.dot(K_j, tl.trans(Q_i))
        P = P * 0.125 + bias_T.to(tl.float32)
        dS = tl.dot(V_j, tl.trans(dO_i))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[None, :])
        dV_j = tl.dot(P.to(tl.bfloat16), dO_i, dV_j)
        dS = P * (dS - v_i.to(tl.float32)[None, :])
        dK_j = tl.dot(dS.to(tl.bfloat16), Q_i, dK_j)
        Q_i_2 = tl.load(Q_ptr + tl.cast(1, tl.int64) * Q_copy + i_2 * 64 * Q_row + tl.arange(0, 64)[:, None] * Q_row + at_d_k[None, :], mask=at_i_2[:, None] < n_q, other=0.0)
        dO_i_2 = tl.load(dO_ptr + tl.cast(1, tl.int64) * dO_copy + i_2 * 64 * dO_row + tl.arange(0, 64)[:, None] * dO_row + at_d_v[None, :], mask=at_i_2[:, None] < n_q, other=0.0)
        L_i_2 = tl.load(L_ptr + tl.cast(1, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i_2, mask=at_i_2 < n_q, other=float("inf"))
        v_i_2 = tl.load(v_ptr + tl.cast(1, tl.int64) * tl.num_programs(1) * (tl.cdiv(n_q, 16) * 16) + at_i_2, mask=at_i_2 < n_q, other=0.0)
        P_2 = tl.dot(K_j_2, tl.trans(Q_i_2))
        P_2 = P_2 * 0.125 + bias_T.to(tl.float32)
        dS_2 = tl.dot(V_j_2, tl.trans(dO_i_2))
        P_2 = tl.math.exp2(P_2 * 1.4426950408889634 - L_i_2[None, :])
        dV_j_2 = tl.dot(P_2.to(tl.bfloat16), dO_i_2, dV_j_2)
        dS_2 = P_2 * (dS_2 - v_i_2.to(tl.float32)[None, :])
        dK_j_2 = tl.dot(dS_2.to(tl.bfloat16), Q_i_2, dK_j_2)
    tl.store(dK_ptr + j * 64 * dK_row + tl.arange(0, 64)[:, None] * dK_row + at_d_k[None, :], (dK_j * 0.125).to(dK_ptr.dtype.element_ty), mask=at_j[:, None] < n_k)
    tl.store(dV_ptr + j * 64 * dV_row + tl.arange(0, 64)[:, None] * dV_row + at_d_v[None, :], dV_j.to(dV_ptr.dtype.element_ty), mask=at_j[:, None] < n_k)
    tl.store(dK_ptr + tl.cast(1, tl.int64) * dK_copy + j * 64 * dK_row + tl.arange(0, 64)[:, None] * dK_row + at_d_k[None, :], (dK_j_2 * 0.125).to(dK_ptr.dtype.element_ty), mask=at_j[:, None] < n_k)
    tl.store(dV_ptr + tl.cast(1, tl.int64) * dV_copy + j * 64 * dV_row + tl.arange(0, 64)[:, None] * dV_row + at_d_v[None, :], dV_j_2.to(dV_ptr.dtype.element_ty), mask=at_j[:, None] < n_k)


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, bias_ptr, bias_T_ptr, results, dL=None):
    """dQ, dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:3:2], K_ptr.device
    heads = batch * own
    dQ_ptr = results["dQ"]
    dK_ptr = results["dK"]
    dV_ptr = results["dV"]
    R = K_ptr.shape[1]
    n_q = Q_ptr.shape[3]
    n_k = K_ptr.shape[3]
    Q_batch, Q_copy, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:4])
    K_batch, K_copy, K_head, K_row = (each // 8 for each in K_ptr.stride()[:4])
    V_batch, V_copy, V_head, V_row = (each // 8 for each in V_ptr.stride()[:4])
    dO_batch, dO_copy, dO_head, dO_row = (each // 8 for each in dO_ptr.stride()[:4])
    O_batch, O_copy, O_head, O_row = (each // 8 for each in O_ptr.stride()[:4])
    bias_batch, bias_within, bias_head, bias_row = (each // 8 for each in bias_ptr.stride()[:4])
    bias_several = bias_ptr.shape[1]
    bias_T_batch, bias_T_within, bias_T_head, bias_T_row = (each // 8 for each in bias_T_ptr.stride()[:4])
    bias_T_several = bias_T_ptr.shape[1]
    dQ_batch, dQ_copy, dQ_head, dQ_row = (each // 8 for each in dQ_ptr.stride()[:4])
    dK_batch, dK_copy, dK_head, dK_row = (each // 8 for each in dK_ptr.stride()[:4])
    dV_batch, dV_copy, dV_head, dV_row = (each // 8 for each in dV_ptr.stride()[:4])
    if n_q % 16:  # each head's begins where wide accesses can
        given, L_ptr = L_ptr, torch.empty((heads, triton.cdiv(R, 1), triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
        L_ptr[:, :, :n_q].copy_(given)
    v_ptr = torch.empty((heads, triton.cdiv(R, 1), triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    v[(triton.cdiv(n_q, 64), own, batch)](dO_ptr, O_ptr, v_ptr, R, n_q, n_k, dO_batch, dO_head, dO_row, dO_copy, O_batch, O_head, O_row, O_copy, num_warps=8, num_stages=3)
    if dL is not None:
        v_ptr[:, :, :n_q].sub_(dL)
    dQ[(triton.cdiv(n_q, 64), own, batch)](dO_ptr, v_ptr, Q_ptr, L_ptr, bias_ptr, K_ptr, V_ptr, dQ_ptr, R, n_q, n_k, dO_batch, dO_head, dO_row, dO_copy, Q_batch, Q_head, Q_row, Q_copy, bias_batch, bias_head, bias_row, bias_several, bias_within, K_batch, K_head, K_row, K_copy, V_batch, V_head, V_row, V_copy, dQ_batch, dQ_head, dQ_row, dQ_copy, num_warps=8, num_stages=3)
    dK_dV[(triton.cdiv(n_k, 64), own, batch)](K_ptr, V_ptr, bias_T_ptr, Q_ptr, dO_ptr, L_ptr, v_ptr, dK_ptr, dV_ptr, R, n_q, n_k, K_batch, K_head, K_row, K_copy, V_batch, V_head, V_row, V_copy, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, Q_batch, Q_head, Q_row, Q_copy, dO_batch, dO_head, dO_row, dO_copy, dK_batch, dK_head, dK_row, dK_copy, dV_batch, dV_head, dV_row, dV_copy, num_warps=8, num_stages=3)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
