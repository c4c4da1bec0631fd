"""`pebblesim advise`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pebblesim.cli.completion import problems
from pebblesim.cli.options import AsJson, Block, BlockChoice, HeadChoice, MaskText, Sizes, command, family, option
from pebblesim.cli.printing import print_json, say, show
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import DTYPE_ON_MACHINES

app = family()


@command(app, "advise", example="pebblesim advise --gpu H200 -n 8192 -d 128 --dtype bf16 --explain")
def advise(
    gpu: Annotated[str | None, option("--gpu", "A known card, such as H200, or one calibrated here.", "NAME")] = None,
    card: Annotated[Path | None, option("--card", "A TOML file that describes another card.", "FILE")] = None,
    on_machine: Annotated[
        str | None,
        option("--machine", "Compare all schedules on a path of memories instead: a card, or FILE.toml.", "NAME"),
    ] = None,
    *,
    sizes: Sizes,
    dtype: Annotated[
        str | None,
        option("--dtype", "Data type of a word: bf16, fp16, fp32, …; by default bf16 if there are kernels, else fp32."),
    ] = None,
    problem: Annotated[str | None, option("--problem -p", "The problem; forward by default.", values=problems)] = None,
    backward: Annotated[bool, option("--backward", "Short for --problem backward-qkv (dQ, dK and dV).")] = False,
    block: Block = None,
    heads: HeadChoice,
    mask: MaskText = None,
    workspace: Annotated[
        str | None,
        option("--workspace", "Memory of the card that stored score matrices may take, such as 256MiB.", "BYTES"),
    ] = None,
    why: Annotated[
        bool, option("--why", "Also print all kernels and tiles, words moved, lower bounds, and the roofline.")
    ] = False,
    explain: Annotated[bool, option("--explain", "Explain the I/O, term by term of the closed form.")] = False,
    orders: Annotated[
        bool, option("--orders", "Replay the fastest schedule through the L2 cache, and name the best launch order.")
    ] = False,
    sources: Annotated[bool, option("--sources", "Name the sources of the card's figures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which attention to call on a card, its time, and the measured times of others; with --why, the reasons."""
    from pebblesim.advice.advise import advise as ask
    from pebblesim.core.sizes import parse_bytes

    if backward and problem:
        raise UsageError(
            f"--backward means --problem backward-qkv, but --problem {problem} was given too; use one of them."
        )
    solves = ("backward-qkv" if backward else "forward") if problem is None else problem
    if on_machine is not None:
        others = {"--gpu": gpu, "--card": card, "--block": block, "--workspace": workspace, "--why": why}
        others |= {"--explain": explain, "--orders": orders, "--sources": sources}
        if given := [name for name, value in others.items() if value]:
            raise UsageError(f"--machine compares all schedules of a problem; leave out {', '.join(given)}.")
        shape = {"mask": mask, **heads.arguments, **sizes.dims}
        _on_machine(solves, on_machine, dtype or DTYPE_ON_MACHINES, shape, as_json)
        return
    blocks = BlockChoice(block=block).rule if block else None
    assert not isinstance(blocks, str)
    advice = ask(
        gpu,
        dtype=dtype,
        problem_name=solves,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        batch=heads.batch,
        separate=heads.arguments["separate"],
        mask=mask,
        card=card,
        blocks=blocks,
        workspace=None if workspace is None else parse_bytes("workspace", workspace),
        **sizes.dims,
    )
    tried = None
    if orders:
        from pebblesim.advice.orders import orders as try_orders

        tried = try_orders(advice)
    if as_json:
        print_json(advice.to_dict(explain) | ({} if tried is None else {"orders": tried.to_dict()}))
        return
    show(*advice.parts(), *(["", *advice.details()] if why else []))
    if not why:
        say("(--why adds: all kernels and tiles, the words that they move, lower bounds, the roofline)")
    if explain:
        say(f"\n{advice.explain()}")
    if tried is not None:
        show("", *tried.parts())
    if sources:
        say("")
        for name, figure in (*advice.card.figures.items(), *((f"peak {k}", v) for k, v in advice.card.peak.items())):
            say(f"{name} = {figure.value:,.6g}: {figure.source}")


def _on_machine(problem: str, name: str, dtype: str, shape: dict[str, Any], as_json: bool) -> None:
    """Compare the schedules of a problem on a machine."""
    from pebblesim.machines.choosing import choose

    found = choose(problem, machine=name, dtype=dtype, **shape)
    if as_json:
        print_json(found.to_dict())
    else:
        show(*found.parts())
