"""What `pebble`, `optimum` and `judge` save, advise and say, and which part of a search the clock counts."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pebblesim as ps
from pebblesim.cli import dags as commands, main as cli
from pebblesim.dags import search
from pebblesim.dags.best_order import BestOrder
from pebblesim.game.moves import load
from pebblesim.graphs.cdag import Cdag

least = import_module("pebblesim.dags.optimum")
PYRAMID = "pyramid --size rows=4 -M 3"


def run(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints."""
    monkeypatch.setattr(sys, "argv", ["pebblesim", *line.split()])
    capsys.readouterr()
    try:
        cli.main()
    except SystemExit as end:
        assert end.code in (0, 1, None), capsys.readouterr().err
    return capsys.readouterr().out


class NobodyReads(Exception):
    """As where a pipe is closed."""


@pytest.mark.parametrize("command", [f"pebble {PYRAMID} --steps 1", f"optimum {PYRAMID} --seconds 5"])
@pytest.mark.parametrize("form", ["", " --json"])
def test_a_game_is_saved_although_nobody_reads_the_output(
    command: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise NobodyReads

    for printing in ("say", "print_json"):
        monkeypatch.setattr(commands, printing, closed)
    with pytest.raises(NobodyReads):
        run(f"{command}{form} --save {tmp_path}/game.npy", capsys, monkeypatch)
    assert ps.judge(ps.generate("pyramid", rows=4), load(tmp_path / "game.npy"), M=3).complete


def test_a_result_is_printed_although_its_game_cannot_be_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise ps.UsageError("no space is left.")

    monkeypatch.setattr("pebblesim.dags.judging.save_game", full)
    monkeypatch.setattr(sys, "argv", f"pebblesim pebble {PYRAMID} --steps 1 --save {tmp_path}/game.npy".split(" "))
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert "I/O       11 words" in printed.out and "written  " not in printed.out
    assert "no space is left" in printed.err


class Clock:
    """A clock that goes on by a tick at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.01
        return self.now


def slow(clock: Clock) -> object:
    """A function that compiles for a hundred seconds, the first time that it is called."""

    def compiled(*_: object) -> None:
        clock.now += 100.0 * (clock.now < 100)

    return compiled


@pytest.mark.parametrize("what", ["compile_search", "compile_bounds"])
def test_a_search_has_its_seconds_behind_what_is_compiled(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rounds = Clock(), list[int]()
    graph = ps.generate("fft", n=16)
    ps.pebble(graph, M=4, steps=1, seconds=0)
    monkeypatch.setattr(BestOrder, "round", lambda *_: rounds.append(1))
    for module in ("search", "best_order"):
        monkeypatch.setattr(f"pebblesim.dags.{module}.time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(search, what, slow(clock))
    found = ps.pebble(graph, M=4, seconds=5)
    assert clock.now > 100  # it was called
    assert len(rounds) == 100 and found.seconds < 5


def test_a_proof_has_its_seconds_behind_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, graph = Clock(), ps.generate("pyramid", rows=5)
    ps.optimum(graph, M=3, states=10)
    monkeypatch.setattr(least, "_compile", slow(clock))
    for module in ("optimum", "optimum_states"):
        monkeypatch.setattr(f"pebblesim.dags.{module}.time", SimpleNamespace(monotonic=clock.monotonic))
    found = ps.optimum(graph, M=3, seconds=5)
    assert found.seconds < 5 and clock.now > 100 and found.proven


SIGNATURES = """
import gc, sys
from importlib import import_module
from numba.core.dispatcher import Dispatcher
import pebblesim as ps
from pebblesim.dags import search
def compiled():
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {(each.py_func.__module__, each.py_func.__name__, str(s)) for each in kernels for s in each.signatures}
rules = sys.argv[1]
search.compile_search(rules)
search.compile_bounds(rules)
before = compiled()
for graph, M in ((ps.generate("fft", n=64), 16), (ps.generate("matmul", n=6), 8), (ps.generate("tree", depth=5), 4)):
    ps.pebble(graph, M=M, rules=rules, seconds=0.5)
print(len(before), sorted(compiled() - before))
if rules != "replace":
    import_module("pebblesim.dags.optimum")._compile(rules)
    before = compiled()
    ps.optimum(ps.generate("fft", n=8), M=4, rules=rules, states=5000)
    print(len(before), sorted(compiled() - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["hong-kung", "no-recompute", "replace", "partial"])
def test_a_search_calls_nothing_that_is_not_compiled_before(rules: str) -> None:
    done = subprocess.run([sys.executable, "-c", SIGNATURES, rules], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + (rules != "replace")
    for line in lines:
        number, new = line.split(" ", 1)
        assert int(number) > 10 and new == "[]"


def words_on(graph: Cdag, M: int) -> str:
    return str(ps.pebble(graph, M=M, rules="no-recompute", steps=1, seconds=0))


def test_optimum_is_advised_only_where_it_searches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "`optimum` may narrow the gap" in words_on(ps.generate("pyramid", rows=7), 3)
    assert "weak" in (said := words_on(ps.generate("pyramid", rows=75), 4)) and "optimum" not in said
    weighted = Cdag.from_edges(10, ps.generate("pyramid", rows=4).pairs(), weights=[2] * 10)
    ps.save_graph(weighted, tmp_path / "w.hdag")
    for line in (f"pebble {PYRAMID} --steps 1 --rules replace", f"pebble {tmp_path}/w.hdag -M 6 --steps 1"):
        assert "gap       1.000" not in (out := run(line, capsys, monkeypatch)) and "optimum" not in out
    assert "`pebblesim optimum`" in run(f"pebble {PYRAMID} --steps 1", capsys, monkeypatch)


def test_an_interval_says_where_a_better_game_may_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "`pebblesim pebble` searches for a better game alone"
    assert said in run("optimum fft -n 8 -M 3 --states 50", capsys, monkeypatch)
    assert said not in run(f"optimum {PYRAMID}", capsys, monkeypatch)


def test_the_rules_are_printed_if_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in (f"pebble {PYRAMID} --steps 1", f"optimum {PYRAMID}"):
        short, wide = (run(line + more, capsys, monkeypatch) for more in ("", " --wide"))
        assert "rules of the game (hong-kung)" in wide and "delete   a value leaves" in wide
        assert "delete   a value leaves" not in short
        assert short.splitlines()[-1] == "(--wide adds: the rules of the game)"


def test_judge_says_that_a_game_does_not_store_its_rules(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    game, said = tmp_path / "game.npy", "does not store its rules"
    run(f"pebble {PYRAMID} --rules partial --steps 1 --save {game}", capsys, monkeypatch)
    assert said in run(f"judge pyramid --size rows=4 {game} -M 3", capsys, monkeypatch)
    legal = run(f"judge pyramid --size rows=4 {game} -M 3 --rules partial", capsys, monkeypatch)
    assert "legal and complete" in legal and said not in legal
    np.save(game, load(game)[:3])
    assert said not in run(f"judge pyramid --size rows=4 {game} -M 3 --rules partial", capsys, monkeypatch)
