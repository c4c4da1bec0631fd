"""Mathematical signs in ASCII, for a terminal whose encoding lacks them: n² becomes n^2, ⌈x⌉ becomes ceil(x)."""

from __future__ import annotations

import codecs
import re
import unicodedata
from typing import Final

PLAIN: Final = "pebblesim.cli.ascii_fallback"
"""Name of the error handler for encoding that does this; importing this module registers it."""

RAISED: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ", "0123456789-T")

SIGNS: Final = {
    "⌈": "ceil(", "⌉": ")", "⌊": "floor(", "⌋": ")", "√": "sqrt", "·": "*", "∘": ".*", "×": "x", "÷": "/", "−": "-",
    "∞": "inf", "≤": "<=", "≥": ">=", "≠": "!=", "≪": "<<", "≫": ">>", "≈": "~", "←": "<-", "→": "->", "∈": "in",
    "Θ": "Theta", "Ω": "Omega", "Σ": "sum", "ε": "epsilon", "α": "alpha", "β": "beta", "–": "-", "—": "-", "…": "...",
    "─": "-", "’": "'", "‘": "'", "“": '"', "”": '"', "§": "section ",
}  # fmt: skip


def plain(text: str) -> str:
    """Return the text in ASCII; a sign without an ASCII form becomes a question mark.

    >>> plain("9n²⌈d/B⌉ + 4nd⌈d/B⌉, diag(l)⁻¹ A1ᵀ")
    '9n^2*ceil(d/B) + 4nd*ceil(d/B), diag(l)^-1 A1^T'
    >>> plain("Stöckel")
    'Stockel'
    """
    text = re.sub(r"(?<=[\w)⌉⌋])(?=[⌈⌊√])", "*", text)  # a product without a sign
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ]+", lambda match: "^" + match[0].translate(RAISED), text)
    text = "".join(SIGNS.get(letter, letter) for letter in text)
    letters = (letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return "".join(letters).encode("ascii", "replace").decode()


def _handle(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    before = error.object[max(0, error.start - 1) : error.start]  # which is plain itself
    return plain(before + error.object[error.start : error.end])[len(before) :], error.end


codecs.register_error(PLAIN, _handle)
