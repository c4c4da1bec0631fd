"""Draw command lines from a seed, run them, and say which of them do what no command line may do.

A drawn line is one of the documents, or one of `SMALL`, with one change or two: an option left out, given twice, added,
or with another value, which may be wrong, huge, negative, empty or in other letters. Each line runs in a process of its
own, forked from one that has everything imported, in a folder of its own with the same few files, for at most
`SECONDS` of processor time.

No line may end with a traceback, with a warning of Python, without a word, or with another exit code than those that
`pebblesim.cli.main` states; an error is one sentence, and leaves no file behind. No option may be ignored: each of each
command must change what some line prints or writes, or have it refused.

`python tests/drawn_lines.py LINES SEED PROCESSES` prints the findings as JSON. `tests/drawn_lines.py record SEED`
draws lines for each option that benchmarks/drawn_lines.json lacks, and writes there what shows that it is not ignored.
`tests/drawn_lines.py again NUMBER SEED` runs some of these lines again, and prints the options that change nothing now.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from checkout import ROOT

SECONDS: Final = 10
BYTES: Final = 12 * 2**30
"""The most memory of a line, as addresses."""

CODES: Final = (0, 1, 2)
CRASH: Final = 70

SMALL: Final = """
advise --gpu H200 -n 512 -d 64
advise --card card.toml -n 256 -d 32 --dtype fp32 -p backward
backlite -n 64 -d 8 --block B_r=8 --block B_c=8 --epsilon 0.01
backlite --inputs head.npz --block B_r=4 --block B_c=4 --calibrate
bounds -n 64 -d 8 -M 256
bounds forward -n 24 -d 4 --mask causal
cache flash2-forward -n 24 -d 4 -M 64,300
cache trace.csv -M 2,4
cache flash2-forward -n 12 -d 4 -M 100 --words --save s.din
count -n 24 -d 4 -M 300
count flash2-forward -n 24 -d 4 -M 300 --heads 4 --kv-heads 2
count flash2-forward -n 64 -d 16 -M 2k --dtype bf16 --l2 64KiB --heads 4
count -p forward --size n_q=5 --size n_k=24 -d 4 -M 100
count matmul-tiled --size m=12 --size k=9 --size n=12 --machine machine.toml
count flash2-forward -n 24 -d 4 --machine H100 --dtype bf16 --below P,O_i,l_i,m_i,m_new --block B_r=8
count no-cache -n 6 -d 3 --machine machine.toml --below l
crossover -n 24 -d 4
crossover small-cache flash -n 24 -d 4 -M 300
dags folder --seconds 0
devices -n 24 -d 4 -P 4
devices ring tiles -n 64 -d 8 -P 4 --heads 4 --gpu H100
explain model.py:model --gpu H200
explore forward-relu -o page.html
explore --story -o page.html
formula small-cache
formula flash2-forward --mask causal
gaps -n 24 -d 4 -M 100 -M 300
gaps -p forward -n 12 -d 4
glossary backward
gpu calibrate
gpu crossover -n 96 -d 8 --at 200,400
gpu doctor
gpu emit small-cache -n 24 -d 4 -M 300
gpu emit flash2-forward -n 64 -d 16 -M 8k --target triton
gpu emit flash2-forward -n 256 -d 64 -M 100k --target gluon
gpu measure small-cache -n 24 -d 4 -M 300
gpu race -n 64 -d 16
graph backward -n 4 -d 2
graph g.hdag -o o.dot
graph fft -n 8
judge g.hdag game.txt -M 4
list
machine TPUv3
optimum matmul --size m=2 --size k=1 --size n=2 -M 4
optimum g.hdag -M 3 --states 500
pebble fft -n 8 -M 4 --steps 20
pebble g.hdag -M 4 --steps 20
play small-cache -n 8 -d 4 -M 24
play flash2-forward -n 8 -d 4 -M 60 --mask causal
plot gaps forward -n 24 -d 4 -M 32:2k --points 3 -o o.png
plot graph small-cache -n 2 -d 2 -M 24 --at 60 -o o.png
plot graph matmul -n 2 -d 2 -o o.png
plot measured benchmarks/gpu/exact.jsonl -o o.png
plot occupancy small-cache -n 8 -d 4 -M 24 -o o.png
plot race benchmarks/gpu/race.jsonl -n 4096 -o o.png
plot roofline --gpu A100 -n 256 -d 32 -o o.png
plot roofline -M 2k --peak 312T --bandwidth 1.5T -n 64 -d 8 -o o.png
plot skislope -n 24 -d 4 -M 64:1k --points 3 -o o.png
plot tiles small-cache -n 8 -d 4 -M 24 -o o.png
plot words small-cache flash -n 24 -d 4 -M 300 -o o.png
search matmul --size m=6 --size k=5 --size n=4 -M 20
search forward -n 24 -d 4 -M 60 --save s.py
search forward -n 24 -d 4 -M 100 -P 2
search forward -n 12 -d 4 -M 60 --mask causal
search forward -n 12 -d 4 -M 200 --word-bytes Q=2,K=2,V=2
search backward-qkv -n 8 -d 2 -M 40 --saved O,l --name mine
show large-cache
sweep -s small-cache -n 8,24 -d 4 -M 100,300
sweep -s small-cache -n 8,24 -d 4 --block B=2,3 --what formula -o o.csv
sweep -s small-cache -n 8 -d 4 -M 24,64 --what play --jobs 1
theorems
theorems --table-1
verify "Lemma C.9"
watch small-cache -n 4 -d 2 -M 24 -o o.html
watch g.hdag --game game.txt -M 4 -o o.html
--load mine.py count in-rows -n 24 -d 4 -M 300
--load mine.py gaps -p forward-sigmoid --size n_q=8 --size n_k=4 -d 4 -M 100
""".strip().splitlines()
"""Each command in a small case at least, with the files that `furnish` makes."""

ODD: Final = (
    "", " ", "-1", "0", "1", "2", "1.5", "1e3", "nan", "inf", "-inf", "2^64", "2^100", "2^256", "2^257", "9" * 400,
    "ünïcödé", "😀", "٣", "²", "1_000", "1,000", "8,", ",", "=", "n=1", "n=", "a=b=c", "B=0", "a b", "-", "--", ".",
    "/", "nowhere/x.png", "nowhere.toml", "g.hdag", "x" * 3000, "%s", "{}", "\\", "'", "\udcff", "\u202e", "NULL",
    "true", "None", "1KiB", "1.3KiB", "64:", "1:2:x1", "5:1:+1", "causal", "window:0", "window:2^80", "lengths:1,2",
    "bigbird:1:1:1:1", "best", "float16", "nan,0.1", "blocked:2^70", "K" * 300,
)  # fmt: skip
"""Values that most options do not take."""

VALUES: Final = {
    "-n": ("1", "7", "24", "2^40"),
    "-d": ("1", "4", "40", "2^30"),
    "-M": ("1", "3", "24", "300", "1k", "2^70", "1KiB"),
    "-P": ("1", "4", "7"),
    "--size": ("n=5", "d=3", "n_q=5", "n_k=1", "d_k=3", "d_v=2", "m=3", "k=2", "rows=4"),
    "--dtype": ("float32", "bf16", "fp8"),
    "--heads": ("4", "1"),
    "--kv-heads": ("2", "4"),
    "--batch": ("3",),
    "--block": ("B=2", "B_r=3", "B_c=2", "a=3", "b=2", "B_r=2^100", "B=1"),
    "--summation": ("balanced", "in-place", "blocked:2"),
    "--option": ("order=U", "kept=true", "rows=3", "row_block=2"),
    "--mask": ("causal", "window:3", "mask.npy", "any"),
    "--save": ("s.npy", "s.txt", "s.py", "s.csv", "s.din"),
    "--csv": ("s.csv",),
    "--rows": ("s.jsonl",),
    "--output": ("o.png", "o.csv", "o.html", "o.hdag", "o.cu", "o.toml", "o.jsonl"),
    "--picture": ("o.png",),
    "--store": ("o.sqlite",),
    "--seconds": ("0", "0.1"),
    "--steps": ("3",),
    "--seed": ("3",),
    "--states": ("100",),
    "--memory": ("1MiB", "3"),
    "--points": ("2", "4"),
    "--at": ("5",),
    "--pairs": ("9",),
    "--l2": ("16KiB", "2x16KiB"),
    "--at-once": ("2",),
    "--chiplets": ("2", "2:contiguous"),
    "--order": ("grouped:2", "sawtooth"),
    "--line": ("16B", "32B"),
    "--ways": ("2",),
    "--policy": ("lru", "fifo,opt"),
    "--peak": ("1T",),
    "--bandwidth": ("1G",),
    "--gpu": ("H100", "card.toml", "4090"),
    "--card": ("card.toml",),
    "--workspace": ("1MiB",),
    "--level": ("l2",),
    "--machine": ("2", "H100", "machine.toml"),
    "--below": ("P", "C_ij", "m_i,m_new", "l", "P,,O_i"),
    "--inside": ("NVLink 4",),
    "--between": ("PCIe 5.0 x16",),
    "--ownership": ("striped", "contiguous"),
    "--epsilon": ("0.1", "0.01,0.5"),
    "--threshold": ("0.1",),
    "--cosine": ("0.5",),
    "--scale": ("0.5", "1/sqrt(d_k)"),
    "--head": ("0",),
    "--inputs": ("head.npz",),
    "--name": ("mine",),
    "--saved": ("O", "O,l"),
    "--word-bytes": ("Q=2,K=1",),
    "--warps": ("4",),
    "--stages": ("2",),
    "--workers": ("3",),
    "--threads": ("64",),
    "--jobs": ("1",),
    "--dask": ("127.0.0.1:1",),
    "--command": ("true",),
    "--without": ("D3", "flash"),
    "--crossing": ("small-cache,flash",),
    "--schedule": ("flash", "small-cache"),
    "--game": ("game.txt",),
    "--format": ("hdag", "edges", "hyperdag"),
    "--what": ("formula", "play"),
    "--by": ("phase",),
    "--target": ("triton", "gluon"),
    "--problem": ("forward", "matmul"),
    "--blocks": ("best", "paper"),
    "--rules": ("replace", "partial"),
}
"""Values that an option of this name takes in some command."""


MOST: Final = {
    "-n": 24, "-d": 4, "-M": 300, "--size": 12, "--block": 4, "-P": 4, "--at": 60, "--points": 3, "--seconds": 0.1,
    "--steps": 20, "--states": 500, "--heads": 4, "--kv-heads": 2, "--batch": 2,
}  # fmt: skip
"""The largest sizes of the lines of the documents here."""


# -- lines -----------------------------------------------------------------------------------------------------------


def documented() -> list[str]:
    """The command lines of the documents and of the help, but those with what only a shell understands."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    shown = (block for text in texts for block in re.findall(r"^```(?:console|sh)\n(.*?)^```$", text, re.M | re.S))
    lines = [
        line.removeprefix("$ ")
        for block in shown
        for line in block.replace("\\\n", " ").splitlines()
        if re.match(r"(\$ )?pebblesim ", line)
    ]
    lines += [command.epilog.split("[bold]")[1].removesuffix("[/bold]") for command in all_commands().values()]
    lines = [re.sub(r" *(\||#|>).*", "", line).removeprefix("pebblesim ") for line in lines]
    return [line for line in dict.fromkeys(lines) if not set("&;*$`<") & set(line) and "…" not in line]


