"""A check of the harness itself: a second copy of the model as a target, with one thing spoilt.

Each of these must be reported, and the copy without a fault must not be. Where a comparison, the
poison or the payload has gone soft, one of them is missed, and no result after it counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvexact.fuzz.run import execute
from kvexact.fuzz.self_check_copy import GEOMETRY, Base, Copy
from kvexact.fuzz.self_check_timed import OPS, SPOILT, InTime
from kvexact.impl.target import Area, Bytes, Facts, FreeBytes, Rows
from kvexact.refmodel.ops import (
    Allocate,
    Job,
    Move,
    Offload,
    Op,
    Read,
    ReadValues,
    Restore,
    Slot,
    WriteTokens,
    WriteValues,
)
from kvexact.refmodel.spec import Geometry, Host, Refused

_IMPOSSIBLE = replace(GEOMETRY, host=Host(1))
_ROWS = (Slot(2, 1), None, Slot(2, 0))
_OPS: tuple[Op, ...] = (
    Allocate(0, 0, (2, 0)),
    WriteTokens(1, 0, _ROWS, tag=1),
    Offload(2, (Job(0, (Move(2, 1, 0),)),)),
    WriteTokens(3, 0, _ROWS, tag=3),
    Restore(4, (Job(0, (Move(2, 1, 0),)),)),
    Read(5, 0, _ROWS),
    WriteValues(6, 0, _ROWS, tag=6, value_type="bf16"),
    ReadValues(7, 0, _ROWS),
    Allocate(8, 0, (3,), zero=True),
    Allocate(9, 0, (1, 0)),
)
_HAPPENS = ["acted"] * 9 + ["refused:owner"]


class _After(Copy):
    """Does something else after each op of one kind."""

    kind: type[Op]

    def spoil(self) -> None:
        """What it does."""
        raise NotImplementedError

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        read = super().apply(op, rows)
        if type(op) is self.kind:
            self.spoil()
        return read

    def content(self, block: int = 2) -> tuple[slice, Bytes]:
        """Where the content of a block in layer 0 lies, and the pool."""
        placement = self.model.plan.placements[0][0]
        start = placement.start + block * placement.grid["B"]
        return slice(start, start + placement.content_bytes), self.model.areas["pool"]


class _ContentByte(_After):
    kind = WriteTokens

    def spoil(self) -> None:
        place, pool = self.content()
        pool[place.stop - 1] ^= 1


class _NeighbourByteBesideFreePadding(_After):
    kind = WriteTokens
    free = (FreeBytes("write_tokens", "page_padding", "to see that no more than that is free"),)

    def spoil(self) -> None:
        place, pool = self.content()
        pool[place.start - 1] ^= 1
        pool[place.stop] ^= 1


class _ShiftedContent(_After):
    kind = WriteTokens

    def spoil(self) -> None:
        place, pool = self.content()
        pool[place] = np.roll(pool[place], 4)


class _PaddingByte(_After):
    kind = WriteTokens

    def spoil(self) -> None:
        place, pool = self.content()
        pool[place.stop] ^= 1


class _TailByte(_After):
    kind = Read

    def spoil(self) -> None:
        self.model.areas["pool"][-1] ^= 128


class _HostByte(_After):
    kind = Offload

    def spoil(self) -> None:
        self.model.areas["host"][0] ^= 1


class _UnwrittenBytesZeroed(_After):
    kind = Allocate

    def spoil(self) -> None:
        place, pool = self.content(block=0)
        pool[place] = 0


class _RestoreLost(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        return None if type(op) is Restore else super().apply(op, rows)


class _ReadByte(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        read = super().apply(op, rows)
        if read is not None and type(op) is Read:
            read[0][0, 0, 0, 0] ^= 1
        return read


class _PadRowRead(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        read = super().apply(op, rows)
        if read is not None and type(op) is Read:
            read[0][1, 0, 0, 0] ^= 1
        return read


class _ValuesLost(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        return None if type(op) is WriteValues else super().apply(op, rows)


class _ValuesOfAnotherSlot(Copy):
    def open(self, geometry: Geometry) -> Facts:
        found = super().open(geometry)
        right = self.model.values

        def swapped(op: WriteValues) -> Rows:
            return tuple(rows[::-1] for rows in right(op))

        self.model.values = swapped  # type: ignore[method-assign]
        return found


class _DecodedByte(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        read = super().apply(op, rows)
        if read is not None and type(op) is ReadValues:
            read[0][2, 1, 1, -1] ^= 1
        return read


class _PadRowDecoded(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        read = super().apply(op, rows)
        if read is not None and type(op) is ReadValues:
            read[0][1, 0, 0, 0] ^= 1
        return read


class _ZeroOnAllocateForgotten(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is Allocate:
            op = replace(op, zero=False)
        return super().apply(op, rows)


class _IllegalOpAccepted(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        return None if self.model.refusal(op) else super().apply(op, rows)


class _IllegalOpChangesByte(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if self.model.refusal(op):
            self.model.areas["pool"][0] ^= 1
        return super().apply(op, rows)


class _Fact(Copy):
    def plan(self, geometry: Geometry) -> Facts:
        return {**super().plan(geometry), "host.worker_slots": 1}


class _GeometryRefused(Copy):
    def open(self, geometry: Geometry) -> Facts:
        raise Refused("host", f"for no reason: {geometry}")


class _ModelsMemory(Copy):
    def load(self, area: Area, data: Bytes) -> None:
        self.model.areas[area] = data


class _ImpossibleGeometryAccepted(Copy):
    geometry = _IMPOSSIBLE

    def open(self, geometry: Geometry) -> Facts:
        return super().open(GEOMETRY if geometry == _IMPOSSIBLE else geometry)


_SPOILT: dict[type[Copy], str] = {
    _ContentByte: "mismatch",
    _NeighbourByteBesideFreePadding: "mismatch",
    _ShiftedContent: "mismatch",
    _PaddingByte: "mismatch",
    _TailByte: "mismatch",
    _HostByte: "mismatch",
    _UnwrittenBytesZeroed: "mismatch",
    _RestoreLost: "mismatch",
    _ReadByte: "rows",
    _PadRowRead: "rows",
    _ValuesLost: "mismatch",
    _ValuesOfAnotherSlot: "mismatch",
    _DecodedByte: "rows",
    _PadRowDecoded: "rows",
    _ZeroOnAllocateForgotten: "mismatch",
    _IllegalOpAccepted: "refusal",
    _IllegalOpChangesByte: "mismatch",
    _Fact: "fact",
    _GeometryRefused: "refusal",
    _ModelsMemory: "fact",
    _ImpossibleGeometryAccepted: "refusal",
}


def missed() -> list[str]:
    """What the harness does not see, or sees where it is not; empty where it can be trusted."""
    found = []
    run, wrong = execute(Copy(), GEOMETRY, _OPS)
    if wrong is not None:
        found.append(f"a fault where there is none: {wrong.text}")
    elif run.recorded != _HAPPENS:
        found.append(f"what ops do: {', '.join(run.recorded)}; not {', '.join(_HAPPENS)}")
    wrong = execute(InTime(), GEOMETRY, OPS)[1]
    if wrong is not None:
        found.append(f"a fault of order where there is none: {wrong.text}")
    for spoilt, outcome in _SPOILT.items():
        found += _unlike(outcome, spoilt, _OPS)
    for in_time, outcome in SPOILT.items():
        found += _unlike(outcome, in_time, OPS)
    return found


def _unlike(outcome: str, spoilt: type[Base], ops: Sequence[Op]) -> Iterator[str]:
    """How a target shows, where it is in another way than this."""
    wrong = execute(spoilt(), spoilt.geometry, ops)[1]
    if wrong is None or wrong.outcome != outcome:
        seen = "nothing seen" if wrong is None else f"seen as {wrong.text!r}"
        yield f"{spoilt.__name__.lstrip('_')}: {seen}"
