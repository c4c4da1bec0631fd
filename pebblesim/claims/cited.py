"""One theorem for a paper: its statement, its domain, where its proof is, and an entry for BibTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pebblesim.catalogue.literature import SOURCES, STATEMENTS, Statement
from pebblesim.claims.theorems import PROOFS, Theorem, theorems
from pebblesim.core.errors import UnknownName
from pebblesim.core.results import plain

_SOURCE = re.compile(r"(?P<title>.+?)(?:, (?P<where>[A-Z]+) (?P<year>\d{4}))?(?:, arXiv (?P<arxiv>[\d.]+))?")

_SOFTWARE = {
    "author": "{pebblesim maintainers}",
    "title": "{pebblesim: a laboratory for the I/O complexity of attention}",
    "howpublished": "software",
}


class Cited(NamedTuple):
    """A statement in the three forms in which it is printed.

    Attributes:
        text: for people.
        latex: an environment of LaTeX, `theorem`, with what is wrong with it or what it was compared with.
        bibtex: an entry that the environment cites.
        data: for `--json`.
    """

    text: str
    latex: str
    bibtex: str
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim theorems NAME --json`."""
        return {**self.data, "bibtex": self.bibtex}


def cited(name: str) -> list[Cited]:
    """Return a statement of the literature, by its name or title, or one of our theorems, for each of its problems.

    >>> print(cited("Remark 4.7")[0].text)
    Li et al., Remark 4.7: where the two bounds for dense inputs cross
      Θ(d²) for all sizes; standard matrix products
      it assumes n ≫ d, but does not need it: (n²d² + nd³)/(n²d + nd²) is d

    Raises:
        UnknownName: there is no such statement; the message suggests similar names.
    """
    stated = [each for each in STATEMENTS if name in (each.name, each.title)]
    if stated:
        return [_of_the_literature(each) for each in stated]
    ours = theorems()
    proved = [each for each in ours if each.name == name]
    if not proved:
        raise UnknownName("theorem", name, names())
    return [_ours(each) for each in proved]


def names() -> list[str]:
    """Return what `cited` knows: our theorems by name, and the statements of the literature by title."""
    return list(dict.fromkeys([*(each.name for each in theorems()), *(each.title for each in STATEMENTS)]))


def _of_the_literature(one: Statement) -> Cited:
    from pebblesim.core.notation import domain_in_latex, paragraph_in_latex as words

    key = re.sub(r"\W+", "", one.source.split()[0]).lower()
    formula = f" ${one.latex}$" if one.expr else ""
    domain = f" for ${domain_in_latex(one.domain)}$" if one.domain else " for all sizes"
    told = [f"{words(one.about or one.note)}:{formula}{domain}; {words(one.assumes)}."]
    told += [words(f"{each}.") for each in (one.mark, one.note if one.about else "") if each]
    found = _SOURCE.fullmatch(SOURCES[one.source])
    assert found is not None, one.source
    authors = one.source.replace("et al.", "and others").replace("&", "and")
    fields: dict[str, str | None] = {"author": authors, "title": f"{{{found['title']}}}"}
    fields |= {"howpublished": found["where"], "year": found["year"] or _year(found["arxiv"])}
    fields |= {"eprint": found["arxiv"], "archiveprefix": found["arxiv"] and "arXiv"}
    entry = _entry("misc", key, fields)
    return Cited(one.text, _environment(words(one.name), key, told), entry, plain(one, "name", "source", "mark"))


def _ours(one: Theorem) -> Cited:
    from pebblesim.core.notation import IO, domain_in_latex, in_latex, paragraph_in_latex as words, parse, written

    ways = "; ".join(one.ways) or "every way of computing"
    head = f"{one.name}, {one.problem}, {ways}: {one.counts}"
    lines = [f"at least {written(parse(form.expr))} words, for {form.domain}" for form in one.forms]
    rest = [f"{one.domain}; with recomputation, and for every summation tree", f"proof: {one.proof}", one.evidence]
    formulas = ", ".join(
        rf"${IO} \ge {in_latex(form.expr)}$ for ${domain_in_latex(form.domain)}$" for form in one.forms
    )
    told = [f"{words(f'{one.problem}, {ways}, {one.counts}')}: {formulas}.", *(words(f"{line}.") for line in rest)]
    entry = _entry("misc", "pebblesim", {**_SOFTWARE, "note": PROOFS})
    data = {"name": one.name, "source": "pebblesim", **one.to_dict()}
    return Cited("\n  ".join([head, *lines, *rest]), _environment(words(one.name), "pebblesim", told), entry, data)


def _year(arxiv: str) -> str:
    return f"20{arxiv[:2]}"


def _environment(name: str, key: str, told: list[str]) -> str:
    body = "\n".join(f"  {line}" for line in told)
    return f"\\begin{{theorem}}[{name}~\\cite{{{key}}}]\n{body}\n\\end{{theorem}}"


def _entry(kind: str, key: str, fields: Mapping[str, str | None]) -> str:
    from pebblesim.core.notation import paragraph_in_latex

    lines = [
        f"  {name} = {{{value if value.startswith('{') else paragraph_in_latex(value)}}},"
        for name, value in fields.items()
        if value
    ]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])
