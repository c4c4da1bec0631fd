"""Documents and messages have the field's words, and tables of documents fit the width of a page.

CONTRIBUTING.md has a table of words, which is what is checked: what stands in its second column stands in no document
and in no text that users read, apart from names in backticks and what examples print.
"""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from checkout import ROOT

import pebblesim as ps
from pebblesim.cli.main import app

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WIDTH = 100

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]+`|\$\$.*?\$\$", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def prose(text: str) -> str:
    """A document without its examples, its names of code, its formulas and its addresses; lines as they were."""
    for pattern in (FENCE, CODE):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    return LINK.sub(r"\1", text)


@cache
def avoided() -> list[tuple[str, re.Pattern[str]]]:
    """Each word that is not used, with what is written for it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = TABLE.findall(text.split("\n## Words\n")[1])[0].splitlines()[2:]
    pairs = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [
        (
            good,
            re.compile(rf"(?<![\w-]){re.escape(word.strip()).replace(chr(92) + ' ', chr(92) + 's+')}(?![\w=:-])", re.I),
        )
        for good, bad in pairs
        for word in bad.split(",")
    ]


def test_the_table_has_words() -> None:
    assert len(avoided()) > 15


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_have_the_words_of_the_field(path: Path) -> None:
    text = prose(path.read_text(encoding="utf-8"))
    found = [
        f"line {text[: match.start()].count(chr(10)) + 1}: {match[0]!r}, write {good!r}"
        for good, word in avoided()
        for match in word.finditer(text)
    ]
    assert found == []


def helps(command: typer.core.TyperGroup | typer.core.TyperCommand) -> Iterator[str]:
    """What the command line says of itself."""
    yield command.help or ""
    yield from (getattr(each, "help", None) or "" for each in command.params)
    for inner in getattr(command, "list_commands", lambda _: [])(None):
        yield from helps(command.get_command(None, inner))  # type: ignore[union-attr]


def test_help_has_the_words_of_the_field() -> None:
    texts = [*helps(typer.main.get_command(app))]  # type: ignore[arg-type]
    assert len(texts) > 200
    assert [(good, text) for good, word in avoided() for text in texts if word.search(text)] == []


def told(public: object) -> str:
    """The docstrings of a public name and of its public members."""
    members = [each for key, each in vars(public).items() if not key.startswith("_")] if inspect.isclass(public) else []
    return CODE.sub("", "\n".join(inspect.getdoc(each) or "" for each in (public, *members)))


def test_public_docstrings_have_the_words_of_the_field() -> None:
    texts = {name: told(getattr(ps, name)) for name in ps.__all__}
    assert [(name, good) for good, word in avoided() for name, text in texts.items() if word.search(text)] == []


def width(table: str) -> int:
    """The least columns in which a table can be read: cells break at spaces and behind hyphens alone."""
    rows = [line.strip("|").split("|") for line in LINK.sub(r"\1", table).replace("\\|", "/").splitlines()]
    cells = [[re.sub(r"[`*]", "", cell).replace("-", "- ").split() for cell in row] for row in (rows[0], *rows[2:])]
    columns = [max((len(word) for cell in column for word in cell), default=0) for column in zip(*cells, strict=True)]
    return sum(columns) + 3 * (len(columns) - 1)


def test_the_width_of_a_table() -> None:
    """Two columns: "word-" and "[a link](b)" without its address, with three characters between them."""
    assert width("| word-b c | `d` |\n| --- | --- |\n| e | [a link](address) |\n") == 5 + 3 + 4


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_tables_fit_a_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    wide = [table.splitlines()[0] for table in TABLE.findall(FENCE.sub("", text)) if width(table) > WIDTH]
    assert wide == []
    printed = [
        line
        for language, block in FENCE.findall(text)
        if language in ("console", "text") and " --wide" not in block.splitlines()[0]
        for line in block.splitlines()
        if re.fullmatch(r" ?─+", line) and len(line) > WIDTH
    ]
    assert printed == []
