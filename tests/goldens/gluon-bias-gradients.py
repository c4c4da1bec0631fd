"""backward-two-pass-blocked, dQ and dB: d_k = 32, d_v = 32, B_R = 1, B_r = 64, B_k = 128, b_c = 64, bfloat16 words; written by pebblesim."""

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
rows_32_by_4 = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [4, 0], [8, 0]], [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]], [[16, 0], [32, 0]], [], [64, 32]))
rows_64_by_2 = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 32], [2, 0], [4, 0], [8, 0]], [[0, 2], [0, 4], [0, 8], [0, 16], [1, 0]], [[16, 0], [32, 0]], [], [64, 64]))


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


def copies_of(tensor, rows, width, kind=gl.bfloat16):
    """For the copy engine: tiles of (batch, copies, heads, n, columns); beyond n and the columns they are 0."""
    layout = gl.NVMMASharedLayout.get_default_for([1, 1, 1, rows, width], kind)
    return TensorDescriptor(tensor, [*tensor.shape], [*tensor.stride()], [1, 1, 1, rows, width], layout)


def numbers_of(tensor, length, rows):
    """For the copy engine: vectors, one after the other."""
    layout, whole = gl.NVMMASharedLayout.get_default_for([1, rows], gl.float32), tensor.shape[-1]
    return TensorDescriptor(tensor, [tensor.numel() // whole, length], [whole, 1], [1, rows], layout)

@gluon.jit
def dQ_dB_loads(dO_tiles, Q_tiles, K_tiles, V_tiles, v_tiles, L_tiles, dO_i, dO_i_full, dO_i_free, Q_i, K_j, V_j, v_i_ring, L_i_ring, R, n_q, n_k, each, all_of_them, whole, own):
    i, begin = gl.program_id(0), gl.program_id(1) * each
    end = gl.minimum(begin + each, all_of_them)
    turn = 0  # sequences before one
    for matrix in range(begin // whole, gl.cdiv(end, whole)):
        batch, key_head = matrix // own, matrix % own
        first, behind = gl.maximum(begin - matrix * whole - (whole - R), 0), gl.minimum(end - matrix * whole, whole) - (whole - R)
        for r in range(first, behind):
            slot, phase = turn % 2, (turn // 2) & 1
            head = (batch * R + r) * own + key_head
            mbarrier.wait(dO_i_free.index(slot), phase ^ 1)
            mbarrier.expect(dO_i_full.index(slot), 25088)
            tma.async_copy_global_to_shared(dO_tiles, [batch, r, key_head, i * 64, 0], dO_i_full.index(slot), dO_i.index(slot))
            tma.async_copy_global_to_shared(Q_tiles, [batch, r, key_head, i * 64, 0], dO_i_full.index(slot), Q_i.index(slot))
            for at in gl.static_range(2):
                tma.async_copy_global_to_shared(K_tiles, [batch, r, key_head, at * 64, 0], dO_i_full.index(slot), K_j.index(slot * 2 + at))
            for at in gl.static_range(2):
                tma.async_copy_global_to_shared(V_tiles, [batch, r, key_head, at * 64, 0], dO_i_full.index(slot), V_j.index(slot * 2 + at))
            tma.async_copy_global_to_shared(v_tiles, [head, i * 64], dO_i_full.index(slot), v_i_ring.index(slot))
            tma.async_copy_global_to_shared(L_tiles, [head, i * 64], dO_i_full.index(slot), L_i_ring.index(slot))
            turn += 1

@gluon.jit
def dQ_dB_rows(w: gl.constexpr, dO_i, dO_i_full, dO_i_free, Q_i, K_j, V_j, v_i_ring, L_i_ring, dQ_part, dQ_part_full, bias_of_all, bias_ptr, dQ_ptr, dB_ptr, R, n_q, n_k, each, all_of_them, whole, own, bias_batch, bias_head, bias_row, bias_several, bias_within, dQ_batch, dQ_head, dQ_row, dQ_copy, dB_batch, dB_head, dB_row, dB_copy):
    bias_head, bias_row = bias_head * 8, bias_row * 8
    dQ_head, dQ_row = dQ_head * 8, dQ_row * 8
    dB_head, dB_row = dB_head * 8, dB_row * 8
    i, begin = gl.program_id(0), gl.program_id(1) * each
    end = gl.minimum(begin + each, all_of_them)
    turn = 0  # sequences before one
    for matrix in range(begin // whole, gl.cdiv(end, whole)):
        batch, key_head = matrix // own, matrix % own
        p = gl.program_id(1) - matrix * whole // each  # of the parts of the head
        first, behind = gl.maximum(begin - matrix * whole - (whole - R), 0), gl.minimum(end - matrix * whole, whole) - (whole - R)
        bias_at = bias_ptr + (gl.cast(batch // bias_several, gl.int64) * bias_batch * 8 + gl.cast(batch % bias_several, gl.int64) * bias_within * 8) + gl.cast(key_head, gl.int64) * bias_head
        dQ_first = dQ_ptr + gl.cast(batch, gl.int64) * dQ_batch * 8 + gl.cast(key_head, gl.int64) * dQ_head
        dB_at = dB_ptr + (gl.cast(batch, gl.int64) * dB_batch * 8 + gl.cast(p, gl.int64) * dB_copy * 8) + gl.cast(key_head, gl.int64) * dB_head
        part = i  # these 64 rows, of which the warpgroup has columns
        at_i = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_64))
        dB = gl.full([64, 64], 0.0, gl.float32, tile_64)
        for k in gl.static_range(1):
            at_rows, at_columns = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_64_by_2)), (w + k) * 64 + gl.arange(0, 64, gl.SliceLayout(0, rows_64_by_2))
            bias = gl.load(bias_at + at_rows[:, None] * bias_row + at_columns[None, :])
            bias = bias.to(gl.float32)
            bias = gl.where(bias > 33554432.0, 33554432.0, gl.where(bias < -4.25e+37, float("-inf"), bias)) * 8.0
            bias_of_all.index(w + k).store(bias)
        fence_async_shared()
        for r in range(first, behind):
            slot, phase = turn % 2, (turn // 2) & 1
            mbarrier.wait(dO_i_full.index(slot), phase)
            dQ_i = gl.full([64, 32], 0.0, gl.float32, tile_32)
            dO_i_2 = dO_i.index(slot).reshape([64, 32]).load(gl.DotOperandLayout(0, tile_64, 2))
            Q_i_2 = Q_i.index(slot).reshape([64, 32]).load(gl.DotOperandLayout(0, tile_64, 2))
            v_i = v_i_ring.index(slot).reshape([64]).load(gl.SliceLayout(1, tile_64))
            L_i = L_i_ring.index(slot).reshape([64]).load(gl.SliceLayout(1, tile_64))
            P = warpgroup_mma(Q_i_2, K_j.index(slot * 2 + w).reshape([64, 32]).permute((1, 0)), bias_of_all.index(w).load(tile_64), is_async=True)
            dS = warpgroup_mma(dO_i_2, V_j.index(slot * 2 + w).reshape([64, 32]).permute((1, 0)), gl.zeros([64, 64], gl.float32, tile_64), use_acc=False, is_async=True)
            P = warpgroup_mma_wait(1, deps=(P,))
            P = gl.exp2(P * 0.18033688011112042 - L_i[:, None])
            dS = warpgroup_mma_wait(0, deps=(dS,))
            dS = P * (dS - v_i.to(gl.float32)[:, None])
            dB += dS
            dS_16 = gl.convert_layout(dS.to(gl.bfloat16), gl.DotOperandLayout(0, tile_32, 2))
            dQ_i = warpgroup_mma(dS_16, K_j.index(slot * 2 + w).reshape([64, 32]), dQ_i, is_async=True)
            dQ_i, dS_16, dB = warpgroup_mma_wait(0, deps=(dQ_i, dS_16, dB))
            mbarrier.arrive(dO_i_free.index(slot), count=1)
            if w == 1:
                mbarrier.wait(dQ_part_full.index(0), (turn & 1) ^ 1)
            else:
                mbarrier.wait(dQ_part_full.index(w + 1), turn & 1)
                dQ_i += dQ_part.index(0).load(tile_32)
            if w == 0:
                mbarrier.arrive(dQ_part_full.index(0), count=1)
                dQ_at = dQ_first + gl.cast(r, gl.int64) * dQ_copy * 8
                down = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, rows_32_by_4))
                across = gl.arange(0, 32, gl.SliceLayout(0, rows_32_by_4))
                gl.store(dQ_at + down[:, None] * dQ_row + across[None, :], gl.convert_layout((dQ_i * 0.125).to(dQ_at.dtype.element_ty), rows_32_by_4))
            else:
                dQ_part.index(0).store(dQ_i)
                fence_async_shared()
                mbarrier.arrive(dQ_part_full.index(w), count=1)
            turn += 1
        at_j = w * 64 + gl.arange(0, 64, gl.SliceLayout(0, tile_64))
        gl.store(dB_at + at_i[:, None] * dB_row + at_j[None, :], dB.to(dB_at.dtype.element_ty))

@gluon.jit(do_not_specialize=["R", "n_q", "n_k", "each", "all_of_them", "whole", "own", "bias_batch", "bias_head", "bias_row", "bias_several", "bias_within", "dQ_batch", "dQ_head", "dQ_row", "dQ_copy", "dB_batch", "dB_head", "dB_row", "dB_copy"])
def dQ_dB(dO_tiles, Q_tiles, K_tiles, V_tiles, v_tiles, L_tiles, bias_ptr, dQ_ptr, dB_ptr, R, n_q, n_k, each, all_of_them, whole, own, bias_batch, bias_head, bias_row, bias_several, bias_within, dQ_batch, dQ_head, dQ_row, dQ_copy, dB_batch, dB_head, dB_row, dB_copy):
    dO_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 1, 64, 32], dO_tiles.layout)  # line 239: a ring
    dO_i_full = barriers(2, 1)
    dO_i_free = barriers(2, 2)
    Q_i = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 1, 1, 64, 32], Q_tiles.layout)  # line 240: a ring
    K_j = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 1, 1, 64, 32], K_tiles.layout)  # line 242: a ring
    V_j = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 1, 1, 64, 32], V_tiles.layout)  # line 244: a ring
    v_i_ring = gl.allocate_shared_memory(gl.float32, [2, 1, 64], v_tiles.layout)  # line 239: a ring
    L_i_ring = gl.allocate_shared_memory(gl.float32, [2, 1, 64], L_tiles.layout)  # line 240: a ring
    dQ_part = gl.allocate_shared_memory(gl.float32, [1, 64, 32], gl.NVMMASharedLayout.get_default_for([64, 32], gl.float32))  # of the keys of some warpgroups
    dQ_part_full = barriers(2, 1)
    bias_of_all = gl.allocate_shared_memory(gl.float32, [2, 64, 64], gl.SharedLinearLayout([[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0], [0, 8], [0, 16], [0, 32]]))  # line 241: stays
    gl.warp_specialize([
        (dQ_dB_rows, (0, dO_i, dO_i_full, dO_i_free, Q_i, K_j, V_j, v_i_ring, L_i_ring, dQ_part, dQ_part_full, bias_of_all, bias_ptr, dQ_ptr, dB_ptr, R, n_q, n_k, each, all_of_them, whole, own, bias_batch, bias_head, bias_row, bias_several, bias_within, dQ_batch, dQ_head, dQ_row, dQ_copy, dB_batch, dB_head, dB_row, dB_copy)),
        (dQ_dB_rows, (1, dO_i, dO_i_full, dO_i_free, Q_i, K_j, V_j, v_i_ring, L_i_ring, dQ_part, dQ_part_full, bias_of_all, bias_ptr, dQ_ptr, dB_ptr, R, n_q, n_k, each, all_of_them, whole, own, bias_batch, bias_head, bias_row, bias_several, bias_within, dQ_batch, dQ_head, dQ_row, dQ_copy, dB_batch, dB_head, dB_row, dB_copy)),
        (dQ_dB_loads, (dO_tiles, Q_tiles, K_tiles, V_tiles, v_tiles, L_tiles, dO_i, dO_i_full, dO_i_free, Q_i, K_j, V_j, v_i_ring, L_i_ring, R, n_q, n_k, each, all_of_them, whole, own)),
    ], [4, 1], [240, 24])


