"""What docs/extending.md promises: a schedule, a problem, its graph and a bound take one file, and little is asked."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pebblesim as ps
from pebblesim.cli import main as cli
from pebblesim.language.problems import PROBLEMS

Run = Callable[[str], tuple[int, str, str]]

BARE = '''
import pebblesim as ps

ps.problem(
    "sum-of-vectors",
    dims=("rows",),
    from_nd={"rows": "n"},
    inputs={"a": ("rows",), "b": ("rows",)},
    outputs={"y": ("rows",)},
    values=lambda x: {"y": x["a"] + x["b"]},
    source="mine",
)


@ps.schedule(problem="sum-of-vectors", source="mine", io="3*rows")
def adding(m, a, b, *, w: ps.Block):
    """Words of a and b, w at a time."""
    (rows,) = a.shape
    y = m.tensor("y", rows)
    for i in m.tiles(rows, w):
        m.write(y[i], m.compute(m.read(a[i]) + m.read(b[i])))
'''

WHOLE = '''
import numpy as np

import pebblesim as ps
from pebblesim.graphs.builder import Builder, whole
from pebblesim.lower_bounds.cutting import Bounding
from pebblesim.lower_bounds.instances import Product


def declare(n, d, summation="chain"):
    n, d = whole("n", n), whole("d", d)
    b = Builder(summation)
    b.outputs = ("E",)
    b.input("Q", (n, d))
    b.input("K", (n, d))
    b.matmul("S", "Q", "K.T")
    b.elementwise("E", "exp", "S")
    return b


def claims(case):
    """The tree of a score and its exponential, which is written, are one family, as an element of a product is."""
    yield case.of_products("mine", "products of scores", [Product("E", "Q", "K", ("queries", "d", "keys"))])


ps.problem(
    "scores",
    dims=("n", "d"),
    from_nd={"n": "n", "d": "d"},
    inputs={"Q": ("n", "d"), "K": ("n", "d")},
    outputs={"E": ("n", "n")},
    queries=("Q",),
    keys=("K",),
    values=lambda x: {"E": np.exp(x["Q"] @ x["K"].T)},
    source="mine",
    graph=declare,
    theta=ps.Theta("n**2 + d*n**2/sqrt(M)", "mine"),
    bounds=Bounding(("Q", "K", "E"), claims, proofs="my paper"),
)


@ps.schedule(problem="scores", source="mine", io="2*n*d*ceiling(n/B) + n**2")
def tile_by_tile(m, Q, K, *, B: ps.Block):
    """A tile of E stays; columns of Q and K pass by."""
    n, d = Q.shape
    E = m.tensor("E", n, n)
    for i in m.tiles(n, B):
        for j in m.tiles(n, B):
            E_ij = m.zeros(i, j)
            for k in m.tiles(d, 1):
                E_ij += m.read(Q[i, k]) @ m.read(K[j, k]).T
            E_ij[:] = ps.exp(E_ij)
            m.write(E[i, j], E_ij)
'''


@pytest.fixture
def pebblesim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run a command after the file `own.py`."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pebblesim", "--load", "own.py", *line.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *capsys.readouterr()

    return run


ANSWERED = {
    "list": "sum-of-vectors: a, b → y",
    "count adding --size rows=100 -M 30": "Θ: not stated for sum-of-vectors",
    "count -p sum-of-vectors --size rows=100 -M 30": "1.00",
    "count adding --size rows=100 -M 30 --json": '"bound": null',
    "count -p sum-of-vectors -n 100 -d 1 -M 30": "300",
    "formula adding": "3·rows",
    "show adding": "for i in tiles of rows by w:",
    "bounds -p sum-of-vectors --size rows=100 -M 30": "compulsory",
    "bounds -p sum-of-vectors --size rows=100": "compulsory",
    "gaps -p sum-of-vectors --size rows=9": "compulsory",
    "sweep -s adding --size rows=5,6 -M 9": "18",
    "advise -p sum-of-vectors --size rows=10 --gpu A100": "adding",
    "plot words adding --size rows=10 -M 9 -o a.png": "written a.png",
    "plot skislope -p sum-of-vectors --size rows=10 -M 5:90 -o a.png": "written a.png",
    "gpu emit adding --size rows=10 -M 9": "__global__",
}

WITHOUT_GRAPH = (
    "play adding --size rows=10 -M 9",
    "watch adding --size rows=10 -M 9 -o a.html",
    "graph sum-of-vectors --size rows=10",
    "optimum sum-of-vectors --size rows=2 -M 4",
    "plot tiles adding --size rows=10 -M 9 -o a.png",
    "plot occupancy adding --size rows=10 -M 9 -o a.png",
    "plot graph adding --size rows=10 -M 9 -o a.png",
)


@pytest.mark.parametrize("line", ANSWERED)
def test_what_is_not_known_of_a_problem_is_left_out(pebblesim: Run, line: str) -> None:
    Path("own.py").write_text(BARE, encoding="utf-8")
    code, out, err = pebblesim(line)
    assert (code, err) == (0, "")
    assert ANSWERED[line] in out


@pytest.mark.parametrize("line", WITHOUT_GRAPH)
def test_without_a_graph_there_is_no_game(pebblesim: Run, line: str) -> None:
    Path("own.py").write_text(BARE, encoding="utf-8")
    missing = "error: problem 'sum-of-vectors' has no graph; declare one with the problem, see docs/extending.md.\n"
    assert pebblesim(line) == (2, "", missing)


def test_one_file_has_a_problem_its_graph_a_bound_and_a_schedule(pebblesim: Run) -> None:
    Path("own.py").write_text(WHOLE, encoding="utf-8")
    code, out, _ = pebblesim("play tile-by-tile -n 5 -d 3 -M 40")
    assert code == 0
    assert "legal and complete" in out
    assert "values    the graph's outputs and the schedule's own equal the reference" in out
    code, out, _ = pebblesim("bounds -p scores -n 512 -d 256 -M 1024")
    assert code == 0
    assert "products of scores (my paper)" in out
    rng = np.random.default_rng(0)
    x = {"Q": rng.standard_normal((7, 2)), "K": rng.standard_normal((7, 2))}
    E = ps.numbers("tile-by-tile", n=7, d=2, M=20, inputs=x)["E"]
    np.testing.assert_allclose(E, PROBLEMS["scores"].reference(x)["E"])
    for n, d, M in [(512, 256, 1024), (64, 64, 100), (9, 9, 12), (2, 40, 6)]:
        counted = ps.count("tile-by-tile", n=n, d=d, M=M, blocks="best")
        assert counted.io >= counted.lower_bound.value
    assert ps.count("tile-by-tile", n=512, d=256, M=1024).lower_bound.name == "mine"


def test_a_bound_of_ones_own_holds_for_the_best_games(pebblesim: Run) -> None:
    Path("own.py").write_text(WHOLE, encoding="utf-8")
    pebblesim("list")
    for n, d, M in [(1, 1, 4), (2, 1, 4), (2, 2, 4), (2, 2, 6), (1, 4, 4)]:
        bound = next(each for each in ps.bounds("scores", n=n, d=d, M=M).lower if each.name == "mine")
        assert ps.optimum("scores", n=n, d=d, M=M).io >= bound.value


def test_a_problem_may_be_declared_again_where_it_was_and_nowhere_else() -> None:
    for _ in range(2):
        exec(compile(BARE, "mine.py", "exec"), {"__name__": "mine"})
    with pytest.raises(ps.UsageError, match="there is a problem 'sum-of-vectors' already"):
        exec(compile(BARE, "yours.py", "exec"), {"__name__": "yours"})
    with pytest.raises(ps.UsageError, match="there is a problem 'matmul' already"):
        exec(compile(BARE.replace("sum-of-vectors", "matmul"), "mine.py", "exec"), {"__name__": "mine"})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            '{"rows": "n"}',
            '{"rows": "rows"}',
            r"from_nd must give n or d for each dimension \(rows\); it was",
        ),
        ('{"rows": "n"}', '{"n": "n"}', r"from_nd must give n or d for each dimension"),
        ('{"y": ("rows",)}', '{"y": ("row",)}', "no dimension of problem .*, in the shape of y, is called 'row'"),
        ("source=", "sauce=", "problem 'sum-of-vectors': .*'sauce'; it takes dims"),
        ('source="mine",\n)', 'source="mine",\n    bounds="mine",\n)', "no bounds that problem .* is called 'mine'"),
    ],
)
def test_what_a_problem_cannot_say_of_itself(old: str, new: str, says: str) -> None:
    with pytest.raises(ps.UsageError, match=says):
        exec(compile(BARE.replace(old, new), "mine.py", "exec"), {"__name__": "mine"})
        ps.bounds("sum-of-vectors", rows=3, M=9)
