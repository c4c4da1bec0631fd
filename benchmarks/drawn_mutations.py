"""Break lines of the core that a seed draws, and see which tests find it.

    .venv/bin/python -m pytest -n0 --cov=pebblesim --cov=graphs --cov=schedules --cov-context=test --cov-report=
    .venv/bin/python benchmarks/drawn_mutations.py --seed 1 --number 60 --results drawn.json docs/drawn-mutations.md

`mutations.py` breaks what somebody thought of; here nobody chooses. A line is drawn from all lines of the core on which
an operator, a comparison, a constant or a call of min or max can be changed, then one such change of the line. It is
written into the file, in a copy of the repository. The tests that cover the line run first, the quickest before the
others; if none fails, all quick tests run. What survives is at the head of the page. The coverage data (pytest-cov, a
development tool that is not among the dependencies) say which tests cover a line; without them all quick tests run at
once. With `--results FILE` what is known is kept there, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

CORE = ("pebblesim", "graphs", "schedules")
"""Folders from which lines are drawn."""

OUTSIDE = ("claims", "cli", "gpu", "graphs", "schedules", "sparse_backward", "views")
"""Rooms of pebblesim that are not drawn from: faces and pictures, and the symbolic links to the folders at the top."""

FIRST = 60
"""Covering tests that are tried before all quick tests."""

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


def changes(path: Path) -> Iterator[Mutation]:
    """All single changes of the lines of a file; parts that span several lines are left alone."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    place = path.relative_to(ROOT).as_posix()

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


def sources() -> Iterator[Path]:
    """The files of the core."""
    for folder in CORE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if folder != "pebblesim" or path.relative_to(ROOT / folder).parts[0] not in OUTSIDE:
                yield path


def drawn(seed: int, number: int) -> list[Mutation]:
    """Different mutations: a line is drawn, then one of its changes."""
    by_line: dict[tuple[str, int], list[Mutation]] = {}
    for path in sources():
        for change in changes(path):
            by_line.setdefault((change.path, change.line), []).append(change)
    dice = random.Random(seed)
    lines = dice.sample(sorted(by_line), number)
    return [dice.choice(by_line[line]) for line in lines]


def covering(data: Any, mutation: Mutation) -> list[str]:
    """The tests that ran the line, as pytest names them; where no test runs it as Python (a loop that is compiled, or a
    line that runs at import), the tests that ran a file which imports this one."""
    if tests := ran(data, mutation.path, mutation.line):
        return sorted(tests)
    name = re.compile(rf"\b(import|from)\b.*\b{Path(mutation.path).stem}\b")
    importers = [path for path in sources() if name.search(path.read_text(encoding="utf-8"))]
    return sorted(set().union(*(ran(data, path.relative_to(ROOT).as_posix(), None) for path in importers)))


def known_coverage(path: Path) -> Any:
    """What pytest-cov wrote, or None if there is no such file."""
    if not path.exists():
        return None
    from coverage import CoverageData

    data = CoverageData(basename=str(path))
    data.read()
    return data


def ran(data: Any, path: str, line: int | None) -> set[str]:
    """The tests that ran a line of a file, or any line of it."""
    tests: set[str] = set()
    for measured in data.measured_files():
        if measured.endswith("/" + path):
            by_line = data.contexts_by_lineno(measured)
            tests.update(by_line.get(line, ()) if line is not None else itertools.chain(*by_line.values()))
    return {test.rpartition("|")[0] or test for test in tests - {""}}


def failing(copy: Path, tests: Sequence[str], workers: int) -> str | None:
    """The first test that fails in the copy; None if all pass. RuntimeError if pytest ran no test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", str(workers), "-p", "no:cacheprovider", "--tb=line"]
    env = {**os.environ, "CI": "1", "PYTHONPATH": str(copy)}
    ended = subprocess.run([*command, *tests], cwd=copy, capture_output=True, text=True, env=env)
    if ended.returncode == 0:
        return None
    lines = ended.stdout.splitlines()
    if any("while loading" in line or line.startswith("ERROR tests/conftest") for line in lines):
        return "pytest does not start"
    for line in lines:
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 1)[1].split(" - ")[0].removeprefix("tests/")
    if ended.returncode in (1, 2, 3):
        return "the run of pytest ends"
    raise RuntimeError(f"pytest ended with {ended.returncode}: {ended.stdout[-500:]}{ended.stderr[-500:]}")


def tried(copy: Path, mutation: Mutation, data: Any, workers: int) -> str:
    """Which test finds a mutation; "" if it survives all quick tests."""
    path = copy / mutation.path
    before = path.read_text(encoding="utf-8")
    lines = before.splitlines(keepends=True)
    assert lines[mutation.line - 1].rstrip("\n") == mutation.old
    lines[mutation.line - 1] = mutation.new + "\n"
    try:
        compile("".join(lines), mutation.path, "exec")
    except SyntaxError:
        return "not a program"
    path.write_text("".join(lines), encoding="utf-8")
    try:
        if tests := covering(data, mutation) if data else []:
            chosen = tests if len(tests) <= FIRST else random.Random(mutation.key).sample(tests, FIRST)
            if by := failing(copy, chosen, 0):
                return by
        return failing(copy, [], workers) or ""
    finally:
        path.write_text(before, encoding="utf-8")


def page(seed: int, results: dict[str, str]) -> str:
    """The document."""
    known = {key: by for key, by in results.items() if by != "not a program"}
    survivors = [key for key, by in known.items() if not by]
    parts = [
        "# Lines of the core that a seed drew, and what found the change\n",
        f"`benchmarks/drawn_mutations.py` draws lines of the core by a seed (here {seed}), breaks each in one place,\n"
        "and runs the quick tests. The first that fails is named.\n",
        f"{len(known)} mutations, {len(known) - len(survivors)} found.\n",
    ]
    if survivors:
        parts += ["## Survivors\n", *(f"- `{key}`" for key in survivors), ""]
    parts += ["## All\n", "| place and change | found by |", "|---|---|"]
    parts += [
        f"| `{key.replace('|', chr(92) + '|')}` | {(by and f'`{by}`') or 'nothing'} |" for key, by in known.items()
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path, nargs="?", help="the document to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage", help="data of pytest-cov, by test")
    parser.add_argument("--results", type=Path, help="what is known already, and where to keep what comes")
    parser.add_argument("--workers", type=int, default=2, help="for the run of all quick tests")
    parser.add_argument("--list", action="store_true", help="say what is drawn, and stop")
    given = parser.parse_args()
    mutations = drawn(given.seed, given.number)
    if given.list:
        print("\n".join(mutation.key for mutation in mutations))
        return
    results = json.loads(given.results.read_text()) if given.results and given.results.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "copy"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", ".coverage*"))
        data = known_coverage(given.coverage)
        for number, mutation in enumerate(mutations, 1):
            if mutation.key not in results:
                results[mutation.key] = tried(copy, mutation, data, given.workers)
                if given.results:
                    given.results.write_text(json.dumps(results, indent=1, ensure_ascii=False))
            print(f"{number:3} {results[mutation.key] or 'SURVIVES':60} {mutation.key}", flush=True)
    if given.page:
        given.page.write_text(page(given.seed, results), encoding="utf-8")


if __name__ == "__main__":
    main()
