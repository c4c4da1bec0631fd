"""Rules that the program of a Gluon kernel keeps, as a table: each finds what breaks it.

A role is read in its order: bodies of loops twice, so that what an iteration hands on to the next one is seen, or as
often as they run, where that is known; conditions hold, but those that ask for a later iteration in the first one.
Barriers and buffers are told apart by their names, and slots by their terms: `last = slot` makes the slot of one
iteration that of the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any

from pebblesim.kernels import statements as st
from pebblesim.kernels.statements import KernelProgram, Statement, parts_of, terms_of
from pebblesim.kernels.terms import ZERO, Binary, Held, Method, Name, Number, Term, text, walk
from pebblesim.kernels.words import WORDS
from pebblesim.language import program as ir


def in_order(body: st.Body, numbers: Mapping[str, Term] | None = None) -> Iterator[Statement]:
    """The statements of a role in the order in which they may run; `numbers`: of loops, where they are known."""
    known = numbers or {}
    for each in body:
        yield each
        if isinstance(each, st.For):
            for number in _numbers(each):
                yield from in_order(each.body, {**known, each.number: number})
        elif isinstance(each, st.When) and not _fails(each.condition, known):
            yield from in_order(each.body, known)
            yield from in_order(each.otherwise, known)


def _numbers(loop: st.For) -> list[Term]:
    """The numbers with which the body of a loop is read: all, where they are known, or the first and another one."""
    if isinstance(loop.low, Number) and isinstance(loop.high, Number):
        return [Number(each) for each in range(int(loop.low.value), int(loop.high.value))]
    return [loop.low, Name(loop.number)]


def _fails(condition: Term, numbers: Mapping[str, Term]) -> bool:
    """Whether a condition is known not to hold: it asks for another number of a loop, or for a later one."""
    match condition:
        case Binary(op="and", left=left, right=right):
            return _fails(left, numbers) or _fails(right, numbers)
        case Binary(op="==" | ">" as op, left=Name(id=name), right=other) if name in numbers:
            here = numbers[name]
            if isinstance(here, Number) and isinstance(other, Number):
                return here.value != other.value if op == "==" else here.value <= other.value
            return op == ">" and here == other
    return False


Slot = tuple[str, Term]
"""A buffer or a group of barriers, and the number of a slot."""


def slots(made: Term | tuple[Term, ...]) -> Iterator[Slot]:
    """The slots that a term names."""
    for each in walk(made):
        if isinstance(each, Method) and each.name == "index" and isinstance(each.of, Name):
            yield each.of.id, each.args[0]


def names(made: Term | tuple[Term, ...]) -> set[str]:
    """The buffers and barriers that a term names."""
    return {name for name, _ in slots(made)}


def _renamed(known: Iterable[Slot], let: st.Let) -> set[Slot]:
    """Slots behind a statement that gives numbers new names: `last` is what `slot` was, whose own number is another."""
    moved = {value: Name(name) for name, value in zip(let.names, let.values, strict=True)}
    found: set[Slot] = set()
    for name, slot in known:
        if slot in moved:
            found.add((name, moved[slot]))
        if _numbers_in(slot).isdisjoint(let.names):
            found.add((name, slot))
    return found


@lru_cache(maxsize=4096)
def _numbers_in(slot: Term) -> frozenset[str]:
    """The numbers that say which slot it is."""
    return frozenset(each.id for each in walk(slot) if isinstance(each, Name))


def filled_at(made: KernelProgram) -> dict[str, str]:
    """The barriers at which the bytes of a buffer arrive, for each that the copy engine fills."""
    copies = ((*slots(each.room), *slots(each.barrier)) for each in made.both() if isinstance(each, st.Fetch))
    return {room: barrier for (room, _), (barrier, _) in copies}


def filled_with(made: KernelProgram, name: str, barrier: str, slot: Term) -> Term:
    """The slot of the barrier at which the bytes of a buffer's slot arrive, with those of `several` beside it."""
    several = made.buffers[name].shape[0] // made.barriers[barrier].slots
    match slot:
        case Binary(op="+", left=Binary(op="*", left=fill, right=Number(value=value))) if value == several > 1:
            return fill
    return slot


