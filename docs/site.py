"""Hooks for `make docs`, besides mkdocs.yml: README as the home page, links that make sense there, doctests as code.

The pages of `pebblesim explore` and of `pebblesim explore --story` are parts of the site, too. Formulas are typeset by
KaTeX, which is taken from its npm package, with its license; closed forms and statements are written as formulas here.
"""

import os
import re
from pathlib import Path
from typing import Any

import griffe
from formulas import closed_forms, katex, statements_as_formulas
from mkdocs.structure.files import File

from pebblesim.advice.cards import caches
from pebblesim.views import explore, story

README = Path(__file__).resolve().parent.parent / "README.md"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:]+)\)")
FORMS = "<!-- closed forms -->"
PAGES = {"explore.md": "explore-page.html", "story.md": "story-page.html"}
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """The home page is README.md, whose links start at the top of the checkout."""
    text = README.read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    files.append(File.generated(config, "explore-page.html", content=explore.page(cards=caches())))
    files.append(File.generated(config, "story-page.html", content=story.page()))
    for name, content in katex(Path(os.environ["KATEX"])):
        files.append(File.generated(config, f"katex/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A link to what is no page of the site, such as a source file, becomes its text; README.md is the home page."""
    markdown = markdown.replace("](../README.md", "](index.md")
    if page.file.src_uri in PAGES:
        button = f'<a class="md-button md-button--primary" href="{PAGES[page.file.src_uri]}">Open the page</a>'
        markdown = markdown.replace("\n\n", f"\n\n{button}\n\n", 1)
    if page.file.src_uri == "ERRATA.md":
        markdown = statements_as_formulas(markdown)
    if FORMS in markdown:
        markdown = markdown.replace(FORMS, closed_forms())
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
