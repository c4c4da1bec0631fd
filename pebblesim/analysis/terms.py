"""The I/O of a schedule, term by term: its closed form, each term with its value and the reason for it.

Nothing here is specific to a schedule. The terms, their tensors and phases, and the words of cache that limit a block
are all taken from the closed forms of the program's phases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import sympy

from pebblesim.analysis.compiled import compile_exact
from pebblesim.analysis.formula import formula
from pebblesim.analysis.masked_sums import in_integers, symbol
from pebblesim.core.notation import written
from pebblesim.language import program as ir
from pebblesim.language.masks import Band

Sizes = Mapping[str, int]
M = symbol("M")


class Origin(NamedTuple):
    """The origin of a term: the tensor and phase whose words it counts."""

    phase: str
    tensor: str
    way: str
    """ "reads" or "writes"."""
    times: int


@dataclass(frozen=True)
class Passes:
    """A number of tiles in a term, ⌈x/b⌉, with the reason why the block is not larger.

    Attributes:
        expr: the ceiling.
        block, size, count: the block, its size, and how many tiles there are.
        phase, held: the phase that needs most cache for the block, and the words it holds, as a function of the block.
        about: the leading term of x/b if the block fills M; None if one tile holds everything.
    """

    expr: sympy.Expr
    block: str
    size: int
    count: int
    phase: str
    held: sympy.Expr
    about: sympy.Expr | None


@dataclass(frozen=True)
class Term:
    """A term of the closed form.

    Attributes:
        expr, value: the term, and its words for the sizes; under a mask a term alone need not be whole.
        origins: the tensors and phases that move them.
        passes: the numbers of tiles in it.
        about: the term with blocks that fill the cache, in the dimensions and M only; None if it does not depend on M.
        doubled: its words with twice the cache, for newly chosen blocks.
    """

    expr: sympy.Expr
    value: Fraction
    origins: tuple[Origin, ...]
    passes: tuple[Passes, ...]
    about: sympy.Expr | None
    doubled: Fraction


def terms(program: ir.Program, sizes: Sizes, doubled: Sizes, words: int, mask: Band | None = None) -> list[Term]:
    """Return the terms of a program's I/O, the largest first.

    Args:
        program: a traced schedule, under the mask if there is one.
        sizes: the dimensions and blocks, by name.
        doubled: the same with twice the cache.
        words: M.
        mask: a band, which has closed forms, or none.
    """
    variables = (*program.dims, *program.blocks)
    shares_of: dict[sympy.Expr, list[tuple[int | sympy.Rational, Origin]]] = defaultdict(list)
    for phase in program.phases:
        for tensor, traffic in formula(replace(program, phases=[phase]), mask).by_tensor.items():
            for way, expr in zip(("reads", "writes"), traffic, strict=True):
                for part in sympy.Add.make_args(in_integers(expr)) if expr else ():
                    times, rest = part.as_coeff_Mul()
                    shares_of[rest].append((times, Origin(phase.name, tensor, way, times)))
    limits = {block: _limit(program, block, sizes, mask) for block in program.blocks}
    values = {symbol(name): size for name, size in {**sizes, "M": words}.items()}
    result = []
    for rest, shares in shares_of.items():
        expr = sympy.Add(*(times for times, _ in shares)) * rest
        passes = tuple(_passes(rest, limits, values))
        halves = expr.as_coeff_Mul()[0].q  # under a mask a term alone need not be whole, as in n(n + 1)/2
        exact = compile_exact(halves * expr, variables)
        about = _leading(expr, passes, {symbol(name) for name in program.dims})
        origins = tuple(origin for _, origin in shares)
        words_now, words_then = Fraction(exact(**sizes), halves), Fraction(exact(**doubled), halves)
        result.append(Term(expr, words_now, origins, passes, about, words_then))
    return sorted(result, key=lambda term: -abs(term.value))


class _Limit(NamedTuple):
    phase: str
    held: sympy.Expr


def _limit(program: ir.Program, block: str, sizes: Sizes, mask: Band | None) -> _Limit:
    """Return the phase that holds most words among those that use a block, and the words, without minima and maxima."""
    values = {symbol(name): size for name, size in sizes.items()}
    held = []
    for phase in program.phases:
        used = any(isinstance(node, ir.Loop) and node.range.block == block for node in ir.walk(phase.body))
        if used:
            peak = formula(replace(program, phases=[phase]), mask).peak_words
            levels = peak.args if isinstance(peak, sympy.Max) else (peak,)
            held += [_Limit(phase.name, in_integers(level)) for level in levels]
    limiting = max(held, key=lambda limit: int(limit.held.subs(values)))

    def order(arg: sympy.Expr) -> tuple[int, bool]:  # a block that holds a whole dimension stands back behind it
        return int(arg.subs(values)), arg.is_Symbol and arg.name in program.blocks

    smaller = {least: min(least.args, key=order) for least in limiting.held.atoms(sympy.Min)}
    return _Limit(limiting.phase, sympy.expand(limiting.held.subs(smaller)))


def _passes(rest: sympy.Expr, limits: Mapping[str, _Limit], values: Mapping[sympy.Symbol, int]) -> Iterator[Passes]:
    """Return the numbers of tiles in a term, with the limits of their blocks."""
    blocks = {symbol(name) for name in limits}
    for ceiling in sorted(rest.atoms(sympy.ceiling), key=str):
        whole, cut = ceiling.args[0].as_numer_denom()
        if not (whole.is_Symbol and cut in blocks):
            continue
        phase, held = limits[cut.name]
        count = int(ceiling.subs(values))
        about = None if count == 1 or not held.has(cut) else whole / _filling(cut, held, blocks, values)
        yield Passes(ceiling, cut.name, values[cut], count, phase, held, about)


def _filling(
    block: sympy.Symbol, held: sympy.Expr, blocks: set[sympy.Symbol], values: Mapping[sympy.Symbol, int]
) -> sympy.Expr:
    """Estimate the size of a block that fills the cache, from the largest of the words that grow with it.

    If these are a product of blocks, all of them are assumed to have the same size. Words that no block changes are
    subtracted from the cache if they are more than a tenth of it.
    """
    parts = sympy.Add.make_args(held)
    largest = _largest([part for part in parts if part.has(block)], values)
    powers = {base: exponent for base, exponent in largest.as_powers_dict().items() if base in blocks}
    degree, each = sum(powers.values()), largest / sympy.Mul(*(base**exponent for base, exponent in powers.items()))
    fixed = [part for part in parts if not part.free_symbols & blocks]
    large = [part for part in fixed if int(part.subs(values)) * 10 > values[M]]
    return sympy.root((M - _largest(large, values)) if large else M, degree) / sympy.root(each, degree)


def _leading(expr: sympy.Expr, passes: tuple[Passes, ...], dims: set[sympy.Symbol]) -> sympy.Expr | None:
    """Return a term with blocks that fill the cache, if it then depends only on the dimensions and M."""
    if all(each.about is None for each in passes):
        return None
    about = expr.subs({each.expr: each.about or each.count for each in passes})
    return about if about.free_symbols <= dims | {M} and not about.has(sympy.ceiling, sympy.Sum) else None


def _largest(parts: Sequence[sympy.Expr], values: Mapping[sympy.Symbol, int]) -> sympy.Expr:
    return max(parts, key=lambda part: int(part.subs(values)))


def explained(terms: list[Term], program: ir.Program, sizes: Sizes, words: int) -> str:
    """Return the terms as text, with their shares, origins and reasons."""
    total, values = (
        sum((term.value for term in terms), Fraction(0)),
        {symbol(k): v for k, v in {**sizes, "M": words}.items()},
    )
    lines = []
    for term in terms:
        lines.append(f"{written(term.expr)} = {_words(term.value)} words, {_percent(term.value, total)}")
        if abs(term.value) * 200 < total:
            continue
        lines += [f"  {line}" for line in _origins(term.origins, program)]
        for passes in term.passes:
            if passes.count == 1:
                lines.append(
                    f"  {written(passes.expr)} = 1: one tile of {passes.block} = {passes.size:,} holds all of it"
                )
                continue
            lines.append(
                f"  {written(passes.expr)} = {passes.count:,} since {passes.block} = {passes.size:,}: phase "
                f"{passes.phase} holds {written(passes.held)} words, and M is {words:,}"
            )
        if term.about is not None:
            blocks = " and ".join(dict.fromkeys(passes.block for passes in term.passes if passes.about is not None))
            about = f"{written(term.about)} = {int(term.about.subs(values)):,}"
            lines.append(f"  with {blocks} as large as that allows it is about {about}")
        change = (
            "no change"
            if term.doubled == term.value
            else f"{_words(term.doubled)} words, {float(term.doubled / term.value):.2f} x"
        )
        lines.append(f"  with twice the cache: {change}")
    return "\n".join(lines)


def _origins(origins: tuple[Origin, ...], program: ir.Program) -> Iterator[str]:
    """Return one line for each phase: the tensors that it moves, and what would save these words."""
    phases = dict.fromkeys(origin.phase for origin in origins)
    for phase in phases:
        parts = []
        for way in ("reads", "writes"):
            moved = [o for o in origins if (o.phase, o.way) == (phase, way)]
            if moved:
                times = (
                    f"{o.tensor}{'' if o.times == 1 else f' {o.times} times'} ({_role(o.tensor, program)})"
                    for o in moved
                )
                parts.append(f"{way} {', '.join(times)}")
        yield f"phase {phase} {' and '.join(parts)}"


def _role(tensor: str, program: ir.Program) -> str:
    return "input" if tensor in program.inputs else "output" if tensor in program.outputs else "made on the way"


def _words(value: Fraction) -> str:
    return f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.1f}"


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _percent(part: Fraction, total: Fraction) -> str:
    return f"{float(100 * part / total):.1f} %" if abs(part) * 1000 >= total else "less than 0.1 %"


def as_data(term: Term, total: int) -> dict[str, Any]:
    """Return a term as plain data, for JSON."""
    return {
        "term": str(term.expr),
        "words": _number(term.value),
        "share": float(term.value / total),
        "origins": [{**origin._asdict(), "times": int(origin.times)} for origin in term.origins],
        "passes": [
            {
                "tiles": str(p.expr),
                "count": p.count,
                "block": p.block,
                "size": p.size,
                "phase": p.phase,
                "held": str(p.held),
            }
            for p in term.passes
        ],
        "about": None if term.about is None else str(term.about),
        "with_twice_the_cache": _number(term.doubled),
    }
