"""Rows of a request's positions, as the model of bytes stores them; no trace holds this op."""

from dataclasses import dataclass

from kvexact.refmodel.ops import Op, Slot


@dataclass(frozen=True, slots=True)
class WritePositions:
    """Store the rows of positions of a request in all layers of these slots.

    Attributes:
        id: of the op on requests that it is part of.
        slots: one a position; blocks are ids.
        hashes: of `kvexact.refmodel.content.prefixes`, one a position.
        defined: how many of them, from the first, are defined after it; the others are rejected.
    """

    id: int
    group: int
    slots: tuple[Slot, ...]
    hashes: tuple[int, ...]
    defined: int


#: What the model of bytes applies.
ByteOp = Op | WritePositions
