"""small-cache-backward-resident: d_k = 128, d_v = 128, a = 128, b = 128, c = 64, e = 256, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

tile_128 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
tile_256 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


@gluon.jit
def barriers(slots: gl.constexpr, count: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [slots, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(slots):
        mbarrier.init(made.index(slot), count=count)
    return made





def tiles_of(tensor, rows, width):
    """For the copy engine: tiles of the heads of a tensor; beyond its rows and columns they are 0."""
    layout = gl.NVMMASharedLayout.get_default_for([1, rows, width], gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor, [1, rows, width], layout)


def pairs_of(tensor, rows, width):
    """For the copy engine: a table of pairs, tile after tile."""
    layout, whole = gl.NVMMASharedLayout.get_default_for([rows, width], gl.bfloat16), tensor.shape[-1]
    return TensorDescriptor(tensor, [tensor.numel() // whole, whole], [whole, 1], [rows, width], layout)

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

@gluon.jit
def P_loads(Q_tiles, K_tiles, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, n_q, n_k, heads):
    tiles = n_q // 128
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, i = tile // tiles, tile % tiles
        for k in range(2):
            mbarrier.wait(Q_i_free.index(k), (turn & 1) ^ 1)
            mbarrier.expect(Q_i_full.index(k), 16384)
            tma.async_copy_global_to_shared(Q_tiles, [head, i * 128, k * 64], Q_i_full.index(k), Q_i.index(k))
        for j in range(n_k // 128):
            for k in range(2):
                slot, phase = ((filled + j) * 2 + k) % 8, (((filled + j) * 2 + k) // 8) & 1
                mbarrier.wait(K_j_free.index(slot), phase ^ 1)
                mbarrier.expect(K_j_full.index(slot), 16384)
                tma.async_copy_global_to_shared(K_tiles, [head, j * 128, k * 64], K_j_full.index(slot), K_j.index(slot))
        filled += n_k // 128

@gluon.jit
def P_rows(w: gl.constexpr, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, P_tile, turns, P_tiles, L_ptr, n_q, n_k, heads):
    tiles = n_q // 128
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, i = tile // tiles, tile % tiles
        L_at = L_ptr + gl.cast(head, gl.int64) * n_q
        part = i * 2 + w  # these 64 rows of tile i
        at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_128))
        for k in gl.static_range(2):
            mbarrier.wait(Q_i_full.index(k), turn & 1)
        L_i = gl.load(L_at + at_i)
        for j in range(n_k // 128):
            S_ij = gl.full([64, 128], 0.0, gl.float32, tile_128)
            if w > 0 and j == 0:
                mbarrier.wait(turns.index(w - 1), turn & 1)
            for k in gl.static_range(2):
                slot, phase = ((filled + j) * 2 + k) % 8, (((filled + j) * 2 + k) // 8) & 1
                mbarrier.wait(K_j_full.index(slot), phase)
                S_ij = warpgroup_mma(Q_i.index(k).reshape([128, 64]).slice(w * 64, 64), K_j.index(slot).reshape([128, 64]).permute((1, 0)), S_ij, use_acc=k > 0, is_async=True)
                if k == 0 and w < 1 and j == 0:
                    mbarrier.arrive(turns.index(w), count=1)
                if k > 0:
                    S_ij = warpgroup_mma_wait(1, deps=(S_ij,))
                    mbarrier.arrive(K_j_free.index(last), count=1)
                last = slot
            S_ij = warpgroup_mma_wait(0, deps=(S_ij,))
            mbarrier.arrive(K_j_free.index(last), count=1)
            if j + 1 == n_k // 128:
                for k in gl.static_range(2):
                    mbarrier.arrive(Q_i_free.index(k), count=1)
            S_ij = gl.exp2(S_ij * 0.18033688011112042 - L_i[:, None])
            tma.store_wait(0)
            P_tile.index(w).store(S_ij.to(gl.bfloat16))
            fence_async_shared()
            tma.async_copy_shared_to_global(P_tiles, [((head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) + j) * 128 + w * 64, 0], P_tile.index(w))
        tma.store_wait(0)
        filled += n_k // 128

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads"])
def P(Q_tiles, K_tiles, P_tiles, L_ptr, n_q, n_k, heads):
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 128, 64], Q_tiles.layout)  # line 69: stays
    Q_i_full = barriers(2, 1)
    Q_i_free = barriers(2, 2)
    K_j = gl.allocate_shared_memory(gl.bfloat16, [8, 1, 128, 64], K_tiles.layout)  # line 25: a ring
    K_j_full = barriers(8, 1)
    K_j_free = barriers(8, 2)
    P_tile = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 128], P_tiles.layout)  # line 74: on its way to memory
    turns = barriers(1, 1)
    gl.warp_specialize([
        (P_rows, (0, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, P_tile, turns, P_tiles, L_ptr, n_q, n_k, heads)),
        (P_rows, (1, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, P_tile, turns, P_tiles, L_ptr, n_q, n_k, heads)),
        (P_loads, (Q_tiles, K_tiles, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, n_q, n_k, heads)),
    ], [4, 1], [240, 24])

@gluon.jit
def dV_loads(P_tiles, dO_tiles, P_part, dO_part, full, free, n_q, n_k, heads):
    tiles, wide = n_k // 128, 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, j = group * 8 + rank % side, rank // side
        first, end = 0, n_q // 128 * 2  # parts of terms
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), 49152)
            tma.async_copy_global_to_shared(P_tiles, [((head * gl.cdiv(n_q, 128) + k // 2) * gl.cdiv(n_k, 128) + i) * 128 + k % 2 * 64, 0], full.index(slot), P_part.index(slot))
            tma.async_copy_global_to_shared(dO_tiles, [head, k * 64, j * 256], full.index(slot), dO_part.index(slot))
        for k in range(2):
            slot, phase = (filled + (end - first + k)) % 4, ((filled + (end - first + k)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.arrive(full.index(slot), count=1)
        filled += end - first + 2

@gluon.jit
def dV_rows(w: gl.constexpr, P_part, dO_part, full, free, dV_tiles, n_q, n_k, heads):
    tiles, wide = n_k // 128, 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, j = group * 8 + rank % side, rank // side
        first, end = 0, n_q // 128 * 2  # parts of terms
        part = i * 2 + w  # these 64 rows of tile i
        C_ij = gl.full([64, 256], 0.0, gl.float32, tile_256)
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(full.index(slot), phase)
            C_ij = warpgroup_mma(P_part.index(slot).slice(w * 64, 64, dim=1).permute((1, 0)), dO_part.index(slot).reshape([64, 256]), C_ij, is_async=True)
            C_ij = warpgroup_mma_wait(1, deps=(C_ij,))
            if k > first:
                mbarrier.arrive(free.index((filled + k - first - 1) % 4), count=1)
        C_ij = warpgroup_mma_wait(0, deps=(C_ij,))
        if first < end:
            mbarrier.arrive(free.index((filled + end - first - 1) % 4), count=1)
        slot, phase = (filled + (end - first + w)) % 4, ((filled + (end - first + w)) // 4) & 1
        mbarrier.wait(full.index(slot), phase)
        dO_part.index(slot).reshape([64, 256]).store(C_ij.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dV_tiles, [head, part * 64, j * 256], dO_part.index(slot))
        tma.store_wait(0)
        mbarrier.arrive(free.index(slot), count=2)
        filled += end - first + 2

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads"])
def dV(P_tiles, dO_tiles, dV_tiles, n_q, n_k, heads):
    P_part = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 128], P_tiles.layout)  # line 26: a ring
    dO_part = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 64, 256], dO_tiles.layout)  # line 27: a ring
    full, free = barriers(4, 1), barriers(4, 2)
    gl.warp_specialize([
        (dV_rows, (0, P_part, dO_part, full, free, dV_tiles, n_q, n_k, heads)),
        (dV_rows, (1, P_part, dO_part, full, free, dV_tiles, n_q, n_k, heads)),
        (dV_loads, (P_tiles, dO_tiles, P_part, dO_part, full, free, n_q, n_k, heads)),
    ], [4, 1], [240, 24])

@gluon.jit
def dS_loads(dO_tiles, V_tiles, dO_i, dO_i_full, dO_i_free, V_j, V_j_full, V_j_free, n_q, n_k, heads):
    tiles = n_q // 128
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, i = tile // tiles, tile % tiles
        for k in range(2):
            mbarrier.wait(dO_i_free.index(k), (turn & 1) ^ 1)
            mbarrier.expect(dO_i_full.index(k), 16384)
            tma.async_copy_global_to_shared(dO_tiles, [head, i * 128, k * 64], dO_i_full.index(k), dO_i.index(k))
        for j in range(n_k // 128):
            for k in range(2):
                slot, phase = ((filled + j) * 2 + k) % 8, (((filled + j) * 2 + k) // 8) & 1
                mbarrier.wait(V_j_free.index(slot), phase ^ 1)
                mbarrier.expect(V_j_full.index(slot), 16384)
                tma.async_copy_global_to_shared(V_tiles, [head, j * 128, k * 64], V_j_full.index(slot), V_j.index(slot))
        filled += n_k // 128

@gluon.jit
def dS_rows(w: gl.constexpr, dO_i, dO_i_full, dO_i_free, V_j, V_j_full, V_j_free, dS_tile, dS_tile_full, turns, dS_tiles, P_tiles, v_ptr, n_q, n_k, heads):
    tiles = n_q // 128
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, i = tile // tiles, tile % tiles
        v_at = v_ptr + gl.cast(head, gl.int64) * n_q
        part = i * 2 + w  # these 64 rows of tile i
        at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_128))
        for k in gl.static_range(2):
            mbarrier.wait(dO_i_full.index(k), turn & 1)
        v_i = gl.load(v_at + at_i)
        if 0 < n_k // 128:
            tma.store_wait(0)
            mbarrier.expect(dS_tile_full.index(2 * w + (filled & 1)), 16384)
            tma.async_copy_global_to_shared(P_tiles, [(head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) * 128 + w * 64, 0], dS_tile_full.index(2 * w + (filled & 1)), dS_tile.index(2 * w + (filled & 1)))
        for j in range(n_k // 128):
            S_ij = gl.full([64, 128], 0.0, gl.float32, tile_128)
            if w > 0 and j == 0:
                mbarrier.wait(turns.index(w - 1), turn & 1)
            for k in gl.static_range(2):
                slot, phase = ((filled + j) * 2 + k) % 8, (((filled + j) * 2 + k) // 8) & 1
                mbarrier.wait(V_j_full.index(slot), phase)
                S_ij = warpgroup_mma(dO_i.index(k).reshape([128, 64]).slice(w * 64, 64), V_j.index(slot).reshape([128, 64]).permute((1, 0)), S_ij, use_acc=k > 0, is_async=True)
                if k == 0 and w < 1 and j == 0:
                    mbarrier.arrive(turns.index(w), count=1)
                if k == 1 and j + 1 < n_k // 128:
                    tma.store_wait(0)
                    mbarrier.expect(dS_tile_full.index(2 * w + ((filled + (j + 1)) & 1)), 16384)
                    tma.async_copy_global_to_shared(P_tiles, [((head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) + (j + 1)) * 128 + w * 64, 0], dS_tile_full.index(2 * w + ((filled + (j + 1)) & 1)), dS_tile.index(2 * w + ((filled + (j + 1)) & 1)))
                if k > 0:
                    S_ij = warpgroup_mma_wait(1, deps=(S_ij,))
                    mbarrier.arrive(V_j_free.index(last), count=1)
                last = slot
            S_ij = warpgroup_mma_wait(0, deps=(S_ij,))
            mbarrier.arrive(V_j_free.index(last), count=1)
            if j + 1 == n_k // 128:
                for k in gl.static_range(2):
                    mbarrier.arrive(dO_i_free.index(k), count=1)
            mbarrier.wait(dS_tile_full.index(2 * w + ((filled + j) & 1)), ((filled + j) // 2) & 1)
            P_ij = dS_tile.index(2 * w + ((filled + j) & 1)).load(tile_128)
            S_ij = P_ij.to(gl.float32) * (S_ij - v_i.to(gl.float32)[:, None])
            dS_tile.index(2 * w + ((filled + j) & 1)).store(S_ij.to(gl.bfloat16))
            fence_async_shared()
            tma.async_copy_shared_to_global(dS_tiles, [((head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) + j) * 128 + w * 64, 0], dS_tile.index(2 * w + ((filled + j) & 1)))
        tma.store_wait(0)
        filled += n_k // 128

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads"])
def dS(dO_tiles, V_tiles, dS_tiles, P_tiles, v_ptr, n_q, n_k, heads):
    dO_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 128, 64], dO_tiles.layout)  # line 80: stays
    dO_i_full = barriers(2, 1)
    dO_i_free = barriers(2, 2)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [8, 1, 128, 64], V_tiles.layout)  # line 25: a ring
    V_j_full = barriers(8, 1)
    V_j_free = barriers(8, 2)
    dS_tile = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 128], dS_tiles.layout)  # line 86: on its way to memory
    dS_tile_full = barriers(4, 1)
    turns = barriers(1, 1)
    gl.warp_specialize([
        (dS_rows, (0, dO_i, dO_i_full, dO_i_free, V_j, V_j_full, V_j_free, dS_tile, dS_tile_full, turns, dS_tiles, P_tiles, v_ptr, n_q, n_k, heads)),
        (dS_rows, (1, dO_i, dO_i_full, dO_i_free, V_j, V_j_full, V_j_free, dS_tile, dS_tile_full, turns, dS_tiles, P_tiles, v_ptr, n_q, n_k, heads)),
        (dS_loads, (dO_tiles, V_tiles, dO_i, dO_i_full, dO_i_free, V_j, V_j_full, V_j_free, n_q, n_k, heads)),
    ], [4, 1], [240, 24])

@gluon.jit
def dQ_loads(dS_tiles, K_tiles, dS_part, K_part, full, free, n_q, n_k, heads):
    tiles, wide = n_q // 128, 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, j = group * 8 + rank % side, rank // side
        first, end = 0, n_k // 128 * 2  # parts of terms
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), 49152)
            tma.async_copy_global_to_shared(dS_tiles, [((head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) + k // 2) * 128, k % 2 * 64], full.index(slot), dS_part.index(slot))
            tma.async_copy_global_to_shared(K_tiles, [head, k * 64, j * 256], full.index(slot), K_part.index(slot))
        for k in range(2):
            slot, phase = (filled + (end - first + k)) % 4, ((filled + (end - first + k)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.arrive(full.index(slot), count=1)
        filled += end - first + 2

@gluon.jit
def dQ_rows(w: gl.constexpr, dS_part, K_part, full, free, dQ_tiles, n_q, n_k, heads):
    tiles, wide = n_q // 128, 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, j = group * 8 + rank % side, rank // side
        first, end = 0, n_k // 128 * 2  # parts of terms
        part = i * 2 + w  # these 64 rows of tile i
        C_ij = gl.full([64, 256], 0.0, gl.float32, tile_256)
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(full.index(slot), phase)
            C_ij = warpgroup_mma(dS_part.index(slot).slice(w * 64, 64), K_part.index(slot).reshape([64, 256]), C_ij, is_async=True)
            C_ij = warpgroup_mma_wait(1, deps=(C_ij,))
            if k > first:
                mbarrier.arrive(free.index((filled + k - first - 1) % 4), count=1)
        C_ij = warpgroup_mma_wait(0, deps=(C_ij,))
        if first < end:
            mbarrier.arrive(free.index((filled + end - first - 1) % 4), count=1)
        slot, phase = (filled + (end - first + w)) % 4, ((filled + (end - first + w)) // 4) & 1
        mbarrier.wait(full.index(slot), phase)
        K_part.index(slot).reshape([64, 256]).store((C_ij * 0.125).to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dQ_tiles, [head, part * 64, j * 256], K_part.index(slot))
        tma.store_wait(0)
        mbarrier.arrive(free.index(slot), count=2)
        filled += end - first + 2

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads"])
def dQ(dS_tiles, K_tiles, dQ_tiles, n_q, n_k, heads):
    dS_part = gl.allocate_shared_memory(gl.bfloat16, [4, 128, 64], dS_tiles.layout)  # line 26: a ring
    K_part = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 64, 256], K_tiles.layout)  # line 27: a ring
    full, free = barriers(4, 1), barriers(4, 2)
    gl.warp_specialize([
        (dQ_rows, (0, dS_part, K_part, full, free, dQ_tiles, n_q, n_k, heads)),
        (dQ_rows, (1, dS_part, K_part, full, free, dQ_tiles, n_q, n_k, heads)),
        (dQ_loads, (dS_tiles, K_tiles, dS_part, K_part, full, free, n_q, n_k, heads)),
    ], [4, 1], [240, 24])

@gluon.jit
def dK_loads(dS_tiles, Q_tiles, dS_part, Q_part, full, free, n_q, n_k, heads):
    tiles, wide = n_k // 128, 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, j = group * 8 + rank % side, rank // side
        first, end = 0, n_q // 128 * 2  # parts of terms
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), 49152)
            tma.async_copy_global_to_shared(dS_tiles, [((head * gl.cdiv(n_q, 128) + k // 2) * gl.cdiv(n_k, 128) + i) * 128 + k % 2 * 64, 0], full.index(slot), dS_part.index(slot))
            tma.async_copy_global_to_shared(Q_tiles, [head, k * 64, j * 256], full.index(slot), Q_part.index(slot))
        for k in range(2):
            slot, phase = (filled + (end - first + k)) % 4, ((filled + (end - first + k)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.arrive(full.index(slot), count=1)
        filled += end - first + 2

@gluon.jit
def dK_rows(w: gl.constexpr, dS_part, Q_part, full, free, dK_tiles, n_q, n_k, heads):
    tiles, wide = n_k // 128, 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, j = group * 8 + rank % side, rank // side
        first, end = 0, n_q // 128 * 2  # parts of terms
        part = i * 2 + w  # these 64 rows of tile i
        C_ij = gl.full([64, 256], 0.0, gl.float32, tile_256)
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(full.index(slot), phase)
            C_ij = warpgroup_mma(dS_part.index(slot).slice(w * 64, 64, dim=1).permute((1, 0)), Q_part.index(slot).reshape([64, 256]), C_ij, is_async=True)
            C_ij = warpgroup_mma_wait(1, deps=(C_ij,))
            if k > first:
                mbarrier.arrive(free.index((filled + k - first - 1) % 4), count=1)
        C_ij = warpgroup_mma_wait(0, deps=(C_ij,))
        if first < end:
            mbarrier.arrive(free.index((filled + end - first - 1) % 4), count=1)
        slot, phase = (filled + (end - first + w)) % 4, ((filled + (end - first + w)) // 4) & 1
        mbarrier.wait(full.index(slot), phase)
        Q_part.index(slot).reshape([64, 256]).store((C_ij * 0.125).to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(dK_tiles, [head, part * 64, j * 256], Q_part.index(slot))
        tma.store_wait(0)
        mbarrier.arrive(free.index(slot), count=2)
        filled += end - first + 2

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads"])
def dK(dS_tiles, Q_tiles, dK_tiles, n_q, n_k, heads):
    dS_part = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 128], dS_tiles.layout)  # line 26: a ring
    Q_part = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 64, 256], Q_tiles.layout)  # line 27: a ring
    full, free = barriers(4, 1), barriers(4, 2)
    gl.warp_specialize([
        (dK_rows, (0, dS_part, Q_part, full, free, dK_tiles, n_q, n_k, heads)),
        (dK_rows, (1, dS_part, Q_part, full, free, dK_tiles, n_q, n_k, heads)),
        (dK_loads, (dS_tiles, Q_tiles, dS_part, Q_part, full, free, n_q, n_k, heads)),
    ], [4, 1], [240, 24])


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, dL=None):
    """dQ, dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    heads, device = Q_ptr.shape[0], Q_ptr.device
    n_q = Q_ptr.shape[1]
    n_k = K_ptr.shape[1]
    if n_q % 128 or n_k % 128:
        raise ValueError("these kernels need n_q to be a multiple of 128 and n_k to be a multiple of 128")
    if max(each.shape[1] * each.shape[2] for each in (Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr,)) >= 2**31:
        raise ValueError("these kernels need heads of less than 2**31 words")
    P_ptr = torch.empty((heads, triton.cdiv(n_q, 128), triton.cdiv(n_k, 128), 128, 128), dtype=torch.bfloat16, device=device)
    dS_ptr = P_ptr  # tile by tile in its place
    v_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    dQ_ptr = torch.empty((heads, n_q, 128), dtype=torch.bfloat16, device=device)
    dK_ptr = torch.empty((heads, n_k, 128), dtype=torch.bfloat16, device=device)
    dV_ptr = torch.empty((heads, n_k, 128), dtype=torch.bfloat16, device=device)
    v[(n_q // 128, heads)](dO_ptr, O_ptr, v_ptr, n_q, n_k, num_warps=8, num_stages=3)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    Q_tiles = tiles_of(Q_ptr, 128, 64)
    K_tiles = tiles_of(K_ptr, 128, 64)
    P_tiles = pairs_of(P_ptr, 64, 128)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    P[(min(triton.cdiv(n_q, 128) * heads, most), 1)](Q_tiles, K_tiles, P_tiles, L_ptr, n_q, n_k, heads, num_warps=4)
    P_tiles = pairs_of(P_ptr, 64, 128)
    dO_tiles = tiles_of(dO_ptr, 64, 256)
    dV_tiles = tiles_of(dV_ptr, 64, 256)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    dV[(min(triton.cdiv(n_k, 128) * heads, most), 1)](P_tiles, dO_tiles, dV_tiles, n_q, n_k, heads, num_warps=4)
    dO_tiles = tiles_of(dO_ptr, 128, 64)
    V_tiles = tiles_of(V_ptr, 128, 64)
    dS_tiles = pairs_of(dS_ptr, 64, 128)
    P_tiles = pairs_of(P_ptr, 64, 128)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    dS[(min(triton.cdiv(n_q, 128) * heads, most), 1)](dO_tiles, V_tiles, dS_tiles, P_tiles, v_ptr, n_q, n_k, heads, num_warps=4)
    dS_tiles = pairs_of(dS_ptr, 128, 64)
    K_tiles = tiles_of(K_ptr, 64, 256)
    dQ_tiles = tiles_of(dQ_ptr, 64, 256)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    dQ[(min(triton.cdiv(n_q, 128) * heads, most), 1)](dS_tiles, K_tiles, dQ_tiles, n_q, n_k, heads, num_warps=4)
    dS_tiles = pairs_of(dS_ptr, 64, 128)
    Q_tiles = tiles_of(Q_ptr, 64, 256)
    dK_tiles = tiles_of(dK_ptr, 64, 256)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    dK[(min(triton.cdiv(n_k, 128) * heads, most), 1)](dS_tiles, Q_tiles, dK_tiles, n_q, n_k, heads, num_warps=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
