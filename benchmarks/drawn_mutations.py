"""Break lines of the package that a seed draws, and see which tests find it.

    .venv/bin/python -m pytest --cov=pebblesim --cov=graphs --cov=schedules --cov-context=test --cov-report=
    .venv/bin/python benchmarks/drawn_mutations.py --seed 7
    .venv/bin/python benchmarks/drawn_mutations.py benchmarks/drawn-mutations.md

`mutations.py` breaks what somebody thought of; here nobody chooses. A line is drawn from all lines of the package on
which an operator, a comparison, a constant or a call of min or max can be changed, then one such change of the line. It
is made in a clone of the last commit. First run some of the tests that cover the line, as the data of the first command
say (pytest-cov is a development tool and not among the dependencies). The lines that survive them are broken all at
once, and all quick tests run; those that fail are tried on the survivors one by one, until none fails.

What is known is kept in a file for each seed, so that a run that was interrupted goes on. Why a change survives
("why"), which test was written for it ("since"), and what else is to be said of the run ("note"), is added there by
hand, and the last command makes a page of all files.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = ("pebblesim", "graphs", "schedules")
"""Folders from which lines are drawn."""

LINKS = ("graphs", "schedules")
"""Symbolic links of pebblesim to the folders at the top."""

RESULTS = ROOT / "benchmarks" / "drawn_mutations"
"""What is known of the mutations of benchmarks/drawn-mutations.md, in a file for each seed."""

FIRST = 60
"""Covering tests that are tried before all quick tests."""

CPU_SECONDS = 600, 1800
"""Seconds after which a process of covering tests, or of all tests, is taken for one that does not end."""

SWAPS: dict[type, str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "+",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.And: "or",
    ast.Or: "and",
}
"""What stands for an operator in a mutation."""


class Mutation(NamedTuple):
    """One change of a line: the file, the line's number (from 1), its text before and after."""

    path: str
    line: int
    old: str
    new: str

    @property
    def key(self) -> str:
        return f"{self.path}:{self.line}: {self.old.strip()} → {self.new.strip()}"


def changes(root: Path, path: Path) -> Iterator[Mutation]:
    """All single changes of the lines of a file; parts that span several lines are left alone."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    place = path.relative_to(root).as_posix()

    def at(node: ast.expr, start: int, end: int, text: str) -> Mutation:
        # ast counts columns in bytes of UTF-8.
        line = lines[node.lineno - 1].encode()
        return Mutation(place, node.lineno, line.decode(), (line[:start] + text.encode() + line[end:]).decode())

    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, int):  # bool is an int, too
            assert node.end_col_offset is not None
            text = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            yield at(node, node.col_offset, node.end_col_offset, text)
        elif isinstance(node, ast.Name) and node.id in ("min", "max"):
            yield at(node, node.col_offset, node.col_offset + 3, "max" if node.id == "min" else "min")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield at(node, node.col_offset, node.operand.col_offset, "")
        for left, operator, right in between(node):
            if left.end_lineno == right.lineno == node.lineno and type(operator) in SWAPS:
                assert left.end_col_offset is not None
                line = lines[node.lineno - 1].encode()
                gap = line[left.end_col_offset : right.col_offset].decode()
                closed, opened = gap.count(")"), gap.count("(")  # the operands' own parentheses stand in the gap
                swap = f"{')' * closed} {SWAPS[type(operator)]} {'(' * opened}"
                yield at(node, left.end_col_offset, right.col_offset, swap)


def between(node: ast.expr) -> Iterator[tuple[ast.expr, ast.AST, ast.expr]]:
    """The operators of a node with the operands to their left and right."""
    if isinstance(node, ast.BinOp):
        yield node.left, node.op, node.right
    elif isinstance(node, ast.Compare):
        yield from zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
    elif isinstance(node, ast.BoolOp):
        yield from ((left, node.op, right) for left, right in zip(node.values, node.values[1:], strict=False))


def sources(root: Path) -> Iterator[Path]:
    """The files of the package."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if folder != "pebblesim" or path.relative_to(root / folder).parts[0] not in LINKS:
                yield path


def drawn(root: Path, seed: int, number: int) -> list[Mutation]:
    """Different mutations: a line is drawn, then one of its changes."""
    by_line: dict[tuple[str, int], list[Mutation]] = {}
    for path in sources(root):
        for change in changes(root, path):
            by_line.setdefault((change.path, change.line), []).append(change)
    dice = random.Random(seed)
    lines = dice.sample(sorted(by_line), number)
    return [dice.choice(by_line[line]) for line in lines]


