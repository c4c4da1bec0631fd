"""Schedules by name: the problem, source, inputs and block sizes of each algorithm.

`@schedule` registers a function of the language (see `pebblesim.language.machine`). The signature declares the inputs
and blocks: the positional parameters after `m` are the inputs it reads; the keyword-only parameters are its block
sizes.

The built-in schedules are registered at the first lookup or registration, so that users' schedules cannot take their
names.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, SupportsIndex
from weakref import WeakKeyDictionary

from pebblesim.core.errors import LeftOut, TraceError, UnknownName, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.language import machine as language
from pebblesim.language.catalogue import Catalogue, is_built_in, place
from pebblesim.language.loops import asks_a_mask, in_parts, in_whole_tiles
from pebblesim.language.problems import Problem, problem
from pebblesim.language.program import Program

__all__ = ["SCHEDULES", "Schedule", "get", "of_problem", "schedule", "some_of_problem"]

ROUNDING = ("ceiling", "floor", "Min", "Max")
"""Functions that a stated I/O may contain."""


@dataclass(frozen=True)
class Schedule:
    """An algorithm.

    Attributes:
        name: name on the command line.
        problem: the problem that it solves.
        source: paper and algorithm.
        function: the schedule as a function in the language.
        inputs: names of the inputs it reads, including those that the forward pass must have saved.
        blocks: names of its block sizes.
        paper: the block sizes printed in the source, as sympy expressions in the dimensions and M.
        fit: the order in which the default rule grows blocks to the largest feasible sizes; the blocks of a group grow
            together.
        graph: options of its graph; the name of a block means the size of that block.
        io: its I/O in words as stated in the source, in the dimensions and blocks; None if no source states it.
        rectangle_io: like `io`, in all dimensions of the problem, if the source states it.
        closed: feasible block sizes within a constant factor of the largest ones, as expressions like `paper`. Proofs
            about growth use them, because `fit` is a search and has no closed form. Empty if none are known.
        known_as: what its source calls it, such as "Algorithm 6"; None if it has no name there.
    """

    name: str
    problem: Problem
    source: str
    function: Callable[..., None]
    inputs: tuple[str, ...]
    blocks: tuple[str, ...]
    paper: Mapping[str, str] = field(default_factory=dict)
    fit: tuple[tuple[str, ...], ...] = ()
    graph: Mapping[str, object] = field(default_factory=dict)
    io: str | None = None
    closed: Mapping[str, str] = field(default_factory=dict)
    rectangle_io: str | None = None
    known_as: str | None = None

    @property
    def credit(self) -> str:
        """The name that its source gives it, or the first words of the source: "Algorithm 6", "ours"."""
        return self.known_as or re.split("[:;,]", self.source)[0]

    @property
    def title(self) -> str:
        """Its name, behind what its source calls it: "Algorithm 6 (small-cache)"."""
        return f"{self.known_as} ({self.name})" if self.known_as else self.name

    @property
    def kept(self) -> tuple[str, ...]:
        """The inputs that the forward pass must have saved."""
        return tuple(name for name in self.inputs if name in self.problem.kept)

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @cached_property
    def program(self) -> Program:
        """The traced loop-nest program.

        Raises:
            TraceError: the schedule does something that is impossible on a cache, or not the same in every iteration.
        """
        return self._traced(masked=False)

    @property
    def alike(self) -> bool:
        """Whether it treats all tiles of each dimension alike. If it treats a first part separately, it has no kernels,
        and takes a mask only if its loops ask one.
        """
        return not in_parts(self.program)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels it can be: "Triton", on tensor cores, and "CUDA", plain float32."""
        if not self.alike:
            return ()
        return ("Triton", "CUDA") if in_whole_tiles(self.program) else ("CUDA",)

    @property
    def maskable(self) -> bool:
        """Whether it takes a mask."""
        return self.problem.maskable and (self.alike or asks_a_mask(self._under_a_mask))

    @cached_property
    def masked(self) -> Program:
        """The program under a mask: its loops state which tiles they skip.

        Raises:
            TraceError: as for `program`.
            UsageError: the problem has no pairs of queries and keys, or the schedule treats a first part separately and
                no loop of it asks a mask.
        """
        self.problem.refuse_mask()
        if in_parts(self._under_a_mask) and not asks_a_mask(self._under_a_mask):
            raise UsageError(
                f"{self.name} treats a first part of a dimension apart, and no loop of it says which tiles it leaves "
                "out under a mask (keys_of, queries_of); leave the mask out, or take another schedule."
            )
        return self._under_a_mask

    @cached_property
    def _under_a_mask(self) -> Program:
        return self._traced(masked=True)

    def _traced(self, masked: bool) -> Program:
        """Trace the function; if it is a user's, see whether the trace is right for every iteration of its loops.

        A function that was refused is refused again: what its runs have left behind may hide the fault.
        """
        if self.function in _REFUSED:
            raise TraceError(_REFUSED[self.function])
        program = language.trace(self.function, self.name, self.problem, self.inputs, self.blocks, masked)
        if not is_built_in(self.function):
            from pebblesim.language.every_iteration import check_every_iteration

            try:
                check_every_iteration(self.function, program, self.problem)
            except TraceError as error:
                _REFUSED[self.function] = str(error)
                raise
        return program

    def under(self, mask: object | None) -> Program:
        """Return the program under a mask, whatever it is, or without one; errors as for `masked`."""
        return self.program if mask is None else self.masked

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Let another process look up the schedule that ships with the function, and change what is different here."""
        known = next((each for each in SCHEDULES.values() if each.function is self.function), None)
        if known is None or not is_built_in(self.function):
            return super().__reduce_ex__(protocol)
        own, known = self.problem.dims, known.in_dims(self.problem.dims)
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _known, (known.name, own, {name: x for name, x in values.items() if x != getattr(known, name)})

    def in_dims(self, names: Iterable[str]) -> Schedule:
        """Return the schedule of the problem in these dimensions; see `Problem.in_dims`."""
        return self if self.problem.in_dims(names) is self.problem else self._rectangle

    @cached_property
    def _rectangle(self) -> Schedule:
        assert self.problem.rectangle is not None
        return replace(self, problem=self.problem.rectangle, io=self.rectangle_io)

    def graph_options(self, sizes: Mapping[str, int]) -> dict[str, object]:
        """Return the options of its graph for these block sizes."""
        options = {
            option: sizes[value] if isinstance(value, str) and value in self.blocks else value
            for option, value in self.graph.items()
        }
        extra = self.program.outputs != tuple(self.problem.outputs)
        return options | ({"outputs": self.program.outputs} if extra else {})


_REFUSED: WeakKeyDictionary[Callable[..., None], str] = WeakKeyDictionary()

SCHEDULES: Catalogue[Schedule] = Catalogue("pebblesim.schedules")


@checked_kinds()
def schedule(
    *,
    problem: str,
    source: str,
    name: str | None = None,
    paper: Mapping[str, str] | None = None,
    fit: Sequence[str | tuple[str, ...]] | None = None,
    graph: Mapping[str, object] | None = None,
    io: str | None = None,
    closed: Mapping[str, str] | None = None,
    known_as: str | None = None,
) -> Callable[[Callable[..., None]], Schedule]:
    """Register a function as a schedule of a problem.

    Args:
        problem: the problem's name.
        source: paper and algorithm, or the author.
        name: its name; by default the function's, with dashes.
        paper: the printed block sizes, e.g. {"B": "floor(sqrt(M/4))"}.
        fit: the order in which blocks grow; by default the order of the signature.
        graph: options for the graph builder of the problem.
        io: I/O in words as the source states it, e.g. "m*n + m*k*ceiling(n/b) + k*n*ceiling(m/b)", in n and d or in all
            dimensions of the problem. It does not replace the result of `formula`; the tests compare the two.
        closed: block sizes in closed form for proofs about growth, e.g. {"b": "floor(sqrt((M - 2)/3))"}. `verify`
            checks on samples that they are feasible and that `fit` moves no more words.
        known_as: what its source calls it, such as "Algorithm 6", for tables and pictures.

    Returns:
        A decorator that turns the function into a `Schedule`.

    >>> from pebblesim import Block, count, schedule
    >>> @schedule(problem="matmul", source="an example")
    ... def by_rows(m, A, B, *, b: Block):
    ...     C = m.tensor("C", A.shape[0], B.shape[1])
    ...     for i in m.tiles(A.shape[0], b):
    ...         A_i = m.read(A[i, :])
    ...         for j in m.tiles(B.shape[1], 1):
    ...             m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))
    >>> count("by-rows", m=4, k=3, n=5, M=30).io
    47

    Raises:
        UsageError: the signature does not match the problem, or a rule names a block that the schedule does not have.
    """
    solves = _problem(problem)
    own = solves.rectangle or solves

    def register(function: Callable[..., None]) -> Schedule:
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise UsageError(
                f"schedule {function.__name__!r} takes no arguments; the first must be the machine, followed by inputs."
            )
        del parameters[0]
        inputs = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        blocks = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        called = name or function.__name__.replace("_", "-")
        for block in blocks:
            if block in (*solves.dims, *own.dims, "M"):
                raise UsageError(f"schedule {called!r}: a block cannot be called {block!r}, the name of a size.")
        known = SCHEDULES.get(called)
        if known and place(known.function) != place(function):
            search = " (`pebblesim search --name` writes one)" if called.startswith("found-") else ""
            raise UsageError(
                f"there is a schedule {called!r} already; choose another name with @schedule(name=...){search}."
            )
        for tensor in inputs:
            if tensor not in (*solves.inputs, *solves.kept):
                raise UnknownName(f"input of problem {problem!r}", tensor, (*solves.inputs, *solves.kept))
        groups = tuple((g,) if isinstance(g, str) else tuple(g) for g in (blocks if fit is None else fit))
        rules = [[b for group in groups for b in group], *(list(rule) for rule in (paper, closed) if rule)]
        for block in chain.from_iterable(rules):
            if block not in blocks:
                raise UnknownName(f"block of schedule {called!r}", block, blocks)
        if any(sorted(rule) != sorted(blocks) for rule in rules):
            raise UsageError(f"schedule {called!r}: a rule must name each of its blocks once: {', '.join(blocks)}.")
        names = set(re.findall(r"[A-Za-z_]\w*", io or "")) - {*blocks, *ROUNDING}
        of_rectangle = bool(names & {*own.dims} - {*solves.dims})
        for size in sorted(names):
            if size not in (sizes := own.dims if of_rectangle else solves.dims):
                raise UnknownName(f"size in the I/O of schedule {called!r}", size, (*sizes, *blocks))
        made = Schedule(
            called,
            solves,
            source,
            function,
            inputs,
            blocks,
            paper=dict(paper or {}),
            fit=groups,
            graph=dict(graph or {}),
            io=_in_square(own, io) if of_rectangle else io,
            closed=dict(closed or {}),
            rectangle_io=io if of_rectangle else None,
            known_as=known_as,
        )
        SCHEDULES[called] = made
        return made

    return register


def _in_square(rectangle: Problem, io: str | None) -> str | None:
    """Return a closed form in all dimensions of a problem as one in n and d only."""
    return re.sub(r"[A-Za-z_]\w*", lambda name: rectangle.from_nd.get(name[0], name[0]), io or "")


_problem = problem  # `schedule` has a parameter of that name


def get(name: str | Schedule) -> Schedule:
    """Return the schedule with this name.

    Raises:
        UnknownName: there is no such schedule; the message suggests similar names.
    """
    if isinstance(name, Schedule):
        return name
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    return SCHEDULES[name]


def get_all(names: str | Schedule | Iterable[str | Schedule] | None) -> list[Schedule]:
    """Return one schedule or several, each once; none for None.

    Raises:
        UnknownName: as for `get`.
        UsageError: as for `by_name`.
    """
    given: Any = names
    each = [given] if isinstance(given, str) or not isinstance(given, Iterable | None) else given or ()
    return list(by_name(map(get, each)).values())


def by_name(schedules: Iterable[Schedule]) -> dict[str, Schedule]:
    """Return schedules, which may not be registered, by their names.

    Raises:
        UsageError: different ones have the same name, so that a result could not say which of them it is about.
    """
    named: dict[str, Schedule] = {}
    for each in schedules:
        if named.setdefault(each.name, each) != each:
            raise UsageError(
                f"two different schedules that were given are called {each.name!r}; give one of them another name, "
                "such as dataclasses.replace(schedule, name=...)."
            )
    return named


def _known(name: str, dims: tuple[str, ...], changed: Mapping[str, Any]) -> Schedule:
    known = get(name).in_dims(dims)
    return replace(known, **changed) if changed else known


def of_problem(name: str, dims: Iterable[str] = (), masked: bool = False) -> list[Schedule]:
    """Return the schedules of a problem, in order of registration.

    A schedule of a user that cannot be traced, such as one for squares alone where n_q and n_k were asked for, is left
    out with a warning that names it.

    Args:
        name: the problem.
        dims: names of the dimensions in which they are traced, as for `Problem.in_dims`; by default the square case.
        masked: only those that take a mask.
    """
    solves = problem(name)
    schedules = [schedule for schedule in SCHEDULES.values() if schedule.problem is solves]
    views = [(schedule, schedule.in_dims(dims)) for schedule in schedules]
    return [each for each, view in views if _is_traced(view, masked) and (not masked or view.maskable)]


def some_of_problem(name: str, dims: Iterable[str] = (), masked: bool = False) -> list[Schedule]:
    """Return the schedules of a problem as `of_problem` does, at least one.

    Raises:
        UsageError: there is none.
    """
    if not (schedules := of_problem(name, dims, masked)):
        of = f" in the dimensions {', '.join(dims)}" if dims else ""
        raise UsageError(f"problem {name!r} has no schedule{of}{' that takes a mask' if masked else ''}.")
    return schedules


def _is_traced(schedule: Schedule, masked: bool) -> bool:
    """Whether a schedule can be traced; those of this package can."""
    if is_built_in(schedule.function):
        return True
    try:
        schedule.under((schedule.maskable and masked) or None)
    except TraceError as error:
        warnings.warn(f"{schedule.name} is left out: {error}", LeftOut, stacklevel=3)
        return False
    return True
