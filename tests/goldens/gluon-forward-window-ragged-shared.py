"""flash2-forward: d_k = 64, d_v = 64, B_r = 128, B_c = 128, bfloat16 words; written by pebblesim."""

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

@gluon.jit
def flash2_forward_1_loads(Q_tiles, K_tiles, V_tiles, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, n_q, n_k, heads, together, groups, own):
    after = n_k - n_q // 4
    before = 256 - n_k + n_q // 4
    tiles = gl.cdiv(n_q, 128)
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        place = gl.where((gl.cdiv(tiles * heads, gl.num_programs(0)) - 1 - turn) & 1 == 1, (turn * 2 + 1) * gl.num_programs(0) - 1 - tile, tile)  # rounds from long to short, and back
        group, rank = place // (tiles * together), place % (tiles * together)
        side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
        head, i = group * together + rank % side, rank // side
        i = gl.where((groups - 1 - group) & 1 == 0, tiles - 1 - i, i)  # groups of heads from long to short, and back
        batch, key_head = head // own, head % own
        mbarrier.wait(Q_i_free.index(0), (turn & 1) ^ 1)
        mbarrier.expect(Q_i_full.index(0), 16384)
        for w in gl.static_range(2):
            tma.async_copy_global_to_shared(Q_tiles, [batch, key_head, (i * 2 + w) * 64 // 4, 0, 0], Q_i_full.index(0), Q_i.index(w))
        for j in range(gl.maximum(i * 128 // 4 - before, 0) // 128, gl.minimum(((gl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 + after + 127) // 128, gl.cdiv(n_k, 128))):
            slot, phase = (filled + (j - gl.maximum(i * 128 // 4 - before, 0) // 128)) % 3, ((filled + (j - gl.maximum(i * 128 // 4 - before, 0) // 128)) // 3) & 1
            mbarrier.wait(K_j_free.index(slot), phase ^ 1)
            mbarrier.expect(K_j_full.index(slot), 16384)
            tma.async_copy_global_to_shared(K_tiles, [batch, key_head, j * 128, 0], K_j_full.index(slot), K_j.index(slot))
            mbarrier.wait(V_j_free.index(slot), phase ^ 1)
            mbarrier.expect(V_j_full.index(slot), 16384)
            tma.async_copy_global_to_shared(V_tiles, [batch, key_head, j * 128, 0], V_j_full.index(slot), V_j.index(slot))
        filled += gl.minimum(((gl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 + after + 127) // 128, gl.cdiv(n_k, 128)) - gl.maximum(i * 128 // 4 - before, 0) // 128

@gluon.jit
def flash2_forward_1_rows(w: gl.constexpr, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, turns, O_ptr, L_ptr, n_q, n_k, heads, together, groups, own, O_batch, O_head, O_row):
    O_head, O_row = O_head * 8, O_row * 8
    after = n_k - n_q // 4
    before = 256 - n_k + n_q // 4
    tiles = gl.cdiv(n_q, 128)
    filled = 0  # slots of each ring before a tile
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        place = gl.where((gl.cdiv(tiles * heads, gl.num_programs(0)) - 1 - turn) & 1 == 1, (turn * 2 + 1) * gl.num_programs(0) - 1 - tile, tile)  # rounds from long to short, and back
        group, rank = place // (tiles * together), place % (tiles * together)
        side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
        head, i = group * together + rank % side, rank // side
        i = gl.where((groups - 1 - group) & 1 == 0, tiles - 1 - i, i)  # groups of heads from long to short, and back
        batch, key_head = head // own, head % own
        O_at = O_ptr + gl.cast(batch, gl.int64) * O_batch * 8 + gl.cast(key_head * 4, gl.int64) * O_head
        L_at = L_ptr + gl.cast(head, gl.int64) * n_q
        part = i * 2 + w  # these 64 rows of tile i
        at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_128))
        O_i = gl.full([64, 64], 0.0, gl.float32, tile_64)
        l_i = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, tile_128))
        m_i = gl.full([64], -float("inf"), gl.float32, gl.SliceLayout(1, tile_128))
        j = gl.maximum(i * 128 // 4 - before, 0) // 128
        slot, phase = (filled + (j - gl.maximum(i * 128 // 4 - before, 0) // 128)) % 3, ((filled + (j - gl.maximum(i * 128 // 4 - before, 0) // 128)) // 3) & 1
        mbarrier.wait(turns.index(w), (filled + turn + 1 - w) & 1)
        at_j = j * 128 + gl.arange(0, 128, gl.SliceLayout(0, tile_128))
        mbarrier.wait(Q_i_full.index(0), turn & 1)
        mbarrier.wait(K_j_full.index(slot), phase)
        P = warpgroup_mma(Q_i.index(w).reshape([64, 64]), K_j.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        P = warpgroup_mma_wait(0, deps=(P,))
        mbarrier.arrive(turns.index(1 - w), count=1)
        mbarrier.arrive(K_j_free.index(slot), count=1)
        P = gl.where((at_j[None, :] <= gl.minimum(at_i // 4 + after, n_k - 1)[:, None]) & (at_j[None, :] >= (at_i // 4 - before)[:, None]), P, float("-inf"))
        m_new = gl.max(P, axis=1) * 0.18033688011112042
        m_new = gl.maximum(m_i, m_new)
        m_i = gl.exp2(gl.where(m_i == m_new, 0.0, m_i - m_new))
        P = gl.exp2(P * 0.18033688011112042 - gl.where(m_new != float("-inf"), m_new, 0.0)[:, None])
        l_i = m_i * l_i
        l_i += gl.sum(P, axis=1)
        O_i = gl.convert_layout(m_i, gl.SliceLayout(1, tile_64))[:, None] * O_i
        m_i = m_new
        mbarrier.wait(turns.index(w), (filled + turn + j - gl.maximum(i * 128 // 4 - before, 0) // 128 + 2 - w) & 1)
        P_late = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        for j_2 in range(gl.maximum(i * 128 // 4 - before, 0) // 128 + 1, gl.minimum(((gl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 + after + 127) // 128, gl.cdiv(n_k, 128))):
            last, last_phase = slot, phase
            slot, phase = (filled + (j_2 - gl.maximum(i * 128 // 4 - before, 0) // 128)) % 3, ((filled + (j_2 - gl.maximum(i * 128 // 4 - before, 0) // 128)) // 3) & 1
            at_j_2 = j_2 * 128 + gl.arange(0, 128, gl.SliceLayout(0, tile_128))
            mbarrier.wait(K_j_full.index(slot), phase)
            P = warpgroup_mma(Q_i.index(w).reshape([64, 64]), K_j.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
            mbarrier.wait(V_j_full.index(last), last_phase)
            O_i = warpgroup_mma(P_late, V_j.index(last).reshape([128, 64]), O_i, is_async=True)
            P = warpgroup_mma_wait(1, deps=(P,))
            mbarrier.arrive(turns.index(1 - w), count=1)
            mbarrier.arrive(K_j_free.index(slot), count=1)
            if ((j_2 + 1) * 128 > gl.minimum(i * 128 // 4 + after + 1, n_k)) | (j_2 * 128 < (gl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 - 1 - before):
                P = gl.where((at_j_2[None, :] <= gl.minimum(at_i // 4 + after, n_k - 1)[:, None]) & (at_j_2[None, :] >= (at_i // 4 - before)[:, None]), P, float("-inf"))
            m_new = gl.max(P, axis=1) * 0.18033688011112042
            m_new = gl.maximum(m_i, m_new)
            m_i = gl.exp2(gl.where(m_i == m_new, 0.0, m_i - m_new))
            P = gl.exp2(P * 0.18033688011112042 - gl.where(m_new != float("-inf"), m_new, 0.0)[:, None])
            l_i = m_i * l_i
            l_i += gl.sum(P, axis=1)
            mbarrier.wait(turns.index(w), (filled + turn + j_2 - gl.maximum(i * 128 // 4 - before, 0) // 128 + 2 - w) & 1)
            O_i, P_late = warpgroup_mma_wait(0, deps=(O_i, P_late))
            mbarrier.arrive(V_j_free.index(last), count=1)
            O_i = gl.convert_layout(m_i, gl.SliceLayout(1, tile_64))[:, None] * O_i
            m_i = m_new
            P_late = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        mbarrier.arrive(Q_i_free.index(0), count=1)
        last, last_phase = slot, phase
        mbarrier.wait(V_j_full.index(last), last_phase)
        O_i = warpgroup_mma(P_late, V_j.index(last).reshape([128, 64]), O_i, is_async=True)
        mbarrier.arrive(turns.index(1 - w), count=1)
        O_i, P_late = warpgroup_mma_wait(0, deps=(O_i, P_late))
        mbarrier.arrive(V_j_free.index(last), count=1)
        O_i = O_i * gl.where(gl.convert_layout(l_i, gl.SliceLayout(1, tile_64)) == 0.0, 0.0, 1.0 / gl.convert_layout(l_i, gl.SliceLayout(1, tile_64)))[:, None]
        down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_64))
        across = gl.arange(0, 64, gl.SliceLayout(0, rows_64))
        gl.store(O_at + (down // 4)[:, None] * O_row + (down % 4)[:, None] * O_head + across[None, :], gl.convert_layout(O_i.to(O_at.dtype.element_ty), rows_64), mask=down[:, None] < n_q)
        m_i = m_i + gl.log2(l_i)
        gl.store(L_at + at_i, m_i.to(L_at.dtype.element_ty), mask=at_i < n_q)
        filled += gl.minimum(((gl.minimum((i + 1) * 128, n_q) - 1) // 4 + 1 + after + 127) // 128, gl.cdiv(n_k, 128)) - gl.maximum(i * 128 // 4 - before, 0) // 128

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "together", "groups", "own", "O_batch", "O_head", "O_row"])
def flash2_forward_1(Q_tiles, K_tiles, V_tiles, O_ptr, L_ptr, n_q, n_k, heads, together, groups, own, O_batch, O_head, O_row):
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 16, 4, 64], Q_tiles.layout)  # line 115: stays
    Q_i_full = barriers(1, 1)
    Q_i_free = barriers(1, 2)
    K_j = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 128, 64], K_tiles.layout)  # line 67: a ring
    K_j_full = barriers(3, 1)
    K_j_free = barriers(3, 2)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 128, 64], V_tiles.layout)  # line 71: a ring
    V_j_full = barriers(3, 1)
    V_j_free = barriers(3, 2)
    turns = barriers(2, 1)
    gl.warp_specialize([
        (flash2_forward_1_rows, (0, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, turns, O_ptr, L_ptr, n_q, n_k, heads, together, groups, own, O_batch, O_head, O_row)),
        (flash2_forward_1_rows, (1, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, turns, O_ptr, L_ptr, n_q, n_k, heads, together, groups, own, O_batch, O_head, O_row)),
        (flash2_forward_1_loads, (Q_tiles, K_tiles, V_tiles, Q_i, Q_i_full, Q_i_free, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, n_q, n_k, heads, together, groups, own)),
    ], [4, 1], [240, 24])


def run(Q_ptr, K_ptr, V_ptr, results):
    """O, L of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    O_ptr = results["O"]
    n_q = Q_ptr.shape[2] * 4
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    Q_tiles = tiles_of(Q_ptr, 64, 64, 4)
    K_tiles = tiles_of(K_ptr, 128, 64)
    V_tiles = tiles_of(V_ptr, 128, 64)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    together = triton.cdiv(heads, triton.cdiv(heads, max(54525952 // (n_k * 256), 1)))  # heads whose long tiles come first
    groups = triton.cdiv(heads, together)
    flash2_forward_1[(min(triton.cdiv(n_q, 128) * heads, most), 1)](Q_tiles, K_tiles, V_tiles, O_ptr, L_ptr, n_q, n_k, heads, together, groups, own, O_batch, O_head, O_row, num_warps=4)
    return {"O": O_ptr, "L": L_ptr}
