"""`search`: find the schedule with the least I/O for a problem and a cache, among sequences of passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from math import inf
from typing import TYPE_CHECKING, Any

from pebblesim.analysis.blocks import least_words
from pebblesim.analysis.peak import CHAINS, IN_PLACE, spared
from pebblesim.core.bisection import first_that
from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result
from pebblesim.core.sizes import LARGEST, assigned, listed, whole
from pebblesim.counting.arguments import AnyMask
from pebblesim.counting.count import Counted, count
from pebblesim.counting.heads import Heads
from pebblesim.counting.totals import Totals
from pebblesim.language import masks
from pebblesim.language.masks import Band, HeadMasks, Mask
from pebblesim.language.problems import Problem, problem
from pebblesim.language.registry import SCHEDULES, Schedule, get, of_problem
from pebblesim.synthesis.word_sizes import WORDS, WordSizes, game, word_sizes

if TYPE_CHECKING:
    from pebblesim.api.play import Played
    from pebblesim.game.referee import Game
    from pebblesim.synthesis.candidates import Candidates, Steps
    from pebblesim.synthesis.equations import System
    from pebblesim.synthesis.plans import Plan

PLANS = 4
"""Number of cheapest plans of each way of computing that are written as schedules and counted exactly."""

LESS_IF_SHORT = 1.25
"""Under a mask, plans are looked at up to so many times the best words: a short first block saves a fifth at most."""

SMALL = (7, 3, 4, 5, 2)
"""Largest sizes of the game that is played with the schedule found."""


@dataclass(frozen=True)
class Found(Result):
    """The result of a search.

    Attributes:
        schedule: the registered schedule with the least I/O: a new one, or one of the catalogue.
        source: its source code.
        counted: its count.
        known: the count of the best schedule of the catalogue, with its best blocks; None if none fits.
        played: a small game of it, judged by the referee.
        ways: the ways of computing that were searched, as options of the graph.
        passes: number of passes evaluated.
        heads: the heads and sequences; the counts are of the heads that share keys and values.
        times: how often all this is computed.
        widths: the bytes of words; `counted` and `known` are in words all the same, for a cache of so many words that
            they fit.
        M_bytes: the bytes of the cache, where words differ.
        in_bytes: where words differ, the small game on a graph with words of these sizes.
    """

    schedule: Schedule
    source: str
    counted: Counted
    known: Counted | None
    played: Played
    ways: tuple[dict[str, Any], ...]
    passes: int
    heads: Heads = field(default_factory=Heads)
    times: int = 1
    widths: WordSizes = WORDS
    M_bytes: int | None = None
    in_bytes: Game | None = None

    @property
    def bytes(self) -> int | None:
        """The bytes that it moves, if sizes of words were given."""
        return None if self.M_bytes is None else self.widths.moved(self.counted)

    @property
    def io(self) -> int:
        """I/O of the schedule, in words."""
        return self.counted.io

    @property
    def new(self) -> bool:
        """Whether the search wrote it."""
        return self.known is None or self.schedule.name != self.known.schedule

    @property
    def beside(self) -> dict[str, int]:
        """For each tensor, the words that it moves more than the best schedule of the catalogue, where they differ."""
        if self.known is None:
            return {}
        mine, theirs = self.counted.by_tensor, self.known.by_tensor
        names = dict.fromkeys((*mine, *theirs))
        more = {name: sum(mine.get(name, (0, 0))) - sum(theirs.get(name, (0, 0))) for name in names}
        return {name: words for name, words in more.items() if words}

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim search --json`; `totals` are of all heads and sequences, as for `count`."""
        sizes = {"word_bytes": {**self.widths.named, "others": self.widths.others}, "M_bytes": self.M_bytes}
        return {
            **self.counted.to_dict(),
            **(self._of_all() if self.heads.is_given else {}),
            **({} if self.M_bytes is None else {**sizes, "bytes": self.bytes}),
            "new": self.new,
            "known": self.known and {"schedule": self.known.schedule, "io": self.known.io},
            "beside": self.beside,
            "played": self.played.passed,
            "ways": list(self.ways),
            "passes": self.passes,
            "source": self.source,
        }

    def _of_all(self) -> dict[str, Any]:
        """Return what all heads and sequences move together, beside what one group of heads does."""
        data = Totals([replace(self.counted, heads=self.heads, times=self.times)], None).to_dict()
        (total,) = data["totals"]
        total["bytes"] = None if self.bytes is None else self.bytes * self.times
        return {**data, "io_of_one_group": self.io}

    def __str__(self) -> str:
        counted, known = self.counted, self.known
        in_bytes = self.M_bytes is not None
        sizes = listed({**counted.dims, "M": counted.M if self.M_bytes is None else self.M_bytes})
        sums = ", sums in place" if counted.summation == IN_PLACE else ""
        under = (
            "" if counted.mask is None else f", mask {counted.mask} ({counted.pairs:,} of {counted.all_pairs:,} pairs)"
        )
        chosen = assigned(counted.blocks) or "none"
        if known is None:
            beside = "no schedule of the catalogue fits"
        elif not self.new:
            beside = "the catalogue's: no sequence of passes moves less"
        else:
            times = known.io / counted.io if self.bytes is None else self.widths.moved(known) / self.bytes
            as_many = f"{times:.3f} times as many{' bytes' * in_bytes}"
            beside = f"the catalogue's best is {known.schedule}: {known.io:,}, {as_many}"
        game = self.played.game
        small = ", ".join(f"{name} = {size}" for name, size in {**self.played.dims, **self.played.blocks}.items())
        small_mask = "" if self.played.mask is None else f", mask {self.played.mask}"
        plural = "s" if len(self.ways) > 1 else ""
        judged = "legal and complete" if game.complete else "NOT legal and complete"
        heads = (
            [f"{self.heads}: {self.times:,} times that, {self.io * self.times:,} words"] if self.heads.is_given else []
        )
        differences = ", ".join(f"{name} {words:+,}" for name, words in self.beside.items())
        verdict = "as predicted, with the right values" if self.played.passed else "NOT as predicted"
        return "\n".join(
            [
                f"{counted.problem}: {sizes} {'bytes' if in_bytes else 'words'}{sums}{under}",
                f"{counted.schedule}: {counted.io:,} words with {chosen}, in {counted.peak_red:,}; {beside}",
                *([f"beside that: {differences}"] if self.new and differences else []),
                *self._lines_in_bytes(),
                *heads,
                f"searched: {self.passes:,} passes in {len(self.ways)} way{plural} of computing",
                f"played at {small}{small_mask}: {game.io:,} words, {judged}, {verdict}",
            ]
        )

    def _lines_in_bytes(self) -> list[str]:
        if self.bytes is None:
            return []
        known = "" if self.known is None else f"; {self.known.schedule}: {self.widths.moved(self.known):,}"
        assert self.in_bytes is not None
        judged = "legal and complete" if self.in_bytes.complete else "NOT legal and complete"
        return [
            f"{self.widths}; M = {self.M_bytes:,} bytes",
            f"in bytes: {self.bytes:,}{known}; the small game: {self.in_bytes.io:,}, {judged}",
        ]


