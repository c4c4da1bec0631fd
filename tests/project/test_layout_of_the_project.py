"""The directions of imports, what is packaged, and what a cold start must not pay for."""

import ast
import importlib.util
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import networkx as nx
import pytest
from checkout import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _sources() -> Iterator[tuple[str, Path]]:
    for folder in ("pebblesim", "graphs", "schedules"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            first, *rest = path.relative_to(ROOT).with_suffix("").parts
            if rest[0] in ("graphs", "schedules"):
                continue  # the symlinks: these files are seen at the top
            package = ["pebblesim"] if first == "pebblesim" else ["pebblesim", first]
            yield ".".join([*package, *rest]).removesuffix(".__init__"), path


SOURCES = dict(_sources())

LAYERS = (
    ("core",),
    ("language", "asymptotics"),
    ("catalogue", "schedules", "game", "analysis", "lower_bounds"),
    ("graphs", "launches"),
    ("counting", "dags"),
    ("api", "cachesim", "kernels", "parallel", "sparse_backward"),
    ("advice", "claims", "sweeps", "synthesis", "views"),
    ("machines", "measuring", "operator"),
    ("explaining",),
    ("cli", "gpu"),
    ("__main__",),
)
"""The rooms of pebblesim from the ground up; each may import those of the layers below its own, and nothing else."""

TESTS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.parent.name not in ("goldens", "oracles")]

NEEDS: dict[str, tuple[str, ...]] = {
    "language": ("core", "language"),
    "counts": (
        *("analysis", "api", "catalogue", "counting", "launches"),
        *("schedules", "sparse_backward", "sweeps", "synthesis"),
    ),
    "games": ("game",),
    "dags": ("dags", "graphs"),
    "bounds": ("asymptotics", "claims", "lower_bounds"),
    "caches": ("cachesim",),
    "machines": ("machines", "parallel"),
    "emitters": ("kernels",),
    "cards": ("advice", "explaining", "measuring"),
    "pytorch": ("gpu", "operator"),
    "views": ("views",),
    "cli": ("cli", "__main__"),
    "docs": (),
    "project": (),
}
"""The folders of tests, and the rooms that each asks about. `docs` and `project` look at what is no room."""

LATE = {("pebblesim.language.registry", "pebblesim.schedules")}
"""Imports by name, at the first lookup: the schedules that ship with pebblesim."""

PLAYER = ("game.player", "game.pebble_assembler", "game.pebble_tables", "game.pebble_machine", "game.pebble_values")
"""The modules that turn a program into moves."""

SHARED_OF_THE_GAME = ("game.moves", "game.numbering")
"""The modules that the player and the graphs share with the referee: moves, and the numbers of vertices."""


@cache
def imports(module: str, path: Path) -> list[str]:
    """All that a file imports, at its top or inside a function; `from a import b` gives a.b, be it a module or not."""
    package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    return [name for part in parsed(path).body for name in _imports(part, package)]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def definitions(path: Path) -> list[ast.ClassDef | ast.FunctionDef]:
    """The classes and functions of a file, inner ones, too."""
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef | ast.FunctionDef)]


def _imports(part: ast.stmt, package: list[str]) -> Iterator[str]:
    for node in ast.walk(part):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{origin}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))


def within(target: str, *modules: str) -> bool:
    return any(f"{target}.".startswith(f"pebblesim.{module}.") for module in modules)


def room(module: str) -> str | None:
    """The package or module directly inside pebblesim that a name lies in; None for what is not ours."""
    first, *rest = module.split(".")
    return rest[0] if first == "pebblesim" and rest and rest[0] in FLOOR else None


FLOOR = {name: floor for floor, layer in enumerate(LAYERS) for name in layer}


def forbidden(module: str, target: str) -> bool:
    """Whether `module` must not import `target`: the layers, and what keeps the game, its players and graphs apart."""
    mine, other = room(module), room(target)
    if other is None or (module, target) in LATE:
        return within(module, "schedules") and other is None and target.split(".")[0] not in sys.stdlib_module_names
    if other == "game" and within(module, "graphs", *PLAYER):
        return not within(target, *SHARED_OF_THE_GAME, *(PLAYER if within(module, *PLAYER) else ()))
    if within(module, "game") and not within(module, *PLAYER):  # the referee knows moves and graphs, not programs
        return other != "core" and not (other == "game" and not within(target, *PLAYER))
    if within(module, "schedules"):
        return not within(target, "language", "schedules")
    return mine is not None and mine != other and FLOOR[mine] <= FLOOR[other]


