"""Passes of plain calls that are known, and both passes of a call as one function of autograd.

Calls of all kinds, with masks, sinks or a bias, have their passes here: a forward pass of some tensors, and a backward
pass of their gradients and of what was saved. A pass that was made is made again for tensors of its sizes, and for
other lengths if it was traced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator.known import native, recorded
from pebblesim.operator.known.lengths import Found
from pebblesim.operator.known.recorded import Again, Kinds

MOST = 16
"""Passes that are kept for the calls of some sizes."""

Results = tuple[Any, ...]
Pass = Again | Found


class Way(NamedTuple):
    """A forward or backward pass of some calls.

    Attributes:
        alike: the kind of the gradients of O and L, and whether a fourth input has one; None for a forward pass.
        strides: those of the gradient of O.
    """

    alike: tuple[Hashable, ...] | None = None
    strides: tuple[int, ...] = ()

    @staticmethod
    def back(grad: Tensor, grad_L: Tensor | None, taught: bool) -> Way:
        """The backward pass for these gradients; `taught`: whether the fourth input has one."""
        strides = grad.stride()
        return Way((grad.dtype, strides[-1], grad_L is None, taught), strides)


FORWARD = Way()


class Step(NamedTuple):
    """A pass to make: its way, and the arguments of `recorded.made`."""

    way: Way
    function: Callable[..., Results]
    inputs: Sequence[Tensor | None]
    rest: tuple[Hashable, ...]


class Family:
    """Calls that are alike but for their lengths and strides.

    Attributes:
        options: what their passes depend on beside tensors.
        kinds: traced passes, by what is alike in a `Way` for all lengths.
        order: axes of the gradient of O by their strides, where it lies in another order than O.
        calls: these calls as the library in C++ makes them, by whether the fourth input has a gradient; of None those
            without gradients.
    """

    __slots__ = ("calls", "kinds", "options", "order")

    def __init__(self, options: Any) -> None:
        self.options = options
        self.kinds: dict[Hashable, Kinds] = {}
        self.order: tuple[int, ...] | None = None
        self.calls: dict[bool | None, Any] = {}


class Known:
    """Passes of calls of some sizes, types and options, which were checked.

    Attributes:
        family: the calls that are alike but for their lengths and strides.
        passes: passes that are made again.
        saved: how what a forward pass saves lies in memory, for gradients by Python: hooks may bring it back otherwise.
        strides: those that the gradient of O will have, as far as is known.
        prepared: backward passes for it as the library in C++ has them, by whether the fourth input has a gradient.
        calls: whole calls as the library has them; by the same, or None for a call without gradients.
    """

    __slots__ = ("__weakref__", "calls", "family", "passes", "prepared", "saved", "strides")

    def __init__(self, family: Family) -> None:
        self.family = family
        self.passes: dict[Way, Pass] = {}
        self.prepared: dict[bool, Any] = {}
        self.calls: dict[bool | None, Any] = {}
        self.saved: tuple[Any, ...] | None = None
        self.strides: tuple[int, ...] | None = None

    def grad_of(self, out: Tensor) -> Tensor:
        """A tensor with the sizes and strides of the gradient of O, as far as they are known."""
        if self.strides is None:
            order = self.family.order
            self.strides = out.stride() if order is None else _dense(out.shape, order)
        return out if self.strides == out.stride() else out.new_empty_strided(out.shape, self.strides)

    def expect(self, strides: tuple[int, ...]) -> None:
        """Prepare for other gradients of O from now on, and other lengths for the same order of axes in memory."""
        self.strides, self.prepared, self.calls, self.family.calls = strides, {}, {}, {}
        self.family.order = tuple(sorted(range(len(strides)), key=lambda at: -strides[at]))

    def at_once(self, inputs: tuple[Tensor | None, ...], taught: bool | None) -> Tensor | None:
        """O of inputs of a forward pass, by the library in C++ alone; None where Python is to make it.

        `taught`: whether the fourth input has a gradient; None if no input has one.
        """
        if (by := native.library) is None:
            return None
        if (call := self.calls.get(taught)) is not None:
            again: Tensor | None = by.again(call, inputs, recorded.stream())
            return again
        if (calls := self.family.calls.get(taught)) is None or (taught is not None and self.strides is not None):
            return None  # strides are those of gradients that came
        if (found := by.first(calls, inputs, recorded.stream(), self)) is None:
            return None
        out: Tensor = found[0]
        self.calls[taught] = found[1]
        if taught is not None:
            self.grad_of(out)
        return out

    def keep(
        self,
        by: Any,
        made: Forward,
        taught: bool | None = None,
        back: Hashable = None,
        later: Any = None,
        prepared: Any = None,
    ) -> None:
        """Let the library in C++ make such calls at once from now on, and those of other lengths, if it can.

        Args:
            by: the library, if it is used.
            made: a forward pass of such a call.
            taught: as of `at_once`.
            back: the kind of the backward pass; None without one.
            later: a function for gradients that Python makes.
            prepared: the backward pass as the library has it, for tensors as the call has them.
        """
        forward = self.passes.get(FORWARD)
        if by is None or not isinstance(forward, Found) or not forward.made or made.saved_as_given() is None:
            return
        each = (self.family.kinds.get(kind) for kind in (None, back))
        families = [() if kinds is None else kinds.families(by) for kinds in each]
        of = by.calls(*families, *(made.places or ()), self.family.order or (), bool(taught), later)
        self.calls[taught] = by.call(of, forward.made, prepared, made.sizes)
        if len(made.sizes) == 4:  # other lengths of several axes of batches may have to be copied
            self.family.calls[taught] = of

    def ready(self, step: Step) -> Pass | None:
        """The pass that is made again, if there is one."""
        way, function, inputs, rest = step
        known = self.passes.get(way)
        if known is None:
            kinds = self.family.kinds.get(way.alike)
            known = None if kinds is None else kinds.of(inputs)
            if known is None:
                known = recorded.ready(function, inputs, rest)
            if known is not None and len(self.passes) < MOST:
                self.passes[way] = known
                if kinds is None and (kinds := recorded.kinds_of(function, inputs, rest)) is not None:
                    self.family.kinds[way.alike] = kinds
        return known

    def prepare(self, step: Step) -> Pass | None:
        """Find a pass that is made later, if others that are alike were."""
        found = self.passes.get(step.way)
        if found is None and (kinds := self.family.kinds.get(step.way.alike)) is not None:
            found = kinds.of(step.inputs)
            if found is not None and len(self.passes) < MOST:
                self.passes[step.way] = found
        return found


def made(known: Known | None, *given: Any) -> Results:
    """The results of a pass, which is given as a `Step`: of one that is known, if it is."""
    step = Step(*given)
    again = None if known is None else known.ready(step)
    if known is not None and step.way.strides != known.strides and step.way != FORWARD:
        known.expect(step.way.strides)
    found = None if again is None else again.if_room(step.inputs)
    return recorded.made(*step[1:]) if found is None else found


Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Numbers of inputs of a forward pass, or of its results behind them: what is saved, and of it what the backward pass
takes, -1 for none."""


