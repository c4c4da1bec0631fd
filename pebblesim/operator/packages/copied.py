"""Copy the parts of modules that some names need, with their imports among each other rewritten.

A module that is reached has its imports, the statements that do something when it is imported (calls, definitions that
a decorator registers), and the definitions that are needed. Statements are copied as they stand.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PLAIN = {"cache", "cached_property", "contextmanager", "dataclass", "lru_cache", "property", "staticmethod"}
"""Decorators that register nothing."""

Name = tuple[str, str]
"""A module, and a name in it; "" is the module itself."""


@dataclass(eq=False)
class Module:
    """A module that is copied.

    Attributes:
        text: its source.
        body: its statements.
        kept: the numbers of those that are copied.
        taken: local names, and what they are of other modules that are copied.
    """

    text: str
    body: list[ast.stmt]
    kept: set[int] = field(default_factory=set)
    taken: dict[str, Name] = field(default_factory=dict)


class Copy:
    """Modules of a package whose name is `root`, as far as some names need them."""

    def __init__(self, root: str, replaced: Mapping[Name, Name]) -> None:
        """`replaced`: names that are taken from elsewhere; (module, "*") is all names of a module.

        Modules that they are taken from are copied without replacements.
        """
        self.root, self.replaced, self.modules = root, replaced, dict[str, Module]()
        self._exempt = {module for module, _ in replaced.values()}

    def need(self, module: str, name: str) -> None:
        """Copy a definition of a module, and all that it needs; "" for what is done when the module is imported."""
        made = self._module(module)
        for at, node in enumerate(made.body):
            if at not in made.kept and (name in _defined(node) if name else _does_something(node)):
                made.kept |= {at, at + 1} if _is_text(made.body[at + 1 : at + 2]) else {at}
                self._follow(module, node)

    def _module(self, module: str) -> Module:
        if module not in self.modules:
            text = _path(module).read_text(encoding="utf-8")
            self.modules[module] = Module(text, ast.parse(text).body)
            self.need(module, "")
        return self.modules[module]

    def _follow(self, module: str, node: ast.AST) -> None:
        made = self.modules[module]
        inside = dict(_imported([each for each in ast.walk(node) if isinstance(each, ast.stmt)]))
        imported = dict(_imported(made.body)) | inside
        for local, parts in _used(node).items():
            target = imported.get(local, (module, local))
            if local not in imported and not any(local in _defined(each) for each in made.body):
                continue
            if local not in imported and (module, local) not in self.replaced:
                self.need(module, local)
                continue
            if target[0].split(".")[0] != self.root:
                continue
            target = self._elsewhere(module, target)
            if local not in inside:
                made.taken[local] = target
            for name in parts if target[1] == "" else (target[1],):
                self.need(*self._elsewhere(module, self._origin((target[0], name))))

    def _elsewhere(self, module: str, name: Name) -> Name:
        """Where a name is taken from by a module."""
        if _path(".".join(name)).exists():
            name = ".".join(name), ""
        if module in self._exempt:
            return self._origin(name)
        for key in (name, (name[0], "*")):
            if key in self.replaced:
                there = self.replaced[key]
                return there[0], there[1] or name[1]
        return self._origin(name)

    def _origin(self, name: Name) -> Name:
        """Where a name is defined, if it is only handed on."""
        if not name[1] or name[0].split(".")[0] != self.root:
            return name
        body = self._module(name[0]).body
        if any(name[1] in _defined(node) for node in body):
            return name
        return self._origin(dict(_imported(body))[name[1]])

    def text(self, module: str) -> str:
        """The source of the copy of a module."""
        made, parts = self.modules[module], []
        lines = made.text.splitlines(keepends=True)
        for at, node in enumerate(made.body):
            if at in made.kept:
                before = made.body[at - 1].end_lineno if at else 0
                parts.append("".join(lines[before : node.end_lineno]))
        opening = "".join(lines[: made.body[0].end_lineno]) + "\nfrom __future__ import annotations\n\n"
        return self._at_top(opening + "\n".join(self._imports(module)) + "\n" + "".join(parts), module)

    def _at_top(self, text: str, module: str) -> str:
        """Imports inside functions, rewritten, too."""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == self.root:
                there = {self.file(self._origin((node.module or "", each.name))[0]) for each in node.names}
                assert len(there) == 1
                text = text.replace(f"from {node.module} import", f"from .{there.pop()} import")
        return text

    def _imports(self, module: str) -> Iterator[str]:
        made = self.modules[module]
        used = {name for at in made.kept for name in _used(made.body[at])}
        for node in made.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                own = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
                    self.root,
                    "__future__",
                )
                names = [each for each in node.names if (each.asname or each.name).split(".")[0] in used]
                if names and not own:
                    several = ", ".join(ast.unparse(each) for each in names)
                    yield (
                        f"from {node.module} import {several}"
                        if isinstance(node, ast.ImportFrom)
                        else f"import {several}"
                    )
        ours = dict[str, list[str]]()
        for local, (other, name) in sorted(made.taken.items()):
            if local in used:
                what = name or self.file(other)
                said = what if what == local else f"{what} as {local}"
                ours.setdefault(f".{self.file(other)}" if name else ".", []).append(said)
        yield from (f"from {place} import {', '.join(names)}" for place, names in sorted(ours.items()))

    def file(self, module: str) -> str:
        """The name of the copy of a module: its own, behind those of its folders but for `operator`, each once."""
        _, *folders, name = module.split(".")
        return "_".join([*(each for each in folders if each not in ("operator", name)), name])


def _path(module: str) -> Path:
    """The file of a module of this project."""
    return Path(__file__).resolve().parents[2].joinpath(*module.split(".")[1:]).with_suffix(".py")


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement at the top defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)}


def _is_text(nodes: list[ast.stmt]) -> bool:
    """Whether this is the docstring of what stands before it."""
    return any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in nodes)


def _does_something(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        names = [ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list]
        return not PLAIN.issuperset(names)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _imported(nodes: Iterable[ast.stmt]) -> Iterator[tuple[str, Name]]:
    """Local names, and what they are of other modules."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                yield (each.asname or each.name.split(".")[0], (each.name, ""))
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                yield (each.asname or each.name, (node.module or "", each.name))


def _used(node: ast.AST) -> dict[str, set[str]]:
    """The names that a statement reads, and the attributes that it takes of each."""
    found: dict[str, set[str]] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.setdefault(each.id, set())
        elif isinstance(each, ast.Global):
            found |= {name: found.get(name, set()) for name in each.names}
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            found.setdefault(each.value.id, set()).add(each.attr)
    return found
