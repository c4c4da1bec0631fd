"""Commands that documents name without their output: their options exist, and those that are whole are run.

`test_readme` runs what stands in `console` blocks and compares the output. Here are the commands of `sh` blocks and
those within sentences. What writes a picture of the documents is drawn by `test_plots`.
"""

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from checkout import ROOT
from typer.testing import CliRunner

from pebblesim.cli.main import app

DOCUMENTS = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(pebblesim [^`]+)`")

NOT_HERE = re.compile(
    r"…|\b[A-Z]{4,}\b|docs/pictures/|trace\.oracle|mine\.(py|toml)|dask|"
    r"gpu (measure|doctor|crossover|calibrate|race)|ERRATA"
)
"""In a command that has a placeholder, needs a GPU, other machines or a file of the reader, or that other tests run."""

QUICK = ("docs/gpu.md", "docs/hopper.md", "docs/kernels.md", "docs/rates.md", "docs/search.md", "docs/story.md")


def named(name: str) -> Iterator[str]:
    """The commands of a document, in order, without their comments; mentions of a command alone are among them."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match[1] == "sh":
            for line in match[2].replace("\\\n", " ").splitlines():
                if line.startswith("pebblesim "):
                    yield " ".join(shlex.split(line, comments=True, posix=False))
    yield from (" ".join(each.split()) for each in INLINE.findall(FENCE.sub("", text)))


def whole(command: str) -> bool:
    """Whether a command is meant to be run as it stands, and can be here."""
    words = command.split()
    return NOT_HERE.search(command) is None and any("." in word or word.isdigit() for word in words[2:])


COMMANDS = {name: [*dict.fromkeys(named(name))] for name in DOCUMENTS}
RUN = {name: [each for each in commands if whole(each)] for name, commands in COMMANDS.items()}


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that some words begin with, and the other words."""
    at: Any = typer.main.get_command(app)
    if words[:1] == ["--load"]:
        words = words[2:]
    while hasattr(at, "get_command") and words and (inner := at.get_command(None, words[0])):
        at, words = inner, words[1:]
    return at, words


def test_every_option_that_a_document_names_exists() -> None:
    seen = 0
    for name, commands in COMMANDS.items():
        for command in commands:
            asked = shlex.split(command)[1:]
            at, words = command_of(asked)
            assert len(words) < len(asked) or words[0] == "COMMAND", f"{name}: {command} is no command"
            options = {option for each in at.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
            for word in words:
                if re.match(r"--?[a-zA-Z]", word):
                    seen += 1
                    assert word in options, f"{name}: {command} has no option {word}"
    assert seen > 150


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.one_in(5) if name in QUICK else pytest.mark.slow)
        for name, commands in RUN.items()
        if commands
    ],
)
def test_what_a_document_tells_to_run_can_be_run(name: str, tmp_path: Path) -> None:
    """With a graph of the reader's, where one is named."""
    with contextlib.chdir(tmp_path):
        for path in (Path("graph.hdag"), Path("my-graph.hdag"), Path("my-folder/graph.hdag")):
            path.parent.mkdir(exist_ok=True)
            CliRunner().invoke(app, ["graph", "fft", "-n", "4", "-o", str(path)], catch_exceptions=False)
        for command in RUN[name]:
            words = re.sub(r"--seconds \d+", "--seconds 1", command)
            ran = CliRunner().invoke(app, shlex.split(words)[1:])
            assert ran.exit_code == 0, f"{command}\n{ran.output}\n{ran.exception}"


SCRIPT = re.compile(r"python\s+((?:benchmarks|docs|tests)/[\w/]+\.py)((?:\s+[^\s`]+)*)")


def scripts(name: str) -> Iterator[tuple[str, list[str]]]:
    """The scripts that a document tells to run, with their options; a line of the text may end within one."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for match in FENCE.finditer(text) if match[1] == "sh" for line in match[2].splitlines()]
    inline = re.findall(r"`([^`]+)`", FENCE.sub("", text))
    for each in (*lines, *(" ".join(each.split()) for each in inline)):
        for found in SCRIPT.finditer(each.partition("#")[0]):
            yield found[1], re.findall(r"(?<!\S)--?[a-z][\w-]*", found[2])


def test_every_script_that_a_document_names_exists_and_has_its_options() -> None:
    """An option is looked for in the script, or in those beside it, which share their arguments."""
    seen = {(script, option) for name in DOCUMENTS for script, options in scripts(name) for option in ("", *options)}
    assert len(seen) > 50
    missing = []
    for script, option in sorted(seen):
        path = ROOT / script
        beside = path.parent.glob("*.py") if path.is_file() else ()
        texts = (path, *beside) if option else ()
        if not path.is_file() or (option and not any(f'"{option}"' in each.read_text("utf-8") for each in texts)):
            missing.append(f"{script} {option}")
    assert missing == []