def test_every_package_has_a_layer() -> None:
    rooms = {module.split(".")[1] for module in SOURCES if module != "pebblesim"}
    assert rooms <= set(FLOOR)


def test_imports_go_in_one_direction() -> None:
    wrong = {
        module: [target for target in imports(module, path) if forbidden(module, target)]
        for module, path in SOURCES.items()
        if module != "pebblesim"
    }
    assert {module: targets for module, targets in wrong.items() if targets} == {}


def folders_for(path: Path) -> set[str]:
    """The folders of `tests` in which a test may stand. One that makes its own data anew stands in `tests` itself."""
    parts = parsed(path).body
    if any(isinstance(part, ast.If) and ast.unparse(part.test) == "__name__ == '__main__'" for part in parts):
        return {"tests"}
    if any("importorskip('torch')" in ast.unparse(part) for part in parts if not isinstance(part, ast.FunctionDef)):
        return {"pytorch"}
    names = imports("tests", path)
    asks = {room(name) or name.split(".")[0] for name in names}  # of rooms, of `import pebblesim`, or of other tests
    if 'importorskip("triton")' in path.read_text(encoding="utf-8"):
        asks.add("operator")
    anywhere = not asks & {"pebblesim", *FLOOR, *NEEDS} or "pebblesim" in asks
    return {folder for folder, own in NEEDS.items() if anywhere or not own or asks & {folder, *own}}


def test_tests_stand_in_the_folder_of_their_need() -> None:
    assert {room for rooms in NEEDS.values() for room in rooms} == set(FLOOR)
    tests = [path for path in TESTS if path.name.startswith("test_")]
    wrong = {path.name: sorted(folders_for(path)) for path in tests if path.parent.name not in folders_for(path)}
    assert len(tests) > 180 and wrong == {}, "these belong into one of the folders that stand behind them"
    assert {path.parent.name for path in tests} == {*NEEDS, "tests"}
    assert [*NEEDS] == re.findall(r"^\| `(\w+)` \|", (ROOT / "tests" / "README.md").read_text(encoding="utf-8"), re.M)


def test_folders_of_tests_are_not_named_as_packages_are() -> None:
    """One of them would be taken for a package that is not installed, and what needs that is not skipped then."""
    found = {folder: importlib.util.find_spec(folder) for folder in NEEDS}
    assert {folder for folder, spec in found.items() if spec is None or spec.origin is not None} == set()


def test_one_file_says_where_the_checkout_is() -> None:
    """A test may move, and what it reads stays."""
    by_place = re.compile(r"\(__file__\)(\.resolve\(\))?\.parent(\.parent|s\[)")
    files = [path for path in TESTS if path.name != "checkout.py"]
    assert [path.name for path in files if by_place.search(path.read_text(encoding="utf-8"))] == []


def test_gpu_holds_paths_and_no_code() -> None:
    """Its modules name what other rooms define, and one is imported when `attention` is first asked for."""
    from pebblesim.advice import cards
    from pebblesim.gpu.advice.cards import card

    assert card is cards.card
    own = [
        (module, node.name) for module, path in SOURCES.items() if within(module, "gpu") for node in definitions(path)
    ]
    assert own == [("pebblesim.gpu.torch", "__getattr__")]


def test_no_imports_run_in_circles() -> None:
    """Modules import each other one way, for the names of types, too; a package that lists modules does not count."""
    graph = nx.DiGraph()
    for module, path in SOURCES.items():
        for target in imports(module, path):
            source = target if target in SOURCES else target.rpartition(".")[0]
            if (module, target) in LATE:
                continue
            if source in SOURCES and SOURCES[source].name != "__init__.py" and path.name != "__init__.py":
                graph.add_edge(module, source)
    assert list(nx.simple_cycles(graph)) == []


