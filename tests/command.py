"""The command line in the process of a test, for the fixture `pebblesim`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Run(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What `--json` printed."""
        assert self.code in (0, 1), self.err
        (line,) = self.out.splitlines()
        return json.loads(line)


Pebblesim = Callable[[str], Run]


def plain(text: str) -> str:
    """Without colours, which typer forces where it sees a build server."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pebblesim:
    """What runs a command through `main`, in a folder."""
    from pebblesim.cli import main as cli

    monkeypatch.chdir(folder)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(line: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["pebblesim", *line.split()])
        capsys.readouterr()
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        return Run(code, *map(plain, capsys.readouterr()))

    return run
