"""Passes that the library in C++ makes: what they compute and launch is what Python's do, and it leaves the rest to it.

Kernels are functions of numpy here, which a stand-in for the driver calls with the arguments of a launch. Most tests
compile the library, once for a source, so they are slow ones.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from native_library import library_in_cpp  # noqa: E402
from stand_in_card import Card, kernel  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.operator.known import known, native, recorded  # noqa: E402
from pebblesim.operator.known.direct import FUNCTION  # noqa: E402
from pebblesim.operator.known.known import FORWARD, Family, Forward, Known, Step, Way, by_passes  # noqa: E402
from pebblesim.operator.known.recorded import Kinds  # noqa: E402
from pebblesim.operator.known.tape import notes  # noqa: E402
from pebblesim.operator.launching.fresh import filled  # noqa: E402
from pebblesim.operator.launching.layout import in_one_batch  # noqa: E402

pytestmark = pytest.mark.slow

OF_FORWARD = ["*fp32"] * 4 + ["i64"]
OF_BACKWARD = ["*fp32"] * 8 + ["i64"] * 6 + ["i32"]


@pytest.fixture(scope="module")
def library() -> Any:
    """The library, compiled if need be."""
    return library_in_cpp()


def array(address: int, shape: Any, strides: Any = None) -> Any:
    """Memory as numbers of 32 bits, with strides in words."""
    words = 1 + sum((n - 1) * by for n, by in zip(shape, strides, strict=True)) if strides else int(np.prod(shape))
    flat = np.frombuffer((ctypes.c_float * words).from_address(address), np.float32)
    return np.lib.stride_tricks.as_strided(flat, shape, [4 * by for by in strides]) if strides else flat.reshape(shape)


class Toy:
    """A call whose O is q ∘ k + 2 v, with a fourth input that is added to each head: by kernels, and by PyTorch.

    Attributes:
        by_python: backward passes that Python made, by whether a graph of them was to be made.
        known: its passes.
        at_once: whether the library may make whole calls.
        alone: whole calls that it made.
    """

    at_once, alone = True, 0

    def __init__(self, patched: pytest.MonkeyPatch, library: Any, fourth: bool = False) -> None:
        self.card, self.by_python, self.stream = Card(), list[bool](), 7
        self.one, self.two = kernel(1, OF_FORWARD), kernel(2, OF_BACKWARD)
        self.card.kinds |= {1: OF_FORWARD, 2: OF_BACKWARD}
        self.card.kernels |= {1: self._forward_kernel, 2: self._backward_kernel}
        for name, each in (("_cuda_getDevice", lambda: 0), ("_cuda_getCurrentRawStream", lambda device: self.stream)):
            patched.setattr(torch._C, name, each, raising=False)
        patched.setattr(recorded, "driver", lambda: self.card.driver)
        patched.setattr(recorded, "sizes_of", lambda *given: None)
        patched.setattr(native, "library", library)
        self.known, self.shape = Known(family := Family(None)), (2, 3, 4, 5)
        family.kinds[None] = Kinds(self.forward, ())
        for taught in {False, fourth}:
            family.kinds[torch.float32, 1, True, taught] = Kinds(self.backward, (taught,))

    def _forward_kernel(self, q: int, k: int, v: int, out: int, words: int) -> None:
        q, k, v, out = (array(each, (words,)) for each in (q, k, v, out))
        out[:] = q * k + 2 * v

    def _backward_kernel(self, *given: int) -> None:
        grad, q, k, dq, dk, dv, added, _, batch, heads, n, *strides, taught = given
        shape = batch, heads, n, 5
        grad = array(grad, shape, [*strides, 1])
        for to, value in ((dq, grad * array(k, shape)), (dk, grad * array(q, shape)), (dv, 2 * grad)):
            array(to, shape)[:] = value
        if taught:
            array(added, (heads,))[:] = grad.sum((0, 2, 3))

    def forward(self, q: Any, k: Any, v: Any, fourth: Any) -> Any:
        out = q.new_empty(q.shape)
        written = notes()
        assert written is not None
        written.launched(self.one, (1, 1, 1), (q, k, v, out, q.numel()))
        return (out,)

    def backward(self, grad: Any, grad_L: Any, q: Any, k: Any, v: Any, out: Any, fourth: Any, taught: bool) -> Any:
        made = [each.new_empty(each.shape) for each in (q, k, v)]
        if taught:
            made.append(fourth.new_empty(fourth.shape))
        written = notes()
        assert written is not None
        sizes = *grad.shape[:3], *grad.stride()[:3]
        written.launched(self.two, (1, 1, 1), (grad, q, k, *made[:3], made[-1], out, *sizes, int(taught)))
        return tuple(made)

    def step(self, grad: Any, grad_L: Any, saved: Any, taught: bool, rest: Any) -> Step:
        return Step(Way.back(grad, grad_L, taught), self.backward, (grad, grad_L, *saved), (taught,))

    def gradients(self, its: Any, grads: Any, saved: Any, rest: Any, needed: Any) -> Any:
        """As Python's way: by operations, which may be differentiated."""
        assert its in (self.known, None)
        self.by_python.append(torch.is_grad_enabled())
        (grad, _), (q, k, _, _, fourth) = grads, saved
        if its is not None and grad.stride() != its.strides:
            its.expect(grad.stride())  # as `known.made` does
        return grad * k, grad * q, 2 * grad, None if fourth is None else grad.sum((0, 2, 3))

    def __call__(self, q: Any, k: Any, v: Any, fourth: Any = None) -> Any:
        given, taught = (q, k, v, fourth), fourth is not None and fourth.requires_grad
        x = *map(in_one_batch, given[:3]), fourth
        learning = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in x)
        if self.at_once and (out := self.known.at_once(given, taught if learning else None)) is not None:
            self.alone += 1
            return out
        places = (0, 1, 2, 4, 3), (0, 1, 2, 4, 3 if taught else -1)

        def forward() -> Forward:
            (out,) = known.made(self.known, FORWARD, self.forward, x, ())
            return Forward((out, None), (*x[:3], out, fourth), (), given, places if self.at_once else None)

        out = by_passes(x, taught if learning else None, forward, self.step, self.gradients, self.known)[0]
        return out if q.dim() == 4 else out.reshape(q.shape)

    def inputs(self, *shape: int) -> list[Any]:
        return [torch.randn(shape or self.shape, requires_grad=True) for _ in "qkv"]


