"""Arguments of another kind than a function or an option asks for: one sentence, and no value taken for true."""

import inspect
import itertools
import json
import os
import random
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import drawn_calls
import numpy as np
import pytest
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cli.main import app
from pebblesim.core.errors import UsageError

FLAGS: dict[str, tuple[str, Any]] = {
    "count": ("separate", ("flash2-forward", {"n": 8, "d": 4, "M": 100})),
    "compare": ("separate", ("forward", {"n": 4, "d": 2, "M": 60})),
    "bounds": ("separate", ("forward", {"n": 4, "d": 2, "M": 60})),
    "play": ("strict", ("flash2-forward", {"n": 4, "d": 2, "M": 60})),
    "formula": ("rectangular", ("flash2-forward", {})),
    "show": ("rectangular", ("flash2-forward", {})),
    "crossover": ("proofs", ("flash2-forward", {"n": 8, "d": 4})),
    "on_machine": ("search", ("flash2-forward", {"n": 64, "d": 32, "machine": "H200"})),
    "l2": ("contiguous", ("flash2-forward", {"n": 8, "d": 4, "M": 100, "size": 1000})),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["no", 3, 0.0, None])
def test_a_flag_is_true_or_false(name: str, value: Any) -> None:
    """The text "no" was taken for true."""
    flag, (first, sizes) = FLAGS[name]
    with pytest.raises(UsageError, match=f"^{flag} = .* was given; {flag} must be True or False.$"):
        getattr(ps, name)(first, **sizes, **{flag: value})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ps.graph("backward", n=4, d=2, kept=3), "kept = 3 was given; kept must be True or False."),
        (lambda: ps.graph("backward", n=4, d=2, centred="x"), "centred = 'x' was given; centred must be True"),
        (lambda: ps.graph("backward", n=4, d=2, row_block=True), "row_block of T is True, but must be a whole number"),
        (lambda: ps.graph("forward", n=4, d=2, softmax=1), "softmax = 1 was given; softmax must be a text."),
        (lambda: ps.graph("forward", n=4, d=2, absorbed=True), "absorbed = True was given; absorbed must be names."),
        (lambda: ps.graph("forward", n=4, d=2, outputs=3), "outputs = 3 was given; outputs must be names."),
        (lambda: ps.graph("forward-relu", n=4, d=2, activation="sigmoid"), "unexpected keyword argument 'activation'"),
        (lambda: ps.count("no-cache", n=4, d=2, M=999, summation=3), "summation = 3 was given"),
        (lambda: ps.bounds("forward", n=4, d=2, M=60, pairs=1.5), "pairs = 1.5 was given"),
        (lambda: ps.synthetic_head(8, 4, seed=-1), "seed = -1 was given; seed must be a whole number, 0 or more."),
        (lambda: ps.synthetic_head(8, 4, sinks=-1), "sinks = -1 was given"),  # all but one column were sinks
        (lambda: ps.synthetic_head(8, 4, width=0.0), "width = 0.0 was given; width must be a finite number, above 0."),
        (lambda: ps.pebble(ps.generate("fft", n=4), M=6, seed=-1), "seed = -1 was given"),
        (lambda: ps.pebble(ps.generate("fft", n=4), M=6, rounds="x"), "rounds = 'x' was given"),
        (lambda: ps.sweep("no-cache", n=4, d=2, M=999, rules="x"), "rule set"),
        (lambda: ps.sweep("no-cache", n=4, d=2, M=999, dtype="x"), "data type"),
        (lambda: ps.cache("flash2-forward", n=8, d=4, M=100, grain="x"), "grain 'x'"),
        (lambda: ps.cache("flash2-forward", n=8, d=4, M=100, dtype="x"), "data type"),
        (lambda: ps.accesses("flash2-forward", n=8, d=4, M=100, ways=-1), "ways = -1 was given"),
        (lambda: ps.l2("flash2-forward", n=8, d=4, M=100, size=999, at_once=[]), "at_once = .. was given"),
        (lambda: ps.l2("flash2-forward", n=8, d=4, M=100, size=999, at_once=()), "at_once = .. was given"),
        (lambda: ps.l2("flash2-forward", n=8, d=4, M=100, size=999, at_once=None), "at_once = None was given"),
        (lambda: ps.advise("H200", n=64, d=32, blocks="x"), "blocks must be sizes by name or None."),
    ],
)  # fmt: skip
def test_what_is_of_another_kind_is_refused_in_one_sentence(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        call()
    assert "\n" not in str(refusal.value)


SMALL: Any = {"n": 8, "d": 4, "M": 100}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ps.verify("C.9", full=np.ones((8, 8), bool)), "full = array.* must be True or False"),
        (lambda: ps.verify("C.9", progress=1.0), "progress = 1.0 was given; progress must be a function or None"),
        (lambda: ps.show("flash2-forward", rectangular=10**5000), "rectangular = a number of 16,610 bits was given"),
        (lambda: ps.count("flash2-forward", n=8, d=4, M=-(10**5000)), "M = a number of 16,610 bits was given; M must"),
        (lambda: ps.count("flash2-forward", n=np.array([4]), d=4, M=100), "n = array"),
        (lambda: ps.count("flash2-forward", n=int, d=4, M=100), "n = <class 'int'> was given"),
        (lambda: ps.advise("H200", n=64, d=32, batch=np.array(["x"])), "batch = array"),
        (lambda: ps.gaps("forward", n=8, d=4, M=100, schedules=np), "no schedule is called <module 'numpy'"),
        (lambda: ps.bounds([1] * 5000, **SMALL), "problem_name = .{100}… was given; problem_name must be a text"),
        (lambda: ps.list("x" * 5000), "no problem is called 'x{99}…; known"),
        (lambda: ps.formula("flash2-forward", mask="x" * 5000), "mask 'x{99}… is not known"),
        (lambda: ps.glossary("backward", 3), "names = 3 was given; names must be names or None"),
        (lambda: ps.glossary("backward", itertools.repeat("v")), "has more than 10,000,000 values"),
        (lambda: ps.load_head("head.npz"), "sources = 'head.npz' was given; sources must be names"),
        (lambda: ps.load_head(["head.npz"], head=Fraction(4)), "head = .* was given; head must be whole numbers"),
        (lambda: ps.numbers("flash2-forward", **SMALL, inputs=1.0), "inputs = 1.0 .* must be values by name or None"),
        (lambda: ps.backlite(n=8, d=4, limits=1.0), "limits = 1.0 was given; limits must be numbers or None"),
        (lambda: ps.backlite(n=8, d=4, limits=(1.0,)), "limits must be a least cosine and a largest difference"),
        (lambda: ps.crossover("small-cache", n=8, d=4, over_d=Decimal(4)), "over_d must be whole numbers or None"),
        (lambda: ps.cache("flash2-forward", **SMALL, policy=[3]), "policy must be a name, or names"),
        (lambda: ps.cache(ps.generate("fft", n=4), M=8, order={"x": 1}), "order must be the numbers of vertices"),
        (lambda: ps.accesses("flash2-forward", **SMALL, machine=np.zeros(3)), "machine must be a text"),
        (lambda: ps.generate("fft", n=np.zeros((2, 2))), "n = array.*; n must be a whole number, 2 or more"),
        (lambda: ps.referee(3, 4, ()), "graph = 3 was given; graph must be a graph"),
        (lambda: ps.referee(ps.generate("fft", n=4), 4, np.array(4)), "stream must be arrays of moves"),
        (lambda: ps.save_graph("x", "o.hdag"), "graph = 'x' was given; graph must be a graph"),
        (lambda: ps.parse({}), "^{} was given; an expression is a text, a number or one of sympy's"),
        (lambda: ps.decide("n", "O", "n", where=3), "where = 3 was given; where must be values by name or None"),
        (lambda: ps.decide("n", {}, "n"), "relation = {} was given; relation must be a text"),
        (lambda: ps.problem("mine", from_nd=range(9)), "from_nd = range.*; from_nd must be values by name"),
        (lambda: ps.schedule(problem="matmul", source=3), "source = 3 was given; source must be a text"),
    ],
)  # fmt: skip
def test_what_was_a_traceback_is_one_sentence(call: Any, said: str) -> None:
    """Each of these, which a seed drew, ended in an error of Python or of a library, or in a message of pages."""
    with pytest.raises(UsageError, match=said) as refusal:
        call()
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 800


