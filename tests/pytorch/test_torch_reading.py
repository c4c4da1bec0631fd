"""Kernels that are read without Triton's rehearsals of loops are, letter by letter, what Triton makes with them."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from checkout import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import code_generator, make_backend

from pebblesim.operator.launching import reading

sys.path.append(str(ROOT / "benchmarks" / "gpu"))
import other_tritons

CALLS = [
    (2.2, {"n": 2047, "d": 512, "heads": 4, "kv_heads": 4, "causal": True}),
    (1.6, {"n": 2047, "d": 64, "heads": 16, "kv_heads": 2, "causal": True}),
    (1.3, {"n": 1000, "d": 96, "heads": 6, "kv_heads": 2, "causal": False}),
]
"""How many times less is visited than with rehearsals, at least: stored scores have loops in loops."""

TARGET = GPUTarget("cuda", 90, 32)


def module(function: Any, given: tuple[Any, ...]) -> str:
    """What Triton reads of a kernel, before any pass."""
    _, signature, _, constants, options, attributes, *_ = given
    source, backend = function.ASTSource(function, signature, constants, attributes), make_backend(TARGET)
    options, context = backend.parse_options(options.__dict__ | source.parse_options()), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    needs = backend.get_codegen_implementation(options), backend.get_module_map()
    return str(source.make_ir(TARGET, options, *needs, context))


@pytest.mark.parametrize(("less", "call"), CALLS)
def test_a_kernel_is_what_triton_reads(less: float, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    visits, names = list[int](), list[str]()
    assert reading._can()
    visit = code_generator.CodeGenerator.visit

    def counted(self: Any, node: Any) -> Any:
        visits[-1] += 1
        return visit(self, node)

    monkeypatch.setattr(code_generator.CodeGenerator, "visit", counted)

    def make(compile_one: Any, function: Any, given: tuple[Any, ...], name: str) -> None:
        visits.append(0)
        once = reading.read_once(lambda: module(function, given))
        visits.append(0)
        assert once == module(function, given)
        names.append(function.fn.__name__)

    made, asked = other_tritons.tensors(call, "cpu")
    with other_tritons.without_card(), other_tritons.compiling(make):
        other_tritons.both_passes(*made, asked)
    assert len(names) >= 4
    assert less * sum(visits[::2]) < sum(visits[1::2])


def test_what_cannot_be_read_once_is_read_as_triton_does() -> None:
    """And whoever else reads meanwhile, in another thread, reads so."""
    found, others = list[bool](), list[bool]()

    def make() -> str:
        found.append(reading.HERE.once)
        other = threading.Thread(target=lambda: others.append(getattr(reading.HERE, "once", False)))
        other.start()
        other.join()
        if reading.HERE.once:
            raise ValueError("a loop that is not understood")
        return "read"

    assert reading.read_once(make) == "read"
    assert found == [True, False] and others == [False, False] and not reading.HERE.once


def test_a_triton_that_reads_in_another_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: Any, node: Any) -> None:
        """Another way."""

    reading._can.cache_clear()
    monkeypatch.setattr(code_generator.CodeGenerator, "_find_carries", other)
    assert not reading._can() and reading.read_once(lambda: 3) == 3
    assert code_generator.CodeGenerator._find_carries is other
    reading._can.cache_clear()
