"""The cutting argument: lower bounds of a problem from tables of its matrix products and pairs.

A bound counts pairs, or elementary products of some matrix products. The number of products, the number of trees that
can be computed without moving a word, and the additional words moved all follow from a table of the matrix products, so
no bound has a hand-written number. The argument and its proofs are in docs/lower-bounds.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import NamedTuple

from pebblesim.lower_bounds.capacities import Capacity, Columns, Cube, Fresh, Gradients, Latent, Rows
from pebblesim.lower_bounds.certificates import in_columns, private_families
from pebblesim.lower_bounds.closed_forms import (
    FormBetween,
    divided,
    doubled,
    forms_of_fresh,
    forms_of_rows,
    scaled,
    subtracted,
    summed,
)
from pebblesim.lower_bounds.instances import Formulation, Instance, Lines, Product

Between = tuple[str, str]
"""Rows and columns of a matrix that is computed from pairs, and from which an output is computed."""


class CuttingBound(NamedTuple):
    """One bound: the counted products, the capacity, and the additional words moved.

    Attributes:
        name: name in docs/lower-bounds.md.
        what: what the bound counts.
        products: weighted number of the products in `table`; without a table, the number of pairs, or with `Parts`
            the weight of what is counted of them; with `at_once`, the number of words that are moved once.
        capacity: the capacity.
        forms: closed forms (text, low, high) of the bound without the words besides, for low·unit ≤ M ≤ high·unit.
        unit: the unit for M, as text and as number.
        besides: tensors whose words belong to no family and are added.
        free, tree, ragged: as for `least_words`.
        why_not: why the bound does not apply; empty if it applies.
        table: the counted products.
        light: number of the free trees that are light, each with `tree` products; None if the trees have weight 1.
        at_once: pairs (words, times). For one of them, at least this number of words in total are in the cache at this
            number of times, or are moved again.
        beside: words of parts of matrices that belong to no family and are added, each as text and number.
        proved_for: the sizes for which it is proved, as a comparison; empty for all sizes.
        others: the bound with other weights of the products; the largest counts.
        sums: number of outputs whose further episodes weigh half a word more; None if all weigh 1.
    """

    name: str
    what: str
    products: int
    capacity: Capacity
    forms: Sequence[FormBetween]
    unit: tuple[str, Fraction | int] = ("", 1)
    besides: Sequence[str] = ()
    free: int = 0
    tree: int | None = None
    ragged: bool = False
    why_not: str = ""
    table: Sequence[Product] = ()
    light: int | None = None
    at_once: Sequence[tuple[int, int]] = ()
    beside: Sequence[tuple[str, int]] = ()
    proved_for: str = ""
    others: Sequence[CuttingBound] = ()
    sums: int | None = None


def with_other_weights(
    first: CuttingBound, *others: CuttingBound, without_form: Sequence[CuttingBound] = ()
) -> CuttingBound:
    """Return a bound that is the largest of several, which differ in the weights of their products.

    Args:
        first: the bound that holds up to the largest M; the closed forms of each other one take over below.
        others: the others, in the order of decreasing M. Their forms hold up to a whole number of hundredths of a unit,
            and are left out if that is none, or not the unit of the first.
        without_form: more of them, the closed forms of which are left out.
    """
    listed: list[CuttingBound] = []
    unlisted = list(without_form)
    for bound in others:
        of_unit = bound.unit == first.unit and _in_hundredths(bound.forms[0][2]) != 0
        (listed if of_unit else unlisted).append(bound)
    forms = [first.forms[0], *(bound.forms[0] for bound in listed)]
    tops = [_in_hundredths(high) for _, _, high in forms[1:]]
    lows = [top or 0 for top in (*tops, 0)]
    cut = [(text, low, high) for (text, _, _), low, high in zip(forms, lows, (forms[0][2], *tops), strict=True)]
    lower = [bound._replace(forms=[form]) for bound, form in zip(listed, cut[1:], strict=True)]
    lower += [bound._replace(forms=[]) for bound in unlisted]
    return first._replace(forms=[cut[0], *first.forms[1:]], others=lower)


def _in_hundredths(high: Fraction | int | None) -> Fraction | None:
    """The largest whole number of hundredths up to the end of a domain; None if it has no end."""
    return None if high is None else Fraction(floor(100 * high), 100)


class Cutting(Instance):
    """The bounds that the cutting argument gives for a problem at given sizes."""

    def of_products(
        self, name: str, what: str, products: Sequence[Product], why_not: str = "", within: Sequence[str] = ()
    ) -> CuttingBound:
        """Bound on all elementary products of several matrix products, by Loomis and Whitney's inequality.

        A tree can be computed without moving a word unless its elements are outputs. Under a mask, ragged trees may be
        left out of the count. Then products that use their elements are not counted either.

        Args:
            name, what, why_not: of the bound.
            products: those that are counted.
            within: other tensors with families, so that their words are not besides.
        """
        loose = {product.result for product in products if self.ragged(product)}
        counted = [product for product in products if loose.isdisjoint((product.left, product.right))]
        weight = max(product.weight for product in counted)
        total, text = self._total(counted)
        trees = [product for product in counted if product.result not in self.outputs]
        sizes = [self.trees(product) for product in trees]
        free = Counter[str]()
        for each, _ in sizes:
            free[each] += 1
        even = [product for product in trees if not self.ragged(product)]
        inner = {product.sides[1]: self.terms(product) for product in even}
        _check(name, counted, weight)
        least = min((number for _, number in inner.values()), default=1)
        lightest = min((product.weight for product in even), default=weight)
        form = f"{doubled(text, weight)}{subtracted(free)} - M"
        names = sorted({text for text, _ in inner.values()}, reverse=True)
        unit = (f"min({', '.join(names)})²" if len(names) > 1 else f"{names[0]}²") if names else ""
        return CuttingBound(
            name,
            what,
            total,
            Cube(weight) if len(even) < len(trees) else _of_pairs(counted, weight),
            [(form, 0, 4 * Fraction(lightest, weight) ** 2 if trees else None)],
            (unit, least**2),
            self.besides((*within, *(family for product in counted for family in product[:3]))),
            sum(number for _, number in sizes),
            min((product.weight * self.terms(product)[1] for product in even), default=None),
            len(even) < len(trees),
            why_not,
            counted,
        )

    def of_light_pairs(
        self,
        name: str,
        what: str,
        lines: Lines,
        products: Sequence[Product],
        tree: int,
        why_not: str = "",
        between: Sequence[Between] = (),
        of_some: Sequence[Product] = (),
    ) -> CuttingBound:
        """Bound on the products of pairs, where free episodes of the pairs' families may weigh less than 1.

        A matrix that is computed from an input and weights costs no less than the rows of that input. So its own
        products are not counted, and it has no free episodes that count. The results of the counted products may have
        free episodes.

        Args:
            name, what, why_not: of the bound.
            lines: the operands of pairs.
            products: those that are counted.
            tree: a free episode of a pair computes at least this number of products for each word of a row, by their
                weights.
            between: matrices that may stand between pairs and an output, whose trees may be free.
            of_some: products of some of the pairs, those with one family more. They are not counted, as these pairs
                have no fewer products than the additional family's free episode must have.
        """
        weight = max(product.weight for product in products)
        of_pairs = {product.result for product in products if product.sides[1] not in ("queries", "keys")}
        _check(name, (*products, *of_some), weight, frozenset(of_pairs.union(product.result for product in of_some)))
        others = [self.trees(p) for p in products if p.result not in (*of_pairs, *self.outputs)]
        others += [self.size(sides) for sides in between]
        families, total = len(of_pairs), sum(product.weight for product in products)
        (width, words), less = self.width(lines), subtracted(Counter(text for text, _ in others))
        pairs = subtracted({self.Z_text: families})
        counted, texts = self._total(products)
        if self._widths(products) == {width}:
            ratio, worth = Fraction(total, weight * families), Fraction(2 * tree, weight)
            lightest = min(ratio, worth)  # √ω, in units of d/√M
            factor = 2 * Fraction(total, weight) * lightest - families * lightest**2
            large = f"{scaled(factor, f'{self.Z_text}*{width}**2')}/M"
            small, of_unit, unit = lightest**2, f"{width}²", Fraction(words**2)
        else:  # √ω in units of 1/√M: from the products of a free episode, or from half of the products of a pair
            each, number = self._of_each_pair(products)
            root, text = min(
                (Fraction(2 * tree * words, weight), scaled(Fraction(2 * tree, weight), width)),
                (Fraction(number, weight * families), f"({each})" + divided(weight * families)),
            )
            half, unit_text = f"2*({each})*{text}{divided(weight)}", text if text.endswith(")") else f"({text})"
            large = f"{self.Z_text}*({half} - {scaled(Fraction(families), f'{unit_text}**2')})/M"
            small, of_unit, unit = Fraction(1), f"{unit_text}²", root**2
        return CuttingBound(
            name,
            what,
            counted,
            Cube(weight) if others or of_some else _of_pairs(products, weight),
            [
                (f"{doubled(texts, weight)}{pairs}{less} - M", 0, small),
                (f"{large}{less} - M - 1", small, None),
            ],
            (of_unit, unit),
            self.besides((*lines.query, *lines.key, *(family for product in products for family in product[:3]))),
            families * self.Z + sum(number for _, number in others),
            tree * words,
            bool(others),
            why_not or self._not_by_rows(lines),
            products,
            light=families * self.Z,
        )

    def _widths(self, products: Iterable[Product]) -> set[str]:
        """The sides of products that are neither queries nor keys, as text."""
        return {self._texts[side] for product in products for side in product.sides if side not in ("queries", "keys")}

    def _of_each_pair(self, products: Iterable[Product]) -> tuple[str, int]:
        """Return the number of products of one pair, by their weights, as text and number."""
        texts, number = Counter[str](), 0
        for product in products:
            (side,) = (side for side in product.sides if side not in ("queries", "keys"))
            texts[self._texts[side]] += product.weight
            number += product.weight * self._sizes[side]
        return summed(texts), number

    def of_one_product(
        self,
        name: str,
        what: str,
        lines: Lines,
        product: Product,
        why_not: str = "",
        between: Sequence[Between] = (),
    ) -> CuttingBound:
        """Bound on the products of pairs with one matrix, where computing a pair needs whole lines (`Fresh`).

        The trees of what is `between` pairs and an output may be free, as for `of_light_pairs`.
        """
        operand = product.right if product.sides[1] == "keys" else product.left
        pair = product.left if operand == product.right else product.right
        made_from = (*lines.query, *lines.key)
        (width, words), joined = self.width(lines), operand in made_from
        capacity = Fresh(words, len(lines.query), len(lines.key), joined)
        families = (*made_from, operand, pair, product.result)
        if joined:  # of all matrices as many columns as the narrowest has
            number = self.Z * words
            columns, beside = width, self.columns_besides(lines, families)
        else:
            number, columns, beside = self._total([product])[0], self._texts[product.sides[2]], []
        free, least, ragged = [self.size(sides) for sides in between], None, bool(between)
        if product.result not in self.outputs:
            free.append(self.trees(product))
            ragged = ragged or self.ragged(product)
            least = None if ragged else self.terms(product)[1]
        return CuttingBound(
            name,
            what,
            number,
            capacity,
            forms_of_fresh(capacity.c, self.Z_text, (width, columns), subtracted(Counter(text for text, _ in free))),
            (f"{width}²", words**2),
            self.besides(families),
            sum(number for _, number in free),
            least,
            ragged,
            why_not or self._not_by_rows(lines),
            [product],
            beside=beside,
        )

    def of_values_in_keys(
        self,
        name: str,
        what: str,
        lines: Lines,
        product: Product,
        sides: Sequence[Sequence[str]] = (("d_k",), ("d_k",)),
    ) -> CuttingBound:
        """The products of pairs with a part of a line that they are made from (`Latent`).

        `sides`: widths of what a pair takes of the side with this part, and of the other one.
        """
        values, d_v = self.size(("d_v",))
        keys, rows = (" + ".join(self.size((dim,))[0] for dim in side) for side in sides)
        d_k, row = (sum(self.size((dim,))[1] for dim in side) for side in sides)
        capacity, Z, wide = Latent(d_k, d_v, row if row != d_k else 0), self.Z_text, f"({rows} + {values})"
        if len({self._texts[width] for width in lines.widths}) == 1:  # all are multiples of d
            large = f"{min(d_k // d_v, 2) * (row // d_v + 1)}*{Z}*{values}**2/M"
            unit, size = f"{values}²", Fraction(d_v**2)
        elif d_k <= 2 * d_v:
            keys = keys if len(sides[0]) == 1 else f"({keys})"
            large, unit = f"{Z}*{keys}*{wide}/M", f"({keys}·{wide}/{values})²"
            size = Fraction(d_k * (row + d_v), d_v) ** 2
        else:
            large, unit = f"2*{Z}*{values}*{wide}/M", f"{wide}²"
            size = Fraction((row + d_v) ** 2)
        times = capacity.per_square**2 / size
        return CuttingBound(
            name,
            what,
            self._total([product])[0],
            capacity,
            [
                (large, times / 54, None),
                (f"2*{Z}*{values}/sqrt(M) - M", 0, times / 81),
                (f"sqrt(27/8)*{Z}*{values}/sqrt(M)", times / 81, times / 54),
            ],
            (unit, size),
            self.besides((*lines.query, *lines.key, *product[:3])),
            table=[product],
        )

    def _not_by_rows(self, lines: Lines) -> str:
        """Return why a row computed from weights may cost less than its words; empty if it cannot."""
        widths = [self.size((width,)) for width in ("d_k", "d_v")]
        if self.made and any(words > self.dims["d"] for _, words in widths):
            return f"proved where rows of what is projected have no fewer words, d ≥ {widths[0][0]} and {widths[1][0]}"
        return ""

    def of_gradients(
        self, name: str, what: str, lines: Lines, products: Sequence[Product], between: Sequence[Between] = ()
    ) -> CuttingBound:
        """Bound on the products of pairs with three matrices, one over queries and two over keys (`Gradients`).

        The trees of what is `between` pairs and an output may be free, as for `of_light_pairs`.
        """
        width, words = self.width(lines)
        capacity = Gradients(words)
        weights = tuple(product.weight for product in products)
        if weights != capacity.weights or [p.sides[0] for p in products] != ["queries", "keys", "keys"]:
            raise ValueError(f"{name}: the capacity of gradients is proved for weights {capacity.weights}")
        # Ĝ(2M) = 4M²/d, for smaller M 4M (M + carried/2·d²)/d
        closed, half = f"{sum(weights) // 4}*{self.Z_text}*{width}**2/", capacity.carried / 2
        families = (*lines.query, *lines.key, *(family for product in products for family in product[:3]))
        free = [self.size(sides) for sides in between]
        less = subtracted(Counter(text for text, _ in free))
        return CuttingBound(
            name,
            what,
            sum(weights) * self.Z * words,
            capacity,
            [
                (f"{closed}M{less}", capacity.whole / 2, None),
                (f"{closed}(M + {scaled(half, f'{width}**2')}){less}", 0, capacity.whole / 2),
            ],
            (f"{width}²", words**2),
            self.besides(families),
            free=sum(number for _, number in free),
            ragged=bool(free),
            beside=self.columns_besides(lines, families),
            why_not=self._not_by_rows(lines),
            table=products,
        )

    def of_pairs(self, name: str, what: str, lines: Lines) -> CuttingBound:
        """Bound on the pairs only; each pair needs whole lines (`Rows`)."""
        if len(lines.query) != len(lines.key):
            raise ValueError(f"{name}: rows and columns must cost the same")
        widths = Counter(self._texts[width] for width in lines.widths[: len(lines.query)])
        words = sum(self._sizes[width] for width in lines.widths[: len(lines.query)])
        besides, why_not = self.besides((*lines.query, *lines.key)), self._not_by_rows(lines)
        if len(widths) == 1:
            ((text, times),) = widths.items()
            forms, unit = forms_of_rows(times, text, self.Z_text), (f"{text}²", (words // times) ** 2)
        else:
            text = f"({' + '.join(widths)})"
            forms, unit = forms_of_rows(1, text, self.Z_text), (f"{text}²", words**2)
        return CuttingBound(name, what, self.Z, Rows(words), forms, unit, besides, why_not=why_not)

    def _total(self, products: Iterable[Product]) -> tuple[int, Counter[str]]:
        """Elementary products, each counted by its weight, as a number and as text."""
        total, texts = 0, Counter[str]()
        for product in products:
            text, number = self.size(product.sides)
            texts[text] += product.weight
            total += product.weight * number
        return total, texts


@dataclass(frozen=True)
class Bounding:
    """The proved bounds of a problem besides its compulsory words.

    Attributes:
        names: the inputs (or matrices computed from them) and outputs that the bounds use.
        claims: function that yields the bounds of a case.
        ways: the ways of computing with separate bounds, by name.
        which: function from a formulation to the name of its way of computing.
        made: for each matrix that may be computed from an input and weights, that input.
        proofs: where the proofs are.
    """

    names: tuple[str, ...]
    claims: Callable[[Cutting], Iterator[CuttingBound]]
    ways: Mapping[str, Formulation] = field(default_factory=lambda: {"": Formulation()})
    which: Callable[[Formulation], str] = lambda _: ""
    made: Mapping[str, str] = field(default_factory=dict)
    proofs: str = "docs/lower-bounds.md §4"


def _of_pairs(products: Sequence[Product], weight: int) -> Cube:
    """Return the capacity of products, in whole columns where these are of pairs. No trees may be left out of it."""
    pairs = [each for product in products if (each := product.of_pairs)]
    return Columns(weight) if len(pairs) == len(products) and in_columns(pairs) else Cube(weight)


def _check(name: str, products: Iterable[Product], weight: int, light: frozenset[str] | None = None) -> None:
    """Check that the claimed capacity is proved.

    Raises:
        ValueError: no choice of private families proves it.
    """
    table = tuple((product[:3], product.weight) for product in products)
    if private_families(table, weight, light) is None:
        raise ValueError(f"{name}: nothing proves that {weight} (X/3)^(3/2) products are the most")
