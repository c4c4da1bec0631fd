"""Values of pairs that a plan stores under a mask: where they are written, and which blocks its passes share.

A pass leaves out tiles without an allowed pair, so it does not write them either. A later pass that reads the stored
values leaves out tiles of its own. It must not read what was not written: either its tiles lie within those of the pass
that wrote, because they have one row or one column, or share the block; or the tiles that are left out are filled with
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pebblesim.synthesis.candidates import Steps, parts, write
from pebblesim.synthesis.passes import Draft, Pass
from pebblesim.synthesis.plans import Plan


def variants(plan: Plan, steps: Steps) -> Iterator[Plan]:
    """Yield the plan; if it stores pairs under a mask, with blocks that are shared, and with all tiles filled.

    Under a mask a plan that stores no pairs is also there with a first block of rows that may be shorter.
    """
    stored = {name: one_pass for one_pass in plan.passes for name in one_pass.stores if name in one_pass.regions}
    if steps.sums is None or not stored:
        yield plan
        if steps.sums is not None:
            yield from _short_first(plan, steps)
        return
    names: dict[str, str] = {}
    filled = {name for name in stored if name in plan.system.outputs}
    for name, by in stored.items():
        readers = [one_pass for one_pass in plan.passes if name in one_pass.reads]
        shared = _shared(name, by, readers, names)
        if shared is None:
            filled.add(name)
        else:
            names = shared
    for names_of_blocks, zeros in dict.fromkeys([(tuple(names.items()), frozenset(filled)), ((), frozenset(stored))]):
        yield _written(plan, steps, dict(names_of_blocks), zeros)


def _short_first(plan: Plan, steps: Steps) -> Iterator[Plan]:
    """Yield the plan with a first block of as many rows as whole blocks leave; the last rows see most, if any do.

    Of causal queries blocks end where most keys are seen: what matters is the sum of the ends, and it is least if all
    blocks are as large as fits, but the first.
    """
    passes = [
        write(plan.system, *step, Draft(number, short=True)) if any(moved.met for moved in one_pass.moved) else one_pass
        for number, (step, one_pass) in enumerate(zip(plan.steps, plan.passes, strict=True), 1)
    ]
    if not any(moved.first for one_pass in passes for moved in one_pass.moved):
        return
    blocks = dict(plan.blocks)
    for one_pass in passes:
        for block, first in one_pass.moved[0].first.items():
            n, others = steps.sizes[one_pass.blocks[block]], {**blocks, first: 1}
            blocks[block] = max(1, one_pass.largest_block(steps.sizes, steps.M, block, others, steps.widths))
            blocks[first] = (n - 1) % blocks[block] + 1
    words = sum(steps.moved(one_pass, blocks) for one_pass in passes)
    yield replace(plan, words=words, passes=tuple(passes), blocks=blocks)


def _shared(name: str, by: Pass, readers: list[Pass], names: Mapping[str, str]) -> dict[str, str] | None:
    """Return names of blocks with which each tile that is read was written; None if there are none."""
    shared = dict(names)

    def root(block: str | int) -> str | int:
        return root(shared[block]) if isinstance(block, str) and block in shared else block

    (written,) = by.regions[name]
    if written is None:
        return shared  # without leaving any out
    for region in (region for one_pass in readers for region in one_pass.regions[name]):
        if region is None:
            return None  # all of them are read
        for block, whole in zip(region, written, strict=True):
            mine, theirs = root(block), root(whole)
            if isinstance(mine, str) and isinstance(theirs, str):
                if mine != theirs:
                    shared[mine] = theirs
            elif mine != 1:
                return None
    return {block: str(root(block)) for block in shared}


def _written(plan: Plan, steps: Steps, names: Mapping[str, str], filled: frozenset[str]) -> Plan:
    """Return the plan with these names of blocks, and these tensors filled."""
    passes = tuple(
        write(plan.system, choice, kind, Draft(number, names, filled))
        for number, (choice, kind) in enumerate(plan.steps, 1)
    )
    blocks: dict[str, int] = {}
    for block, size in plan.blocks.items():
        name = names.get(block, block)
        blocks[name] = min(size, blocks.get(name, size))
    blocks = _improved(passes, steps, blocks) if names else blocks
    words = sum(steps.moved(one_pass, blocks) for one_pass in passes)
    return replace(plan, words=words, passes=passes, blocks=blocks)


def _improved(passes: tuple[Pass, ...], steps: Steps, blocks: dict[str, int]) -> dict[str, int]:
    """Return blocks that move fewer words: one block after the other takes its best size beside the others, twice."""
    for name in [*blocks] * 2:
        own = [one_pass for one_pass in passes if name in one_pass.blocks]
        others = {block: size for block, size in blocks.items() if block != name}
        top = min(one_pass.largest_block(steps.sizes, steps.M, name, others, steps.widths) for one_pass in own)
        sizes = parts(steps.sizes[own[0].blocks[name]], top)

        def words(size: int, name: str = name, own: list[Pass] = own, others: Mapping[str, int] = others) -> int:
            return sum(steps.moved(one_pass, {**others, name: size}) for one_pass in own)

        blocks[name] = min([*sizes, blocks[name]], key=words)
    return blocks
