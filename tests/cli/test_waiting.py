"""What commands that take long say meanwhile; the tests wait for lines, and measure no time."""

import io
import sys
import threading
from collections.abc import Callable
from time import sleep
from typing import Any

import pytest
import typer

from pebblesim.cli import waiting
from pebblesim.cli.options import command, family
from pebblesim.cli.waiting import progress_bar


class Stderr(io.StringIO):
    """A pipe or a terminal that is read while it is written."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def until(self, said: str, times: int = 1) -> None:
        """Wait until something was written so often."""
        for _ in range(6000):
            if self.getvalue().count(said) >= times:
                return
            sleep(0.01)
        raise AssertionError(f"{said!r} was not said {times} times: {self.getvalue()!r}")


Ran = Callable[[bool, Callable[[Stderr], Any]], str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run a function as a command whose seconds are over soon, and return what it says on stderr."""
    monkeypatch.setattr(waiting, "FIRST", 0.001)
    monkeypatch.setattr(waiting, "NEXT", 0.001)

    def run(terminal: bool, work: Callable[[Stderr], Any]) -> str:
        err, app = Stderr(terminal), family()

        @command(app, example="pebblesim work")
        def made() -> None:
            work(err)

        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", err)
            patched.setenv("TERM", "dumb")
            typer.main.get_command(app)(args=[], standalone_mode=False)
        return err.getvalue()

    return run


def test_a_command_says_how_far_it_is(run: Ran) -> None:
    def work(err: Stderr) -> None:
        err.until("still at work after 0 s\n", 2)
        with progress_bar("replaying") as bar:
            bar(0.25)
            err.until("still at work after 0 s: replaying, 25%\n", 2)
            bar(0.5, "I/O 3")
            err.until("still at work after 0 s: replaying, 50%, I/O 3\n")
        before = err.getvalue().count("s\n")
        err.until("s\n", before + 2)  # the bar is over, and its part is said no more

    assert {line.partition(" 0 s")[0] for line in run(False, work).splitlines()} == {"still at work after"}
    assert run(False, lambda err: err.until("s\n")).startswith("still at work after 0 s\n")


def test_a_bar_on_a_terminal_is_enough(run: Ran) -> None:
    def work(err: Stderr) -> None:
        err.until("still at work")
        with progress_bar("replaying") as bar:
            said = err.getvalue().count("still")
            bar(0.5)
            sleep(0.1)  # a line that is written wrongly would be written now; the test cannot fail by being slow
            assert err.getvalue().count("still") <= said + 1  # one may have been on its way
        err.until("still", said + 2)

    run(True, work)


def test_nothing_is_said_after_an_end(run: Ran) -> None:
    def fail(err: Stderr) -> None:
        err.until("still")
        raise ZeroDivisionError

    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        run(False, fail)
    assert threading.active_count() == threads


def test_a_command_that_ends_soon_says_nothing(run: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST", 600)  # however slow the machine is
    assert run(False, lambda err: print("error", file=err)) == "error\n"


def test_nobody_who_reads_is_no_error(run: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(err: Stderr) -> None:
        err.until("still")
        err.close()
        sleep(0.05)

    monkeypatch.setattr(Stderr, "getvalue", lambda self: "still" if self.closed else io.StringIO.getvalue(self))
    run(False, work)
