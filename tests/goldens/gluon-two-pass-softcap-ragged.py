"""backward-two-pass-blocked: d_k = 64, d_v = 64, B_r = 128, b_c = 64, B_c = 128, b_r = 128, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

tile_64 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
tile_128 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
rows_64 = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4], [0, 32], [8, 0]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 64]))


@gluon.jit
def barriers(slots: gl.constexpr, count: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [slots, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(slots):
        mbarrier.init(made.index(slot), count=count)
    return made





def tiles_of(tensor, rows, width, several=1):
    """For the copy engine: tiles of (batch, heads, n, columns); beyond n and the columns they are 0.

    A position has a row of each of `several` heads that share keys.
    """
    (batch, heads, n, d), (far, wide, row, one) = tensor.shape, tensor.stride()
    shape, strides, block = [batch, heads, n, d], [far, wide, row, one], [1, 1, rows, width]
    if several > 1:
        shape, strides = [batch, heads // several, n, several, d], [far, wide * several, row, wide, one]
        block = [1, 1, max(rows // several, 1), min(rows, several), width]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    return TensorDescriptor(tensor, shape, strides, block, layout)


def vectors_of(tensor, length, rows):
    layout = gl.NVMMASharedLayout.get_default_for([1, rows], gl.float32)
    return TensorDescriptor(tensor, [tensor.shape[0], length], [tensor.shape[1], 1], [1, rows], layout)

@triton.jit(do_not_specialize=["n_q", "n_k", "dO_batch", "dO_head", "dO_row", "O_batch", "O_head", "O_row"])
def v(dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, 64
    dO_ptr += batch * dO_batch * 8 + own * dO_head
    O_head, O_row = O_head * 8, 64
    O_ptr += batch * O_batch * 8 + own * O_head
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    L_ptr += head * n_q
    L_in_rows_ptr += head * (tl.cdiv(n_q, 16) * 16)
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    v_i = tl.full((128,), 0.0, tl.float32)
    for k in range(1):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 128 * dO_row + tl.arange(0, 128)[:, None] * dO_row + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        x_2 = tl.load(O_ptr + i * 128 * O_row + tl.arange(0, 128)[:, None] * O_row + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        v_i += tl.sum(x.to(tl.float32) * x_2.to(tl.float32), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty), mask=at_i < n_q)
    L_i = tl.load(L_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    tl.store(L_in_rows_ptr + at_i, L_i.to(L_in_rows_ptr.dtype.element_ty), mask=at_i < n_q)

@gluon.jit
def dQ_loads(dO_tiles, Q_tiles, K_tiles, V_tiles, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, n_q, n_k, own):
    head, i = gl.program_id(1), gl.program_id(0)
    batch, key_head = head // own, head % own
    mbarrier.expect(dO_i_full.index(0), 16384)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(dO_tiles, [batch, key_head, (i * 2 + w) * 64, 0], dO_i_full.index(0), dO_i.index(w))
    mbarrier.expect(Q_i_full.index(0), 16384)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(Q_tiles, [batch, key_head, (i * 2 + w) * 64, 0], Q_i_full.index(0), Q_i.index(w))
    for j in range(gl.cdiv(n_k, 64)):
        slot, phase = j % 3, (j // 3) & 1
        mbarrier.wait(K_j_free.index(slot), phase ^ 1)
        mbarrier.expect(K_j_full.index(slot), 8192)
        tma.async_copy_global_to_shared(K_tiles, [batch, key_head, (gl.cdiv(n_k, 64) - 1 - j) * 64, 0], K_j_full.index(slot), K_j.index(slot))
        mbarrier.wait(V_j_free.index(slot), phase ^ 1)
        mbarrier.expect(V_j_full.index(slot), 8192)
        tma.async_copy_global_to_shared(V_tiles, [batch, key_head, (gl.cdiv(n_k, 64) - 1 - j) * 64, 0], V_j_full.index(slot), V_j.index(slot))

@gluon.jit
def dQ_rows(w: gl.constexpr, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, v_ptr, L_in_rows_ptr, dQ_ptr, n_q, n_k, own, dQ_batch, dQ_head, dQ_row):
    dQ_head, dQ_row = dQ_head * 8, 64
    head, i = gl.program_id(1), gl.program_id(0)
    batch, key_head = head // own, head % own
    dQ_at = dQ_ptr + gl.cast(batch, gl.int64) * dQ_batch * 8 + gl.cast(key_head, gl.int64) * dQ_head
    v_at = v_ptr + gl.cast(head, gl.int64) * (gl.cdiv(n_q, 16) * 16)
    L_in_rows_at = L_in_rows_ptr + gl.cast(head, gl.int64) * (gl.cdiv(n_q, 16) * 16)
    part = i * 2 + w  # these 64 rows of tile i
    at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    v_i = gl.load(v_at + at_i, mask=at_i < n_q, other=0.0)
    L_i = gl.load(L_in_rows_at + at_i, mask=at_i < n_q, other=float("inf"))
    dQ_i = gl.full([64, 64], 0.0, gl.float32, tile_64)
    j = 0
    slot, phase = 0, 0
    at_j = (gl.cdiv(n_k, 64) - 1 - j) * 64 + gl.arange(0, 64, gl.SliceLayout(0, tile_64))
    mbarrier.wait(Q_i_full.index(0), 0)
    mbarrier.wait(K_j_full.index(slot), phase)
    P = warpgroup_mma(Q_i.index(w).reshape([64, 64]), K_j.index(slot).reshape([64, 64]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
    mbarrier.wait(dO_i_full.index(0), 0)
    mbarrier.wait(V_j_full.index(slot), phase)
    dS = warpgroup_mma(dO_i.index(w).reshape([64, 64]), V_j.index(slot).reshape([64, 64]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
    P = warpgroup_mma_wait(1, deps=(P,))
    slope = 4.0 * (1.0 / (1.0 + gl.exp2(P * -0.012022458674074695))) * (1.0 - 1.0 / (1.0 + gl.exp2(P * -0.012022458674074695)))
    P = gl.exp2(1.0 / (1.0 + gl.exp2(P * -0.012022458674074695)) * 86.5617024533378 - 43.2808512266689 - L_i[:, None])
    dS = warpgroup_mma_wait(0, deps=(dS,))
    mbarrier.arrive(V_j_free.index(slot), count=1)
    dS = P * (dS - v_i.to(gl.float32)[:, None]) * slope
    dS_late = gl.convert_layout(gl.where(at_j[None, :] < n_k, dS, 0.0).to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
    for j_2 in range(1, gl.cdiv(n_k, 64)):
        last, last_phase = slot, phase
        slot, phase = j_2 % 3, (j_2 // 3) & 1
        mbarrier.wait(K_j_full.index(slot), phase)
        P = warpgroup_mma(Q_i.index(w).reshape([64, 64]), K_j.index(slot).reshape([64, 64]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        mbarrier.wait(V_j_full.index(slot), phase)
        dS = warpgroup_mma(dO_i.index(w).reshape([64, 64]), V_j.index(slot).reshape([64, 64]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        dQ_i = warpgroup_mma(dS_late, K_j.index(last).reshape([64, 64]), dQ_i, is_async=True)
        P = warpgroup_mma_wait(2, deps=(P,))
        slope_2 = 4.0 * (1.0 / (1.0 + gl.exp2(P * -0.012022458674074695))) * (1.0 - 1.0 / (1.0 + gl.exp2(P * -0.012022458674074695)))
        P = gl.exp2(1.0 / (1.0 + gl.exp2(P * -0.012022458674074695)) * 86.5617024533378 - 43.2808512266689 - L_i[:, None])
        dS = warpgroup_mma_wait(1, deps=(dS,))
        mbarrier.arrive(V_j_free.index(slot), count=1)
        dS = P * (dS - v_i.to(gl.float32)[:, None]) * slope_2
        dQ_i, dS_late = warpgroup_mma_wait(0, deps=(dQ_i, dS_late))
        mbarrier.arrive(K_j_free.index(last), count=1)
        dS_late = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
    last, last_phase = slot, phase
    dQ_i = warpgroup_mma(dS_late, K_j.index(last).reshape([64, 64]), dQ_i, is_async=True)
    dQ_i, dS_late = warpgroup_mma_wait(0, deps=(dQ_i, dS_late))
    mbarrier.arrive(K_j_free.index(last), count=1)
    down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_64))
    across = gl.arange(0, 64, gl.SliceLayout(0, rows_64))
    gl.store(dQ_at + down[:, None] * dQ_row + across[None, :], gl.convert_layout((dQ_i * 0.125).to(dQ_at.dtype.element_ty), rows_64), mask=down[:, None] < n_q)

@gluon.jit(do_not_specialize=["n_q", "n_k", "own", "dQ_batch", "dQ_head", "dQ_row"])
def dQ(dO_tiles, Q_tiles, K_tiles, V_tiles, v_ptr, L_in_rows_ptr, dQ_ptr, n_q, n_k, own, dQ_batch, dQ_head, dQ_row):
    dO_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 64, 64], dO_tiles.layout)  # line 239: stays
    dO_i_full = barriers(1, 1)
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 64, 64], Q_tiles.layout)  # line 240: stays
    Q_i_full = barriers(1, 1)
    K_j = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 64, 64], K_tiles.layout)  # line 242: a ring
    K_j_full = barriers(3, 1)
    K_j_free = barriers(3, 2)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 64, 64], V_tiles.layout)  # line 244: a ring
    V_j_full = barriers(3, 1)
    V_j_free = barriers(3, 2)
    gl.warp_specialize([
        (dQ_rows, (0, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, v_ptr, L_in_rows_ptr, dQ_ptr, n_q, n_k, own, dQ_batch, dQ_head, dQ_row)),
        (dQ_rows, (1, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, v_ptr, L_in_rows_ptr, dQ_ptr, n_q, n_k, own, dQ_batch, dQ_head, dQ_row)),
        (dQ_loads, (dO_tiles, Q_tiles, K_tiles, V_tiles, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, n_q, n_k, own)),
    ], [4, 1], [240, 24])

@gluon.jit
def dK_dV_loads(K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, n_q, n_k, own):
    head, j = gl.program_id(1), gl.program_id(0)
    batch, key_head = head // own, head % own
    mbarrier.expect(K_j_full.index(0), 16384)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(K_tiles, [batch, key_head, (j * 2 + w) * 64, 0], K_j_full.index(0), K_j.index(w))
    mbarrier.expect(V_j_full.index(0), 16384)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(V_tiles, [batch, key_head, (j * 2 + w) * 64, 0], V_j_full.index(0), V_j.index(w))
    for i in range(gl.cdiv(n_q, 128)):
        slot, phase = i % 3, (i // 3) & 1
        mbarrier.wait(Q_i_free.index(slot), phase ^ 1)
        mbarrier.expect(Q_i_full.index(slot), 16384)
        tma.async_copy_global_to_shared(Q_tiles, [batch, key_head, i * 128, 0], Q_i_full.index(slot), Q_i.index(slot))
        mbarrier.wait(dO_i_free.index(slot), phase ^ 1)
        mbarrier.expect(dO_i_full.index(slot), 17408)
        tma.async_copy_global_to_shared(dO_tiles, [batch, key_head, i * 128, 0], dO_i_full.index(slot), dO_i.index(slot))
        tma.async_copy_global_to_shared(L_in_rows_tiles, [head, i * 128], dO_i_full.index(slot), L_in_rows_i_ring.index(slot))
        tma.async_copy_global_to_shared(v_tiles, [head, i * 128], dO_i_full.index(slot), v_i_ring.index(slot))

@gluon.jit
def dK_dV_rows(w: gl.constexpr, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, dK_ptr, dV_ptr, n_q, n_k, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row):
    dK_head, dK_row = dK_head * 8, 64
    dV_head, dV_row = dV_head * 8, 64
    head, j = gl.program_id(1), gl.program_id(0)
    batch, key_head = head // own, head % own
    dK_at = dK_ptr + gl.cast(batch, gl.int64) * dK_batch * 8 + gl.cast(key_head, gl.int64) * dK_head
    dV_at = dV_ptr + gl.cast(batch, gl.int64) * dV_batch * 8 + gl.cast(key_head, gl.int64) * dV_head
    part = j * 2 + w  # these 64 rows of tile j
    dK_j = gl.full([64, 64], 0.0, gl.float32, tile_64)
    dV_j = gl.full([64, 64], 0.0, gl.float32, tile_64)
    mbarrier.wait(K_j_full.index(0), 0)
    mbarrier.wait(V_j_full.index(0), 0)
    for i in range(n_q // 128):
        slot, phase = i % 3, (i // 3) & 1
        mbarrier.wait(Q_i_full.index(slot), phase)
        P = warpgroup_mma(K_j.index(w).reshape([64, 64]), Q_i.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        mbarrier.wait(dO_i_full.index(slot), phase)
        dS = warpgroup_mma(V_j.index(w).reshape([64, 64]), dO_i.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        P = warpgroup_mma_wait(1, deps=(P,))
        L_i = L_in_rows_i_ring.index(slot).reshape([128]).load(gl.SliceLayout(0, tile_128))
        slope = 4.0 * (1.0 / (1.0 + gl.exp2(P * -0.012022458674074695))) * (1.0 - 1.0 / (1.0 + gl.exp2(P * -0.012022458674074695)))
        P = gl.exp2(1.0 / (1.0 + gl.exp2(P * -0.012022458674074695)) * 86.5617024533378 - 43.2808512266689 - L_i[None, :])
        P_16 = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        dV_j = warpgroup_mma(P_16, dO_i.index(slot).reshape([128, 64]), dV_j, is_async=True)
        dS = warpgroup_mma_wait(1, deps=(dS,))
        v_i = v_i_ring.index(slot).reshape([128]).load(gl.SliceLayout(0, tile_128))
        dS = P * (dS - v_i[None, :]) * slope
        dS_16 = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        dK_j = warpgroup_mma(dS_16, Q_i.index(slot).reshape([128, 64]), dK_j, is_async=True)
        dV_j, P_16, dK_j, dS_16 = warpgroup_mma_wait(0, deps=(dV_j, P_16, dK_j, dS_16))
        mbarrier.arrive(dO_i_free.index(slot), count=1)
        mbarrier.arrive(Q_i_free.index(slot), count=1)
    for i_2 in range(n_q // 128, gl.cdiv(n_q, 128)):
        slot, phase = i_2 % 3, (i_2 // 3) & 1
        mbarrier.wait(Q_i_full.index(slot), phase)
        P = warpgroup_mma(K_j.index(w).reshape([64, 64]), Q_i.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        mbarrier.wait(dO_i_full.index(slot), phase)
        dS = warpgroup_mma(V_j.index(w).reshape([64, 64]), dO_i.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        P = warpgroup_mma_wait(1, deps=(P,))
        L_i = L_in_rows_i_ring.index(slot).reshape([128]).load(gl.SliceLayout(0, tile_128))
        slope_2 = 4.0 * (1.0 / (1.0 + gl.exp2(P * -0.012022458674074695))) * (1.0 - 1.0 / (1.0 + gl.exp2(P * -0.012022458674074695)))
        P = gl.exp2(1.0 / (1.0 + gl.exp2(P * -0.012022458674074695)) * 86.5617024533378 - 43.2808512266689 - L_i[None, :])
        P_16 = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        dV_j = warpgroup_mma(P_16, dO_i.index(slot).reshape([128, 64]), dV_j, is_async=True)
        dS = warpgroup_mma_wait(1, deps=(dS,))
        v_i = v_i_ring.index(slot).reshape([128]).load(gl.SliceLayout(0, tile_128))
        dS = P * (dS - v_i[None, :]) * slope_2
        dS_16 = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        dK_j = warpgroup_mma(dS_16, Q_i.index(slot).reshape([128, 64]), dK_j, is_async=True)
        dV_j, P_16, dK_j, dS_16 = warpgroup_mma_wait(0, deps=(dV_j, P_16, dK_j, dS_16))
        mbarrier.arrive(dO_i_free.index(slot), count=1)
        mbarrier.arrive(Q_i_free.index(slot), count=1)
    down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    across = gl.arange(0, 64, gl.SliceLayout(0, tile_64))
    gl.store(dK_at + down[:, None] * dK_row + across[None, :], (dK_j * 0.125).to(dK_at.dtype.element_ty), mask=down[:, None] < n_k)
    down_2 = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    across_2 = gl.arange(0, 64, gl.SliceLayout(0, tile_64))
    gl.store(dV_at + down_2[:, None] * dV_row + across_2[None, :], dV_j.to(dV_at.dtype.element_ty), mask=down_2[:, None] < n_k)

@gluon.jit(do_not_specialize=["n_q", "n_k", "own", "dK_batch", "dK_head", "dK_row", "dV_batch", "dV_head", "dV_row"])
def dK_dV(K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, dK_ptr, dV_ptr, n_q, n_k, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row):
    K_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 64, 64], K_tiles.layout)  # line 205: stays
    K_j_full = barriers(1, 1)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 64, 64], V_tiles.layout)  # line 205: stays
    V_j_full = barriers(1, 1)
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 128, 64], Q_tiles.layout)  # line 207: a ring
    Q_i_full = barriers(3, 1)
    Q_i_free = barriers(3, 2)
    dO_i = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 128, 64], dO_tiles.layout)  # line 207: a ring
    dO_i_full = barriers(3, 1)
    dO_i_free = barriers(3, 2)
    L_in_rows_i_ring = gl.allocate_shared_memory(gl.float32, [3, 1, 128], L_in_rows_tiles.layout)  # line 207: a ring
    v_i_ring = gl.allocate_shared_memory(gl.float32, [3, 1, 128], v_tiles.layout)  # line 207: a ring
    gl.warp_specialize([
        (dK_dV_rows, (0, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, dK_ptr, dV_ptr, n_q, n_k, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row)),
        (dK_dV_rows, (1, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, dK_ptr, dV_ptr, n_q, n_k, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row)),
        (dK_dV_loads, (K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, n_q, n_k, own)),
    ], [4, 1], [240, 24])


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
    v_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    L_in_rows_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    v[(triton.cdiv(n_q, 128), own, batch)](dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, num_warps=8, num_stages=3)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    dO_tiles = tiles_of(dO_ptr, 64, 64)
    Q_tiles = tiles_of(Q_ptr, 64, 64)
    K_tiles = tiles_of(K_ptr, 64, 64)
    V_tiles = tiles_of(V_ptr, 64, 64)
    dQ[(triton.cdiv(n_q, 128), heads)](dO_tiles, Q_tiles, K_tiles, V_tiles, v_ptr, L_in_rows_ptr, dQ_ptr, n_q, n_k, own, dQ_batch, dQ_head, dQ_row, num_warps=4)
    K_tiles = tiles_of(K_ptr, 64, 64)
    V_tiles = tiles_of(V_ptr, 64, 64)
    Q_tiles = tiles_of(Q_ptr, 128, 64)
    dO_tiles = tiles_of(dO_ptr, 128, 64)
    L_in_rows_tiles = vectors_of(L_in_rows_ptr, n_q, 128)
    v_tiles = vectors_of(v_ptr, n_q, 128)
    dK_dV[(triton.cdiv(n_k, 128), heads)](K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, dK_ptr, dV_ptr, n_q, n_k, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row, num_warps=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