_SEARCHED: dict[tuple[object, ...], Candidates] = {}
"""The passes of the ways of computing that were searched before."""


def _passes(system: System) -> Candidates:
    from pebblesim.synthesis.candidates import Candidates

    key = system.problem.name, system.problem.dims, system.problem.graph, system.masked, *sorted(system.options.items())
    if key not in _SEARCHED:
        _SEARCHED[key] = Candidates(system)
    return _SEARCHED[key]


def _called(name: str) -> str:
    """The name of the schedule to be found, which must be free and make the name of a function."""
    function = name.replace("-", "_")
    if not function.isidentifier() or iskeyword(function):
        raise UsageError(
            f"a schedule is called by letters, digits, '-' and '_', with no digit first and no word of Python, not by "
            f"{name!r}; choose another name."
        )
    if name in SCHEDULES and not _is_ours(get(name)):
        raise UsageError(f"there is a schedule {name!r} already; choose another name.")
    return name


@checked_kinds()
def search(
    problem_name: str = "backward",
    *,
    M: int,
    summation: str = "chain",
    name: str | None = None,
    saved: Collection[str] | None = None,
    kept: Collection[str] | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    mask: AnyMask | None = None,
    word_bytes: Mapping[str, int] | None = None,
    progress: Callable[[float], None] | None = None,
    **dims: int,
) -> Found:
    """Search for the schedule with the least I/O, write it, register it, count it, and play it under the referee.

    A schedule is a sequence of passes. A pass computes some of the problem's tensors from others that are in memory,
    and stores some of them. It works in tiles, one product at a time, or keeps rows of one axis in the cache while rows
    of another axis are streamed. Tensors that are not stored are recomputed. The I/O of passes is computed in closed
    form, and Dijkstra's algorithm over the sets of tensors in memory finds the cheapest sequences. The best few are
    counted exactly and compared with the catalogue.

    Args:
        problem_name: any problem whose graph has plain sums.
        M: red pebbles, in words.
        summation: "chain", or "in-place", as for `count`.
        name: name of the schedule; by default "found-" and the problem's name.
        saved: the inputs that the forward pass saved, such as ("O", "l"); by default a schedule may need any of them.
        kept: an older name of `saved`.
        heads, kv_heads, batch, separate: as for `count`; heads that share keys are one head with all their queries.
        mask: the allowed pairs, as for `count`, for all heads alike.
        word_bytes: bytes in a word of some tensors, such as {"Q": 2, "K": 2, "V": 2}; words of the others have 4. Then
            M is in bytes, and the schedule is the one that moves the fewest bytes.
        progress: called repeatedly with the fraction of the work that is done.
        dims: as for `count`.

    Returns:
        The schedule with the least I/O, its source, its count and its game.

    >>> search("matmul", m=30, k=20, n=40, M=100).counted.io <= 6_960
    True

    Raises:
        UsageError: the problem has no graph of plain sums, or none from what is saved; the name is already used; or a
            size or mask is not allowed.
        Infeasible: no sequence of passes fits into M words.
    """
    if saved is not None and kept is not None:
        raise UsageError("saved and kept were given, and kept is an older name of saved; give saved alone.")
    solves, saved = problem(problem_name), kept if saved is None else saved
    given, pattern = Heads(heads, kv_heads, batch, separate), _mask(solves, mask)
    cases = given.cases(solves, dims, pattern)
    sizes: dict[str, Any] = dict(cases.sizes)
    (under,) = cases.masks
    solves = solves.in_dims(sizes)
    M = whole("M", M)
    if summation not in CHAINS:
        raise UsageError(f"search takes summation {' or '.join(map(repr, CHAINS))}, not {summation!r}.")
    called = _called(name or f"found-{solves.name}")
    from pebblesim.synthesis import writing

    ways = _ways(solves, saved, under)
    asked = _Asked(solves, sizes, M, summation, under, called, _widths(word_bytes, ways, summation))
    best: _Written | None = None
    looked_at = 0
    with SCHEDULES.temporary():  # none of those that are tried is left behind
        SCHEDULES.pop(called, None)
        known = _known(asked, saved)
        for number, system in enumerate(ways, 1):
            most = min((asked.cost(each) for each in (known, best and best.counted) if each), default=inf)
            passes, found = asked.cheapest(system, most)
            looked_at += passes
            best = found or best
            if progress:
                progress(number / len(ways))
    if best is None and known is None:
        least_M = first_that(lambda M: any(replace(asked, M=M).fits(way) for way in ways), M)
        unit = "words" if word_bytes is None else "bytes"
        raise Infeasible(f"no sequence of passes fits into M = {M} {unit}; it needs M ≥ {least_M}.", least_M)
    if best is not None:
        schedule = writing.register(best.text, called)
        counted, text = best.counted, best.text
    else:
        assert known is not None
        schedule, counted = get(known.schedule), known
        text = inspect.getsource(schedule.function)
    return Found(
        schedule,
        text,
        counted,
        known,
        _played(schedule, sizes, summation, under),
        tuple(dict(system.options) for system in ways),
        looked_at,
        given,
        cases.times,
        asked.widths,
        None if word_bytes is None else M,
        None if word_bytes is None else _small_game(schedule, sizes, asked.widths, best.plan if best else None),
    )


