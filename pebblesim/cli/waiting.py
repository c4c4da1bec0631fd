"""Signs of life of a command that takes long: a bar on a terminal; in a pipe, a line from time to time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

FIRST, NEXT = 5.0, 10.0
"""Seconds before the first line, and from each line to the next."""


class _Work:
    """The part that is done, as a text; and whether a bar shows it."""

    part, bar = "", False


@contextmanager
def still_at_work() -> Iterator[None]:
    """Say on stderr, from `FIRST` on, that a command runs and how far it is, unless a bar on the terminal shows it."""
    began, over = monotonic(), threading.Event()
    _Work.part = ""

    def say() -> None:
        wait = FIRST
        while not over.wait(wait):
            wait = NEXT
            if not _Work.bar:
                with suppress(OSError, ValueError):  # nobody reads it any more
                    print(f"still at work after {monotonic() - began:.0f} s{_Work.part}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[..., None]]:
    """Show how far something is, as a bar on a terminal; the function takes the part done, and perhaps a text."""

    def note(done: float, text: str = "") -> None:
        _Work.part = f": {what}, {done:.0%}{text and f', {text}'}"

    if not sys.stderr.isatty():
        try:
            yield note
        finally:
            _Work.part = ""
        return
    from rich.console import Console
    from rich.progress import Progress

    _Work.bar = True
    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=1.0)
            yield lambda done, text="": bar.update(
                task, completed=done, description=f"{what}: {text}" if text else what
            )
    finally:
        _Work.bar = False
