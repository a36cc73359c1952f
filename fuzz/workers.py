"""Worker processes of a fuzzing run: they share its examples out, and one that dies is replaced."""

from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from kvexact.fuzz import journal
from kvexact.fuzz.child import Child, Died
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.favour import Favour
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.replay import died
from kvexact.fuzz.reserve import allocate
from kvexact.fuzz.target_process import as_death
from kvexact.fuzz.worker import Done, Fallen, Item, Reduced, Task, fuzz

_POLL_S = 0.2
#: A worker may die so often at one example, or at one reduction, before that is left out.
_FALLS_MOST = 3


@dataclass(slots=True)
class _Place:
    """One of the workers that run at a time.

    Attributes:
        task: what the next worker here has to do, if this one dies.
        rounds: tells it of rounds, in a soak.
        reducing: a failure that it has told, and is reducing, as it was met.
        falls: how often it died where it is, though its target is isolated.
    """

    number: int
    task: Task
    child: Child
    rounds: Connection | None
    reducing: Reduced | None = None
    falls: int = 0

    def receive(self) -> list[Item]:
        """What the worker has sent; where it died, another one takes its place."""
        item = self.child.receive()
        if isinstance(item, Done | Reduced):
            self._note(item)
            return [item]
        items: list[Item] = []
        if isinstance(item, Died):
            items = self._obituary(item) if self.task.limits is None else self._fell(item)
        self.child.close()
        self.child, self.rounds = _start(self.task)
        return items

    def _note(self, item: Done | Reduced) -> None:
        self.falls = 0
        if isinstance(item, Reduced):
            self.reducing = None
            self.task = replace(self.task, unreduced=None)
            return
        known = self.task.known | ({item.signature} if item.signature else set())
        self.task = replace(self.task, first=item.number + self.task.step, known=known)
        self.reducing = Reduced(item.number, item.finding) if item.finding else None

    def _fell(self, end: Died) -> list[Item]:
        """A worker died whose target is isolated: whatever killed it, it is tried again."""
        self.falls += 1
        number = self.reducing.number if self.reducing else self.task.first
        doing = f"while it reduced example {number}" if self.reducing else f"at example {number}"
        how = f"worker {self.number} died {doing} ({as_death(end.status).name})"
        if self.falls < _FALLS_MOST:
            self.task = replace(self.task, unreduced=self.reducing)
            return [Fallen(f"{how}; its target did not do that, so it is tried again")]
        self.falls = 0
        reducing, self.reducing = self.reducing, None
        if reducing:
            self.task = replace(self.task, unreduced=None)
            text = f"{how}, {_FALLS_MOST} times; that failure stays as it was met"
            return [Fallen(text), reducing]
        text = f"{how}, {_FALLS_MOST} times; that example is left out"
        family = self.task.family_of(number)
        self.task = replace(self.task, first=number + self.task.step)
        return [Fallen(text, left_out=True), Done(number, family, Counts())]

    def _obituary(self, end: Died) -> list[Item]:
        """What a worker was doing when its target killed it."""
        reducing, self.reducing = self.reducing, None
        if reducing:
            return [reducing]
        task = self.task
        assert task.journal is not None
        found = journal.recover(task.journal)
        once = died(found, end)
        assert found is not None
        assert once.failure is not None
        number, family = task.first, task.family_of(task.first)
        self.task = replace(task, first=number + task.step)
        journal.clear(task.journal)
        signature = once.failure.signature
        trace = replace(found, target=task.target, family=family, signature=tuple(signature))
        finding = Finding(once.failure, trace, len(trace.ops), 0)
        done = Done(number, family, Counts(), signature, finding, died=True)
        return [done, Reduced(number, finding)]


def _start(task: Task) -> tuple[Child, Connection | None]:
    """A worker, and in a soak what tells it of rounds."""
    if task.favour is None:
        return Child(fuzz, task), None
    theirs, ours = Pipe(duplex=False)
    with theirs:
        return Child(fuzz, task, theirs), ours


class Workers:
    """Examples in processes that share the numbers out; one that dies is replaced."""

    def __init__(self, task: Task, number: int, directory: Path) -> None:
        """Start them.

        Raises:
            OSError: there is no room for their journals.
        """
        self._places: list[_Place] = []
        files = [directory / f"worker-{place}.journal" for place in range(number)]
        try:
            for file in files:
                allocate(file, journal.BYTES)
        except OSError:
            for file in files:
                file.unlink(missing_ok=True)
            raise
        for place, file in enumerate(files):
            own = replace(task, first=task.first + place, step=number, journal=file)
            self._places.append(_Place(place, own, *_start(own)))

    def start_round(self, favour: Favour, until: int) -> None:
        """Tell the workers what to favour in the examples before this number."""
        for place in self._places:
            place.task = replace(place.task, favour=favour, until=until)
            assert place.rounds is not None
            with suppress(OSError):  # one that died is started anew, with the task
                place.rounds.send((favour, until))

    def poll(self) -> list[Item]:
        """Whatever the workers sent."""
        items: list[Item] = []
        ready = wait([sign for place in self._places for sign in place.child.signs], _POLL_S)
        for place in self._places:
            if any(sign in ready for sign in place.child.signs):
                items += place.receive()
        return items

    def close(self) -> None:
        """Kill the workers and remove their journals."""
        for place in self._places:
            place.child.close()
            if place.task.journal:
                place.task.journal.unlink(missing_ok=True)
