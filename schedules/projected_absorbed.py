"""The attention module with weights absorbed, for few queries, as in decoding, or for few keys.

DeepSeek-AI 2024 (arXiv 2405.04434, section 2.1) absorb weights of keys and values into queries and outputs: scores are
(Q W_Kᵀ) A2ᵀ, and O = (P A3) W_V. So A2 and A3, with a row for each key, are read as they are, and neither K nor V is
written. For few keys, W_Q is absorbed into the keys: scores are A1 (K W_Qᵀ)ᵀ.
"""

import re

from pebblesim.language import exp
from pebblesim.language.registry import get, schedule
from pebblesim.schedules import flash_forward, forward, partly_resident  # noqa: F401 - what gets other operands
from pebblesim.schedules.matmul import gemm_streamed, streamed
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.projected import PROJECTIONS, run, sign
from pebblesim.schedules.row_sums import add_row_sums

SCORES = {
    "": (("Q", "A1", "W_Q"), ("K", "A2", "W_K")),
    "W_K": (("Q", "A1", "W_Q"), ("QW", "Q", "W_Kᵀ")),
    "W_Q": (("K", "A2", "W_K"), ("KW", "K", "W_Qᵀ")),
}
"""The products (result, left, right) before the scores, by the weight that is absorbed, if one is."""

OPERANDS = {"": ("Q", "K"), "W_K": ("QW", "A2"), "W_Q": ("A1", "KW")}
"""The operands whose rows are multiplied to scores."""

SIZES = {"Q": ("n_q", "d", "d_k"), "K": ("n_k", "d", "d_k"), "V": ("n_k", "d", "d_v")}
SIZES |= {"QW": ("n_q", "d_k", "d"), "KW": ("n_k", "d_k", "d"), "O": ("n_q", "d", "d_v")}
"""Rows, terms and columns of each product."""


class OfInputs:
    """The machine, for a core whose values are A3: its output is PA = P A3, not O."""

    def __init__(self, m):
        self.m, self.PA = m, None

    def tensor(self, name, *shape):
        """Declare a tensor in memory; the core calls PA its O."""
        made = self.m.tensor("PA" if name == "O" else name, *shape)
        if name == "O":
            self.PA, made.name = made, name
        return made

    def __getattr__(self, name):
        return getattr(self.m, name)


def multiply(m, tensors, name, left, right, a, b):
    """Compute left right in memory, in a phase of its own; a right operand with ᵀ is transposed."""
    weight, transposed = tensors[right.removesuffix("ᵀ")], right.endswith("ᵀ")
    with m.phase(f"{name} = {left} {right}"):
        tensors[name] = m.tensor(name, tensors[left].shape[0], weight.shape[0 if transposed else 1])
        gemm_streamed(m, tensors[name], tensors[left], weight, a, b, B_T=transposed)


def absorb(name, core, *weights):
    """Register a forward schedule around which these weights are absorbed; products make a_w x b_w tiles."""
    of_scores, of_values = next((weight for weight in weights if weight in SCORES), ""), "W_V" in weights
    before = [*SCORES[of_scores], *([] if of_values else [("V", "A3", "W_V")])]
    inputs = [each for pair in zip(*PROJECTIONS.values(), strict=True) for each in pair]

    def module(m, *given, a_w, b_w, **blocks):
        tensors = dict(zip(inputs, given, strict=True))
        for each in before:
            multiply(m, tensors, *each, a_w, b_w)
        operands = [tensors[each] for each in (*OPERANDS[of_scores], "A3" if of_values else "V")]
        if not of_values:
            run(core, m, operands, blocks)
            return
        around = OfInputs(m)
        run(core, around, operands, blocks)
        multiply(m, tensors | {"PA": around.PA}, "O", "PA", "W_V", a_w, b_w)

    sign(module, inputs, (*core.blocks, "a_w", "b_w"))
    module.__doc__ = f"{core.name} with {' and '.join(weights)} absorbed."
    widths = dict.fromkeys(["d_k"] if of_scores else [], "d") | dict.fromkeys(["d_v"] if of_values else [], "d")
    words = [streamed(*SIZES[each], "a_w", "b_w") for each, _, _ in before] + of_values * [
        streamed(*SIZES["O"], "a_w", "b_w")
    ]
    schedule(
        name=name,
        problem="projected-forward",
        source=f"absorbed as in DeepSeek-AI 2024, section 2.1; then {core.source}",
        known_as="DeepSeek-AI 2024",
        io=" + ".join([*words, re.sub(r"\bd_[kv]\b", lambda found: widths.get(found[0], found[0]), core.rectangle_io)]),
        fit=[*core.fit, ("a_w", "b_w")],
        graph={**core.graph, "absorbed": weights},
    )(module)


