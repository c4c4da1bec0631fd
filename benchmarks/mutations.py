"""Break bounds, claims, the decider and readings on purpose, one at a time, and see which check finds it.

    .venv/bin/python benchmarks/mutations.py benchmarks/mutations.md

A mutation is a piece of source replaced by another. It is applied to the module as it is imported, in a process of its
own; no file is changed. Then its checks run, the cheapest first, until one fails: claims of `pebblesim verify`, or
tests. What comes out is the page, and what no check finds is at its head. With `--results FILE` what is known is kept
there, so that a run that was interrupted goes on; a check that fails without any mutation ends the run. Two mutations
are tried at a time, or as many as `--jobs` says.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

HEAD = """\
# What was broken on purpose, and what found it

Each line is a change to the source of a bound, a claim, the decider, a reading or the game, which then says too much or
too little. It is applied by `benchmarks/mutations.py`, which writes this page: the check named last is the first that
failed of those that the mutation was given, cheapest first. `verify` stands for claims of `pebblesim verify`, by name.
What is known of S-partitions takes the extra `exact`.

"""


CRASHED = ", which cannot be imported"


class Mutation(NamedTuple):
    """A mutation: its place, the text and what replaces it, and the checks that should mind."""

    what: str
    module: str
    old: str
    new: str
    checks: Sequence[str]


def listed() -> dict[str, list[Mutation]]:
    """The mutations of mutations.toml, by the part that they break."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    lists = data.pop("checks")
    found = {}
    for group, many in data.items():
        found[group] = [
            Mutation(**{**each, "checks": [check for word in each["checks"] for check in lists.get(word, [word])]})
            for each in many
        ]
    return found


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of pebblesim from changed source."""

    def __init__(self, mutation: Mutation) -> None:
        self.name = f"pebblesim.{mutation.module}"
        self.path = ROOT / (self.name.replace(".", "/") + ".py")
        source = self.path.read_text(encoding="utf-8")
        old, new = (text.replace("\\\n", "\n") for text in (mutation.old, mutation.new))
        if source.count(old) < 1:
            raise SystemExit(f"{mutation.what}: {self.path.name} has no {old!r}; write the mutation anew.")
        self.source = source.replace(old, new, 1)

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path))

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


def found_by(check: str) -> str | None:
    """The part of a check that fails, in this process; None if nothing does."""
    kind, _, names = check.partition(": ")
    if kind == "verify":
        import pebblesim as ps

        try:
            report = ps.verify(names)
        except Exception as error:
            return f"`verify`, {names}: {type(error).__name__}"
        wrong = next((row.claim.name for row in report.rows if not row.agrees), None)
        return wrong and f"`verify`, {wrong}"
    import shlex

    import pytest

    class First:
        failed: str | None = None

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed and self.failed is None:
                self.failed = re.sub(r"^tests/([a-z]+/)?", "", report.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed and self.failed is None:
                self.failed = re.sub(r"^tests/([a-z]+/)?", "", report.nodeid) + CRASHED

    first = First()
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--tb=no", "--no-header"]
    ended = pytest.main([*shlex.split(check), *options], plugins=[first])
    if not first.failed and ended != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest {check} ended with {ended!r}")
    return first.failed and f"`{first.failed}`".replace(f"{CRASHED}`", f"`{CRASHED}")


class Trial(NamedTuple):
    """A child process that tries a mutation; its answer comes through a pipe."""

    mutation: Mutation
    child: int

    def answer(self, pipe: int) -> tuple[str, float]:
        """Wait for the first check that failed, "" if none did, and the processor time that finding it took."""
        with os.fdopen(pipe, "rb") as reading:
            answer = reading.read().decode()
        _, status, usage = os.wait4(self.child, 0)
        if status or answer.startswith("!"):
            raise SystemExit(f"{self.mutation.what}: the checks did not run: {answer[1:] or f'status {status}'}")
        return answer, usage.ru_utime + usage.ru_stime


def started(mutation: Mutation, sound: bool) -> tuple[int, Trial]:
    """A pipe and the child process at its other end, which looks for the first check that fails.

    A file of tests that cannot be imported finds nothing, for none of its statements was tried; but it is not `sound`.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        answer = ""
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                sys.meta_path.insert(0, Mutated(mutation))
                answer = next((by for by in map(found_by, mutation.checks) if by and (sound or CRASHED not in by)), "")
            except BaseException as error:
                answer = f"!{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    return reading, Trial(mutation, child)


