"""scores-stored-resident: d_k = 128, d_v = 128, a = 128, b = 128, c = 64, e = 256, bfloat16 words; written by pebblesim."""

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


def pairs_of(tensor, rows, width):
    """For the copy engine: a table of pairs, tile after tile."""
    layout, whole = gl.NVMMASharedLayout.get_default_for([rows, width], gl.bfloat16), tensor.shape[-1]
    return TensorDescriptor(tensor, [tensor.numel() // whole, whole], [whole, 1], [rows, width], layout)

@gluon.jit
def A_loads(Q_tiles, K_tiles, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, n_q, n_k, heads, own):
    tiles = n_q // 128
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, i = tile // tiles, tile % tiles
        batch, key_head = head // own, head % own
        for k in range(2):
            mbarrier.wait(Q_i_free.index(k), (turn & 1) ^ 1)
            mbarrier.expect(Q_i_full.index(k), 16384)
            tma.async_copy_global_to_shared(Q_tiles, [batch, key_head, i * 128, k * 64], Q_i_full.index(k), Q_i.index(k))
        for j in range(n_k // 128):
            for k in range(2):
                slot, phase = ((filled + j) * 2 + k) % 8, (((filled + j) * 2 + k) // 8) & 1
                mbarrier.wait(K_j_free.index(slot), phase ^ 1)
                mbarrier.expect(K_j_full.index(slot), 16384)
                tma.async_copy_global_to_shared(K_tiles, [batch, key_head, j * 128, k * 64], K_j_full.index(slot), K_j.index(slot))
        filled += n_k // 128

@gluon.jit
def A_rows(w: gl.constexpr, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, A_tile, turns, A_tiles, a_ptr, l_m_ptr, L_ptr, n_q, n_k, heads, own):
    tiles = n_q // 128
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, i = tile // tiles, tile % tiles
        batch, key_head = head // own, head % own
        l_m_at = l_m_ptr + gl.cast(head, gl.int64) * n_q
        L_at = L_ptr + gl.cast(head, gl.int64) * n_q
        a_at = a_ptr + gl.cast(head, gl.int64) * gl.cdiv(n_k, 128) * n_q
        part = i * 2 + w  # these 64 rows of tile i
        at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_128))
        for k in gl.static_range(1):
            mbarrier.wait(Q_i_full.index(k), turn & 1)
        for rest in range(1, 2):
            mbarrier.wait(Q_i_full.index(rest), turn & 1)
        l_i = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, tile_128))
        m_i = gl.full([64], -float("inf"), gl.float32, gl.SliceLayout(1, tile_128))
        for j in range(n_k // 128):
            S_ij = gl.full([64, 128], 0.0, gl.float32, tile_128)
            if w > 0 and j == 0:
                mbarrier.wait(turns.index(w - 1), turn & 1)
            for k in gl.static_range(1):
                slot, phase = ((filled + j) * 2 + k) % 8, (((filled + j) * 2 + k) // 8) & 1
                mbarrier.wait(K_j_full.index(slot), phase)
                S_ij = warpgroup_mma(Q_i.index(k).reshape([128, 64]).slice(w * 64, 64), K_j.index(slot).reshape([128, 64]).permute((1, 0)), S_ij, use_acc=k > 0, is_async=True)
                if k == 0 and w < 1 and j == 0:
                    mbarrier.arrive(turns.index(w), count=1)
                if k > 0:
                    S_ij = warpgroup_mma_wait(1, deps=(S_ij,))
                    mbarrier.arrive(K_j_free.index(last), count=1)
                last = slot
            S_ij = warpgroup_mma_wait(1, deps=(S_ij,))
            for rest in range(1, 2):
                slot, phase = ((filled + j) * 2 + rest) % 8, (((filled + j) * 2 + rest) // 8) & 1
                mbarrier.wait(K_j_full.index(slot), phase)
                S_ij = warpgroup_mma(Q_i.index(rest).reshape([128, 64]).slice(w * 64, 64), K_j.index(slot).reshape([128, 64]).permute((1, 0)), S_ij, is_async=True)
                S_ij = warpgroup_mma_wait(1, deps=(S_ij,))
                mbarrier.arrive(K_j_free.index(last), count=1)
                last = slot
            S_ij = warpgroup_mma_wait(0, deps=(S_ij,))
            mbarrier.arrive(K_j_free.index(last), count=1)
            if j + 1 == n_k // 128:
                for k in gl.static_range(1):
                    mbarrier.arrive(Q_i_free.index(k), count=1)
                for rest in range(1, 2):
                    mbarrier.arrive(Q_i_free.index(rest), count=1)
            m_new = gl.max(S_ij, axis=1) * 0.18033688011112042
            m_new = gl.maximum(m_i, m_new)
            m_i = gl.exp2(m_i - m_new)
            gl.store(a_at + gl.cast(j, gl.int64) * n_q + at_i, m_i.to(a_at.dtype.element_ty))
            S_ij = gl.exp2(S_ij * 0.18033688011112042 - m_new[:, None])
            l_i = m_i * l_i
            l_i += gl.sum(S_ij, axis=1)
            tma.store_wait(0)
            A_tile.index(w).store(S_ij.to(gl.bfloat16))
            fence_async_shared()
            tma.async_copy_shared_to_global(A_tiles, [((head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) + j) * 128 + w * 64, 0], A_tile.index(w))
            m_i = m_new
        tma.store_wait(0)
        gl.store(l_m_at + at_i, l_i.to(l_m_at.dtype.element_ty))
        m_i = m_i + gl.log2(l_i)
        gl.store(L_at + at_i, m_i.to(L_at.dtype.element_ty))
        filled += n_k // 128

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "own"])
def A(Q_tiles, K_tiles, A_tiles, a_ptr, l_m_ptr, L_ptr, n_q, n_k, heads, own):
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 128, 64], Q_tiles.layout)  # line 110: stays
    Q_i_full = barriers(2, 1)
    Q_i_free = barriers(2, 2)
    K_j = gl.allocate_shared_memory(gl.bfloat16, [8, 1, 1, 128, 64], K_tiles.layout)  # line 25: a ring
    K_j_full = barriers(8, 1)
    K_j_free = barriers(8, 2)
    A_tile = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 128], A_tiles.layout)  # line 86: on its way to memory
    turns = barriers(1, 1)
    gl.warp_specialize([
        (A_rows, (0, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, A_tile, turns, A_tiles, a_ptr, l_m_ptr, L_ptr, n_q, n_k, heads, own)),
        (A_rows, (1, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, A_tile, turns, A_tiles, a_ptr, l_m_ptr, L_ptr, n_q, n_k, heads, own)),
        (A_loads, (Q_tiles, K_tiles, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, n_q, n_k, heads, own)),
    ], [4, 1], [240, 24])

