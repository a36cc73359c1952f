"""Copies of the model that answer something else: what they read, refuse, or believe."""

from dataclasses import replace
from typing import ClassVar

from kvexact.fuzz.self_check_copy import GEOMETRY, Copy
from kvexact.impl.target import Area, Bytes, Facts, Rows
from kvexact.refmodel.ops import Op, Read, ReadValues
from kvexact.refmodel.spec import Geometry, Host, Refused

_IMPOSSIBLE = replace(GEOMETRY, host=Host(1))


class _OneByteRead(Copy):
    """A read with one wrong byte, at a layer set, row, layer, head and byte."""

    kind: type[Op] = Read
    at: ClassVar[tuple[int, int, int, int, int]]

    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        read = super().apply(op, rows)
        if read is not None and type(op) is self.kind:
            read[self.at[0]][self.at[1:]] ^= 1
        return read


class _ReadByte(_OneByteRead):
    at = (0, 0, 0, 0, 0)


class _PadRowRead(_OneByteRead):
    at = (0, 1, 0, 0, 0)


class _SecondSetRead(_OneByteRead):
    at = (1, 2, 0, 0, -1)


class _DecodedByte(_OneByteRead):
    kind = ReadValues
    at = (0, 2, 1, 1, -1)


class _PadRowDecoded(_OneByteRead):
    kind = ReadValues
    at = (0, 1, 0, 0, 0)


class _SecondSetDecoded(_OneByteRead):
    kind = ReadValues
    at = (1, 0, 0, 0, 0)


class _IllegalOpAccepted(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        return None if self.model.refusal(op) else super().apply(op, rows)


class _IllegalOpForAnotherReason(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if self.model.refusal(op):
            raise Refused("range", "a reason that is not the first one")
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


class _ImpossibleGeometryForAnotherReason(Copy):
    geometry = _IMPOSSIBLE

    def open(self, geometry: Geometry) -> Facts:
        raise Refused("layout", f"not for this: {geometry}")


#: How each of them must show.
SPOILT_ANSWERS: dict[type[Copy], str] = {
    _ReadByte: "rows",
    _PadRowRead: "rows",
    _SecondSetRead: "rows",
    _DecodedByte: "rows",
    _PadRowDecoded: "rows",
    _SecondSetDecoded: "rows",
    _IllegalOpAccepted: "refusal",
    _IllegalOpForAnotherReason: "refusal",
    _Fact: "fact",
    _GeometryRefused: "refusal",
    _ModelsMemory: "fact",
    _ImpossibleGeometryAccepted: "refusal",
    _ImpossibleGeometryForAnotherReason: "refusal",
}
