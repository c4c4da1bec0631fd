"""The promises of docs/extending.md: a schedule, a problem, a graph and a bound take one file, little is asked."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle_loops
import pytest
from checkout import ROOT
from own_problem import GRAPH, SCHEDULE

import pebblesim as ps
from pebblesim.analysis import count
from pebblesim.cli import main as cli
from pebblesim.core.errors import UsageError
from pebblesim.counting.checked_theta import _check
from pebblesim.language.problems import PROBLEMS, problem
from pebblesim.language.registry import SCHEDULES
from pebblesim.lower_bounds.bounds import BOUNDS, lower_bounds
from pebblesim.lower_bounds.cutting import Bounding
from pebblesim.lower_bounds.instances import Product

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

WHOLE = (
    """
import numpy as np

import pebblesim as ps
from pebblesim.graphs.builder import Builder, whole
from pebblesim.lower_bounds.cutting import Bounding
from pebblesim.lower_bounds.instances import Product
"""
    + GRAPH
    + '''


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
'''
    + SCHEDULE
)


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
    "gaps -p sum-of-vectors --size rows=9": "27            27   1.000",
    "gaps -p sum-of-vectors --size rows=9 --wide": "compulsory",
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


@pytest.mark.one_in(3)
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


def test_bounds_that_return_a_claim_instead_of_yielding_it_are_refused() -> None:
    solves = problem("matmul")
    one = [Product("C", "A", "B", ("m", "k", "n"))]
    returned = Bounding(("A", "B", "C"), lambda case: case.of_products("mine", "products", one))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the bounds of problem 'matmul' are one claim; `yield` it"):
        lower_bounds(replace(solves, bounds=returned), {"m": 4, "k": 4, "n": 4}, 16)


HEADS = BARE.replace('("rows",),\n    from_nd={"rows": "n"}', '("h", "rows"),\n    from_nd={"h": "n", "rows": "n"}')
HEADS = HEADS.replace(': ("rows",)}', ': ("h", "rows")}').replace('"a": ("rows",)', '"a": ("h", "rows")')
HEADS = HEADS.partition("\n\n@ps.schedule")[0]


@pytest.mark.parametrize(
    ("theta", "says"),
    [
        ("rows", r"it is 16,777,216 words, where every game moves at least 844,424,930,131,968 words \(compulsory\)"),
        ("h*rows + h*rows**2/M", None),
        ("h*rows", None),
        ("h*rows/sqrt(M)", "is not one: with h = .* every game moves at least"),
        ("h*rows - rows**2", "is not one: with .* every game moves a word"),
    ],
)
def test_a_theta_that_bounds_outgrow_is_refused(theta: str, says: str | None) -> None:
    """Without h it is below the words of all inputs, ever further with more heads."""
    text = HEADS.replace("source=", f'theta=ps.Theta("{theta}", "mine"), source=')
    with PROBLEMS.temporary():
        exec(compile(text, "mine.py", "exec"), {"__name__": "mine"})
        if says is None:
            assert ps.bounds("sum-of-vectors", h=64, rows=4096, M=100).best.value == 3 * 64 * 4096
            return
        with pytest.raises(ps.UsageError, match=says):
            ps.bounds("sum-of-vectors", h=64, rows=4096, M=100)


@pytest.mark.parametrize(
    "asked", [lambda: ps.count("adding", rows=9, M=9), lambda: ps.compare("sum-of-vectors", rows=9, M=9)]
)
def test_a_theta_that_a_schedule_undercuts_is_refused(asked: Callable[[], object]) -> None:
    text = BARE.replace("source=", 'theta=ps.Theta("rows**2", "mine"), source=', 1)
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        exec(compile(text, "mine.py", "exec"), {"__name__": "mine"})
        with pytest.raises(ps.UsageError, match=r"with rows = 16,777,216 .* where adding moves 50,331,648 words"):
            asked()


def test_a_bound_for_every_way_above_a_count_is_refused_where_it_is_printed() -> None:
    """A thousand times the products of scores are more than they are; the tiles of the schedule show it."""
    claimed = '[Product("E", "Q", "K", ("queries", "d", "keys"))])'
    assert claimed in WHOLE
    text = WHOLE.replace(claimed, f"{claimed}._replace(products=1000 * 512**2 * 256)")
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        exec(compile(text, "mine.py", "exec"), {"__name__": "mine"})
        with pytest.raises(ps.UsageError, match=r"mine gives .* words for scores with n = 512, .* tile-by-tile with"):
            ps.bounds("scores", n=512, d=256, M=1024)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, each in PROBLEMS.items() if each.theta])
def test_every_theta_that_ships_would_pass(name: str) -> None:
    for solves in (PROBLEMS[name], PROBLEMS[name].rectangle):
        if solves is not None and solves.theta is not None:
            _check(solves, solves.theta)


@pytest.mark.parametrize("name", [name for name, each in PROBLEMS.items() if each.theta])
def test_a_theta_as_it_is_printed_has_the_value_that_is_divided_by(name: str) -> None:
    """Its signs, read by Python with floats, against decimals for the text of the problem."""
    for solves in (PROBLEMS[name], PROBLEMS[name].rectangle):
        if solves is None or solves.theta is None:
            continue
        for theta in (solves.theta, solves.theta.of_pairs()):
            sizes = dict(zip((*solves.dims, "M", "Z"), (101, 67, 53, 29, 23, 19, 17), strict=False))
            text = theta.written.translate({ord("·"): "*", ord("²"): "**2", ord("³"): "**3"})
            assert "Min(" not in theta.written and "**" not in theta.written
            value = eval(text.replace("√M", "M**0.5"), {"min": min, "max": max}, dict(sizes))
            assert value == pytest.approx(float(theta.value(sizes)), rel=1e-12)


def test_a_bound_on_a_problem_with_dimensions_of_its_own_is_among_those_that_are_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two products that share a hidden layer of h columns, the last problem that is known."""
    table = [Product("A", "X", "V", ("n", "d", "h")), Product("Y", "A", "W", ("n", "h", "d"))]
    bounding = Bounding(("X", "V", "W", "Y"), lambda case: iter([case.of_products("M1", "both products", table)]))
    monkeypatch.setitem(BOUNDS, "layer", bounding)
    problem(
        "layer",
        dims=("n", "d", "h"),
        from_nd={"n": "n", "d": "d", "h": "d"},
        inputs={"X": ("n", "d"), "V": ("d", "h"), "W": ("h", "d")},
        outputs={"Y": ("n", "d")},
        values=lambda x: {"Y": x["X"] @ x["V"] @ x["W"]},
        source="mine",
        bounds="layer",
    )
    (row,) = ps.verify("capacities").rows
    assert row.agrees and row.evidence.endswith("M1 of layer: A private")