@pytest.mark.slow
def test_drawn_calls_end_with_a_result_or_one_sentence() -> None:
    """Each call of each public function, with arguments of `drawn_calls.ODD` in some places."""
    drawn = subprocess.run(
        [sys.executable, drawn_calls.__file__, "300", str(random.randrange(2**32))],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert json.loads(drawn.stdout)["faults"] == {}


def test_drawn_calls_draw_every_public_function() -> None:
    functions = {name for name in ps.__all__ if inspect.isfunction(getattr(ps, name))}
    inside = {"exp", "log", "maximum", "relu", "rowmax", "rowsum", "sigmoid", "step"}  # a schedule calls these
    assert not inspect.signature(ps.bound_exponent).parameters
    assert functions == {*drawn_calls.CALLS, "bound_exponent"} | inside


@pytest.mark.one_in(2)
def test_numbers_of_numpy_and_paths_are_taken(tmp_path: Any) -> None:
    played = ps.play("flash2-forward", n=np.int64(4), d=2, M=60, strict=np.bool_(True), save=tmp_path / "moves.txt")
    assert played.game.complete and (tmp_path / "moves.txt").exists()
    assert ps.bounds("forward", n=4, d=2, M=60, pairs=np.int64(5)).to_dict()["pairs"] == 5
    sizes: dict[str, Any] = {"n": 8, "d": 4, "M": 100, "size": 1000}
    for heads in (np.int64(4), np.uint64(4)):  # "4 heads" was 4 times an s
        assert "4 heads" in str(ps.devices("ring", P=2, n=8, d=4, heads=heads))
        assert "4 heads" in str(ps.advise("H200", n=64, d=32, heads=heads))
    found = [ps.l2("flash2-forward", at_once=given, **sizes) for given in (2, np.int64(2), np.array([2]))]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("kept=3", "kept = 3 was given; kept must be True or False."),
        ("leave_out=maybe", "leave_out = 'maybe' was given; leave_out must be True or False."),
        ("order=2", "order = 2 was given; order must be a text."),
        ("row_block=true", "row_block of T is True, but must be a whole number of at least 1."),
    ],
)
def test_the_option_of_a_graph_is_of_its_kind(option: str, said: str) -> None:
    """What was given for kept was taken for true."""
    for command in (["graph", "backward"], ["pebble", "backward", "-M", "20"], ["optimum", "backward", "-M", "20"]):
        result = CliRunner().invoke(app, [*command, "-n", "2", "-d", "1", "--option", option])
        assert isinstance(result.exception, UsageError) and str(result.exception) == said


@pytest.mark.one_in(2)
def test_several_names_in_a_row_are_not_flags() -> None:
    assert ps.verify("Lemma C.9", "Theorem D.5").rows
    assert ps.crossover("flash2-forward", "small-cache-forward", n=8, d=4, proofs=False)


def test_every_public_function_with_a_flag_checks_it() -> None:
    for name in ps.__all__:
        function = getattr(ps, name)
        if inspect.isfunction(function) and function.__module__.startswith("pebblesim"):
            flags = [p for p in inspect.signature(function).parameters.values() if str(p.annotation) == "bool"]
            assert not flags or hasattr(function, "__wrapped__"), name
