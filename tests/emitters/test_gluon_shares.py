"""Gluon kernels of gradients of keys in shares: which terms a share has, and the words that are moved."""

from __future__ import annotations

from types import SimpleNamespace

import gluon_interpreter
import numpy as np
import pytest
import triton_interpreter
from emitters.test_gluon_strides import allowed, right, strides

from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.gluon.shares import columns_of_tile, shares_of
from pebblesim.language.masks import Band
from pebblesim.language.registry import get

NAME, SCALE, SHARED, D = "small-cache-backward-resident", 0.25, 2, 64
BLOCKS = {"a": 128, "b": 128, "c": 64, "e": 64}


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    ("groups", "parts", "n", "causal", "most", "shares"),
    [
        (1, 2, 300, True, 4, 2),  # three tiles of keys: one has no other
        (1, 3, 200, True, 2, 2),  # two tiles: a pair
        (2, 2, 130, True, 3, 1),
        (1, 4, 140, False, 3, 3),
    ],
)
def test_shares_move_the_words_of_parts_but_for_their_sums(monkeypatch, groups, parts, n, causal, most, shares) -> None:
    """Beside the same kernels whose blocks have a part's tile each; sums are what they are, in float64."""
    monkeypatch.setattr(
        triton_interpreter,
        "CUDA",
        SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(multi_processor_count=most)),
    )
    band = (None, 0, True) if causal else None
    mask = Band("causal", None, 0, rows=SHARED) if causal else None
    program = get(NAME).in_dims({"n_q": n * SHARED, "n_k": n, "d_k": D, "d_v": D}).under(mask)
    sizes, chance = {"n_q": n * SHARED, "n_k": n, "d_k": D, "d_v": D, **BLOCKS}, np.random.default_rng(n)
    of_q, of_k = (1, groups * parts * SHARED, n, D), (1, groups, n, D)
    drawn = {"Q": of_q, "K": of_k, "V": of_k, "dO": of_q}
    x = {each: np.float64(np.float16(chance.normal(size=shape))) for each, shape in drawn.items()}
    true = right(x, allowed(n, n, band), parts * SHARED)
    x |= {each: np.repeat(x[each], parts, axis=1) for each in "KV"}
    L = true["L"].reshape(groups, n, parts, SHARED).swapaxes(1, 2).reshape(groups * parts, -1)
    x |= {"O": true["O"], "L": L}
    order, of_parts = [each for each in program.tensors if each in program.inputs], (1, groups * parts, n, D)
    moved = {}
    for in_shares in (False, True):
        text = gluon(program, sizes, "float16", mask, scale=SCALE, shared=SHARED, apart=True, in_shares=in_shares).text
        apart = {"dK": parts, "dV": parts}
        found, moved[in_shares] = gluon_interpreter.run(
            text,
            {each: x[each] for each in order},
            "float16",
            None,
            n,
            strides={each: strides(x[each].shape, "heads") for each in order if x[each].ndim == 4},
            results={each: (shape, strides(shape, "heads")) for each, shape in (("dQ", of_q), *of_keys(of_parts))},
            wide=("dK", "dV"),
            begin={each: np.full(of_parts, np.nan) for each in ("dK", "dV")},
            apart=apart,
        )
        written = shares if in_shares else parts
        assert apart == {"dK": written, "dV": written}
        for each in ("dK", "dV"):
            sums = found[each].reshape(groups, parts, n, D)
            assert np.isnan(sums[:, written:]).all() and moved[in_shares]["written", each] == groups * written * n * D
            assert np.allclose(sums[:, :written].sum(1)[None], true[each], rtol=0, atol=0.02 * abs(true[each]).max())
    sums = {("written", "dK"), ("written", "dV")}
    one, other = ({key: words for key, words in moved[each].items() if key not in sums} for each in (False, True))
    assert one == other


def of_keys(shape):
    return [("dK", shape), ("dV", shape)]


def test_columns_are_whole_tiles():
    assert [columns_of_tile(d, 192) for d in (512, 576, 256, 192, 320)] == [256, 192, 256, 192, 192]
    assert columns_of_tile(512, 256) == 256 and columns_of_tile(512, 64) == 64


def test_shares_are_as_many_as_multiprocessors_have_room_for():
    assert shares_of(12, 16, 132) == 11 and shares_of(8, 16, 132) == 16 and shares_of(8, 4, 132) == 4
    assert shares_of(133, 16, 132) == 1
