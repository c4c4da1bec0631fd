"""The gradient of sinks: the sums over queries of -exp(s - L) v, by kernels of a pass that run anyway.

v are the row sums of dO ∘ O. A launch for the sums alone would take the host and the card some microseconds, in which
nothing else runs. So two kernels of a backward pass have a second form. The one that writes v has it in registers: it
reads L, and writes the sum over the queries of its tile, a share for each head. The last one has more blocks behind
those that it had, and each of them adds up the shares of one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import e, log2

from pebblesim.kernels.passes.sinks import HIGHEST
from pebblesim.kernels.statements import Copy, Let, Store
from pebblesim.kernels.terms import Binary
from pebblesim.kernels.triton.kernel import Launching, Writer

AND_SUMS, SUMS_OF = "_and_sums", "sums_of_sinks"
"""The end of the names of these forms, and the argument of `run` that asks for them: the sinks, and where their
gradient is written."""

SIDE = 1024
"""Shares that a block takes at once."""

SHARES = """\
    sums_L = {L}
    sums_s = tl.load(sums_s_ptr + batch * sums_apart + own * {shared} + {rows} % {shared}).to(tl.float32)
    sums_s = tl.minimum(sums_s * {to_base_2}, {highest})
    sums_of = tl.where(sums_L == float("-inf"), 0.0, tl.exp2(sums_s - sums_L)) * {v}
    sums_shares_ptr += (own * tl.num_programs(2) + batch) * ({terms}) * {shared}
    tl.store(sums_shares_ptr + {place}, {made})"""

SUM = """
@{language}.jit
def sum_of_shares(shares, made, head, group, groups, terms, kv_heads, shared, SIDE: {tl}.constexpr):
    shares += ((head // shared).to({tl}.int64) * groups + group) * terms * shared + head % shared
    total = {tl}.full([SIDE], 0.0, {tl}.float32{layout})
    for first in range(0, terms, SIDE):
        number = first + {tl}.arange(0, SIDE{layout})
        total -= {tl}.load(shares + number.to({tl}.int64) * shared, mask=number < terms, other=0.0)
    {tl}.store(made + group * kv_heads * shared + head, {tl}.sum(total, axis=0))


{name}_alone = {name}


@{language}.jit(do_not_specialize=[{general}])
def {name}{and_sums}({given}, sums_shares_ptr, sums_made_ptr, {numbers}):
    sums_number = {tl}.program_id(0) - ({tl}.num_programs(0) - sums_more)
    if sums_number >= 0:
        sums_number = sums_number * {tl}.num_programs(2) + {tl}.program_id(2)
        sums_number = sums_number * {tl}.num_programs(1) + {tl}.program_id(1)
        sums_heads = sums_kv_heads * sums_shared
        sums_head, sums_group = sums_number % sums_heads, sums_number // sums_heads
        if sums_group < sums_groups:
            sum_of_shares(sums_shares_ptr, sums_made_ptr, sums_head, sums_group, {taken}, {side})
    else:
        {name}_alone({given})
"""

NUMBERS = ("more", "groups", "terms", "kv_heads", "shared")
"""Integers that the last kernel takes besides: by how many blocks its grid is longer, batches with sinks of their own,
shares of a head in each of these, heads of keys, and heads that share them."""

LANGUAGES = {"triton": ("tl", ""), "gluon": ("gl", ", gl.BlockedLayout([1], [32], [4], [0])")}
"""The names of languages in the text, and what their vectors of `SIDE` numbers are told besides."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of the gradient of sinks, which the kernel that writes row sums makes in its second form.

    Attributes:
        writer: of the kernel.
        shared: heads that share keys.
        n_q: the number of rows of these heads.
    """

    writer: Writer
    shared: int
    n_q: str

    @cached_property
    def _written(self) -> Store:
        """The statement that writes row sums, at the indices of a tile's rows."""
        rows = self.writer.kernel.program.rows
        return next(each for each in rows if isinstance(each, Store) and each.tensor.name == "v")

    @cached_property
    def _at(self) -> tuple[str, str, int]:
        """The indices of the rows of a tile, the number of the tile, and its rows."""
        assert isinstance(self._written.address, Binary)
        at = str(self._written.address.right)
        made = next(each for each in self.writer.kernel.program.rows if isinstance(each, Let) and each.names == (at,))
        (value,) = made.values
        assert isinstance(value, Binary) and isinstance(value.left, Binary)
        return at, str(value.left.left), int(str(value.left.right))

    def _L(self, at: str, edge: str) -> str:
        """L of a tile's rows, which the kernel has where it copies them."""
        rows = self.writer.kernel.program.rows
        copied = (each.to for each in rows if isinstance(each, Copy) and each.tensor.name == "L")
        return next(map(str, copied), f"tl.load(sums_L_ptr + head * {self.n_q} + {at}{edge})")

    @property
    def _terms(self) -> str:
        """The shares of a head and batch: of each tile, if it has as many rows of each head, or of each query."""
        *_, rows = self._at
        return f"{self.n_q} // {self.shared}" if rows % self.shared else f"triton.cdiv({self.n_q}, {rows})"

    def text(self) -> str:
        """The second form of the kernel."""
        (at, tile, rows), shared, where = self._at, self.shared, self._written.where
        edge = "" if where is None else f", mask={where}"
        of_tile = f"{tile} * {shared} + tl.arange(0, {shared})"
        place, made = (at, "sums_of" + edge) if rows % shared else (of_tile, "sums_of")
        if shared < rows and not rows % shared:
            made = f"tl.sum(tl.reshape(sums_of, ({rows // shared}, {shared})), axis=0)"
        lines = SHARES.format(
            L=self._L(at, edge and f'{edge}, other=float("inf")'),
            rows=at if rows % shared else f"tl.arange(0, {rows})",
            shared=shared,
            to_base_2=repr(log2(e)),
            highest=repr(HIGHEST),
            v=self._written.value,
            terms=f"{self.n_q} // {shared}" if rows % shared else "tl.num_programs(0)",
            place=place,
            made=made,
        )
        return self.writer.text(AND_SUMS, ("sums_L_ptr", "sums_s_ptr", "sums_shares_ptr", "sums_apart"), [lines])

    def launched(self, plain: Launching, L: str) -> list[str]:
        """The lines of `run` that launch the kernel, in the one form or in the other.

        `plain`, `L`: its launch, and the vector, as `run` has it.
        """
        *before, alone = plain.lines
        given = ", ".join([*plain.given, L, "sinks", "shares", "sinks.stride(0) if groups > 1 else 0"])
        return [
            *before,
            f"    if {SUMS_OF} is None:",
            f"    {alone}",
            "    else:",
            f"        sinks, sums = {SUMS_OF}",
            f"        groups, terms = sums.shape[0] if sums.dim() > 1 else 1, {self._terms}",
            f"        shares = torch.empty((own, batch, terms * {self.shared}), dtype=torch.float32, device=device)",
            f"        {plain.name}{AND_SUMS}[({plain.grid})]({given}, {plain.options})",
        ]


def beside(plain: Launching) -> str:
    """The form of the last kernel that has more blocks, which add up shares, behind the function that these call.

    The kernel has a second name for it, since what launches kernels takes the place of the first one.

    `plain`: the launch of the kernel.
    """
    own = [f"sums_{each}" for each in NUMBERS]
    tl, layout = LANGUAGES[plain.language]
    return SUM.format(
        language=plain.language,
        tl=tl,
        layout=layout,
        general=", ".join(f'"{each}"' for each in (*plain.general, *own)),
        name=plain.name,
        and_sums=AND_SUMS,
        given=", ".join(plain.given),
        numbers=", ".join(own),
        taken=", ".join(own[1:]),
        side=SIDE,
    )


def launched_beside(plain: Launching, shared: int) -> list[str]:
    """The lines of `run` that launch the last kernel, in the one form or in the other.

    Args:
        plain: the launch of the kernel.
        shared: heads that share keys.
    """
    *before, alone = plain.lines
    given = ", ".join([*plain.given, f"shares, sums, more, groups, batch // groups * terms, own, {shared}"])
    return [
        *before,
        f"    if {SUMS_OF} is None:",
        f"    {alone}",
        "    else:",
        f"        grid = ({plain.grid})",
        "        more = triton.cdiv(sums.numel(), grid[1] * (grid[2] if len(grid) > 2 else 1))",
        f"        {plain.name}{AND_SUMS}[(grid[0] + more, *grid[1:])]({given}, {plain.options})",
    ]
