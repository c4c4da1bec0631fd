"""Sweeps: rows against the commands they stand for, files, and sweeps that are stopped, on one machine and on two."""

import contextlib
import csv
import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import strategies
from hypothesis import example, given, strategies as st
from own_problem import GRAPH, SCHEDULE
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.cli.main import app
from pebblesim.core import tables
from pebblesim.core.errors import Infeasible, PebblesimError, UsageError
from pebblesim.core.sizes import parse_words, several
from pebblesim.core.tables import Table
from pebblesim.counting.run import Run
from pebblesim.language import masks
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.program import fingerprint
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.lower_bounds.own import OWN
from pebblesim.sweeps import definitions, rows as sweep_rows

COMMAND = [sys.executable, "-m", "pebblesim", "sweep"]
GAMES = ["--schedule", "small-cache,row-stationary", "-n", "8,12,16", "-d", "4", "-M", "40:160:x2", "--what", "play"]


def test_idle_workers_end_after_twenty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even those of a sweep that was killed."""
    import joblib

    given: list[dict[str, Any]] = []

    def config(**settings: Any) -> contextlib.nullcontext[None]:
        given.append(settings)
        return contextlib.nullcontext()

    monkeypatch.setattr(joblib, "parallel_config", config)
    ps.sweep("small-cache", n=[8, 12], d=4, M=64, jobs=1)
    assert given == [{"backend": "loky", "idle_worker_timeout": 20}]


# -- Sizes -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(0, 400), st.integers(1, 7), st.booleans())
def test_a_range_has_the_sizes_that_a_plain_search_finds(first: int, more: int, step: int, multiply: bool) -> None:
    step += multiply
    powers = {first * step**i for i in range(12)}
    expected = [
        size for size in range(first, first + more + 1) if (size in powers if multiply else (size - first) % step == 0)
    ]
    assert list(several("n", f"{first}:{first + more}:{'x' if multiply else '+'}{step}")) == expected


def test_lists_and_ranges_mix_and_take_suffixes_and_bytes() -> None:
    assert several("n", "7, 1k:4k:x2,2^11,5") == (7, 1024, 2048, 4096, 5)
    words = several("M", "64KiB:256KiB:x2,100", lambda text: parse_words(text, "bf16"))
    assert words == (32 * 1024, 64 * 1024, 128 * 1024, 100)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "whole number"),
        ("1,,2", "whole number"),
        ("4:8", "FIRST:LAST:xFACTOR"),
        ("4:8:2", "FIRST:LAST:xFACTOR"),
        ("4:8:x2:3", "FIRST:LAST:xFACTOR"),
        ("8:4:x2", "never grows"),
        ("4:8:x1", "never grows"),
        ("4:8:+0", "whole number"),
        ("4:8:x1.5", "factor of n"),
        ("1:2^60:+1", "larger steps"),
    ],
)
def test_a_range_that_is_none_gets_a_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        several("n", text)


# -- Rows ------------------------------------------------------------------------------------------------------------


def rows(table: Table, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in table]


sizes = st.lists(st.integers(1, 70), min_size=1, max_size=3, unique=True)


@strategies.draws(4, 6)
@given(sizes, sizes, sizes, sizes, st.sampled_from([None, "causal", "window:5"]))
def test_closed_forms_are_the_counts_of_each_point(
    n: list[int], d: list[int], B_r: list[int], B_c: list[int], mask: str | None
) -> None:
    table = ps.sweep("large-cache", what="formula", n=n, d=d, blocks={"B_r": B_r, "B_c": B_c}, mask=mask)
    expected = []
    for a, b, r, c in product(n, d, B_r, B_c):
        one = ps.count("large-cache", n=a, d=b, M=1, blocks={"B_r": r, "B_c": c}, mask=mask)
        expected.append((a, b, r, c, one.reads, one.writes, one.io))
    assert rows(table, "n", "d", "block_B_r", "block_B_c", "reads", "writes", "io") == expected


@pytest.mark.one_in(4)
@strategies.draws(4, 6)
@given(
    sizes,
    sizes,
    st.lists(st.integers(1, 20_000), min_size=1, max_size=4, unique=True),
    st.sampled_from(["paper", "fit"]),
)
@example([9, 64], [3, 50], [1, 20, 4000], "paper")
@example([9, 64], [3, 50], [1, 20, 4000], "fit")
def test_blocks_by_a_rule_are_those_that_count_chooses(n: list[int], d: list[int], M: list[int], rule: str) -> None:
    names = ["large-cache", "no-cache"]
    closed = ps.sweep(names, what="formula", n=n, d=d, M=M, blocks=rule)
    counted = ps.sweep(names, n=n, d=d, M=M, blocks=rule)
    expected: list[tuple[Any, ...]] = []
    for name, a, b, c in product(names, n, d, M):
        try:
            one = ps.count(name, n=a, d=b, M=c, blocks=rule)
            expected.append((name, a, b, c, one.blocks.get("B_r"), one.io, one.peak_words, None))
        except Infeasible as error:
            expected.append((name, a, b, c, None, None, None, error.least_M))
    names = ["schedule", "n", "d", "M", "block_B_r", "io", "peak_words", "least_M"]
    assert rows(closed, *names) == expected
    assert rows(counted, *names) == expected


def test_a_game_for_each_row() -> None:
    table = ps.sweep(["small-cache", "flash"], what="play", n="8,9", d=4, M="3,40", jobs=1)
    for row in table:
        if row["M"] == 3:
            assert row["least_M"] > 3 and row["io"] is None
            continue
        played = ps.play(row["schedule"], n=row["n"], d=4, M=40)
        assert (row["io"], row["moves"], row["peak_red"]) == (played.io, played.game.moves, played.game.peak_red)
        assert row["legal"] and row["complete"] and row["passed"] and row["violation"] is None
    assert len(table) == 8


def test_an_illegal_game_is_a_row_too() -> None:
    (row,) = ps.sweep("small-cache", what="play", n=8, d=4, M=24, rules="replace", jobs=1)
    assert not row["legal"] and not row["passed"] and row["violation"].startswith("move 89: ")


def test_n_and_d_mean_the_sizes_of_another_problem() -> None:
    short = ps.sweep("matmul-tiled", n="8,16", d=3, M=50)
    named = [row for row in ps.sweep("matmul-tiled", m="8,16", k=3, n="8,16", M=50) if row["m"] == row["n"]]
    assert list(short) == named


def test_integers_stay_exact_beyond_64_bits(tmp_path: Path) -> None:
    n, B = 2**40 + 1, 129
    b_n, b_d = -(-n // B), -(-128 // B)
    io = 5 * n * 128 * b_n + n**2 * b_d + 4 * n * 128 * b_d + 2 * 128**2 * b_n + 9 * n**2 + 3 * n * 128 + 128**2
    table = ps.sweep("small-cache", what="formula", n=(64, n), d=128, blocks={"B": B}, output=tmp_path / "large.json")
    assert rows(table, "io")[1] == (io,)
    assert json.loads((tmp_path / "large.json").read_text())[1]["io"] == io > 2**64
    table.save(tmp_path / "large.csv")
    assert str(io) in (tmp_path / "large.csv").read_text()
    pytest.importorskip("pyarrow")
    with pytest.raises(UsageError, match="more than 64 bits"):
        table.save(tmp_path / "large.parquet")
    assert not (tmp_path / "large.parquet").exists()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schedules": "small-cash", "M": 9}, "small-cache"),
        ({"schedules": "matmul-tiled", "problem_name": "backward", "M": 9}, "solves 'matmul'"),
        ({"schedules": "small-cache", "M": 9, "what": "plot"}, "no kind of row"),
        ({"schedules": "small-cache"}, "M is missing"),
        ({"schedules": "small-cache", "what": "formula"}, "M is missing"),
        ({"schedules": "small-cache", "M": 9, "blocks": {"C": 2}}, "no block of small-cache"),
        ({"schedules": "small-cache", "M": 9, "blocks": "fitt"}, "no block rule"),
        ({"schedules": "small-cache", "M": (), "blocks": "fit"}, "no sizes were given for M"),
        ({"schedules": "small-cache", "M": 9, "output": "out.xlsx"}, ".csv, .json, .parquet"),
        ({"schedules": "small-cache", "M": "1:2^20:+1", "n": "1:32:+1"}, "a sweep has 10,000,000 at most"),
        ({"schedules": "small-cache", "M": 99, "mask": "casual"}, "is not known"),
        ({"schedules": "small-cache", "M": 99, "dask": "nowhere:x"}, "Dask"),
    ],
)
def test_bad_input_gets_a_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ps.sweep(**{"n": 8, "d": 4, **options})


# -- Files -----------------------------------------------------------------------------------------------------------


def test_the_same_table_in_three_formats(tmp_path: Path) -> None:
    table = ps.sweep(["small-cache", "no-cache", "flash"], n="8,16", d=4, M="3,100", output=tmp_path / "a.csv")
    expected = list(table)
    with (tmp_path / "a.csv").open(newline="") as file:
        texts = list(csv.DictReader(file))
    assert [list(row) for row in texts] == [list(expected[0])] * len(expected)
    for row, text in zip(expected, texts, strict=True):
        for name, value in row.items():
            shown = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            assert text[name] == shown
    table.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == expected
    parquet = pytest.importorskip("pyarrow.parquet")
    table.save(tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == expected


def test_parquet_without_its_library_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match="needs pyarrow: pip install pyarrow"):
        ps.sweep("small-cache", n=8, d=4, M=99, output=tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_written_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    out.write_text("the old one")

    def breaks(table: Table, path: Path) -> None:
        path.write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(tables.WRITERS, ".json", breaks)
    with pytest.raises(UsageError, match="No space left"):
        ps.sweep("small-cache", n=8, d=4, M=99, output=out)
    assert out.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.sqlite"]


# -- The store -------------------------------------------------------------------------------------------------------


def stored(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    file = sqlite3.connect(path)
    try:
        return {key: json.loads(row) for key, row in file.execute("SELECT key, row FROM rows")}
    except sqlite3.OperationalError:  # no table yet
        return {}
    finally:
        file.close()


def test_a_row_that_is_there_is_not_computed_again(tmp_path: Path) -> None:
    store = tmp_path / "rows.sqlite"
    small = ps.sweep("small-cache", n=8, d=4, M="24,64", store=store)
    file = sqlite3.connect(store)
    file.execute("""UPDATE rows SET row = json_set(row, '$.io', -1)""")
    file.commit()
    file.close()
    assert rows(ps.sweep("small-cache", n=8, d=4, M="24,64,99", store=store), "io")[:2] == [(-1,), (-1,)]
    assert rows(ps.sweep("small-cache", n=8, d=4, M="24,64"), "io") == rows(small, "io")
    assert len(stored(store)) == 3


@pytest.mark.one_in(2)
def test_rows_of_different_meaning_never_mix(tmp_path: Path) -> None:
    store = tmp_path / "rows.sqlite"

    def mine(columns: int) -> Any:
        @ps.schedule(problem="matmul", source="test", name="sweep-test")
        def schedule(m: Any, A: Any, B: Any, *, b: Any) -> None:
            rows, cols = A.shape[0], B.shape[1]
            C = m.tensor("C", rows, cols)
            for i in m.tiles(rows, b):
                A_i = m.read(A[i, :])
                for j in m.tiles(cols, columns):
                    m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))

        return schedule

    def of_pairs(skips: bool) -> Any:
        """Two that read alike and differ in what they leave out under a mask."""

        @ps.schedule(problem="forward-relu", source="test", name="sweep-test-of-pairs")
        def schedule(m: Any, Q: Any, K: Any, V: Any, *, b: Any) -> None:
            n, d = Q.shape
            O = m.tensor("O", n, d)
            for i in m.tiles(n, b):
                Q_i, O_i = m.read(Q[i, :]), m.zeros(i, d)
                for j in m.tiles(n, b, keys_of=i if skips else None):
                    K_j, V_j = m.read(K[j, :]), m.read(V[j, :])
                    A = m.compute(Q_i @ K_j.T)
                    A[:] = ps.language.relu(A)
                    O_i += A @ V_j
                m.write(O[i, :], O_i)

        return schedule

    def table() -> np.ndarray[Any, Any]:
        return np.tri(4, dtype=bool)

    base: dict[str, Any] = {"n": 8, "d": 4, "M": 99, "store": store}
    kinds: list[dict[str, Any]] = [
        {"schedules": "small-cache"},
        {"schedules": "small-cache", "n": 9},
        {"schedules": "small-cache", "d": 5},
        {"schedules": "small-cache", "M": 98},
        {"schedules": "small-cache", "blocks": {"B": 4}},
        {"schedules": "small-cache", "blocks": "paper"},
        {"schedules": "small-cache", "summation": "balanced"},
        {"schedules": "small-cache", "mask": "causal"},
        {"schedules": "small-cache", "mask": masks.from_array(table(), "one")},
        {"schedules": "small-cache", "mask": masks.from_array(~table(), "one")},
        {"schedules": "small-cache", "what": "play", "jobs": 1},
        {"schedules": "small-cache", "what": "play", "jobs": 1, "rules": "no-recompute"},
        {"schedules": mine(1)},
        {"schedules": mine(2)},
        {"schedules": of_pairs(True), "mask": "causal", "blocks": {"b": 2}},
        {"schedules": of_pairs(False), "mask": "causal", "blocks": {"b": 2}},
    ]
    for number, kind in enumerate(kinds, 1):
        for _ in range(2):
            ps.sweep(**(base | kind))
            assert len(stored(store)) == number, kind


def test_rows_of_other_source_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "rows.sqlite"
    for number, of in enumerate(("the package as it is", "another source"), 1):
        if number == 2:
            monkeypatch.setattr(definitions, "package", lambda of=of: of)
        for _ in range(2):
            ps.sweep("small-cache", n=8, d=4, M=99, store=store)
            assert len(stored(store)) == number


def test_a_program_is_the_same_wherever_it_stands() -> None:
    """Line numbers are no part of what it says; each name, size, condition and order is."""

    def traced(text: str, above: int = 0) -> str:
        names: dict[str, Any] = {"ps": ps}
        exec("\n" * above + text, names)
        return fingerprint(names["mine"].program)

    text = """
