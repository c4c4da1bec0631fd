"""Cards by name: `from pebblesim.gpu.advice.cards import card`."""

from pebblesim.advice.cards import Card, card, cards, from_file

__all__ = ["Card", "card", "cards", "from_file"]