@pytest.fixture(params=[True, False], ids=["whole", "passes"])
def toy(library: Any, monkeypatch: pytest.MonkeyPatch, request: Any) -> Toy:
    """A call that the library makes whole, or whose passes it makes."""
    made = Toy(monkeypatch, library)
    made.at_once = request.param
    return made


def right(x: list[Any], grad: Any) -> list[Any]:
    """Gradients of what a toy computes."""
    y = [each.detach().requires_grad_() for each in x]
    return list(torch.autograd.grad(y[0] * y[1] + 2 * y[2], y, grad))


def same(made: Any, true: Any) -> None:
    for one, other in zip(made, true, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=1e-6)


def test_both_passes_are_right_and_python_is_not_asked(toy: Toy) -> None:
    for turn in range(3):
        x, grad = toy.inputs(), torch.randn(toy.shape)
        out = toy(*x)
        assert out.requires_grad and type(out.grad_fn).__name__ == "CppFunction"
        torch.testing.assert_close(out, x[0] * x[1] + 2 * x[2])
        same(torch.autograd.grad(out, x, grad), right(x, grad))
        assert len(toy.card.launches) == 2 * (turn + 1) and toy.card.launches[-1][4] == 7
    assert not toy.by_python and toy.alone == (2 if toy.at_once else 0)


def test_lengths_and_orders_of_memory_have_passes_of_their_own(toy: Toy) -> None:
    """A gradient that lies as others do not is Python's, once; then its way is prepared, for other lengths, too."""
    for n in (4, 6, 9):
        for _ in range(2):
            x, grad = toy.inputs(2, 3, n, 5), torch.randn(2, n, 3, 5).transpose(1, 2)
            same(torch.autograd.grad(toy(*x), x, grad), right(x, grad))
            assert len(toy.by_python) == 1
        toy.known = Known(toy.known.family)


