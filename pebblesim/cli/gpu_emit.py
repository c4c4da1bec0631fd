"""`pebblesim gpu emit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pebblesim.cli.completion import BANDS
from pebblesim.cli.gpu_cases import Threads, Workers, case_of, check_float32
from pebblesim.cli.gpu_package import PackageChoice, write_package
from pebblesim.cli.options import (
    AsJson,
    BlockChoice,
    HeadChoice,
    MaybeSchedule,
    MaybeTypedCache,
    Sizes,
    command,
    family,
    option,
)
from pebblesim.cli.printing import print_json, say
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.files import check_place, whole_file
from pebblesim.core.sizes import dtype_of, listed, quantity

if TYPE_CHECKING:
    from pebblesim.advice.tiles import Tiling
    from pebblesim.counting.count import Counted
    from pebblesim.counting.heads import Heads
    from pebblesim.kernels.triton.triton import Source
    from pebblesim.language.masks import Mask
    from pebblesim.language.program import Program

app = family()


@command(app, example="pebblesim gpu emit large-cache -n 4096 -d 64 -M 16384 -P 16 -o kernels.cu")
def emit(
    schedule: MaybeSchedule = None,
    *,
    sizes: Sizes,
    cache: MaybeTypedCache,
    blocks: BlockChoice,
    heads: HeadChoice,
    target: Annotated[
        str,
        option(
            "--target",
            "cuda (float32), triton (tensor cores), gluon (tensor cores of Hopper), or package: a folder of kernels.",
        ),
    ] = "cuda",
    mask: Annotated[
        str | None,
        option(
            "--mask",
            "For triton, gluon: causal, window:W or band:W; for package several.",
            "MASK",
            values=lambda: BANDS,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        option("--scale", "For triton, gluon: factor of the scores, a number or 1/sqrt(d_k); by default 1.", "X"),
    ] = None,
    warps: Annotated[
        int | None, option("--warps", "For triton: warps in a thread block, by default 8.", "W", min=1)
    ] = None,
    stages: Annotated[
        int | None,
        option(
            "--stages",
            "For triton: stages of the pipeline that reads ahead, by default 3; for gluon: stages of a ring.",
            "S",
            min=1,
        ),
    ] = None,
    persistent: Annotated[
        bool | None,
        option(
            "--persistent/--no-persistent",
            "For gluon: as many blocks as multiprocessors, each with several tiles; by default if it is faster.",
        ),
    ] = None,
    package: PackageChoice,
    workers: Workers = 1,
    threads: Threads = None,
    output: Annotated[Path | None, option("--output -o", "File, or new folder of a package, to write.", "FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Print or write the source of a schedule's kernels; --json adds the launches and the words they move."""
    from pebblesim.counting.heads import Heads

    given: dict[str, Any] = {
        "warps": warps,
        "stages": stages,
        "persistent": persistent,
        "threads": threads,
        "mask": mask,
    }
    given |= {"scale": scale, "kv-heads": heads.kv_heads, "workers": None if workers == 1 else workers}
    given |= {"SCHEDULE": schedule, "M": cache.m, **package.given}
    given |= {"dtype": cache.dtype, "block": blocks.block, "separate": heads.separate or None}
    usual = {"blocks": (blocks.blocks, "fit"), "heads": (heads.heads, 1), "batch": (heads.batch, 1)}
    given |= {name: None if value == default else value for name, (value, default) in usual.items()}
    _check_given(target, given)
    if target == "package":
        write_package(sizes, mask, package, output, as_json)
        return
    if output is not None:
        check_place(output)
    if schedule is None or (cache.m is None and target == "cuda"):
        raise UsageError("emit needs a schedule and -M, such as emit large-cache -n 4096 -d 64 -M 16384.")
    if target != "cuda":
        shared = Heads(**heads.arguments)
        asked = _asked(schedule, sizes, cache, blocks, mask, shared, scale)
        source, counted = _triton(asked, warps, stages) if target == "triton" else _gluon(asked, stages, persistent)
        added = _added(asked, counted) if target == "gluon" else {}
        kernels = [{"name": k.name, "programs": k.programs, "arrays": list(k.tensors)} for k in source.kernels]
        of_these = f"; {sum(added.values()):,} of these are read to be added to, which memory does" if added else ""
        summary = f"{quantity(len(kernels), 'kernel')}, {counted.io:,} words moved for {_whose(shared)}{of_these}"
        data = {"schedule": counted.schedule, **counted.dims, "dtype": asked.dtype, "blocks": dict(counted.blocks)}
        data |= {"heads": shared.to_dict(), "times": shared.times} if shared.is_given else {}
        data |= {"reads": counted.reads, "writes": counted.writes, **({"added": added} if added else {})}
        _give(source.text, summary, output, data | {"kernels": kernels} if as_json else None)
        return
    check_float32(cache.dtype)
    made = case_of(schedule, sizes.dims, cache.words, blocks.rule, workers, threads)
    summary = f"{quantity(len(made.source.kernels), 'kernel')}, {made.shared_words:,} words of shared memory"
    launches = {"shared_words": made.shared_words, "launches": made.launches} if as_json else {}
    _give(made.text, summary, output, {**made.to_dict(), **launches} if as_json else None)