def all_commands() -> dict[str, Any]:
    """Each command that can be called, by its words."""
    import typer

    from pebblesim.cli import main as cli

    group: Any = typer.main.get_command(cli.app)

    def inside(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        for name, each in getattr(command, "commands", {}).items():
            yield from inside(f"{words} {name}", each)
        if not hasattr(command, "commands"):
            yield words, command

    return {words: each for name in cli.HOMES for words, each in inside(name, group.get_command(None, name))}


@dataclass
class Line:
    """A command line in parts: what stands before the command, its words, its options with values, and its arguments.

    A flag has the value None.
    """

    before: list[str]
    command: str
    options: list[tuple[str, str | None]] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    @property
    def argv(self) -> list[str]:
        given = [word for name, value in self.options for word in ((name,) if value is None else (name, value))]
        return [*self.before, *self.command.split(), *self.arguments, *given]

    def copy(self) -> Line:
        return Line([*self.before], self.command, [*self.options], [*self.arguments])

    def __str__(self) -> str:
        return shlex.join(self.argv)


def options_of(command: Any) -> list[Any]:
    """The options of a command but --help."""
    return [param for param in command.params if param.param_type_name == "option" and param.opts[0] != "--help"]


def named(command: Any) -> dict[str, Any]:
    """The options of a command by each of their names, with those that switch one off."""
    return {
        name: param
        for param in command.params
        if param.param_type_name == "option"
        for name in (*param.opts, *param.secondary_opts)
    }


def parsed(text: str, commands: dict[str, Any]) -> Line | None:
    """The parts of a line; None if it calls no command."""
    words = shlex.split(text)
    before = [words.pop(0), words.pop(0)] if words[:1] == ["--load"] else []
    for length in (2, 1):
        if (name := " ".join(words[:length])) in commands:
            break
    else:
        return None
    line, rest, known = Line(before, name), words[length:], named(commands[name])
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and "=" in word:
            word, _, value = word.partition("=")
            rest.insert(0, value)
        if word not in known:
            line.arguments.append(word)
        else:
            line.options.append((word, None if known[word].is_flag else rest.pop(0)))
    return line


def shrunk(line: Line) -> Line:
    """A line with smaller sizes, which takes no time."""
    return replace(line, options=[(name, value and _shrunk(value, MOST.get(name, 0))) for name, value in line.options])


def _shrunk(text: str, most: float) -> str:
    def number(match: re.Match[str]) -> str:
        size = float(match[1]) * {"": 1, "k": 2**10, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[match[3] or ""]
        size = size ** float(match[2][1:] if match[2] else 1)
        return match[0] if size <= most else f"{most * 8 if match[4] else most:g}{match[4] or ''}"

    return re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)(\^\d+)?([kKMGT]?)i?(B?)(?![\w])", number, text) if most else text


def mutated(line: Line, command: Any, draw: random.Random) -> tuple[Line, set[str]]:
    """A line with a change, and the options that it is about."""
    made, known = line.copy(), named(command)
    kinds = ["add"] * 4 + ["argument"] + (["drop", "twice", "value", "value", "value"] if line.options else [])
    kind = draw.choice(kinds)
    if kind == "argument":
        if made.arguments and draw.random() < 0.7:
            at = draw.randrange(len(made.arguments))
            made.arguments[at : at + 1] = draw.choice([[], [draw.choice(ODD)], [made.arguments[at]] * 2])
        else:
            made.arguments.append(draw.choice((*ODD, "flash", "forward", "flash2-forward")))
        return made, set()
    if kind == "add":
        name = draw.choice([name for name in known if name not in dict(line.options)] or [*known])
        made.options.append((name, None if known[name].is_flag else value_for(known[name], draw)))
    else:
        at = draw.randrange(len(made.options))
        name, value = made.options[at]
        if kind == "drop":
            del made.options[at]
        elif kind == "twice":
            made.options.insert(
                at, (name, value if value is None else draw.choice((value, value_for(known[name], draw))))
            )
        elif value is not None:
            made.options[at] = name, value_for(known[name], draw)
    return made, {known[name].opts[0]}


def with_option(line: Line, command: Any, option: str, draw: random.Random, odd: float = 0.4) -> Line:
    """A line in which an option is added, or has another value, or is left out if it is a flag that was given."""
    made, known = line.copy(), named(command)[option]
    names = {*known.opts, *known.secondary_opts}
    rest = [(name, value) for name, value in line.options if name not in names]
    if len(rest) == len(line.options) or not known.is_flag:
        rest.append((draw.choice(sorted(names)), None) if known.is_flag else (option, value_for(known, draw, odd)))
    made.options = rest
    return made


def value_for(option: Any, draw: random.Random, odd: float = 0.4) -> str:
    """A value that an option of this name takes in some command, or, so often, an odd one."""
    good = [value for name in option.opts for value in VALUES.get(name, ())]
    return draw.choice(good if good and draw.random() >= odd else ODD)


# -- runs ------------------------------------------------------------------------------------------------------------

OWN = '''
import pebblesim as ps

@ps.schedule(problem="forward-sigmoid", source="mine")
def in_rows(m, Q, K, V, *, B_r: ps.Block, B_c: ps.Block):
    """Rows of Q and O stay; blocks of K and V pass by. For as many queries as keys."""
    n, d = Q.shape
    O = m.tensor("O", n, d)
    for i in m.tiles(n, B_r):
        Q_i, O_i = m.read(Q[i, :]), m.zeros(i, d)
        for j in m.tiles(n, B_c, keys_of=i):
            A_ij = m.compute(Q_i @ m.read(K[j, :]).T)
            A_ij[:] = ps.sigmoid(A_ij)
            O_i += A_ij @ m.read(V[j, :])
        m.write(O[i, :], O_i)
'''
CARD = """
name = "mine"
shared_per_block = 65536
l2 = 4194304
l2_bandwidth = 2e12
memory_bandwidth = 1e12
[peak]
float32 = 1e13
float16 = 1e14
bfloat16 = 1e14
"""
MACHINE = """
name = "three memories"
root = "DRAM"
[[memory]]
name = "LLC"
capacity = "4KiB"
bandwidth = 1e9
energy = 1e-12
[[memory]]
name = "SRAM"
capacity = "1KiB"
[[memory]]
name = "registers"
capacity = 240
"""


def furnish(folder: Path) -> None:
    """Write the files that lines name: a graph, a game, a head, a mask, a trace, a card, a machine and a schedule."""
    import numpy as np

    draw = np.random.default_rng(0)
    (folder / "folder").mkdir()
    for name in ("g.hdag", "folder/g.hdag"):
        (folder / name).write_text(
            "2 4 4\n0\n1\n0\n1\n2\n3\n0 0\n0 2\n1 1\n1 2\n".replace("2 4 4", "2 3 4").replace("\n3\n", "\n")
        )
    (folder / "game.txt").write_text("read vertex 0\nread vertex 1\ncompute vertex 2\nwrite vertex 2\n")
    np.savez(folder / "head.npz", **{name: draw.standard_normal((16, 4)) for name in ("Q", "K", "V", "dO")})  # type: ignore[arg-type]
    np.save(folder / "mask.npy", np.tri(24, dtype=bool))
    (folder / "trace.csv").write_text("id\n" + "".join(f"{draw.integers(5)}\n" for _ in range(40)))
    (folder / "card.toml").write_text(CARD)
    (folder / "machine.toml").write_text(MACHINE)
    (folder / "mine.py").write_text(OWN)
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")


@dataclass(frozen=True)
class Ran:
    """What a line did: its exit code, None where it was over its time; what it printed; and the files that it wrote."""

    code: int | None
    out: str
    err: str
    files: tuple[tuple[str, bytes], ...]

    @property
    def said(self) -> str:
        """The lines on stderr but for those that say what goes on."""
        told = re.compile(
            "compiling machine code:|still at work after |note: |deriving the closed forms|"
            "[A-Za-z_]+ = .* is a list of sizes: "
        )
        return "".join(each for each in self.err.splitlines(keepends=True) if not told.match(each))


class Runner:
    """Runs lines, each in a process of its own and in a new copy of a folder."""

    def __init__(self, columns: int | None = None) -> None:
        """In a pipe, or as on a terminal of so many columns."""
        self.columns = columns
        self.home = Path(tempfile.mkdtemp(prefix="lines-"))
        (self.home / "files").mkdir()
        furnish(self.home / "files")
        self.known = {path.relative_to(self.home / "files") for path in (self.home / "files").rglob("*")}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.home)

    def __call__(self, argv: list[str]) -> Ran:
        folder, out, err = self.home / "run", self.home / "out", self.home / "err"
        shutil.copytree(self.home / "files", folder, symlinks=True)
        child = os.fork()
        if not child:
            self._run(argv, folder, out, err)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        made = sorted(
            path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder) not in self.known
        )
        files = tuple((str(path.relative_to(folder)), path.read_bytes()) for path in made)
        texts = [path.read_bytes().decode("utf-8", "replace") for path in (out, err)]
        shutil.rmtree(folder)
        over = code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM)
        return Ran(None if over else code, *texts, files)

    def _run(self, argv: list[str], folder: Path, out: Path, err: Path) -> None:
        """Be the child: run the line, and end with its exit code."""
        from pebblesim.cli import main as cli, printing

        code: Any = CRASH
        try:
            os.chdir(folder)
            for path, number in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            signal.alarm(10 * SECONDS)  # for lines that wait
            sys.argv = ["pebblesim", *argv]
            os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # a sweep starts no processes
            warnings.simplefilter("error")
            if self.columns is not None:
                printing.limit = lambda: None if printing.WIDE.get() else self.columns
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code if isinstance(code, int) else CRASH)


