"""`triton`: a program as Triton kernels on tensor cores, for words of 16 bits or float32.

Each launch (see `launches`) is a kernel, each independent iteration a program of its grid. Tiles that are read have the
data type of memory; sums and values computed from them are float32: matrix products take the first and add to the
second. Vectors (one word for each row) are float32 in memory, too, and so are sums that are kept there. A ragged edge
is a predicate on a load or a store, so no word is moved that is not in the count, but for zeros in tables of
pairs, which have whole tiles (`tables`).

Numbers of queries and keys are arguments; other sizes are constants in the source. It is for all numbers that the tiles
divide, without predicates, or for all numbers. Under a band mask, such as causal, tiles without an allowed pair are
skipped. In other tiles, pairs that are not allowed are set to 0 wherever they would matter: in sums over a row, in
products, and in memory.

If launches are repeated in a loop over rows, the first of these rows and their number are arguments.

Exponentials and logarithms are to base 2, which the chip has: the logarithm of e is multiplied into the scale of the
scores. So the logarithms of sums, L, are to base 2 in memory, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Protocol

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.kernels.identifiers import Identifiers
from pebblesim.kernels.key_ranges import ARGUMENTS, SHARING, KeyRanges
from pebblesim.kernels.passes.bias import BIAS, check_bias
from pebblesim.kernels.passes.fills import L_IN_ROWS, copied
from pebblesim.kernels.passes.sinks import SINKS, SINKS_BATCH
from pebblesim.kernels.passes.sums_of_sinks import AND_SUMS, SUMS_OF, Shares, beside, launched_beside
from pebblesim.kernels.strides import RESULTS, strides
from pebblesim.kernels.tables import GROUP_OF_WORDS, tables
from pebblesim.kernels.terms import HOST, constant, text
from pebblesim.kernels.triton.kernel import Kernel, Launching, Writer
from pebblesim.kernels.triton.places import ROOM
from pebblesim.kernels.triton.ranges import TAKEN, Setting, free_dimensions, largest_tiles
from pebblesim.kernels.words import WORDS, of_launch, word_of
from pebblesim.language import program as ir
from pebblesim.language.masks import Band, Mask
from pebblesim.launches.launches import Launch, check_alike, launches

FAR = 2**31
"""Words whose addresses do not fit into 32 bits."""

OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Triton's names of warps, of stages, and of the most registers of a thread."""

LOGARITHM = "L"
"""The tensor that holds logarithms of sums, to base 2."""

APART = "apart"
"""An argument of `run`: the number of parts of a gradient of keys, by its name; `run` says where there are fewer."""

SHIFT, SHIFTED = "dL", "v"
"""The gradient of the natural L, an argument of `run`, and the row sums of dO ∘ O that it is taken from.

L is the logarithm of the sum of a row's exponentials, so its gradient by the scores is P: dS = P ∘ (dP - (v - dL)).
"""


ONTO = "onto"
"""The argument of `run` that has sums of the parts before, by name, to be added to; without it they begin with 0."""


@dataclass(frozen=True, eq=False)
class Source:
    """Kernels in launch order, and the source of a module whose `run` launches them.

    Attributes:
        kernels: the kernels.
        write: makes the source.
        fills: the tensors that `run` fills before or between them, and with what.
        sums: the names of the forms of kernels that sum the gradient of sinks, too, for which `run` takes `SUMS_OF`.
    """

    kernels: tuple[Kernel, ...]
    write: Callable[[], str]
    fills: tuple[tuple[str, float], ...] = ()
    sums: tuple[str, ...] = ()

    @cached_property
    def text(self) -> str:
        """The source, which is written when it is asked for: a forecast reads the kernels alone."""
        return self.write()


class Writes(Protocol):
    """The writer of the kernel of a launch."""

    @property
    def kernel(self) -> Kernel:
        """The kernel, of which `text` is the source."""

    def text(self) -> str:
        """The source of the kernel."""

    def launching(self, options: str) -> Launching:
        """Its launch by `run`, with these options."""


