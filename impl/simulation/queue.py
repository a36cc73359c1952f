"""The device's work: what is pending, and the loop in which the schedule lets it run."""

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter

from kvexact.impl.notes import Did, Note
from kvexact.impl.simulation.actions import END, Action, Key, Order, Step
from kvexact.impl.simulation.memory import Memory
from kvexact.impl.simulation.schedules import Point, Schedule
from kvexact.impl.simulation.work import Work, perform, size
from kvexact.impl.target import OutOfBounds

_Goals = Callable[[], Iterator[Sequence[Step]]]


def _with_ancestors(goals: Iterable[Action]) -> list[Action]:
    """Actions that must end so that all goals have ended, in no order."""
    found: set[Action] = set()
    waiting = [*goals]
    while waiting:
        action = waiting.pop()
        if action not in found and not action.done:
            found.add(action)
            waiting += action.after
    return [*found]


def _note(step: Step) -> Note:
    """What a step is about to do."""
    did: Did = "ended" if step.phase == END else "read" if step.phase == 0 else "written"
    return Note(*step.action.key, step.action.what, step.action.stream, did)


_number = attrgetter("number")


class Queue:
    """Pending actions of all streams, oldest first; ``open`` are those that may have steps."""

    def __init__(self, memory: Memory, schedule: Schedule, notes: list[Note] | None = None) -> None:
        self.memory = memory
        self._notes = notes
        self.schedule = schedule
        self.pending: list[Action] = []
        self.open: list[Action] = []
        self._queued = 0
        self._idle = 0
        self._is_running = False

    def perform(self, items: Sequence[Work]) -> None:
        """Do work at once, where nothing is pending. Raises `OutOfBounds`."""
        self._is_running = True
        try:
            perform(items, self.memory)
        finally:
            self._is_running = False

    def submit(
        self,
        key: Key,
        what: str,
        items: Sequence[Work],
        after: tuple[Action, ...],
        order: Order = Order.STREAM,
        stream: str = "",
    ) -> Action:
        """Queue an action. Time passes. Raises `OutOfBounds`."""
        parts = self.schedule.split(key, [size(item) for item in items]) if items else []
        self._queued += 1
        action = Action(key, what, items, parts, after, order, stream, self._queued)
        self.pending.append(action)
        if action.may_run():
            self.open.append(action)
        if order is Order.DURING_API_CALL:
            self._fetch(action)
        self.let_run(key)
        return action

    def let_run(self, key: Key) -> None:
        """Time passes: what the schedule wants to run does. Raises `OutOfBounds`."""
        self.ask(key, ())

    def ask(self, key: Key, goals: Sequence[Action]) -> bool:
        """Time passes; whether all goals have ended. Raises `OutOfBounds`."""
        find = self._steps_to(goals)
        while self.pending and self._step(key, find, forced=False):
            pass
        done = all(goal.done for goal in goals)
        self._idle += not done
        return done

    def finish(self, key: Key, goals: Sequence[Action]) -> None:
        """Time passes until all goals have ended. Raises `OutOfBounds`."""
        find = self._steps_to(goals)
        while not all(goal.done for goal in goals):
            self._step(key, find, forced=True)

    def _fetch(self, action: Action) -> None:
        """Time passes until an action's sources are read."""

        def find() -> Iterator[Sequence[Step]]:
            yield [step for step in action.steps() if step.phase == 0]

        while not action.is_read():
            self._step(action.key, find, forced=True)

    def _steps_to(self, goals: Sequence[Action]) -> _Goals:
        """A function that finds steps which may run now and lead to these goals."""
        wanted: list[Action] = []

        def find() -> Iterator[Sequence[Step]]:
            if not wanted:
                found = _with_ancestors(goals)
                wanted.extend(sorted(found, key=_number))
            for action in wanted:
                if not action.done and (steps := action.rest()):
                    yield steps

        return find

    def _step(self, key: Key, goals: _Goals, *, forced: bool) -> bool:
        """Let the schedule choose steps and run them; whether it chose any."""
        point = Point(key, self.open, goals, forced, self._idle, self.state)
        steps = self.schedule.choose(point)
        if not steps:
            return False
        self._idle = 0
        self._is_running = True
        try:
            for action, part in steps:
                if self._notes is not None:
                    self._notes.append(_note(Step(action, part)))
                action.advance(part, self.memory)
                if action.done:
                    self._remove(action)
        except OutOfBounds as error:  # the call that runs into it is seldom the one that queued it
            raise OutOfBounds(f"{action.what} of op {action.key[0]}: {error}") from error
        finally:
            self._is_running = False
        return True

    def _remove(self, action: Action) -> None:
        """An action has ended; what waited for it may be ready."""
        self.pending.remove(action)
        self.open.remove(action)
        for ready in action.release():
            if ready.order is Order.STREAM:
                insort(self.open, ready, key=_number)

    def require_host(self) -> None:
        """Raise `RuntimeError` within a host function or a task, which may call nothing here."""
        if self._is_running:
            raise RuntimeError("a host function or a task called the simulation")

    def state(self) -> Hashable:
        """Equal for two runs of a program whose device is in the same state."""
        return self.memory.image(), tuple(action.state() for action in self.pending)