# -- in pebblesim itself ----------------------------------------------------------------------------------------------


def imports(source: str) -> set[str]:
    """Modules that the top of a text imports."""
    nodes = ast.parse(source).body
    froms = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return froms | {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}


def test_the_example_can_stand_in_a_file_of_schedules_as_it_is() -> None:
    """It had `import pebblesim as ps`, which the test of the layout refuses there."""
    document = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    example = document.partition("```python\n")[2].partition("import numpy")[0]
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "schedules").glob("*.py")]
    assert "@schedule(" in example and imports(example) <= set().union(*map(imports, files))


FOUND = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pebblesim.language.registry import SCHEDULES

folder = sys.argv[1]
spec = spec_from_file_location("pebblesim.schedules", f"{folder}/__init__.py", submodule_search_locations=[folder])
sys.modules["pebblesim.schedules"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["pebblesim.schedules"])
print(SCHEDULES["found-here"].source)
"""


def test_a_file_of_schedules_is_found_without_a_line_elsewhere(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "schedules", tmp_path / "schedules")
    mine = "from pebblesim.language.registry import schedule\n\n\n"
    mine += "@schedule(problem='matmul', source='mine')\ndef found_here(m, A, B):\n    pass\n"
    (folder / "mine.py").write_text(mine)
    ran = subprocess.run([sys.executable, "-c", FOUND, folder], capture_output=True, text=True, check=False)
    assert ran.stdout == "mine\n", ran.stderr


STATED = "2*n*d*ceiling(n/B) + n**2"


@pytest.mark.parametrize(
    "io", ["2*n*d*n/B + n**2", "2*n*d*ceiling(n/B)", "2*n*d*ceiling(n/B) + n**2 + 1", "2*n*d**2 + n**2"]
)
def test_a_stated_io_that_is_not_what_is_moved_is_refused(pebblesim: Run, io: str) -> None:
    assert WHOLE.count(STATED) == 1
    Path("own.py").write_text(WHOLE.replace(STATED, io), encoding="utf-8")
    code, out, err = pebblesim("formula tile-by-tile")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: schedule 'tile-by-tile' states io='{io}', which is ")
    said = re.search(r"which is (\S+) words at (.+), but it moves ([\d,]+); correct it", " ".join(err.split()))
    assert said is not None
    sizes = {name: int(size) for name, size in re.findall(r"(\w+) = (\d+)", said[2])}
    moved = oracle_loops.stated(STATED, sizes)
    assert moved == int(said[3].replace(",", "")) != oracle_loops.stated(io, sizes)


def test_a_stated_io_that_is_moved_is_silent(pebblesim: Run) -> None:
    Path("own.py").write_text(WHOLE, encoding="utf-8")
    code, out, err = pebblesim("formula tile-by-tile")
    assert (code, err) == (0, "") and "n²" in out


def test_a_stated_io_is_compared_once_and_another_one_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with SCHEDULES.temporary():

        @ps.schedule(problem="matmul", source="mine", io="m*n*(2*k + 1)")
        def word_by_word(m: Any, A: Any, B: Any) -> None:
            C = m.tensor("C", A.shape[0], B.shape[1])
            for i in m.tiles(A.shape[0], 1):
                for j in m.tiles(B.shape[1], 1):
                    C_ij = m.zeros(i, j)
                    for k in m.tiles(A.shape[1], 1):
                        C_ij += m.read(A[i, k]) @ m.read(B[k, j])
                    m.write(C[i, j], C_ij)

    asked: list[Any] = []
    moved = count.io
    monkeypatch.setattr(count, "io", lambda *given: (asked.append(given), moved(*given))[1])
    first, once = ps.formula(word_by_word), len(asked)
    assert ps.formula(word_by_word).io == first.io and len(asked) == once > 2
    with pytest.raises(ps.UsageError, match="correct it, or leave io= out"):
        ps.formula(replace(word_by_word, io="m*n*k"))


def test_a_stated_io_is_compared_for_queries_and_keys_that_differ() -> None:
    with SCHEDULES.temporary():
        # Right in n and d only: the words of Q and K are taken for each other.
        @ps.schedule(
            problem="forward-sigmoid", source="mine", io="n_k*d_k + n_q*(d_k + d_v)*ceiling(n_q/B_r) + n_q*d_v"
        )
        def mistaken(m: Any, Q: Any, K: Any, V: Any, *, B_r: int) -> None:
            O = m.tensor("O", Q.shape[0], V.shape[1])
            for i in m.tiles(Q.shape[0], B_r):
                Q_i, O_i = m.read(Q[i, :]), m.zeros(i, V.shape[1])
                for j in m.tiles(K.shape[0], 1, keys_of=i):
                    A_ij = m.compute(Q_i @ m.read(K[j, :]).T)
                    A_ij[:] = ps.sigmoid(A_ij)
                    O_i += A_ij @ m.read(V[j, :])
                m.write(O[i, :], O_i)

        with pytest.raises(UsageError, match=r"n_k\*d_k .* n_q = .*, but it moves"):
            ps.formula("mistaken")


def test_the_first_example_can_stand_in_a_file_of_schedules() -> None:
    """As CONTRIBUTING.md has it: for queries and keys that differ in number and width, which its figures need."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("import numpy")[0]
    with SCHEDULES.temporary():
        exec(compile(example, "<example>", "exec"), {"__name__": "example"})
        sizes = {"n_q": 7, "n_k": 5, "d_k": 3, "d_v": 2}
        game = ps.play("sigmoid-rows", M=60, **sizes)
        assert game.to_dict()["complete"] and game.to_dict()["values_match"]
        assert game.io == ps.count("sigmoid-rows", M=60, **sizes).io
