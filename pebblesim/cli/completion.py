"""Shell completion: the values of each option and argument that has a closed set of values.

A value that ends with a colon, such as "window:", must be followed by a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

Values = Callable[[], Iterable[str]]


def one_of(values: Values) -> Callable[[str], list[str]]:
    """The function that Typer asks: those values that begin with what is typed, the last one of a list with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in values() if value.startswith(last)]

    return complete


def schedules() -> Iterable[str]:
    from pebblesim.language.registry import SCHEDULES

    return SCHEDULES


def problems() -> Iterable[str]:
    from pebblesim.language.problems import PROBLEMS

    return PROBLEMS


def sources() -> Iterable[str]:
    """Return problems and generators: the names that have a graph."""
    from pebblesim.dags.generators import GENERATORS

    return [*problems(), *GENERATORS]


def boards() -> Iterable[str]:
    """All that can be watched."""
    return [*schedules(), *sources()]


def block_rules() -> Iterable[str]:
    from pebblesim.analysis.blocks import RULES

    return RULES


def rules() -> Iterable[str]:
    """Rules under which schedules are played."""
    from pebblesim.game.referee import BY_TERM

    return [name for name in all_rules() if name not in BY_TERM]


def all_rules() -> Iterable[str]:
    from pebblesim.game.referee import RULES

    return RULES


def rules_of_optima() -> Iterable[str]:
    from pebblesim.dags.optimum import RULES

    return RULES


def types() -> Iterable[str]:
    from pebblesim.core.sizes import BYTES

    return BYTES


def policies() -> Iterable[str]:
    from pebblesim.cachesim.policies import POLICIES

    return POLICIES


def formats() -> Iterable[str]:
    from pebblesim.dags.formats import FORMATS

    return FORMATS


def cards() -> Iterable[str]:
    from pebblesim.gpu.advice.cards import cards as known

    return known()


def results() -> Iterable[str]:
    from pebblesim.sweeps.rows import RESULTS

    return RESULTS


def orders() -> Iterable[str]:
    from pebblesim.cachesim.l2 import ORDERS

    return [f"{name.partition(':')[0]}:" if ":" in name else name for name in ORDERS.replace(" or ", ", ").split(", ")]


def parallel_schedules() -> Iterable[str]:
    """Schedules on many devices."""
    from pebblesim.parallel.schedules import SCHEDULES

    return SCHEDULES


def ownerships() -> Iterable[str]:
    from pebblesim.parallel.tokens import OWNERSHIPS

    return OWNERSHIPS


def links() -> Iterable[str]:
    """Links between devices."""
    from pebblesim.parallel.links import links as known

    return known()


MASKS: Final = ("causal", "window:", "band:", "lengths:", "bigbird:")
BANDS: Final = MASKS[:3]

BY_NAME: Final[dict[str, Values]] = {
    "--problem": problems,
    "--schedule": schedules,
    "--blocks": block_rules,
    "--rules": rules,
    "--summation": lambda: ("chain", "balanced", "blocked:", "in-place"),
    "--mask": lambda: MASKS,
    "--dtype": types,
    "--order": orders,
    "--ownership": ownerships,
    "--policy": policies,
    "--format": formats,
    "--gpu": cards,
    "--target": lambda: ("cuda", "triton", "gluon"),
    "--what": results,
    "--by": lambda: ("tensor", "phase"),
    "--inside": links,
    "--between": links,
}
"""The values that an option of this name takes, unless a command says otherwise."""
