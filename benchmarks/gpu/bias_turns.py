"""What warpgroups of the kernels with a bias wait for: variants of their texts, timed one after the other.

    python benchmarks/gpu/bias_turns.py -o folder [--only o0,o4] [--time-limit 100]

Texts are those of `attention` for 4 heads of 384 tokens and 512 sequences, and changed ones: o for O and L, c for dK and
dV, q for dQ and dB. Rows go to `folder/turns.jsonl`, one a variant, and those that are there are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.operator.bias import programs
from pebblesim.operator.bias.programs import Kernels, Tiling

HEADS, N, R, D = 4, 384, 512, 32
LAYERS = {"": (4, 384, 512), "8": (16, 768, 64)}
AT_A_TIME = 15


def emitted(which: str, groups: int = 0, stay: int = 0, stream: int = 0, stages: int = 0, free: bool = True, n: int = N) -> str:
    """The text of a kernel of `attention`; `free`: its warpgroups do not take turns."""
    at = {"o": programs.FORWARD, "c": programs.ACROSS, "q": programs.AT_ONCE}[which]
    made = programs.at_once(N) if which == "q" else programs.STAYING[at]
    if which != "q":
        blocks = dict(zip(made.tiling.blocks, (stay, stream), strict=True))
        made = Kernels(Tiling(made.tiling.schedule, blocks, 4, stages, gluon=True), groups)
    lengths = [2**14] * 2
    lengths[0 if which == "c" else 1] = n
    sizes = {"n_q": lengths[0], "n_k": lengths[1], "d_k": D, "d_v": D, **made.tiling.blocks}
    sizes[SEQUENCES] = max(2, made.sequences)
    stages, together = made.tiling.stages, made.sequences
    program = programs.program(at, made)
    text = gluon(program, sizes, "bfloat16", None, scale=D**-0.5, stages=stages, shared=1, at_once=together).text
    name, product = ("flash2_forward", "O_i = warpgroup_mma(P_16") if which == "o" else ("dK_dV", "dV_j = warpgroup_mma(P_16")
    before = "P = gl.exp2" if which == "o" else "P = warpgroup_mma_wait(1"
    return text if free or which == "q" else turns(text, name, before, product, n // stream, groups, None)



def sub(text, old, new):
    assert old in text, old
    return text.replace(old, new, 1)


def turns(text, name, before, after, tiles, groups=3, running=0):
    """A turn taken in front of a line that begins with `before`, and passed behind one that begins with `after`."""
    t = text
    rows = f"def {name}_rows(w: gl.constexpr, "
    t = sub(t, rows, rows + "turns, ")
    for w in range(groups):
        t = sub(t, f"({name}_rows, ({w}, ", f"({name}_rows, ({w}, turns, ")
    t = sub(t, "    gl.warp_specialize([", f"    turns = barriers({groups}, 1)\n    gl.warp_specialize([")
    take = "mbarrier.wait(turns.index(w), (t & 1) ^ (w == 0))\n"
    give = f"mbarrier.arrive(turns.index((w + 1) % {groups}), count=1)\n"
    out, inside = [], False
    for line in t.splitlines(keepends=True):
        s = line.lstrip()
        ind = line[: len(line) - len(s)]
        if line.startswith(f"def {name}_rows"):
            inside = True
        elif line.startswith("@") or line.startswith("def"):
            inside = False
        if inside and s.startswith("turn, filled = 0, 0"):
            line = line + ind + "t = 0\n"
        if inside and s.startswith(before):
            out += [ind + take] + [ind + f"P = warpgroup_mma_wait({running}, deps=(P,))\n"] * (running is not None)
        out.append(line)
        if inside and s.startswith(after):
            out += [ind + give, ind + "t += 1\n"]
    t = "".join(out)
    f = re.search(r"( +)for r in range\((gl.maximum\(begin - matrix \* several, 0\)) \+ w, (gl.minimum\(end - matrix \* several, several\)), \d\):\n(            .*\n)+", t[t.index(rows):])
    start, ind = t.index(rows) + f.end(), f.group(1)
    skip = (f"{ind}low, high = {f.group(2)}, {f.group(3)}\n"
            f"{ind}for again_ in range({tiles} * (gl.cdiv(high - low, {groups}) - gl.cdiv(gl.maximum(high - low - w, 0), {groups}))):\n"
            f"{ind}    {take}{ind}    {give}{ind}    t += 1\n")
    return t[:start] + skip + t[start:]


def lazy_sum(text, T):
    """Row sums of a thread's own columns; added up among threads at the end."""
    shape = f"[64, {T // 8}, 4, 2]"
    t = sub(text, f"l_i = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, tile_{T}))", f"l_i = gl.sum(gl.sum(gl.full([64, {T}], 0.0, gl.float32, tile_{T}).reshape({shape}), axis=3), axis=1)")
    t = sub(t, "l_i = m_i * l_i\n", "l_i = gl.convert_layout(m_i, gl.SliceLayout(1, l_i.type.layout))[:, None] * l_i\n")
    t = sub(t, "l_i += gl.sum(P, axis=1)\n", f"l_i += gl.sum(gl.sum(P.reshape({shape}), axis=3), axis=1)\n")
    i = t.index("            O_i = O_i * gl.where(gl.convert_layout(l_i")
    return t[:i] + f"            l_i = gl.convert_layout(gl.sum(l_i, axis=1), gl.SliceLayout(1, tile_{T}))\n" + t[i:]