@ps.schedule(problem="matmul", source="test", name="fingerprint-test")
def mine(m, A, B, *, b):
    rows, cols = A.shape[0], B.shape[1]
    C = m.tensor("C", rows, cols)
    for i in m.tiles(rows, b):
        A_i = m.read(A[i, :])
        for j in m.tiles(cols, 1):
            B_j = m.read(B[:, j])
            C_ij = m.compute(A_i @ B_j)
            m.write(C[i, j], C_ij)
"""
    assert traced(text) == traced(text, above=3)
    others = [text.replace("cols, 1)", "cols, b)"), text.replace("cols, 1)", "cols, 1, independent=True)")]
    others += [text.replace("            m.write", "            m.delete(B_j)\n            m.write")]
    assert len({traced(each) for each in (text, *others)}) == 4


SCORES = (
    """
import cloudpickle
import numpy as np
import pebblesim as ps
from pebblesim.graphs.builder import Builder, whole

SHIFT = 0.0


def exponential(x):
    return np.exp(x)


def reference(x):
    return {"E": exponential(x["Q"] @ x["K"].T) + SHIFT}
"""
    + GRAPH
    + """

ps.problem(
    "scores",
    dims=("n", "d"),
    from_nd={"n": "n", "d": "d"},
    inputs={"Q": ("n", "d"), "K": ("n", "d")},
    outputs={"E": ("n", "n")},
    values=reference,
    source="mine",
    graph=declare,
    theta=ps.Theta("n**2 + n**2*d/sqrt(M)", "mine"),
)
"""
    + SCHEDULE
)


@pytest.fixture
def scores(tmp_path: Path) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Sweeps a problem of the reader's own by the command, after a change of its file; the rows, by a common store."""

    def swept(*change: str, what: str = "play", more: str = "") -> list[dict[str, Any]]:
        text = SCORES.replace(*change) if change else SCORES
        assert not change or text != SCORES
        (tmp_path / "mine.py").write_text(text + more)
        options = f"-s tile-by-tile -n 3 -d 2 -M 20 --what {what} --jobs 1 --json --store {tmp_path / 'rows.sqlite'}"
        found = CliRunner().invoke(app, ["--load", str(tmp_path / "mine.py"), "sweep", *options.split()])
        if isinstance(found.exception, PebblesimError):
            raise found.exception
        return json.loads(found.stdout)["rows"]

    bounds = dict(OWN)
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        yield swept
    OWN.clear()
    OWN.update(bounds)