def triton(
    program: ir.Program,
    sizes: ir.Sizes,
    dtype: str = "bfloat16",
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    warps: int = 8,
    stages: int = 3,
    apart: Mapping[str, tuple[int, ...]] | None = None,
    far: bool | None = None,
    softcap: float = 0.0,
    shared: int = 0,
    dense: bool = False,
    described: tuple[str, ...] = (),
    early: bool = False,
    sums: bool = False,
    grouped: int = 1,
) -> Source:
    """Write the Triton source of a program.

    Args:
        program: a traced schedule.
        sizes: dimensions and blocks by name. If the tiles divide the numbers of queries and keys, the source is for all
            numbers that they divide, else for all numbers.
        dtype: type of a word of a matrix, "bfloat16", "float16" or "float32".
        mask: which pairs are allowed, for a program traced under a mask.
        scale: factor of the scores, which the schedules omit: each product with Q or K is multiplied by it.
        warps, stages: warps and pipeline stages of each launch.
        apart: those of launches that have others, by the name of the launch, and behind them, if given, the most
            registers of a thread.
        far: whether a matrix of a head may have 2³¹ words or more; if None, whether one has at these sizes.
        softcap: scaled scores become softcap · tanh(score / softcap); 0 for none.
        shared: 0 for contiguous matrices (heads, rows, columns), all outputs made by `run`; else (batch, heads, n,
            columns) with strides of their own (see `strides`), where so many heads of queries share keys: `run` writes
            into its `results`, and every query sees a key, and every key is seen, unless ranges are read.
        dense: the rows of each of these follow one another, but for several heads at a position.
        described: launches that read the tiles of their loops by tensor descriptors, which need no addresses of
            threads: a Hopper card has an engine for them.
        early: launches begin while the one before them ends, the first one, too, and wait for it before they touch
            memory, which Hopper and later cards can (programmatic dependent launch).
        sums: `run` of a backward pass returns the row sums of dO ∘ O, less the gradient of L, too.
        grouped: so many heads of queries share keys, and have their own rows, and gradients of keys.

    Raises:
        UsageError: a Triton kernel cannot run the program: it uses parts of a tile, a block is not a power of two, a
            side of a product is shorter than tensor cores support, or the mask is not a band.
        UnknownName: the data type is unknown.
    """
    check(program, dtype, shared, softcap)
    if mask is not None and not isinstance(mask, Band):
        raise UsageError(f"Triton kernels know causal, window:W and band:W, and not mask {mask}.")
    if mask is not None:
        grid = program.grid(sizes)
        if any(mask.empty(grid, 1, axis).any() for axis in (0, 1)):
            raise UsageError(
                f"Triton kernels need a key for each query, and a query for each key; mask {mask} leaves some of "
                f"{grid[0]:,} queries and {grid[1]:,} keys without."
            )
    if shared and BIAS not in program.tensors:
        program = copied(program, sizes, GROUP_OF_WORDS)
    made = launches(program, masked=True, repeated=True)
    if shared:
        made = [launch for launch in made if not for_no_pair(launch, isinstance(mask, KeyRanges))]
    setting = setting_of(program, made, sizes, dtype, mask, scale, far, (shared, dense), softcap)
    kernels = tuple(launch.name for launch in made if launch.kind != "fill")
    strides = replace(setting.strides, grouped=grouped)
    setting = replace(setting, described=described, early=kernels if early else (), sums=sums, strides=strides)
    return module(setting, made, Writer, apart or {}, (warps, stages), common=_room)


def check(program: ir.Program, dtype: str, shared: int, softcap: float) -> None:
    """Check what kernels of any text are for.

    Raises:
        UsageError: some iterations of the program are no thread blocks that are alike, or it has a bias and more.
        UnknownName: the data type is unknown.
    """
    if dtype not in WORDS:
        raise UnknownName("type of a word", dtype, WORDS)
    check_alike(program)
    check_bias(program, shared, softcap)


def for_no_pair(launch: Launch, ranged: bool = False) -> bool:
    """Whether a launch is for tiles without an allowed pair.

    `ranged`: the ranges are known to the kernels alone, and those of rows or columns without a pair are computed with
    the others.
    """
    loops = [*launch.grid, *(node for node in launch.body if isinstance(node, ir.Loop))]
    none = [loop.when for loop in loops if loop.when is not None and loop.when.none]
    return any(not ranged or None in (when.rows.parent, when.columns.parent) for when in none)


