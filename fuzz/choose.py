"""Where choices come from. Everything random in a run is drawn through `Chooser.below`."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")

_MASK = 2**64 - 1


class Chooser(Protocol):
    """A source of choices."""

    def below(self, end: int) -> int:
        """A number from 0 to ``end`` - 1; lower ones are simpler."""
        ...


class Prng:
    """SplitMix64: the same numbers from the same seed on every machine and Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, end: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        word = self._state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((word ^ (word >> 31)) * end) >> 64


class Digits:
    """One number read as digits of mixed radix; once it is used up, noise that it seeds.

    So one drawn integer decides a whole step, and a lower integer makes a simpler one.
    """

    def __init__(self, number: int) -> None:
        self._rest = number
        self._noise = Prng(number)

    def below(self, end: int) -> int:
        if not self._rest:
            return self._noise.below(end)
        self._rest, digit = divmod(self._rest, end)
        return digit


def pick(chooser: Chooser, items: Sequence[Item]) -> Item:
    """One of the items."""
    return items[chooser.below(len(items))]


def chance(chooser: Chooser, percent: int) -> bool:
    """True in this many cases of a hundred."""
    return chooser.below(100) >= 100 - percent


def weighted(chooser: Chooser, weights: Sequence[int]) -> int:
    """An index, as often as its weight says."""
    place = chooser.below(sum(weights))
    for index, weight in enumerate(weights):
        if place < weight:
            return index
        place -= weight
    raise AssertionError("weights changed while drawing")


def sample(chooser: Chooser, items: Sequence[Item], count: int) -> list[Item]:
    """Up to ``count`` different ones of the items, in drawn order."""
    rest = list(items)
    return [rest.pop(chooser.below(len(rest))) for _ in range(min(count, len(rest)))]
