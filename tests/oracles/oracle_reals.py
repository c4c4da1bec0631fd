"""Statements about real numbers, decided by z3 in a process of its own.

z3's objects in Python drop their references to what z3 holds when Python deletes them. Garbage is collected by whatever
thread is at work, z3 counts references without a lock, and workers of the tests have a second thread: heaps would be
damaged, and a worker crash in a later test. So no test imports z3; statements are sympy's, and go to z3 as text.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sympy
from sympy.printing.smtlib import smtlib_code

Z3 = Path(sys.executable).with_name("z3")
needs_z3 = pytest.mark.skipif(not Z3.exists(), reason="needs z3 (pip install z3-solver)")


POWER = "(define-fun pow ((base Real) (exponent Real)) Real (^ base exponent))"  # sympy writes pow, z3 reads ^


def satisfied(*statements: Any, seconds: int = 60) -> bool:
    """Whether some real numbers satisfy all of these statements of sympy."""
    each = [sympy.sympify(statement) for statement in statements]
    types = dict.fromkeys(set().union(*(statement.free_symbols for statement in each)), float)
    said = [POWER, smtlib_code(each, symbol_table=types), "(check-sat-using qfnra)"]
    run = subprocess.run([Z3, f"-T:{seconds}", "-in"], input="\n".join(said), capture_output=True, text=True)
    answer = run.stdout.strip()
    assert answer in ("sat", "unsat"), f"{answer} {run.stderr}"
    return answer == "sat"


def contradicted(claim: Any, *given: Any) -> bool:
    """Whether some real numbers contradict a claim that is said to hold for all that are as given."""
    return satisfied(*given, sympy.Not(claim))
