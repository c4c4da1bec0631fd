"""Lower bounds by words that are in the cache at the same time: (5), (6), (7) and (10) in docs/lower-bounds.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal

from pebblesim.lower_bounds.capacities import Cube
from pebblesim.lower_bounds.closed_forms import scaled, summed
from pebblesim.lower_bounds.cutting import Cutting, CuttingBound
from pebblesim.lower_bounds.instances import Lines

Widths = tuple[str, ...]
"""Words in a row of each of some matrices, by the names of the dimensions."""


def words_at_once(
    case: Cutting,
    name: str,
    sides: tuple[Mapping[str, str], Mapping[str, str]],
    held: Sequence[tuple[Widths, Widths]],
    lost: Sequence[Widths],
    why_not: str = "",
) -> CuttingBound:
    """Bound: all lines of queries, or of keys, or the inputs of both, are in the cache at once, or move again.

    Args:
        case: the problem at its sizes.
        name: name of the bound.
        sides: the width of each matrix with a row for each query, and of each with a row for each key.
        held: widths of what is in the cache at once for queries and for keys, in each of the cases.
        lost: the number r of lines at which a side counts as used up is the largest of these sums of widths. Then
            r - 1 lines need not be in the cache.
        why_not: why the bound does not apply; empty if it applies.
    """
    rows = [case.size((side,)) for side in (case.problem.pairs or ("n", "n"))]
    moved_text, moved = _words(case, rows, (tuple(sides[0].values()), tuple(sides[1].values())))
    r_text, r = max((_width(case, widths) for widths in lost), key=lambda width: width[1])
    left = [(f"({text} - {_enclosed(r_text)} + 1)", max(0, number - r + 1)) for text, number in rows]
    cases = [_words(case, left, widths) for widths in held]
    text, _ = min(cases, key=lambda words: words[1])
    form = f"{moved_text} + {text} - M"
    if rows[0][0] == rows[1][0]:
        n, d = rows[0][0], case.size(lost[0][:1])[0]
        least = min(len(queries) + len(keys) for queries, keys in held)
        matrices, r_times = len(sides[0]) + len(sides[1]), len(lost[0])
        form = f"{matrices + least}*{n}*{d} - {least * r_times}*{d}**2 + {scaled(least, d)} - M"
    return CuttingBound(
        name,
        "words in the cache at once, or moved again",
        moved,
        Cube(),
        [(form, 0, None)],
        besides=case.besides([*sides[0], *sides[1]]),
        why_not=_masked(case) or why_not,
        at_once=[(number, 1) for _, number in cases],
    )


def words_at_two_times(case: Cutting, name: str, lines: Lines, why_not: str = "") -> CuttingBound:
    """Bound: 2nd words are in the cache at each of two times, or 5nd/2 words at one time, or are moved again.

    This leaves out terms in d². The numbers are those of inequality (6) in docs/lower-bounds.md.

    Args:
        case: the problem at its sizes.
        name: name of the bound.
        lines: an input and an output of queries, and two inputs of keys.
        why_not: why the bound does not apply; empty if it applies.
    """
    (n_text, n), (d_text, d) = case.size(("fewer",)), case.width(lines)
    names, many = (*lines.query, *lines.key), 12  # r = 12 d in the proof
    why_not = _masked(case) or _uneven(case, lines) or why_not
    if not why_not and n < 2 * many * d:
        why_not = f"it is proved for {n_text} ≥ {2 * many}·{d_text}"
    return CuttingBound(
        name,
        "words in the cache at two times, or moved again",
        len(names) * n * d,
        Cube(),
        [
            (f"13*{n_text}*{d_text}/2 - {4 * many}*{d_text}**2 - M", 0, Fraction(3, 2)),
            (f"8*{n_text}*{d_text} - {4 * many}*{d_text}**2 - 2*M", Fraction(3, 2), None),
        ],
        (f"{n_text}·{d_text}", n * d),
        besides=case.besides(names),
        why_not=why_not,
        at_once=[(-(-5 * n * d // 2) - 4 * many * d**2, 1), (4 * n * d - 4 * many * d**2, 2)],
        proved_for=f"{n_text} >= {2 * many}*{d_text}",
    )


def words_at_several_times(
    case: Cutting,
    name: str,
    sides: tuple[Mapping[str, str], Mapping[str, str]],
    outputs: Literal[0, 1] = 0,
    why_not: str = "",
) -> CuttingBound:
    """Bound: all lines of one side are in the cache at m + 1 times, with half of those of the other, or move again.

    That is inequality (7) in docs/lower-bounds.md, or (10) if lines have outputs. The least of either is for m = 0 or
    for the most times that there can be. A made row stands for the input's row that it is made from.

    Args:
        case: the problem at its sizes.
        name: name of the bound.
        sides: the width of each matrix with a row for each query, and of each with a row for each key. Two of each side
            are inputs, or made of them.
        outputs: how many outputs of a line are in the cache with its inputs.
        why_not: why the bound does not apply; empty if it applies.
    """
    (few_text, few), (many_text, many) = case.size(("fewer",)), case.size(("more",))
    rows = [case.size((side,)) for side in (case.problem.pairs or ("n", "n"))]
    d_text, d = case.size(tuple(sides[0].values())[:1])
    line = 2 + outputs
    r, least = 3 * line * d, []
    for stay, pass_by in ((few, many), (many, few)):
        words, half = line * d * (stay - r + 1) - d * r, d * (pass_by - r + 1)
        least += [(times * words + half, times) for times in {1, max(1, pass_by // r)}]
    matrices = [(text, number, len(side)) for (text, number), side in zip(rows, sides, strict=True)]
    terms = Counter({f"{few_text}*{d_text}": line})
    for text, _, times in [(many_text, many, 1), *matrices]:
        terms[f"{text}*{d_text}"] += times
    of_square, least_lines = 3 * line * (line + 1), 3 * (line + 1)
    unit = f"({line}·{few_text}·{d_text} - {of_square}·{d_text}² + {line}·{d_text})"
    if few < least_lines * d:
        why_not = why_not or f"it is proved for {few_text} ≥ {least_lines}·{d_text}"
    return CuttingBound(
        name,
        "words in the cache at several times, or moved again",
        sum(number * times for _, number, times in matrices) * d,
        Cube(),
        [(f"{summed(terms)} - {3 * line * (line + 2)}*{d_text}**2 + {scaled(line + 1, d_text)} - M", 0, 1)],
        (unit, line * few * d - of_square * d**2 + line * d),
        besides=case.besides([*sides[0], *sides[1]]),
        why_not=_masked(case) or _of_two_widths(case, sides) or why_not,
        at_once=least,
        proved_for=f"{few_text} >= {least_lines}*{d_text}",
    )


def _words(case: Cutting, rows: Sequence[tuple[str, int]], widths: tuple[Widths, Widths]) -> tuple[str, int]:
    """Return rows times widths, added up over queries and keys, as text and number."""
    texts, number = [], 0
    for (text, many), own in zip(rows, widths, strict=True):
        if own:
            width, words = _width(case, own)
            texts.append(f"{_enclosed(width)}*{text}")
            number += many * words
    return " + ".join(texts), number


def _width(case: Cutting, widths: Widths) -> tuple[str, int]:
    """Return a sum of widths, as text and number."""
    parts = [case.size((width,)) for width in widths]
    return summed(Counter(text for text, _ in parts)), sum(number for _, number in parts)


def _enclosed(text: str) -> str:
    return f"({text})" if " " in text else text


def _masked(case: Cutting) -> str:
    (queries, keys), Z = (case.size((side,))[1] for side in ("fewer", "more")), case.Z
    return "it is proved where all pairs are allowed" if queries * keys > Z else ""


def _of_two_widths(case: Cutting, sides: tuple[Mapping[str, str], Mapping[str, str]]) -> str:
    """Return why a bound for lines of one width does not apply; empty if it applies."""
    widths = {case.size((width,))[1] for side in sides for width in side.values()}
    return "it is proved for matrices of one width" if len(widths) > 1 else ""


def _uneven(case: Cutting, lines: Lines) -> str:
    """Return why the bound by words at two times does not apply; empty if it applies."""
    if (
        case.size(("fewer",))[1] < case.size(("more",))[1]
        or len({case.size((width,))[1] for width in lines.widths}) > 1
    ):
        return "it is proved for as many keys as queries, of one width"
    return ""
