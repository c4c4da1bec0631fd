"""Formulas of the site: closed forms and statements in LaTeX, and KaTeX, which typesets them, from its npm package."""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from pebblesim.catalogue.literature import STATEMENTS
from pebblesim.claims.claim import in_words
from pebblesim.claims.theorems import theorems
from pebblesim.core.notation import IO, domain_in_latex, in_latex

OF_KATEX = re.compile(r"package/(?:dist/(katex\.min\.(?:js|css)|fonts/\w+-\w+\.woff2)|(LICENSE))")


def katex(package: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what the site needs of KaTeX's npm package: script, style, fonts and license."""
    with tarfile.open(package) as archive:
        for member in archive:
            if found := OF_KATEX.fullmatch(member.name):
                content = archive.extractfile(member)
                assert content is not None
                yield found[1] or found[2], content.read()


def closed_forms() -> str:
    """Return a table of the theorems' closed forms as formulas."""
    lines = ["| theorem | problem | closed form | M |", "|---|---|---|---|"]
    for each in theorems():
        for number, form in enumerate(each.forms):
            name = (f"**{each.name}**", each.problem) if number == 0 else ("", "")
            shown = rf"${IO} \ge {in_latex(form.expr)}$", f"${domain_in_latex(form.domain)}$"
            lines.append(f"| {' | '.join((*name, *shown))} |")
    return "\n".join(lines)


def statements_as_formulas(text: str) -> str:
    """Write the bounds that the errata state as formulas."""
    for each in STATEMENTS:
        if each.expr:
            domain = f"for ${domain_in_latex(each.domain)}$" if each.domain else "for all sizes"
            text = text.replace(in_words(each, each.expr, each.domain), f"{each.about}: ${each.latex}$ {domain}")
    return text