def test_batches_of_several_axes_stay_as_they_are(toy: Toy) -> None:
    """The library takes tensors as a call has them; a gradient that lies as others do not is Python's, once."""
    shape, out = (2, 2, 3, 4, 5), None
    for turn in range(6):
        x, grad = toy.inputs(*shape), torch.randn(shape)
        if turn > 2:
            grad = torch.randn(2, 2, 4, 3, 5).transpose(2, 3)
        out = toy(*x)
        torch.testing.assert_close(out, x[0] * x[1] + 2 * x[2])
        same(torch.autograd.grad(out, x, grad, retain_graph=True), right(x, grad))
        assert len(toy.by_python) == (turn > 2)
    assert toy.alone == (4 if toy.at_once else 0)
    if toy.at_once:
        assert [type(each).__name__ for each, _ in out.grad_fn.next_functions][:3] == ["AccumulateGrad"] * 3
        x[0].detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(out, x, grad)
    x = [each.transpose(0, 1) for each in toy.inputs(*shape)]  # which are copied to be in one batch
    toy.known = Known(toy.known.family)
    for _ in range(3):
        same([toy(*x)], [x[0] * x[1] + 2 * x[2]])
    assert not toy.known.calls


def test_a_graph_serves_twice_if_it_is_kept_and_not_otherwise(toy: Toy) -> None:
    x, grad = toy.inputs(), torch.randn(toy.shape)
    out = toy(*x)
    for keep in (True, True, False):
        same(torch.autograd.grad(out, x, grad, retain_graph=keep), right(x, grad))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out, x, grad)
    assert not toy.by_python


def test_second_derivatives_and_their_refusals_are_pythons(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = toy.inputs(), torch.randn(toy.shape)
    (first,) = torch.autograd.grad(toy(*x), x[0], grad, create_graph=True)
    assert toy.by_python == [True]
    same(torch.autograd.grad(first.sum(), x[1]), [grad])

    def refuse(*given: Any) -> None:
        raise UsageError("attention has first derivatives only")

    toy.known.prepared.clear()
    toy.known.calls.clear()
    monkeypatch.setattr(toy, "gradients", refuse)
    with pytest.raises(UsageError, match="first derivatives only"):
        torch.autograd.grad(toy(*x), x, grad, create_graph=True)


def test_only_needed_gradients_are_given(toy: Toy) -> None:
    x, grad = toy.inputs(), torch.randn(toy.shape)
    true = right(x, grad)
    for which in ([0], [1], [2], [2, 0]):
        made = torch.autograd.grad(toy(*x), [x[at] for at in which], grad)
        same(made, [true[at] for at in which])
    x[1].requires_grad_(False)
    toy(*x).backward(grad)
    same([x[0].grad, x[2].grad], [true[0], true[2]])
    assert x[1].grad is None and not toy.by_python


@pytest.mark.parametrize("learns", [True, False])
def test_a_fourth_input_has_a_gradient_if_it_wants_one(
    library: Any, monkeypatch: pytest.MonkeyPatch, learns: bool
) -> None:
    toy = Toy(monkeypatch, library, learns)
    x, fourth = toy.inputs(), torch.randn(3, requires_grad=learns)
    grad = torch.randint(-4, 5, toy.shape).float()  # whose sums are exact
    for _ in range(2):
        made = torch.autograd.grad(toy(*x, fourth), [*x, fourth] if learns else x, grad)
        same(made, [*right(x, grad), *([grad.sum((0, 2, 3))] if learns else [])])
    assert not toy.by_python
    if learns:  # that of the others alone is a part of it, and its own alone is no pass
        same(torch.autograd.grad(toy(*x, fourth), x, grad), right(x, grad))
        assert not toy.by_python
        same(torch.autograd.grad(toy(*x, fourth), fourth, grad), [grad.sum((0, 2, 3))])
        assert len(toy.by_python) == 1


def test_what_is_changed_after_the_forward_pass_is_seen(toy: Toy) -> None:
    for which in (0, 3):
        x = [each.clone() for each in toy.inputs()]
        out = toy(*x)
        (*x, out)[which].detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_hooks_of_tensors_and_of_saved_tensors_are_called(toy: Toy) -> None:
    x, grad, seen = toy.inputs(), torch.randn(toy.shape), list[Any]()
    out = toy(*x)
    out.register_hook(lambda given: 3 * given)
    x[0].register_hook(seen.append)
    out.retain_grad()
    out.backward(grad)
    same([x[0].grad, seen[0], out.grad], [right(x, 3 * grad)[0], right(x, 3 * grad)[0], 3 * grad])
    packed = list[Any]()

    def pack(given: Any) -> Any:
        packed.append(given)
        return given.detach().double()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda given: given.float()):
        out = toy(*x)
    same(torch.autograd.grad(out, x, grad), right(x, grad))
    assert len(packed) == 4 and not toy.by_python
    with torch.autograd.graph.save_on_cpu():
        out = toy(*x)
    same(torch.autograd.grad(out, x, grad), right(x, grad))


