"""Copies between two areas, as nearly all are: each access is a slice of one of these.

Where they lie was checked by the call that queued them; they are sought again only once an area is
no longer registered.
"""

from collections.abc import Sequence
from typing import Any

from kvexact.impl.simulation.memory import Area

#: The area of all targets of some copies, and that of all sources.
Sides = tuple[Area, Area]


def are_kept(sides: Sides) -> bool:
    """Whether both areas are still registered."""
    return sides[0].is_kept and sides[1].is_kept


def move(copies: Sequence[Any], sides: Sides) -> None:
    """Do copies at once."""
    written, read = sides
    to_view, to_start, of_view, of_start = written.view, written.start, read.view, read.start
    for target, source, nbytes in copies:
        to, at = target - to_start, source - of_start
        to_view[to : to + nbytes] = of_view[at : at + nbytes]


def read(
    copies: Sequence[Any], pieces: Sequence[tuple[int, int, int]], sides: Sides
) -> list[bytes]:
    """What pieces of copies, from a byte to a byte of one each, read."""
    view, first, found = sides[1].view, sides[1].start, []
    for index, start, end in pieces:
        at = copies[index].source - first
        found.append(view[at + start : at + end].tobytes())
    return found


def write(
    copies: Sequence[Any],
    pieces: Sequence[tuple[int, int, int]],
    sides: Sides,
    staged: Sequence[bytes],
) -> None:
    """Write what the pieces read."""
    view, first = sides[0].view, sides[0].start
    for (index, start, end), data in zip(pieces, staged, strict=True):
        to = copies[index].target - first
        view[to + start : to + end] = data
