"""dS-stored-resident: d_k = 128, d_v = 128, a = 128, b = 128, c = 64, e = 128, bfloat16 words; written by pebblesim."""

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





def tiles_of(tensor, rows, width):
    """For the copy engine: tiles of the heads of a tensor; beyond its rows and columns they are 0."""
    layout = gl.NVMMASharedLayout.get_default_for([1, rows, width], gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor, [1, rows, width], layout)


def vectors_of(tensor, length, rows):
    layout = gl.NVMMASharedLayout.get_default_for([1, rows], gl.float32)
    return TensorDescriptor(tensor, [tensor.shape[0], length], [tensor.shape[1], 1], [1, rows], layout)


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
def dV_dS_loads(K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_r_ring, v_r_ring, n_q, n_k):
    head, j = gl.program_id(1), gl.program_id(0)
    mbarrier.expect(K_j_full.index(0), 32768)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(K_tiles, [head, (j * 2 + w) * 64, 0], K_j_full.index(0), K_j.index(w))
    mbarrier.expect(V_j_full.index(0), 32768)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(V_tiles, [head, (j * 2 + w) * 64, 0], V_j_full.index(0), V_j.index(w))
    for r in range(n_q // 128 * 2):
        slot, phase = r % 3, (r // 3) & 1
        mbarrier.wait(Q_r_free.index(slot), phase ^ 1)
        mbarrier.expect(Q_r_full.index(slot), 16384)
        tma.async_copy_global_to_shared(Q_tiles, [head, r * 64, 0], Q_r_full.index(slot), Q_r.index(slot))
        mbarrier.wait(dO_r_free.index(slot), phase ^ 1)
        mbarrier.expect(dO_r_full.index(slot), 16896)
        tma.async_copy_global_to_shared(dO_tiles, [head, r * 64, 0], dO_r_full.index(slot), dO_r.index(slot))
        tma.async_copy_global_to_shared(L_tiles, [head, r * 64], dO_r_full.index(slot), L_r_ring.index(slot))
        tma.async_copy_global_to_shared(v_tiles, [head, r * 64], dO_r_full.index(slot), v_r_ring.index(slot))

@gluon.jit
def dV_dS_rows(w: gl.constexpr, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_r_ring, v_r_ring, dS_tile, dS_tiles, dV_ptr, n_q, n_k):
    head, j = gl.program_id(1), gl.program_id(0)
    dV_at = dV_ptr + gl.cast(head, gl.int64) * n_k * 128
    part = j * 2 + w  # these 64 rows of tile j
    dV_j = gl.full([64, 128], 0.0, gl.float32, tile_128)
    r = 0
    slot, phase = 0, 0
    mbarrier.wait(K_j_full.index(0), 0)
    mbarrier.wait(Q_r_full.index(slot), phase)
    P = warpgroup_mma(K_j.index(w).reshape([64, 128]), Q_r.index(slot).reshape([64, 128]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
    mbarrier.wait(V_j_full.index(0), 0)
    mbarrier.wait(dO_r_full.index(slot), phase)
    dS_rj = warpgroup_mma(V_j.index(w).reshape([64, 128]), dO_r.index(slot).reshape([64, 128]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
    P = warpgroup_mma_wait(1, deps=(P,))
    mbarrier.arrive(Q_r_free.index(slot), count=1)
    L_r = L_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
    P = gl.exp2(P * 0.18033688011112042 - L_r[None, :])
    dS_rj = warpgroup_mma_wait(0, deps=(dS_rj,))
    v_r = v_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
    dS_rj = P * (dS_rj - v_r[None, :])
    tma.store_wait(0)
    dS_tile.index(w).permute((1, 0)).store(dS_rj.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(dS_tiles, [((head * gl.cdiv(n_q, 128) + r // 2) * gl.cdiv(n_k, 128) + part // 2) * 128 + r % 2 * 64, part % 2 * 64], dS_tile.index(w))
    P_late = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_128, 2))
    for r_2 in range(1, n_q // 128 * 2):
        last, last_phase = slot, phase
        slot, phase = r_2 % 3, (r_2 // 3) & 1
        mbarrier.wait(Q_r_full.index(slot), phase)
        P = warpgroup_mma(K_j.index(w).reshape([64, 128]), Q_r.index(slot).reshape([64, 128]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        mbarrier.wait(dO_r_full.index(slot), phase)
        dS_rj = warpgroup_mma(V_j.index(w).reshape([64, 128]), dO_r.index(slot).reshape([64, 128]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        dV_j = warpgroup_mma(P_late, dO_r.index(last).reshape([64, 128]), dV_j, is_async=True)
        P = warpgroup_mma_wait(2, deps=(P,))
        mbarrier.arrive(Q_r_free.index(slot), count=1)
        L_r = L_r_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
        P = gl.exp2(P * 0.18033688011112042 - L_r[None, :])
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
    tma.store_wait(0)
    last, last_phase = slot, phase
    dV_j = warpgroup_mma(P_late, dO_r.index(last).reshape([64, 128]), dV_j, is_async=True)
    dV_j, P_late = warpgroup_mma_wait(0, deps=(dV_j, P_late))
    mbarrier.arrive(dO_r_free.index(last), count=1)
    down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_128))
    across = gl.arange(0, 128, gl.SliceLayout(0, rows_128))
    gl.store(dV_at + down[:, None] * 128 + across[None, :], gl.convert_layout(dV_j.to(dV_at.dtype.element_ty), rows_128))

@gluon.jit(do_not_specialize=["n_q", "n_k"])
def dV_dS(K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, dS_tiles, dV_ptr, n_q, n_k):
    K_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 64, 128], K_tiles.layout)  # line 137: stays
    K_j_full = barriers(1, 1)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 64, 128], V_tiles.layout)  # line 137: stays
    V_j_full = barriers(1, 1)
    Q_r = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 64, 128], Q_tiles.layout)  # line 140: a ring
    Q_r_full = barriers(3, 1)
    Q_r_free = barriers(3, 2)
    dO_r = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 64, 128], dO_tiles.layout)  # line 140: a ring
    dO_r_full = barriers(3, 1)
    dO_r_free = barriers(3, 2)
    L_r_ring = gl.allocate_shared_memory(gl.float32, [3, 1, 64], L_tiles.layout)  # line 140: a ring
    v_r_ring = gl.allocate_shared_memory(gl.float32, [3, 1, 64], v_tiles.layout)  # line 140: a ring
    dS_tile = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], dS_tiles.layout)  # line 144: on its way to memory
    gl.warp_specialize([
        (dV_dS_rows, (0, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_r_ring, v_r_ring, dS_tile, dS_tiles, dV_ptr, n_q, n_k)),
        (dV_dS_rows, (1, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_r_ring, v_r_ring, dS_tile, dS_tiles, dV_ptr, n_q, n_k)),
        (dV_dS_loads, (K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_r, Q_r_full, Q_r_free, dO_r, dO_r_full, dO_r_free, L_r_ring, v_r_ring, n_q, n_k)),
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
            mbarrier.expect(full.index(slot), 32768)
            tma.async_copy_global_to_shared(dS_tiles, [((head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) + k // 2) * 128, k % 2 * 64], full.index(slot), dS_part.index(slot))
            tma.async_copy_global_to_shared(K_tiles, [head, k * 64, j * 128], full.index(slot), K_part.index(slot))
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
        tma.async_copy_shared_to_global(dQ_tiles, [head, part * 64, j * 128], K_part.index(slot))
        tma.store_wait(0)
        mbarrier.arrive(free.index(slot), count=2)
        filled += end - first + 2

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads"])
def dQ(dS_tiles, K_tiles, dQ_tiles, n_q, n_k, heads):
    dS_part = gl.allocate_shared_memory(gl.bfloat16, [4, 128, 64], dS_tiles.layout)  # line 26: a ring
    K_part = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 64, 128], K_tiles.layout)  # line 27: a ring
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
            mbarrier.expect(full.index(slot), 32768)
            tma.async_copy_global_to_shared(dS_tiles, [((head * gl.cdiv(n_q, 128) + k // 2) * gl.cdiv(n_k, 128) + i) * 128 + k % 2 * 64, 0], full.index(slot), dS_part.index(slot))
            tma.async_copy_global_to_shared(Q_tiles, [head, k * 64, j * 128], full.index(slot), Q_part.index(slot))
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
        tma.async_copy_shared_to_global(dK_tiles, [head, part * 64, j * 128], Q_part.index(slot))
        tma.store_wait(0)
        mbarrier.arrive(free.index(slot), count=2)
        filled += end - first + 2

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads"])
def dK(dS_tiles, Q_tiles, dK_tiles, n_q, n_k, heads):
    dS_part = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 128], dS_tiles.layout)  # line 26: a ring
    Q_part = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 64, 128], Q_tiles.layout)  # line 27: a ring
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
    dQ_ptr = torch.empty((heads, n_q, 128), dtype=torch.bfloat16, device=device)
    dK_ptr = torch.empty((heads, n_k, 128), dtype=torch.bfloat16, device=device)
    dV_ptr = torch.empty((heads, n_k, 128), dtype=torch.bfloat16, device=device)
    v_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    dS_ptr = torch.empty((heads, triton.cdiv(n_q, 128), triton.cdiv(n_k, 128), 128, 128), dtype=torch.bfloat16, device=device)
    v[(n_q // 128, heads)](dO_ptr, O_ptr, v_ptr, n_q, n_k, num_warps=8, num_stages=3)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    K_tiles = tiles_of(K_ptr, 64, 128)
    V_tiles = tiles_of(V_ptr, 64, 128)
    Q_tiles = tiles_of(Q_ptr, 64, 128)
    dO_tiles = tiles_of(dO_ptr, 64, 128)
    L_tiles = vectors_of(L_ptr, n_q, 64)
    v_tiles = vectors_of(v_ptr, n_q, 64)
    dS_tiles = pairs_of(dS_ptr, 64, 64)
    dV_dS[(triton.cdiv(n_k, 128), heads)](K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, dS_tiles, dV_ptr, n_q, n_k, num_warps=4)
    dS_tiles = pairs_of(dS_ptr, 128, 64)
    K_tiles = tiles_of(K_ptr, 64, 128)
    dQ_tiles = tiles_of(dQ_ptr, 64, 128)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    dQ[(min(triton.cdiv(n_q, 128) * heads, most), 1)](dS_tiles, K_tiles, dQ_tiles, n_q, n_k, heads, num_warps=4)
    dS_tiles = pairs_of(dS_ptr, 64, 128)
    Q_tiles = tiles_of(Q_ptr, 64, 128)
    dK_tiles = tiles_of(dK_ptr, 64, 128)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    dK[(min(triton.cdiv(n_k, 128) * heads, most), 1)](dS_tiles, Q_tiles, dK_tiles, n_q, n_k, heads, num_warps=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
