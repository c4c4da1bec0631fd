"""`pebblesim plot`: pictures of counts, games and graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pebblesim.cli import plot_measured
from pebblesim.cli.completion import problems, schedules
from pebblesim.cli.drawing import Drawing
from pebblesim.cli.options import (
    Block,
    BlockChoice,
    Blocks,
    Dtype,
    GameChoice,
    MaskText,
    Rules,
    ScheduleName,
    Schedules,
    Sizes,
    Summation,
    all_words_in,
    argument,
    command,
    family,
    names_in,
    option,
    words_in,
)
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.sizes import DTYPE_ON_MACHINES, bytes_of, check_type_is_used, dtype_of, listed, parse_words

if TYPE_CHECKING:
    from pebblesim.counting.count import Counted
    from pebblesim.views.recording import Recording


EXAMPLE = {"n": 4096, "d": 64}
"""Sizes where none are given."""

TELLING = ("flash2-forward", "flash1-forward", "standard-forward", "small-cache-forward-streamed")
"""Schedules that `words` and `roofline` draw where neither schedules nor a problem are named."""

ATTENTION = ("forward", "backward-qkv", "backward")
"""Problems where none are named."""

PlotProblem = Annotated[
    str | None,
    option("--problem -p", "Problem to solve; forward unless a schedule says otherwise.", values=problems),
]
CacheSizes = Annotated[str, option("-M", "Cache sizes: LOW:HIGH, or a list or range as for `sweep`.", "SIZES")]
Points = Annotated[int, option("--points", "Number of sizes from LOW to HIGH.", "K", min=2, max=1000)]


def _telling(problem: str | None) -> list[str] | None:
    return [*TELLING] if problem is None else None


def _or_example(sizes: Sizes) -> dict[str, Any]:
    """The sizes that were given, or those of an example."""
    return dict(sizes.dims or EXAMPLE)


app = family("Draw pictures of counts, games and graphs: .png, .svg or .pdf.")


@command(app, example="pebblesim plot skislope -n 4096 -d 64 -M 256:2M -o skislope.png")
def skislope(
    schedules: Schedules = None,
    *,
    sizes: Sizes,
    m: CacheSizes = "256:2M",
    dtype: Dtype = None,
    problem: PlotProblem = None,
    blocks: Blocks = "best",
    mask: MaskText = None,
    points: Points = 53,
    drawing: Drawing,
) -> None:
    """Draw the I/O of all schedules of a problem over M, their minimum, and below it the gap to the lower bound."""
    from pebblesim.views.plots.skislope import figure

    caches, dims = _caches(m, dtype, points), _or_example(sizes)
    rows = [row for words in caches for row in _compared(schedules, problem, words, blocks, mask, dims)]
    if not any(row.feasible for row in rows):
        raise UsageError(
            f"none of these schedules fits into a cache of {caches[-1]:,} words; use larger sizes with -M."
        )
    drawing.save(lambda empty: figure(rows, empty), height=7)


@command(app, example="pebblesim plot gaps forward backward -n 65536 -d 128 -M 16:32M -o gaps.png")
def gaps(
    problems: Annotated[
        list[str] | None,
        argument("Problems; each gets its own panel. By default forward, backward-qkv and backward.", values=problems),
    ] = None,
    *,
    sizes: Sizes,
    m: CacheSizes = "256:2M",
    dtype: Dtype = None,
    blocks: Blocks = "best",
    without: Annotated[
        str, option("--without", "Bounds, such as D4,C4, or schedules: also draw the gap without them.")
    ] = "",
    points: Points = 43,
    drawing: Drawing,
) -> None:
    """Draw the gap between the best schedule and the best lower bound over M, and without some of them, if asked."""
    from pebblesim.api.gaps import gaps as gaps_of
    from pebblesim.language.registry import of_problem
    from pebblesim.views.plots.gaps import figure, names_of_bounds

    caches = _caches(m, dtype, points)
    shape: dict[str, Any] = {"M": caches, "blocks": blocks, **_or_example(sizes)}
    all_gaps = [gaps_of(name, **shape) for name in problems or ATTENTION]
    names = [name.strip() for name in without.split(",") if name.strip()]
    every_schedule = {
        gap.problem: [schedule.name for schedule in of_problem(gap.problem, gap.dims)] for gap in all_gaps
    }
    known = set().union(*every_schedule.values(), *map(names_of_bounds, all_gaps))
    for name in names:
        if name not in known:
            raise UnknownName("bound or schedule of these problems", name, known)
    before = {}
    for gap in all_gaps:
        every = every_schedule[gap.problem]
        left = [name for name in every if name not in names]
        if not left:
            raise UsageError(f"--without leaves no schedule of {gap.problem!r}; leave out fewer of them.")
        if left != every:
            before[gap.problem] = gaps_of(gap.problem, schedules=left, **shape)
    drawing.save(lambda empty: figure(all_gaps, empty, names, before), height=1 + 2.2 * len(all_gaps))


@command(app, example="pebblesim plot words small-cache flash -n 4096 -d 64 -M 16k -o words.png")
def words(
    schedules: Schedules = None,
    *,
    sizes: Sizes,
    m: Annotated[str, option("-M", "Cache: words, or bytes such as 192KiB with --dtype.", "WORDS")] = "64k",
    dtype: Dtype = None,
    problem: PlotProblem = None,
    blocks: Blocks = "fit",
    mask: MaskText = None,
    by: Annotated[str | None, option("--by", "tensor or phase; both by default.")] = None,
    drawing: Drawing,
) -> None:
    """Draw reads and writes of schedules, stacked by tensor and by phase."""
    from pebblesim.views.plots.words import WAYS, figure

    if by not in (None, *WAYS):
        raise UnknownName("--by", by, WAYS)
    rows = _fitting(
        _compared(schedules or _telling(problem), problem, words_in(m, dtype), blocks, mask, _or_example(sizes))
    )
    ways = WAYS if by is None else (by,)
    height = 0.9 + (0.35 + 0.675 * len(rows)) * len(ways)
    drawing.save(lambda empty: figure(rows, empty, ways), height=height)


@command(app, example="pebblesim plot roofline --gpu A100 -n 8k -d 128 --dtype float16 -o roofline.png")
def roofline(
    schedules: Schedules = None,
    *,
    sizes: Sizes,
    gpu: Annotated[
        str | None, option("--gpu", "A card, such as A100; H100 by default. A wrong name prints the list.")
    ] = None,
    level: Annotated[
        str,
        option(
            "--level", "Level of the card: shared (the shared memory of a thread block) or l2.", values=lambda: LEVELS
        ),
    ] = "shared",
    on_machine: Annotated[
        str | None,
        option(
            "--machine", "A roof for each boundary of a path of memories, for one schedule: a card, FILE.toml.", "NAME"
        ),
    ] = None,
    below: Annotated[
        str | None,
        option("--below", "With --machine: tiles in its lowest memory, such as P,O_i; found if left out.", "TILES"),
    ] = None,
    block: Block = None,
    m: Annotated[str | None, option("-M", "Cache size in words, if no card is given.", "WORDS")] = None,
    peak: Annotated[str | None, option("--peak", "Peak rate in operations per second: 312T.", "RATE")] = None,
    bandwidth: Annotated[
        str | None, option("--bandwidth", "Bandwidth into the cache in bytes per second: 1.5T.", "RATE")
    ] = None,
    dtype: Annotated[str, option("--dtype", "Data type of a word, such as float16 or bf16.")] = DTYPE_ON_MACHINES,
    problem: PlotProblem = None,
    blocks: Blocks = "fit",
    mask: MaskText = None,
    drawing: Drawing,
) -> None:
    """Draw the roofline of a machine, with the schedules of a problem."""
    from pebblesim.views.plots.roofline import height, roofline as draw
    from pebblesim.views.plots.style import titled

    dtype = dtype_of(dtype)
    if on_machine is not None:
        others = {"--gpu": gpu, "-M": m, "--peak": peak, "--bandwidth": bandwidth, "--problem": problem, "--mask": mask}
        _roofs(schedules or [], on_machine, below, block, dtype, sizes, others, drawing)
        return
    if below is not None or block:
        raise UsageError("--below and --block are for a --machine; give one.")
    machine = _machine(gpu or (None if m or peak or bandwidth else "H100"), level, dtype, m, peak, bandwidth)
    rows = _fitting(_compared(schedules or _telling(problem), problem, machine.M, blocks, mask, _or_example(sizes)))

    def picture(empty: Any) -> None:
        ax = draw(
            rows,
            empty.subplots(),
            peak=machine.peak,
            bandwidth=machine.bandwidth,
            dtype=dtype,
            roofs=(machine.memory, "tensor cores" if bytes_of(dtype) <= 2 and machine.name else "arithmetic"),
        )
        sizes = ", ".join(f"{name} = {value:,}" for name, value in {**rows[0].dims, "M": machine.M}.items())
        titled(ax, f"{rows[0].problem}, {sizes} words{machine.name}")

    drawing.save(picture, height=height(rows))


def _roofs(
    names: Sequence[str],
    machine: str,
    below: str | None,
    block: list[str] | None,
    dtype: str,
    sizes: Sizes,
    others: dict[str, Any],
    drawing: Drawing,
) -> None:
    """Draw the roofline of a machine of several memories, with one schedule at each boundary."""
    from textwrap import fill

    import pebblesim as ps
    from pebblesim.counting.useful import useful_operations
    from pebblesim.language.registry import get
    from pebblesim.machines.named import machine as find
    from pebblesim.views.plots.roofs import Roof, roofs

    if len(names) != 1 or any(others.values()):
        more = [name for name, value in others.items() if value]
        why = f"leave out {', '.join(more)}" if more else f"{len(names)} were named"
        raise UsageError(f"--machine draws one schedule of one head without a mask; {why}.")
    place = find(machine)
    rule = BlockChoice(block=block).rule if block else None
    given: dict[str, Any] = {"below": names_in(below), "blocks": None if isinstance(rule, str) else rule}
    counted = ps.on_machine(names[0], machine=place, dtype=dtype, **given, **_or_example(sizes))
    above = [place.root, *(level.name for level in place.levels)]
    edges = [
        Roof(
            f"{name} – {f'each of {each.number:,} x ' if each.number > 1 else ''}{each.level.name}",
            each.level.bandwidth,
            each.most,
            each.bound.value,
        )
        for name, each in zip(above, counted.boundaries, strict=False)
    ]
    useful = useful_operations(get(names[0]).problem.name, counted.dims)
    sizes_of = {name: size for name, size in counted.blocks.items() if not name.startswith("share_")}
    title = f"{counted.schedule} on {counted.place}\n{fill(listed({**counted.dims, **sizes_of}), 70)}"

    def picture(empty: Any) -> None:
        ax = roofs(edges, empty.subplots(), useful=useful, peak=place.peak_of(dtype), dtype=dtype)
        ax.set_title(title, fontsize=10)

    place.peak_of(dtype)
    drawing.save(picture, 4.5)


app.registered_commands += plot_measured.app.registered_commands


@command(app, example="pebblesim plot occupancy small-cache -n 8 -d 4 -M 24 -o occupancy.png")
def occupancy(
    schedule: ScheduleName,
    *,
    game: GameChoice,
    drawing: Drawing,
) -> None:
    """Draw the number of red pebbles over the moves of a game, with its peak."""
    from pebblesim.views.plots.game import occupancy as draw

    _draw_game(schedule, game, draw, drawing, height=3.8)


@command(app, example="pebblesim plot tiles small-cache -n 40 -d 16 -M 300 -o tiles.png")
def tiles(
    schedule: ScheduleName,
    *,
    game: GameChoice,
    drawing: Drawing,
) -> None:
    """Draw which entries of each tensor are in the cache, over the moves of a game."""
    from pebblesim.views.plots.game import tiles as draw

    _draw_game(schedule, game, draw, drawing, height=6.2)


@command(app, example="pebblesim plot graph small-cache -n 2 -d 2 -M 24 --at 60 -o graph.png")
def graph(
    name: Annotated[
        str, argument("A problem, or a schedule whose game is played.", values=lambda: (*problems(), *schedules()))
    ],
    *,
    sizes: Sizes,
    m: Annotated[str | None, option("-M", "Cache size in words, for a schedule.", "WORDS")] = None,
    at: Annotated[int, option("--at", "Draw the pebbles after this move; 0 is before the first.")] = 0,
    rules: Rules = "hong-kung",
    summation: Summation = "chain",
    blocks: BlockChoice,
    mask: MaskText = None,
    drawing: Drawing,
) -> None:
    """Draw a small graph in layers, with its summation trees and the pebbles of a game after a move."""
    import pebblesim as ps
    from pebblesim.language.problems import PROBLEMS
    from pebblesim.views.plots.game import move
    from pebblesim.views.plots.graph import graph as draw
    from pebblesim.views.plots.style import titled
    from pebblesim.views.recording import record

    dims: dict[str, Any] = sizes.dims
    if name in PROBLEMS:
        if m is not None or at:
            raise UsageError(f"{name} is a problem: -M and --at need a schedule (see `pebblesim list`).")
        board = _small(ps.graph(name, summation=summation, mask=mask, **dims))
        drawing.save(lambda empty: draw(board, empty.subplots()), height=3.8)
    else:
        if m is None:
            raise UsageError(f"a game of {name} needs a cache size; give it in words with -M.")
        words, rule = parse_words(m, None), blocks.rule
        game = record(name, M=words, rules=rules, summation=summation, blocks=rule, mask=mask, **dims)
        red, blue = game.pebbles(at)
        _small(game.graph)
        vertex = int(game.moves[at - 1]) >> 2 if at else None

        def picture(empty: Any) -> None:
            ax = empty.subplots()
            titled(ax, f"{game.title}\n{move(game, at)}")
            draw(game.graph, ax, red=red, blue=blue, vertex=vertex)

        drawing.save(picture, height=4.2)


MOST_VERTICES = 20_000
"""Largest number of vertices that are drawn: about two dots of a printed page for each vertex."""


def _small(board: Any) -> Any:
    if board.vertices > MOST_VERTICES:
        raise UsageError(
            f"a graph of {board.vertices:,} vertices is too large to draw; at most {MOST_VERTICES:,} are drawn."
        )
    return board


def _draw_game(
    schedule: str, choice: Any, draw: Callable[[Recording, Any], Any], drawing: Drawing, height: float
) -> None:
    """Draw a game with a title; the title says so if the game ended with an illegal move."""
    from pebblesim.views.plots.style import titled
    from pebblesim.views.recording import record

    game = record(schedule, **choice.arguments)

    def picture(empty: Any) -> None:
        ax = empty.subplots()
        story = f"\nillegal {game.game.violation.message}" if game.game.violation else ""
        titled(ax, game.title + story)
        draw(game, ax)

    drawing.save(picture, height)


def _compared(
    names: list[str] | None, problem: str | None, M: int, blocks: str, mask: str | None, dims: dict[str, Any]
) -> Sequence[Counted]:
    import pebblesim as ps
    from pebblesim.language.registry import get

    solves = (get(names[0]).problem.name if names else "forward") if problem is None else problem
    return ps.compare(solves, schedules=names, M=M, blocks=blocks, mask=mask, **dims)


def _fitting(rows: Sequence[Counted]) -> list[Counted]:
    """The counts whose peak fits into the cache.

    Raises:
        UsageError: none fits.
    """
    fit = [row for row in rows if row.feasible]
    if not fit:
        least = min((row.least_M for row in rows if row.least_M), default=None)
        more = f"the smallest feasible M is {least:,}." if least else "use --blocks fit, or a larger M."
        raise UsageError(f"none of these schedules fits into a cache of M = {rows[0].M:,} words; {more}")
    return fit


def _caches(text: str, dtype: str | None, points: int) -> list[int]:
    """Parse cache sizes: a list or range as for `sweep`, or LOW:HIGH in about equal ratios."""
    ends = text.split(":")
    if len(ends) != 2 or "," in text:
        caches = sorted(all_words_in(text, dtype))
        if len(caches) < 2:
            raise UsageError(f"-M {text!r} was given; it must be several sizes, LOW:HIGH, such as 256:2M.")
        return caches
    check_type_is_used(text, dtype)
    first, last = (parse_words(end, dtype) for end in ends)
    if first >= last:
        raise UsageError(f"-M {text!r} was given; the first size must be less than the second.")
    return sorted({round(first * (last / first) ** (step / (points - 1))) for step in range(points)})


class _Hardware(NamedTuple):
    """Words of a cache, operations per second, and bytes per second between the cache and the next memory level."""

    M: int
    peak: float
    bandwidth: float
    name: str = ""
    memory: str = "memory"


LEVELS = {"shared": ("shared_per_block", "l2_bandwidth"), "l2": ("l2", "memory_bandwidth")}
"""For each cache of a card, the names of its figures for size and bandwidth."""


def _machine(
    gpu: str | None, level: str, dtype: str, m: str | None, peak: str | None, bandwidth: str | None
) -> _Hardware:
    """The cache of a card, or one given in numbers."""
    numbers = {"-M": m, "--peak": peak, "--bandwidth": bandwidth}
    if gpu is None:
        missing = [option for option, value in numbers.items() if value is None]
        if m is None or peak is None or bandwidth is None:
            raise UsageError(f"a roofline needs --gpu, or all of -M, --peak and --bandwidth; {missing[0]} is missing.")
        return _Hardware(parse_words(m, dtype), _rate("--peak", peak), _rate("--bandwidth", bandwidth))
    from pebblesim.advice.cards import card, words

    if any(numbers.values()):
        raise UsageError("--gpu replaces -M, --peak and --bandwidth; give --gpu or those three.")
    if level not in LEVELS:
        raise UnknownName("level", level, LEVELS)
    model, (cache, filled) = card(gpu), LEVELS[level]
    rate = model.rate(filled)
    if dtype not in model.peak or rate is None:
        what = "the bandwidth into its shared memory; use --level l2" if rate is None else f"a peak for {dtype}"
        raise UsageError(f"the table of cards has no value for {model.name}: {what}.")
    below = "L2" if level == "shared" else "device memory"
    return _Hardware(words(model, cache, dtype), model.peak[dtype].value, rate, f", {model.name}", below)


def _rate(option: str, text: str) -> float:
    """Parse a rate such as 312T or 1.555e12; k, M, G, T and P are powers of 1000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?)\s*([kMGTP])?", text.strip())
    value = float(match[1]) * 1000.0 ** " kMGTP".index(match[2] or " ") if match else 0.0
    if not 0 < value < 1e30:
        raise UsageError(f"{option} {text!r} was given; it must be a rate per second, such as 312T, 900G or 1.5e12.")
    return value
