"""A fuzzing run: results in the order of their numbers, each new failure reported at once."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kvexact.fuzz.finding import Finding
from kvexact.fuzz.tally import Tally
from kvexact.fuzz.worker import Done, Fallen, Item, Reduced
from kvexact.impl.target import Unavailable

#: How long a run whose time is over waits for reductions under way; any other waits for all.
_GRACE_S = 60.0

#: A run ends after so many processes that died or lost their device; each costs a new one.
DEATHS_MOST = 100
#: A run ends after so many kinds of failure; each takes room on disk.
KINDS_MOST = 1000


class Source(Protocol):
    """Where results come from."""

    def poll(self) -> list[Item]:
        """Results since the last call; waits a moment for the first one."""
        ...

    def close(self) -> None:
        """End all work."""
        ...


@dataclass(slots=True)
class Soak:
    """Runs until a budget ends, a failure is wanted, or somebody interrupts.

    Attributes:
        report: is told each new finding once, reduced where there was time, and how many of three
            more runs of it failed.
        progress: is told the tally now and then.
        max_ops: acted ops after which no further example counts; nor do more examples than that,
            so that a run ends where nothing acts.
        max_seconds: stop early.
        first: stop at the first failure.
        stopped: whether somebody wants the run to end.
        counted: is told the number of the next example, each time one was counted in its turn, and
            whether every failure counted so far was reported.
        came: is told each new failure as it comes, before it is reduced.
        fell: is told of each worker that died without its target's doing.
        start: number of the first example.
    """

    tally: Tally
    source: Source
    report: Callable[[Finding, int | None], None]
    progress: Callable[[Tally], None]
    max_ops: int | None = None
    max_seconds: float | None = None
    first: bool = False
    stopped: Callable[[], bool] = bool
    counted: Callable[[int, bool], None] = lambda *_: None
    came: Callable[[Finding], None] = lambda _: None
    fell: Callable[[str], None] = lambda _: None
    start: int = 0
    _next: int = field(init=False)
    _came: dict[int, Done] = field(default_factory=dict)
    _reduced: dict[int, Reduced] = field(default_factory=dict)
    _waiting: dict[int, Finding] = field(default_factory=dict)
    _seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = self.start
        self._seconds = self.tally.seconds

    def run(self) -> bool:
        """Run it. False: it was interrupted."""
        started = time.monotonic() - self._seconds
        whole = True
        try:
            while not self._enough() and not self._late(started) and not self.stopped():
                self._take(self.source.poll())
                self._merge()
                self._tell(started)
            patience = time.monotonic() + _GRACE_S
            timed = self.max_seconds is not None
            while (
                self._waiting and not (timed and time.monotonic() > patience) and not self.stopped()
            ):
                self._take(self.source.poll())
                self._tell(started)
            whole = not self.stopped()
        except KeyboardInterrupt:
            whole = False
        except Unavailable as error:
            self._merge_rest()
            if not self.tally.failures:
                raise
            self.tally.ended = f"the target cannot run any more: {error}"
        if not whole or self._late(started):
            self._merge_rest()
        if self.tally.deaths >= DEATHS_MOST:
            self.tally.ended = f"{self.tally.deaths} processes died or lost their device"
        elif len(self.tally.failures) >= KINDS_MOST:
            self.tally.ended = f"{len(self.tally.failures):,} kinds of failure"
        for number, finding in sorted(self._waiting.items()):
            self._say(self._reduced.get(number, Reduced(number, finding)))
        self.tally.seconds = time.monotonic() - started
        return whole

    def _enough(self) -> bool:
        """Whether the results so far, and nothing else, end the run."""
        tally = self.tally
        if (self.first and tally.failures) or tally.deaths >= DEATHS_MOST:
            return True
        if len(tally.failures) >= KINDS_MOST:
            return True
        return self.max_ops is not None and max(tally.acted, tally.examples) >= self.max_ops

    def _late(self, started: float) -> bool:
        return self.max_seconds is not None and time.monotonic() - started >= self.max_seconds

    def _take(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Fallen):
                self.tally.deaths += 1
                self.tally.left_out += [item.text] * item.left_out
                self.fell(item.text)
            elif isinstance(item, Reduced):
                self._reduced[item.number] = item
            else:
                self._came[item.number] = item
                if item.finding:
                    self.came(item.finding)

    def _merge(self) -> None:
        """Count results in the order of their numbers."""
        while self._next in self._came and not self._enough():
            self._count(self._came.pop(self._next))
            self._next += 1
            self.counted(self._next, not self._waiting)

    def _merge_rest(self) -> None:
        """Count results behind one that did not come in time."""
        for number in sorted(self._came):
            if self._enough():
                return
            self._count(self._came.pop(number))

    def _count(self, done: Done) -> None:
        self.tally.counts[done.family].add(done.counts)
        self.tally.examples += 1
        self.tally.geometries += done.counts.geometries.total()
        self.tally.acted += done.counts.acted
        if done.signature is None:
            return
        if done.signature not in self.tally.failures and done.finding is not None:
            self._waiting[done.number] = done.finding
        self.tally.failures[done.signature] += 1
        self.tally.deaths += done.died

    def _tell(self, started: float) -> None:
        """Report in the order of the numbers, whatever was reduced first."""
        for number in sorted(self._waiting):
            if number not in self._reduced:
                break
            self._say(self._reduced[number])
            del self._waiting[number]
        self.tally.seconds = time.monotonic() - started
        self.progress(self.tally)

    def _say(self, reduced: Reduced) -> None:
        self.tally.findings.append(reduced.finding)
        self.report(reduced.finding, reduced.failed_runs)