class Forward(NamedTuple):
    """A forward pass that was made.

    Attributes:
        results: O, and L if it is wanted.
        saved: what the backward pass takes behind the gradients of O and L; O is among it.
        rest: options of the backward pass.
        given: inputs as the call has them, with any axes of batches, which are one in what is saved.
        places: where what is saved comes from, if the first result alone is wanted; else None.
    """

    results: tuple[Tensor, Tensor | None]
    saved: tuple[Tensor | None, ...]
    rest: tuple[Hashable, ...]
    given: tuple[Tensor | None, ...]
    places: Places | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of O as the call has it."""
        assert self.given[0] is not None
        return *self.given[0].shape[:-1], self.results[0].shape[-1]

    def saved_as_given(self) -> tuple[Tensor | None, ...] | None:
        """Return what is saved, as the call has it; None if an input was copied, or if more than O is wanted."""
        if self.places is None:
            return None
        found, inputs = list[Tensor | None](), len(self.given)
        for at, each in zip(self.places[0], self.saved, strict=True):
            mine = self.given[at] if at < inputs else each
            if mine is not None and each is not None and mine.data_ptr() != each.data_ptr():
                return None
            found.append(self.results[0].view(self.sizes) if at == inputs else mine)
        return tuple(found)


Gradients = Callable[..., tuple[Tensor | None, ...]]
"""Gradients of four inputs: of `known`, the gradients of O and L, what was saved, its `rest`, and which are needed."""

Backward = Callable[[Tensor, Tensor | None, Any, bool, Any], Step]
"""A backward pass: of the gradients of O and L, what was saved, whether the fourth input has one, and the `rest`."""


def learns(x: Sequence[Tensor | None]) -> bool | None:
    """Whether the fourth of some inputs has a gradient; None if none has one."""
    if not torch.is_grad_enabled() or not any(each is not None and each.requires_grad for each in x):
        return None
    return x[3] is not None and x[3].requires_grad


def by_passes(
    x: tuple[Tensor | None, ...],
    taught: bool | None,
    forward: Callable[[], Forward],
    backward: Backward,
    gradients: Gradients,
    known: Known | None,
) -> tuple[Tensor, Tensor | None]:
    """O, and L if it is wanted, of four inputs, of which the fourth may be None; `taught`: as `learns` gives it."""
    if taught is None:
        made = forward()
        if known is not None:
            known.keep(native.library, made)
        return made.results
    torch._C._set_grad_enabled(False)  # they are enabled, or nobody would ask
    by = native.library
    try:
        made = forward()
        prepared = None if known is None else _prepared(by, known, x, taught, made, backward, gradients)
    finally:
        torch._C._set_grad_enabled(True)
    if prepared is None:
        return _Passes.apply(*x, made, gradients, known)
    results = made.results if made.results[1] is not None else made.results[:1]
    out, *lse = by.attached(prepared, x, results, made.saved, recorded.stream())
    return out, lse[0] if lse else None


def _prepared(
    by: Any,
    known: Known,
    x: Sequence[Tensor | None],
    taught: bool,
    made: Forward,
    backward: Backward,
    gradients: Gradients,
) -> Any:
    """The backward pass as the library in C++ has it, if it can make it.

    It is found in the forward pass: the thread of gradients has to wake up, and its caches are cold.
    """
    if by is not None and (one := known.prepared.get(taught)) is not None:
        return one
    like = known.grad_of(made.results[0])
    step = backward(like, None, made.saved, taught, made.rest)
    found = known.prepare(step)
    if by is None or not isinstance(found, Found) or (alone := found.native(by, step.inputs)) is None:
        return None
    later = partial(_later, gradients, made.rest)
    one = whole = known.prepared[taught] = by.prepared(alone, like, made.saved, x, taught, later, known)
    if (saved := made.saved_as_given()) is not None:
        if any(mine is not its for mine, its in zip(made.given, x, strict=False)):
            shapes = made.results[0].shape, [None if each is None else each.shape for each in made.saved]
            later = partial(_in_one_batch, later, shapes)
            whole = by.prepared(alone, like.view(made.sizes), saved, made.given, taught, later, known)
        known.keep(by, made, taught, step.way.alike, later, whole)
    return one


def _lying(saved: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """How tensors lie in memory."""
    return tuple([None if x is None else (x.shape, x.stride(), x.dtype, x.get_device()) for x in saved])


def _later(
    gradients: Gradients,
    rest: Any,
    known: ReferenceType[Known],
    as_it_was: bool | None,
    grads: Any,
    saved: Any,
    needed: Any,
) -> tuple[Tensor | None, ...]:
    """Gradients by Python, of what the library in C++ does not take.

    `as_it_was`: whether what is saved lies in memory as it did; None if it has other sizes.
    """
    if as_it_was is None:
        raise UsageError(OTHER_SIZES)
    return gradients(known() if as_it_was else None, grads if len(grads) > 1 else (*grads, None), saved, rest, needed)


def _in_one_batch(
    later: Any, shapes: Any, known: Any, as_it_was: bool | None, grads: Any, saved: Any, needed: Any
) -> Any:
    """As `later`, of tensors as a call has them. `shapes`: of O, and of what is saved, in one batch."""
    if as_it_was is not None:
        of_out, of_saved = shapes
        grads = tuple([x if x is None else x.reshape(of_out) for x in grads])
        saved = tuple([x if x is None else x.reshape(shape) for x, shape in zip(saved, of_saved, strict=True)])
    return later(known, as_it_was, grads, saved, needed)


OTHER_SIZES = (
    "a hook of saved tensors gave back a tensor of other sizes than attention saved; it may give back another order of "
    "memory or another type, and the sizes must be those of the tensor that was packed."
)


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of words that are next to each other, with the axes in this order in memory."""
    strides, words = [1] * len(shape), 1
    for axis in reversed(order):
        strides[axis], words = words, words * shape[axis]
    return tuple(strides)


class _Passes(torch.autograd.Function):
    """Both passes as one autograd function; L stays as kernels have it."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor | None]:
        made, ctx.gradients, ctx.known = given[4:]
        ctx.rest, known = made.rest, ctx.known
        ctx.lying = _lying(made.saved) if known is None or known.saved is None else known.saved
        if known is not None:
            known.saved = ctx.lying
        ctx.save_for_backward(*made.saved)
        ctx.set_materialize_grads(False)
        results: tuple[Tensor, Tensor | None] = made.results
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(each is None for each in grads):
            return (None,) * 7
        needed = ctx.needs_input_grad[:4]
        saved = ctx.saved_tensors
        lying = _lying(saved)
        if any(one and one[0] != other[0] for one, other in zip(lying, ctx.lying, strict=True)):
            raise UsageError(OTHER_SIZES)
        made = ctx.gradients(ctx.known if lying == ctx.lying else None, grads, saved, ctx.rest, needed)
        return *(each if needs else None for each, needs in zip(made, needed, strict=True)), None, None, None