def module(
    setting: Setting,
    made: list[Launch],
    writer: Callable[[Setting, Launch, str], Writes],
    apart: Mapping[str, tuple[int, ...]],
    otherwise: tuple[int, int],
    imports: str = "",
    common: Callable[[list[Writes]], str] = lambda writers: "",
) -> Source:
    """Write the kernels of launches, and a `run` that launches them.

    Args:
        setting: facts of all kernels.
        made: the launches.
        writer: makes what writes a launch, by a name.
        apart, otherwise: warps and stages of some launches, by name, and of the others.
        imports, common: text for the beginning, and behind it what several kernels use.
    """
    names = Identifiers(TAKEN.split())
    kernels = [launch for launch in made if launch.kind != "fill"]
    writers, programs = [], []
    for launch in kernels:  # in order: what a kernel writes says how later ones read it
        writers.append(writer(setting, launch, names.new(launch.name)))
        programs.append(writers[-1].kernel)
    fills = [node for launch in made if launch.kind == "fill" for node in launch.body if isinstance(node, ir.Init)]
    shares = None if writers[-1].launching("").counts else _shares(setting, made, writers)

    def written() -> str:
        options = [
            ", ".join(map("{}={}".format, OPTIONS, of_launch(apart, launch.name, otherwise))) for launch in kernels
        ]
        launched = [
            each.launching("launch_pdl=True, " * (launch.name in setting.early) + option)
            for each, launch, option in zip(writers, kernels, options, strict=True)
        ]
        texts = [each.text() for each in writers]
        if shares is not None:
            texts += [shares.text(), beside(launched[-1])]
        calls = _calls(setting, made, launched, shares)
        return _module(setting, made, imports, [common(writers), *texts], calls, shares is not None)

    ends = () if shares is None else tuple(f"{each.name}{AND_SUMS}" for each in (shares.writer.kernel, programs[-1]))
    return Source(tuple(programs), written, tuple((node.tensor.name, node.value) for node in fills), ends)


def _shares(setting: Setting, made: list[Launch], writers: list[Writes]) -> Shares | None:
    """Shares of the gradient of sinks, if they are wanted: a launch before the last one writes row sums."""
    launches = zip(writers[:-1], (launch for launch in made if launch.kind != "fill"), strict=False)
    of_rows = [each for each, launch in launches if _shifted(setting.program, launch) is not None]
    if not (setting.sums and of_rows and setting.strides.of) or any(launch.around is not None for launch in made):
        return None
    (writer,), rows = of_rows, setting.program.tensors[SHIFTED].shape[0]
    assert isinstance(writer, Writer)
    return Shares(writer, setting.strides.shared, str(setting.size(rows)))


def _calls(setting: Setting, made: list[Launch], launched: list[Launching], shares: Shares | None) -> list[str]:
    """The lines of `run` that launch kernels, and fill tensors between them.

    `shares`: of the gradient of sinks, if kernels have forms that sum it.
    """
    program, calls = setting.program, list[str]()
    around, writers = None, iter(launched)
    for launch in made:
        if launch.kind == "fill":
            (node,) = launch.body
            assert isinstance(node, ir.Init)
            fill, given = f"    {setting.of[node.tensor]}.fill_({constant(node.value)})", node.tensor in setting.onto
            if node.tensor not in setting.strides.of:  # who gives them sees to it
                calls += [f"    if {ONTO} is None:", f"    {fill}"] if given else [fill]
            continue
        if launch.around is not None and launch.around is not around:
            whole = setting.size(launch.around.range.dim)
            calls.append(f"    for start in range(0, {whole}, at_once):")
            calls.append(f"        rows = min(at_once, {whole} - start)")
        around = launch.around
        one = next(writers)
        lines = one.lines
        if shares is not None and one.name == shares.writer.kernel.name:
            lines = shares.launched(one, setting.of[program.tensors[LOGARITHM]])
        elif shares is not None and one is launched[-1]:
            lines = launched_beside(one, setting.strides.shared)
        calls += [("" if around is None else "    ") + line for line in lines]
        if _shifted(program, launch) is not None:
            sums = program.tensors[SHIFTED]
            within = ", ".join([":"] * (1 + (sums.apart is not None)))
            shifted = f"{setting.of[sums]}[{within}, :{setting.size(sums.shape[0])}].sub_({SHIFT})"
            calls += [f"    if {SHIFT} is not None:", f"        {shifted}"]
    return calls


