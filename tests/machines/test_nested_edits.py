"""Small edits of schedules inside schedules: the game on the tree passes exactly those that compute the right numbers.

The edits are those of `edits`, which knows nothing of machines. What is right and yet refused must be refused for a
reason that is known and stated.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import edits
import numpy as np
import pytest
from games.test_edits import CORES, KINDS, RIGHT_BUT_REFUSED, board, sizes_of
from machines.test_nested import PRODUCTS

from pebblesim.analysis.count import count
from pebblesim.core.errors import TraceError, UsageError
from pebblesim.game.board import IllegalMove
from pebblesim.game.trees import play
from pebblesim.language import program as ir
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, Schedule, get
from pebblesim.machines.dealing import dealt
from pebblesim.machines.machine import Level, Machine
from pebblesim.machines.nesting import nested, tiles
from pebblesim.machines.playing import moves
from pebblesim.machines.routes import Nested

REFUSED_ON_TREES = (
    *RIGHT_BUT_REFUSED,
    # A memory still has the words of a tile that others replaced, or lost words that are computed again.
    r"(delete|down|up|compute) .*: .* is not in",
    # A memory above has the values of a sum for one block of its terms at a time, and its graph has one for each.
    r"writes \w+, which has \d+ separate blocks in its graph",
)


def judge(edited: Schedule, draw: random.Random) -> str:
    """Nested, played and run: what came of an edit. Fails where these contradict each other."""
    shift, several = draw.randrange(4), [draw.choice((1, 2)), draw.choice((1, 1, 2))]
    sizes: dict[str, int] = sizes_of(SCHEDULES[edited.name], shift)
    product, room = get(draw.choice(PRODUCTS)), 10**6
    sizes |= {f"{block}_2": draw.choice((1, 2, 3)) for block in product.blocks}
    try:
        outer = dealt(edited.program) if several[0] > 1 else Nested(edited.program)
    except TraceError:
        return "refused when traced"
    names = sorted({tile.name for tile in tiles(edited.program)} - {""})
    below = [name for name in names if draw.random() < draw.choice((0.2, 0.8, 1))]
    try:
        nest = nested(outer, product, below, several[1] > 1)
        sizes = nest.sizes(sizes, several)
    except UsageError:
        return "refused when nested"
    graph, inputs, reference = board(edited.name, shift, "chain", None)

    def is_right(program: ir.Program) -> bool:
        try:
            with np.errstate(all="ignore"):
                outputs = numbers(program, sizes, inputs)
        except UsageError:  # its exponentials overflow, or it divides by 0
            return False
        names = SCHEDULES[edited.name].program.outputs
        return all(
            name in outputs and np.allclose(outputs[name], reference[name], rtol=0, atol=1e-10) for name in names
        )

    # The lowest memory sees those above as one, so that it does not see whether a result is in the root.
    right = is_right(edited.program) and is_right(nest.computed)
    levels = tuple(Level(f"L{k}", 4 * room, count=number) for k, number in enumerate(several, 1))
    tree, why = Machine("m", "R", levels).tree("float32"), ""
    try:
        game = play(graph, tree, [np.concatenate(list(moves(nest, sizes, graph, tree, None, several)))])
    except (UsageError, IllegalMove, ValueError) as refusal:
        why = str(refusal)
    if why or game.missing:
        assert not right or any(re.search(reason, why) for reason in REFUSED_ON_TREES), why
        return f"{'right' if right else 'wrong'}, refused when played"
    assert right, "a game that computes wrong numbers is complete"
    for level, words in enumerate((game.words[: several[0]], game.words[several[0] :]), 1):
        assert sum(words) == count(nest.boundary(level), sizes).total.io
    return "right, passed"


def judge_until(drawn: Iterable[tuple[str, Callable[[], Schedule]]], draw: random.Random, enough: int) -> Counter[str]:
    """Judge edits until so many were right, and so many wrong."""
    outcomes, failures, right, wrong = Counter[str](), [], 0, 0
    for what, make in drawn:
        try:
            outcomes[judge(make(), draw)] += 1
        except SyntaxError:
            outcomes["no Python"] += 1
        except AssertionError as failure:
            failures.append(f"{what}: {failure}")
        right = outcomes["right, passed"] + outcomes["right, refused when played"]
        wrong = outcomes["wrong, refused when played"]
        if min(right, wrong) >= enough:
            break
    assert not failures, "\n".join(failures)
    assert min(right, wrong) >= enough
    return outcomes


def one_of_each_kind(draw: random.Random) -> Iterator[tuple[str, Callable[[], Schedule]]]:
    """Edits, as many of each kind; most possible ones are of one kind, and hardly any of these can be traced."""
    kinds: dict[str, list[tuple[str, Callable[[], Schedule]]]] = {}
    for edit in (edit for name in CORES for edit in edits.edits(SCHEDULES[name])):
        kinds.setdefault(next(kind for kind in KINDS if edit[0].split(": ")[2].startswith(kind)), []).append(edit)
    for _ in range(4000):
        for kind in KINDS:
            yield draw.choice(kinds[kind])


@pytest.mark.one_in(3)
def test_a_few_edits() -> None:
    draw, drawn = random.Random(3), []
    for name in CORES[::6]:
        drawn += draw.sample(list(edits.edits(SCHEDULES[name])), 4)
    judge_until(drawn, draw, 1)


def test_zeros_that_are_read_again_while_they_are_in_cache_are_refused_in_a_sentence() -> None:
    what = "move m.write(O_s[s, i, :], O_i) to 0 of w = m.read(L_s[s, i])"
    (make,) = [make for edit, make in edits.edits(SCHEDULES["flash-decoding"]) if what in edit]
    with pytest.raises(TraceError, match="gets a value that is in cache already, in O_i since line"):
        make().program  # noqa: B018


@pytest.mark.slow
def test_edits_until_five_hundred_were_right_and_five_hundred_wrong() -> None:
    draw = random.Random(45)
    print(judge_until(one_of_each_kind(draw), draw, 500))