@dataclass(frozen=True)
class _Written:
    """A plan, its source, and its count."""

    counted: Counted
    text: str
    plan: Plan


@dataclass(frozen=True)
class _Asked:
    """A question: problem, sizes, cache, sums, mask and words for which a schedule is searched, and its name."""

    solves: Problem
    sizes: dict[str, Any]
    M: int
    summation: str
    mask: Mask | None
    name: str
    widths: WordSizes

    @property
    def words(self) -> int:
        """Number of words that surely fit into M."""
        return max(1, self.M // self.widths.largest)

    @property
    def setting(self) -> dict[str, Any]:
        """The question but for its problem, as arguments of `count`."""
        return {"M": self.words, "summation": self.summation, "mask": self.mask, **self.sizes}

    def cost(self, counted: Counted) -> int:
        """Return the words, or bytes, of a count."""
        return self.widths.moved(counted)

    def least(self, schedule: Schedule) -> int:
        """Return a lower bound on the cost of a schedule with all blocks that fit into `words`."""
        made = schedule.in_dims(self.sizes)
        return self.widths.smallest * least_words(made, self.sizes, self.words, self.summation, self.mask)

    def steps(self, system: System, most: float = inf) -> Steps:
        """Return the passes of a way of computing that may be part of a plan of fewer words."""
        from pebblesim.synthesis.candidates import Steps
        from pebblesim.synthesis.pairs import PairSums

        sums = None if self.mask is None else PairSums(self.mask, self.solves.grid(self.sizes))
        # passes are priced on chains
        M = self.M + spared(self.summation)
        return Steps(_passes(system), self.sizes, M, sums, most, widths=self.widths)

    def fits(self, system: System) -> bool:
        """Whether there is a sequence of passes within M."""
        from pebblesim.synthesis.plans import plans

        return bool(plans(self.steps(system), 1))

    def cheapest(self, system: System, most: float) -> tuple[int, _Written | None]:
        """Return the number of passes of a way of computing, and its best schedule, if it costs less than `most`."""
        from pebblesim.synthesis import writing
        from pebblesim.synthesis.linking import variants
        from pebblesim.synthesis.plans import plans

        priced = most if self.mask is None else most * LESS_IF_SHORT
        steps, best, where = self.steps(system, priced), None, listed({**self.sizes, "M": self.M})
        where += "" if self.widths == WORDS else f" bytes; {self.widths}"
        where += "" if self.mask is None else f", mask {self.mask}"
        written = [each for plan in plans(steps, PLANS, priced) for each in variants(plan, steps)]
        if self.mask is not None:  # a search of blocks takes long under a mask
            written = sorted(written, key=lambda plan: plan.words)[:1]
        for plan in written:
            text = writing.source(plan, self.name, where)
            counted = self._least(writing.register(text, self.name), plan.blocks, most)
            if counted is not None and self.cost(counted) < most:
                best, most = _Written(counted, text, plan), self.cost(counted)
        return steps.number, best

    def _least(self, made: Schedule, priced: Mapping[str, int], most: float) -> Counted | None:
        """Return a schedule's count with the blocks of the search, or those of `best`; None if it does not fit.

        Also None if it moves `most` words or more with all blocks. Where words differ, the search has seen to the room.
        """
        if self.widths != WORDS:
            whole = count(made, blocks=priced, **{**self.setting, "M": LARGEST})
            return replace(whole, M=whole.peak_red)
        if self.least(made) >= most:
            return None
        counted = [count(made, blocks=priced, **self.setting)] if made.blocks else []
        with suppress(Infeasible):
            counted.append(count(made, blocks="best", **self.setting))
        return min((each for each in counted if each.peak_red <= self.M), key=lambda each: each.io, default=None)


def _ways(solves: Problem, saved: Collection[str] | None, mask: Mask | None) -> list[System]:
    from pebblesim.synthesis.equations import systems

    ways = systems(solves, _named(solves, saved), masked=mask is not None)
    if not ways:
        raise UsageError(
            f"problem {solves.name!r} has no graph without sums in blocks or running values, which `search` needs"
            + ("." if saved is None else f", from what is saved: {', '.join(saved) or 'nothing'}.")
        )
    return ways


def _widths(given: Mapping[str, int] | None, ways: Iterable[System], summation: str) -> WordSizes:
    if given is None:
        return WORDS
    if summation == IN_PLACE:
        raise UsageError("search takes words of different sizes with summation 'chain' only.")
    return word_sizes(given, {name for way in ways for name in way.axes})


def _small_game(schedule: Schedule, dims: Iterable[str], widths: WordSizes, plan: Plan | None) -> Game:
    """Play the small game with words of these sizes, in as much room as the search took it to need."""
    sizes, blocks = dict(zip(dims, SMALL, strict=False)), dict.fromkeys(schedule.blocks, 2)
    M = LARGEST
    if plan is not None:
        by_axis = {axis: sizes[dim] for axis, dim in enumerate(plan.system.dims)}
        M = max(one_pass.room(by_axis, blocks, widths) for one_pass in plan.passes)
    return game(schedule, sizes, blocks, widths, M)


def _mask(solves: Problem, mask: AnyMask | None) -> Mask | None:
    pattern = masks.of_heads(mask)
    if isinstance(pattern, HeadMasks):
        raise UsageError(
            f"search takes one mask for all heads; {pattern.name} has one for each: search for each apart."
        )
    if pattern is not None:
        solves.refuse_mask()
    return pattern


def _named(solves: Problem, saved: Collection[str] | None) -> Collection[str] | None:
    for name in saved or ():
        if name not in solves.kept:
            raise UnknownName(f"input of problem {solves.name!r} that the forward pass saves", name, solves.kept)
    return saved


def _known(asked: _Asked, saved: Collection[str] | None) -> Counted | None:
    """Return the count of the best schedule of the catalogue, with its best blocks; None if no schedule fits."""
    best: Counted | None = None
    possible = [
        schedule.in_dims(asked.sizes)
        for schedule in of_problem(asked.solves.name, asked.sizes, asked.mask is not None)
        if not _is_ours(schedule) and (saved is None or {*schedule.kept} <= {*saved})
    ]
    least = map(asked.least, possible)
    for words, each in sorted(zip(least, possible, strict=True), key=lambda pair: pair[0]):
        if best is not None and words >= asked.cost(best):
            break
        with suppress(Infeasible):
            counted = count(each, blocks="best", **asked.setting)
            best = counted if best is None or asked.cost(counted) < asked.cost(best) else best
    return best


def _is_ours(schedule: Schedule) -> bool:
    return schedule.function.__code__.co_filename == f"<{schedule.name}>"


def _played(schedule: Schedule, dims: Iterable[str], summation: str, mask: Mask | None) -> Played:
    """Play a small game, with ragged tiles if the sizes allow it, and under a mask if there is one."""
    from pebblesim.api.play import play

    sizes: dict[str, Any] = dict(zip(dims, SMALL, strict=False))
    blocks = dict.fromkeys(schedule.blocks, 2)
    peak_red = count(schedule, M=LARGEST, blocks=blocks, summation=summation, **sizes).peak_red
    small = None if mask is None else _small(mask)
    return play(schedule, M=peak_red, blocks=blocks, summation=summation, mask=small, **sizes)


def _small(mask: Mask) -> Mask:
    """Return a mask for a small game: the band itself, but narrower; and a window in place of masks of other kinds."""
    if not isinstance(mask, Band) or mask.before not in (None, 0, 1, 2):
        after = mask.after if isinstance(mask, Band) else 0
        mask = Band("window:3", 2, after if after is None else min(after, 2))
    return mask