def _module(setting: Setting, made: list[Launch], imports: str, texts: list[str], calls: list[str], sums: bool) -> str:
    """The source of a module: its opening, kernels and what they share, and `run`, which may sum for sinks."""
    program = setting.program
    numbers = (name for name in (*program.dims, *program.blocks) if name not in setting.free)
    fixed = ", ".join(f"{name} = {setting.sizes[name]}" for name in numbers)
    returned = (*program.outputs, *[SHIFTED] * (setting.sums and SHIFTED in program.tensors))
    lines = [
        f'"""{program.name}: {fixed}, {setting.dtype} words; written by pebblesim."""',
        "",
        "import torch",
        "import triton",
        "import triton.language as tl",
        imports,
        "\n\n".join(texts).strip("\n"),
        "",
        "",
        *_run(setting, made, sums),
        *["    triton.set_allocator(room)"] * (imports == "" and texts[0] != ""),
        *calls,
        "    return {" + ", ".join(f'"{name}": {setting.of[program.tensors[name]]}' for name in returned) + "}",
        "",
    ]
    return "\n".join(lines)


def longest_sides(program: ir.Program, sizes: ir.Sizes) -> dict[str, int]:
    """The longest tile of the kernels along each of the numbers of queries and keys."""
    made = launches(program, masked=True, repeated=True)
    return largest_tiles(made, free_dimensions(program, made), sizes)


def most_words(program: ir.Program, sizes: ir.Sizes) -> int:
    """The words of the largest matrix that is no table of pairs."""
    given = {*program.inputs, *program.outputs}
    return max(prod(tensor.sides(sizes)) for name, tensor in program.tensors.items() if name in given)


def setting_of(
    program: ir.Program,
    made: list[Launch],
    sizes: ir.Sizes,
    dtype: str,
    mask: Band | None,
    scale: float | None,
    far: bool | None,
    own: tuple[int, bool] = (0, False),
    softcap: float = 0.0,
    onto: frozenset[ir.Tensor] = frozenset(),
) -> Setting:
    """The facts that the kernels of a program share."""
    free = free_dimensions(program, made)
    names = Identifiers([*TAKEN.split(), *free])
    return Setting(
        program=program,
        sizes=sizes,
        dtype=dtype,
        mask=mask,
        scale=1.0 if softcap and scale is None else scale,
        of={tensor: names.new(f"{tensor.name}_ptr") for tensor in program.tensors.values()},
        tables=tables(program, made, sizes, mask),
        free=free,
        even=all(sizes[dim] % side == 0 for dim, side in largest_tiles(made, free, sizes).items()),
        far=most_words(program, sizes) >= FAR if far is None else far,
        logarithms={tensor for name, tensor in program.tensors.items() if name in (LOGARITHM, L_IN_ROWS)},
        strides=strides(program, sizes, *own, names, onto),
        softcap=softcap,
        onto=onto,
    )


def _room(writers: list[Writes]) -> str:
    """The function that descriptors need beside the kernels, if there are some."""
    return ROOM if any(isinstance(each, Writer) and each.describes for each in writers) else ""


def _shifted(program: ir.Program, launch: Launch) -> ir.Tensor | None:
    """The row sums of dO ∘ O, if a launch writes them, and nothing else, to memory."""
    written = {node.tensor for node in ir.walk(launch.body) if isinstance(node, ir.Write)}
    tensor = program.tensors.get(SHIFTED)
    return tensor if "dO" in program.inputs and tensor in written <= {tensor, program.tensors.get(L_IN_ROWS)} else None


