"""The documents show what happens: their examples are run, and the output is compared to the letter.

In a `console` block each line that starts with `$ ` is run, and what follows it is the output. A `python` block is run
as a file of its own; a `text` block right after it is the output. Space at the end of a line does not count. What is
ours runs in this process, which has imported and compiled everything already, also where only its first lines are
shown, or none; the rest in a shell.

After a change that is meant, `.venv/bin/python tests/test_readme.py` writes the new outputs into the documents, or into
those that are named behind it.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from unittest import mock

import pytest
from checkout import ROOT

from pebblesim.cli import main as cli
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES

ALL_DOCUMENTS = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
LONG_DOCUMENTS = (  # with examples that take a while
    "docs/advise.md",
    "docs/arithmetic-intensity.md",
    "docs/backlite.md",
    "docs/search.md",
    "docs/which-tile.md",
    "docs/why-is-d-256-slow.md",
)
DOCUMENTS_IN_TURN = (  # a second or more each
    "docs/caches.md",
    "docs/is-flashattention-optimal.md",
    "docs/lower-bounds.md",
    "docs/parallel.md",
    "docs/problems.md",
    "docs/sweep.md",
    "docs/tour.md",
)
MARKS = dict.fromkeys(LONG_DOCUMENTS, pytest.mark.slow) | dict.fromkeys(DOCUMENTS_IN_TURN, pytest.mark.one_in(4))

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?:(\n\n?)^```text\n.*?^```$)?", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r" (?:\| head -(\d+)|(> /dev/null))$")
"""The end of a command of which only some lines are shown."""
LINK = re.compile(r"\]\(([^)#:]+)\)")


def with_real_output(document: str, folder: Path) -> str:
    """The document as it would be if all its examples were run now, in turn, in that folder."""

    def block(match: re.Match[str]) -> str:
        language, body, gap = match.groups()
        if language == "console":
            commands = re.findall(r"^\$ (.*)$", body, re.MULTILINE)
            runs = (f"$ {command}\n{output(command, folder)}" for command in commands)
            return "```console\n" + "\n".join(runs) + "```"
        if language == "python":
            printed = output_here(lambda: exec(compile(body, "<string>", "exec"), {"__name__": "__main__"}), folder)
            if printed and not gap:
                raise AssertionError(f"this example prints something, and no text block follows:\n{body}")
            return f"```python\n{body}```" + (f"{gap}```text\n{printed}```" if gap else "")
        return match[0]

    return FENCE.sub(block, document)


def output_here(run: Callable[[], object], folder: Path) -> str:
    """The output of something that is run here, in that folder, as if it were a program of its own."""
    with TemporaryFile("w+", encoding="utf-8") as file:
        with (
            warnings.catch_warnings(),
            PROBLEMS.temporary(),
            SCHEDULES.temporary(),
            contextlib.chdir(folder),
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
            contextlib.suppress(SystemExit),
        ):
            warnings.simplefilter("default")
            run()
        file.seek(0)
        return tidy(file.read())


def output(command: str, folder: Path) -> str:
    """The output of a command, whatever its exit code: a refused game is an example too."""
    shown = SHOWN.search(command)
    program, *words = shlex.split(SHOWN.sub("", command))
    if program == "pebblesim" and not set("|<>&;*$`") & set(SHOWN.sub("", command)):
        with mock.patch.object(sys, "argv", [program, *words]):
            printed = output_here(cli.main, folder)
        return tidy("".join(printed.splitlines(keepends=True)[: int(shown[1] or 0)])) if shown else printed
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**settings, "PATH": scripts, "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    if "Traceback (most recent call last)" in done.stdout:
        raise AssertionError(f"an example fails: {command}\n{done.stdout}")
    return tidy(done.stdout)


def tidy(printed: str) -> str:
    """The text that is printed, without spaces at the ends of lines, and what caches and speed of this machine add."""
    here = ("compiling machine code:", "still at work after ")
    lines = [line.rstrip() for line in printed.splitlines() if not line.startswith(here)]
    return "\n".join(lines).strip("\n") + "\n" if any(lines) else ""


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in ALL_DOCUMENTS])
def test_the_examples_print_what_the_document_says(name: str, tmp_path: Path) -> None:
    document = (ROOT / name).read_text(encoding="utf-8")
    assert with_real_output(document, tmp_path) == document


@pytest.mark.parametrize("name", [*ALL_DOCUMENTS, "CONTRIBUTING.md", "tests/README.md"])
def test_links_to_files_lead_somewhere(name: str) -> None:
    links = LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
LINK_TEXT = re.compile(r"\[([^\]\n]+)\]\(")


def anchors(path: Path) -> set[str]:
    """Where a link may lead in a document: its headings, as GitHub and the site write them in addresses, and names."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)">', text)
    return {*named, *(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)}


@pytest.mark.parametrize("name", [*ALL_DOCUMENTS, "CONTRIBUTING.md", "tests/README.md"])
def test_links_into_documents_lead_to_headings(name: str) -> None:
    links = ANCHOR.findall((ROOT / name).read_text(encoding="utf-8"))
    targets = [((ROOT / name).parent / file if file else ROOT / name, anchor) for file, anchor in links]
    assert [anchor for target, anchor in targets if anchor not in anchors(target)] == []


@pytest.mark.parametrize("name", ALL_DOCUMENTS)
def test_links_to_documents_have_words_for_texts(name: str) -> None:
    """A file's name says little to who does not know the file yet."""
    texts = LINK_TEXT.findall((ROOT / name).read_text(encoding="utf-8"))
    assert [text for text in texts if re.fullmatch(r"[\w/.-]+\.md|here|link|this", text)] == []


def test_the_verbs_that_the_readme_names_are_in_the_makefile() -> None:
    verbs = re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert verbs
    assert [verb for verb in verbs if not re.search(rf"^{verb}:", makefile, re.MULTILINE)] == []


if __name__ == "__main__":
    for name in sys.argv[1:] or ALL_DOCUMENTS:
        path = ROOT / name
        with TemporaryDirectory() as folder:
            path.write_text(with_real_output(path.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
