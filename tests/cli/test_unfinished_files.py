"""Commands whose files cannot be finished: the process is killed while it saves, or no home can be written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkout import ROOT


def command(*line: str, where: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a folder, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "pebblesim", *line], cwd=where, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, b"an older game"])
def test_a_game_whose_saving_is_killed_leaves_the_older_file_or_none(before: bytes | None, tmp_path: Path) -> None:
    """The process is killed as soon as a part of the new file is there."""
    saved = tmp_path / "game.npy"
    if before is not None:
        saved.write_bytes(before)
    running = command("play", "small-cache", "-n", "96", "-d", "32", "-M", "96", "--save", saved.name, where=tmp_path)
    while not any(each.stat().st_size for each in tmp_path.glob(".game.npy.*.part")):
        assert running.poll() is None, running.communicate()
        time.sleep(0.001)
    running.kill()
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert (saved.read_bytes() if saved.exists() else None) == before


NOWHERE = dict.fromkeys(
    ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "NUMBA_CACHE_DIR"), "/dev/null/x"
)
"""Folders that nobody can make, also not the user who may do anything."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "line",
    [
        "count -n 24 -d 4 -M 300",
        *(
            pytest.param(line, marks=pytest.mark.slow)
            for line in (
                "advise --gpu H100 -n 256 -d 32",
                "pebble fft -n 8 -M 4 --seconds 0.1",
                "plot words small-cache -n 24 -d 4 -M 300 -o o.png",
                "sweep -s flash -n 8 -d 4 -M 100 --store s.sqlite",
                "search forward -n 24 -d 4 -M 60 --save s.py",
            )
        ),
    ],
)
def test_a_home_in_which_nothing_can_be_written_is_no_error(line: str, tmp_path: Path) -> None:
    running = command(*line.split(), where=tmp_path, **NOWHERE)
    out, err = running.communicate()
    assert (running.returncode, "Traceback" in err) == (0, False), err
    assert out
