"""Copies of the model that leave other bytes: each must show as a mismatch."""

from dataclasses import replace

import numpy as np

from kvexact.fuzz.self_check_copy import Copy
from kvexact.impl.target import Bytes, Facts, FreeBytes, Rows
from kvexact.refmodel.ops import Allocate, Offload, Op, Read, Restore, WriteTokens, WriteValues
from kvexact.refmodel.spec import Geometry


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

    def content(self, block: int = 2, layer_set: int = 0) -> tuple[slice, Bytes]:
        """Where the content of a block in a set's layer 0 lies, and the pool."""
        placement = self.model.plan.placements[0][layer_set]
        start = placement.start + block * placement.grid["B"]
        return slice(start, start + placement.content_bytes), self.model.areas["pool"]


class _ContentByte(_After):
    kind = WriteTokens

    def spoil(self) -> None:
        place, pool = self.content()
        pool[place.stop - 1] ^= 1


class _SecondSetByte(_After):
    kind = WriteTokens

    def spoil(self) -> None:
        place, pool = self.content(layer_set=1)
        pool[place.start] ^= 1


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


class _ZeroOnAllocateForgotten(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if type(op) is Allocate:
            op = replace(op, zero=False)
        return super().apply(op, rows)


class _IllegalOpChangesByte(Copy):
    def apply(self, op: Op, rows: Rows | None) -> Rows | None:
        if self.model.refusal(op):
            self.model.areas["pool"][0] ^= 1
        return super().apply(op, rows)


SPOILT_BYTES: tuple[type[Copy], ...] = (
    _ContentByte,
    _SecondSetByte,
    _NeighbourByteBesideFreePadding,
    _ShiftedContent,
    _PaddingByte,
    _TailByte,
    _HostByte,
    _UnwrittenBytesZeroed,
    _RestoreLost,
    _ValuesLost,
    _ValuesOfAnotherSlot,
    _ZeroOnAllocateForgotten,
    _IllegalOpChangesByte,
)