def run(Q_ptr, K_ptr, V_ptr, dO_ptr, L_ptr, bias_ptr, v_ptr, results):
    """dQ, dB of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""
    (batch, own), device = K_ptr.shape[:3:2], K_ptr.device
    heads = batch * own
    dQ_ptr = results["dQ"]
    dB_ptr = results["dB"]
    R = K_ptr.shape[1]
    n_q = Q_ptr.shape[3]
    n_k = K_ptr.shape[3]
    Q_batch, Q_copy, Q_head, Q_row = (each // 8 for each in Q_ptr.stride()[:4])
    K_batch, K_copy, K_head, K_row = (each // 8 for each in K_ptr.stride()[:4])
    V_batch, V_copy, V_head, V_row = (each // 8 for each in V_ptr.stride()[:4])
    dO_batch, dO_copy, dO_head, dO_row = (each // 8 for each in dO_ptr.stride()[:4])
    bias_batch, bias_within, bias_head, bias_row = (each // 8 for each in bias_ptr.stride()[:4])
    bias_several = bias_ptr.shape[1]
    dQ_batch, dQ_copy, dQ_head, dQ_row = (each // 8 for each in dQ_ptr.stride()[:4])
    dB_batch, dB_copy, dB_head, dB_row = (each // 8 for each in dB_ptr.stride()[:4])
    if R % 1 or n_q % 64 or n_k % 128:
        raise ValueError("these kernels need R to be a multiple of 1 and n_q to be a multiple of 64 and n_k to be a multiple of 128")
    dO_tiles = copies_of(dO_ptr, 64, 32)
    Q_tiles = copies_of(Q_ptr, 64, 32)
    K_tiles = copies_of(K_ptr, 64, 32)
    V_tiles = copies_of(V_ptr, 64, 32)
    v_tiles = numbers_of(v_ptr, n_q, 64)
    L_tiles = numbers_of(L_ptr, n_q, 64)
    if not 0 < n_k <= 128:
        raise ValueError("these kernels are for 1 to 128 keys")
    tiles, whole = triton.cdiv(n_q, 64), R + 10
    groups = max(torch.cuda.get_device_properties(device).multi_processor_count // tiles, 1)
    each = max(triton.cdiv(heads * whole, groups), 11)
    if heads <= groups and triton.cdiv(R, groups // heads) <= each + 2:
        each = triton.cdiv(R, groups // heads)
        whole = triton.cdiv(R, each) * each
    all_of_them = heads * whole
    parts = triton.cdiv(whole - 1, each) + (each % whole > 0) if whole % each else whole // each
    if dB_ptr.shape[1] < parts:
        raise ValueError("dB has no room for the parts of these sequences")
    dQ_dB[(tiles, triton.cdiv(all_of_them, each))](dO_tiles, Q_tiles, K_tiles, V_tiles, v_tiles, L_tiles, bias_ptr, dQ_ptr, dB_ptr, R, n_q, n_k, each, all_of_them, whole, own, bias_batch, bias_head, bias_row, bias_several, bias_within, dQ_batch, dQ_head, dQ_row, dQ_copy, dB_batch, dB_head, dB_row, dB_copy, num_warps=4)
    return {"dQ": dQ_ptr, "dB": dB_ptr}
