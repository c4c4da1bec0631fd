"""Small edits of the source of schedules, and of the helpers they are made of: what a slip of the pen would do.

An edit changes one place: a statement is deleted, repeated, swapped with the next, or moved; an index is another one;
an operand is exchanged for another, transposed, or changes sides; a loop stands around a statement.
"""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import linecache
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pebblesim.language.registry import Schedule

Change = Callable[[ast.FunctionDef], object]  # changes the syntax tree of a function

FILES = itertools.count()


def functions_of(schedule: Schedule) -> dict[str, Callable[..., Any]]:
    """The schedule's function and the helpers that it calls, directly or not, by the names it calls them."""
    found: dict[str, Callable[..., Any]] = {}

    def visit(name: str, function: Any) -> None:
        if name in found or not isinstance(function, types.FunctionType):
            return
        if not function.__module__.startswith("pebblesim.schedules"):
            return
        found[name] = function
        known = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        for used in function.__code__.co_names:
            visit(used, known.get(used))

    visit(schedule.function.__name__, schedule.function)
    return found


def trees_of(schedule: Schedule) -> dict[str, ast.FunctionDef]:
    """The syntax trees of those functions."""
    trees = {}
    for name, function in functions_of(schedule).items():
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        tree.decorator_list, tree.name = [], name
        if ast.get_docstring(tree):
            del tree.body[0]
        trees[name] = tree
    return trees


def compiled(schedule: Schedule, trees: dict[str, ast.FunctionDef], what: str) -> Schedule:
    """The schedule whose functions are those trees."""
    names: dict[str, Any] = {}
    for function in functions_of(schedule).values():
        names |= {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    source = "\n\n".join(ast.unparse(ast.fix_missing_locations(tree)) for tree in trees.values())
    file = f"<edit {next(FILES)}: {what}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), names)
    return replace(schedule, function=names[schedule.function.__name__])


def source(schedule: Schedule) -> str:
    """The source of an edited schedule."""
    return "".join(linecache.getlines(schedule.function.__code__.co_filename))


def edits(schedule: Schedule) -> Iterator[tuple[str, Callable[[], Schedule]]]:
    """All edits of a schedule: what each does, and the edited schedule when it is called."""
    trees = trees_of(schedule)
    for name in trees:
        for what, change in _changes(trees[name]):

            def make(name: str = name, what: str = what, change: Change = change) -> Schedule:
                edited = copy.deepcopy(trees)
                change(edited[name])
                return compiled(schedule, edited, what)

            yield f"{schedule.name}: {name}: {what}", make


def _lists(tree: ast.AST) -> list[list[ast.stmt]]:
    """All lists of statements, outer ones first."""
    return [node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.For | ast.With | ast.If)]


def _short(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:60]


def _changes(tree: ast.FunctionDef) -> Iterator[tuple[str, Change]]:
    lists, tiles, indices = _lists(tree), sorted(_tiles(tree)), sorted(_indices(tree))
    for at, body in enumerate(lists):
        for s, statement in enumerate(body):
            line = _short(statement)
            if len(body) > 1:
                yield f"delete {line}", partial(_delete, at=at, s=s)
            yield f"repeat {line}", partial(_repeat, at=at, s=s)
            for to in range(len(body) + 1):
                if to not in (s, s + 1):
                    yield f"move {line} to {to}", partial(_move, at=at, s=s, other=at, to=to)
            for other, target in enumerate(lists):
                inside = any(target is inner for inner in _lists(statement))
                if other != at and not inside and len(body) > 1:
                    for to in (0, len(target)):
                        what = f"move {line} to {to} of {_short(target[0])}"
                        yield what, partial(_move, at=at, s=s, other=other, to=to)
            for over in indices:
                yield f"loop over {over} around {line}", partial(_around, at=at, s=s, over=over)
    for at, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.BinOp):
            yield f"swap sides of {_short(node)}", partial(_swap, at=at)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for name in tiles if node.id in tiles else indices if node.id in indices else ():
                if name != node.id:
                    yield f"{name} for {node.id}, node {at}", partial(_rename, at=at, name=name)
        if isinstance(node, ast.Attribute) and node.attr == "T":
            yield f"no transpose in {_short(node)}", partial(_untranspose, at=at)


def _delete(tree: ast.AST, at: int, s: int) -> None:
    del _lists(tree)[at][s]


def _repeat(tree: ast.AST, at: int, s: int) -> None:
    body = _lists(tree)[at]
    body.insert(s, copy.deepcopy(body[s]))


def _move(tree: ast.AST, at: int, s: int, other: int, to: int) -> None:
    """To a place in the same list or in another; places are counted before anything is taken away."""
    body, target = _lists(tree)[at], _lists(tree)[other]
    target.insert(to, body[s])
    del body[s + (body is target and to <= s)]


def _around(tree: ast.FunctionDef, at: int, s: int, over: str) -> None:
    body = _lists(tree)[at]
    (loop,) = ast.parse(f"for z in {tree.args.args[0].arg}.tiles({over}, 1): pass").body
    assert isinstance(loop, ast.For)
    loop.body = [body[s]]
    body[s] = loop


def _nth(tree: ast.AST, at: int) -> Any:
    return next(itertools.islice(ast.walk(tree), at, None))


def _swap(tree: ast.AST, at: int) -> None:
    node = _nth(tree, at)
    node.left, node.right = node.right, node.left


def _rename(tree: ast.AST, at: int, name: str) -> None:
    _nth(tree, at).id = name


def _untranspose(tree: ast.AST, at: int) -> None:
    node = _nth(tree, at)
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, field, node.value)
            elif isinstance(value, list):
                value[:] = [node.value if each is node else each for each in value]


def _indices(tree: ast.FunctionDef) -> set[str]:
    """Names of loop variables and of dimensions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".shape"):
            found |= {name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)}
    return found - {"_"}


def _tiles(tree: ast.FunctionDef) -> set[str]:
    """Names of all that is read, computed, made room for, or lies in memory."""
    known = {argument.arg for argument in tree.args.args[1:]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and not ast.unparse(node.value).endswith(".shape"):
            known |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return known - _indices(tree)