def names_are_defined(made: KernelProgram) -> Iterator[str]:
    """A slot is of a buffer, or of barriers, that are there."""
    there = {*made.buffers, *made.barriers}
    used = {name for each in made.both() for name in names(parts_of(each))}
    yield from (f"{name} is not allocated" for name in sorted(used - there))


def barriers_are_complete(made: KernelProgram) -> Iterator[str]:
    """Whoever waits at a barrier waits for somebody who arrives there, or for bytes; and who arrives is waited for."""
    waited, met = set[str](), set[str]()
    for each in made.both():
        if isinstance(each, st.Wait):
            waited |= names(each.barrier)
        elif isinstance(each, st.Arrive | st.Expect):
            met |= names(each.barrier)
    for name in made.barriers:
        if name not in waited or name not in met:
            yield f"{name} has {'nobody who waits' if name in met else 'nobody who arrives'}"


def bytes_are_expected(made: KernelProgram) -> Iterator[str]:
    """A barrier expects the bytes that are then fetched, all of them."""
    rooms = made.buffers
    for role in (made.rows, made.loads):
        left: Counter[Slot] = Counter()
        for each in in_order(role):
            if isinstance(each, st.Expect):
                (slot,) = slots(each.barrier)
                if left[slot]:
                    yield f"{text(each.barrier)} still expects {left[slot]} bytes"
                left[slot] = each.bytes
            elif isinstance(each, st.Fetch):
                ((name, _),) = slots(each.room)
                (slot,) = slots(each.barrier)
                left[slot] -= prod(rooms[name].shape[1:]) * WORDS[rooms[name].kind]
        for (name, at), number in left.items():
            if number:
                yield f"slot {text(at)} of {name} expects {number} bytes more than are fetched"


def slots_are_given_back(made: KernelProgram) -> Iterator[str]:
    """A slot that a warpgroup waited for is given back; a barrier of its own is not arrived at without a wait."""
    waits, arrivals, streamed = Counter[str](), Counter[str](), set[str]()
    for loop in st.within(made.loads):
        if isinstance(loop, st.For) and loop.of is not None:
            waited = (names(each.barrier) for each in st.within(loop.body) if isinstance(each, st.Wait))
            streamed = streamed.union(*waited)
    for each in in_order(made.rows):
        if isinstance(each, st.Wait):
            waits.update(names(each.barrier))
        elif isinstance(each, st.Arrive):
            arrivals.update(names(each.barrier))
    for name in made.barriers:
        full = made.given_back.get(name, "")
        if name in streamed and arrivals[name] < waits[full]:
            yield f"{full} is waited for {waits[full]} times, and {name} is arrived at {arrivals[name]} times"
        elif not full and waits[name] < arrivals[name]:
            yield f"{name} is arrived at {arrivals[name]} times, and waited for {waits[name]} times"


def pieces_are_alike(made: KernelProgram) -> Iterator[str]:
    """Loops over some tiles and over others of a loop of the schedule arrive at the same barriers."""
    met: dict[ir.Loop, set[str]] = {}
    for loop in st.within(made.rows):
        if isinstance(loop, st.For) and loop.of is not None:
            barriers = (names(each.barrier) for each in st.within(loop.body) if isinstance(each, st.Arrive))
            arrived = set[str]().union(*barriers)
            for name in sorted(arrived ^ met.setdefault(loop.of, arrived)):
                yield f"{name} is arrived at for some tiles of line {loop.of.line}, and not for others"


def stores_are_used(made: KernelProgram) -> Iterator[str]:
    """Words that threads store in shared memory are read or sent, and those that are sent were stored."""
    stored, used, sent = set[str](), set[str](), set[str]()
    for each in st.within(made.rows):
        if isinstance(each, st.Put):
            stored |= names(each.room)
        elif isinstance(each, st.Send):
            sent |= names(each.room)
        elif not isinstance(each, st.Fetch):
            used |= {name for part in terms_of(each) for name in names(part)}
    yield from (f"{name} is stored, and nobody has it" for name in sorted(stored - used - sent))
    yield from (f"{name} is sent, and nobody stored it" for name in sorted(sent - stored))
    unread = used & set(made.buffers) - set(filled_at(made)) - stored
    yield from (f"{name} is read, and nobody stored it" for name in sorted(unread))


