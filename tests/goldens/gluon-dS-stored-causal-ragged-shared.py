"""dS-stored-resident: d_k = 96, d_v = 96, a = 128, b = 128, c = 64, e = 128, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

tile_64 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
tile_128 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
rows_128 = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [8, 0]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 128]))


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


def pairs_of(tensor, rows, width):
    """For the copy engine: a table of pairs, tile after tile."""
    layout, whole = gl.NVMMASharedLayout.get_default_for([rows, width], gl.bfloat16), tensor.shape[-1]
    return TensorDescriptor(tensor, [tensor.numel() // whole, whole], [whole, 1], [rows, width], layout)

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
        x = tl.load(dO_ptr + i * 128 // 4 * dO_row + (tl.arange(0, 128) // 4)[:, None] * dO_row + (tl.arange(0, 128) % 4)[:, None] * dO_head + at_k[None, :], mask=(at_i[:, None] < n_q) & (at_k[None, :] < 96), other=0.0)
        x_2 = tl.load(O_ptr + i * 128 // 4 * O_row + (tl.arange(0, 128) // 4)[:, None] * O_row + (tl.arange(0, 128) % 4)[:, None] * O_head + at_k[None, :], mask=(at_i[:, None] < n_q) & (at_k[None, :] < 96), other=0.0)
        v_i += tl.sum(tl.where(at_k[None, :] < 96, x.to(tl.float32) * x_2.to(tl.float32), 0.0), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty), mask=at_i < n_q)
    L_i = tl.load(L_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    tl.store(L_in_rows_ptr + at_i, L_i.to(L_in_rows_ptr.dtype.element_ty), mask=at_i < n_q)

@gluon.jit
def dV_dS_1_loads(K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_in_rows_r_ring, v_r_ring, n_q, n_k, heads, together, own):
    tiles = gl.cdiv(n_k, 128)
    tile = gl.program_id(0)
    group, rank = tile // (tiles * together), tile % (tiles * together)
    side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
    head, j = group * together + rank % side, rank // side
    batch, key_head = head // own, head % own
    mbarrier.expect(K_j_full.index(0), 32768)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(K_tiles, [batch, key_head, (j * 2 + w) * 64, 0], K_j_full.index(0), K_j.index(w))
    mbarrier.expect(V_j_full.index(0), 32768)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(V_tiles, [batch, key_head, (j * 2 + w) * 64, 0], V_j_full.index(0), V_j.index(w))
    for r in range(gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2, gl.cdiv(n_q, 128) * 2):
        slot, phase = (r - gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2) % 3, ((r - gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2) // 3) & 1
        mbarrier.wait(Q_r_free.index(slot), phase ^ 1)
        mbarrier.expect(Q_r_full.index(slot), 16384)
        tma.async_copy_global_to_shared(Q_tiles, [batch, key_head, r * 64 // 4, 0, 0], Q_r_full.index(slot), Q_r.index(slot))
        mbarrier.wait(dO_r_free.index(slot), phase ^ 1)
        mbarrier.expect(dO_r_full.index(slot), 16896)
        tma.async_copy_global_to_shared(dO_tiles, [batch, key_head, r * 64 // 4, 0, 0], dO_r_full.index(slot), dO_r.index(slot))
        tma.async_copy_global_to_shared(L_in_rows_tiles, [head, r * 64], dO_r_full.index(slot), L_in_rows_r_ring.index(slot))
        tma.async_copy_global_to_shared(v_tiles, [head, r * 64], dO_r_full.index(slot), v_r_ring.index(slot))

@gluon.jit
def dV_dS_1_rows(w: gl.constexpr, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_in_rows_r_ring, v_r_ring, dS_tile, dS_tiles, dV_ptr, n_q, n_k, heads, together, own, dV_batch, dV_head, dV_row):
    dV_head, dV_row = dV_head * 8, 96
    tiles = gl.cdiv(n_k, 128)
    tile = gl.program_id(0)
    group, rank = tile // (tiles * together), tile % (tiles * together)
    side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
    head, j = group * together + rank % side, rank // side
    batch, key_head = head // own, head % own
    dV_at = dV_ptr + gl.cast(batch, gl.int64) * dV_batch * 8 + gl.cast(key_head, gl.int64) * dV_head
    part = j * 2 + w  # these 64 rows of tile j
    at_j = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    dV_j = gl.full([64, 128], 0.0, gl.float32, tile_128)
    r = gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2
    slot, phase = 0, 0
    at_r = r * 64 + gl.arange(0, 64, gl.SliceLayout(0, tile_64))
    mbarrier.wait(K_j_full.index(0), 0)
    mbarrier.wait(Q_r_full.index(slot), phase)
    P = warpgroup_mma(K_j.index(w).reshape([64, 128]).slice(0, 64, dim=1), Q_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(0, 64, dim=0), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
    P = warpgroup_mma(K_j.index(w).reshape([64, 128]).slice(64, 32, dim=1), Q_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(64, 32, dim=0), P, is_async=True)
    mbarrier.wait(V_j_full.index(0), 0)
    mbarrier.wait(dO_r_full.index(slot), phase)
    dS_rj = warpgroup_mma(V_j.index(w).reshape([64, 128]).slice(0, 64, dim=1), dO_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(0, 64, dim=0), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
    dS_rj = warpgroup_mma(V_j.index(w).reshape([64, 128]).slice(64, 32, dim=1), dO_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(64, 32, dim=0), dS_rj, is_async=True)
    P = warpgroup_mma_wait(2, deps=(P,))
    mbarrier.arrive(Q_r_free.index(slot), count=1)
    L_r = L_in_rows_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
    P = gl.where(at_j[:, None] <= gl.minimum(at_r // 4, n_k - 1)[None, :], P, float("-inf"))
    P = gl.exp2(P * 0.18033688011112042 - gl.where(L_r != float("-inf"), L_r, 0.0)[None, :])
    dS_rj = warpgroup_mma_wait(0, deps=(dS_rj,))
    v_r = v_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
    dS_rj = P * (dS_rj - v_r[None, :])
    tma.store_wait(0)
    dS_tile.index(w).permute((1, 0)).store(dS_rj.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(dS_tiles, [((head * gl.cdiv(n_q, 128) + r // 2) * gl.cdiv(n_k, 128) + part // 2) * 128 + r % 2 * 64, part % 2 * 64], dS_tile.index(w))
    P_late = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_128, 2))
    for r_2 in range(gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2 + 1, gl.minimum((gl.maximum(gl.minimum((j + 1) * 128, n_k) - 1, 0) * 4 + 63) // 64, gl.cdiv(n_q, 128) * 2)):
        last, last_phase = slot, phase
        slot, phase = (r_2 - gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2) % 3, ((r_2 - gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2) // 3) & 1
        at_r_2 = r_2 * 64 + gl.arange(0, 64, gl.SliceLayout(0, tile_64))
        mbarrier.wait(Q_r_full.index(slot), phase)
        P = warpgroup_mma(K_j.index(w).reshape([64, 128]).slice(0, 64, dim=1), Q_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(0, 64, dim=0), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        P = warpgroup_mma(K_j.index(w).reshape([64, 128]).slice(64, 32, dim=1), Q_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(64, 32, dim=0), P, is_async=True)
        mbarrier.wait(dO_r_full.index(slot), phase)
        dS_rj = warpgroup_mma(V_j.index(w).reshape([64, 128]).slice(0, 64, dim=1), dO_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(0, 64, dim=0), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        dS_rj = warpgroup_mma(V_j.index(w).reshape([64, 128]).slice(64, 32, dim=1), dO_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(64, 32, dim=0), dS_rj, is_async=True)
        dV_j = warpgroup_mma(P_late, dO_r.index(last).reshape([64, 128]), dV_j, is_async=True)
        P = warpgroup_mma_wait(3, deps=(P,))
        mbarrier.arrive(Q_r_free.index(slot), count=1)
        L_r = L_in_rows_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
        P = gl.where(at_j[:, None] <= gl.minimum(at_r_2 // 4, n_k - 1)[None, :], P, float("-inf"))
        P = gl.exp2(P * 0.18033688011112042 - gl.where(L_r != float("-inf"), L_r, 0.0)[None, :])
        dS_rj = warpgroup_mma_wait(1, deps=(dS_rj,))
        v_r = v_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
        dS_rj = P * (dS_rj - v_r[None, :])
        tma.store_wait(0)
        dS_tile.index(w).permute((1, 0)).store(dS_rj.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dS_tiles, [((head * gl.cdiv(n_q, 128) + r_2 // 2) * gl.cdiv(n_k, 128) + part // 2) * 128 + r_2 % 2 * 64, part % 2 * 64], dS_tile.index(w))
        dV_j, P_late = warpgroup_mma_wait(0, deps=(dV_j, P_late))
        mbarrier.arrive(dO_r_free.index(last), count=1)
        P_late = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_128, 2))
    for r_3 in range(gl.maximum(gl.minimum((gl.maximum(gl.minimum((j + 1) * 128, n_k) - 1, 0) * 4 + 63) // 64, gl.cdiv(n_q, 128) * 2), gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2 + 1), gl.cdiv(n_q, 128) * 2):
        last, last_phase = slot, phase
        slot, phase = (r_3 - gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2) % 3, ((r_3 - gl.maximum(j * 128, 0) * 4 // 64 // 2 * 2) // 3) & 1
        mbarrier.wait(Q_r_full.index(slot), phase)
        P = warpgroup_mma(K_j.index(w).reshape([64, 128]).slice(0, 64, dim=1), Q_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(0, 64, dim=0), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        P = warpgroup_mma(K_j.index(w).reshape([64, 128]).slice(64, 32, dim=1), Q_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(64, 32, dim=0), P, is_async=True)
        mbarrier.wait(dO_r_full.index(slot), phase)
        dS_rj = warpgroup_mma(V_j.index(w).reshape([64, 128]).slice(0, 64, dim=1), dO_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(0, 64, dim=0), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        dS_rj = warpgroup_mma(V_j.index(w).reshape([64, 128]).slice(64, 32, dim=1), dO_r.index(slot).reshape([64, 128]).permute((1, 0)).slice(64, 32, dim=0), dS_rj, is_async=True)
        dV_j = warpgroup_mma(P_late, dO_r.index(last).reshape([64, 128]), dV_j, is_async=True)
        P = warpgroup_mma_wait(3, deps=(P,))
        mbarrier.arrive(Q_r_free.index(slot), count=1)
        L_r = L_in_rows_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
        P = gl.where(at_j[:, None] < n_k, P, float("-inf"))
        P = gl.exp2(P * 0.18033688011112042 - gl.where(L_r != float("-inf"), L_r, 0.0)[None, :])
        dS_rj = warpgroup_mma_wait(1, deps=(dS_rj,))
        v_r = v_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
        dS_rj = P * (dS_rj - v_r[None, :])
        tma.store_wait(0)
        dS_tile.index(w).permute((1, 0)).store(dS_rj.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dS_tiles, [((head * gl.cdiv(n_q, 128) + r_3 // 2) * gl.cdiv(n_k, 128) + part // 2) * 128 + r_3 % 2 * 64, part % 2 * 64], dS_tile.index(w))
        dV_j, P_late = warpgroup_mma_wait(0, deps=(dV_j, P_late))
        mbarrier.arrive(dO_r_free.index(last), count=1)
        P_late = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_128, 2))
    tma.store_wait(0)
    last, last_phase = slot, phase
    dV_j = warpgroup_mma(P_late, dO_r.index(last).reshape([64, 128]), dV_j, is_async=True)
    dV_j, P_late = warpgroup_mma_wait(0, deps=(dV_j, P_late))
    mbarrier.arrive(dO_r_free.index(last), count=1)
    down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_128))
    across = gl.arange(0, 128, gl.SliceLayout(0, rows_128))
    gl.store(dV_at + down[:, None] * dV_row + across[None, :], gl.convert_layout(dV_j.to(dV_at.dtype.element_ty), rows_128), mask=(down[:, None] < n_k) & (across[None, :] < 96))

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "together", "own", "dV_batch", "dV_head", "dV_row"])
def dV_dS_1(K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, dS_tiles, dV_ptr, n_q, n_k, heads, together, own, dV_batch, dV_head, dV_row):
    K_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 64, 128], K_tiles.layout)  # line 137: stays
    K_j_full = barriers(1, 1)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 64, 128], V_tiles.layout)  # line 137: stays
    V_j_full = barriers(1, 1)
    Q_r = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 16, 4, 128], Q_tiles.layout)  # line 140: a ring
    Q_r_full = barriers(3, 1)
    Q_r_free = barriers(3, 2)
    dO_r = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 16, 4, 128], dO_tiles.layout)  # line 140: a ring
    dO_r_full = barriers(3, 1)
    dO_r_free = barriers(3, 2)
    L_in_rows_r_ring = gl.allocate_shared_memory(gl.float32, [3, 1, 64], L_in_rows_tiles.layout)  # line 140: a ring
    v_r_ring = gl.allocate_shared_memory(gl.float32, [3, 1, 64], v_tiles.layout)  # line 140: a ring
    dS_tile = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], dS_tiles.layout)  # line 144: on its way to memory
    gl.warp_specialize([
        (dV_dS_1_rows, (0, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_in_rows_r_ring, v_r_ring, dS_tile, dS_tiles, dV_ptr, n_q, n_k, heads, together, own, dV_batch, dV_head, dV_row)),
        (dV_dS_1_rows, (1, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_in_rows_r_ring, v_r_ring, dS_tile, dS_tiles, dV_ptr, n_q, n_k, heads, together, own, dV_batch, dV_head, dV_row)),
        (dV_dS_1_loads, (K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_in_rows_r_ring, v_r_ring, n_q, n_k, heads, together, own)),
    ], [4, 1], [240, 24])

@gluon.jit
def dQ_loads(dS_tiles, K_tiles, dS_part, K_part, full, free, n_q, n_k, heads, own):
    tiles, wide = gl.cdiv(n_q, 128), 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, j = group * 8 + rank % side, rank // side
        i = tiles - 1 - i
        batch, key_head = head // own, head % own
        first, end = 0, gl.minimum(gl.minimum(((gl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 + 127) // 128, gl.cdiv(n_k, 128)) * 2, gl.cdiv(n_k, 64))  # parts of terms
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), 32768)
            tma.async_copy_global_to_shared(dS_tiles, [((head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) + k // 2) * 128, k % 2 * 64], full.index(slot), dS_part.index(slot))
            tma.async_copy_global_to_shared(K_tiles, [batch, key_head, k * 64, j * 128], full.index(slot), K_part.index(slot))
        for k in range(2):
            slot, phase = (filled + (end - first + k)) % 4, ((filled + (end - first + k)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.arrive(full.index(slot), count=1)
        filled += end - first + 2

@gluon.jit
def dQ_rows(w: gl.constexpr, dS_part, K_part, full, free, dQ_tiles, n_q, n_k, heads, own):
    tiles, wide = gl.cdiv(n_q, 128), 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, j = group * 8 + rank % side, rank // side
        i = tiles - 1 - i
        batch, key_head = head // own, head % own
        first, end = 0, gl.minimum(gl.minimum(((gl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 + 127) // 128, gl.cdiv(n_k, 128)) * 2, gl.cdiv(n_k, 64))  # parts of terms
        part = i * 2 + w  # these 64 rows of tile i
        C_ij = gl.full([64, 128], 0.0, gl.float32, tile_128)
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(full.index(slot), phase)
            C_ij = warpgroup_mma(dS_part.index(slot).slice(w * 64, 64), K_part.index(slot).reshape([64, 128]), C_ij, is_async=True)
            C_ij = warpgroup_mma_wait(1, deps=(C_ij,))
            if k > first:
                mbarrier.arrive(free.index((filled + k - first - 1) % 4), count=1)
        C_ij = warpgroup_mma_wait(0, deps=(C_ij,))
        if first < end:
            mbarrier.arrive(free.index((filled + end - first - 1) % 4), count=1)
        slot, phase = (filled + (end - first + w)) % 4, ((filled + (end - first + w)) // 4) & 1
        mbarrier.wait(full.index(slot), phase)
        K_part.index(slot).reshape([64, 128]).store((C_ij * 0.125).to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dQ_tiles, [batch, key_head, part * 64 // 4, 0, j * 128], K_part.index(slot).reshape([1, 1, 16, 4, 128]))
        tma.store_wait(0)
        mbarrier.arrive(free.index(slot), count=2)
        filled += end - first + 2

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "own"])
def dQ(dS_tiles, K_tiles, dQ_tiles, n_q, n_k, heads, own):
    dS_part = gl.allocate_shared_memory(gl.bfloat16, [4, 128, 64], dS_tiles.layout)  # line 26: a ring
    K_part = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 1, 64, 128], K_tiles.layout)  # line 27: a ring
    full, free = barriers(4, 1), barriers(4, 2)
    gl.warp_specialize([
        (dQ_rows, (0, dS_part, K_part, full, free, dQ_tiles, n_q, n_k, heads, own)),
        (dQ_rows, (1, dS_part, K_part, full, free, dQ_tiles, n_q, n_k, heads, own)),
        (dQ_loads, (dS_tiles, K_tiles, dS_part, K_part, full, free, n_q, n_k, heads, own)),
    ], [4, 1], [240, 24])

@gluon.jit
def dK_loads(dS_tiles, Q_tiles, dS_part, Q_part, full, free, n_q, n_k, heads, together, own):
    tiles, wide = gl.cdiv(n_k, 128), 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        group, rank = tile // (tiles * wide * together), tile % (tiles * wide * together)
        side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
        head, place = group * together + rank % side, rank // side
        i, j = place // wide, place % wide
        batch, key_head = head // own, head % own
        first, end = gl.maximum(i * 128, 0) * 4 // 128 * 2, gl.minimum(gl.cdiv(n_q, 128) * 2, gl.cdiv(n_q, 64))  # parts of terms
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), 32768)
            tma.async_copy_global_to_shared(dS_tiles, [((head * gl.cdiv(n_q, 128) + (first + end - 1 - k) // 2) * gl.cdiv(n_k, 128) + i) * 128 + (first + end - 1 - k) % 2 * 64, 0], full.index(slot), dS_part.index(slot))
            tma.async_copy_global_to_shared(Q_tiles, [batch, key_head, (first + end - 1 - k) * 64 // 4, 0, j * 128], full.index(slot), Q_part.index(slot))
        for k in range(2):
            slot, phase = (filled + (end - first + k)) % 4, ((filled + (end - first + k)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.arrive(full.index(slot), count=1)
        filled += end - first + 2

@gluon.jit
def dK_rows(w: gl.constexpr, dS_part, Q_part, full, free, dK_tiles, n_q, n_k, heads, together, own):
    tiles, wide = gl.cdiv(n_k, 128), 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        group, rank = tile // (tiles * wide * together), tile % (tiles * wide * together)
        side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
        head, place = group * together + rank % side, rank // side
        i, j = place // wide, place % wide
        batch, key_head = head // own, head % own
        first, end = gl.maximum(i * 128, 0) * 4 // 128 * 2, gl.minimum(gl.cdiv(n_q, 128) * 2, gl.cdiv(n_q, 64))  # parts of terms
        part = i * 2 + w  # these 64 rows of tile i
        C_ij = gl.full([64, 128], 0.0, gl.float32, tile_128)
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(full.index(slot), phase)
            C_ij = warpgroup_mma(dS_part.index(slot).slice(w * 64, 64, dim=1).permute((1, 0)), Q_part.index(slot).reshape([64, 128]), C_ij, is_async=True)
            C_ij = warpgroup_mma_wait(1, deps=(C_ij,))
            if k > first:
                mbarrier.arrive(free.index((filled + k - first - 1) % 4), count=1)
        C_ij = warpgroup_mma_wait(0, deps=(C_ij,))
        if first < end:
            mbarrier.arrive(free.index((filled + end - first - 1) % 4), count=1)
        slot, phase = (filled + (end - first + w)) % 4, ((filled + (end - first + w)) // 4) & 1
        mbarrier.wait(full.index(slot), phase)
        Q_part.index(slot).reshape([64, 128]).store((C_ij * 0.125).to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dK_tiles, [batch, key_head, part * 64, j * 128], Q_part.index(slot).reshape([1, 1, 64, 128]))
        tma.store_wait(0)
        mbarrier.arrive(free.index(slot), count=2)
        filled += end - first + 2

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "together", "own"])
def dK(dS_tiles, Q_tiles, dK_tiles, n_q, n_k, heads, together, own):
    dS_part = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 128], dS_tiles.layout)  # line 26: a ring
    Q_part = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 1, 16, 4, 128], Q_tiles.layout)  # line 27: a ring
    full, free = barriers(4, 1), barriers(4, 2)
    gl.warp_specialize([
        (dK_rows, (0, dS_part, Q_part, full, free, dK_tiles, n_q, n_k, heads, together, own)),
        (dK_rows, (1, dS_part, Q_part, full, free, dK_tiles, n_q, n_k, heads, together, own)),
        (dK_loads, (dS_tiles, Q_tiles, dS_part, Q_part, full, free, n_q, n_k, heads, together, own)),
    ], [4, 1], [240, 24])


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
    v_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    dS_ptr = torch.empty((heads, triton.cdiv(n_q, 128), triton.cdiv(n_k, 128), 128, 128), dtype=torch.bfloat16, device=device)
    L_in_rows_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    v[(triton.cdiv(n_q, 128), own, batch)](dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, num_warps=8, num_stages=3)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    K_tiles = tiles_of(K_ptr, 64, 128)
    V_tiles = tiles_of(V_ptr, 64, 128)
    Q_tiles = tiles_of(Q_ptr, 64, 128, 4)
    dO_tiles = tiles_of(dO_ptr, 64, 128, 4)
    L_in_rows_tiles = vectors_of(L_in_rows_ptr, n_q, 64)
    v_tiles = vectors_of(v_ptr, n_q, 64)
    dS_tiles = pairs_of(dS_ptr, 64, 64)
    together = triton.cdiv(heads, triton.cdiv(heads, max(54525952 // (n_q * 512), 1)))  # heads whose long tiles come first
    dV_dS_1[(triton.cdiv(n_k, 128) * heads, 1)](K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, dS_tiles, dV_ptr, n_q, n_k, heads, together, own, dV_batch, dV_head, dV_row, num_warps=4)
    dS_tiles = pairs_of(dS_ptr, 128, 64)
    K_tiles = tiles_of(K_ptr, 64, 128)
    dQ_tiles = tiles_of(dQ_ptr, 64, 128, 4)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = triton.cdiv(n_q, 128) * heads
    several = triton.cdiv(blocks, most) >= triton.cdiv(n_k, 128)  # tiles, for shares that are even
    dQ[(min(blocks, most) if several and 2 * heads * (n_k * 256) <= 54525952 else blocks, 1)](dS_tiles, K_tiles, dQ_tiles, n_q, n_k, heads, own, num_warps=4)
    dS_tiles = pairs_of(dS_ptr, 64, 128)
    Q_tiles = tiles_of(Q_ptr, 64, 128, 4)
    dK_tiles = tiles_of(dK_ptr, 64, 128)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = triton.cdiv(n_k, 128) * heads
    several = triton.cdiv(blocks, most) >= triton.cdiv(n_q, 128)  # tiles, for shares that are even
    together = triton.cdiv(heads, triton.cdiv(heads, max(54525952 // (n_q * 256), 1))) if blocks < 4 * most else 1  # heads whose long tiles come first
    dK[(min(blocks, most) if several and 2 * heads * (n_q * 256) <= 54525952 else blocks, 1)](dS_tiles, Q_tiles, dK_tiles, n_q, n_k, heads, together, own, num_warps=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
