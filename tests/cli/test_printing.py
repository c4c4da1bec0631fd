"""The output of commands fits the terminal: what matters most stays, nothing is cut off; --wide and a pipe have all."""

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections import Counter

import pytest
from hypothesis import given, strategies as st
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from pebblesim.cli import printing
from pebblesim.cli.main import app
from pebblesim.core.notation import parse, written

DECODING = "--size n_q=1 --size n_k=4096 -d 64 -M 9999 --heads 8 --kv-heads 2 --dtype bf16"
COMMANDS = {  # and what their output has at every width
    "count -n 256 -d 16 -M 2048": ("row-stationary-fused", "I/O", "gap"),
    f"count flash2-forward {DECODING}": ("I/O", "bytes"),
    "bounds -n 256 -d 16 -M 2048": ("bound", "words", "D1r"),
    "bounds -p forward -n 256 -d 16": ("bound", "closed form"),
    "gaps -p forward -n 256 -d 16 -M 2048": ("best schedule", "M", "gap"),
    "crossover flash2-forward flash1-forward --size n_q=4 --size n_k=8 -d 2": ("flash2-forward",),
    "cache flash2-forward -n 64 -d 8 -M 512:2048:x2": ("stream", "M", "lru fetches"),
    "sweep -s large-cache,flash -n 256,512 -d 16 -M 2048": ("schedule", "n", "M", "io"),
    "advise --gpu A100 -n 128 -d 16": ("call", "ours", "others"),
    "advise --gpu A100 -n 128 -d 16 --why": ("schedule", "I/O per head", "gap"),
    "list": ("backward",),
}


def lines_of(command: str) -> list[str]:
    run = CliRunner().invoke(app, command.split())
    assert run.exit_code == 0, run.output
    return run.stdout.split("\n")


