"""Settings that all tests share."""

import faulthandler
import gc
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Pebblesim, in_folder
from hypothesis import HealthCheck, settings
from turns import function, in_turn, one_in

from pebblesim.cli import waiting
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES

waiting.FIRST = 1e6  # tests compare what commands print, and a busy machine is slow
gc.disable()  # until all tests are collected: little of what is imported and collected is garbage
os.environ.setdefault("MPLBACKEND", "Agg")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: tests interrupt themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

# No limit of time, neither of a test nor of its draws: the first call of a compiled function takes seconds, a draw may
# trace schedules, and on a busy machine everything is slow.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=10,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
# Many draws, for `make test-all`: pytest --hypothesis-profile full
settings.register_profile("full", parent=settings.get_profile("default"), max_examples=40)
settings.load_profile("default")


def crashes(config: pytest.Config) -> Path | None:
    """The folder of what workers write when they crash; None without pytest's cache (`-p no:cacheprovider`)."""
    cache = getattr(config, "cache", None)
    return None if cache is None else cache.mkdir("crashes")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Where Python is when a worker crashes, is written to a file of the worker's."""
    if folder := crashes(session.config):
        if name := os.environ.get("PYTEST_XDIST_WORKER"):
            faulthandler.enable((folder / name).open("w"))
        else:
            for path in folder.iterdir():
                path.unlink()


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    folder = crashes(config)
    for path in sorted(folder.iterdir()) if folder else ():
        if text := path.read_text():
            terminalreporter.section(f"worker {path.name} crashed")
            terminalreporter.write_line(text)


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests that a commit is tried with; and as slow the cases whose turn it is not."""
    commit = os.environ.get("COMMIT_OF_TURN", "")
    slow = {
        item.nodeid: item for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("gpu")
    }
    for name in in_turn(commit, slow) if commit else ():
        slow[name].add_marker("turn")
    alike = defaultdict[tuple[str, int], dict[str, pytest.Item]](dict)
    for item in items:
        if (marker := item.get_closest_marker("one_in")) and item.nodeid not in slow:
            alike[function(item.nodeid), marker.args[0]][item.nodeid] = item
    for (test, number), cases in alike.items():
        for name in cases.keys() - one_in(number, commit, test, list(cases)):
            cases[name].add_marker("slow")


def pytest_collection_finish() -> None:
    """Imported modules stay: the collector of garbage need not look through it, nor through the rest so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Whatever a test registers is forgotten after it."""
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        yield


@pytest.fixture
def pebblesim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Pebblesim:
    """Run a command in this process, in an empty folder."""
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without windows, for pages that are opened from disk."""
    drive = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[browser]'")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser is installed; one of {', '.join(BROWSERS)} is needed")
    with drive.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def offline(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open windows without a network: their pages may ask for files alone, and nothing may go wrong in them."""
    windows, asked, wrong = [], list[str](), list[str]()

    def window(**look: Any) -> Any:
        made = browser.new_context(**look, offline=True)
        made.on("request", lambda request: asked.append(request.url))
        made.on("weberror", lambda error: wrong.append(str(error.error)))
        windows.append(made)
        return made

    yield window
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    for each in windows:
        each.close()
