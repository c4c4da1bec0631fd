"""Hooks for `make docs`, besides mkdocs.yml: README as the home page, links that make sense there, doctests as code.

The page of `pebblesim explore` is a part of the site, too.
"""

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

from pebblesim.advice.cards import caches
from pebblesim.views import explore

README = Path(__file__).resolve().parent.parent / "README.md"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:]+)\)")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """The home page is README.md, whose links start at the top of the checkout."""
    text = README.read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    files.append(File.generated(config, "explore-page.html", content=explore.page(cards=caches())))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A link to what is no page of the site, such as a source file, becomes its text."""
    if page.file.src_uri == "explore.md":
        markdown = markdown.replace(
            "\n\n", '\n\n<a class="md-button md-button--primary" href="explore-page.html">Open the page</a>\n\n', 1
        )
    known = {file.src_uri for file in files}

    def plain(match: re.Match[str]) -> str:
        return match[0] if match[2] in known or page.file.src_uri.startswith("api/") else match[1]

    return LINK.sub(plain, markdown)


class Doctests(griffe.Extension):
    """Examples in docstrings, which Markdown would take for quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence them."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda example: f"```pycon\n{example[0]}\n```", obj.docstring.value)
