"""Schedules: which of the steps that may run does run, and when.

A schedule is a number. 0 is as late as allowed, 1 as early as allowed; any other decides for each
action from a hash of its name, never from what happened before, so that an op which is taken out
of a trace takes its own decisions with it and leaves all others as they were.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from kvexact.impl.simulation.actions import Action, Key, Part, Piece, Step

#: A device makes progress: this many queries in a row may see none.
PATIENCE = 4

_MASK = (1 << 64) - 1


def mixed(*numbers: int) -> int:
    """A hash of 64 bits that is the same everywhere (the steps of splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + 0x9E3779B97F4A7C15 + number) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


@dataclass(frozen=True, slots=True)
class Point:
    """A moment at which steps may run: within a call, or before it returns.

    Attributes:
        key: the call.
        pending: actions that have not ended, oldest first; never empty.
        goals: the steps that the call waits for or asks about, found when they are asked for.
        forced: whether the call cannot return before they ran.
        idle: how many queries in a row saw no step run.
        state: equal for two runs whose device is in the same state.
    """

    key: Key
    pending: Sequence[Action]
    goals: Callable[[], Iterator[Step]]
    forced: bool
    idle: int
    state: Callable[[], Hashable]

    def steps(self) -> Iterator[Step]:
        """What may run now, in the order in which it was queued."""
        for action in self.pending:
            yield from action.steps()

    def must(self) -> Iterator[Step]:
        """Steps of which one has to run now; none where the call may go on."""
        if self.forced or self.idle >= PATIENCE:
            yield from self.goals()


def whole(sizes: Sequence[int]) -> list[Part]:
    """All items in one part."""
    pieces = [Piece(item, 0, size) for item, size in enumerate(sizes) if size]
    return [pieces] if pieces else []


class Schedule(ABC):
    """Asked how to take actions apart, and at each point what runs next."""

    #: Whether every action runs within the call that queues it; then nothing is ever asked.
    eager: ClassVar[bool] = False

    def split(self, key: Key, sizes: Sequence[int]) -> list[Part]:  # noqa: ARG002
        """Parts of an action, none empty, with each byte of items of these sizes in one of them."""
        return whole(sizes)

    @abstractmethod
    def choose(self, point: Point) -> Sequence[Step]:
        """The steps that run next, in this order; then it is asked again. Empty: the call goes on.

        A step that may run still may after others have. One at least where one must run.
        """


class Late(Schedule):
    """As late as allowed: only what a call waits for runs, in the order it was queued."""

    def choose(self, point: Point) -> Sequence[Step]:
        """See `Schedule`."""
        return [*islice(point.must(), 1)]


class Early(Schedule):
    """As early as allowed. As each action then ends in its own call, the next one never waits."""

    eager = True

    def choose(self, point: Point) -> Sequence[Step]:
        """See `Schedule`."""
        return [*point.steps()]


class Hashed(Schedule):
    """Decides for each action from (seed, op id, ordinal, part)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._moods: dict[Key, int] = {}

    def split(self, key: Key, sizes: Sequence[int]) -> list[Part]:
        """One to three parts; each item is cut at some byte and its ends go to any parts."""
        count = (self._mood(key) >> 32) % 3 + 1
        if count == 1:
            return whole(sizes)
        parts: list[list[Piece]] = [[] for _ in range(count)]
        for item, size in enumerate(sizes):
            choice = mixed(self.seed, *key, item)
            cut = (choice >> 8) % (size + 1)
            for start, end, part in ((0, cut, choice & 15), (cut, size, choice >> 4 & 15)):
                if start < end:
                    parts[part % count].append(Piece(item, start, end))
        return [part for part in parts if part]

    def choose(self, point: Point) -> Sequence[Step]:
        """See `Schedule`."""
        here = mixed(*point.key, self.seed)  # another order of these than in a mood
        ranks: dict[Step, int] = {}
        for action in point.pending:
            for step in action.steps():
                mood = self._mood(action.key)
                rank = mixed(here ^ mood, _code(step))
                # A fifth of the actions never run before they must, a fifth at every point.
                if rank % 4 < mood % 5:
                    ranks[step] = rank
        if not ranks:
            return [*islice(point.must(), 1)]
        return sorted(ranks, key=ranks.__getitem__)

    def _mood(self, key: Key) -> int:
        if key not in self._moods:
            self._moods[key] = mixed(self.seed, *key)
        return self._moods[key]


def _code(step: Step) -> int:
    """A number of its own for each step of an action."""
    return step.part << 2 | step.phase & 3


def schedule(number: int) -> Schedule:
    """The schedule of a number: 0 late, 1 early, else hashed."""
    if number == 0:
        return Late()
    return Early() if number == 1 else Hashed(number)
