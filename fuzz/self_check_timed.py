"""Asynchronous copies of the model, for the check of the harness: one sound, others spoilt."""

from kvexact.fuzz.self_check_copy import Base
from kvexact.impl.target import Bytes, Result, Rows
from kvexact.refmodel.ops import (
    BLOCK_OPS,
    TIMED_OPS,
    Allocate,
    Job,
    Move,
    Offload,
    Op,
    Slot,
    WriteTokens,
)
from kvexact.refmodel.timed_ops import Fence, Poll, Step

OPS: tuple[Op, ...] = (
    Allocate(0, 0, (2, 0)),
    WriteTokens(1, 0, (Slot(2, 1), Slot(0, 0)), tag=1),
    Offload(2, (Job(0, (Move(2, 1, 0),)),)),
    Step(3),
    Poll(4, 2),
)


class InTime(Base):
    """Does all at once, which is in time; ``apply`` of a subclass spoils bytes after an op."""

    is_async = True
    op_kinds = frozenset({**BLOCK_OPS, **TIMED_OPS})

    def apply(self, op: Op, rows: Rows | None) -> Result:  # noqa: ARG002 - the model has its own
        """See `Target`."""
        if isinstance(op, Poll):
            return True
        return None if isinstance(op, Fence | Step) else self.do(op)

    @property
    def content(self) -> Bytes:
        """The first byte that the write stores in block 0, which moves nowhere; alone."""
        place = int(self.model.layout(0).cells[0, 0])
        return self.model.areas["pool"][place : place + 1]


class _SettledByte(InTime):
    """A byte that nothing pending may write, until there is a fence."""

    def apply(self, op: Op, rows: Rows | None) -> Result:
        if isinstance(op, Step | Fence):
            self.model.areas["pool"][-1] ^= 1
        return super().apply(op, rows)


class _ByteAtTheEnd(InTime):
    """A byte that is never what it should be, but may be on its way until the end."""

    def apply(self, op: Op, rows: Rows | None) -> Result:
        result = super().apply(op, rows)
        if type(op) is WriteTokens:
            self.content[0] ^= 1
        return result


class _DoneTooSoon(InTime):
    """A transfer is said to be done, but one of its bytes comes with the fence."""

    def apply(self, op: Op, rows: Rows | None) -> Result:
        result = super().apply(op, rows)
        if isinstance(op, Offload | Fence):
            self.model.areas["host"][-self.model.plan.row_bytes] ^= 1
        return result


class _NeverDone(InTime):
    """A transfer is never said to be done."""

    def apply(self, op: Op, rows: Rows | None) -> Result:
        return False if isinstance(op, Poll) else super().apply(op, rows)


#: How each of them must show.
SPOILT: dict[type[Base], str] = {
    _SettledByte: "mismatch",
    _ByteAtTheEnd: "mismatch",
    _DoneTooSoon: "mismatch",
    _NeverDone: "poll",
}
