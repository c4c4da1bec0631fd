"""The command line. Exit codes: 0 fine, 1 a check failed, 2 bad usage or infeasible."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from pebblesim.errors import PebblesimError, UsageError

HOMES = {
    **dict.fromkeys(("count", "list", "formula", "show"), "count"),
    **dict.fromkeys(("play", "watch"), "play"),
    "graph": "graph",
    **dict.fromkeys(("pebble", "optimum", "judge", "dags"), "dags"),
    **dict.fromkeys(("bounds", "gaps", "crossover"), "bounds"),
    "glossary": "glossary",
    "verify": "verify",
    "theorems": "bounds",
    **{name: name for name in ("advise", "backlite", "cache", "gpu", "plot", "search", "sweep")},
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

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except (KeyboardInterrupt, OSError) as error:  # which Typer would end in ways of its own
            raise _Stopped from error


class _Stopped(Exception):
    """A command was interrupted, or could not write what it had to say."""


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
        _run(str(path))


def _run(path: str) -> None:
    """Run a user's file.

    Raises:
        UsageError: it fails; the message names the line of the file.
    """
    import runpy
    from traceback import walk_tb

    try:
        runpy.run_path(path)
    except (Exception, SystemExit) as error:
        lines = [number for frame, number in walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
        said = str(error)
        if isinstance(error, SyntaxError) and error.filename == path:
            lines, said = [error.lineno or 1], error.msg
        kind = "" if isinstance(error, PebblesimError) else f"{type(error).__name__}: "
        place = f"{path}:{lines[-1]}" if lines else path
        raise UsageError(f"--load {place}: {kind}{' '.join(said.split())}") from None


def main() -> None:
    """Run the command line; a bad value is one sentence, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without ⌈ and √ shall not stop us
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except PebblesimError as error:
        _end(2, f"error: {error}")
    except (_Stopped, KeyboardInterrupt, OSError) as stopped:
        why = stopped.__cause__ if isinstance(stopped, _Stopped) else stopped
        if not isinstance(why, OSError):
            _end(130, "interrupted")
        # What could not be written must not be tried again at the very end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if why.errno == errno.EPIPE:
            _end(0)  # whoever read our output has seen enough
        _end(2, f"error: cannot read or write{f' {why.filename}' if why.filename else ''}: {why.strerror}.")


def _end(code: int, message: str | None = None) -> NoReturn:
    """Leave, with a last word."""
    if message:
        print(message, file=sys.stderr)
    sys.exit(code)