for prefix, absorbed in {
    "absorbed": ("W_K", "W_V"),
    "keys-absorbed": ("W_K",),
    "values-absorbed": ("W_V",),
    "queries-absorbed": ("W_Q",),
}.items():
    absorb(f"{prefix}-row-stationary-forward", get("row-stationary-forward"), *absorbed)
absorb("queries-absorbed-keys-partly-resident-forward", get("keys-partly-resident-forward"), "W_Q")
for each in ("flash2-forward", "small-cache-forward-streamed"):
    absorb(f"absorbed-{each}", get(each), "W_K", "W_V")


@schedule(
    problem="projected-backward-qkv",
    source="ours: queries-resident with W_K and W_V absorbed",
    io=(
        " + ".join(
            streamed(*sizes, "a_w", "b_w") for sizes in (SIZES["Q"], SIZES["QW"], ("n_q", "d_v", "d"), SIZES["Q"])
        )
        + " + 2*n_q*d_v + n_q*d_k + 3*n_q*d + n_q + 2*n_k*d + n_k*(d_k + d_v)"
    ),
    fit=[("a_w", "b_w")],
    graph={"kept": "l", "absorbed": ("W_K", "W_V")},
)
def queries_resident_absorbed(m, A1, W_Q, A2, W_K, A3, W_V, dO, O, l, *, a_w, b_w):
    """Queries resident, absorbed: little more than the compulsory words, with n_q(3d + d_k + d_v) of cache and more."""
    (n_q, d), (n_k, _), d_k, d_v = A1.shape, A2.shape, W_K.shape[1], W_V.shape[1]
    Q, QW, dOW, dSA2 = (
        m.tensor("Q", n_q, d_k),
        m.tensor("QW", n_q, d),
        m.tensor("dOW", n_q, d),
        m.tensor("dSA2", n_q, d),
    )
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)

    in_phase(gemm_streamed, m, Q, A1, W_Q, a_w, b_w)
    in_phase(gemm_streamed, m, QW, Q, W_K, a_w, b_w, B_T=True)
    in_phase(gemm_streamed, m, dOW, dO, W_V, a_w, b_w, B_T=True)

    with m.phase("dK, dV, dSA2"):
        dO_, v_ = m.read(dO), m.zeros(n_q)
        add_row_sums(m, v_, dO_, O)
        Q_, QW_, dOW_, l_, dSA2_ = m.read(Q), m.read(QW), m.read(dOW), m.read(l), m.zeros(n_q, d)
        for j in m.tiles(n_k, 1, keys_of=n_q, otherwise={dK: 0, dV: 0}):
            A2_j, A3_j, dK_j, dV_j = m.read(A2[j, :]), m.read(A3[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
            for i in m.tiles(n_q, 1, queries_of=j):
                P = m.compute(QW_[i, :] @ A2_j.T)
                P[:] = exp(P) / l_[i]
                dV_j += P.T @ dO_[i, :]
                dS = m.compute(dOW_[i, :] @ A3_j.T)  # dP
                dS[:] = P * (dS - v_[i])
                dK_j += dS.T @ Q_[i, :]
                dSA2_[i, :] += dS @ A2_j
            m.write(dK[j, :], dK_j)
            m.write(dV[j, :], dV_j)
        m.write(dSA2, dSA2_)

    in_phase(gemm_streamed, m, dQ, dSA2, W_K, a_w, b_w)
