"""Texts of forward passes for Hopper, each changed in one way from what `attention` takes: of `forward_variants.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A text of `flash2-forward`.

    Attributes:
        rows, keys, stages: its tiles, and slots of its rings.
        several: whether there are as many blocks as multiprocessors, each with several tiles.
        falling: whether each group of heads begins with its long tiles, where those before the last ones alternate.
        apart: whether exponentials are kept before the wait for the product that was put off.
        no_turns: whether warpgroups with narrow sums take no turns at the tensor cores.
        turns: whether warpgroups with sums of up to 128 columns take turns at the tensor cores.
        of_threads: whether each thread adds up what it has of a row, and threads add up their sums behind the loop.
        scaled_late: whether O is multiplied by its factor behind the next scores' products, and not before them.
        together: heads whose tiles are in one order, longest first; 0 for those that `run` finds.
        first, rest: columns of O that P V is computed for, in one product or two; 0 for all.
        even: whether the text is for lengths that tiles divide.
        held: the part of a thread's registers up to which products are put off; 0 for the usual one.
    """

    rows: int
    keys: int
    stages: int
    several: bool = False
    falling: bool = False
    apart: bool = False
    no_turns: bool = False
    turns: bool = False
    of_threads: bool = False
    scaled_late: bool = False
    together: int = 0
    first: int = 0
    rest: int = 0
    even: bool = False
    held: float = 0.0

    def __str__(self) -> str:
        named = [f"{self.rows} x {self.keys}, {self.stages} stages"]
        named += ["several tiles a block everywhere"] * self.several
        named += ["all groups from long to short"] * self.falling
        named += ["exponentials apart"] * self.apart + ["no turns"] * self.no_turns
        named += ["turns"] * self.turns + ["sums of threads"] * self.of_threads
        named += ["scaled late"] * self.scaled_late + [f"{self.together} heads together"] * (self.together > 0)
        named += ["even"] * self.even + [f"{self.held:.0%} of registers"] * (self.held > 0)
        columns = f"{self.first} + {self.rest}" if self.rest else str(self.first)
        return ", ".join([*named, *[f"{columns} columns of O"] * (self.first > 0)])


def given(text: str) -> Any:
    """A shape of its numbers and its mask: "none", "causal" or "window:W"."""
    from drawn_shapes import Shape

    *numbers, mask = text.split(",")
    kind, _, left = mask.partition(":")
    return Shape(*map(int, numbers), kind, int(left) if left else None)


def text_of(shape: Any, variant: Variant) -> tuple[str, tuple[str, ...]]:
    """The text of a variant, which is for all numbers of tokens and heads, and the names of its kernels."""
    return _text_of(replace(shape, batch=1, kv_heads=1, n=1), variant)


@cache
def _text_of(shape: Any, variant: Variant) -> tuple[str, tuple[str, ...]]:
    from pebblesim.advice.tiles import Tiling
    from pebblesim.kernels.gluon import block, plan
    from pebblesim.operator import texts
    from pebblesim.operator.pattern import Pattern, band_of

    right = None if shape.mask == "none" else 0
    pattern = Pattern(band_of(left=shape.left, right=right, rows=shape.shared), shape.shared)
    blocks = {"B_r": variant.rows, "B_c": variant.keys}
    tiling = Tiling("flash2-forward", blocks, stages=variant.stages, gluon=True, persistent=variant.several)
    usual, turns, widths = block.MOST_HELD, plan.IN_TURNS, (("d_k", shape.d), ("d_v", shape.d))
    block.MOST_HELD = variant.held or usual
    plan.IN_TURNS = 0 if variant.no_turns else 128 if variant.turns else turns
    try:
        made = texts.written(tiling, widths, variant.even, False, True, "bfloat16", pattern, shape.d**-0.5)
    finally:
        block.MOST_HELD, plan.IN_TURNS = usual, turns
    text = exponentials_apart(made.text) if variant.apart else made.text
    if variant.falling:
        text = re.sub(r"( +)i = gl\.where\(.*, tiles - 1 - i, i\).*", r"\1i = tiles - 1 - i", text)
    if variant.together:
        text = re.sub(r"    together = .*", f"    together = {variant.together}", text)
    text = scaled_late(text) if variant.scaled_late else text
    text = sums_of_threads(text, variant.keys) if variant.of_threads else text
    return (with_columns(text, variant.first, variant.rest) if variant.first else text), made.kernels


def scaled_late(text: str) -> str:
    """The text with O multiplied by its factor in the next iteration, while the products of its scores run."""
    made, factor = [], "m_i"
    for line in text.splitlines():
        indent, said = line[: len(line) - len(line.lstrip())], line.strip()
        if scaled := re.fullmatch(r"(O_\w+) = (.*)\[:, None\] \* \1", said):
            factor = scaled[2].replace("m_i", "alpha")
            if made[-1].strip() != "alpha = m_i":
                made.append(f"{indent}alpha = m_i")
            continue
        if issued := re.match(r"(O_\w+) = warpgroup_mma\(P_late", said):
            made.append(f"{indent}{issued[1]} = {factor}[:, None] * {issued[1]}")
        made.append(line)
    return "\n".join(made) + "\n"