class Coverage:
    """Which tests run a line of a checkout, from the data of pytest-cov."""

    def __init__(self, root: Path, path: Path) -> None:
        from coverage import CoverageData

        self._root = root
        self._data: Any = CoverageData(basename=str(path))
        self._data.read()

    def of(self, mutation: Mutation) -> list[str]:
        """The tests that ran the line, as pytest names them; where no test runs it as Python (a loop that is compiled,
        or a line that runs at import), the tests that ran a file which imports this one."""
        if tests := self._ran(mutation.path, mutation.line):
            return sorted(tests)
        name = re.compile(rf"\b(import|from)\b.*\b{Path(mutation.path).stem}\b")
        importers = [path for path in sources(self._root) if name.search(path.read_text(encoding="utf-8"))]
        return sorted(set().union(*(self._ran(path.relative_to(self._root).as_posix(), None) for path in importers)))

    def _ran(self, path: str, line: int | None) -> set[str]:
        """The tests that ran a line of a file, or any line of it."""
        tests: set[str] = set()
        for measured in self._data.measured_files():
            if measured.endswith("/" + path):
                by_line = self._data.contexts_by_lineno(measured)
                tests.update(by_line.get(line, ()) if line is not None else itertools.chain(*by_line.values()))
        return {test.rpartition("|")[0] or test for test in tests - {""}}


