"""Machines by name: cards of the table of cards, machines that come with pebblesim, and users' files."""

from __future__ import annotations

from pathlib import Path

from pebblesim.advice.cards import UnknownCard, card
from pebblesim.core.errors import UsageError
from pebblesim.machines.files import from_file
from pebblesim.machines.machine import Level, Machine

HERE = Path(__file__).parent
"""The folder of the files of machines that come with pebblesim, named as they are asked for."""


def machines() -> list[str]:
    """Return the names of the machines that come with pebblesim, beside the cards."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def machine(name: str) -> Machine:
    """Return the machine of a file that ends in .toml, one that comes with pebblesim, or a multiprocessor of a card.

    The path of a card is that of one multiprocessor: what lies beyond it, its shared memory, its registers. Rates are
    those of all multiprocessors together, as if what they do passed through one.

    Raises:
        UsageError: the file cannot be read, or lacks an entry; or the card is not known, or its registers are not.
    """
    if name.endswith(".toml"):
        return from_file(Path(name))
    for known in machines():
        if name.casefold() == known.casefold():
            return from_file(HERE / f"{known}.toml")
    try:
        model = card(name)
    except UnknownCard as error:
        raise UsageError(
            f"no machine is called {name!r}; known: {', '.join((*error.known, *machines()))}; describe another one in "
            "a file and give its name, such as mine.toml (docs/machines.md)."
        ) from None
    missing = [key for key in ("shared_per_multiprocessor", "registers") if key not in model.figures]
    if missing:
        raise UsageError(
            f"the table of cards lacks {' and '.join(missing)} of {model.name}; describe its memories in a file, as "
            "docs/machines.md shows."
        )
    shared, registers = (model.figures[key] for key in ("shared_per_multiprocessor", "registers"))
    rate = model.figures.get("l2_bandwidth")
    source = shared.source if rate is None else f"{shared.source}; bandwidth: {rate.source}"
    return Machine(
        f"a multiprocessor of {model.name}",
        "L2 and memory",
        (
            Level("shared memory", int(shared.value), None, None if rate is None else rate.value, None, source),
            Level("registers", int(registers.value), source=registers.source),
        ),
        {dtype: figure.value for dtype, figure in model.peak.items()},
        "; ".join(dict.fromkeys(figure.source for figure in model.peak.values())),
    )