def test_every_library_that_is_imported_is_declared() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    lines = [
        *PYPROJECT["project"]["dependencies"],
        *extras["cluster"],
        *extras["parquet"],
        *extras["exact"],
        *extras["frames"],
    ]
    declared = {re.split(r"[^\w-]", line)[0] for line in lines}
    imported = {
        target.split(".")[0].replace("_", "-")
        for module, path in SOURCES.items()
        if not within(module, "explaining", "gpu", "measuring", "operator")  # there a GPU and its tools are at hand
        for target in imports(module, path)
    }
    assert imported - {name.replace("_", "-") for name in sys.stdlib_module_names} - {"pebblesim"} <= declared


def test_the_wheel_lists_every_package() -> None:
    import pebblesim

    found = [info.name for info in pkgutil.walk_packages(pebblesim.__path__, "pebblesim.") if info.ispkg]
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(["pebblesim", *found])


@pytest.mark.parametrize("package", ["graphs", "schedules"])
def test_a_top_folder_cannot_be_imported_by_its_short_name(package: str) -> None:
    with pytest.raises(ImportError, match=f"import this package as 'pebblesim.{package}'"):
        importlib.import_module(package)


LONGEST: Final = {"function": 60, "compiled": 120, "class": 300}
"""The most lines of a function without its signature and docstring, of one that numba compiles, and of a class."""

LONGER: Final = {
    ("dags.optimum_kernel", "search"): 179,
    ("game.pebble_machine", "run"): 186,
}
"""What is longer, and by how much it may be. This list only gets shorter, and its numbers smaller."""


def _sizes(module: str, path: Path) -> Iterator[tuple[tuple[str, str], int, int]]:
    """(module and name, lines, most lines) of each function and class of a file.

    Lines of inner functions count for the function around them, too, but not where all it does is define functions.
    """
    for node in definitions(path):
        if isinstance(node, ast.ClassDef):
            yield (module, node.name), (node.end_lineno or 0) - node.lineno + 1, LONGEST["class"]
        else:
            first = node.body[min(len(node.body) - 1, ast.get_docstring(node) is not None)]
            compiled = any(re.match(r"(kernel|part)\(", ast.unparse(each)) for each in node.decorator_list)
            most = LONGEST["compiled" if compiled else "function"]
            inner = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            own = [each for each in node.body[node.body.index(first) :] if each not in inner]
            only_defines = len(inner) > 1 and len(own) <= 1
            lines = (node.end_lineno or 0) - first.lineno + 1
            yield (module, node.name), len(inner) if only_defines else lines, most


def test_functions_and_classes_are_short() -> None:
    sizes = [size for module, path in SOURCES.items() for size in _sizes(module.removeprefix("pebblesim."), path)]
    too_long = {name: lines for name, lines, most in sizes if lines > LONGER.get(name, most)}
    assert too_long == {}, "cut these in two; or, if the list has them, they have grown"
    longer = {name for name, lines, most in sizes if lines > most}
    assert longer == set(LONGER), "take off the list what is short now"


def test_every_constant_of_a_module_is_used() -> None:
    """One whose name is nowhere but in its own statement is left over, from a trial or from code that has gone."""
    words: Counter[str] = Counter()
    for path in (*SOURCES.values(), *TESTS, *(ROOT / "benchmarks").rglob("*.py")):
        words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    stated = [
        (module, name.id, len(re.findall(rf"\b{name.id}\b", ast.unparse(part))))
        for module, path in SOURCES.items()
        for part in parsed(path).body
        if isinstance(part, ast.Assign | ast.AnnAssign)
        for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and name.id.isupper()
    ]
    assert len(stated) > 300
    assert [(module, name) for module, name, own in stated if words[name] <= own] == []


OF_RELEASES = "pebblesim.kernels.releases"
"""The module that changes texts that were printed, for other releases of Triton."""

NAMES: Final = {
    ("identifiers", "replace"),  # of a tensor, which become those of a text
    ("identifiers", "split"),
    ("identifiers", "strip"),
    ("plan", "startswith"),  # of a launch, in a sentence that refuses it
    ("words", "rpartition"),  # of a launch
    ("domains", "startswith"),  # of a dimension
    ("triton", "strip"),  # of what is printed nothing but empty lines
}
"""Where kernels ask what a text is: a name that somebody gave."""


