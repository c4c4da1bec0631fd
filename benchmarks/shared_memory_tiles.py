"""Words between shared memory and registers for 128 x 128 pairs of query and key, by tile, d = 128: counts, a picture.

    python benchmarks/shared_memory_tiles.py -o docs/pictures/shared-memory.png

A row is a schedule with its products inside the registers of one multiprocessor; what crosses is given in tiles of
128 x 128 words. The bounds are for 65,536 words, the accumulators of 256 KiB. The last row is FlashAttention-4's tile
of its backward pass (arXiv 2603.05451) as we understand it: dS goes through shared memory for dQ, and so does dQ
itself, in float32, which memory adds. All that its shared memory moves is counted there, in words of 16 bits.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pebblesim as ps
from pebblesim import Block, exp
from pebblesim.analysis.count import count
from pebblesim.language.problems import problem
from pebblesim.language.registry import Schedule
from pebblesim.lower_bounds.bounds import best
from pebblesim.machines.machine import Level, Machine
from pebblesim.views.plots.style import COLOURS, HATCHES, save

N, D, M = 65536, 128, 65536
PLACE = Machine("a multiprocessor", "L2", (Level("shared memory", 2**40), Level("registers", 2**40)))
FORWARD = ("P", "O_i", "l_i", "m_i", "m_new")
BACKWARD = ("P", "dS", "dK_j", "dV_j")
ROWS = ("Q_i", "dO_i", "K_j", "V_j")


def flash4_backward_tile(m, Q, K, V, dO, O, L, *, B_r: Block, B_c: Block):
    """dS is in registers for dK, and its copy in shared memory for dQ: a tensor, whose words beyond do not count."""
    (n_q, d), (n_k, _) = Q.shape, V.shape
    v, dQ, dK, dV = m.tensor("v", n_q), m.tensor("dQ", n_q, d), m.tensor("dK", n_k, d), m.tensor("dV", n_k, d)
    copies = m.tensor("copies", n_q, n_k)
    m.write(dQ, 0)
    for i in m.tiles(n_q, B_r):
        D_i = m.read(dO[i, :])
        O_i = m.read(O[i, :])
        v_i = m.compute(ps.rowsum(D_i * O_i))
        m.write(v[i], v_i)
    for j in m.tiles(n_k, B_c):
        K_j, V_j, dK_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d), m.zeros(j, d)
        for i in m.tiles(n_q, B_r):
            Q_i, dO_i, L_i, v_i = m.read(Q[i, :]), m.read(dO[i, :]), m.read(L[i]), m.read(v[i])
            P, dS = m.compute(Q_i @ K_j.T), m.compute(dO_i @ V_j.T)
            P[:] = exp(P - L_i)
            dV_j += P.T @ dO_i
            dS[:] = P * (dS - v_i)
            m.delete(P)
            m.write(copies[i, j], dS)
            dK_j += dS.T @ Q_i
            m.delete(dS)
            copy = m.read(copies[i, j])
            m.add(dQ[i, :], copy @ K_j)
        m.write(dK[j, :], dK_j)
        m.write(dV[j, :], dV_j)


class Row(NamedTuple):
    """A bar: its label, and tiles of words by what they are."""

    label: str
    schedule: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


FLASH4 = Schedule(
    "flash4-backward-tile",
    problem("backward-qkv"),
    "FlashAttention-4's tile, as we understand arXiv 2603.05451",
    flash4_backward_tile,
    ("Q", "K", "V", "dO", "O", "L"),
    ("B_r", "B_c"),
)
"""Not registered: it is a tile, and no way to compute the gradients with a small cache."""

CASES: tuple[tuple[str, str, tuple[str, ...], dict[str, int]], ...] = (
    (
        "forward: FlashAttention-2, 128 x 128, 64 at a time",
        "flash2-forward",
        FORWARD,
        {"B_r": 128, "a_2": 64},
    ),
    ("forward: the same, Q in registers", "flash2-forward", (*FORWARD, "Q_i"), {"B_r": 128, "a_2": 64}),
    (
        "forward: FlashAttention-4, 128 x 128, 128 at a time",
        "flash2-forward",
        FORWARD,
        {"B_r": 128, "a_2": 128},
    ),
    (
        "forward: ours, 192 x 64, Q in registers",
        "flash2-forward",
        (*FORWARD, "Q_i"),
        {"B_r": 192, "B_c": 64, "a_2": 192},
    ),
    ("backward: FlashAttention-2, 64 x 128", "flash2-backward", BACKWARD, {"B_r": 64, "a_2": 64}),
    ("backward: FlashAttention-2, 128 x 128", "flash2-backward", BACKWARD, {"B_r": 128, "a_2": 128}),
    (
        "backward: ours, 32 x 112, K, V in registers",
        "flash2-backward",
        (*BACKWARD, "K_j", "V_j"),
        {"B_r": 32, "B_c": 112},
    ),
    (
        "backward: ours, two passes, 96 x 32, rows in registers",
        "backward-two-pass-blocked",
        (*BACKWARD, "dQ_i", *ROWS),
        {"B_r": 96, "b_c": 32, "B_c": 96, "b_r": 32},
    ),
)


def rows() -> list[Row]:
    """Count each case: operands down, and partial sums in both directions."""
    found = []
    for label, name, below, sides in CASES:
        blocks = {"B_c": 128, "a_2": 128, "b_2": 128} | sides
        counted = ps.on_machine(name, machine=PLACE, below=below, blocks=blocks, n=N, d=D)
        moved = count(counted.nest.boundary(2), {**counted.dims, **counted.blocks}).by_tensor
        inputs = problem("forward" if "forward" in name else "backward-qkv").inputs
        operands = sum(each.reads for tensor, each in moved.items() if tensor in inputs) / N**2
        rest = counted.boundaries[1].words / N**2 - operands
        found.append(Row(label, name, {"operands": operands, "partial sums": rest}))
    return [*found, flash4()]


def flash4() -> Row:
    """What shared memory moves for FlashAttention-4's backward tile, in words of 16 bits.

    Memory adds dQ, so its old words neither come to shared memory nor to registers. What the products read, dS down and
    up, and dQ up cross the boundary to the registers; dQ is read once more from shared memory on its way up.
    """
    blocks = {"B_r": 128, "B_c": 128, "a_2": 128, "b_2": 128}
    below = ("P", "dS", "dK_j", "dV_j", "v_i", "L_i")
    counted = ps.on_machine(FLASH4, machine=PLACE, below=below, blocks=blocks, n=N, d=D)
    sizes = {**counted.dims, **counted.blocks}
    out, into = (count(counted.nest.boundary(number), sizes).by_tensor for number in (1, 2))
    operands = sum(each.reads for tensor, each in into.items() if tensor in ("Q", "K", "V", "dO"))
    dS = sum(each.reads + each.writes for tensor, each in into.items() if tensor == "copies")
    dQ = 2 * (into["dQ"].writes + out["dQ"].writes)  # float32
    parts = {"operands": operands, "dS through shared memory": dS, "dQ through shared memory, float32": dQ}
    return Row(
        "backward: FlashAttention-4, 128 x 128, all traffic", "backward", {name: w / N**2 for name, w in parts.items()}
    )


def bounds() -> dict[str, float]:
    """The least, in tiles, for both directions of the pass."""
    return {
        way: best(problem(name), {"n": N, "d": D}, M).value / N**2
        for way, name in (("forward", "forward"), ("backward", "backward-qkv"))
    }


def picture(found: Sequence[Row], figure: Any) -> None:
    """Draw a bar for each row, and the bounds as lines across those of their pass."""
    ax, least, most = figure.subplots(), bounds(), max(row.total for row in found) + 1.4
    kinds = list(dict.fromkeys(kind for row in found for kind in row.parts))
    for at, row in enumerate(found):
        left = 0.0
        for kind, tiles in row.parts.items():
            number = kinds.index(kind)
            ax.barh(
                at, tiles, left=left, color=COLOURS[number], hatch=HATCHES[number], edgecolor="black", height=0.46,
                label=kind if at == next(n for n, each in enumerate(found) if kind in each.parts) else None,
            )  # fmt: skip
            left += tiles
        ax.text(left + 0.1, at, f"{row.total:.2f}", va="center", fontsize=9)
        ax.text(
            0.05, at - 0.28, row.label, fontsize=9, va="bottom", bbox={"facecolor": "white", "linewidth": 0, "pad": 0.5}
        )
    for way, value in least.items():
        mine = [at for at, row in enumerate(found) if ("forward" in row.schedule) == (way == "forward")]
        ax.plot([value, value], [mine[0] - 0.5, mine[-1] + 0.5], color="black", linestyle="--", linewidth=1.4)
        ax.text(most, mine[0] - 0.3, f"dashed: lower bound, {way}, {value:.2f}", fontsize=9, va="bottom", ha="right")
    ax.set_yticks([])
    ax.set_xlabel("tiles of 128 x 128 words for 128 x 128 pairs of query and key, d = 128")
    ax.set_xlim(0, most)
    ax.invert_yaxis()
    figure.legend(fontsize=9, frameon=False, loc="outside lower center", ncols=2)
    ax.spines[["top", "right", "left"]].set_visible(False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    found = rows()
    for row in found:
        parts = ", ".join(f"{kind} {tiles:.3f}" for kind, tiles in row.parts.items())
        print(f"{row.total:6.2f}  {row.label}: {parts}")
    print(f"cycles of FlashAttention-4's tile at 128 bytes each: {found[-1].total * D * D * 2 / 128:,.0f}")
    save(lambda figure: picture(found, figure), parser.parse_args(arguments).output, 6.6)


if __name__ == "__main__":
    main()