def test_saved_tensors_that_come_back_otherwise_are_pythons(toy: Toy) -> None:
    """In another order of memory, or in other words."""

    def turned(x: Any) -> Any:
        return x.detach().transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 1 else x.detach()

    x, grad = toy.inputs(), torch.randn(toy.shape)
    for unpack in (turned, lambda given: given.double()):
        with torch.autograd.graph.saved_tensors_hooks(lambda given: given.detach(), unpack):
            out = toy(*x)
        made = torch.autograd.grad(out, x, grad)
        same([each.float() for each in made], right(x, grad))
    assert len(toy.by_python) == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_make_the_forward_pass_again(toy: Toy, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    x, grad = toy.inputs(), torch.randn(toy.shape)
    out = checkpoint(toy, *x, use_reentrant=reentrant)
    before = len(toy.card.launches)
    out.backward(grad)
    same([each.grad for each in x], right(x, grad))
    assert len(toy.card.launches) == before + 2 and not toy.by_python


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_errors_of_a_backward_pass_name_the_call_in_anomaly_mode(toy: Toy) -> None:
    x = toy.inputs()
    with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(UserWarning, match="at_once|by_passes"):
        out = toy(*x)
        with pytest.raises(RuntimeError, match="returned nan values"):
            out.backward(torch.full(toy.shape, torch.nan))


def test_what_traces_or_transforms_is_left_to_python(toy: Toy) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    x, grad = toy.inputs(), torch.randn(toy.shape)
    out = toy(*x)
    with Mode():
        same(torch.autograd.grad(out, x, grad, retain_graph=True), right(x, grad))
    assert len(toy.by_python) == 1
    several = torch.randn(3, *toy.shape)
    found = torch.autograd.grad(out, x, several, is_grads_batched=True, retain_graph=True)
    for at, each in enumerate(several):
        same([one[at] for one in found], right(x, each))
    toy.known.strides = None
    assert len(toy.by_python) == 2
    other = torch.randn(2, 1, 4, 5).expand(toy.shape)  # repeated words
    same(torch.autograd.grad(out, x, other, retain_graph=True), right(x, other))
    assert len(toy.by_python) == 3
    native.library.turn(False)
    try:
        same(torch.autograd.grad(out, x, grad, retain_graph=True), right(x, grad))
    finally:
        native.library.turn(True)
    assert len(toy.by_python) == 4


def test_a_gradient_at_odd_bytes_is_pythons(toy: Toy) -> None:
    x, room = toy.inputs(), torch.randn(121)
    grad = room[1:].view(toy.shape)
    same(torch.autograd.grad(toy(*x), x, grad), right(x, grad))
    assert len(toy.by_python) == 1


def test_a_gradient_may_be_part_of_a_wider_tensor(toy: Toy) -> None:
    """As that of a result which is put beside another one: it reaches over more memory than O."""
    for _ in range(3):
        x, grad = toy.inputs(), torch.randn(2, 3, 4, 12)[..., :5]
        same(torch.autograd.grad(toy(*x), x, grad), right(x, grad))
    assert len(toy.by_python) == 1


def test_memory_that_is_short_and_refusals_of_the_driver(toy: Toy) -> None:
    x, grad = toy.inputs(), torch.randn(toy.shape)
    out = toy(*x)
    toy.card.fails = [201]  # a thread without a context enters one
    same(torch.autograd.grad(out, x, grad, retain_graph=True), right(x, grad))
    assert toy.card.entered == 1
    toy.card.fails = [1]
    with pytest.raises(RuntimeError, match="the driver of the card refuses a launch, with its error 1"):
        torch.autograd.grad(out, x, grad, retain_graph=True)
    toy.card.fails = [700]
    with pytest.raises(RuntimeError, match="refuses a launch, with its error 700"):
        toy(*x)


def test_threads_have_words_of_their_own(toy: Toy) -> None:
    failed = list[Any]()

    def work() -> None:
        try:
            for _ in range(60):
                x, grad = toy.inputs(), torch.randn(toy.shape)
                same(torch.autograd.grad(toy(*x), x, grad), right(x, grad))
        except Exception as error:  # which is what this is about
            failed.append(error)

    toy(*toy.inputs()).sum().backward()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed


def test_nothing_is_held_when_nobody_needs_it(toy: Toy) -> None:
    """Neither what was saved, nor what is known of calls that are forgotten, though each knows of the other."""
    x = toy.inputs()
    out = toy(*x)
    held, it = weakref.ref(out), weakref.ref(toy.known)
    del out
    assert held() is None
    out = toy(*x)
    toy.known = None
    gc.collect()
    assert it() is None
    toy.gradients = lambda its, *rest: pytest.fail("it is prepared")
    out.backward(torch.ones(toy.shape))
    assert x[0].grad is not None


def test_functions_that_are_not_in_a_library_have_no_address(toy: Toy) -> None:
    assert len(toy.card.driver.addresses) == 6 and isinstance(toy.card.driver.launch, FUNCTION)
    toy.card.driver.launch = lambda *given: 0
    assert toy.card.driver.addresses == ()
    x = toy.inputs()
    out = toy(*x)  # by Python
    assert type(out.grad_fn).__name__ == "_PassesBackward"


def test_calls_of_new_lengths_are_made_at_once(toy: Toy) -> None:
    """With gradients, without them, and with both in turn; Python is asked once for each kind of call."""
    family, traced = toy.known.family, 0
    for n in (4, 6, 9, 5, 13):
        x, grad = toy.inputs(2, 3, n, 5), torch.randn(2, 3, n, 5)
        for _ in range(2):
            same(torch.autograd.grad(toy(*x), x, grad), right(x, grad))
            with torch.no_grad():
                out = toy(*x)
            torch.testing.assert_close(out, x[0] * x[1] + 2 * x[2])
            assert not out.requires_grad
        traced += 4
        assert toy.alone == (traced - 2 if toy.at_once else 0)
        toy.known = Known(family)
    assert not toy.by_python and len(toy.card.launches) == 30


def test_a_new_order_of_gradients_serves_new_lengths_at_once(toy: Toy) -> None:
    def of(n: int) -> None:
        x, grad = toy.inputs(2, 3, n, 5), torch.randn(2, n, 3, 5).transpose(1, 2)
        same(torch.autograd.grad(toy(*x), x, grad), right(x, grad))

    of(4)
    of(4)  # whose gradients have the other order
    before = toy.alone
    for n in (6, 9, 6):
        toy.known = Known(toy.known.family)
        of(n)
    assert len(toy.by_python) == 1 and toy.alone == before + (3 if toy.at_once else 0)


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("fewer", [lambda x: x[:, :, :1], lambda x: x[:1] if x.dim() == 4 else x])
def test_saved_tensors_of_other_sizes_are_refused(toy: Toy, calls: int, fewer: Any) -> None:
    """A hook brings back fewer tokens or batches, which lie as before: no kernel may read behind them."""
    for by in (native.library, None):
        native.library, toy.known = by, Known(toy.known.family)
        x, grad = toy.inputs(), torch.randn(toy.shape)
        for _ in range(calls):
            torch.autograd.grad(toy(*x), x, grad)
        with torch.autograd.graph.saved_tensors_hooks(lambda given: given.detach(), fewer):
            out = toy(*x)
        launched = len(toy.card.launches)
        with pytest.raises(UsageError, match="other sizes than attention saved"):
            torch.autograd.grad(out, x, grad)
        assert len(toy.card.launches) == launched


CODE = "from pebblesim.operator.known import native; native._load(native.folder()); print(native.library is not None)"


def begun(folder: Path, code: str = CODE, **variables: str) -> Any:
    """A new process that loads the library from a folder."""
    there = os.environ | {"TRITON_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)} | variables
    return subprocess.Popen([sys.executable, "-c", code], env=there, stdout=subprocess.PIPE, text=True)


def said(*several: Any) -> list[str]:
    return [each.communicate()[0].strip() for each in several]


def tools(folder: Path, script: str) -> str:
    """A folder whose compiler of C++ is a script, which notes that it was asked."""
    folder.mkdir()
    for name in ("c++", "nice"):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {folder}/asked\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_what_cannot_be_compiled_is_tried_once_a_day(tmp_path: Path) -> None:
    """The compiler says no: its words are kept, and no other process asks it again, unless it is another compiler."""
    path = tools(tmp_path / "tools", "echo no; exit 3")
    assert said(*(begun(tmp_path / "cache", PATH=path) for _ in range(3))) == ["False"] * 3
    assert said(begun(tmp_path / "cache", PATH=path)) == ["False"]
    assert (tmp_path / "tools" / "asked").read_text() == "nice\n"
    (failed,) = (tmp_path / "cache").glob("*/failed.txt")
    first, said_so = failed.read_text().split("\n", 1)
    assert said_so == "no\n" and first.startswith(str(tmp_path / "tools" / "c++"))
    os.utime(failed, (time.time() - 90000,) * 2)
    assert said(begun(tmp_path / "cache", PATH=path)) == ["False"]
    assert (tmp_path / "tools" / "asked").read_text() == "nice\n" * 2
    assert said(begun(tmp_path / "cache", PATH=path, CPATH="elsewhere")) == ["False"]
    assert (tmp_path / "tools" / "asked").read_text() == "nice\n" * 3
    other = tools(tmp_path / "other", "echo no; exit 3")
    assert said(*(begun(tmp_path / "cache", PATH=other) for _ in range(2))) == ["False"] * 2
    assert (tmp_path / "other" / "asked").read_text() == "nice\n"


def test_several_processes_compile_once(tmp_path: Path) -> None:
    """One compiles, and the others wait for what it makes: here a copy of a library that was made before."""
    there = native.folder() / f"{native.NAME}.so"
    assert library_in_cpp() is not None
    script = f'/bin/sleep 1; while [ $# -gt 1 ]; do [ "$1" = -o ] && to=$2; shift; done; /bin/cp {there} $to'
    path = tools(tmp_path / "tools", script)
    assert said(*(begun(tmp_path / "cache", PATH=path) for _ in range(3))) == ["True"] * 3
    assert (tmp_path / "tools" / "asked").read_text() == "nice\n"


def test_a_folder_that_cannot_be_written_and_a_compiler_that_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = CODE + "; print(native._error)"
    assert "False\n[Errno" in said(begun(tmp_path / "file", code))[0]
    path = tools(tmp_path / "tools", "kill -9 $$")
    assert said(begun(tmp_path / "cache", PATH=path)) == ["False"]
    assert not [*(tmp_path / "cache").glob("*/failed.txt")]  # it may be tried again


def test_memory_that_is_filled_is_pythons(toy: Toy) -> None:
    x, grad = toy.inputs(), torch.randn(toy.shape)
    out = toy(*x)
    with filled(5.0):
        same(torch.autograd.grad(out, x, grad, retain_graph=True), right(x, grad))
        assert toy.by_python == [False] and native.library is None
    same(torch.autograd.grad(out, x, grad), right(x, grad))
    assert toy.by_python == [False] and native.library is not None


def test_calls_are_known_by_sizes_strides_and_types(library: Any) -> None:
    """And by which tensors there are; a parameter is a tensor."""
    x, other = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4).transpose(1, 2).contiguous().transpose(1, 2)
    several = [
        (x, x, x, None, None),
        (x, x, x, x, None),
        (x, x, x, None, x),
        (x, x, other, None, None),
        (x, x, x.double(), None, None),
        (x, x, x[:, :, :2], None, None),
        (x, x, x[0], None, None),
    ]
    found = [library.laid(*each) for each in several]
    assert None not in found and len({*found}) == len(several)
    assert found[0] == library.laid(x + 1, x.clone(), torch.nn.Parameter(x), None, None)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.torch.jit.trace. is deprecated")
def test_calls_that_something_traces_or_transforms_are_not_known(library: Any) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    x, z = torch.zeros(1, 2, 3, 4), torch.randn(1, 2, 3, 4, dtype=torch.complex64)
    own = torch.zeros(1).as_subclass(type("Own", (torch.Tensor,), {}))
    nested = torch.nested.nested_tensor([torch.zeros(2)])
    others = [z.conj(), z.conj().imag, torch._efficientzerotensor((1,)), x.to_sparse(), x.to("meta"), own, nested]
    others += [[x, x], (x, x), 3.0]
    for each in others:
        assert library.laid(x, each) is None and library.laid(each, x) is None
    assert library.laid(x, z, z.real) is not None
    seen = list[Any]()
    with Mode():
        seen.append(library.laid(x))
    with torch.autograd.forward_ad.dual_level():
        seen.append(library.laid(x))
    torch.set_autocast_enabled("cuda", True)  # which `torch.autocast` does with a card alone
    seen.append(library.laid(x))
    torch.set_autocast_enabled("cuda", False)
    torch.vmap(lambda y: seen.append(library.laid(x)) or seen.append(library.laid(y)) or y)(x)
    torch.func.grad(lambda y: seen.append(library.laid(y)) or y.sum())(x)
    torch.jit.trace(lambda y: seen.append(library.laid(y)) or y + 1, x, check_trace=False)
    assert seen == [None] * 7 and library.laid(x) is not None
