"""What is known of the least I/O: `bounds`, `gaps`, `crossover`, `theorems`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pebblesim.cli.options import (
    AsJson,
    Blocks,
    D,
    Dtype,
    MaskText,
    N,
    Problem,
    Sizes,
    command,
    complete_schedule,
    family,
)
from pebblesim.cli.printing import listed, print_json, print_table
from pebblesim.sizes import parse, parse_words

if TYPE_CHECKING:
    from pebblesim.jobs.bounding import Bounds

app = family()


@command(app, example="pebblesim bounds -n 4096 -d 64 -M 64k")
def bounds(
    *,
    sizes: Sizes,
    m: Annotated[
        str | None,
        typer.Option("-M", help="Cache, as for count; without it, the bounds at several M about d².", metavar="WORDS"),
    ] = None,
    dtype: Dtype = None,
    problem: Problem = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule", help="Bounds on its way of computing: what it keeps, what it regroups.", metavar="NAME"
        ),
    ] = None,
    mask: MaskText = None,
    pairs: Annotated[
        str | None, typer.Option("--pairs", help="Z, for every mask with so many allowed pairs.", metavar="Z")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every bound of a problem, in symbols and as numbers: Θ, and lower bounds with constants."""
    from pebblesim.jobs.bounding import bounds as bound
    from pebblesim.language.registry import get

    problem = problem or ("backward" if schedule is None else get(schedule).problem.name)
    dims, Z = sizes.dims, None if pairs is None else parse("--pairs", pairs)

    def at(M: int) -> Bounds:
        return bound(problem, M=M, schedule=schedule, mask=mask, pairs=Z, **dims)

    one = at(1 if m is None else parse_words(m, dtype))
    if m is not None:
        several = [one]
    else:
        square = min(one.dims.get(side, one.dims["n"]) for side in ("d", "k", "m")) ** 2
        several = [at(M) for M in sorted({max(4, square * 4**k // 256) for k in range(9)})]
    if as_json:
        results = [each.to_dict() for each in several]
        print_json(results[0] if m is not None else {"bounds": results})
        return
    title = listed(one.dims)
    title += "" if one.pairs is None else f", {one.pairs:,} allowed pairs"
    title += "" if m is None else f", M = {one.M:,} words"
    under = "" if one.schedule is None else f", as {one.schedule} computes it"
    if m is not None:
        rows = [("Θ", one.theta.expr, "", f"{one.theta_value:,.0f}", "")] if one.theta else []
        for each in one.lower:
            form = each.form or (each.forms[0] if each.forms else None)
            value = "" if each.why_not else f"{each.value:,}"
            mark = "largest" if each is one.best else ""
            rows.append((each.name, form.expr if form else "", form.domain if form else "", value, mark))
        print_table(f"{one.problem}{under}: {title}", ("bound", "closed form", "for", "words", ""), rows, left=3)
    else:
        forms = [("Θ", one.theta.expr, "")] if one.theta else []
        forms += [(each.name, form.expr, form.domain) for each in one.lower for form in each.forms]
        print_table(f"{one.problem}{under}: {title}", ("bound", "closed form", "for"), forms, left=3)
        names = [each.name for each in one.lower]
        lines = [
            (
                f"{each.M:,}",
                *("" if bound.why_not else f"{bound.value:,}" for bound in each.lower),
                each.best.name,
                *((f"{each.theta_value:,.0f}",) if one.theta else ()),
            )
            for each in several
        ]
        print_table("in words", ("M", *names, "largest", *(("Θ",) if one.theta else ())), lines)
    for each in one.lower:
        print(f"{each.source}" + (f"; not here: {each.why_not}" if m is not None and each.why_not else ""))
    print(f"Θ: {one.theta.source}" if one.theta else f"Θ: not stated for {one.problem}")
    print("All lower bounds hold with recomputation, and for every summation tree. A value may exceed its closed form.")


@command(app, example="pebblesim gaps -n 65536 -d 128")
def gaps(
    *,
    sizes: Sizes,
    m: Annotated[
        list[str] | None, typer.Option("-M", help="At these M; all along the range by default.", metavar="WORDS")
    ] = None,
    dtype: Dtype = None,
    problem: Problem = None,
    blocks: Blocks = "fit",
    steps: Annotated[int, typer.Option("--steps", min=1, max=64, help="Without -M: how many to a doubling.")] = 1,
    as_json: AsJson = False,
) -> None:
    """How far the best schedule is from the best lower bound, over the whole range of M."""
    from pebblesim.jobs.bounding import gaps as gaps_of

    given = [parse_words(words, dtype) for words in m or ()]
    found = gaps_of(problem or "backward", M=given or None, blocks=blocks, steps=steps, **sizes.dims)
    if as_json:
        print_json(found.to_dict())
        return
    rows = [
        (
            row.schedule,
            row.lower_bound.name,
            f"{row.M:,}",
            f"{row.io:,}",
            f"{row.lower_bound.value:,}",
            f"{row.gap:.3f}",
        )
        for row in found.rows
    ]
    title = listed(found.dims)
    print_table(f"{found.problem}: {title}", ("best schedule", "bound", "M", "I/O", "lower bound", "gap"), rows, left=2)
    print(f"largest gap: {found.worst.gap:.3f} at M = {found.worst.M:,} ({found.worst.schedule})")


@command(app, example="pebblesim crossover -n 4096 -d 64 -o crossover.png")
def crossover(
    schedules: Annotated[
        list[str] | None,
        typer.Argument(
            help="Pairs of schedules; the paper's two algorithms, and ours, if none.", autocompletion=complete_schedule
        ),
    ] = None,
    n: N = None,
    d: D = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw I/O over M: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the exact M from which on one schedule moves fewer words than another, and prove the exponent."""
    from pebblesim.jobs.crossings import crossover as find, sweep

    if output is not None:
        from pebblesim.plots.style import check

        check(output)
    dims: dict[str, Any] = dict(Sizes(n, d).dims)
    found = find(*schedules or (), **dims)
    if output is not None:
        from pebblesim.plots.crossover import io_over_M
        from pebblesim.plots.style import save

        data = sweep(found)
        save(lambda figure: io_over_M(data, figure.subplots()), output)
    if as_json:
        print_json(found.to_dict())
    else:
        print(found)
        if output is not None:
            print(f"written {output}")


@command(app, example="pebblesim theorems --table-1")
def theorems(
    table_1: Annotated[bool, typer.Option("--table-1", help="Table 1 of Li et al. instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what the literature states, with domain and source."""
    from dataclasses import asdict

    from pebblesim.growth.tropical import parse
    from pebblesim.notation import written
    from pebblesim.theory.literature import STATEMENTS, TABLE_1, region_in_words

    def bound(relation: str, expr: str) -> str:
        return f"{relation}({written(parse(expr))})"

    if table_1:
        rows, found = [], []
        for way, side, large, small in TABLE_1:
            O = "O" if side == "upper" else "Ω"
            cells = (bound(O, large.bound), large.of.title, bound(O, small.bound), small.of.title)
            rows.append((f"{way}, {side} bound", *cells))
            found.append({"attention": way, "bound": side, "large_cache": large.bound, "small_cache": small.bound})
        if as_json:
            print_json({"rows": found})
            return
        print_table("Table 1 of Li et al.", ("attention", "M ≥ d²", "source", "M ≤ d²", "source"), rows, left=5)
    elif as_json:
        print_json({"rows": [asdict(each) for each in STATEMENTS]})
    else:
        for each in STATEMENTS:
            lines = [f"{each.title}: {each.about or each.note}"]
            if each.expr:
                lines.append(f"{bound(each.relation, each.expr)} for {region_in_words(each.domain)}; {each.assumes}")
            lines += [each.note] if each.about and each.note else []
            print("\n  ".join(lines))
