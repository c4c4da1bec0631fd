"""Break bounds, claims and the decider on purpose, one at a time, and see which check finds it.

    .venv/bin/python benchmarks/mutations.py docs/mutations.md

A mutation is a piece of source replaced by another. It is applied to the module as it is imported, in a process of its
own; no file is changed. Then its checks run, the cheapest first, until one fails: claims of `pebblesim verify`, or
tests. What comes out is the page, and what no check finds is at its head. With `--results FILE` what is known is kept
there, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

HEAD = """\
# What was broken on purpose, and what found it

Each line is a change to the source of a bound, a claim or the decider that makes it say too much or too little. It is
applied by `benchmarks/mutations.py`, which writes this page: the check named last is the first that failed of those
that the mutation was given, cheapest first. `verify` stands for claims of `pebblesim verify`, by name.

"""


class Mutation(NamedTuple):
    """What is changed, where, from which text to which, and the checks that should mind."""

    what: str
    module: str
    old: str
    new: str
    checks: Sequence[str]


FAR = ("verify: far out", "verify: lower bounds ≤ counts")
CAPACITIES = ("tests/test_lower_bounds.py -k 'split or share or box or rows or segments'",)
FORMS = ("tests/test_lower_bounds.py -k 'closed_form'",)
MASKED = ("tests/test_lower_bounds.py -k 'mask or pairs'",)
OPTIMA = ("tests/test_lower_bounds.py -k 'optimum and not many'", "verify: optimum")
DECIDER = ("tests/test_tropical.py", "tests/test_decider_fuzz.py")
RULES = ("tests/test_claims.py -k 'nothing_tried or say_how_much or erratum or proof_has'",)

CUT, CAP = "theory.cutting", "theory.capacities"
QKV, BACK = "theory.bounds_backward_qkv", "theory.bounds_backward"
TROP, REG = "growth.tropical", "growth.regions"

MUTATIONS: dict[str, Sequence[Mutation]] = {
    "Bounds": (
        Mutation("D2 and E2: 24 becomes 36", CAP, "4 * self.key * (self.query + 1)", "6 * self.key * (self.query + 1)",
                 (*CAPACITIES, *FAR)),
        Mutation("E2: 24 becomes 32", CAP, "4 * self.key * (self.query + 1)", "8 * self.key * self.query",
                 (*FAR, *CAPACITIES)),
        Mutation("D1: trees of scores are not refunded, 2n² becomes n²", CUT,
                 "if product.result not in self.outputs]", "if product.result not in (*self.outputs, 'Σ')]",
                 (*FAR, *FORMS)),
        Mutation("E1: 75 becomes 85", QKV, "*_weighted(GRADIENTS, 12, 12, 17)", "*_weighted(GRADIENTS, 17, 17, 17)",
                 (*FORMS, *FAR)),
        Mutation("E3: 48 becomes 56", QKV, "LINES, _weighted(GRADIENTS, 18, 18, 12)",
                 "LINES, _weighted(GRADIENTS, 18, 18, 20)", FORMS),
        Mutation("E3: 48 becomes 56, with the capacity's own weights", CAP, "= (18, 18, 12)", "= (18, 18, 20)", FORMS),
        Mutation("D1 under a mask keeps g", CUT, "if loose.isdisjoint((product.left, product.right))", "if True",
                 (*FORMS, *MASKED)),
        Mutation("Loomis–Whitney: 27 becomes 30", CAP, "self.w**2 * X**3 // 27", "self.w**2 * X**3 // 30",
                 (*CAPACITIES, *FORMS, *FAR)),
        Mutation("Loomis–Whitney: 27 becomes 48", CAP, "self.w**2 * X**3 // 27", "self.w**2 * X**3 // 48", FAR),
        Mutation("C1: 16 becomes 20", CAP, "16 * self.query * self.key", "20 * self.query * self.key", CAPACITIES),
        Mutation("C1: 16 becomes 17", CAP, "16 * self.query * self.key", "17 * self.query * self.key", CAPACITIES),
        Mutation("fresh pairs: no carried ones", CAP, "return max(isqrt(X**3 // 27), X**2 // (self.c * self.d))",
                 "return X**2 // (self.c * self.d)", (*CAPACITIES, *FAR)),
        Mutation("rows: lines²/4 becomes lines²/5", CAP, "lines**2 // 4 + X", "lines**2 // 5 + X", CAPACITIES),
        Mutation("rows: no carried pairs", CAP, "return max(X, lines**2 // 4 + X - self.w * lines)",
                 "return max(1, lines**2 // 4)", CAPACITIES),
        Mutation("gradients: X²/d becomes 7/8 of it", CAP, "(8 * X**2 + self.half", "(7 * X**2 + self.half", CAPACITIES),
        Mutation("gradients: fewer products of carried pairs", CAP, "max(self.weights) // 2", "max(self.weights) // 3",
                 (*CAPACITIES, *FORMS)),
        Mutation("a segment starts one episode more", CAP, "T, G = X - (M - 1), capacity(X)",
                 "T, G = X - (M - 2), capacity(X)", (*CAPACITIES, *OPTIMA)),
        Mutation("the first segment counts M words twice", CAP, "words = full * T + M - free",
                 "words = full * T + 2 * M - free", (*CAPACITIES, *OPTIMA, *FAR)),
        Mutation("one segment too many", CAP, "full = (products - 1) // G", "full = products // G",
                 (*CAPACITIES, *OPTIMA)),
        Mutation("trees made again take no share", CAP, "words -= room * T // G if ragged or tree is None else room // tree",
                 "pass", (*CAPACITIES, *OPTIMA)),
        Mutation("trees that are cheap to make again are refunded once", CAP,
                 "if (M if ragged else 1) > T or (tree is not None and T * tree < G):", "if False:",
                 (*CAPACITIES, *FAR, *MASKED)),
        Mutation("box: a short side fills less than it can", CAP, "if 3 * s**2 >= X:", "if s**2 >= X:", CAPACITIES),
        Mutation("box: two short sides fill less than they can", CAP, "(X - s * t) // (s + t)",
                 "(X - s * t) // (s + t + 1)", CAPACITIES),
        Mutation("outputs are compulsory twice", CUT, "*self.way.kept, *self.outputs)",
                 "*self.way.kept, *self.outputs, *self.outputs)", ("verify: lower bounds ≤ counts", *OPTIMA)),
        Mutation("inputs within the argument are counted besides", CUT, "for name in self.all_words() if name not in within",
                 "for name in self.all_words()", (*FORMS, *FAR)),
        Mutation("closed form of D2: 6 becomes 8", CUT, "Fraction(c, 4)", "Fraction(c, 3)", FORMS),
        Mutation("closed form of D3: 4 becomes 6", CUT, "    w *= w\n", "    w *= w + 1\n", FORMS),
        Mutation("closed form of D1 is said to hold up to 9d²", CUT, "[(form, 0, 4 if trees else None)]",
                 "[(form, 0, 9 if trees else None)]", FORMS),
        Mutation("D1 and D2 for regrouped sums too", BACK, "if regrouped else", "if False else",
                 ("tests/test_lower_bounds.py -k 'applies_to_the_way'", *FAR)),
        Mutation("D2 for dQ with n² rows", BACK, '"dQ", "Θ", "A2", ("queries", "keys", "d")',
                 '"dQ", "Θ", "A2", ("queries", "keys", "keys")', (*FORMS, *FAR)),
        Mutation("L1: n²d products in A2ᵀ A3", "theory.bounds_products", '("d", "n", "d")', '("n", "n", "d")',
                 (*FAR, *FORMS)),
        Mutation("E5: scores too, though P is kept", QKV, "[*made, DP, dQ, dK, dV]",
                 '[*made, Product("Σ", "Q", "K", ("queries", "d", "keys")), DP, dQ, dK, dV]', (*FORMS, *FAR)),
        Mutation("ragged trees under a mask are taken for whole ones", CUT, "return self.masked and product.sides[1] in",
                 "return False and product.sides[1] in", (*FORMS, *MASKED)),
        Mutation("of Z pairs every one has a query of its own", CUT, "return cls(given, -(-given // n), -(-given // n))",
                 "return cls(given, given, given)", MASKED),
    ),
    "Decider": (
        Mutation("P − N is at most P, whatever its sign", TROP,
                 "alone = sure and region.implies(sympy.Add(*positive), sympy.Add(*negative))", "alone = bool(positive)",
                 DECIDER),
        Mutation("P − N is at least a part of P where P ≥ N", TROP, "if region.implies(added, taken, strictly=True):",
                 "if region.implies(added, taken):", DECIDER),
        Mutation("P − N is at least a part of P anywhere", TROP, "if region.implies(added, taken, strictly=True):",
                 "if True:", DECIDER),
        Mutation("⌊y⌋ is y", TROP, "if region.implies(inner, one):", "if True:", DECIDER),
        Mutation("⌊y⌋ of a negative y is no more than |y|", TROP, "if self._at_least_zero(inner, region):\n                return cells",
                 "if True:\n                return cells", ("tests/test_decider_fuzz.py", DECIDER[0])),
        Mutation("⌈y⌉ is at least 1", TROP, "positive = self._positive(inner, region)", "positive = True",
                 DECIDER[::-1]),
        Mutation("1/y is positive where y may be 0", TROP,
                 "sure += [(part, None)] if low is None else self.bound(base, part, upper=True)",
                 "sure += self.bound(base, part, upper=True)", DECIDER),
        Mutation("the least of two is positive", TROP,
                 "if upper and not largest and not all(self._at_least_zero(arg, region) for arg in args):", "if False:",
                 DECIDER[::-1]),
        Mutation("odd powers are positive", TROP, "even = bool(power.p % 2 == 0 and power.q == 1)", "even = True",
                 DECIDER[::-1]),
        Mutation("roots of what may be negative", TROP,
                 "if power.q != 1 and not self._at_least_zero(base, region):", "if False:", DECIDER[::-1]),
        Mutation("one of three terms is exceeded, so all are", TROP, "share = len(negative) * e / c", "share = e / (2 * c)",
                 DECIDER),
        Mutation("parts where a difference may cancel are left out", TROP, "cells.append((other, None))", "pass", DECIDER),
        Mutation("parts where a floor may be 0 are left out", TROP,
                 "return [*found, *((other, None) for other in others)]", "return found", DECIDER),
        Mutation("a bound that is missing is no objection", TROP, "if above is None or below is None or cell",
                 "if above is not None and below is not None and cell", DECIDER),
        Mutation("the comparison is turned round", TROP, "cell.cone.signs(minus(above, below))[0]:\n                    open",
                 "cell.cone.signs(minus(above, below))[1]:\n                    open", DECIDER),
        Mutation("Θ asks for O alone", TROP, 'if relation in "ΩΘ":', 'if relation in "Ω":', DECIDER),
        Mutation("a witness may lie outside of the region", REG, "        for limit in self.limits:\n            grown =",
                 "        for limit in ():\n            grown =", DECIDER[::-1]),
        Mutation("the larger of two is the smaller", TROP, "first, second = (b, a) if swap else (a, b)",
                 "first, second = (a, b) if swap else (b, a)", DECIDER),
        Mutation("what cancels in so many words is kept", TROP, "if negative and (short := sympy.expand(expr)) != expr:",
                 "if negative and (short := expr) != expr:", DECIDER),
        Mutation("a difference is never negative", TROP,
                 "return region.implies(sympy.Add(*positive), sympy.Add(*negative))\n        return False\n\n    def _positive",
                 "return True\n        return False\n\n    def _positive", DECIDER[::-1]),
        Mutation("symbols that sympy takes for positive integers", TROP, "map(sympy.Symbol, names)",
                 "(sympy.Symbol(name, positive=True, integer=True) for name in names)", DECIDER),
        Mutation("a comparison with = holds one way", TROP, 'if sign in ("<=", "=="):', 'if sign in ("<=",):', DECIDER),
        Mutation("a constant of the region is turned over", REG, "return self._limited(((minus(smaller, m), 1 / c),))",
                 "return self._limited(((minus(smaller, m), c),))", DECIDER),
        Mutation("a monomial is at least another though the region says half of it", REG, "                if c >= 1:",
                 "                if True:", DECIDER[::-1]),
        Mutation("exceeding by a constant factor is exceeding", REG, "smaller = smaller * (1 + MARGIN)", "pass", DECIDER),
        Mutation("every linear program has a solution", REG, "        if entering is None:\n            return False",
                 "        if entering is None:\n            return True", DECIDER),
        Mutation("a limit pays twice", REG, "rows.append(({**row, shares.index((p, i)): -c}, Fraction(0)))",
                 "rows.append(({**row, shares.index((p, i)): -2 * c}, Fraction(0)))", DECIDER),
        Mutation("a sink is paid by half", REG, "if sink == j}, -need))", "if sink == j}, -need / 2))", DECIDER),
        Mutation("⌊y⌋ ≥ 2 where y ≥ 1", REG, "larger.args[0], sympy.ceiling(smaller)", "larger.args[0], smaller - 1",
                 DECIDER),
        Mutation("√y ≥ 2 where y ≥ 2", REG, "larger, smaller = larger**root, smaller**root",
                 "larger, smaller = larger**root, smaller", (*DECIDER, "verify: repaired")),
        Mutation("limits are forgotten", REG, "return tuple(dict.fromkeys((one, *(limit", "return tuple(dict.fromkeys((one, *(limit[:0]",
                 DECIDER),
        Mutation("cones lose rays", "growth.cones", "if of_a > 0 > of_b and self._adjacent(a, b):", "if False:", DECIDER),
        Mutation("a cone is cut on the wrong side", "growth.cones", "kept = [ray for ray, value in values.items() if value >= 0]",
                 "kept = [ray for ray, value in values.items() if value <= 0]", DECIDER),
    ),
    "Claims": (
        Mutation("blocks in closed form that do not fit", "growth.closed_blocks", "(M - d**2 - 3*d - 2)/(4*d + 8)",
                 "(M - d**2 - 3*d - 2)/(2*d + 4)", ("verify: blocks in closed form",)),
        Mutation("repaired theorems for M ≥ d²", "theory.literature", "M >= (1 + 1/1000)*d**2", "M >= d**2",
                 ("verify: D.5, repaired",)),
        Mutation("9n² words of Algorithm 6 become 8n²", "claims.exact", "+ 9*n**2 + 3*n*d", "+ 8*n**2 + 3*n*d",
                 ("verify: words of small-cache",)),
        Mutation("Lemma C.9 is stated to be right", "theory.literature", '"n**2/sqrt(M)", SMALL,', '"n**2", SMALL,',
                 ("verify: Lemma C.9",)),
        Mutation("Theorem E.9 with M for √M in a term", "theory.literature",
                 '_LARGE_BOUND = "(n**2*d**2 + n*d**3)/M"', '_LARGE_BOUND = "(n**2*d**2 + n*d**3)/sqrt(M)"',
                 ("verify: Theorem E.9",)),
        Mutation("Theorem E.10 twice as large a power", "theory.literature", '_SMALL_BOUND = "(n**2*d + n*d**2)/sqrt(M)"',
                 '_SMALL_BOUND = "(n**2*d**2 + n*d**2)/sqrt(M)"', ("verify: Theorem E.10",)),
        Mutation("one failed refutation is a proof", "claims.claim", "Finding(FAILS if found else UNDECIDED,",
                 "Finding(FAILS if found else PROVED,", RULES),
        Mutation("one refutation of two is enough", "claims.claim", "not any(verdict for verdict, _ in verdicts)",
                 "not all(verdict for verdict, _ in verdicts)", RULES),
        Mutation("nothing tried is a pass", "claims.claim", "status if number else UNDECIDED", "status", RULES),
        Mutation("a verdict that fails is passed over", "claims.claim", "            return Finding(FAILS, line)",
                 "            continue", RULES),
        Mutation("a text may be compared with itself", "claims.claim", "if form.strip", "if False and form.strip", RULES),
        Mutation("sizes at which a block is empty are part of the region", "claims.claim", 'if "floor" in rule',
                 'if "floo_" in rule', ("verify: Theorem 3.2", "verify: Theorem 3.5")),
        Mutation("the sparse game's words are mistyped", "claims.sparse", '"2*d + 4*n"', '"2*d + 3*n"',
                 ("verify: Theorem F.3",)),
        Mutation("the sparse game computes from what it never read", "claims.sparse", "            play.read(A2[j], A3[j])\n            h = ",
                 "            play.read(A2[j])\n            h = ", ("verify: Theorem F.3",)),
        Mutation("a form is used below the M from which it holds", "claims.lower", '{"backward": ("D3", 8),',
                 '{"backward": ("D3", 1),', ("verify: Theorem E.9",)),
        Mutation("the lower bound of all ways from a bound of one", "claims.lower", '"backward": ("D3", 8)',
                 '"backward": ("D2", 11)', ("verify: Theorem E.9",)),
        Mutation("the number of games under --full", "claims.games", "games of {len(chosen)} schedules",
                 "games of {len(SCHEDULES)} schedules", RULES),
        Mutation("an erratum is forgotten", "theory.literature", "erratum=_PRINTED_BLOCKS,\n        note=", "note=",
                 ("verify: Theorem 4.1",)),
    ),
}  # fmt: skip


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of pebblesim from changed source."""

    def __init__(self, mutation: Mutation) -> None:
        self.name = f"pebblesim.{mutation.module}"
        self.path = ROOT / (self.name.replace(".", "/") + ".py")
        source = self.path.read_text(encoding="utf-8")
        old, new = (text.replace("\\\n", "\n") for text in (mutation.old, mutation.new))
        if source.count(old) < 1:
            raise SystemExit(f"{mutation.what}: {self.path.name} has no {old!r}; write the mutation anew.")
        self.source = source.replace(old, new, 1)

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path))

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


