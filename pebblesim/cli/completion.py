"""Shell completion: the values of each option and argument that has a closed set of values.

A value that ends with a colon, such as "window:", must be followed by a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final

Values = Callable[[], Iterable[str]]


def one_of(values: Values) -> Callable[[str], list[str]]:
    """The function that Typer asks: those values that begin with what is typed, the last one of a list with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in values() if value.startswith(last)]

    return complete


def names_in(module: str, name: str) -> Values:
    """The names in a registry of the package, or those that a function of it returns; imported when they are asked."""

    def known() -> Iterable[str]:
        found: Iterable[str] | Values = getattr(import_module(f"pebblesim.{module}"), name)
        return found() if callable(found) else found

    return known


schedules = names_in("language.registry", "SCHEDULES")
problems = names_in("language.problems", "PROBLEMS")
generators = names_in("dags.generators", "GENERATORS")
all_rules = names_in("game.referee", "RULES")
by_term = names_in("game.referee", "BY_TERM")
rules_of_optima = names_in("dags.optimum", "RULES")
parallel_schedules = names_in("parallel.schedules", "SCHEDULES")
links = names_in("parallel.links", "links")
launch_orders = names_in("cachesim.l2", "ORDERS")
statements = names_in("claims.cited", "names")
cards = names_in("advice.cards", "cards")
_own_machines = names_in("machines.named", "machines")


def machines() -> Iterable[str]:
    """Return machines with a name: cards, and those that come with pebblesim."""
    return [*cards(), *_own_machines()]


def sources() -> Iterable[str]:
    """Return problems and generators: the names that have a graph."""
    return [*problems(), *generators()]


def boards() -> Iterable[str]:
    """All that can be watched."""
    return [*schedules(), *sources()]


def rules() -> Iterable[str]:
    """Rules under which schedules are played."""
    return [name for name in all_rules() if name not in by_term()]


def orders() -> Iterable[str]:
    """Orders in which thread blocks start, as the errors of `--order` list them."""
    listed = "".join(launch_orders()).replace(" or ", ", ").split(", ")
    return [f"{name.partition(':')[0]}:" if ":" in name else name for name in listed]


MASKS: Final = ("causal", "window:", "band:", "lengths:", "bigbird:")
BANDS: Final = MASKS[:3]

BY_NAME: Final[dict[str, Values]] = {
    "--problem": problems,
    "--schedule": schedules,
    "--blocks": names_in("analysis.blocks", "RULES"),
    "--rules": rules,
    "--summation": lambda: ("chain", "balanced", "blocked:", "in-place"),
    "--mask": lambda: MASKS,
    "--dtype": names_in("core.sizes", "BYTES"),
    "--order": orders,
    "--ownership": names_in("parallel.tokens", "OWNERSHIPS"),
    "--policy": names_in("cachesim.policies", "POLICIES"),
    "--format": names_in("dags.formats", "FORMATS"),
    "--gpu": cards,
    "--target": lambda: ("cuda", "triton", "gluon", "package"),
    "--what": names_in("sweeps.rows", "RESULTS"),
    "--by": lambda: ("tensor", "phase"),
    "--inside": links,
    "--between": links,
}
"""The values that an option of this name takes, unless a command says otherwise."""
