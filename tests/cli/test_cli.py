"""The command line: what it prints, its exit codes, and one sentence for every bad input."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from command import Pebblesim, plain
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cli import main as cli
from pebblesim.game.moves import load
from pebblesim.game.referee import IllegalMove
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES, of_problem

# -- JSON ------------------------------------------------------------------------------------------------------------

NUMBER = (int, float)
ROW = {
    "schedule": str,
    "source": str,
    "blocks": dict,
    "reads": int,
    "writes": int,
    "io": int,
    "peak_words": int,
    "peak_red": int,
    "feasible": bool,
    "bound_ratio": NUMBER,
    "lower_bound": dict,
    "gap": NUMBER,
    "every_way": dict,
    "gap_of_way": NUMBER,
    "by_tensor": dict,
    "phases": list,
}


def holds(value: dict[str, Any], keys: dict[str, Any]) -> None:
    """The keys are there, with values of those types; more keys are allowed."""
    assert set(keys) <= set(value)
    for key, kind in keys.items():
        assert isinstance(value[key], kind), key
        assert kind is bool or not isinstance(value[key], bool), key


def test_count_as_json(pebblesim: Pebblesim) -> None:
    result = pebblesim("count -n 100 -d 16 -M 2k --json").json
    head = {"problem": str, "n": int, "d": int, "M": int, "blocks": str, "bound": dict, "lower_bound": dict}
    holds(result, head | {"rows": list})
    assert {key: result[key] for key in ("problem", "n", "d", "M", "blocks")} == {
        "problem": "backward",
        "n": 100,
        "d": 16,
        "M": 2048,
        "blocks": "fit",
    }
    holds(result["bound"], {"expr": str, "value": NUMBER})
    holds(result["lower_bound"], {"name": str, "value": int, "source": str, "for": str})
    values = {sympy.Symbol(name): result[name] for name in ("n", "d", "M")}
    assert result["bound"]["value"] == pytest.approx(float(sympy.sympify(result["bound"]["expr"]).subs(values)))
    fitting = [row["lower_bound"]["value"] for row in result["rows"] if row["feasible"]]
    assert min(fitting) >= result["lower_bound"]["value"] > 4 * 100 * 16 + 3 * 16 * 16
    assert result["lower_bound"]["for"] == "every way of computing"
    assert {row["schedule"] for row in result["rows"]} == {schedule.name for schedule in of_problem("backward")}
    for row in result["rows"]:
        holds(row, ROW)
        assert row["io"] == row["reads"] + row["writes"]
        assert row["gap"] == pytest.approx(row["io"] / row["every_way"]["value"])
        assert row["gap_of_way"] == pytest.approx(row["io"] / row["lower_bound"]["value"])
        assert row["gap_of_way"] <= row["gap"]
        assert not row["feasible"] or row["every_way"] == result["lower_bound"]  # one bound for all that fit
        assert row["bound_ratio"] == pytest.approx(row["io"] / result["bound"]["value"])
        assert all(isinstance(size, int) for size in row["blocks"].values())
        for phase in row["phases"]:
            holds(phase, {"name": str, "reads": int, "writes": int, "io": int})
        for traffic in row["by_tensor"].values():
            holds(traffic, {"reads": int, "writes": int})
        for moved in ("reads", "writes"):
            assert sum(phase[moved] for phase in row["phases"]) == row[moved]
            assert sum(traffic[moved] for traffic in row["by_tensor"].values()) == row[moved]


def test_integers_are_exact_at_a_billion_rows(pebblesim: Pebblesim) -> None:
    result = pebblesim("count small-cache -n 2^30 -d 128 -M 64k --block B=127 --json").json
    n, d, B = 2**30, 128, 127
    rows, columns = -(-n // B), -(-d // B)
    io = 5 * n * d * rows + n**2 * columns + 4 * n * d * columns + 2 * d**2 * rows + 9 * n**2 + 3 * n * d + d**2
    (row,) = result["rows"]
    assert row["io"] == io > 2**63
    assert (result["n"], result["M"], result["blocks"], row["blocks"]) == (n, 65536, {"B": 127}, {"B": 127})


def test_matmul_has_its_own_dimensions(pebblesim: Pebblesim) -> None:
    result = pebblesim("count -p matmul --size m=30 --size k=20 --size n=10 -M 100 --json").json
    assert (result["m"], result["k"], result["n"]) == (30, 20, 10)
    result = pebblesim("count matmul-tiled -n 30 -d 20 -M 100 --json").json
    assert (result["m"], result["k"], result["n"]) == (30, 20, 30)


def test_a_cache_in_bytes(pebblesim: Pebblesim) -> None:
    assert pebblesim("count small-cache -n 99 -d 8 -M 1KiB --dtype float16 --json").json["M"] == 512


CLOSED = "5*n*d*ceiling(n/B) + n**2*ceiling(d/B) + 4*n*d*ceiling(d/B) + 2*d**2*ceiling(n/B) + 9*n**2 + 3*n*d + d**2"


def test_formula_as_json(pebblesim: Pebblesim) -> None:
    result = pebblesim("formula small-cache --json").json
    texts = ("schedule", "reads", "writes", "io", "peak_words", "source")
    holds(result, dict.fromkeys(texts, str) | {"blocks": dict})
    assert sympy.simplify(sympy.sympify(result["io"]) - sympy.sympify(CLOSED)) == 0
    assert sympy.expand(sympy.sympify(f"{result['reads']} + {result['writes']} - ({result['io']})")) == 0
    values = {sympy.Symbol(name): size for name, size in {"n": 50, "d": 7, "B": 4}.items()}
    assert sympy.sympify(result["peak_words"]).subs(values) == 3 * 16 + 4
    assert result["blocks"] == {"B": "floor(sqrt(M/4))"}
    assert sympy.sympify(result["blocks"]["B"]).subs({"M": 400}) == 10


PLAYED = dict.fromkeys(("n", "d", "M", "vertices", "edges", "moves", "reads", "writes", "io", "peak_red"), int)
PLAYED |= {"schedule": str, "rules": str, "legal": bool, "complete": bool, "values_match": bool}


def test_play_as_json(pebblesim: Pebblesim) -> None:
    ran = pebblesim("play small-cache -n 8 -d 4 -M 24 --json")
    result = ran.json
    assert ran.code == 0
    holds(result, PLAYED)
    assert result["violation"] is None
    assert result["legal"] and result["complete"] and result["values_match"]
    assert result["io"] == result["reads"] + result["writes"]
    (row,) = pebblesim("count small-cache -n 8 -d 4 -M 24 --json").json["rows"]
    assert all(result[key] == row[key] for key in ("reads", "writes", "io", "peak_red", "blocks"))
    graph = pebblesim("graph backward -n 8 -d 4 --json").json
    assert (result["vertices"], result["edges"]) == (graph["vertices"], graph["edges"])


def test_an_illegal_game_as_json(pebblesim: Pebblesim) -> None:
    ran = pebblesim("play small-cache -n 8 -d 4 -M 24 --rules replace --json")
    assert (ran.code, ran.err) == (1, "")
    holds(ran.json, PLAYED | {"violation": dict})
    assert not ran.json["legal"]
    assert not ran.json["complete"]
    assert ran.json["violation"]


def test_graph_as_json(pebblesim: Pebblesim) -> None:
    result = pebblesim("graph backward -n 4 -d 2 --json").json
    holds(result, dict.fromkeys(("n", "d", "vertices", "edges", "bytes"), int) | {"problem": str, "summation": str})
    assert (result["vertices"], result["edges"]) == (404, 680)
    vast = pebblesim("graph backward -n 2^30 -d 128 --json").json
    assert vast["vertices"] > 2**64


# -- what a person sees ----------------------------------------------------------------------------------------------


def test_the_closed_form_as_the_paper_writes_it(pebblesim: Pebblesim) -> None:
    lines = pebblesim("formula small-cache").out.splitlines()
    (line,) = [line for line in lines if line.lstrip().startswith("I/O")]
    label, _, form = line.partition("=")
    assert label.strip() == "I/O"
    assert form.strip() == "5nd⌈n/B⌉ + n²⌈d/B⌉ + 2d²⌈n/B⌉ + 4nd⌈d/B⌉ + 9n² + 3nd + d²"


def test_the_closed_form_in_latex(pebblesim: Pebblesim) -> None:
    out = pebblesim("formula small-cache --latex").out
    assert r"\text{writes} & = d^{2} + 3 d n + 4 n^{2} \\" in out


PHASE_P = """\
phase p:
    for i in tiles of n by B:  # independent
        v ← 0
        for j in tiles of n by B:
            read f[i, j] as f_ij
            read q[i, j] as q_ij
            v += (f_ij ∘ q_ij) · 1
        for j in tiles of n by B:
            read f[i, j] as f_ij
            read q[i, j] as q_ij
            p_ij ← f_ij ∘ q_ij − diag(v) f_ij
            write p[i, j] ← p_ij
