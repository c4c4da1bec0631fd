"""What a backward function of autograd takes of the host, in Python and in C++, without any kernel; on a GPU.

python benchmarks/gpu/empty_node.py -o FOLDER [--time-limit 90]

Writes FOLDER/empty_node.json: what a compiler of C++ takes, and microseconds of forward and backward passes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import shutil
import statistics
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch

SOURCE = r"""
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <ATen/ops/empty_strided.h>
using namespace torch::autograd;
static bool allocates = true;
struct Nothing : Function<Nothing> {
  static variable_list forward(AutogradContext* ctx, at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor* out) {
    ctx->save_for_backward({q, k, v, *out});
    ctx->set_materialize_grads(false);
    return {*out};
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    variable_list made;
    for (auto& each : ctx->get_saved_variables())
      made.push_back(allocates ? at::empty_strided(each.sizes(), each.strides(), each.options()) : g[0]);
    made[3] = at::Tensor();
    return made;
  }
};
static PyObject* nothing(PyObject*, PyObject* const* a, Py_ssize_t) {
  at::Tensor out = THPVariable_Unpack(a[3]);
  auto made = Nothing::apply(THPVariable_Unpack(a[0]), THPVariable_Unpack(a[1]), THPVariable_Unpack(a[2]), &out);
  return THPVariable_Wrap(made[0]);
}
static PyObject* allocate(PyObject*, PyObject* x) { allocates = PyObject_IsTrue(x); Py_RETURN_NONE; }
static PyMethodDef methods[] = {
  {"nothing", (PyCFunction)(void*)nothing, METH_FASTCALL, ""}, {"allocate", allocate, METH_O, ""}, {0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "empty_node", 0, -1, methods};
PyMODINIT_FUNC PyInit_empty_node() { return PyModule_Create(&module); }
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=90.0)
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    until, row = time.monotonic() + asked.time_limit, dict[str, Any]()
    row["torch"], row["card"] = torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name()
    row["compilers"] = [found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))]
    row["Python.h"] = (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
    try:
        compiled = build(asked.output.resolve(), row)
    except Exception as error:
        compiled, row["error"] = None, str(error)[-3000:]
    for threads in (True, False):
        with torch.autograd.set_multithreading_enabled(threads):
            row["with a thread" if threads else "without"] = times(compiled, until)
    (asked.output / "empty_node.json").write_text(json.dumps(row, indent=1))
    print(json.dumps(row, indent=1))


def build(folder: Path, row: dict[str, Any]) -> Any:
    """The module of the source, in memory; seconds of the compiler go into the row."""
    source, made = folder / "empty_node.cpp", Path("/tmp") / "empty_node.so"
    source.write_text(SOURCE)
    inside = Path(torch.__file__).parent
    command = [row["compilers"][0], "-std=c++20", "-O2", "-fPIC", "-shared", str(source), "-o", str(made)]
    command += [f"-I{inside / 'include'}", f"-I{sysconfig.get_paths()['include']}", f"-L{inside / 'lib'}"]
    command += ["-ltorch_python", "-ltorch_cpu", "-lc10"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    row["seconds of the compiler"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    spec = importlib.util.spec_from_file_location("empty_node", made)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def times(compiled: Any, until: float) -> dict[str, list[float]]:
    """Medians of a forward and of a backward pass in microseconds, the least of four rounds."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v, grad = (torch.empty(2, 8, 512, 128, dtype=torch.bfloat16, device=where) for _ in range(4))
    x = [each.requires_grad_() for each in (q, k, v)]

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            out = torch.empty_like(q)
            ctx.save_for_backward(q, k, v, out)
            ctx.set_materialize_grads(False)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))

    class Less(Nothing):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            _ = ctx.saved_tensors
            return grad, grad, grad

    calls: dict[str, Any] = {"Python": Nothing.apply, "Python, no memory": Less.apply}
    if compiled is not None:
        calls["C++"] = calls["C++, no memory"] = lambda *x: compiled.nothing(*x, torch.empty_like(x[0]))
    calls["PyTorch's own, of q + k + v"] = lambda q, k, v: q + k + v
    attend = torch.nn.functional.scaled_dot_product_attention
    if where == "cuda":
        calls["PyTorch's attention"] = lambda *x: attend(*x, is_causal=True)
    found = dict[str, list[float]]()
    for _ in range(4):
        for name, call in calls.items():
            if time.monotonic() > until:
                return found
            if compiled is not None:
                compiled.allocate("no memory" not in name)
            forwards, backwards = list[int](), list[int]()
            for _ in range(200):
                if where == "cuda":
                    torch.cuda.synchronize()
                begin = time.perf_counter_ns()
                out = call(*x)
                middle = time.perf_counter_ns()
                if where == "cuda":
                    torch.cuda.synchronize()
                then = time.perf_counter_ns()
                torch.autograd.grad(out, x, grad)
                end = time.perf_counter_ns()
                forwards.append(middle - begin)
                backwards.append(end - then)
            median = [statistics.median(each) / 1e3 for each in (forwards, backwards)]
            found[name] = [min(pair) for pair in zip(found.get(name, median), median, strict=True)]
    return found


if __name__ == "__main__":
    main()
