"""Hazards: which bytes pending actions may still write or read.

Bytes that no pending action may write are *settled*: they have one right value. Bytes that no
pending action may read either are *idle*: the host may change or give them away.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kvexact.impl.simulation.actions import Action, Key, Piece
from kvexact.impl.simulation.memory import Range
from kvexact.impl.simulation.work import Work, reads, writes

#: What a call may touch that does not say what it touches.
EVERYTHING = Range(0, 1 << 64)

_Touches = Callable[[Work, int, int], tuple[Range, ...] | None]


class Hazard(NamedTuple):
    """Bytes that a pending action may touch."""

    key: Key
    what: str
    place: Range


def _hazards(action: Action, pieces: Iterable[Piece], touches: _Touches) -> Iterator[Hazard]:
    for piece in pieces:
        places = touches(action.items[piece.item], piece.start, piece.end)
        for place in (EVERYTHING,) if places is None else places:
            yield Hazard(action.key, action.what, place)


def pending_writes(actions: Iterable[Action]) -> list[Hazard]:
    """What these actions may still write."""
    return [one for action in actions for one in _hazards(action, action.unwritten(), writes)]


def pending_reads(actions: Iterable[Action]) -> list[Hazard]:
    """What these actions may still read."""
    return [one for action in actions for one in _hazards(action, action.unread(), reads)]


def on(place: Range, hazards: Iterable[Hazard]) -> list[Hazard]:
    """Those that touch some byte of a range."""
    return [hazard for hazard in hazards if hazard.place.overlaps(place)]
