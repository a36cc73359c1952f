"""Memory that an isolated target and its parent both map."""

import mmap
import os
from math import prod

import numpy as np

from kvexact.impl.target import Bytes

#: Shapes of the arrays that lie one after the other in shared memory.
Shapes = tuple[tuple[int, ...], ...]


class Segment:
    """Memory that two processes map; it grows as either of them needs more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._size = -1  # not even nothing is mapped

    def _map(self, size: int) -> None:
        self._memory = mmap.mmap(self.descriptor, _room(size))
        self._bytes: Bytes = np.frombuffer(self._memory, np.uint8)
        self._size = _room(size)

    def grow(self, size: int) -> None:
        """Make it no smaller. Who only reads does not: what is said to lie there has its room."""
        if os.fstat(self.descriptor).st_size < _room(size):
            os.ftruncate(self.descriptor, _room(size))

    def _make_room(self, size: int) -> None:
        """Before so many bytes are put there."""
        if size > self._size:
            self.grow(size)
            self._map(size)

    def write(self, data: bytes) -> None:
        """Put a message there."""
        size = len(data)
        self._make_room(size)
        self._memory[:size] = data

    def put(self, arrays: tuple[Bytes, ...]) -> Shapes:
        """Copy arrays there, one after the other."""
        self._make_room(sum([array.size for array in arrays]))
        end = 0
        for array in arrays:
            start, end = end, end + array.size
            self._memory[start:end] = np.ascontiguousarray(array)  # type: ignore[call-overload]
        return tuple([array.shape for array in arrays])

    def read(self, size: int) -> bytes:
        """The message of so many bytes that lies there. Raises `ValueError` where fewer do."""
        if size > self._size:
            self._map(size)
        return self._memory[:size]

    def take(self, size: int) -> Bytes:
        """The first bytes of it. Raises `ValueError` where it has fewer."""
        if size > self._size:
            self._map(size)
        return self._bytes[:size]

    def arrays(self, shapes: Shapes) -> tuple[Bytes, ...]:
        """The arrays that lie there."""
        sizes = [prod(shape) for shape in shapes]
        whole = self.take(sum(sizes))
        found, end = [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            start, end = end, end + size
            found.append(whole[start:end].reshape(shape))
        return tuple(found)


def _room(size: int) -> int:
    """How large a segment is, at least, that holds so many bytes."""
    return 1 << max(12, (size - 1).bit_length())