@gluon.jit
def O_loads(A_tiles, V_tiles, A_part, V_part, full, free, n_q, n_k, heads, own):
    tiles, wide = n_q // 128, 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, k_2 = group * 8 + rank % side, rank // side
        batch, key_head = head // own, head % own
        first, end = 0, n_k // 128 * 2  # parts of terms
        for k in range(first, end):
            slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.expect(full.index(slot), 49152)
            tma.async_copy_global_to_shared(A_tiles, [((head * gl.cdiv(n_q, 128) + i) * gl.cdiv(n_k, 128) + k // 2) * 128, k % 2 * 64], full.index(slot), A_part.index(slot))
            tma.async_copy_global_to_shared(V_tiles, [batch, key_head, k * 64, k_2 * 256], full.index(slot), V_part.index(slot))
        for k in range(2):
            slot, phase = (filled + (end - first + k)) % 4, ((filled + (end - first + k)) // 4) & 1
            mbarrier.wait(free.index(slot), phase ^ 1)
            mbarrier.arrive(full.index(slot), count=1)
        filled += end - first + 2

@gluon.jit
def O_rows(w: gl.constexpr, A_part, V_part, full, free, O_tiles, a_ptr, l_m_ptr, n_q, n_k, heads, own):
    tiles, wide = n_q // 128, 1
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * wide * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        head, place = tile // (tiles * wide), tile % (tiles * wide)
        group, rank = place // (8 * wide), place % (8 * wide)
        side = gl.minimum(tiles - group * 8, 8)  # tiles of rows that share columns in L2
        i, k_2 = group * 8 + rank % side, rank // side
        batch, key_head = head // own, head % own
        first, end = 0, n_k // 128 * 2  # parts of terms
        l_m_at = l_m_ptr + gl.cast(head, gl.int64) * n_q
        a_at = a_ptr + gl.cast(head, gl.int64) * gl.cdiv(n_k, 128) * n_q
        part = i * 2 + w  # these 64 rows of tile i
        at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_256))
        O_ik = gl.full([64, 256], 0.0, gl.float32, tile_256)
        for j in range(n_k // 128):
            x = gl.load(a_at + gl.cast(j, gl.int64) * n_q + at_i)
            O_ik = gl.convert_layout(x.to(gl.float32), gl.SliceLayout(1, tile_256))[:, None] * O_ik
            k_first, k_end = j * 2, j * 2 + 2
            for k in range(k_first, k_end):
                slot, phase = (filled + (k - first)) % 4, ((filled + (k - first)) // 4) & 1
                mbarrier.wait(full.index(slot), phase)
                O_ik = warpgroup_mma(A_part.index(slot).slice(w * 64, 64), V_part.index(slot).reshape([64, 256]), O_ik, is_async=True)
                O_ik = warpgroup_mma_wait(1, deps=(O_ik,))
                if k > k_first:
                    mbarrier.arrive(free.index((filled + k - first - 1) % 4), count=1)
            O_ik = warpgroup_mma_wait(0, deps=(O_ik,))
            mbarrier.arrive(free.index((filled + k_end - first - 1) % 4), count=1)
        x_2 = gl.load(l_m_at + at_i)
        O_ik = O_ik * (1.0 / gl.convert_layout(x_2.to(gl.float32), gl.SliceLayout(1, tile_256)))[:, None]
        slot, phase = (filled + (end - first + w)) % 4, ((filled + (end - first + w)) // 4) & 1
        mbarrier.wait(full.index(slot), phase)
        V_part.index(slot).reshape([64, 256]).store(O_ik.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(O_tiles, [batch, key_head, part * 64, k_2 * 256], V_part.index(slot))
        tma.store_wait(0)
        mbarrier.arrive(free.index(slot), count=2)
        filled += end - first + 2

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "own"])
def O(A_tiles, V_tiles, O_tiles, a_ptr, l_m_ptr, n_q, n_k, heads, own):
    A_part = gl.allocate_shared_memory(gl.bfloat16, [4, 128, 64], A_tiles.layout)  # line 102: a ring
    V_part = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 1, 64, 256], V_tiles.layout)  # line 102: a ring
    full, free = barriers(4, 1), barriers(4, 2)
    gl.warp_specialize([
        (O_rows, (0, A_part, V_part, full, free, O_tiles, a_ptr, l_m_ptr, n_q, n_k, heads, own)),
        (O_rows, (1, A_part, V_part, full, free, O_tiles, a_ptr, l_m_ptr, n_q, n_k, heads, own)),
        (O_loads, (A_tiles, V_tiles, A_part, V_part, full, free, n_q, n_k, heads, own)),
    ], [4, 1], [240, 24])


def run(Q_ptr, K_ptr, V_ptr, results):
    """O, l_m, L of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    O_ptr = results["O"]
    n_q = Q_ptr.shape[2]
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    if n_q % 128 or n_k % 128:
        raise ValueError("these kernels need n_q to be a multiple of 128 and n_k to be a multiple of 128")
    A_ptr = torch.empty((heads, triton.cdiv(n_q, 128), triton.cdiv(n_k, 128), 128, 128), dtype=torch.bfloat16, device=device)
    l_m_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    a_ptr = torch.empty((heads, triton.cdiv(n_k, 128), n_q), dtype=torch.float32, device=device)
    Q_tiles = tiles_of(Q_ptr, 128, 64)
    K_tiles = tiles_of(K_ptr, 128, 64)
    A_tiles = pairs_of(A_ptr, 64, 128)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    A[(min(triton.cdiv(n_q, 128) * heads, most), 1)](Q_tiles, K_tiles, A_tiles, a_ptr, l_m_ptr, L_ptr, n_q, n_k, heads, own, num_warps=4)
    A_tiles = pairs_of(A_ptr, 128, 64)
    V_tiles = tiles_of(V_ptr, 64, 256)
    O_tiles = tiles_of(O_ptr, 64, 256)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    O[(min(triton.cdiv(n_q, 128) * heads, most), 1)](A_tiles, V_tiles, O_tiles, a_ptr, l_m_ptr, n_q, n_k, heads, own, num_warps=4)
    return {"O": O_ptr, "l_m": l_m_ptr, "L": L_ptr}
