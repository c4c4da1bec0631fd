"""The expressions inside Θ of the literature; lower bounds with constants are in `pebblesim.lower_bounds.bounds`."""

from __future__ import annotations

from pebblesim.catalogue.literature import statement
from pebblesim.language.problems import Theta

COMPULSORY = "with n·d added for n ≥ d"


def repaired(title: str, source: str, plus: str = "", rectangle: str = "") -> Theta:
    """Return the repaired form of a statement, with the additional cost of its problem;

    `rectangle` is for n_q ≠ n_k, d_k ≠ d_v.
    """
    expr = statement(title).repaired
    assert expr is not None
    return Theta(expr.replace("d*n + ", f"d*n + {plus}", 1), source, rectangle)


_WORDS = "d_k*n_q + d_k*n_k + d_v*n_k + d_v*n_q"
_CORE = "Min(d_k*d_v*n_q*n_k/M, (d_k + d_v)*n_q*n_k/sqrt(M))"
OF_QKV = f"{_WORDS} + {_CORE}"
OF_LATENT = "(d_v + d_r)*n_q + (d_v + d_r)*n_k + d_v*n_q + Min((d_v + d_r)**2*n_q*n_k/M, (d_v + d_r)*n_q*n_k/sqrt(M))"
OF_BACKWARD = "d*n_q + d*n_k + Min(d**2*n_q*n_k/M, d*n_q*n_k/sqrt(M))"
"""Expressions inside Θ for different numbers of queries and keys, and different widths."""

_ABSORBED = (
    "d*(d_k + d_v)*Min(n_q, n_k)/sqrt(M) + "
    "Min(Min(d, d_k)*Min(d, d_v)*n_q*n_k/M, (Min(d, d_k) + Min(d, d_v))*n_q*n_k/sqrt(M))"
)
OF_PROJECTED = {
    "forward": f"d*n_q + d*n_k + d_v*n_q + {_ABSORBED}",
    "backward-qkv": f"d*n_q + d*n_k + {_WORDS} + {_ABSORBED}",
}
"""With projections, made for the fewer of queries and keys and absorbed for the others; K and V need not be written."""
