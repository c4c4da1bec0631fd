"""The program of each Gluon kernel keeps the rules, and a program without one of its statements breaks some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

import pytest
from golden_texts import EVEN, GOLDENS, RAGGED, Case

from pebblesim.advice.tiles import HOPPER
from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.gluon import gluon, plans
from pebblesim.kernels.passes.bias import biased
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.rules import broken
from pebblesim.kernels.statements import KernelProgram, Statement
from pebblesim.kernels.words import WORDS
from pebblesim.language import program as ir
from pebblesim.language.registry import get
from pebblesim.operator.bias import programs as of_bias

OF_HOPPER = {name: case for name, case in GOLDENS.items() if name.startswith("gluon") and isinstance(case, Case)}
ALL = [
    Case(tiling, tiling.widths[1], mask, n, shared)
    for tiling in HOPPER
    for mask in ((None, "causal", "window") if tiling.schedule != "flash2-latent" else (None,))
    for n, shared in ((EVEN, 0), (RAGGED, 4))
]


def traced(case: Case) -> ir.Program:
    """The schedule of a case."""
    schedule = get(case.tiling.schedule)
    schedule = schedule if schedule.problem.rectangle is None else schedule.in_dims(schedule.problem.rectangle.dims)
    return schedule.program if case.band is None else schedule.masked


def programs(case: Case) -> list[KernelProgram]:
    """The programs of the kernels for Hopper of a case."""
    tiling, mask, program = case.tiling, case.band, traced(case)
    options = dict(tiling.options)
    options["persistent"] &= mask is None
    if "latent" in tiling.schedule:
        options["dense"] = True
    program = biased(program) if case.bias else program
    options |= {"scale": 0.1, "shared": case.shared, "softcap": case.softcap}
    made = gluon(program, case.sizes, mask=mask, **options)
    return [kernel.program for kernel in made.kernels if kernel.program.loads]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.tiling.schedule} {case}")
def test_each_program_keeps_the_rules(case: Case) -> None:
    if "latent" in case.tiling.schedule:
        case = replace(case, d=512)
    made = programs(case)
    assert made
    for program in made:
        assert broken(program) == []
        assert 0 < program.shared <= 227 * 1024


FORMS = {of_bias.WITH_V: ", with v", of_bias.ONWARD: ", onward"}
"""Forms of the kernel of dQ and dB, by which its programs are told apart."""


def with_a_bias() -> dict[str, KernelProgram]:
    """The programs of kernels in which rows of a bias stay while sequences stream past."""
    made = {}
    at_once = dict.fromkeys((of_bias.WITH_V, of_bias.AT_ONCE, of_bias.ONWARD), of_bias.at_once(384))
    for which, kernels in {**of_bias.STAYING, **at_once}.items():
        tiling = kernels.tiling
        sizes = {"n_q": 383, "n_k": 383, "d_k": 32, "d_v": 32, SEQUENCES: 4, **tiling.blocks}
        options = {"stages": tiling.stages, "shared": 1, "streams": kernels.sequences}
        (kernel,) = gluon(of_bias.program(which, kernels), sizes, scale=0.1, **options).kernels
        made[kernel.name + FORMS.get(which, "")] = kernel.program
    return made


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["flash2_forward", "dK_dV", "dQ_dB", *(f"dQ_dB{form}" for form in FORMS.values())])
def test_programs_with_a_bias_keep_the_rules(name: str) -> None:
    """And break one without a statement that they need.

    With v there is a fence before anybody is told of the bias, too: `test_gluon_gradients` asks for that behind it.
    """
    program = with_a_bias()[name]
    assert broken(program) == []
    behind_bias = next(each for each in st.within(program.rows) if isinstance(each, st.Fence))
    left_out = [(role, each) for role, each in needed(program) if not _of_rows_that_stay(each)]
    left_out = [each for each in left_out if "with v" not in name or each[1] is not behind_bias]
    assert len(left_out) > 10
    for role, each in left_out:
        assert broken(replace(program, **{role: without(getattr(program, role), each)})), st.printed([each])


def _of_rows_that_stay(each: Statement) -> bool:
    """Whether a statement is one by which warpgroups tell each other of rows of a bias, or of parts of dQ."""
    return isinstance(each, st.Arrive | st.Wait) and any(name in str(each.barrier) for name in ("bias", "dQ_part"))


def test_words_that_threads_read_are_there_when_a_slot_is_given_back() -> None:
    """Rows of a sequence in registers need a fence; vectors do not, as a product takes them that is waited for."""
    program = with_a_bias()["dK_dV"]
    behind = pairwise(st.within(program.rows))
    (fence,) = (
        each
        for each, arrive in behind
        if isinstance(each, st.Fence) and isinstance(arrive, st.Arrive) and "K_j_free" in repr(arrive)
    )
    said = "reads_are_over: K_j_free.index(w) is free while threads may wait for words of {}"
    assert broken(replace(program, rows=without(program.rows, fence))) == [said.format(name) for name in ("K_j", "V_j")]


def without(body: tuple[Statement, ...], left_out: Statement) -> tuple[Statement, ...]:
    """A body without a statement, wherever it is."""
    made: list[Statement] = []
    for each in body:
        if each is left_out:
            continue
        if isinstance(each, st.For):
            each = replace(each, body=without(each.body, left_out))
        elif isinstance(each, st.When):
            each = replace(each, body=without(each.body, left_out), otherwise=without(each.otherwise, left_out))
        made.append(each)
    return tuple(made)


def needed(program: KernelProgram) -> Iterator[tuple[str, Statement]]:
    """Statements without which a program is wrong, and the role that they are of.

    Not among them: turns, which only order warpgroups; slots of rotary keys, which both warpgroups give back and one
    waits for; waits for all products but the last; tiles of a table that are sent from a ring.
    """
    for each in st.within(program.loads):
        if isinstance(each, st.Wait | st.Expect | st.Fetch):
            yield "loads", each
    for each in st.within(program.rows):
        settled = isinstance(each, st.Settle) and each.left == 0
        apart = isinstance(each, st.Arrive) and any(name in str(each.barrier) for name in ("turns", "R_j_free"))
        if (
            settled
            or isinstance(each, st.Wait | st.Expect | st.Fetch | st.Fence)
            or (isinstance(each, st.Arrive) and not apart)
        ):
            yield "rows", each


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", OF_HOPPER)
def test_a_program_without_a_statement_breaks_a_rule(name: str) -> None:
    tried = 0
    for program in programs(OF_HOPPER[name]):
        for role, each in needed(program):
            changed = replace(program, **{role: without(getattr(program, role), each)})
            assert broken(changed), st.printed([each])
            tried += 1
    assert tried > 15


@pytest.mark.parametrize("name", ["forward", "latent-ragged-shared", "stored", "backward", "pairs", "two-pass-causal"])
def test_a_block_says_what_rooms_its_program_takes(name: str) -> None:
    """Buffers, what consumers hand over and what goes out: no room is taken that the plan does not say."""
    case = OF_HOPPER[f"gluon-{name}"]
    planned = plans(traced(case), case.sizes, stages=case.tiling.stages).values()
    found = []
    for block in planned:
        rooms = {each.name: each.slots * prod(each.box) * (4 if each.vector else 2) for each in block.buffers.values()}
        rooms |= {each.room: prod(each.shape) * (4 if each.reduced else 2) for each in block.handed if not each.inside}
        rooms |= {
            each.name: each.slots * prod(each.box) * (4 if block.additions else 2)
            for each in block.outgoing
            if each.slots
        }
        found.append(rooms)
    taken = [
        {name: prod(room.shape) * WORDS[room.kind] for name, room in each.buffers.items()} for each in programs(case)
    ]
    assert found == taken and taken
