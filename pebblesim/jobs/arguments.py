"""Arguments that the jobs share: dimensions, block rules and masks, checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pebblesim.errors import UsageError
from pebblesim.jobs import blocks as block_rules
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem
from pebblesim.language.registry import Schedule, get
from pebblesim.sizes import whole

if TYPE_CHECKING:
    from pebblesim.language.program import Program

BlockRule = str | Mapping[str, int]
AnyMask = Mask | str | Any
"""A mask, a text such as "causal" or "window:256", a file's name, or booleans for blocks of pairs."""


def chosen(
    schedule: str | Schedule,
    dims: Mapping[str, int],
    M: int,
    blocks: BlockRule,
    summation: str = "chain",
    mask: Mask | None = None,
) -> tuple[Schedule, dict[str, int], int, dict[str, int]]:
    """(schedule, dimensions, M, block sizes), all checked."""
    algorithm = get(schedule)
    sizes, M = problem_dims(algorithm.problem, dims), whole("M", M)
    return algorithm, sizes, M, block_rules.choose(algorithm, sizes, M, blocks, summation, mask)


def under(mask: Mask | None, algorithm: Schedule, sizes: Mapping[str, int]) -> tuple[Program, Any]:
    """A schedule's program under a mask, and the mask pair by pair; None for no mask."""
    if mask is None:
        return algorithm.program, None
    return algorithm.masked, mask.allowed(sizes["n"])


def problem_dims(solves: Problem, dims: Mapping[str, int]) -> dict[str, int]:
    """The dimensions of a problem, checked; n and d alone are enough for any problem."""
    meant = dims_meant(solves, dims)
    return {name: whole(name, dims[meant[name]]) for name in solves.dims}


def dims_meant(solves: Problem, given: Mapping[str, object]) -> Mapping[str, str]:
    """By which of the given names each dimension of a problem is meant.

    Raises:
        UsageError: they are neither the problem's dimensions nor n and d.
    """
    if set(given) == {"n", "d"}:
        return solves.from_nd
    if set(given) != set(solves.dims):
        meant = ", ".join(f"{dim} = {name}" for dim, name in solves.from_nd.items())
        short = "" if solves.dims == ("n", "d") else f", or n and d alone, which mean {meant}"
        raise UsageError(
            f"problem {solves.name!r} takes the sizes {', '.join(solves.dims)}{short}; it got "
            f"{', '.join(f'{name} = {size}' for name, size in given.items()) or 'none'}."
        )
    return {name: name for name in solves.dims}
