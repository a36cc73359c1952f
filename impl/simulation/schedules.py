"""Schedules: which of the steps that may run does run, and when.

A schedule is a number. 0 is as late as allowed, 1 as early as allowed; any other decides for each
action from a hash of its name, never from what happened before, so that an op which is taken out
of a trace takes its own decisions with it and leaves all others as they were.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import ClassVar, NamedTuple

from kvexact.impl.named import made
from kvexact.impl.simulation.actions import REST, Action, Key, Part, Piece, Step

#: A device makes progress: this many queries in a row may see none.
PATIENCE = 4

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
#: Makes the hash of a call another one than the mood of its action.
_HERE = 0xD1342543DE82EF95
_BLEND = 0xD6E8FEB86659FD93
#: As many bits as decide about one action; numbers of no more are quick.
_LOW = (1 << 30) - 1

_choice = itemgetter(0)


def mixed(*numbers: int) -> int:
    """A hash of 64 bits that is the same everywhere (the steps of splitmix64)."""
    state = 0
    for number in numbers:
        state = _stirred(state, number)
    return state


def _stirred(state: int, number: int) -> int:
    """The hash of some numbers, and one more number."""
    state = (state + _STEP + number) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def _blend(one: int, other: int) -> int:
    """48 bits that follow from two numbers of which one is a hash."""
    return ((one ^ other) * _BLEND & _MASK) >> 16


class Point(NamedTuple):
    """A moment at which steps may run: within a call, or before it returns.

    Attributes:
        key: the call.
        open: pending actions that may have steps to run; never empty.
        least: steps that lead on, in this order, where one has to run; none where none has to.
        state: equal for two runs whose device is in the same state.
        forced: whether the call cannot return before ``least`` are none.
    """

    key: Key
    open: Sequence[Action]
    least: Callable[[], Sequence[Step]]
    state: Callable[[], Hashable]
    forced: bool = False

    def steps(self) -> Iterator[Step]:
        """What may run now."""
        for action in self.open:
            yield from action.steps()


def whole(sizes: Sequence[int]) -> list[Part]:
    """All items in one part."""
    pieces = [made(Piece, (item, 0, size)) for item, size in enumerate(sizes) if size]
    return [pieces] if pieces else []


class Schedule(ABC):
    """Asked how to take actions apart, and at each point what runs next."""

    #: Whether every action runs within the call that queues it; then nothing is ever asked.
    eager: ClassVar[bool] = False
    #: Whether nothing runs in a call that neither waits nor asks; then nothing is asked there.
    patient: ClassVar[bool] = False
    #: Whether in such a call it chooses once, and nothing more would run if it were asked again.
    brief: ClassVar[bool] = False

    def split(self, key: Key, sizes: Sequence[int]) -> list[Part]:  # noqa: ARG002
        """Parts of an action, none empty, with each byte of items of these sizes in one of them."""
        return whole(sizes)

    def mood(self, key: Key) -> int:  # noqa: ARG002
        """A number that is kept with an action, for its choices."""
        return 0

    def lingers(self, key: Key) -> bool:  # noqa: ARG002
        """Whether a record or a wait ends at a step of its own, not with what it comes after."""
        return False

    @abstractmethod
    def choose(self, point: Point) -> Sequence[Step]:
        """The steps that run next, in this order; then it is asked again. Empty: the call goes on.

        A step that may run still may after others have. One at least where one must run.
        """


class Late(Schedule):
    """As late as allowed: only what a call waits for runs, in the order it was queued."""

    patient = True

    def choose(self, point: Point) -> Sequence[Step]:
        """See `Schedule`."""
        return point.least()


class Early(Schedule):
    """As early as allowed. As each action then ends in its own call, the next one never waits."""

    eager = True

    def choose(self, point: Point) -> Sequence[Step]:
        """See `Schedule`."""
        return [*point.steps()]


class Hashed(Schedule):
    """Decides for each action from (seed, op id, ordinal, part)."""

    brief = True

    def __init__(self, seed: int) -> None:
        self._of_op = cache(partial(_stirred, mixed(seed)))  # `mixed` of the seed and an op
        #: The name that was asked about last, as it mostly is again, and its hash.
        self._asked, self._mood_of_it = (-1, -1), 0
        self._passed: Point | None = None

    def split(self, key: Key, sizes: Sequence[int]) -> list[Part]:
        """One to three parts; each item is cut at some byte and its ends go to any parts."""
        mood = self.mood(key)
        count = (mood >> 32) % 3 + 1
        if count == 1:
            return whole(sizes)
        parts: list[list[Piece]] = [[] for _ in range(count)]
        for item, size in enumerate(sizes):
            choice = _blend(mood, item * _STEP)
            cut = (choice >> 8) % (size + 1)
            if cut:
                parts[(choice & 15) % count].append(made(Piece, (item, 0, cut)))
            if cut < size:
                parts[(choice >> 4 & 15) % count].append(made(Piece, (item, cut, size)))
        return [part for part in parts if part]

    def lingers(self, key: Key) -> bool:
        """See `Schedule`. A fifth does."""
        return not self.mood(key) % 5

    def choose(self, point: Point) -> Sequence[Step]:
        """See `Schedule`. Within a call actions go on once, and before all that it waits for."""
        if point is self._passed:
            self._passed = None
            return point.least()[:1]
        here = self.mood(point.key) * _HERE & _MASK
        chosen = []
        for action in point.open:
            mood = action.mood
            # A fifth of the actions never run before they must, a fifth at every point.
            if eager := mood % 5:
                choice = ((here ^ mood) * _BLEND & _MASK) >> 16  # without a call
                if choice % 4 < eager:
                    chosen.append((choice, action))
        if not chosen:
            return point.least()[:1]
        chosen.sort(key=_choice)
        steps: list[Step] = []
        for choice, action in chosen:
            _some(action, choice >> 2 & _LOW, steps)
        if steps:
            self._passed = point
        return steps or point.least()[:1]

    def mood(self, key: Key) -> int:
        """See `Schedule`: the hash of its name."""
        if key is not self._asked:
            self._asked, self._mood_of_it = key, _stirred(self._of_op(key[0]), key[1])
        return self._mood_of_it


def _some(action: Action, choice: int, steps: list[Step]) -> None:
    """Add some of an action's steps: of a quarter of them all, of others some.

    Those are all of half of the parts, one of a quarter, none of the rest.
    """
    if not choice >> 28 and not (action.missing and action.is_read()):  # no progress else (G1)
        steps.append((action, REST))
        return
    some: list[Step] = []
    is_all = not action.missing and choice >> 1 & 3 > 0
    bits = choice >> 3
    for part, left in enumerate(action.left()):
        much = bits & 3
        bits >>= 2
        if much > 1 or much >= left:
            much = left
        else:
            is_all = False
        if much:
            some += ((action, part),) * much
    steps += [(action, REST)] if is_all else some


def schedule(number: int) -> Schedule:
    """The schedule of a number: 0 late, 1 early, else hashed."""
    if number == 0:
        return Late()
    return Early() if number == 1 else Hashed(number)
