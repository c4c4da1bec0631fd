"""The gradient of sinks: the sums over queries of -exp(s - L) v, by blocks beside those of the last launch of a pass.

v are the row sums of dO ∘ O, less the gradient of L, which an earlier launch writes. A launch of its own would take the
host and the card some microseconds, in which nothing else runs. So the last kernel of a backward pass has a second
form: its grid has more blocks behind those that it had, and each of them sums for one head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import e, log2

from pebblesim.kernels.passes.sinks import HIGHEST

AND_SUMS, SUMS_OF = "_and_sums", "sums_of_sinks"
"""What the name of such a kernel ends with, and the argument of `run` that asks for it: the sinks, and where their
gradient is written."""

SIDE = 1024
"""Queries that a block takes at once."""

NUMBERS = ("queries", "n", "kv_heads", "shared", "each", "v_row", "L_row", "apart")
"""Integers that a sum takes: queries of a head and those of one batch, heads of keys, heads that share them as rows of
L and as rows of v have them, words from row to row of both, and from the sinks of a batch to those of the next one."""

SUM = """
@{jit}
def sum_of_sinks(v, L, s, made, head, group, {numbers}, SIDE: {tl}.constexpr):
    heads, first_batch = kv_heads * shared, group * (queries // n)
    v += (head // each).to({tl}.int64) * v_row + head % each
    L += (head // shared).to({tl}.int64) * L_row + head % shared
    v_of_batch, L_of_batch = (heads // each).to({tl}.int64) * v_row, kv_heads.to({tl}.int64) * L_row
    sink = {tl}.minimum({tl}.load(s + group * apart + head).to({tl}.float32) * {to_base_2}, {highest})
    total = {tl}.full([SIDE], 0.0, {tl}.float32{layout})
    for first in range(0, queries, SIDE):
        number = first + {tl}.arange(0, SIDE{layout})
        inside = number < queries
        batch = (number.to({tl}.float32) / n).to({tl}.int32)  # off by one at most; of integers it would take longer
        batch += {tl}.where(batch * n > number, -1, {tl}.where((batch + 1) * n <= number, 1, 0))
        i, batch = number - batch * n, (first_batch + batch).to({tl}.int64)
        less = {tl}.load(v + batch * v_of_batch + i * each, mask=inside, other=0.0)
        of_query = {tl}.load(L + batch * L_of_batch + i * shared, mask=inside, other=0.0)
        share = {tl}.where(of_query == float("-inf"), 0.0, {tl}.exp2(sink - of_query))
        total -= {tl}.where(inside, share * less, 0.0)
    {tl}.store(made + group * heads + head, {tl}.sum(total, axis=0))
"""

BESIDE = """
{jit}
def {name}{and_sums}({given}, sums_v_ptr, sums_L_ptr, sums_s_ptr, sums_made_ptr, sums_more, {numbers}):
    sums_number = {tl}.program_id(0) - ({tl}.num_programs(0) - sums_more)
    if sums_number >= 0:
        sums_number = sums_number * {tl}.num_programs(2) + {tl}.program_id(2)
        sums_number = sums_number * {tl}.num_programs(1) + {tl}.program_id(1)
        sums_heads = sums_kv_heads * sums_shared
        sums_head, sums_group = sums_number % sums_heads, sums_number // sums_heads
        if sums_group < sums_groups:
            sum_of_sinks(sums_v_ptr, sums_L_ptr, sums_s_ptr, sums_made_ptr, sums_head, sums_group, {taken}, {side})
    else:
        {name}({given})
"""

LAUNCHED = """
    if {sums_of} is None:
        {plain}
    else:
        grid, (sinks, sums) = ({grid},), {sums_of}
        groups = sums.shape[0] if sums.dim() > 1 else 1
        more = triton.cdiv(sums.numel(), grid[1] * (grid[2] if len(grid) > 2 else 1))
        numbers = batch // groups * ({n_q} // {shared}), {n_q} // {shared}, own, {shared}, {shared}
        strides = {v}.stride(0), {L}.stride(0), sinks.stride(0) if groups > 1 else 0
        more_blocks = (grid[0] + more, *grid[1:])
        {name}{and_sums}[more_blocks]({given}, {v}, {L}, sinks, sums, more, groups, *numbers, *strides, {options})
"""


def sum_of_sinks(language: str) -> str:
    """The function that sums for a head, in the language of kernels that call it: "triton" or "gluon"."""
    layout = {"triton": "", "gluon": ", gl.BlockedLayout([4], [32], [4], [0])"}[language]
    tl = {"triton": "tl", "gluon": "gl"}[language]
    numbers = ", ".join(NUMBERS)
    constants = {"to_base_2": repr(log2(e)), "highest": repr(HIGHEST)}
    return SUM.format(jit=f"{language}.jit", tl=tl, layout=layout, numbers=numbers, **constants)


def with_sums(name: str, text: str) -> str | None:
    """The text of a kernel and, behind it, of its form with more blocks; None if it counts its blocks.

    `name`: of the kernel, the last one in the text.
    """
    found = re.search(rf"@(triton|gluon)\.jit(?:\(do_not_specialize=\[(.*)\]\))?\ndef {name}\((.*)\):\n", text)
    assert found is not None
    language, general, given = found.groups()
    tl = {"triton": "tl", "gluon": "gl"}[language]
    if f"{tl}.num_programs(0)" in text:
        return None
    own = ["sums_more", "sums_groups", *(f"sums_{each}" for each in NUMBERS)]
    every = ", ".join([*([general] if general else []), *(f'"{each}"' for each in own)])
    beside = BESIDE.format(
        jit=f"@{language}.jit(do_not_specialize=[{every}])",
        tl=tl,
        name=name,
        and_sums=AND_SUMS,
        given=given,
        numbers=", ".join(own[1:]),
        taken=", ".join(own[2:]),
        side=SIDE,
    )
    return f"{sum_of_sinks(language)}\n{text}\n{beside}"


def launched_with_sums(name: str, lines: Sequence[str], n_q: str, shared: int, v: str, L: str) -> list[str]:
    """The lines of `run` that launch the last kernel, in the one form or in the other.

    Args:
        name: of the kernel.
        lines: those that launch it without sums, of which the last one is the launch.
        n_q, v, L: the number of rows of all heads that share keys, and both vectors, as `run` has them.
        shared: heads that share keys.
    """
    *before, plain = lines
    found = re.fullmatch(rf"    {name}\[\((.*?)\)\]\((.*), (num_warps=.*)\)", plain)
    assert found is not None
    grid, given, options = found.groups()
    told = {"plain": plain.strip(), "grid": grid, "given": given, "options": options, "name": name, "n_q": n_q}
    told |= {"sums_of": SUMS_OF, "and_sums": AND_SUMS, "v": v, "L": L}
    return [*before, *LAUNCHED.format(**told, shared=shared).strip("\n").split("\n")]