class Clone:
    """A clone of the last commit, in which lines are broken and tests run.

    Args:
        path: where it is; made if there is nothing.
        workers: number of processes for all tests.
    """

    def __init__(self, path: Path, workers: int) -> None:
        self.path, self.workers = path, workers
        if not (path / ".git").exists():
            subprocess.run(["git", "clone", "--quiet", ROOT, path], check=True)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=path, check=True, capture_output=True, text=True)
        self.commit = head.stdout.strip()
        self.broken([])

    def broken(self, mutations: Iterable[Mutation]) -> list[Mutation]:
        """Break these lines and mend all others; return those that are Python."""
        subprocess.run(["git", "checkout", "--quiet", "."], cwd=self.path, check=True)
        fine = []
        for mutation in mutations:
            file = self.path / mutation.path
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            assert lines[mutation.line - 1].rstrip("\n") == mutation.old, "the clone is of another commit"
            lines[mutation.line - 1] = mutation.new + "\n"
            try:
                compile("".join(lines), mutation.path, "exec")
            except SyntaxError:
                continue
            file.write_text("".join(lines), encoding="utf-8")
            fine.append(mutation)
        return fine

    def failing(self, tests: Sequence[str], most: int) -> list[str]:
        """The first tests that fail, so many at most; all quick tests are tried if none is named.

        Raises:
            RuntimeError: pytest ran no test.
        """
        workers, limit = (0, CPU_SECONDS[0]) if tests else (self.workers, CPU_SECONDS[1])
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), f"--maxfail={most}", "--tb=line", "-rfE"]
        ended = subprocess.run(
            [*command, "-p", "no:cacheprovider", *tests],
            cwd=self.path,
            capture_output=True,
            text=True,
            env={**os.environ, "CI": "1", "PYTHONPATH": str(self.path), "PYTHONHASHSEED": "0"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
        if ended.returncode == 0:
            return []
        lines = ended.stdout.splitlines()
        if any("while loading" in line or line.startswith("ERROR tests/conftest") for line in lines):
            return ["pytest does not start"]
        failed = [line.split(" ", 1)[1].split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        if failed:
            return failed
        if ended.returncode < 0:
            return ["the run does not end" if -ended.returncode in (9, 24) else f"signal {-ended.returncode}"]
        if ended.returncode in (1, 2, 3):
            return ["the run of pytest is interrupted"]
        raise RuntimeError(f"pytest ended with {ended.returncode}: {ended.stdout[-500:]}{ended.stderr[-500:]}")


def by_covering(clone: Clone, mutation: Mutation, coverage: Coverage) -> dict[str, Any]:
    """What is known of a mutation after some of its covering tests."""
    if not clone.broken([mutation]):
        return {"found by": "not a program"}
    tests = coverage.of(mutation)
    chosen = tests if len(tests) <= FIRST else random.Random(mutation.key).sample(tests, FIRST)
    found = clone.failing(chosen, 1) if chosen else []
    return {"found by": found[0] if found else "", "covering": len(tests)}


def by_all(clone: Clone, survivors: Sequence[Mutation]) -> Iterator[tuple[Mutation, str]]:
    """Those of several mutations that all quick tests find, and by which test."""
    left = list(survivors)
    while left:
        clone.broken(left)
        failed = clone.failing([], 50)
        if not failed:
            return
        known = [test for test in failed if "::" in test]
        found = {each: by[0] for each in left if clone.broken([each]) and (by := clone.failing(known, 1))}
        if not found:  # only together, or the run ended: each by itself
            found = {each: by[0] for each in left if clone.broken([each]) and (by := clone.failing([], 1))}
        yield from found.items()
        if not found:
            return
        left = [each for each in left if each not in found]


def page() -> str:
    """The document."""
    parts = [
        "# Lines that a seed drew, and what found the change\n",
        "`benchmarks/drawn_mutations.py` draws lines of the package by a seed, breaks each in one place, and runs the\n"
        "quick tests: first those that cover the line, then all. The first that fails is named; where none failed,\n"
        "the table says why, or names the test that was written then.",
    ]
    runs = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json")))
    return "\n".join([*parts, *itertools.chain(*map(section, runs))]) + "\n"


def section(known: dict[str, Any]) -> Iterator[str]:
    """The lines of the document on one run."""
    tried = {key: each for key, each in known["mutations"].items() if each["found by"] != "not a program"}
    found, since = (sum(bool(each.get(by)) for each in tried.values()) for by in ("found by", "since"))
    yield f"\n## Seed {known['seed']}\n"
    yield (
        f"Lines of commit {known['commit'][:7]}: {len(tried)} mutations, {found} found; of the "
        f"{len(tried) - found} others {since} are found now.\n"
    )
    if "note" in known:
        yield f"{known['note']}\n"
    yield "| place and change | found by |\n|---|---|"
    for key, each in tried.items():
        by = each["found by"] or each.get("since", "")
        test = f"`{re.sub(r'^tests/([a-z]+/)?', '', by)}`" if by else "nothing"
        why = f": {each['why']}" if each.get("why") else ""
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{key}`", test + why)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path, nargs="?", help="the document to write, from what is known")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage", help="data of pytest-cov, by test")
    parser.add_argument("--results", type=Path, help="what is known, and where to keep what comes")
    parser.add_argument("--clone", type=Path, help="where to break lines; by default in a temporary folder")
    parser.add_argument("--workers", type=int, default=2, help="for the run of all quick tests")
    parser.add_argument("--list", action="store_true", help="say what is drawn, and stop")
    given = parser.parse_args()
    if given.list:
        print("\n".join(mutation.key for mutation in drawn(ROOT, given.seed, given.number)))
    elif given.page:
        given.page.write_text(page(), encoding="utf-8")
    else:
        with tempfile.TemporaryDirectory() as scratch:
            clone = Clone(given.clone or Path(scratch) / "clone", given.workers)
            mutations = drawn(clone.path, given.seed, given.number)
            results = given.results or RESULTS / f"{given.seed}.json"
            tried(clone, mutations, given.seed, Coverage(clone.path, given.coverage), results)


def tried(clone: Clone, mutations: Sequence[Mutation], seed: int, coverage: Coverage, results: Path) -> None:
    """Try mutations, and keep what is known after each."""
    fresh = {"seed": seed, "commit": clone.commit, "mutations": {}}
    known = json.loads(results.read_text()) if results.exists() else fresh
    if (known["seed"], known["commit"]) != (seed, clone.commit):
        raise SystemExit(f"{results} is of seed {known['seed']} and commit {known['commit']}; name another file.")

    def keep(mutation: Mutation, each: dict[str, Any]) -> None:
        known["mutations"][mutation.key] = each
        results.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{len(known['mutations']):3} {each['found by'] or 'survives':60} {mutation.key}", flush=True)

    for mutation in mutations:
        if mutation.key not in known["mutations"]:
            keep(mutation, by_covering(clone, mutation, coverage))
    clone.broken([])
    finders = {each["found by"] for each in known["mutations"].values() if "::" in each["found by"]}
    if finders and (failed := clone.failing(sorted(finders), len(finders))):
        raise SystemExit(f"these fail although nothing is broken: {', '.join(failed)}")
    survivors = [each for each in mutations if not known["mutations"][each.key]["found by"]]
    for mutation, by in by_all(clone, survivors):
        keep(mutation, known["mutations"][mutation.key] | {"found by": by})


if __name__ == "__main__":
    main()
