"""Kernels that another process compiles: this one finds them in Triton's cache, and compiles what it does not find."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compiler
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import cache

from pebblesim.kernels.module import NAME, module_of
from pebblesim.operator.launching import compiling
from pebblesim.operator.launching.process import Process, job_of

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
TEXT = HEAD + "@triton.jit\ndef twice(x, n):\n    tl.store(x, tl.load(x) * n)\n"
GLUON = (
    "import torch\nfrom triton.experimental import gluon\nfrom triton.experimental.gluon import language as gl\n"
    "@gluon.jit\ndef twice(x, n):\n    gl.store(x, gl.load(x) * n)\n"
)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each kernel that this process compiles, whether it was in Triton's cache, which is empty at first."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    known = list[bool]()
    yield known
    knobs.compilation.listener = None


def given(text: str, kind: type = ASTSource) -> dict[str, Any]:
    """What Triton compiles a kernel of, by its names."""
    module, target = module_of(text), GPUTarget("cuda", 90, 32)
    source = kind(module.twice, {"x": "*fp32", "n": "i32"}, {}, {(0,): [["tt.divisibility", 16]]})
    options = compiler.make_backend(target).parse_options({"num_warps": 2})
    return {"src": source, "target": target, "options": options, "env_vars": {"A": "1"}, "module": module}


def compiled(of: dict[str, Any], known: list[bool]) -> Any:
    knobs.compilation.listener = lambda *, cache_hit, **rest: known.append(cache_hit)
    options = vars(of["options"])
    return compiler.compile(of["src"], target=of["target"], options=options, _env_vars=of["env_vars"])


@pytest.mark.parametrize("text, kind", [(TEXT, ASTSource), (GLUON, GluonASTSource)])
def test_what_the_process_compiles_is_in_the_cache(text: str, kind: type, found: list[bool]) -> None:
    of = given(text, kind)
    with Process(triton.__file__) as process:
        job = job_of(of, NAME)
        assert job is not None
        seconds = process.compile(job)
    assert seconds is not None and {"front", "llir", "ptx", "cubin"} <= set(seconds) and min(seconds.values()) >= 0
    there = compiled(of, found)
    assert found == [True] and there.metadata.num_warps == 2
    knobs.compilation.always_compile = True
    try:
        assert compiled(of, found).asm["cubin"] == there.asm["cubin"] and found == [True, False]
    finally:
        knobs.compilation.always_compile = False


def test_a_kernel_that_the_process_cannot_compile_is_left_to_this_one(found: list[bool]) -> None:
    """Whatever is wrong with it: this process says so, in its own words; and the next one is compiled."""
    with Process(triton.__file__) as process:
        false, of = given(TEXT.replace("tl.load(x)", "tl.load(x, y)")), given(TEXT)
        wrong, job = job_of(false, NAME), job_of(of, NAME)
        assert wrong is not None and job is not None and process.compile(wrong) is None
        lost = pickle.dumps(pickle.loads(job) | {"path": "/nowhere/kernels.py"})
        assert process.compile(lost) is None and process.compile(job) is not None


def test_a_process_that_is_killed_answers_nothing(found: list[bool]) -> None:
    of = given(TEXT)
    job = job_of(of, NAME)
    assert job is not None
    with Process(triton.__file__) as process:
        os.kill(process._running.pid, signal.SIGKILL)
        assert process.compile(job) is None
        process._running.wait()
        assert process.compile(job) is None
    assert compiled(of, found).asm["cubin"] and found == [False]


def test_another_triton_compiles_nothing(found: list[bool]) -> None:
    """Else its kernels would be in the cache of the one that is here."""
    of = given(TEXT)
    job = job_of(of, NAME)
    assert job is not None
    with Process("/elsewhere/triton/__init__.py") as process:
        assert process.compile(job) is None


def test_the_process_ends_where_it_is_left(found: list[bool]) -> None:
    with Process(triton.__file__) as process:
        pass
    assert process._running.returncode is not None


def test_some_kernels_are_compiled_here_alone(monkeypatch: pytest.MonkeyPatch, found: list[bool]) -> None:
    """Those of other modules, those that somebody watches, and what another Triton gives to threads."""
    of = given(TEXT)
    assert job_of(of, NAME) is not None
    assert job_of(of, "another_module") is None
    assert job_of({name: each for name, each in of.items() if name != "options"}, NAME) is None
    assert job_of({}, NAME) is None
    monkeypatch.setattr(knobs.compilation, "listener", lambda **given: None)
    assert job_of(of, NAME) is None


@pytest.mark.parametrize("processors", [compiling.FEW - 1, compiling.FEW])
def test_few_processors_have_threads_alone(monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    with compiling._process() as process:
        assert (process is not None) is (processors >= compiling.FEW)


def test_threads_have_the_process_compile(monkeypatch: pytest.MonkeyPatch, found: list[bool]) -> None:
    """And compile afterwards, whether it could or not."""
    monkeypatch.setattr(compiling._Threads, "_launcher", lambda *given: None)
    asked, made, read = list[bytes](), list[bytes](), list[bool]()

    class Lost(Process):
        def __init__(self) -> None: ...

        def compile(self, job: bytes) -> None:
            asked.append(job)
            read.extend(each.is_set() for each in threads.fronts)

    of = given(TEXT)
    src, target, options, env_vars = of["src"], of["target"], of["options"], of["env_vars"]

    def kernel() -> Any:
        made.append(asked[-1])
        return src, target, options, env_vars

    with compiling._Threads(2, Lost()) as threads:
        threads.submit(kernel).result(10)
    assert made == asked and read == [True] and pickle.loads(made[0])["version"] == cache.triton_key()
