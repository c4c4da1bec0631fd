"""Command lines that once ended with a traceback, were ignored in part, or said nothing; and lines drawn by a seed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from checkout import ROOT
from command import Pebblesim
from drawn_lines import (
    CARD,
    OWN,
    RECORD,
    SMALL,
    Ran,
    all_commands,
    documented,
    every_option,
    faults,
    named,
    options_of,
    parsed,
)

import pebblesim as ps
from pebblesim.cli.dags import GraphChoice
from pebblesim.core.errors import LeftOut, UsageError
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES
from pebblesim.sparse_backward.inputs import load_head

RECTANGLE = "--size n_q=8 --size n_k=4 -d 4"
WHY = "output O has shape (n_q, d_v), not (n_q, d_k)."


# -- a schedule for squares beside problems that are not square ------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(
    "line",
    [
        f"count -p forward-sigmoid {RECTANGLE} -M 100",
        f"count -p forward-sigmoid {RECTANGLE} -M 100 --mask causal",
        "count -p forward-sigmoid -n 8 -d 4 -M 100 --heads 4 --kv-heads 2",  # two heads are one, with twice the queries
        f"gaps -p forward-sigmoid {RECTANGLE} -M 100",
        f"bounds -p forward-sigmoid {RECTANGLE} -M 100",
        f"sweep -p forward-sigmoid {RECTANGLE} -M 100",
        "sweep -p forward-sigmoid -n 8 -d 4 -M 100 --kv-heads 2 --heads 4",
        f"advise -p forward-sigmoid {RECTANGLE} --gpu H200",
        f"search forward-sigmoid {RECTANGLE} -M 100",
        f"plot words -p forward-sigmoid {RECTANGLE} -M 100 -o o.png",
        pytest.param("explore forward-sigmoid -o o.html", marks=pytest.mark.slow),
    ],
)
def test_a_schedule_for_squares_is_left_out_and_named(line: str, own: Path, pebblesim: Pebblesim) -> None:
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        ran = pebblesim(f"--load {own} {line}")
    assert ran.code == 0, ran.err
    notes = [each for each in ran.err.splitlines() if each.startswith("note: ")]
    if not line.startswith("bounds"):  # which looks at schedules only to hold own bounds against them
        assert notes == [f"note: in-rows is left out: {own}:8: {WHY}"]
    assert " in-rows" not in ran.out


def test_a_schedule_for_squares_is_counted_in_squares_and_refused_by_its_name(own: Path, pebblesim: Pebblesim) -> None:
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        ran = pebblesim(f"--load {own} count -p forward-sigmoid -n 8 -d 4 -M 100")
        assert (ran.code, ran.err) == (0, "") and " in-rows" in ran.out
        ran = pebblesim(f"--load {own} count in-rows {RECTANGLE} -M 100")
        assert (ran.code, ran.err) == (2, f"error: {own}:8: {WHY}\n")


def test_a_schedule_that_was_found_for_squares_is_left_out_as_well() -> None:
    with SCHEDULES.temporary():
        found = ps.search("forward-sigmoid", n=8, d=4, M=60)
        if not found.new:
            pytest.skip("the catalogue has a better one")
        with pytest.warns(LeftOut, match=f"^{found.schedule.name} is left out: "):
            rows = ps.compare("forward-sigmoid", n_q=8, n_k=4, d=4, M=60)
    assert len(rows) > 3 and found.schedule.name not in {row.schedule for row in rows}


def test_a_problem_without_a_schedule_is_one_sentence(own: Path, pebblesim: Pebblesim) -> None:
    own.write_text(
        "from pebblesim.language.problems import problem\n"
        "problem('twice', dims=('n', 'd'), from_nd={'n': 'n', 'd': 'd'}, inputs={'A': ('n', 'd')},\n"
        "        outputs={'B': ('n', 'd')}, values=lambda x: {'B': 2 * x['A']}, source='mine')\n"
    )
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        for line in ("count", "gaps", "sweep", "advise --gpu H200"):
            ran = pebblesim(f"--load {own} {line} -p twice -n 8 -d 4{'' if 'gpu' in line else ' -M 9'}")
            assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
            assert "problem 'twice' has no schedule" in ran.err


# -- one sentence instead of a traceback, and no option ignored ------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("devices -n 8 -d 2 -P 4 --ownership nope", "no ownership is called 'nope'; known: contiguous, "),
        ("devices -n 8 -d 2 -P 4 --ownership=", "no ownership is called ''"),
        ("devices -n 8 -d 2 -P 4 --inside nonsense", "--inside is for times; give a card, too, with --gpu."),
        ("devices -n 8 -d 2 -P 4 --machine 1 --between x", "--machine and --between are for times;"),
        ("play flash -n 6 -d 2 -M 60 --dtype complex64", "no data type is called 'complex64'; known: "),
        ("play flash -n 6 -d 2 -M 60 --dtype bf16", "M = '60' is in words, and dtype bf16 changes nothing here;"),
        ("optimum fft -n 4 -M 4 --dtype nope", "no data type is called 'nope'"),
        ("optimum fft -n 4 -M 4 --dtype bf16", "dtype bf16 changes nothing here"),
        ("bounds -n 8 -d 2 --dtype bf16", "--dtype is the type of the words in -M; add -M in bytes"),
        ("gaps -n 8 -d 2 --dtype bf16", "--dtype is the type of the words in -M; add -M in bytes"),
        ("sweep -s flash -n 8 -d 2 -M 60 --dtype bf16", "dtype bf16 changes nothing here"),
        ("backlite -n 10^9 -d 8", "n = 1,000,000,000 is too large to run on arrays; n may be at most 16,384."),
        ("backlite -n 200 -d 2^40", "the arrays of such a head take "),
        ("gpu measure --command true -n 8", "--command measures a program of your own;"),
        ("pebble  -M 4", "Missing argument"),
        *(
            (f"{command} matmul -n 2 -d 2 --mask causal{' -M 4' * (command != 'graph')}", "has no pairs of queries")
            for command in ("graph", "pebble", "optimum")
        ),
        ("sweep -s flash -n 8 -d 2 -M 60,90 --store s.sqlite --dask nowhere", "no Dask scheduler answers at 'nowhere'"),
        ("plot roofline --gpu nope.toml -n 8 -d 4 -o o.png", "card 'nope.toml' cannot be read: No such file"),
    ],
)  # fmt: skip
def test_what_was_ignored_or_a_traceback_is_one_sentence(
    line: str,
    says: str,
    pebblesim: Pebblesim,
    tmp_path: Path,
) -> None:
    ran = pebblesim(line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("error: ") and says in ran.err
    assert not list(tmp_path.iterdir())


def kinds_of(command: Any) -> dict[str, set[type]]:
    """The types that a command asks for, by parameter."""
    hints = get_type_hints(command.callback, include_extras=True)
    parts = {name: (kind, *get_args(kind)) for name, hint in hints.items() for kind in get_args(hint)[:1]}
    return {name: {leaf for part in each for leaf in (part, *get_args(part))} for name, each in parts.items()}


@pytest.mark.one_in(3)
def test_functions_get_the_types_that_they_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all lines, and with a value for each option that is no flag; Typer would use pydantic for it."""
    monkeypatch.chdir(tmp_path)
    commands = all_commands()
    seen: set[type] = set()
    for text in SMALL:
        line = parsed(text, commands)
        if line is None or line.before:
            continue
        command, asked = commands[line.command], kinds_of(commands[line.command])
        for option in (None, *options_of(command)):
            if option is not None and (option.is_flag or option.name not in asked):
                continue
            given = [each for each in line.options if option is None or each[0] not in option.opts]
            given += [(option.opts[0], "3.5" if float in asked[option.name] else "3")] if option else []
            context = command.make_context("", replace(line, options=given).argv[len(line.command.split()) :])
            for name, value in context.params.items():
                for each in value if isinstance(value, list | tuple) else [value]:
                    assert type(each) in asked[name] or (isinstance(each, Path) and Path in asked[name]), (text, name)
                    seen.add(type(each))
            if option is not None and float in asked[option.name]:
                assert context.params[option.name] == 3.5
    assert {int, float, str, bool} < seen and any(issubclass(each, Path) for each in seen)


