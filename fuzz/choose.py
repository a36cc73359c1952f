"""Where choices come from. Everything random in a run is drawn through `Chooser.below`."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np

Item = TypeVar("Item")

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_AT_A_TIME = 512


class Chooser(Protocol):
    """A source of choices."""

    def below(self, end: int) -> int:
        """A number from 0 to ``end`` - 1."""
        ...


class Prng:
    """SplitMix64: the same numbers from the same seed on every machine and Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK
        self._words: list[int] = []

    def below(self, end: int) -> int:
        try:
            return (self._words.pop() * end) >> 64
        except IndexError:
            self._refill()
            return self.below(end)

    def _refill(self) -> None:
        """The next words at once: one by one, each costs more than what it decides."""
        steps = np.arange(1, _AT_A_TIME + 1, dtype=np.uint64)
        words = np.uint64(self._state) + steps * np.uint64(_GOLDEN)
        self._state = int(words[-1])
        words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
        self._words = (words ^ (words >> np.uint64(31)))[::-1].tolist()


class Digits:
    """One number read as digits of mixed radix; once it is used up, SplitMix64 seeded with it.

    So one number decides a whole step, at the cost of a division a choice.
    """

    __slots__ = ("_rest", "_state")

    def __init__(self, number: int) -> None:
        self._rest = number
        self._state = number

    def below(self, end: int) -> int:
        if self._rest:
            self._rest, digit = divmod(self._rest, end)
            return digit
        self._state = word = (self._state + _GOLDEN) & _MASK
        word = ((word ^ (word >> 30)) * _FIRST) & _MASK
        word = ((word ^ (word >> 27)) * _SECOND) & _MASK
        return ((word ^ (word >> 31)) * end) >> 64


def pick(chooser: Chooser, items: Sequence[Item]) -> Item:
    """One of the items; the only one costs no choice."""
    count = len(items)
    return items[chooser.below(count) if count > 1 else 0]


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


def sample(chooser: Chooser, items: Iterable[Item], count: int) -> list[Item]:
    """Up to ``count`` different ones of the items, in drawn order."""
    rest, taken = list(items), []
    left = len(rest)
    while count > 0 and left:
        taken.append(rest.pop(chooser.below(left)))
        left -= 1
        count -= 1
    return taken