def tried(mutations: Iterable[Mutation], jobs: int, sound: bool = False) -> Iterator[tuple[Mutation, str, float]]:
    """Each mutation with the first check that fails, or "", and seconds of processor time, as they come to an end."""
    left, running = iter(mutations), dict[int, Trial]()
    while True:
        while len(running) < jobs and (mutation := next(left, None)):
            pipe, trial = started(mutation, sound)
            running[pipe] = trial
        if not running:
            return
        for ready in wait(list(running)):
            assert isinstance(ready, int)
            trial = running.pop(ready)
            yield trial.mutation, *trial.answer(ready)


def page(mutations: dict[str, list[Mutation]], results: dict[str, str]) -> str:
    """The document."""
    tried_ones = [(group, each) for group, many in mutations.items() for each in many if key(each) in results]
    known = [(group, each, results[key(each)]) for group, each in tried_ones]
    missed = [each.what for _, each, by in known if not by]
    parts = [HEAD + f"{len(known)} mutations, {len(known) - len(missed)} found.\n"]
    if missed:
        parts.append("Not found: " + "; ".join(missed) + ".\n")
    for group in mutations:
        lines = [f"| {each.what} | {by or 'nothing'} |" for name, each, by in known if name == group]
        parts.append("\n".join([f"## {group}\n", "| what is broken | found by |", "|---|---|", *lines]) + "\n")
    return "\n".join(parts)


def key(mutation: Mutation) -> str:
    """The mutation that a result belongs to."""
    checks = mutation.checks if mutation.old == mutation.new else ()
    return "\n".join((mutation.module, mutation.old, mutation.new, *checks))


def main() -> None:
    """Try all mutations and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--results", type=Path, help="keep what is known in this file, and go on from it")
    parser.add_argument("--most", type=int, default=10**6, help="try so many at most")
    parser.add_argument("--jobs", type=int, default=2, help="try so many at a time")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "oracles")]
    sys.dont_write_bytecode = True
    os.environ["CI"] = "1"  # the same draws in every run
    for name in ("matplotlib", "networkx", "numba", "numpy", "sympy", "typer"):  # once, for all children
        importlib.import_module(name)

    mutations, results = listed(), dict[str, str]()
    if given.results and given.results.exists():
        results = json.loads(given.results.read_text(encoding="utf-8"))
    spent = 0.0

    def keep(of: str, by: str, seconds: float) -> None:
        nonlocal spent
        spent += seconds
        results[of] = by
        if given.results:
            given.results.write_text(json.dumps(results), encoding="utf-8")

    checks = sorted({check for many in mutations.values() for each in many for check in each.checks})
    sound = [Mutation(check, "core.errors", "import", "import", (check,)) for check in checks]  # nothing is changed
    for each, by, seconds in tried((each for each in sound if key(each) not in results), given.jobs, sound=True):
        if by:
            raise SystemExit(f"{each.what} fails as it is: {by}")
        keep(key(each), by, seconds)
        print(f"{seconds:6.1f} s  sound: {each.what}", flush=True)
    todo = [each for many in mutations.values() for each in many if key(each) not in results][: given.most]
    for each in todo:
        Mutated(each)  # or a sentence
    for each, by, seconds in tried(todo, given.jobs):
        keep(key(each), by, seconds)
        print(f"{seconds:6.1f} s  {each.what}: {by or 'NOT FOUND'}", flush=True)
    print(f"{spent:.0f} s of processor time")
    given.page.write_text(page(mutations, results), encoding="utf-8")


if __name__ == "__main__":
    main()
