"""All theorems on the least I/O in one table: where each holds, where its proof is, and what it was compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pebblesim.claims.evidence import Record, recorded
from pebblesim.core.results import plain
from pebblesim.language.masks import of
from pebblesim.language.problems import PROBLEMS, Problem
from pebblesim.lower_bounds.bounds import SIZES, Form, LowerBound, claimed

PROOFS = "docs/lower-bounds.md §4"


@dataclass(frozen=True)
class Theorem:
    """A lower bound on the I/O of one problem, for every M, with recomputation and for all summation trees.

    Attributes:
        name: its name in docs/lower-bounds.md.
        problem: the problem.
        ways: the ways of computing for which it is proved; empty if the problem has one.
        counts: what it counts.
        forms: its closed forms with n queries and n keys, each with the M for which it is the bound's form.
        rectangles: whether it holds for n_q ≠ n_k and d_k ≠ d_v, none of them above d; None if the problem has no such
            sizes.
        masks: whether it holds under a mask; None if the problem has no pairs.
        record: what it was compared with; None if nothing is recorded.
    """

    name: str
    problem: str
    ways: tuple[str, ...]
    counts: str
    forms: tuple[Form, ...]
    rectangles: bool | None
    masks: bool | None
    record: Record | None

    @property
    def proof(self) -> str:
        """Place of the proof in the documents."""
        return f"{PROOFS}, {self.name}"

    @property
    def domain(self) -> str:
        """Say for which sizes it is proved, besides the M of its forms."""
        sides = {True: "every n_q and n_k", False: "n_q = n_k, d_k = d_v", None: ""}[self.rectangles]
        pairs = {True: "every mask", False: "no mask", None: ""}[self.masks]
        return "; ".join(filter(None, (sides, pairs))) or "all sizes"

    @property
    def evidence(self) -> str:
        """Say what it was compared with."""
        return "no comparison" if self.record is None else str(self.record)

    def to_dict(self) -> dict[str, Any]:
        """Return its row of `pebblesim bounds --all --json`."""
        row = plain(self, "problem", "ways", "counts", "forms", "rectangles", "masks")
        return {"theorem": self.name, **row, "recomputation": True, **plain(self, "proof", evidence="record")}


def theorems(problems: Iterable[Problem] | None = None) -> list[Theorem]:
    """Return the theorems of some problems; of all built-in ones by default."""
    return [theorem for solves in (PROBLEMS.values() if problems is None else problems) for theorem in _of(solves)]


def _of(solves: Problem) -> Iterator[Theorem]:
    """Yield the theorems of a problem, each with all ways in which it has the same forms."""
    square = {dim: SIZES[kind] for dim, kind in solves.from_nd.items()}
    here = _claimed(solves, square)
    several = len({way for way, _ in here}) > 1
    wide, masked = _rectangle(solves), None
    if solves.maskable:
        masked = {(way, bound.name) for way, bound in _claimed(solves, square, "causal")}
    rows: dict[tuple[str, tuple[Form, ...]], list[tuple[str, LowerBound]]] = {}
    for way, bound in here:
        rows.setdefault((bound.name, bound.forms), []).append((way, bound))
    for (name, forms), found in rows.items():
        keys = {(way, name) for way, _ in found}
        yield Theorem(
            name,
            solves.name,
            tuple(way for way, _ in found) if several else (),
            found[0][1].source.removeprefix(f"{name}: ").removesuffix(f" ({PROOFS})"),
            forms,
            None if wide is None else keys <= wide,
            None if masked is None else keys <= masked,
            recorded().get(name),
        )


def _claimed(solves: Problem, sizes: Mapping[str, int], mask: str | None = None) -> list[tuple[str, LowerBound]]:
    pairs = None if mask is None else of(mask)
    found = claimed(solves.in_dims(sizes), sizes, 16, pairs)
    return [(way, bound) for way, bounds in found.items() for bound in bounds if bound.name != "compulsory"]


def _rectangle(solves: Problem) -> set[tuple[str, str]] | None:
    """Return what is claimed where no two dimensions are equal; None without a rectangle."""
    if solves.rectangle is None:
        return None
    view, apart = solves.rectangle, {}
    for number, (dim, kind) in enumerate(view.from_nd.items(), 1):
        apart[dim] = SIZES[kind] // (1 if dim == "d" else number + 1)  # what is made from weights has fewer columns
    return {(way, bound.name) for way, bound in _claimed(solves, apart)}


def latex(rows: Iterable[Theorem]) -> str:
    """Return the table as a `longtable` of LaTeX."""
    from pebblesim.core.notation import domain_in_latex, in_latex, text_in_latex

    lines = []
    for row in rows:
        forms = r"\newline ".join(
            rf"${in_latex(form.expr)}$ for ${domain_in_latex(form.domain)}$" for form in row.forms
        )
        cells = (row.name, row.problem, "; ".join(row.ways) or "every", row.counts, row.domain, row.evidence)
        name, problem, ways, counts, domain, evidence = map(text_in_latex, cells)
        lines.append(" & ".join((name, problem, ways, counts, forms, domain, evidence)))
    head = "theorem & problem & way of computing & counts & closed form & holds for & evidence"
    body = " \\\\\n".join(f"  {line}" for line in (head, *lines))
    columns = "lp{2cm}p{2cm}p{2.5cm}p{4.5cm}p{2cm}p{2.5cm}"
    return f"\\begin{{longtable}}{{{columns}}}\n{body}\n\\end{{longtable}}"
