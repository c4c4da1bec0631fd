"""The command line. Exit codes: 0 fine, 1 a check failed, 2 bad usage or infeasible."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pebblesim.errors import PebblesimError, UsageError

HOMES = {
    **dict.fromkeys(("count", "list", "formula", "show"), "count"),
    **dict.fromkeys(("play", "watch"), "play"),
    **dict.fromkeys(("graph", "optimum"), "graph"),
    **dict.fromkeys(("bounds", "gaps", "crossover"), "bounds"),
    "verify": "verify",
    "theorems": "bounds",
    **{name: name for name in ("advise", "backlite", "cache", "gpu", "plot", "sweep")},
}
"""The file of each command, with a Typer `app`; it is read when the command is called."""


class _Commands(TyperGroup):
    def list_commands(self, context: Any) -> list[str]:
        return list(HOMES)

    def get_command(self, context: Any, name: str) -> Any:
        if name not in HOMES:
            return super().get_command(context, name)
        command: Any = typer.main.get_command(import_module(f"pebblesim.cli.{HOMES[name]}").app)
        command = getattr(command, "commands", {}).get(name, command)
        command.name = name
        return command


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A laboratory for the I/O complexity of attention: count, derive and play tiled schedules.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pebblesim import __version__

        print(f"pebblesim {__version__}")
        raise typer.Exit


@app.callback()
def common(
    load: Annotated[
        list[Path] | None, typer.Option("--load", help="Run a Python file first, with schedules of your own.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    for path in load or ():
        if not path.is_file():
            raise UsageError(f"--load {str(path)!r}: there is no such file.")
        import runpy

        runpy.run_path(str(path))


def main() -> None:
    """Run the command line; a bad value is one sentence, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without ⌈ and √ shall not stop us
    try:
        app()
    except PebblesimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(0)