def slots_are_free(made: KernelProgram) -> Iterator[str]:
    """A slot of a ring is filled again when those who read it are done."""
    waited, frees = set[Slot](), {full: free for free, full in made.given_back.items()}
    for each in in_order(made.loads):
        if isinstance(each, st.Let):
            waited = _renamed(waited, each)
        elif isinstance(each, st.Wait):
            waited |= {*slots(each.barrier)}
        elif isinstance(each, st.Expect):
            for name, slot in slots(each.barrier):
                free = frees.get(name, "")
                if free and (free, slot) not in waited:
                    yield f"{text(each.barrier)} expects bytes, and {free} was not waited for"
                waited.discard((free, slot))


def slots_are_there(made: KernelProgram) -> Iterator[str]:
    """Words that the copy engine brings are read behind a wait for their barrier."""
    full, single = filled_at(made), {name for name, each in made.barriers.items() if each.slots == 1}
    stores = (each for each in st.within(made.rows) if isinstance(each, st.Put))
    stored = {name for each in stores for name in names(each.room)}
    waited: set[Slot] = set()
    for each in in_order(made.rows):
        if isinstance(each, st.Wait):
            waited |= {(name, ZERO if name in single else slot) for name, slot in slots(each.barrier)}
        elif not isinstance(each, st.Fetch | st.Expect | st.Arrive):
            for name, slot in slots(each.room) if isinstance(each, st.Put) else ():
                if name in full and not any(at == slot for _, at in waited):
                    yield f"slot {text(slot)} of {name} is stored to, and was not waited for"
            for name, slot in slots(_read(each)):
                barrier = full.get(name)
                if name in stored and any(at == slot for _, at in waited):  # a warpgroup has put something else there
                    continue
                at_barrier = slot if barrier is None else filled_with(made, name, barrier, slot)
                if barrier and (barrier, ZERO if barrier in single else at_barrier) not in waited:
                    yield f"line {each.line} reads slot {text(slot)} of {name} before {barrier} was waited for"
        if isinstance(each, st.Let):
            waited = _renamed(waited, each)


def _read(each: Statement) -> tuple[Any, ...]:
    """The terms of a statement that are read; what it stores to is not."""
    if isinstance(each, st.Put):
        return (each.value,)
    return () if isinstance(each, st.For | st.When | st.Send) else parts_of(each)


def _flights(made: KernelProgram) -> Iterator[tuple[Statement, list[tuple[str, set[Slot]]]]]:
    """Each statement of a warpgroup, with the products that run when it is reached: results, and slots they read."""
    running: list[tuple[str, set[Slot]]] = []
    for each in in_order(made.rows):
        yield each, running
        if isinstance(each, st.Issue):
            running = [*running, (each.to.id, {*slots((each.left, each.right))})]
        elif isinstance(each, st.Settle):
            running = running[len(running) - each.left :]
        elif isinstance(each, st.Let):
            running = [(result, _renamed(reads, each)) for result, reads in running]


def products_are_waited_for(made: KernelProgram) -> Iterator[str]:
    """The result of a product is used when it is there; another product may be added to it before."""
    for each, running in _flights(made):
        results = {result for result, _ in running}
        if isinstance(each, st.Settle) or not results:
            continue
        used = {part.id for part in terms_of(each) if isinstance(part, Held)}
        used -= {each.to.id} if isinstance(each, st.Issue) else set()
        yield from (f"line {each.line} uses {name}, whose product runs" for name in sorted(used & results))
    if results:
        yield f"the products of {', '.join(sorted(results))} are not waited for at the end"


def slots_are_kept(made: KernelProgram) -> Iterator[str]:
    """A slot is given back when no product that runs reads it."""
    full = filled_at(made)
    for each, running in _flights(made):
        if isinstance(each, st.Arrive):
            for name, slot in slots(each.barrier):
                run = [(full[buffer], buffer, at) for _, reads in running for buffer, at in reads if buffer in full]
                read = {(barrier, filled_with(made, buffer, barrier, at)) for barrier, buffer, at in run}
                if (made.given_back.get(name), slot) in read:
                    yield f"{text(each.barrier)} is free while a product reads it"