@pytest.mark.one_in(2)
def test_every_option_that_takes_a_number_quotes_what_it_was_given(pebblesim: Pebblesim) -> None:
    commands = all_commands()
    lines = {line.command: line for text in SMALL if (line := parsed(text, commands)) and not line.before}
    tried = []
    for words, line in lines.items():
        asked = kinds_of(commands[words])
        for option in options_of(commands[words]):
            kinds = asked.get(option.name, set())
            if not {int, float} & kinds:
                continue
            what = "a number" if float in kinds else "a whole number"
            for value in ("x3", "0x10", "1_0", *(["1e3", "-9.5", "٣"] if int in kinds else [])):
                made = replace(line, options=[each for each in line.options if each[0] not in option.opts])
                made.options.append((option.opts[0], value))
                ran = pebblesim(" ".join(made.argv))
                assert ran.code == 2 and ran.out == ""
                names = " / ".join(map(repr, option.opts))
                assert ran.err.startswith(f"error: Invalid value for {names}: {value!r} is not {what}")
                assert "; for example: pebblesim " in ran.err and ran.err.count("\n") == 1
            tried.append(option.opts[0])
    assert len(tried) > 40 and {"--heads", "--seed", "--steps", "--points", "--threads", "--jobs"} <= {*tried}


def test_the_type_of_a_word_is_taken_where_it_says_something(pebblesim: Pebblesim) -> None:
    for line in ("count flash -n 8 -d 2 -M 60 --dtype bf16", "play flash -n 6 -d 2 -M 120B --dtype bf16",
                 "sweep -s flash -n 8 -d 2 -M 60 --dtype bf16 --heads 2",
                 "cache flash -n 8 -d 2 -M 60 --dtype bf16 --line 4B"):  # fmt: skip
        assert pebblesim(line).code == 0, line


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "line",
    ["plot words small-cache -n 2^70 -d 4 -M 300", "plot skislope flash -n 2^70 -d 4 -M 256:300 --points 2",
     "plot roofline -n 2^70 -d 4 --gpu A100", "devices -n 2^70 -d 4 -P 4",
     pytest.param("crossover flash small-cache -n 2^70 -d 4", marks=pytest.mark.slow)],
)  # fmt: skip
def test_words_beyond_64_bits_are_drawn(line: str, pebblesim: Pebblesim, tmp_path: Path) -> None:
    ran = pebblesim(f"{line} -o o.png")
    assert ran.code == 0, ran.err
    assert (tmp_path / "o.png").stat().st_size > 2000


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "line",
    ["gaps forward -M 32:2k --points 2", "gaps backward-qkv -M 60,300 --without E2",
     "gaps forward -M 60,300 --without flash2-forward,C4", "skislope flash2-forward -M 60,300",
     "words small-cache-forward flash2-forward -M 300"],
)  # fmt: skip
def test_rectangles_are_drawn(line: str, pebblesim: Pebblesim, tmp_path: Path) -> None:
    ran = pebblesim(f"plot {line} --size n_q=5 --size n_k=24 --size d_k=4 --size d_v=3 -o o.png")
    assert ran.code == 0, ran.err
    assert (tmp_path / "o.png").stat().st_size > 2000


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "line",
    ["sweep -s flash -n 24 -d 4 -M {}", "cache flash2-forward -n 24 -d 4 -M {}", "gaps -n 24 -d 4 -M {}",
     "plot gaps forward -n 24 -d 4 -M {} -o o.png", "plot skislope flash -n 24 -d 4 -M {} -o o.png"],
)  # fmt: skip
def test_words_and_bytes_are_mixed_in_a_list(line: str, pebblesim: Pebblesim, tmp_path: Path) -> None:
    """The type is of use where some of the sizes are in bytes; where all are in words, it is refused."""

    def run(sizes: str) -> tuple[int, str, str, bytes]:
        listed = " -M ".join(sizes.split(",")) if line.startswith("gaps") else sizes
        ran = pebblesim(line.format(listed))
        picture = tmp_path / "o.png"
        return ran.code, ran.out, ran.err, picture.read_bytes() if picture.exists() else b""

    mixed, words = run("60,4KiB --dtype float32"), run("60,1024")
    assert mixed == words and mixed[0] == 0, mixed[2]
    assert run("60,2KiB --dtype bf16") == words
    code, _, err, _ = run("60,1024 --dtype float32")
    assert code == 2 and "dtype float32 changes nothing here" in err


