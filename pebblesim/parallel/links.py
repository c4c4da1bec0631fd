"""Links between devices, and the time that a schedule takes over them: a latency for each message, and a rate.

A device has two classes of links: to devices of its own machine, and to those of others. Messages of a class follow
each other, the classes work at the same time. In each direction a device's links carry as many words as it moves: what
it receives of others, others receive of it. The products take the device's peak rate; slower ones hide more.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.parallel.count import Moved
from pebblesim.parallel.schedules import AT_ONCE


@dataclass(frozen=True)
class Link:
    """A link of one device.

    Attributes:
        name: such as NVLink 4.
        bandwidth: bytes per second in one direction.
        latency: seconds for a message.
        sources: where these figures are from.
    """

    name: str
    bandwidth: float
    latency: float
    sources: tuple[str, str]

    def seconds(self, messages: int, size: float) -> float:
        """Return the time of some messages of `size` bytes together."""
        return messages * self.latency + size / self.bandwidth


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("pebblesim.parallel") / "links.toml").read_text(encoding="utf-8"))


def inside(card: str) -> str | None:
    """Return the name of the link inside a machine of this card, or None if it is not known."""
    found: str | None = _table()["inside"].get(card)
    return found


@cache
def links() -> Mapping[str, Link]:
    """Return all links, by name."""
    data = {name: each for name, each in _table().items() if name not in ("sources", "inside")}
    sources = _table()["sources"]
    return {
        name: Link(
            name,
            each["bandwidth"]["value"],
            each["latency"]["value"],
            (sources[each["bandwidth"]["source"]], sources[each["latency"]["source"]]),
        )
        for name, each in data.items()
    }


def link(name: str) -> Link:
    """Return a link.

    Raises:
        UnknownName: there is none of this name.
    """
    if name not in links():
        raise UnknownName("link", name, links())
    return links()[name]


@dataclass(frozen=True)
class Network:
    """Machines of devices, and how fast these compute.

    Attributes:
        inside, between: links to devices of the same machine, and of others.
        in_machine: devices in a machine; they have consecutive numbers.
        rate: operations per second of a device, a multiplication and an addition counted as two.
        word: bytes of a word; statistics of rows count as one, too.

    Raises:
        UsageError: a number is not positive.
    """

    inside: Link
    between: Link
    in_machine: int
    rate: float
    word: int

    def __post_init__(self) -> None:
        for name in ("in_machine", "rate", "word"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} = {getattr(self, name)} was given; it must be more than 0.")

    def __str__(self) -> str:
        return (
            f"{self.in_machine} devices in a machine, {self.inside.name} ({self.inside.bandwidth / 1e9:.0f} GB/s) "
            f"inside, {self.between.name} ({self.between.bandwidth / 1e9:.0f} GB/s) between machines, "
            f"{self.rate / 1e12:.0f} TFLOP/s"
        )


class Times(NamedTuple):
    """Seconds of the busiest device: its products, its transfers, and the part of these that products do not hide."""

    products: float
    transfers: float
    exposed: float


class _Step(NamedTuple):
    seconds: float
    products: float
    """The seconds of products that are computed meanwhile."""


def times(moved: Moved, network: Network) -> Times:
    """Return the times of a schedule.

    Words that go round travel while those before them are used. If all arrive at once, pairs of own rows and own keys
    are computed meanwhile, and sums leave at the end.

    Raises:
        UsageError: the schedule has passes; for these there is no time.
    """
    if moved.schedule.order.in_passes:
        raise UsageError(f"{moved.schedule.name} has no time here: its passes depend on the memory's own transfers.")
    team = moved.layout.team
    operations = 2 * (3 * team.d_k + 2 * team.d_v if team.backward else team.d_k + team.d_v)
    products = operations * moved.most_pairs / network.rate
    steps = list(
        _at_once(moved, network, products) if moved.schedule.order == AT_ONCE else _round(moved, network, products)
    )
    exposed = sum(max(0.0, step.seconds - step.products) for step in steps)
    return Times(products, sum(step.seconds for step in steps), exposed)


def _at_once(moved: Moved, network: Network, products: float) -> list[_Step]:
    """All inputs of others arrive, and all sums leave."""
    layout, p = moved.layout, moved.busiest
    team, share, traffic = layout.team, layout.shares[p], layout.team.traffic
    row_in, key_in = sum(traffic.rows_in.values()), sum(traffic.keys_in.values())
    row_out, key_out = sum(traffic.rows_out.values()), sum(traffic.keys_out.values())
    arriving, leaving = dict[int, int](), dict[int, int]()
    for q in layout.row_owners(p):
        rows = len(share.heads) * layout.needed(team.own_rows[q], share.keys, True).number
        arriving[q], leaving[q] = rows * row_in, rows * row_out
    for q in layout.key_owners(p):
        keys = len(share.kv_heads) * layout.needed(team.own_keys[q], share.rows, False).number
        arriving[q], leaving[q] = arriving.get(q, 0) + keys * key_in, leaving.get(q, 0) + keys * key_out
    own = team.own_rows[p].number * team.own_keys[p].number / max(1, share.rows.number * share.keys.number)
    return [
        _Step(_seconds(arriving, p, network), own * products),
        _Step(_seconds(leaving, p, network), 0.0),
    ]


def _seconds(words: Mapping[int, int], p: int, network: Network) -> float:
    """The time for words to, or from, each other device."""
    found = []
    for one, near in ((network.inside, True), (network.between, False)):
        sizes = [
            size * network.word
            for q, size in words.items()
            if q != p and size and (q // network.in_machine == p // network.in_machine) is near
        ]
        found.append(one.seconds(len(sizes), sum(sizes)))
    return max(found)


def _round(moved: Moved, network: Network, products: float) -> list[_Step]:
    """A message in each step; with several machines some device waits for another machine, and so do all."""
    assert moved.schedule.order.piece == "device"
    far = network.inside if network.in_machine >= moved.layout.team.P else network.between
    steps = moved.by_step(moved.busiest)
    return [_Step(far.seconds(1, words * network.word), products / (len(steps) + 1)) for words in steps]
