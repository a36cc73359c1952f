"""Asynchronous targets in a few lines: two models, one of which lags behind; faults to choose from.

The first model decides what is accepted. The other one does the same ops later, at moments that a
schedule decides, and its bytes are what the target shows.
"""

import numpy as np

from kvexact.fuzz.self_check_copy import Base, run
from kvexact.impl.simulation.schedules import mixed
from kvexact.impl.target import Area, Bytes, Facts, Result, Rows
from kvexact.refmodel.cache import Cache
from kvexact.refmodel.ops import (
    BLOCK_OPS,
    TIMED_OPS,
    Offload,
    Op,
    Read,
    ReadValues,
    Reset,
    Restore,
    WriteTokens,
)
from kvexact.refmodel.plan import plan
from kvexact.refmodel.spec import Geometry, Refused
from kvexact.refmodel.timed_ops import Fence, Poll, Step


class Delayed(Base):
    """Runs what is pending one after the other, now and then."""

    is_async = True
    op_kinds = frozenset({**BLOCK_OPS, **TIMED_OPS})

    def schedule(self, number: int) -> None:
        self.chosen = number

    def open(self, geometry: Geometry) -> Facts:
        self.late = Cache(plan(geometry))
        self.queue: list[Op] = []
        return super().open(geometry)

    def apply(self, op: Op, rows: Rows | None) -> Result:
        if isinstance(op, Poll):
            return self.poll(op.job)
        if isinstance(op, Fence | Step):
            self.pass_time(op, to_the_end=isinstance(op, Fence))
            return None
        reason = self.model.refusal(op)
        if reason is not None:
            raise Refused(reason, "as the model says")
        self.model.apply(op)
        self.queue.append(op)
        waits = isinstance(op, Read | ReadValues | Reset)
        if not waits:
            self.pass_time(op, to_the_end=False)
            return None
        while len(self.queue) > 1:
            self.run_next()
        self.queue.clear()
        return self.gather(op)

    def gather(self, op: Op) -> Rows | None:
        return run(self.late, op)

    def poll(self, job: int) -> bool:
        return all(op.id != job for op in self.queue)

    def pass_time(self, op: Op, *, to_the_end: bool) -> None:
        while self.queue and (to_the_end or self.is_due(self.queue[0], op)):
            self.run_next()

    def is_due(self, pending: Op, op: Op) -> bool:
        if self.chosen < 2:
            return self.chosen == 1
        return mixed(self.chosen, pending.id, op.id) % 3 == 0

    def run_next(self) -> None:
        self.late.apply(self.queue.pop(0))

    def view(self, area: Area) -> Bytes:
        return self.late.areas[area]

    def load(self, area: Area, data: Bytes) -> None:
        for model in (self.model, self.late):
            model.areas[area][:] = data


class OffloadsLate(Delayed):
    """A write overtakes an offload before it: the source is filled again while it is pending."""

    def run_next(self) -> None:
        first, *rest = self.queue
        if isinstance(first, Offload) and rest and isinstance(rest[0], WriteTokens):
            self.queue = [rest[0], first, *rest[1:]]
        super().run_next()


class DoneAtOnce(Delayed):
    """A transfer is said to be done when it is begun."""

    def poll(self, job: int) -> bool:
        return True


class NeverDone(Delayed):
    """A transfer is never said to be done."""

    def poll(self, job: int) -> bool:
        return False


class NoAnswer(Delayed):
    """A poll has no answer."""

    def poll(self, job: int) -> bool:
        return None  # type: ignore[return-value]


class PollsNumpy(Delayed):
    """A poll has an answer of another type."""

    def poll(self, job: int) -> bool:
        return np.bool_(super().poll(job))  # type: ignore[return-value]


class NoSchedule(Delayed):
    """It fails before it is opened."""

    def schedule(self, number: int) -> None:
        raise ValueError("no such\nschedule")


class LosesRestores(Delayed):
    """A restore that is last is dropped: no fault of order."""

    def run_next(self) -> None:
        if isinstance(self.queue[0], Restore) and len(self.queue) == 1:
            self.queue.clear()
        else:
            super().run_next()


class AtOnce(Delayed):
    """Asynchronous by its word alone."""

    def is_due(self, pending: Op, op: Op) -> bool:
        return True
