"""The proofs that Coq checks: that it accepts them, that they rest on no axiom, and that the table names them all."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT

PROOFS = ROOT / "proofs"
needs_coq = pytest.mark.skipif(shutil.which("coqc") is None, reason="needs coqc (Debian: coq, mathcomp)")
ROW = re.compile(r"^\| [^|]+ \| ([^|]+) \| `proofs/(\w+)\.v` \|", re.MULTILINE)


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "proofs", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def copied(to: Path) -> Path:
    """The proofs in another folder, so that what Coq writes is not in the checkout."""
    shutil.copy(ROOT / "Makefile", to)
    shutil.copytree(PROOFS, to / "proofs", ignore=lambda _, names: [name for name in names if not name.endswith(".v")])
    return to


@pytest.mark.slow
@needs_coq
def test_coq_accepts_them_without_an_axiom(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    done = make(folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "Coq accepts all theorems of proofs/, and by Print Assumptions none rests on an axiom"
    table = ROW.findall((ROOT / "docs" / "lower-bounds.md").read_text(encoding="utf-8"))
    accepted = {(file, name) for names, file in table for name in re.findall(r"`(\w+)`", names)}
    assert {f"proofs/{file}.v: {name} is proved, and uses no axiom" for file, name in accepted} == set(lines)
    for names, file in ROW.findall((ROOT / "docs" / "lower-bounds.md").read_text(encoding="utf-8")):
        for name in re.findall(r"`(\w+)`", names):
            (folder / "asked.v").write_text(f"From pebblesim Require Import {file}.\nPrint Assumptions {name}.\n")
            asked = ["coqc", "-q", "-w", "none", "-R", "proofs", "pebblesim", "asked.v"]
            said = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
            assert said.stdout.strip() == "Closed under the global context", (name, said.stdout, said.stderr)


@pytest.mark.slow
@needs_coq
@pytest.mark.parametrize(
    ("file", "claim", "more"),
    [
        ("matmul", "4 * #|D| ^ 2 <= M * (io g + M) ^ 2", "4 * #|D| ^ 2 <= M * (io g) ^ 2"),
        ("loomis_whitney", "#|S| ^ 2 <=", "2 * #|S| ^ 2 <="),
        ("capacities", "(#|right_pairs O| + #|result_pairs O|))", "#|right_pairs O|)"),
        ("capacities", "(words l ^ 2 %/ 4)", "(words l ^ 2 %/ 5)"),
        ("segments", "k * kappa + #|[set p in D | tree p == None]| <=", "k * kappa + #|D| <="),
        (
            "attention",
            "M <= 4 * d ^ 2 -> 16 * (#|D| * d) ^ 2 <= M * (io g + M + #|D|) ^ 2",
            "M <= 4 * d ^ 2 -> 16 * (#|D| * d) ^ 2 <= M * (io g + M) ^ 2",
        ),
    ],
)
def test_coq_rejects_more(tmp_path: Path, file: str, claim: str, more: str) -> None:
    path = copied(tmp_path) / "proofs" / f"{file}.v"
    text = path.read_text(encoding="utf-8")
    assert text.count(claim) == 1
    path.write_text(text.replace(claim, more), encoding="utf-8")
    assert make(folder=tmp_path).returncode != 0


@pytest.mark.slow
@needs_coq
def test_a_theorem_that_rests_on_an_axiom_is_refused(tmp_path: Path) -> None:
    """Coq itself accepts a lemma that is admitted, and all that is proved from it."""
    path = copied(tmp_path) / "proofs" / "loomis_whitney.v"
    text = path.read_text(encoding="utf-8")
    start = text.index("Proof.", text.index("Theorem loomis_whitney"))
    end = text.index("Qed.", start) + len("Qed.")
    path.write_text(text[:start] + "Admitted." + text[end:], encoding="utf-8")
    done = make(folder=tmp_path)
    assert done.returncode != 0
    assert "loomis_whitney rests on: Axioms:" in done.stderr
    assert "loomis_whitney is proved" not in done.stdout


def test_the_table_names_each_file() -> None:
    named = {file for _, file in ROW.findall((ROOT / "docs" / "lower-bounds.md").read_text(encoding="utf-8"))}
    assert named == {path.stem for path in PROOFS.glob("*.v")}


def test_without_coq_it_says_what_to_install() -> None:
    done = make("COQC=no-such-coqc")
    assert done.returncode == 2
    assert "make proofs needs coqc; on Debian: apt-get install coq libcoq-mathcomp-ssreflect" in done.stderr