REGISTERS = 64 * 1024
"""Registers of a block on Hopper, of 32 bits."""

ANY = 2**60
"""Words of a cache that holds every tile."""

WARPS = (1, 2, 4, 8, 16, 32)
"""Triton's numbers of warps: powers of two, up to 1,024 threads."""

NOT_FOR = {
    "cuda": {
        "mask": "CUDA kernels do not support masks; use --target triton, or leave --mask out.",
        "scale": "CUDA kernels compute scores as the paper does; use --target triton, or multiply the queries by the "
        "scale.",
        "kv-heads": "CUDA kernels are for one head; use --target triton, or leave --kv-heads out.",
        "warps": "CUDA kernels have --threads; leave --warps out.",
        "stages": "CUDA kernels do not read ahead; use --target triton, or leave --stages out.",
        "persistent": "--persistent is for Gluon kernels; use --target gluon, or leave it out.",
    },
    "triton": {
        "workers": "Triton kernels have a block for each tile of a loop of independent tiles; leave --workers out.",
        "threads": "Triton kernels have --warps, of 32 threads each; leave --threads out.",
        "persistent": "--persistent is for Gluon kernels; use --target gluon, or leave it out.",
    },
    "gluon": {
        "workers": "Gluon kernels have a block for each tile of a loop of independent tiles; leave --workers out.",
        "threads": "Gluon kernels have 128 threads for each 64 rows of a block, and a warp that loads; give --block, "
        "and leave --threads out.",
        "warps": "Gluon kernels have four warps for each 64 rows of a block, and one that loads; give --block, and "
        "leave --warps out.",
    },
    "package": {
        **{
            name: f"a package has the kernels that are chosen for a card, and their tiles; leave {said} out."
            for name, said in {"SCHEDULE": "the schedule", "M": "-M"}.items()
        },
        **{
            name: f"a package has the kernels that are chosen for a card, and their tiles; leave --{name} out."
            for name in ("warps", "stages", "persistent", "workers", "threads", "block", "blocks")
        },
        **{
            name: f"the kernels of a package take any number of heads and sequences at each call; leave --{name} out."
            for name in ("heads", "batch", "separate")
        },
        "dtype": "the kernels of a package take bfloat16 and float16 at each call; leave --dtype out.",
        "scale": "the kernels of a package take any scale at each call; leave --scale out.",
        "kv-heads": "a package has --shared, query heads on each KV head; leave --kv-heads out.",
    },
}
for _others in ("cuda", "triton", "gluon"):
    NOT_FOR[_others] |= {
        each: f"--{each} is for --target package; leave it out." for each in ("shared", "card", "softcap", "name")
    }