@pytest.mark.parametrize("command", ["count flash2-forward -M 300", "advise --gpu H200", "play flash2-forward -M 300"])
def test_heads_are_counted_apart_only_where_some_are_shared(command: str, pebblesim: Pebblesim) -> None:
    for heads in ("", "--heads 4", "--batch 2"):
        ran = pebblesim(f"{command} -n 24 -d 4 {heads} --separate")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == (
            "error: --separate is for heads that share keys and values; say how many, with --kv-heads.\n"
        )


@pytest.mark.one_in(6)
def test_errata_that_are_written_are_named(pebblesim: Pebblesim, tmp_path: Path) -> None:
    ran = pebblesim("verify --errata B=0")
    assert (ran.code, ran.out) == (0, "written B=0\n")
    assert (tmp_path / "B=0").read_text(encoding="utf-8") == (ROOT / "docs" / "ERRATA.md").read_text(encoding="utf-8")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["play", "watch", "sweep --what play -s"])
def test_a_block_beyond_all_integers_is_the_whole_dimension(command: str, pebblesim: Pebblesim) -> None:
    line = f"{command} flash -n 6 -d 2 -M 60 --block B_c={{}}{' -o o.html' if command == 'watch' else ''}"
    huge, whole = (pebblesim(line.format(size)) for size in ("2^100", "6"))
    assert huge.code == whole.code == 0, huge.err
    assert huge.out.replace(f"{2**100:,}", "6").replace(f"{2**100}", "6").split() == whole.out.split()