"""


def test_pseudo_code(pebblesim: Pebblesim) -> None:
    shown = pebblesim("show small-cache")
    assert shown.code == 0
    head, *_ = shown.out.splitlines()
    assert head.startswith("small-cache: ")
    assert "Li et al., Algorithm 6" in head
    assert PHASE_P in shown.out
    assert re.findall("^phase (.*):$", shown.out, flags=re.M) == ["f", "q", "p", "g"]
    assert PHASE_P in pebblesim("show small-cache --json").json["text"]


def test_count_shows_all_schedules_by_io_and_those_that_do_not_fit_last(pebblesim: Pebblesim) -> None:
    out = pebblesim("count -n 4096 -d 64 -M 4096").out
    rows = pebblesim("count -n 4096 -d 64 -M 4096 --json").json["rows"]
    names = [schedule.name for schedule in of_problem("backward")]
    lines = [line.split() for line in out.splitlines() if line.split() and line.split()[0] in names]
    assert [line[0] for line in lines] == [row["schedule"] for row in rows if row["feasible"]]
    (larger,) = (line for line in out.splitlines() if line.startswith("needs a larger M: "))
    needs = [f"{row['schedule']} {row['least_M']:,}" for row in rows if not row["feasible"]]
    assert needs and larger == f"needs a larger M: {', '.join(needs)}"
    fitting = [row for row in rows if row["feasible"]]
    assert [row["io"] for row in fitting] == sorted(row["io"] for row in fitting)
    assert rows[: len(fitting)] == fitting
    assert {row["schedule"] for row in rows[len(fitting) :]} >= {"no-cache", "large-cache"}
    for line, row in zip(lines, fitting, strict=True):
        assert f"{row['io']:,}" in line
    assert "Θ: d·n + min(d²·n²/M, d·n²/√M) = " in out
    assert len(re.findall(r"^gap: I/O ÷ .* for every way of computing$", out, re.MULTILINE)) == 1
    wide = pebblesim("count -n 4096 -d 64 -M 4096 --wide").out
    assert "own-way gap: I/O ÷ the largest lower bound for the way in which a schedule computes:\n" in wide
    assert re.search(r"\n  [\d,]+ words \(D1: all products .*: .*\brow-stationary, row-stationary-fused\b", wide)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["count -n 64 -d 8 -M 256", "gaps -n 64 -d 8 -M 256", "crossover -n 64 -d 8"])
def test_a_heading_names_no_option_that_its_command_lacks(pebblesim: Pebblesim, command: str) -> None:
    heading, *_ = pebblesim(command).out.splitlines()
    assert heading.startswith("backward: dL/dX")
    known = pebblesim(f"{command.split()[0]} --help").out
    for option in re.findall(r"(?<= )--?\w+", heading):
        assert re.search(rf"(?<!\S){option}(?!\S)", plain(known)), option


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", [name for name in PROBLEMS if {*PROBLEMS[name].from_nd.values()} == {"n", "d"}])
def test_tables_are_at_most_a_hundred_columns_wide(pebblesim: Pebblesim, name: str) -> None:
    """Where schedules of a problem are compared; the lines that name schedules or sources may be longer."""
    out = pebblesim(f"count -p {name} -n 4096 -d 64 -M 65536").out
    table = out.partition("\n\n")[2].partition("\n\n")[0].split("\n")
    assert len(table) > 2 and max(map(len, table)) <= 100
    assert {"schedule", "I/O", "gap"} <= {*re.split("   +", table[0].strip())}


def test_printed_blocks_that_do_not_fit_say_so(pebblesim: Pebblesim) -> None:
    out = pebblesim("count large-cache -n 4096 -d 64 -M 4096 --blocks paper").out
    assert re.search(r"^needs a larger M: large-cache [\d,]+$", out, re.MULTILINE)


def test_one_schedule_shows_its_phases_and_tensors(pebblesim: Pebblesim) -> None:
    out = pebblesim("count small-cache -n 64 -d 8 -M 100").out
    (row,) = pebblesim("count small-cache -n 64 -d 8 -M 100 --json").json["rows"]
    for name, io in [(p["name"], p["io"]) for p in row["phases"]] + [
        (name, t["reads"] + t["writes"]) for name, t in row["by_tensor"].items()
    ]:
        assert re.search(rf"^ {name} .* {io:,} *$", out, flags=re.M), name


def test_a_played_game_as_text(pebblesim: Pebblesim) -> None:
    ran = pebblesim("play small-cache -n 8 -d 4 -M 24")
    assert ran.code == 0
    assert "small-cache, n = 8, d = 4, B = 2, summation chain" in ran.out
    assert "equal the reference" in ran.out
    assert ran.err == ""  # no progress bar in a pipe
    illegal = pebblesim("play small-cache -n 8 -d 4 -M 24 --rules no-recompute")
    assert illegal.code == 1
    assert "was already computed" in illegal.out


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["count", "formula", "show", "play", "graph"])
def test_help_shows_an_example_that_works(command: str, pebblesim: Pebblesim) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    example = re.search(r"Example: pebblesim (.+)", plain(shown.output))
    assert example
    assert pebblesim(example[1].strip()).code == 0


def test_help_begins_with_the_paper_and_the_command_that_shows_it(pebblesim: Pebblesim) -> None:
    shown = plain(CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "200"}).output)
    named = ("Algorithm 6", "Algorithm 9", "FlashAttention")
    assert all(name in shown.partition("Options")[0] for name in ("arXiv 2410.09397", *named))
    example = re.search(r"Example: pebblesim (.+)", shown)
    assert example
    out = pebblesim(example[1].replace("4096", "64").replace("-d 64", "-d 8").strip()).out
    assert all(f"{name} (" in out for name in named)


@pytest.mark.one_in(2)
def test_help_and_no_arguments(pebblesim: Pebblesim) -> None:
    shown = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "200"})
    assert all(command in shown.output for command in ("count", "formula", "show", "play", "graph"))
    assert pebblesim("-h").code == 0
    assert pebblesim("").code == 2


# -- bad input -------------------------------------------------------------------------------------------------------

WHOLE = "must be a whole number, 1 or more, such as 4096, 64k, 1M or 2^20."
SMALL = "count small-cache -n 8 -d 4"
SIZES = "problem 'backward' takes the sizes n, d, or n_q, n_k, d, where n and d set the dimensions that are not given;"
PLAY = "play small-cache -n 8 -d 4 -M 24"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("count small-cache -n -5 -d 4 -M 24", f"n = '-5' was given; n {WHOLE}"),
        ("count small-cache -n 0 -d 4 -M 24", f"n = '0' was given; n {WHOLE}"),
        ("count small-cache -n 8 -d 1.5 -M 24", f"d = '1.5' was given; d {WHOLE}"),
        ("count small-cache -n eight -d 4 -M 24", f"n = 'eight' was given; n {WHOLE}"),
        (f"{SMALL} -M -3", f"M = '-3' was given; M {WHOLE}"),
        (f"{SMALL} -M 24 --block B=0", f"B = '0' was given; B {WHOLE}"),
        ("count small-cache -d 4 -M 24", f"{SIZES} it got d = 4; n is missing."),
        ("count small-cache -M 24", f"{SIZES} it got none; for example: pebblesim count -n 4096 -d 64 -M 16384"),
        ("gaps", "it got none; for example: pebblesim gaps -n 65536 -d 128"),
        ("count mine -n 8 -d 4 -M 24", "Those of a file of yours: pebblesim --load FILE.py …"),
        ("count found-forward -n 8 -d 4 -M 24", "Those of a file of yours: pebblesim --load FILE.py …"),
        ("count mine --load mine.py", "--load FILE.py stands before the command, as in pebblesim --load FILE.py list"),
        (
            f"{SMALL} -M 24 --size q=3",
            f"{SIZES} it got n = 8, d = 4, q = 3; sizes of blocks are given as blocks={{'q': 3}}, or --block q=3.",
        ),
        (f"{SMALL} -M 24 --size n", "--size 'n' was given; it takes NAME=VALUE."),
        (f"{SMALL} -n 9 -M 24", "-n was given twice; it takes one value."),
        (f"{SMALL} -M 24 -M 25", "-M was given twice; it takes one value."),
        ("sweep -s flash -n 8 -d 4 -M 24 -M 25", "-M was given twice; it takes one list of sizes, such as -M 64,128."),
        (
            "sweep small-cache -n 8 -n 9 -d 4 -M 24",
            "-n was given twice; it takes one list of sizes, such as -n 64,128.",
        ),
        ("count small-cash -n 8 -d 4 -M 24", "no schedule is called 'small-cash'; did you mean 'small-cache'?"),
        ("formula small-cash", "no schedule is called 'small-cash'; did you mean 'small-cache'?"),
        ("show small-cash", "no schedule is called 'small-cash'; did you mean 'small-cache'?"),
        ("play small-cash -n 8 -d 4 -M 24", "no schedule is called 'small-cash'; did you mean 'small-cache'?"),
        ("count -p backwards -n 8 -d 4 -M 24", "no problem is called 'backwards'; did you mean 'backward'?"),
        ("graph backwards -n 8 -d 4", "no file, generator or problem is called 'backwards'; did you mean 'backward'?"),
        (
            "count small-cache matmul-tiled -n 8 -d 4 -M 24",
            "matmul-tiled solves 'matmul', not 'backward'; count the schedules of each problem apart",
        ),
        (f"{SMALL} -M 24 --block C=2", "no block of small-cache is called 'C'; known: B."),
        (f"{SMALL} -M 24 --block B", "--block 'B' was given; it takes NAME=VALUE."),
        (f"{SMALL} -M 24 --blocks bets", "no block rule is called 'bets'; did you mean 'best'?"),
        (f"{SMALL} -M 24 --blocks best --block B=2", "--blocks best chooses all blocks; leave it out"),
        (f"{SMALL} -M 5", "M = 5 words is too small for small-cache at n = 8, d = 4; it needs M ≥ 6."),
        ("play small-cache -n 8 -d 4 -M 5", "it needs M ≥ 6."),
        (f"{SMALL} -M 3 --blocks paper", "the printed rule B = floor(sqrt(M/4)) gives 0 for M = 3; it needs M ≥ 4,"),
        (f"{SMALL} -M 192KiB", "M = '192KiB' is in bytes; give its data type with --dtype, one of float64,"),
        (f"{SMALL} -M 192KiB --dtype float31", "no data type is called 'float31'; did you mean 'float32'?"),
        (f"{SMALL} -M 192 --dtype float31", "no data type is called 'float31'; did you mean 'float32'?"),
        (f"{SMALL} -M 24 --mask causl", "mask 'causl' is not known; it is dense, causal, window:W, "),
        (f"{SMALL} -M 24 --mask nowhere.npy", "mask 'nowhere.npy': there is no such file."),
        ("count linear -n 8 -d 4 -M 24 --mask causal", "problem 'linear' has no pairs of queries and keys"),
        ("formula flash --mask bigbird:1:1:1:1", "mask bigbird:1:1:1:1 has no closed form; use 'any', 'causal'"),
        (f"{SMALL} -M 24 --summation chains", "summation must be 'chain', 'balanced', 'blocked:b'"),
        (f"{PLAY} --summation blocked:0", "not 'blocked:0'."),
        (f"{PLAY} --summation tree", "not 'tree'. Did you mean 'balanced'?"),
        (
            "graph backward -n 8 -d 4 --summation chains",
            "or 'blocked:b' with b > 0 terms, not 'chains'. Did you mean 'chain'?",
        ),
        (f"{PLAY} --rules hong", "no rule set is called 'hong'; did you mean 'hong-kung'?"),
        (f"{PLAY} --save game.csv", "cannot save moves to 'game.csv'; its name must end in .npy or .txt."),
        (
            f"{PLAY} --save nowhere/game.npy",
            "cannot write nowhere/game.npy: there is no folder",
        ),
        ("play small-cache -n 2^20 -d 64 -M 24", "use smaller sizes, or use `count` and `formula`"),
        ("play small-cache -n 2^60 -d 2^50 -M 24", "use smaller sizes, or use `count` and `formula`"),
        ("graph backward -n 4 -d 2 -o graph.pdf", "cannot tell a format from 'graph.pdf'; end it with one of .dot,"),
        (
            "graph backward -n 4 -d 2 -o nowhere/graph.dot",
            "cannot write nowhere/graph.dot: there is no folder 'nowhere'; make it first.",
        ),
        ("graph backward -n 4 -d 2 --option order=V", "order 'V' is not known; it is 'T' for"),
        (
            "graph backward -n 4 -d 2 --option colour=1",
            "got an unexpected keyword argument 'colour'; it takes n_q, n_k, d, ",
        ),
        ("graph backward -n 4", f"{SIZES} it got n = 4; d is missing."),
    ],
)
def test_a_bad_input_gets_one_sentence(line: str, says: str, pebblesim: Pebblesim, tmp_path: Path) -> None:
    ran = pebblesim(line)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert ran.err.endswith(("\n", "?\n"))
    assert says in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("count small-cache -n 8 -d 4", "error: Missing option '-M'; for example: pebblesim count -n 4096"),
        (
            "pebble fft -n 8 -M 4 -o g.npy",
            "error: No such option: -o; --save FILE saves a game; for example: pebblesim",
        ),
        ("gaps -n 65536", "it got n = 65536; d is missing."),
        ("cache f.din -M 1k", "error: f.din cannot be replayed: a trace is a file *.oracleGeneral.bin, *.txt"),
        ("pebble . -M 4", "error: . is a folder; name one of its files, or see `pebblesim dags .` for them all."),
        ("--load", "error: Option '--load' requires an argument."),
        ("--nothing", "error: No such option: --nothing; for example: pebblesim crossover -n 4096 -d 64"),
        (
            "count -n 8 -d 4 -M 24 --heads 1e3",
            "error: Invalid value for '--heads': '1e3' is not a whole number, 1 or more; for example: pebblesim count",
        ),
        ("crossover flash -n 8 -d 4", "error: 1 schedule given; a crossing is between two schedules"),
        ("count flash2-forward -n 8 -d 4 -M 99 --l2 0MiB", "error: --l2 = 0 was given"),
        ("optimum fft -n 8 -M 3 --memory -1GiB", "error: --memory = '-1GiB' is not a size in bytes"),
        ("judge fft none.npy -n 8 -M 4", "error: cannot read moves from 'none.npy': No such file or directory."),
        ("gpu emit flash2-forward -n 2^40 -d 16 -M 64k", "n = 1,099,511,627,776 was given; CUDA kernels count rows"),
        *(
            (f"{command} --problem= -n 8 -d 4 -M 99", "error: no problem is called ''")
            for command in ("count", "gaps", "bounds")
        ),
        ("sweep --problem= -n 8 -d 4 -M 99", "error: no problem is called ''"),
        ("advise --problem= --gpu H100 -n 8 -d 4", "error: no problem is called ''"),
        ("glossary gap", "Terms such as gap, way or ops/byte are explained in docs/words.md."),
        (
            "advise --gpu H100 -n 64 -d 8 --block BLOCK_M=128",
            "error: BLOCK_M is a kernel's name; a tile is given by the schedule's blocks, such as a=128 or B_r=128.",
        ),
        ("glossary bakward", "no problem is called 'bakward'; did you mean 'backward'?"),
        ("play -n 8 -d 4 -M 24", "Missing argument"),
        ("count -n 8 -d 4 -M 24 --colour", "No such option: --colour"),
        ("cuont", "no command is called 'cuont'; did you mean 'count'?"),
        ("bounds forward -p backward -n 4 -d 2", "two problems were given, forward and --problem backward; give one."),
        (
            "plot words flash2-forward -n 8 -d 4 -M 99 --by head -o x.png",
            "no --by is called 'head'; known: phase, tensor.",
        ),
    ],
)
def test_a_bad_option_is_explained(line: str, says: str, pebblesim: Pebblesim) -> None:
    ran = pebblesim(line)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert "Traceback" not in ran.err


def test_a_tile_that_does_not_fit_stands_beside_the_M_that_it_needs_and_its_bound(pebblesim: Pebblesim) -> None:
    """Its gap is by the bound for as many pebbles as it has, which is less than the bound for the M of the heading."""
    asked = "count flash2-forward -n 8192 -d 512 --block B_r=64 --block B_c=128"
    larger, own = (pebblesim(f"{asked} -M {M}").out.splitlines() for M in (116224, 139394))
    (bound,) = (re.search(r"÷ ([\d,]+) words", line)[1] for line in own if line.startswith("gap: "))  # type: ignore[index]
    of = (
        f"gap: I/O ÷ {bound} words, lower bound C2 for every way of computing, for the M = 139,394 that its blocks need"
    )
    assert of in larger and not any("139,394 that" in line for line in own)
    head, row = (next(line for line in larger if line.startswith(f" {name} ")) for name in ("schedule", NAME))
    assert "  needs M  " in head and "  139,394  " in row and not any("needs M" in line for line in own)
    less = ps.count(NAME, n=8192, d=512, M=116224)
    assert less.every_way.value > int(bound.replace(",", ""))
    tile = ps.count(NAME, n=8192, d=512, M=116224, blocks={"B_r": 64, "B_c": 128})
    assert str(tile).count("for the M = 139,394 that its blocks need") == 1 and "need" not in str(less)


NAME = "flash2-forward"


def test_a_tile_that_does_not_fit_is_told_what_does(pebblesim: Pebblesim) -> None:
    said = pebblesim("count flash2-forward -n 4096 -d 128 -M 100k --block B_r=128 --block B_c=4096").out
    needs = 2 * 128 * 128 + 2 * 128 * 4096 + 2 * 128 + 2  # Q and O; K or V, and the scores; sums, maxima and two more
    assert f"these blocks need {needs:,} words, 10.6 M; the gap is to the bound for that M" in said
    fits = re.search(r"; B_r=(\d+), B_c=(\d+) fit$", said, re.MULTILINE)
    assert fits
    again = pebblesim(f"count flash2-forward -n 4096 -d 128 -M 100k --block B_r={fits[1]} --block B_c={fits[2]}").out
    assert "these blocks need" not in again and "> M" not in again


@pytest.mark.one_in(6)
def test_a_winner_that_needs_a_table_says_so(pebblesim: Pebblesim) -> None:
    said = pebblesim("count -p backward-qkv -n 512 -d 64 -M 4096").out
    assert "reads P, which the forward pass must have saved, a word for each pair; of the others " in said
    assert "reads P" not in pebblesim("count -p backward-qkv -n 512 -d 64 -M 65536").out


def test_a_thousand_with_a_comma_is_two_sizes(pebblesim: Pebblesim) -> None:
    ran = pebblesim("sweep -n 8,192 -d 16 -M 2048 -s flash2-forward")
    assert ran.code == 0 and "n = 8,192 is a list of sizes: 8, 192" in ran.err


@pytest.mark.parametrize("least", [6, 24, 25])
def test_the_least_m_that_is_named_works(least: int, pebblesim: Pebblesim) -> None:
    block = {6: 1, 24: 2, 25: 2}[least]
    needs = re.search(r"needs M ≥ (\d+)", pebblesim("count small-cache -n 8 -d 4 -M 1").err)
    assert needs
    assert pebblesim(f"play small-cache -n 8 -d 4 -M {needs[1]}").code == 0
    sizes = pebblesim(f"count small-cache -n 8 -d 4 -M {least} --json").json["rows"][0]["blocks"]
    assert sizes["B"] >= block


def test_sizes_beyond_the_range_of_floats(pebblesim: Pebblesim) -> None:
    ran = pebblesim("count small-cache -n 2^256 -d 2^200 -M 100 --json")
    assert ran.json["rows"][0]["io"] > 2**700
    assert ran.json["bound"]["value"] > 2**700


def test_sizes_that_are_too_large(pebblesim: Pebblesim) -> None:
    ran = pebblesim("count small-cache -n 2^257 -d 4 -M 100")
    assert ran.code == 2
    assert ran.err == "error: n is larger than 2^256; sizes go up to there.\n"


def test_more_digits_than_python_reads(pebblesim: Pebblesim) -> None:
    ran = pebblesim(f"count small-cache -n {'9' * 5000} -d 4 -M 100")
    assert ran.code == 2
    assert WHOLE in ran.err


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_game_is_saved_whole(pebblesim: Pebblesim, tmp_path: Path) -> None:
    moves = pebblesim(f"{PLAY} --save game.npy --json").json["moves"]
    assert pebblesim(f"{PLAY} --save game.txt").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["game.npy", "game.txt"]
    assert load(tmp_path / "game.npy").size == moves
    lines = (tmp_path / "game.txt").read_text().splitlines()
    assert len(lines) == moves
    assert lines[0] == "read A1[0,0]"


@pytest.mark.parametrize("name", ["game.npy", "game.txt"])
def test_the_moves_of_an_illegal_game_are_saved_whole(name: str, pebblesim: Pebblesim, tmp_path: Path) -> None:
    """Moves of one game under two sets of rules: those behind the illegal one are in the file, too."""
    assert pebblesim(f"{PLAY} --save {name}").code == 0
    legal = (tmp_path / name).read_bytes()
    assert pebblesim(f"{PLAY} --rules no-recompute --save {name}").code == 1
    assert (tmp_path / name).read_bytes() == legal
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["game.npy", "game.txt"])
def test_a_game_that_raises_leaves_no_file_and_an_older_one_alone(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    for kept in (None, b"older"):
        with pytest.raises(IllegalMove):
            ps.play("small-cache", n=8, d=4, M=24, rules="no-recompute", save=str(file))
        assert [path.read_bytes() for path in tmp_path.iterdir()] == ([] if kept is None else [kept])
        file.write_bytes(b"older")


@pytest.mark.parametrize("suffix", ["dot", "graphml", "json", "hdag"])
def test_a_graph_is_exported(suffix: str, pebblesim: Pebblesim, tmp_path: Path) -> None:
    ran = pebblesim(f"graph matmul -n 3 -d 2 -o product.{suffix}")
    assert ran.code == 0
    assert f"written   product.{suffix}" in ran.out
    assert [path.name for path in tmp_path.iterdir()] == [f"product.{suffix}"]
    assert (tmp_path / f"product.{suffix}").stat().st_size > 100


@pytest.mark.one_in(2)
def test_any_graph_is_exported(pebblesim: Pebblesim) -> None:
    made = pebblesim("graph fft -n 8 -o fft.hdag --json").json
    assert (made["vertices"], made["edges"], made["inputs"], made["outputs"]) == (32, 48, 8, 8)
    assert made["literature"] == {"bound": "Θ(n log n / log M)", "source": "Hong & Kung 1981, Theorem 2.1"}
    ran = pebblesim("graph fft.hdag -o fft.graphml")
    assert "edges     48\n" in ran.out and "known" not in ran.out
    assert pebblesim("graph fft.graphml --json").json["edges"] == 48
    assert "known     Θ(n log n / log M) (Hong & Kung 1981" in pebblesim("pebble fft -n 4 -M 12 --seconds 0").out
    assert pebblesim("pebble matmul -n 4 -M 99 --seconds 0 --json").json["io"] == 3 * 4 * 4


# -- as a program of its own -----------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("line", "code", "stream", "says"),
    [
        ("count small-cache -n 64 -d 8 -M 100 --json", 0, "stdout", '"schedule": "small-cache"'),
        ("count small-cache -n 64 -d 8 -M 1", 2, "stderr", "error: M = 1 words is too small for small-cache"),
        ("play small-cache -n 4 -d 2 -M 24 --rules replace", 1, "stdout", "has no blue pebble"),
    ],
)
def test_exit_codes(line: str, code: int, stream: str, says: str) -> None:
    ran = subprocess.run([sys.executable, "-m", "pebblesim", *line.split()], capture_output=True, text=True)
    assert ran.returncode == code
    assert says in getattr(ran, stream)
    assert "Traceback" not in ran.stderr


@pytest.mark.one_in(2)
def test_a_reader_that_stops_reading_is_no_error() -> None:
    script = Path(sys.executable).with_name("pebblesim")
    ran = subprocess.run(["sh", "-c", f"'{script}' count -n 64 -d 8 -M 100 | head -1"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert "backward: dL/dX" in ran.stdout
    assert ran.stderr == ""


# -- finding one's way -----------------------------------------------------------------------------------------------


def test_the_list_names_every_schedule_once(pebblesim: Pebblesim) -> None:
    listed = pebblesim("list --json").json
    assert sorted(name for names in listed.values() for name in names) == sorted(SCHEDULES)
    text = pebblesim("list").out
    for name in SCHEDULES:
        assert f"  {name} " in text


def test_a_schedule_of_ones_own(pebblesim: Pebblesim, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import pebblesim as ps\n"
        "@ps.schedule(problem='matmul', source='a test')\n"
        "def own(m, A, B):\n"
        "    m.write(m.tensor('C', A.shape[0], B.shape[1]), m.compute(m.read(A) @ m.read(B)))\n"
    )
    assert pebblesim(f"--load {own} count own -n 4 -d 3 -M 100 --json").json["rows"][0]["io"] == 12 + 12 + 16
    assert "this file does not exist" in pebblesim(f"--load {own}.txt list").err


def test_a_schedule_whose_iterations_differ_is_one_sentence(pebblesim: Pebblesim, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import pebblesim as ps\n"
        "@ps.schedule(problem='matmul', source='a test')\n"
        "def own(m, A, B, *, b):\n"
        "    C = m.tensor('C', A.shape[0], B.shape[1])\n"
        "    for k, i in enumerate(m.tiles(A.shape[0], b)):\n"
        "        if k == 0:\n"
        "            m.delete(m.read(B))\n"
        "        m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))\n"
    )
    for command in ("count own -n 4 -d 3 -M 100", "formula own", "play own -n 4 -d 3 -M 100"):
        told = pebblesim(f"--load {own} {command}")
        assert told.code == 2
        assert told.err.startswith(f"error: {own}:7: in iteration 2 of the loop in line 5 the schedule does not do")
        assert told.err.count("\n") == 1


@pytest.mark.one_in(2)
def test_a_schedule_that_moves_too_little_is_an_error(pebblesim: Pebblesim, tmp_path: Path) -> None:
    lazy = tmp_path / "lazy.py"
    lazy.write_text(
        "import pebblesim as ps\n"
        "@ps.schedule(problem='forward', source='a test')\n"
        "def lazy(m, Q, K, V):\n"
        "    Q_ = m.read(Q)\n"
        "    m.write(m.tensor('O', *Q.shape), m.compute(Q_ + Q_))\n"
    )
    for line in ("count lazy -n 4 -d 3 -M 100", "count lazy -n 4 -d 3 -M 100 --json", "gaps -n 4 -d 3 -p forward"):
        ran = pebblesim(f"--load {lazy} {line}")
        assert ran.code == 2
        assert "lazy moves 24 words, and whatever solves 'forward' as it says" in ran.err.replace("\n", " ")
        assert "moves 48 at least" in ran.err.replace("\n", " ")


def test_nothing_that_fits_is_exit_code_2(pebblesim: Pebblesim) -> None:
    assert pebblesim("count small-cache large-cache -n 64 -d 8 -M 4").code == 2
    assert pebblesim("count small-cache large-cache -n 64 -d 8 -M 40").code == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("count flash1-forward -p backward -n 8 -d 4 -M 99", "flash1-forward solves 'forward', not 'backward'"),
        ("count matmul-tiled --size m=2 --size m=3 -M 9", "--size m=… was given twice."),
        ("formula small-cache --latex --json", "choose one"),
        ("graph backward -n 2 -d 2 --option n=4", "--option n=… is not allowed"),
        ("count matmul-tiled -n 8 -M 99", "takes the sizes m, k, n, or n and d alone, which mean m = n, k = d, n = n"),
    ],
)
def test_what_contradicts_itself(pebblesim: Pebblesim, line: str, says: str) -> None:
    ran = pebblesim(line)
    assert ran.code == 2
    assert says in ran.err


def test_blocks_that_no_schedule_has(pebblesim: Pebblesim) -> None:
    ran = pebblesim("count -n 8 -d 4 -M 99 --block zz=3")
    assert ran.code == 2
    assert "no schedule of problem 'backward' has such blocks" in ran.err
    rows = pebblesim("count -n 8 -d 4 -M 999 --block B_c=3 --json").json["rows"]
    assert sorted(row["schedule"] for row in rows) == [
        "flash",
        "large-cache",
    ]


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_bounds_as_json(pebblesim: Pebblesim) -> None:
    result = pebblesim("bounds -n 4096 -d 64 -M 64k --json").json
    holds(result, {"problem": str, "n": int, "d": int, "M": int, "bound": dict, "lower_bound": dict})
    named = {each["name"]: each for each in result["lower_bounds"]}
    assert set(named) == {"compulsory", "D1", "D1m", "D1r", "D2", "D3", "D4", "D4r", "D5", "D6", "D7"}
    assert named["compulsory"]["value"] == 4 * 4096 * 64 + 3 * 64 * 64
    assert named["D1"]["value"] is None
    assert "M is above 16,384" in named["D1"]["why_not"]
    assert named["D2"]["value"] >= 6 * 4096**2 * 64**2 // 65536 - 4096 * 64 + 3 * 64**2
    assert result["lower_bound"].items() >= {"name": "D3", "value": named["D3"]["value"]}.items()
    every = "every way of computing"
    assert {name: each["for"] for name, each in named.items()} == {
        **dict.fromkeys(("compulsory", "D1m", "D3", "D4r", "D5", "D6", "D7"), every),
        **dict.fromkeys(("D1", "D2"), "g = A1ᵀ p A2"),
        "D4": "any order of the products, g = A1ᵀ p A2",
        "D1r": "g regrouped by rows",
    }
    assert result["lower_bound"]["for"] == every
    assert {each["for"]: each["name"] for each in result["ways"]} == {
        "g = A1ᵀ p A2": "D2",
        "g regrouped by rows": "D3",
        "any order of the products, g = A1ᵀ p A2": "D4",
        "any order of the products": "D3",
    }
    for each in named.values():
        assert each["recomputation"] is each["every_tree"] is True
        for form in each["forms"]:
            sympy.sympify(form["expr"])
    assert named["D2"]["expr"] == "6*n**2*d**2/M - n*d + 3*d**2"


def test_bounds_as_a_table(pebblesim: Pebblesim) -> None:
    out = pebblesim("bounds -n 4096 -d 64 -M 64k --wide").out
    assert re.search(
        r" D2 +6\*n\*\*2\*d\*\*2/M - n\*d \+ 3\*d\*\*2 +32/3·d² ≤ M +g = A1ᵀ p A2 +[\d,]+$", out, re.MULTILINE
    )
    assert re.search(
        r"^any game moves at least [\d,]+ words \(D3: .* for every way of computing\n  g = A1ᵀ p A2: .* \(D2\)\n",
        out,
        re.M,
    )
    assert "D1: all products (docs/lower-bounds.md#D1); not here: M is above 16,384" in out
    assert "All lower bounds hold with recomputation, and for every summation tree." in out
    regrouped = pebblesim("bounds --schedule large-cache -n 4096 -d 64 -M 64k").out
    assert re.search(
        r"^any game moves at least .* words \(D3: .*, for g regrouped by rows; O, l kept", regrouped, re.MULTILINE
    )
    assert "not here: the graph has g as a sum over blocks of rows" in regrouped


@pytest.mark.one_in(2)
def test_bounds_at_several_m_if_none_is_given(pebblesim: Pebblesim) -> None:
    out = pebblesim("bounds -n 4096 -d 64").out
    assert [line.split()[0] for line in out.splitlines() if line.startswith((" 16 ", " 4,096 ", " 65,536 "))]
    several = pebblesim("bounds -n 4096 -d 64 --json").json["bounds"]
    assert {4096, 16384, 65536} <= {each["M"] for each in several}
    assert [each["lower_bound"]["name"] for each in several][-1] == "compulsory"


def test_bounds_under_a_mask(pebblesim: Pebblesim) -> None:
    causal = pebblesim("bounds -n 1024 -d 32 -M 64k --mask causal --json").json
    counted = pebblesim("bounds -n 1024 -d 32 -M 64k --pairs 524800 --json").json
    assert causal["pairs"] == counted["pairs"] == 1024 * 1025 // 2
    assert counted["lower_bound"]["value"] <= causal["lower_bound"]["value"]
    row = pebblesim("count row-stationary -n 1024 -d 32 -M 64k --mask causal --json").json["rows"][0]
    assert row["lower_bound"]["value"] >= causal["lower_bound"]["value"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bounds -n 8 -d 2 -M 9 -p matmul --pairs 3", "problem 'matmul' has no pairs of queries and keys"),
        ("bounds -n 8 -d 2 -M 9 --pairs 65", "65 allowed pairs were given; at n = 8 there are 0 to 64"),
        ("bounds -n 8 -d 2 -M 9 --pairs 3 --mask causal", "give either a mask or a number of pairs"),
        ("bounds -n 8 -d 2 -M 9 -p forward --schedule flash", "flash solves 'backward', not 'forward'"),
        ("bounds -n 8 -M 9", "takes the sizes n, d"),
        (
            "gaps -n 8 -d 2 -M 3",
            "no schedule of 'backward' fits at any of these M; small-cache-streamed needs the least, M ≥ 5.",
        ),
        ("optimum matmul --size m=2 --size k=1 --size n=2 -M 2", "it needs M ≥ 3"),
    ],
)
def test_bounds_that_cannot_be(pebblesim: Pebblesim, line: str, says: str) -> None:
    ran = pebblesim(line)
    assert ran.code == 2
    assert says in ran.err


@pytest.mark.one_in(4)
def test_gaps(pebblesim: Pebblesim) -> None:
    result = pebblesim("gaps -n 1024 -d 32 --json").json
    rows = result["rows"]
    assert [row["M"] for row in rows] == [2**k for k in range(3, 20)]  # 4 · (4nd + 3d²) < 2^20
    assert all(row["gap"] == pytest.approx(row["io"] / row["every_way"]["value"]) for row in rows)
    assert all(row["gap_of_way"] == pytest.approx(row["io"] / row["lower_bound"]["value"]) for row in rows)
    assert all(row["every_way"]["value"] <= row["lower_bound"]["value"] for row in rows)
    assert {row["every_way"]["for"] for row in rows} == {"every way of computing"}
    assert result["largest"]["gap"] == max(row["gap"] for row in rows)
    best = pebblesim("count -n 1024 -d 32 -M 4k --json").json["rows"][0]
    assert {"schedule": best["schedule"], "io": best["io"]}.items() <= next(r for r in rows if r["M"] == 4096).items()
    out = pebblesim("gaps -n 1024 -d 32 -M 4k -M 8k").out
    assert out.count("row-stationary") >= 2
    assert f"largest gap: {max(row['gap'] for row in rows if row['M'] in (4096, 8192)):.3f} at M = " in out


def test_optimum(pebblesim: Pebblesim, tmp_path: Path) -> None:
    line = "optimum matmul --size m=2 --size k=1 --size n=2 -M 4"
    result = pebblesim(f"{line} --json").json
    assert (result["io"], result["complete"], result["rules"]) == (8, True, "hong-kung")
    out = pebblesim(f"{line} --rules no-recompute --save {tmp_path}/game.txt").out
    assert "least I/O       8 words" in out
    assert (tmp_path / "game.txt").read_text().count("write C") == 4


def test_any_dag(pebblesim: Pebblesim, tmp_path: Path) -> None:
    graph, game = tmp_path / "p.hdag", tmp_path / "game.npy"
    ran = pebblesim(f"graph matmul --size m=2 --size k=2 --size n=2 -o {graph}")
    assert ran.code == 0
    result = pebblesim(f"pebble {graph} -M 4 --rules no-recompute --seconds 0.05 --save {game} --json").json
    assert result["complete"] and result["graph"] == "p.hdag"
    assert result["bound"]["value"] <= result["io"] == pebblesim(f"judge {graph} {game} -M 4 --json").json["io"]
    assert pebblesim(f"judge {graph} {game} -M 3").code == 1
    out = pebblesim("pebble pyramid --option rows=4 -M 3 --rules partial --seconds 0.05").out
    assert "judged by the referee" in out
    table = pebblesim(f"dags {tmp_path} --seconds 0.1 --json").json["rows"]
    assert [row["M"] for row in table] == [3, 4, 6, 9, 15]
    interval = pebblesim("optimum fft -n 8 -M 3 --states 500 --json").json
    assert interval["bound"] < interval["io"]
    assert interval["ended"] == "memory"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("pebble nothing -M 4", "no file, generator or problem is called 'nothing'"),
        ("pebble fft -n 8 -M 2", "it needs M ≥ 3"),
        ("pebble fft -n 8 -M 4 --seconds soon", "--seconds 'soon' was given"),
        ("pebble fft -n 8 -M 4 --summation balanced", "fft is a generator; leave out --mask"),
        ("pebble nowhere.hdag -M 4", "cannot read nowhere.hdag"),
        ("pebble nowhere.hdag -n 4 -M 4", "is a file; leave out sizes"),
        ("pebble fft -n 8 -M 4 --rules partial --seconds 0 --save game.txt", "save to .npy instead"),
        ("dags nowhere", "nowhere is not a folder"),
        ("judge fft -n 8 nowhere.npy -M 4", "cannot read moves from"),
    ],
)
def test_dags_that_cannot_be(pebblesim: Pebblesim, line: str, says: str) -> None:
    ran = pebblesim(line)
    assert ran.code == 2
    assert says in ran.err


def test_bounds_and_gaps_take_a_problem_as_search_does(pebblesim: Pebblesim) -> None:
    for command in ("bounds", "gaps"):
        named, given = (pebblesim(f"{command} {problem} -n 64 -d 8 -M 99") for problem in ("forward", "-p forward"))
        assert (named.code, named.out) == (0, given.out)
        assert named.out.startswith("forward: n = 64")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "play small-cache -n 4 -d 2 -M 40 --rules partial",
            "for schedules is called 'partial'; known: hong-kung, no-",
        ),
        ("watch small-cache -n 4 -d 2 -M 40 --rules partial -o a.html", "for schedules is called 'partial'"),
        ("gaps -n 4 -d 2 -M 40 --steps 2", "--steps is for the whole range of M; leave it out, or -M."),
        ("gaps -n 4 -d 2 --machine H100 --steps 2", "leave it out, or --machine."),
        ("sweep -s small-cache -n 4 -d 2 -M 40 --store notes", "'notes' is not a database of SQLite"),
        ("plot race notes -o a.png", "give the name of one, or of a new file"),
    ],
)
def test_options_and_files_that_do_not_go_together(pebblesim: Pebblesim, line: str, says: str) -> None:
    Path("notes").write_text("x", encoding="utf-8")  # SQLite would write over one byte
    ran = pebblesim(line)
    assert (ran.code, says in ran.err, ran.out) == (2, True, "")
    assert Path("notes").read_text(encoding="utf-8") == "x"
    assert not Path("a.html").exists()


def test_bounds_for_no_pair_at_all(pebblesim: Pebblesim) -> None:
    assert "0 allowed pairs" in pebblesim("bounds forward -n 4 -d 2 -M 40 --pairs 0").out
    assert "there are 0 to 16 of them" in pebblesim("bounds forward -n 4 -d 2 -M 40 --pairs 17").err


def test_help_groups_the_commands_by_what_they_are_for(pebblesim: Pebblesim) -> None:
    panels = re.findall(r"^╭─ ([A-Z][\w ]+?) ─", pebblesim("--help").out, re.MULTILINE)
    assert panels == ["Options", *cli.PANELS]


def test_judge_names_the_move_that_is_meant_and_pebble_the_proven_least(pebblesim: Pebblesim) -> None:
    Path("g.hdag").write_text("1 3 3\n0\n0 1\n1 1\n2 1\n0 0\n0 1\n0 2\n", encoding="utf-8")
    Path("game.txt").write_text("read 0\n", encoding="utf-8")
    assert (
        "'read 0' is not a move on this graph; 'read vertex 0' is meant." in pebblesim("judge g.hdag game.txt -M 3").err
    )
    Path("game.txt").write_text("jump vertex 0\n", encoding="utf-8")
    assert "a move is one of read, write, compute, delete" in pebblesim("judge g.hdag game.txt -M 3").err
    Path("game.npy").write_bytes(b"abc")
    assert "'game.npy': it is not a file of one array" in pebblesim("judge g.hdag game.npy -M 3").err
    np.save("game.npy", np.ones((2, 2)))
    assert "'game.npy': packed moves are a one-dim" in pebblesim("judge g.hdag game.npy -M 3").err
    above = pebblesim("pebble pyramid --size rows=4 -M 3 --steps 10").out
    assert "10 vertices are few: `pebblesim optimum` with the same sizes searches for the proven least" in above
    assert "`pebblesim optimum`" not in pebblesim("pebble g.hdag -M 3 --steps 10").out  # its game meets the bound
