"""Completion in a shell: each option and argument of a closed set, with exactly the values that it takes."""

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
import typer

from pebblesim.advice.cards import cards
from pebblesim.cachesim.l2 import order_of
from pebblesim.cli import main as cli
from pebblesim.cli.options import _converted
from pebblesim.dags.generators import GENERATORS
from pebblesim.game.rules import RULES
from pebblesim.language import masks
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES

GROUP: Any = typer.main.get_command(cli.app)

OPEN = {
    # sizes and other numbers
    "-n", "-d", "-M", "-P", "--size", "--block", "--heads", "--kv-heads", "--batch", "--at-once", "--seconds", "--seed",
    "--memory", "--states", "--pairs", "--steps", "--at", "--points", "--peak", "--bandwidth", "--jobs", "--workers",
    "--threads", "--line", "--ways", "--l2", "--chiplets", "--scale", "--workspace", "--head", "--epsilon",
    "--warps", "--stages", "--machine", "--threshold", "--cosine", "--shared",
    # names of one's own, several names at once, and what a graph's builder takes, which differs from problem to problem
    "--name", "--below", "plot race --card", "--option", "--dask", "--command", "--inputs", "--without", "claims",
    "search --kept", "search --word-bytes", "explain model",
}  # fmt: skip


Complete = Callable[..., list[str]]


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """(words, command) for each that can be called."""
    for each, found in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {each}", found)
    if not hasattr(command, "commands"):
        yield name, command


NOWHERE = SimpleNamespace()  # no command looks at the context that it is found in
ALL = {words: found for name in cli.HOMES for words, found in commands(name, GROUP.get_command(NOWHERE, name))}


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """The words that bash gets when it asks, the whole way."""

    def complete(*words: str, typed: str = "") -> list[str]:
        line = ["pebblesim", *" ".join(words).split()]
        monkeypatch.setenv("_PEBBLESIM_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join([*line, typed]))
        monkeypatch.setenv("COMP_CWORD", str(len(line)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.app(prog_name="pebblesim")
        assert not end.value.code
        return capsys.readouterr().out.split()

    return complete


@pytest.mark.one_in(3)
@pytest.mark.parametrize("words", sorted(ALL))
def test_what_takes_one_of_a_closed_set_is_completed(words: str, completed: Complete) -> None:
    before: list[str] = []
    asked = inspect.signature(ALL[words].callback).parameters
    for parameter in ALL[words].params:
        of_option = parameter.param_type_name == "option"
        names = {*parameter.opts} if of_option else {parameter.name}
        names |= {f"{words} {name}" for name in names}
        of_files = "Path" in str(asked[parameter.name].annotation) if parameter.name in asked else False
        closed = not (getattr(parameter, "is_flag", False) or of_files or names & OPEN)
        if closed:
            assert completed(words, *before, *(parameter.opts[:1] if of_option else [])), (words, names)
        if not of_option:
            before.append("x")  # arguments are completed in their order


def test_values_are_those_that_are_taken(completed: Complete) -> None:
    assert completed("count --blocks") == ["fit", "paper", "best"]
    assert set(completed("play --rules")) == set(RULES) - {"partial"}
    assert set(completed("pebble --rules")) == set(completed("judge --rules")) == set(RULES)
    assert set(completed("optimum --rules")) == set(RULES) - {"replace"}
    assert set(completed("advise --gpu")) == set(cards())
    assert set(completed("show")) == set(SCHEDULES)
    assert set(completed("glossary")) == set(PROBLEMS)
    assert set(completed("watch")) == {*SCHEDULES, *PROBLEMS, *GENERATORS}
    assert completed("gpu emit --target") == ["cuda", "triton", "gluon", "package"]
    assert completed("formula --mask", typed="a") == ["any"]
    assert completed("cache small-cache --policy", typed="lru,o") == ["lru,opt"]
    assert completed("show", typed="small-cache-forward-s") == [
        name for name in SCHEDULES if name.startswith("small-cache-forward-s")
    ]
    for value in completed("count --order"):
        order_of(value + "1" * value.endswith(":"))
    for value in set(completed("count --mask")) - {"bigbird:"}:
        masks.of(value + "1" * value.endswith(":"))
    masks.of("bigbird:1:1:1:1")


@pytest.mark.parametrize("words", sorted(ALL))
def test_a_number_reaches_each_option_as_one(words: str) -> None:
    command: Any = ALL[words]
    hints = get_type_hints(command.callback, include_extras=True)
    for parameter in command.params:
        if parameter.name not in hints:  # those of every command
            continue
        asked, info = get_args(hints[parameter.name])
        for kind in {int, float} & {asked, *get_args(asked)}:
            for text in ("1", "-1"):
                try:
                    assert type(_converted(text, hints[parameter.name])) is kind, (words, parameter.name)
                except ValueError as refusal:
                    assert info.min is not None and f"'{text}' is not a " in str(refusal)
