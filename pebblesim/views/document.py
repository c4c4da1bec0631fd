"""The frame that all pages share: one HTML file with style, scripts and data in it, which needs no network."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pebblesim.core.files import whole_file

STRICT = '"use strict";\n'
"""The first line of each script; a page has it once."""


NOSCRIPT = "<noscript>This page computes in the browser and needs JavaScript.</noscript>\n"


class Code(str):
    """Text that is JavaScript."""


def in_javascript(value: Any) -> str:
    """Return data as an expression of JavaScript, in which `Code` stands as it is."""
    if isinstance(value, Code):
        return value
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{in_javascript(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(in_javascript, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def part(name: str) -> str:
    """Return the text of a file of a page, such as `part("story/page.css")`."""
    return (files("pebblesim.views") / name).read_text(encoding="utf-8")


def scripts(page: str, *names: str) -> str:
    """Return some scripts of a page, without their first lines, `STRICT`."""
    return "".join(part(f"{page}/{name}").replace(STRICT, "", 1) for name in names)


def document(title: str, *, style: str, body: str, script: str = "") -> str:
    """Return an HTML file of these parts; without a script it allows none to run."""
    return Template(part("document.html")).substitute(
        title=html.escape(title),
        style=part("document.css") + style,
        body=body,
        allowed=" script-src 'unsafe-inline';" if script else "",
        run=f"{NOSCRIPT}<script>\n{STRICT}{script}</script>\n" if script else "",
    )


def save(path: Path, content: str) -> None:
    """Write a page to a file, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    with whole_file(path) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