def _prepare(lines: Iterable[Line]) -> None:
    """Run lines in this process, so that what they import and compile is there for the processes of all others."""
    from pebblesim.cli import main as cli

    for line in lines:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.suppress(SystemExit),
        ):
            furnish(Path(folder))
            sys.argv = ["pebblesim", *line.argv]
            cli.main()


def faults(ran: Ran) -> Iterator[str]:
    """What is wrong with how a line ended."""
    if ran.code is None:
        return
    if "Traceback (most recent call last)" in ran.err + ran.out or ran.code == CRASH:
        yield "traceback"
    elif ran.code not in CODES:
        yield f"exit code {ran.code}"
    elif not (ran.out.strip() or ran.said.strip()):
        yield "silent"
    elif ran.code == 2 and not ran.out.strip():
        sentence = ran.said.strip()
        helps = sentence.startswith("Usage:") or "Usage: " in sentence[:200]
        if not helps and not re.fullmatch(r"error: [^\n]*([.?…]|; for example: pebblesim [^\n]*)", sentence):
            yield "not a sentence"
        if len(re.sub(r"\S{200,}", "…", sentence)) > 1500 and not helps:  # what is quoted may be long
            yield "a long sentence"
        if ran.files:
            yield f"left {', '.join(name for name, _ in ran.files)}"


