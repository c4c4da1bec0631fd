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





def tiles_of(tensor, rows, width):
    """For the copy engine: tiles of the heads of a tensor; beyond its rows and columns they are 0."""
    layout = gl.NVMMASharedLayout.get_default_for([1, rows, width], gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor, [1, rows, width], layout)


def vectors_of(tensor, length, rows):
    layout = gl.NVMMASharedLayout.get_default_for([1, rows], gl.float32)
    return TensorDescriptor(tensor, [tensor.shape[0], length], [tensor.shape[1], 1], [1, rows], layout)

@triton.jit
def v(dO_ptr, O_ptr, v_ptr, n_q, n_k):
    head = tl.program_id(1).to(tl.int64)
    dO_ptr += head * n_q * 64
    O_ptr += head * n_q * 64
    v_ptr += head * n_q
    i = tl.program_id(0)
    at_i = i * 128 + tl.arange(0, 128)
    v_i = tl.full((128,), 0.0, tl.float32)
    for k in range(1):
        at_k = k * 64 + tl.arange(0, 64)
        x = tl.load(dO_ptr + i * 128 * 64 + tl.arange(0, 128)[:, None] * 64 + at_k[None, :])
        x_2 = tl.load(O_ptr + i * 128 * 64 + tl.arange(0, 128)[:, None] * 64 + at_k[None, :])
        v_i += tl.sum(x.to(tl.float32) * x_2.to(tl.float32), axis=1)
    tl.store(v_ptr + at_i, v_i.to(v_ptr.dtype.element_ty))

