"""The graphs of the forward pass and of the gradients with respect to Q, K and V compute what their references say."""

from collections import Counter

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

from pebblesim import graphs
from pebblesim.core.errors import UsageError
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.problems import problem

SIZES = st.fixed_dictionaries({"n": st.integers(1, 9), "d": st.integers(1, 5)})
OUTPUTS = {
    "early": ("O", "l", "P"),
    "late": ("O", "l"),
    "safe": ("O", "m", "l_m", "P"),
    "flash1": ("O", "m", "l_m"),
    "flash2": ("O", "L"),
}


def assert_sound(graph: Cdag) -> None:
    """Vertices in topological order, and no two with the same name."""
    target = np.repeat(np.arange(graph.vertices), np.diff(graph.indptr.astype(np.int64)))
    assert (graph.preds < target).all()
    names = Counter(graph.describe(v) for v in range(graph.vertices))
    assert max(names.values()) == 1


@pytest.mark.parametrize("softmax", OUTPUTS)
@given(sizes=SIZES, summation=strategies.SUMMATIONS, block=st.integers(1, 11))
def test_every_softmax_is_the_softmax(softmax: str, sizes: dict[str, int], summation: str, block: int) -> None:
    online = {"column_block": block} if softmax.startswith("flash") else {}
    graph = graphs.build("forward", summation, **sizes, softmax=softmax, outputs=OUTPUTS[softmax], **online)
    inputs = problem("forward").random_inputs(sizes)
    reference, values = problem("forward").reference(inputs), graph.evaluate(inputs)
    assert set(values) == set(OUTPUTS[softmax])
    for name, value in values.items():
        np.testing.assert_allclose(value, reference[name], rtol=1e-10, atol=1e-13)
    assert_sound(graph)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kept", ["l", "L", "m", "P"])
@given(sizes=SIZES, summation=strategies.SUMMATIONS, dQ_block=st.none() | st.integers(1, 11))
def test_the_gradients_are_the_gradients(
    kept: str, sizes: dict[str, int], summation: str, dQ_block: int | None
) -> None:
    graph = graphs.build("backward-qkv", summation, **sizes, kept=kept, dQ_block=dQ_block)
    names = {"l": ("O", "l"), "L": ("O", "L"), "m": ("O", "l_m", "m"), "P": ("P",)}[kept]
    inputs = problem("backward-qkv").random_inputs(sizes, kept=names)
    reference, values = problem("backward-qkv").reference(inputs), graph.evaluate(inputs)
    for name in ("dQ", "dK", "dV"):
        np.testing.assert_allclose(values[name], reference[name], rtol=1e-10, atol=1e-12)
    assert_sound(graph)


RUNNING = ("flash1", "flash2", "logsumexp", "split", "split-sums", "split-scores")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["projected-forward", "projected-backward-qkv", "backward"])
@given(data=st.data())
@strategies.draws(12, 60)
def test_weights_that_are_absorbed_change_the_order_and_not_the_result(name: str, data: st.DataObject) -> None:
    """Any weights, any sizes, any other option: the outputs are those of the reference."""
    own = problem(name).rectangle
    assert own is not None
    sizes = {dim: data.draw(st.integers(1, 6), dim) for dim in own.dims}
    weights = ("X", "Y") if name == "backward" else ("W_Q", "W_K", "W_V")
    absorbed = tuple(weight for weight in weights if data.draw(st.booleans(), weight))
    if {"W_Q", "W_K"} <= {*absorbed}:
        absorbed = absorbed[1:]
    options: dict[str, object] = {"absorbed": data.draw(st.sampled_from([absorbed, ",".join(absorbed)]))}
    kept: tuple[str, ...] = ()
    match name:
        case "projected-forward":
            options["softmax"] = data.draw(st.sampled_from(("early", "late", "safe", *RUNNING)))
            if options["softmax"] in RUNNING:
                options["column_block"] = data.draw(st.integers(1, 7))
        case "backward":
            options["order"] = data.draw(st.sampled_from(["T", "U", "one-pass"]))
        case _:
            kept = ("O", "l")
    inputs = own.random_inputs(sizes, kept=kept)
    graph = graphs.build(name, data.draw(strategies.SUMMATIONS), **sizes, **options)
    reference, values = own.reference(inputs), graph.evaluate(inputs)
    for output in own.outputs:
        np.testing.assert_allclose(values[output], reference[output], rtol=1e-10, atol=1e-12)
    families = {family.name for family in graph.families}
    assert families.isdisjoint({"X": "S", "Y": "h", "W_Q": "Q", "W_K": "K", "W_V": "V"}[weight] for weight in absorbed)
    assert_sound(graph)


@pytest.mark.parametrize("softmax", RUNNING)
def test_the_mean_of_inputs_is_that_of_the_last_block(softmax: str) -> None:
    """O = PA W_V, with PA after all three blocks of keys."""
    sizes = {"n_q": 3, "n_k": 5, "d": 2, "d_k": 3, "d_v": 4}
    own = problem("projected-forward").rectangle
    assert own is not None
    inputs = own.random_inputs(sizes)
    graph = graphs.build("projected-forward", **sizes, softmax=softmax, column_block=2, absorbed=("W_V",))
    np.testing.assert_allclose(graph.evaluate(inputs)["O"], own.reference(inputs)["O"], rtol=1e-10)


@pytest.mark.parametrize("output", ["dQ", "dK", "dV"])
def test_the_reference_gradients_are_finite_differences(output: str) -> None:
    """L(Q, K, V) = Σ dO ∘ O has these gradients."""
    gradient_of = problem("backward-qkv")
    inputs = gradient_of.random_inputs({"n": 4, "d": 3}, seed=3)
    analytic = gradient_of.reference(inputs)[output]
    name, step = output[1:], 1e-6

    def loss(change: np.ndarray) -> float:
        shifted = {key: inputs[key] for key in ("Q", "K", "V")} | {name: inputs[name] + change}
        return float((inputs["dO"] * problem("forward").reference(shifted)["O"]).sum())

    for index in np.ndindex(*analytic.shape):
        change = np.zeros_like(analytic)
        change[index] = step
        assert (loss(change) - loss(-change)) / (2 * step) == pytest.approx(analytic[index], rel=1e-6, abs=1e-8)


def test_options_that_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'flash2'"):
        graphs.build("forward", n=2, d=2, softmax="flash")
    with pytest.raises(UsageError, match="column_block is required with"):
        graphs.build("forward", n=2, d=2, softmax="flash2")
    with pytest.raises(UsageError, match="column_block is required with"):
        graphs.build("forward", n=2, d=2, softmax="late", column_block=1)
    with pytest.raises(UsageError, match="known: L, P, 'P, O', l, m"):
        graphs.build("backward-qkv", n=2, d=2, kept="exp")
    with pytest.raises(UsageError, match="leave out 'kept' and 'centred'"):
        graphs.build("backward", n=2, d=2, order="one-pass", kept=True)
    with pytest.raises(UsageError, match="W_Q and W_K cannot both be absorbed"):
        graphs.build("projected-forward", n=2, d=2, absorbed="W_Q,W_K")
    with pytest.raises(UsageError, match="did you mean 'W_K'"):
        graphs.build("projected-backward-qkv", n=2, d=2, absorbed=("WK",))
    with pytest.raises(UsageError, match="Q, K and V are inputs here"):
        graphs.build("forward", n=2, d=2, absorbed="W_K")
