"""`text`: a program as pseudo-code, to compare with the paper."""

from __future__ import annotations

from pebblesim.language import program as ir

_SIGNS = {"add": "+", "sub": "−", "mul": "∘", "div": "/"}


def text(program: ir.Program) -> str:
    """Return the pseudo-code of a program, phase by phase."""
    return "\n".join(numbered(program)[0])


def numbered(program: ir.Program) -> tuple[list[str], dict[ir.Node, int]]:
    """Return the lines of the pseudo-code, and for each primitive the index of its line.

    A tile that leaves at the end of a loop or phase has no own line; its index is the line of that loop or phase.
    """
    lines: list[str] = []
    line_of: dict[ir.Node, int] = {}
    for phase in program.phases:
        lines.append(f"phase {phase.name}:")
        _body(phase.body, 1, lines, {}, line_of)
    return lines, line_of


def _body(
    body: list[ir.Node], depth: int, lines: list[str], names: dict[ir.Tile, str], line_of: dict[ir.Node, int]
) -> None:
    head = len(lines) - 1
    for node in body:
        line = ""
        match node:
            case ir.Loop(range=rng, independent=independent):
                assert rng.parent is not None
                line = f"for {rng.name} in {_tiles(rng)}:" + "  # independent" * independent
            case ir.Read(tile=tile, tensor=tensor, at=at):
                part = _part(tensor, tile.ranges, at)
                named = tile.name.rstrip("_").startswith(tensor.name)  # a name from the paper, not just any variable
                names[tile] = tile.name.rstrip("_") if named else part
                line = f"read {part}" + (f" as {names[tile]}" if names[tile] != part else "")
            case ir.Write(tile=tile, tensor=tensor, at=at):
                line = f"write {_part(tensor, tile.ranges, at)} ← {_name(tile, names)}"
            case ir.Init(tensor=tensor, ranges=ranges, value=value):
                line = f"write {_part(tensor, ranges)} ← {_constant(value)}"
            case ir.Zeros(tile=tile):
                line = f"{_name(tile, names)} ← 0"
            case ir.Constant(tile=tile, value=value):
                line = f"{_name(tile, names)} ← {_constant(value)}"
            case ir.Move(tile=tile, source=source):
                line = f"move {_name(source, names)} to {_name(tile, names)}"
            case ir.Delete(tile=tile, implied=False):
                line = f"delete {_name(tile, names)}"
            case ir.Compute(target=target, expr=expr, mode=mode):
                line = f"{_expr(target, names)} {'+=' if mode == 'add' else '←'} {_expr(expr, names)}"
        line_of[node] = len(lines) if line else head
        if line:
            lines.append("    " * depth + line)
        if isinstance(node, ir.Loop):
            _body(node.body, depth + 1, lines, names, line_of)


def _tiles(rng: ir.Range) -> str:
    assert rng.parent is not None
    if rng.first:
        return f"the first {rng.block} of {rng.parent.name}"
    return f"tiles of {rng.parent.name} by {rng.block}" + (f" after the first {rng.after}" if rng.after else "")


def _constant(value: float) -> str:
    return "0" if value == 0 else "−∞"


def _part(tensor: ir.Tensor, ranges: ir.Ranges, at: ir.Range | None = None) -> str:
    if at is None and all(rng.parent is None for rng in ranges):
        return tensor.name
    indices = [*([] if at is None else [at.name]), *(":" if rng.parent is None else rng.name for rng in ranges)]
    return f"{tensor.name}[{', '.join(indices)}]"


def _name(tile: ir.Tile, names: dict[ir.Tile, str]) -> str:
    if tile not in names:
        names[tile] = tile.name.rstrip("_") or f"t{len(names) + 1}"
    return names[tile]


def _expr(expr: ir.Expr, names: dict[ir.Tile, str], inside: bool = False) -> str:
    match expr:
        case ir.Ref(tile=tile, ranges=ranges, transposed=transposed):
            part = _name(tile, names)
            if ranges != tile.ranges:
                indices = (":" if a is b else a.name for a, b in zip(ranges, tile.ranges, strict=True))
                part = f"{part}[{', '.join(indices)}]"
            return part + "ᵀ" * transposed
        case ir.MatMul(left=left, right=right):
            return f"{_expr(left, names)} · {_expr(right, names)}"
        case ir.RowReduction(op="rowmax", operand=operand):
            return f"rowmax({_expr(operand, names)})"
        case ir.RowReduction(operand=operand):
            summed = _expr(operand, names)
            return f"{summed} · 1" if isinstance(operand, ir.Ref) else f"({summed}) · 1"
        case ir.Elementwise(op=op, operands=operands) if op not in _SIGNS:
            return f"{op}({', '.join(_expr(operand, names) for operand in operands)})"
        case ir.Elementwise(op=op, operands=(left, right)):
            tight = op in ("mul", "div")
            first, second = (_expr(x, names, inside=tight or x is right) for x in (left, right))
            if tight and isinstance(right, ir.Elementwise) and right.op in ("mul", "div"):
                second = f"({second})"
            if op == "mul" and len(left.shape) < len(right.shape):
                return f"diag({first}) {second}"
            if op == "div" and len(right.shape) < len(left.shape):
                return f"diag({second})⁻¹ {first}"
            line = f"{first} {_SIGNS[op]} {second}"
            return f"({line})" if inside and op in ("add", "sub") else line
    raise AssertionError(expr)
