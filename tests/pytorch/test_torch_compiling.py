"""What a first call has done beside it: Triton is made ready in a thread, and launchers are built beside kernels."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from triton.backends.nvidia import driver as nvidia
from triton.runtime import cache, driver

from pebblesim.kernels import releases
from pebblesim.operator.launching import compiling, launch

ONE_EACH = not releases.here().arguments_together
"""Whether the Triton here builds a launcher for each kind of kernel."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is done once in a process, in order, with stand-ins for what Triton does."""
    done = list[str]()
    kind = type(driver)
    monkeypatch.setattr(kind, "active", property(lambda self: done.append(threading.current_thread().name)))
    monkeypatch.setattr(cache, "triton_key", lambda: done.append("key"))
    compiling.begin.cache_clear()
    return done


def test_triton_is_made_ready_once_in_other_threads(begun: list[str]) -> None:
    compiling.begin().result(10)
    assert compiling.begin() is compiling.begin()
    assert len(begun) == 2 and "key" in begun and threading.current_thread().name not in begun


def test_a_triton_that_cannot_be_made_ready_is_left_to_the_launch(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever, and nothing is raised where no kernel is compiled."""

    def lost() -> None:
        raise RuntimeError("no library")

    monkeypatch.setattr(cache, "triton_key", lost)
    assert compiling.begin().result(10) is None
    compiling.begin.cache_clear()


def test_threads_take_turns_more_often_while_kernels_are_compiled(begun: list[str]) -> None:
    usual = sys.getswitchinterval()
    with compiling.together():
        assert sys.getswitchinterval() == pytest.approx(compiling.TURN) and not gc.isenabled()
        compiling.begin().result(10)
    assert sys.getswitchinterval() == usual > compiling.TURN and gc.isenabled()


def test_cycles_are_not_looked_for_afterwards_where_they_were_not_before() -> None:
    gc.disable()
    try:
        with compiling._TURNS:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_thread_that_compiles_gives_turns_back() -> None:
    """Also if it began later than another one that is done."""
    usual, turns = sys.getswitchinterval(), compiling._TURNS
    turns.__enter__()
    turns.__enter__()
    turns.__exit__()
    assert sys.getswitchinterval() == pytest.approx(compiling.TURN) and not gc.isenabled()
    turns.__exit__()
    assert sys.getswitchinterval() == usual and gc.isenabled()


def kernel(*kinds: str, made: list[Any]) -> Any:
    """A function that compiles a kernel whose arguments are of these types, as Triton gives it to a thread."""
    src = SimpleNamespace(signature=dict(enumerate(kinds)), constants={}, fn=SimpleNamespace(arg_names=[]))

    def compiled() -> Any:
        made.append(src)
        return src

    return compiled


def test_kernels_are_read_one_by_one_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is in Triton's cache, which nobody reads, is not waited for for ever."""
    ready, begun, last = Future[None](), list[int](), threading.Event()
    monkeypatch.setattr(compiling, "begin", lambda: ready)
    others = [list[int]() for number in range(4)]

    def reading(number: int) -> None:
        time.sleep(0.02)
        others[number] = [*begun]  # those that were given to a thread while this one was read

    def kernel_of(number: int) -> Any:
        src = SimpleNamespace(make_ir=lambda: reading(number), signature={})

        def compiled() -> None:
            begun.append(number)
            if number:
                src.make_ir()
                last.wait(10)

        return compiled

    with compiling._Threads(4) as threads:
        monkeypatch.setattr(compiling.HERE, "threads", threads, raising=False)
        for number in range(3):
            compiling.later(partial(threads.submit, kernel_of(number)))
        assert not begun
        ready.set_result(None)
        compiling.later(partial(threads.submit, kernel_of(3)))
        assert others == [[], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
        last.set()


def test_kernels_wait_for_triton_while_others_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order; as soon as Triton is ready, none waits. One that is compiled already is given to no thread."""
    ready, given = Future[None](), list[int]()
    monkeypatch.setattr(compiling, "begin", lambda: ready)
    with compiling._Threads(1) as threads:
        monkeypatch.setattr(compiling.HERE, "threads", threads, raising=False)
        for number in range(3):
            compiling.later(lambda number=number: given.append(number))
        assert not given
        ready.set_result(None)
        compiling.later(lambda: given.append(3))
        assert given == [0, 1, 2, 3]
        compiling.later(lambda: given.append(4))
        assert given == [0, 1, 2, 3, 4]


def test_a_kernel_that_waits_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else tables of both passes would be there at once; Triton is told where a tensor was, and of what type."""
    ready, given = Future[None](), list[Any]()
    monkeypatch.setattr(compiling, "begin", lambda: ready)
    for name in ("_cuda_getDevice", "_cuda_getCurrentRawStream"):
        monkeypatch.setattr(torch._C, name, lambda *of: 0, raising=False)
    kernel = launch.Kernel(SimpleNamespace(run=lambda *arguments, **options: given.append((arguments, options))))
    with compiling._Threads(1) as threads:
        monkeypatch.setattr(compiling.HERE, "threads", threads, raising=False)
        x = torch.empty(3, 5, dtype=torch.bfloat16)
        address, held = x.data_ptr(), weakref.ref(x)
        kernel[(2,)](x, 7, num_warps=4)
        del x
        assert held() is None and not given
        ready.set_result(None)
        threads.give()
    ((place, number), options) = given.pop()
    assert (place.data_ptr(), place.dtype, number) == (address, torch.bfloat16, 7)
    assert options == {"grid": (2, 1, 1), "warmup": True, "num_warps": 4}


@pytest.mark.skipif(not ONE_EACH, reason="this Triton has one launcher for all kernels")
def test_a_launcher_is_built_once_for_each_kind_behind_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is there when threads are done."""
    built, made = list[Any](), list[Any]()
    monkeypatch.setattr(
        type(driver), "active", SimpleNamespace(launcher_cls=lambda src, metadata: built.append((len(made), src)))
    )
    with compiling._Threads(1) as threads:
        many = [threads.submit(kernel(*kinds, made=made)) for kinds in (("i32",), ("i32", "*bf16"), ("i32",))]
        threads.give_launchers()
        assert [each.result(10) for each in many] == made
    assert [[*source.signature.values()] for _, source in built] == [["i32"], ["i32", "*bf16"]]
    assert {number for number, _ in built} == {3}


@pytest.mark.skipif(not ONE_EACH, reason="this Triton has one launcher for all kernels")
def test_launchers_are_there_when_kernels_are_compiled(begun: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[Any]()
    monkeypatch.setattr(compiling, "_build_launcher", lambda source, kinds: built.append(kinds))
    with compiling.together():
        compiling.HERE.threads.submit(kernel("i32", made=[]))
    assert built == [("i32",)]


@pytest.mark.skipif(not ONE_EACH, reason="this Triton has one launcher for all kernels")
def test_a_launcher_that_is_not_built_is_left_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*given: Any) -> None:
        raise RuntimeError("no compiler of C")

    monkeypatch.setattr(type(driver), "active", SimpleNamespace(launcher_cls=lost))
    with compiling._Threads(2) as threads:
        found: Future[Any] = threads.submit(kernel("i32", made=[]))
        threads.give_launchers()
        assert found.result(10).signature == {0: "i32"}


def test_the_key_of_triton_reads_its_library_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other files are read as before, and `open` of the module is Python's again."""
    read = list[int]()
    (tmp_path / "libtriton.so").write_bytes(b"abc" * 5)
    (tmp_path / "other.py").write_text("x = 3")
    module = SimpleNamespace()
    with compiling._in_one_piece(module):
        with module.open(str(tmp_path / "libtriton.so"), "rb") as file:
            while piece := file.read(2):
                read.append(len(piece))
                assert piece[:] == b"abc" * 5
        with module.open(tmp_path / "other.py") as text, module.open(tmp_path / "other.py", "rb") as words:
            assert text.read() == "x = 3" and words.read(2) == b"x "
    assert read == [15] and not hasattr(module, "open")


@pytest.mark.skipif(not ONE_EACH, reason="this Triton has one launcher for all kernels")
@pytest.mark.parametrize("described", [0, 2])
def test_a_launcher_built_before_is_the_one_of_the_kernel(monkeypatch: pytest.MonkeyPatch, described: int) -> None:
    """Its source, which is the key in Triton's cache, is that for what a compiled kernel says of its descriptors."""
    texts = list[str]()

    def compiled(src: str, **options: Any) -> Any:
        texts.append(src)
        return SimpleNamespace(launch=None)

    monkeypatch.setattr(nvidia, "compile_module_from_src", compiled)
    monkeypatch.setattr(nvidia, "library_dirs", list)
    monkeypatch.setattr(type(driver), "active", SimpleNamespace(launcher_cls=nvidia.CudaLauncher))
    kinds = [*["tensordesc<bf16[1, 128, 64],NVMMASharedLayout()>"] * described, "*bf16", "i32", "i64", "constexpr"]
    src = SimpleNamespace(signature=dict(zip("abcdef", kinds, strict=False)), constants={(len(kinds) - 1,): 3})
    compiling._build_launcher(src, tuple(src.signature.values()))
    told = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [1, 128, 64], "fp4_padded": False}
    names = "global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align"
    made = dict.fromkeys((*names, "launch_cooperative_grid", "launch_pdl"), 0)
    nvidia.CudaLauncher(src, SimpleNamespace(**made, tensordesc_meta=[told] * described or None))
    assert texts[0] == texts[1]
    without = nvidia.make_launcher(src.constants, src.signature, None)
    assert (without != texts[0]) is bool(described)
