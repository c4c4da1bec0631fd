"""pebblesim: a laboratory for the I/O complexity of attention.

>>> import pebblesim as ps
>>> ps.count("small-cache", n=4096, d=64, M=16384).io
244789248
>>> ps.formula("matmul-streamed").peak_words
Min(a, m)*Min(b, n) + Min(a, m) + 1
>>> ps.play("small-cache", n=8, d=4, M=24).game.complete
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pebblesim.advice.advise import Advice, advise
    from pebblesim.claims import verify
    from pebblesim.errors import Infeasible, PebblesimError, TraceError, UsageError
    from pebblesim.game.referee import Game, IllegalMove, referee
    from pebblesim.growth.overtaking import bound_exponent
    from pebblesim.growth.tropical import decide, parse
    from pebblesim.jobs.api import Counted, Played, compare, count, formula, graph, numbers, optimum, play, show
    from pebblesim.jobs.bounding import Bounds, Gaps, bounds, gaps
    from pebblesim.jobs.crossings import Crossing, Crossover, crossover
    from pebblesim.jobs.recording import Recording, record
    from pebblesim.jobs.sweeps import sweep
    from pebblesim.language import (
        Block,
        Index,
        Machine,
        Tensor,
        Tile,
        exp,
        log,
        maximum,
        relu,
        rowmax,
        rowsum,
        sigmoid,
        step,
    )
    from pebblesim.language.registry import Schedule, schedule
    from pebblesim.sparsity.backward import backlite
    from pebblesim.sparsity.inputs import load_head, synthetic_head
    from pebblesim.sparsity.result import BackLite

# Loaded when first used: some of these bring numpy or sympy, which a cold start must not pay for.
_HOME = {
    "claims": ("verify",),
    "jobs.crossings": ("Crossing", "Crossover", "crossover"),
    "jobs.api": ("Counted", "Played", "compare", "count", "formula", "graph", "numbers", "optimum", "play", "show"),
    "jobs.bounding": ("Bounds", "Gaps", "bounds", "gaps"),
    "errors": ("Infeasible", "PebblesimError", "TraceError", "UsageError"),
    "game.referee": ("Game", "IllegalMove", "referee"),
    "language": (
        "Block",
        "Index",
        "Machine",
        "Tensor",
        "Tile",
        "exp",
        "log",
        "maximum",
        "relu",
        "rowmax",
        "rowsum",
        "sigmoid",
        "step",
    ),
    "growth.overtaking": ("bound_exponent",),
    "jobs.recording": ("Recording", "record"),
    "language.registry": ("Schedule", "schedule"),
    "growth.tropical": ("decide", "parse"),
    "advice.advise": ("Advice", "advise"),
    "jobs.sweeps": ("sweep",),
    "sparsity.backward": ("backlite",),
    "sparsity.inputs": ("load_head", "synthetic_head"),
    "sparsity.result": ("BackLite",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Advice",
    "BackLite",
    "Block",
    "Bounds",
    "Counted",
    "Crossing",
    "Crossover",
    "Game",
    "Gaps",
    "IllegalMove",
    "Index",
    "Infeasible",
    "Machine",
    "PebblesimError",
    "Played",
    "Recording",
    "Schedule",
    "Tensor",
    "Tile",
    "TraceError",
    "UsageError",
    "advise",
    "backlite",
    "bound_exponent",
    "bounds",
    "compare",
    "count",
    "crossover",
    "decide",
    "exp",
    "formula",
    "gaps",
    "graph",
    "load_head",
    "log",
    "maximum",
    "numbers",
    "optimum",
    "parse",
    "play",
    "record",
    "referee",
    "relu",
    "rowmax",
    "rowsum",
    "schedule",
    "show",
    "sigmoid",
    "step",
    "sweep",
    "synthetic_head",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'pebblesim' has no attribute {name!r}")
    return getattr(import_module(f"pebblesim.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