"""For each target, what is said of options that its kernels do not have."""


def _check_given(target: str, given: Mapping[str, Any]) -> None:
    """Refuse an option that is given and that the kernels of a target do not have."""
    if target not in NOT_FOR:
        raise UnknownName("target", target, (*NOT_FOR,))
    for name, value in given.items():
        if value is not None and name in NOT_FOR[target]:
            raise UsageError(NOT_FOR[target][name])


@dataclass(frozen=True)
class _Asked:
    """The kernels that were asked for; heads that share keys and values are one, with the rows of all (`Heads`)."""

    schedule: str
    dims: Mapping[str, int]
    M: int | None
    dtype: str
    rule: str | Mapping[str, int]
    mask: Mask | None
    scale: str | None

    @property
    def counting(self) -> dict[str, Any]:
        """Arguments of `count`; without -M for a cache of any size."""
        return {"M": ANY if self.M is None else self.M, "mask": self.mask, **self.dims}

    def program(self, dims: Mapping[str, int]) -> tuple[Program, float | None]:
        """The program for these sizes, and the factor of its scores."""
        from pebblesim.language.registry import get

        algorithm = get(self.schedule).in_dims(dims)
        factor = None if self.scale is None else algorithm.problem.factor(self.scale, dims)
        return algorithm.under(self.mask), factor


def _asked(
    schedule: str,
    sizes: Sizes,
    cache: MaybeTypedCache,
    blocks: BlockChoice,
    mask: str | None,
    heads: Heads,
    scale: str | None,
) -> _Asked:
    from pebblesim.language import masks
    from pebblesim.language.registry import get

    dims, band = sizes.dims, masks.of(mask)
    if heads.kv_heads is not None:
        dims, (band,), _ = heads.cases(get(schedule).problem, dims, band)
    M = None if cache.m is None else cache.words
    if M is None and isinstance(blocks.rule, str) and blocks.rule != "fit":
        raise UsageError(f"--blocks {blocks.rule} chooses blocks for a cache; add -M, or give each --block.")
    return _Asked(schedule, dims, M, dtype_of(cache.dtype or "bfloat16"), blocks.rule, band, scale)


def _whose(heads: Heads) -> str:
    return "each head" if heads.heads_per_problem == 1 else f"each {heads.heads_per_problem} heads that share keys"


def _triton(asked: _Asked, warps: int | None, stages: int | None) -> tuple[Source, Counted]:
    from pebblesim.kernels.nearest import in_powers_of_two
    from pebblesim.kernels.triton.triton import triton
    from pebblesim.language.registry import get

    if warps is not None and warps not in WARPS:
        raise UsageError(f"a Triton kernel has {', '.join(map(str, WARPS))} warps, not {warps}.")
    rule, options = asked.rule, dict[str, Any](warps=8, stages=3)
    if asked.M is None and not (isinstance(rule, Mapping) and {*get(asked.schedule).blocks} <= {*rule}):
        tiles = _offered(asked)
        rule, options = {**tiles.blocks, **(rule if isinstance(rule, Mapping) else {})}, tiles.options
    counted = in_powers_of_two(asked.schedule, blocks=rule, **asked.counting)
    program, factor = asked.program(counted.dims)
    sizes = {**counted.dims, **counted.blocks}
    options |= {name: given for name, given in (("warps", warps), ("stages", stages)) if given is not None}
    if stages is not None:
        _check_stages(asked, counted, options["warps"], stages)
    return triton(program, sizes, asked.dtype, asked.mask, scale=factor, **options), counted


