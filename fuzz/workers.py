"""Worker processes of a fuzzing run: they share its examples out, and one that dies is replaced."""

from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from kvexact.fuzz.child import Child, Died
from kvexact.fuzz.counts import Counts
from kvexact.fuzz.favour import Favour
from kvexact.fuzz.finding import Finding
from kvexact.fuzz.journal import recover
from kvexact.fuzz.replay import died
from kvexact.fuzz.trace import Trace
from kvexact.fuzz.worker import Done, Reduced, Task, fuzz

_POLL_S = 0.2


class Workers:
    """Examples in processes that share the numbers out; one that dies is replaced."""

    def __init__(self, task: Task, number: int, directory: Path) -> None:
        self._tasks = [
            replace(
                task,
                first=task.first + place,
                step=number,
                journal=directory / f"worker-{place}.journal",
            )
            for place in range(number)
        ]
        self._rounds: list[Connection | None] = [None] * number
        self._children = [self._start(place) for place in range(number)]
        self._reducing: dict[int, Done] = {}

    def _start(self, place: int) -> Child:
        """A worker, and in a soak what tells it of rounds."""
        task = self._tasks[place]
        if task.favour is None:
            return Child(fuzz, task)
        theirs, ours = Pipe(duplex=False)
        with theirs:
            child = Child(fuzz, task, theirs)
        self._rounds[place] = ours
        return child

    def start_round(self, favour: Favour, until: int) -> None:
        """Tell the workers what to favour in the examples before this number."""
        for place, rounds in enumerate(self._rounds):
            self._tasks[place] = replace(self._tasks[place], favour=favour, until=until)
            assert rounds is not None
            with suppress(OSError):  # one that died is started anew, with the task
                rounds.send((favour, until))

    def poll(self) -> list[Done | Reduced]:
        """Whatever the workers sent."""
        items: list[Done | Reduced] = []
        by_connection: dict[Any, int] = {
            child.connection: place for place, child in enumerate(self._children)
        }
        for connection in wait(list(by_connection), _POLL_S):
            items += self._receive(by_connection[connection])
        return items

    def _receive(self, place: int) -> list[Done | Reduced]:
        item = self._children[place].receive()
        task = self._tasks[place]
        if isinstance(item, Done):
            known = task.known | ({item.signature} if item.signature else set())
            self._tasks[place] = replace(task, first=item.number + task.step, known=known)
            if item.finding:
                self._reducing[place] = item
        elif isinstance(item, Reduced):
            self._reducing.pop(place, None)
        if isinstance(item, Done | Reduced):
            return [item]
        items = self._obituary(place, item) if isinstance(item, Died) else []
        self._children[place].close()
        self._children[place] = self._start(place)
        return items

    def _obituary(self, place: int, end: Died) -> list[Done | Reduced]:
        """What a worker was doing when it died."""
        reducing = self._reducing.pop(place, None)
        if reducing is not None and reducing.finding is not None:
            return [Reduced(reducing.number, reducing.finding)]
        task = self._tasks[place]
        assert task.journal is not None
        found = recover(task.journal)
        once = died(found, end)
        assert found is not None
        assert once.failure is not None
        number, family = task.first, task.family_of(task.first)
        self._tasks[place] = replace(task, first=number + task.step)
        task.journal.unlink()
        trace = Trace(
            found.geometry, found.ops, task.target, family, (), tuple(once.failure.signature)
        )
        finding = Finding(once.failure, trace, len(trace.ops), 0)
        signature = once.failure.signature
        done = Done(number, family, Counts(), signature, finding, died=True)
        return [done, Reduced(number, finding)]

    def close(self) -> None:
        """Kill the workers and remove their journals."""
        for child in self._children:
            child.close()
        for task in self._tasks:
            if task.journal:
                task.journal.unlink(missing_ok=True)