def sums_of_threads(text: str, keys: int) -> str:
    """The text with sums of eight parts of a row, which are in eight registers of four threads, until the loop ends."""
    parts = f"gl.sum(gl.reshape(P, [64, {keys // 8}, 8]), axis=1)"
    first, rest = text.split("l_i += gl.sum(P, axis=1)", 1)
    first = first[: first.rindex("l_i = m_i * l_i")] + f"l_i = {parts}"
    factor = "gl.convert_layout(m_i, gl.SliceLayout(1, l_i.type.layout))[:, None]"
    rest = rest.replace("l_i = m_i * l_i", f"l_i = {factor} * l_i").replace(
        "l_i += gl.sum(P, axis=1)", f"l_i += {parts}"
    )
    ended = r"\1l_i = gl.convert_layout(gl.sum(l_i, axis=1), l_type)\n\g<0>"
    rest = re.sub(r"( +)O_i = O_i \* gl\.where\(l_i", ended, rest, count=1)
    layout = re.search(r"l_i = gl\.full\(.*, (gl\.SliceLayout\(.*?\))\)\n", first)
    assert layout is not None
    return first + rest.replace("l_type", layout[1])


def exponentials_apart(text: str) -> str:
    """The text with a wait, for what has arrived, before that for the product that was put off.

    ptxas moves exponentials behind a wait for products, but not past the loop of a wait for a barrier.
    """
    made, waited = [], ""
    for line in text.splitlines():
        if re.match(r"\s+mbarrier\.wait\(V_j_full", line):
            waited = line
        if re.match(r"\s+(O_i|O_i_0), P_late = warpgroup_mma_wait", line) and "last_phase" in waited:
            made += [waited] if line.startswith(waited[: len(waited) - len(waited.lstrip())]) else []
        made.append(line)
    return "\n".join(made) + "\n"


def with_columns(text: str, first: int, rest: int) -> str:
    """The text with products P V of the first columns alone, and of `rest` more, so that zeros are left out."""
    layout = "tile_{0} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {0}, 16]))"
    layouts = [layout.format(each) for each in (first, rest) if each]
    text = text.replace("\ntile_128 =", "\n" + "\n".join(layouts) + "\ntile_128 =", 1)
    made = []
    for line in text.splitlines():
        indent, said = line[: len(line) - len(line.lstrip())], line.strip()
        of = [("O_i", first, 0)] + [("O_e", rest, first)] * (rest > 0)
        if said.startswith("O_i = gl.full([64, 128]"):
            made += [f"{indent}{name} = gl.full([64, {width}], 0.0, gl.float32, tile_{width})" for name, width, _ in of]
        elif said.startswith("O_i = warpgroup_mma(P_late"):
            slot = re.search(r"V_j\.index\((\w+)\)", said)
            assert slot is not None
            for name, width, begin in of:
                right = f"V_j.index({slot[1]}).reshape([128, 128]).slice({begin}, {width}, dim=1)"
                left = f"gl.convert_layout(P_late, gl.DotOperandLayout(0, tile_{width}, 2))"
                made.append(f"{indent}{name} = warpgroup_mma({left}, {right}, {name}, is_async=True)")
        elif said.startswith("O_i, P_late = warpgroup_mma_wait(0"):
            names = ", ".join([name for name, _, _ in of] + ["P_late"])
            made.append(f"{indent}{names} = warpgroup_mma_wait(0, deps=({names}))")
        elif said.startswith("O_i = m_i[:, None] * O_i"):
            made += [f"{indent}{name} = {_of_rows('m_i', width)}[:, None] * {name}" for name, width, _ in of]
        elif said.startswith("O_i = O_i * gl.where(l_i"):
            made.append(f"{indent}l_i_ = gl.where(l_i == 0.0, 0.0, 1.0 / l_i)")
            made += [f"{indent}{name} = {name} * {_of_rows('l_i_', width)}[:, None]" for name, width, _ in of]
        elif "warpgroup_mma_wait(1, deps=(P,))" in said:
            made.append(line.replace("wait(1", f"wait({len(of)}"))
        elif said.startswith("across = "):
            continue
        elif said.startswith("gl.store(O_at"):
            for name, width, begin in of:
                made.append(f"{indent}across = {begin} + gl.arange(0, {width}, gl.SliceLayout(0, tile_{width}))")
                stored = said.replace("rows_128", f"tile_{width}").replace("O_i.to(", f"{name}.to(")
                made.append(indent + stored.replace("down", "down_"))
        elif said.startswith("down = "):
            made.append(line)
        else:
            made.append(line)
    whole = "\n".join(made) + "\n"
    return re.sub(  # rows in the layout of each tile
        r"( +)across = (\d+) \+ gl\.arange\(0, (\d+), .*",
        lambda found: f"{found[1]}down_ = part * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile_{found[3]}))\n{found[0]}",
        whole,
    )


def _of_rows(name: str, width: int) -> str:
    return f"gl.convert_layout({name}, gl.SliceLayout(1, tile_{width}))"