def found_by(check: str) -> str | None:
    """What fails of a check, in this process; None if nothing does."""
    kind, _, names = check.partition(": ")
    if kind == "verify":
        import pebblesim as ps

        try:
            report = ps.verify(names)
        except Exception as error:
            return f"`verify`, {names}: {type(error).__name__}"
        wrong = next((row.claim.name for row in report.rows if not row.agrees), None)
        return wrong and f"`verify`, {wrong}"
    import shlex

    import pytest

    class First:
        failed: str | None = None

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed and self.failed is None:
                self.failed = report.nodeid.split("/")[-1]

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed and self.failed is None:
                self.failed = f"{report.nodeid.split('/')[-1]}, which cannot be imported"

    first = First()
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--tb=no", "--no-header"]
    pytest.main([*shlex.split(check), *options], plugins=[first])
    return first.failed and f"`{first.failed}`"


def tried(mutation: Mutation) -> str:
    """The first check that fails, found in a child process; "" if none does."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        answer = ""
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                sys.meta_path.insert(0, Mutated(mutation))
                answer = next((by for check in mutation.checks if (by := found_by(check))), "")
            except BaseException as error:
                answer = f"!{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    if answer.startswith("!"):
        raise SystemExit(f"{mutation.what}: the checks did not run: {answer[1:]}")
    return answer


def page(results: dict[str, str]) -> str:
    """The document."""
    known = [(group, each, results[key(each)]) for group, many in MUTATIONS.items() for each in many if key(each) in results]
    missed = [each.what for _, each, by in known if not by]
    parts = [HEAD + f"{len(known)} mutations, {len(known) - len(missed)} found.\n"]
    if missed:
        parts.append("Not found: " + "; ".join(missed) + ".\n")
    for group in MUTATIONS:
        lines = [f"| {each.what} | {by or 'nothing'} |" for name, each, by in known if name == group]
        parts.append("\n".join([f"## {group}\n", "| what is broken | found by |", "|---|---|", *lines]) + "\n")
    return "\n".join(parts)


def key(mutation: Mutation) -> str:
    """What a result is of."""
    return "\n".join((mutation.module, mutation.old, mutation.new))


def main() -> None:
    """Try all mutations and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--results", type=Path, help="keep what is known in this file, and go on from it")
    parser.add_argument("--most", type=int, default=10**6, help="try so many at most")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    sys.dont_write_bytecode = True
    import numba, numpy, sympy, typer  # noqa: E401, F401 - once, for all children

    results: dict[str, str] = {}
    if given.results and given.results.exists():
        results = json.loads(given.results.read_text(encoding="utf-8"))
    checks = sorted({check for many in MUTATIONS.values() for each in many for check in each.checks})
    for check in checks:  # what fails without a mutation finds nothing
        sound = Mutation(check, "errors", "import", "import", (check,))
        if key(sound) + check not in results:
            if by := tried(sound):
                raise SystemExit(f"{check} fails as it is: {by}")
            results[key(sound) + check] = ""
            print(f"sound: {check}", flush=True)
    todo = [each for many in MUTATIONS.values() for each in many if key(each) not in results]
    for mutation in todo[: given.most]:
        Mutated(mutation)  # or a sentence
        results[key(mutation)] = tried(mutation)
        print(f"{mutation.what}: {results[key(mutation)] or 'NOT FOUND'}", flush=True)
        if given.results:
            given.results.write_text(json.dumps(results), encoding="utf-8")
    given.page.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
