"""Schedules that are registered nowhere: every public function takes them, and what it returns never looks them up."""

import inspect
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import pebblesim as ps
from pebblesim.core.results import Result
from pebblesim.language.registry import SCHEDULES, get, get_all

SIZES: dict[str, Any] = {"n": 8, "d": 2, "M": 40}

CALLS: dict[str, Callable[..., object]] = {
    "accesses": lambda one, other: ps.accesses(one, **SIZES),
    "bounds": lambda one, other: ps.bounds(schedule=one, **SIZES),
    "cache": lambda one, other: ps.cache(one, **SIZES),
    "compare": lambda one, other: ps.compare(schedules=[one, other], **SIZES),
    "count": lambda one, other: ps.count(one, heads=2, **SIZES),
    "crossover": lambda one, other: ps.crossover(one, other, n=8, d=2, over_d=(2,)),
    "crossover along n": lambda one, other: ps.crossover(one, other, n="4:8:x2", d=2, M=40),
    "formula": lambda one, other: ps.formula(one),
    "gaps": lambda one, other: ps.gaps(schedules=[one], **SIZES),
    "l2": lambda one, other: ps.l2(one, order="head-first", at_once=2, size=512, **SIZES),
    "numbers": lambda one, other: ps.numbers(one, **SIZES),
    "on_machine": lambda one, other: ps.on_machine(one, machine="H100", n=8, d=2),
    "play": lambda one, other: ps.play(one, **SIZES),
    "record": lambda one, other: ps.record(one, **SIZES),
    "show": lambda one, other: ps.show(one),
    "sweep": lambda one, other: ps.sweep([one, other], n=(4, 8), d=2, M=40),
}
"""Calls by the name of the function, each with two schedules."""


def takes_schedules(name: str) -> bool:
    made = getattr(ps, name)
    return inspect.isfunction(made) and any(
        "Schedule" in str(each.annotation) for each in inspect.signature(made).parameters.values()
    )


def test_every_function_that_takes_schedules_is_here() -> None:
    assert {each.partition(" ")[0] for each in CALLS} == {name for name in ps.__all__ if takes_schedules(name)}


def drawn(made: Result) -> list[str]:
    """The texts of a picture; nothing for results that have none."""
    try:
        figure = made.plot(Figure(layout="constrained"))
    except ps.UsageError as error:
        assert "there is no picture of results such as" in str(error)
        return []
    figure.draw_without_rendering()
    return [each.get_text() for each in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def seen_of(made: Any, folder: Path) -> list[object]:
    """A result in every form: printed, as data, as a table, as a picture, in a file."""
    forms: list[object] = [str(made), repr(made)]
    for name in ("to_dict", "to_frame", "latex", "_repr_html_", "summary", "notes"):
        if callable(form := getattr(made, name, None)):
            forms.append(str(form()))
    if callable(parts := getattr(made, "parts", None)) and "wide" in inspect.signature(parts).parameters:
        forms += [str(parts(wide=wide)) for wide in (False, True)]
    if isinstance(made, Result):
        forms += [str(made.records()), drawn(made)]
    if hasattr(made, "save"):
        made.save(folder / "rows.csv")
        forms.append((folder / "rows.csv").read_text())
    return forms


@pytest.mark.one_in(6)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_said_of_a_schedule_does_not_depend_on_whether_it_is_registered(call: str, tmp_path: Path) -> None:
    """Twins of built-in schedules, first registered, then not: their results are the same in every form."""
    one, other = (replace(get(name), name=f"twin-of-{name}", known_as=None) for name in ("small-cache", "flash"))
    with SCHEDULES.temporary():
        SCHEDULES.update({each.name: each for each in (one, other)})
        known = seen_of(CALLS[call](one, other), tmp_path)
    assert one.name not in SCHEDULES
    made = CALLS[call](one, other)
    assert str(seen_of(made, tmp_path)) == str(known)
    if isinstance(made, Result):
        assert str(pickle.loads(pickle.dumps(made))) == str(made)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("call", CALLS)
def test_no_result_is_about_a_registered_schedule_of_the_same_name(call: str, tmp_path: Path) -> None:
    """Another algorithm under the name of a built-in one is printed and drawn as itself, not as the built-in one."""
    one, other = (replace(get(name), name="mine", source="somebody") for name in ("small-cache", "large-cache"))
    mine = str(seen_of(CALLS[call](one, get("flash")), tmp_path))
    with SCHEDULES.temporary():
        SCHEDULES["mine"] = other
        assert str(seen_of(CALLS[call](one, get("flash")), tmp_path)) == mine


def test_the_best_schedule_without_P_is_named_though_it_is_not_registered() -> None:
    names = "kept-dS-tiled", "small-cache-backward-streamed"
    one, other = (replace(get(name), name=f"twin-of-{name}") for name in names)
    text = str(ps.compare(schedules=[one, other], n=64, d=32, M=64))
    assert "twin-of-kept-dS-tiled reads P, which the forward pass must have saved" in text
    assert "of the others twin-of-small-cache-backward-streamed moves the fewest words, 228,672" in text


def test_schedules_of_one_name_are_refused_unless_they_are_the_same() -> None:
    other = replace(get("flash"), name="small-cache")
    assert get_all(["small-cache", replace(get("small-cache"))]) == [get("small-cache")]
    for call in (
        lambda: ps.compare(schedules=["small-cache", other], **SIZES),
        lambda: ps.sweep(["small-cache", other], **SIZES),
        lambda: ps.crossover("small-cache", other, n=8, d=2),
        lambda: ps.crossover("small-cache", "large-cache", other, "flash", n=8, d=2),
    ):
        with pytest.raises(ps.UsageError, match="two different schedules that were given are called 'small-cache'"):
            call()


def test_other_processes_get_the_schedule_that_was_given() -> None:
    """They looked it up by its name: there was none, or it was another algorithm."""
    one = replace(get("small-cache"), name="mine")
    under_its_name = replace(get("flash"), name="large-cache")
    for given in (one, under_its_name, one.in_dims(("n_q", "n_k", "d_k", "d_v"))):
        assert pickle.loads(pickle.dumps(given)) == given
    table = ps.sweep([one, under_its_name], what="play", jobs=2, **SIZES)
    assert table.columns["io"] == [ps.count(name, **SIZES).io for name in ("small-cache", "flash")]