def _run(setting: Setting, made: list[Launch], sums: bool) -> list[str]:
    """The lines of `run` before the launches: sizes, and tensors that are made here."""
    program, of = setting.program, setting.of
    given = [program.tensors[name] for name in program.tensors if name in program.inputs]
    ranges = ARGUMENTS[:-1] if isinstance(setting.mask, KeyRanges) else ()
    results = (RESULTS,) if setting.strides.of else ()
    shift = f", {SHIFT}=None" * any(_shifted(program, launch) is not None for launch in made)
    shift += f", {ONTO}=None" * (bool(setting.onto) and not results) + f", {SUMS_OF}=None" * sums
    shift += f", {APART}=None" * setting.apart
    lines = [
        f"def run({', '.join([*(of[tensor] for tensor in given), *ranges, *results])}{shift}):",
        f'    """{", ".join(program.outputs)} of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""',
        *(_opening_of_strides(setting, given) if results else _opening(setting, given)),
    ]
    if ranges and not results:
        lines.append(f"    {SHARING} = heads // {ranges[0]}.shape[0]")
    if setting.even and setting.free:
        sides = largest_tiles(made, setting.free, setting.sizes)
        lines.append(f"    if {' or '.join(f'{dim} % {side}' for dim, side in sides.items())}:")
        said = " and ".join(f"{dim} to be a multiple of {side}" for dim, side in sides.items())
        lines.append(f'        raise ValueError("these kernels need {said}")')
    if setting.free and not setting.far and not results:
        matrices = [of[tensor] for tensor in given if len(tensor.shape) == 2]
        lines.append(f"    if max(each.shape[1] * each.shape[2] for each in ({', '.join(matrices)},)) >= 2**31:")
        lines.append('        raise ValueError("these kernels need heads of less than 2**31 words")')
    for tensor in () if setting.even else given:
        if tensor in setting.tables.aligned:
            rows, name = setting.size(tensor.shape[0]), of[tensor]
            lines += [
                f"    if {rows} % {GROUP_OF_WORDS}:  # each head's begins where wide accesses can",
                f"        given, {name} = {name}, {_empty(setting, tensor)}",
                f"        {name}[{', '.join([':'] * (1 + (tensor.apart is not None)))}, :{rows}].copy_(given)",
            ]
    around = next((launch.around for launch in made if launch.around is not None), None)
    if around is not None:
        block = ir.length(around.range.block, setting.sizes)
        lines.append(f"    at_once = min({block}, {setting.size(around.range.dim)})")
    for name, tensor in program.tensors.items():
        if name in program.inputs or tensor in setting.strides.of:
            continue
        if tensor in setting.tables.places:
            lines.append(f"    {of[tensor]} = {of[setting.tables.places[tensor]]}  # tile by tile in its place")
            continue
        given_sums = f' if {ONTO} is None else {ONTO}["{name}"]' * (tensor in setting.onto)
        lines.append(f"    {of[tensor]} = {_empty(setting, tensor)}{given_sums}")
    return lines


def _opening(setting: Setting, given: list[ir.Tensor]) -> list[str]:
    """The lines of `run` that find sizes, from contiguous matrices."""
    of = setting.of
    lines = [f"    heads, device = {of[given[0]]}.shape[0], {of[given[0]]}.device"]
    for dim in setting.free:
        tensor = next(tensor for tensor in given if dim in tensor.shape)
        lines.append(f"    {dim} = {of[tensor]}.shape[{1 + tensor.shape.index(dim)}]")
    return lines


def _opening_of_strides(setting: Setting, given: list[ir.Tensor]) -> list[str]:
    """The lines of `run` that find sizes and strides, and take the matrices that are to be written."""
    of, strides = setting.of, setting.strides
    matrices = [tensor for tensor in given if tensor in strides.of]
    of_queries = strides.grouped > 1  # which have as many heads as programs, and keys have not
    of_keys = (each for each in matrices if (each.shape[0] == strides.queries) is of_queries)
    keys = next(of_keys, matrices[0])
    device, several = f"{of[keys]}.device", keys in strides.copies
    numbers = "[:2]" if not several else "[:3:2]"
    lines = [f"    (batch, own), device = {of[keys]}.shape{numbers}, {device}", "    heads = batch * own"]
    if isinstance(setting.mask, KeyRanges):
        lines.append(f"    {SHARING} = own")
    for tensor in strides.of:
        if tensor not in given:
            lines.append(f'    {of[tensor]} = {RESULTS}["{tensor.name}"]')
    for dim in setting.free:
        if keys.apart is not None and dim == keys.apart.dim:
            lines.append(f"    {dim} = {of[keys]}.shape[1]")
            continue
        tensor = next(tensor for tensor in strides.of if tensor.shape[0] == dim)
        rows = strides.several(tensor)
        lines.append(f"    {dim} = {of[tensor]}.shape[{2 + (tensor in strides.copies)}]" + f" * {rows}" * (rows > 1))
    lines += (strides.found(tensor, of[tensor]) for tensor in strides.of)
    return lines + [f"    {SINKS_BATCH} = {of[tensor]}.stride()[0]" for tensor in given if tensor.name == SINKS]


def _empty(setting: Setting, tensor: ir.Tensor) -> str:
    """The text of a new tensor."""
    kind = word_of(setting.program, tensor, setting.dtype)
    lengths = ", ".join(text(each, HOST) for each in setting.lengths(tensor))
    return f"torch.empty((heads, {lengths}), dtype=torch.{kind}, device=device)"