@pytest.mark.one_in(9)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_terminal(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (60, 160):
        monkeypatch.setattr(printing, "limit", lambda width=width: width)
        lines = lines_of(command)
        assert max(map(len, lines)) <= width
        for matters in COMMANDS[command]:
            assert any(matters in line for line in lines), (width, matters)


@pytest.mark.one_in(4)
def test_a_real_terminal_a_pipe_and_wide() -> None:
    """The table has what matters most on a terminal and in a pipe, and all columns with --wide."""
    command = [sys.executable, "-m", "pebblesim", "count", "-n", "16", "-d", "2", "-M", "64"]
    there, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment["TERM"] = "xterm"

    def on_terminal(*options: str) -> str:
        run = subprocess.Popen([*command, *options], stdout=terminal, stderr=subprocess.DEVNULL, env=environment)
        run.wait(timeout=120)
        return os.read(there, 2**16).decode()

    narrow, wide = on_terminal(), on_terminal("--wide")
    os.close(terminal)
    os.close(there)
    pipe = "\n".join(lines_of(" ".join(command[3:])))
    assert [text.count("\x1b[1m") for text in (narrow, wide, pipe)] == [1, 1, 0]  # the headings
    for brief in (narrow, pipe):
        before, added = brief.split("(--wide adds: ")
        assert "peak red" not in before and "peak red" in added
    assert "peak red" in wide and "--wide adds" not in wide


@given(
    width=st.integers(20, 200),
    rows=st.lists(st.lists(st.text("ab-, 1", max_size=30), min_size=4, max_size=4), min_size=1, max_size=4),
    left=st.integers(0, 4),
    first=st.permutations("wxyz"),
)
def test_what_is_shown_is_never_cut_off(width: int, rows: list[list[str]], left: int, first: list[str]) -> None:
    """Every letter of every column that is shown is there; the columns that matter stay longest."""
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr(printing, "limit", lambda: width)
        patch.setattr("builtins.print", lambda text="", end="\n": printed.append(text + end))
        printing.print_table(None, "wxyz", rows, left, first[:2])
    lines = "".join(printed).split("\n")
    assert max(map(len, lines)) <= width
    table = "".join(line for line in lines if "--wide adds" not in line and "(--wide" not in line)
    out = [name for name in "wxyz" if name not in lines[1]]
    shown = [number for number, name in enumerate("wxyz") if name not in out]
    if len(shown) > 1:
        assert set(first[:2]) <= {"wxyz"[number] for number in shown}
    else:
        assert not out or first[0] not in out
    for letter in "ab1":
        assert table.count(letter) == sum(rows_of.count(letter) for row in rows for rows_of in (row[n] for n in shown))


LONG, SHORT = (
    st.lists(st.text("ab", min_size=low, max_size=low + 3), min_size=few, max_size=few + 4)
    for low, few in ((12, 1), (1, 12))
)


@given(
    width=st.integers(26, 44),
    rows=st.lists(st.permutations([LONG, SHORT]).flatmap(lambda x: st.tuples(*x)), min_size=1, max_size=3),
)
def test_words_stay_whole_where_there_is_room(width: int, rows: list[tuple[list[str], ...]]) -> None:
    """A column of short words becomes narrow before one of long words does."""
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr(printing, "limit", lambda: width)
        patch.setattr("builtins.print", lambda text="", end="\n": printed.append(text + end))
        printing.print_table(None, "xyz", [["x", *map(" ".join, row)] for row in rows], 3, "xyz")
    longest = (max(len(word) for row in rows for word in row[number]) for number in range(2))
    if 1 + 1 + 3 + sum(longest) + 3 <= width:
        found = Counter("".join(printed).partition("─\n")[2].split())
        assert found == Counter(["x"] * len(rows) + [word for row in rows for cell in row for word in cell])


@given(
    cells=st.lists(st.lists(st.text("ab-, 1⌈÷日", max_size=9).map(str.strip), min_size=3, max_size=3), max_size=4),
    left=st.integers(0, 3),
)
def test_a_table_without_wrapped_cells_looks_like_one_of_rich(cells: list[list[str]], left: int) -> None:
    theirs = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(("first", "÷", "last one")):
        theirs.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    for row in cells:
        theirs.add_row(*row)
    console = Console(width=100, color_system=None)
    with console.capture() as drawn:
        console.print(theirs)
    ours = io.StringIO()
    with contextlib.redirect_stdout(ours):
        printing.print_table(None, ("first", "÷", "last one"), cells, left)
    assert ours.getvalue().split("\n") == [line.rstrip() for line in drawn.get().split("\n")]


def test_text_goes_on_in_the_next_line_further_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "limit", lambda: 20)
    printing.say("short", "  a line of several words that is long")
    assert capsys.readouterr().out == "short\n  a line of several\n    words that is\n    long\n"
    monkeypatch.setattr(printing, "limit", lambda: None)
    printing.say("a line of several words that is long")
    assert capsys.readouterr().out == "a line of several words that is long\n"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("82*n**2*d/(17*sqrt(M))", "82n²d/(17·sqrt(M))"),
        ("n**2*(16*d**2 - M)/(16*d**2)", "n²(16d² − M)/(16d²)"),
        ("n*d/2", "nd/2"),
        ("3*n/M", "3n/M"),
    ],
)
def test_what_is_divided_by_stands_in_brackets_if_it_has_several_factors(expression: str, text: str) -> None:
    assert written(parse(expression)) == text


@pytest.mark.parametrize(
    "expression, text",
    [
        ("-n/(M*d)", "−n/(Md)"),
        ("-B*floor(n/B)", "−B⌊n/B⌋"),
        ("-2*n/(M*d) - n**2", "−n² − 2n/(Md)"),
        ("Max(-n, -2*d)", "max(−2d, −n)"),
    ],
)
def test_a_negative_product_begins_with_its_sign_alone(expression: str, text: str) -> None:
    assert written(parse(expression)) == text
