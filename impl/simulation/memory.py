"""Registered memory: which bytes work may touch, and of what kind they are.

Addresses are those of the bytes in this process, so that compiled kernels can work on them. No
access is made before its whole range was found inside one registered area.
"""

import ctypes
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from operator import add
from typing import NamedTuple

from kvexact.impl.bounds import Bytes, OutOfBounds


class Kind(Enum):
    """Where bytes lie, which decides how copies of them are ordered against the host."""

    DEVICE = "device"
    PINNED = "pinned"
    PAGEABLE = "pageable"


class Range(NamedTuple):
    """Bytes from address ``start`` on."""

    start: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.nbytes

    def overlaps(self, other: "Range") -> bool:
        """Whether some byte is in both."""
        return max(self.start, other.start) < min(self.end, other.end)


@dataclass(slots=True, eq=False)
class Area:
    """A registered area; work may touch ``data``, whose first byte has the address ``start``.

    Attributes:
        view: the same bytes; to slice it takes a third of the time of an access by address.
        is_kept: False once it is released.
    """

    start: int
    end: int
    kind: Kind
    name: str
    data: Bytes
    view: memoryview
    is_kept: bool = True


class Memory:
    """The areas that work may touch."""

    def __init__(self) -> None:
        self._areas: dict[int, Area] = {}  # by start, in the order in which they were registered
        self._sorted: list[Area] = []
        self._starts: list[int] = []  # of the sorted ones

    def register(self, name: str, data: Bytes, kind: Kind) -> int:
        """Let work touch ``data``, which is one contiguous run of bytes.

        Returns:
            The address of its first byte.

        Raises:
            ValueError: it is not contiguous, or overlaps what is registered.
        """
        if not data.flags.c_contiguous:
            raise ValueError(f"{name}: the bytes are not contiguous")
        start = int(data.ctypes.data)
        place = Range(start, data.size)
        if any(
            place.overlaps(Range(area.start, area.end - area.start))
            for area in self._areas.values()
        ):
            raise ValueError(f"{name}: some bytes are already registered")
        area = Area(start, start + data.size, kind, name, data, data.data)
        self._areas[start] = area
        index = bisect_right(self._starts, start)
        self._sorted.insert(index, area)
        self._starts.insert(index, start)
        return start

    def release(self, start: int) -> None:
        """No longer let work touch the area that starts there. Raises `OutOfBounds`."""
        area = self.starting(start)
        area.is_kept = False
        del self._areas[start]
        self._sorted.remove(area)
        self._starts.remove(start)

    def find(self, start: int, nbytes: int) -> Area:
        """The area that holds all of these bytes. Raises `OutOfBounds`."""
        index = bisect_right(self._starts, start) - 1
        if index >= 0:
            area = self._sorted[index]
            if start + nbytes <= area.end:
                return area
        raise OutOfBounds(f"{nbytes} bytes at {self._place(start)} are outside registered memory")

    def require(self, places: Sequence[Range]) -> None:
        """Raise `OutOfBounds` unless each of these ranges is in one registered area."""
        areas = self._areas
        for start, nbytes in places:
            area = areas.get(start)  # most are whole areas
            if area is None or start + nbytes > area.end:
                self.find(start, nbytes)

    def _place(self, start: int) -> str:
        """An address as an offset from the nearest area: the same in every run."""
        if not self._areas:
            return "an unknown address"
        area = min(self._areas.values(), key=lambda area: abs(start - area.start))
        return f"{area.name} {start - area.start:+}"

    def starting(self, start: int) -> Area:
        """The area that starts there. Raises `OutOfBounds`."""
        area = self.find(start, 0)
        if area.start != start:
            raise OutOfBounds(f"{self._place(start)} is not the start of an area")
        return area

    def find_all(self, starts: Sequence[int], sizes: Sequence[int]) -> list[Area]:
        """The areas that hold all of these ranges, each area once. Raises `OutOfBounds`."""
        if not starts:
            return []
        area = self.find(starts[0], sizes[0])
        if len(starts) == 1:
            return [area]
        if area.start <= min(starts) and max(map(add, starts, sizes)) <= area.end:
            return [area]
        found = {area.start: area}
        for start, nbytes in zip(starts, sizes, strict=True):
            if start < area.start or start + nbytes > area.end:
                area = self.find(start, nbytes)
                found[area.start] = area
        return [found[start] for start in sorted(found)]

    # Accesses. All raise `OutOfBounds`, and then nothing was read or written.

    def read(self, start: int, nbytes: int) -> bytes:
        """A copy of these bytes."""
        area = self.find(start, nbytes)
        at = start - area.start
        return area.view[at : at + nbytes].tobytes()

    def write(self, start: int, data: bytes) -> None:
        """Store these bytes."""
        area = self.find(start, len(data))
        at = start - area.start
        area.view[at : at + len(data)] = data

    def fill(self, start: int, value: int, nbytes: int) -> None:
        """Store one byte many times."""
        self.find(start, nbytes)
        ctypes.memset(start, value, nbytes)

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Read bytes and store them, of each copy from its second address to its first."""
        targets, sources, sizes = zip(*copies, strict=True)
        self.find_all(targets, sizes)
        self.find_all(sources, sizes)
        for target, source, nbytes in copies:
            ctypes.memmove(target, source, nbytes)

    def image(self) -> tuple[bytes, ...]:
        """All bytes of all areas, in the order in which they were registered."""
        return tuple(area.data.tobytes() for area in self._areas.values())
