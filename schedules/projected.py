"""The attention module: the projections Q = A1 W_Q, K = A2 W_K, V = A3 W_V of Def. 3.1, then a schedule on Q, K, V.

Each schedule of the problems `forward` and `backward-qkv` is composed with the projections. So the I/O of the module
can be compared with the I/O of its core.
"""

import inspect

from pebblesim.language.registry import of_problem, schedule
from pebblesim.schedules import (  # noqa: F401 - what is composed
    backward_qkv,
    flash_forward,
    forward,
    kept_probabilities,
    resident,
    standard,
    stored_pairs,
)
from pebblesim.schedules.matmul import gemm_resident, resident as resident_words

PROJECTIONS = {"Q": ("A1", "W_Q"), "K": ("A2", "W_K"), "V": ("A3", "W_V")}
MADE = " + ".join(resident_words(n, "d", width, "w") for n, width in (("n_q", "d_k"), ("n_k", "d_k"), ("n_k", "d_v")))
"""Words of the projections."""


def sign(module, inputs, blocks):
    """Give a function that takes any inputs and blocks the signature of a schedule with these."""
    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    module.__signature__ = inspect.Signature(
        [inspect.Parameter(name, positional) for name in ("machine", *inputs)]
        + [inspect.Parameter(name, keyword) for name in blocks]
    )


def run(core, m, arguments, blocks):
    """Run a schedule as a phase of another one, or as its phases, if it has several."""
    if core.program.phases[0].name != core.name:
        core.function(m, *arguments, **blocks)
    else:
        with m.phase("core"):
            core.function(m, *arguments, **blocks)


def compose(core):
    """Register the module of a schedule on Q, K, V. The block w is the number of resident columns of a weight."""
    others = [name for name in core.inputs if name not in PROJECTIONS]

    def module(m, *tensors, w, **blocks):
        operands = dict(zip(inputs, tensors, strict=True))
        for name, (source, weight) in PROJECTIONS.items():
            with m.phase(f"{name} = {source} {weight}"):
                operands[name] = m.tensor(name, operands[source].shape[0], operands[weight].shape[1])
                gemm_resident(m, operands[name], operands[source], operands[weight], w)
        run(core, m, [operands[name] for name in core.inputs], blocks)

    inputs = [*(name for pair in zip(*PROJECTIONS.values(), strict=True) for name in pair), *others]
    sign(module, inputs, ("w", *core.blocks))
    module.__doc__ = f"Projections, then {core.name}."
    schedule(
        name=f"projected-{core.name}",
        problem=f"projected-{core.problem.name}",
        source=f"projections, then {core.source}",
        known_as=core.known_as,
        io=f"{MADE} + {core.rectangle_io}",
        paper={"w": "floor(M/(d + 1))", **core.paper} if core.paper else None,
        fit=["w", *core.fit],
        graph=core.graph,
    )(module)


for each in (*of_problem("forward"), *of_problem("backward-qkv")):
    if "C" not in each.blocks:  # rows cut for a workspace: the words of the core, and a few more
        compose(each)
