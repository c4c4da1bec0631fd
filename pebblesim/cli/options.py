"""The options that commands share, each defined once, and groups of options that a command takes as one argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_type_hints, overload

import typer
from typer.core import TyperCommand, TyperGroup

from pebblesim.cli.completion import BY_NAME, Values, one_of, problems, schedules
from pebblesim.cli.printing import WIDE
from pebblesim.cli.waiting import still_at_work
from pebblesim.core.errors import NoSizes, UnknownName, UsageError
from pebblesim.core.files import check_place
from pebblesim.core.sizes import check_type_is_used, parse_size, parse_words, several


def option(names: str, help: str, metavar: str | None = None, values: Values | None = None, **rules: Any) -> Any:
    """An option of a command, for the annotation of a parameter.

    Args:
        names: the names, with spaces between them, such as "--output -o".
        help: what it is for.
        metavar: what the help calls its value; by default its type.
        values: what a shell completes; by default the values that its name stands for.
        rules: what else Typer takes, such as `min`.
    """
    declared = names.split()
    known = values or next((BY_NAME[name] for name in declared if name in BY_NAME), None)
    return typer.Option(*declared, help=help, metavar=metavar, autocompletion=known and one_of(known), **rules)


def output_file(names: str, help: str, metavar: str = "FILE") -> Any:
    """An option that names a file to write; one that cannot be written is refused before anything is computed."""
    return option(names, help, metavar, callback=in_its_place)


def in_its_place(context: typer.Context, path: Path | None) -> Path | None:
    """Return the path of a file to write; refuse one that cannot be written."""
    if path is not None and not context.resilient_parsing:
        check_place(path)
    return path


def check_page(path: Path) -> None:
    """Refuse a name that no browser takes for a page.

    Raises:
        UsageError: it does not end in .html.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"unknown file format: {path.name!r}; the name of a page must end in .html.")


def argument(help: str, metavar: str | None = None, values: Values | None = None) -> Any:
    """An argument of a command, as `option`."""
    return typer.Argument(help=help, metavar=metavar, autocompletion=values and one_of(values))


ScheduleName = Annotated[str, argument("Name of a schedule, e.g. small-cache.", values=schedules)]
MaybeSchedule = Annotated[str | None, argument("Name of a schedule, e.g. small-cache.", values=schedules)]
Problem = Annotated[
    str | None,
    option(
        "--problem -p",
        "Problem to solve, see `pebblesim list`; backward unless a schedule says otherwise.",
        values=problems,
    ),
]
N = Annotated[str | None, option("-n", "Sequence length: 4096, 64k, 2^20.", "N")]
D = Annotated[str | None, option("-d", "Head dimension.", "D")]
BySize = Annotated[
    list[str] | None, option("--size", "A dimension by its own name, e.g. n_q=1; may be repeated.", "DIM=N")
]
M = Annotated[str, option("-M", "Cache: words, or bytes such as 192KiB with --dtype.", "WORDS")]
Dtype = Annotated[
    str | None, option("--dtype", "Data type of a word: float32, bfloat16, …; with it M may be given in bytes.")
]
MaskText = Annotated[
    str | None,
    option(
        "--mask",
        "Allowed pairs of query and key: causal, window:W, band:W, lengths:3,5,8, "
        "bigbird:BLOCK:WINDOW:GLOBAL:RANDOM, or FILE.npy.",
        "MASK",
    ),
]
Blocks = Annotated[
    str,
    option(
        "--blocks", "How block sizes are chosen: fit (the largest that fit), paper (as printed) or best (searched)."
    ),
]
Block = Annotated[
    list[str] | None, option("--block", "The size of one block, e.g. B_r=128; may be repeated.", "NAME=SIZE")
]
Summation = Annotated[str, option("--summation", "Shape of the sums: chain, balanced, blocked:b, or in-place.")]
Rules = Annotated[str, option("--rules", "Rules of the game: hong-kung, replace or no-recompute.")]
Option = Annotated[
    list[str] | None, option("--option", "An option of the graph: order=U, kept=true, row_block=8, …", "NAME=VALUE")
]
AsLatex = Annotated[bool, option("--latex", "Print LaTeX, for a document with amsmath.")]
Wide = Annotated[bool, option("--wide", "All columns, and lines longer than the terminal is wide.")]
AsJson = Annotated[bool, option("--json", "Print the result as JSON.")]
Schedules = Annotated[
    list[str] | None, argument("Names of schedules; by default all of the problem.", values=schedules)
]
ProblemName = Annotated[str | None, argument("A problem; backward by default.", values=problems)]


