"""The command line. Exit codes: 0: success. 1: a check failed. 2: bad usage, or the cache is too small."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from pebblesim.cli.ascii_fallback import PLAIN
from pebblesim.cli.options import Commands
from pebblesim.core.errors import LeftOut, PebblesimError, UnknownName, UsageError

PANELS = {
    "Count": {
        **dict.fromkeys(("count", "list", "formula", "show"), "count"),
        **{name: name for name in ("explore", "search", "sweep", "plot", "glossary")},
    },
    "Prove": {**dict.fromkeys(("bounds", "gaps", "crossover", "theorems"), "bounds"), "verify": "verify"},
    "Play the game": {**dict.fromkeys(("play", "watch"), "play"), "graph": "graph"},
    "Any DAG": dict.fromkeys(("pebble", "optimum", "judge", "dags"), "dags"),
    "Caches and devices": {name: name for name in ("cache", "devices", "machine")},
    "GPU": {name: name for name in ("advise", "explain", "gpu", "backlite")},
}
"""The commands by what they are for, as the help shows them, each with its file."""

HOMES = {name: home for panel in PANELS.values() for name, home in panel.items()}
"""The file of each command, with a Typer `app`. It is imported when the command is called."""


class _Commands(Commands):
    def list_commands(self, context: Any) -> list[str]:
        return list(HOMES)

    def get_command(self, context: Any, name: str) -> Any:
        if name not in HOMES:
            return super().get_command(context, name)
        command: Any = typer.main.get_command(import_module(f"pebblesim.cli.{HOMES[name]}").app)
        command = getattr(command, "commands", {}).get(name, command)
        command.name = name
        command.rich_help_panel = next(panel for panel, names in PANELS.items() if name in names)
        return command

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        asked = bool(args)
        try:
            return super().parse_args(context, args)
        except TyperException as error:
            if not asked:  # the help is the answer
                raise
            raise UsageError(_explained(error)) from None

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except TyperException as error:  # Typer would frame it
            if not error.format_message():  # the help of a family is the answer, as above
                raise
            raise UsageError(_explained(error)) from None
        except (KeyboardInterrupt, OSError) as error:  # Typer would handle these differently
            raise _Stopped from error


def _explained(error: TyperException) -> str:
    """A sentence on an option or argument that is missing, not known, or of the wrong kind, with an example."""
    said = error.format_message().rstrip(".")
    context: Any = getattr(error, "ctx", None)
    if context is None:
        return f"{said}."
    params = [name for param in context.command.params for name in param.opts]
    if getattr(error, "option_name", None) == "-o" and "--save" in params:
        said += "; --save FILE saves a game"
    if getattr(error, "option_name", None) == "--load":
        said += "; --load FILE.py stands before the command, as in pebblesim --load FILE.py list"
    example = re.sub(r"\[/?bold\]", "", context.command.epilog or "").removeprefix("Example: ")
    return f"{said}; for example: {example}" if example else f"{said}."


class _Stopped(Exception):
    """A command was interrupted, or could not write its output."""


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A laboratory for the I/O complexity of attention. It counts, plays and measures the algorithms of Li et al., "
    "arXiv 2410.09397: Algorithm 6 for a small cache and Algorithm 9 for a large one, beside FlashAttention.",
    epilog="Example: [bold]pebblesim crossover -n 4096 -d 64[/bold]",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pebblesim.core import __version__

        print(f"pebblesim {__version__}")
        raise typer.Exit


@app.callback()
def common(
    load: Annotated[
        list[Path] | None,
        typer.Option("--load", help="Run a Python file first, such as one that defines your schedules."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    for path in load or ():
        if not path.is_file():
            what = "this is a folder" if path.is_dir() else "this file does not exist"
            raise UsageError(f"--load {str(path)!r}: {what}.")
        _run(str(path))


def _run(path: str) -> None:
    """Run a user's Python file.

    Raises:
        UsageError: the file fails; the message names its line.
    """
    import runpy
    from traceback import walk_tb

    try:
        runpy.run_path(path)
    except (Exception, SystemExit) as error:
        lines = [number for frame, number in walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
        said = str(error)
        if isinstance(error, SyntaxError) and error.filename in (path, None):
            null = Path(path).read_bytes().partition(b"\0")[0].count(b"\n") + 1  # Python does not say where one is
            lines, said = [error.lineno or null], error.msg
        said = said.removeprefix(f"{path}:{lines[-1]}: ") if lines else said
        kind = "" if isinstance(error, PebblesimError) else f"{type(error).__name__}: "
        place = f"{path}:{lines[-1]}" if lines else path
        raise UsageError(f"--load {place}: {kind}{' '.join(said.split())}") from None


def main() -> None:
    """Run the command line; a bad value is one sentence, never a traceback."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115, it lives as long as we do
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)  # the encoding may lack ⌈ and √
    try:
        try:
            with warnings.catch_warnings():
                _tell_what_is_left_out()
                app()
        finally:
            sys.stdout.flush()
    except PebblesimError as error:
        own = isinstance(error, UnknownName) and error.kind in ("schedule", "problem")
        _end(2, f"error: {error}" + (" Those of a file of yours: pebblesim --load FILE.py …" if own else ""))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Rich ends so when nobody reads the help on
            _end(0)
        raise
    except (_Stopped, KeyboardInterrupt, OSError) as stopped:
        why = stopped.__cause__ if isinstance(stopped, _Stopped) else stopped
        if not isinstance(why, OSError):
            _end(130, "interrupted")
        # Python must not try to write the failed output again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if why.errno == errno.EPIPE:
            _end(0)  # the reader of the pipe has closed it
        _end(2, f"error: cannot read or write {why.filename or 'the output'}: {why.strerror}.")


def _tell_what_is_left_out() -> None:
    """Print `LeftOut` as a note, each once; other warnings as before."""
    shown = warnings.showwarning
    warnings.simplefilter("default", LeftOut)

    def note(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, LeftOut):
            print(f"note: {message}", file=sys.stderr)
        else:
            shown(message, category, *place, **more)

    warnings.showwarning = note


def _end(code: int, message: str | None = None) -> NoReturn:
    """Exit with a code, and print a message to stderr if there is one."""
    if message:
        print(message, file=sys.stderr)
    sys.exit(code)
