"""Arguments of another kind than a function or an option asks for: one sentence, and no value taken for true."""

import inspect
from typing import Any

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


def test_numbers_of_numpy_and_paths_are_taken(tmp_path: Any) -> None:
    import numpy as np

    played = ps.play("flash2-forward", n=np.int64(4), d=2, M=60, strict=np.bool_(True), save=tmp_path / "moves.txt")
    assert played.game.complete and (tmp_path / "moves.txt").exists()
    assert ps.bounds("forward", n=4, d=2, M=60, pairs=np.int64(5)).to_dict()["pairs"] == 5
    sizes: dict[str, Any] = {"n": 8, "d": 4, "M": 100, "size": 1000}
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


def test_several_names_in_a_row_are_not_flags() -> None:
    assert ps.verify("Lemma C.9", "Theorem D.5").rows
    assert ps.crossover("flash2-forward", "small-cache-forward", n=8, d=4, proofs=False)


def test_every_public_function_with_a_flag_checks_it() -> None:
    for name in ps.__all__:
        function = getattr(ps, name)
        if inspect.isfunction(function) and function.__module__.startswith("pebblesim"):
            flags = [p for p in inspect.signature(function).parameters.values() if str(p.annotation) == "bool"]
            assert not flags or hasattr(function, "__wrapped__"), name
