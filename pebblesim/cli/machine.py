"""Draw a machine: `machine`."""

from __future__ import annotations

from typing import Annotated

from pebblesim.cli.completion import machines
from pebblesim.cli.options import AsJson, argument, command, family
from pebblesim.cli.printing import print_json, say

app = family()


@command(app, example="pebblesim machine H100")
def machine(
    name: Annotated[
        str, argument("A card, such as H100, another machine, such as TPUv5e, or FILE.toml.", values=machines)
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Draw a machine: its memories, with capacities, bandwidths and energies, and their sources."""
    from pebblesim.machines.named import machine as find

    found = find(name)
    if as_json:
        print_json(found.to_dict())
        return
    say(found)
