"""Bounds on the least I/O: `bounds`, `gaps`, `crossover`, `theorems`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pebblesim.cli.completion import schedules, statements
from pebblesim.cli.options import (
    AsJson,
    AsLatex,
    Blocks,
    Dtype,
    HeadChoice,
    MaskText,
    Problem,
    ProblemName,
    Ranges,
    Sizes,
    Summation,
    all_words_in,
    argument,
    command,
    family,
    one_problem,
    option,
    output_file,
    words_in,
)
from pebblesim.cli.printing import WIDE, one_way, print_json, print_table, say, show
from pebblesim.cli.waiting import progress_bar
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import DTYPE_ON_MACHINES, dtype_of, listed, parse_size

if TYPE_CHECKING:
    from pebblesim.api.bounding import Bounds
    from pebblesim.lower_bounds.bounds import LowerBound

app = family()


@command(app, example="pebblesim bounds -n 4096 -d 64 -M 64k")
def bounds(
    named: ProblemName = None,
    *,
    sizes: Sizes,
    m: Annotated[
        str | None,
        option("-M", "Cache: words, or bytes with --dtype; without it, the bounds at several M about d².", "WORDS"),
    ] = None,
    dtype: Dtype = None,
    problem: Problem = None,
    schedule: Annotated[
        str | None,
        option("--schedule", "Bounds for the way in which this schedule computes: what it keeps and regroups.", "NAME"),
    ] = None,
    mask: MaskText = None,
    pairs: Annotated[
        str | None, option("--pairs", "Bounds for every mask with Z allowed pairs of query and key.", "Z")
    ] = None,
    heads: HeadChoice,
    everything: Annotated[
        bool, option("--all", "A table of all theorems instead, for all sizes: where they hold, and their evidence.")
    ] = False,
    latex: AsLatex = False,
    as_json: AsJson = False,
) -> None:
    """List every bound of a problem, in symbols and as numbers: Θ, and lower bounds with constants."""
    from pebblesim.api.bounding import bounds as bound
    from pebblesim.language.masks import of_heads
    from pebblesim.language.registry import get

    one_way(latex, as_json)
    problem = one_problem(named, problem)
    if everything:
        given = {**sizes.dims, **{name: value for name, value in (("M", m), ("mask", mask), ("pairs", pairs)) if value}}
        if given:
            raise UsageError(f"--all lists theorems for all sizes; leave out {', '.join(given)}.")
        _print_all(problem, latex, as_json)
        return
    if problem is None:
        problem = "backward" if schedule is None else get(schedule).problem.name
    pattern, Z = of_heads(mask), None if pairs is None else 0 if pairs.strip() == "0" else parse_size("--pairs", pairs)

    dims = sizes.dims
    if latex and not dims:  # closed forms are the same for all sizes
        from pebblesim.lower_bounds.bounds import SIZES

        dims = dict(SIZES)
    shape: dict[str, Any] = {"mask": pattern, "pairs": Z, **heads.arguments, **dims}

    def at(M: int) -> Bounds:
        return bound(problem, M=M, schedule=schedule, **shape)

    one = at(words_in(m, dtype) or 1)
    if latex:
        print(one.latex())
        return
    if m is not None:
        several = [one]
    else:
        square = min(one.dims.values()) ** 2
        several = [at(M) for M in sorted({max(4, square * 4**k // 256) for k in range(9)})]
    if as_json:
        results = [each.to_dict() for each in several]
        print_json(results[0] if m is not None else {"bounds": results})
        return
    title = f"{one.problem}{'' if one.schedule is None else f', as {one.schedule} computes it'}: {listed(one.dims)}"
    title += "" if one.pairs is None else f", {one.pairs:,} allowed pair{'s' * (one.pairs != 1)}"
    if m is not None:
        _print_at(one, f"{title}, M = {one.M:,} words")
    else:
        _print_over(several, title)
    for lower in one.lower:
        text = lower.source.replace("docs/lower-bounds.md §4", f"docs/lower-bounds.md#{lower.name}") + _twin(one, lower)
        say(text + (f"; not here: {lower.why_not}" if m is not None and lower.why_not else ""))
    say("Θ: not stated" if one.theta is None else f"Θ: {one.theta.source}")
    say("All lower bounds hold with recomputation, and for every summation tree.")
    say(f"pebblesim bounds {one.problem} --all: where each holds, for all sizes, and what it was compared with.")
    say("A value may exceed its closed form, by some M words: it counts whole segments (docs/lower-bounds.md §2).")
    if m is not None:
        say("\n".join(one.summary()))
    elif one.heads.is_given:
        say(f"{one.heads}: {one.times:,} times that")


def _twin(one: Bounds, lower: LowerBound) -> str:
    """Why a bound is listed whose first closed form an earlier one of its way has, too; empty for the others."""
    first, *others = lower.forms or (None,)
    same = [
        each.name
        for each in one.lower[: one.lower.index(lower)]
        if each.forms[:1] == (first,) and each.way == lower.way
    ]
    if not same or not others:
        return ""
    beyond = " and ".join(f"{form.expr} for {form.domain}" for form in others if form)
    return f"; for {first.domain} the same as {same[0]}, by another proof, and {beyond}" if first else ""


def _print_all(problem: str | None, latex: bool, as_json: bool) -> None:
    """All theorems, or those of one problem."""
    import pebblesim as ps
    from pebblesim.core.notation import parse, written
    from pebblesim.language.problems import problem as named

    table = ps.claims.theorems
    rows = table.theorems(None if problem is None else [named(problem)])
    if latex:
        print(table.latex(rows))
    elif as_json:
        print_json({"theorems": [row.to_dict() for row in rows]})
    else:
        columns = ("theorem", "problem", "closed form", "M", "holds for", "evidence", "way of computing")
        lines = [
            (row.name, row.problem, written(parse(form.expr)), form.domain, row.domain, row.evidence, ways)
            if not number
            else ("", "", written(parse(form.expr)), form.domain, "", "", "")
            for row in rows
            for ways in ["; ".join(row.ways)]
            for number, form in enumerate(row.forms)
        ]
        print_table("lower bounds", columns, lines, left=len(columns), first=("theorem", "problem", "closed form"))
        say(
            f"Proofs: {table.PROOFS}. All hold with recomputation, and for every summation tree. Evidence: comparisons "
            "in which a theorem is the largest bound and exceeds the compulsory words."
        )


def _print_at(one: Bounds, title: str) -> None:
    """All bounds for one M, each with the way of computing it is for, if there are several."""
    several = len(one.ways) > 1
    rows = [("Θ", one.theta.expr, "", *[""] * several, f"{one.theta_value:,.0f}")] if one.theta else []
    for bound in one.lower:
        form = bound.form or (bound.forms[0] if bound.forms else None)
        value = "" if bound.why_not else f"{bound.value:,}"
        way = (bound.way,) if several else ()
        rows.append((bound.name, form.expr if form else "", form.domain if form else "", *way, value))
    columns = ("bound", "closed form", "M", *["way of computing"] * several, "words")
    print_table(
        title, columns, rows, left=len(columns) - 1, first=("bound", "words", "closed form", "way of computing")
    )


def _print_over(bounds: Sequence[Bounds], title: str) -> None:
    """All closed forms, and the largest bound for each way of computing over several M."""
    one = bounds[0]
    ways = list(one.ways) if len(one.ways) > 1 else []
    rows = [("Θ", one.theta.expr, "", *[""] * bool(ways))] if one.theta else []
    for bound in one.lower:
        rows += [(bound.name, form.expr, form.domain, *[bound.way] * bool(ways)) for form in bound.forms]
    columns = ("bound", "closed form", "M", *["way of computing"] * bool(ways))
    print_table(title, columns, rows, left=len(columns), first=("bound", "closed form"))
    lines = [
        (
            f"{at_M.M:,}",
            *(f"{bound.value:,} ({bound.name})" for bound in (*(at_M.ways[way] for way in ways), at_M.best)),
            *([] if at_M.theta is None else [f"{at_M.theta_value:,.0f}"]),
        )
        for at_M in bounds
    ]
    print_table("the largest, in words", ("M", *ways, one.best.of_way, *(["Θ"] if one.theta else [])), lines)


@command(app, example="pebblesim gaps -n 65536 -d 128")
def gaps(
    named: ProblemName = None,
    *,
    sizes: Sizes,
    m: Annotated[
        list[str] | None,
        option("-M", "One M; may be repeated. By default powers of two over the whole range.", "WORDS"),
    ] = None,
    machine: Annotated[
        str | None,
        option("--machine", "At each boundary of a path of memories: a card or FILE.toml, in place of -M.", "NAME"),
    ] = None,
    dtype: Dtype = None,
    problem: Problem = None,
    blocks: Blocks = "best",
    summation: Summation = "chain",
    steps: Annotated[
        int | None,
        option("--steps", "Without -M: values of M from one power of two to the next; 1 by default.", min=1, max=64),
    ] = None,
    latex: AsLatex = False,
    as_json: AsJson = False,
) -> None:
    """Divide the I/O of the best schedule by the best lower bound, over the whole range of M."""
    from pebblesim.api.gaps import gaps as gaps_of

    one_way(latex, as_json)
    if steps is not None and (m or machine):
        raise UsageError(f"--steps is for the whole range of M; leave it out, or {'-M' if m else '--machine'}.")
    below = _below(machine, m, dtype)
    capacities: Any = list(below.values()) or None
    if machine is None:
        capacities = all_words_in(",".join(m), dtype) if m else words_in(None, dtype)
    shape: dict[str, Any] = {"blocks": blocks, "summation": summation, "steps": steps or 1, **sizes.dims}
    solves = one_problem(named, problem)
    result = gaps_of("backward" if solves is None else solves, M=capacities, **shape)
    if as_json or latex:
        print(result.latex()) if latex else print_json(result.to_dict() | ({"below": below} if below else {}))
        return
    if below:
        held = "; ".join(f"{name} and all below it, {words:,}" for name, words in below.items())
        say(f"M: words of {dtype or DTYPE_ON_MACHINES} in {held}")
    show(*result.parts(WIDE.get()))


def _below(name: str | None, m: Any, dtype: str | None) -> dict[str, int]:
    """The words of each memory of a machine and of those below it, by name; none without a machine."""
    if name is None:
        return {}
    if m:
        raise UsageError("give M with -M, or a machine with --machine: one of the two.")
    from pebblesim.machines.named import machine

    place = machine(name)
    beneath, numbers = place.beneath(dtype_of(dtype or DTYPE_ON_MACHINES)), place.numbers
    return {level.name: n * words for level, n, words in zip(place.levels, numbers, beneath, strict=True)}


@command(app, example="pebblesim crossover -n 4096 -d 64 -o crossover.png")
def crossover(
    schedules: Annotated[
        list[str] | None,
        argument("Pairs of schedules; by default Algorithm 6, Algorithm 9 and FlashAttention.", values=schedules),
    ] = None,
    *,
    sizes: Ranges,
    m: Annotated[
        str | None,
        option("-M", "Fix the cache, and cross along a size such as -n 1k:1M:x2; without it, along M.", "WORDS"),
    ] = None,
    dtype: Dtype = None,
    heads: HeadChoice,
    output: Annotated[Path | None, output_file("--output -o", "Draw I/O over M: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find where Algorithm 6, Algorithm 9 and FlashAttention, or two other schedules, cross: the exact M or size."""
    from pebblesim.api.crossover import crossover as find, sweep

    if output is not None:
        from pebblesim.views.plots.style import check

        check(output)
    asked: dict[str, Any] = {**heads.arguments, **sizes.dims}
    if not (WIDE.get() or as_json):  # what is not printed
        asked |= {"over_d": (), "proofs": False}
    with progress_bar("comparing") as progress:
        result = find(*schedules or (), M=words_in(m, dtype), progress=progress, **asked)
    if output is not None:
        from pebblesim.views.plots.crossover import HEIGHT, io_over_M
        from pebblesim.views.plots.style import save

        data = sweep(result)
        save(lambda figure: io_over_M(data, figure.subplots()), output, HEIGHT)
    if as_json:
        print_json(result.to_dict())
    else:
        show(*result.parts(WIDE.get()))
        if output is not None:
            say(f"written {output}")