def tree(text, T):
    """The row's maximum by several chains."""
    return sub(text, "gl.max(P, axis=1)", f"gl.convert_layout(gl.max(gl.max(P.reshape([64, 4, {T // 4}]), axis=1), axis=1), gl.SliceLayout(1, tile_{T}))")


def pinned(text):
    """The maximum is there before what follows."""
    return sub(text, "                m_i = gl.exp2(gl.where(m_i == m_new", "                m_new = warpgroup_mma_wait(0, deps=(m_new,))\n                m_i = gl.exp2(gl.where(m_i == m_new")


NAMED = """
@gluon.jit
def turn_of(w: gl.constexpr, what: gl.constexpr, x):
    return gl.inline_asm_elementwise(what, "=f,=f,f,f", [x], dtype=gl.float32, is_pure=False, pack=2)

"""


def named(text, name, tile, groups=3):
    """Turns by named barriers in the place of those in shared memory."""
    vector = "tx"
    t = text.replace("\n@gluon.jit\ndef " + name + "_rows", NAMED + "@gluon.jit\ndef " + name + "_rows", 1)
    asm = lambda what, at: f'turn_of(w, "bar.{what} " + ("10" if {at} == 0 else "11" if {at} == 1 else "12" if {at} == 2 else "13") + ", 256; mov.b32 $0, $2; mov.b32 $1, $3;", {vector})'
    take, out = "mbarrier.wait(turns", []
    for line in t.splitlines(keepends=True):
        s = line.lstrip()
        ind = line[: len(line) - len(s)]
        if s.startswith("mbarrier.wait(turns"):
            line = f"{ind}{vector} = {asm('sync', 'w')}\n"
        elif s.startswith("mbarrier.arrive(turns"):
            at = re.match(r"mbarrier.arrive\(turns.index\((.*)\), count", s)[1]
            line = f"{ind}{vector} = {asm('arrive', '(' + at + ')')}\n"
        elif s.startswith("t = 0"):
            first, by = ("2", 0) if "(w + 2) % 3" in t else ("0", groups - 1)
            line = f"{ind}{vector} = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, {tile}))\n{ind}if w == {by}:\n{ind}    {vector} = {asm('arrive', first)}\n"
        elif s.startswith("t += 1"):
            continue
        out.append(line)
    return "".join(out)


def turns_of_tiles(q, order=-1, early=True):
    t = sub(q, "def dQ_dB_rows(w: gl.constexpr, ", "def dQ_dB_rows(w: gl.constexpr, turns, ")
    for w in range(3):
        t = sub(t, f"(dQ_dB_rows, ({w}, ", f"(dQ_dB_rows, ({w}, turns, ")
    t = sub(t, "    gl.warp_specialize([", "    turns = barriers(3, 1)\n    gl.warp_specialize([")
    first, step = (2, 2) if order < 0 else (0, 1)
    t = sub(t, "    for r in range(begin, end):\n        turn = r - begin\n        slot, phase = turn % 2, (turn // 2) & 1\n        mbarrier.wait(dO_i_full",
            "    t = 0\n    for r in range(begin, end):\n        turn = r - begin\n        slot, phase = turn % 2, (turn // 2) & 1\n        mbarrier.wait(dO_i_full")
    for e in ("", "_2", "_3", "_4"):
        line = next(x for x in t.splitlines(keepends=True) if re.match(rf"        (.*, )?P{e} = warpgroup_mma_wait\(1", x))
        t = sub(t, line, f"        mbarrier.wait(turns.index(w), (t & 1) ^ (w == {first}))\n{line}")
        give = f"        mbarrier.arrive(turns.index((w + {step}) % 3), count=1)\n        t += 1\n"
        if early:
            t = sub(t, f"        dS{e} = warpgroup_mma_wait(0, deps=(dS{e},))\n", f"        dS{e}, P{e} = warpgroup_mma_wait(0, deps=(dS{e}, P{e}))\n{give}")
        else:
            line = next(x for x in t.splitlines(keepends=True) if x.startswith(f"        dQ_i = warpgroup_mma(dS_16{e},"))
            t = sub(t, line, line + give)
    return t


