"""Write a plan as source code in the language of schedules, and register it as a schedule."""

from __future__ import annotations

import linecache

from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.synthesis.passes import INDENT
from pebblesim.synthesis.plans import Plan

WIDTH = 120


def source(plan: Plan, name: str, where: str) -> str:
    """Return the plan as the text of a Python file; `where` names the sizes for which it was found."""
    system, made = plan.system, plan.passes
    blocks = [*dict.fromkeys(block for one_pass in made for block in one_pass.blocks)]
    body = [*_sizes(plan), *_tensors(plan)]
    if len(made) == 1:
        body += made[0].lines
    else:
        for one_pass in made:
            stored = ", ".join(name for name in system.equations if name in one_pass.stores)
            body += ["", f'with {system.machine}.phase("{stored}"):', *(f"{INDENT}{line}" for line in one_pass.lines)]
    arguments = [system.machine, *system.inputs, *(["*", *blocks] if blocks else [])]
    words = [moved.text(system.dims) for one_pass in made for moved in one_pass.moved]
    return "\n".join(
        [
            f'"""{name}: found by `pebblesim search` for {where}."""',
            "",
            *_imports(body),
            "from pebblesim.language.registry import schedule",
            "",
            "",
            "@schedule(",
            f'    problem="{system.problem.name}",',
            f'    name="{name}",',
            f'    source="found by a search over passes, for {where}",',
            *_stated(words),
            *([f"    graph={dict(system.options)!r},".replace("'", '"')] if system.options else []),
            ")",
            f"def {name.replace('-', '_')}({', '.join(arguments)}):",
            f'{INDENT}"""Passes: {"; ".join(", ".join(sorted(each.stores)) for each in made)}."""',
            *(f"{INDENT}{line}" if line else "" for line in body),
            "",
        ]
    )


def _stated(words: list[str]) -> list[str]:
    lines, line = [], ""
    for number, term in enumerate(words):
        text = term if not number else f" + {term}"
        if len(line) + len(text) > WIDTH - 20:
            lines.append(line)
            line = ""
        line += text
    lines.append(line)
    return ["    io=(", *(f'        "{each}"' for each in lines), "    ),"]


def _imports(body: list[str]) -> list[str]:
    text = "\n".join(body)
    used = [name for name in ("exp", "log", "maximum", "relu", "rowsum", "sigmoid", "step") if f"{name}(" in text]
    return [f"from pebblesim.language import {', '.join(used)}"] if used else []


def _sizes(plan: Plan) -> list[str]:
    """Return lines that get the dimensions from the shapes of the inputs."""
    system, lines = plan.system, []
    known: set[str] = set()
    for name in system.inputs:
        dims = [system.dims[axis] for axis in system.axes[name]]
        if not {*dims} <= known and len({*dims}) == len(dims):
            lines.append(f"{', '.join(dims)}{',' if len(dims) == 1 else ''} = {name}.shape")
            known |= {*dims}
    return lines


def _tensors(plan: Plan) -> list[str]:
    system = plan.system
    stored = [name for name in system.equations if any(name in one_pass.stores for one_pass in plan.passes)]
    return [
        f'{name} = {system.machine}.tensor("{name}", {", ".join(system.dims[axis] for axis in system.axes[name])})'
        for name in stored
    ]


def register(text: str, name: str) -> Schedule:
    """Run the source and return the schedule that it registers. Messages show its lines, as for a file."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), {"__name__": name})
    return SCHEDULES[name]
