"""Commands of benchmarks that documents name: the program is there, and takes these arguments."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from checkout import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(f"docs/{x.name}" for x in ROOT.glob("docs/*.md")),
)
COMMAND = re.compile(r"(?:`|^)python\s+(benchmarks/[\w/]+\.py[^`\n]*(?:\n[^`\n]+(?=`))?)", re.MULTILINE)

PARSED = """
import argparse, os, runpy, sys

parse = argparse.ArgumentParser.parse_args


def parsed(self, *given):
    parse(self, *given)
    raise SystemExit("parsed")


argparse.ArgumentParser.parse_args = parsed
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Run a program until it knows its arguments."""


def named() -> dict[str, str]:
    """Each command of a document, without its comment, and one document that has it."""
    found = dict[str, str]()
    for name in DOCUMENTS:
        for each in COMMAND.findall((ROOT / name).read_text(encoding="utf-8")):
            found.setdefault(" ".join(shlex.split(each, comments=True)), name)
    return found


def test_the_programs_are_there() -> None:
    commands = named()
    assert len(commands) > 40
    assert not [each for each in commands if not (ROOT / each.split()[0]).is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(named()))
def test_the_arguments_are_those_of_the_program(command: str) -> None:
    words = command.split()
    program = (ROOT / words[0]).read_text(encoding="utf-8")
    if "parse_args" not in program:
        assert len(words) == 1 or "sys.argv" in program, command
        return
    ran = subprocess.run([sys.executable, "-c", PARSED, *words], cwd=ROOT, capture_output=True, text=True)
    assert ran.stderr.strip().endswith("parsed"), (named()[command], ran.stderr)
