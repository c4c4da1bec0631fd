"""flash2-backward-blocked: d_k = 128, d_v = 128, B_c = 128, b_r = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton._C.libtriton import ir
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

tile_64 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
tile_128 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))


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


@builtin
def tma_add(tiles, at, part, _semantic=None):
    """Add a tile in shared memory to memory by the copy engine, for which Gluon has no name yet."""
    at = _semantic._convert_to_ir_values(at, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tiles.handle, at, part.handle)


def sums_of(tensor, rows, width):
    layout = gl.NVMMASharedLayout.get_default_for([1, rows, width], gl.float32)
    return TensorDescriptor.from_tensor(tensor, [1, rows, width], layout)

@triton.jit(do_not_specialize=["n_q", "n_k", "dO_batch", "dO_head", "dO_row", "O_batch", "O_head", "O_row"])
def v(dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, dQ_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row):
    head = tl.program_id(1).to(tl.int64) + tl.program_id(2) * tl.num_programs(1)
    batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    dO_head, dO_row = dO_head * 8, dO_row * 8
    dO_ptr += batch * dO_batch * 8 + own * 4 * dO_head
    O_head, O_row = O_head * 8, O_row * 8
    O_ptr += batch * O_batch * 8 + own * 4 * O_head
    v_ptr += head * (tl.cdiv(n_q, 16) * 16)
    L_ptr += head * n_q
    L_in_rows_ptr += head * (tl.cdiv(n_q, 16) * 16)
    dQ_ptr += head * n_q * 128
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    v_i = tl.full((128,), 0.0, tl.float32)
    for k in range(2):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 128 // 4 * dO_row + (tl.arange(0, 128) // 4)[:, None] * dO_row + (tl.arange(0, 128) % 4)[:, None] * dO_head + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        x_2 = tl.load(O_ptr + i * 128 // 4 * O_row + (tl.arange(0, 128) // 4)[:, None] * O_row + (tl.arange(0, 128) % 4)[:, None] * O_head + at_k[None, :], mask=at_i[:, None] < n_q, other=0.0)
        v_i += tl.sum(x.to(tl.float32) * x_2.to(tl.float32), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty), mask=at_i < n_q)
    L_i = tl.load(L_ptr + at_i, mask=at_i < n_q, other=float("inf"))
    tl.store(L_in_rows_ptr + at_i, L_i.to(L_in_rows_ptr.dtype.element_ty), mask=at_i < n_q)
    for k_2 in range(2):
        at_k_2 = k_2 * 64 + tl.arange(0, 64)
        tl.store(dQ_ptr + i * 128 * 128 + tl.arange(0, 128)[:, None] * 128 + at_k_2[None, :], tl.full((128, 64,), 0.0, tl.float32).to(dQ_ptr.dtype.element_ty), mask=at_i[:, None] < n_q)

@gluon.jit
def dQ_dK_dV_2_loads(K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, above_ptr, below_ptr, n_q, n_k, heads, together, own):
    tiles = gl.cdiv(n_k, 128)
    tile = gl.program_id(0)
    group, rank = tile // (tiles * together), tile % (tiles * together)
    side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
    head, j = group * together + rank % side, rank // side
    batch, key_head = head // own, head % own
    first_at, end_at = above_ptr + gl.cast(batch, gl.int64) * n_k, below_ptr + gl.cast(batch, gl.int64) * n_k
    high = gl.maximum(gl.minimum(gl.cdiv(gl.load(end_at + (gl.minimum((j + 1) * 128, n_k) - 1)) * 4, 64), gl.cdiv(n_q, 64)), 1)
    low = gl.minimum(gl.load(first_at + j * 128) * 4 // 64, high - 1)
    mbarrier.expect(K_j_full.index(0), 32768)
    for w in gl.static_range(1):
        tma.async_copy_global_to_shared(K_tiles, [batch, key_head, (j + w) * 128, 0], K_j_full.index(0), K_j.index(w))
    mbarrier.expect(V_j_full.index(0), 32768)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(V_tiles, [batch, key_head, (j * 2 + w) * 64, 0], V_j_full.index(0), V_j.index(w))
    for i in range(low, high):
        slot, phase = (i - low) % 2, ((i - low) // 2) & 1
        mbarrier.wait(Q_i_free.index(slot), phase ^ 1)
        mbarrier.expect(Q_i_full.index(slot), 16384)
        tma.async_copy_global_to_shared(Q_tiles, [batch, key_head, i * 64 // 4, 0, 0], Q_i_full.index(slot), Q_i.index(slot))
        mbarrier.wait(dO_i_free.index(slot), phase ^ 1)
        mbarrier.expect(dO_i_full.index(slot), 16896)
        tma.async_copy_global_to_shared(dO_tiles, [batch, key_head, i * 64 // 4, 0, 0], dO_i_full.index(slot), dO_i.index(slot))
        tma.async_copy_global_to_shared(L_in_rows_tiles, [head, i * 64], dO_i_full.index(slot), L_in_rows_i_ring.index(slot))
        tma.async_copy_global_to_shared(v_tiles, [head, i * 64], dO_i_full.index(slot), v_i_ring.index(slot))

@gluon.jit
def dQ_dK_dV_2_rows(w: gl.constexpr, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, dS_of_all, dS_of_all_full, dQ_part, dQ_tiles, dK_ptr, dV_ptr, above_ptr, below_ptr, n_q, n_k, heads, together, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row):
    dK_head, dK_row = dK_head * 8, 128
    dV_head, dV_row = dV_head * 8, 128
    tiles = gl.cdiv(n_k, 128)
    tile = gl.program_id(0)
    group, rank = tile // (tiles * together), tile % (tiles * together)
    side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
    head, j = group * together + rank % side, rank // side
    batch, key_head = head // own, head % own
    first_at, end_at = above_ptr + gl.cast(batch, gl.int64) * n_k, below_ptr + gl.cast(batch, gl.int64) * n_k
    high = gl.maximum(gl.minimum(gl.cdiv(gl.load(end_at + (gl.minimum((j + 1) * 128, n_k) - 1)) * 4, 64), gl.cdiv(n_q, 64)), 1)
    low = gl.minimum(gl.load(first_at + j * 128) * 4 // 64, high - 1)
    dK_at = dK_ptr + gl.cast(batch, gl.int64) * dK_batch * 8 + gl.cast(key_head, gl.int64) * dK_head
    dV_at = dV_ptr + gl.cast(batch, gl.int64) * dV_batch * 8 + gl.cast(key_head, gl.int64) * dV_head
    part = j * 2 + w  # these 64 rows of tile j
    at_j = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    at_j_first = gl.load(first_at + at_j, mask=at_j < n_k, other=0) * 4
    at_j_end = gl.load(end_at + at_j, mask=at_j < n_k, other=0) * 4
    dK_j = gl.full([64, 128], 0.0, gl.float32, tile_128)
    dV_j = gl.full([64, 128], 0.0, gl.float32, tile_128)
    mbarrier.wait(K_j_full.index(0), 0)
    mbarrier.wait(V_j_full.index(0), 0)
    for i in range(low, high):
        slot, phase = (i - low) % 2, ((i - low) // 2) & 1
        mbarrier.wait(Q_i_full.index(slot), phase)
        P = warpgroup_mma(K_j.index(0).reshape([128, 128]).slice(w * 64, 64), Q_i.index(slot).reshape([64, 128]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        mbarrier.wait(dO_i_full.index(slot), phase)
        dS = warpgroup_mma(V_j.index(w).reshape([64, 128]), dO_i.index(slot).reshape([64, 128]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        P = warpgroup_mma_wait(1, deps=(P,))
        L_i = L_in_rows_i_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
        P = gl.where((gl.arange(0, 64, gl.SliceLayout(0, tile_64))[None, :] >= (at_j_first - i * 64)[:, None]) & (gl.arange(0, 64, gl.SliceLayout(0, tile_64))[None, :] < (at_j_end - i * 64)[:, None]), P, float("-inf"))
        P = gl.exp2(P * 0.18033688011112042 - gl.where(L_i != float("-inf"), L_i, 0.0)[None, :])
        P_16 = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_128, 2))
        dV_j = warpgroup_mma(P_16, dO_i.index(slot).reshape([64, 128]), dV_j, is_async=True)
        dS = warpgroup_mma_wait(1, deps=(dS,))
        v_i = v_i_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
        dS = P * (dS - v_i[None, :])
        dS_of_all.index(slot).slice(w * 64, 64).store(dS.to(gl.bfloat16))
        fence_async_shared()
        mbarrier.arrive(dS_of_all_full.index(slot), count=1)
        dS_16 = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_128, 2))
        dK_j = warpgroup_mma(dS_16, Q_i.index(slot).reshape([64, 128]), dK_j, is_async=True)
        mbarrier.wait(dS_of_all_full.index(slot), phase)
        dQ_added = warpgroup_mma(dS_of_all.index(slot).permute((1, 0)), K_j.index(0).reshape([128, 128]).slice(w * 64, 64, dim=1), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        dV_j, P_16, dK_j, dS_16, dQ_added = warpgroup_mma_wait(0, deps=(dV_j, P_16, dK_j, dS_16, dQ_added))
        mbarrier.arrive(dO_i_free.index(slot), count=1)
        mbarrier.arrive(Q_i_free.index(slot), count=1)
        tma.store_wait(0)
        dQ_part.index(w).reshape([64, 64]).store(dQ_added * 0.125)
        fence_async_shared()
        tma_add(dQ_tiles, [head, i * 64, w * 64], dQ_part.index(w))
    tma.store_wait(0)
    down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_128))
    across = gl.arange(0, 128, gl.SliceLayout(0, tile_128))
    gl.store(dK_at + down[:, None] * dK_row + across[None, :], (dK_j * 0.125).to(dK_at.dtype.element_ty), mask=down[:, None] < n_k)
    down_2 = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_128))
    across_2 = gl.arange(0, 128, gl.SliceLayout(0, tile_128))
    gl.store(dV_at + down_2[:, None] * dV_row + across_2[None, :], dV_j.to(dV_at.dtype.element_ty), mask=down_2[:, None] < n_k)

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "together", "own", "dK_batch", "dK_head", "dK_row", "dV_batch", "dV_head", "dV_row"])
def dQ_dK_dV_2(K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, dQ_tiles, dK_ptr, dV_ptr, above_ptr, below_ptr, n_q, n_k, heads, together, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row):
    K_j = gl.allocate_shared_memory(gl.bfloat16, [1, 1, 1, 128, 128], K_tiles.layout)  # line 205: stays
    K_j_full = barriers(1, 1)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 64, 128], V_tiles.layout)  # line 205: stays
    V_j_full = barriers(1, 1)
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 16, 4, 128], Q_tiles.layout)  # line 207: a ring
    Q_i_full = barriers(2, 1)
    Q_i_free = barriers(2, 2)
    dO_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 16, 4, 128], dO_tiles.layout)  # line 207: a ring
    dO_i_full = barriers(2, 1)
    dO_i_free = barriers(2, 2)
    L_in_rows_i_ring = gl.allocate_shared_memory(gl.float32, [2, 1, 64], L_in_rows_tiles.layout)  # line 207: a ring
    v_i_ring = gl.allocate_shared_memory(gl.float32, [2, 1, 64], v_tiles.layout)  # line 207: a ring
    dS_of_all = gl.allocate_shared_memory(gl.bfloat16, [2, 128, 64], gl.NVMMASharedLayout.get_default_for([128, 64], gl.bfloat16))  # line 215: all warpgroups read it
    dS_of_all_full = barriers(2, 2)
    dQ_part = gl.allocate_shared_memory(gl.float32, [2, 1, 64, 64], dQ_tiles.layout)  # line 215: added to memory
    gl.warp_specialize([
        (dQ_dK_dV_2_rows, (0, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, dS_of_all, dS_of_all_full, dQ_part, dQ_tiles, dK_ptr, dV_ptr, above_ptr, below_ptr, n_q, n_k, heads, together, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row)),
        (dQ_dK_dV_2_rows, (1, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, dS_of_all, dS_of_all_full, dQ_part, dQ_tiles, dK_ptr, dV_ptr, above_ptr, below_ptr, n_q, n_k, heads, together, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row)),
        (dQ_dK_dV_2_loads, (K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_in_rows_i_ring, v_i_ring, above_ptr, below_ptr, n_q, n_k, heads, together, own)),
    ], [4, 1], [240, 24])


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, O_ptr, L_ptr, first_ptr, end_ptr, above_ptr, below_ptr, results, dL=None):
    """dQ, dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    sharing = own
    dK_ptr = results["dK"]
    dV_ptr = results["dV"]
    n_q = Q_ptr.shape[2] * 4
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    dO_batch, dO_head, dO_row = (each // 8 for each in dO_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    dK_batch, dK_head, dK_row = (each // 8 for each in dK_ptr.stride()[:3])
    dV_batch, dV_head, dV_row = (each // 8 for each in dV_ptr.stride()[:3])
    dQ_ptr = torch.empty((heads, n_q, 128), dtype=torch.float32, device=device)
    v_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    L_in_rows_ptr = torch.empty((heads, triton.cdiv(n_q, 16) * 16), dtype=torch.float32, device=device)
    v[(triton.cdiv(n_q, 128), own, batch)](dO_ptr, O_ptr, v_ptr, L_ptr, L_in_rows_ptr, dQ_ptr, n_q, n_k, dO_batch, dO_head, dO_row, O_batch, O_head, O_row, num_warps=8, num_stages=3)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    K_tiles = tiles_of(K_ptr, 128, 128)
    V_tiles = tiles_of(V_ptr, 64, 128)
    Q_tiles = tiles_of(Q_ptr, 64, 128, 4)
    dO_tiles = tiles_of(dO_ptr, 64, 128, 4)
    L_in_rows_tiles = vectors_of(L_in_rows_ptr, n_q, 64)
    v_tiles = vectors_of(v_ptr, n_q, 64)
    dQ_tiles = sums_of(dQ_ptr, 64, 64)
    together = triton.cdiv(heads, triton.cdiv(heads, max(54525952 // (n_q * 512), 1)))  # heads whose long tiles come first
    dQ_dK_dV_2[(triton.cdiv(n_k, 128) * heads, 1)](K_tiles, V_tiles, Q_tiles, dO_tiles, L_in_rows_tiles, v_tiles, dQ_tiles, dK_ptr, dV_ptr, above_ptr, below_ptr, n_q, n_k, heads, together, own, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row, num_warps=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
