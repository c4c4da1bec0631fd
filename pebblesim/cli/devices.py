"""`pebblesim devices`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pebblesim.cli.completion import one_of, parallel_schedules
from pebblesim.cli.options import AsJson, Sizes, command, family
from pebblesim.cli.printing import print_json, show
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.sizes import parse_size, parse_words

if TYPE_CHECKING:
    from pebblesim.parallel.devices import Devices

app = family()


@command(app, "devices", example="pebblesim devices -n 1M -d 128 --heads 64 --kv-heads 8 -P 256")
def devices(
    schedules: Annotated[
        list[str] | None,
        typer.Argument(
            help="Schedules, such as ring or tiles; all if none.", autocompletion=one_of(parallel_schedules)
        ),
    ] = None,
    *,
    sizes: Sizes,
    p: Annotated[str, typer.Option("-P", help="Devices.", metavar="DEVICES")],
    heads: Annotated[int, typer.Option("--heads", help="Heads of queries.", min=1)] = 1,
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", help="Heads of keys and values; by default as many as heads.", min=1)
    ] = None,
    m: Annotated[
        str | None,
        typer.Option("-M", help="Memory of a device: words, or bytes such as 64GiB with --dtype.", metavar="WORDS"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Type of a word: float32, bfloat16, …; adds a column of bytes.")
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", help="The backward pass: dQ, dK and dV.")] = False,
    mask: Annotated[
        str | None,
        typer.Option("--mask", help="causal, or none.", metavar="MASK", autocompletion=one_of(lambda: ("causal",))),
    ] = None,
    ownership: Annotated[
        str | None,
        typer.Option("--ownership", help="Who owns which tokens: contiguous, zig-zag or striped.", metavar="NAME"),
    ] = None,
    latent: Annotated[
        bool, typer.Option("--latent", help="Values are the first d_v columns of the keys; give --size d_k and d_v.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A picture of the words over P, for powers of two up to P: .png, .svg or .pdf.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the words that each of P devices moves in attention on one sequence, under each schedule."""
    from pebblesim.parallel.devices import devices as compare

    run = partial(
        compare,
        schedules or None,
        **sizes.dims,
        heads=heads,
        kv_heads=kv_heads,
        M=None if m is None else parse_words(m, dtype),
        backward=backward,
        mask=mask,
        ownership=ownership,
        latent=latent,
        dtype=dtype,
    )
    devices = parse_size("P", p)
    if output is not None:
        from pebblesim.views.plots.style import check

        check(output)
    result = run(P=devices)
    if output is not None:
        _draw(run, devices, output)
    if as_json:
        print_json(result.to_dict())
    else:
        show(*result.parts())


def _draw(run: Callable[..., Devices], most: int, output: Path) -> None:
    """Draw the words over P = 2, 4, 8, … up to `most`, of the schedules that are possible for each.

    Raises:
        UsageError: there is only one device, or no schedule is possible for any P.
    """
    from pebblesim.views.plots.devices import figure
    from pebblesim.views.plots.style import save

    found = []
    for P in (2**k for k in range(1, most.bit_length()) if 2**k <= most):
        with suppress(UsageError, Infeasible):
            found.append(run(P=P))
    if not found:
        raise UsageError(f"P = {most} was given; a picture over P needs 2 devices or more, and a schedule for some P.")
    save(lambda empty: figure(found, empty), output)