def freed_once(q):
    """The first warpgroup alone frees a slot: it has the parts of the others, who are then done with it."""
    t = sub(q, "    dO_i_free = barriers(2, 3)", "    dO_i_free = barriers(2, 1)")
    gives = "            mbarrier.arrive(dO_i_free.index(slot), count=1)\n"
    t = sub(t, gives, "")
    first = "                mbarrier.arrive(dQ_part_full.index(0), count=1)\n"
    return sub(t, first, first + "    " + gives)


def synced(q):
    """Threads wait for each other in front of the loop, and not in each iteration, before they read the bias."""
    loop = "        for r in range(first, behind):\n            slot, phase = turn % 2, (turn // 2) & 1\n            mbarrier.wait(dO_i_full"
    return sub(q, loop, "        gl.thread_barrier()\n" + loop)


def early(c, *vectors):
    """Vectors loaded in front of the products."""
    t = c
    product = "                P = warpgroup_mma(K_j_16"
    for name in vectors:
        (line,) = [x for x in t.splitlines(keepends=True) if x.startswith(f"                {name} = {name}_ring")]
        t = sub(t, line, "")
        t = sub(t, product, line + product)
    return t


def apart(text):
    """Tiles of a part begin at different sequences, so that no block reads what another one has just read."""
    low, high = "gl.maximum(begin - matrix * several, 0)", "gl.minimum(end - matrix * several, several)"
    new = f"batch = group * several + {low} + (r - {low} + gl.program_id(0) * 15) % ({high} - {low})\n"
    return text.replace("batch = group * several + r\n", new)


def layouts(text, side):
    """With the layouts of tiles of so many columns."""
    from pebblesim.kernels.gluon.gradients import _as_in_registers
    from pebblesim.kernels.terms import text as printed

    known = f"tile_{side} = gl.constexpr" in text, f"order_{side} = gl.constexpr" in text
    tile = f"tile_{side} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {side}, 16]))\n"
    order = f"order_{side} = gl.constexpr(gl.SharedLinearLayout({printed(_as_in_registers(side))}))\n"
    return text.replace("rows_32 = gl.const", tile * (not known[0]) + order * (not known[1]) + "rows_32 = gl.const", 1)


def kept_in(text, room, before, side):
    """Rows of the bias in tiles of fewer columns."""
    t, number = layouts(text, side), 384 // side
    t = t.replace(f"for tile in range(w, {384 // before}, 3):", f"for tile in range(w, {number}, 3):")
    t = t.replace(f"tile * {before} + gl.arange(0, {before}, gl.SliceLayout(0, tile_{before}))", f"tile * {side} + gl.arange(0, {side}, gl.SliceLayout(0, tile_{side}))")
    t = t.replace(f"{room} = gl.allocate_shared_memory(gl.float32, [{384 // before}, 64, {before}], order_{before})", f"{room} = gl.allocate_shared_memory(gl.float32, [{number}, 64, {side}], order_{side})")
    t = t.replace(f"SliceLayout(1, tile_{before})", f"SliceLayout(1, tile_{side})").replace(f"DotOperandLayout(0, tile_{before}, 2)", f"DotOperandLayout(0, tile_{side}, 2)")
    return t


