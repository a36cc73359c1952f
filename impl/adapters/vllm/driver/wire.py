"""The child's end of the channel: a line of JSON each way, bytes in shared memory."""

import json
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvexact.impl.bounds import Bytes


class Segment:
    """Memory that both processes map; the parent makes it grow."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes = np.empty(0, np.uint8)

    def take(self, size: int) -> Bytes:
        """The first so many bytes."""
        if size > self._bytes.size:
            length = os.fstat(self._descriptor).st_size
            if size > length:
                os.ftruncate(self._descriptor, size)
                length = size
            self._bytes = np.frombuffer(mmap.mmap(self._descriptor, length), np.uint8)
        return self._bytes[:size]


class Wire:
    """Calls from the parent, answers to it, and two segments: the pool, and rows."""

    def __init__(self, calls: int, answers: int, pool: int, rows: int) -> None:
        self._calls = os.fdopen(calls, "rb")
        self._answers = os.fdopen(answers, "wb", buffering=0)
        self.pool, self.rows = Segment(pool), Segment(rows)

    def calls(self) -> Iterator[dict[str, Any]]:
        """What the parent asks, until it closes its end."""
        for line in self._calls:
            yield json.loads(line)

    def answer(self, value: dict[str, Any]) -> None:
        """Answer the last call."""
        self._answers.write(json.dumps(value).encode() + b"\n")
