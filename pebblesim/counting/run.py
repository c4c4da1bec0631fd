"""A run: a schedule with its sizes, its cache, its mask and its heads, checked once and passed on as one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pebblesim.analysis import blocks as block_rules
from pebblesim.core.sizes import whole
from pebblesim.counting.arguments import AnyMask, BlockRule, problem_dims
from pebblesim.counting.heads import Heads
from pebblesim.language import masks
from pebblesim.language.masks import AnyHeads, HeadMasks, Mask
from pebblesim.language.registry import Schedule, get

if TYPE_CHECKING:
    from pebblesim.language.program import Program


@dataclass(frozen=True)
class Run:
    """A schedule and everything that decides what it moves. `Run.of` makes one from the arguments of a user.

    Attributes:
        schedule: the schedule, in the dimensions of `dims`.
        dims: the sizes of the dimensions, for one head.
        M: red pebbles, in words.
        blocks: a block rule, or block sizes by name.
        summation: shape of the summation trees, as for `pebblesim.count`.
        mask: the allowed pairs, or those of each head; None for all.
        heads: how many heads and sequences there are.
    """

    schedule: Schedule
    dims: Mapping[str, int]
    M: int
    blocks: BlockRule = "fit"
    summation: str = "chain"
    mask: AnyHeads | None = None
    heads: Heads = field(default_factory=Heads)

    @classmethod
    def of(
        cls,
        schedule: str | Schedule,
        dims: Mapping[str, int],
        *,
        M: int,
        blocks: BlockRule = "fit",
        summation: str = "chain",
        mask: AnyMask | None = None,
        heads: Heads | None = None,
    ) -> Run:
        """Return the run of these arguments, which are those of `pebblesim.count`, checked but for the blocks.

        Raises:
            UsageError: a name, a size or a mask is not allowed.
        """
        pattern = masks.of_heads(mask)
        algorithm, M = get(schedule), whole("M", M)
        sizes = problem_dims(algorithm.problem, dims)
        return cls(algorithm.in_dims(sizes), sizes, M, blocks, summation, pattern, heads or Heads())

    @cached_property
    def parts(self) -> tuple[Run, ...]:
        """The runs that are counted and played, of one head and one mask each: heads that share keys and values are
        one head with all their queries, and heads with masks of their own are a run each.

        Raises:
            UsageError: as for `Heads.cases`.
        """
        cases = self.heads.cases(self.schedule.problem, self.dims, self.mask)
        view = self.schedule.in_dims(cases.sizes)
        return tuple(replace(self, schedule=view, dims=cases.sizes, mask=mask, heads=Heads()) for mask in cases.masks)

    @property
    def times(self) -> int:
        """How often all parts are run, one after the other, for all heads and sequences."""
        return self.heads.batch if isinstance(self.mask, HeadMasks) else self.heads.times

    @property
    def only_mask(self) -> Mask | None:
        """The mask of a part."""
        assert not isinstance(self.mask, HeadMasks)
        return self.mask

    @cached_property
    def block_sizes(self) -> dict[str, int]:
        """The block sizes of a part, by name.

        Raises:
            Infeasible, UsageError: as for `pebblesim.analysis.blocks.choose`.
        """
        return block_rules.choose(self.schedule, self.dims, self.M, self.blocks, self.summation, self.only_mask)

    def with_smallest_blocks(self) -> Run:
        """Return the part with the blocks that need the least M, except for those that were given."""
        given = {} if isinstance(self.blocks, str) else self.blocks
        return replace(self, blocks=block_rules.least_feasible(self.schedule, self.dims, self.summation, given))

    @property
    def sizes(self) -> dict[str, int]:
        """Dimensions and blocks of a part, by name."""
        return {**self.dims, **self.block_sizes}

    @property
    def program(self) -> Program:
        """The program of the schedule, under the mask if there is one."""
        return self.schedule.under(self.mask)

    @cached_property
    def allowed(self) -> Any:
        """The mask of a part as booleans for each pair; None without a mask."""
        return None if self.only_mask is None else self.only_mask.allowed(*self.schedule.problem.grid(self.dims))
