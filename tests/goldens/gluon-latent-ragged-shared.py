"""flash2-latent: d_v = 512, d_r = 64, B_r = 64, B_c = 128, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

tile_64 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
tile_256 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
rows_256 = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [0, 128], [8, 0]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 256]))


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
def flash2_latent_loads(Q_C_tiles, Q_R_tiles, C_tiles, R_tiles, Q_C_i, Q_C_i_full, Q_R_i, Q_R_i_full, C_j, C_j_full, C_j_free, R_j, R_j_full, R_j_free, n_q, n_k, own):
    head, i = gl.program_id(1), gl.program_id(0)
    batch, key_head = head // own, head % own
    mbarrier.expect(Q_C_i_full.index(0), 65536)
    tma.async_copy_global_to_shared(Q_C_tiles, [batch, key_head, i * 64 // 128, i * 64 % 128, 0], Q_C_i_full.index(0), Q_C_i.index(0))
    tma.async_copy_global_to_shared(Q_C_tiles, [batch, key_head, i * 64 // 128, i * 64 % 128, 256], Q_C_i_full.index(0), Q_C_i.index(1))
    mbarrier.expect(Q_R_i_full.index(0), 8192)
    tma.async_copy_global_to_shared(Q_R_tiles, [batch, key_head, i * 64 // 128, i * 64 % 128, 0], Q_R_i_full.index(0), Q_R_i.index(0))
    for j in range(gl.cdiv(n_k, 128)):
        phase = j & 1
        for each in gl.static_range(2):
            share = (each + phase + 1) & 1  # first the half that is freed first
            mbarrier.wait(C_j_free.index(share * 2), phase ^ 1)
            mbarrier.expect(C_j_full.index(share * 2), 32768)
            tma.async_copy_global_to_shared(C_tiles, [batch, key_head, (j * 2 + share) * 64, 0], C_j_full.index(share * 2), C_j.index(share * 2))
            mbarrier.wait(C_j_free.index(share * 2 + 1), phase ^ 1)
            mbarrier.expect(C_j_full.index(share * 2 + 1), 32768)
            tma.async_copy_global_to_shared(C_tiles, [batch, key_head, (j * 2 + share) * 64, 256], C_j_full.index(share * 2 + 1), C_j.index(share * 2 + 1))
            mbarrier.wait(R_j_free.index(share), phase ^ 1)
            mbarrier.expect(R_j_full.index(share), 8192)
            tma.async_copy_global_to_shared(R_tiles, [batch, key_head, (j * 2 + share) * 64, 0], R_j_full.index(share), R_j.index(share))

@gluon.jit
def flash2_latent_rows(w: gl.constexpr, Q_C_i, Q_C_i_full, Q_R_i, Q_R_i_full, C_j, C_j_full, C_j_free, R_j, R_j_full, R_j_free, P_full, m_new_of_all, m_new_of_all_full, l_i_of_all, l_i_of_all_full, O_ptr, L_ptr, n_q, n_k, own, O_batch, O_head, O_row):
    O_head, O_row = O_head * 8, O_row * 8
    head, i = gl.program_id(1), gl.program_id(0)
    batch, key_head = head // own, head % own
    O_at = O_ptr + gl.cast(batch, gl.int64) * O_batch * 8 + gl.cast(key_head * 128, gl.int64) * O_head
    L_at = L_ptr + gl.cast(head, gl.int64) * n_q
    part = i  # these 64 rows, of which the warpgroup has columns
    at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    O_i = gl.full([64, 256], 0.0, gl.float32, tile_256)
    l_i = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, tile_64))
    m_i = gl.full([64], -float("inf"), gl.float32, gl.SliceLayout(1, tile_64))
    mbarrier.wait(Q_C_i_full.index(0), 0)
    mbarrier.wait(Q_R_i_full.index(0), 0)
    for j in range(gl.cdiv(n_k, 128)):
        phase = j & 1
        mine = (w + phase) & 1  # the half of the keys whose scores the warpgroup computes
        at_j = (j * 2 + mine) * 64 + gl.arange(0, 64, gl.SliceLayout(0, tile_64))
        mbarrier.wait(C_j_full.index(mine * 2), phase)
        P = warpgroup_mma(Q_C_i.index(0).reshape([64, 256]), C_j.index(mine * 2).reshape([64, 256]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        mbarrier.wait(C_j_full.index(mine * 2 + 1), phase)
        P = warpgroup_mma(Q_C_i.index(1).reshape([64, 256]), C_j.index(mine * 2 + 1).reshape([64, 256]).permute((1, 0)), P, is_async=True)
        mbarrier.wait(R_j_full.index(mine), phase)
        P = warpgroup_mma(Q_R_i.index(0).reshape([64, 64]), R_j.index(mine).reshape([64, 64]).permute((1, 0)), P, is_async=True)
        P = warpgroup_mma_wait(0, deps=(P,))
        mbarrier.arrive(C_j_free.index(mine * 2), count=1)
        mbarrier.arrive(C_j_free.index(mine * 2 + 1), count=1)
        if (j + 1) * 128 > n_k:
            P = gl.where(at_j[None, :] < n_k, P, float("-inf"))
        m_new = gl.max(P, axis=1) * 0.18033688011112042
        m_new_of_all.index(w).reshape([64]).store(m_new)
        fence_async_shared()
        mbarrier.arrive(m_new_of_all_full.index(w), count=1)
        mbarrier.wait(m_new_of_all_full.index(1 - w), phase)
        m_new = gl.maximum(m_new, m_new_of_all.index(1 - w).reshape([64]).load(gl.SliceLayout(1, tile_64)))
        m_new = gl.maximum(m_i, m_new)
        m_i = gl.exp2(m_i - m_new)
        P = gl.exp2(P * 0.18033688011112042 - m_new[:, None])
        R_j.index(mine).reshape([64, 64]).store(P.to(gl.bfloat16))
        fence_async_shared()
        mbarrier.arrive(P_full.index(mine), count=1)
        l_i = m_i * l_i
        l_i += gl.sum(P, axis=1)
        O_i = gl.convert_layout(m_i, gl.SliceLayout(1, tile_256))[:, None] * O_i
        m_i = m_new
        mbarrier.wait(P_full.index(phase), phase)
        mbarrier.wait(C_j_full.index(phase * 2 + w), phase)
        O_i = warpgroup_mma(R_j.index(phase).reshape([64, 64]), C_j.index(phase * 2 + w).reshape([64, 256]), O_i, is_async=True)
        mbarrier.wait(P_full.index(1 - phase), phase)
        mbarrier.wait(C_j_full.index((1 - phase) * 2 + w), phase)
        O_i = warpgroup_mma(R_j.index(1 - phase).reshape([64, 64]), C_j.index((1 - phase) * 2 + w).reshape([64, 256]), O_i, is_async=True)
        O_i = warpgroup_mma_wait(1, deps=(O_i,))
        mbarrier.arrive(C_j_free.index(phase * 2 + w), count=1)
        mbarrier.arrive(R_j_free.index(phase), count=1)
        O_i = warpgroup_mma_wait(0, deps=(O_i,))
        mbarrier.arrive(C_j_free.index((1 - phase) * 2 + w), count=1)
        mbarrier.arrive(R_j_free.index(1 - phase), count=1)
    l_i_of_all.index(w).reshape([64]).store(l_i)
    fence_async_shared()
    mbarrier.arrive(l_i_of_all_full.index(w), count=1)
    mbarrier.wait(l_i_of_all_full.index(1 - w), 0)
    l_i = l_i + l_i_of_all.index(1 - w).reshape([64]).load(gl.SliceLayout(1, tile_64))
    O_i = O_i * (1.0 / gl.convert_layout(l_i, gl.SliceLayout(1, tile_256)))[:, None]
    down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_256))
    across = w * 256 + gl.arange(0, 256, gl.SliceLayout(0, rows_256))
    gl.store(O_at + (down // 128)[:, None] * O_row + (down % 128)[:, None] * O_head + across[None, :], gl.convert_layout(O_i.to(O_at.dtype.element_ty), rows_256), mask=down[:, None] < n_q)
    m_i = m_i + gl.log2(l_i)
    if w == 0:
        gl.store(L_at + at_i, m_i.to(L_at.dtype.element_ty), mask=at_i < n_q)

@gluon.jit(do_not_specialize=["n_q", "n_k", "own", "O_batch", "O_head", "O_row"])
def flash2_latent(Q_C_tiles, Q_R_tiles, C_tiles, R_tiles, O_ptr, L_ptr, n_q, n_k, own, O_batch, O_head, O_row):
    Q_C_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 1, 64, 256], Q_C_tiles.layout)  # line 25: stays
    Q_C_i_full = barriers(1, 1)
    Q_R_i = gl.allocate_shared_memory(gl.bfloat16, [1, 1, 1, 1, 64, 64], Q_R_tiles.layout)  # line 25: stays
    Q_R_i_full = barriers(1, 1)
    C_j = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 1, 64, 256], C_tiles.layout)  # line 28: a ring
    C_j_full = barriers(4, 1)
    C_j_free = barriers(4, 2)
    R_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 64, 64], R_tiles.layout)  # line 30: a ring
    R_j_full = barriers(2, 1)
    R_j_free = barriers(2, 2)
    P_full = barriers(2, 1)
    m_new_of_all = gl.allocate_shared_memory(gl.float32, [2, 1, 64], gl.NVMMASharedLayout.get_default_for([1, 64], gl.float32))
    m_new_of_all_full = barriers(2, 1)
    l_i_of_all = gl.allocate_shared_memory(gl.float32, [2, 1, 64], gl.NVMMASharedLayout.get_default_for([1, 64], gl.float32))
    l_i_of_all_full = barriers(2, 1)
    gl.warp_specialize([
        (flash2_latent_rows, (0, Q_C_i, Q_C_i_full, Q_R_i, Q_R_i_full, C_j, C_j_full, C_j_free, R_j, R_j_full, R_j_free, P_full, m_new_of_all, m_new_of_all_full, l_i_of_all, l_i_of_all_full, O_ptr, L_ptr, n_q, n_k, own, O_batch, O_head, O_row)),
        (flash2_latent_rows, (1, Q_C_i, Q_C_i_full, Q_R_i, Q_R_i_full, C_j, C_j_full, C_j_free, R_j, R_j_full, R_j_free, P_full, m_new_of_all, m_new_of_all_full, l_i_of_all, l_i_of_all_full, O_ptr, L_ptr, n_q, n_k, own, O_batch, O_head, O_row)),
        (flash2_latent_loads, (Q_C_tiles, Q_R_tiles, C_tiles, R_tiles, Q_C_i, Q_C_i_full, Q_R_i, Q_R_i_full, C_j, C_j_full, C_j_free, R_j, R_j_full, R_j_free, n_q, n_k, own)),
    ], [4, 1], [240, 24])


def run(Q_C_ptr, Q_R_ptr, C_ptr, R_ptr, results):
    """O, L of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = C_ptr.shape[:2], C_ptr.device
    heads = batch * own
    O_ptr = results["O"]
    n_q = Q_C_ptr.shape[2] * 128
    n_k = C_ptr.shape[2]
    Q_C_batch, Q_C_head, Q_C_row = (each // 8 for each in Q_C_ptr.stride()[:3])
    Q_R_batch, Q_R_head, Q_R_row = (each // 8 for each in Q_R_ptr.stride()[:3])
    C_batch, C_head, C_row = (each // 8 for each in C_ptr.stride()[:3])
    R_batch, R_head, R_row = (each // 8 for each in R_ptr.stride()[:3])
    O_batch, O_head, O_row = (each // 8 for each in O_ptr.stride()[:3])
    L_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    Q_C_tiles = tiles_of(Q_C_ptr, 64, 256, 128)
    Q_R_tiles = tiles_of(Q_R_ptr, 64, 64, 128)
    C_tiles = tiles_of(C_ptr, 64, 256)
    R_tiles = tiles_of(R_ptr, 64, 64)
    flash2_latent[(triton.cdiv(n_q, 64), heads)](Q_C_tiles, Q_R_tiles, C_tiles, R_tiles, O_ptr, L_ptr, n_q, n_k, own, O_batch, O_head, O_row, num_warps=4)
    return {"O": O_ptr, "L": L_ptr}
