"""Small edits of all schedules: the game passes exactly those that compute the right numbers, as they were predicted.

What is right and yet refused must be refused for a reason that is known and stated here.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import edits
import numpy as np
import pytest
import strategies

from pebblesim import graphs
from pebblesim.analysis.count import count
from pebblesim.analysis.masked_peak import masked_peak_red
from pebblesim.core.errors import TraceError, UsageError
from pebblesim.game.player import moves
from pebblesim.game.referee import IllegalMove, Referee
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.masks import Mask, from_array
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, Schedule

CORES = [name for name, schedule in SCHEDULES.items() if not schedule.problem.name.startswith("projected-")]
KINDS = ("delete", "repeat", "move", "loop", "swap", "no transpose", "")  # the last: a name for another

RIGHT_BUT_REFUSED = (
    # It reads what nobody has written yet, and does it again when it has been.
    r"reads nothing yet from \w+, where",
    # It does again in place what changes nothing when done twice, such as max(x, 0).
    r"uses \w+, which holds .*, where .* is needed",
    # It computes the same numbers in another way than its graph.
    r"computes .*, which is not in the graph of the problem",
    # A sum moves or leaves while it is spread over several pebbles, which a chain's never is.
    r"that still consists of several partial sums; choose summation 'chain'",
    # It writes a sum that has no term yet, under a mask, and writes it again when it is complete.
    r"writes \w+ to \w+, but \w+ holds no value at",
    # It fills with zeros what is not made from them in the graph, and nobody reads it.
    r"writes the constant 0 to \w+, which does not start from that constant in its graph",
    # It begins a sum with other terms than the first ones, which a chain of its graph does not.
    r"adds terms of [\w\[\],]+: \w+ holds nothing yet, where .* with \d+ of its \d+ terms is needed",
    # It goes through keys in other tiles than its graph, which has a maximum and a sum for each tile.
    r"has a separate sum \w+ for each of \d+ tiles of \w+, and its graph has \d+",
    # It computes pairs that a mask leaves out, which have no vertex in its graph.
    r"compute vertex -1: this vertex does not exist",
    # It computes in pieces what is in cache already as a whole.
    r"has a red pebble already: it is in the cache",
)


def sizes_of(schedule: Schedule, shift: int) -> dict[str, int]:
    """Ragged sizes with two or three tiles."""
    dims = {dim: {"n": 5, "m": 5}.get(dim, 4) for dim in schedule.problem.dims}
    blocks = {block: (2, 3, 3, 2)[(at + shift) % 4] for at, block in enumerate(schedule.blocks)}
    return strategies.in_whole_blocks(schedule, dims | blocks)


MASK = from_array(
    np.array([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 1, 1]]), size=(1, 1)
)
WAYS: tuple[tuple[str, Mask | None], ...] = (("chain", None), ("chain", MASK), ("balanced", None), ("blocked:2", None))


@cache
def board(name: str, shift: int, summation: str, mask: Mask | None) -> tuple[Cdag, dict[str, Any], dict[str, Any]]:
    """The graph that a schedule declares, inputs, and the reference."""
    schedule = SCHEDULES[name]
    sizes, problem = sizes_of(schedule, shift), schedule.problem
    allowed = None if mask is None else mask.allowed(sizes["n"])
    options: dict[str, Any] = {d: sizes[d] for d in problem.dims} | schedule.graph_options(sizes)
    graph = graphs.build(problem.name, summation, mask=allowed, **options)
    inputs = problem.random_inputs(sizes, kept=schedule.kept, allowed=allowed)
    return graph, inputs, problem.reference(inputs, allowed)


def judge(edited: Schedule, shift: int, summation: str, mask: Mask | None) -> str:
    """Traced, played and run: what came of an edit. Fails where these contradict each other."""
    original = SCHEDULES[edited.name]
    mask = mask if original.maskable else None
    try:
        program = edited.under(mask)
    except TraceError:
        return "refused when traced"
    sizes = sizes_of(original, shift)
    graph, inputs, reference = board(edited.name, shift, summation, mask)
    try:
        with np.errstate(all="ignore"):
            outputs = numbers(program, sizes, inputs, mask)
    except UsageError:  # its exponentials overflow, or it divides by 0
        outputs = {}
    right = all(
        name in outputs and np.allclose(outputs[name], reference[name], rtol=0, atol=1e-10)
        for name in original.program.outputs
    )
    predicted, game = count(program, sizes, summation, mask), Referee(graph, 10**9, idle=False)
    peak = predicted.peak_red if mask is None else masked_peak_red(program, sizes, mask)
    why = ""
    try:
        for chunk in moves(program, sizes, graph.families, mask=mask):
            game.play(chunk)
    except (UsageError, IllegalMove) as refusal:
        why = str(refusal)
    end = game.finish()
    if why or not end.complete:
        assert not right or any(re.search(reason, why) for reason in RIGHT_BUT_REFUSED), why
        return f"{'right' if right else 'wrong'}, refused when played"
    assert right, "a game that computes wrong numbers is complete"
    assert (end.reads, end.writes) == (predicted.total.reads, predicted.total.writes)
    assert end.peak_red == peak, f"peak {end.peak_red}, predicted {peak}"
    return "right, passed"


def judge_all(drawn: list[tuple[str, Callable[[], Schedule]]]) -> Counter[str]:
    outcomes, failures = Counter[str](), []
    for at, (what, make) in enumerate(drawn):
        try:
            outcomes[judge(make(), at // 4 % 4, *WAYS[at % 4])] += 1
        except SyntaxError:
            outcomes["no Python"] += 1
        except AssertionError as failure:
            failures.append(f"{what}, {WAYS[at % 4][0]}, mask {WAYS[at % 4][1]}: {failure}")
    assert not failures, "\n".join(failures)
    return outcomes


@pytest.mark.one_in(8)
def test_small_edits_are_passed_exactly_if_they_are_right() -> None:
    """An edit of each kind, of every sixth schedule."""
    draw, drawn = random.Random(0), []
    for name in CORES[::6]:
        possible = list(edits.edits(SCHEDULES[name]))
        for kind in KINDS:
            of_kind = [edit for edit in possible if edit[0].split(": ")[2].startswith(kind)]
            drawn += draw.sample(of_kind, min(1, len(of_kind)))
    outcomes = judge_all(drawn)
    assert outcomes["right, passed"] and outcomes["wrong, refused when played"] and outcomes["refused when traced"]


def test_what_was_written_to_another_tensor_is_not_read_from_this_one() -> None:
    """The result of a loop goes to S; dQ, which is read afterwards, is written only where the loop leaves tiles out."""
    (make,) = [
        make
        for what, make in edits.edits(SCHEDULES["row-stationary-relu"])
        if "row_stationary: S for dQ" in what and "m.write(S[i, :], dQ_i)" in edits.source(make())
    ]
    assert judge(make(), 1, "chain", MASK) == "wrong, refused when played"


def test_a_sum_without_terms_may_be_looked_at_before_the_others_are_complete() -> None:
    """Row sums are written after every column; of one row there are none, and its constant is there from the first."""
    mask = np.ones((5, 5), bool)
    mask[1] = False
    (make,) = [
        make for what, make in edits.edits(SCHEDULES["scores-stored"]) if "move end() to 5 of P_ij = m.zeros" in what
    ]
    assert judge(make(), 3, "chain", from_array(mask, size=(1, 1))) == "right, passed"


@pytest.mark.slow
def test_thousands_of_small_edits() -> None:
    possible = [edit for name in CORES for edit in edits.edits(SCHEDULES[name])]
    outcomes = judge_all(random.Random(1).sample(possible, 6000))
    print(outcomes)
    assert outcomes["right, passed"] > 300 and outcomes["wrong, refused when played"] > 150
