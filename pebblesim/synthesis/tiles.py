"""The pass that computes one product in tiles, from columns and single words of its operands."""

from __future__ import annotations

from pebblesim.synthesis.equations import Equation, System
from pebblesim.synthesis.passes import ONE, Draft, Impossible, Pass, Writer, expression


def tiles(system: System, x: int, y: int, computed: frozenset[str], stores: frozenset[str], draft: Draft = ONE) -> Pass:
    """Compute a product over the axes x and y in tiles of a x b, one row of tiles after the other.

    Elementwise operations are applied to each tile. Row sums over y stay in cache during a row of tiles.

    Raises:
        Impossible: these equations have no such pass.
    """
    order = [each for name, each in system.equations.items() if name in computed]
    product, *others = order
    if (
        product.op != "matmul"
        or {*system.axes[product.name]} != {x, y}
        or any(name in computed for name in product.uses)
    ):
        raise Impossible
    sums = [other for other in others if other.op == "rowsum"]
    epilogue = [other for other in others if other.elementwise]
    if len(sums) + len(epilogue) < len(others) or any(
        equation.contracted != y or equation.name not in stores for equation in sums
    ):
        raise Impossible
    if any({*system.axes[equation.name]} != {x, y} for equation in epilogue):
        raise Impossible
    made = {product.name, *(equation.name for equation in epilogue)}
    if any(name in {each.name for each in sums} for equation in epilogue for name in equation.uses):
        raise Impossible  # a row sum is complete only after all tiles of its row
    inside = [name for equation in epilogue for name in equation.uses if name not in made]
    by_word = any(len(system.axes[name]) == 2 for name in inside)
    once = all(sum(name in equation.uses for equation in epilogue) == 1 for name in inside)
    if by_word and (not once or sums or stores != {order[-1].name} or not _chain(product, epilogue)):
        raise Impossible

    writer = Writer(system, draft)
    i, j, a, b = writer.i, writer.j, system.free(f"a{draft.number}"), system.free(f"b{draft.number}")
    free = "" if stores & {equation.name for equation in sums} else ", independent=True"
    with writer.loop(i, x, a, more=", independent=True"):
        totals = {equation.name: writer.zeros(equation.name) for equation in sums}
        with writer.loop(j, y, b, more=free, met=x, stores=sorted(stores)):
            C = writer.zeros(product.name)
            _rank_one_updates(writer, product, C)
            if by_word:
                _word_by_word(writer, product, epilogue, C)
                writer.write(order[-1].name, C)
            else:
                _tile_by_tile(writer, [product, *epilogue, *sums], C, totals, stores)
        for each in sums:
            writer.write(each.name, totals[each.name])
    reads = {name for equation in order for name in equation.uses if name not in computed}
    return writer.finish(reads, stores)


def _rank_one_updates(writer: Writer, product: Equation, C: str) -> None:
    left, right = product.operands
    k = product.contracted
    assert k is not None
    row, column = writer.system.axes[product.name]
    with writer.loop(writer.k, k, met=writer.other(product)):
        A_k = f"{left.name}_{writer.index(row)}{writer.k}"
        writer.say(f"{A_k} = {writer.read(left.name)}{'.T' if left.transposed else ''}")
        writer.enter(A_k, left.name, (row, k))
        with writer.loop(writer.c, column, 1, over=writer.index(column) or ""):
            B_k = writer.read(right.name) + (".T" if right.transposed else "")
            writer.hold(writer.tile(right.name, (k, column)))
            writer.say(f"{C}[:, {writer.c}] += {A_k} @ {B_k}")


def _tile_by_tile(
    writer: Writer, order: list[Equation], C: str, totals: dict[str, str], stores: frozenset[str]
) -> None:
    held = {order[0].name: C}
    left = {
        name: sum(name in each.uses for each in order) for equation in order for name in (equation.name, *equation.uses)
    }
    read: dict[str, str] = {}
    for equation in order:
        if equation is not order[0]:
            for name in equation.uses:
                if name not in held and name not in read:
                    read[name] = writer.bring(name)
                left[name] -= 1
            text = expression(equation, held | read)
            if equation.name in totals:
                writer.say(f"{totals[equation.name]} += {text}")
            else:
                old = next((held[name] for name in equation.uses if name in held and not left[name]), None)
                if old is None:
                    raise Impossible  # it would need a second tile for results
                writer.say(f"{old}[:] = {text}  # {equation.name}")
                writer.becomes(old, equation.name)
                held = {name: tile for name, tile in held.items() if tile != old} | {equation.name: old}
            for name in equation.uses:
                if name in read and not left[name]:
                    writer.kill(read[name])
        if equation.name in stores and equation.name in held:
            writer.write(equation.name, held[equation.name])


def _chain(product: Equation, epilogue: list[Equation]) -> bool:
    """Whether each result is used exactly once, by the next equation, so that all equations make one expression."""
    before = [product, *epilogue]
    return all(
        sum(operand.name == one.name for equation in epilogue for operand in equation.operands)
        == (one is not before[-1])
        for one in before
    )


def _word_by_word(writer: Writer, product: Equation, epilogue: list[Equation], C: str) -> None:
    axes = writer.system.axes
    texts = {product.name: f"{C}[{writer.r}, {writer.c}]"}
    tiles = {
        name: writer.bring(name)
        for equation in epilogue
        for name in equation.uses
        if len(axes[name]) == 1 and name not in texts
    }
    row, column = axes[product.name]
    with (
        writer.loop(writer.r, row, 1, over=writer.index(row) or ""),
        writer.loop(writer.c, column, 1, over=writer.index(column) or ""),
    ):
        texts |= {name: f"{tile}[{writer.r}]" for name, tile in tiles.items()}
        for equation in epilogue:
            for name in equation.uses:
                if name not in texts:
                    texts[name] = writer.read(name)
                    writer.hold(writer.tile(name, (row, column)))
            text = expression(equation, texts)
            texts[equation.name] = text if equation is epilogue[-1] else f"({text})"
        writer.say(f"{C}[{writer.r}, {writer.c}] = {texts[epilogue[-1].name]}")
        writer.becomes(C, epilogue[-1].name)