@command(app, example="pebblesim theorems --table-1")
def theorems(
    name: Annotated[
        str | None,
        argument("One of them, as in its source, or one of our lower bounds: Theorem 4.2, E8.", values=statements),
    ] = None,
    *,
    table_1: Annotated[bool, option("--table-1", "Table 1 of Li et al. instead.")] = False,
    latex: AsLatex = False,
    as_json: AsJson = False,
) -> None:
    """List the statements of the literature, with domain and source; what is false or limited has a mark."""
    from dataclasses import asdict

    from pebblesim.catalogue.literature import STATEMENTS, TABLE_1, latex as in_latex
    from pebblesim.core.notation import parse, written

    one_way(latex, as_json)
    if name is not None:
        if table_1:
            raise UsageError("--table-1 prints a table of several statements; leave out the name, or --table-1.")
        _print_one(name, latex, as_json)
        return
    if latex:
        print(in_latex(STATEMENTS))
        return

    def bound(relation: str, expr: str) -> str:
        return f"{relation}({written(parse(expr))})"

    if table_1:
        rows, records = [], []
        for way, side, large, small in TABLE_1:
            O = "O" if side == "upper" else "Ω"
            row, record = [f"{way}, {side} bound"], {"attention": way, "bound": side}
            for name, (form, of) in (("large_cache", large), ("small_cache", small)):
                mark = " *" * bool(of.mark)
                row += [bound(O, form) + mark, of.title + mark]
                record |= {name: form, f"{name}_source": of.title, f"{name}_mark": of.mark}
            rows.append(row)
            records.append(record)
        if as_json:
            print_json({"rows": records})
            return
        head = ("attention", "M ≥ d²", "source", "M ≤ d²", "source")
        print_table("Table 1 of Li et al., for n ≥ d", head, rows, left=5, first=(head[0], head[1], head[3]))
        marked = dict.fromkeys(cell.of for *_, large, small in TABLE_1 for cell in (large, small) if cell.of.mark)
        say(*(f"* {each.title}: {each.mark}" for each in marked))
    elif as_json:
        print_json({"rows": [asdict(statement) | {"mark": statement.mark} for statement in STATEMENTS]})
    else:
        for statement in STATEMENTS:
            say(statement.text)


def _print_one(name: str, latex: bool, as_json: bool) -> None:
    """A statement of the literature, or one of our theorems for each problem that has it."""
    from pebblesim.claims.cited import Cited, cited

    found: list[Cited] = cited(name)
    if as_json:
        print_json({"statements": [each.to_dict() for each in found]})
    else:
        say("\n\n".join(each.latex if latex else each.text for each in found))
        if latex:
            say(*dict.fromkeys(each.bibtex for each in found))
