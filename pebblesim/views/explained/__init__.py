"""The page of `pebblesim explain`: what a model's attention does on a card, one HTML file without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from pebblesim.views.document import document, part, save as write


def page(found: Mapping[str, Any]) -> str:
    """Return the HTML file.

    Args:
        found: `title`; `head`, sentences; `columns`, `lines` and `words`, a table and which columns hold text; for each
            line `bars`, parts of the longest time by whose they are, and `details`, sentences.
    """
    kinds = zip(found["bars"], found["details"], strict=True)
    body = Template(part("explained/page.html")).substitute(
        title=escape(found["title"]),
        head="\n".join(_sentence(line) for line in found["head"]),
        table=_table(found["columns"], found["lines"], found["words"]),
        kinds="\n".join(_kind(bars, lines) for bars, lines in kinds),
    )
    return document(found["title"], style=part("sheet.css") + part("explained/page.css"), body=body)


def save(path: Path, found: Mapping[str, Any]) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write(path, page(found))


def _sentence(line: str) -> str:
    """A line "about: what", with its first words in bold."""
    about, colon, said = line.partition(": ")
    return f"<p><b>{escape(about)}</b>{colon}{escape(said)}</p>"


def _table(columns: list[str], lines: list[list[str]], words: list[bool]) -> str:
    sides = ["left" if word else "right" for word in words]

    def row(cells: list[str], tag: str) -> str:
        made = (f'<{tag} class="{side}">{escape(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    body = "\n".join(row(line, "td") for line in lines)
    return f"<table><thead>{row(columns, 'th')}</thead><tbody>\n{body}\n</tbody></table>"


def _kind(bars: Mapping[str, float], lines: list[str]) -> str:
    """The times of a kind of calls as bars, and all that is known of it."""
    shown = "".join(
        f'<div class="bar {whose}" style="width:{100 * part:.1f}%" title="{whose}"></div>'
        for whose, part in bars.items()
    )
    first, *others = (escape(line) for line in lines)
    more = "".join(f"<li>{line}</li>" for line in others)
    return f"<section>{shown}<details open><summary>{first}</summary><ul>{more}</ul></details></section>"