@pytest.mark.one_in(2)
def test_a_changed_reference_is_played_again(scores: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> None:
    """Also if what changes is a function or a number that the reference uses, or the graph."""
    assert [row["passed"] for row in scores()] == [True]
    assert [row["passed"] for row in scores(more="# a comment")] == [True]
    assert len(stored(tmp_path / "rows.sqlite")) == 1
    for number, change in enumerate(
        (
            ('{"E": exponential(x["Q"] @ x["K"].T) + SHIFT}', '{"E": exponential(x["Q"] @ x["K"].T) + SHIFT + 1}'),
            ("return np.exp(x)", "return np.exp(x) + 1"),
            ("SHIFT = 0.0", "SHIFT = 1.0"),
        ),
        2,
    ):
        assert [row["passed"] for row in scores(*change)] == [False], change
        assert len(stored(tmp_path / "rows.sqlite")) == number
    with pytest.raises(UsageError, match="need another graph"):
        scores('b.elementwise("E", "exp", "S")', 'b.elementwise("E", "relu", "S")')
    assert [row["passed"] for row in scores()] == [True]


@pytest.mark.one_in(2)
def test_a_changed_theta_or_bound_is_counted_again(scores: Callable[..., list[dict[str, Any]]]) -> None:
    (first,) = scores(what="count")
    (doubled,) = scores('"n**2 + n**2*d/sqrt(M)"', '"2*n**2 + 2*n**2*d/sqrt(M)"', what="count")
    assert doubled["bound_ratio"] == pytest.approx(first["bound_ratio"] / 2)
    own = '@ps.bound(problem="scores")\ndef reads(n, d, M):\n    return n * n + 2 * n * d\n'
    (bounded,) = scores(what="count", more=own)
    assert len(OWN) and bounded["gap"] <= first["gap"]
    OWN.clear()
    (again,) = scores(what="count")
    assert again == first


@pytest.mark.one_in(2)
def test_a_definition_says_what_a_function_uses(tmp_path: Path) -> None:
    (tmp_path / "of_mine.py").write_text("FACTOR = 1\n")

    def defined(text: str, **known: Any) -> str:
        exec(text, names := {"__name__": "of_mine", "np": np, **known})
        return definitions.definition(names["f"])

    texts = [
        "def f(x): return x",
        "def f(x): return x + 1",
        "def f(x, y=1): return x",
        "def f(x, *, y=1): return x",
        "def g(y): return lambda x: x + y\nf = g(1)",
        "def g(y): return lambda x: x + y\nf = g(2)",
        "A = np.arange(3)\ndef f(x): return A",
        "A = np.arange(4)\ndef f(x): return A",
        "def f(x): return h(x)\ndef h(x): return f(x) if x else 0",
        "def f(x): return h(x)\ndef h(x): return f(x) if x else 1",
        "class C:\n    @property\n    def a(self): return 1\ndef f(x): return C().a",
        "class C:\n    @property\n    def a(self): return 2\ndef f(x): return C().a",
        "from functools import cache\n@cache\ndef h(x): return 1\ndef f(x): return h(x)",
        "from functools import cache\n@cache\ndef h(x): return 2\ndef f(x): return h(x)",
        "from functools import partial\ndef h(x, y): return y\nf = partial(h, y=1)",
        "from functools import partial\ndef h(x, y): return y\nf = partial(h, y=2)",
        "def f(x): return [y + 1 for y in x]",
        "def f(x): return [y + 2 for y in x]",
        "def f(x): return np.exp(x)",
        "def f(x): return np.log(x)",
    ]
    assert len({defined(text) for text in texts}) == len(texts)
    assert [defined(text) for text in texts] == [defined(f"\n\n{text}") for text in texts]
    hashes = []
    for seed, text in (("1", "FACTOR = 1\n"), ("2", "FACTOR = 1\n"), ("3", "FACTOR = 2\n")):
        (tmp_path / "of_mine.py").write_text(text)
        code = (
            "from pebblesim.sweeps.definitions import definition\ndef f(x):\n import of_mine\n return x in {'a', 'b'}\n"
        )
        where = environment() | {"PYTHONHASHSEED": seed}
        where["PYTHONPATH"] += os.pathsep + str(tmp_path)
        run = [sys.executable, "-c", f"{code}print(definition(f, {{'a', 'b'}}))"]
        hashes.append(subprocess.run(run, env=where, capture_output=True, text=True, check=True).stdout)
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.one_in(2)
def test_another_process_knows_a_problem_and_bounds_of_the_readers_own(
    scores: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is sent enough, although it has not run the file."""
    more = '@ps.bound(problem="scores")\ndef reads(n, d, M):\n    return n * n + 2 * n * d\n'
    sent: list[bytes] = []
    work = sweep_rows._work
    monkeypatch.setattr(sweep_rows, "_work", lambda *task: sent.append(cloudpickle.dumps(task)) or work(*task))
    expected = [*scores(more=more), *scores(what="count", more=more)]
    del PROBLEMS["scores"], SCHEDULES["tile-by-tile"]
    OWN.clear()
    for task, row in zip(sent, expected, strict=True):
        _, found, failure = work(*cloudpickle.loads(task))
        assert found is not None, failure
        assert {name: row[name] for name in found if name in row and name != "blocks"} == {
            name: value for name, value in found.items() if name in row and name != "blocks"
        }
        assert "reads" in OWN
        OWN.clear()


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    other, text = tmp_path / "other.sqlite", tmp_path / "text.sqlite"
    file = sqlite3.connect(other)
    file.execute("CREATE TABLE mine (x)")
    file.close()
    text.write_text("no database " * 100)
    before = other.read_bytes()
    with pytest.raises(UsageError, match="SQLite file of another program"):
        ps.sweep("small-cache", n=8, d=4, M=99, store=other)
    assert other.read_bytes() == before
    with pytest.raises(UsageError, match="not a database"):
        ps.sweep("small-cache", n=8, d=4, M=99, store=text)
    with pytest.raises(UsageError, match="unable to open"):
        ps.sweep("small-cache", n=8, d=4, M=99, store=tmp_path / "missing" / "rows.sqlite")


def test_a_damaged_store_and_a_store_in_the_place_of_the_table_are_refused(tmp_path: Path) -> None:
    store = tmp_path / "rows.sqlite"
    ps.sweep("small-cache", n=8, d=4, M=99, store=store)
    file = sqlite3.connect(store)
    file.execute("UPDATE rows SET row = 'half of a row'")
    file.commit()
    file.close()
    with pytest.raises(UsageError, match=r"rows in .*rows\.sqlite' cannot be read: Expecting value"):
        ps.sweep("small-cache", n=8, d=4, M=99, store=store)
    with pytest.raises(UsageError, match=r"would both be .*a\.csv'; give the store another name"):
        ps.sweep("small-cache", n=8, d=4, M=99, output=tmp_path / "a.csv", store=tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()


def test_a_row_that_cannot_be_computed_does_not_cost_the_others(tmp_path: Path) -> None:
    out, store = tmp_path / "a.csv", tmp_path / "a.sqlite"
    with pytest.raises(UsageError, match=r"1 of 3 rows could not be computed; the others are kept in .*memory"):
        ps.sweep("small-cache", what="play", n=(8, 2**16, 9), d=4, M=99, jobs=1, output=out)
    assert not out.exists()
    assert len(stored(store)) == 2


# -- Stopped and going on --------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(ps.__file__).parent.parent)]))}


def uninterrupted(output: Path) -> None:
    """Run the sweep of `killed_after` in one go, on one core."""
    names, M = ["small-cache", "row-stationary"], (40, 80, 160)
    ps.sweep(names, what="play", n=(8, 12, 16), d=4, M=M, jobs=1, output=output)


def killed_after(folder: Path, rows: int, *options: str) -> dict[str, dict[str, Any]]:
    """Start the sweep, kill it without warning once so many rows are kept; the rows."""
    folder.mkdir()
    sweep = subprocess.Popen([*COMMAND, *GAMES, "-o", "games.csv", *options], cwd=folder, env=environment())
    while len(stored(folder / "games.sqlite")) < rows:
        assert sweep.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()
    assert not (folder / "games.csv").exists()
    return stored(folder / "games.sqlite")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_sweep_that_is_killed_goes_on_and_ends_in_the_same_file(jobs: str, tmp_path: Path) -> None:
    kept = killed_after(tmp_path / "killed", 3, "--jobs", jobs)
    assert 3 <= len(kept) < 18
    with contextlib.chdir(tmp_path / "killed"):
        resumed = CliRunner().invoke(app, [*COMMAND[3:], *GAMES, "-o", "games.csv", "--jobs", jobs])
    assert (resumed.stdout, resumed.stderr) == ("written games.csv: 18 rows\n", "")  # no progress bar
    uninterrupted(tmp_path / "whole.csv")
    whole = stored(tmp_path / "whole.sqlite")
    assert kept.items() <= whole.items()
    assert stored(tmp_path / "killed" / "games.sqlite") == whole
    assert (tmp_path / "killed" / "games.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


MINE = """
import pebblesim as ps

@ps.schedule(problem="matmul", source="mine")
def mine(m, A, B, *, b: ps.Block):
    rows, terms = A.shape
    terms, columns = B.shape
    C = m.tensor("C", rows, columns)
    for i in m.tiles(rows, b):
        A_i = m.read(A[i, :])
        for j in m.tiles(columns, 1):
            m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "name"), [(MINE, "mine"), (SCORES, "tile-by-tile")])