def one_problem(named: str | None, option: str | None) -> str | None:
    """Return the problem that is named as an argument or with --problem; None if none is."""
    if named is not None and option not in (None, named):
        raise UsageError(f"two problems were given, {named} and --problem {option}; give one.")
    return option if named is None else named


def pairs(texts: list[str] | None, option: str) -> Iterator[tuple[str, str]]:
    names = set()
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} {text!r} was given; it takes NAME=VALUE.")
        if name in names:
            raise UsageError(f"{option} {name}=… was given twice.")
        names.add(name)
        yield name, value


def names_in(text: str | None) -> list[str] | None:
    """Return the names in a list such as P,O_i; None for None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def option_value(value: str) -> int | bool | str:
    """The value of a graph's option: a whole number, true or false, or a word."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value) if value.isdecimal() else value


def _each_once(short: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    if twice := sorted(set(short) & set(named)):
        raise UsageError(f"{twice[0]} was given twice, with -{twice[0]} and with --size.")
    return short | named


class Group:
    """Options that belong together; a command takes them as one argument (see `command`)."""


@dataclass(frozen=True)
class Sizes(Group):
    """The dimensions of a problem."""

    n: N = None
    d: D = None
    size: BySize = None

    @cached_property
    def dims(self) -> dict[str, int]:
        """Return the sizes by the given names."""
        short = {name: parse_size(name, value) for name, value in (("n", self.n), ("d", self.d)) if value is not None}
        return _each_once(short, {name: parse_size(name, value) for name, value in pairs(self.size, "--size")})


@dataclass(frozen=True)
class Ranges(Group):
    """The dimensions of a problem, each with one size or several."""

    n: Annotated[str | None, option("-n", "Sequence lengths.", "SIZES")] = None
    d: Annotated[str | None, option("-d", "Head dimensions.", "SIZES")] = None
    size: Annotated[
        list[str] | None, option("--size", "A dimension by its own name; may be repeated.", "DIM=SIZES")
    ] = None

    @cached_property
    def dims(self) -> dict[str, str]:
        """Return the sizes as given, by the given names."""
        short = {name: value for name, value in (("n", self.n), ("d", self.d)) if value is not None}
        return _each_once(short, dict(pairs(self.size, "--size")))


@dataclass(frozen=True)
class Cache(Group):
    """A cache, in words, or in bytes with the type of a word."""

    typed: ClassVar[bool] = False
    """Whether the type of a word says more than how many words some bytes are."""

    m: M = ...  # type: ignore[assignment]
    dtype: Dtype = None

    @cached_property
    def words(self) -> int:
        """M, in words."""
        return words_in(self.m, self.dtype, self.typed)


class TypedCache(Cache):
    """A cache of words of a type."""

    typed = True


@dataclass(frozen=True)
class MaybeTypedCache(TypedCache):
    """A cache of words of a type, which a command needs for some of what it does."""

    m: Annotated[str | None, option("-M", "Cache: words, or bytes such as 192KiB with --dtype.", "WORDS")] = None  # type: ignore[assignment]


@overload
def words_in(m: str, dtype: str | None, typed: bool = False) -> int: ...
@overload
def words_in(m: str | None, dtype: str | None, typed: bool = False) -> int | None: ...
def words_in(m: str | None, dtype: str | None, typed: bool = False) -> int | None:
    """Return M in words, as `parse_words` does; None if it was not given.

    Args:
        m: the size.
        dtype: type of a word.
        typed: whether the type says more than how many words some bytes are; else it is refused where M is in words.

    Raises:
        UsageError: as for `parse_words`; or the type is of no use.
    """
    _check_type(m, dtype, typed)
    return None if m is None else parse_words(m, dtype)


def all_words_in(m: str, dtype: str | None, typed: bool = False) -> tuple[int, ...]:
    """Return several M in words, from a list or range as `several` reads it; the rest as for `words_in`."""
    _check_type(m, dtype, typed)
    return several("M", m, lambda text: parse_words(text, dtype))


def _check_type(m: str | None, dtype: str | None, typed: bool) -> None:
    if typed:
        return
    if m is not None:
        check_type_is_used(m, dtype)
    elif dtype is not None:
        raise UsageError("--dtype is the type of the words in -M; add -M in bytes, or leave --dtype out.")


@dataclass(frozen=True)
class BlockChoice(Group):
    """A block rule, or sizes of blocks."""

    blocks: Blocks = "fit"
    block: Block = None

    @cached_property
    def rule(self) -> str | Mapping[str, int]:
        """The rule's name, or sizes by name."""
        if not self.block:
            return self.blocks
        if self.blocks != "fit":
            raise UsageError(
                f"--blocks {self.blocks} chooses all blocks; leave it out to choose some yourself with --block."
            )
        return {name: parse_size(name, value) for name, value in pairs(self.block, "--block")}


@dataclass(frozen=True)
class _OfReferee(Group):
    rules: Rules = "hong-kung"
    summation: Summation = "chain"


@dataclass(frozen=True)
class _UnderMask(Group):
    mask: MaskText = None


@dataclass(frozen=True)
class GameChoice(_UnderMask, BlockChoice, _OfReferee, Cache, Sizes):
    """All settings of a game of a schedule; the options come in the order of the bases, the last one first."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `pebblesim.play` and `pebblesim.record`."""
        setting = {"M": self.words, "rules": self.rules, "summation": self.summation}
        return {**setting, "blocks": self.rule, "mask": self.mask, **self.dims}


@dataclass(frozen=True)
class HeadChoice(Group):
    """The number of problems of one size, and which of them share keys and values."""

    heads: Annotated[int, option("--heads", "Query heads.", "H", min=1)] = 1
    kv_heads: Annotated[
        int | None, option("--kv-heads", "KV heads; by default as many as query heads.", "G", min=1)
    ] = None
    batch: Annotated[int, option("--batch", "Sequences of this length.", "B", min=1)] = 1
    separate: Annotated[
        bool, option("--separate", "Count each head separately, even if heads share keys and values.")
    ] = False

    @property
    def is_given(self) -> bool:
        """Whether heads or sequences were given."""
        return (self.heads, self.kv_heads, self.batch) != (1, None, 1)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `pebblesim.count` and the like."""
        if self.separate and self.kv_heads is None:
            raise UsageError("--separate is for heads that share keys and values; say how many, with --kv-heads.")
        return {"heads": self.heads, "kv_heads": self.kv_heads, "batch": self.batch, "separate": self.separate}


def convert_here(command: Any, context: Any) -> None:
    """Let a command's parameters turn texts into numbers and paths by `_converted`, and not by Typer.

    Typer 0.29 does it with pydantic, whose import takes a third of the time of `pebblesim count`, and whose sentences
    do not quote what was given.
    """

    def process(param: Any, whole: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
        if param.required and param.value_is_missing(value):
            return whole(context, value)  # which has the sentence for that
        try:
            made = _converted(value, asked[param.name]) if param.name in asked else value
        except ValueError as error:
            raise typer.BadParameter(str(error), context, param) from None
        return param.callback(context, param, made) if param.callback else made

    asked = get_type_hints(command.callback, include_extras=True) if command.callback else {}
    for param in command.get_params(context):
        param.process_value = partial(process, param, param.process_value)


def _converted(value: Any, hint: Any) -> Any:
    """Return a value as a parameter asks for it: texts become numbers or paths; what is no text stays.

    Raises:
        ValueError: a text is no number, or not one of those that the parameter takes.
    """
    if isinstance(value, list | tuple):
        return [_converted(each, hint) for each in value]
    if not isinstance(value, str):
        return value
    kind, info = get_args(hint)
    kinds = {leaf for part in (kind, *get_args(kind)) for leaf in (part, *get_args(part))}
    if int in kinds or float in kinds:
        return _number(value, int if int in kinds else float, info.min, info.max)
    return Path(value) if Path in kinds else value


def _number(text: str, kind: type[int | float], least: float | None, most: float | None) -> int | float:
    form, what = ("-?[0-9]{1,1000}", "a whole number") if kind is int else ("[^_]{1,1000}", "a number")
    with suppress(ValueError):
        number = kind(text) if re.fullmatch(form, text) else None
        if number is not None and (least is None or least <= number) and (most is None or number <= most):
            return number
    bounds = "" if least is None else f", {least} or more" if most is None else f", from {least} to {most}"
    raise ValueError(f"{text!r} is not {what}{bounds}")


class Commands(TyperGroup):
    """Commands whose values are converted here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        convert_here(self, ctx)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not (args[0].startswith("-") or ctx.resilient_parsing):
            raise UnknownName(f"command of {ctx.info_name}" if ctx.parent else "command", args[0], known)
        return super().resolve_command(ctx, args)


class _Command(TyperCommand):
    """A command whose values are converted here, and that takes one value once; Typer would keep the last one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        convert_here(self, ctx)
        if not ctx.resilient_parsing:
            params: list[Any] = self.make_parser(ctx).parse_args(args=[*args])[2]
            for param in params:
                if (
                    param.param_type_name == "option"
                    and not (param.multiple or param.is_flag)
                    and params.count(param) > 1
                ):
                    name = param.opts[0]
                    takes = f"one list of sizes, such as {name} 64,128" if param.metavar == "SIZES" else "one value"
                    raise UsageError(f"{name} was given twice; it takes {takes}.")
        return super().parse_args(ctx, args)


def command(app: typer.Typer, name: str | None = None, *, example: str) -> Callable[[Callable[..., None]], Any]:
    """Register a command; a parameter that is annotated with a `Group` stands for all options of the group.

    Every command takes --wide, too.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        groups: dict[str, tuple[type[Group], list[str]]] = {}
        options: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            if not (isinstance(hint, type) and issubclass(hint, Group)):
                options.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hint))
                continue
            members, types = inspect.signature(hint).parameters.values(), get_type_hints(hint, include_extras=True)
            groups[parameter.name] = hint, [member.name for member in members]
            options += [m.replace(kind=m.KEYWORD_ONLY, annotation=types[m.name]) for m in members]
        options.append(inspect.Parameter("wide", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Wide))

        @wraps(function)
        def run(*, wide: bool, **values: Any) -> None:
            WIDE.set(wide)
            grouped = {name: kind(**{m: values.pop(m) for m in members}) for name, (kind, members) in groups.items()}
            try:
                with still_at_work():
                    function(**values, **grouped)
            except NoSizes as error:
                raise UsageError(f"{str(error).rstrip('.')}; for example: {example}") from None

        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in options}
        app.command(name, cls=_Command, epilog=f"Example: [bold]{example}[/bold]")(run)
        return function

    return register


def family(help: str | None = None) -> typer.Typer:
    """An app for the commands of one file; with a help text, a command with commands of its own."""
    return typer.Typer(
        cls=Commands,
        no_args_is_help=help is not None,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help=help,
    )
