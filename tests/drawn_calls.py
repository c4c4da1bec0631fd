"""Draw calls of public functions from a seed, each with an argument that is hostile, and say which end as no call may.

A drawn call is one of `CALLS`, with one argument or two of another kind, or far too large. It runs in a process of its
own, for at most `SECONDS` of processor time. It may give a result or a `PebblesimError` of one line; nothing else.

`python tests/drawn_calls.py CALLS SEED [FUNCTION…]` prints the findings as JSON.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import sympy

import pebblesim as ps
from pebblesim.core.errors import PebblesimError

SECONDS: Final = 5
BYTES: Final = 12 * 2**30
"""The most memory of a call, as addresses."""

LETTERS: Final = 800
"""The most letters of a message."""

SIZES: Final = {"n": 8, "d": 4, "M": 100}

CALLS: Final[dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "accesses": [(("flash2-forward",), SIZES)],
    "advise": [(("H200",), {"n": 64, "d": 32}), (("H200",), {"problem_name": "matmul", "m": 64, "k": 64, "n": 64})],
    "backlite": [((), {"n": 8, "d": 4, "blocks": {"B_r": 4, "B_c": 4}})],
    "bound": [((), {"problem": "matmul"})],
    "bounds": [(("forward",), SIZES), (("forward",), {**SIZES, "heads": 4, "kv_heads": 2})],
    "cache": [(("flash2-forward",), SIZES), ((lambda: ps.generate("fft", n=4),), {"M": 8})],
    "compare": [(("forward",), SIZES)],
    "count": [(("flash2-forward",), SIZES), (("matmul-tiled",), {"m": 5, "k": 4, "n": 3, "M": 40})],
    "crossover": [(("small-cache", "flash"), {"n": 8, "d": 4, "proofs": False})],
    "decide": [(("n*d", "O", "n*d**2"), {})],
    "devices": [(("ring",), {"P": 2, "n": 8, "d": 4})],
    "formula": [(("flash2-forward",), {})],
    "gaps": [(("forward",), {"n": 8, "d": 4, "M": 100, "steps": 1})],
    "generate": [(("fft",), {"n": 4}), (("matmul",), {"m": 2, "k": 2, "n": 2})],
    "glossary": [(("backward",), {})],
    "graph": [(("forward",), {"n": 4, "d": 2})],
    "judge": [((lambda: ps.graph("matmul", m=2, k=2, n=2), "game.txt"), {"M": 12})],
    "l2": [(("flash2-forward",), {**SIZES, "size": 1000})],
    "list": [((), {})],
    "load_graph": [(("g.hdag",), {})],
    "load_head": [((["head.npz"],), {})],
    "numbers": [(("flash2-forward",), SIZES)],
    "on_machine": [(("flash2-forward",),
        {"n": 64, "d": 32, "machine": "H200", "search": False, "below": ["m_i", "m_new"]})],
    "optimum": [(("matmul",), {"m": 2, "k": 1, "n": 2, "M": 4}), ((lambda: ps.generate("fft", n=4),), {"M": 4})],
    "parse": [(("n*d",), {})],
    "pebble": [((lambda: ps.generate("fft", n=4),), {"M": 4, "steps": 10})],
    "play": [(("flash2-forward",), {"n": 4, "d": 2, "M": 60})],
    "problem": [(("mine",), {"dims": ("m",), "from_nd": {"m": "n"}, "inputs": {"A": ("m", "m")},
        "outputs": {"B": ("m", "m")}, "values": lambda A: {"B": A}, "source": "mine"})],
    "record": [(("flash2-forward",), {"n": 4, "d": 2, "M": 60})],
    "referee": [((lambda: ps.generate("fft", n=4), 4, ()), {"strict": False})],
    "save_graph": [((lambda: ps.generate("fft", n=4), "o.hdag"), {})],
    "schedule": [((), {"problem": "matmul", "source": "mine"})],
    "search": [(("matmul",), {"m": 6, "k": 5, "n": 4, "M": 20})],
    "search_on_devices": [((), {"P": 2, "M": 100, "n": 24, "d": 4})],
    "show": [(("flash2-forward",), {})],
    "sweep": [((["flash2-forward"],), {**SIZES})],
    "synthetic_head": [((8, 4), {})],
    "verify": [(("Lemma C.9",), {})],
}  # fmt: skip
"""Calls of each public function that end well. What is made by a call of its own is a function without arguments."""


ODD: Final = (
    "None", "True", "False", "0", "-1", "1", "2", "3", "1.0", "1.5", "-0.5", "1e300", "10**30", "2**63", "2**64",
    "2**256", "2**256 + 1", "-10**30", "10**5000", "-10**5000", "nan", "inf", "-inf", "1j", "Fraction(1, 2)",
    "Fraction(4)", "Decimal(4)", "Decimal('NaN')", "''", "' '", "'x'", "'causal'", "'window:3'", "'fit'", "'best'",
    "'3'", "'n'", "'\\0'", "'\\udcff'", "'ü'", "'a\\nb'", "'%s'", "'{}'", "'*'", "b'x'", "b''", "'9' * 5000",
    "'x' * 5000", "()", "(1,)", "(0,)", "(1, 2)", "(None,)", "('x',)", "(1.5,)", "((1,),)", "[]", "[3]", "[-1]",
    "['x']", "[None]", "[[1]]", "[1] * 5000", "{}", "{'n': 3}", "{'x': 1}", "{1: 2}", "{'B_r': 0}", "{'B_r': 'x'}",
    "{'B_r': 10**30}", "{'B_r': None}", "{'B_r': 2.5}", "{None: None}", "{'x': [1, {}]}", "{'n': {}}", "set()", "{3}",
    "frozenset({'x'})", "range(3)", "range(0)", "range(10**30)", "...", "int", "len", "slice(3)", "object()",
    "lambda: 1", "iter([3])", "iter(())", "iter('ab')", "(each for each in (1, 2))", "repeat(3)", "StringIO('x')",
    "BytesIO()", "Path('.')", "Path('nowhere/x')", "np", "np.int64(4)", "np.int8(4)", "np.uint64(4)", "np.float64(4)",
    "np.float64('nan')", "np.bool_(True)", "np.array(4)", "np.array([4])", "np.zeros((2, 2))", "np.zeros((40, 40))",
    "np.zeros(0)", "np.array(['x'])", "np.ones((8, 8), bool)", "np.str_('x')", "sympy.Symbol('n')",
    "sympy.Integer(4)", "sympy.Rational(1, 2)", "sympy.oo", "ps.generate('fft', n=4)",
    "ps.count('flash2-forward', n=8, d=4, M=100)", "ps.UsageError('x')",
)  # fmt: skip
"""Values that most arguments do not take, as Python writes them."""

NAMES: Final = {
    "Fraction": Fraction, "Decimal": Decimal, "nan": float("nan"), "inf": float("inf"), "np": np, "sympy": sympy,
    "ps": ps, "Path": Path, "StringIO": io.StringIO, "BytesIO": io.BytesIO, "repeat": itertools.repeat,
}  # fmt: skip


@dataclass
class Call:
    """A call of a public function, with some arguments replaced by those of `ODD`, by place or by name."""

    name: str
    number: int
    odd: dict[int | str, str] = field(default_factory=dict)

    def __call__(self) -> Any:
        args, kwargs = CALLS[self.name][self.number]
        by_place = {place: each() if callable(each) else each for place, each in enumerate(args)}
        by_name = dict(kwargs)
        for at, text in self.odd.items():
            (by_place if isinstance(at, int) else by_name)[at] = eval(text, dict(NAMES))
        made = getattr(ps, self.name)(*by_place.values(), **by_name)
        if isinstance(made, ps.Result):
            str(made), made.to_dict()
        return made

    def __str__(self) -> str:
        args, kwargs = CALLS[self.name][self.number]
        given = {
            **dict(enumerate(map(_text, args))),
            **{name: _text(each) for name, each in kwargs.items()},
            **self.odd,
        }
        return (
            f"{self.name}({', '.join(text if isinstance(at, int) else f'{at}={text}' for at, text in given.items())})"
        )


def _text(value: Any) -> str:
    return "…" if callable(value) else repr(value)


def arguments(name: str, number: int) -> list[int | str]:
    """The places and names of the arguments that a call has, or may have."""
    args, kwargs = CALLS[name][number]
    parameters = inspect.signature(getattr(ps, name)).parameters.values()
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    optional = [
        each.name for each in [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD][len(args) :]
    ]
    return [*range(len(args)), *dict.fromkeys([*kwargs, *by_name, *optional])]


def draw_call(draw: random.Random, names: list[str]) -> Call:
    name = draw.choice(names)
    number = draw.randrange(len(CALLS[name]))
    places = arguments(name, number)
    if not places:
        return Call(name, number)
    chosen = draw.sample(places, min(len(places), draw.choice((1, 1, 1, 2))))
    return Call(name, number, {place: draw.choice(ODD) for place in chosen})


def furnish(folder: Path) -> None:
    """Write the files that calls read into a folder."""
    ps.save_graph(ps.generate("fft", n=4), folder / "g.hdag")
    ps.play("matmul-tiled", m=2, k=2, n=2, M=12, save=folder / "game.txt")
    np.savez(folder / "head.npz", **ps.synthetic_head(8, 4))


def ended(call: Call) -> str | None:
    """What is wrong with how a call ends, made in a process of its own; None if nothing is. "over" if it takes long."""
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        os.close(ours)
        fault: str | None = "crash of drawn_calls"
        try:
            os.chdir(tempfile.mkdtemp(dir="."))
            for name in ("g.hdag", "game.txt", "head.npz"):
                os.link(f"../{name}", name)
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            fault = judged(call)
        finally:
            os.write(theirs, (fault or "").encode("utf-8", "replace")[:60000])
            os._exit(0)
    os.close(theirs)
    with open(ours, encoding="utf-8") as told:
        fault = told.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "over" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else f"signal {os.WTERMSIG(status)}"
    return fault or None


def judged(call: Call) -> str | None:
    """What is wrong with how a call ends."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("error")
        try:
            call()
        except PebblesimError as error:
            said = str(error)
            if "\n" in said or not said or len(said) > LETTERS:
                return f"message: {said[:300]!r} ({len(said)} letters)"
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [
                f"{Path(f.filename).name}:{f.lineno} {f.name}"
                for f in frames
                if "pebblesim" in f.filename or "/graphs/" in f.filename
            ]
            return f"{type(error).__name__}: {str(error)[:160]!r} at {' < '.join(own[::-1][:4])}"
    return None


def drawn(number: int, seed: int, names: list[str] | None = None) -> dict[str, Any]:
    """So many drawn calls, and how those ended that ended as no call may."""
    draw, faults, over = random.Random(seed), dict[str, str](), list[str]()
    tried = Counter[str]()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        furnish(Path())
        for _ in range(number):
            call = draw_call(draw, names or [*CALLS])
            tried[call.name] += 1
            if (fault := ended(call)) == "over":
                over.append(str(call))
            elif fault:
                faults[str(call)] = fault
    return {"calls": dict(tried), "faults": faults, "over": over}


def plain() -> None:
    """Make each call of `CALLS` once as it stands, so that everything is imported."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        furnish(Path())
        for name, calls in CALLS.items():
            for number in range(len(calls)):
                Call(name, number)()


if __name__ == "__main__":
    plain()
    json.dump(drawn(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or None), sys.stdout, indent=1, ensure_ascii=False)
