"""A target in a process of its own: `Isolated` is its stand-in on this side.

The process is spawned, never forked, and replaced when it dies. One round trip an op; the deadline
is held here. What a target does to its process is a failure like any other: signal, exit, hang.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from kvexact.fuzz.messages import DONE, Answer, Ask, Call, Load, OddParts, Prepare, Raised
from kvexact.fuzz.target_process import Limits, TargetProcess, start_process
from kvexact.fuzz.targets import NamedTarget
from kvexact.fuzz.wrong import Outcome, Wrong
from kvexact.impl.target import Area, Bytes, Facts, Result, Rows, Target, Unavailable
from kvexact.refmodel.ops import Op
from kvexact.refmodel.spec import Geometry, Refused

#: What a target class declares, and its stand-in declares after it.
_DECLARED = (
    "op_kinds",
    "op_refusals",
    "geometry_refusals",
    "may_refuse",
    "declared",
    "free",
    "families",
    "copies_slots",
    "fits",
    "is_async",
)
#: Opening a geometry may compile kernels.
_OPEN_FACTOR = 10
#: Programs that reducing runs at most where each that fails costs a deadline.
HANGS_MOST = 50


@dataclass(slots=True)
class Isolation:
    """Makes isolated targets, all of them in one process, one after the other.

    Attributes:
        turn: the target that the process works for.
        process: the process, while it lives.
    """

    named: NamedTarget
    limits: Limits = field(default_factory=Limits)
    turn: "Isolated | None" = None
    process: TargetProcess | None = None

    def make(self) -> "Isolated":
        """A new target.

        Raises:
            Unavailable: it cannot run here.
        """
        self.start()
        return Isolated(self)

    def share_core(self, number: int) -> None:
        """Keep this process and that of the target on one core, as only one of them works.

        Waking a process on the core of the one that waits for it takes a fifth of what it takes
        across cores, where the machine is a virtual one.

        Args:
            number: which core, of those that there are, in turn.
        """
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
        if self.process is not None:
            os.sched_setaffinity(self.process.pid, {cores[number % len(cores)]})

    def cpu_seconds(self) -> float:
        """What the process has worked so far."""
        # The number of a process' clock, as Linux makes it of the process' number.
        return time.clock_gettime((~self.start().pid << 3) | 2)

    def hurried(self) -> "Isolation":
        """The same with a short deadline, to reduce what hangs."""
        short = max(self.limits.deadline_s / 10, min(1.0, self.limits.deadline_s))
        return Isolation(self.named, replace(self.limits, deadline_s=short))

    def start(self) -> TargetProcess:
        """The process, which starts where there is none."""
        if self.process is None:
            self.process = start_process(self.named.name, self.limits)
            self.turn = None
        return self.process

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.close()
        self.process = self.turn = None


class Isolated(Target):
    """Stands in for a target whose instance lives in another process."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._views: dict[Area, Bytes | Wrong] = {}
        self._schedule: int | None = None
        for name in _DECLARED:
            setattr(self, name, getattr(isolation.named.target_type, name))

    def schedule(self, number: int) -> None:
        """See `Target`."""
        self._schedule = number

    def plan(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        return self._prepare("plan", geometry)

    def open(self, geometry: Geometry) -> Facts:
        """See `Target`."""
        return self._prepare("open", geometry)

    def _prepare(self, what: str, geometry: Geometry) -> Facts:
        isolation = self._isolation
        isolation.start()
        anew = isolation.turn is not self
        isolation.turn = self
        answer = self._call(Prepare(what, geometry, anew, self._schedule), _OPEN_FACTOR)
        if answer.refused:
            raise Refused(*answer.refused)
        facts: Facts = _tuples(answer.value)
        return facts

    def apply(self, op: Op, rows: Rows | None) -> Result:
        """See `Target`."""
        process = self._isolation.start()
        channel = process.channel
        channel.send_op(op, None if rows is None else channel.segments["rows"].put(rows))
        answer = self._answer(process)
        if answer is DONE:
            return None
        if answer.refused:
            raise Refused(*answer.refused)
        if isinstance(answer.told, OddParts):
            return answer.told.answer()
        if answer.read is None:
            return answer.told  # type: ignore[return-value]  # what is odd is judged as such
        return channel.segments["read"].arrays(answer.read)

    def view(self, area: Area) -> Bytes:
        """See `Target`; as it was after the last op."""
        view = self._views[area]
        if isinstance(view, Wrong):
            raise view
        return view

    def load(self, area: Area, data: Bytes) -> None:
        """See `Target`."""
        shapes = self._isolation.start().channel.segments["rows"].put((data,))
        if self._call(Load(area, shapes)).kept:
            self._views[area] = data

    def probe(self) -> None:
        """See `Target`."""
        if self._is_open():
            self._call(Ask("probe"))

    def launches(self) -> Mapping[str, int]:
        """See `Target`."""
        return self._call(Ask("launches")).value if self._is_open() else {}

    def close(self) -> None:
        """See `Target`; where its process died, nothing is left to close."""
        if self._is_open():
            self._call(Ask("close"))

    def _is_open(self) -> bool:
        return self._isolation.process is not None and self._isolation.turn is self

    def _call(self, call: Call, factor: int = 1) -> Answer:
        """Send a call and wait for its answer; see `_answer`."""
        process = self._isolation.start()
        process.channel.send(call)
        return self._answer(process, factor)

    def _answer(self, process: TargetProcess, factor: int = 1) -> Answer:
        """Wait for an answer; a process that is of no more use is gone after it.

        Raises:
            Wrong: what the target raised, or did to its process.
        """
        isolation = self._isolation
        try:
            answer = process.receive(isolation.limits.deadline_s * factor)
        except (Wrong, Unavailable):
            isolation.process = isolation.turn = None
            raise
        if answer is DONE:
            return answer
        segments = process.channel.segments
        for area, size in answer.sizes.items():
            self._views[area] = segments[area].take(size)
        for area, unseen in answer.unseen.items():
            self._views[area] = _wrong(unseen)
        if answer.raised:
            if answer.raised.outcome == "device_lost":
                isolation.close()
            raise _wrong(answer.raised)
        return answer


def _wrong(told: Raised) -> Wrong:
    outcome: Outcome = msgspec.convert(told.outcome, Outcome)
    return Wrong(outcome, None, told.text, name=told.name)


def _tuples(value: Any) -> Any:
    """The same with tuples for the lists that JSON makes of them, in a mapping's values too."""
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
