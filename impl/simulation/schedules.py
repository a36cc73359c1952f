"""Schedules: which of the steps that may run does run, and when.

A schedule is a number. 0 is as late as allowed, 1 as early as allowed; any other decides for each
action from a hash of its name, never from what happened before, so that an op which is taken out
of a trace takes its own decisions with it and leaves all others as they were.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvexact.impl.simulation.actions import Key, Part, Piece, Step

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
        steps: what may run, in the order in which it was queued; never empty.
        needed: those of them that the call waits for or asks about.
        forced: whether the call cannot return before they ran.
        idle: how many queries in a row saw no step run.
        state: equal for two runs whose device is in the same state.
    """

    key: Key
    steps: Sequence[Step]
    needed: Sequence[Step]
    forced: bool
    idle: int
    state: Callable[[], Hashable]

    @property
    def must_run(self) -> bool:
        """Whether a needed step has to run now."""
        return bool(self.needed) and (self.forced or self.idle >= PATIENCE)


def whole(sizes: Sequence[int]) -> list[Part]:
    """All items in one part."""
    return [[Piece(item, 0, size) for item, size in enumerate(sizes) if size]]


class Schedule(ABC):
    """Asked how to take actions apart, and at each point what runs next."""

    #: Whether every action runs within the call that queues it; then nothing is ever asked.
    eager: ClassVar[bool] = False

    def split(self, key: Key, sizes: Sequence[int]) -> list[Part]:  # noqa: ARG002
        """Parts of an action with items of these sizes; each byte in exactly one part."""
        return whole(sizes)

    @abstractmethod
    def choose(self, point: Point) -> Step | None:
        """The step that runs next, or None: the call goes on. Not None where one must run."""


class Late(Schedule):
    """As late as allowed: only what a call waits for runs, in the order it was queued."""

    def choose(self, point: Point) -> Step | None:
        """See `Schedule`."""
        return point.needed[0] if point.must_run else None


class Early(Schedule):
    """As early as allowed. As each action then ends in its own call, the next one never waits."""

    eager = True

    def choose(self, point: Point) -> Step | None:
        """See `Schedule`."""
        return point.steps[0]


#: An action's share of the points at which a step of it runs, in quarters; one of them by hash.
_EAGERNESS = (0, 0, 1, 2, 4)


class Hashed(Schedule):
    """Decides for each action from (seed, op id, ordinal, part)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def split(self, key: Key, sizes: Sequence[int]) -> list[Part]:
        """One to three parts; each item is cut at some byte and its ends go to any parts."""
        count = mixed(self.seed, *key) % 3 + 1
        if count == 1:
            return whole(sizes)
        parts: list[list[Piece]] = [[] for _ in range(count)]
        for item, size in enumerate(sizes):
            choice = mixed(self.seed, *key, item)
            cut = (choice >> 8) % (size + 1)
            for start, end, part in ((0, cut, choice & 15), (cut, size, choice >> 4 & 15)):
                if start < end:
                    parts[part % count].append(Piece(item, start, end))
        return [*parts]

    def choose(self, point: Point) -> Step | None:
        """See `Schedule`."""
        ranks = {step: self._rank(point.key, step) for step in point.steps}
        willing = [step for step, rank in ranks.items() if rank % 4 < self._eagerness(step)]
        if not willing and point.must_run:
            willing = list(point.needed)
        return min(willing, key=ranks.__getitem__, default=None)

    def _rank(self, point: Key, step: Step) -> int:
        return mixed(self.seed, *point, *step.action.key, step.part, step.phase)

    def _eagerness(self, step: Step) -> int:
        return _EAGERNESS[mixed(self.seed, *step.action.key) // 3 % len(_EAGERNESS)]


def schedule(number: int) -> Schedule:
    """The schedule of a number: 0 late, 1 early, else hashed."""
    if number == 0:
        return Late()
    return Early() if number == 1 else Hashed(number)
