"""A process beside this one that compiles kernels: it imports Triton once, and makes a copy of itself for each kernel.

Threads of one process take turns wherever Triton is Python, which its front end is, and wait for each other's memory in
LLVM; copies do neither. What a copy compiles is in Triton's cache, where this process finds it. What it does not, this
process compiles. The other process is this file as a script: it imports nothing of this package, and knows no GPU, nor
has it threads, so that it can be copied.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

PATIENCE = 100.0
"""Seconds after which a kernel is not waited for any more."""

LONGEST = 2**18
"""Bytes of a message, at most."""


class Process:
    """The process, which ends where it is left.

    Args:
        triton: the file of the Triton here. Another one, whose kernels would get into its cache, is not used.
    """

    def __init__(self, triton: str) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number, nothing = there.fileno(), subprocess.DEVNULL
        command = [sys.executable, "-P", __file__, str(number)]  # files beside this one have names of other modules
        with there:
            self._running = subprocess.Popen(
                command, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=[number], start_new_session=True
            )
        with suppress(OSError):
            self._socket.send(pickle.dumps((sys.path, triton)))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *failed: object) -> None:
        self._socket.close()
        self._running.kill()
        self._running.wait()

    def compile(self, job: bytes) -> dict[str, float] | None:
        """Compile a kernel, see `job_of`, into Triton's cache; seconds by stage, and None if it failed."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as answer:
            try:
                socket.send_fds(self._socket, [job], [writing])
            except OSError:
                return None
            finally:
                os.close(writing)
            waiting = select.poll()
            waiting.register(answer, select.POLLIN)
            said = answer.read() if waiting.poll(PATIENCE * 1e3) else b""
        return json.loads(said) if said else None


def job_of(given: Mapping[str, Any], module: str) -> bytes | None:
    """The message by which a kernel is compiled in another process.

    Args:
        given: what Triton compiles the kernel of, by Triton's names.
        module: the name of the modules whose kernels are compiled there.

    Returns:
        The message; None if the kernel is of another module, or somebody watches in this process how it is compiled.
    """
    from triton import knobs
    from triton.runtime import cache

    source, options, target = (given.get(name) for name in ("src", "options", "target"))
    function = getattr(getattr(source, "fn", None), "fn", None)
    if options is None or target is None or getattr(function, "__module__", None) != module:
        return None
    watched = knobs.compilation.listener, getattr(knobs.runtime, "add_stages_inspection_hook", None)
    if any(each is not None for each in watched) or knobs.compilation.always_compile:
        return None
    assert function is not None and source is not None
    with suppress(pickle.PicklingError, TypeError, AttributeError):
        return pickle.dumps(
            {
                "module": module,
                "path": function.__globals__["__file__"],
                "kernel": source.fn.__name__,
                "kind": type(source),
                "facts": {name: each for name, each in vars(source).items() if name not in ("fn", "make_ir")},
                "target": target,
                "options": vars(options),
                "variables": given.get("env_vars"),
                "version": cache.triton_key(),
            }
        )
    return None


def serve(connection: socket.socket) -> None:
    """Make a copy of this process for each message that comes with where to answer; end with who sends them."""
    sys.path[:], there = pickle.loads(connection.recv(LONGEST))
    import triton

    if triton.__file__ != there:
        return
    with suppress(Exception):  # then each copy does what is left
        from triton.backends.nvidia import compiler
        from triton.experimental.gluon.language.nvidia import hopper as _imported  # noqa: F401

        compiler.get_ptxas_version()
    sys.modules["torch"] = types.ModuleType("torch")  # modules of kernels import it for what launches them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        job, to, *_ = socket.recv_fds(connection, LONGEST, 1)
        if not to:
            return
        if os.fork() == 0:
            try:
                connection.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.write(to[0], json.dumps(_compiled(**pickle.loads(job))).encode())
            finally:
                os._exit(0)
        os.close(to[0])


def _compiled(
    module: str,
    path: str,
    kernel: str,
    kind: type,
    facts: dict[str, Any],
    target: Any,
    options: dict[str, Any],
    variables: Any,
    version: str,
) -> dict[str, float]:
    """Compile a kernel as Triton does in the process that asks for it, and return seconds by stage."""
    from triton import knobs
    from triton.compiler import compiler
    from triton.runtime import cache

    cache.triton_key = lambda: version  # else its library is read again
    seconds = dict[str, float]()

    def heard(*, times: Any, **rest: Any) -> None:
        seconds["front"] = times.ir_initialization / 1e6
        seconds.update((stage, micros / 1e6) for stage, micros in times.lowering_stages)

    knobs.compilation.listener = heard
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None and spec.loader is not None
    text = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(text)
    source: Any = object.__new__(kind)
    vars(source).update(facts, fn=getattr(text, kernel))
    compiler.compile(source, target=target, options=options, _env_vars=variables)
    return seconds


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        serve(given)
