"""The gradient of sinks: the sums over queries of -exp(s - L) v, by blocks of the last launch of a pass.

v are the row sums of dO ∘ O, less the gradient of L, which an earlier launch writes. A launch of its own would take the
host and the card some microseconds, in which nothing else runs. So the last kernel of a backward pass has a second
form, in which some of its blocks sum for a head, each before its own tile. These are in the middle of the grid: others
have the longest tiles, and others begin behind them, so that nothing waits for them in the end.
"""

from __future__ import annotations

from math import e, log2

from pebblesim.kernels.passes.sinks import HIGHEST
from pebblesim.kernels.triton.kernel import Launching

AND_SUMS, SUMS_OF = "_and_sums", "sums_of_sinks"
"""The end of the name of this form of a kernel, and the argument of `run` that asks for it: the sinks, and where their
gradient is written."""

SIDE = 1024
"""Queries that a block takes at once."""

NUMBERS = ("queries", "n", "kv_heads", "shared", "each", "v_row", "L_row", "apart")
"""Integers that a sum takes: queries of a head and those of one batch, heads of keys, heads that share them as rows of
L and as rows of v have them, words from row to row of both, and from the sinks of a batch to those of the next one."""

SUM = """
@{jit}
def sum_of_sinks(v, L, s, made, number, {numbers}, SIDE: {tl}.constexpr):
    heads = kv_heads * shared
    head, group = number % heads, number // heads
    first_batch = group * (queries // n)
    v += (head // each).to({tl}.int64) * v_row + head % each
    L += (head // shared).to({tl}.int64) * L_row + head % shared
    v_of_batch, L_of_batch = (heads // each).to({tl}.int64) * v_row, kv_heads.to({tl}.int64) * L_row
    sink = {tl}.minimum({tl}.load(s + group * apart + head).to({tl}.float32) * {to_base_2}, {highest})
    total = {tl}.full([SIDE], 0.0, {tl}.float32{layout})
    for first in range(0, queries, SIDE):
        query = first + {tl}.arange(0, SIDE{layout})
        inside = query < queries
        batch = (query.to({tl}.float32) / n).to({tl}.int32)  # off by one at most; of integers it would take longer
        batch += {tl}.where(batch * n > query, -1, {tl}.where((batch + 1) * n <= query, 1, 0))
        i, batch = query - batch * n, (first_batch + batch).to({tl}.int64)
        less = {tl}.load(v + batch * v_of_batch + i * each, mask=inside, other=0.0)
        of_query = {tl}.load(L + batch * L_of_batch + i * shared, mask=inside, other=0.0)
        share = {tl}.where(of_query == float("-inf"), 0.0, {tl}.exp2(sink - of_query))
        total -= {tl}.where(inside, share * less, 0.0)
    {tl}.store(made + group * heads + head, {tl}.sum(total, axis=0))
"""

BESIDE = """
{name}_alone = {name}


@{language}.jit(do_not_specialize=[{general}])
def {name}{and_sums}({given}, sums_v_ptr, sums_L_ptr, sums_s_ptr, sums_made_ptr, {numbers}):
    sums_blocks = {tl}.num_programs(0) * {tl}.num_programs(1) * {tl}.num_programs(2)
    sums_block = {tl}.program_id(2) * {tl}.num_programs(1) + {tl}.program_id(1)
    sums_first = sums_block * {tl}.num_programs(0) + {tl}.program_id(0) - sums_blocks // 2  # those in the middle sum
    sums_first += {tl}.where(sums_first < 0, sums_blocks, 0)
    for sums_number in range(sums_first, sums_end, sums_blocks):
        sum_of_sinks(sums_v_ptr, sums_L_ptr, sums_s_ptr, sums_made_ptr, sums_number, {taken}, {side})
    {name}_alone({given})
"""


LANGUAGES = {"triton": ("tl", ""), "gluon": ("gl", ", gl.BlockedLayout([1], [32], [4], [0])")}
"""The names of languages in the text, and what their vectors of `SIDE` numbers are told besides."""


def sum_of_sinks(language: str) -> str:
    """The function that sums for a head, in the language of kernels that call it: "triton" or "gluon"."""
    tl, layout = LANGUAGES[language]
    constants = {"to_base_2": repr(log2(e)), "highest": repr(HIGHEST)}
    return SUM.format(jit=f"{language}.jit", tl=tl, layout=layout, numbers=", ".join(NUMBERS), **constants)


def beside(plain: Launching) -> str:
    """The form of the last kernel whose blocks sum, too, behind the function that these call.

    The kernel has a second name for it, since what launches kernels takes the place of the first one.

    `plain`: the launch of the kernel.
    """
    own = ["sums_end", *(f"sums_{each}" for each in NUMBERS)]
    made = BESIDE.format(
        language=plain.language,
        tl=LANGUAGES[plain.language][0],
        general=", ".join(f'"{each}"' for each in (*plain.general, *own)),
        name=plain.name,
        and_sums=AND_SUMS,
        given=", ".join(plain.given),
        numbers=", ".join(own),
        taken=", ".join(own[1:]),
        side=SIDE,
    )
    return sum_of_sinks(plain.language) + "\n" + made


def launched_beside(plain: Launching, n_q: str, shared: int, v: str, L: str) -> list[str]:
    """The lines of `run` that launch the last kernel, in the one form or in the other.

    Args:
        plain: the launch of the kernel.
        n_q, v, L: the number of rows of all heads that share keys, and both vectors, as `run` has them.
        shared: heads that share keys.
    """
    *before, alone = plain.lines
    given = ", ".join([*plain.given, v, L, "sinks", "sums", "sums.numel()", "*numbers", "*strides"])
    n = f"{n_q} // {shared}"
    return [
        *before,
        f"    if {SUMS_OF} is None:",
        f"    {alone}",
        "    else:",
        f"        sinks, sums = {SUMS_OF}",
        "        groups = sums.shape[0] if sums.dim() > 1 else 1",
        f"        numbers = batch // groups * ({n}), {n}, own, {shared}, {shared}",
        f"        strides = {v}.stride(0), {L}.stride(0), sinks.stride(0) if groups > 1 else 0",
        f"        {plain.name}{AND_SUMS}[({plain.grid})]({given}, {plain.options})",
    ]
