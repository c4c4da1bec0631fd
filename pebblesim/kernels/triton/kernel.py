"""A launch as a Triton kernel, each independent iteration of which is one of its programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pebblesim.kernels.facts import facts_of
from pebblesim.kernels.key_ranges import ARGUMENTS
from pebblesim.kernels.lowering import Lowering
from pebblesim.kernels.orientation import turned
from pebblesim.kernels.passes.sinks import numbers_of_sinks
from pebblesim.kernels.statements import Do, KernelProgram, Let, printed
from pebblesim.kernels.terms import HOST, Call, Word, call, product, text
from pebblesim.kernels.triton.copies import parts_of_rows
from pebblesim.kernels.triton.grid import grid, programs
from pebblesim.kernels.triton.places import Places
from pebblesim.kernels.triton.ranges import Scope, Setting
from pebblesim.kernels.triton.values import Values
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, blocks, moves


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel of the text.

    Attributes:
        name: name of its function.
        launch: the launch.
        tensors: names of the tensors whose addresses are its arguments, in order.
        programs: number of programs for each head, in total over all times it is launched.
        numbers: names of its other arguments: those for rows around launches before the addresses, sizes and strides
            behind them.
        program: its statements.
    """

    name: str
    launch: Launch
    tensors: tuple[str, ...]
    programs: int
    numbers: tuple[tuple[str, ...], tuple[str, ...]]
    program: KernelProgram


@dataclass(frozen=True, eq=False)
class Launching:
    """The launch of a kernel by `run`.

    Attributes:
        name: that of its function.
        language: "triton" or "gluon".
        general: the arguments for whose values it is not compiled.
        given: its arguments.
        grid, options: the grid, and its warps and the like, as text.
        before: lines before the launch.
        counts: whether the kernel asks how many blocks there are.
    """

    name: str
    language: str
    general: tuple[str, ...]
    given: tuple[str, ...]
    grid: str
    options: str
    before: tuple[str, ...] = ()
    counts: bool = False

    @property
    def lines(self) -> list[str]:
        """The lines of it."""
        return [*self.before, f"    {self.name}[({self.grid})]({', '.join(self.given)}, {self.options})"]


class Writer:
    """Makes the program of one kernel, and writes it."""

    def __init__(self, setting: Setting, launch: Launch, name: str) -> None:
        self._setting, self._launch, self._name = setting, launch, name
        self._scope = Scope(setting, launch)
        self._facts = facts_of(setting, launch, turned(ir.walk(launch.block)))
        self._places = Places(self._scope)
        self._scope.finer = parts_of_rows(self._scope, self._facts.turned)
        self._tensors = list(dict.fromkeys(node.tensor for node in moves(launch)))

    @property
    def describes(self) -> bool:
        """Whether the kernel has descriptors."""
        return self._places.describes

    @property
    def kernel(self) -> Kernel:
        """The kernel, of which `text` is the source."""
        names = tuple(tensor.name for tensor in self._tensors)
        programs = blocks(self._launch, self._setting.sizes, 1)
        return Kernel(self._name, self._launch, names, programs, self._numbers, self.program)

    @property
    def _numbers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        setting = self._setting
        behind = (*setting.free, *setting.strides.names(self._tensors), *numbers_of_sinks(self._tensors, self._apart))
        return self._places.of_rows, behind

    @property
    def arguments(self) -> list[str]:
        """Names of its arguments, in order."""
        tensors = [self._setting.of[tensor] for tensor in self._tensors]
        before, behind = self._numbers
        return [*before, *tensors, *(ARGUMENTS if self._scope.ranged else ()), *behind]

    def launching(self, options: str) -> Launching:
        """Its launch by `run`, with these options."""
        each = "own, batch" if self._apart else "heads"
        counts = programs(self._scope)
        number = text(product(counts), HOST) if counts else "1"
        return Launching(self._name, "triton", self._general, tuple(self.arguments), f"{number}, {each}", options)

    @property
    def _general(self) -> tuple[str, ...]:
        """The arguments for whose values it is not compiled."""
        of_lengths = () if self._setting.even else (*self._places.of_rows, *self._setting.free)
        return *of_lengths, *self._numbers[1][len(self._setting.free) :]

    @property
    def _apart(self) -> bool:
        """Whether the grid has axes of heads and of batches: their numbers take no registers."""
        return bool(self._setting.strides.of)

    @cached_property
    def program(self) -> KernelProgram:
        """The statements of the kernel."""
        scope, places = self._scope, self._places
        head = call("program_id", 1).to(Word("int64"))
        if self._apart:
            head = head + call("program_id", 2) * call("num_programs", 1)
        opening = places.at_head(self._tensors)
        if self._launch.name in self._setting.early:
            wait, others = (Call(f"tl.extra.cuda.gdc_{what}", (), own=True) for what in ("wait", "launch_dependents"))
            opening.append(Do(wait, "for the launch before, of which blocks may still run"))
            opening.append(Do(others, "earlier, they would crowd where blocks end first"))
        opening += [*places.descriptors(), *scope.opening(), *grid(scope)]
        block = Lowering(Values(scope, self._facts), places)
        block.block()
        return KernelProgram((Let(("head",), (head,)), *scope.wholes, *opening, *block.made))

    def text(self, ending: str = "", more: tuple[str, ...] = (), behind: Iterable[str] = ()) -> str:
        """The source of the kernel; `ending`, `more`, `behind`: of another form the end of its name, further arguments,
        and further lines.
        """
        general = ", ".join(f'"{name}"' for name in (*self._general, *more))
        return "\n".join(
            [
                "@triton.jit" + f"(do_not_specialize=[{general}])" * bool(general),
                f"def {self._name}{ending}({', '.join([*self.arguments, *more])}):",
                *printed(self.program.rows),
                *behind,
            ]
        )
