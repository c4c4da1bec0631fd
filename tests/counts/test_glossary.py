"""The glossary: it knows all that a reader sees, and its formulas are true; and the rules in words."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pebblesim as ps
from pebblesim.api.glossary import glossary, named_in
from pebblesim.api.graph import graph_of
from pebblesim.api.rules_in_words import MOVES, in_words
from pebblesim.cli import main as cli
from pebblesim.core.errors import UnknownName
from pebblesim.counting.run import Run
from pebblesim.game.moves import KINDS
from pebblesim.game.rules import RULES
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.summation import PARTS
from pebblesim.language.problems import PROBLEMS, problem
from pebblesim.language.registry import SCHEDULES, of_problem

Command = Callable[[str], str]


def graphs(name: str) -> Iterator[tuple[str, Cdag]]:
    """The graph of each schedule of a problem, at small sizes, as a chain; of some under a mask."""
    for schedule in of_problem(name):
        sizes = dict.fromkeys(schedule.problem.dims, 2)
        for mask in (None, "window:1") if schedule.maskable else (None,):
            blocks = dict.fromkeys(schedule.blocks, 1)
            yield schedule.name, graph_of(Run.of(schedule, sizes, M=10_000, mask=mask, blocks=blocks))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_every_tensor_of_every_problem_and_schedule_has_an_entry(name: str) -> None:
    solves = PROBLEMS[name]
    seen = {*solves.inputs, *solves.kept, *solves.outputs, *solves.extra}
    kinds = set()
    for _, graph in graphs(name):
        seen |= {family.name for family in graph.families}
        kinds |= {graph.locate(v)[3].kind for v in range(graph.vertices)}
    for schedule in of_problem(name):
        for read_or_written in re.findall(r"(?:read|write) (\w+)", ps.show(schedule)):
            seen.add(read_or_written)
    assert seen == set(solves.glossary), (
        f"give each tensor of {name!r} an entry in its glossary, (formula, meaning), as for matmul in "
        f"pebblesim/catalogue/matmul.py; lacking: {sorted(seen - set(solves.glossary)) or 'none'}, "
        f"of no tensor: {sorted(set(solves.glossary) - seen) or 'none'}"
    )
    assert kinds <= set(PARTS)
    for entry in glossary(name):
        assert (entry.formula == "") == (entry.role == "input"), entry
        assert entry.meaning and not entry.meaning.endswith("."), entry


def test_every_kind_of_vertex_is_met_and_called_as_the_glossary_says() -> None:
    """PARTS has no entry that nothing needs, and its examples are what `describe` says."""
    met: dict[str, str] = {}
    for graph in (
        ps.graph("forward", n=5, d=4, summation="blocked:4"),
        ps.graph("backward", n=4, d=4, order="U", dQ_block=2, summation="balanced"),
        graph_of(Run.of("flash2-forward", {"n": 4, "d": 2}, M=60)),
        graph_of(Run.of("flash2-forward", {"n": 4, "d": 2}, M=60, mask=np.tri(4, 4, -1, dtype=bool))),
    ):
        for v in range(graph.vertices):
            met.setdefault(graph.locate(v)[3].kind, graph.describe(v))
    assert set(met) == set(PARTS)
    for kind, name in met.items():
        example = PARTS[kind][0]  # type: ignore[index]
        behind = re.fullmatch(r"\w+\[[^]]*\](?: \((.*)\))?", name)
        assert behind is not None
        assert re.sub(r"\d+", "0", behind[1] or "") == re.sub(r"\d+", "0", example)


class Matrix:
    """The matrices of formulas, as numpy: `*` is the matrix product, `@` the product entry by entry."""

    def __init__(self, values: Any) -> None:
        self.v = np.asarray(values, float)

    def __mul__(self, other: "Matrix") -> "Matrix":
        return Matrix(self.v @ other.v)

    def __matmul__(self, other: "Matrix") -> "Matrix":
        return Matrix(self.v * other.v)

    def __add__(self, other: "Matrix") -> "Matrix":
        return Matrix(self.v + other.v)

    def __sub__(self, other: "Matrix") -> "Matrix":
        return Matrix(self.v - other.v)

    def __truediv__(self, other: "Matrix") -> "Matrix":
        return Matrix(self.v / other.v)


def evaluated(formula: str, values: dict[str, Any]) -> Any:
    """The value of a formula in mathematical notation."""
    some = next(iter(values.values()))
    names: dict[str, Any] = {
        name: Matrix(value if value.ndim == 2 else value[:, None]) for name, value in values.items()
    }
    names |= {"one_row": Matrix(np.ones((1, len(some)))), "one": Matrix(np.ones((len(some), 1)))}
    names["transpose_of"] = lambda x: Matrix(x.v.T)  # T may be a tensor
    names["exp"], names["log"] = (lambda x: Matrix(np.exp(x.v))), (lambda x: Matrix(np.log(x.v)))
    names["relu"], names["step"] = (lambda x: Matrix(np.maximum(x.v, 0))), (lambda x: Matrix(1.0 * (x.v > 0)))
    names["sigmoid"] = lambda x: Matrix(1 / (1 + np.exp(-x.v)))
    names["rowmax"] = lambda x: Matrix(x.v.max(axis=1, keepdims=True))
    names["softmax"] = lambda x: Matrix(np.exp(x.v) / np.exp(x.v).sum(axis=1, keepdims=True))
    names["diag"], names["inverse"] = (lambda x: Matrix(np.diag(x.v[:, 0]))), (lambda x: Matrix(np.linalg.inv(x.v)))
    text = re.sub(r"\b1ᵀ", "one_row", formula).replace("· 1", "* one").replace("−", "-").replace("∘", "@")
    text = re.sub(r"(\w+)ᵀ", r"transpose_of(\1)", text)
    text = re.sub(r"diag\(([^()]*)\)⁻¹", r"inverse(diag(\1))", text)
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", text)  # a product without a sign
    try:
        return eval(text, {"__builtins__": {}}, names).v
    except NameError as unknown:
        known = sorted(name for name, value in names.items() if callable(value))
        raise AssertionError(f"{formula!r}: {unknown.name} is no tensor, and none of {', '.join(known)}") from None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_formulas_are_true(name: str) -> None:
    """Each graph, evaluated on random inputs, agrees with the formulas of its tensors, where all tiles are whole."""
    solves, tried = PROBLEMS[name], set()
    for schedule in of_problem(name):
        sizes = dict.fromkeys(schedule.problem.dims, 3)  # square, so that ones of one length do
        graph = graph_of(Run.of(schedule, sizes, M=10_000, blocks=dict.fromkeys(schedule.blocks, 3)))
        inputs = solves.random_inputs(sizes, kept=schedule.kept)
        names = [family.name for family in graph.families if family.initial is None and family.blocks == 1]
        values = graph.evaluate(inputs, names)
        values = solves.reference(inputs) | values
        for tensor in names:
            assert tensor in solves.glossary, f"{tensor} has no entry in the glossary of {name!r}"
            formula = solves.glossary[tensor][0]
            used = set(re.findall(r"[^\W\d]\w*", formula.replace("ᵀ", ""))) & set(solves.glossary)
            if not formula or re.search(r"_prev|_block", formula) or not used <= set(values):
                continue
            if tensor in ("A", "AV") and {"m", "m_block", "m_s"} & {family.name for family in graph.families}:
                continue  # the glossary says that these are relative to the maxima then
            expected = evaluated(formula, values)
            assert np.allclose(values[tensor].reshape(expected.shape), expected, rtol=1e-9), (schedule.name, tensor)
            tried.add(tensor)
    assert len(tried) >= min(6, len(set(solves.glossary) - set(solves.inputs)) // 2)


def test_the_rules_in_words_are_those_of_the_tables() -> None:
    for name in RULES:
        lines = in_words(name)
        assert len(lines) == 5
        assert [line.split()[0] for line in lines[:4]] == ["read", "write", "compute", "delete"]
        assert all(len(line) <= 120 for line in lines)
        assert [("1 word" in line) for line in lines[:4]] == [True, True, False, False]
    assert len({in_words(name) for name in RULES}) == len(RULES)  # no two sets of rules read alike
    assert "moves from memory" in in_words("replace")[0] and "is copied" in in_words("hong-kung")[0]
    assert "once only" in in_words("no-recompute")[2] and "term" in in_words("partial")[2]
    assert set(MOVES) == set(range(len(KINDS)))
    with pytest.raises(UnknownName, match="rule set"):
        in_words("hong")


def test_a_pseudo_code_names_tensors_by_their_tiles() -> None:
    text = "read S[i, k] as S_ik\nv ← 0\nf_ij ← diag(l)⁻¹ A_ij\nwrite nothing"
    assert [entry.name for entry in named_in(text, problem("backward"))] == ["S", "v", "f", "l", "A"]
    assert glossary("backward", ["p", "who"])[0].name == "p"


def test_shapes_are_in_the_dimensions_that_are_shown() -> None:
    assert glossary("backward", ["A1"])[0].shape == ("n_q", "d")
    assert glossary(problem("backward"), ["A1"])[0].shape == ("n", "d")


def test_a_problem_without_a_glossary_has_none() -> None:
    with PROBLEMS.temporary():
        problem("bare", dims=("n",), from_nd={"n": "n"}, inputs={"x": ("n",)}, outputs={"y": ("n",)}, values=dict,
                source="mine")  # fmt: skip
        assert glossary("bare") == ()


@pytest.mark.parametrize("name", ["small-cache", "flash2-forward"])
def test_show_explains_what_it_prints(name: str, run: Command) -> None:
    text, _, where = run(f"show {name}").partition("\nwhere\n")
    listed = {line.split()[0] for line in where.splitlines()}
    assert listed >= set(SCHEDULES[name].inputs)
    assert all(re.search(rf"\b{each}(?:_\w+)?\b", text) for each in listed)


@pytest.mark.parametrize(
    "line",
    [
        "play small-cache -n 4 -d 2 -M 24",
        "optimum matmul --size m=1 --size k=1 --size n=1 -M 3 --wide",
        "pebble matmul --size m=1 --size k=1 --size n=1 -M 3 --seconds 0 --wide",
        "glossary matmul",
    ],
)
def test_the_rules_stand_wherever_a_game_is_shown(line: str, run: Command) -> None:
    assert "\n".join(f"  {rule}" for rule in in_words()) in run(line)
    if line.startswith("play"):
        assert "\n".join(f"  {rule}" for rule in in_words("replace")) in run(f"{line} --rules replace")


def test_the_glossary_as_json(run: Command) -> None:
    printed = json.loads(run("glossary matmul --json"))
    assert printed["tensors"][2] == {
        "name": "C", "role": "output", "shape": ["m", "n"], "formula": "A B",
        "meaning": "the result: the product of two matrices",
    }  # fmt: skip
    assert set(printed["parts"]) == set(PARTS) and printed["rules"] == list(in_words())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The output of a command."""

    def run(line: str) -> str:
        monkeypatch.setattr(sys, "argv", ["pebblesim", *line.split()])
        with contextlib.suppress(SystemExit):
            cli.main()
        return capsys.readouterr().out

    return run
