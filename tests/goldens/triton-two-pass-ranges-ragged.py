"""backward-two-pass-blocked: d_k = 64, d_v = 64, B_r = 128, b_c = 64, B_c = 64, b_r = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


@triton.jit(do_not_specialize=["n_q", "n_k", "dO_batch", "dO_head", "dO_row", "O_batch", "O_head", "O_row"])
def v(dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * 2 * dO_head
    O_head, O_row = O_head * 8, O_row * 8
    O_ptr += batch * O_batch * 8 + own * 2 * O_head
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    L_ptr += head * n_q
    L_in_rows_ptr += head * (tl.cdiv(n_q, 16) * 16)
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    v_i = tl.full((128,), 0.0, tl.float32)
    for k in range(1):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 128 // 2 * dO_row + (tl.arange(0, 128) // 2)[:, None] * dO_row + (tl.arange(0, 128) % 2)[:, None] * dO_head + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        x_2 = tl.load(O_ptr + i * 128 // 2 * O_row + (tl.arange(0, 128) // 2)[:, None] * O_row + (tl.arange(0, 128) % 2)[:, None] * O_head + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        v_i += tl.sum(x.to(tl.float32) * x_2.to(tl.float32), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty), mask=at_i < n_q)
    L_i = tl.load(L_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    tl.store(L_in_rows_ptr + at_i, L_i.to(L_in_rows_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k", "dO_batch", "dO_head", "dO_row", "Q_batch", "Q_head", "Q_row", "K_batch", "K_head", "K_row", "V_batch", "V_head", "V_row", "dQ_batch", "dQ_head", "dQ_row"])
def dQ_1(dO_ptr, v_ptr, Q_ptr, L_in_rows_ptr, K_ptr, V_ptr, dQ_ptr, first_ptr, end_ptr, above_ptr, below_ptr, sharing, n_q, n_k, dO_batch, dO_head, dO_row, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row, dQ_batch, dQ_head, dQ_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_k = tl.arange(0, 64)
    at_d_v = tl.arange(0, 64)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * 2 * dO_head
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * 2 * Q_head
    L_in_rows_ptr += head * (tl.cdiv(n_q, 16) * 16)
    K_head, K_row = K_head * 8, 64
    K_ptr += batch * K_batch * 8 + own * K_head
    V_head, V_row = V_head * 8, 64
    V_ptr += batch * V_batch * 8 + own * V_head
    dQ_head, dQ_row = dQ_head * 8, dQ_row * 8
    dQ_ptr += batch * dQ_batch * 8 + own * 2 * dQ_head
    K_tiles = tl.make_tensor_descriptor(K_ptr, [n_k, 64], [K_row, 1], [64, 64])
    V_tiles = tl.make_tensor_descriptor(V_ptr, [n_k, 64], [V_row, 1], [64, 64])
    first_ptr += head // sharing * (n_q // 2)
    end_ptr += head // sharing * (n_q // 2)
    above_ptr += head // sharing * n_k
    below_ptr += head // sharing * n_k
    i = tl.program_id(0)
    i = tl.cdiv(n_q, 128) - 1 - i  # the longest first
    at_i = i * 128 + tl.arange(0, 128)
    at_i_first = tl.load(first_ptr + at_i // 2, mask=at_i < n_q, other=0)
    at_i_end = tl.load(end_ptr + at_i // 2, mask=at_i < n_q, other=0)
    dO_i = tl.load(dO_ptr + i * 128 // 2 * dO_row + (tl.arange(0, 128) // 2)[:, None] * dO_row + (tl.arange(0, 128) % 2)[:, None] * dO_head + at_d_v[None, :], mask=at_i[:, None] < n_q, other=0.0)
    v_i = tl.load(v_ptr + at_i, mask=at_i < n_q, other=0.0)
    Q_i = tl.load(Q_ptr + i * 128 // 2 * Q_row + (tl.arange(0, 128) // 2)[:, None] * Q_row + (tl.arange(0, 128) % 2)[:, None] * Q_head + at_d_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
    L_i = tl.load(L_in_rows_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    dQ_i = tl.full((128, 64,), 0.0, tl.float32)
    for j in range(tl.load(first_ptr + i * 128 // 2) // 64, tl.minimum(tl.maximum(tl.cdiv(tl.load(first_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.load(first_ptr + i * 128 // 2) // 64), tl.minimum(tl.cdiv(tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.cdiv(n_k, 64)) * (tl.load(first_ptr + i * 128 // 2) < tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1))))):
        at_j = j * 64 + tl.arange(0, 64)
        K_j = K_tiles.load([j * 64, 0])
        P = tl.dot(Q_i, tl.trans(K_j))
        x = V_tiles.load([j * 64, 0])
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.where((at_j[None, :] < n_k) & (at_j[None, :] >= at_i_first[:, None]) & (at_j[None, :] < at_i_end[:, None]), P, float("-inf"))
        P = tl.math.exp2(P * 0.18033688011112042 - tl.where(L_i != float("-inf"), L_i, 0.0)[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dQ_i = tl.dot(dS.to(tl.bfloat16), K_j, dQ_i)
    for j_2 in range(tl.minimum(tl.maximum(tl.cdiv(tl.load(first_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.load(first_ptr + i * 128 // 2) // 64), tl.minimum(tl.cdiv(tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.cdiv(n_k, 64)) * (tl.load(first_ptr + i * 128 // 2) < tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)))), tl.minimum(tl.maximum(tl.load(end_ptr + i * 128 // 2) // 64, tl.minimum(tl.maximum(tl.cdiv(tl.load(first_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.load(first_ptr + i * 128 // 2) // 64), tl.minimum(tl.cdiv(tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.cdiv(n_k, 64)) * (tl.load(first_ptr + i * 128 // 2) < tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1))))), tl.minimum(tl.cdiv(tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.cdiv(n_k, 64)) * (tl.load(first_ptr + i * 128 // 2) < tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1))))):
        at_j_2 = j_2 * 64 + tl.arange(0, 64)
        K_j = K_tiles.load([j_2 * 64, 0])
        P = tl.dot(Q_i, tl.trans(K_j))
        x = V_tiles.load([j_2 * 64, 0])
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.math.exp2(P * 0.18033688011112042 - L_i[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dQ_i = tl.dot(dS.to(tl.bfloat16), K_j, dQ_i)
    for j_3 in range(tl.minimum(tl.maximum(tl.load(end_ptr + i * 128 // 2) // 64, tl.minimum(tl.maximum(tl.cdiv(tl.load(first_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.load(first_ptr + i * 128 // 2) // 64), tl.minimum(tl.cdiv(tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.cdiv(n_k, 64)) * (tl.load(first_ptr + i * 128 // 2) < tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1))))), tl.minimum(tl.cdiv(tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.cdiv(n_k, 64)) * (tl.load(first_ptr + i * 128 // 2) < tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)))), tl.minimum(tl.cdiv(tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)), 64), tl.cdiv(n_k, 64)) * (tl.load(first_ptr + i * 128 // 2) < tl.load(end_ptr + ((tl.minimum((i + 1) * 128, n_q) - 1) // 2 + 1 - 1)))):
        at_j_3 = j_3 * 64 + tl.arange(0, 64)
        K_j = K_tiles.load([j_3 * 64, 0])
        P = tl.dot(Q_i, tl.trans(K_j))
        x = V_tiles.load([j_3 * 64, 0])
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.where((at_j_3[None, :] < n_k) & (at_j_3[None, :] >= at_i_first[:, None]) & (at_j_3[None, :] < at_i_end[:, None]), P, float("-inf"))
        P = tl.math.exp2(P * 0.18033688011112042 - tl.where(L_i != float("-inf"), L_i, 0.0)[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dQ_i = tl.dot(dS.to(tl.bfloat16), K_j, dQ_i)
    tl.store(dQ_ptr + i * 128 // 2 * dQ_row + (tl.arange(0, 128) // 2)[:, None] * dQ_row + (tl.arange(0, 128) % 2)[:, None] * dQ_head + at_d_k[None, :], (dQ_i * 0.125).to(dQ_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k", "K_batch", "K_head", "K_row", "V_batch", "V_head", "V_row", "Q_batch", "Q_head", "Q_row", "dO_batch", "dO_head", "dO_row", "dK_batch", "dK_head", "dK_row", "dV_batch", "dV_head", "dV_row"])
def dK_dV_1(K_ptr, V_ptr, Q_ptr, dO_ptr, L_in_rows_ptr, v_ptr, dK_ptr, dV_ptr, first_ptr, end_ptr, above_ptr, below_ptr, sharing, n_q, n_k, K_batch, K_head, K_row, V_batch, V_head, V_row, Q_batch, Q_head, Q_row, dO_batch, dO_head, dO_row, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    at_d_v = tl.arange(0, 64)
    at_d_k = tl.arange(0, 64)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    K_head, K_row = K_head * 8, 64
    K_ptr += batch * K_batch * 8 + own * K_head
    V_head, V_row = V_head * 8, 64
    V_ptr += batch * V_batch * 8 + own * V_head
    Q_head, Q_row = Q_head * 8, Q_row * 8
    Q_ptr += batch * Q_batch * 8 + own * 2 * Q_head
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * 2 * dO_head
    L_in_rows_ptr += head * (tl.cdiv(n_q, 16) * 16)
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    dK_head, dK_row = dK_head * 8, 64
    dK_ptr += batch * dK_batch * 8 + own * dK_head
    dV_head, dV_row = dV_head * 8, 64
    dV_ptr += batch * dV_batch * 8 + own * dV_head
    first_ptr += head // sharing * (n_q // 2)
    end_ptr += head // sharing * (n_q // 2)
    above_ptr += head // sharing * n_k
    below_ptr += head // sharing * n_k
    j = tl.program_id(0)
    at_j = j * 64 + tl.arange(0, 64)
    K_j = tl.load(K_ptr + j * 64 * K_row + tl.arange(0, 64)[:, None] * K_row + at_d_k[None, :], mask=at_j[:, None] < n_k, other=0.0)
    V_j = tl.load(V_ptr + j * 64 * V_row + tl.arange(0, 64)[:, None] * V_row + at_d_v[None, :], mask=at_j[:, None] < n_k, other=0.0)
    dK_j = tl.full((64, 64,), 0.0, tl.float32)
    dV_j = tl.full((64, 64,), 0.0, tl.float32)
    for i in range(tl.load(above_ptr + j * 64) * 2 // 64, tl.minimum(tl.maximum(tl.cdiv(tl.load(above_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.load(above_ptr + j * 64) * 2 // 64), tl.minimum(tl.cdiv(tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.cdiv(n_q, 64)) * (tl.load(above_ptr + j * 64) * 2 < tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2))):
        at_i = i * 64 + tl.arange(0, 64)
        at_i_first = tl.load(first_ptr + at_i // 2, mask=at_i < n_q, other=0)
        at_i_end = tl.load(end_ptr + at_i // 2, mask=at_i < n_q, other=0)
        Q_i = tl.load(Q_ptr + i * 64 // 2 * Q_row + (tl.arange(0, 64) // 2)[:, None] * Q_row + (tl.arange(0, 64) % 2)[:, None] * Q_head + at_d_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        dO_i = tl.load(dO_ptr + i * 64 // 2 * dO_row + (tl.arange(0, 64) // 2)[:, None] * dO_row + (tl.arange(0, 64) % 2)[:, None] * dO_head + at_d_v[None, :], mask=at_i[:, None] < n_q, other=0.0)
        L_i = tl.load(L_in_rows_ptr + at_i, mask=at_i < n_q, other=float("inf"))
        v_i = tl.load(v_ptr + at_i, mask=at_i < n_q, other=0.0)
        P = tl.dot(K_j, tl.trans(Q_i))
        dS = tl.dot(V_j, tl.trans(dO_i))
        P = tl.where((at_j[:, None] >= at_i_first[None, :]) & (at_j[:, None] < at_i_end[None, :]), P, float("-inf"))
        P = tl.math.exp2(P * 0.18033688011112042 - tl.where(L_i != float("-inf"), L_i, 0.0)[None, :])
        dV_j = tl.dot(P.to(tl.bfloat16), dO_i, dV_j)
        dS = P * (dS - v_i.to(tl.float32)[None, :])
        dK_j = tl.dot(dS.to(tl.bfloat16), Q_i, dK_j)
    for i_2 in range(tl.minimum(tl.maximum(tl.cdiv(tl.load(above_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.load(above_ptr + j * 64) * 2 // 64), tl.minimum(tl.cdiv(tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.cdiv(n_q, 64)) * (tl.load(above_ptr + j * 64) * 2 < tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2)), tl.minimum(tl.maximum(tl.load(below_ptr + j * 64) * 2 // 64, tl.minimum(tl.maximum(tl.cdiv(tl.load(above_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.load(above_ptr + j * 64) * 2 // 64), tl.minimum(tl.cdiv(tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.cdiv(n_q, 64)) * (tl.load(above_ptr + j * 64) * 2 < tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2))), tl.minimum(tl.cdiv(tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.cdiv(n_q, 64)) * (tl.load(above_ptr + j * 64) * 2 < tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2))):
        at_i_2 = i_2 * 64 + tl.arange(0, 64)
        at_i_2_first = tl.load(first_ptr + at_i_2 // 2, mask=at_i_2 < n_q, other=0)
        at_i_2_end = tl.load(end_ptr + at_i_2 // 2, mask=at_i_2 < n_q, other=0)
        Q_i = tl.load(Q_ptr + i_2 * 64 // 2 * Q_row + (tl.arange(0, 64) // 2)[:, None] * Q_row + (tl.arange(0, 64) % 2)[:, None] * Q_head + at_d_k[None, :])
        dO_i = tl.load(dO_ptr + i_2 * 64 // 2 * dO_row + (tl.arange(0, 64) // 2)[:, None] * dO_row + (tl.arange(0, 64) % 2)[:, None] * dO_head + at_d_v[None, :])
        L_i = tl.load(L_in_rows_ptr + at_i_2)
        v_i = tl.load(v_ptr + at_i_2)
        P = tl.dot(K_j, tl.trans(Q_i))
        dS = tl.dot(V_j, tl.trans(dO_i))
        P = tl.math.exp2(P * 0.18033688011112042 - L_i[None, :])
        dV_j = tl.dot(P.to(tl.bfloat16), dO_i, dV_j)
        dS = P * (dS - v_i.to(tl.float32)[None, :])
        dK_j = tl.dot(dS.to(tl.bfloat16), Q_i, dK_j)
    for i_3 in range(tl.minimum(tl.maximum(tl.load(below_ptr + j * 64) * 2 // 64, tl.minimum(tl.maximum(tl.cdiv(tl.load(above_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.load(above_ptr + j * 64) * 2 // 64), tl.minimum(tl.cdiv(tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.cdiv(n_q, 64)) * (tl.load(above_ptr + j * 64) * 2 < tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2))), tl.minimum(tl.cdiv(tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.cdiv(n_q, 64)) * (tl.load(above_ptr + j * 64) * 2 < tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2)), tl.minimum(tl.cdiv(tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2, 64), tl.cdiv(n_q, 64)) * (tl.load(above_ptr + j * 64) * 2 < tl.load(below_ptr + (tl.minimum((j + 1) * 64, n_k) - 1)) * 2)):
        at_i_3 = i_3 * 64 + tl.arange(0, 64)
        at_i_3_first = tl.load(first_ptr + at_i_3 // 2, mask=at_i_3 < n_q, other=0)
        at_i_3_end = tl.load(end_ptr + at_i_3 // 2, mask=at_i_3 < n_q, other=0)
        Q_i = tl.load(Q_ptr + i_3 * 64 // 2 * Q_row + (tl.arange(0, 64) // 2)[:, None] * Q_row + (tl.arange(0, 64) % 2)[:, None] * Q_head + at_d_k[None, :], mask=at_i_3[:, None] < n_q, other=0.0)
        dO_i = tl.load(dO_ptr + i_3 * 64 // 2 * dO_row + (tl.arange(0, 64) // 2)[:, None] * dO_row + (tl.arange(0, 64) % 2)[:, None] * dO_head + at_d_v[None, :], mask=at_i_3[:, None] < n_q, other=0.0)
        L_i = tl.load(L_in_rows_ptr + at_i_3, mask=at_i_3 < n_q, other=float("inf"))
        v_i = tl.load(v_ptr + at_i_3, mask=at_i_3 < n_q, other=0.0)
        P = tl.dot(K_j, tl.trans(Q_i))
        dS = tl.dot(V_j, tl.trans(dO_i))
        P = tl.where((at_j[:, None] >= at_i_3_first[None, :]) & (at_j[:, None] < at_i_3_end[None, :]), P, float("-inf"))
        P = tl.math.exp2(P * 0.18033688011112042 - tl.where(L_i != float("-inf"), L_i, 0.0)[None, :])
        dV_j = tl.dot(P.to(tl.bfloat16), dO_i, dV_j)
        dS = P * (dS - v_i.to(tl.float32)[None, :])
        dK_j = tl.dot(dS.to(tl.bfloat16), Q_i, dK_j)
    tl.store(dK_ptr + j * 64 * dK_row + tl.arange(0, 64)[:, None] * dK_row + at_d_k[None, :], (dK_j * 0.125).to(dK_ptr.dtype.element_ty), mask=at_j[:, None] < n_k)
    tl.store(dV_ptr + j * 64 * dV_row + tl.arange(0, 64)[:, None] * dV_row + at_d_v[None, :], dV_j.to(dV_ptr.dtype.element_ty), mask=at_j[:, None] < n_k)


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, first_ptr, end_ptr, above_ptr, below_ptr, results, dL=None):
    """dQ, dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    sharing = own
    dQ_ptr = results["dQ"]
    dK_ptr = results["dK"]
    dV_ptr = results["dV"]
    n_q = Q_ptr.shape[2] * 2
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    dO_batch, dO_head, dO_row = (each // 8 for each in dO_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    dQ_batch, dQ_head, dQ_row = (each // 8 for each in dQ_ptr.stride()[:3])
    dK_batch, dK_head, dK_row = (each // 8 for each in dK_ptr.stride()[:3])
    dV_batch, dV_head, dV_row = (each // 8 for each in dV_ptr.stride()[:3])
    v_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    L_in_rows_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    triton.set_allocator(room)
    v[(triton.cdiv(n_q, 128), own, batch)](dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, num_warps=8, num_stages=4)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    dQ_1[(triton.cdiv(n_q, 128), own, batch)](dO_ptr, v_ptr, Q_ptr, L_in_rows_ptr, K_ptr, V_ptr, dQ_ptr, first_ptr, end_ptr, above_ptr, below_ptr, sharing, n_q, n_k, dO_batch, dO_head, dO_row, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row, dQ_batch, dQ_head, dQ_row, num_warps=8, num_stages=4, maxnreg=128)
    dK_dV_1[(triton.cdiv(n_k, 64), own, batch)](K_ptr, V_ptr, Q_ptr, dO_ptr, L_in_rows_ptr, v_ptr, dK_ptr, dV_ptr, first_ptr, end_ptr, above_ptr, below_ptr, sharing, n_q, n_k, K_batch, K_head, K_row, V_batch, V_head, V_row, Q_batch, Q_head, Q_row, dO_batch, dO_head, dO_row, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row, num_warps=4, num_stages=3)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
