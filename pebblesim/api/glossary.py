"""The glossary: each tensor of a problem with its shape, formula and meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result
from pebblesim.core.tables import in_columns
from pebblesim.language.problems import Problem, problem

WORD: Final = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class Entry:
    """A tensor of a problem.

    Attributes:
        name: name in pseudo-code, graphs and tables.
        role: "input", "kept" (an input that only some schedules need), "output", or "" for an intermediate.
        shape: names of its dimensions; empty if the problem does not declare a shape.
        formula: its formula; empty for an input.
        meaning: its meaning, in one line.
    """

    name: str
    role: str
    shape: tuple[str, ...]
    formula: str
    meaning: str

    def __str__(self) -> str:
        """Return the formula, if there is one, and the meaning."""
        return f"{self.name} = {self.formula}: {self.meaning}" if self.formula else f"{self.name}: {self.meaning}"


class Glossary(tuple[Entry, ...], Result):
    """Entries of a glossary; it prints one line for each."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a row for each entry."""
        return {"rows": [{**asdict(entry), "shape": [*entry.shape]} for entry in self]}

    def __str__(self) -> str:
        cells = [
            (entry.name, " × ".join(entry.shape), f"= {entry.formula}" if entry.formula else entry.role, entry.meaning)
            for entry in self
        ]
        return "\n".join(in_columns(cells))


@checked_kinds()
def glossary(of: str | Problem, names: Iterable[str] | None = None) -> Glossary:
    """List the tensors of a problem, inputs first.

    Args:
        of: the problem, or its name.
        names: names of tensors, in the wanted order; by default all. Unknown names are left out.

    Returns:
        A tuple with an entry for each: `name`, `role`, `shape`, `formula` and `meaning`.

    >>> print(glossary("backward", ["p"])[0])
    p = f ∘ q − diag(v) f: gradient with respect to the scores Z

    Raises:
        UnknownName: the problem is not known.
    """
    solves = of if isinstance(of, Problem) else problem(of).rectangle or problem(of)
    roles = dict.fromkeys(solves.extra, "output") | dict.fromkeys(solves.kept, "kept")
    roles |= dict.fromkeys(solves.inputs, "input") | dict.fromkeys(solves.outputs, "output")
    shapes = {**solves.extra, **solves.kept, **solves.inputs, **solves.outputs}
    if names is None:
        rank = ("input", "kept", "", "output")
        names = sorted(solves.glossary, key=lambda name: rank.index(roles.get(name, "")))
    known = (name for name in names if name in solves.glossary)
    return Glossary(Entry(name, roles.get(name, ""), shapes.get(name, ()), *solves.glossary[name]) for name in known)


def named_in(text: str, of: Problem) -> Glossary:
    """Return the tensors of a problem that a pseudo-code names, in order of appearance; S_ij and S_i are tiles of S."""
    words = (re.sub(r"_[a-z]{1,2}$", "", word) if word not in of.glossary else word for word in WORD.findall(text))
    return glossary(of, dict.fromkeys(words))


def parts_of_sums() -> Mapping[str, tuple[str, str]]:
    """For each kind of vertex of a sum: an example of its name in a game, and its meaning."""
    from pebblesim.graphs.summation import PARTS

    return {str(kind): texts for kind, texts in PARTS.items()}