def test_an_empty_name_is_no_folder_and_a_family_alone_shows_its_help(pebblesim: Pebblesim) -> None:
    assert pebblesim("gpu").code == 2
    ran = pebblesim("gpu")
    assert "gpu [OPTIONS] COMMAND" in ran.out + ran.err and "error" not in ran.err
    with pytest.raises(UsageError, match=r"^no file, generator or problem is called ''; known: "):
        GraphChoice().graph("")


def test_a_search_that_saves_nothing_says_so_and_fails(pebblesim: Pebblesim, tmp_path: Path) -> None:
    line = "search matmul --size m=6 --size k=5 --size n=4 -M 1000 --save x.py"
    for more in ("", " --json"):
        ran = pebblesim(f"{line}{more}")
        assert ran.code == 1 and "\nx.py is not written: " in f"\n{ran.err}"
        assert ran.out and not list(tmp_path.iterdir())


def test_a_file_that_cannot_hold_the_game_is_refused_before_the_search(
    pebblesim: Pebblesim,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def searched(*_: object, **__: object) -> None:
        raise AssertionError("it was searched")

    monkeypatch.setattr(ps, "pebble", searched)
    monkeypatch.setattr(ps, "optimum", searched)
    monkeypatch.setattr("pebblesim.dags.judging.TEXT_LIMIT", 11)
    for command in ("pebble", "optimum"):
        ran = pebblesim(f"{command} fft -n 8 -M 4 --save g.txt")
        assert (ran.code, ran.out) == (2, "")
        assert "every game computes 24 vertices, and a .txt file holds at most 11 moves; save to .npy" in ran.err
    assert "its name must end in .npy or .txt" in pebblesim("pebble fft -n 8 -M 4 --save g.csv").err
    assert "which a .txt file cannot name" in pebblesim("pebble fft -n 8 -M 4 --rules partial --save g.txt").err
    assert not list(tmp_path.iterdir())


def test_a_result_is_not_lost_where_its_game_cannot_be_saved(
    pebblesim: Pebblesim,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pebblesim.game.moves.TEXT_LIMIT", 10)  # the game is longer than anybody knew before
    for command in ("pebble fft -n 4 -M 4 --steps 1", "optimum fft -n 4 -M 6"):
        for json_too in ("", " --json"):
            ran = pebblesim(f"{command} --save g.txt{json_too}")
            assert ran.code == 2 and "a .txt file holds at most 10 moves" in ran.err
            assert "I/O" in ran.out or json.loads(ran.out)["io"] > 0


def test_an_archive_is_looked_at_before_it_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four MB that expand to four GiB: other names are not read, and what is too large is refused by its header."""
    head = {name: np.zeros((2, 2)) for name in "QKV"}
    np.savez(tmp_path / "head.npz", **head)  # type: ignore[arg-type]
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1073741824, 64), }"
    bomb = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header

    def with_bomb(name: str) -> str:
        path = tmp_path / f"with-{name}.npz"
        path.write_bytes((tmp_path / "head.npz").read_bytes())
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"{name}.npy", bomb)
        return str(path)

    assert load_head([with_bomb("others")])["Q"].shape == (2, 2)
    with pytest.raises(UsageError, match=r"cannot be read: its arrays take 512\.0 GiB, and .* are available"):
        load_head([with_bomb("dO")])


@pytest.mark.parametrize("module", ["typing", "lazy_loader", "typer"])
def test_an_interrupt_while_the_command_starts_is_no_traceback(module: str, tmp_path: Path) -> None:
    """Modules that are imported first and later, each of which is interrupted."""
    (tmp_path / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    script = "import sys; sys.argv[0] = 'pebblesim'; import runpy; runpy.run_module('pebblesim', run_name='__main__')"
    for program in (["-m", "pebblesim"], ["-c", script]):
        ran = subprocess.run(
            [sys.executable, *program, "list"], capture_output=True, text=True,
            env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, check=False,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) in ((-signal.SIGINT, ""), (130, "interrupted\n"))
        assert ran.stdout == ""


# -- files of cards, hints -------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
def test_a_card_says_all_that_is_missing_and_can_be_named_wherever_a_card_can(
    pebblesim: Pebblesim,
    tmp_path: Path,
) -> None:
    (tmp_path / "empty.toml").write_text("")
    said = pebblesim("advise --card empty.toml -n 8 -d 4").err
    for key in ("name", "shared_per_block", "l2", "memory_bandwidth"):
        assert f" {key}" in said
    assert said.count("\n") == 1
    (tmp_path / "mine.toml").write_text(CARD)
    assert pebblesim("plot roofline --gpu mine.toml -n 64 -d 8 -o o.png").code == 0
    assert pebblesim("advise --gpu mine.toml -n 64 -d 8").code == 0
    for line in ("--inside nope", "--between nope --inside NVLink-C2C"):
        assert "no link" in pebblesim(f"devices -n 8 -d 2 -P 2 --gpu mine.toml {line}").err
    assert "the links inside a machine of mine are not known" in pebblesim("devices -n 8 -d 2 -P 2 --gpu mine.toml").err
    hint = pebblesim("plot roofline --gpu H999 -n 64 -d 8 -o o.png").err
    assert "--card" not in hint and "--gpu mine.toml" in hint


def test_hints_name_packages_that_can_be_installed() -> None:
    """None of `pebblesim[exact]`: pebblesim is on no index."""
    for path in (ROOT / "pebblesim").rglob("*.py"):
        assert "pip install 'pebblesim" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        (["scipy"], "it needs scipy: pip install scipy"),
        (["ortools", "scipy"], "it needs ortools and scipy: pip install ortools scipy"),
    ],
)
def test_a_bound_names_what_it_needs(gone: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pebblesim.dags import bounds as of_dags

    for name in [*sys.modules]:
        if name.split(".")[0] in gone:
            monkeypatch.setitem(sys.modules, name, None)
    for name in (*gone, "scipy.sparse", "ortools.pdlp", "ortools.sat.python"):
        if name.split(".")[0] in gone:
            monkeypatch.setitem(sys.modules, name, None)
    found = of_dags.lower_bounds(ps.generate("fft", n=4), 4, "no-recompute", seconds=5)
    (places,) = (each for each in found if each.name == "places")
    assert places.why_not == says


# -- graphs of others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label"),
    [("<b>", "b"), ("<<B>x</B> &lt; y>", "x < y"), ("<>", ""), ('"<b>"', "<b>")],
)
def test_labels_of_dot_in_angle_brackets(text: str, label: str, tmp_path: Path) -> None:
    (tmp_path / "g.dot").write_text(f"digraph {{ a [label={text}]; a -> b; }}")
    graph = ps.load_graph(tmp_path / "g.dot")
    assert graph.names is not None and graph.names[0] == label


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('digraph {\n a [label="b]; }', "line 2: a quote begins that does not end."),
        ("digraph {\n a [label=<b]; }", "line 2: a '<' begins a text that does not end."),
        ("digraph { a @ b }", "line 1: '@' is not allowed in DOT."),
    ],
)
def test_what_dot_does_not_allow_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "g.dot").write_text(text)
    with pytest.raises(UsageError, match=f"{says}$"):
        ps.load_graph(tmp_path / "g.dot")


def test_a_row_of_a_matrix_is_a_whole_number(tmp_path: Path) -> None:
    for entry in ("2.5 1 1", "2 1.5 1", "-2 1 1"):
        (tmp_path / "g.mtx").write_text(f"%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1\n{entry}\n")
        with pytest.raises(UsageError, match=f"line 4: expected an entry 'row column value', .*found '{entry}'"):
            ps.load_graph(tmp_path / "g.mtx")


# -- lines drawn by a seed -------------------------------------------------------------------------------------------


def run_drawn(number: int, seed: int, *lines: str) -> dict[str, Any]:
    """The findings of `drawn_lines.py`, run as a program: it forks, which a process with threads should not."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "drawn_lines.py"), str(number), str(seed), "1", *lines],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_lines_end_as_lines_do(seed: int) -> None:
    """Of commands that take no time; the others are drawn by the slow test."""
    lines = ("count -n 24 -d 4 -M 300", "bounds -n 64 -d 8 -M 256", "devices -n 24 -d 4 -P 4", "graph fft -n 8",
             "formula small-cache", "show large-cache", "gpu emit small-cache -n 24 -d 4 -M 300")  # fmt: skip
    found = run_drawn(20, seed, *lines)
    assert found["lines"] == 20
    assert (found["faults"], found["over"]) == ([], [])


def test_every_option_of_every_command_is_in_the_record() -> None:
    """Two lines that differ in it alone, or a reason."""
    commands, record = all_commands(), json.loads(RECORD.read_text(encoding="utf-8"))
    differ, explained, left = record["differ"], record["explained"], record["left"]
    assert sorted([*differ, *explained, *left]) == sorted(every_option(commands)), (
        "python tests/drawn_lines.py record 1"
    )
    assert left == [], "draw again, or explain"
    for name, (first, second) in differ.items():
        words, _, option = name.rpartition(" ")
        names = {*(found := named(commands[words])[option]).opts, *found.secondary_opts}
        lines = [parsed(text, commands) for text in (first, second)]
        assert all(line is not None and line.command == words for line in lines)
        given = [[each for each in line.options if each[0] in names] for line in lines if line]
        others = [[each for each in line.options if each[0] not in names] for line in lines if line]
        assert given[0] != given[1] and others[0] == others[1], name
    assert all(len(why.split()) > 3 for why in explained.values())


@pytest.mark.slow
def test_lines_of_the_record_still_differ() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "drawn_lines.py"), "again", "40", "1"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "[]"), ran.stderr[-2000:]