def halves_of_O(o):
    """A tile in two halves: the product with V of one runs beside the exponentials of the other."""
    t = kept_in(o, "bias_rows", 128, 64)
    a = t.index("                P = warpgroup_mma(Q_i_16")
    b = t.index("                mbarrier.arrive(K_j_free", a)
    body = """K = K_j.index(slot).reshape([128, 32])
V = V_j.index(slot).reshape([128, 32])
P = warpgroup_mma(Q_i_16, K.slice(0, 64).permute((1, 0)), bias_rows.index(2 * j).load(tile_64), is_async=True)
P_2 = warpgroup_mma(Q_i_16, K.slice(64, 64).permute((1, 0)), bias_rows.index(2 * j + 1).load(tile_64), is_async=True)
P = warpgroup_mma_wait(1, deps=(P,))
m_new = gl.max(P, axis=1)
P_2 = warpgroup_mma_wait(0, deps=(P_2,))
m_new = gl.maximum(m_new, gl.max(P_2, axis=1)) * 0.25503486164919736
m_new = gl.maximum(m_i, m_new)
m_i = gl.exp2(gl.where(m_i == m_new, 0.0, m_i - m_new))
less = gl.where(m_new != float("-inf"), m_new, 0.0)
P = gl.exp2(P * 0.25503486164919736 - less[:, None])
O_i = gl.convert_layout(m_i, gl.SliceLayout(1, tile_32))[:, None] * O_i
P_16 = gl.convert_layout(P.to(gl.bfloat16), gl.DotOperandLayout(0, tile_32, 2))
O_i = warpgroup_mma(P_16, V.slice(0, 64), O_i, is_async=True)
P_2 = gl.exp2(P_2 * 0.25503486164919736 - less[:, None])
l_i = m_i * l_i
l_i += gl.sum(P, axis=1)
l_i += gl.sum(P_2, axis=1)
m_i = m_new
P_16_2 = gl.convert_layout(P_2.to(gl.bfloat16), gl.DotOperandLayout(0, tile_32, 2))
O_i = warpgroup_mma(P_16_2, V.slice(64, 64), O_i, is_async=True)
O_i, P_16, P_16_2 = warpgroup_mma_wait(0, deps=(O_i, P_16, P_16_2))
"""
    return t[:a] + "".join(f"                {line}\n" for line in body.splitlines()) + t[b:]


def joined(oh):
    """Maxima and sums of both halves at once."""
    t = sub(oh, "                m_new = gl.max(P, axis=1)\n", "")
    t = sub(t, "gl.maximum(m_new, gl.max(P_2, axis=1))", "gl.max(gl.maximum(P, P_2), axis=1)")
    t = sub(t, "                l_i += gl.sum(P, axis=1)\n", "")
    return sub(t, "l_i += gl.sum(P_2, axis=1)", "l_i += gl.sum(P + P_2, axis=1)")


def halves_of_keys(c, early=True):
    """A tile in two halves: their products run beside exponentials, and beside dS."""
    t = kept_in(c, "bias_T_rows", 64, 32)
    a = t.index("                P = warpgroup_mma(K_j_16")
    b = t.index("                mbarrier.arrive(Q_i_free", a)
    vectors = lambda x: [f"{x}_{h} = {x}_i_ring.index(slot).reshape([64]).slice({32 * h}, 32).load(gl.SliceLayout(0, tile_32))" for h in (0, 1)]
    body = ["Q = Q_i.index(slot).reshape([64, 32])", "dO = dO_i.index(slot).reshape([64, 32])"]
    body += vectors("L")
    for h in (0, 1):
        body.append(f"P_{h} = warpgroup_mma(K_j_16, Q.slice({32 * h}, 32).permute((1, 0)), bias_T_rows.index(2 * i + {h}).load(tile_32), is_async=True)")
    for h in (0, 1):
        body.append(f"dS_{h} = warpgroup_mma(V_j_16, dO.slice({32 * h}, 32).permute((1, 0)), gl.zeros([64, 32], gl.float32, tile_32), use_acc=False, is_async=True)")
    for h in (0, 1):
        body.append(f"P_{h} = warpgroup_mma_wait(3, deps=(P_{h},))")
        body.append(f"P_{h} = gl.exp2(P_{h} * 0.25503486164919736 - L_{h}[None, :])")
        body.append(f"P_16_{h} = gl.convert_layout(P_{h}.to(gl.bfloat16), gl.DotOperandLayout(0, tile_32, 2))")
        body.append(f"dV_j = warpgroup_mma(P_16_{h}, dO.slice({32 * h}, 32), dV_j, is_async=True)")
    body += vectors("v")
    for h in (0, 1):
        body.append(f"dS_{h} = warpgroup_mma_wait(2, deps=(dS_{h},))")
        body.append(f"dS_{h} = P_{h} * (dS_{h} - v_{h}[None, :])")
        body.append(f"dS_16_{h} = gl.convert_layout(dS_{h}.to(gl.bfloat16), gl.DotOperandLayout(0, tile_32, 2))")
        body.append(f"dK_j = warpgroup_mma(dS_16_{h}, Q.slice({32 * h}, 32), dK_j, is_async=True)")
    body.append("dV_j, P_16_0, P_16_1, dK_j, dS_16_0, dS_16_1 = warpgroup_mma_wait(0, deps=(dV_j, P_16_0, P_16_1, dK_j, dS_16_0, dS_16_1))")
    return t[:a] + "".join(f"                {line}\n" for line in body) + t[b:]


