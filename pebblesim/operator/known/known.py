"""Passes of plain calls that are known, and both passes of a call as one function of autograd.

Calls of all kinds, with masks, sinks or a bias, have their passes here: a forward pass of some tensors, and a backward
pass of their gradients and of what was saved. A pass that was made is made again for tensors of its sizes, and for
other lengths if it was traced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor

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
    """

    __slots__ = ("kinds", "options", "order")

    def __init__(self, options: Any) -> None:
        self.options = options
        self.kinds: dict[Hashable, Kinds] = {}
        self.order: tuple[int, ...] | None = None


class Known:
    """Passes of calls of some sizes, types and options, which were checked.

    Attributes:
        family: the calls that are alike but for their lengths and strides.
        passes: passes that are made again.
        saved: how what a forward pass saves lies in memory; hooks may bring it back in another way.
        strides: those that the gradient of O will have, as far as is known.
        prepared: backward passes for it as the library in C++ has them, by whether the fourth input has a gradient.
    """

    __slots__ = ("__weakref__", "family", "passes", "prepared", "saved", "strides")

    def __init__(self, family: Family) -> None:
        self.family = family
        self.passes: dict[Way, Pass] = {}
        self.prepared: dict[bool, Tensor] = {}
        self.saved: tuple[Any, ...] | None = None
        self.strides: tuple[int, ...] | None = None

    def grad_of(self, out: Tensor) -> Tensor:
        """A tensor with the sizes and strides of the gradient of O, as far as they are known."""
        if self.strides is None:
            order = self.family.order
            self.strides = out.stride() if order is None else _dense(out.shape, order)
        return out if self.strides == out.stride() else out.as_strided(out.shape, self.strides)

    def expect(self, strides: tuple[int, ...]) -> None:
        """Prepare for other gradients of O from now on, and other lengths for the same order of axes in memory."""
        self.strides, self.prepared = strides, {}
        self.family.order = tuple(sorted(range(len(strides)), key=lambda at: -strides[at]))

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


class Forward(NamedTuple):
    """A forward pass that was made.

    Attributes:
        results: O, and L if it is wanted.
        saved: what the backward pass takes behind the gradients of O and L; O is among it.
        rest: options of the backward pass.
    """

    results: tuple[Tensor, Tensor | None]
    saved: tuple[Tensor | None, ...]
    rest: tuple[Hashable, ...]


Gradients = Callable[..., tuple[Tensor | None, ...]]
"""Gradients of four inputs: of `known`, the gradients of O and L, what was saved, its `rest`, and which are needed."""

Backward = Callable[[Tensor, Tensor | None, Any, bool, Any], Step]
"""A backward pass: of the gradients of O and L, what was saved, whether the fourth input has one, and the `rest`."""


def with_gradients(
    x: tuple[Tensor | None, ...],
    forward: Callable[[], Forward],
    backward: Backward,
    gradients: Gradients,
    known: Known | None,
) -> tuple[Tensor, Tensor | None]:
    """O, and L if it is wanted, of four inputs, of which the fourth may be None, with gradients."""
    torch._C._set_grad_enabled(False)  # they are enabled, or nobody would ask
    try:
        made = forward()
        prepared = None if known is None else _prepared(known, x[3], made, backward, gradients)
    finally:
        torch._C._set_grad_enabled(True)
    if prepared is None:
        return _Passes.apply(*x, made, gradients, known)
    results = made.results if made.results[1] is not None else made.results[:1]
    out, *lse = native.library.attached(prepared, x, results, made.saved, recorded.stream())
    return out, lse[0] if lse else None


def _prepared(
    known: Known, fourth: Tensor | None, made: Forward, backward: Backward, gradients: Gradients
) -> Tensor | None:
    """The backward pass as the library in C++ has it, if it can make it.

    It is found in the forward pass: the thread of gradients has to wake up, and its caches are cold.
    """
    taught = fourth is not None and fourth.requires_grad
    if known.saved is None:
        known.saved = _lying(made.saved)
    if native.library is not None and (one := known.prepared.get(taught)) is not None:
        return one
    step = backward(known.grad_of(made.results[0]), None, made.saved, taught, made.rest)
    found = known.prepare(step)
    if native.library is None or not isinstance(found, Found) or (by := found.native()) is None:
        return None
    otherwise = partial(_later, gradients, ref(known), made.rest)
    one = native.library.prepared(by, step.way.strides, made.saved, fourth is not None, taught, otherwise)
    known.prepared[taught] = one
    return one


def _lying(saved: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """How tensors lie in memory."""
    return tuple([None if each is None else (each.stride(), each.dtype, each.get_device()) for each in saved])


def _later(
    gradients: Gradients, known: ReferenceType[Known], rest: Any, grads: Any, saved: Any, needed: Any
) -> tuple[Tensor | None, ...]:
    """Gradients by Python, of what the library in C++ does not take."""
    return _gradients(gradients, known(), rest, grads if len(grads) > 1 else (*grads, None), saved, needed)


def _gradients(
    gradients: Gradients, known: Known | None, rest: Any, grads: Any, saved: Any, needed: Any
) -> tuple[Tensor | None, ...]:
    as_it_was = known is not None and known.saved == _lying(saved)
    return gradients(known if as_it_was else None, grads, saved, rest, needed)


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
        ctx.rest = made.rest
        ctx.save_for_backward(*made.saved)
        ctx.set_materialize_grads(False)
        results: tuple[Tensor, Tensor | None] = made.results
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(each is None for each in grads):
            return (None,) * 7
        needed = ctx.needs_input_grad[:4]
        made = _gradients(ctx.gradients, ctx.known, ctx.rest, grads, ctx.saved_tensors, needed)
        return *(each if needs else None for each, needs in zip(made, needed, strict=True)), None, None, None
