"""backward-two-pass-blocked: d_k = 32, d_v = 32, B_c = 64, b_r = 64, bfloat16 words; written by pebblesim."""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

tile_32 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16]))
tile_64 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
rows_32 = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4], [8, 0]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 32]))
order_64 = gl.constexpr(gl.SharedLinearLayout([[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [0, 8], [0, 16], [0, 32], [16, 0], [32, 0]]))


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

@gluon.jit
def dK_dV_loads(w: gl.constexpr, K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, K_j, K_j_full, K_j_free, V_j, Q_i, Q_i_full, Q_i_free, dO_i, L_i_ring, v_i_ring, n_q, n_k, several, each, all_of_them, own):
    j, begin = gl.program_id(0), gl.program_id(1) * each
    end = gl.minimum(begin + each, all_of_them)
    turn, filled = 0, 0  # sequences, and slots of each ring, before one
    for matrix in range(begin // several, gl.cdiv(end, several)):
        group, key_head = matrix // own, matrix % own
        for r in range(gl.maximum(begin - matrix * several, 0) + w, gl.minimum(end - matrix * several, several), 3):
            batch = group * several + r
            head = batch * own + key_head
            mbarrier.wait(K_j_free.index(w), (turn & 1) ^ 1)
            mbarrier.expect(K_j_full.index(w), 8192)
            tma.async_copy_global_to_shared(K_tiles, [batch, key_head, j * 64, 0], K_j_full.index(w), K_j.index(w))
            tma.async_copy_global_to_shared(V_tiles, [batch, key_head, j * 64, 0], K_j_full.index(w), V_j.index(w))
            for i in range(n_q // 64):
                slot, phase = w * 3 + (filled + i) % 3, ((filled + i) // 3) & 1
                mbarrier.wait(Q_i_free.index(slot), phase ^ 1)
                mbarrier.expect(Q_i_full.index(slot), 8704)
                tma.async_copy_global_to_shared(Q_tiles, [batch, key_head, i * 64, 0], Q_i_full.index(slot), Q_i.index(slot))
                tma.async_copy_global_to_shared(dO_tiles, [batch, key_head, i * 64, 0], Q_i_full.index(slot), dO_i.index(slot))
                tma.async_copy_global_to_shared(L_tiles, [head, i * 64], Q_i_full.index(slot), L_i_ring.index(slot))
                tma.async_copy_global_to_shared(v_tiles, [head, i * 64], Q_i_full.index(slot), v_i_ring.index(slot))
            turn += 1
            filled += n_q // 64

@gluon.jit
def dK_dV_rows(w: gl.constexpr, K_j, K_j_full, K_j_free, V_j, Q_i, Q_i_full, Q_i_free, dO_i, L_i_ring, v_i_ring, bias_T_rows, bias_T_rows_full, bias_T_rows_free, bias_T_ptr, dK_ptr, dV_ptr, n_q, n_k, several, each, all_of_them, own, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row):
    bias_T_head, bias_T_row = bias_T_head * 8, bias_T_row * 8
    dK_head, dK_row = dK_head * 8, dK_row * 8
    dV_head, dV_row = dV_head * 8, dV_row * 8
    j, begin = gl.program_id(0), gl.program_id(1) * each
    end = gl.minimum(begin + each, all_of_them)
    turn, filled = 0, 0  # sequences, and slots of each ring, before one
    for matrix in range(begin // several, gl.cdiv(end, several)):
        group, key_head = matrix // own, matrix % own
        again = (matrix - begin // several) & 1
        mbarrier.wait(bias_T_rows_free.index(0), again ^ 1)
        at_rows = (j + gl.minimum(matrix, 0)) * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
        for tile in range(w, 6, 3):
            at_columns = tile * 64 + gl.arange(0, 64, gl.SliceLayout(0, tile_64))
            entries = gl.load(bias_T_ptr + gl.cast(group, gl.int64) * bias_T_batch * 8 + gl.cast(key_head, gl.int64) * bias_T_head + at_rows[:, None] * bias_T_row + at_columns[None, :], mask=(at_rows[:, None] < n_k) & (at_columns[None, :] < n_q), other=float("-inf")).to(gl.float32)
            bias_T_rows.index(tile).store(gl.where((entries < -6.010407640085655e+37) & (entries != float("-inf")), -6.010407640085655e+37, entries) * 5.65685424949238)
            fence_async_shared()
        mbarrier.arrive(bias_T_rows_full.index(0), count=1)
        mbarrier.wait(bias_T_rows_full.index(0), again)
        for r in range(gl.maximum(begin - matrix * several, 0) + w, gl.minimum(end - matrix * several, several), 3):
            batch = group * several + r
            head = batch * own + key_head
            dK_at = dK_ptr + gl.cast(batch, gl.int64) * dK_batch * 8 + gl.cast(key_head, gl.int64) * dK_head
            dV_at = dV_ptr + gl.cast(batch, gl.int64) * dV_batch * 8 + gl.cast(key_head, gl.int64) * dV_head
            part = j  # these 64 rows, of which the warpgroup has columns
            dK_j = gl.full([64, 32], 0.0, gl.float32, tile_32)
            dV_j = gl.full([64, 32], 0.0, gl.float32, tile_32)
            mbarrier.wait(K_j_full.index(w), turn & 1)
            K_j_16 = K_j.index(w).reshape([64, 32]).load(gl.DotOperandLayout(0, tile_64, 2))
            V_j_16 = V_j.index(w).reshape([64, 32]).load(gl.DotOperandLayout(0, tile_64, 2))
            fence_async_shared()
            mbarrier.arrive(K_j_free.index(w), count=1)
            for i in range(n_q // 64):
                slot, phase = w * 3 + (filled + i) % 3, ((filled + i) // 3) & 1
                mbarrier.wait(Q_i_full.index(slot), phase)
                L_i = L_i_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
                v_i = v_i_ring.index(slot).reshape([64]).load(gl.SliceLayout(0, tile_64))
                P = warpgroup_mma(K_j_16, Q_i.index(slot).reshape([64, 32]).permute((1, 0)), bias_T_rows.index(i).load(tile_64), is_async=True)
                dS = warpgroup_mma(V_j_16, dO_i.index(slot).reshape([64, 32]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
                P = warpgroup_mma_wait(1, deps=(P,))
                P = gl.exp2(P * 0.25503486164919736 - L_i[None, :])
                P_16 = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_32, 2))
                dV_j = warpgroup_mma(P_16, dO_i.index(slot).reshape([64, 32]), dV_j, is_async=True)
                dS = warpgroup_mma_wait(1, deps=(dS,))
                dS = P * (dS - v_i[None, :])
                dS_16 = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_32, 2))
                dK_j = warpgroup_mma(dS_16, Q_i.index(slot).reshape([64, 32]), dK_j, is_async=True)
                dV_j, P_16, dK_j, dS_16 = warpgroup_mma_wait(0, deps=(dV_j, P_16, dK_j, dS_16))
                mbarrier.arrive(Q_i_free.index(slot), count=1)
            down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_32))
            across = gl.arange(0, 32, gl.SliceLayout(0, rows_32))
            gl.store(dK_at + down[:, None] * dK_row + across[None, :], gl.convert_layout((dK_j * 0.1767766952966369).to(dK_at.dtype.element_ty), rows_32))
            down_2 = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_32))
            across_2 = gl.arange(0, 32, gl.SliceLayout(0, rows_32))
            gl.store(dV_at + down_2[:, None] * dV_row + across_2[None, :], gl.convert_layout(dV_j.to(dV_at.dtype.element_ty), rows_32))
            turn += 1
            filled += n_q // 64
        mbarrier.arrive(bias_T_rows_free.index(0), count=1)

@gluon.jit(do_not_specialize=["n_q", "n_k", "several", "each", "all_of_them", "own", "bias_T_batch", "bias_T_head", "bias_T_row", "bias_T_several", "bias_T_within", "dK_batch", "dK_head", "dK_row", "dV_batch", "dV_head", "dV_row"])
def dK_dV(K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, bias_T_ptr, dK_ptr, dV_ptr, n_q, n_k, several, each, all_of_them, own, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row):
    K_j = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 64, 32], K_tiles.layout)  # line 205: stays
    K_j_full = barriers(3, 1)
    K_j_free = barriers(3, 1)
    V_j = gl.allocate_shared_memory(gl.bfloat16, [3, 1, 1, 64, 32], V_tiles.layout)  # line 205: stays
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [9, 1, 1, 64, 32], Q_tiles.layout)  # line 207: a ring
    Q_i_full = barriers(9, 1)
    Q_i_free = barriers(9, 1)
    dO_i = gl.allocate_shared_memory(gl.bfloat16, [9, 1, 1, 64, 32], dO_tiles.layout)  # line 207: a ring
    L_i_ring = gl.allocate_shared_memory(gl.float32, [9, 1, 64], L_tiles.layout)  # line 207: a ring
    v_i_ring = gl.allocate_shared_memory(gl.float32, [9, 1, 64], v_tiles.layout)  # line 207: a ring
    bias_T_rows = gl.allocate_shared_memory(gl.float32, [6, 64, 64], order_64)  # line 208: stays for all sequences
    bias_T_rows_full = barriers(1, 3)
    bias_T_rows_free = barriers(1, 3)
    gl.warp_specialize([
        (dK_dV_rows, (0, K_j, K_j_full, K_j_free, V_j, Q_i, Q_i_full, Q_i_free, dO_i, L_i_ring, v_i_ring, bias_T_rows, bias_T_rows_full, bias_T_rows_free, bias_T_ptr, dK_ptr, dV_ptr, n_q, n_k, several, each, all_of_them, own, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row)),
        (dK_dV_rows, (1, K_j, K_j_full, K_j_free, V_j, Q_i, Q_i_full, Q_i_free, dO_i, L_i_ring, v_i_ring, bias_T_rows, bias_T_rows_full, bias_T_rows_free, bias_T_ptr, dK_ptr, dV_ptr, n_q, n_k, several, each, all_of_them, own, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row)),
        (dK_dV_rows, (2, K_j, K_j_full, K_j_free, V_j, Q_i, Q_i_full, Q_i_free, dO_i, L_i_ring, v_i_ring, bias_T_rows, bias_T_rows_full, bias_T_rows_free, bias_T_ptr, dK_ptr, dV_ptr, n_q, n_k, several, each, all_of_them, own, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row)),
        (dK_dV_loads, (0, K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, K_j, K_j_full, K_j_free, V_j, Q_i, Q_i_full, Q_i_free, dO_i, L_i_ring, v_i_ring, n_q, n_k, several, each, all_of_them, own)),
        (dK_dV_loads, (1, K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, K_j, K_j_full, K_j_free, V_j, Q_i, Q_i_full, Q_i_free, dO_i, L_i_ring, v_i_ring, n_q, n_k, several, each, all_of_them, own)),
        (dK_dV_loads, (2, K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, K_j, K_j_full, K_j_free, V_j, Q_i, Q_i_full, Q_i_free, dO_i, L_i_ring, v_i_ring, n_q, n_k, several, each, all_of_them, own)),
    ], [4, 4, 1, 1, 1], [160, 160, 24, 24, 24])


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, L_ptr, bias_T_ptr, v_ptr, results):
    """dK, dV of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:2], K_ptr.device
    heads = batch * own
    dK_ptr = results["dK"]
    dV_ptr = results["dV"]
    n_q = Q_ptr.shape[2]
    n_k = K_ptr.shape[2]
    Q_batch, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:3])
    K_batch, K_head, K_row = (each // 8 for each in K_ptr.stride()[:3])
    V_batch, V_head, V_row = (each // 8 for each in V_ptr.stride()[:3])
    dO_batch, dO_head, dO_row = (each // 8 for each in dO_ptr.stride()[:3])
    bias_T_batch, bias_T_within, bias_T_head, bias_T_row = (each // 8 for each in bias_T_ptr.stride()[:4])
    bias_T_several = bias_T_ptr.shape[1]
    dK_batch, dK_head, dK_row = (each // 8 for each in dK_ptr.stride()[:3])
    dV_batch, dV_head, dV_row = (each // 8 for each in dV_ptr.stride()[:3])
    if n_q % 64 or n_k % 64:
        raise ValueError("these kernels need n_q to be a multiple of 64 and n_k to be a multiple of 64")
    K_tiles = tiles_of(K_ptr, 64, 32)
    V_tiles = tiles_of(V_ptr, 64, 32)
    Q_tiles = tiles_of(Q_ptr, 64, 32)
    dO_tiles = tiles_of(dO_ptr, 64, 32)
    L_tiles = vectors_of(L_ptr, n_q, 64)
    v_tiles = vectors_of(v_ptr, n_q, 64)
    if triton.cdiv(n_q, 64) != 6:
        raise ValueError("these kernels are for 6 tiles of 64 columns")
    several, all_of_them, tiles = bias_T_ptr.shape[1], heads, triton.cdiv(n_k, 64)
    units = torch.cuda.get_device_properties(device).multi_processor_count
    each = max(triton.cdiv(all_of_them, max(units // tiles, 1)), 3)
    dK_dV[(tiles, triton.cdiv(all_of_them, each))](K_tiles, V_tiles, Q_tiles, dO_tiles, L_tiles, v_tiles, bias_T_ptr, dK_ptr, dV_ptr, n_q, n_k, several, each, all_of_them, own, bias_T_batch, bias_T_head, bias_T_row, bias_T_several, bias_T_within, dK_batch, dK_head, dK_row, dV_batch, dV_head, dV_row, num_warps=4)
    return {"dK": dK_ptr, "dV": dV_ptr}