def variants(emit):
    """Texts by name: "o", "c" or "q", and behind it what it is; with "8", for 768 tokens, 16 heads and 64 sequences."""
    v = {}
    for at, n in (("", 384), ("8", 768)):
        def of(which, *how, turns=False, n=n):
            return emit(which, *how, free=not turns, n=n)
        v[f"o{at}"], v[f"o{at}t"] = of("o", 3, 64, 128, 2), of("o", 3, 64, 128, 2, turns=True)
        v[f"c{at}"], v[f"c{at}t"] = of("c", 3, 64, 64, 3), of("c", 3, 64, 64, 3, turns=True)
        v[f"o{at}l"] = lazy_sum(tree(v[f"o{at}"], 128), 128)
        v[f"o{at}lt"] = lazy_sum(tree(v[f"o{at}t"], 128), 128)
        for name, how in (("4x64", (4, 64, 64, 3)), ("3x64", (3, 64, 64, 3)), ("2x128", (2, 64, 128, 3))):
            v[f"o{at}_{name}"] = of("o", *how)
            if at == "":
                v[f"o_{name}t"] = of("o", *how, turns=True)
        for name, how in (("2x128", (2, 64, 128, 2)), ("2x64", (2, 64, 64, 4)), ("4x32", (4, 64, 32, 4)), ("3x64s2", (3, 64, 64, 2))):
            v[f"c{at}_{name}"] = of("c", *how)
        v[f"c{at}_2x128t"] = of("c", 2, 64, 128, 2, turns=True)
        v[f"c{at}f"] = sub(v[f"c{at}"], "                mbarrier.arrive(Q_i_free", "                fence_async_shared()\n                mbarrier.arrive(Q_i_free")
    v["cl"], v["ce"] = early(v["c"], "L_i"), early(v["c"], "L_i", "v_i")
    v["ctl"], v["cte"] = early(v["ct"], "L_i"), early(v["ct"], "L_i", "v_i")
    v["oa"], v["ca"], v["ola"] = apart(v["o"]), apart(v["c"]), apart(v["ol"])
    v["oh"], v["ch"] = halves_of_O(v["o"]), halves_of_keys(v["c"])
    v["ohj"] = joined(v["oh"])
    q = emit("q")
    v["q"], v["qf"], v["qs"], v["qfs"] = q, freed_once(q), synced(q), synced(freed_once(q))
    return v


class Layer:
    """Inputs of the layer, and what its kernels are called with."""

    def __init__(self, torch: Any, heads: int = HEADS, n: int = N, sequences: int = R) -> None:
        torch.manual_seed(0)
        make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        self.Q, self.K, self.V, self.dO = (make(sequences, heads, n, D) for _ in range(4))
        self.bias = make(1, 1, heads, n, n).expand(1, sequences, heads, n, n)
        self.bias_T = self.bias[:, :1].mT.contiguous().expand(1, sequences, heads, n, n)
        units = torch.cuda.get_device_properties("cuda").multi_processor_count
        self.torch, self.parts = torch, programs.parts_at_once(n, sequences, heads, units).most
        self.L = self.v = None

    def given(self, which: str) -> tuple[list[Any], dict[str, Any]]:
        torch, of = self.torch, self.torch.empty_like
        if which == "o":
            return [self.Q, self.K, self.V, self.bias], {"O": of(self.Q)}
        if which == "c":
            results = {"dK": of(self.K), "dV": of(self.V)}
            return [self.Q, self.K, self.V, self.dO, self.L, self.bias_T, self.v], results
        Q, K, V, dO, dQ = (x.unsqueeze(0) for x in (self.Q, self.K, self.V, self.dO, of(self.Q)))
        heads, n = self.Q.shape[1:3]
        dB = torch.zeros(1, self.parts, heads, n, n, device="cuda", dtype=torch.float32)
        return [Q, K, V, dO, self.L, self.bias[:, :1], self.v], {"dQ": dQ, "dB": dB}

    def run(self, module: Any, which: str) -> tuple[Any, dict[str, Any]]:
        taken, results = self.given(which)
        return (lambda: module.run(*taken, results=results)), results


def loaded(name: str, text: str, folder: Path) -> Any:
    path = folder / f"turns_{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


