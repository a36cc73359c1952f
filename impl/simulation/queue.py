"""The device's work: what is pending, and the loop in which the schedule lets it run."""

from collections.abc import Hashable, Iterable, Sequence

from kvexact.impl.simulation.actions import Action, Key, Order, Step
from kvexact.impl.simulation.memory import Memory
from kvexact.impl.simulation.schedules import Point, Schedule
from kvexact.impl.simulation.work import Work, perform, size


def _with_ancestors(goals: Iterable[Action]) -> set[Action]:
    """Actions that must end so that all goals have ended."""
    found: set[Action] = set()
    waiting = [goal for goal in goals if not goal.done]
    while waiting:
        action = waiting.pop()
        if action not in found:
            found.add(action)
            waiting += [before for before in action.after if not before.done]
    return found


class Queue:
    """Pending actions of all streams, oldest first."""

    def __init__(self, memory: Memory, schedule: Schedule) -> None:
        self.memory = memory
        self.schedule = schedule
        self.pending: list[Action] = []
        self._idle = 0
        self._is_running = False

    def submit(
        self,
        key: Key,
        what: str,
        items: Sequence[Work],
        after: tuple[Action, ...],
        order: Order = Order.STREAM,
    ) -> Action | None:
        """Queue an action; None where it has already ended.

        Raises:
            OutOfBounds: a step that ran meanwhile would have left registered memory.
        """
        if self.schedule.eager:
            self._guarded_perform(items)
            return None
        parts = self.schedule.split(key, [size(item) for item in items]) if items else []
        action = Action(key, what, items, [part for part in parts if part], after, order)
        self.pending.append(action)
        if order is Order.DURING_API_CALL:
            self._fetch(action)
        self.let_run(key)
        return None if action.done else action

    def let_run(self, key: Key) -> None:
        """Time passes: what the schedule wants to run does."""
        self._run(key, (), forced=False)

    def ask(self, key: Key, goals: Sequence[Action]) -> bool:
        """Time passes; whether all goals have ended."""
        if not self._run(key, goals, forced=False):
            self._idle += 1
        return all(goal.done for goal in goals)

    def finish(self, key: Key, goals: Sequence[Action]) -> None:
        """Time passes until all goals have ended."""
        self._run(key, goals, forced=True)

    def _run(self, key: Key, goals: Sequence[Action], *, forced: bool) -> bool:
        """Let steps run; whether one did."""
        ran = False
        while self.pending and not (forced and all(goal.done for goal in goals)):
            wanted = _with_ancestors(goals)
            steps = [step for action in self.pending for step in action.steps()]
            needed = [step for step in steps if step.action in wanted]
            if not self._step(key, steps, needed, forced=forced):
                break
            ran = True
        return ran

    def _fetch(self, action: Action) -> None:
        """Time passes until an action's sources are read."""
        while not action.is_read():
            steps = [step for one in self.pending for step in one.steps()]
            needed = [step for step in steps if step.action is action and step.phase == 0]
            self._step(action.key, steps, needed, forced=True)

    def _step(
        self, key: Key, steps: Sequence[Step], needed: Sequence[Step], *, forced: bool
    ) -> bool:
        """Let the schedule choose a step and run it; whether it chose one."""
        point = Point(key, steps, needed, forced, self._idle, self.state)
        step = self.schedule.choose(point)
        if step is None:
            return False
        self._idle = 0
        self._is_running = True
        try:
            step.action.advance(step.part, self.memory)
        finally:
            self._is_running = False
        if step.action.done:
            self.pending.remove(step.action)
        return True

    def _guarded_perform(self, items: Sequence[Work]) -> None:
        self._is_running = True
        try:
            perform(items, self.memory)
        finally:
            self._is_running = False

    def require_host(self) -> None:
        """Raise `RuntimeError` within a host function or a task, which may call nothing here."""
        if self._is_running:
            raise RuntimeError("a host function or a task called the simulation")

    def state(self) -> Hashable:
        """Equal for two runs of a program whose device is in the same state."""
        return self.memory.image(), tuple(action.state() for action in self.pending)