def test_other_processes_know_what_is_the_readers_own(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    for jobs in "1", "2":
        command = [sys.executable, "-m", "pebblesim", "--load", "mine.py", "sweep", "-s", name, "-n", "8,16,24"]
        command += ["-d", "4", "-M", "40,80", "--what", "play", "--jobs", jobs, "-o", f"{jobs}.csv"]
        subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=300)
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


CLUSTER = """
import sys
from distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, scheduler_port=0) as cluster:
        with Client(cluster) as client:
            pids = client.run(__import__("os").getpid)
            print(cluster.scheduler_address, *pids.values(), flush=True)
            sys.stdin.read()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """The address of a Dask cluster of two workers, and the workers' process numbers."""
    pytest.importorskip("distributed")
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        text=True,
    ) as process:
        assert process.stdout and process.stdin
        address, *pids = process.stdout.readline().split()
        yield address, list(map(int, pids))
        process.stdin.close()
        process.wait(timeout=60)


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_computes_the_same_rows(cluster: tuple[str, list[int]], tmp_path: Path) -> None:
    address, (first, second) = cluster
    assert first != second
    folder = tmp_path / "cluster"
    folder.mkdir()
    sweep = subprocess.Popen([*COMMAND, *GAMES, "-o", "games.csv", "--dask", address], cwd=folder, env=environment())
    while len(stored(folder / "games.sqlite")) < 3:
        assert sweep.poll() is None, "it ended before a worker could be killed"
        time.sleep(0.005)
    os.kill(first, signal.SIGKILL)
    assert sweep.wait(timeout=300) == 0
    uninterrupted(tmp_path / "here.csv")
    assert (folder / "games.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_no_scheduler_at_an_address_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(sweep_rows, "PATIENCE", 0.5)
    with pytest.raises(UsageError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:9'"):
        ps.sweep("small-cache", n=8, d=4, M=99, dask="tcp://127.0.0.1:9")


def test_a_worker_of_another_version_computes_nothing() -> None:
    point = sweep_rows.Point("count", Run.of("small-cache", {"n": 8, "d": 4}, M=99), "hong-kung", "")
    _, row, failure = sweep_rows._work("0.0.0", point.key(), point, sweep_rows.Own((), ()))
    assert row is None and "install the same" in failure


def test_a_built_in_schedule_travels_by_its_name() -> None:
    for schedule in (get("flash2-forward"), get("flash2-forward").in_dims(("n_q", "n_k", "d_k", "d_v"))):
        sent = pickle.dumps(schedule)
        assert pickle.loads(sent) is schedule and len(sent) < 200
