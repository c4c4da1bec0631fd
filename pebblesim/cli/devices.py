"""`pebblesim devices`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pebblesim.cli.completion import parallel_schedules
from pebblesim.cli.options import AsJson, Sizes, argument, command, family, option, output_file, words_in
from pebblesim.cli.printing import print_json, show
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.sizes import parse_size

if TYPE_CHECKING:
    from pebblesim.parallel.devices import Devices
    from pebblesim.parallel.links import Network

app = family()


@command(app, "devices", example="pebblesim devices -n 1M -d 128 --heads 64 --kv-heads 8 -P 256")
def devices(
    schedules: Annotated[
        list[str] | None, argument("Schedules, such as ring or tiles; by default all.", values=parallel_schedules)
    ] = None,
    *,
    sizes: Sizes,
    p: Annotated[str, option("-P", "Number of devices.", "P")],
    heads: Annotated[int, option("--heads", "Query heads.", "H", min=1)] = 1,
    kv_heads: Annotated[
        int | None, option("--kv-heads", "KV heads; by default as many as query heads.", "G", min=1)
    ] = None,
    m: Annotated[
        str | None, option("-M", "Memory of a device: words, or bytes such as 64GiB with --dtype.", "WORDS")
    ] = None,
    dtype: Annotated[
        str | None, option("--dtype", "Data type of a word: float32, bfloat16, …; adds a column of bytes.")
    ] = None,
    backward: Annotated[bool, option("--backward", "The backward pass: dQ, dK and dV.")] = False,
    mask: Annotated[
        str | None, option("--mask", "causal; without it all pairs.", "MASK", values=lambda: ("causal",))
    ] = None,
    ownership: Annotated[
        str | None, option("--ownership", "Who owns which tokens: contiguous, zig-zag or striped.", "NAME")
    ] = None,
    latent: Annotated[
        bool, option("--latent", "Values are the first d_v columns of the keys; give --size d_k and d_v.")
    ] = False,
    gpu: Annotated[
        str | None, option("--gpu", "Also forecast times, with the peak rate of this card: A100, H100, …", "NAME")
    ] = None,
    in_machine: Annotated[
        int | None, option("--machine", "For times: devices in one machine; 8 by default.", "N", min=1)
    ] = None,
    inside: Annotated[
        str | None, option("--inside", "For times: links inside a machine; by default the card's.", "LINK")
    ] = None,
    between: Annotated[
        str | None,
        option("--between", "For times: link of each device to other machines; InfiniBand NDR by default.", "LINK"),
    ] = None,
    output: Annotated[
        Path | None,
        output_file(
            "--output -o",
            "A picture over P, powers of two up to P, of words, or of times with --gpu: .png, .svg or .pdf.",
            "FILE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the words that each of P devices moves in attention on one sequence, under each schedule."""
    from pebblesim.parallel.devices import devices as compare

    if unknown := set(sizes.dims) - {"n", "d", "n_q", "n_k", "d_k", "d_v"}:
        raise UsageError(f"--size {min(unknown)}=… was given; devices has the sizes n_q, n_k, d_k and d_v.")
    of_times = {"--machine": in_machine, "--inside": inside, "--between": between}
    if gpu is None and (given := [name for name, value in of_times.items() if value is not None]):
        raise UsageError(
            f"{' and '.join(given)} {'are' if given[1:] else 'is'} for times; give a card, too, with --gpu."
        )
    run = partial(
        compare,
        schedules or None,
        **sizes.dims,
        heads=heads,
        kv_heads=kv_heads,
        M=words_in(m, dtype, typed=True),
        backward=backward,
        mask=mask,
        ownership=ownership,
        latent=latent,
        dtype=dtype or (None if gpu is None else "bf16"),
        network=None
        if gpu is None
        else _network(gpu, dtype or "bf16", in_machine or 8, inside, between or "InfiniBand NDR"),
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


def _network(gpu: str, dtype: str, in_machine: int, inside: str | None, between: str) -> Network:
    """The card's peak rate, its links in a machine, and those between machines.

    Raises:
        UsageError: a card or link is not known, or the card has no peak rate for this type.
    """
    from pebblesim.advice.cards import card, cards
    from pebblesim.core.sizes import bytes_of, dtype_of
    from pebblesim.parallel.links import Network, inside as inside_of, link, links

    found, name = card(gpu), dtype_of(dtype)
    key = next((key for key, each in cards().items() if each is found), "")
    if name not in found.peak:
        raise UsageError(f"no peak rate of {found.name} is known for {dtype}; known are {', '.join(found.peak)}.")
    if (near := inside or inside_of(key)) is None:
        raise UsageError(
            f"the links inside a machine of {found.name} are not known; --inside takes {', '.join(links())}."
        )
    return Network(link(near), link(between), in_machine, found.peak[name].value, bytes_of(dtype))


def _draw(run: Callable[..., Devices], most: int, output: Path) -> None:
    """Draw the words, or times, over P = 2, 4, 8, … up to `most`, of the schedules that are possible for each.

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