def _offered(asked: _Asked) -> Tiling:
    """The tiles of a schedule's Triton kernels that `advise` tries first for these sizes.

    Raises:
        UsageError: it tries none.
    """
    from pebblesim.advice.tiles import TILINGS, Tiling
    from pebblesim.kernels.domains import Call

    call = Call(asked.dims, asked.mask, dtype=asked.dtype)
    known = [each for tilings in TILINGS.values() for each in tilings if each.schedule == asked.schedule]
    why = [each.refusal(call) for each in known]
    if None in why:
        return known[why.index(None)]
    said = f"{asked.schedule} has no tiles for Triton kernels of these sizes that were measured"
    refused = max(known, key=Tiling.generality).refusal(call) if known else None
    reason = f": {refused.why}" if refused else ""
    raise UsageError(f"{said}{reason}; give -M, or each --block.")


def _check_stages(asked: _Asked, counted: Counted, warps: int, stages: int) -> None:
    """Refuse more stages than the shared memory of any card has room for."""
    from pebblesim.advice.cards import cards
    from pebblesim.advice.launch_costs import launch_costs
    from pebblesim.advice.tiles import Tiling

    most = max(card.size("shared_per_block") for card in cards().values())
    for cost in launch_costs(
        Tiling(asked.schedule, counted.blocks, warps, stages), counted.dims, asked.dtype, mask=asked.mask
    ):
        if cost.storage.shared > most:
            raise UsageError(
                f"with {stages:,} stages a block of {cost.name} holds {cost.storage.shared:,} bytes in shared memory, "
                f"and no card has more than {most:,}; take fewer --stages, or smaller blocks with --block."
            )


def _gluon(asked: _Asked, stages: int | None, persistent: bool | None) -> tuple[Source, Counted]:
    from pebblesim.advice.tiles import hopper_tiling
    from pebblesim.counting.count import count
    from pebblesim.kernels.gluon.block import SHARED
    from pebblesim.kernels.gluon.gluon import gluon
    from pebblesim.language.registry import get

    most = SHARED // 2 + REGISTERS  # words of 16 bits
    if asked.M is not None and most < asked.M:
        raise UsageError(
            f"-M {asked.M} is more than a block of a Hopper card has on chip: {most:,} words, "
            f"{SHARED // 1024} KiB of shared memory and {REGISTERS:,} registers; give -M {most} or less."
        )
    rule = asked.rule
    if isinstance(rule, str):
        tiles = hopper_tiling(asked.schedule, asked.dims)
        rule, stages = tiles.blocks, stages or tiles.stages
        persistent = tiles.options_under(asked.mask)["persistent"] if persistent is None else persistent
    elif not set(get(asked.schedule).blocks) <= set(rule):  # the rest is what was measured, not what fills M
        rule = {**hopper_tiling(asked.schedule, asked.dims).blocks, **rule}
    counted = count(asked.schedule, blocks=rule, **asked.counting)
    if asked.M is not None and counted.peak_words > asked.M:
        blocks = listed(counted.blocks)
        raise UsageError(
            f"{asked.schedule} with {blocks} has {counted.peak_words:,} words on chip at once, and -M is {asked.M:,}; "
            f"give -M {counted.peak_words} or more, or smaller blocks with --block."
        )
    program, factor = asked.program(counted.dims)
    sizes = {**counted.dims, **counted.blocks}
    ring: dict[str, Any] = {"stages": stages or 2, "persistent": bool(persistent)}
    return gluon(program, sizes, asked.dtype, asked.mask, scale=factor, **ring), counted


def _added(asked: _Asked, counted: Counted) -> dict[str, int]:
    """Words that a head's count reads only to add to them, which memory does by itself."""
    from pebblesim.kernels.additions import read_to_be_added_to

    program, _ = asked.program(counted.dims)
    return read_to_be_added_to(program, {**counted.dims, **counted.blocks}, asked.mask)


def _give(text: str, summary: str, output: Path | None, data: Mapping[str, Any] | None) -> None:
    """Write a source to a file, if one is named; then print `data` if there is any, else the source or its summary."""
    if output is not None:
        with whole_file(output, f"{str(output)!r} cannot be written") as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    if data is not None:
        print_json(data)
    elif output is None:
        print(text)
    else:
        say(f"written   {output}: {summary}")