@lru_cache(maxsize=4096)
def _uses(terms: tuple[Term, ...]) -> tuple[frozenset[str], frozenset[Slot]]:
    """The values that terms use, by their names, and the slots from which threads take words into registers."""
    parts = [*walk(terms)]
    loads = (each.of for each in parts if isinstance(each, Method) and each.name == "load")
    return frozenset(each.id for each in parts if isinstance(each, Name | Held)), frozenset(slots((*loads,)))


def reads_are_over(made: KernelProgram) -> Iterator[str]:
    """A slot that threads read is given back when they have its words, before the copy engine fills it again.

    They have them behind a fence, and behind a store or a wait for a product that takes them or what is made of them:
    a thread cannot begin these before.
    """
    full, known = filled_at(made), dict[str, set[Slot]]()  # by name, slots whose words it may still wait for
    left, running = set[Slot](), list[set[Slot]]()

    def taken(terms: tuple[Term, ...]) -> set[Slot]:
        values, loads = _uses(terms)
        return {slot for slot in loads if slot[0] in full}.union(*(known.get(name, ()) for name in values))

    for each in in_order(made.rows):
        over = set[Slot]()
        if isinstance(each, st.Let):
            left, running = _renamed(left, each), [_renamed(some, each) for some in running]
            known = {name: _renamed(some, each) for name, some in known.items()}
            found = [taken((value,)) for value in each.values]
            known |= {
                name: some | (known.get(name, set()) if each.more else set())
                for name, some in zip(each.names, found, strict=True)
            }
            left = left.union(*found)
        elif isinstance(each, st.Map):
            found_here = taken((each.value,))
            known[each.to.id] = found_here | (known.get(each.to.id, set()) if each.more else set())
            left |= found_here
        elif isinstance(each, st.Issue):
            running.append(taken((each.left, each.right, each.onto)))
        elif isinstance(each, st.Settle):
            done = len(running) - each.left
            over, running = set[Slot]().union(*running[:done]), running[done:]
        elif isinstance(each, st.Store | st.Put):
            over = taken((each.value,))
        elif isinstance(each, st.Fence):
            over = {*left}
        elif isinstance(each, st.Arrive):
            for name, at in slots(each.barrier):
                barrier = made.given_back.get(name)
                for buffer, slot in sorted(left, key=str):
                    if barrier and (full[buffer], filled_with(made, buffer, barrier, slot)) == (barrier, at):
                        yield f"{text(each.barrier)} is free while threads may wait for words of {buffer}"
        if over:
            left -= over
            known = {name: some - over for name, some in known.items()}


def stores_are_fenced(made: KernelProgram) -> Iterator[str]:
    """Words that threads stored in shared memory are fenced before anybody else is told of them."""
    stored = False
    for each in in_order(made.rows):
        if isinstance(each, st.Put | st.Fence):
            stored = isinstance(each, st.Put)
        elif isinstance(each, st.Send | st.Arrive) and stored:
            yield f"line {each.line} hands on words of shared memory that no fence stands behind"


def engine_is_waited_for(made: KernelProgram) -> Iterator[str]:
    """Words on their way to memory are not stored over, and are there at the end."""
    sent: set[str] = set()
    for each in in_order(made.rows):
        if isinstance(each, st.Send):
            sent |= names(each.room)
        elif isinstance(each, st.Sent):
            sent.clear()
        elif isinstance(each, st.Put):
            yield from (f"{name} is stored over while it is sent" for name in sorted(names(each.room) & sent))
    if sent:
        yield f"{', '.join(sorted(sent))} may not have been sent at the end"


RULES: tuple[Callable[[KernelProgram], Iterator[str]], ...] = (
    names_are_defined,
    barriers_are_complete,
    bytes_are_expected,
    slots_are_given_back,
    pieces_are_alike,
    slots_are_free,
    slots_are_there,
    products_are_waited_for,
    slots_are_kept,
    reads_are_over,
    stores_are_fenced,
    stores_are_used,
    engine_is_waited_for,
)
"""The rules: each yields a sentence for each place that breaks it."""


def broken(program: KernelProgram) -> list[str]:
    """The rules that a program breaks, as sentences; none where it keeps them all."""
    return [f"{rule.__name__}: {said}" for rule in RULES for said in dict.fromkeys(rule(program))]
