"""What warpgroups of the kernels with a bias wait for: other forms of their texts, timed one after the other.

    python benchmarks/gpu/bias_forms.py -o FILE [--only o,ot] [--time-limit 60]

Texts are those of `attention` for 4 heads of 384 tokens and 512 sequences on a Hopper card: "o" for O and L, "c" for dK
and dV, and "q" for dQ and dB. Behind this letter: "t", warpgroups take turns at exponentials; "a", blocks that read the
same sequences read them at other times; "h", a tile in two halves, of which the exponentials of one run beside the
products of the other; "4", four warpgroups in tiles of 64 or, of dK and dV, 32 rows; "v", v is computed in the kernel
of dQ and dB, or is in three words of 16 bits that dK and dV have as more terms of a product. A row has the median and
the least microseconds of a call, and how far results are from those of the first form. Rows that are in the file are
left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from resumed import add, known

from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.operator.bias import programs
from pebblesim.operator.bias.programs import Kernels, Tiling

HEADS, N, R, D = 4, 384, 512, 32
AT_A_TIME = 12
"""Forms that are compiled at a time."""

TILE = "tile_{0} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {0}, 16]))\n"
ROWS_64 = (
    "rows_64 = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4], [0, 32], [8, 0]], "
    "[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 64]))\n"
)
SCALE = D**-0.5


def emitted(which: str, groups: int = 3, rows: int = 0) -> str:
    """The text of a kernel of `attention`, for so many warpgroups, in tiles of so many rows that stream."""
    at = {"o": programs.FORWARD, "c": programs.ACROSS, "q": programs.AT_ONCE, "qv": programs.WITH_V}[which]
    made = programs.at_once(N) if which[0] == "q" else programs.STAYING[at]
    if rows:
        blocks = dict(zip(made.tiling.blocks, (64, rows), strict=True))
        made = Kernels(Tiling(made.tiling.schedule, blocks, 4, 3, gluon=True), groups)
    sizes = {"n_q": 2**14, "n_k": 2**14, "d_k": D, "d_v": D, **made.tiling.blocks, SEQUENCES: max(2, made.sequences)}
    sizes["n_q" if which == "c" else "n_k"] = N
    stages, together = made.tiling.stages, made.sequences
    return gluon(programs.program(at, made), sizes, scale=SCALE, stages=stages, shared=1, streams=together).text


def changed(text: str, old: str, new: str) -> str:
    """A text with something else at the first place where something is."""
    if old not in text:
        raise ValueError(f"the text has no {old!r}: the kernel is another one")
    return text.replace(old, new, 1)


LOW, HIGH = "gl.maximum(begin - matrix * several, 0)", "gl.minimum(end - matrix * several, several)"


def apart(text: str) -> str:
    """Blocks of the same part begin at different sequences."""
    number = f"{LOW} + (r - {LOW} + gl.program_id(0) * 15) % ({HIGH} - {LOW})"
    return text.replace("batch = group * several + r\n", f"batch = group * several + {number}\n")


def in_turn(text: str, name: str, before: str, behind: str, tiles: int, groups: int = 3) -> str:
    """A turn at exponentials is taken in front of a line that begins so, and passed on behind another one."""
    take = "mbarrier.wait(turns.index(w), (taken & 1) ^ (w == 0))\n"
    give = f"mbarrier.arrive(turns.index((w + 1) % {groups}), count=1)\n", "taken += 1\n"
    role = f"def {name}_rows(w: gl.constexpr, "
    made = changed(text, role, role + "turns, ")
    for w in range(groups):
        made = changed(made, f"({name}_rows, ({w}, ", f"({name}_rows, ({w}, turns, ")
    made = changed(made, "    gl.warp_specialize([", f"    turns = barriers({groups}, 1)\n    gl.warp_specialize([")
    start = made.index(role)
    end = made.index("@gluon.jit", start)
    lines: list[str] = []
    for line in made[start:end].splitlines(keepends=True):
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith(before):
            lines.append(indent + take)
        elif line.lstrip().startswith("mbarrier.arrive(bias_"):  # those without a sequence pass their turns on
            number = f"{HIGH} - {LOW}"
            mine = f"gl.cdiv(gl.maximum({number} - w, 0), {groups})"
            if "_free" in line:
                lines.append(f"{indent}for missed in range({tiles} * (gl.cdiv({number}, {groups}) - {mine})):\n")
                lines += [f"{indent}    {each}" for each in (take, *give)]
        lines.append(line)
        if line.lstrip().startswith("turn, filled = 0, 0"):
            lines.append(f"{indent}taken = 0\n")
        elif line.lstrip().startswith(behind):
            lines += [indent + each for each in give]
    return made[:start] + "".join(lines) + made[end:]


def in_tiles_of(text: str, room: str, before: int, side: int) -> str:
    """Rows of the bias in tiles of fewer columns."""
    places = [(0, 1), (8, 0), (0, 2), (0, 4), (1, 0), (2, 0), (4, 0), (16, 0), (32, 0)]
    places += [(0, 1 << bit) for bit in range(3, side.bit_length() - 1)]
    order = f"order_{side} = gl.constexpr(gl.SharedLinearLayout({[list(each) for each in places]}))\n"
    layouts = {"tile": TILE.format(side), "rows": ROWS_64}
    new = "".join(layout for name, layout in layouts.items() if f"{name}_{side} =" not in text)
    made = changed(text, "rows_32 = gl.const", new + order + "rows_32 = gl.const")
    for old, new in (
        (f"for tile in range(w, {N // before}, 3):", f"for tile in range(w, {N // side}, 3):"),
        (f"* {before} + gl.arange(0, {before}, gl.SliceLayout(0, rows_{before}))",
         f"* {side} + gl.arange(0, {side}, gl.SliceLayout(0, rows_{side}))"),
        (f"[{N // before}, 64, {before}], order_{before})", f"[{N // side}, 64, {side}], order_{side})"),
        (f"SliceLayout(1, rows_{before})", f"SliceLayout(1, rows_{side})"),
        (f"SliceLayout(1, tile_{before})", f"SliceLayout(1, tile_{side})"),
        (f"DotOperandLayout(0, tile_{before}, 2)", f"DotOperandLayout(0, tile_{side}, 2)"),
    ):  # fmt: skip
        made = made.replace(old, new)
    return made


def with_body(text: str, first: str, behind: str, body: list[str]) -> str:
    """A text with other lines in a loop, from one that begins so up to another one."""
    indent = " " * 16
    start = text.index(indent + first)
    end = text.index(indent + behind, start)
    return text[:start] + "".join(f"{indent}{line}\n" for line in body) + text[end:]


TO_BASE_2 = 0.25503486164919736
"""The scale times the logarithm of e to base 2."""

P_16 = "P_16_{0} = gl.convert_layout(P_{0}.to(gl.bfloat16), gl.DotOperandLayout(0, tile_32, 2))"


def halves_of_queries(text: str) -> str:
    """O and L, whose tiles of 128 keys are in two halves."""
    body = ["K, V = K_j.index(slot).reshape([128, 32]), V_j.index(slot).reshape([128, 32])"]
    for h in (0, 1):
        bias = f"bias_rows.index(2 * j + {h}).load(tile_64)"
        body.append(f"P_{h} = warpgroup_mma(Q_i_16, K.slice({64 * h}, 64).permute((1, 0)), {bias}, is_async=True)")
    for h in (0, 1):
        body += [f"P_{h} = warpgroup_mma_wait({1 - h}, deps=(P_{h},))", f"most_{h} = gl.max(P_{h}, axis=1)"]
    body += [
        f"m_new = gl.maximum(m_i, gl.maximum(most_0, most_1) * {TO_BASE_2})",
        "m_i = gl.exp2(gl.where(m_i == m_new, 0.0, m_i - m_new))",
        "O_i = gl.convert_layout(m_i, gl.SliceLayout(1, tile_32))[:, None] * O_i",
        'less = gl.where(m_new != float("-inf"), m_new, 0.0)[:, None]',
    ]
    for h in (0, 1):
        product = f"O_i = warpgroup_mma(P_16_{h}, V.slice({64 * h}, 64), O_i, is_async=True)"
        body += [f"P_{h} = gl.exp2(P_{h} * {TO_BASE_2} - less)", P_16.format(h), product]
    body += ["l_i = m_i * l_i + gl.sum(P_0, axis=1) + gl.sum(P_1, axis=1)", "m_i = m_new"]
    body.append("O_i, P_16_0, P_16_1 = warpgroup_mma_wait(0, deps=(O_i, P_16_0, P_16_1))")
    return with_body(in_tiles_of(text, "bias_rows", 128, 64), "P = warpgroup_mma(Q_i_16", "mbarrier.arrive(K_j_", body)


def halves_of_keys(text: str) -> str:
    """dK and dV, whose tiles of 64 queries are in two halves."""
    body = ["Q, dO = Q_i.index(slot).reshape([64, 32]), dO_i.index(slot).reshape([64, 32])"]
    layout = "gl.SliceLayout(0, tile_32)"
    for name in ("L", "v"):
        part = f"{name}_i_ring.index(slot).reshape([64])"
        body += [f"{name}_{h} = {part}.slice({32 * h}, 32).load({layout})" for h in (0, 1)]
    for h in (0, 1):
        bias = f"bias_T_rows.index(2 * i + {h}).load(tile_32)"
        body.append(f"P_{h} = warpgroup_mma(K_j_16, Q.slice({32 * h}, 32).permute((1, 0)), {bias}, is_async=True)")
    for h in (0, 1):
        zeros = "gl.zeros([64, 32], gl.float32, tile_32), use_acc=False"
        body.append(f"dS_{h} = warpgroup_mma(V_j_16, dO.slice({32 * h}, 32).permute((1, 0)), {zeros}, is_async=True)")
    for h in (0, 1):
        exponentials = f"P_{h} = gl.exp2(P_{h} * {TO_BASE_2} - L_{h}[None, :])"
        product = f"dV_j = warpgroup_mma(P_16_{h}, dO.slice({32 * h}, 32), dV_j, is_async=True)"
        body += [f"P_{h} = warpgroup_mma_wait(3, deps=(P_{h},))", exponentials, P_16.format(h), product]
    for h in (0, 1):
        product = f"dK_j = warpgroup_mma(dS_16_{h}, Q.slice({32 * h}, 32), dK_j, is_async=True)"
        body += [f"dS_{h} = warpgroup_mma_wait(2, deps=(dS_{h},))", f"dS_{h} = P_{h} * (dS_{h} - v_{h}[None, :])"]
        body += [P_16.format(h).replace("P_", "dS_"), product]
    kept = "dV_j, P_16_0, P_16_1, dK_j, dS_16_0, dS_16_1"
    body.append(f"{kept} = warpgroup_mma_wait(0, deps=({kept}))")
    return with_body(in_tiles_of(text, "bias_T_rows", 64, 32), "L_i = L_i_ring", "mbarrier.arrive(Q_i_", body)


def with_terms_of_v(text: str) -> str:
    """dK and dV, with v in three words of 16 bits each that are more terms of dO Vᵀ: it is not subtracted behind it."""
    ring, tile = "v_i_ring.index(slot).reshape([64{}])", "gl.SliceLayout(0, tile_64)"
    product = "dS = warpgroup_mma({}, {}.permute((1, 0)), {}, is_async=True)"
    zeros = "gl.zeros([64, 64], gl.float32, tile_64), use_acc=False"
    of_dO = "V_j_16", "dO_i.index(slot).reshape([64, 32])"
    terms = product.format("less", ring.format(", 16"), zeros)
    less = "less = gl.full([64, 16], -1.0, gl.bfloat16, gl.DotOperandLayout(0, tile_64, 2))"
    for old, new in (
        ("gl.float32, [9, 1, 64], v_tiles.layout", "gl.bfloat16, [9, 1, 1, 64, 16], v_tiles.layout"),
        ("vectors_of(v_ptr, n_q, 64)", "tiles_of(v_ptr, 64, 16)"),
        ("shared(v_tiles, [head, i * 64],", "shared(v_tiles, [batch, key_head, i * 64, 0],"),
        ("Q_i_full.index(slot), 8704)", "Q_i_full.index(slot), 10496)"),
        (f"                v_i = {ring.format('')}.load({tile})\n", ""),
        (product.format(*of_dO, zeros), f"{terms}\n{' ' * 16}{product.format(*of_dO, 'dS')}"),
        ("P = warpgroup_mma_wait(1, deps=(P,))", "P = warpgroup_mma_wait(2, deps=(P,))"),
        ("dS = P * (dS - v_i[None, :])", "dS = P * dS"),
        ("            fence_async_shared()\n            mbarrier.arrive(K_j_free",
         f"            {less}\n            fence_async_shared()\n            mbarrier.arrive(K_j_free"),
    ):  # fmt: skip
        text = changed(text, old, new)
    return text


def forms() -> dict[str, str]:
    """Texts by name."""
    o, c, q = (emitted(which) for which in "ocq")
    fours = emitted("o", 4, 64)
    names = "flash2_forward", "P = gl.exp2", "O_i = warpgroup_mma(P_16"
    of_keys = "dK_dV", "P = warpgroup_mma_wait(1", "dV_j = warpgroup_mma(P_16"
    return {
        "o": o,
        "oa": apart(o),
        "ot": in_turn(o, *names, N // 128),
        "oh": halves_of_queries(o),
        "o4": fours,
        "o4t": in_turn(fours, *names, N // 64, 4),
        "c": c,
        "ca": apart(c),
        "ct": in_turn(c, *of_keys, N // 64),
        "ch": halves_of_keys(c),
        "c4": emitted("c", 4, 32),
        "cv": with_terms_of_v(c),
        "q": q,
        "qv": emitted("qv"),
    }


class Layer:
    """The tensors of a layer, and what its kernels are called with."""

    def __init__(self, torch: Any, sequences: int = R) -> None:
        torch.manual_seed(0)

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        self.torch, self.sequences = torch, sequences
        self.Q, self.K, self.V, self.dO = (normal(sequences, HEADS, N, D) for _ in range(4))
        self.bias = normal(1, 1, HEADS, N, N)
        self.L = self.v = torch.zeros(sequences * HEADS, N, device="cuda")
        self.O = torch.zeros_like(self.Q)
        units = torch.cuda.get_device_properties("cuda").multi_processor_count
        self.parts = programs.parts_at_once(N, sequences, HEADS, units).most

    def call(self, module: Any, which: str) -> Callable[[], dict[str, Any]]:
        """A launch of a kernel, that returns its results."""
        torch, like, (Q, K, V, dO) = self.torch, self.torch.empty_like, (self.Q, self.K, self.V, self.dO)
        if which[0] == "o":
            bias = self.bias.expand(-1, self.sequences, -1, -1, -1)
            return lambda: module.run(Q, K, V, bias, results={"O": like(Q)})
        if which[0] == "c":
            across = self.bias.mT.contiguous().expand(-1, self.sequences, -1, -1, -1)
            v = self.terms() if which == "cv" else self.v
            return lambda: module.run(Q, K, V, dO, self.L, across, v, results={"dK": like(K), "dV": like(V)})
        dB = torch.zeros(1, self.parts, HEADS, N, N, device="cuda")
        groups = [x[None] for x in (Q, K, V, dO)]
        results = {"dQ": like(groups[0]), "dB": dB}
        if which == "qv":
            return lambda: module.run(*groups, self.O[None], self.L, self.bias, results=results)
        return lambda: module.run(*groups, self.L, self.bias, self.v, results=results)

    def terms(self) -> Any:
        """v in three words of 16 bits, whose sum it is, among 16 of each row."""
        made, left = self.torch.zeros(*self.Q.shape[:3], 16, device="cuda", dtype=self.Q.dtype), self.v
        for column in range(3):
            word = left.to(self.Q.dtype)
            made[..., column], left = word.view(made.shape[:3]), left - word.float()
        return made


def loaded(name: str, text: str, folder: Path) -> Any:
    """The module of a text."""
    path = folder / f"form_{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


def timed(torch: Any, call: Callable[[], Any]) -> list[float]:
    """Microseconds of a call, the median of 25 and the least, each of four calls in a graph."""
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
        times.append(round(begin.elapsed_time(end) * 250, 1))
    return [sorted(times)[12], min(times)]


def rows(torch: Any, names: list[str], texts: dict[str, str], folder: Path) -> Any:
    """Yield the row of each form."""
    layer, whole = Layer(torch), dict[str, dict[str, Any]]()
    made = layer.call(loaded("o", texts["o"], folder), "o")()
    layer.L, layer.O = made["L"], made["O"]
    layer.v = (layer.dO.float() * made["O"].float()).sum(-1).view(-1, N)
    for name in names:
        call = layer.call(loaded(name, texts[name], folder), name)
        found, apart_by = call(), {}
        for key, one in whole.setdefault(name[0], found).items():
            apart_by[key] = float(f"{((found[key].float() - one.float()).norm() / one.float().norm()).item():.2e}")
        yield {"form": name, "us": timed(torch, call), "apart": apart_by}


def compiled(names: list[str]) -> None:
    """Compile forms, several at a time, each in a process of its own."""
    left, running = [*names], list[Any]()
    while left or running:
        while left and len(running) < AT_A_TIME:
            command = [sys.executable, __file__, "-o", "-", "--only", left.pop(0), "--compile"]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        running = [each for each in running if each.poll() is None]
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--only", default="", help="names of forms, with commas between them")
    parser.add_argument("--compile", action="store_true", help="launch once for a few sequences, and time nothing")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds after which nothing new is begun")
    asked, texts = parser.parse_args(), forms()
    until = time.monotonic() + asked.time_limit
    import torch

    names = asked.only.split(",") if asked.only else [*texts]
    with TemporaryDirectory() as folder:
        if asked.compile:
            for name in names:
                Layer(torch, 8).call(loaded(name, texts[name], Path(folder)), name)()
            torch.cuda.synchronize()
            return
        names = [name for name in names if name not in known(asked.output, "form")]
        compiled([*{"o", *names}])
        add(asked.output, rows(torch, names, texts, Path(folder)), until)


if __name__ == "__main__":
    main()