@gluon.jit
def dQ_1_loads(dO_tiles, Q_tiles, K_tiles, V_tiles, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, n_q, n_k, heads, together):
    tiles = n_q // 128
    tile = gl.program_id(0)
    group, rank = tile // (tiles * together), tile % (tiles * together)
    side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
    head, i = group * together + rank % side, rank // side
    i = tiles - 1 - i
    mbarrier.expect(dO_i_full.index(0), 16384)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(dO_tiles, [head, (i * 2 + w) * 64, 0], dO_i_full.index(0), dO_i.index(w))
    mbarrier.expect(Q_i_full.index(0), 16384)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(Q_tiles, [head, (i * 2 + w) * 64, 0], Q_i_full.index(0), Q_i.index(w))
    for j in range(gl.minimum(((i + 1) * 128 + 63) // 64, n_k // 64)):
        slot, phase = j % 3, (j // 3) & 1
        mbarrier.wait(K_j_free.index(slot), phase ^ 1)
        mbarrier.expect(K_j_full.index(slot), 8192)
        tma.async_copy_global_to_shared(K_tiles, [head, j * 64, 0], K_j_full.index(slot), K_j.index(slot))
        mbarrier.wait(V_j_free.index(slot), phase ^ 1)
        mbarrier.expect(V_j_full.index(slot), 8192)
        tma.async_copy_global_to_shared(V_tiles, [head, j * 64, 0], V_j_full.index(slot), V_j.index(slot))

@gluon.jit
def dQ_1_rows(w: gl.constexpr, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, v_ptr, L_ptr, dQ_ptr, n_q, n_k, heads, together):
    tiles = n_q // 128
    tile = gl.program_id(0)
    group, rank = tile // (tiles * together), tile % (tiles * together)
    side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
    head, i = group * together + rank % side, rank // side
    i = tiles - 1 - i
    L_at = L_ptr + gl.cast(head, gl.int64) * n_q
    dQ_at = dQ_ptr + gl.cast(head, gl.int64) * n_q * 64
    v_at = v_ptr + gl.cast(head, gl.int64) * n_q
    part = i * 2 + w  # these 64 rows of tile i
    at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    v_i = gl.load(v_at + at_i)
    L_i = gl.load(L_at + at_i)
    dQ_i = gl.full([64, 64], 0.0, gl.float32, tile_64)
    j = 0
    slot, phase = 0, 0
    mbarrier.wait(Q_i_full.index(0), 0)
    mbarrier.wait(K_j_full.index(slot), phase)
    P = warpgroup_mma(Q_i.index(w).reshape([64, 64]), K_j.index(slot).reshape([64, 64]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
    mbarrier.wait(dO_i_full.index(0), 0)
    mbarrier.wait(V_j_full.index(slot), phase)
    dS = warpgroup_mma(dO_i.index(w).reshape([64, 64]), V_j.index(slot).reshape([64, 64]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
    P = warpgroup_mma_wait(1, deps=(P,))
    P = gl.where(gl.arange(0, 64, gl.SliceLayout(0, tile_64))[None, :] <= (at_i - j * 64)[:, None], P, float("-inf"))
    P = gl.exp2(P * 0.18033688011112042 - gl.where(L_i != float("-inf"), L_i, 0.0)[:, None])
    dS = warpgroup_mma_wait(0, deps=(dS,))
    mbarrier.arrive(V_j_free.index(slot), count=1)
    dS = P * (dS - v_i.to(gl.float32)[:, None])
    dS_late = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
    for j_2 in range(1, gl.minimum(((i + 1) * 128 + 63) // 64, n_k // 64)):
        last, last_phase = slot, phase
        slot, phase = j_2 % 3, (j_2 // 3) & 1
        mbarrier.wait(K_j_full.index(slot), phase)
        P = warpgroup_mma(Q_i.index(w).reshape([64, 64]), K_j.index(slot).reshape([64, 64]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        mbarrier.wait(V_j_full.index(slot), phase)
        dS = warpgroup_mma(dO_i.index(w).reshape([64, 64]), V_j.index(slot).reshape([64, 64]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
        dQ_i = warpgroup_mma(dS_late, K_j.index(last).reshape([64, 64]), dQ_i, is_async=True)
        P = warpgroup_mma_wait(2, deps=(P,))
        if (j_2 + 1) * 64 > i * 128 + 1:
            P = gl.where(gl.arange(0, 64, gl.SliceLayout(0, tile_64))[None, :] <= (at_i - j_2 * 64)[:, None], P, float("-inf"))
        P = gl.exp2(P * 0.18033688011112042 - gl.where(L_i != float("-inf"), L_i, 0.0)[:, None])
        dS = warpgroup_mma_wait(1, deps=(dS,))
        mbarrier.arrive(V_j_free.index(slot), count=1)
        dS = P * (dS - v_i.to(gl.float32)[:, None])
        dQ_i, dS_late = warpgroup_mma_wait(0, deps=(dQ_i, dS_late))
        mbarrier.arrive(K_j_free.index(last), count=1)
        dS_late = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
    last, last_phase = slot, phase
    dQ_i = warpgroup_mma(dS_late, K_j.index(last).reshape([64, 64]), dQ_i, is_async=True)
    dQ_i, dS_late = warpgroup_mma_wait(0, deps=(dQ_i, dS_late))
    mbarrier.arrive(K_j_free.index(last), count=1)
    down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_64))
    across = gl.arange(0, 64, gl.SliceLayout(0, rows_64))
    gl.store(dQ_at + down[:, None] * 64 + across[None, :], gl.convert_layout((dQ_i * 0.125).to(dQ_at.dtype.element_ty), rows_64))

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "together"])
def dQ_1(dO_tiles, Q_tiles, K_tiles, V_tiles, v_ptr, L_ptr, dQ_ptr, n_q, n_k, heads, together):
    dO_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 64, 64], dO_tiles.layout)  # line 239: stays
    dO_i_full = barriers(1, 1)
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 64, 64], Q_tiles.layout)  # line 240: stays
    Q_i_full = barriers(1, 1)
    K_j = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 64, 64], K_tiles.layout)  # line 242: a ring
    K_j_full = barriers(3, 1)
    K_j_free = barriers(3, 2)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 64, 64], V_tiles.layout)  # line 244: a ring
    V_j_full = barriers(3, 1)
    V_j_free = barriers(3, 2)
    gl.warp_specialize([
        (dQ_1_rows, (0, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, v_ptr, L_ptr, dQ_ptr, n_q, n_k, heads, together)),
        (dQ_1_rows, (1, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, v_ptr, L_ptr, dQ_ptr, n_q, n_k, heads, together)),
        (dQ_1_loads, (dO_tiles, Q_tiles, K_tiles, V_tiles, dO_i, dO_i_full, Q_i, Q_i_full, K_j, K_j_full, K_j_free, V_j, V_j_full, V_j_free, n_q, n_k, heads, together)),
    ], [4, 1], [240, 24])

@gluon.jit
def dK_dV_1_loads(K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_i_ring, v_i_ring, n_q, n_k, heads, together):
    tiles = n_k // 128
    tile = gl.program_id(0)
    group, rank = tile // (tiles * together), tile % (tiles * together)
    side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
    head, j = group * together + rank % side, rank // side
    mbarrier.expect(K_j_full.index(0), 16384)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(K_tiles, [head, (j * 2 + w) * 64, 0], K_j_full.index(0), K_j.index(w))
    mbarrier.expect(V_j_full.index(0), 16384)
    for w in gl.static_range(2):
        tma.async_copy_global_to_shared(V_tiles, [head, (j * 2 + w) * 64, 0], V_j_full.index(0), V_j.index(w))
    for i in range(gl.maximum(j * 128, 0) // 128, n_q // 128):
        slot, phase = (i - gl.maximum(j * 128, 0) // 128) % 3, ((i - gl.maximum(j * 128, 0) // 128) // 3) & 1
        mbarrier.wait(Q_i_free.index(slot), phase ^ 1)
        mbarrier.expect(Q_i_full.index(slot), 16384)
        tma.async_copy_global_to_shared(Q_tiles, [head, i * 128, 0], Q_i_full.index(slot), Q_i.index(slot))
        mbarrier.wait(dO_i_free.index(slot), phase ^ 1)
        mbarrier.expect(dO_i_full.index(slot), 17408)
        tma.async_copy_global_to_shared(dO_tiles, [head, i * 128, 0], dO_i_full.index(slot), dO_i.index(slot))
        tma.async_copy_global_to_shared(L_tiles, [head, i * 128], dO_i_full.index(slot), L_i_ring.index(slot))
        tma.async_copy_global_to_shared(v_tiles, [head, i * 128], dO_i_full.index(slot), v_i_ring.index(slot))

@gluon.jit
def dK_dV_1_rows(w: gl.constexpr, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_i_ring, v_i_ring, dK_ptr, dV_ptr, n_q, n_k, heads, together):
    tiles = n_k // 128
    tile = gl.program_id(0)
    group, rank = tile // (tiles * together), tile % (tiles * together)
    side = gl.minimum(heads - group * together, together)  # heads whose long tiles come first
    head, j = group * together + rank % side, rank // side
    dK_at = dK_ptr + gl.cast(head, gl.int64) * n_k * 64
    dV_at = dV_ptr + gl.cast(head, gl.int64) * n_k * 64
    part = j * 2 + w  # these 64 rows of tile j
    at_j = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_128))
    dK_j = gl.full([64, 64], 0.0, gl.float32, tile_64)
    dV_j = gl.full([64, 64], 0.0, gl.float32, tile_64)
    mbarrier.wait(K_j_full.index(0), 0)
    mbarrier.wait(V_j_full.index(0), 0)
    for i in range(gl.maximum(j * 128, 0) // 128, gl.minimum((gl.maximum((j + 1) * 128 - 1, 0) + 127) // 128, n_q // 128)):
        slot, phase = (i - gl.maximum(j * 128, 0) // 128) % 3, ((i - gl.maximum(j * 128, 0) // 128) // 3) & 1
        mbarrier.wait(Q_i_full.index(slot), phase)
        P = warpgroup_mma(K_j.index(w).reshape([64, 64]), Q_i.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        mbarrier.wait(dO_i_full.index(slot), phase)
        dS = warpgroup_mma(V_j.index(w).reshape([64, 64]), dO_i.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        P = warpgroup_mma_wait(1, deps=(P,))
        L_i = L_i_ring.index(slot).reshape([128]).load(gl.SliceLayout(0, tile_128))
        P = gl.where((at_j - i * 128)[:, None] <= gl.arange(0, 128, gl.SliceLayout(0, tile_128))[None, :], P, float("-inf"))
        P = gl.exp2(P * 0.18033688011112042 - gl.where(L_i != float("-inf"), L_i, 0.0)[None, :])
        P_16 = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        dV_j = warpgroup_mma(P_16, dO_i.index(slot).reshape([128, 64]), dV_j, is_async=True)
        dS = warpgroup_mma_wait(1, deps=(dS,))
        v_i = v_i_ring.index(slot).reshape([128]).load(gl.SliceLayout(0, tile_128))
        dS = P * (dS - v_i[None, :])
        dS_16 = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        dK_j = warpgroup_mma(dS_16, Q_i.index(slot).reshape([128, 64]), dK_j, is_async=True)
        dV_j, P_16, dK_j, dS_16 = warpgroup_mma_wait(0, deps=(dV_j, P_16, dK_j, dS_16))
        mbarrier.arrive(dO_i_free.index(slot), count=1)
        mbarrier.arrive(Q_i_free.index(slot), count=1)
    for i_2 in range(gl.minimum((gl.maximum((j + 1) * 128 - 1, 0) + 127) // 128, n_q // 128), n_q // 128):
        slot, phase = (i_2 - gl.maximum(j * 128, 0) // 128) % 3, ((i_2 - gl.maximum(j * 128, 0) // 128) // 3) & 1
        mbarrier.wait(Q_i_full.index(slot), phase)
        P = warpgroup_mma(K_j.index(w).reshape([64, 64]), Q_i.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        mbarrier.wait(dO_i_full.index(slot), phase)
        dS = warpgroup_mma(V_j.index(w).reshape([64, 64]), dO_i.index(slot).reshape([128, 64]).permute((1, 0)), gl.zeros([64, 128], gl.float32, tile_128), use_acc=False, is_async=True)
        P = warpgroup_mma_wait(1, deps=(P,))
        L_i = L_i_ring.index(slot).reshape([128]).load(gl.SliceLayout(0, tile_128))
        P = gl.exp2(P * 0.18033688011112042 - L_i[None, :])
        P_16 = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        dV_j = warpgroup_mma(P_16, dO_i.index(slot).reshape([128, 64]), dV_j, is_async=True)
        dS = warpgroup_mma_wait(1, deps=(dS,))
        v_i = v_i_ring.index(slot).reshape([128]).load(gl.SliceLayout(0, tile_128))
        dS = P * (dS - v_i[None, :])
        dS_16 = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_64, 2))
        dK_j = warpgroup_mma(dS_16, Q_i.index(slot).reshape([128, 64]), dK_j, is_async=True)
        dV_j, P_16, dK_j, dS_16 = warpgroup_mma_wait(0, deps=(dV_j, P_16, dK_j, dS_16))
        mbarrier.arrive(dO_i_free.index(slot), count=1)
        mbarrier.arrive(Q_i_free.index(slot), count=1)
    down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    across = gl.arange(0, 64, gl.SliceLayout(0, tile_64))
    gl.store(dK_at + down[:, None] * 64 + across[None, :], (dK_j * 0.125).to(dK_at.dtype.element_ty))
    down_2 = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
    across_2 = gl.arange(0, 64, gl.SliceLayout(0, tile_64))
    gl.store(dV_at + down_2[:, None] * 64 + across_2[None, :], dV_j.to(dV_at.dtype.element_ty))

@gluon.jit(do_not_specialize=["n_q", "n_k", "heads", "together"])
def dK_dV_1(K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, dK_ptr, dV_ptr, n_q, n_k, heads, together):
    K_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 64, 64], K_tiles.layout)  # line 205: stays
    K_j_full = barriers(1, 1)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 64, 64], V_tiles.layout)  # line 205: stays
    V_j_full = barriers(1, 1)
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 128, 64], Q_tiles.layout)  # line 207: a ring
    Q_i_full = barriers(3, 1)
    Q_i_free = barriers(3, 2)
    dO_i = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 128, 64], dO_tiles.layout)  # line 207: a ring
    dO_i_full = barriers(3, 1)
    dO_i_free = barriers(3, 2)
    L_i_ring = gl.allocate_shared_memory(gl.float32, [3, 1, 128], L_tiles.layout)  # line 207: a ring
    v_i_ring = gl.allocate_shared_memory(gl.float32, [3, 1, 128], v_tiles.layout)  # line 207: a ring
    gl.warp_specialize([
        (dK_dV_1_rows, (0, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_i_ring, v_i_ring, dK_ptr, dV_ptr, n_q, n_k, heads, together)),
        (dK_dV_1_rows, (1, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_i_ring, v_i_ring, dK_ptr, dV_ptr, n_q, n_k, heads, together)),
        (dK_dV_1_loads, (K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, K_j, K_j_full, V_j, V_j_full, Q_i, Q_i_full, Q_i_free, dO_i, dO_i_full, dO_i_free, L_i_ring, v_i_ring, n_q, n_k, heads, together)),
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
    dQ_ptr = torch.empty((heads, n_q, 64), dtype=torch.bfloat16, device=device)
    dK_ptr = torch.empty((heads, n_k, 64), dtype=torch.bfloat16, device=device)
    dV_ptr = torch.empty((heads, n_k, 64), dtype=torch.bfloat16, device=device)
    v_ptr = torch.empty((heads, n_q), dtype=torch.float32, device=device)
    v[(n_q // 128, heads)](dO_ptr, O_ptr, v_ptr, n_q, n_k, num_warps=8, num_stages=3)
    if dL is not None:
        v_ptr[:, :n_q].sub_(dL)
    dO_tiles = tiles_of(dO_ptr, 64, 64)
    Q_tiles = tiles_of(Q_ptr, 64, 64)
    K_tiles = tiles_of(K_ptr, 64, 64)
    V_tiles = tiles_of(V_ptr, 64, 64)
    together = triton.cdiv(heads, triton.cdiv(heads, max(54525952 // (n_k * 256), 1)))  # heads whose long tiles come first
    dQ_1[(triton.cdiv(n_q, 128) * heads, 1)](dO_tiles, Q_tiles, K_tiles, V_tiles, v_ptr, L_ptr, dQ_ptr, n_q, n_k, heads, together, num_warps=4)
    if (n_k - 1) // 128 * 128 >= n_q:
        raise ValueError("these kernels need a query for each tile of 128 keys")
    K_tiles = tiles_of(K_ptr, 64, 64)
    V_tiles = tiles_of(V_ptr, 64, 64)
    Q_tiles = tiles_of(Q_ptr, 128, 64)
    dO_tiles = tiles_of(dO_ptr, 128, 64)
    L_tiles = vectors_of(L_ptr, n_q, 128)
    v_tiles = vectors_of(v_ptr, n_q, 128)
    together = triton.cdiv(heads, triton.cdiv(heads, max(54525952 // (n_q * 256), 1)))  # heads whose long tiles come first
    dK_dV_1[(triton.cdiv(n_k, 128) * heads, 1)](K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, dK_ptr, dV_ptr, n_q, n_k, heads, together, num_warps=4)
    return {"dQ": dQ_ptr, "dK": dK_ptr, "dV": dV_ptr}