def usual(torch: Any, at: str, texts: dict[str, str], folder: Path) -> tuple[Layer, dict[str, dict[str, Any]]]:
    """A layer with L and v, and the results that variants are to have."""
    heads, n, sequences = LAYERS[at]
    layer, whole = Layer(torch, heads, n, sequences), {}
    made = layer.run(loaded(f"o{at}", texts[f"o{at}"], folder), "o")[0]()
    layer.L = made["L"]
    layer.v = (layer.dO.float() * made["O"].float()).sum(-1).reshape(-1, layer.Q.shape[2]).contiguous()
    whole["o"] = made
    for which in "cq" if at == "" else "c":
        whole[which] = layer.run(loaded(f"{which}{at}", texts[f"{which}{at}"], folder), which)[0]()
    return layer, whole


def timed(torch: Any, call: Any) -> list[float]:
    """Microseconds of a call, the median of 25 in a graph of 4 and the least; inputs are larger than the L2 cache."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            call()
    times = []
    for _ in range(25):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 250)
    times.sort()
    return [round(times[len(times) // 2], 1), round(times[0], 1)]


def row(torch: Any, name: str, text: str, folder: Path, layer: Layer, whole: dict[str, dict[str, Any]]) -> dict[str, Any]:
    call, _ = layer.run(loaded(name, text, folder), name[0])
    found = call()
    torch.cuda.synchronize()
    apart, same = {}, True
    for key, one in whole[name[0]].items():
        finite = one.isfinite()
        difference = (found[key].float() - one.float())[finite].norm() / one.float()[finite].norm()
        apart[key] = float(f"{difference.item():.2e}")
        same = same and torch.equal(found[key], one)
    again = call()
    stable = all(torch.equal(again[key], found[key]) for key in found)
    return {"variant": name, "us": timed(torch, call), "same": same, "stable": stable, "apart": apart}


def warmed(names: list[str], folder: Path) -> None:
    """Compile variants, several at a time, each in a process of its own."""
    left, running = [*names], list[Any]()
    while left or running:
        while left and len(running) < AT_A_TIME:
            command = [sys.executable, __file__, "-o", str(folder), "--only", left.pop(0), "--compile"]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        running = [each for each in running if each.poll() is None]
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true", help="compile only, by one launch")
    parser.add_argument("--once", action="store_true", help="launch each once, for Nsight Compute")
    parser.add_argument("--time-limit", type=float, default=100.0)
    asked, began = parser.parse_args(), time.monotonic()
    asked.output.mkdir(parents=True, exist_ok=True)
    texts = variants(emitted)
    names = asked.only.split(",") if asked.only else [*texts]
    import torch

    if asked.compile:
        for name in names:
            heads, n, _ = LAYERS["8" if name[1:2] == "8" else ""]
            layer = Layer(torch, heads, n, 8)
            layer.L = layer.v = torch.zeros(8 * heads, n, device="cuda")
            layer.run(loaded(f"{name}_warm", texts[name], asked.output), name[0])[0]()
        torch.cuda.synchronize()
        return
    path = asked.output / "turns.jsonl"
    done = {json.loads(line)["variant"] for line in path.read_text().splitlines()} if path.exists() else set()
    names = [name for name in names if asked.once or name not in done]
    names.sort(key=lambda name: name[1:2] == "8")
    if not asked.once:
        warmed([*{*names, "o", "c", "q", "o8", "c8"}], asked.output)
    print(f"{time.monotonic() - began:6.1f} s compiled", flush=True)
    of_layers = {}
    if asked.once:
        for name in names:
            at = "8" if name[1:2] == "8" else ""
            of_layers.setdefault(at, None)
            if of_layers[at] is None:
                of_layers[at] = usual(torch, at, texts, asked.output)
            of_layers[at][0].run(loaded(name, texts[name], asked.output), name[0])[0]()
            torch.cuda.synchronize()
        return
    for name in names:
        try:
            at = "8" if name[1:2] == "8" else ""
            if at not in of_layers:
                of_layers[at] = usual(torch, at, texts, asked.output)
            layer, whole = of_layers[at]
            made = row(torch, name, texts[name], asked.output, layer, whole)
        except Exception as error:  # a variant that does not run is a row, too
            made = {"variant": name, "error": str(error)[-300:]}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(made) + "\n")
        print(f"{time.monotonic() - began:6.1f} s", made, flush=True)
        if time.monotonic() - began > asked.time_limit:
            return


if __name__ == "__main__":
    main()
