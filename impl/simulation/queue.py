"""The device's work: what is pending, and the loop in which the schedule lets it run."""

from collections.abc import Hashable, Sequence
from itertools import filterfalse, repeat

from kvexact.impl.bounds import OutOfBounds
from kvexact.impl.named import made
from kvexact.impl.notes import Did, Note
from kvexact.impl.simulation.actions import END, REST, Action, Key, Order, Step, is_done
from kvexact.impl.simulation.copying import Sides, move
from kvexact.impl.simulation.memory import Memory
from kvexact.impl.simulation.schedules import PATIENCE, Point, Schedule
from kvexact.impl.simulation.work import Work, perform

#: An enum is slow to tell its members.
_STREAM, _DURING_API_CALL = Order.STREAM, Order.DURING_API_CALL

_DID: dict[int, Did] = {0: "read", 1: "written", END: "ended"}


def _nothing() -> Sequence[Step]:
    """What runs at least where nothing is asked for."""
    return ()


class Queue:
    """Pending actions of all streams, oldest first; ``open`` are those that may have steps.

    Attributes:
        is_running: whether a step runs, so that the host must not call anything.
    """

    def __init__(self, memory: Memory, schedule: Schedule, notes: list[Note] | None = None) -> None:
        self.memory = memory
        self._notes = notes
        self.schedule = schedule
        self.split = schedule.split
        self.pending: list[Action] = []
        self.open: list[Action] = []
        self.is_running = False
        self._idle = 0

    def perform(self, items: Sequence[Work], sides: Sides | None) -> None:
        """Do work at once, where nothing is pending. Raises `OutOfBounds`."""
        self.is_running = True
        try:
            if sides is None:
                perform(items, self.memory)
            else:
                move(items, sides)
        finally:
            self.is_running = False

    def submit(self, action: Action) -> None:
        """Queue an action. Time passes. Raises `OutOfBounds`."""
        action.mood = self.schedule.mood(action.key)
        self.pending.append(action)
        if not action.missing or action.order is not _STREAM:
            self.open.append(action)
        if action.order is _DURING_API_CALL:
            self._fetch(action)
        self.let_run(action.key)

    def let_run(self, key: Key) -> None:
        """Time passes: what the schedule wants to run does. Raises `OutOfBounds`."""
        if self.pending and not self.schedule.patient:
            point = made(Point, (key, self.open, _nothing, self.state, False))
            if self._step(point) and not self.schedule.brief:
                self._run(point)

    def ask(self, key: Key, goals: Sequence[Action]) -> bool:
        """Time passes; whether all goals have ended. Raises `OutOfBounds`."""

        def least() -> Sequence[Step]:
            if self._idle < PATIENCE:
                return ()
            oldest = self._with_ancestors(goals)[:1]
            return oldest[0].steps()[:1] if oldest else ()

        if self.pending:
            self._run(Point(key, self.open, least, self.state))
        done = not [goal for goal in goals if not goal.done]
        self._idle += not done
        return done

    def finish(self, key: Key, goals: Sequence[Action]) -> None:
        """Time passes until all goals have ended. Raises `OutOfBounds`."""
        self._finish(key, self._with_ancestors(goals))

    def finish_all(self, key: Key) -> None:
        """Time passes until all that is pending has ended. Raises `OutOfBounds`."""
        self._finish(key, [*self.pending])

    def _finish(self, key: Key, wanted: Sequence[Action]) -> None:
        if not wanted:
            return

        def least() -> Sequence[Step]:
            return [*zip(wanted, repeat(REST))]

        point = made(Point, (key, self.open, least, self.state, True))
        while wanted:
            self._step(point)
            wanted = [*filterfalse(is_done, wanted)]

    def _with_ancestors(self, goals: Sequence[Action]) -> list[Action]:
        """Actions that must end so that all goals have ended, oldest first."""
        waiting = [*filterfalse(is_done, goals)]
        if len(waiting) == 1 and not waiting[0].missing:
            return waiting
        found = {*waiting}
        for action in reversed(self.pending):  # what is before an action was queued before it
            if action in found:
                found.update(action.after)
        return [action for action in self.pending if action in found] if found else []

    def _fetch(self, action: Action) -> None:
        """Time passes until an action's sources are read."""
        point = Point(action.key, self.open, action.reads, self.state, forced=True)
        while not action.is_read():
            self._step(point)

    def _run(self, point: Point) -> None:
        while self.pending and self._step(point):
            pass

    def _step(self, point: Point) -> bool:
        """Let the schedule choose steps and run them; whether it chose any."""
        steps = self.schedule.choose(point)
        if not steps:
            return False
        self._idle = 0
        self.is_running = True
        try:
            for action, part in steps:
                if self._notes is not None:
                    self._note(action, part)
                if part == REST:
                    action.run(self.memory)
                else:
                    action.advance(part, self.memory)
                if action.done:
                    self._remove(action)
        except OutOfBounds as error:  # the call that runs into it is seldom the one that queued it
            raise OutOfBounds(f"{action.what} of op {action.key[0]}: {error}") from error
        finally:
            self.is_running = False
        return True

    def _note(self, action: Action, part: int) -> None:
        """Note what is about to happen."""
        assert self._notes is not None
        self._notes += [
            Note(*action.key, action.what, action.stream, _DID[phase])
            for phase in action.phases_of(part)
        ]

    def _remove(self, action: Action) -> None:
        """An action has ended; what waited for it may be ready."""
        self.pending.remove(action)
        self.open.remove(action)
        for later in action.later:
            later.missing -= 1
            if not later.missing and later.order is _STREAM:
                self.open.append(later)
        # An event that still names it keeps nothing else in memory.
        action.items = action.after = action.parts = ()
        action.later.clear()

    def state(self) -> Hashable:
        """Equal for two runs of a program whose device is in the same state."""
        return self.memory.image(), tuple(action.state() for action in self.pending)