@pytest.mark.slow
def test_hundreds_of_drawn_lines_of_all_commands_end_as_lines_do() -> None:
    found = run_drawn(600, 42)
    assert found["lines"] == 600
    assert found["faults"] == []


@pytest.mark.parametrize(
    ("ran", "fault"),
    [
        (Ran(0, "I/O 3\n", "", ()), []),
        (Ran(2, "", "error: n = 0 was given.\n", ()), []),
        (Ran(2, "", "note: mine is left out: why.\nerror: no.\n", ()), []),
        (Ran(None, "", "", ()), []),
        (Ran(0, "", "", ()), ["silent"]),
        (Ran(1, "", "note: mine is left out: why.\n", ()), ["silent"]),
        (Ran(70, "", "Traceback (most recent call last):\nValueError\n", ()), ["traceback"]),
        (Ran(-11, "", "", ()), ["exit code -11"]),
        (Ran(2, "", "error: n = 0\nd = 0.\n", ()), ["not a sentence"]),
        (Ran(2, "", "oh no.\n", ()), ["not a sentence"]),
        (Ran(2, "", "error: no.\n", (("o.png", b""),)), ["left o.png"]),
    ],
)
def test_what_is_a_fault_of_a_line(ran: Ran, fault: list[str]) -> None:
    assert [*faults(ran)] == fault


def test_the_lines_that_are_changed_are_of_every_command() -> None:
    commands = all_commands()
    assert {line.command for text in SMALL if (line := parsed(text, commands))} == {*commands}
    lines = documented()
    assert len(lines) > 100
    for text in lines:
        line = parsed(text, commands)
        assert line is None or sorted(line.argv) == sorted(
            re.sub("(--[a-z-]+)=", r"\1 ", each) for each in shlex.split(text)
        )