def test_kernels_know_their_programs_and_search_no_line_that_was_printed() -> None:
    asking = {
        "endswith",
        "find",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rpartition",
        "split",
    }
    asking |= {"splitlines", "startswith", "strip"}
    found = {
        (module.rpartition(".")[2], node.func.attr)
        for module, path in SOURCES.items()
        if within(module, "kernels") and module != OF_RELEASES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in asking
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("TAKEN", "ORDER"))  # lists
    }
    assert found == NAMES
    with_patterns = [m for m, path in SOURCES.items() if within(m, "kernels") and "re" in imports(m, path)]
    assert with_patterns == [OF_RELEASES]


def test_no_docstring_needs_its_neighbour() -> None:
    """A sentence that begins so leaves out its subject, or its verb."""
    begins = re.compile(r'^ *"""(The same|Of|What)\b')
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for module, path in SOURCES.items()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if begins.match(line)
    ]
    assert found == []


FILLED = {"_Cursor", "_Problem", "_Statement", "_Sum", "Bites", "Searched"}
"""Data classes whose values are collected while they are used."""


def test_data_classes_are_values_or_have_an_identity() -> None:
    """Frozen ones are values: they can be keys, and nobody changes what another one holds. The nodes of programs are
    compared by identity."""
    known, loose = 0, []
    for module, path in SOURCES.items():
        for each in (node for node in definitions(path) if isinstance(node, ast.ClassDef)):
            for call in each.decorator_list:
                decorator, _, options = ast.unparse(call).partition("(")
                if decorator == "dataclass":
                    known += 1
                    loose += [f"{module}.{each.name}"] * ("frozen=True" not in options and "eq=False" not in options)
    assert known > 100
    assert {name.rpartition(".")[2] for name in loose} == FILLED, loose


def test_no_file_names_a_place_that_only_one_machine_has() -> None:
    places = r"(^|[^\w.])/(work|root|home|farm|tmp|opt|Users)/" + "|" + r"\b(pypi|pythonhosted)\.(org|io)"
    kept = [ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / ".ci").iterdir(), *ROOT.glob("*.md")]
    for folder in ("benchmarks", "graphs", "notebooks", "pebblesim", "schedules", "tests"):
        kept += [path for end in ("py", "toml", "md", "ipynb", "cu") for path in (ROOT / folder).rglob(f"*.{end}")]
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in kept
        if re.search(places, text := path.read_text(encoding="utf-8"), re.MULTILINE)
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(places, line)
    ]
    assert hits == []


def test_the_picture_of_the_rooms_is_that_of_the_layers() -> None:
    """CONTRIBUTING.md draws them from the top: a number for each floor, and a line for each room."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^(\d\d| \d|  )  (\w+) ", text.partition("```text\n")[2].partition("```")[0], re.MULTILINE)
    floors: dict[int, set[str]] = {}
    for number, name in drawn:
        floor = int(number) if number.strip() else min(floors)
        floors.setdefault(floor, set()).add(name)
    assert floors == {floor: set(layer) for floor, layer in enumerate(LAYERS, 1)}


HEAVY = ["numpy", "sympy", "numba", "matplotlib", "networkx", "joblib", "distributed", "pyarrow", "sqlite3"]


def test_problems_and_schedules_import_heavy_libraries_inside_functions() -> None:
    """They are loaded whenever something is counted: import numpy in the function that uses it."""
    at_the_top = [
        f"{module}: {name}"
        for module, path in SOURCES.items()
        if within(module, "catalogue", "schedules")
        for part in parsed(path).body
        if isinstance(part, ast.Import | ast.ImportFrom)
        for name in _imports(part, [])
        if name.split(".")[0] in HEAVY
    ]
    assert at_the_top == []


def loaded(names: list[str], what: str) -> list[str]:
    """Which of these modules a new interpreter has imported after these statements."""
    code = f"import sys\n{what}\nprint(*(name for name in {names} if name in sys.modules), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stderr.splitlines()[-1].split()  # before it, a busy machine may say that a command is still at work


def run_each(*commands: str) -> str:
    """Statements that run command lines."""
    each = "\n    try:\n        main()\n    except SystemExit as end:\n        assert not end.code"
    return f"from pebblesim.__main__ import main\nfor command in {commands}:\n    sys.argv[1:] = command.split(){each}"


@pytest.mark.parametrize(
    "what", ["", "pebblesim.count('small-cache', n=64, d=8, M=256); pebblesim.compare(n=64, d=8, M=256)"]
)
def test_a_cold_start_loads_no_heavy_library(what: str) -> None:
    assert loaded([*HEAVY, "json"], f"import pebblesim, pebblesim.cli.main; {what}") == []


def test_commands_that_count_load_no_heavy_library() -> None:
    """Nor what only wrapped tables, JSON, hashes, random orders and schedules of users need, nor Typer's own checks."""
    light = ["pydantic", "rich.console", "rich.table", "json", "hashlib", "random", "tomllib", "pebblesim.claims.claim"]
    light += ["pebblesim.language.every_iteration", "pebblesim.language.tile_by_tile"]
    commands = (
        "list",
        "show small-cache",
        "count -n 64 -d 8 -M 256",
        "count small-cache -n 64 -d 8 -M 256 --dtype bf16",
        "bounds -n 64 -d 8 -M 256",
        "gaps -n 64 -d 8 -M 256",
    )
    assert loaded([*HEAVY, *light], run_each(*commands)) == []


