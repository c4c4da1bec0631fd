"""The pass that keeps rows of one axis in cache and streams rows of another."""

from __future__ import annotations

from contextlib import ExitStack

from pebblesim.synthesis.equations import Equation, System
from pebblesim.synthesis.passes import ONE, Draft, Impossible, Pass, Writer, expression, part
from pebblesim.synthesis.timing import Choices, Form, Timing, When


def rows(system: System, form: Form, computed: frozenset[str], stores: frozenset[str], draft: Draft = ONE) -> Pass:
    """Keep blocks of rows of axis x in cache and stream rows of axis y, one at a time, as the form says.

    Raises:
        Impossible: these equations have no such pass.
    """
    return _Rows(system, form, computed, stores, draft).write()


class _Rows:
    def __init__(
        self, system: System, form: Form, computed: frozenset[str], stores: frozenset[str], draft: Draft
    ) -> None:
        self.system, self.form, self.draft = system, form, draft
        self.x, self.y, self.resident = form.x, form.y, form.resident
        self.order = [each for name, each in system.equations.items() if name in computed]
        self.stores = stores
        self.reads = list(
            dict.fromkeys(name for equation in self.order for name in equation.uses if name not in computed)
        )
        self.absorbed = {
            name for name in computed - stores if _in_one_row_sum(name, system, self.order, (form.x, form.y))
        }
        self._all_operands = {
            equation.name: (
                *equation.uses,
                *(one for name in equation.uses if name in self.absorbed for one in system.equations[name].uses),
            )
            for equation in self.order
        }
        timing = Timing(Choices(system, [(computed, stores)]), form)
        if not timing.possible[0]:
            raise Impossible
        self.when = {name: When(when[0]) for name, when in timing.when.items()}
        # when an equation is computed; its sum may be complete only later
        self.done = {equation.name: When(timing.done[equation.name][0]) for equation in self.order}
        self.writer = Writer(system, draft)
        self.tile: dict[str, str] = {}  # variables of the tensors that are in cache

    def _over(self, name: str) -> tuple[bool, bool]:
        return self.form.over(self.system.axes[name])

    # -- source -------------------------------------------------------------------------------------------------

    def write(self) -> Pass:
        """Return the pass."""
        writer, number = self.writer, self.draft.number
        self._bring(When.BEFORE)
        self._at(When.BEFORE)
        summed = any(self.when[equation.name] == When.AFTER for equation in self.order)
        more = "" if summed else ", independent=True"
        with writer.blocks_of_rows(self.x, self.system.free(f"B{number}"), more):
            self._at(When.BLOCK)
            self._leave(When.BLOCK)
            if self.y is not None:
                self._bring(When.BLOCK)
                written = [equation.name for equation in self.order if equation.name in self.stores]
                over_pairs = [name for name in written if self._over(name) == (True, True)]
                with writer.loop(writer.j, self.y, met=self.x, stores=over_pairs):
                    self._at(When.PASSING)
                self._leave(When.PASSING)
            self._at(When.PASSED)
        self._at(When.AFTER)
        return writer.finish(self.reads, self.stores)

    def _uses(self, name: str, after: When) -> bool:
        """Whether a tensor is used as an operand, or stored, at a later level."""
        later = any(name in self._operands(equation) and self.done[equation.name] > after for equation in self.order)
        return later or (name in self.stores and self.when[name] > after)

    def _operands(self, each: Equation) -> tuple[str, ...]:
        """Return the operands of an equation, including the operands of absorbed equations."""
        return self._all_operands[each.name]

    def _bring(self, level: When) -> None:
        """Before a loop, read the operands that it uses and does not change, and create tiles for its sums."""
        for equation in self.order:
            if equation.name in self.absorbed:
                continue
            inside = self.done[equation.name] > level and (
                level == When.BEFORE or self.done[equation.name] == When.PASSING
            )
            for name in equation.uses:
                if inside and name in self.reads and self.when[name] == level and name not in self.tile:
                    self.tile[name] = self.writer.bring(name)
            begins = When.BEFORE if self.when[equation.name] == When.AFTER else When.BLOCK
            if self.done[equation.name] < self.when[equation.name] and begins == level:
                self.tile[equation.name] = self.writer.zeros(equation.name)

    def _leave(self, level: When) -> None:
        """After a level, drop tiles that no later level needs, and those that are needed again only after streaming."""
        for name, tile in [*self.tile.items()]:
            if not self.writer.here(tile):
                continue
            again = level == When.BLOCK and name in self.reads and not self._passing(name)
            if not self._uses(name, level) or again:
                self.writer.kill(tile)
                del self.tile[name]

    def _at(self, level: When) -> None:
        """Write the equations of a level, and store the results that are complete at this level."""
        for equation in self.order:
            if equation.name not in self.absorbed and self.done[equation.name] == level:
                made_of = [one for one in self._operands(equation) if one not in self.absorbed]
                self._left = self.order[self.order.index(equation) + 1 :]
                if equation.op == "matmul":
                    self._product(equation)
                elif equation.op == "rowsum":
                    self._rowsum(equation)
                else:
                    self._elementwise(equation)
                for name in made_of:
                    if name in self.tile and self._dead(name, level) and self.writer.here(self.tile[name]):
                        self.writer.kill(self.tile.pop(name))
            if equation.name in self.stores and self.when[equation.name] == level:
                self._left = [] if self.done[equation.name] < level else self._left
                self.writer.write(equation.name, self.tile[equation.name])
                if self._dead(equation.name, level) and self.writer.here(self.tile[equation.name]):
                    self.writer.kill(self.tile.pop(equation.name))

    def _dead(self, name: str, level: When) -> bool:
        """Whether no equation after the last written one needs this tensor."""
        here = any(name in self._operands(equation) for equation in self._left if self.done[equation.name] == level)
        return not here and not self._uses(name, level)

    # -- equations ----------------------------------------------------------------------------------------------

    def _at_y(self, name: str) -> dict[int, str]:
        """Return the index of the current row of y, for a tensor whose rows are all in cache during the loop over y."""
        stays = self.resident and self._over(name) == (False, True)
        return {self.y: self.writer.j} if stays and self.y is not None and self.writer.index(self.y) else {}

    def _streams(self, name: str, each: Equation) -> bool:
        """Whether an operand in memory is needed only by this equation, so that it can be streamed in parts."""
        level = self.done[each.name]
        users = [
            one
            for one in self.order
            if one.name not in self.absorbed and name in self._operands(one) and self.done[one.name] == level
        ]
        if level == When.BEFORE and self._over(name) == (False, False):
            return False  # it would be read once for each row
        if level == When.BLOCK and self.when[name] == level and self._passing(name):
            return False  # it is in the cache while rows are streamed, so it would be read twice
        return name in self.reads and name not in self.tile and len(users) == 1 and len(self.system.axes[name]) == 2

    def _passing(self, name: str) -> bool:
        """Whether an equation that is computed while rows are streamed uses a tensor."""
        return any(name in equation.uses and self.done[equation.name] == When.PASSING for equation in self.order)

    def _operand(self, name: str, at: dict[int, str] | None = None) -> str:
        """Return the part of an operand's tile at the indices of the open loops; read the tile first if necessary."""
        if name not in self.tile:
            self.tile[name] = self.writer.bring(name)
        return part(self.tile[name], self.system.axes[name], {**self._at_y(name), **(at or {})})

    def _new(self, name: str, text: str) -> None:
        """Compute an expression into a new tile."""
        self.writer.drop()
        self.tile[name] = variable = self.writer.variable(name)
        self.writer.say(f"{variable} = {self.writer.m}.compute({text})")
        self.writer.enter(variable, name)

    def _product(self, each: Equation) -> None:
        over = self._over(each.name)
        if over == (False, True) and self.done[each.name] == When.BEFORE and self.y is not None:
            for name in each.uses:  # what is read as a whole is read before the loop, since it may be needed after it
                if not self._streams(name, each):
                    self._operand(name)
            self.tile[each.name] = self.writer.zeros(each.name)
            with self.writer.loop(self.writer.j, self.y):
                self._sum(each)
        else:
            self._sum(each)

    def _sum(self, each: Equation) -> None:
        """Write a product; an operand that is needed only here is streamed in columns, rows or single words."""
        writer, axes, k = self.writer, self.system.axes, each.contracted
        assert k is not None
        row, column = axes[each.name]
        streams = [operand.name for operand in each.operands if self._streams(operand.name, each)]
        if each.operands[0].name == each.operands[1].name:
            streams = []
        for operand in each.operands:
            if operand.name not in streams:
                self._operand(operand.name)
        texts = {operand.name: "" for operand in each.operands}
        if not streams and each.name not in self.tile:
            self._new(each.name, " @ ".join(_turned(self._operand(o.name), o.transposed) for o in each.operands))
            return
        if each.name not in self.tile:
            self.tile[each.name] = writer.zeros(each.name)
        loops = [(k, writer.k)] if streams and writer.index(k) is None else []
        own: list[str] = []
        for operand, side, index in zip(each.operands[::-1], (column, row), (writer.c, writer.r), strict=True):
            cut = operand.name in streams and writer.index(side) is None
            if cut and (not loops or len(streams) == 2):
                loops.append((side, index))
                break
        with ExitStack() as nest:
            at: dict[int, str] = {}
            for axis, index in [*loops, (None, "")]:
                waiting = {one for one, _ in loops} - set(at)
                for name in streams:
                    if not texts[name] and not waiting & {*axes[name]}:
                        texts[name] = self._part_read(name, bool(waiting) or not loops)
                        if waiting and not at and self._uses(name, self.done[each.name]):
                            self.tile[name] = texts[name]  # it is in the cache now, and not read again
                        elif not loops:
                            own.append(texts[name])
                if axis is not None:
                    nest.enter_context(writer.loop(index, axis, met=writer.other(each) if axis == k else None))
                    at[axis] = index
            for operand in each.operands:
                if operand.name not in streams:
                    texts[operand.name] = self._operand(operand.name, at)
            whole = " @ ".join(_turned(texts[operand.name], operand.transposed) for operand in each.operands)
            inside = {axis: index for axis, index in at.items() if axis != k}
            writer.say(f"{self._operand(each.name, inside)} += {whole}")
        for variable in own:  # without a loop of its own, what is read would stay until the end of the loop around
            writer.kill(variable)

    def _part_read(self, name: str, kept: bool) -> str:
        """Read a part of an operand: into a variable if it is `kept`, otherwise in the expression that uses it."""
        if kept:
            return self.writer.bring(name)
        self.writer.drop()
        text = self.writer.read(name)
        self.writer.hold(self.writer.tile(name))
        return text

    def _rowsum(self, each: Equation) -> None:
        (name,) = each.uses
        if each.name not in self.tile:
            self.tile[each.name] = self.writer.zeros(each.name)
        if name not in self.absorbed:
            self.writer.say(f"{self._operand(each.name)} += rowsum({self._operand(name)})")
            return
        summed, k = self.system.equations[name], each.contracted
        assert k is not None
        streams = [one for one in summed.uses if self._streams(one, each)]
        for one in summed.uses:
            if one not in streams:
                self._operand(one)
        over_pairs = self.system.axes[name] == self.system.pairs
        with self.writer.loop(self.writer.k, k, met=self.x if over_pairs else None):
            texts = {
                one: self._part_read(one, False) if one in streams else self._operand(one, {k: self.writer.k})
                for one in summed.uses
            }
            self.writer.say(f"{self._operand(each.name)} += rowsum({expression(summed, texts)})")

    def _elementwise(self, each: Equation) -> None:
        text = expression(each, {name: self._operand(name) for name in each.uses})
        level = self.done[each.name]
        for name in each.uses:
            same = self.system.axes[name] == self.system.axes[each.name]
            if same and self._dead(name, level) and self.writer.here(self.tile[name]):
                self.tile[each.name] = self.tile.pop(name)
                self.writer.say(f"{self.tile[each.name]}[:] = {text}  # {each.name}")
                self.writer.becomes(self.tile[each.name], each.name)
                return
        self._new(each.name, text)


def _in_one_row_sum(name: str, system: System, order: list[Equation], streamed: tuple[int | None, ...]) -> bool:
    """Whether an elementwise result is used only by one row sum, so that both can be one expression."""
    each = system.equations[name]
    users = [user for user in order if name in user.uses]
    return (
        each.elementwise
        and len(users) == 1
        and users[0].op == "rowsum"
        and users[0].contracted not in streamed
        and len(system.axes[name]) == 2
    )


def _turned(text: str, transposed: bool) -> str:
    return f"{text}.T" if transposed else text
