"""backward-two-pass-blocked: d_k = 64, d_v = 64, B_r = 128, b_c = 64, B_c = 64, b_r = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl

def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


@triton.jit(do_not_specialize=["n_q", "n_k"])
def v(dO_ptr, O_ptr, v_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    dO_ptr += head * n_q * 64
    O_ptr += head * n_q * 64
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    v_i = tl.full((128,), 0.0, tl.float32)
    for k in range(1):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 128 * 64 + tl.arange(0, 128)[:, None] * 64 + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        x_2 = tl.load(O_ptr + i * 128 * 64 + tl.arange(0, 128)[:, None] * 64 + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        v_i += tl.sum(x.to(tl.float32) * x_2.to(tl.float32), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty), mask=at_i < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k"])
def dQ(dO_ptr, v_ptr, Q_ptr, L_ptr, K_ptr, bias_ptr, V_ptr, dQ_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    at_d_k = tl.arange(0, 64)
    at_d_v = tl.arange(0, 64)
    dO_ptr += head * n_q * 64
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    Q_ptr += head * n_q * 64
    L_ptr += head * (tl.cdiv(n_q, 16) * 16)
    K_ptr += head * n_k * 64
    bias_ptr += head * n_q * n_k
    V_ptr += head * n_k * 64
    dQ_ptr += head * n_q * 64
    K_tiles = tl.make_tensor_descriptor(K_ptr, [n_k, 64], [64, 1], [64, 64])
    V_tiles = tl.make_tensor_descriptor(V_ptr, [n_k, 64], [64, 1], [64, 64])
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    dO_i = tl.load(dO_ptr + i * 128 * 64 + tl.arange(0, 128)[:, None] * 64 + at_d_v[None, :], mask=at_i[:, None] < n_q, other=0.0)
    v_i = tl.load(v_ptr + at_i, mask=at_i < n_q, other=0.0)
    Q_i = tl.load(Q_ptr + i * 128 * 64 + tl.arange(0, 128)[:, None] * 64 + at_d_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
    L_i = tl.load(L_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    dQ_i = tl.full((128, 64,), 0.0, tl.float32)
    for j in range(n_k // 64):
        at_j = j * 64 + tl.arange(0, 64)
        K_j = K_tiles.load([j * 64, 0])
        bias = tl.load(bias_ptr + i * 128 * n_k + tl.arange(0, 128)[:, None] * n_k + at_j[None, :], mask=at_i[:, None] < n_q, other=0.0)
        P = tl.dot(Q_i, tl.trans(K_j))
        P = P * 0.125 + bias.to(tl.float32)
        x = V_tiles.load([j * 64, 0])
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dQ_i = tl.dot(dS.to(tl.bfloat16), K_j, dQ_i)
    for j_2 in tl.range(n_k // 64, tl.cdiv(n_k, 64), num_stages=1):
        at_j_2 = j_2 * 64 + tl.arange(0, 64)
        K_j = K_tiles.load([j_2 * 64, 0])
        bias = tl.load(bias_ptr + i * 128 * n_k + tl.arange(0, 128)[:, None] * n_k + at_j_2[None, :], mask=(at_i[:, None] < n_q) & (at_j_2[None, :] < n_k), other=0.0)
        P = tl.dot(Q_i, tl.trans(K_j))
        P = P * 0.125 + bias.to(tl.float32)
        x = V_tiles.load([j_2 * 64, 0])
        dS = tl.dot(dO_i, tl.trans(x))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[:, None])
        dS = P * (dS - v_i.to(tl.float32)[:, None])
        dQ_i = tl.dot(tl.where(at_j_2[None, :] < n_k, dS, 0.0).to(tl.bfloat16), K_j, dQ_i)
    tl.store(dQ_ptr + i * 128 * 64 + tl.arange(0, 128)[:, None] * 64 + at_d_k[None, :], (dQ_i * 0.125).to(dQ_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)

@triton.jit(do_not_specialize=["n_q", "n_k"])
def dK_dV(K_ptr, V_ptr, Q_ptr, dO_ptr, L_ptr, v_ptr, bias_ptr, dK_ptr, dV_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    at_d_v = tl.arange(0, 64)
    at_d_k = tl.arange(0, 64)
    K_ptr += head * n_k * 64
    V_ptr += head * n_k * 64
    Q_ptr += head * n_q * 64
    dO_ptr += head * n_q * 64
    L_ptr += head * (tl.cdiv(n_q, 16) * 16)
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    bias_ptr += head * n_q * n_k
    dK_ptr += head * n_k * 64
    dV_ptr += head * n_k * 64
    Q_tiles = tl.make_tensor_descriptor(Q_ptr, [n_q, 64], [64, 1], [64, 64])
    dO_tiles = tl.make_tensor_descriptor(dO_ptr, [n_q, 64], [64, 1], [64, 64])
    j = tl.program_id(0)
    at_j = j * 64 + tl.arange(0, 64)
    K_j = tl.load(K_ptr + j * 64 * 64 + tl.arange(0, 64)[:, None] * 64 + at_d_k[None, :], mask=at_j[:, None] < n_k, other=0.0)
    V_j = tl.load(V_ptr + j * 64 * 64 + tl.arange(0, 64)[:, None] * 64 + at_d_v[None, :], mask=at_j[:, None] < n_k, other=0.0)
    dK_j = tl.full((64, 64,), 0.0, tl.float32)
    dV_j = tl.full((64, 64,), 0.0, tl.float32)
    for i in range(n_q // 64):
        at_i = i * 64 + tl.arange(0, 64)
        Q_i = Q_tiles.load([i * 64, 0])
        dO_i = dO_tiles.load([i * 64, 0])
        L_i = tl.load(L_ptr + at_i)
        v_i = tl.load(v_ptr + at_i)
        bias = tl.load(bias_ptr + i * 64 * n_k + tl.arange(0, 64)[:, None] * n_k + at_j[None, :], mask=at_j[None, :] < n_k, other=0.0)
        P = tl.dot(K_j, tl.trans(Q_i))
        P = P * 0.125 + tl.trans(bias.to(tl.float32))
        dS = tl.dot(V_j, tl.trans(dO_i))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[None, :])
        dV_j = tl.dot(P.to(tl.bfloat16), dO_i, dV_j)
        dS = P * (dS - v_i.to(tl.float32)[None, :])
        dK_j = tl.dot(dS.to(tl.bfloat16), Q_i, dK_j)
    for i_2 in tl.range(n_q // 64, tl.cdiv(n_q, 64), num_stages=1):
        at_i_2 = i_2 * 64 + tl.arange(0, 64)
        Q_i = Q_tiles.load([i_2 * 64, 0])
        dO_i = dO_tiles.load([i_2 * 64, 0])
        L_i = tl.load(L_ptr + at_i_2, mask=at_i_2 < n_q, other=float("inf"))
        v_i = tl.load(v_ptr + at_i_2, mask=at_i_2 < n_q, other=0.0)
        bias = tl.load(bias_ptr + i_2 * 64 * n_k + tl.arange(0, 64)[:, None] * n_k + at_j[None, :], mask=(at_i_2[:, None] < n_q) & (at_j[None, :] < n_k), other=0.0)
        P = tl.dot(K_j, tl.trans(Q_i))
        P = P * 0.125 + tl.trans(bias.to(tl.float32))
        dS = tl.dot(V_j, tl.trans(dO_i))
        P = tl.math.exp2(P * 1.4426950408889634 - L_i[None, :])
        dV_j = tl.dot(P.to(tl.bfloat16), dO_i, dV_j)
        dS = P * (dS - v_i.to(tl.float32)[None, :])
        dK_j = tl.dot(dS.to(tl.bfloat16), Q_i, dK_j)
    tl.store(dK_ptr + j * 64 * 64 + tl.arange(0, 64)[:, None] * 64 + at_d_k[None, :], (dK_j * 0.125).to(dK_ptr.dtype.element_ty), mask=at_j[:, None] < n_k)
    tl.store(dV_ptr + j * 64 * 64 + tl.arange(0, 64)[:, None] * 64 + at_d_v[None, :], dV_j.to(dV_ptr.dtype.element_ty), mask=at_j[:, None] < n_k)


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, bias_ptr, dL=None):
    """dQ, dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    heads, device = Q_ptr.shape[0], Q_ptr.device
    n_q = Q_ptr.shape[1]
    n_k = K_ptr.shape[1]
    if max(each.shape[1] * each.shape[2] for each in (Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, bias_ptr,)) >= 2**31:
        raise ValueError("these kernels need heads of less than 2**31 words")
    if n_q % 16:  # each head's begins where wide accesses can
        given, L_ptr = L_ptr, torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
        L_ptr[:, :n_q].copy_(given)
    dQ_ptr = torch.empty((heads, n_q, 64), dtype=torch.bfloat16, device=device)
    dK_ptr = torch.empty((heads, n_k, 64), dtype=torch.bfloat16, device=device)
    dV_ptr = torch.empty((heads, n_k, 64), dtype=torch.bfloat16, device=device)
    v_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    triton.set_allocator(room)
    v[(triton.cdiv(n_q, 128), heads)](dO_ptr, O_ptr, v_ptr, n_q, n_k, num_warps=8, num_stages=4)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    dQ[(triton.cdiv(n_q, 128), heads)](dO_ptr, v_ptr, Q_ptr, L_ptr, K_ptr, bias_ptr, V_ptr, dQ_ptr, n_q, n_k, num_warps=8, num_stages=4, maxnreg=128)
    dK_dV[(triton.cdiv(n_k, 64), heads)](K_ptr, V_ptr, Q_ptr, dO_ptr, L_ptr, v_ptr, bias_ptr, dK_ptr, dV_ptr, n_q, n_k, num_warps=4, num_stages=3)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