def test_advice_loads_no_algebra() -> None:
    """Only the terms of `--explain` need it. Who misspells a name does not wait for it."""
    assert loaded(HEAVY, run_each("advise --gpu H200 -n 64 -d 64 --why")) == []


def test_no_merge_was_left_half_done() -> None:
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("*.toml"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.toml"),
    ]
    marked = [
        text.name for text in texts if re.search(r"^(<{7}|>{7}) ", text.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(texts) > 30 and marked == []


@cache
def names_of(module: str) -> set[str] | None:
    """What stands at the top of a module of the package, and its submodules; None if there is no such module."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    tree = parsed(file)
    stored = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    made = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    taken = {
        name.asname or name.name for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) for name in each.names
    }
    return stored | made | taken | {each.stem for each in path.glob("*") if path.is_dir()}


def test_scripts_import_what_is_there() -> None:
    """mypy does not see them, and most need a GPU, so nothing else looks at them after a name has moved."""
    seen = 0
    for script in (*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "docs").glob("*.py")):
        for each in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("pebblesim."):
                names = names_of(each.module or "")
                assert names is not None, (script.name, each.module)
                missing = {name.name for name in each.names} - names
                assert not missing, (script.name, each.module, missing)
                seen += 1
    assert seen > 100


def test_each_file_of_kernels_is_in_one_part_of_their_size() -> None:
    """`make size` says what the lines of kernels are for."""
    size = runpy.run_path(str(ROOT / "benchmarks" / "size.py"))
    folder = ROOT / "pebblesim" / "kernels"
    room = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.py") if path.stem != "__init__"}
    beside = {Path(name).stem for name in size["BESIDE_KERNELS"]}
    parts = [name for names in size["PARTS"].values() for name in names]
    launches = {path.stem for path in (ROOT / "pebblesim" / "advice").glob("launch_*.py")}
    assert sorted(parts) == sorted({*room - beside, "tiles", *launches})


def test_each_file_of_the_benchmarks_is_in_their_table() -> None:
    """Rows by their path, and scripts by their name, so that each file says what made it and where it is shown."""
    folder = ROOT / "benchmarks"
    table = (folder / "README.md").read_text(encoding="utf-8")
    files = [path for path in folder.rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    known = {path: path.name if path.suffix == ".py" else f"({path.relative_to(folder)})" for path in files}
    assert [path for path, name in known.items() if name not in table and path.name != "README.md"] == []
    linked = re.findall(r"\]\(([^)]*)\)", table)
    assert len(linked) > 90 and [link for link in linked if not (folder / link).is_file()] == []


def test_no_run_left_a_file_beside_the_folders() -> None:
    """A table of states, saved under a value that was to be refused as a path, has a name without an ending."""
    files = (path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith("."))
    assert {path.name for path in files if not path.suffix} == {"LICENSE", "Makefile"}