@dataclass
class Found:
    """The findings: lines with a fault, and for each option of each command how many lines show that it matters."""

    lines: int = 0
    over: list[str] = field(default_factory=list)
    faults: list[tuple[str, str, str]] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    matters: dict[str, int] = field(default_factory=dict)

    def note(self, line: Line, ran: Ran) -> None:
        self.lines += 1
        self.codes[str(ran.code)] = self.codes.get(str(ran.code), 0) + 1
        self.over += [str(line)] * (ran.code is None)
        self.faults += [(str(line), fault, (ran.err or ran.out)[-400:]) for fault in faults(ran)]

    def compare(self, option: str, before: Ran, after: Ran) -> None:
        """Note whether a change of an option changes what a line does."""
        did = [_did(ran) for ran in (before, after)]
        self.tried[option] = self.tried.get(option, 0) + 1
        self.matters[option] = self.matters.get(option, 0) + (did[0] != did[1])

    def add(self, other: Found) -> None:
        self.lines += other.lines
        self.over += other.over
        self.faults += other.faults
        for mine, theirs in ((self.codes, other.codes), (self.tried, other.tried), (self.matters, other.matters)):
            for name, times in theirs.items():
                mine[name] = mine.get(name, 0) + times


def drawn(number: int, seed: int, bases: list[str] | None = None, workers: int = 1) -> dict[str, Any]:
    """Run this many drawn lines in some processes, and return the findings."""
    commands = all_commands()
    first = [line for text in bases or SMALL if (line := parsed(text, commands))]
    others = [shrunk(line) for text in ([] if bases else documented()) if (line := parsed(text, commands))]
    _prepare(line for line in first if not line.before)
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        for worker in range(workers):
            if not os.fork():
                part = _part(number // workers, random.Random(f"{seed} {worker}"), commands, [*first, *others])
                Path(folder, str(worker)).write_text(json.dumps(part.__dict__), encoding="utf-8")
                os._exit(0)
        for _ in range(workers):
            os.wait()
        for file in sorted(Path(folder).iterdir()):
            found.add(Found(**json.loads(file.read_text(encoding="utf-8"))))
    return {
        **found.__dict__,
        "never": sorted(every_option(commands) - {name for name, times in found.matters.items() if times}),
    }


def _part(number: int, draw: random.Random, commands: dict[str, Any], lines: list[Line]) -> Found:
    by_command = defaultdict[str, list[Line]](list)
    for line in lines:
        by_command[line.command].append(line)
    plain: dict[str, Ran | None] = {}
    options = {words: [param.opts[0] for param in options_of(commands[words])] for words in by_command}
    found = Found()
    with Runner() as run:

        def base(line: Line) -> Ran | None:
            """What a line does; None if it takes too long, or does not do the same again."""
            if str(line) not in plain:
                first = run(line.argv)
                again = first if first.code is None else run(line.argv)
                plain[str(line)] = first if first == again and first.code is not None else None
            return plain[str(line)]

        while found.lines < number:
            line = draw.choice(by_command[draw.choice([*by_command])])
            before = base(line)
            left = [each for each in by_command[line.command] if plain.get(str(each), 1) is not None]
            by_command[line.command] = left or by_command[line.command]  # of those that take long, some other
            unseen = [name for name in options[line.command] if not found.matters.get(f"{line.command} {name}")]
            single = draw.random() < 0.8
            if single and unseen and draw.random() < 0.6:
                about = {draw.choice(unseen)}
                made = with_option(line, commands[line.command], *about, draw)
            else:
                made, about = mutated(line, commands[line.command], draw)
            if not single:
                made, more = mutated(made, commands[line.command], draw)
                about |= more
            after = run(made.argv)
            found.note(made, after)
            if single and about and before is not None:
                (name,) = about
                found.compare(f"{line.command} {name}", before, after)
    return found


RECORD: Final = ROOT / "benchmarks" / "drawn_lines.json"
"""For each option of each command: two lines that differ in it and in what they do; or why there are none."""

TRIES: Final = 6

NARROW: Final = 12
"""Columns of a terminal on which --wide is tried: in a pipe no line is broken, and few tables lack a column."""


def every_option(commands: dict[str, Any]) -> set[str]:
    """Each option of each command: "count --heads"."""
    return {f"{words} {param.opts[0]}" for words, each in commands.items() for param in options_of(each)}


def complete(seed: int) -> None:
    """Draw lines for each option that `RECORD` has no two lines for, and write there what they show.

    Best are two lines that both end well; an option may also be refused, by a line whose other option it does not suit.
    What no line shows is left, until somebody draws again or explains it.
    """
    commands = all_commands()
    lines = [line for text in SMALL if (line := parsed(text, commands))]
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"differ": {}, "explained": {}}
    every = every_option(commands)
    differ, explained = (
        {name: each[name] for name in each if name in every} for each in map(record.get, ("differ", "explained"))
    )
    left = sorted(every - {*differ, *explained}, key=lambda name: (name.endswith(" --wide"), name))
    of = {name.rpartition(" ")[0] for name in left}
    _prepare(line for line in lines if not line.before and line.command in of)
    draw, plain, found = random.Random(seed), dict[tuple[int | None, str], Ran](), Found()
    with Runner() as piped, Runner(NARROW) as narrow:
        for name in left:
            words, _, option = name.rpartition(" ")
            own = [line for line in lines if line.command == words]
            run = narrow if option == "--wide" else piped
            if pair := _pair(words, option, own, commands, draw, run, plain, found):
                differ[name] = pair
            new = {"differ": differ, "explained": explained, "left": sorted({*left} - {*differ})}
            RECORD.write_text(json.dumps(new, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    json.dump({"lines": found.lines, "faults": found.faults, "over": found.over}, sys.stdout, indent=1)


def _pair(
    words: str, option: str, lines: list[Line], commands: dict[str, Any], draw: random.Random, run: Runner,
    plain: dict[tuple[int | None, str], Ran], found: Found,
) -> list[str] | None:  # fmt: skip
    """Two lines that differ in an option, and in what they do; None if none of those that were drawn do."""
    refused = None
    for number in range(TRIES):
        line = draw.choice(lines)
        if (run.columns, str(line)) not in plain:
            plain[run.columns, str(line)] = run(line.argv)
        before = plain[run.columns, str(line)]
        made = with_option(line, commands[words], option, draw, odd=number >= TRIES / 2)
        if str(made) == str(line):
            continue
        after = run(made.argv)
        found.note(made, after)
        if None in (before.code, after.code) or _did(before) == _did(after) or "\udcff" in str(made):
            continue
        if after.code != 2 and (_did(run(line.argv)), _did(run(made.argv))) == (_did(before), _did(after)):
            return [str(line), str(made)]
        if after.code == 2 and refused is None:
            refused = [str(line), str(made)]
    return refused


def _did(ran: Ran) -> tuple[Any, ...]:
    return ran.code, ran.out, ran.said, ran.files


def again(number: int, seed: int) -> list[str]:
    """The options of so many drawn pairs of lines in `RECORD` that do the same now."""
    differ = json.loads(RECORD.read_text(encoding="utf-8"))["differ"]
    names = random.Random(seed).sample(sorted(differ), number)
    with Runner() as piped, Runner(NARROW) as narrow:
        did = {
            name: [_did((narrow if name.endswith(" --wide") else piped)(shlex.split(line))) for line in differ[name]]
            for name in names
        }
    return [name for name, (before, after) in did.items() if before == after]


if __name__ == "__main__" and sys.argv[1] == "record":
    complete(int(sys.argv[2]))
elif __name__ == "__main__" and sys.argv[1] == "again":
    json.dump(again(int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
elif __name__ == "__main__":
    lines, seed, workers, *bases = sys.argv[1:]
    json.dump(drawn(int(lines), int(seed), bases or None, int(workers)), sys.stdout, indent=1)
