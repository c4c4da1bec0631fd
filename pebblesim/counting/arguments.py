"""Check the dimensions of a problem; types of the arguments that many functions share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from pebblesim.core.errors import NoSizes, UsageError
from pebblesim.core.sizes import whole
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem

BlockRule = str | Mapping[str, int]
AnyMask = Mask | str | Any
"""A `Mask`, a text such as "causal" or "window:256", a file name, or booleans for pairs or blocks of pairs."""


def problem_dims(solves: Problem, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the checked dimensions of a problem. If only n and d are given, this is the square case."""
    dims = _of_parts(solves, dims)
    meant = dims_meant(solves, dims)
    return {name: whole(name, dims[named]) for name, named in meant.items()}


def dims_meant(solves: Problem, named: Mapping[str, object]) -> Mapping[str, str]:
    """Return for each dimension of a problem which of the given names sets it.

    n and d are enough for any problem. Together with other names they set the dimensions that are not named.

    Raises:
        UsageError: a name is neither a dimension of the problem nor n or d.
    """
    whole_problem = solves.rectangle or solves
    for names in (solves.dims, whole_problem.dims):
        if set(named) == set(names):
            return {name: name for name in names}
    if set(named) == {"n", "d"}:
        return solves.from_nd
    own, from_nd = set(whole_problem.dims), whole_problem.from_nd
    meant = {dim: dim if dim in named else from_nd[dim] for dim in whole_problem.dims}
    if own & set(named) and set(meant.values()) == set(named):
        return meant
    taken = f"problem {solves.name!r} takes the sizes {_sizes_taken(solves)}; it got"
    if not named:
        raise NoSizes(f"{taken} none.")
    given = ", ".join(f"{name} = {size}" for name, size in named.items())
    others = {name: size for name, size in named.items() if name not in {"n", "d", *own, *solves.dims}}
    near = {name: get_close_matches(name, {*own, *solves.dims}, n=1, cutoff=0.75) for name in others}
    as_meant = [meant for name in named for meant in near.get(name, [name])]
    raise UsageError(f"{taken} {given}{_missing(as_meant, solves)}{_hint(others, near)}")


def _missing(named: Collection[str], solves: Problem) -> str:
    """Say which sizes are missing, n or d or a dimension where others have their own, or which of n and d is idle."""
    from_nd = (solves.rectangle or solves).from_nd
    begun = {from_nd[name] for name in named if name in from_nd and (solves.rectangle or name not in ("n", "d"))}
    unset = {dim: kind for dim, kind in from_nd.items() if dim not in named and kind not in named}
    own = begun if solves.rectangle else {*from_nd.values()} if begun else set()
    if lacks := list(dict.fromkeys(dim if kind in own else kind for dim, kind in unset.items())):
        return f"; {' and '.join(lacks)} {'are' if len(lacks) > 1 else 'is'} missing"
    set_by = {dim if dim in named else kind for dim, kind in from_nd.items()}
    idle = [name for name in ("n", "d") if name in named and name not in set_by]
    return f"; leave out {' and '.join(idle)}, which no dimension is left for" if idle else ""


def _hint(others: Mapping[str, object], near: Mapping[str, list[str]]) -> str:
    """Say of names that no dimension has which dimensions are near, or else where sizes of blocks are given."""
    if meant := [match for matches in near.values() for match in matches]:
        return f"; did you mean {' and '.join(meant)}?"
    on_the_line = " ".join(f"--block {name}={size}" for name, size in others.items())
    return f"; sizes of blocks are given as blocks={others}, or {on_the_line}." if others else "."


def _of_parts(solves: Problem, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes with a total replaced by its second part."""
    sizes = dict(dims)
    for total, (part, rest) in solves.totals.items():
        if total in sizes and part in sizes and rest not in sizes:
            if whole(total, sizes[total]) <= whole(part, sizes[part]):
                raise UsageError(
                    f"problem {solves.name!r}: {part} = {sizes[part]} was given, and {total} = {sizes[total]}; "
                    f"values are a part of the keys, so {part} must be less than {total}."
                )
            sizes[rest] = sizes.pop(total) - sizes[part]
    return sizes


def _sizes_taken(solves: Problem) -> str:
    if solves.rectangle:
        return f"n, d, or {', '.join(solves.rectangle.dims)}, where n and d set the dimensions that are not given"
    meant = ", ".join(f"{dim} = {name}" for dim, name in solves.from_nd.items())
    short = "" if solves.dims == ("n", "d") else f", or n and d alone, which mean {meant}"
    return f"{', '.join(solves.dims)}{short}"
